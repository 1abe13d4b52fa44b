//! The same scenario in real time: against gateways that run somewhere, on a Redis that was given, or
//! on one that was started for it and can be broken. Everything is undone at the end, also of a run
//! that was interrupted.

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::task::LocalSet;

use super::arrivals::{KeyTable, Plan};
use super::gateway::{self, Has, Remote};
use super::stalls::Stalls;
use super::time::Time;
use super::world::{Backend, Decider, World};
use super::{LiveOutcome, Outcome, judged};
use crate::engine::clock::Micros;
use crate::engine::limit::Algorithm;
use crate::engine::policy::RuleLimits;
use crate::engine::store::keys::Prefix;
use crate::engine::store::redis::{RedisAddress, RedisOptions};
use crate::engine::store::{RedisStore, Store, StoreError};
use crate::ops::admin::{Admin, AdminError};
use crate::ops::local_redis::{self, LocalRedis, LocalRedisError};
use crate::scenario::model::{FaultPart, FaultWhat, Kind, LimiterPart, Scenario};

/// How long a connection may take.
const CONNECT: Micros = Micros(5 * Micros::SECOND.0);
/// Windows longer than this are not waited for.
const MAX_ALIGNED: Micros = Micros::MINUTE;
/// After its end a run waits this long for answers.
const LAST_ANSWERS: Micros = Micros(10 * Micros::SECOND.0);
const GLANCE: Duration = Duration::from_millis(5);

/// What a live run counts on.
#[derive(Debug)]
pub struct Live {
    pub(super) target: Target,
    /// The options that say so, for whoever wants to see it again.
    options: String,
}

#[derive(Debug)]
pub enum Target {
    /// A Redis that is somebody's: nothing of it is broken.
    Given(RedisAddress),
    /// One that is ours.
    Spawned(Box<Spawned>),
    /// Gateways that run somewhere, by their admin addresses: they decide by their own rules, and
    /// nothing of them is broken or changed.
    Gateways(Vec<Rc<Admin>>),
}

/// What became of a run.
#[derive(Debug)]
pub enum Ended {
    Outcome(Box<Outcome>),
    /// It cannot happen there.
    Skipped(String),
    /// Somebody stopped it.
    Stopped,
}

/// Servers that were started for the run, and may be broken.
#[derive(Debug)]
pub struct Spawned {
    pub(super) local: Mutex<LocalRedis>,
    pub(super) kind: local_redis::Kind,
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
    #[error(transparent)]
    Gateway(#[from] AdminError),
    #[error("{0}")]
    Other(String),
}

impl Live {
    pub fn on(target: Target, options: impl Into<String>) -> Live {
        Live { target, options: options.into() }
    }

    /// To end what was started.
    pub fn into_target(self) -> Target {
        self.target
    }

    /// Why this scenario cannot happen here, if so: a fault that cannot be made is not passed over.
    pub fn refuses(&self, scenario: &Scenario) -> Option<String> {
        if scenario.limiters.iter().any(|limiter| limiter.skew.iter().any(|skew| *skew != 0)) {
            return Some("clocks of gateways cannot be wrong in real time".into());
        }
        if let Target::Spawned(ours) = &self.target
            && !scenario.store.kind.fits(ours.kind)
        {
            let kind = scenario.store.kind.name();
            return Some(format!("it needs {kind}; --spawn starts another kind"));
        }
        if let Target::Gateways(gateways) = &self.target {
            if let Some(change) = scenario.changes.first() {
                let name = &change.name;
                return Some(format!("'{name}' would change a gateway that is somebody's"));
            }
            let most = scenario.limiters.iter().map(|limiter| limiter.nodes).max().unwrap_or(1);
            if most > gateways.len() {
                return Some(format!("it needs {most} gateways: give --gateway {most} times"));
            }
        }
        let cannot = |fault: &FaultPart| {
            format!("'{}' ({} of {}) cannot be made here", fault.name, fault.word, fault.on.words())
        };
        scenario.faults.iter().find(|fault| !self.can_make(fault)).map(cannot)
    }
}

/// Lets a scenario happen in real time, on the thread that calls it, unless `stop` comes first. What
/// it has left is removed in either case; a Redis of ours is left to whoever ends it. `note` is told
/// what people should know.
pub async fn run(
    scenario: &Scenario,
    seed: Option<u64>,
    live: &Live,
    stop: impl Future<Output = ()>,
    note: &dyn Fn(&str),
) -> Result<Ended, LiveError> {
    let seed = seed.unwrap_or(scenario.seed);
    let begun = Begun::default();
    let tasks = LocalSet::new();
    let ended = tokio::select! {
        ended = tasks.run_until(happen(scenario, seed, live, &begun, note)) => Some(ended),
        () = stop => None,
    };
    // Nobody may count any more while it is undone.
    drop(tasks);
    let begun = begun.take();
    for (_, world) in &begun {
        world.forget().await.iter().for_each(|left| note(left));
    }
    let Some(ended) = ended else { return Ok(Ended::Stopped) };
    let absent = ended?;
    if begun.is_empty() {
        let why: Vec<String> = absent.into_iter().map(|(_, why)| why).collect();
        return Ok(Ended::Skipped(why.join("; ")));
    }
    let recordings: Vec<_> = begun
        .iter()
        .map(|(limiter, world)| (limiter.name.as_str(), world.finish(limiter)))
        .collect();
    let mut outcome = judged(scenario, seed, &recordings, &absent);
    outcome.live = recordings.iter().filter_map(|(_, r)| r.live_outcome(&live.options)).reduce(
        // The machine is the same for all of them.
        |all, one| LiveOutcome { met: all.met + one.met, ..all },
    );
    Ok(Ended::Outcome(Box::new(outcome)))
}

/// The limiters of a run that may have written something.
type Begun<'s> = RefCell<Vec<(&'s LimiterPart, Rc<World>)>>;
/// Limiters that cannot run, and why.
type Absent<'s> = Vec<(&'s str, String)>;

