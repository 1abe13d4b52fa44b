//! What is promised: an algorithm, `L` requests per period `P`, and for the buckets a burst `B`;
//! and what one check answers: a [`Decision`].

use std::fmt;
use std::str::FromStr;

use super::algo::MAX_HELD;
use super::clock::Micros;
use super::units::{self, UnitError};

/// Most requests, most burst and most cost: beyond it a product no longer fits the exact
/// arithmetic of the Lua twins.
pub const MAX_COUNT: u64 = 1_000_000_000;
/// A sliding log remembers every request, so its limit bounds its memory.
pub const MAX_LOG: u64 = 100_000;
const MIN_PERIOD: Micros = Micros::MILLISECOND;
const MAX_PERIOD: Micros = Micros(366 * Micros::DAY.0);
/// Longest time in which an empty bucket may fill: 100 years of 365.25 days.
const MAX_REFILL: Micros = Micros(36_525 * Micros::DAY.0);

/// The six algorithms. What each means is at the top of its file in `algo/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    TokenBucket,
    Gcra,
    LeakyBucket,
    FixedWindow,
    SlidingWindow,
    SlidingLog,
}

impl Algorithm {
    pub const ALL: [Algorithm; 6] = [
        Algorithm::TokenBucket,
        Algorithm::Gcra,
        Algorithm::LeakyBucket,
        Algorithm::FixedWindow,
        Algorithm::SlidingWindow,
        Algorithm::SlidingLog,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Algorithm::TokenBucket => "token-bucket",
            Algorithm::Gcra => "gcra",
            Algorithm::LeakyBucket => "leaky-bucket",
            Algorithm::FixedWindow => "fixed-window",
            Algorithm::SlidingWindow => "sliding-window",
            Algorithm::SlidingLog => "sliding-log",
        }
    }

    /// The number stored in Redis values: never reassigned, or old values would be misread.
    pub fn code(self) -> u8 {
        match self {
            Algorithm::TokenBucket => 1,
            Algorithm::Gcra => 2,
            Algorithm::LeakyBucket => 3,
            Algorithm::FixedWindow => 4,
            Algorithm::SlidingWindow => 5,
            Algorithm::SlidingLog => 6,
        }
    }

    /// Whether it has a burst of its own beside its rate.
    pub fn is_bucket(self) -> bool {
        matches!(self, Algorithm::TokenBucket | Algorithm::Gcra | Algorithm::LeakyBucket)
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = LimitError;

    /// Our names, with `_` for `-`, and the names other limiters use for the same thing.
    fn from_str(text: &str) -> Result<Algorithm, LimitError> {
        let name = text.to_ascii_lowercase().replace('_', "-");
        if let Some(found) = Algorithm::ALL.into_iter().find(|a| a.name() == name) {
            return Ok(found);
        }
        match name.as_str() {
            "tokenbucket" => Ok(Algorithm::TokenBucket),
            "leakybucket" => Ok(Algorithm::LeakyBucket),
            "fixed" | "fixed-window-counter" => Ok(Algorithm::FixedWindow),
            "sliding-window-counter" | "sliding-counter" => Ok(Algorithm::SlidingWindow),
            "sliding-window-log" | "moving-window" => Ok(Algorithm::SlidingLog),
            _ => Err(LimitError::UnknownAlgorithm(text.into(), closest_algorithm(&name))),
        }
    }
}

fn closest_algorithm(name: &str) -> Option<&'static str> {
    Algorithm::ALL
        .into_iter()
        .map(|a| (strsim::damerau_levenshtein(name, a.name()), a.name()))
        .min()
        .filter(|(distance, _)| *distance <= name.len().div_ceil(3))
        .map(|(_, name)| name)
}

/// Why a limit was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    #[error(
        "`{0}` is not a limit; write requests per period, e.g. 100/1m, 10/s, 5000/1h burst 200"
    )]
    Shape(String),
    #[error(transparent)]
    Unit(#[from] UnitError),
    #[error("unknown algorithm `{0}`{hint}; there are token-bucket, gcra, leaky-bucket, fixed-window, sliding-window, sliding-log", hint = did_you_mean(*.1))]
    UnknownAlgorithm(String, Option<&'static str>),
    #[error("a limit of {0} is too large; at most {MAX_COUNT} per period")]
    TooMany(u64),
    #[error(
        "a sliding-log limit of {0} is too large; it remembers every request, so at most {MAX_LOG}; use sliding-window for more"
    )]
    TooManyForLog(u64),
    #[error("a period of {0} is out of range; from 1ms to 366d")]
    Period(Micros),
    #[error("a burst of 0 would refuse everything; use at least 1, or a limit of 0 to block")]
    NoBurst,
    #[error("a burst of {0} is too large; at most {MAX_COUNT}")]
    TooMuchBurst(u64),
    #[error(
        "a burst belongs to the buckets (token-bucket, gcra, leaky-bucket); {0} has none, its limit is also the most that passes at once"
    )]
    BurstOnWindow(Algorithm),
    #[error(
        "a burst of {burst} at {requests} per {period} takes over 100 years to refill; raise the rate or lower the burst"
    )]
    SlowRefill { burst: u64, requests: u64, period: Micros },
}

