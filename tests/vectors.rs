//! The test tables of other limiters, restated. Each says where it comes from, and where our
//! meaning differs from theirs it says how, and holds ours.

use rlctl::engine::clock::Micros;
use rlctl::engine::identity::Identity;
use rlctl::engine::limit::{Algorithm, Decision, Limit};
use rlctl::engine::store::{Check, RuleLimit};

use self::Step::*;
use crate::support::{Rig, cost, id, limit};

/// Midnight: every window of whole seconds that divides a day begins here, so that windows opened
/// by a first hit and windows aligned to the epoch are the same.
const START: u64 = 1_763_424_000_000_000;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// At so many ms, so many of cost 1 pass.
    Pass(u64, usize),
    /// At so many ms, this cost passes or not.
    Ask(u64, u64, bool),
    /// …and leaves so many.
    AskLeft(u64, u64, bool, u64),
    /// Time, cost, passes; remaining, retry_after (-1 none) and reset_after in ms.
    Full(u64, u64, bool, u64, i64, u64),
    /// Whether this cost would pass, asked without taking it.
    Would(u64, u64, bool),
    /// So many are left.
    Left(u64, u64),
    /// So many are left, and the next comes after so many µs.
    LeftNext(u64, u64, u64),
    /// The key is cleared: goes on with one that was never used.
    Cleared,
}

/// Runs one table on one store.
async fn run(rig: &Rig, name: &str, limit: Limit, steps: &[Step]) {
    let mut life = 0;
    let limits = [std::sync::Arc::new(RuleLimit::new("r", 0, limit))];
    let ask = async |life: usize, ms: u64, c: u64| -> Decision {
        let identity: Identity = id(&format!("case:{}-{name}-{life}", limit.algorithm()));
        let at = Some(Micros(START + ms * 1000));
        let check =
            Check { identity: &identity, limits: &limits, cost: cost(c), idempotency: None, at };
        rig.store.check(&check).await.unwrap().decisions[0]
    };
    for step in steps {
        let context = format!("{}: {name}, {limit}, {step:?}", rig.name);
        match *step {
            Pass(ms, times) => {
                for _ in 0..times {
                    assert!(ask(life, ms, 1).await.allowed, "{context}");
                }
            }
            Ask(ms, cost, allowed) => {
                assert_eq!(ask(life, ms, cost).await.allowed, allowed, "{context}");
            }
            AskLeft(ms, cost, allowed, left) => {
                let decision = ask(life, ms, cost).await;
                assert_eq!((decision.allowed, decision.remaining), (allowed, left), "{context}");
            }
            Full(ms, cost, allowed, left, retry_ms, reset_ms) => {
                let decision = ask(life, ms, cost).await;
                let retry = u64::try_from(retry_ms).ok().map(|ms| Micros(ms * 1000));
                assert_eq!((decision.allowed, decision.remaining), (allowed, left), "{context}");
                assert_eq!(decision.retry_after, retry, "{context}");
                assert_eq!(decision.reset_after, Micros(reset_ms * 1000), "{context}");
            }
            Would(ms, cost, allowed) => {
                assert_eq!(ask(life, ms, 0).await.remaining >= cost, allowed, "{context}");
            }
            Left(ms, left) => assert_eq!(ask(life, ms, 0).await.remaining, left, "{context}"),
            LeftNext(ms, left, next_us) => {
                let peek = ask(life, ms, 0).await;
                assert_eq!((peek.remaining, peek.next_after.0), (left, next_us), "{context}");
            }
            Cleared => life += 1,
        }
    }
}

/// A table for gcra; the token bucket is the same bucket, and the leaky bucket admits the same.
async fn run_on_buckets(rig: &Rig, name: &str, quota: &str, steps: &[Step]) {
    for algorithm in [Algorithm::Gcra, Algorithm::TokenBucket, Algorithm::LeakyBucket] {
        run(rig, name, limit(algorithm, quota), steps).await;
    }
}

