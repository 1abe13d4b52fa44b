//! The run millisecond by millisecond, for expectations: so many of each kind, outcome and size.
//! When it grows too large, two milliseconds become one, then four: bounded, and said so.

use super::answer::Outcome;
use crate::engine::clock::Micros;

/// Marks kept at once, 16 bytes each.
const MAX_MARKS: usize = 4_000_000;

/// What is marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Count,
    Service,
    Response,
    RetryAfter,
}

const KINDS: [Kind; 4] = [Kind::Count, Kind::Service, Kind::Response, Kind::RetryAfter];

/// The moment, what it is, and its size, in one number that sorts by the moment.
#[inline]
pub fn mark(at_ms: u64, outcome: Outcome, kind: Kind, us: u64) -> u64 {
    at_ms << 24 | (outcome as u64) << 20 | (kind as u64) << 16 | u64::from(bucket(us))
}

/// Exact below 256, then 128 steps for each doubling: within 0.8 %.
fn bucket(us: u64) -> u16 {
    if us < 256 {
        return us as u16;
    }
    let power = us.ilog2() - 7;
    let steps = (us >> power) as u32 - 128;
    u16::try_from(128 + power * 128 + steps).unwrap_or(u16::MAX)
}

/// The largest that falls into a bucket.
fn largest(bucket: u16) -> u64 {
    let bucket = u64::from(bucket);
    if bucket < 256 {
        return bucket;
    }
    let (power, steps) = (bucket / 128 - 1, bucket % 128);
    ((128 + steps + 1) << power) - 1
}

/// The same mark, at the start of its piece of so often doubled milliseconds.
fn coarse(mark: u64, halvings: u32) -> u64 {
    let at_ms = mark >> 24 >> halvings << halvings;
    at_ms << 24 | mark & 0xff_ffff
}

/// A mark, read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marked {
    pub at: Micros,
    pub outcome: Outcome,
    pub us: u64,
    pub n: u64,
}

#[derive(Debug, Default)]
pub struct Series {
    marks: Vec<(u64, u64)>,
    /// How often milliseconds were put together in pairs.
    halvings: u32,
}

impl Series {
    /// Takes the marks of a tick.
    pub fn add(&mut self, marks: &mut [u64]) {
        marks.sort_unstable();
        let (own, halvings) = (self.marks.len(), self.halvings);
        for mark in marks.iter().map(|mark| coarse(*mark, halvings)) {
            match self.marks[own..].last_mut() {
                Some((last, n)) if *last == mark => *n += 1,
                _ => self.marks.push((mark, 1)),
            }
        }
        while self.marks.len() > MAX_MARKS {
            self.compact();
            if self.marks.len() > MAX_MARKS / 2 {
                self.halvings += 1;
                self.compact();
            }
        }
    }

    fn compact(&mut self) {
        let halvings = self.halvings;
        for (mark, _) in &mut self.marks {
            *mark = coarse(*mark, halvings);
        }
        self.marks.sort();
        self.marks.dedup_by(|later, first| {
            let same = later.0 == first.0;
            if same {
                first.1 += later.1;
            }
            same
        });
    }

    /// The shortest time that is told apart.
    pub fn step(&self) -> Micros {
        Micros(Micros::MILLISECOND.0 << self.halvings)
    }

    /// All marks of a kind from a moment on, in the order of time.
    pub fn of(&self, kind: Kind, from: Micros) -> Vec<Marked> {
        let from_ms = from.0 / 1_000;
        let chosen = self
            .marks
            .iter()
            .filter(|(mark, _)| KINDS[(mark >> 16 & 3) as usize] == kind && mark >> 24 >= from_ms);
        let read = |(mark, n): &(u64, u64)| Marked {
            at: Micros((mark >> 24) * 1_000),
            outcome: Outcome::ALL[((mark >> 20 & 0xf) as usize).min(4)],
            us: largest((mark & 0xffff) as u16),
            n: *n,
        };
        let mut all: Vec<Marked> = chosen.map(read).collect();
        all.sort_by_key(|marked| marked.at);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_kept_within_a_hundredth() {
        for us in (0..2_000).chain([65_535, 1_000_000, 3_600_000_000]) {
            let read = largest(bucket(us));
            assert!(read >= us && read - us <= us / 128, "{us} {read}");
        }
    }

    #[test]
    fn marks_come_back_in_order_and_nothing_is_lost_when_they_are_too_many() {
        let mut series = Series::default();
        let mut total = 0;
        for tick in 0..90u64 {
            let mut marks: Vec<u64> = (0..100_000u64)
                .map(|n| mark(tick * 100 + n % 100, Outcome::Limited, Kind::Response, n * 37))
                .collect();
            total += marks.len() as u64;
            series.add(&mut marks);
        }
        series.add(&mut [mark(3, Outcome::Allowed, Kind::Count, 0)]);
        assert!(series.marks.len() <= MAX_MARKS && series.step() > Micros::MILLISECOND);
        let read = series.of(Kind::Response, Micros::ZERO);
        assert_eq!(read.iter().map(|marked| marked.n).sum::<u64>(), total);
        assert!(read.is_sorted_by_key(|marked| marked.at));
        assert_eq!(series.of(Kind::Count, Micros::ZERO).len(), 1);
        assert!(series.of(Kind::Count, Micros::SECOND).is_empty());
    }
}
