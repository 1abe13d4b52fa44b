//! What operators and refunds change of a hot key that is refused from memory: the gateway that is
//! told obeys at once, every other within a second.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rlctl::engine::limiter::{By, Verdict};
use rlctl::engine::registry::{Change, Intent, OverrideLimit};
use rlctl::engine::store::{Charge, Settlement};
use rlctl::gateway::Gateway;

use crate::hot_keys::gateway;
use crate::support::decider::ask;
use crate::support::id;
use crate::support::redis::RedisServer;
use crate::support::stalls::Stalls;

const WHO: &str = "user:whale";
const POLICY: &str = r#"
[defaults]
deadline = "2s"
[[rule]]
name = "per-user"
dimension = "user"
limits = ["200/10d"]
hot = { threshold = "300/s" }
"#;
/// A refusal that is known holds for a second; and a poll, and what a busy machine adds.
const OBEYED_WITHIN: Duration = Duration::from_millis(1_150);

/// Two gateways that refuse a hot key by what they know, its quota being used up; with a charge of
/// it that can be given back.
struct Refusing {
    gateways: [Arc<Gateway>; 2],
    charge: Charge,
    stalls: Stalls,
    _redis: RedisServer,
}

impl Refusing {
    async fn start() -> Refusing {
        let redis = RedisServer::start();
        let gateways = [gateway(&redis, POLICY).await, gateway(&redis, POLICY).await];
        let first = ask(&gateways[0], &[WHO]).await;
        let charge = first.charges.into_iter().next().expect("it was charged");
        let refusing = Refusing { gateways, charge, stalls: Stalls::watch(), _redis: redis };
        // What comes back of leases that have ended is spent, too.
        for _ in 0..2 {
            refusing.until_refused_from_memory().await;
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        refusing.until_refused_from_memory().await;
        refusing
    }

    /// Much is asked, until both answer without the store; both are in that state at the end.
    async fn until_refused_from_memory(&self) {
        let began = Instant::now();
        loop {
            let asked = self.gateways.iter().flat_map(|gateway| {
                (0..20).map(move |_| async move { ask(gateway, &[WHO]).await })
            });
            join_all(asked).await;
            let last = join_all(self.gateways.iter().map(|gateway| ask(gateway, &[WHO]))).await;
            if last.iter().all(is_from_memory) {
                return;
            }
            assert!(began.elapsed() < Duration::from_secs(30), "{last:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Somebody passes within what is promised, while refusals are asked for all the time.
    async fn obeys(&self, gateway: &Gateway, what: &str) {
        let began = Instant::now();
        while !ask(gateway, &[WHO]).await.allowed {
            let most = OBEYED_WITHIN + self.stalls.between(began, Instant::now());
            assert!(began.elapsed() < most, "{what}: refused for {:?}", began.elapsed());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

fn is_from_memory(verdict: &Verdict) -> bool {
    !verdict.allowed && verdict.decided_by() == By::DenyCache
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_is_obeyed_at_once_where_it_is_made_and_elsewhere_within_a_second() {
    let refusing = Refusing::start().await;
    let [here, there] = &refusing.gateways;
    here.reset(&id(WHO), None).await.unwrap();
    assert!(ask(here, &[WHO]).await.allowed, "it was told");
    refusing.obeys(there, "a reset").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_refund_gives_back_may_pass_and_no_more() {
    for which in [0, 1] {
        let refusing = Refusing::start().await;
        let Refusing { gateways, charge, .. } = &refusing;
        let given_back = gateways[0].limiter.settle(charge, Settlement::Refund, None).await;
        assert!(given_back.unwrap());
        match which {
            0 => assert!(ask(&gateways[0], &[WHO]).await.allowed, "it was told"),
            _ => refusing.obeys(&gateways[1], "a refund").await,
        }
        // One it was, and one has passed.
        let asked = gateways.iter().flat_map(|gateway| {
            (0..50).map(move |_| async move { ask(gateway, &[WHO]).await.allowed })
        });
        assert_eq!(join_all(asked).await.into_iter().filter(|allowed| *allowed).count(), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_override_is_obeyed_everywhere_within_a_second() {
    let refusing = Refusing::start().await;
    let limits = vec![OverrideLimit::new("400/10d".parse().unwrap(), None).unwrap()];
    let change = Change::SetOverride { rule: "per-user".into(), limits, lasts: None };
    let intent = Intent::new("alice", "import").unwrap();
    let registry = &refusing.gateways[0].registry;
    assert!(registry.change(&id(WHO), &change, &intent).await.unwrap().written);
    for gateway in &refusing.gateways {
        refusing.obeys(gateway, "an override").await;
    }
}
