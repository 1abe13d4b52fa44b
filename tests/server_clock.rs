//! Redis on its own clock, as in production: what expires when, and what is left behind.

use std::sync::Arc;
use std::time::Duration;

use rlctl::engine::limit::{Algorithm, Decision};
use rlctl::engine::store::{Check, RuleLimit, Settlement};

use crate::support::redis::RedisServer;
use crate::support::{Rig, cost, id, named, one, several};

async fn on_server_clock(rig: &Rig, limits: &[Arc<RuleLimit>], c: u64) -> Decision {
    let identity = id("user:1");
    let check = Check { identity: &identity, limits, cost: cost(c), idempotency: None, at: None };
    rig.store.check(&check).await.unwrap().decisions[0]
}

#[tokio::test]
async fn the_servers_own_clock_gives_every_key_a_ttl_that_outlives_its_quota() {
    let rig = Rig::redis().await;
    let server = rig.server.as_ref().unwrap();
    for algorithm in Algorithm::ALL {
        for quota in ["7/3s", "100/1h", "1G/366d", "1/366d"] {
            if algorithm == Algorithm::SlidingLog && quota == "1G/366d" {
                continue;
            }
            server.command::<()>(&["FLUSHALL"]);
            let limits = named("ttl", algorithm, quota);
            let charged = on_server_clock(&rig, &limits, 1).await;
            assert!(charged.allowed);
            let before = rig.dump();
            assert!(!before.is_empty());
            for (key, _, expires_ms) in &before {
                let whole_us = charged.at.0 + charged.reset_after.0;
                assert!(
                    *expires_ms >= whole_us.div_ceil(1000) as i64,
                    "{algorithm} {quota}: {key} expires at {expires_ms} ms, whole at {whole_us} µs"
                );
                // And not much later: idle keys go away.
                assert!(
                    *expires_ms <= (whole_us / 1000) as i64 + 1000,
                    "{algorithm} {quota}: {key}"
                );
            }
            on_server_clock(&rig, &limits, 0).await;
            let too_much = (charged.capacity + 1).min(1_000_000_000);
            assert!(!on_server_clock(&rig, &limits, too_much).await.allowed);
            assert_eq!(before, rig.dump(), "{algorithm} {quota}");
        }
    }
}

#[tokio::test]
async fn keys_of_a_given_time_live_at_least_an_hour() {
    let rig = Rig::redis().await;
    // A trace from 1970 and one from the year 2255.
    for at in [5, (1 << 53) - 400 * 86_400_000_000] {
        let limits = several(&[(Algorithm::SlidingLog, "10/1ms"), (Algorithm::Gcra, "10/1ms")]);
        assert!(rig.check(&limits, 1, at).await.allowed());
        let now: (u64, u64) = rig.server.as_ref().unwrap().command(&["TIME"]);
        for (key, _, expires_ms) in rig.dump() {
            assert!(expires_ms as u64 >= (now.0 + 3600) * 1000, "{key} expires at {expires_ms}");
        }
    }
}

#[tokio::test]
async fn a_log_that_has_lapsed_can_still_be_given_back() {
    // On the server's clock the log's charges expire by themselves while another rule keeps the
    // identity's record alive.
    let rig = Rig::redis().await;
    let identity = id("user:1");
    let log = named("log", Algorithm::SlidingLog, "10/50ms");
    let long = named("long", Algorithm::TokenBucket, "10/1h");
    let check =
        |limits| Check { identity: &identity, limits, cost: cost(1), idempotency: None, at: None };
    let charge = rig.store.check(&check(&log)).await.unwrap().charge(&check(&log)).unwrap();
    let other = rig.store.check(&check(&long)).await.unwrap().charge(&check(&long)).unwrap();
    while rig.dump().iter().any(|(key, _, _)| key.ends_with(":log")) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let refund = Settlement::Refund;
    assert_eq!(rig.store.settle(&charge, refund, None).await, Ok(true));
    assert_eq!(rig.store.settle(&other, refund, None).await, Ok(true));
    assert_eq!(on_server_clock(&rig, &log, 0).await.remaining, 10);
    assert_eq!(on_server_clock(&rig, &long, 0).await.remaining, 10);
}

#[tokio::test]
async fn a_log_that_has_lapsed_leaves_nothing_behind() {
    let rig = Rig::redis().await;
    let server = rig.server.as_ref().unwrap();
    let short = named("short", Algorithm::SlidingLog, "1000/50ms");
    let long = named("long", Algorithm::SlidingLog, "1000/1h");
    let bucket = named("bucket", Algorithm::Gcra, "1000/1h");
    for life in 0..3 {
        // Several pages of charges in one life, fewer in the next, while the others go on.
        for _ in 0..200 - 60 * life {
            assert!(on_server_clock(&rig, &short, 1).await.allowed);
        }
        tokio::time::sleep(Duration::from_millis(60)).await;
        on_server_clock(&rig, &bucket, 1).await;
        on_server_clock(&rig, &long, 1).await;
        assert_eq!(on_server_clock(&rig, &short, 0).await.remaining, 1000);
    }
    let fields: Vec<String> = server.command(&["HKEYS", "rl1:{user:1}:log"]);
    assert_eq!(fields, ["long#0/0"]);
}

#[tokio::test]
async fn an_idempotency_answer_expires_with_its_time() {
    let rig = Rig::redis().await;
    let identity = id("user:1");
    let limits = named("r", Algorithm::TokenBucket, "10/1ms");
    let remember = rlctl::engine::clock::Micros(30_000);
    let idempotency = rlctl::engine::store::Idempotency::new("k", remember).ok();
    let check =
        Check { identity: &identity, limits: &limits, cost: cost(1), idempotency, at: None };
    let first = rig.store.check(&check).await.unwrap();
    let ends_ms = (first.decisions[0].at.0 + remember.0).div_ceil(1000) as i64;
    let dump = rig.dump();
    let (key, _, expires) = dump.iter().find(|(key, _, _)| key.contains(":i:")).unwrap();
    assert_eq!((key.as_str(), *expires), ("rl1:{user:1}:i:k", ends_ms));
    tokio::time::sleep(Duration::from_millis(40)).await;
    assert!(!rig.store.check(&check).await.unwrap().replayed);
}

#[tokio::test]
async fn a_log_whose_charges_were_removed_is_whole_and_works_on() {
    let server = RedisServer::start();
    let store = server.store().await;
    let limits = one(Algorithm::SlidingLog, "3/1d");
    let identity = id("user:log");
    let left = |c| {
        let (store, limits, identity) = (&store, &limits, &identity);
        async move {
            let check = Check { identity, limits, cost: cost(c), idempotency: None, at: None };
            store.check(&check).await.unwrap().decisions[0].remaining
        }
    };
    assert_eq!((left(1).await, left(1).await), (2, 1));
    server.command::<()>(&["DEL", "rl1:{user:log}:log"]);
    assert_eq!((left(0).await, left(1).await, left(1).await), (3, 2, 1));
}
