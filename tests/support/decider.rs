//! A gateway without listeners, to be asked directly.

use std::sync::Arc;

use rlctl::engine::clock::Micros;
use rlctl::engine::failure::{Local, OnFailure};
use rlctl::engine::identity::Identity;
use rlctl::engine::limiter::{Demand, Verdict};
use rlctl::engine::live::{LiveLimiter, LivePolicy, Source};
use rlctl::engine::plan::Attempt;
use rlctl::engine::registry::{DEFAULT_MAX_EVENTS, MemoryRegistry, Registry, View};
use rlctl::engine::rules::Target;
use rlctl::engine::store::{MemoryStore, Store};
use rlctl::gateway::{About, Gateway};

use super::{TODAY, cost, id};

/// A gateway that decides in memory by this policy.
pub(crate) async fn in_memory(policy: &str) -> Arc<Gateway> {
    on(Store::Memory(MemoryStore::new(10_000)), policy).await
}

pub(crate) async fn on(store: Store, policy: &str) -> Arc<Gateway> {
    let registry = Arc::new(Registry::Memory(MemoryRegistry::new(DEFAULT_MAX_EVENTS)));
    let live = LivePolicy::default();
    live.offer(policy, &Source::File("policy.toml".into()), Micros(TODAY)).expect("a good policy");
    let local = Arc::new(Local::new(1_000));
    let hot = matches!(store, Store::Redis(_)).then(Arc::default);
    let limiter = LiveLimiter {
        policy: Arc::new(live),
        view: View::follow(registry.clone()).await,
        store: Arc::new(store),
        on_failure: OnFailure::ByRule(local.clone()),
        hot,
    };
    let about = About {
        id: "gw-test".into(),
        version: "0.0.0",
        started: Micros(TODAY),
        listening: Vec::new(),
    };
    Arc::new(Gateway::new(limiter, registry, local, about))
}

/// One request of these identities.
pub(crate) async fn ask(gateway: &Gateway, identities: &[&str]) -> Verdict {
    let identities: Vec<Identity> = identities.iter().map(|text| id(text)).collect();
    ask_for(gateway, &identities, Target::default()).await
}

pub(crate) async fn ask_for(
    gateway: &Gateway,
    identities: &[Identity],
    target: Target<'_>,
) -> Verdict {
    let attempt = Attempt { identities, target, tier: None };
    let demand = Demand::of(cost(1));
    gateway.decide(&gateway.moment(), &attempt, demand).await.expect("a verdict").0
}