/// throttled (Go) v2.13.0, `rate_test.go`, TestRateLimit; BSD-3-Clause. Its conventions are ours: a
/// cost of 0 is a peek, reset is until the key is as if never used, a cost above the burst has no
/// retry. Its MaxBurst 4 is a burst of 5.
#[tokio::test]
async fn throttled_gcra() {
    let steps = [
        Full(0, 6, false, 5, -1, 0),
        Full(0, 1, true, 4, -1, 1000),
        Full(0, 1, true, 3, -1, 2000),
        Full(0, 1, true, 2, -1, 3000),
        Full(0, 1, true, 1, -1, 4000),
        Full(0, 1, true, 0, -1, 5000),
        Full(0, 1, false, 0, 1000, 5000),
        Full(3000, 1, true, 2, -1, 3000),
        Full(3100, 1, true, 1, -1, 3900),
        Full(4000, 1, true, 1, -1, 4000),
        Full(8000, 1, true, 4, -1, 1000),
        Full(9500, 1, true, 4, -1, 1000),
        Full(9500, 0, true, 4, -1, 1000),
        Full(9500, 2, true, 2, -1, 3000),
        Full(9500, 5, false, 2, 3000, 3000),
        Full(15000, 6, false, 5, -1, 0),
    ];
    for rig in Rig::both().await {
        run_on_buckets(&rig, "throttled", "1/1s burst 5", &steps).await;
    }
}

/// governor 0.10.4 (Rust), `tests/direct.rs` and `tests/middleware.rs`; MIT. A cost above the burst
/// is an error of its own there ("insufficient capacity"); with us a rejection without a retry.
#[tokio::test]
async fn governor_direct_and_middleware() {
    let cases: [(&str, &str, &[Step]); 10] = [
        ("accepts_first_cell", "5/1s", &[Pass(0, 1)]),
        (
            "rejects_too_many",
            "2/1s",
            &[
                Pass(0, 1),
                Pass(1, 1),
                Ask(2, 1, false),
                Pass(1002, 1),
                Pass(1003, 1),
                Ask(1004, 1, false),
            ],
        ),
        (
            "does_not_allow_one_extra_cell_after_longer_interval",
            "5/1s",
            &[Pass(0, 5), Ask(0, 1, false), Pass(2000, 5), Ask(2000, 1, false)],
        ),
        (
            "never_allows_more_than_capacity_all",
            "4/1s",
            &[
                Ask(0, 2, true),
                Ask(0, 2, true),
                Ask(1, 2, false),
                Ask(1001, 2, true),
                Ask(1002, 2, true),
                Ask(1003, 2, false),
            ],
        ),
        ("rejects_too_many_all", "5/1s", &[Ask(0, 15, false), Ask(3000, 15, false)]),
        (
            "all_capacity_check_rejects_excess",
            "5/1s",
            &[
                Full(0, 15, false, 5, -1, 0),
                Full(0, 7, false, 5, -1, 0),
                Full(0, 6, false, 5, -1, 0),
                Ask(0, 5, true),
            ],
        ),
        ("actual_threadsafety", "20/1s", &[Pass(0, 20), Ask(2, 1, false), Pass(1000, 1)]),
        (
            "state_information",
            "4/1s",
            &[
                AskLeft(0, 1, true, 3),
                AskLeft(0, 1, true, 2),
                AskLeft(0, 1, true, 1),
                AskLeft(0, 1, true, 0),
                Ask(0, 1, false),
            ],
        ),
        (
            "state_snapshot_tracks_quota_accurately",
            "1/90ms burst 2",
            &[
                AskLeft(0, 1, true, 1),
                AskLeft(0, 1, true, 0),
                Ask(0, 1, false),
                AskLeft(120_000, 1, true, 1),
                AskLeft(120_000, 1, true, 0),
                Ask(120_000, 1, false),
            ],
        ),
        ("one_per_hour", "1/1h", &[Pass(0, 1), Ask(0, 1, false)]),
    ];
    for rig in Rig::both().await {
        for (name, quota, steps) in cases {
            run_on_buckets(&rig, name, quota, steps).await;
        }
    }
}

