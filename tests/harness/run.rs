//! A gateway on real servers, with traffic running, and everything recorded.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rlctl::engine::breaker::State;
use rlctl::engine::clock::Micros;
use rlctl::engine::identity::Identity;
use rlctl::engine::limiter::{Demand, Reached};
use rlctl::engine::plan::Attempt;
use rlctl::engine::rules::Target;
use rlctl::engine::store::keys::Prefix;
use rlctl::engine::store::redis::RedisAddress;
use rlctl::gateway::{About, Backing, Gateway, PolicySource};
use tokio::task::JoinHandle;

use super::history::{Called, History, Outage, Promise, Unknown};
use crate::support::stalls::Stalls;
use crate::support::{cost, id};

pub(crate) const DEADLINE: Duration = Duration::from_millis(50);
const RATE: u64 = 20;
/// Spread over all shards.
const IDENTITIES: usize = 12;
const CALLERS: usize = 6;
/// Each caller between two calls: about three times what the limits allow.
const PAUSE: Duration = Duration::from_millis(8);

/// The second limit only counts: what was charged, and how often.
const POLICY: &str = r#"
[defaults]
deadline = "50ms"
[[rule]]
name = "r"
dimension = "user"
limits = [
    { limit = "20/1s burst 20", algorithm = "gcra" },
    { limit = "1G/366d", algorithm = "fixed-window" },
]
"#;

/// What a charge waits for its replicas, at most.
const CONFIRM_WITHIN: Duration = Duration::from_millis(20);

pub(crate) struct Run {
    pub(crate) gateway: Arc<Gateway>,
    /// What no call takes longer than.
    deadline: Duration,
    pub(crate) stalls: Stalls,
    stop: Arc<AtomicBool>,
    callers: Vec<JoinHandle<Vec<Called>>>,
    breakers: Arc<Mutex<HashMap<String, Vec<State>>>>,
    outages: Vec<Outage>,
    losses: usize,
}

fn identities() -> Vec<Identity> {
    (0..IDENTITIES).map(|n| id(&format!("user:{n}"))).collect()
}

impl Run {
    pub(crate) async fn start(url: &str) -> Run {
        Run::by(POLICY, DEADLINE, url).await
    }

    /// Each charge waits until so many replicas have it, or says that they have not.
    pub(crate) async fn confirmed_by(replicas: u32, url: &str) -> Run {
        let timeout = CONFIRM_WITHIN.as_millis();
        let replicas = format!("replicas = {{ n = {replicas}, timeout = \"{timeout}ms\" }}\n");
        Run::by(&(POLICY.to_owned() + &replicas), DEADLINE + 2 * CONFIRM_WITHIN, url).await
    }

    async fn by(policy: &str, deadline: Duration, url: &str) -> Run {
        let source = PolicySource::Given { name: "policy.toml".into(), text: policy.into() };
        let backing = Backing {
            address: RedisAddress::parse(url, None).unwrap(),
            prefix: Prefix::default(),
            connect_timeout: Micros::SECOND,
        };
        let about = About::new(Vec::new());
        let gateway = Arc::new(Gateway::open(&source, Some(backing), about).await);
        gateway.keep_up();
        let (stop, breakers) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let caller = |first| tokio::spawn(call(gateway.clone(), stop.clone(), first));
        let callers = (0..CALLERS).map(caller).collect();
        tokio::spawn(watch(gateway.clone(), stop.clone(), Arc::clone(&breakers)));
        let stalls = Stalls::watch();
        let outages = Vec::new();
        let run = Run { gateway, deadline, stalls, stop, callers, breakers, outages, losses: 0 };
        tokio::time::sleep(Duration::from_millis(400)).await;
        run
    }

    /// What happens from `began` until now was an outage; the servers are whole again.
    pub(crate) fn healed(&mut self, began: Instant) {
        self.outages.push(Outage { began, healed: Instant::now() });
    }

    /// The servers have lost some of what they counted, or all of it.
    pub(crate) fn lost(&mut self) {
        self.losses += 1;
    }

