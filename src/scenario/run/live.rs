//! The same scenario in real time, on a real Redis: one that was given, or one that was started for
//! it and can be broken. Everything is undone at the end, also of a run that was interrupted.

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::task::LocalSet;

use super::time::Time;
use super::world::World;
use super::{Outcome, judged};
use crate::engine::clock::Micros;
use crate::engine::limit::Algorithm;
use crate::engine::policy::RuleLimits;
use crate::engine::store::keys::Prefix;
use crate::engine::store::redis::{RedisAddress, RedisOptions};
use crate::engine::store::simulated::Effect;
use crate::engine::store::{RedisStore, Store, StoreError};
use crate::ops::local_redis::{self, LocalRedis, LocalRedisError};
use crate::scenario::model::{FaultPart, FaultWhat, Kind, LimiterPart, On, Scenario};

/// How long a connection may take.
const CONNECT: Micros = Micros(5 * Micros::SECOND.0);
/// Windows longer than this are not waited for.
const MAX_ALIGNED: Micros = Micros::MINUTE;
/// After its end a run waits this long for answers.
const LAST_ANSWERS: Micros = Micros(10 * Micros::SECOND.0);
const GLANCE: Duration = Duration::from_millis(5);

/// What a live run counts on.
#[derive(Debug)]
pub enum Live {
    /// A Redis that is somebody's: nothing of it is broken.
    Given(RedisAddress),
    /// One that is ours.
    Spawned(Box<Spawned>),
}

/// Servers that were started for the run, and may be broken.
#[derive(Debug)]
pub struct Spawned {
    local: Mutex<LocalRedis>,
    kind: local_redis::Kind,
    url: String,
}

impl Spawned {
    pub fn new(local: LocalRedis) -> Spawned {
        Spawned { kind: local.kind(), url: local.url(), local: Mutex::new(local) }
    }

    /// Ends all servers and leaves nothing behind.
    pub async fn down(self) -> Result<(), LocalRedisError> {
        self.local.into_inner().down().await
    }
}

#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Local(#[from] LocalRedisError),
    #[error("{0}")]
    Other(String),
}

impl Live {
    /// Why this scenario cannot happen here, if so: a fault that cannot be made is not passed over.
    pub fn refuses(&self, scenario: &Scenario) -> Option<String> {
        if scenario.limiters.iter().any(|limiter| limiter.skew.iter().any(|skew| *skew != 0)) {
            return Some("clocks of gateways cannot be wrong in real time".into());
        }
        if let Live::Spawned(ours) = self
            && !scenario.store.kind.fits(ours.kind)
        {
            let kind = scenario.store.kind.name();
            return Some(format!("it needs {kind}; --spawn starts another kind"));
        }
        let cannot = |fault: &FaultPart| {
            format!("'{}' ({} of {}) cannot be made here", fault.name, fault.word, fault.on.words())
        };
        scenario.faults.iter().find(|fault| !self.can_make(fault)).map(cannot)
    }

    fn can_make(&self, fault: &FaultPart) -> bool {
        let FaultWhat::Store(effect) = fault.what else {
            return fault.what == FaultWhat::NodeDown;
        };
        let Live::Spawned(ours) = self else { return false };
        let is_single = ours.kind == local_redis::Kind::Single;
        let whole = fault.rate >= 1.0 && !matches!(fault.on, On::Node(_));
        whole
            && match effect {
                // What a real server loses is not ours to choose.
                Effect::Down => !is_single || fault.lose.is_none(),
                Effect::Hang | Effect::ScriptFlush => true,
                Effect::LoseData => fault.lose.is_none(),
                Effect::Refuse(code) => code == "OOM" || code == "READONLY" && is_single,
                Effect::Failover => !is_single,
                _ => false,
            }
    }

    fn address(&self) -> Result<RedisAddress, LiveError> {
        match self {
            Live::Given(address) => Ok(address.clone()),
            Live::Spawned(ours) => RedisAddress::parse(&ours.url, None)
                .map_err(|error| LiveError::Other(error.to_string())),
        }
    }

    /// The ports of the primaries that a fault meets.
    async fn primaries(&self, on: On) -> Result<Vec<u16>, LiveError> {
        let Live::Spawned(ours) = self else { return Ok(Vec::new()) };
        let masters = ours.local.lock().await.masters().await?;
        Ok(match on {
            On::Shard(shard) => masters.into_iter().skip(shard).take(1).collect(),
            _ => masters,
        })
    }

