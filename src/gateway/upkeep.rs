//! What a gateway does beside answering: says that it is there, hears who else is, and follows the
//! policy in what is not a matter of rules.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use serde_json::json;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

use super::Gateway;
use crate::engine::clock::Micros;
use crate::engine::registry::Member;
use crate::engine::store::One;
use crate::engine::store::redis::Lookout;

/// Often enough that a gateway which misses two of them still counts as there.
const EVERY: Duration = Duration::from_secs(2);
/// The grain of rates and history.
const TICK: Duration = Duration::from_secs(1);
/// Between two looks at replicas and sentinels: a few commands each.
const LOOK_AROUND: Duration = Duration::from_secs(1);

impl Gateway {
    /// Keeps going for as long as somebody holds the gateway.
    pub fn keep_up(self: &Arc<Gateway>) {
        tokio::spawn(keep_up(Arc::downgrade(self)));
        tokio::spawn(tick(Arc::downgrade(self)));
        tokio::spawn(look_around(Arc::downgrade(self)));
        super::hot::keep_up(self);
    }

    /// Goes by what the policy says of the store.
    fn follow_policy(&self) {
        if let Some(current) = self.limiter.policy.current() {
            let policy = current.rules.policy();
            let defaults = &policy.defaults;
            self.limiter.store.follow(policy);
            self.limiter.view.set_deadline(defaults.deadline);
            self.limiter.view.set_breaker(defaults.breaker);
        }
    }

    async fn tend(&self) {
        let member =
            Member { id: self.about.id.clone(), seen: Micros::ZERO, about: self.introduction() };
        // Who cannot be heard keeps the last number of gateways that was known.
        if self.registry.announce(&member).await.is_ok()
            && let Ok(members) = self.registry.members().await
        {
            self.local.set_gateways(members.len());
            self.stats.set_members(members);
        }
    }

    fn introduction(&self) -> serde_json::Value {
        let status = self.limiter.policy.status();
        let loaded = status.loaded.as_ref();
        json!({
            "version": self.about.version,
            "started_us": self.about.started.0,
            "listening": self.about.listening.iter().cloned()
                .collect::<std::collections::BTreeMap<&str, String>>(),
            "policy_version": loaded.map(|loaded| loaded.version),
            "policy_hash": loaded.map(|loaded| loaded.short_hash()),
            "ready": self.is_ready(),
            "breakers": self.limiter.store.shards().iter()
                .map(|shard| (shard.name.to_string(), shard.breaker.state.name()))
                .collect::<std::collections::BTreeMap<_, _>>(),
            "degraded_since_us": self.stats.degraded_since().map(|since| since.0),
        })
    }
}

async fn keep_up(gateway: Weak<Gateway>) {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(gateway) = gateway.upgrade() else { return };
        gateway.tend().await;
    }
}

/// How far replicas are behind and whether sentinels have their quorum: what a failover would cost,
/// before there is one.
async fn look_around(gateway: Weak<Gateway>) {
    let mut lookouts: HashMap<String, Lookout> = HashMap::new();
    let mut ticks = interval(LOOK_AROUND);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(gateway) = gateway.upgrade() else { return };
        let store = &gateway.limiter.store;
        let others = store.others();
        // Those that are not there any more are let go.
        lookouts.retain(|name, _| name.is_empty() || others.iter().any(|(other, _)| other == name));
        let main = [("", store)].into_iter();
        for (name, store) in main.chain(others.iter().map(|(name, store)| (name.as_str(), store))) {
            if let One::Redis(store) = store.one() {
                store.look_around(lookouts.entry(name.into()).or_default()).await;
            }
        }
    }
}

/// Apart from the rest, which may wait for a store.
async fn tick(gateway: Weak<Gateway>) {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    gateway.upgrade().inspect(|gateway| gateway.follow_policy());
    loop {
        ticks.tick().await;
        let Some(gateway) = gateway.upgrade() else { return };
        gateway.follow_policy();
        // With twenty thousand rules it takes some milliseconds, which no request shall wait for.
        let _ = spawn_blocking(move || gateway.stats.tick(&gateway, Micros::now())).await;
    }
}