/// governor 0.10.4 (Rust), `tests/direct.rs`, correct_wait_time; MIT. Twenty rounds: a millisecond
/// passes, ask; if refused wait as told and ask again: that always passes.
#[tokio::test]
async fn governor_correct_wait_time() {
    for rig in Rig::both().await {
        for algorithm in Algorithm::ALL {
            let limits = crate::support::named(algorithm.name(), algorithm, "5/1s");
            let (mut now, mut refused) = (START, 0);
            for _ in 0..20 {
                now += 1000;
                if let Some(wait) = rig.decide(&limits, 1, now).await.retry_after {
                    refused += 1;
                    now += wait.0;
                    assert!(rig.decide(&limits, 1, now).await.allowed, "{} {algorithm}", rig.name);
                }
            }
            assert!(refused > 2, "{algorithm}: {refused}");
        }
    }
}

/// limits (Python) at f7d1eef, `tests/test_strategy.py`, fixed window; MIT. There the first hit of a
/// key opens its window, with us windows are aligned to the epoch (as in its memcached storage): these
/// cases begin on an edge, where both are the same. Its `reset` is when the next unit is free: our
/// `next_after`.
#[tokio::test]
async fn limits_fixed_window() {
    let cases: [(&str, &str, &[Step]); 5] = [
        (
            "fixed_window",
            "10/2s",
            &[Pass(0, 10), Ask(1000, 1, false), LeftNext(1000, 0, 1_000_000)],
        ),
        ("fixed_window_empty_stats", "10/2s", &[LeftNext(0, 10, 0)]),
        ("fixed_window_multiple_cost_k1", "10/2m", &[Ask(0, 11, false)]),
        (
            "fixed_window_multiple_cost_k2",
            "10/2m",
            &[Ask(0, 5, true), Left(0, 5), Would(0, 6, false), Ask(0, 6, false)],
        ),
        (
            "test_fixed_window",
            "2/1h",
            &[Pass(0, 1), Would(0, 1, true), Pass(0, 1), Would(0, 1, false), Ask(0, 1, false)],
        ),
    ];
    for rig in Rig::both().await {
        for (name, quota, steps) in cases {
            run(&rig, name, limit(Algorithm::FixedWindow, quota), steps).await;
        }
        // Where they differ: a first hit in the middle of a window. Theirs would be closed until
        // 2500 ms; ours ends with the window, at 2000 ms.
        let middle = [Pass(500, 10), LeftNext(500, 0, 1_500_000), Pass(2000, 10)];
        run(&rig, "first_hit", limit(Algorithm::FixedWindow, "10/2s"), &middle).await;
    }
}