fn did_you_mean(name: Option<&str>) -> String {
    name.map(|n| format!("; did you mean {n}?")).unwrap_or_default()
}

/// `L/P` and perhaps a burst, as written, before an algorithm gives it a meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    pub requests: u64,
    pub period: Micros,
    pub burst: Option<u64>,
}

impl FromStr for Quota {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<Quota, LimitError> {
        let shape = || LimitError::Shape(text.into());
        let words: Vec<&str> = text.split_whitespace().collect();
        let (rate, burst) = match words.as_slice() {
            [rate] => (*rate, None),
            [rate, "burst", burst] => (*rate, Some(units::parse_count(burst)?)),
            _ => return Err(shape()),
        };
        let (requests, period) = rate.split_once('/').ok_or_else(shape)?;
        Ok(Quota {
            requests: units::parse_count(requests)?,
            period: units::parse_period(period)?,
            burst,
        })
    }
}

/// An exact length of time at some limit's rate: whole microseconds and a fraction of one, counted
/// in parts of which [`Limit::tokens`] make a microsecond. The time to regain any whole number of
/// requests is such a span, so a bucket at 7 per 3 s never rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    pub us: u64,
    pub part: u64,
}

impl Span {
    pub const ZERO: Span = Span { us: 0, part: 0 };

    pub fn ceil(self) -> Micros {
        Micros(self.us + u64::from(self.part > 0))
    }
}

/// A limit that is known to be within the range in which every store is exact.
///
/// The rate `L/P` is kept in lowest terms as `tokens` per `micros`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limit {
    algorithm: Algorithm,
    requests: u64,
    period: Micros,
    capacity: u64,
    tokens: u64,
    micros: u64,
    /// To regain one request, and all of them: worked out once, needed by every check.
    span_of_one: Span,
    span_of_capacity: Span,
}

impl Limit {
    pub fn new(algorithm: Algorithm, quota: Quota) -> Result<Limit, LimitError> {
        let Quota { requests, period, burst } = quota;
        if requests > MAX_COUNT {
            return Err(LimitError::TooMany(requests));
        }
        if algorithm == Algorithm::SlidingLog && requests > MAX_LOG {
            return Err(LimitError::TooManyForLog(requests));
        }
        if period < MIN_PERIOD || period > MAX_PERIOD {
            return Err(LimitError::Period(period));
        }
        if burst.is_some() && !algorithm.is_bucket() {
            return Err(LimitError::BurstOnWindow(algorithm));
        }
        let capacity = match burst {
            _ if requests == 0 => 0,
            Some(0) => return Err(LimitError::NoBurst),
            Some(burst) if burst > MAX_COUNT => return Err(LimitError::TooMuchBurst(burst)),
            Some(burst) => burst,
            None => requests,
        };
        let divisor = gcd(requests, period.0);
        let refill = u128::from(capacity) * u128::from(period.0);
        if refill > u128::from(MAX_REFILL.0) * u128::from(requests) {
            return Err(LimitError::SlowRefill { burst: capacity, requests, period });
        }
        let mut limit = Limit {
            algorithm,
            requests,
            period,
            capacity,
            tokens: requests / divisor,
            micros: period.0 / divisor,
            span_of_one: Span::ZERO,
            span_of_capacity: Span::ZERO,
        };
        if requests > 0 {
            limit.span_of_one = limit.span(1);
            limit.span_of_capacity = limit.span(capacity);
        }
        Ok(limit)
    }

    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// `L`.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// `P`.
    pub fn period(&self) -> Micros {
        self.period
    }

    /// The most that can pass at once from fresh: `B` for the buckets, `L` for the windows.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The rate in lowest terms: requests regained …
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// … in this many microseconds.
    pub fn micros(&self) -> u64 {
        self.micros
    }

