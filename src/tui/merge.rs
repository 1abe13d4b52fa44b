//! Several sources, one picture: rates add up, the same identity seen by two gateways is one, a
//! server is what it says of itself and what gateways meet.

use std::collections::{HashMap, HashSet};

use super::data::{Hot, MAX_WHO, Point, Rates, Rule, STALE_AFTER_US, Shard, Snapshot, Source, Who};
use super::wire::Told;

/// Events that are kept of each moment, and of these what concerns single identities.
const MAX_EVENTS: usize = 60;
const MAX_OF_IDENTITIES: usize = 20;

/// A gateway that is watched, and what it said last.
#[derive(Clone, Debug)]
pub struct Heard {
    pub source: Source,
    pub told: Option<Told>,
}

/// Puts together what all sources said last. `servers` are what a Redis says of itself.
pub fn merge(heard: &[Heard], servers: &[Shard], redis: Option<&Source>, now_us: u64) -> Snapshot {
    let mut snapshot = Snapshot { at_us: now_us, ..Snapshot::default() };
    snapshot.sources = heard.iter().map(|heard| heard.source.clone()).collect();
    snapshot.sources.extend(redis.cloned());
    let all: Vec<(&Told, bool)> = heard
        .iter()
        .filter_map(|h| h.told.as_ref().map(|told| (told, h.source.is_live(now_us))))
        .collect();
    for (told, live) in &all {
        let mut gateway = told.gateway.clone();
        gateway.live = *live;
        snapshot.gateways.push(gateway);
    }
    // What a gateway said before it went silent is not what goes on now.
    let live: Vec<&Told> = all.iter().filter(|(_, live)| *live).map(|(told, _)| *told).collect();
    let mut rates = Rates::default();
    live.iter().for_each(|told| rates.add(&told.gateway.rates));
    snapshot.rates = rates;
    let slowest = |of: fn(&Told) -> Option<u64>| live.iter().filter_map(|told| of(told)).max();
    snapshot.p50_us = slowest(|told| told.gateway.p50_us);
    snapshot.p99_us = slowest(|told| told.gateway.p99_us);
    snapshot.rules = rules(&live);
    snapshot.rejected = who(&live, |told| &told.rejected);
    snapshot.seen = who(&live, |told| &told.seen);
    snapshot.shards = shards(&live, servers);
    policy(&live, &mut snapshot);
    events(&all, &mut snapshot);
    snapshot.quotas_warning = live.iter().map(|told| told.quotas.0).sum();
    snapshot.quotas_throttled = live.iter().map(|told| told.quotas.1).sum();
    snapshot.shed = live.iter().map(|told| told.shed).sum();
    snapshot.clock_jumps = live.iter().map(|told| told.clock_jumps).sum();
    snapshot.hot = hot(&live);
    snapshot.observe_only = live.iter().any(|told| told.gateway.observe_only);
    snapshot
}

fn rules(live: &[&Told]) -> Vec<Rule> {
    let mut rules: Vec<Rule> = Vec::new();
    for rule in live.iter().flat_map(|told| &told.rules) {
        match rules.iter_mut().find(|known| known.name == rule.name) {
            Some(known) => {
                known.allowed += rule.allowed;
                known.rejected += rule.rejected;
                known.shadow += rule.shadow;
                known.degraded += rule.degraded;
            }
            None => rules.push(rule.clone()),
        }
    }
    rules.sort_by(|a, b| b.rejected.total_cmp(&a.rejected).then(b.allowed.total_cmp(&a.allowed)));
    rules
}

/// Shares are of all that gateways refuse or see together: each weighs as much as it has.
fn who(live: &[&Told], of: fn(&Told) -> &Vec<Who>) -> Vec<Who> {
    let whole =
        |list: &[Who]| -> f64 {
            // The heaviest tells best how much all of them are.
            list.first().map_or(0.0, |first| {
                if first.share > 0.0 { first.weight / first.share } else { 0.0 }
            })
        };
    let total: f64 = live.iter().map(|told| whole(of(told))).sum();
    let mut places: HashMap<&str, usize> = HashMap::new();
    let mut all: Vec<Who> = Vec::new();
    for one in live.iter().flat_map(|told| of(told)) {
        match places.get(one.identity.as_str()) {
            Some(place) => {
                let known = &mut all[*place];
                known.per_second += one.per_second;
                known.weight += one.weight;
                known.since_us = known.since_us.into_iter().chain(one.since_us).min();
                if one.last_us > known.last_us {
                    let (per_second, weight) = (known.per_second, known.weight);
                    *known = Who { per_second, weight, since_us: known.since_us, ..one.clone() };
                }
            }
            None => {
                places.insert(&one.identity, all.len());
                all.push(one.clone());
            }
        }
    }
    if total > 0.0 {
        all.iter_mut().for_each(|one| one.share = (one.weight / total).min(1.0));
    }
    all.sort_by(|a, b| b.weight.total_cmp(&a.weight));
    all.truncate(MAX_WHO);
    all
}

