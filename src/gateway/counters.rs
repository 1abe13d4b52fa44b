//! Counters of each rule, found by its name without waiting: a table that is replaced once a
//! second at most, and beside it those that came since.
//!
//! Bounded: a rule takes about half a kilobyte, and what comes after 20 000 names is counted
//! together under `(other)`. No name of a rule has parentheses.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use arc_swap::ArcSwap;
use foldhash::fast::RandomState;

use super::top::Sketch;
use crate::engine::histogram::Histogram;
use crate::engine::limiter::By;
use crate::engine::policy::OnStoreError;

pub const MAX_RULES: usize = 20_000;

/// What became of a request, by one rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    Allowed,
    Rejected,
    /// It passed, but only because the rule is a shadow or nothing is enforced.
    ShadowRejected,
}

impl Counted {
    pub const ALL: [Counted; 3] = [Counted::Allowed, Counted::Rejected, Counted::ShadowRejected];

    pub fn name(self) -> &'static str {
        match self {
            Counted::Allowed => "allowed",
            Counted::Rejected => "rejected",
            Counted::ShadowRejected => "shadow_rejected",
        }
    }
}

/// Who decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The store, as it should be.
    Store,
    /// This process alone, with its share of the limit.
    Local,
    /// Nobody: it passed uncounted.
    Open,
    /// Nobody: it was refused.
    Closed,
    /// This process, for the store has refused it a moment ago.
    DenyCache,
    /// This process, from quota that it had charged in the store before.
    Lease,
}

impl Mode {
    pub const ALL: [Mode; 6] =
        [Mode::Store, Mode::Local, Mode::Open, Mode::Closed, Mode::DenyCache, Mode::Lease];

    pub fn name(self) -> &'static str {
        match self {
            Mode::Store => "store",
            Mode::Local => "local",
            Mode::Open => "open",
            Mode::Closed => "closed",
            Mode::DenyCache => "deny_cache",
            Mode::Lease => "lease",
        }
    }

    /// Whether it was decided without the store, for want of one.
    pub fn is_degraded(self) -> bool {
        matches!(self, Mode::Local | Mode::Open | Mode::Closed)
    }
}

impl From<OnStoreError> for Mode {
    fn from(mode: OnStoreError) -> Mode {
        match mode {
            OnStoreError::Local => Mode::Local,
            OnStoreError::Open => Mode::Open,
            OnStoreError::Closed => Mode::Closed,
        }
    }
}

impl From<By> for Mode {
    fn from(by: By) -> Mode {
        match by {
            By::Store => Mode::Store,
            By::Lease => Mode::Lease,
            By::DenyCache => Mode::DenyCache,
        }
    }
}

/// Decisions by outcome and mode.
pub type Counts = [[u64; Mode::ALL.len()]; Counted::ALL.len()];
type Counters = [[AtomicU64; Mode::ALL.len()]; Counted::ALL.len()];

#[derive(Debug)]
pub struct RuleStats {
    pub name: Arc<str>,
    counters: Counters,
    /// What they were when last looked at.
    told: Counters,
    pub took: Histogram,
    /// Refused because too much was under way.
    pub busy: AtomicU64,
    /// Charges that enough replicas confirmed, and that too few did.
    pub replicas: [AtomicU64; 2],
    /// Who it refuses; only of rules that do.
    pub(super) refused: OnceLock<Box<Mutex<Sketch>>>,
}

impl RuleStats {
    fn new(name: &str) -> Arc<RuleStats> {
        Arc::new(RuleStats {
            name: name.into(),
            counters: Counters::default(),
            told: Counters::default(),
            took: Histogram::default(),
            busy: AtomicU64::new(0),
            replicas: Default::default(),
            refused: OnceLock::new(),
        })
    }

    pub fn count(&self, outcome: Counted, mode: Mode) {
        self.counters[outcome as usize][mode as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub fn counts(&self) -> Counts {
        self.counters.each_ref().map(|modes| modes.each_ref().map(|n| n.load(Ordering::Relaxed)))
    }

    /// What came since the last call of this.
    pub(super) fn news(&self) -> Counts {
        let mut counts = self.counts();
        for (modes, told) in counts.iter_mut().zip(&self.told) {
            for (count, told) in modes.iter_mut().zip(told) {
                *count -= told.swap(*count, Ordering::Relaxed);
            }
        }
        counts
    }
}

type Table = HashMap<Arc<str>, Arc<RuleStats>, RandomState>;

#[derive(Debug)]
pub struct RuleTable {
    known: ArcSwap<Table>,
    newcomers: Mutex<Table>,
    /// Requests that no rule limits.
    pub unlimited: Arc<RuleStats>,
    pub blocked: Arc<RuleStats>,
    pub no_policy: Arc<RuleStats>,
    other: Arc<RuleStats>,
}

impl Default for RuleTable {
    fn default() -> RuleTable {
        RuleTable {
            known: ArcSwap::default(),
            newcomers: Mutex::default(),
            unlimited: RuleStats::new("(none)"),
            blocked: RuleStats::new("(blocked)"),
            no_policy: RuleStats::new("(no policy)"),
            other: RuleStats::new("(other)"),
        }
    }
}

impl RuleTable {
    pub fn with<T>(&self, name: &str, then: impl FnOnce(&RuleStats) -> T) -> T {
        if let Some(rule) = self.known.load().get(name) {
            return then(rule);
        }
        let rule = self.newcomer(name);
        then(&rule)
    }

    fn newcomer(&self, name: &str) -> Arc<RuleStats> {
        let mut newcomers = self.newcomers.lock().unwrap_or_else(PoisonError::into_inner);
        // It may have been taken in since it was looked for.
        let known = self.known.load();
        if let Some(rule) = known.get(name).or_else(|| newcomers.get(name)) {
            return rule.clone();
        }
        if known.len() + newcomers.len() >= MAX_RULES {
            return self.other.clone();
        }
        let rule = RuleStats::new(name);
        newcomers.insert(rule.name.clone(), rule.clone());
        rule
    }

    /// Takes in who came since the last time.
    pub(super) fn settle(&self) {
        let mut newcomers = self.newcomers.lock().unwrap_or_else(PoisonError::into_inner);
        if !newcomers.is_empty() {
            let mut known = Table::clone(&self.known.load());
            known.extend(newcomers.drain());
            self.known.store(Arc::new(known));
        }
    }

    /// A rule that decided anything.
    pub fn get(&self, name: &str) -> Option<Arc<RuleStats>> {
        let find = |table: &Table| table.get(name).cloned();
        find(&self.known.load())
            .or_else(|| find(&self.newcomers.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Everything that is counted, in no order.
    pub fn all(&self) -> Vec<Arc<RuleStats>> {
        let newcomers = self.newcomers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> =
            self.known.load().values().chain(newcomers.values()).cloned().collect();
        drop(newcomers);
        all.extend([&self.unlimited, &self.blocked, &self.no_policy, &self.other].map(Arc::clone));
        all
    }
}
