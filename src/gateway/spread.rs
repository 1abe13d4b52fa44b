//! A number that many threads change all the time and hardly anybody looks at: each thread has a
//! cache line of its own to add to, so that no thread waits for another's.

use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

/// More threads than that share lines, which is only slower.
const LINES: usize = 16;

#[derive(Debug, Default)]
pub struct Spread([Line; LINES]);

/// Aligned to two cache lines: CPUs fetch pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Line(AtomicI64);

thread_local! {
    static MINE: usize = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed) % LINES
    };
}

impl Spread {
    pub fn add(&self, by: i64) {
        self.0[MINE.with(|mine| *mine)].0.fetch_add(by, Ordering::Relaxed);
    }

    /// What was added in all; while others add, some moment's sum.
    pub fn sum(&self) -> u64 {
        let sum: i64 = self.0.iter().map(|line| line.0.load(Ordering::Relaxed)).sum();
        u64::try_from(sum).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_thread_adds_another_may_take_away() {
        let spread = Spread::default();
        std::thread::scope(|scope| {
            for _ in 0..40 {
                scope.spawn(|| (0..1_000).for_each(|_| spread.add(3)));
            }
        });
        (0..1_000).for_each(|_| spread.add(-100));
        assert_eq!(spread.sum(), 20_000);
    }
}
