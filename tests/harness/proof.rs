//! The checker, checked: histories of limiters that break a promise are found out, each for that.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rlctl::engine::breaker::State;

use super::history::{Called, History, Outage, Promise, Unknown};

const PROMISE: Promise = Promise {
    deadline: Duration::from_millis(50),
    rate: 20.0,
    burst: 20.0,
    losses: 0,
    at_most_lost: None,
};

fn ms(start: Instant, ms: f64) -> Instant {
    start + Duration::from_secs_f64(ms / 1000.0)
}

/// A faultless limiter asked every 5 ms for ten seconds, as exact arithmetic decides.
fn faultless(start: Instant) -> History {
    decided_by(start, PROMISE, 5.0, 2000, |level: &mut f64, elapsed_s| {
        *level = (*level + elapsed_s * PROMISE.rate).min(PROMISE.burst);
        let allowed = *level >= 1.0;
        *level -= f64::from(u8::from(allowed));
        allowed
    })
}

fn decided_by(
    start: Instant,
    promise: Promise,
    every_ms: f64,
    calls: usize,
    mut decide: impl FnMut(&mut f64, f64) -> bool,
) -> History {
    let mut level = promise.burst;
    let call = |n: usize| {
        let began = ms(start, n as f64 * every_ms);
        let allowed = decide(&mut level, if n == 0 { 0.0 } else { every_ms / 1000.0 });
        Called { identity: 0, began, ended: began, allowed, confirmed: false, degraded: None }
    };
    let calls: Vec<Called> = (0..calls).map(call).collect();
    let used = vec![calls.iter().filter(|call| call.allowed).count() as u64];
    History { calls, outages: Vec::new(), breakers: HashMap::new(), used, immortal: Vec::new() }
}

fn broken(history: &History, promise: &Promise) -> Vec<String> {
    history.broken_promises(promise, &|_, _| Duration::ZERO)
}

#[test]
fn a_limiter_that_keeps_its_promises_passes() {
    assert_eq!(broken(&faultless(Instant::now()), &PROMISE), Vec::<String>::new());
}

/// `floor(1 s / rate)` in whole microseconds: 3 µs instead of 3.33 at 300 000 a second.
#[test]
fn whole_microseconds_per_request_are_found_out() {
    let fast = Promise { rate: 300_000.0, burst: 100.0, ..PROMISE };
    let step = (1_000_000.0 / fast.rate).floor();
    let mut tat = 0.0f64;
    let mut now = 0.0f64;
    let rounded = decided_by(Instant::now(), fast.clone(), 0.001, 4_000, |_, elapsed_s| {
        now += elapsed_s * 1e6;
        let ahead = (tat - now).max(0.0);
        let allowed = ahead + step <= fast.burst * step;
        if allowed {
            tat = now + ahead + step;
        }
        allowed
    });
    let found = broken(&rounded, &fast);
    assert!(found[0].contains("passed within"), "{found:?}");
}

#[test]
fn each_broken_promise_is_found_out() {
    let start = Instant::now();
    let found = |change: &dyn Fn(&mut History), what: &str| {
        let mut history = faultless(start);
        change(&mut history);
        let found = broken(&history, &PROMISE);
        assert!(found.iter().any(|found| found.contains(what)), "{what}: {found:?}");
    };
    found(&|h| h.calls[7].ended += Duration::from_millis(61), "too long");
    // Passed without the store, and not marked.
    found(&|h| h.calls.iter_mut().for_each(|call| call.allowed = true), "passed within");
    found(&|h| h.used[0] += 1, "counted");
    found(&|h| h.used[0] -= 1, "counted");
    found(&|h| h.immortal.push("rl1:{user:1}".into()), "no TTL");
    found(
        &|h| drop(h.breakers.insert("s".into(), vec![State::Closed, State::HalfOpen])),
        "breaker",
    );
    // A charge that replicas had is gone with the master, whatever else may be.
    let after_a_loss = |confirmed: bool| {
        let mut history = faultless(start);
        history.calls.iter_mut().for_each(|call| call.confirmed = confirmed && call.allowed);
        history.used[0] -= 1;
        broken(&history, &Promise { losses: 1, ..PROMISE })
    };
    assert_eq!(after_a_loss(false), Vec::<String>::new());
    assert!(after_a_loss(true)[0].contains("confirmed"), "{:?}", after_a_loss(true));
    // A client that stays with a server that hangs: the servers are back, it is not.
    found(
        &|h| {
            h.outages.push(Outage { began: start, healed: ms(start, 2000.0) });
            for call in h.calls.iter_mut().take(1000) {
                (call.allowed, call.degraded) = (true, Some(Unknown(true)));
            }
        },
        "after the servers were back",
    );
}
