//! The six algorithms, as pure functions of a limit, what its bucket remembers, the time and the
//! cost. `decide` looks and `take` charges: several buckets must all agree before any is charged,
//! and `&State` proves that looking changes nothing.
//!
//! Each algorithm is one file with its Lua twin beside it; this file holds what all share: the
//! order of time, limits of zero, and which one is called.

mod bound;
pub mod bucket;
mod fixed_window;
mod leaky_bucket;
mod sliding_log;
mod sliding_window;

use super::clock::Micros;
use super::limit::{Algorithm, Cost, Decision, Limit, OnChange, mul_div};
pub use bound::bound;
pub use bucket::Backlog;
pub use fixed_window::FixedWindow;
pub use sliding_log::SlidingLog;
pub use sliding_window::SlidingWindow;

/// A charge saturates here, so that settling far above a limit cannot overflow: for windows a
/// count, for buckets (see [`bucket`]) a time of 142 years.
pub const MAX_HELD: u64 = 1 << 52;

/// What a bucket remembers between checks. Every kind keeps the time of its last charge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// token-bucket, gcra and leaky-bucket: three views of one thing.
    Backlog(Backlog),
    FixedWindow(FixedWindow),
    SlidingWindow(SlidingWindow),
    SlidingLog(SlidingLog),
}

impl State {
    /// Whole, never charged.
    pub fn fresh(algorithm: Algorithm) -> State {
        match algorithm {
            Algorithm::TokenBucket | Algorithm::Gcra | Algorithm::LeakyBucket => {
                State::Backlog(Backlog::default())
            }
            Algorithm::FixedWindow => State::FixedWindow(FixedWindow::default()),
            Algorithm::SlidingWindow => State::SlidingWindow(SlidingWindow::default()),
            Algorithm::SlidingLog => State::SlidingLog(SlidingLog::default()),
        }
    }

    fn last(&self) -> Micros {
        match self {
            State::Backlog(s) => s.last,
            State::FixedWindow(s) => s.last,
            State::SlidingWindow(s) => s.last,
            State::SlidingLog(s) => s.last(),
        }
    }

    /// Whether anything was ever charged.
    pub fn is_used(&self) -> bool {
        self.last() > Micros::ZERO
    }

    /// How much memory it takes, with what it keeps elsewhere.
    pub fn bytes(&self) -> usize {
        size_of::<State>()
            + match self {
                State::SlidingLog(s) => s.bytes_apart(),
                _ => 0,
            }
    }

    /// From this moment on the bucket is as if never used, and may be forgotten.
    pub fn whole_at(&self, limit: &Limit) -> Micros {
        match self {
            State::Backlog(s) => s.whole_at(),
            State::FixedWindow(s) => s.whole_at(limit.period()),
            State::SlidingWindow(s) => s.whole_at(limit.period()),
            State::SlidingLog(s) => s.whole_at(limit.period()),
        }
    }
}

/// What `limit` says to `cost` at `now`, and what would be left. Changes nothing.
pub fn decide(limit: &Limit, state: &State, now: Micros, cost: Cost) -> Decision {
    let cost = cost.get();
    if limit.requests() == 0 {
        return Decision { allowed: cost == 0, ..Decision::at(limit, now) };
    }
    let t = match moment(limit, state.last(), now) {
        Moment::At(t) => t,
        Moment::ClockJump => {
            let decision = decide_at(limit, &State::fresh(limit.algorithm()), now, cost);
            return Decision { clock_jump: true, ..decision };
        }
    };
    decide_at(limit, state, t, cost)
}

/// Decides, and charges what is allowed: [`decide`] and [`take`] in one step, for a state that need
/// not wait for others to agree. None where there is more to it: a limit of 0, a clock that jumped.
#[inline(always)]
pub fn check(limit: &Limit, state: &mut State, now: Micros, cost: Cost) -> Option<Decision> {
    let Moment::At(t) = moment(limit, state.last(), now) else { return None };
    if limit.requests() == 0 {
        return None;
    }
    let cost = cost.get();
    Some(match state {
        State::Backlog(s) => s.check(limit, t, cost),
        State::FixedWindow(s) => s.check(limit, t, cost),
        State::SlidingWindow(s) => s.check(limit, t, cost),
        State::SlidingLog(s) => s.check(limit, t, cost),
    })
}

