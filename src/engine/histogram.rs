//! How long things take, counted in fixed buckets: cheap to record from many threads, exact to
//! count, and a percentile is off by its bucket's width at most.

use std::sync::atomic::{AtomicU64, Ordering};

use super::clock::Micros;

/// The upper ends of the buckets: about 2.2 times apart, and on the figures people set alarms by.
pub const BOUNDS_US: [u64; 20] = [
    5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000,
    500_000, 1_000_000, 2_500_000, 5_000_000, 10_000_000,
];
/// The last one is for all that took longer.
pub const BUCKETS: usize = BOUNDS_US.len() + 1;

#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    sum_us: AtomicU64,
}

impl Histogram {
    pub fn record(&self, took: Micros) {
        let bucket = BOUNDS_US.partition_point(|bound| *bound < took.0);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_us.fetch_add(took.0, Ordering::Relaxed);
    }

    pub fn counts(&self) -> Counts {
        Counts {
            buckets: std::array::from_fn(|n| self.buckets[n].load(Ordering::Relaxed)),
            sum_us: self.sum_us.load(Ordering::Relaxed),
        }
    }
}

/// What a histogram held at one moment, or between two.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub buckets: [u64; BUCKETS],
    pub sum_us: u64,
}

impl Counts {
    pub fn total(&self) -> u64 {
        self.buckets.iter().sum()
    }

    pub fn add(&mut self, other: &Counts) {
        self.buckets.iter_mut().zip(other.buckets).for_each(|(sum, n)| *sum += n);
        self.sum_us += other.sum_us;
    }

    /// What came after `earlier`.
    pub fn since(&self, earlier: &Counts) -> Counts {
        Counts {
            buckets: std::array::from_fn(|n| self.buckets[n].saturating_sub(earlier.buckets[n])),
            sum_us: self.sum_us.saturating_sub(earlier.sum_us),
        }
    }

    /// The time that a share of all stays below, as if a bucket were evenly filled; the last bound
    /// for what lies beyond it. None when nothing was counted.
    pub fn quantile(&self, share: f64) -> Option<Micros> {
        let total = self.total();
        if total == 0 {
            return None;
        }
        let wanted = share.clamp(0.0, 1.0) * total as f64;
        let mut below = 0.0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            let count = *count as f64;
            if count > 0.0 && below + count >= wanted {
                let from = bucket.checked_sub(1).map_or(0, |n| BOUNDS_US[n]);
                let to = BOUNDS_US.get(bucket).copied().unwrap_or(from);
                let within = (wanted - below) / count;
                return Some(Micros(from + ((to - from) as f64 * within).round() as u64));
            }
            below += count;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_off_by_its_bucket_at_most() {
        let histogram = Histogram::default();
        (1..=10_000).for_each(|us| histogram.record(Micros(us)));
        let counts = histogram.counts();
        assert_eq!((counts.total(), counts.sum_us), (10_000, 50_005_000));
        for (share, exact) in [(0.5, 5_000), (0.9, 9_000), (0.99, 9_900), (0.1, 1_000)] {
            let told = counts.quantile(share).unwrap().0;
            let bucket = BOUNDS_US.partition_point(|bound| *bound < exact);
            assert!((BOUNDS_US[bucket - 1]..=BOUNDS_US[bucket]).contains(&told), "{share} {told}");
        }
    }

    #[test]
    fn the_edges_are_told_as_they_are() {
        let histogram = Histogram::default();
        assert_eq!(histogram.counts().quantile(0.99), None);
        histogram.record(Micros(60_000_000));
        assert_eq!(histogram.counts().quantile(0.5), Some(Micros(10_000_000)));
        let before = histogram.counts();
        histogram.record(Micros(10_000));
        let since = histogram.counts().since(&before);
        assert_eq!((since.total(), since.sum_us, since.buckets[10]), (1, 10_000, 1));
        histogram.record(Micros(0));
        assert_eq!(histogram.counts().buckets[0], 1);
    }
}