    pub fn span_of_one(&self) -> Span {
        self.span_of_one
    }

    pub fn span_of_capacity(&self) -> Span {
        self.span_of_capacity
    }

    /// How long it takes to regain `requests` of them: `requests · P / L`, exactly, as far as
    /// anything is held ([`MAX_HELD`]).
    pub fn span(&self, requests: u64) -> Span {
        let (us, part) = mul_div(requests, self.micros, self.tokens);
        Span { us: us.min(u128::from(MAX_HELD)) as u64, part }
    }
}

/// Whole quotient and remainder of `a · b / m`.
#[inline]
pub fn mul_div(a: u64, b: u64, m: u64) -> (u128, u64) {
    if let Some(product) = a.checked_mul(b) {
        return (u128::from(product / m), product % m);
    }
    let (product, m) = (u128::from(a) * u128::from(b), u128::from(m));
    (product / m, (product % m) as u64)
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.requests, self.period)?;
        if self.capacity != self.requests {
            write!(f, " burst {}", self.capacity)?;
        }
        Ok(())
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// What happens to quota already used when a limit changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnChange {
    /// What was used stays used: a raised limit helps at once, a lowered one bites at once.
    #[default]
    Keep,
    /// The used fraction stays, rounded up to a whole request.
    Scale,
    /// The bucket starts whole.
    Reset,
}

/// How much one request takes: 0 is a peek, at most [`MAX_COUNT`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost(u64);

impl Cost {
    pub const PEEK: Cost = Cost(0);
    pub const ONE: Cost = Cost(1);

    pub fn new(cost: u64) -> Result<Cost, CostError> {
        if cost > MAX_COUNT { Err(CostError(cost.to_string())) } else { Ok(Cost(cost)) }
    }

    pub fn get(self) -> u64 {
        self.0
    }

    pub(super) fn less(self, other: Cost) -> Cost {
        Cost(self.0.saturating_sub(other.0))
    }

    /// So many times as much; beyond the largest capacity it stays just beyond it, and never passes.
    pub(super) fn times(self, weight: u64) -> Cost {
        Cost((self.0.saturating_mul(weight)).min(MAX_COUNT + 1))
    }
}

impl FromStr for Cost {
    type Err = CostError;

    fn from_str(text: &str) -> Result<Cost, CostError> {
        let wrong = || CostError(text.into());
        units::parse_count(text)
            .map_err(|_| wrong())
            .and_then(|n| Cost::new(n).map_err(|_| wrong()))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a cost; a whole number from 0 (a peek) to {MAX_COUNT}")]
pub struct CostError(pub String);

/// The answer of one bucket. Durations count from `at` and are rounded up to the microsecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    pub allowed: bool,
    /// `L`.
    pub limit: u64,
    pub capacity: u64,
    /// Whole requests of cost 1 left now.
    pub remaining: u64,
    /// Until this same cost would pass if nothing else came; none when allowed or never.
    pub retry_after: Option<Micros>,
    /// Until the quota is whole.
    pub reset_after: Micros,
    /// Until `remaining` grows by one.
    pub next_after: Micros,
    /// How long the request must be held (leaky bucket).
    pub delay: Micros,
    /// The time the decision was taken at: not before the bucket's last charge.
    pub at: Micros,
    /// The bucket's last charge lay over a period ahead of the clock, and it started whole.
    pub clock_jump: bool,
}

impl Decision {
    /// What is the same in every decision of `limit` at `at`; the algorithm fills in the rest.
    pub(super) fn at(limit: &Limit, at: Micros) -> Decision {
        Decision {
            allowed: true,
            limit: limit.requests,
            capacity: limit.capacity,
            remaining: 0,
            retry_after: None,
            reset_after: Micros::ZERO,
            next_after: Micros::ZERO,
            delay: Micros::ZERO,
            at,
            clock_jump: false,
        }
    }

    /// A rejection that no waiting mends.
    pub fn never_passes(&self) -> bool {
        !self.allowed && self.retry_after.is_none()
    }

    pub fn used(&self) -> u64 {
        self.capacity - self.remaining
    }

    pub fn state(&self) -> QuotaState {
        QuotaState::of(self)
    }
}

/// How close a quota is to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum QuotaState {
    Normal,
    /// 80 % or more is used.
    Warning,
    /// This decision rejects, or nothing is left.
    Throttled,
}

