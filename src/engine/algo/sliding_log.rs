//! Sliding log: every charge is remembered for one period, and their sum may not pass `L`.
//!
//! State: the charges, oldest first (those of the same microsecond as one), in one piece of memory,
//! because every piece more costs a check a walk to memory more. Each holds what was charged up to
//! and with it, so that a sum is a difference and nothing is added up to find it. Memory is O(L),
//! hence the cap on `L`.
//!
//! Worked: 2/1m. Charges at 12:00:10 and 12:00:40: the next passes at 12:01:10 and not before.
//!
//! Bound: `L·ceil(x/P)` in an interval of length `x`: exactly `L` in any period.

use super::super::clock::Micros;
use super::super::limit::{Decision, Limit};
use super::{MAX_HELD, scaled_count};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlidingLog {
    /// Times rise strictly. Those that count no more lead, until they are as many as the others.
    /// Only the newest may be empty (given back): its time is still that of the last charge.
    charges: Vec<Charge>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Charge {
    at: Micros,
    /// Of all charges up to and with this one.
    total: u64,
}

/// What counts at some time.
struct Live<'a> {
    charges: &'a [Charge],
    /// Of all charges before these.
    gone: u64,
}

impl Live<'_> {
    fn sum(&self) -> u64 {
        self.charges.last().map_or(0, |newest| newest.total - self.gone)
    }

    /// When the charge was made whose end frees `need` together with all older ones; none if all of
    /// them are not enough.
    fn frees(&self, need: u64) -> Option<Micros> {
        let frees = |charge: &Charge| charge.total - self.gone >= need;
        let index = first_of(self.charges, frees);
        self.charges.get(index).map(|charge| charge.at)
    }
}

impl SlidingLog {
    /// From charges in the order of their times, as a store keeps them. `last` is that of the last
    /// charge, which may have been given back.
    pub fn of(charges: impl IntoIterator<Item = (Micros, u64)>, last: Micros) -> SlidingLog {
        let mut log = SlidingLog::default();
        let given_back = std::iter::once((last, 0));
        for (at, cost) in charges.into_iter().filter(|(_, cost)| *cost > 0).chain(given_back) {
            let total = log.charges.last().map_or(0, |newest| newest.total).saturating_add(cost);
            match log.charges.last_mut() {
                Some(newest) if newest.at >= at => newest.total = total,
                _ => log.charges.push(Charge { at, total }),
            }
        }
        log
    }

    /// The time of the last charge.
    pub(super) fn last(&self) -> Micros {
        self.charges.last().map_or(Micros::ZERO, |newest| newest.at)
    }

    pub(super) fn bytes_apart(&self) -> usize {
        self.charges.capacity() * size_of::<Charge>()
    }

    fn total_before(&self, index: usize) -> u64 {
        if index == 0 { 0 } else { self.charges[index - 1].total }
    }