    async fn tell(&self, ports: &[u16], words: &[&str]) -> Result<(), LiveError> {
        let Live::Spawned(ours) = self else { return Ok(()) };
        for port in ports {
            ours.local.lock().await.console(*port).await?.ask(words).await?;
        }
        Ok(())
    }

    async fn begin(&self, effect: Effect, ports: &[u16]) -> Result<(), LiveError> {
        let Live::Spawned(ours) = self else { return Ok(()) };
        match effect {
            Effect::Down => {
                for port in ports {
                    ours.local.lock().await.kill(*port).await?;
                }
            }
            Effect::Hang => {
                for port in ports {
                    ours.local.lock().await.pause(*port)?;
                }
            }
            Effect::ScriptFlush => self.tell(ports, &["SCRIPT", "FLUSH"]).await?,
            Effect::LoseData => self.tell(ports, &["FLUSHALL"]).await?,
            Effect::Refuse("OOM") => {
                self.tell(ports, &["CONFIG", "SET", "maxmemory", "1"]).await?;
            }
            // A port on which nobody listens.
            Effect::Refuse(_) => self.tell(ports, &["REPLICAOF", "127.0.0.1", "1"]).await?,
            Effect::Failover => {
                let _ = ours.local.lock().await.fail_over(ports.first().copied()).await?;
            }
            _ => {}
        }
        Ok(())
    }

    async fn end(&self, effect: Effect, ports: &[u16]) -> Result<(), LiveError> {
        let Live::Spawned(ours) = self else { return Ok(()) };
        match effect {
            Effect::Down => {
                for port in ports {
                    ours.local.lock().await.start_again(*port).await?;
                }
            }
            Effect::Hang => {
                for port in ports {
                    ours.local.lock().await.wake(*port)?;
                }
            }
            Effect::Refuse("OOM") => {
                self.tell(ports, &["CONFIG", "SET", "maxmemory", "0"]).await?;
            }
            Effect::Refuse(_) => self.tell(ports, &["REPLICAOF", "NO", "ONE"]).await?,
            _ => {}
        }
        Ok(())
    }

    async fn break_things(&self, time: &Time, fault: &FaultPart) -> Result<(), LiveError> {
        let FaultWhat::Store(effect) = fault.what else { return Ok(()) };
        time.sleep_until(fault.at).await;
        let ports = self.primaries(fault.on).await?;
        self.begin(effect, &ports).await?;
        time.sleep_until(fault.at + fault.lasts).await;
        self.end(effect, &ports).await
    }
}

/// Lets a scenario happen in real time, on the thread that calls it; none when `stop` came first. Its
/// keys are removed in either case; a Redis of ours is left to whoever ends it.
pub async fn run(
    scenario: &Scenario,
    seed: Option<u64>,
    live: &Live,
    stop: impl Future<Output = ()>,
) -> Result<Option<Outcome>, LiveError> {
    let seed = seed.unwrap_or(scenario.seed);
    let begun = Begun::default();
    let tasks = LocalSet::new();
    let ended = tokio::select! {
        ended = tasks.run_until(happen(scenario, seed, live, &begun)) => Some(ended),
        () = stop => None,
    };
    // Nobody may count any more while it is undone.
    drop(tasks);
    let begun = begun.take();
    for (_, world) in &begun {
        world.forget_keys().await;
    }
    let Some(ended) = ended else { return Ok(None) };
    ended?;
    let recordings: Vec<_> = begun
        .iter()
        .map(|(limiter, world)| (limiter.name.as_str(), world.finish(limiter)))
        .collect();
    Ok(Some(judged(scenario, seed, &recordings)))
}

/// The limiters of a run that may have written something.
type Begun<'s> = RefCell<Vec<(&'s LimiterPart, Rc<World>)>>;

