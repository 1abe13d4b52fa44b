//! Sliding window counter: two fixed windows, the older one weighted by how much of it still
//! overlaps the period that ends now: `previous·(P − into)/P + current`.
//!
//! State: `last`, the time of the last charge; `current` and `previous`, the counts of the window
//! that holds `last` and of the one before.
//!
//! Worked: 100/1m. 80 in the previous minute, 40 so far, 30 s into this one: 80·½ + 40 = 80 used.
//!
//! Bound: `L·(ceil(x/P) + 1) − 1` in an interval of length `x` against an adversary who knows the
//! window's edges; near `L` per period on real traffic.

use super::super::clock::Micros;
use super::super::limit::{Decision, Limit, mul_div};
use super::{MAX_HELD, scaled_count, window_start};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlidingWindow {
    pub last: Micros,
    pub current: u64,
    pub previous: u64,
}

/// The two counts as they stand at one moment, `into` the current window.
struct View<'a> {
    limit: &'a Limit,
    into: u64,
    current: u64,
    previous: u64,
}

impl SlidingWindow {
    #[inline]
    fn at<'a>(&self, limit: &'a Limit, t: Micros) -> View<'a> {
        let period = limit.period();
        let start = window_start(t, period);
        // `t` is not before `last`, so the last charge is in its window or in an earlier one.
        let (current, previous) = if self.last >= start {
            (self.current, self.previous)
        } else if self.last + period >= start {
            (0, self.current)
        } else {
            (0, 0)
        };
        View { limit, into: (t - start).0, current, previous }
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
        let mut view = self.at(limit, t);
        let used = view.used_ceil();
        let allowed = cost == 0 || used + cost <= limit.requests();
        let retry_after = (!allowed && cost <= limit.requests()).then(|| view.wait(cost));
        let charged = if allowed { cost } else { 0 };
        view.current += charged;
        let remaining = limit.requests().saturating_sub(used + charged);
        let whole = view.current == 0 && view.previous == 0;
        Decision {
            allowed,
            remaining,
            retry_after,
            reset_after: view.until_whole(),
            next_after: if whole { Micros::ZERO } else { view.wait(remaining + 1) },
            ..Decision::at(limit, t)
        }
    }

    #[inline]
    pub(super) fn take(&mut self, limit: &Limit, t: Micros, cost: u64) {
        let View { current, previous, .. } = self.at(limit, t);
        *self = SlidingWindow { last: t, current: (current + cost).min(MAX_HELD), previous };
    }

    pub(super) fn refund(&mut self, limit: &Limit, charged_at: Micros, cost: u64) {
        let period = limit.period();
        let (charged, newest) = (window_start(charged_at, period), window_start(self.last, period));
        if charged == newest {
            self.current = self.current.saturating_sub(cost);
        } else if charged + period == newest {
            self.previous = self.previous.saturating_sub(cost);
        }
    }

    pub(super) fn scaled(self, old: &Limit, new: &Limit) -> SlidingWindow {
        let [current, previous] = [self.current, self.previous].map(|n| scaled_count(n, old, new));
        SlidingWindow { current, previous, ..self }
    }

    pub(super) fn whole_at(&self, period: Micros) -> Micros {
        let start = window_start(self.last, period);
        match (self.current, self.previous) {
            (0, 0) => self.last,
            (0, _) => start + period,
            _ => start + period + period,
        }
    }
}

impl View<'_> {
    /// The estimate, rounded up: as only whole costs are asked for, that loses nothing.
    fn used_ceil(&self) -> u64 {
        let period = self.limit.period().0;
        let (weighted, rest) = mul_div(self.previous, period - self.into, period);
        weighted as u64 + u64::from(rest > 0) + self.current
    }

    /// Until `cost ≤ L` fits: in this window, in the next, or as the one after begins.
    fn wait(&self, cost: u64) -> Micros {
        let period = self.limit.period().0;
        let room = self.limit.requests() - cost;
        let this =
            room.checked_sub(self.current).and_then(|r| light_enough(self.previous, r, period));
        if let Some(into) = this {
            return Micros(into.saturating_sub(self.into));
        }
        let next = light_enough(self.current, room, period).unwrap_or(period);
        Micros(period - self.into + next)
    }

    fn until_whole(&self) -> Micros {
        let period = self.limit.period().0;
        match (self.current, self.previous) {
            (0, 0) => Micros::ZERO,
            (0, _) => Micros(period - self.into),
            _ => Micros(2 * period - self.into),
        }
    }
}

/// How far into a window the weight of `previous` has fallen to `room`, if it does so within it:
/// the least whole `into < P` with `previous·(P − into) ≤ room·P`.
fn light_enough(previous: u64, room: u64, period: u64) -> Option<u64> {
    if previous <= room {
        return Some(0);
    }
    let (left, _) = mul_div(room, period, previous);
    (left > 0).then(|| period - left as u64)
}
