//! One limiter: its gateways, their store, the traffic that meets them, and what becomes of it. The
//! limiter is the engine's own; in virtual time the servers behind it are imagined.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use super::arrivals::{Due, KeyTable, Plan};
use super::asking::most_delay;
use super::client::Silence;
use super::gateway::Remote;
use super::record::{NO_RULE, Outcome, Recording, Row};
use super::stalls::Stalls;
use super::time::Time;
use super::told::Told;
use crate::engine::clock::Micros;
use crate::engine::concurrency::Concurrency;
use crate::engine::failure::{Local, OnFailure};
use crate::engine::identity::{Dimension, Identity};
use crate::engine::limiter::Limiter;
use crate::engine::plan::Standing;
use crate::engine::policy::{Policy, Rule};
use crate::engine::rules::Rules;
use crate::engine::store::simulated::{Effect, Settings, World as Servers};
use crate::engine::store::{MemoryStore, Store};
use crate::scenario::EPOCH;
use crate::scenario::model::{
    ChangePart, ChangeWhat, FaultPart, FaultWhat, Kind, LimiterPart, Scenario,
};

/// What one process remembers of identities while the store is away.
const MAX_LOCAL: usize = 1_000_000;

/// Everything that the tasks of a run share.
pub(super) struct World {
    pub(super) scenario: Scenario,
    pub(super) time: Time,
    /// Those that are imagined, if any.
    pub(super) servers: Option<Arc<Servers>>,
    /// A memory store does: nobody else has to be waited for.
    pub(super) answers_at_once: bool,
    /// In real time: how late things are.
    pub(super) stalls: Option<Rc<Stalls>>,
    /// How long a request may be held.
    pub(super) most_delay: Option<Micros>,
    /// Requests that are on their way.
    pub(super) under_way: Cell<usize>,
    pub(super) nodes: Vec<Node>,
    pub(super) next_node: Cell<usize>,
    pub(super) table: KeyTable,
    /// What a request of each key is counted as.
    pub(super) identities: Vec<Vec<Identity>>,
    pub(super) policy: RefCell<Arc<Policy>>,
    pub(super) standings: RefCell<HashMap<u32, Vec<Standing>>>,
    pub(super) unknown: Vec<Standing>,
    pub(super) silence: RefCell<Silence>,
    pub(super) sent: Cell<u64>,
    pub(super) recording: RefCell<Recording>,
}

/// One gateway.
pub(super) struct Node {
    pub(super) decider: Decider,
    pub(super) under_way: Arc<Concurrency>,
    pub(super) skew: Cell<i64>,
    pub(super) is_down: Cell<bool>,
}

pub(super) enum Decider {
    /// The engine's own.
    Limiter(RefCell<Rc<Limiter>>),
    /// A process that runs somewhere.
    Gateway(Remote),
}

impl Decider {
    fn on(backend: Backend, limiter: &LimiterPart, rules: Arc<Rules>, time: &Time) -> Decider {
        let store = match backend {
            Backend::Gateway(remote) => return Decider::Gateway(remote),
            Backend::Store(store) => store,
        };
        store.set_breaker(limiter.policy.defaults.breaker);
        let local = Local::new(MAX_LOCAL);
        local.set_gateways(limiter.nodes);
        let on_failure = OnFailure::ByRule(Arc::new(local));
        let hot = time.hot_keys(&store);
        Decider::Limiter(RefCell::new(Rc::new(Limiter { rules, store, on_failure, hot })))
    }
}

impl Node {
    pub(super) fn limiter(&self) -> Option<Rc<Limiter>> {
        match &self.decider {
            Decider::Limiter(limiter) => Some(limiter.borrow().clone()),
            Decider::Gateway(_) => None,
        }
    }
}

/// What gateways decide on.
pub(super) enum Backend {
    Store(Arc<Store>),
    Gateway(Remote),
}

/// A request on its way, for the first time or again.
#[derive(Clone, Copy)]
pub(super) struct Request {
    pub(super) due: Due,
    pub(super) attempt: u32,
    /// Tells requests apart; a retry has that of its first.
    pub(super) number: u64,
}

