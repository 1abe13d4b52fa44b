//! A Redis of the imagination, in virtual time: shards with replicas, a way to them that takes time,
//! and everything that can go wrong with either. It decides with the algorithms of the memory store
//! and answers with the errors of the Redis store; a caller that gives up does not undo what is on
//! its way, just as with a real one.

mod breakers;
pub mod fault;
mod server;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use self::breakers::BreakerChange;
pub use self::fault::{Effect, Fault, Target};
use self::server::{Command, Done, Shard};
use super::{Answer, Charge, Check, Settlement, StoreError};
use crate::engine::breaker::{Breaker, Went};
use crate::engine::clock::{Micros, VirtualClock};
use crate::engine::identity::Identity;
use crate::engine::policy;

/// How often a gateway looks up who the primary is, at most.
const LOOKED_UP_EVERY: Micros = Micros(250 * Micros::MILLISECOND.0);
/// A command that is sent elsewhere again and again stops here.
const MAX_HOPS: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    pub shards: usize,
    /// Whether a replica can take over.
    pub replicated: bool,
    /// A round trip, and how far from it one may be.
    pub latency: Micros,
    pub jitter: Micros,
    pub deadline: Micros,
    /// How far a replica is behind.
    pub replication_lag: Micros,
    /// How long a primary is down before a replica takes over.
    pub failover_after: Micros,
    /// The longest while of writes that any fault loses; none: no fault does.
    pub history: Option<Micros>,
    pub nodes: usize,
    pub seed: u64,
}

/// What all gateways share: the servers and what is wrong with them.
#[derive(Debug)]
pub struct World {
    clock: Arc<VirtualClock>,
    settings: Settings,
    state: Mutex<State>,
}

/// The store as one gateway reaches it.
#[derive(Clone, Debug)]
pub struct SimulatedStore {
    world: Arc<World>,
    node: usize,
}

/// A call to the store, for whoever measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    pub at: Micros,
    pub node: usize,
    pub shard: usize,
    pub took: Micros,
    pub failed: bool,
}

#[derive(Debug)]
struct State {
    shards: Vec<Shard>,
    faults: Vec<(usize, Fault)>,
    /// For each node and shard: which primary it believes in, and when it learns of the next.
    views: Vec<Vec<View>>,
    /// The breaker that each node has for each shard, if it has any.
    breakers: Vec<Vec<Option<Breaker>>>,
    breaker_changes: Vec<BreakerChange>,
    /// Breakers that have opened and are not probed yet.
    opened: Vec<(usize, usize)>,
    calls: Vec<Call>,
    dice: Dice,
}

#[derive(Clone, Copy, Debug, Default)]
struct View {
    epoch: u32,
    learns_at: Micros,
}

/// splitmix64: small, and the same everywhere.
#[derive(Debug)]
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.roll()) * u128::from(n)) >> 64) as u64
    }

    fn meets(&mut self, rate: f64) -> bool {
        rate >= 1.0 || ((self.roll() >> 11) as f64 / (1u64 << 53) as f64) < rate
    }
}

/// What a command met when it arrived.
enum Reply {
    Done(Result<Done, StoreError>),
    /// Nothing ran, and it has to be sent again, perhaps elsewhere.
    Again,
    /// Nobody will ever answer.
    Silence,
}

impl World {
    pub fn new(clock: Arc<VirtualClock>, settings: Settings) -> Arc<World> {
        let shards = (0..settings.shards).map(|_| Shard::new(settings.history)).collect();
        let views = vec![vec![View::default(); settings.shards]; settings.nodes];
        let dice = Dice(settings.seed ^ 0x005e_ed0f_57e5);
        let state = State {
            shards,
            faults: Vec::new(),
            views,
            breakers: vec![vec![None; settings.shards]; settings.nodes],
            breaker_changes: Vec::new(),
            opened: Vec::new(),
            calls: Vec::new(),
            dice,
        };
        Arc::new(World { clock, settings, state: Mutex::new(state) })
    }

    pub fn as_seen_by(self: &Arc<Self>, node: usize) -> SimulatedStore {
        SimulatedStore { world: self.clone(), node }
    }

    /// All calls so far, in the order they ended.
    pub fn calls(&self) -> Vec<Call> {
        self.state().calls.clone()
    }

