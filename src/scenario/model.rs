//! A scenario, understood: what arrives, who limits it, what breaks, and what must be true.

use std::path::PathBuf;
use std::sync::Arc;

use crate::engine::clock::Micros;
use crate::engine::config::source::Span;
use crate::engine::identity::Identity;
use crate::engine::limit::{Cost, Limit};
use crate::engine::policy::{Breaker, OnStoreError, Place, Policy};
use crate::engine::store::simulated::{Effect, Target};
use crate::expect::Assertion;
use crate::traffic::Shape;
use crate::traffic::trace::Request;

/// Where something stands: in which of the files that were read, and there in which words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spot {
    pub(crate) file: usize,
    pub(crate) span: Span,
}

#[derive(Clone, Debug)]
pub struct Scenario {
    pub file: PathBuf,
    pub name: String,
    pub description: Option<String>,
    pub tags: Vec<String>,
    /// Which values of the matrix this one has, as `algorithm=gcra`.
    pub variant: Vec<(String, String)>,
    pub seed: u64,
    pub run: Micros,
    pub wants_real_time: bool,
    pub store: StorePart,
    pub traffic: Vec<TrafficPart>,
    pub limiters: Vec<LimiterPart>,
    pub faults: Vec<FaultPart>,
    pub changes: Vec<ChangePart>,
    pub expectations: Vec<Expectation>,
}

impl Scenario {
    /// The name with the values of the matrix.
    pub fn title(&self) -> String {
        let values: Vec<String> =
            self.variant.iter().map(|(key, value)| format!("{key}={value}")).collect();
        match values.as_slice() {
            [] => self.name.clone(),
            some => format!("{} [{}]", self.name, some.join(", ")),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Memory,
    Redis,
    Sentinel,
    Cluster,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Memory => "memory",
            Kind::Redis => "redis",
            Kind::Sentinel => "redis-sentinel",
            Kind::Cluster => "redis-cluster",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StorePart {
    pub kind: Kind,
    pub shards: usize,
    pub replicas: usize,
    pub latency: Micros,
    pub jitter: Micros,
    pub deadline: Micros,
    pub replication_lag: Micros,
    pub failover_after: Micros,
}

impl Default for StorePart {
    fn default() -> StorePart {
        StorePart {
            kind: Kind::Memory,
            shards: 1,
            replicas: 0,
            latency: Micros(300),
            jitter: Micros::ZERO,
            deadline: Micros(50 * Micros::MILLISECOND.0),
            replication_lag: Micros::MILLISECOND,
            failover_after: Micros(2 * Micros::SECOND.0),
        }
    }
}

#[derive(Clone, Debug)]
pub struct TrafficPart {
    pub name: String,
    pub at: Micros,
    pub lasts: Micros,
    pub arrivals: ArrivalPart,
    pub keys: KeyPart,
    pub cost: Cost,
    /// How long a request is under way after it was let in.
    pub takes: Micros,
    pub endpoint: Option<String>,
    pub method: Option<String>,
    pub tier: Option<String>,
    pub client: Client,
    pub idempotency: Option<IdempotencyPart>,
}

#[derive(Clone, Debug)]
pub enum ArrivalPart {
    Shape(Shape),
    /// So many, evenly over the time that it lasts.
    Send(u64),
    /// Those of a trace; times count from its first.
    Trace(Arc<Vec<Request>>),
}

#[derive(Clone, Debug)]
pub enum KeyPart {
    One(Identity),
    /// Any of these, each as likely.
    Listed(Vec<Identity>),
    Numbered {
        prefix: String,
        count: u64,
        spread: Spread,
    },
    /// Each request of the trace names its own.
    Traced,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Spread {
    Uniform,
    Zipf(f64),
    /// The first gets this share.
    Hot(f64),
}

/// What a client does when it is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    Naive,
    Polite,
    Backoff,
    RetryStorm,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdempotencyPart {
    /// Every attempt has a key of its own.
    PerRequest,
    /// A retry has the key of its request.
    Retries,
}

#[derive(Clone, Debug)]
pub struct LimiterPart {
    pub name: String,
    /// It decides by a whole rules file, not by one rule of its own name.
    pub is_policy: bool,
    /// What decides, before any change.
    pub policy: Arc<Policy>,
    /// What every key is limited to, where that is one limit.
    pub limit: Option<Limit>,
    pub nodes: usize,
    /// How far each node's clock is ahead, in microseconds.
    pub skew: Vec<i64>,
    pub breaker: Option<Breaker>,
    pub on_store_error: Option<OnStoreError>,
}

#[derive(Clone, Debug)]
pub struct FaultPart {
    pub name: String,
    pub at: Micros,
    /// Until the end of the run where the file does not say.
    pub lasts: Micros,
    pub on: On,
    pub word: String,
    pub what: FaultWhat,
    pub rate: f64,
    pub lose: Option<Micros>,
}

/// Whom a fault meets, as it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    Store,
    Primary,
    Shard(usize),
    Node(usize),
}

impl On {
    pub fn target(self) -> Target {
        match self {
            On::Store | On::Primary => Target::Everything,
            On::Shard(shard) => Target::Shard(shard),
            On::Node(node) => Target::Node(node),
        }
    }

    pub fn words(self) -> String {
        match self {
            On::Store => "the store".into(),
            On::Primary => "the primary".into(),
            On::Shard(n) => format!("shard {}", n + 1),
            On::Node(n) => format!("gateway gw-{}", n + 1),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FaultWhat {
    Store(Effect),
    /// A gateway serves nobody.
    NodeDown,
    /// A gateway's clock is wrong.
    NodeSkew(i64),
}

#[derive(Clone, Debug)]
pub struct ChangePart {
    pub name: String,
    pub at: Micros,
    /// Which limiter; none: all of them.
    pub limiter: Option<String>,
    pub what: ChangeWhat,
}

#[derive(Clone, Debug)]
pub enum ChangeWhat {
    Limit(Limit),
    Rules(Arc<Policy>),
    Tier { key: Identity, tier: String },
    Override { key: Identity, rule: Option<String>, limit: Limit },
    Block(Identity),
}

/// What must be true, and where that is written.
#[derive(Clone, Debug)]
pub struct Expectation {
    pub name: String,
    pub assertion: Assertion,
    pub place: Place,
}
