//! What servers say about themselves. What one may not be asked is simply not known.

use std::collections::HashMap;
use std::time::Instant;

use crate::engine::clock::Micros;
use crate::engine::store::StoreError;
use crate::engine::store::redis::{Console, Deployment, Words};
use crate::ops::look::{pairs, server_time};

/// Looks at the clock; the quickest is believed.
const CLOCK_LOOKS: usize = 7;
const PINGS: usize = 15;
/// Settings that checks are about.
const SETTINGS: [&str; 9] = [
    "maxmemory",
    "maxmemory-policy",
    "maxclients",
    "bind",
    "protected-mode",
    "requirepass",
    "cluster-require-full-coverage",
    "cluster-node-timeout",
    "stop-writes-on-bgsave-error",
];

#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    pub(super) place: String,
    pub(super) is_primary: bool,
    info: String,
    settings: Option<HashMap<String, String>>,
    /// How far its clock is ahead of this machine's, in microseconds.
    pub(super) clock_ahead_us: Option<i64>,
    /// Half of the quickest round trip: what the offset may be wrong by.
    pub(super) clock_doubt: Micros,
    /// The usual round trip, and the longest.
    pub(super) round_trip: Option<(Micros, Micros)>,
}

impl Facts {
    /// A line of `INFO`.
    pub(super) fn info(&self, name: &str) -> Option<&str> {
        field(&self.info, name)
    }

    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.info(name)?.parse().ok()
    }

    pub(super) fn has_info(&self) -> bool {
        !self.info.is_empty()
    }

    pub(super) fn setting(&self, name: &str) -> Option<&str> {
        self.settings.as_ref()?.get(name).map(String::as_str)
    }

    pub(super) fn has_settings(&self) -> bool {
        self.settings.is_some()
    }

    #[cfg(test)]
    pub(super) fn told(info: &str, settings: &[(&str, &str)]) -> Facts {
        let settings = settings.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        Facts {
            place: "h:1".into(),
            is_primary: true,
            info: info.replace('\n', "\r\n"),
            settings: Some(settings),
            ..Facts::default()
        }
    }
}

pub(super) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// Every server that is known, with what it says or why it says nothing.
pub(super) async fn gather(deployment: &Deployment) -> Vec<(String, Result<Facts, StoreError>)> {
    let map = deployment.map();
    let mut all = Vec::new();
    for primary in &map.primaries {
        let facts = ask(&primary.console, true).await;
        all.push((primary.place().to_owned(), facts));
        for replica in &primary.replicas {
            let facts = match deployment.console_at(replica).await {
                Ok(console) => ask(&console, false).await,
                Err(error) => Err(error),
            };
            all.push((replica.to_string(), facts));
        }
    }
    let missing = map.missing.iter();
    all.extend(missing.map(|(place, error)| (place.clone(), Err(error.clone()))));
    all
}

async fn ask(console: &Console, is_primary: bool) -> Result<Facts, StoreError> {
    let mut facts = Facts { place: console.place().into(), is_primary, ..Facts::default() };
    facts.info = console.text(&["INFO", "everything"]).await.unwrap_or_default();
    let words: Vec<Words> = SETTINGS.iter().map(|s| Words::of("CONFIG GET").and(s)).collect();
    let told: Vec<_> = console.ask_all(&words).await?.into_iter().flatten().collect();
    let settings = told.into_iter().flat_map(pairs);
    let text =
        |(name, value): (String, Vec<u8>)| (name, String::from_utf8_lossy(&value).into_owned());
    facts.settings = Some(settings.map(text).collect()).filter(|s: &HashMap<_, _>| !s.is_empty());
    look_at_clock(console, &mut facts).await?;
    let mut trips = Vec::new();
    for _ in 0..PINGS {
        let began = Instant::now();
        console.ask(&["PING"]).await?;
        trips.push(Micros(began.elapsed().as_micros() as u64));
    }
    trips.sort_unstable();
    facts.round_trip = trips.last().map(|last| (trips[trips.len() / 2], *last));
    Ok(facts)
}

async fn look_at_clock(console: &Console, facts: &mut Facts) -> Result<(), StoreError> {
    let mut quickest = Micros(u64::MAX);
    for _ in 0..CLOCK_LOOKS {
        let before = Micros::now();
        let Ok(time) = console.ask(&["TIME"]).await else { return Ok(()) };
        let after = Micros::now();
        let trip = after.saturating_sub(before);
        if trip < quickest {
            quickest = trip;
            let middle = before.0 + trip.0 / 2;
            facts.clock_ahead_us = Some(server_time(&time).0 as i64 - middle as i64);
            facts.clock_doubt = Micros(trip.0 / 2 + 1);
        }
    }
    Ok(())
}
