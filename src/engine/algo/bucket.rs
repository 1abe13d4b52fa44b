//! The three buckets. A **token bucket** holds up to `B` tokens and regains `L` per `P`; **gcra**
//! keeps the time at which it would be whole again (`tat`); a **leaky bucket** is a queue that
//! drains one request every `T = P/L`. They are one thing seen from three sides: what is missing
//! from the bucket, `u` tokens, is a time of `u·T` until it is whole, and that is the backlog of
//! the queue. So one state serves: how long until whole, as of the last charge.
//!
//! State: `last`, the time of the last charge; `held = tat − last = (B − level)·T`, an exact
//! [`Span`]. Time drains it, a charge of `c` adds `c·T`, and it may never pass `B·T`.
//!
//! Worked: 5/1s (`T` = 200 ms), burst 2. At 0 ms two pass: held 400 ms, remaining 0. At 100 ms
//! held is 300 ms: a third needs 500 ≤ 400, so it is refused and may come again after 100 ms.
//! At 200 ms it passes.
//!
//! Bound: in any interval of length `x` at most `B + floor(L·x/P)`.

use super::super::clock::Micros;
use super::super::limit::{Decision, Limit, Span, mul_div};
use super::{MAX_HELD, leaky_bucket};

/// Most used requests that are carried over to another rate: far above any capacity, and small
/// enough for the Lua twin to multiply exactly.
const MAX_OWED: u64 = 1 << 50;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    pub last: Micros,
    pub held: Span,
}

impl Backlog {
    pub(super) fn held_at(&self, t: Micros) -> Span {
        match self.held.us.checked_sub((t - self.last).0) {
            Some(us) => Span { us, ..self.held },
            None => Span::ZERO,
        }
    }

    pub(super) fn decide(mut self, limit: &Limit, t: Micros, cost: u64) -> Decision {
        self.check(limit, t, cost)
    }

    /// Decides, and charges what is allowed.
    #[inline(always)]
    pub(super) fn check(&mut self, limit: &Limit, t: Micros, cost: u64) -> Decision {
        let before = self.held_at(t);
        let charged = add(limit, before, span_of(limit, cost));
        let room = subtract(limit, limit.span_of_capacity(), charged);
        let allowed = cost == 0 || room.is_some();
        let (held, room, retry_after) = if allowed {
            (charged, room, None)
        } else {
            let room = subtract(limit, limit.span_of_capacity(), before);
            (before, room, (cost <= limit.capacity()).then(|| wait(limit, before, cost)))
        };
        let charges = allowed && cost > 0;
        if charges {
            *self = Backlog { last: t, held };
        }
        let (remaining, next_after) = left(limit, held, room);
        Decision {
            allowed,
            remaining,
            retry_after,
            reset_after: held.ceil(),
            next_after,
            delay: if charges { leaky_bucket::delay(limit, before) } else { Micros::ZERO },
            ..Decision::at(limit, t)
        }
    }

    pub(super) fn take(&mut self, limit: &Limit, t: Micros, cost: u64) {
        self.held = add(limit, self.held_at(t), span_of(limit, cost));
        self.last = t;
    }

    /// Taking it off at `last` is the same as taking it off now: both stop at whole.
    pub(super) fn refund(&mut self, limit: &Limit, cost: u64) {
        self.held = subtract(limit, self.held, span_of(limit, cost)).unwrap_or(Span::ZERO);
    }

    pub(super) fn whole_at(&self) -> Micros {
        self.last + self.held.ceil()
    }

    /// The same number of used requests, at the rate of `new`; a fraction that the new rate cannot
    /// express is rounded up.
    pub(super) fn at_another_rate(self, old: &Limit, new: &Limit) -> Backlog {
        let (used, parts) = self.used(old);
        let (grains, rest) = mul_div(parts, new.micros(), old.micros());
        let grains = grains as u64 + u64::from(rest > 0);
        let fraction = Span { us: grains / new.tokens(), part: grains % new.tokens() };
        Backlog { last: self.last, held: add(new, new.span(used), fraction) }
    }

    /// The same used share of the capacity, rounded up to a whole request.
    pub(super) fn scaled(self, old: &Limit, new: &Limit) -> Backlog {
        let (used, parts) = self.used(old);
        let exact = (u128::from(used) * u128::from(old.micros()) + u128::from(parts))
            * u128::from(new.capacity());
        let scaled = exact.div_ceil(u128::from(old.micros()) * u128::from(old.capacity()));
        let used = u64::try_from(scaled).unwrap_or(MAX_OWED).min(MAX_OWED);
        Backlog { last: self.last, held: add(new, new.span(used), Span::ZERO) }
    }

    /// Used requests at the last charge: whole ones, and parts of which `micros` make one.
    fn used(&self, limit: &Limit) -> (u64, u64) {
        let (used, parts) = mul_div(self.held.us, limit.tokens(), limit.micros());
        let parts = parts + self.held.part;
        match u64::try_from(used + u128::from(parts / limit.micros())) {
            Ok(used) if used < MAX_OWED => (used, parts % limit.micros()),
            _ => (MAX_OWED, 0),
        }
    }
}

/// How long until `cost ≤ B` fits, when `held` is held now: until no more is held than what the
/// cost leaves room for. (Their sum may pass [`MAX_HELD`], their difference never does.)
fn wait(limit: &Limit, held: Span, cost: u64) -> Micros {
    let room = subtract(limit, limit.span_of_capacity(), span_of(limit, cost));
    subtract(limit, held, room.unwrap_or(Span::ZERO)).unwrap_or(Span::ZERO).ceil()
}

/// How many requests fit into the room that what is held leaves, and how long until one more does.
/// No room is a debt.
#[inline(always)]
fn left(limit: &Limit, held: Span, room: Option<Span>) -> (u64, Micros) {
    let Some(free) = room else {
        return (0, wait(limit, held, 1));
    };
    let (tokens, micros) = (limit.tokens(), limit.micros());
    let (requests, mut rest) = mul_div(free.us, tokens, micros);
    let mut requests = requests as u64;
    rest += free.part;
    if rest >= micros {
        requests += rest / micros;
        rest %= micros;
    }
    if held == Span::ZERO {
        return (requests, Micros::ZERO);
    }
    // Of the next request `rest` parts of `micros` are there; they come `tokens` in a microsecond.
    let missing = micros - rest;
    // Divisions are most of what a check costs, and the commonest rates regain one at a time.
    (requests, Micros(if tokens == 1 { missing } else { missing.div_ceil(tokens) }))
}

#[inline]
fn span_of(limit: &Limit, cost: u64) -> Span {
    if cost == 1 { limit.span_of_one() } else { limit.span(cost) }
}

#[inline]
fn add(limit: &Limit, a: Span, b: Span) -> Span {
    let part = a.part + b.part;
    let carry = part >= limit.tokens();
    let us = a.us + b.us + u64::from(carry);
    if us >= MAX_HELD {
        return Span { us: MAX_HELD, part: 0 };
    }
    Span { us, part: if carry { part - limit.tokens() } else { part } }
}

#[inline]
fn subtract(limit: &Limit, a: Span, b: Span) -> Option<Span> {
    let borrow = a.part < b.part;
    let us = a.us.checked_sub(b.us)?.checked_sub(u64::from(borrow))?;
    Some(Span { us, part: if borrow { a.part + limit.tokens() - b.part } else { a.part - b.part } })
}
