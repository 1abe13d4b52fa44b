//! What is shown: one moment of everything that is watched, put together from all sources. Also a
//! line of a recording, which is why it can be written and read.

use serde::{Deserialize, Serialize};

/// Of who stands out, as many are kept of each moment.
pub const MAX_WHO: usize = 100;
/// A source that said nothing for this long is stale: what it said last is no longer shown as now.
pub const STALE_AFTER_US: u64 = 3_000_000;

/// One moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Snapshot {
    pub at_us: u64,
    pub sources: Vec<Source>,
    pub rates: Rates,
    pub p50_us: Option<u64>,
    pub p99_us: Option<u64>,
    pub gateways: Vec<Gateway>,
    pub rules: Vec<Rule>,
    /// Most refused first.
    pub rejected: Vec<Who>,
    /// Busiest first.
    pub seen: Vec<Who>,
    pub shards: Vec<Shard>,
    pub policy: Policy,
    /// Latest first.
    pub events: Vec<Event>,
    pub quotas_warning: u64,
    pub quotas_throttled: u64,
    pub shed: u64,
    /// Times that a clock was seen to go backwards, in all.
    pub clock_jumps: u64,
    /// Keys that gateways decide about by leases, fastest first.
    pub hot: Vec<Hot>,
    pub observe_only: bool,
    /// What the demo tells about this moment.
    pub caption: Option<String>,
}

impl Snapshot {
    /// The same so much later.
    pub fn later(&self, by_us: u64) -> Snapshot {
        let mut moved = self.clone();
        moved.at_us += by_us;
        moved.sources.iter_mut().filter_map(|s| s.heard_us.as_mut()).for_each(|us| *us += by_us);
        for who in moved.rejected.iter_mut().chain(&mut moved.seen) {
            who.last_us += by_us;
            who.since_us = who.since_us.map(|us| us + by_us);
        }
        moved
    }
}

/// Somewhere figures come from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Source {
    pub name: String,
    /// When it was last heard of; none if never.
    pub heard_us: Option<u64>,
    pub trouble: Option<String>,
}

impl Source {
    /// How old its figures are, if they are too old to be believed.
    pub fn stale_for(&self, now_us: u64) -> Option<u64> {
        let age = now_us.saturating_sub(self.heard_us?);
        (age > STALE_AFTER_US || self.trouble.is_some()).then_some(age)
    }

    pub fn is_live(&self, now_us: u64) -> bool {
        self.heard_us.is_some() && self.stale_for(now_us).is_none()
    }
}

/// By the second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rates {
    pub allowed: f64,
    pub rejected: f64,
    /// Passed only because nothing is enforced.
    pub observed: f64,
    /// What shadow rules, or all of them while nothing is enforced, would refuse: no requests of
    /// their own.
    pub shadow: f64,
    /// Decided without the store: passed unlimited, refused, or by this process alone.
    pub open: f64,
    pub closed: f64,
    pub local: f64,
}

impl Rates {
    pub fn all(&self) -> f64 {
        self.allowed + self.rejected + self.observed
    }

    pub fn degraded(&self) -> f64 {
        self.open + self.closed + self.local
    }

    pub fn rejected_share(&self) -> f64 {
        share(self.rejected, self.all())
    }

    pub fn add(&mut self, other: &Rates) {
        self.allowed += other.allowed;
        self.rejected += other.rejected;
        self.observed += other.observed;
        self.shadow += other.shadow;
        self.open += other.open;
        self.closed += other.closed;
        self.local += other.local;
    }
}