    pub fn shard_of(&self, identity: &Identity) -> usize {
        slot(identity) % self.settings.shards
    }

    /// Something goes wrong; `id` tells it from other faults.
    pub fn begin(self: &Arc<Self>, id: usize, fault: Fault) {
        let now = self.clock.now();
        let mut state = self.state();
        for shard in (0..self.settings.shards).filter(|shard| fault.on.meets_shard(*shard)) {
            state.strike(shard, &fault, now, &self.settings);
        }
        state.faults.push((id, fault));
    }

    /// The fault is over. A primary that is back has lost what the fault said it would.
    pub fn end(&self, id: usize) {
        let now = self.clock.now();
        let mut state = self.state();
        let Some(place) = state.faults.iter().position(|(other, _)| *other == id) else { return };
        let (_, fault) = state.faults.remove(place);
        for shard in (0..self.settings.shards).filter(|shard| fault.on.meets_shard(*shard)) {
            let server = &mut state.shards[shard];
            match fault.effect {
                Effect::Hang => server.run_held(now),
                Effect::Down => server.restart(),
                _ => {}
            }
        }
    }

    /// Whether a replica takes over now: to be called once a primary was down for long enough.
    pub fn promote_if_down(&self) {
        let now = self.clock.now();
        let settings = &self.settings;
        let mut state = self.state();
        for shard in 0..settings.shards {
            let down_since = state.shards[shard].down_since;
            let overdue = down_since.is_some_and(|since| since + settings.failover_after <= now);
            if overdue && settings.replicated {
                let until = down_since.unwrap_or(now);
                let lose = state.shards[shard].lose.unwrap_or(settings.replication_lag);
                state.take_over(shard, until.saturating_sub(lose), now);
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shard {
    fn restart(&mut self) {
        if let (Some(since), Some(lose)) = (self.down_since, self.lose) {
            self.fall_back(since.saturating_sub(lose));
        }
        (self.down_since, self.lose) = (None, None);
        self.scripts_loaded = false;
    }
}

impl State {
    /// What a fault does when it begins.
    fn strike(&mut self, shard: usize, fault: &Fault, now: Micros, settings: &Settings) {
        let server = &mut self.shards[shard];
        match fault.effect {
            Effect::Down => (server.down_since, server.lose) = (Some(now), fault.lose),
            Effect::ScriptFlush => server.scripts_loaded = false,
            Effect::LoseData => match fault.lose {
                None => server.lose_everything(),
                Some(lose) => server.fall_back(now.saturating_sub(lose)),
            },
            Effect::Failover => {
                let lose = fault.lose.unwrap_or(settings.replication_lag);
                self.take_over(shard, now.saturating_sub(lose), now);
            }
            _ => {}
        }
    }

    /// The replica knows everything up to `until`; gateways learn of it one after the other.
    fn take_over(&mut self, shard: usize, until: Micros, now: Micros) {
        let server = &mut self.shards[shard];
        server.fall_back(until);
        server.epoch += 1;
        (server.down_since, server.lose) = (None, None);
        server.scripts_loaded = false;
        for node in 0..self.views.len() {
            self.views[node][shard].learns_at = now + Micros(self.dice.below(LOOKED_UP_EVERY.0));
        }
    }

    fn rate_of(&self, node: usize, shard: usize, wanted: impl Fn(&Effect) -> bool) -> Option<f64> {
        let met =
            |(_, fault): &&(usize, Fault)| wanted(&fault.effect) && fault.on.meets(node, shard);
        self.faults.iter().filter(met).map(|(_, fault)| fault.rate).reduce(f64::max)
    }

    /// Whether a fault of this kind meets this command.
    fn is_met(&mut self, node: usize, shard: usize, wanted: impl Fn(&Effect) -> bool) -> bool {
        self.rate_of(node, shard, wanted).is_some_and(|rate| self.dice.meets(rate))
    }

    /// How long the way there and the way back take.
    fn ways(&mut self, node: usize, shard: usize, settings: &Settings) -> (Micros, Micros) {
        let spread = self.dice.below(2 * settings.jitter.0 + 1);
        let mut round_trip = (settings.latency.0 + spread).saturating_sub(settings.jitter.0);
        for at in 0..self.faults.len() {
            let (_, fault) = self.faults[at];
            if let Effect::Latency(more) = fault.effect
                && fault.on.meets(node, shard)
                && self.dice.meets(fault.rate)
            {
                round_trip += more.0;
            }
        }
        (Micros(round_trip / 2), Micros(round_trip - round_trip / 2))
    }

    /// The server's clock.
    fn server_time(&self, shard: usize, now: Micros) -> Micros {
        self.faults.iter().fold(now, |now, (_, fault)| match fault.effect {
            Effect::ClockSkew(by) if fault.on.meets_shard(shard) => {
                Micros(now.0.saturating_add_signed(by))
            }
            _ => now,
        })
    }

    /// Why nothing can be sent at all.
    fn refusal(&mut self, node: usize, shard: usize, now: Micros) -> Option<StoreError> {
        let view = &mut self.views[node][shard];
        let server = &self.shards[shard];
        if view.epoch != server.epoch && now >= view.learns_at {
            view.epoch = server.epoch;
        }
        let is_down = server.down_since.is_some();
        // Who believes in a primary that is gone knocks at a closed door; one that was only demoted
        // still answers.
        let gone = view.epoch != server.epoch && !self.failover_is_planned(shard);
        (is_down || gone)
            .then(|| StoreError::Unreachable { url: url(shard), why: "connection refused".into() })
    }

    fn failover_is_planned(&self, shard: usize) -> bool {
        self.faults.iter().any(|(_, f)| f.effect == Effect::Failover && f.on.meets_shard(shard))
    }

    /// A command arrives at a server.
    fn arrive(&mut self, node: usize, shard: usize, command: &Command, now: Micros) -> Reply {
        if self.is_met(node, shard, |e| *e == Effect::Partition) {
            return Reply::Silence;
        }
        if self.shards[shard].down_since.is_some() {
            let why = "the server closed the connection".into();
            return Reply::Done(Err(StoreError::Lost { url: url(shard), why }));
        }
        if self.is_met(node, shard, |e| *e == Effect::Hang) {
            self.shards[shard].held.push(command.clone());
            return Reply::Silence;
        }
        if self.views[node][shard].epoch != self.shards[shard].epoch {
            // READONLY: the old primary says so, and the gateway looks up the new one.
            self.views[node][shard].epoch = self.shards[shard].epoch;
            return Reply::Again;
        }
        let refused = |effect: &Effect| matches!(effect, Effect::Refuse(_));
        if self.is_met(node, shard, refused) {
            return Reply::Done(Err(self.refused(node, shard)));
        }
        if self.is_met(node, shard, |e| *e == Effect::Reshard) && self.dice.below(2) == 0 {
            // MOVED, ASK or TRYAGAIN: nothing ran here.
            return Reply::Again;
        }
        if !std::mem::replace(&mut self.shards[shard].scripts_loaded, true) {
            // NOSCRIPT: the script is sent along the second time.
            return Reply::Again;
        }
        if let Command::Check { identity, .. } = command
            && self.is_met(node, shard, |e| *e == Effect::Evict)
        {
            self.shards[shard].forget(identity, None);
        }
        let at = self.server_time(shard, now);
        Reply::Done(self.shards[shard].run(command.clone(), at))
    }

    fn refused(&self, node: usize, shard: usize) -> StoreError {
        let code = self.faults.iter().find_map(|(_, fault)| match fault.effect {
            Effect::Refuse(code) if fault.on.meets(node, shard) => Some(code),
            _ => None,
        });
        let code = code.unwrap_or("ERR");
        let why = match code {
            "READONLY" => "You can't write against a read only replica",
            "OOM" => "command not allowed when used memory > 'maxmemory'",
            "LOADING" => "Redis is loading the dataset in memory",
            _ => "this fault was asked for",
        };
        StoreError::Refused { url: url(shard), code: code.into(), why: why.into() }
    }
}

impl SimulatedStore {
    pub async fn check(&self, check: &Check<'_>) -> Result<Answer, StoreError> {
        match self.call(check.identity, Command::of(check)).await? {
            Done::Decided(answer) => Ok(answer),
            Done::Settled(_) => unreachable!("a check is decided"),
        }
    }

    pub async fn check_in_order(&self, checks: &[Check<'_>]) -> Vec<Result<Answer, StoreError>> {
        let mut answers = Vec::with_capacity(checks.len());
        for check in checks {
            answers.push(self.check(check).await);
        }
        answers
    }

    pub async fn settle(&self, charge: &Charge, to: Settlement) -> Result<bool, StoreError> {
        let command = Command::Settle { charge: charge.clone(), to };
        match self.call(&charge.identity, command).await? {
            Done::Settled(settled) => Ok(settled),
            Done::Decided(_) => unreachable!("a charge is settled"),
        }
    }

    pub fn reset(&self, identity: &Identity, rule: Option<&str>) -> usize {
        let shard = self.world.shard_of(identity);
        self.world.state().shards[shard].forget(identity, rule)
    }

    /// From now on a server that fails too often is left alone, by these numbers.
    pub fn set_breaker(&self, settings: policy::Breaker) {
        let (now, deadline) = (self.world.clock.now(), self.world.settings.deadline);
        for breaker in &mut self.world.state().breakers[self.node] {
            match breaker {
                Some(breaker) => breaker.set(settings, deadline),
                None => *breaker = Some(Breaker::new(settings, deadline, now)),
            }
        }
    }

    async fn call(&self, identity: &Identity, command: Command) -> Result<Done, StoreError> {
        let world = &self.world;
        let (begun, shard) = (world.clock.now(), world.shard_of(identity));
        let Some(pass) = world.state().admit(self.node, shard, begun) else {
            return Err(StoreError::Broken { url: url(shard) });
        };
        let done = self.exchange(shard, command, begun + world.settings.deadline).await;
        let now = world.clock.now();
        let took = now - begun;
        let failed = done.as_ref().is_err_and(StoreError::is_of_the_store);
        let mut state = world.state();
        state.calls.push(Call { at: begun, node: self.node, shard, took, failed });
        if let Some(pass) = pass {
            let went = Went { failed, took };
            state.with_breaker(self.node, shard, now, |breaker| breaker.settle(pass, went, now));
        }
        done
    }

    /// Sends until something but "again" comes back or the deadline is there.
    async fn exchange(
        &self,
        shard: usize,
        command: Command,
        deadline: Micros,
    ) -> Result<Done, StoreError> {
        let (world, clock) = (&self.world, &self.world.clock);
        let too_late =
            || StoreError::Timeout { url: url(shard), deadline: world.settings.deadline };
        for _ in 0..MAX_HOPS {
            let sent = clock.now();
            let (there, back, is_dropped) = {
                let mut state = world.state();
                if let Some(refusal) = state.refusal(self.node, shard, sent) {
                    return Err(refusal);
                }
                let (there, back) = state.ways(self.node, shard, &world.settings);
                let is_dropped = state.is_met(self.node, shard, |e| *e == Effect::Drop);
                // The request or the answer.
                (there, back, is_dropped.then(|| state.dice.below(2) == 0))
            };
            if is_dropped == Some(true) {
                clock.sleep_until(deadline).await;
                return Err(too_late());
            }
            if sent + there > deadline {
                let at = sent + there;
                clock.sleep_until(deadline).await;
                world.state().shards[shard].will_arrive(at, command);
                return Err(too_late());
            }
            clock.sleep_until(sent + there).await;
            let reply = world.state().arrive(self.node, shard, &command, clock.now());
            let answered = clock.now() + back;
            let is_silent = matches!(reply, Reply::Silence) || is_dropped.is_some();
            if is_silent || answered > deadline {
                clock.sleep_until(deadline).await;
                return Err(too_late());
            }
            clock.sleep_until(answered).await;
            if let Reply::Done(done) = reply {
                return done;
            }
        }
        let why = "it was sent elsewhere again and again".into();
        Err(StoreError::Refused { url: url(shard), code: "TRYAGAIN".into(), why })
    }
}

fn url(shard: usize) -> String {
    format!("simulated shard {}", shard + 1)
}

/// Of 16384, by FNV-1a: any hash serves that is the same everywhere.
fn slot(identity: &Identity) -> usize {
    let hash = identity.as_str().bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    ((hash ^ (hash >> 32)) & 0x3fff) as usize
}