/// limits (Python) at f7d1eef, `tests/test_strategy.py`, sliding window counter; MIT. Theirs rounds
/// the weight of the previous window down, ours keeps it exact: where theirs admits three, ours
/// admits two. Its `reset` is the end of the window or the next whole unit of the rounded weight; our
/// `next_after` is when the exact estimate has room for one more.
#[tokio::test]
async fn limits_sliding_window_counter() {
    let cases: [(&str, &str, &[Step]); 8] = [
        (
            "sliding_window_counter",
            "10/2s",
            // Theirs says 1 s, to the window's end. But then all ten still weigh in full; a tenth
            // into the next window one of them has gone.
            &[
                Pass(0, 10),
                Ask(1000, 1, false),
                LeftNext(1000, 0, 1_200_000),
                Ask(2000, 1, false),
                Cleared,
                Left(1000, 10),
            ],
        ),
        (
            "sliding_window_counter_total_reset",
            "10/1s",
            &[
                Left(0, 10),
                Ask(0, 10, true),
                Ask(0, 1, false),
                Left(0, 0),
                LeftNext(2000, 10, 0),
                Full(2000, 0, true, 10, -1, 0),
            ],
        ),
        (
            "sliding_window_counter_current_window",
            "2/1d",
            // Theirs says a day; with us one hit weighs until the end of the second day.
            &[Pass(0, 1), LeftNext(0, 1, 2 * 86_400_000_000), Pass(0, 1), Ask(0, 1, false)],
        ),
        (
            "sliding_window_counter_previous_window",
            "5/1s",
            // 3 hits a millisecond into the next window weigh 2.997: theirs counts 2 and has 3
            // left, ours has 2 whole ones left. Every third of a period one more comes back.
            &[
                Pass(0, 3),
                Left(0, 2),
                LeftNext(1001, 2, 332_334),
                Pass(1001, 1),
                Left(1001, 1),
                Pass(1001, 1),
                Left(1001, 0),
                Ask(1001, 1, false),
                Left(1335, 1),
                Pass(1335, 1),
                Left(1335, 0),
                Ask(1335, 1, false),
                Left(1669, 1),
                Pass(1669, 1),
                Left(1669, 0),
                Ask(1669, 1, false),
            ],
        ),
        ("sliding_window_counter_empty_stats", "10/2s", &[LeftNext(0, 10, 0)]),
        ("sliding_window_counter_multiple_cost_k1", "10/2m", &[Ask(0, 11, false)]),
        (
            "sliding_window_counter_multiple_cost_k2",
            "10/2m",
            &[Ask(0, 5, true), Left(0, 5), Would(0, 6, false), Ask(0, 6, false)],
        ),
        (
            "test_sliding_window_counter",
            "2/1h",
            &[Pass(0, 1), Would(0, 1, true), Pass(0, 1), Would(0, 1, false), Ask(0, 1, false)],
        ),
    ];
    for rig in Rig::both().await {
        for (name, quota, steps) in cases {
            run(&rig, name, limit(Algorithm::SlidingWindow, quota), steps).await;
        }
    }
}

/// limits (Python) at f7d1eef, `tests/test_strategy.py`, moving window; MIT. Its `reset` is when the
/// oldest hit lapses: our `next_after`; ours is when the newest does. An unused key resets after a
/// whole period there, after nothing with us.
#[tokio::test]
async fn limits_moving_window() {
    let cases: [(&str, &str, &[Step]); 8] = [
        ("moving_window_empty_stats", "10/2s", &[LeftNext(0, 10, 0), Full(0, 0, true, 10, -1, 0)]),
        (
            "moving_window_stats",
            "2/1m",
            &[
                Pass(0, 1),
                Pass(1000, 1),
                Ask(2000, 1, false),
                LeftNext(2000, 0, 58_000_000),
                Full(2000, 0, true, 0, -1, 59_000),
            ],
        ),
        ("moving_window", "10/2s", &[Pass(0, 5), Pass(1800, 5), Ask(1800, 1, false)]),
        ("moving_window_multiple_cost_k1", "10/2s", &[Ask(0, 11, false)]),
        (
            "moving_window_multiple_cost_k2",
            "10/2s",
            &[
                Ask(0, 5, true),
                Pass(1900, 4),
                Would(1900, 2, false),
                Ask(1900, 2, false),
                Pass(1900, 1),
                Pass(2100, 5),
                Left(2100, 0),
                Ask(2100, 2, false),
            ],
        ),
        (
            "moving_window_varying_cost",
            "5/1m",
            &[Ask(0, 5, true), Ask(0, 2, false), Cleared, Pass(0, 1)],
        ),
        (
            // A million there; with us a log holds at most 100 000.
            "moving_window_huge_cost",
            "100000/2s",
            &[Pass(0, 1), Ask(1000, 99_999, true), Left(2001, 1), Cleared, Left(2001, 100_000)],
        ),
        (
            "test_moving_window",
            "2/1h",
            &[Pass(0, 1), Would(0, 1, true), Pass(0, 1), Would(0, 1, false), Ask(0, 1, false)],
        ),
    ];
    for rig in Rig::both().await {
        for (name, quota, steps) in cases {
            run(&rig, name, limit(Algorithm::SlidingLog, quota), steps).await;
        }
    }
    assert!(Limit::new(Algorithm::SlidingLog, "1M/2s".parse().unwrap()).is_err());
}
