//! What came and what passed over time, in bins. A run of unknown length starts with short bins;
//! when they run out, each two become one, so that any length fits.

use crate::engine::clock::Micros;

/// Divides by most numbers of columns; after doubling at least half of them are in use.
pub const BINS: usize = 960;
/// What a log may begin with: no access log is finer.
const SHORTEST: Micros = Micros::MILLISECOND;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bin {
    pub offered: u64,
    pub allowed: u64,
}

#[derive(Clone, Debug)]
pub struct Timeline {
    start: Micros,
    width: Micros,
    bins: Vec<Bin>,
}

impl Timeline {
    /// For a run that ends, or whose end is not known.
    pub fn new(start: Micros, length: Option<Micros>) -> Timeline {
        let width = length.map_or(SHORTEST, |length| Micros(length.0.div_ceil(BINS as u64).max(1)));
        Timeline { start, width, bins: vec![Bin::default(); BINS] }
    }

    pub fn start(&self) -> Micros {
        self.start
    }

    /// The bin of a moment, and where that bin ends.
    #[inline]
    pub fn place(&mut self, at: Micros) -> (usize, Micros) {
        let since = at.saturating_sub(self.start).0;
        while since / self.width.0 >= BINS as u64 {
            self.double();
        }
        let bin = since / self.width.0;
        (bin as usize, self.start + Micros((bin + 1) * self.width.0))
    }

    fn double(&mut self) {
        for n in 0..BINS {
            let pair = self.bins.get(2 * n..2 * n + 2).unwrap_or_default();
            let offered = pair.iter().map(|bin| bin.offered).sum();
            let allowed = pair.iter().map(|bin| bin.allowed).sum();
            self.bins[n] = Bin { offered, allowed };
        }
        self.width = Micros(self.width.0 * 2);
    }

    #[inline]
    pub fn add(&mut self, bin: usize, offered: u64, allowed: u64) {
        self.bins[bin].offered += offered;
        self.bins[bin].allowed += allowed;
    }

    /// The time from the start to `end` in that many columns, and how long each is. Bins are finer
    /// than columns; one that lies in two of them counts where it begins.
    pub fn columns(&self, end: Micros, columns: usize) -> (Vec<Bin>, Micros) {
        let length = end.saturating_sub(self.start).0.max(1);
        let mut told = vec![Bin::default(); columns];
        for (n, bin) in self.bins.iter().enumerate() {
            let from = n as u128 * u128::from(self.width.0);
            let column = (from * columns as u128 / u128::from(length)) as usize;
            let column = &mut told[column.min(columns - 1)];
            column.offered += bin.offered;
            column.allowed += bin.allowed;
        }
        (told, Micros(length.div_ceil(columns as u64)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_length_fits_and_nothing_is_lost() {
        let mut timeline = Timeline::new(Micros(5_000_000), None);
        for n in 0..100_000u64 {
            let (bin, end) = timeline.place(Micros(5_000_000 + n * 1_000));
            assert!(end.0 > 5_000_000 + n * 1_000);
            timeline.add(bin, 1, n % 2);
        }
        let (columns, width) = timeline.columns(Micros(5_000_000 + 100_000_000), 50);
        assert_eq!(width, Micros(2_000_000));
        assert_eq!(columns.iter().map(|bin| bin.offered).sum::<u64>(), 100_000);
        assert_eq!(columns.iter().map(|bin| bin.allowed).sum::<u64>(), 50_000);
        assert!(columns.iter().all(|bin| bin.offered.abs_diff(2_000) <= 128), "{columns:?}");
    }

    #[test]
    fn a_known_length_has_even_columns() {
        let mut timeline = Timeline::new(Micros::ZERO, Some(Micros::MINUTE));
        for second in 0..60 {
            let (bin, _) = timeline.place(Micros(second * 1_000_000));
            timeline.add(bin, 1, 1);
        }
        let (columns, _) = timeline.columns(Micros::MINUTE, 60);
        assert!(columns.iter().all(|bin| bin.offered == 1));
    }
}
