//! What happened, counted where it is decided: for metrics, logs, the stats stream and the
//! dashboard. A decision costs one look for its rule and three additions; who asks is looked at in
//! samples, once there is more traffic than is needed to tell who stands out.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::answer::Outcome;
use super::counters::{Counted, Mode, RuleStats, RuleTable};
use super::events::{Event, Events, Kind, Level};
use super::history::History;
use super::log::{Log, Violation};
use super::notice::Noticed;
use super::spread::Spread;
use super::top::{Last, MAX_ENDPOINT_BYTES, Ranked, Sketch};
use crate::engine::clock::Micros;
use crate::engine::histogram::Histogram;
use crate::engine::identity::Identity;
use crate::engine::limit::QuotaState;
use crate::engine::limiter::{Reached, Verdict};
use crate::engine::plan::Attempt;
use crate::engine::quota_watch::Transition;
use crate::engine::registry::Member;
use crate::engine::store::RuleLimit;
use crate::engine::store::redis::Shard;
use crate::gateway::Gateway;

/// Enough to tell shares to a percent.
const SAMPLES_PER_SECOND: u64 = 4_096;
/// Identities that are told apart among all, among those a rule refuses, and how many rules have a
/// sketch of their own; the others share one. At worst 21 MB, when every identity is 1 kB long.
pub const SEEN: usize = 256;
pub const REFUSED: usize = 64;
const MAX_RULES_WITH_SKETCH: usize = 256;
/// It takes a millisecond when very many quotas are at their end.
const WATCH_SWEPT_EVERY: Micros = Micros(10 * Micros::SECOND.0);

#[derive(Debug)]
pub struct Stats {
    pub started: Micros,
    pub rules: RuleTable,
    pub clock_jumps: AtomicU64,
    /// Into `normal`, `warning`, `throttled`.
    pub transitions: [AtomicU64; 3],
    /// Charges that enough replicas confirmed, and that too few did.
    pub replicas: [AtomicU64; 2],
    /// Until an upstream's answer begins.
    pub upstream: Histogram,
    /// Requests that are being answered.
    pub inflight: Spread,
    /// Requests that were turned away because of too much work.
    pub shed: AtomicU64,
    seen: Mutex<Sketch>,
    seen_every: AtomicU32,
    /// Of rules without a sketch of their own.
    refused: Mutex<Sketch>,
    refused_every: AtomicU32,
    sketches: AtomicU32,
    /// What the store failed with since the last tick.
    degraded_for: Mutex<Option<String>>,
    is_degraded: AtomicBool,
    pub(super) history: Mutex<History>,
    pub(super) events: Mutex<Events>,
    pub(super) noticed: Mutex<Noticed>,
    pub(super) members: Mutex<Vec<Member>>,
    log: OnceLock<Log>,
}

/// What the identities are ranked by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    Seen,
    Rejected,
}

impl Stats {
    pub fn new(started: Micros) -> Stats {
        Stats {
            started,
            rules: RuleTable::default(),
            clock_jumps: AtomicU64::new(0),
            transitions: Default::default(),
            replicas: Default::default(),
            upstream: Histogram::default(),
            inflight: Spread::default(),
            shed: AtomicU64::new(0),
            seen: Mutex::new(Sketch::new(SEEN)),
            seen_every: AtomicU32::new(1),
            refused: Mutex::new(Sketch::new(REFUSED)),
            refused_every: AtomicU32::new(1),
            sketches: AtomicU32::new(0),
            degraded_for: Mutex::default(),
            is_degraded: AtomicBool::new(false),
            history: Mutex::default(),
            events: Mutex::default(),
            noticed: Mutex::default(),
            members: Mutex::default(),
            log: OnceLock::new(),
        }
    }

    /// From now on refusals and events are written there too; the first one stays.
    pub fn log_to(&self, log: Log) {
        let _ = self.log.set(log);
    }

    pub fn log(&self) -> Option<&Log> {
        self.log.get()
    }

