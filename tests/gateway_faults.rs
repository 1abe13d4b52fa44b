//! Gateways on a Redis that they share, and that fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use rlctl::engine::limit::Algorithm;

use crate::support::gateway::{Running, Start, client};
use crate::support::redis::RedisServer;

fn policy(rule: &str) -> String {
    format!(
        "[[rule]]\nname = \"r\"\ndimension = \"apikey\"\nlimits = [{{ limit = \"50/1d\", algorithm = \"gcra\" }}]\n{rule}\n"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_gateways_on_one_redis_admit_exactly_the_limit() {
    for algorithm in Algorithm::ALL {
        let server = RedisServer::start();
        // A leaky bucket would hold for hours; here it only counts.
        let policy = format!(
            "[defaults]\ndeadline = \"10s\"\n[[rule]]\nname = \"r\"\ndimension = \"apikey\"\nlimits = [{{ limit = \"100/1d\", algorithm = \"{algorithm}\"{} }}]\n",
            if algorithm == Algorithm::LeakyBucket { ", max_delay = \"1ms\"" } else { "" }
        );
        let gateways = [
            Start::with(&policy).redis(&server).run().await,
            Start::with(&policy).redis(&server).run().await,
        ];
        let passed = Arc::new(AtomicUsize::new(0));
        let client = client();
        let clients = (0..32).map(|n| {
            let (client, passed) = (client.clone(), passed.clone());
            let url = gateways[n % 2].url("/");
            async move {
                for _ in 0..8 {
                    let reply = client.get(&url).header("x-api-key", "k").send().await.unwrap();
                    assert!(
                        !reply.headers().contains_key("x-ratelimit-status"),
                        "{:?}",
                        reply.headers()
                    );
                    passed.fetch_add(usize::from(reply.status() == 200), Ordering::Relaxed);
                }
            }
        });
        join_all(clients).await;
        let expected = if algorithm == Algorithm::LeakyBucket { 1 } else { 100 };
        assert_eq!(passed.load(Ordering::Relaxed), expected, "{algorithm}");
    }
}

/// What many clients saw: status and how it was marked, counted.
async fn storm(running: &Running, requests: usize) -> Vec<(u16, Option<String>)> {
    let client = client();
    let ask = |_| {
        let (client, url) = (client.clone(), running.url("/"));
        async move {
            let reply = client.get(url).header("x-api-key", "k").send().await.unwrap();
            let mark = reply.headers().get("x-ratelimit-status");
            (reply.status().as_u16(), mark.map(|mark| mark.to_str().unwrap().to_owned()))
        }
    };
    join_all((0..requests).map(ask)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_stops_under_load_is_answered_for_as_each_rule_says() {
    for (mode, allowed, refused) in [("open", 200, 200), ("closed", 503, 503), ("local", 200, 429)]
    {
        let server = RedisServer::start();
        let policy = policy(&format!("on_store_error = \"{mode}\""));
        let running = Start::with(&policy).redis(&server).run().await;
        assert!(storm(&running, 20).await.iter().all(|reply| *reply == (200, None)));
        server.pause();
        let seen = storm(&running, 80).await;
        let mark = Some(format!("degraded;mode={mode}"));
        assert!(seen.iter().all(|(_, marked)| *marked == mark), "{mode}: {seen:?}");
        let passed = seen.iter().filter(|(status, _)| *status == allowed).count();
        match mode {
            // The share of the only gateway is the whole limit, counted anew.
            "local" => assert_eq!(passed, 50, "{seen:?}"),
            _ => assert_eq!(passed, 80, "{mode}: {seen:?}"),
        }
        assert!(seen.iter().all(|(status, _)| *status == allowed || *status == refused));
        server.wake();
        let back = async {
            while storm(&running, 1).await[0].1.is_some() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), back).await.expect("enforcement is back");
    }
}

/// What a gateway says of its only shard.
fn shard(running: &Running) -> serde_json::Value {
    let gateway = &running.gateway;
    gateway.stats.snapshot(gateway, rlctl::engine::clock::Micros::now())["store"][0].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_fails_too_often_is_left_alone_until_it_answers() {
    let server = RedisServer::start();
    let policy = format!(
        "[defaults]\nbreaker = {{ slow = \"200ms\" }}\ndeadline = \"250ms\"\n{}",
        policy("")
    );
    let running = Start::with(&policy).redis(&server).run().await;
    storm(&running, 20).await;
    assert_eq!(shard(&running)["breaker"], "closed");
    server.pause();
    storm(&running, 20).await;
    assert_eq!(shard(&running)["breaker"], "open", "{}", shard(&running));
    let began = std::time::Instant::now();
    let seen = storm(&running, 20).await;
    assert!(began.elapsed() < Duration::from_millis(250), "nobody waited: {:?}", began.elapsed());
    assert!(seen.iter().all(|(_, mark)| mark.as_deref() == Some("degraded;mode=open")), "{seen:?}");
    let metrics =
        running.gateway.stats.metrics(&running.gateway, rlctl::engine::clock::Micros::now());
    assert!(
        metrics
            .contains(&format!("rlctl_breaker_state{{shard=\"127.0.0.1:{}\"}} 2\n", server.port)),
        "{metrics}"
    );
    assert!(shard(&running)["errors"]["breaker"].as_u64() >= Some(20), "{}", shard(&running));
    server.wake();
    let back = async {
        while storm(&running, 1).await[0].1.is_some() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), back).await.expect("it is asked again");
    assert_eq!(shard(&running)["breaker"], "closed");
    running.gateway.stats.tick(&running.gateway, rlctl::engine::clock::Micros::now());
    let events =
        running.gateway.stats.snapshot(&running.gateway, rlctl::engine::clock::Micros::now());
    let events = events["events"].to_string();
    assert!(events.contains("fails too often") && events.contains("is asked again"), "{events}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateways_that_see_each_other_share_a_local_limit() {
    let server = RedisServer::start();
    let policy = policy("on_store_error = \"local\"");
    let one = Start::with(&policy).redis(&server).run().await;
    let two = Start::with(&policy).redis(&server).run().await;
    let both_known = async {
        while one.gateway.local.gateways() != 2 || two.gateway.local.gateways() != 2 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), both_known).await.expect("they see each other");
    server.pause();
    for running in [&one, &two] {
        let seen = storm(running, 60).await;
        assert_eq!(seen.iter().filter(|(status, _)| *status == 200).count(), 25, "{seen:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_published_policy_is_obeyed_by_all_gateways_within_a_second() {
    use rlctl::engine::registry::Intent;
    let server = RedisServer::start();
    let generous = policy("");
    let registry = Start::with(&generous).redis(&server).run().await.gateway.registry.clone();
    let intent = Intent::new("test", "a start").unwrap();
    registry.publish(&generous, None, &intent).await.unwrap();
    let address = rlctl::engine::store::redis::RedisAddress::parse(&server.url(), None).unwrap();
    let open = || {
        let backing = rlctl::gateway::Backing {
            address: address.clone(),
            prefix: rlctl::engine::store::keys::Prefix::default(),
            connect_timeout: rlctl::engine::clock::Micros::SECOND,
        };
        let about = rlctl::gateway::About::new(Vec::new());
        async move {
            rlctl::gateway::Gateway::open(
                &rlctl::gateway::PolicySource::Published,
                Some(backing),
                about,
            )
            .await
        }
    };
    let gateways = [open().await, open().await];
    let version = |gateway: &rlctl::gateway::Gateway| {
        gateway.limiter.policy.status().loaded.map(|loaded| loaded.version)
    };
    assert!(gateways.iter().all(|gateway| version(gateway) == Some(1) && gateway.is_ready()));
    registry.publish("version = 1\n", None, &intent).await.unwrap();
    let began = std::time::Instant::now();
    while !gateways.iter().all(|gateway| version(gateway) == Some(2)) {
        tokio::time::sleep(Duration::from_millis(5)).await;
        // Twice the promise, for a loaded machine.
        assert!(began.elapsed() < Duration::from_secs(2));
    }
}
