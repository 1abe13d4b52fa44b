//! What the six algorithms mean, in exact rational numbers, written down from their definitions and
//! from nothing else: slow, plain, and independent of how the engine computes. Nothing here is
//! clever; where an answer is "the earliest moment", it is looked for.

use std::collections::HashMap;

use num_rational::Ratio;
use rlctl::engine::limit::{Algorithm, Limit};

type Rational = Ratio<i128>;

/// What a decision says, as far as the definitions go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(crate) allowed: bool,
    pub(crate) remaining: i128,
    pub(crate) retry_after: Option<i128>,
    pub(crate) reset_after: i128,
    pub(crate) next_after: i128,
    pub(crate) delay: i128,
    pub(crate) at: i128,
    pub(crate) clock_jump: bool,
}

/// One key under one limit.
#[derive(Clone)]
pub(crate) struct Model {
    algorithm: Algorithm,
    l: i128,
    p: i128,
    b: i128,
    /// When it was last charged; a model never forgets.
    last: Option<i128>,
    state: State,
}

#[derive(Clone)]
enum State {
    Token {
        level: Rational,
    },
    Gcra {
        tat: Rational,
    },
    Leaky {
        free: Rational,
    },
    /// Counts by the number of the window, for both kinds of counter.
    Windows(HashMap<i128, i128>),
    Log(Vec<(i128, i128)>),
}

fn whole(n: i128) -> Rational {
    Rational::from_integer(n)
}

fn ceil(r: Rational) -> i128 {
    r.ceil().to_integer()
}

fn not_negative(r: Rational) -> Rational {
    if r < whole(0) { whole(0) } else { r }
}

impl Model {
    pub(crate) fn new(limit: &Limit) -> Model {
        let mut model = Model {
            algorithm: limit.algorithm(),
            l: i128::from(limit.requests()),
            p: i128::from(limit.period().0),
            b: i128::from(limit.capacity()),
            last: None,
            state: State::Log(Vec::new()),
        };
        model.state = model.fresh();
        model
    }

    fn fresh(&self) -> State {
        match self.algorithm {
            Algorithm::TokenBucket => State::Token { level: whole(self.b) },
            Algorithm::Gcra => State::Gcra { tat: whole(0) },
            Algorithm::LeakyBucket => State::Leaky { free: whole(0) },
            Algorithm::FixedWindow | Algorithm::SlidingWindow => State::Windows(HashMap::new()),
            Algorithm::SlidingLog => State::Log(Vec::new()),
        }
    }

    /// Decides, and charges if it is allowed.
    pub(crate) fn check(&mut self, now: u64, cost: u64) -> Expected {
        let (now, c) = (i128::from(now), i128::from(cost));
        if self.l == 0 {
            return Expected { allowed: c == 0, ..nothing(now) };
        }
        // Time never runs backwards for a key; over a period ahead is a broken clock.
        let clock_jump = self.last.is_some_and(|last| last - now > self.p);
        let before = (self.last, self.state.clone());
        if clock_jump {
            (self.last, self.state) = (None, self.fresh());
        }
        let t = self.last.map_or(now, |last| last.max(now));
        let mut answer = match self.state.clone() {
            State::Token { level } => self.token_bucket(level, t, c),
            State::Gcra { tat } => self.gcra(tat, t, c),
            State::Leaky { free } => self.leaky_bucket(free, t, c),
            State::Windows(counts) if self.algorithm == Algorithm::FixedWindow => {
                self.fixed_window(counts, t, c)
            }
            State::Windows(counts) => self.sliding_window(counts, t, c),
            State::Log(charges) => self.sliding_log(charges, t, c),
        };
        if c > self.b {
            answer.retry_after = None;
        }
        if answer.allowed && c > 0 {
            self.last = Some(t);
        } else {
            // Only a charge writes.
            (self.last, self.state) = before;
        }
        Expected { at: t, clock_jump, ..answer }
    }

    fn t_each(&self) -> Rational {
        Rational::new(self.p, self.l)
    }

    fn token_bucket(&mut self, level: Rational, t: i128, c: i128) -> Expected {
        let last = self.last.unwrap_or(t);
        let mut level = level + Rational::new((t - last) * self.l, self.p);
        if level > whole(self.b) {
            level = whole(self.b);
        }
        let allowed = level >= whole(c);
        let retry_after = (!allowed).then(|| ceil((whole(c) - level) * self.t_each()));
        if allowed {
            level -= whole(c);
        }
        self.state = State::Token { level };
        let full = level == whole(self.b);
        let to_next = (level.floor() + whole(1) - level) * self.t_each();
        Expected {
            allowed,
            remaining: level.floor().to_integer(),
            retry_after,
            reset_after: ceil((whole(self.b) - level) * self.t_each()),
            next_after: if full { 0 } else { ceil(to_next) },
            ..nothing(t)
        }
    }

    fn gcra(&mut self, tat: Rational, t: i128, c: i128) -> Expected {
        let each = self.t_each();
        let (c, b) = (whole(c), whole(self.b));
        let mut a = not_negative(tat - whole(t));
        let allowed = a + c * each <= b * each;
        let retry_after = (!allowed).then(|| ceil(a + c * each - b * each));
        if allowed {
            a += c * each;
            self.state = State::Gcra { tat: whole(t) + a };
        }
        let remaining = ((b * each - a) / each).floor();
        // One more fits when the allowance has drained to what that leaves: a − x = (B − n)·T.
        let to_next = a - (b - remaining - whole(1)) * each;
        Expected {
            allowed,
            remaining: remaining.to_integer(),
            retry_after,
            reset_after: ceil(a),
            next_after: if a == whole(0) { 0 } else { ceil(to_next) },
            ..nothing(t)
        }
    }