    /// Ends the traffic and holds everybody to what was promised. `count` asks the servers what
    /// they have counted of an identity; `immortal` for keys without a TTL.
    pub(crate) async fn check(self, what: &str, immortal: Vec<String>) -> History {
        // Long enough to see that it stays well.
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        self.stop.store(true, Ordering::Relaxed);
        let mut calls = Vec::new();
        for caller in self.callers {
            calls.extend(caller.await.unwrap());
        }
        // What was on the wire when its caller gave up arrives before this.
        let mut used = Vec::new();
        for identity in identities() {
            used.push(counted(&self.gateway, identity).await);
        }
        let breakers = self.breakers.lock().unwrap().clone();
        let history = History { calls, outages: self.outages, breakers, used, immortal };
        let promise = Promise {
            deadline: self.deadline,
            rate: RATE as f64,
            burst: RATE as f64,
            losses: self.losses,
            at_most_lost: None,
        };
        let stalled = |from, to| self.stalls.between(from, to);
        let broken = history.broken_promises(&promise, &stalled);
        let outages: Vec<Duration> = history.outages.iter().map(|o| o.healed - o.began).collect();
        eprintln!(
            "{what}: {} calls, {} confirmed, {} without the store, servers away {outages:?}",
            history.calls.len(),
            history.confirmed(),
            history.degraded()
        );
        assert!(broken.is_empty(), "{what}:\n{}", broken.join("\n"));
        assert!(history.calls.len() > 500, "{what}: only {} calls", history.calls.len());
        history
    }
}

/// What a caller was told.
struct Told {
    allowed: bool,
    confirmed: bool,
    degraded: Option<Unknown>,
    used: u64,
}

async fn decide(gateway: &Gateway, identity: Identity, c: u64) -> Told {
    let (identities, demand) = ([identity], Demand::of(cost(c)));
    let attempt = Attempt { identities: &identities, target: Target::default(), tier: None };
    let (verdict, _) = gateway.decide(&gateway.moment(), &attempt, demand).await.unwrap();
    let used = match &verdict.reached {
        Reached::Limits { asked, .. } => asked.last().map_or(0, |last| last.decision.used()),
        _ => 0,
    };
    let degraded = verdict.degraded.map(|degraded| Unknown(degraded.why.outcome_unknown()));
    let confirmed = verdict.replicas.is_some_and(|replicas| !replicas.is_short());
    Told { allowed: verdict.allowed, confirmed, degraded, used }
}

async fn call(gateway: Arc<Gateway>, stop: Arc<AtomicBool>, first: usize) -> Vec<Called> {
    let (identities, mut calls) = (identities(), Vec::new());
    for n in (first..).step_by(5) {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let identity = n % identities.len();
        let began = Instant::now();
        let told = decide(&gateway, identities[identity].clone(), 1).await;
        let Told { allowed, confirmed, degraded, .. } = told;
        calls.push(Called { identity, began, ended: Instant::now(), allowed, confirmed, degraded });
        tokio::time::sleep(PAUSE).await;
    }
    calls
}

/// What the servers have counted.
async fn counted(gateway: &Gateway, identity: Identity) -> u64 {
    let began = Instant::now();
    loop {
        let Told { degraded, used, .. } = decide(gateway, identity.clone(), 0).await;
        if degraded.is_none() {
            return used;
        }
        assert!(began.elapsed() < Duration::from_secs(10), "the servers do not answer");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Every change of a breaker that lasts a few milliseconds.
async fn watch(
    gateway: Arc<Gateway>,
    stop: Arc<AtomicBool>,
    breakers: Arc<Mutex<HashMap<String, Vec<State>>>>,
) {
    while !stop.load(Ordering::Relaxed) {
        for shard in gateway.limiter.store.shards() {
            let mut seen = breakers.lock().unwrap();
            let states = seen.entry(shard.name.to_string()).or_default();
            if states.last() != Some(&shard.breaker.state) {
                states.push(shard.breaker.state);
            }
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