/// Charges `cost`, whether or not it fits: callers ask [`decide`] first, except to settle a cost
/// known only afterwards.
pub fn take(limit: &Limit, state: &mut State, now: Micros, cost: Cost) {
    if limit.requests() == 0 || cost == Cost::PEEK {
        return;
    }
    let t = match moment(limit, state.last(), now) {
        Moment::At(t) => t,
        Moment::ClockJump => {
            *state = State::fresh(limit.algorithm());
            now
        }
    };
    match state {
        State::Backlog(s) => s.take(limit, t, cost.get()),
        State::FixedWindow(s) => s.take(limit, t, cost.get()),
        State::SlidingWindow(s) => s.take(limit, t, cost.get()),
        State::SlidingLog(s) => s.take(limit, t, cost.get()),
    }
}

/// Gives back `cost` that was charged at `charged_at` under `charged`, as far as it still counts:
/// not when the bucket has started anew since, by a change of its limit or a broken clock.
pub fn refund(limit: &Limit, state: &mut State, charged: &Limit, charged_at: Micros, cost: Cost) {
    if !same_clockwork(charged, limit) || charged_at > state.last() {
        return;
    }
    match state {
        State::Backlog(s) => s.refund(limit, cost.get()),
        State::FixedWindow(s) => s.refund(limit, charged_at, cost.get()),
        State::SlidingWindow(s) => s.refund(limit, charged_at, cost.get()),
        State::SlidingLog(s) => s.refund(charged_at, cost.get()),
    }
}

/// What a bucket that was charged under `old` remembers under `new`. Another algorithm, or another
/// period of a window, starts whole; so does what is whole under `old`, for a store may have
/// forgotten it by now.
pub fn carry_over(
    old: &Limit,
    new: &Limit,
    on_change: OnChange,
    state: State,
    now: Micros,
) -> State {
    let starts_whole = !same_clockwork(old, new) || state.whole_at(old) <= now;
    if starts_whole || on_change == OnChange::Reset {
        return State::fresh(new.algorithm());
    }
    if new.requests() == 0 {
        return state;
    }
    match (state, on_change) {
        (State::Backlog(s), OnChange::Scale) => State::Backlog(s.scaled(old, new)),
        (State::Backlog(s), _) => State::Backlog(s.at_another_rate(old, new)),
        (State::FixedWindow(s), OnChange::Scale) => State::FixedWindow(s.scaled(old, new)),
        (State::SlidingWindow(s), OnChange::Scale) => State::SlidingWindow(s.scaled(old, new)),
        (State::SlidingLog(s), OnChange::Scale) => State::SlidingLog(s.scaled(old, new)),
        (kept, _) => kept,
    }
}

/// `count · L' / L`, rounded up.
fn scaled_count(count: u64, old: &Limit, new: &Limit) -> u64 {
    let (whole, rest) = mul_div(count, new.requests(), old.requests());
    u64::try_from(whole + u128::from(rest > 0)).unwrap_or(MAX_HELD).min(MAX_HELD)
}

/// Whether what was used under one limit means something under the other.
fn same_clockwork(a: &Limit, b: &Limit) -> bool {
    a.algorithm() == b.algorithm() && (a.algorithm().is_bucket() || a.period() == b.period())
}

fn decide_at(limit: &Limit, state: &State, t: Micros, cost: u64) -> Decision {
    match state {
        State::Backlog(s) => s.decide(limit, t, cost),
        State::FixedWindow(s) => s.decide(limit, t, cost),
        State::SlidingWindow(s) => s.decide(limit, t, cost),
        State::SlidingLog(s) => s.decide(limit, t, cost),
    }
}

enum Moment {
    At(Micros),
    /// The last charge lies over a period ahead of now: the clock is broken, the bucket is not.
    ClockJump,
}

/// Time never runs backwards for a bucket: a check stamped before its last charge is taken then.
fn moment(limit: &Limit, last: Micros, now: Micros) -> Moment {
    if last.saturating_sub(now) > limit.period() {
        Moment::ClockJump
    } else {
        Moment::At(now.max(last))
    }
}

/// Where the window that holds `t` begins; windows are aligned to the epoch.
fn window_start(t: Micros, period: Micros) -> Micros {
    Micros(t.0 - t.0 % period.0)
}
