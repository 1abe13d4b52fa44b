//! What is known only by looking at every key by itself.

use super::measured::Count;
use crate::engine::algo::bound;
use crate::engine::clock::Micros;
use crate::engine::limit::Limit;

/// The most in any half-open interval of this length.
pub fn worst_window(admitted: &[Count], length: Micros) -> u64 {
    let (mut first, mut sum, mut worst) = (0, 0, 0);
    for count in admitted {
        sum += count.n;
        while admitted[first].at + length <= count.at {
            sum -= admitted[first].n;
            first += 1;
        }
        worst = worst.max(sum);
    }
    worst
}

/// The most by which any interval exceeded what the limit promises.
pub fn excess(admitted: &[Count], limit: &Limit) -> u64 {
    let [first, .., last] = admitted else {
        let one = |count: &Count| count.n.saturating_sub(bound(limit, Micros(1)));
        return admitted.iter().map(one).sum();
    };
    if limit.algorithm().is_bucket() {
        return excess_of_bucket(admitted, limit);
    }
    // A window's bound rises by steps of a period: the longest interval of each step is the worst.
    let periods = (last.at - first.at + Micros(1)).0.div_ceil(limit.period().0);
    let lengths = (1..=periods).map(|n| Micros(n.saturating_mul(limit.period().0)));
    let over = |length| worst_window(admitted, length).saturating_sub(bound(limit, length));
    lengths.map(over).max().unwrap_or_default()
}

/// `sum − B − floor(L·x/P)` is largest where `sum·P − L·x` is; that needs one look at each, beside
/// the lowest start so far.
fn excess_of_bucket(admitted: &[Count], limit: &Limit) -> u64 {
    let (requests, period) = (i128::from(limit.requests()), i128::from(limit.period().0));
    let (mut sum, mut lowest, mut worst) = (0i128, i128::MAX, 0i128);
    for count in admitted {
        let at = i128::from(count.at.0) * requests;
        lowest = lowest.min(sum * period - at);
        sum += i128::from(count.n);
        // The shortest half-open interval that holds both ends is one microsecond longer than what
        // lies between them.
        worst = worst.max(sum * period - at - requests - lowest);
    }
    let over = worst.div_euclid(period) + i128::from(worst.rem_euclid(period) > 0);
    u64::try_from(over - i128::from(limit.capacity())).unwrap_or_default()
}

/// Jain's index: 1 when all got the same share, 1/n when one got everything. Nobody got anything is
/// fair, too; of nobody there is none.
pub fn jain(shares: impl Iterator<Item = f64>) -> Option<f64> {
    let (mut n, mut sum, mut squares) = (0u64, 0.0, 0.0);
    for share in shares {
        n += 1;
        sum += share;
        squares += share * share;
    }
    match n {
        0 => None,
        _ if squares == 0.0 => Some(1.0),
        n => Some(sum * sum / (n as f64 * squares)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::limit::Algorithm;

    /// By looking at every interval.
    fn slowly(admitted: &[Count], limit: &Limit) -> u64 {
        let mut worst = 0;
        for (n, first) in admitted.iter().enumerate() {
            let mut sum = 0;
            for last in &admitted[n..] {
                sum += last.n;
                let length = last.at - first.at + Micros(1);
                worst = worst.max(sum.saturating_sub(bound(limit, length)));
            }
        }
        worst
    }

    #[test]
    fn one_look_at_each_finds_the_worst_interval() {
        let mut seed = 1u64;
        let mut next = |n: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % n
        };
        for algorithm in Algorithm::ALL {
            let limit = Limit::new(algorithm, "7/3s".parse().unwrap()).unwrap();
            for _ in 0..200 {
                let (mut at, mut admitted) = (0, Vec::new());
                for _ in 0..next(40) {
                    at += next(700_000);
                    admitted.push(Count { at: Micros(at), n: 1 + next(3) });
                }
                assert_eq!(excess(&admitted, &limit), slowly(&admitted, &limit), "{algorithm}");
            }
        }
    }
}