    fn live_at(&self, period: Micros, t: Micros) -> Live<'_> {
        let first = first_of(&self.charges, |charge| charge.at + period > t);
        Live { charges: &self.charges[first..], gone: self.total_before(first) }
    }

    /// Decides, and charges what is allowed.
    pub(super) fn check(&mut self, limit: &Limit, t: Micros, cost: u64) -> Decision {
        let decision = self.decide(limit, t, cost);
        if decision.allowed && cost > 0 {
            self.take(limit, t, cost);
        }
        decision
    }

    pub(super) fn decide(&self, limit: &Limit, t: Micros, cost: u64) -> Decision {
        let live = self.live_at(limit.period(), t);
        let before = live.sum();
        let allowed = cost == 0 || before + cost <= limit.requests();
        let sum = if allowed { before + cost } else { before };
        let remaining = limit.requests().saturating_sub(sum);
        let until = |at: Micros| at + limit.period() - t;
        // This very charge is the newest, and may be what has to go before more fits.
        let newest = if allowed && cost > 0 { t } else { self.newest().unwrap_or(t) };
        let next = || live.frees(sum + remaining + 1 - limit.requests()).unwrap_or(t);
        Decision {
            allowed,
            remaining,
            retry_after: (!allowed && cost <= limit.requests())
                .then(|| until(live.frees(before + cost - limit.requests()).unwrap_or(t))),
            reset_after: if sum == 0 { Micros::ZERO } else { until(newest) },
            next_after: if sum == 0 { Micros::ZERO } else { until(next()) },
            ..Decision::at(limit, t)
        }
    }

    /// The time of the newest charge that is not empty.
    fn newest(&self) -> Option<Micros> {
        let end = self.charges.len() - usize::from(self.ends_empty());
        self.charges[..end].last().map(|charge| charge.at)
    }

    fn ends_empty(&self) -> bool {
        match self.charges.as_slice() {
            [.., previous, newest] => previous.total == newest.total,
            [only] => only.total == 0,
            [] => false,
        }
    }

    pub(super) fn take(&mut self, limit: &Limit, t: Micros, cost: u64) {
        if self.ends_empty() {
            self.charges.pop();
        }
        let live = self.live_at(limit.period(), t);
        let (sum, kept) = (live.sum(), live.charges.len());
        // Settling can pass the limit; past twice of it charges join the newest, so that memory
        // stays O(L).
        let crowded = sum > 2 * limit.requests();
        let cost = cost.min(MAX_HELD - sum);
        match self.charges.last_mut() {
            Some(newest) if kept > 0 && (newest.at == t || crowded) => {
                *newest = Charge { at: t, total: newest.total + cost };
            }
            _ => {
                self.forget(self.charges.len() - kept);
                let total = self.charges.last().map_or(0, |newest| newest.total) + cost;
                self.charges.push(Charge { at: t, total });
            }
        }
    }

    /// Forgets the first `gone`, which count no more, once they are as many as the others: so each
    /// charge is moved about once in its life.
    fn forget(&mut self, gone: usize) {
        let total = self.charges.last().map_or(0, |newest| newest.total);
        if gone > 0 && (2 * gone >= self.charges.len() || total > MAX_HELD) {
            let forgotten = self.total_before(gone);
            self.charges.drain(..gone);
            self.charges.iter_mut().for_each(|charge| charge.total -= forgotten);
        }
    }

    pub(super) fn refund(&mut self, charged_at: Micros, cost: u64) {
        let Ok(index) = self.charges.binary_search_by_key(&charged_at, |charge| charge.at) else {
            return;
        };
        let charged = self.charges[index].total - self.total_before(index);
        let given_back = cost.min(charged);
        self.charges[index..].iter_mut().for_each(|charge| charge.total -= given_back);
        if given_back == charged && index + 1 < self.charges.len() {
            self.charges.remove(index);
        }
    }

    /// Scales the sums of the newest charges, so that whatever still counts at any time is rounded
    /// up as one number.
    pub(super) fn scaled(&self, old: &Limit, new: &Limit) -> SlidingLog {
        let all = self.total_before(self.charges.len());
        let newest_from = |index: usize| scaled_count(all - self.total_before(index), old, new);
        let mut scaled = SlidingLog::default();
        for (index, charge) in self.charges.iter().enumerate() {
            let total = newest_from(0) - newest_from(index + 1);
            let adds = total > scaled.total_before(scaled.charges.len());
            if adds || index + 1 == self.charges.len() {
                scaled.charges.push(Charge { at: charge.at, total });
            }
        }
        scaled
    }

    pub(super) fn whole_at(&self, period: Micros) -> Micros {
        self.newest().map_or(self.last(), |newest| newest + period)
    }
}

/// The place of the first charge that is `wanted`, where all later ones are too. Mostly it is the
/// oldest, and then no other is looked at.
fn first_of(charges: &[Charge], wanted: impl Fn(&Charge) -> bool) -> usize {
    if charges.first().is_none_or(&wanted) { 0 } else { charges.partition_point(|c| !wanted(c)) }
}