    fn leaky_bucket(&mut self, free: Rational, t: i128, c: i128) -> Expected {
        let each = self.t_each();
        let cost = whole(c) * each;
        let size = whole(self.b) * each;
        let backlog = not_negative(free - whole(t));
        let allowed = backlog + cost <= size;
        let mut free = free;
        if allowed && c > 0 {
            free = whole(t) + backlog + cost;
            self.state = State::Leaky { free };
        }
        let left = not_negative(free - whole(t));
        let remaining = ((size - left) / each).floor();
        let to_next = left - (whole(self.b) - remaining - whole(1)) * each;
        Expected {
            allowed,
            remaining: remaining.to_integer(),
            retry_after: (!allowed).then(|| ceil(backlog + cost - size)),
            reset_after: ceil(left),
            next_after: if left == whole(0) { 0 } else { ceil(to_next) },
            delay: if allowed && c > 0 { ceil(backlog) } else { 0 },
            ..nothing(t)
        }
    }

    fn fixed_window(&mut self, mut counts: HashMap<i128, i128>, t: i128, c: i128) -> Expected {
        let window = t.div_euclid(self.p);
        let count = counts.entry(window).or_default();
        let allowed = c == 0 || *count + c <= self.l;
        if allowed {
            *count += c;
        }
        let count = *count;
        let to_end = (window + 1) * self.p - t;
        counts.retain(|w, _| *w == window);
        self.state = State::Windows(counts);
        Expected {
            allowed,
            remaining: (self.l - count).max(0),
            retry_after: (!allowed).then_some(to_end),
            reset_after: if count > 0 { to_end } else { 0 },
            next_after: if count > 0 { to_end } else { 0 },
            ..nothing(t)
        }
    }

    fn sliding_log(&mut self, mut charges: Vec<(i128, i128)>, t: i128, c: i128) -> Expected {
        charges.retain(|(s, _)| *s > t - self.p);
        let sum: i128 = charges.iter().map(|(_, cost)| cost).sum();
        let allowed = c == 0 || sum + c <= self.l;
        // The oldest prefix whose end leaves room for `wanted`.
        let room_for = |charges: &[(i128, i128)], wanted: i128| {
            let mut left: i128 = charges.iter().map(|(_, cost)| cost).sum();
            let freeing = charges.iter().find(|(_, cost)| {
                left -= cost;
                left + wanted <= self.l
            });
            freeing.map(|(s, _)| s + self.p - t)
        };
        let retry_after = if allowed { None } else { room_for(&charges, c) };
        if allowed && c > 0 {
            charges.push((t, c));
        }
        let sum: i128 = charges.iter().map(|(_, cost)| cost).sum();
        let remaining = (self.l - sum).max(0);
        let answer = Expected {
            allowed,
            remaining,
            retry_after,
            reset_after: charges.last().map_or(0, |(newest, _)| newest + self.p - t),
            next_after: room_for(&charges, remaining + 1).unwrap_or(0),
            ..nothing(t)
        };
        self.state = State::Log(charges);
        answer
    }

    fn sliding_window(&mut self, mut counts: HashMap<i128, i128>, t: i128, c: i128) -> Expected {
        let window = t.div_euclid(self.p);
        counts.retain(|w, _| *w >= window - 1);
        // The estimate and what is left of L, both times P, so that they are whole numbers.
        let room = |counts: &HashMap<i128, i128>, t: i128| {
            let (window, into) = (t.div_euclid(self.p), t.rem_euclid(self.p));
            let count = |w| counts.get(&w).copied().unwrap_or_default();
            self.l * self.p - count(window - 1) * (self.p - into) - count(window) * self.p
        };
        // With nothing else coming room only grows, so the earliest moment can be searched for.
        let earliest = |counts: &HashMap<i128, i128>, wanted: i128| {
            let (mut low, mut high) = (t - 1, t + 2 * self.p);
            while high - low > 1 {
                let middle = low + (high - low) / 2;
                if room(counts, middle) >= wanted * self.p { high = middle } else { low = middle }
            }
            high - t
        };
        let allowed = c == 0 || room(&counts, t) >= c * self.p;
        let retry_after = (!allowed && c <= self.l).then(|| earliest(&counts, c));
        if allowed && c > 0 {
            *counts.entry(window).or_default() += c;
        }
        let count = |w| counts.get(&w).copied().unwrap_or_default();
        let remaining = room(&counts, t).div_euclid(self.p).max(0);
        let into = t.rem_euclid(self.p);
        let reset_after = match (count(window), count(window - 1)) {
            (0, 0) => 0,
            (0, _) => self.p - into,
            _ => 2 * self.p - into,
        };
        let next_after = if reset_after == 0 { 0 } else { earliest(&counts, remaining + 1) };
        self.state = State::Windows(counts);
        Expected { allowed, remaining, retry_after, reset_after, next_after, ..nothing(t) }
    }
}

fn nothing(t: i128) -> Expected {
    Expected {
        allowed: true,
        remaining: 0,
        retry_after: None,
        reset_after: 0,
        next_after: 0,
        delay: 0,
        at: t,
        clock_jump: false,
    }
}
