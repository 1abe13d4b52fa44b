//! What the tests of the engine share: a real Redis, the two stores side by side, short spellings.

pub(crate) mod api;
pub(crate) mod decider;
pub(crate) mod gateway;
pub(crate) mod operated;
pub(crate) mod proxy;
pub(crate) mod redis;
pub(crate) mod rng;
pub(crate) mod schema;
pub(crate) mod servers;
pub(crate) mod stalls;

use std::sync::Arc;

use rlctl::engine::clock::Micros;
use rlctl::engine::identity::Identity;
use rlctl::engine::limit::{Algorithm, Cost, Decision, Limit};
use rlctl::engine::store::{Answer, Charge, Check, MemoryStore, RuleLimit, Store};

use self::redis::RedisServer;

/// A moment like those of today, on no window's edge.
pub(crate) const TODAY: u64 = 1_763_425_000_123_457;

pub(crate) fn limit(algorithm: Algorithm, quota: &str) -> Limit {
    Limit::new(algorithm, quota.parse().unwrap()).unwrap_or_else(|e| panic!("{quota}: {e}"))
}

/// One limit of the rule `r`.
pub(crate) fn one(algorithm: Algorithm, quota: &str) -> Vec<Arc<RuleLimit>> {
    named("r", algorithm, quota)
}

pub(crate) fn named(rule: &str, algorithm: Algorithm, quota: &str) -> Vec<Arc<RuleLimit>> {
    vec![Arc::new(RuleLimit::new(rule, 0, limit(algorithm, quota)))]
}

/// Several limits of the rule `r`.
pub(crate) fn several(quotas: &[(Algorithm, &str)]) -> Vec<Arc<RuleLimit>> {
    let of = |((algorithm, quota), index): (&(Algorithm, &str), u8)| {
        Arc::new(RuleLimit::new("r", index, limit(*algorithm, quota)))
    };
    quotas.iter().zip(0..).map(of).collect()
}

pub(crate) fn id(text: &str) -> Identity {
    text.parse().unwrap()
}

pub(crate) fn cost(cost: u64) -> Cost {
    Cost::new(cost).unwrap()
}

/// A store under test, and the server behind it.
pub(crate) struct Rig {
    pub(crate) name: &'static str,
    pub(crate) store: Store,
    pub(crate) server: Option<RedisServer>,
}

impl Rig {
    pub(crate) fn memory() -> Rig {
        Rig { name: "memory", store: Store::Memory(MemoryStore::unbounded()), server: None }
    }

    pub(crate) async fn redis() -> Rig {
        let server = RedisServer::start();
        let store = Store::Redis(server.store().await);
        Rig { name: "redis", store, server: Some(server) }
    }

    pub(crate) async fn both() -> [Rig; 2] {
        [Rig::memory(), Rig::redis().await]
    }

    /// Checks `user:1`.
    pub(crate) async fn check(&self, limits: &[Arc<RuleLimit>], c: u64, at: u64) -> Answer {
        let identity = id("user:1");
        let check = Check {
            identity: &identity,
            limits,
            cost: cost(c),
            idempotency: None,
            at: Some(Micros(at)),
        };
        self.store.check(&check).await.unwrap_or_else(|e| panic!("{}: {e}", self.name))
    }

    /// The decision of the only limit.
    pub(crate) async fn decide(&self, limits: &[Arc<RuleLimit>], c: u64, at: u64) -> Decision {
        self.check(limits, c, at).await.decisions[0]
    }

    /// A charge of `user:1` that must pass.
    pub(crate) async fn charge(&self, limits: &[Arc<RuleLimit>], c: u64, at: u64) -> Charge {
        let identity = id("user:1");
        let check = Check {
            identity: &identity,
            limits,
            cost: cost(c),
            idempotency: None,
            at: Some(Micros(at)),
        };
        let answer = self.store.check(&check).await.unwrap();
        answer.charge(&check).unwrap_or_else(|| panic!("{}: {answer:?}", self.name))
    }

    /// Everything the server holds, byte for byte: each key, its value, when it expires.
    pub(crate) fn dump(&self) -> Vec<(String, Vec<u8>, i64)> {
        self.server.as_ref().map(RedisServer::dump).unwrap_or_default()
    }
}