/// Lets the scenario happen to one of its limiters, in virtual time.
pub(super) fn run(
    scenario: &Scenario,
    limiter: &LimiterPart,
    seed: u64,
) -> Result<Recording, String> {
    let (time, executor, clock) = Time::virtual_();
    let servers = (scenario.store.kind != Kind::Memory)
        .then(|| Servers::new(clock, settings(scenario, limiter, seed)));
    let store = |node: usize| match &servers {
        None => Store::Memory(MemoryStore::unbounded()),
        Some(servers) => Store::Simulated(servers.as_seen_by(node)),
    };
    let backend = |node: usize| Backend::Store(Arc::new(store(node)));
    let backends = (0..limiter.nodes).map(backend).collect();
    let (world, plan) = World::new(scenario, limiter, seed, time, backends)?;
    let world = Rc::new(World { servers, ..world });
    for (number, fault) in scenario.faults.iter().enumerate() {
        executor.spawn(world.clone().break_things(number, fault.clone()));
    }
    world.start(limiter, plan);
    executor.run();
    Ok(world.finish(limiter))
}

impl World {
    /// `backends` are those of the gateways, one for each.
    pub(super) fn new(
        scenario: &Scenario,
        limiter: &LimiterPart,
        seed: u64,
        time: Time,
        backends: Vec<Backend>,
    ) -> Result<(World, Plan), String> {
        let mut table = KeyTable::default();
        let plan = Plan::new(scenario, seed, &mut table).map_err(|error| error.to_string())?;
        let rules = Arc::new(Rules::new(limiter.policy.clone()));
        let is_memory = |backend: &Backend| match backend {
            Backend::Store(store) => matches!(**store, Store::Memory(_)),
            Backend::Gateway(_) => false,
        };
        let of_any_rule = |is: fn(&Rule) -> bool| {
            policies(scenario, limiter).any(|policy| policy.rules.iter().any(is))
        };
        // Where places are waited for, nobody else is held up.
        let answers_at_once =
            backends.iter().all(is_memory) && !of_any_rule(|rule| rule.at_once.is_some());
        let nodes = backends.into_iter().enumerate().map(|(number, backend)| Node {
            decider: Decider::on(backend, limiter, rules.clone(), &time),
            under_way: time.concurrency(),
            skew: Cell::new(limiter.skew.get(number).copied().unwrap_or_default()),
            is_down: Cell::new(false),
        });
        let counts_everybody = of_any_rule(|rule| rule.dimension == Dimension::Global);
        let everybody = Identity::everybody();
        let of = |key: &Identity| {
            let both = counts_everybody && *key != everybody;
            let mut all = vec![key.clone()];
            all.extend(both.then(|| everybody.clone()));
            all
        };
        let world = World {
            identities: table.keys.iter().map(of).collect(),
            nodes: nodes.collect(),
            servers: None,
            answers_at_once,
            stalls: None,
            most_delay: most_delay(limiter),
            under_way: Cell::new(0),
            next_node: Cell::new(0),
            table,
            policy: RefCell::new(limiter.policy.clone()),
            standings: RefCell::default(),
            unknown: vec![Standing::default(); 2],
            silence: RefCell::default(),
            sent: Cell::new(0),
            recording: RefCell::new(recording(scenario, limiter)),
            scenario: scenario.clone(),
            time,
        };
        Ok((world, plan))
    }

    /// Begins the traffic and the changes of a limiter.
    pub(super) fn start(self: &Rc<Self>, limiter: &LimiterPart, plan: Plan) {
        let ours =
            |change: &&ChangePart| change.limiter.as_ref().is_none_or(|name| *name == limiter.name);
        for change in self.scenario.changes.iter().filter(ours) {
            self.time.spawn(self.clone().change(change.clone()));
        }
        self.under_way.set(1);
        self.time.spawn(self.clone().tend_hot_keys());
        self.time.spawn(self.clone().send(plan));
    }