    /// One decision, however it was asked for.
    pub fn decided(&self, attempt: &Attempt<'_>, verdict: &Verdict, began: Micros, now: Micros) {
        let told = Told::of(verdict);
        let took = now.saturating_sub(began);
        let count = |rule: &RuleStats| {
            rule.count(told.counted, told.mode);
            rule.took.record(took);
            self.look_at_who(attempt, verdict, rule, &told, now);
        };
        match &verdict.reached {
            Reached::Limits { decided, asked } => {
                if asked.iter().any(|asked| asked.decision.clock_jump) {
                    self.clock_jumps.fetch_add(1, Ordering::Relaxed);
                }
                self.rules.with(asked[*decided].limit.rule(), count);
            }
            Reached::Unanswered { limit, .. } => self.rules.with(limit.rule(), count),
            Reached::Missing { rule } => self.rules.with(rule, count),
            Reached::Busy(busy) => self.rules.with(&busy.rule, |rule| {
                rule.busy.fetch_add(1, Ordering::Relaxed);
                count(rule);
            }),
            Reached::Blocked { .. } => count(&self.rules.blocked),
            Reached::NoLimit => count(&self.rules.unlimited),
            Reached::NoPolicy => count(&self.rules.no_policy),
        }
        for shadow in verdict.shadow.iter().filter(|shadow| !shadow.allowed) {
            let count = |rule: &RuleStats| rule.count(Counted::ShadowRejected, told.mode);
            self.rules.with(&shadow.rule, count);
        }
        if let Some(told) = &verdict.replicas {
            let outcome = usize::from(told.is_short());
            self.replicas[outcome].fetch_add(1, Ordering::Relaxed);
            let count = |rule: &RuleStats| rule.replicas[outcome].fetch_add(1, Ordering::Relaxed);
            self.rules.with(&told.rule, count);
        }
        if let Some(degraded) = &verdict.degraded {
            // The first of a second says why.
            if !self.is_degraded.load(Ordering::Relaxed)
                && !self.is_degraded.swap(true, Ordering::Relaxed)
            {
                *lock(&self.degraded_for) = Some(degraded.why.to_string());
            }
        }
    }

    fn look_at_who(
        &self,
        attempt: &Attempt<'_>,
        verdict: &Verdict,
        rule: &RuleStats,
        told: &Told,
        now: Micros,
    ) {
        let deciding = deciding_identity(verdict);
        if let Some(weight) = sampled(self.seen_every.load(Ordering::Relaxed)) {
            // `global` is everybody.
            let is_somebody = |identity: &&Identity| !identity.as_str().starts_with("global:");
            let who = deciding.or(attempt.identities.first()).filter(is_somebody);
            if let Some(who) = who.or_else(|| attempt.identities.iter().find(is_somebody)) {
                lock(&self.seen).record(who, weight, last(attempt, verdict, rule, told, now));
            }
        }
        if told.counted == Counted::Allowed {
            return;
        }
        let who = deciding.or(attempt.identities.first());
        if let Some(who) = who
            && let Some(weight) = sampled(self.refused_every.load(Ordering::Relaxed))
        {
            let sketch = self.sketch_of(rule);
            lock(sketch).record(who, weight, last(attempt, verdict, rule, told, now));
        }
        if let Some(log) = self.log.get() {
            log.violation(&violation(attempt, verdict, rule, who, told, now));
        }
    }