fn shards(live: &[&Told], servers: &[Shard]) -> Vec<Shard> {
    let mut shards: Vec<Shard> = servers.to_vec();
    for shard in live.iter().flat_map(|told| &told.shards) {
        let Some(known) = shards.iter_mut().find(|known| known.name == shard.name) else {
            shards.push(shard.clone());
            continue;
        };
        known.is_down |= shard.is_down;
        known.down_since_us = known.down_since_us.into_iter().chain(shard.down_since_us).min();
        known.trouble = known.trouble.take().or_else(|| shard.trouble.clone());
        known.p50_us = known.p50_us.max(shard.p50_us);
        known.p99_us = known.p99_us.max(shard.p99_us);
        known.calls += shard.calls;
        known.errors += shard.errors;
        known.failovers = known.failovers.max(shard.failovers);
        known.breakers.extend(shard.breakers.iter().cloned());
    }
    shards
}

fn policy(live: &[&Told], snapshot: &mut Snapshot) {
    // The latest is what the others will obey in a moment.
    let Some(latest) = live.iter().max_by_key(|told| told.policy.changed_us) else { return };
    snapshot.policy = latest.policy.clone();
    let hashes = || live.iter().filter_map(|told| told.policy.hash.as_deref());
    snapshot.policy.differs = hashes().any(|hash| hashes().next() != Some(hash));
    let trouble = live.iter().find_map(|told| told.policy.trouble.clone());
    snapshot.policy.trouble = trouble;
}

/// Each gateway tells the rate of all of them, as it last heard: the highest is the newest.
fn hot(live: &[&Told]) -> Vec<Hot> {
    let mut all: Vec<Hot> = Vec::new();
    for key in live.iter().flat_map(|told| &told.hot) {
        match all.iter_mut().find(|known| known.identity == key.identity) {
            Some(known) => known.per_second = known.per_second.max(key.per_second),
            None => all.push(key.clone()),
        }
    }
    all.sort_by(|a, b| b.per_second.total_cmp(&a.per_second));
    all.truncate(MAX_WHO);
    all
}

/// The same event is told by each gateway that noticed it: once is enough. Of an identity whose quota
/// comes and goes the latest is enough: a lost server must not drown in it.
fn events(all: &[(&Told, bool)], snapshot: &mut Snapshot) {
    let mut events: Vec<_> = all.iter().flat_map(|(told, _)| told.events.iter().cloned()).collect();
    events.sort_by_key(|event| std::cmp::Reverse(event.at_us));
    events.dedup_by(|later, earlier| {
        later.text == earlier.text
            && later.who == earlier.who
            && earlier.at_us.abs_diff(later.at_us) < STALE_AFTER_US
    });
    let mut known = HashSet::new();
    events.retain(|event| match &event.who {
        Some(who) => known.len() < MAX_OF_IDENTITIES && known.insert(who.clone()),
        None => true,
    });
    events.truncate(MAX_EVENTS);
    snapshot.events = events;
}

/// The past of all gateways in one, second by second.
pub fn merge_past<'a>(pasts: impl Iterator<Item = &'a [Point]>) -> Vec<Point> {
    let mut seconds: std::collections::BTreeMap<u64, Point> = std::collections::BTreeMap::new();
    for point in pasts.flatten() {
        let sum = seconds.entry(point.at_us / 1_000_000).or_default();
        sum.at_us = sum.at_us.max(point.at_us);
        sum.allowed += point.allowed;
        sum.rejected += point.rejected;
        sum.degraded += point.degraded;
        sum.p99_us = sum.p99_us.max(point.p99_us);
    }
    seconds.into_values().collect()
}