    pub(super) fn now(&self) -> Micros {
        self.time.now()
    }

    fn asks_gateways(&self) -> bool {
        self.nodes.iter().any(|node| matches!(node.decider, Decider::Gateway(_)))
    }

    /// A request as a task of its own.
    fn send_off(self: &Rc<Self>, request: Request, at: Micros) {
        let world = self.clone();
        self.under_way.set(self.under_way.get() + 1);
        self.time.spawn(async move {
            world.wait_until(at).await;
            world.attempt(request).await;
            world.under_way.set(world.under_way.get() - 1);
        });
    }

    /// The traffic.
    async fn send(self: Rc<Self>, plan: Plan) {
        for due in plan {
            self.wait_until(due.at).await;
            if self.silence.borrow().is_silent(due.traffic, due.key, due.at) {
                continue;
            }
            let request = Request { due, attempt: 0, number: self.sent.get() };
            self.sent.set(request.number + 1);
            if self.answers_at_once {
                self.attempt(request).await;
            } else {
                self.send_off(request, due.at);
            }
        }
        self.under_way.set(self.under_way.get() - 1);
    }

    /// In real time it may get late.
    async fn wait_until(&self, at: Micros) {
        self.time.sleep_until(at).await;
        if let Some(stalls) = &self.stalls {
            let start = self.time.start();
            stalls.note(start + at..start + self.now());
        }
    }

    async fn attempt(self: &Rc<Self>, request: Request) {
        let begun = self.now();
        let Some(node) = self.pick_node() else {
            self.note(request, begun, 0, &Told::NOTHING);
            return;
        };
        let mut said = self.decide(request, node).await;
        let part = &self.scenario.traffic[request.due.traffic];
        if let Some(verdict) = &mut said.verdict {
            self.note_call(begun, node, verdict);
            if verdict.allowed {
                self.hold(std::mem::take(&mut verdict.places), verdict.delay() + part.takes);
            }
        }
        self.probe_what_opened();
        let told = said.told();
        self.note(request, begun, node, &told);
        if told.outcome == Outcome::Allowed {
            return;
        }
        let again = self.silence.borrow_mut().refused(
            part.client,
            request.due.traffic,
            request.due.key,
            request.attempt,
            told.retry_after,
            self.now(),
        );
        let Some(at) = again.filter(|at| *at < self.scenario.run) else { return };
        self.send_off(Request { attempt: request.attempt + 1, ..request }, at);
    }

    /// The gateways take turns; one that is down is passed over, as a load balancer would.
    fn pick_node(&self) -> Option<usize> {
        let count = self.nodes.len();
        let first = self.next_node.get();
        let up = |node: &usize| !self.nodes[*node].is_down.get();
        let node = (0..count).map(|n| (first + n) % count).find(up)?;
        self.next_node.set((node + 1) % count);
        Some(node)
    }

    fn note(&self, request: Request, begun: Micros, node: usize, told: &Told<'_>) {
        let took = self.now().saturating_sub(begun);
        let mut recording = self.recording.borrow_mut();
        let identity = &self.table.keys[request.due.key as usize];
        // Real clocks differ a little; what lies between two decisions is right by either.
        let give = match self.time {
            Time::Virtual(_) => Micros::ZERO,
            Time::Real(_) => Micros::MINUTE,
        };
        let since_start = told.taken.map(|at| at.saturating_sub(self.time.start()));
        let row = Row {
            at: begun,
            cost: request.due.cost.get(),
            key: request.due.key,
            traffic: request.due.traffic as u16,
            rule: told.rule.map_or(NO_RULE, |rule| recording.number_of_rule(rule)),
            node: node as u16,
            shard: self.servers.as_ref().map_or(0, |servers| servers.shard_of(identity) as u16),
            outcome: told.outcome,
            degraded: told.degraded,
            shadow_rejected: told.shadow_rejected,
            decision: took,
            response: took + told.delay,
            retry_after: told.retry_after,
            taken: since_start.map_or(begun, |at| taken(at, begun, took, give)),
            by: told.by,
            state: told.state,
            met_standstill: false,
        };
        recording.rows.push(row);
    }

