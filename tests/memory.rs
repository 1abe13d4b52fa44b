//! The memory store under more identities than it may hold, under idle ones, and under threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rlctl::engine::clock::Micros;
use rlctl::engine::identity::Identity;
use rlctl::engine::limit::{Algorithm, Cost, Decision};
use rlctl::engine::store::memory::DEFAULT_MAX_IDENTITIES;
use rlctl::engine::store::{Check, MemoryStore, RuleLimit, Settlement};

use crate::support::{TODAY, cost, id, named, one};

const HOUR: u64 = 3_600_000_000;

fn ask(store: &MemoryStore, who: &str, limits: &[Arc<RuleLimit>], cost: Cost, at: u64) -> Decision {
    let identity = Identity::opaque(who).unwrap();
    let check =
        Check { identity: &identity, limits, cost, idempotency: None, at: Some(Micros(at)) };
    store.check(&check).unwrap().decisions[0]
}

fn take(store: &MemoryStore, who: &str, limits: &[Arc<RuleLimit>], at: u64) -> Decision {
    ask(store, who, limits, Cost::ONE, at)
}

#[test]
fn ten_million_identities_stay_within_the_bound_and_none_in_use_is_forgotten() {
    const IDENTITIES: u64 = 10_000_000;
    let store = MemoryStore::default();
    let limits = one(Algorithm::TokenBucket, "2/1h");
    let mut passed_from_overflow = 0;
    for n in 0..IDENTITIES {
        let own = store.overflowed();
        let decision = take(&store, &format!("user:{n}"), &limits, TODAY);
        if store.overflowed() > own {
            passed_from_overflow += u64::from(decision.allowed);
        } else {
            assert!(decision.allowed, "user:{n} has a bucket of its own");
        }
    }
    assert_eq!(store.identities(), DEFAULT_MAX_IDENTITIES);
    // Whoever came too late shared one bucket, and every one of them was counted.
    assert_eq!(store.overflowed(), IDENTITIES - DEFAULT_MAX_IDENTITIES as u64);
    assert_eq!(passed_from_overflow, 2);
    // The first are as they were: one of two used.
    for n in (0..DEFAULT_MAX_IDENTITIES).step_by(997) {
        let decision = ask(&store, &format!("user:{n}"), &limits, Cost::PEEK, TODAY);
        assert_eq!(decision.remaining, 1, "user:{n} was forgotten");
    }
    // An hour later all are whole and make room for whoever comes.
    for n in 0..100_000 {
        assert!(take(&store, &format!("late:{n}"), &limits, TODAY + HOUR).allowed);
    }
    assert_eq!(store.overflowed(), IDENTITIES - DEFAULT_MAX_IDENTITIES as u64);
    assert!(store.identities() <= DEFAULT_MAX_IDENTITIES);
}

#[test]
fn idle_identities_go_away_while_others_are_busy() {
    for algorithm in Algorithm::ALL {
        let store = MemoryStore::new(20_000);
        let limits = one(algorithm, "1000/1m");
        for n in 0..20_000 {
            assert!(take(&store, &format!("idle:{n}"), &limits, TODAY).allowed);
        }
        assert_eq!((store.identities(), store.overflowed()), (20_000, 0));
        let later = TODAY + HOUR;
        for round in 0..1_600 {
            for n in 0..500 {
                take(&store, &format!("busy:{n}"), &limits, later + round);
            }
        }
        let held = store.identities();
        assert!((500..600).contains(&held), "{algorithm}: {held} are held");
        let busy = ask(&store, "busy:7", &limits, Cost::PEEK, later + 1_600);
        assert_eq!(busy.remaining, 0, "{algorithm}: a busy one was forgotten");
    }
}

#[test]
fn a_small_store_shares_one_bucket_per_limit_among_those_it_has_no_room_for() {
    for bound in [1, 2, 10, 1_000] {
        let store = MemoryStore::new(bound);
        let (small, large) = (
            named("small", Algorithm::FixedWindow, "3/1d"),
            named("large", Algorithm::Gcra, "7/1d"),
        );
        for n in 0..bound {
            assert!(take(&store, &format!("early:{n}"), &small, TODAY).allowed);
        }
        let allowed = |rule| {
            (0..50).filter(|n| take(&store, &format!("late:{n}"), rule, TODAY).allowed).count()
        };
        assert_eq!((allowed(&small), allowed(&large)), (3, 7), "bound {bound}");
        assert_eq!((store.identities(), store.overflowed()), (bound, 100));
        // Those who were there first never notice.
        for n in 0..bound {
            assert_eq!(take(&store, &format!("early:{n}"), &small, TODAY).remaining, 1);
        }
        assert_eq!(store.overflowed(), 100);
    }
}

