//! A decision in words: which limit it was, and the arithmetic behind it.

use super::about;
use crate::engine::clock::Micros;
use crate::engine::limit::{Algorithm, Decision, Limit};

/// One sentence a line. `cost` is what was asked of this limit, `taken` whether all limits that
/// were asked together let it pass.
pub fn explain(limit: &Limit, decision: &Decision, cost: u64, taken: bool) -> Vec<String> {
    let mut lines = vec![promise(limit), standing(limit, decision)];
    lines.push(outcome(limit, decision, cost, taken));
    lines.extend(decision.clock_jump.then(clock_jump));
    lines
}

/// The same where nothing was asked for: how the limit stands, and what a cost of 1 would be told.
pub fn explain_standing(limit: &Limit, now: &Decision, of_one: &Decision) -> Vec<String> {
    let mut lines = vec![promise(limit), standing(limit, now)];
    lines.push(match of_one.retry_after {
        _ if of_one.allowed && of_one.delay > Micros::ZERO => {
            format!("a cost of 1 would be let in, to be held for {}", about(of_one.delay))
        }
        _ if of_one.allowed => format!("a cost of 1 would pass and leave {}", of_one.remaining),
        Some(wait) => format!("a cost of 1 would be refused; it fits in {}", about(wait)),
        None => "a cost of 1 would be refused, now and later".into(),
    });
    lines.extend(now.clock_jump.then(clock_jump));
    lines
}

fn clock_jump() -> String {
    "its last charge lay over a period in the future, so it started whole: check the clock".into()
}

/// What the limit says, independent of anybody's use of it.
fn promise(limit: &Limit) -> String {
    let (requests, period, capacity) = (limit.requests(), limit.period(), limit.capacity());
    if requests == 0 {
        return "the limit is 0: nothing passes".into();
    }
    let each = about(Micros(limit.micros().div_ceil(limit.tokens())));
    match limit.algorithm() {
        Algorithm::TokenBucket => format!(
            "a bucket of {capacity} tokens that regains {requests} in {period}, one every {each}"
        ),
        Algorithm::Gcra => {
            format!("{capacity} at once, then {requests} in {period}, one every {each}")
        }
        Algorithm::LeakyBucket => {
            format!("a queue of {capacity} that lets one out every {each}, {requests} in {period}")
        }
        Algorithm::FixedWindow => format!(
            "{requests} in each window of {period}; windows turn at multiples of it since 1970"
        ),
        Algorithm::SlidingWindow => {
            format!(
                "{requests} in {period}, counted as this window plus what still overlaps of the last one"
            )
        }
        Algorithm::SlidingLog => {
            format!("{requests} in any {period}, every request remembered that long")
        }
    }
}

/// How much of it is used now.
fn standing(limit: &Limit, decision: &Decision) -> String {
    let (used, capacity) = (decision.used(), decision.capacity);
    if used == 0 {
        return format!("all {capacity} are there");
    }
    let whole = about(decision.reset_after);
    let next = about(decision.next_after);
    match limit.algorithm() {
        Algorithm::FixedWindow => {
            format!("{used} of {capacity} are used; this window ends in {whole}")
        }
        _ => format!(
            "{used} of {capacity} are used; the next one is there in {next}, all of them in {whole}"
        ),
    }
}

fn outcome(limit: &Limit, decision: &Decision, cost: u64, taken: bool) -> String {
    let capacity = decision.capacity;
    let left = decision.remaining;
    match decision.retry_after {
        _ if cost == 0 => "nothing was asked for, so nothing was taken".into(),
        _ if decision.allowed && !taken => {
            format!("a cost of {cost} would pass; nothing was taken, another limit refused")
        }
        _ if decision.allowed
            && limit.algorithm() == Algorithm::LeakyBucket
            && decision.delay > Micros::ZERO =>
        {
            format!(
                "a cost of {cost} was let in, to be held for {} until it is its turn",
                about(decision.delay)
            )
        }
        _ if decision.allowed => format!("a cost of {cost} was taken and leaves {left}"),
        Some(wait) => {
            format!("a cost of {cost} is more than the {left} left; it fits in {}", about(wait))
        }
        None => {
            format!("a cost of {cost} is more than the {capacity} that can ever be had at once")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::algo::{State, decide, take};
    use crate::engine::limit::Cost;

    fn words(algorithm: Algorithm, quota: &str, before: u64, cost: u64) -> String {
        let limit = Limit::new(algorithm, quota.parse().unwrap()).unwrap();
        let mut state = State::fresh(algorithm);
        let (now, cost) = (Micros(600_000_000), Cost::new(cost).unwrap());
        take(&limit, &mut state, now, Cost::new(before).unwrap());
        explain(&limit, &decide(&limit, &state, now, cost), cost.get(), true).join(". ")
    }

    #[test]
    fn the_arithmetic_is_said_in_words() {
        assert_eq!(
            words(Algorithm::TokenBucket, "10/1m", 0, 1),
            "a bucket of 10 tokens that regains 10 in 1m, one every 6s. 1 of 10 are used; the next \
             one is there in 6s, all of them in 6s. a cost of 1 was taken and leaves 9"
        );
        assert_eq!(
            words(Algorithm::FixedWindow, "10/1m", 9, 2),
            "10 in each window of 1m; windows turn at multiples of it since 1970. 9 of 10 are used; \
             this window ends in 1m. a cost of 2 is more than the 1 left; it fits in 1m"
        );
        assert!(
            words(Algorithm::LeakyBucket, "10/1s", 3, 1)
                .ends_with("to be held for 300ms until it is its turn")
        );
        assert!(
            words(Algorithm::Gcra, "5/1s", 0, 6)
                .ends_with("more than the 5 that can ever be had at once")
        );
        assert!(
            words(Algorithm::SlidingLog, "5/1s", 0, 0)
                .contains("all 5 are there. nothing was asked for")
        );
        assert_eq!(
            words(Algorithm::Gcra, "0/1s", 0, 1).split(". ").next(),
            Some("the limit is 0: nothing passes")
        );
    }
}