    fn sketch_of<'a>(&'a self, rule: &'a RuleStats) -> &'a Mutex<Sketch> {
        if let Some(own) = rule.refused.get() {
            return own;
        }
        let room = |n: u32| (n < MAX_RULES_WITH_SKETCH as u32).then_some(n + 1);
        match self.sketches.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room) {
            Ok(_) => rule.refused.get_or_init(|| Box::new(Mutex::new(Sketch::new(REFUSED)))),
            Err(_) => &self.refused,
        }
    }

    /// A quota went from one state to another.
    pub fn transition(&self, identity: &Identity, rule: &str, transition: Transition) {
        let Transition { from, to } = transition;
        self.transitions[to as usize].fetch_add(1, Ordering::Relaxed);
        let now = Micros::now();
        if !lock(&self.events).wants_quota(now) {
            return;
        }
        let level = if to == QuotaState::Normal { Level::Info } else { Level::Warning };
        let text = format!("{} → {} by rule {rule}", from.name(), to.name());
        let event = Event::new(now, Kind::Quota, level, text);
        self.tell(Event { identity: Some(identity.to_string()), rule: Some(rule.into()), ..event });
    }

    /// An upstream began to answer.
    pub fn upstream(&self, took: Micros) {
        self.upstream.record(took);
    }

    fn tell(&self, event: Event) {
        if let Some(log) = self.log.get() {
            log.event(&event);
        }
        lock(&self.events).add(event);
    }

    /// Once a second: closes the second, and notices what has changed.
    pub fn tick(&self, gateway: &Gateway, now: Micros) {
        self.rules.settle();
        let rules = self.rules.all();
        let shards = gateway.limiter.store.shards();
        let of = |shard: &Shard| (shard.name.to_string(), shard.meter.replies());
        let replies = shards.iter().map(of).collect();
        let mut history = lock(&self.history);
        let second = history.tick(&rules, replies, self.started, now);
        let (tally, began) = (second.tally, now.saturating_sub(second.length));
        drop(history);
        let every = |count: u64| u32::try_from(count / SAMPLES_PER_SECOND + 1).unwrap_or(u32::MAX);
        self.seen_every.store(every(tally.all()), Ordering::Relaxed);
        let refused = u64::from(tally.rejected) + u64::from(tally.shadow);
        self.refused_every.store(every(refused), Ordering::Relaxed);
        lock(&self.seen).fade();
        lock(&self.refused).fade();
        rules.iter().filter_map(|rule| rule.refused.get()).for_each(|own| lock(own).fade());
        if now.0 / WATCH_SWEPT_EVERY.0 != began.0 / WATCH_SWEPT_EVERY.0 {
            gateway.forget_watched(now);
        }
        let why = lock(&self.degraded_for).take();
        self.is_degraded.store(false, Ordering::Relaxed);
        let events = lock(&self.noticed).look(gateway, &tally, why, now);
        events.into_iter().for_each(|event| self.tell(event));
    }

    /// Who stands out, heaviest first; of one rule only, for those it refuses.
    pub fn top(&self, by: By, rule: Option<&str>, n: usize) -> Vec<Ranked> {
        if by == By::Seen {
            return lock(&self.seen).top(n);
        }
        match rule {
            Some(name) => {
                let own = |rule: Arc<RuleStats>| Some(lock(rule.refused.get()?).top(n));
                self.rules.get(name).and_then(own).unwrap_or_default()
            }
            None => {
                let mut all = Sketch::new(SEEN);
                all.merge(&lock(&self.refused));
                for rule in self.rules.all() {
                    rule.refused.get().inspect(|own| all.merge(&lock(own)));
                }
                all.top(n)
            }
        }
    }

    /// The share of all requests that one identity surely has.
    pub fn top_share(&self) -> f64 {
        lock(&self.seen).top_share()
    }

    /// Those gateways that are there, as they said themselves.
    pub(super) fn set_members(&self, members: Vec<Member>) {
        *lock(&self.members) = members;
    }
}

/// What of a verdict is counted.
struct Told {
    counted: Counted,
    mode: Mode,
}

impl Told {
    fn of(verdict: &Verdict) -> Told {
        let counted = match verdict.allowed {
            false => Counted::Rejected,
            true if verdict.would_refuse() => Counted::ShadowRejected,
            true => Counted::Allowed,
        };
        let mode = match (&verdict.degraded, &verdict.reached) {
            (Some(degraded), _) => degraded.mode.into(),
            (None, Reached::NoPolicy) => Mode::Open,
            (None, _) => verdict.decided_by().into(),
        };
        Told { counted, mode }
    }
}