impl QuotaState {
    pub fn of(decision: &Decision) -> QuotaState {
        if !decision.allowed || decision.remaining == 0 {
            QuotaState::Throttled
        } else if decision.remaining * 5 <= decision.capacity {
            QuotaState::Warning
        } else {
            QuotaState::Normal
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            QuotaState::Normal => "normal",
            QuotaState::Warning => "warning",
            QuotaState::Throttled => "throttled",
        }
    }
}

/// The place of the decision that speaks for several limits of one identity: on rejection the
/// longest wait ("never" is longest), when allowed the fewest remaining; ties go to the first.
pub fn deciding(decisions: &[Decision]) -> Option<usize> {
    let rejecting = decisions.iter().enumerate().filter(|(_, d)| !d.allowed);
    let longest =
        rejecting.min_by_key(|(_, d)| std::cmp::Reverse(d.retry_after.unwrap_or(Micros(u64::MAX))));
    longest
        .or_else(|| decisions.iter().enumerate().min_by_key(|(_, d)| d.remaining))
        .map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(algorithm: Algorithm, text: &str) -> Result<Limit, LimitError> {
        Limit::new(algorithm, text.parse()?)
    }

    #[test]
    fn a_limit_is_read_as_people_write_it() {
        let l = limit(Algorithm::TokenBucket, "5000/1h burst 200").unwrap();
        assert_eq!((l.requests(), l.period(), l.capacity()), (5000, Micros::HOUR, 200));
        assert_eq!((l.tokens(), l.micros()), (1, 720_000));
        assert_eq!(l.to_string(), "5000/1h burst 200");
        let l = limit(Algorithm::FixedWindow, "10k/s").unwrap();
        assert_eq!((l.requests(), l.period(), l.capacity()), (10_000, Micros::SECOND, 10_000));
        assert_eq!(l.to_string(), "10000/1s");
    }

    #[test]
    fn what_no_store_could_keep_exactly_is_refused() {
        use Algorithm::*;
        for (algorithm, text) in [
            (Gcra, "10"),
            (Gcra, "10/"),
            (Gcra, "/1s"),
            (Gcra, "-1/1s"),
            (Gcra, "1.5/1s"),
            (Gcra, "10/1y"),
            (Gcra, "10/0s"),
            (Gcra, "10/999us"),
            (Gcra, "10/367d"),
            (Gcra, "1000000001/1s"),
            (Gcra, "10/1s burst 0"),
            (Gcra, "10/1s burst 1000000001"),
            (Gcra, "10/1s burst x"),
            (Gcra, "10/1s burst"),
            (Gcra, "10 / 1s"),
            (Gcra, "1/366d burst 101"),
            (FixedWindow, "10/1s burst 5"),
            (SlidingLog, "100001/1s"),
        ] {
            assert!(limit(algorithm, text).is_err(), "{algorithm} {text}");
        }
        for (algorithm, text) in [
            (Gcra, "1000000000/1ms burst 1000000000"),
            (TokenBucket, "1/365d burst 100"),
            (SlidingLog, "100000/366d"),
            (LeakyBucket, "0/1s"),
        ] {
            assert!(limit(algorithm, text).is_ok(), "{algorithm} {text}");
        }
    }

    #[test]
    fn other_spellings_of_algorithms_are_known() {
        assert_eq!("Token_Bucket".parse(), Ok(Algorithm::TokenBucket));
        assert_eq!("sliding_window".parse(), Ok(Algorithm::SlidingWindow));
        assert_eq!("sliding_window_log".parse(), Ok(Algorithm::SlidingLog));
        let error = "tokn-bucket".parse::<Algorithm>().unwrap_err().to_string();
        assert!(error.contains("did you mean token-bucket?"), "{error}");
    }

    #[test]
    fn the_longest_wait_speaks_for_a_rejection_and_the_least_left_for_an_admission() {
        let ten = limit(Algorithm::Gcra, "10/1s").unwrap();
        let decision = |allowed, remaining, retry: Option<u64>| Decision {
            allowed,
            remaining,
            retry_after: retry.map(Micros),
            ..Decision::at(&ten, Micros::ZERO)
        };
        let ok = |remaining| decision(true, remaining, None);
        let wait = |us| decision(false, 0, Some(us));
        let never = decision(false, 0, None);
        assert_eq!(deciding(&[]), None);
        assert_eq!(deciding(&[ok(5), ok(3), ok(3)]), Some(1));
        assert_eq!(deciding(&[ok(0), wait(5), wait(9), wait(9)]), Some(2));
        assert_eq!(deciding(&[wait(5), never, wait(9)]), Some(1));
    }
}