async fn happen<'s>(
    scenario: &'s Scenario,
    seed: u64,
    live: &Live,
    begun: &Begun<'s>,
) -> Result<(), LiveError> {
    let address = live.address()?;
    let mut connected = Vec::new();
    for limiter in &scenario.limiters {
        let prefix = format!("rlsc-{}-{}:", std::process::id(), limiter.name);
        let prefix = Prefix::new(&prefix).map_err(|error| LiveError::Other(error.to_string()))?;
        let mut stores = Vec::new();
        for _ in 0..limiter.nodes {
            // A file about memory says nothing of deadlines; what it shows shall not depend on them.
            let deadline = match scenario.store.kind {
                Kind::Memory => CONNECT,
                _ => scenario.store.deadline,
            };
            let options =
                RedisOptions { address: address.clone(), deadline, connect_timeout: CONNECT };
            stores.push(Store::Redis(RedisStore::connect(options, prefix.clone()).await?));
        }
        connected.push((limiter, stores));
    }
    let time = Time::Real(aligned_start(scenario));
    let mut worlds = Vec::new();
    for (limiter, stores) in connected {
        let (world, plan) =
            World::new(scenario, limiter, seed, time.clone(), stores).map_err(LiveError::Other)?;
        worlds.push((limiter, Rc::new(world), plan));
    }
    let mut started = Vec::new();
    for (limiter, world, plan) in worlds {
        for (number, fault) in scenario.faults.iter().enumerate() {
            if fault.what == FaultWhat::NodeDown {
                time.spawn(world.clone().break_things(number, fault.clone()));
            }
        }
        time.spawn(world.clone().watch_breakers());
        begun.borrow_mut().push((limiter, world.clone()));
        world.start(limiter, plan);
        started.push(world);
    }
    let faults = scenario.faults.iter().map(|fault| live.break_things(&time, fault));
    futures_util::future::try_join_all(faults).await?;
    let last = scenario.run + LAST_ANSWERS;
    while started.iter().any(|world| world.under_way.get() > 0) && time.now() < last {
        tokio::time::sleep(GLANCE).await;
    }
    Ok(())
}

/// The next moment at which the windows of all limiters begin together.
fn aligned_start(scenario: &Scenario) -> Micros {
    let rules = scenario.limiters.iter().flat_map(|limiter| &limiter.policy.rules);
    let limits = rules.filter_map(|rule| match &rule.limits {
        RuleLimits::Own(limits) => Some(limits),
        RuleLimits::OfTier => None,
    });
    let windows = limits.flatten().map(|spec| spec.limit).filter(|limit| {
        matches!(limit.algorithm(), Algorithm::FixedWindow | Algorithm::SlidingWindow)
    });
    let period = windows.map(|limit| limit.period()).filter(|p| *p <= MAX_ALIGNED).max();
    // A moment for the tasks to begin.
    let soon = Micros::now() + Micros(100 * Micros::MILLISECOND.0);
    period.map_or(soon, |period| Micros(soon.0.div_ceil(period.0) * period.0))
}

impl World {
    /// Breakers are looked at often enough to see each change.
    async fn watch_breakers(self: Rc<Self>) {
        let mut last: Vec<(usize, String, &'static str)> = Vec::new();
        while self.now() < self.scenario.run {
            for (number, node) in self.nodes.iter().enumerate() {
                let store = node.limiter.borrow().store.clone();
                for (shard, now) in store.shards().iter().enumerate() {
                    let (name, state) = (now.name.to_string(), now.breaker.state.name());
                    let known = last.iter_mut().find(|(n, s, _)| *n == number && *s == name);
                    match known {
                        Some((_, _, before)) if *before == state => {}
                        Some((_, _, before)) => {
                            *before = state;
                            let change = (self.now(), number, shard, state);
                            self.recording.borrow_mut().breakers.push(change);
                        }
                        None => last.push((number, name, state)),
                    }
                }
            }
            tokio::time::sleep(GLANCE).await;
        }
    }

    /// What the run has left in Redis. By each gateway's own connection: what it had sent when it was
    /// stopped is carried out before, and cannot come back after.
    async fn forget_keys(&self) {
        for node in &self.nodes {
            let store = node.limiter.borrow().store.clone();
            if let Store::Redis(store) = &*store {
                // What cannot be removed ends with its TTL.
                drop(store.remove(self.identities.iter().flatten()).await);
            }
        }
    }
}

impl Kind {
    /// Whether this store can stand for the one of the scenario.
    pub fn fits(self, local: local_redis::Kind) -> bool {
        match self {
            Kind::Memory | Kind::Redis => true,
            Kind::Sentinel => local == local_redis::Kind::Sentinel,
            Kind::Cluster => local == local_redis::Kind::Cluster,
        }
    }
}
