//! Sliding log: every charge is remembered for one period, and their sum may not pass `L`.
//!
//! State: `last`, the time of the last charge; the charges, oldest first (those of the same
//! microsecond as one), and their sum. Memory is O(L), hence the cap on `L`.
//!
//! Worked: 2/1m. Charges at 12:00:10 and 12:00:40: the next passes at 12:01:10 and not before.
//!
//! Bound: `L·ceil(x/P)` in an interval of length `x`: exactly `L` in any period.

use std::collections::VecDeque;

use super::super::clock::Micros;
use super::super::limit::{Decision, Limit};
use super::{MAX_HELD, scaled_count};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlidingLog {
    pub last: Micros,
    /// When, and how much; times rise strictly.
    pub charges: VecDeque<(Micros, u64)>,
    pub sum: u64,
}

impl SlidingLog {
    /// How many of the oldest charges no longer count at `t`, and what they amount to.
    fn expired(&self, period: Micros, t: Micros) -> (usize, u64) {
        let gone = self.charges.iter().take_while(|(at, _)| *at + period <= t);
        gone.fold((0, 0), |(n, sum), (_, cost)| (n + 1, sum + cost))
    }

    pub(super) fn decide(&self, limit: &Limit, t: Micros, cost: u64) -> Decision {
        let (expired, gone) = self.expired(limit.period(), t);
        let before = self.sum - gone;
        let allowed = cost == 0 || before + cost <= limit.requests();
        let sum = if allowed { before + cost } else { before };
        let remaining = limit.requests().saturating_sub(sum);
        let newest = if allowed && cost > 0 { Some(t) } else { self.newest_after(expired) };
        let live = self.charges.range(expired..).copied();
        // This very charge is the newest, and may be what has to go before more fits.
        let with_this = live.clone().chain((allowed && cost > 0).then_some((t, cost)));
        let until = |at: Micros| at + limit.period() - t;
        Decision {
            allowed,
            remaining,
            retry_after: (!allowed && cost <= limit.requests())
                .then(|| until(frees(live, before + cost - limit.requests()))),
            reset_after: newest.map_or(Micros::ZERO, until),
            next_after: match sum {
                0 => Micros::ZERO,
                _ => until(frees(with_this, sum + remaining + 1 - limit.requests())),
            },
            ..Decision::at(limit, t)
        }
    }

    fn newest_after(&self, expired: usize) -> Option<Micros> {
        if expired == self.charges.len() { None } else { self.charges.back().map(|(at, _)| *at) }
    }

    pub(super) fn take(&mut self, limit: &Limit, t: Micros, cost: u64) {
        let (expired, gone) = self.expired(limit.period(), t);
        self.charges.drain(..expired);
        // Settling can pass the limit; past twice of it charges join the newest, so that memory
        // stays O(L).
        self.sum -= gone;
        let crowded = self.sum > 2 * limit.requests();
        let cost = cost.min(MAX_HELD - self.sum);
        self.sum += cost;
        match self.charges.back_mut() {
            Some(newest) if newest.0 == t || crowded => *newest = (t, newest.1 + cost),
            _ => self.charges.push_back((t, cost)),
        }
        self.last = t;
    }

    pub(super) fn refund(&mut self, charged_at: Micros, cost: u64) {
        let Ok(index) = self.charges.binary_search_by_key(&charged_at, |(at, _)| *at) else {
            return;
        };
        let charged = &mut self.charges[index].1;
        let given_back = cost.min(*charged);
        *charged -= given_back;
        self.sum -= given_back;
        if *charged == 0 {
            self.charges.remove(index);
        }
    }

    /// Scales the sums of the newest charges, so that whatever still counts at any time is rounded
    /// up as one number.
    pub(super) fn scaled(&self, old: &Limit, new: &Limit) -> SlidingLog {
        let (mut sum, mut scaled_sum) = (0, 0);
        let mut charges = VecDeque::with_capacity(self.charges.len());
        for (at, cost) in self.charges.iter().rev() {
            sum += cost;
            let scaled = scaled_count(sum, old, new);
            if scaled > scaled_sum {
                charges.push_front((*at, scaled - scaled_sum));
                scaled_sum = scaled;
            }
        }
        SlidingLog { last: self.last, charges, sum: scaled_sum }
    }

    pub(super) fn whole_at(&self, period: Micros) -> Micros {
        self.charges.back().map_or(self.last, |(at, _)| *at + period)
    }
}

/// When the charge was made whose end frees `need` together with all older ones.
fn frees(charges: impl Iterator<Item = (Micros, u64)>, need: u64) -> Micros {
    let mut freed = 0;
    for (at, cost) in charges {
        freed += cost;
        if freed >= need {
            return at;
        }
    }
    unreachable!("the charges of a log add up to its sum")
}
