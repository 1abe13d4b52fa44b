//! Fixed window: a count that starts again at every multiple of `P` since the epoch.
//!
//! State: `last`, the time of the last charge; `count`, what was charged in the window that holds
//! `last` (so the window itself need not be stored).
//!
//! Worked: 100/1m. 100 pass at 12:00:59.9 and 100 more at 12:01:00: the well-known double.
//!
//! Bound: `L·(ceil(x/P) + 1)` in an interval of length `x`, so up to `2L` within one period.

use super::super::clock::Micros;
use super::super::limit::{Decision, Limit};
use super::{MAX_HELD, scaled_count, window_start};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FixedWindow {
    pub last: Micros,
    pub count: u64,
}

impl FixedWindow {
    /// `t` is not before `last`, so the last charge is in its window or in an earlier one.
    fn count_at(&self, period: Micros, t: Micros) -> u64 {
        if self.last >= window_start(t, period) { self.count } else { 0 }
    }

    /// Decides, and charges what is allowed.
    #[inline]
    pub(super) fn check(&mut self, limit: &Limit, t: Micros, cost: u64) -> Decision {
        let decision = self.decide(limit, t, cost);
        if decision.allowed && cost > 0 {
            self.take(limit, t, cost);
        }
        decision
    }

    #[inline]
    pub(super) fn decide(&self, limit: &Limit, t: Micros, cost: u64) -> Decision {
        let before = self.count_at(limit.period(), t);
        let allowed = cost == 0 || before + cost <= limit.requests();
        let count = if allowed { before + cost } else { before };
        let to_end = window_start(t, limit.period()) + limit.period() - t;
        let until_empty = if count > 0 { to_end } else { Micros::ZERO };
        Decision {
            allowed,
            remaining: limit.requests().saturating_sub(count),
            retry_after: (!allowed && cost <= limit.requests()).then_some(to_end),
            reset_after: until_empty,
            next_after: until_empty,
            ..Decision::at(limit, t)
        }
    }

    #[inline]
    pub(super) fn take(&mut self, limit: &Limit, t: Micros, cost: u64) {
        self.count = (self.count_at(limit.period(), t) + cost).min(MAX_HELD);
        self.last = t;
    }

    pub(super) fn refund(&mut self, limit: &Limit, charged_at: Micros, cost: u64) {
        if window_start(charged_at, limit.period()) == window_start(self.last, limit.period()) {
            self.count = self.count.saturating_sub(cost);
        }
    }

    pub(super) fn scaled(self, old: &Limit, new: &Limit) -> FixedWindow {
        FixedWindow { count: scaled_count(self.count, old, new), ..self }
    }

    pub(super) fn whole_at(&self, period: Micros) -> Micros {
        if self.count == 0 { self.last } else { window_start(self.last, period) + period }
    }
}
