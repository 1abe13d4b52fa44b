//! A run as somebody sees it who watches: second by second, for the dashboard.

use std::collections::BTreeMap;

use super::record::{NO_RULE, Outcome, Recording, Row};
use super::world;
use crate::engine::clock::Micros;
use crate::engine::policy::OnStoreError;
use crate::scenario::Scenario;

/// What happened within one second.
#[derive(Clone, Debug, Default)]
pub struct Watched {
    /// Its end, since the start of the run.
    pub at: Micros,
    /// Of everybody who asked.
    pub who: Vec<Asked>,
    /// By rule.
    pub rules: Vec<(String, Tally)>,
    pub all: Tally,
    pub p50: Option<Micros>,
    pub p99: Option<Micros>,
    /// By shard; none where there is no store.
    pub shards: Vec<Calls>,
    /// Each node's breaker for each shard that has one: node, shard, state.
    pub breakers: Vec<(usize, usize, &'static str)>,
    /// What was going on, as the file calls it.
    pub going_on: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub allowed: u64,
    pub rejected: u64,
    pub shadow: u64,
    pub degraded: u64,
}

#[derive(Clone, Debug)]
pub struct Asked {
    pub identity: String,
    pub asked: u64,
    pub rejected: u64,
    pub rule: Option<String>,
    pub retry_after: Option<Micros>,
    pub last: Micros,
}

#[derive(Clone, Debug, Default)]
pub struct Calls {
    pub made: u64,
    pub failed: u64,
    pub p50: Option<Micros>,
    pub p99: Option<Micros>,
}

/// All seconds of the first limiter, and what it does while its store is away.
pub fn watched(scenario: &Scenario) -> Result<(Vec<Watched>, OnStoreError), String> {
    let limiter = scenario.limiters.first().ok_or("it has no limiter")?;
    let recording = world::run(scenario, limiter, scenario.seed)?;
    let mode = limiter.on_store_error.or_else(|| {
        let first = limiter.policy.rules.first();
        first.map(|rule| rule.on_store_error)
    });
    let seconds = recording.end.0.div_ceil(Micros::SECOND.0).max(1);
    let mut all: Vec<Vec<&Row>> = vec![Vec::new(); usize::try_from(seconds).unwrap_or(1)];
    let last = all.len() - 1;
    for row in &recording.rows {
        all[second_of(row.at).min(last)].push(row);
    }
    let seen = all.iter().enumerate().map(|(n, rows)| recording.second(n, rows)).collect();
    Ok((seen, mode.unwrap_or(OnStoreError::Open)))
}

fn second_of(at: Micros) -> usize {
    usize::try_from(at.0 / Micros::SECOND.0).unwrap_or(usize::MAX)
}

impl Recording {
    fn second(&self, n: usize, rows: &[&Row]) -> Watched {
        let at = Micros((n as u64 + 1) * Micros::SECOND.0);
        let (mut rules, mut who) = (BTreeMap::new(), BTreeMap::new());
        let mut seen = Watched { at, ..Watched::default() };
        let mut took: Vec<Micros> = Vec::with_capacity(rows.len());
        for row in rows {
            took.push(row.decision);
            seen.all.add(row);
            let rule =
                if row.rule == NO_RULE { None } else { self.rules.get(usize::from(row.rule)) };
            if let Some(rule) = rule {
                rules.entry(rule.clone()).or_insert_with(Tally::default).add(row);
            }
            let identity = self.keys.get(row.key as usize).map(ToString::to_string);
            let asked = who.entry(row.key).or_insert_with(|| Asked {
                identity: identity.unwrap_or_default(),
                asked: 0,
                rejected: 0,
                rule: None,
                retry_after: None,
                last: row.at,
            });
            asked.asked += 1;
            asked.rejected += u64::from(row.outcome == Outcome::Rejected);
            asked.rule = rule.cloned();
            asked.retry_after = row.retry_after;
            asked.last = row.at;
        }
        (seen.p50, seen.p99) = quantiles(&mut took);
        seen.rules = rules.into_iter().collect();
        seen.who = who.into_values().collect();
        seen.shards = self.calls_of(n);
        seen.breakers = self.breakers_at(at);
        let began = at.saturating_sub(Micros::SECOND);
        let is_on = |range: &std::ops::Range<Micros>| range.start < at && range.end > began;
        let named = self.named.iter().filter(|(_, range)| is_on(range));
        seen.going_on = named.map(|(name, _)| name.clone()).collect();
        seen
    }

    fn calls_of(&self, second: usize) -> Vec<Calls> {
        if !self.has_store {
            return Vec::new();
        }
        let of = |shard: usize| {
            let calls = || {
                let here = self.calls.iter().filter(move |call| call.shard == shard);
                here.filter(move |call| second_of(call.at) == second)
            };
            let mut took: Vec<Micros> = calls().map(|call| call.took).collect();
            let (p50, p99) = quantiles(&mut took);
            let failed = calls().filter(|call| call.failed).count() as u64;
            Calls { made: took.len() as u64, failed, p50, p99 }
        };
        (0..self.shards).map(of).collect()
    }

    fn breakers_at(&self, at: Micros) -> Vec<(usize, usize, &'static str)> {
        let mut states = BTreeMap::new();
        for (changed, node, shard, state) in &self.breakers {
            if *changed <= at {
                states.insert((*node, *shard), *state);
            }
        }
        states.into_iter().map(|((node, shard), state)| (node, shard, state)).collect()
    }
}

impl Tally {
    fn add(&mut self, row: &Row) {
        self.shadow += u64::from(row.shadow_rejected);
        match row.outcome {
            Outcome::Allowed => self.allowed += 1,
            Outcome::Rejected | Outcome::Error => self.rejected += 1,
        }
        self.degraded += u64::from(row.degraded);
    }
}

/// The middle, and what one in a hundred exceeds.
fn quantiles(took: &mut [Micros]) -> (Option<Micros>, Option<Micros>) {
    took.sort_unstable();
    let at = |share: f64| took.get((took.len() as f64 * share) as usize).or(took.last()).copied();
    (at(0.5), at(0.99))
}
