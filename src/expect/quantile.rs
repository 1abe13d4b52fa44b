//! Percentiles of weighted values: of all at once, and of a window that moves.

/// The smallest value that at least `share` of the weight does not exceed; values are sorted.
pub fn weighted_quantile(sorted: &[(u64, u64)], share: f64) -> Option<u64> {
    let total: u64 = sorted.iter().map(|(_, n)| n).sum();
    let wanted = rank(total, share)?;
    let mut below = 0;
    sorted.iter().find_map(|(value, n)| {
        below += n;
        (below >= wanted).then_some(*value)
    })
}

/// Which one of `total`, counted from 1; none of none.
fn rank(total: u64, share: f64) -> Option<u64> {
    // What is 0.99 of 100 must be 99, whatever a double makes of it.
    let exact = share * total as f64;
    let up = (exact - 1e-9 * exact.max(1.0)).ceil();
    (total > 0).then_some((up.max(1.0) as u64).min(total))
}

/// Values that come and go, of which any percentile can be had at any time: a tree of sums over all
/// values that ever occur.
#[derive(Debug)]
pub(super) struct Moving {
    values: Vec<u64>,
    /// The sums of a Fenwick tree, from place 1.
    sums: Vec<u64>,
    total: u64,
}

impl Moving {
    pub(super) fn over(values: impl Iterator<Item = u64>) -> Moving {
        let mut values: Vec<u64> = values.collect();
        values.sort_unstable();
        values.dedup();
        Moving { sums: vec![0; values.len() + 1], values, total: 0 }
    }

    pub(super) fn add(&mut self, value: u64, n: u64) {
        self.change(value, |sum| *sum += n);
        self.total += n;
    }

    pub(super) fn remove(&mut self, value: u64, n: u64) {
        self.change(value, |sum| *sum -= n);
        self.total -= n;
    }

    fn change(&mut self, value: u64, by: impl Fn(&mut u64)) {
        let mut place = self.values.partition_point(|known| *known < value) + 1;
        while place < self.sums.len() {
            by(&mut self.sums[place]);
            place += place & place.wrapping_neg();
        }
    }

    pub(super) fn quantile(&self, share: f64) -> Option<u64> {
        let mut wanted = rank(self.total, share)?;
        let mut place = 0;
        let mut step = self.values.len().next_power_of_two();
        while step > 0 {
            let next = place + step;
            if next < self.sums.len() && self.sums[next] < wanted {
                wanted -= self.sums[next];
                place = next;
            }
            step /= 2;
        }
        self.values.get(place).copied()
    }
}
