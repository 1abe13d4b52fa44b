//! What each algorithm promises: the most cost that it admits on one key in any half-open interval
//! of a given length. The algorithms' own files say why.

use super::super::clock::Micros;
use super::super::limit::{Algorithm, Limit};

/// The most that `limit` admits within `length`.
pub fn bound(limit: &Limit, length: Micros) -> u64 {
    if limit.requests() == 0 || length == Micros::ZERO {
        return 0;
    }
    let (requests, period) = (u128::from(limit.requests()), u128::from(limit.period().0));
    let length = u128::from(length.0);
    let periods = length.div_ceil(period);
    let most = match limit.algorithm() {
        Algorithm::TokenBucket | Algorithm::Gcra | Algorithm::LeakyBucket => {
            u128::from(limit.capacity()) + requests * length / period
        }
        Algorithm::FixedWindow => requests * (periods + 1),
        Algorithm::SlidingWindow => requests * (periods + 1) - 1,
        Algorithm::SlidingLog => requests * periods,
    };
    u64::try_from(most).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn per_period_it_is_what_the_table_says() {
        for (algorithm, most) in [
            (Algorithm::TokenBucket, 200),
            (Algorithm::Gcra, 200),
            (Algorithm::LeakyBucket, 200),
            (Algorithm::FixedWindow, 200),
            (Algorithm::SlidingWindow, 199),
            (Algorithm::SlidingLog, 100),
        ] {
            let limit = Limit::new(algorithm, "100/1m".parse().unwrap()).unwrap();
            assert_eq!(bound(&limit, Micros::MINUTE), most, "{algorithm}");
            assert_eq!(bound(&limit, Micros::ZERO), 0, "{algorithm}");
        }
        let none = Limit::new(Algorithm::Gcra, "0/1m".parse().unwrap()).unwrap();
        assert_eq!(bound(&none, Micros::DAY), 0);
    }
}
