//! Servers write a line when a request ends, so times step back. Events wait in a buffer of fixed
//! size and leave it in order of time: whatever is displaced by less than half of it is sorted
//! exactly. What comes even later is taken at the latest time that was handed out, and counted.

use crate::engine::clock::Micros;

/// Something with a time.
pub trait Timed {
    fn at(&self) -> Micros;
    fn set_at(&mut self, at: Micros);
}

#[derive(Debug)]
pub struct InOrder<T> {
    held: Vec<T>,
    size: usize,
    /// The last one handed out.
    handed_out: Micros,
    last_pushed: Micros,
    /// How often a time lay before the one of the line before.
    pub steps_back: u64,
    /// How often one came too late to be sorted.
    pub too_late: u64,
}

impl<T: Timed> InOrder<T> {
    pub fn new(size: usize) -> InOrder<T> {
        InOrder {
            held: Vec::new(),
            size: size.max(2),
            handed_out: Micros::ZERO,
            last_pushed: Micros::ZERO,
            steps_back: 0,
            too_late: 0,
        }
    }

    /// Takes the next event; when the buffer is full, those that are surely next go to `out`.
    pub fn push(&mut self, mut event: T, out: &mut Vec<T>) {
        if event.at() < self.last_pushed {
            self.steps_back += 1;
        }
        self.last_pushed = event.at();
        if event.at() < self.handed_out {
            self.too_late += 1;
            event.set_at(self.handed_out);
        }
        self.held.push(event);
        if self.held.len() == self.size {
            self.sort();
            let half = self.size / 2;
            self.handed_out = self.held[half - 1].at();
            out.extend(self.held.drain(..half));
        }
    }

    /// Hands out the rest.
    pub fn end(&mut self, out: &mut Vec<T>) {
        self.sort();
        out.append(&mut self.held);
    }

    /// Those of one time stay in the order in which they came. What is sorted already costs one
    /// look at each.
    fn sort(&mut self) {
        self.held.sort_by_key(Timed::at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq)]
    struct At(u64, u32);

    impl Timed for At {
        fn at(&self) -> Micros {
            Micros(self.0)
        }
        fn set_at(&mut self, at: Micros) {
            self.0 = at.0;
        }
    }

    fn ordered(times: &[u64], size: usize) -> (Vec<At>, InOrder<At>) {
        let (mut order, mut out) = (InOrder::new(size), Vec::new());
        for (number, at) in (0..).zip(times) {
            order.push(At(*at, number), &mut out);
        }
        order.end(&mut out);
        (out, order)
    }

    #[test]
    fn what_is_displaced_by_less_than_half_the_buffer_is_sorted_exactly() {
        let mut rng = crate::traffic::Rng::new(3, 0);
        let times: Vec<u64> = (0..5_000).map(|n| n * 10 + rng.below(150)).collect();
        let (out, order) = ordered(&times, 64);
        assert!(out.is_sorted_by_key(|event| event.0) && out.len() == 5_000);
        assert_eq!(order.too_late, 0);
        assert!(order.steps_back > 1_000);
        let mut all = times.clone();
        all.sort_unstable();
        assert_eq!(out.iter().map(|event| event.0).collect::<Vec<_>>(), all);
    }

    #[test]
    fn what_comes_later_still_is_taken_then_and_counted() {
        let times: Vec<u64> = (0..100).map(|n| if n == 90 { 3 } else { 1_000 + n }).collect();
        let (out, order) = ordered(&times, 16);
        assert_eq!(order.too_late, 1);
        assert!(out.is_sorted_by_key(|event| event.0) && out.len() == 100);
        assert_eq!(ordered(&times, 1_000).1.too_late, 0);
    }

    #[test]
    fn those_of_one_time_keep_their_order() {
        let (out, _) = ordered(&[5; 100], 8);
        assert!(out.iter().enumerate().all(|(number, event)| event.1 == number as u32));
    }
}