fn deciding_identity(verdict: &Verdict) -> Option<&Identity> {
    match &verdict.reached {
        Reached::Limits { decided, asked } => Some(&asked[*decided].identity),
        Reached::Blocked { identity, .. } | Reached::Unanswered { identity, .. } => Some(identity),
        Reached::Busy(busy) => Some(&busy.identity),
        Reached::Missing { .. } | Reached::NoLimit | Reached::NoPolicy => None,
    }
}

fn last(
    attempt: &Attempt<'_>,
    verdict: &Verdict,
    rule: &RuleStats,
    told: &Told,
    now: Micros,
) -> Last {
    let (limit, used) = limit_and_use(verdict);
    let (rule, outcome) = (rule.name.clone(), reason(verdict, told));
    let retry_after = match &verdict.reached {
        Reached::Limits { decided, asked } => asked[*decided].decision.retry_after,
        _ => None,
    };
    // Of those that pass nobody asks what they asked for.
    let path = attempt.target.path.filter(|_| told.counted != Counted::Allowed);
    let endpoint = path.map(|path| {
        let mut end = path.len().min(MAX_ENDPOINT_BYTES);
        while !path.is_char_boundary(end) {
            end -= 1;
        }
        let method = attempt.target.method.unwrap_or_default();
        format!("{method} {}", &path[..end]).trim_start().into()
    });
    Last { rule, outcome, limit: limit.cloned(), used, retry_after, endpoint, at: now }
}

/// Of the limit that decided.
fn limit_and_use(verdict: &Verdict) -> (Option<&Arc<RuleLimit>>, Option<u64>) {
    match &verdict.reached {
        Reached::Limits { decided, asked } => {
            let asked = &asked[*decided];
            (Some(&asked.limit), Some(asked.decision.used()))
        }
        Reached::Unanswered { limit, .. } => (Some(limit), None),
        _ => (None, None),
    }
}

/// Why it was refused, or would have been.
fn reason(verdict: &Verdict, told: &Told) -> Outcome {
    match &verdict.reached {
        _ if told.counted == Counted::Allowed => Outcome::Allowed,
        Reached::Blocked { .. } => Outcome::Blocked,
        Reached::Missing { .. } => Outcome::Missing,
        Reached::Busy(_) => Outcome::Busy,
        Reached::Unanswered { .. } => Outcome::Unavailable,
        Reached::Limits { .. } | Reached::NoLimit | Reached::NoPolicy => Outcome::Limited,
    }
}

fn violation<'a>(
    attempt: &Attempt<'a>,
    verdict: &'a Verdict,
    rule: &'a RuleStats,
    who: Option<&'a Identity>,
    told: &Told,
    now: Micros,
) -> Violation<'a> {
    let (limit, used) = limit_and_use(verdict);
    Violation {
        at: now,
        identity: who.map(Identity::as_str),
        endpoint: attempt.target.path,
        method: attempt.target.method,
        rule: Some(&rule.name),
        limit: limit.map(|limit| limit.limit().requests()),
        used,
        period: limit.map(|limit| limit.limit().period()),
        mode: told.mode.name(),
        reason: reason(verdict, told).name(),
        observed: verdict.observed,
    }
}

/// One in `every`, and then it counts for all of them.
fn sampled(every: u32) -> Option<f64> {
    thread_local! {
        static RANDOM: Cell<u64> = Cell::new(std::hash::BuildHasher::hash_one(
            &std::hash::RandomState::new(), 0,
        ) | 1);
    }
    if every <= 1 {
        return Some(1.0);
    }
    // Xorshift: nobody can keep in step with it.
    let mut x = RANDOM.get();
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    RANDOM.set(x);
    (((x >> 32) * u64::from(every)) >> 32 == 0).then_some(f64::from(every))
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
