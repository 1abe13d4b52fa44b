//! When the store does not answer, each rule says what becomes of a request: on a Redis that is
//! stopped for real.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rlctl::engine::clock::Micros;
use rlctl::engine::config::parse_policy;
use rlctl::engine::failure::{Local, OnFailure};
use rlctl::engine::identity::Identity;
use rlctl::engine::limiter::{Demand, Limiter, Reached, Verdict};
use rlctl::engine::plan::{Attempt, Standing};
use rlctl::engine::policy::OnStoreError;
use rlctl::engine::rules::{Rules, Target};
use rlctl::engine::store::keys::Prefix;
use rlctl::engine::store::redis::{RedisAddress, RedisOptions};
use rlctl::engine::store::{RedisStore, Store, StoreError};

use crate::support::redis::{RedisServer, free_port};
use crate::support::{cost, id};

const POLICY: &str = r#"
[[rule]]
name = "open"
dimension = "user"
limits = ["10/1h"]
[[rule]]
name = "closed"
dimension = "apikey"
limits = ["10/1h"]
on_store_error = "closed"
[[rule]]
name = "local"
dimension = "ip"
limits = ["10/1h"]
on_store_error = "local"
[[rule]]
name = "also-closed"
dimension = "ip"
endpoint = "/strict"
limits = ["10/1h"]
on_store_error = "closed"
also = true
"#;

fn limiter(store: RedisStore, gateways: usize) -> Limiter {
    let (policy, _) = parse_policy("policy.toml", POLICY, Micros::ZERO).expect("a good policy");
    let local = Local::new(1_000);
    local.set_gateways(gateways);
    Limiter {
        rules: Arc::new(Rules::new(Arc::new(policy))),
        store: Arc::new(Store::Redis(store)),
        on_failure: OnFailure::ByRule(Arc::new(local)),
        hot: None,
    }
}

async fn ask(limiter: &Limiter, identities: &[&str], path: Option<&str>) -> Verdict {
    let identities: Vec<Identity> = identities.iter().map(|text| id(text)).collect();
    let attempt = Attempt {
        identities: &identities,
        target: Target { path, ..Target::default() },
        tier: None,
    };
    let demand = Demand::of(cost(1));
    let standings = vec![Standing::default(); identities.len()];
    limiter.check(&attempt, &standings, demand).await.expect("a verdict, whatever the store does")
}

fn mode(verdict: &Verdict) -> Option<OnStoreError> {
    verdict.degraded.as_ref().map(|degraded| degraded.mode)
}

fn nowhere() -> RedisOptions {
    let address = RedisAddress::parse(&format!("redis://127.0.0.1:{}", free_port()), None);
    RedisOptions {
        address: address.unwrap(),
        deadline: Micros(50_000),
        connect_timeout: Micros(200_000),
    }
}

#[tokio::test]
async fn each_rule_says_what_becomes_of_a_request_without_the_store() {
    let limiter = limiter(RedisStore::start(nowhere(), Prefix::default()), 2);
    let open = ask(&limiter, &["user:1"], None).await;
    assert!(open.allowed && mode(&open) == Some(OnStoreError::Open), "{open:?}");
    assert!(matches!(&open.reached, Reached::Unanswered { limit, .. } if limit.rule() == "open"));
    let closed = ask(&limiter, &["apikey:1"], None).await;
    assert!(!closed.allowed && mode(&closed) == Some(OnStoreError::Closed), "{closed:?}");

    let mut admitted = 0;
    for _ in 0..20 {
        let verdict = ask(&limiter, &["ip:192.0.2.1"], None).await;
        assert_eq!(mode(&verdict), Some(OnStoreError::Local));
        assert!(matches!(verdict.reached, Reached::Limits { .. }), "{verdict:?}");
        admitted += usize::from(verdict.allowed);
    }
    assert_eq!(admitted, 5, "half of 10 is the share of one of two gateways");
}

#[tokio::test]
async fn the_strictest_mode_speaks_for_the_request() {
    let limiter = limiter(RedisStore::start(nowhere(), Prefix::default()), 1);
    for (identities, path, expected) in [
        (vec!["user:1", "ip:192.0.2.1"], None, OnStoreError::Local),
        (vec!["user:1", "apikey:1", "ip:192.0.2.1"], None, OnStoreError::Closed),
        (vec!["user:1", "ip:192.0.2.1"], Some("/strict"), OnStoreError::Closed),
    ] {
        let verdict = ask(&limiter, &identities, path).await;
        assert_eq!(mode(&verdict), Some(expected), "{identities:?} {path:?}");
        assert_eq!(verdict.allowed, expected != OnStoreError::Closed);
    }
}

#[tokio::test]
async fn a_stopped_redis_costs_no_more_than_its_deadline_and_is_found_again() {
    let server = RedisServer::start();
    let deadline = Micros(50 * Micros::MILLISECOND.0);
    let limiter = limiter(server.store_within(deadline, Micros::SECOND).await, 1);
    assert_eq!(mode(&ask(&limiter, &["user:1"], None).await), None);
    server.pause();
    let began = Instant::now();
    let open = ask(&limiter, &["user:1"], None).await;
    assert!(open.allowed && mode(&open) == Some(OnStoreError::Open));
    assert!(matches!(open.degraded.unwrap().why, StoreError::Timeout { .. }));
    // Wide, for a loaded machine; tests/faults.rs measures it against a control.
    assert!(began.elapsed() < Duration::from_millis(500), "{:?}", began.elapsed());
    server.wake();
    let found = async {
        while mode(&ask(&limiter, &["user:1"], None).await).is_some() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), found).await.expect("found again");
}

#[tokio::test]
async fn a_store_that_was_not_there_at_the_start_is_used_once_it_is() {
    let server = RedisServer::start();
    let address = RedisAddress::parse(&server.url(), None).unwrap();
    let options = RedisOptions { address, ..nowhere() };
    let limiter = limiter(RedisStore::start(options, Prefix::default()), 1);
    let found = async {
        while mode(&ask(&limiter, &["user:1"], None).await).is_some() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), found).await.expect("connected");
}