pub fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Gateway {
    pub id: String,
    /// Where it was asked.
    pub source: String,
    pub version: String,
    pub ready: bool,
    pub rates: Rates,
    pub p50_us: Option<u64>,
    pub p99_us: Option<u64>,
    pub policy_version: Option<u64>,
    pub policy_hash: Option<String>,
    pub observe_only: bool,
    pub degraded_since_us: Option<u64>,
    pub inflight: u64,
    /// Its clock against this machine's.
    pub clock_us: Option<i64>,
    /// Figures are from now.
    pub live: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rule {
    pub name: String,
    pub allowed: f64,
    pub rejected: f64,
    pub shadow: f64,
    pub degraded: f64,
    pub is_shadow: bool,
    pub on_store_error: Option<String>,
    pub limits: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Who {
    pub identity: String,
    pub per_second: f64,
    /// Requests of late: half of one counts no more after a minute.
    pub weight: f64,
    /// Of all of the same kind, by weight.
    pub share: f64,
    pub rule: String,
    pub reason: String,
    pub limit: Option<String>,
    pub used: Option<u64>,
    pub last_us: u64,
    /// Since when it stands out, as far as is known.
    pub since_us: Option<u64>,
    pub endpoint: Option<String>,
    pub retry_after_us: Option<u64>,
    /// The gateway that told it last.
    pub gateway: String,
}

/// A key that very much is asked about.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Hot {
    pub identity: String,
    /// At all gateways together.
    pub per_second: f64,
}

/// A server of the store, as gateways and it itself see it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Shard {
    pub name: String,
    /// `primary`, `replica`, or not known.
    pub role: Option<String>,
    pub replica_of: Option<String>,
    pub is_down: bool,
    pub down_since_us: Option<u64>,
    pub trouble: Option<String>,
    pub p50_us: Option<u64>,
    pub p99_us: Option<u64>,
    /// Calls of gateways by the second.
    pub calls: f64,
    /// Calls that failed, in all.
    pub errors: u64,
    pub failovers: u64,
    /// Commands by the second, as it counts them itself.
    pub ops: Option<u64>,
    pub ping_us: Option<u64>,
    pub lag_us: Option<u64>,
    pub scripts: Option<u64>,
    pub clock_us: Option<i64>,
    pub memory_bytes: Option<u64>,
    pub evicted: Option<u64>,
    /// Each gateway's breaker towards it.
    pub breakers: Vec<Breaker>,
}

impl Shard {
    pub fn open_breakers(&self) -> usize {
        self.breakers.iter().filter(|breaker| breaker.state != "closed").count()
    }

    /// How long it takes to answer, by whoever measured it.
    pub fn latency_us(&self) -> Option<u64> {
        self.p99_us.or(self.ping_us)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Breaker {
    pub gateway: String,
    /// `closed`, `open`, `half-open`.
    pub state: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Policy {
    pub version: Option<u64>,
    pub hash: Option<String>,
    pub source: Option<String>,
    pub changed_us: Option<u64>,
    pub refused: Option<String>,
    pub trouble: Option<String>,
    /// Gateways obey different ones.
    pub differs: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Event {
    pub at_us: u64,
    /// `info`, `warning`, `critical`.
    pub level: String,
    pub text: String,
    pub who: Option<String>,
    pub from: String,
}

/// A second of the past, for graphs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Point {
    pub at_us: u64,
    pub allowed: f64,
    pub rejected: f64,
    pub degraded: f64,
    pub p99_us: Option<u64>,
}

impl Point {
    pub fn of(snapshot: &Snapshot) -> Point {
        Point {
            at_us: snapshot.at_us,
            allowed: snapshot.rates.allowed + snapshot.rates.observed,
            rejected: snapshot.rates.rejected,
            degraded: snapshot.rates.degraded(),
            p99_us: snapshot.p99_us,
        }
    }

    pub fn all(&self) -> f64 {
        self.allowed + self.rejected
    }

    pub fn rejected_share(&self) -> f64 {
        share(self.rejected, self.all())
    }
}

/// One identity looked at closely.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Detail {
    pub identity: String,
    pub at_us: u64,
    pub tier: Option<String>,
    pub blocked: Option<String>,
    pub exempt: Option<String>,
    pub limits: Vec<LimitUse>,
    pub trouble: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LimitUse {
    pub rule: String,
    pub endpoint: Option<String>,
    pub algorithm: String,
    pub limit: u64,
    pub period_us: u64,
    pub capacity: u64,
    pub shadow: bool,
    /// Where the limit comes from, in words.
    pub from: Option<String>,
    pub used: Option<u64>,
    pub remaining: Option<u64>,
    pub reset_after_us: Option<u64>,
    pub state: Option<String>,
}
