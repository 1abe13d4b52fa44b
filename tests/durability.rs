//! Rules that wait for replicas, on real servers: what is confirmed is, what is not is said, and
//! nobody else waits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rlctl::engine::clock::Micros;
use rlctl::engine::durability::Confirmed;
use rlctl::engine::limit::Algorithm;
use rlctl::engine::policy::{Breaker, OnStoreError};
use rlctl::engine::store::{Answer, Check, Confirm, RedisStore, Store};
use rlctl::gateway::Gateway;
use rlctl::gateway::answer::Outcome;
use rlctl::ops::local_redis::Kind;

use crate::support::decider::{ask, on};
use crate::support::redis::RedisServer;
use crate::support::servers::Servers;
use crate::support::{cost, id, one};

const DEADLINE: Micros = Micros(500_000);
const WITHIN: Micros = Micros(100_000);

fn policy(replicas: &str) -> String {
    format!(
        r#"
        [[rule]]
        name = "kept"
        dimension = "user"
        limits = ["5/1d"]
        replicas = {{ {replicas} }}

        [[rule]]
        name = "plain"
        dimension = "ip"
        limits = ["100000/1d"]
        "#
    )
}

async fn check(store: &RedisStore, who: &str, n: u32) -> Answer {
    let (identity, limits) = (id(who), one(Algorithm::TokenBucket, "1000/100d"));
    let check =
        Check { identity: &identity, limits: &limits, cost: cost(1), idempotency: None, at: None };
    let confirm = Some(Confirm { replicas: n, within: WITHIN });
    store.check_confirmed(&check, Duration::ZERO, confirm).await.unwrap()
}

fn told(wanted: u32, confirmed: u32) -> Option<Confirmed> {
    Some(Confirmed { rule: "kept".into(), wanted, confirmed })
}

fn replicas(servers: &Servers, master: u16) -> Vec<u16> {
    servers.local.data_ports().filter(|port| *port != master).collect()
}

