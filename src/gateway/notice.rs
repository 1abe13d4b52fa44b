//! What changed since the last look at the store, the policy and the decisions: once a second, so
//! that whoever decides need not tell.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use super::Gateway;
use super::events::{Event, Kind, Level};
use super::history::Tally;
use crate::engine::breaker::State;
use crate::engine::clock::Micros;
use crate::engine::hot::HotKey;
use crate::engine::identity::Identity;
use crate::output::about;

/// As of the last look.
#[derive(Debug, Default)]
pub(super) struct Noticed {
    policy_hash: Option<(u64, String)>,
    refusals: u64,
    policy_trouble: bool,
    shards: BTreeMap<String, Shard>,
    degraded_since: Option<Micros>,
    /// Confirmed and short.
    replicas: [u64; 2],
    short_since: Option<Micros>,
    hot: BTreeMap<(Identity, Vec<String>), Micros>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Shard {
    down_since: Option<Micros>,
    connections: u64,
    failovers: u64,
    breaker_opened: u64,
    is_left_alone: bool,
}

impl Noticed {
    /// `tally` are the decisions since then, `why` is what the store failed them with.
    pub(super) fn look(
        &mut self,
        gateway: &Gateway,
        tally: &Tally,
        why: Option<String>,
        now: Micros,
    ) -> Vec<Event> {
        let mut events = Vec::new();
        self.look_at_policy(gateway, now, &mut events);
        self.look_at_store(gateway, now, &mut events);
        self.look_at_decisions(tally, why, now, &mut events);
        self.look_at_replicas(gateway, now, &mut events);
        self.look_at_hot_keys(&gateway.hot_keys(), now, &mut events);
        events
    }

    pub(super) fn degraded_since(&self) -> Option<Micros> {
        self.degraded_since
    }

    fn look_at_policy(&mut self, gateway: &Gateway, now: Micros, events: &mut Vec<Event>) {
        let status = gateway.limiter.policy.status();
        let mut tell = |level, text| events.push(Event::new(now, Kind::Policy, level, text));
        if let Some(loaded) = &status.loaded {
            let known = (loaded.version, loaded.hash.clone());
            if self.policy_hash.as_ref() != Some(&known) {
                let (version, hash) = (loaded.version, loaded.short_hash());
                let text = format!(
                    "policy version {version} ({hash}) is in force, from {}",
                    loaded.source
                );
                tell(Level::Info, text);
                self.policy_hash = Some(known);
            }
        }
        if status.refusals > self.refusals {
            self.refusals = status.refusals;
            if let Some(refused) = &status.refused {
                tell(Level::Critical, format!("{}: {refused}", refused.from));
            }
        }
        if status.trouble.is_some() != self.policy_trouble {
            self.policy_trouble = status.trouble.is_some();
            match &status.trouble {
                Some(trouble) => {
                    tell(Level::Warning, format!("the policy cannot be read: {}", trouble.why));
                }
                None => tell(Level::Info, "the policy can be read again".into()),
            }
        }
    }

    fn look_at_store(&mut self, gateway: &Gateway, now: Micros, events: &mut Vec<Event>) {
        let store = &gateway.limiter.store;
        for seen in store.shards() {
            let (shard, meter) = (&seen.name, &seen.meter);
            let is = Shard {
                down_since: meter.down_since(),
                connections: meter.connections(),
                failovers: meter.failovers(),
                breaker_opened: seen.breaker.opened,
                is_left_alone: seen.breaker.state != State::Closed,
            };
            let was = self
                .shards
                .insert(shard.to_string(), is)
                .unwrap_or(Shard { connections: is.connections, ..Shard::default() });
            let mut tell = |at, level, text| events.push(Event::new(at, Kind::Store, level, text));
            if is.failovers > was.failovers {
                tell(now, Level::Warning, format!("{shard} failed over"));
            }
            if is.breaker_opened > was.breaker_opened {
                let text = format!("{shard} fails too often: it is left alone, and probed");
                tell(now, Level::Critical, text);
            }
            let was_left_alone = was.is_left_alone || is.breaker_opened > was.breaker_opened;
            if was_left_alone && !is.is_left_alone {
                tell(now, Level::Info, format!("{shard} is asked again"));
            }
            match (was.down_since, is.down_since) {
                (None, Some(since)) => {
                    let why = seen.trouble.map_or_else(String::new, |why| format!(": {why}"));
                    tell(since, Level::Critical, format!("{shard} is away{why}"));
                }
                (Some(since), None) => {
                    let away = about(now.saturating_sub(since));
                    tell(now, Level::Info, format!("{shard} answers again, after {away}"));
                }
                (None, None) if is.connections > was.connections => {
                    let text = format!("the connection to {shard} was lost and made anew");
                    tell(now, Level::Warning, text);
                }
                _ => {}
            }
        }
    }

    fn look_at_replicas(&mut self, gateway: &Gateway, now: Micros, events: &mut Vec<Event>) {
        let counts = gateway.stats.replicas.each_ref().map(|count| count.load(Ordering::Relaxed));
        let was = std::mem::replace(&mut self.replicas, counts);
        let [confirmed, short] = [counts[0] - was[0], counts[1] - was[1]];
        let mut tell = |level, text| events.push(Event::new(now, Kind::Store, level, text));
        match self.short_since {
            None if short > 0 => {
                self.short_since = Some(now);
                let text =
                    format!("too few replicas confirm what was charged: {short} in a second");
                tell(Level::Warning, text);
            }
            Some(since) if short == 0 && confirmed > 0 => {
                self.short_since = None;
                let lasted = about(now.saturating_sub(since));
                tell(
                    Level::Info,
                    format!("replicas confirm what is charged again, after {lasted}"),
                );
            }
            _ => {}
        }
    }

    fn look_at_hot_keys(&mut self, hot: &[HotKey], now: Micros, events: &mut Vec<Event>) {
        let mut was = std::mem::take(&mut self.hot);
        let mut tell = |level, (identity, rules): &(Identity, Vec<String>), text| {
            let event = Event::new(now, Kind::Hot, level, text);
            let (identity, rule) = (Some(identity.to_string()), rules.first().cloned());
            events.push(Event { identity, rule, ..event });
        };
        for key in hot {
            let known = (key.identity.clone(), key.rules.clone());
            if was.remove(&known).is_none() {
                // Every gateway finds it, and in these words it is one event.
                let text = format!("hot key: {}; decided by leases", key.identity);
                tell(Level::Warning, &known, text);
            }
            self.hot.insert(known, key.since);
        }
        for (known, since) in was {
            let lasted = about(now.saturating_sub(since));
            let text = format!("hot key: {} is one no more, after {lasted}", known.0);
            tell(Level::Info, &known, text);
        }
    }

    fn look_at_decisions(
        &mut self,
        tally: &Tally,
        why: Option<String>,
        now: Micros,
        events: &mut Vec<Event>,
    ) {
        let mut tell = |level, text| events.push(Event::new(now, Kind::Degraded, level, text));
        match self.degraded_since {
            None if tally.degraded > 0 => {
                self.degraded_since = Some(now);
                let why = why.unwrap_or_else(|| "there is no policy yet".into());
                tell(Level::Critical, format!("decisions are taken without the store: {why}"));
            }
            // Only a decision that the store took shows that it does so again.
            Some(since) if tally.degraded == 0 && tally.all() > 0 => {
                self.degraded_since = None;
                let lasted = about(now.saturating_sub(since));
                tell(Level::Info, format!("the store decides again, after {lasted}"));
            }
            _ => {}
        }
    }
}