async fn happen<'s>(
    scenario: &'s Scenario,
    seed: u64,
    live: &Live,
    begun: &Begun<'s>,
    note: &dyn Fn(&str),
) -> Result<Absent<'s>, LiveError> {
    let Ready { backends, absent, ahead } = match &live.target {
        Target::Given(address) => on_redis(scenario, address).await?,
        Target::Spawned(ours) => {
            let address = RedisAddress::parse(&ours.url, None);
            let address = address.map_err(|error| LiveError::Other(error.to_string()))?;
            on_redis(scenario, &address).await?
        }
        Target::Gateways(gateways) => on_gateways(scenario, seed, gateways, note).await?,
    };
    let time = Time::Real(aligned_start(scenario, ahead));
    let stalls = Rc::new(Stalls::watch());
    let mut worlds = Vec::new();
    for (limiter, backends) in backends {
        let (world, plan) = World::new(scenario, limiter, seed, time.clone(), backends)
            .map_err(LiveError::Other)?;
        worlds.push((limiter, Rc::new(World { stalls: Some(stalls.clone()), ..world }), plan));
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
    let happened = futures_util::future::try_join_all(faults).await?;
    for (fault, range) in scenario.faults.iter().zip(happened) {
        // Servers take their time to die, and what is asked meanwhile says nothing.
        let Some(range) = range else { continue };
        for world in &started {
            let range = range.clone();
            world.recording.borrow_mut().named.insert(fault.name.clone(), range);
        }
    }
    let last = scenario.run + LAST_ANSWERS;
    while started.iter().any(|world| world.under_way.get() > 0) && time.now() < last {
        tokio::time::sleep(GLANCE).await;
    }
    Ok(absent)
}

/// Everything is connected, and nothing was sent.
struct Ready<'s> {
    backends: Vec<(&'s LimiterPart, Vec<Backend>)>,
    absent: Absent<'s>,
    /// How far the clock of whoever decides is ahead of ours, as far as that is known.
    ahead: i64,
}

async fn on_redis<'s>(
    scenario: &'s Scenario,
    address: &RedisAddress,
) -> Result<Ready<'s>, LiveError> {
    let mut backends = Vec::new();
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
            let store = RedisStore::connect(options, prefix.clone()).await?;
            stores.push(Backend::Store(Arc::new(Store::Redis(store))));
        }
        backends.push((limiter, stores));
    }
    Ok(Ready { backends, absent: Vec::new(), ahead: 0 })
}

async fn on_gateways<'s>(
    scenario: &'s Scenario,
    seed: u64,
    gateways: &[Rc<Admin>],
    note: &dyn Fn(&str),
) -> Result<Ready<'s>, LiveError> {
    let mut ahead = 0;
    for gateway in gateways {
        let introduced = gateway::introduce(gateway).await?;
        ahead = introduced.ahead;
        introduced.notes.iter().for_each(|words| note(words));
    }
    // Enough for two runs at the same time not to meet.
    let run: Rc<str> = format!("{:08x}", Micros::now().0 as u32 ^ std::process::id()).into();
    let mut table = KeyTable::default();
    Plan::new(scenario, seed, &mut table).map_err(|error| LiveError::Other(error.to_string()))?;
    let (mut backends, mut absent) = (Vec::new(), Vec::new());
    'limiters: for limiter in &scenario.limiters {
        let used = &gateways[..limiter.nodes.min(gateways.len())];
        let mut remotes = Vec::new();
        for gateway in used {
            match Has::look(gateway, &run, limiter, &table.keys).await? {
                Has::Not(why) => {
                    absent.push((limiter.name.as_str(), why));
                    continue 'limiters;
                }
                Has::It(notes) => notes.iter().for_each(|words| note(words)),
            }
            let remote = Remote::new(gateway.clone(), run.clone(), limiter);
            remotes.push(Backend::Gateway(remote));
        }
        backends.push((limiter, remotes));
    }
    Ok(Ready { backends, absent, ahead })
}

/// The next moment at which the windows of all limiters begin together, by the clock of whoever
/// decides.
fn aligned_start(scenario: &Scenario, ahead: i64) -> Micros {
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
    let theirs = Micros(soon.0.saturating_add_signed(ahead));
    let begins = |period: Micros| Micros(theirs.0.div_ceil(period.0) * period.0);
    period.map_or(soon, |period| soon + (begins(period) - theirs))
}

impl World {
    /// Breakers are looked at often enough to see each change.
    async fn watch_breakers(self: Rc<Self>) {
        let mut last: Vec<(usize, String, &'static str)> = Vec::new();
        while self.now() < self.scenario.run {
            for (number, node) in self.nodes.iter().enumerate() {
                let Some(limiter) = node.limiter() else { continue };
                let store = &limiter.store;
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

    /// Undoes what the run has left; says what cannot be undone. In Redis by each gateway's own
    /// connection: what it had sent when it was stopped is carried out before, and cannot come back
    /// after.
    async fn forget(&self) -> Vec<String> {
        let mut left = Vec::new();
        for node in &self.nodes {
            match &node.decider {
                Decider::Gateway(remote) => left.extend(remote.forget().await),
                Decider::Limiter(limiter) => {
                    let store = limiter.borrow().store.clone();
                    if let Store::Redis(store) = &*store {
                        // What cannot be removed ends with its TTL.
                        drop(store.remove(self.identities.iter().flatten()).await);
                    }
                }
            }
        }
        left
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
