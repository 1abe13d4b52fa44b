//! A Redis under Sentinel, with traffic running: who is master changes, and the limit holds on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rlctl::engine::clock::Micros;
use rlctl::engine::limit::Algorithm;
use rlctl::engine::store::keys::Prefix;
use rlctl::engine::store::redis::{Lookout, Meter, RedisAddress, RedisOptions};
use rlctl::engine::store::{Check, RedisStore, RuleLimit, StoreError};
use rlctl::ops::local_redis::Kind;

use crate::support::servers::Servers;
use crate::support::{cost, id, one};

const DEADLINE: Micros = Micros(200_000);

async fn servers() -> Servers {
    Servers::start(Kind::Sentinel, 1, 2).await
}

async fn ask(store: &RedisStore, limits: &[Arc<RuleLimit>]) -> Result<bool, StoreError> {
    let identity = id("user:1");
    let check = Check { identity: &identity, limits, cost: cost(1), idempotency: None, at: None };
    store.check(&check).await.map(|answer| answer.allowed())
}

/// Asks until there is an answer again; how long that took, and the longest that a call took.
async fn until_answered(store: &RedisStore, limits: &[Arc<RuleLimit>]) -> (Duration, Duration) {
    let (began, mut longest) = (Instant::now(), Duration::ZERO);
    loop {
        let asked = Instant::now();
        let answered = ask(store, limits).await.is_ok();
        longest = longest.max(asked.elapsed());
        if answered {
            return (began.elapsed(), longest);
        }
        assert!(began.elapsed() < Duration::from_secs(60), "nobody answers any more");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_master_is_found_and_counted_on() {
    let servers = servers().await;
    let store = servers.store(DEADLINE).await;
    let limits = one(Algorithm::TokenBucket, "3/1d");
    let mut allowed = Vec::new();
    for _ in 0..5 {
        allowed.push(ask(&store, &limits).await.unwrap());
    }
    assert_eq!(allowed, [true, true, true, false, false]);
    let wrong = servers.local.url().replace("master=main", "master=other");
    let options = RedisOptions {
        address: RedisAddress::parse(&wrong, None).unwrap(),
        ..servers.options(DEADLINE)
    };
    let error = RedisStore::connect(options, Prefix::default()).await.unwrap_err().to_string();
    assert!(error.contains("no sentinel names the master `other`"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_planned_failover_keeps_what_was_used() {
    let servers = servers().await;
    let store = servers.store(DEADLINE).await;
    let limits = one(Algorithm::Gcra, "100/1d");
    for _ in 0..40 {
        assert!(ask(&store, &limits).await.unwrap());
    }
    // What is replicated is not lost.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let (_, new) = servers.local.fail_over(None).await.unwrap();
    let began = Instant::now();
    while store.shards()[0].meter.failovers() == 0 {
        assert!(began.elapsed() < Duration::from_secs(20), "the old master is still used");
        let _ = ask(&store, &limits).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    until_answered(&store, &limits).await;
    let console = servers.local.console(new).await.unwrap();
    let keys = console.text(&["DBSIZE"]).await.unwrap();
    assert_ne!(keys, "0", "the new master is counted on");
    let mut more = 0;
    while ask(&store, &limits).await.unwrap() {
        more += 1;
    }
    assert!(more < 60, "{more} more were let through after 40 of 100");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_dies_or_hangs_is_followed_by_another() {
    let servers = servers().await;
    let store = servers.store(DEADLINE).await;
    let limits = one(Algorithm::TokenBucket, "1000000/1d");
    ask(&store, &limits).await.unwrap();
    for hangs in [true, false] {
        let first = servers.local.master(None).await.unwrap();
        match hangs {
            true => servers.local.pause(first).unwrap(),
            false => servers.local.kill(first).await.unwrap(),
        }
        let began = Instant::now();
        while ask(&store, &limits).await.is_ok() && began.elapsed() < Duration::from_secs(5) {}
        let (took, longest) = until_answered(&store, &limits).await;
        assert!(took < Duration::from_secs(20), "{took:?}");
        let bound = Duration::from(DEADLINE) + Duration::from_millis(300);
        assert!(longest < bound, "a call took {longest:?}");
        if hangs {
            servers.local.wake(first).unwrap();
        }
        // Sentinels tell it later than the store has found it: the one that leads names the old
        // one until every replica follows.
        while !servers.local.master(None).await.is_ok_and(|now| now != first) {
            assert!(
                began.elapsed() < Duration::from_secs(30),
                "{first} is still called the master"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Looks until what is seen is as it should be.
async fn seen(store: &RedisStore, lookout: &mut Lookout, what: &str, is: impl Fn(&Meter) -> bool) {
    let began = Instant::now();
    loop {
        store.look_around(lookout).await;
        let meter = store.shards()[0].meter.clone();
        if is(&meter) {
            return;
        }
        let (lag, quorum) = (meter.replication_lag(), meter.sentinel_quorum());
        assert!(began.elapsed() < Duration::from_secs(30), "{what}: {lag:?}, {quorum:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lag_and_a_lost_quorum_are_seen_before_they_matter() {
    let servers = servers().await;
    let (store, mut lookout) = (servers.store(DEADLINE).await, Lookout::default());
    let limits = one(Algorithm::TokenBucket, "1000000/1d");
    let is_near = |m: &Meter| m.replication_lag().is_some_and(|lag| lag < Micros(500_000));
    ask(&store, &limits).await.unwrap();
    seen(&store, &mut lookout, "all is well", |m| is_near(m) && m.sentinel_quorum() == Some(true))
        .await;
    let master = servers.local.master(None).await.unwrap();
    let replica = servers.local.data_ports().find(|port| *port != master).unwrap();
    servers.local.pause(replica).unwrap();
    ask(&store, &limits).await.unwrap();
    let is_far = |m: &Meter| m.replication_lag().is_some_and(|lag| lag >= Micros::SECOND);
    seen(&store, &mut lookout, "a replica hangs", is_far).await;
    servers.local.wake(replica).unwrap();
    seen(&store, &mut lookout, "it has caught up", is_near).await;
    let sentinels: Vec<u16> =
        servers.local.nodes().filter(|node| node.is_sentinel).map(|node| node.port).collect();
    for port in &sentinels[1..] {
        servers.local.kill(*port).await.unwrap();
    }
    seen(&store, &mut lookout, "one of three is left", |m| m.sentinel_quorum() == Some(false))
        .await;
}