    pub(super) fn finish(&self, limiter: &LimiterPart) -> Recording {
        let mut recording = self.recording.take();
        // Answers come in another order than requests.
        recording.rows.sort_by_key(|row| row.at);
        recording.calls.sort_by_key(|call| call.at);
        if let Time::Real(start) = self.time {
            recording.has_store = true;
            let still = self.stalls.as_ref().map(|stalls| stalls.since(start));
            recording.be_real(still.unwrap_or_default(), self.asks_gateways());
        }
        if let Some(servers) = &self.servers {
            recording.calls = servers.calls();
            for call in &mut recording.calls {
                call.at = call.at - EPOCH;
            }
            recording.calls.sort_by_key(|call| call.at);
            let since_start =
                |(at, node, shard, word)| (Micros::saturating_sub(at, EPOCH), node, shard, word);
            recording.breakers = servers.breakers().into_iter().map(since_start).collect();
        }
        recording.keys.clone_from(&self.table.keys);
        let changes = |change: &ChangePart| {
            let ours = change.limiter.as_ref().is_none_or(|name| *name == limiter.name);
            ours && matches!(
                change.what,
                ChangeWhat::Limit(_) | ChangeWhat::Rules(_) | ChangeWhat::Override { .. }
            )
        };
        recording.limit = limiter.limit.filter(|_| !self.scenario.changes.iter().any(changes));
        recording
    }
}

/// When a decision was taken, in the time of the run: as the store says, unless its clock is wrong by
/// more than `give`.
fn taken(at: Micros, begun: Micros, took: Micros, give: Micros) -> Micros {
    let known = begun.saturating_sub(give)..=begun + took + give;
    if known.contains(&at) { at } else { begun }
}

/// Every policy that is ever in force.
fn policies<'s>(
    scenario: &'s Scenario,
    limiter: &'s LimiterPart,
) -> impl Iterator<Item = &'s Arc<Policy>> {
    let changed = scenario.changes.iter().filter_map(|change| match &change.what {
        ChangeWhat::Rules(policy) => Some(policy),
        _ => None,
    });
    std::iter::once(&limiter.policy).chain(changed)
}

fn settings(scenario: &Scenario, limiter: &LimiterPart, seed: u64) -> Settings {
    let store = &scenario.store;
    let loses = |fault: &&FaultPart| {
        matches!(fault.what, FaultWhat::Store(Effect::Down | Effect::Failover | Effect::LoseData))
    };
    let replicated = store.replicas > 0;
    let history = scenario
        .faults
        .iter()
        .filter(loses)
        .filter_map(|fault| fault.lose.or(replicated.then_some(store.replication_lag)))
        .max();
    Settings {
        shards: store.shards,
        replicated,
        latency: store.latency,
        jitter: store.jitter,
        deadline: store.deadline,
        replication_lag: store.replication_lag,
        failover_after: store.failover_after,
        history,
        nodes: limiter.nodes,
        seed,
    }
}

fn recording(scenario: &Scenario, limiter: &LimiterPart) -> Recording {
    let mut named = std::collections::BTreeMap::new();
    for part in &scenario.traffic {
        named.insert(part.name.clone(), part.at..part.at + part.lasts);
    }
    for change in &scenario.changes {
        named.insert(change.name.clone(), change.at..change.at);
    }
    for fault in &scenario.faults {
        named.insert(fault.name.clone(), fault.at..fault.at + fault.lasts);
    }
    let rules = policies(scenario, limiter).flat_map(|policy| &policy.rules);
    Recording {
        traffic: scenario.traffic.iter().map(|part| part.name.clone()).collect(),
        rules: rules.map(|rule| rule.name.clone()).collect(),
        nodes: limiter.nodes,
        shards: scenario.store.shards,
        named,
        end: scenario.run,
        has_store: scenario.store.kind != Kind::Memory,
        ..Recording::default()
    }
}