#[test]
fn settling_for_more_reaches_those_who_share_a_bucket() {
    let store = MemoryStore::new(1);
    let limits = one(Algorithm::FixedWindow, "10/1d");
    take(&store, "early", &limits, TODAY);
    let identity = Identity::opaque("late").unwrap();
    let at = Some(Micros(TODAY));
    let check =
        Check { identity: &identity, limits: &limits, cost: cost(1), idempotency: None, at };
    let charge = store.check(&check).unwrap().charge(&check).unwrap();
    assert!(store.settle(&charge, Settlement::Cost(cost(9)), at));
    assert_eq!(take(&store, "another", &limits, TODAY).remaining, 0);
    assert_eq!(ask(&store, "early", &limits, Cost::PEEK, TODAY).remaining, 9);
}

#[test]
fn a_store_without_room_for_anybody_still_decides() {
    let store = MemoryStore::new(0);
    let limits = one(Algorithm::SlidingLog, "3/1d");
    let allowed = (0..10).filter(|n| take(&store, &format!("u:{n}"), &limits, TODAY).allowed);
    assert_eq!(allowed.count(), 3);
    assert_eq!((store.identities(), store.overflowed()), (0, 10));
}

#[test]
fn rejections_and_peeks_of_strangers_take_no_room() {
    let store = MemoryStore::new(10);
    let limits = one(Algorithm::TokenBucket, "3/1d");
    for n in 0..1_000 {
        ask(&store, &format!("u:{n}"), &limits, Cost::PEEK, TODAY);
        assert!(!ask(&store, &format!("u:{n}"), &limits, cost(4), TODAY).allowed);
    }
    assert_eq!((store.identities(), store.overflowed()), (0, 0));
}

#[test]
fn threads_on_one_key_admit_exactly_the_limit() {
    for algorithm in Algorithm::ALL {
        let store = MemoryStore::default();
        let limits = one(algorithm, "5000/366d");
        let allowed = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..2_000 {
                        let passed = take(&store, "user:1", &limits, TODAY).allowed;
                        allowed.fetch_add(u64::from(passed), Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(allowed.into_inner(), 5_000, "{algorithm}");
    }
}

#[test]
fn threads_of_many_identities_stay_within_the_bound_and_each_within_its_limit() {
    let store = MemoryStore::new(3_000);
    let limits = one(Algorithm::Gcra, "4/366d");
    let allowed: Vec<AtomicU64> = (0..3_000).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (store, limits, allowed) = (&store, &limits, &allowed);
            scope.spawn(move || {
                for n in 0..3_000 {
                    // Every thread in its own order, all over the shards.
                    let n = (n * 1_009 + thread * 375) % 3_000;
                    let passed = take(store, &format!("user:{n}"), limits, TODAY).allowed;
                    allowed[n].fetch_add(u64::from(passed), Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!((store.identities(), store.overflowed()), (3_000, 0));
    assert!(allowed.iter().all(|n| n.load(Ordering::Relaxed) == 4));
}

#[test]
fn a_peek_where_there_is_no_room_tells_what_a_charge_would_meet() {
    let store = MemoryStore::new(1);
    let limits = one(Algorithm::Gcra, "3/1d");
    let left = |who: &str, c: u64| {
        let identity = id(who);
        let check = Check {
            identity: &identity,
            limits: &limits,
            cost: cost(c),
            idempotency: None,
            at: Some(Micros(TODAY)),
        };
        store.check(&check).expect("memory answers").decisions[0].remaining
    };
    assert_eq!(left("user:first", 1), 2);
    assert_eq!((left("user:second", 0), left("user:second", 2), left("user:third", 0)), (3, 1, 1));
    assert_eq!(left("user:first", 0), 2);
}