fn metrics(gateway: &Gateway) -> String {
    gateway.stats.metrics(gateway, Micros::now())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_charge_is_answered_for_when_replicas_have_it_and_marked_when_not() {
    let servers = Servers::start(Kind::Sentinel, 1, 2).await;
    let master = servers.local.master(None).await.unwrap();
    let store = servers.store(DEADLINE).await;
    store.set_breaker(Breaker::default());
    let gateway = on(Store::Redis(store), &policy("n = 2, timeout = \"100ms\"")).await;
    let passed = ask(&gateway, &["user:1"]).await;
    assert_eq!(passed.replicas, told(2, 2));
    gateway.stats.tick(&gateway, Micros::now());
    // One of two can answer; the shared connection is free while the other waits.
    let one = replicas(&servers, master)[0];
    servers.local.pause(one).unwrap();
    let waits = async {
        let began = Instant::now();
        (ask(&gateway, &["user:1"]).await, began.elapsed())
    };
    let others = async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let began = Instant::now();
        join_all((0..50).map(|_| ask(&gateway, &["ip:192.0.2.1"]))).await;
        began.elapsed()
    };
    let ((short, waited), others) = tokio::join!(waits, others);
    assert!(short.allowed && short.degraded.is_none(), "{short:?}");
    // On a busy machine even the other may be late.
    assert!(short.replicas.as_ref().is_some_and(Confirmed::is_short), "{short:?}");
    assert!(waited >= Duration::from_millis(99), "{waited:?}");
    assert!(others < waited, "others waited as well: {others:?}");
    gateway.stats.tick(&gateway, Micros::now());
    // What is refused writes nothing, so there is nothing to wait for.
    for _ in 0..3 {
        assert!(ask(&gateway, &["user:1"]).await.allowed);
    }
    let began = Instant::now();
    let refused = ask(&gateway, &["user:1"]).await;
    assert!(!refused.allowed && refused.replicas.is_none(), "{refused:?}");
    assert!(began.elapsed() < Duration::from_millis(90), "{:?}", began.elapsed());
    let text = metrics(&gateway);
    let line =
        |outcome, n| format!("rlctl_replicas_total{{rule=\"kept\",outcome=\"{outcome}\"}} {n}\n");
    assert!(text.contains(&line("confirmed", 1)) && text.contains(&line("short", 4)), "{text}");
    // To wait for a replica is no failure of the server that is asked.
    assert!(text.contains("rlctl_breaker_opened_total") && !text.contains("kind=\"timeout\"} 1"));
    servers.local.wake(one).unwrap();
    let began = Instant::now();
    while ask(&gateway, &[&format!("user:{}", began.elapsed().as_micros())]).await.replicas
        != told(2, 2)
    {
        assert!(began.elapsed() < Duration::from_secs(30), "it is back and not heard");
    }
    gateway.stats.tick(&gateway, Micros::now());
    ask(&gateway, &["user:2"]).await;
    gateway.stats.tick(&gateway, Micros::now());
    let events = gateway.stats.snapshot(&gateway, Micros::now())["events"].to_string();
    assert!(events.contains("too few replicas confirm"), "{events}");
    assert!(events.contains("replicas confirm what is charged again"), "{events}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_few_replicas_refuse_where_the_rule_says_so_and_the_charge_stands() {
    let server = RedisServer::start();
    let store = server.store().await;
    let rules = policy("n = 1, timeout = \"20ms\", on_short = \"fail\"");
    let gateway = on(Store::Redis(store), &rules).await;
    let refused = ask(&gateway, &["user:1", "ip:192.0.2.1"]).await;
    assert!(!refused.allowed && refused.charges.is_empty());
    assert_eq!(refused.replicas, told(1, 0));
    let degraded = refused.degraded.as_ref().unwrap();
    assert_eq!(degraded.mode, OnStoreError::Closed);
    assert!(degraded.why.to_string().contains("0 of 1 replicas"), "{}", degraded.why);
    let answer = rlctl::gateway::Answer::of(&refused, None, Micros::now());
    assert_eq!(answer.outcome, Outcome::Unavailable);
    let used = |who: &str, rule: &str, limit: &str| {
        let limits = [Arc::new(rlctl::engine::store::RuleLimit::new(
            rule,
            0,
            rlctl::engine::limit::Limit::new(Algorithm::TokenBucket, limit.parse().unwrap())
                .unwrap(),
        ))];
        let (identity, gateway) = (id(who), gateway.clone());
        async move {
            let check = Check {
                identity: &identity,
                limits: &limits,
                cost: cost(0),
                idempotency: None,
                at: None,
            };
            gateway.limiter.store.check(&check).await.unwrap().decisions[0].used()
        }
    };
    assert_eq!(used("user:1", "kept", "5/1d").await, 1, "the charge stands");
    assert_eq!(used("ip:192.0.2.1", "plain", "100000/1d").await, 0, "what others charged does not");
    // When its quota is used up, that is what it is told.
    for _ in 0..4 {
        assert!(ask(&gateway, &["user:1"]).await.degraded.is_some());
    }
    let limited = ask(&gateway, &["user:1"]).await;
    assert!(!limited.allowed && limited.degraded.is_none(), "{limited:?}");
}

/// Whoever waits goes together, so that a wait is shared and not queued for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_wait_together() {
    let servers = Servers::start(Kind::Sentinel, 1, 1).await;
    let store = servers.store(DEADLINE).await;
    let master = servers.local.master(None).await.unwrap();
    servers.local.pause(replicas(&servers, master)[0]).unwrap();
    let began = Instant::now();
    let names: Vec<String> = (0..300).map(|n| format!("user:{n}")).collect();
    let answers = join_all(names.iter().map(|who| check(&store, who, 1))).await;
    assert!(answers.iter().all(|answer| answer.allowed() && answer.confirmed == Some(0)));
    let spent = began.elapsed();
    assert!(spent < Duration::from_millis(1_000), "one after the other: {spent:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_wait_follows_a_failover() {
    let servers = Servers::start(Kind::Sentinel, 1, 2).await;
    let store = servers.store(DEADLINE).await;
    assert_eq!(check(&store, "user:1", 1).await.confirmed.map(|n| n >= 1), Some(true));
    let (_, new) = servers.local.fail_over(None).await.unwrap();
    let (identity, limits) = (id("user:2"), one(Algorithm::TokenBucket, "100000/1d"));
    let check =
        Check { identity: &identity, limits: &limits, cost: cost(1), idempotency: None, at: None };
    let confirm = Some(Confirm { replicas: 1, within: WITHIN });
    let console = servers.local.console(new).await.unwrap();
    let began = Instant::now();
    loop {
        let answer = store.check_confirmed(&check, Duration::ZERO, confirm).await;
        let is_there = console.text(&["EXISTS", "rl1:{user:2}"]).await.is_ok_and(|n| n == "1");
        if answer.is_ok_and(|answer| answer.confirmed >= Some(1)) && is_there {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(30), "it still waits for the old one");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_shard_of_a_cluster_waits_for_its_own_replicas() {
    let mut servers = Servers::start(Kind::Cluster, 3, 3).await;
    let store = servers.store(DEADLINE).await;
    let names: Vec<String> = (0..60).map(|n| format!("user:{n}")).collect();
    for answer in join_all(names.iter().map(|who| check(&store, who, 1))).await {
        assert!(answer.allowed() && answer.confirmed >= Some(1), "{answer:?}");
    }
    // Slots move while charges wait: they go where the slot is, and are counted once.
    let ports: Vec<u16> = servers.local.masters().await.unwrap();
    let moving = servers.local.move_slots(2_000, ports[0], ports[1], &|_| {});
    let asking = async {
        let mut all = Vec::new();
        for _ in 0..5 {
            all.extend(join_all(names.iter().map(|who| check(&store, who, 1))).await);
        }
        all
    };
    let (moved, answers) = tokio::join!(moving, asking);
    moved.unwrap();
    assert!(answers.iter().all(|answer| answer.allowed() && answer.confirmed.is_some()));
    for answer in join_all(names.iter().map(|who| check(&store, who, 1))).await {
        assert_eq!(answer.decisions[0].remaining, 1_000 - 7, "{answer:?}");
    }
    servers.local.down().await.unwrap();
}

/// What it costs, for docs/failure.md: `cargo test -- --ignored --nocapture what_waiting_costs`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn what_waiting_costs() {
    for (kind, masters, count) in [(Kind::Sentinel, 1, 2), (Kind::Cluster, 3, 3)] {
        let servers = Servers::start(kind, masters, count).await;
        let store = servers.store(DEADLINE).await;
        for (callers, rounds) in [(1_usize, 3_000), (64, 100)] {
            for n in [0, 1, 2] {
                let confirm = (n > 0).then_some(Confirm { replicas: n, within: WITHIN });
                if kind == Kind::Cluster && n == 2 {
                    continue;
                }
                let began = Instant::now();
                let one_by_one = |caller: usize| {
                    let store = &store;
                    async move {
                        let mut times = Vec::new();
                        let limits = one(Algorithm::TokenBucket, "1000000/1d");
                        for round in 0..rounds {
                            let identity = id(&format!("user:{caller}-{round}"));
                            let check = Check {
                                identity: &identity,
                                limits: &limits,
                                cost: cost(1),
                                idempotency: None,
                                at: None,
                            };
                            let asked = Instant::now();
                            store.check_confirmed(&check, Duration::ZERO, confirm).await.unwrap();
                            times.push(asked.elapsed());
                        }
                        times
                    }
                };
                let mut times = join_all((0..callers).map(one_by_one)).await.concat();
                times.sort();
                let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
                let rate = times.len() as f64 / began.elapsed().as_secs_f64();
                println!(
                    "{kind:?} {callers} callers, n = {n}: p50 {:?} p99 {:?} max {:?}, {rate:.0}/s",
                    at(0.5),
                    at(0.99),
                    at(1.0)
                );
            }
        }
    }
}
