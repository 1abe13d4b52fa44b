//! A scenario file on the dashboard: run in virtual time, then shown as if it happened now.

use std::collections::HashMap;
use std::path::Path;

use crate::engine::clock::Micros;
use crate::engine::policy::OnStoreError;
use crate::scenario::run::{Asked, Tally, Watched, watched};
use crate::scenario::{EPOCH, Scenario};
use crate::tui::data::{
    Breaker, Gateway, MAX_WHO, Policy, Rates, Rule, Shard, Snapshot, Source, Who, share,
};

/// As in a gateway: half of a request counts no more after a minute.
const FADES: f64 = 0.988_514_020_352_896_1;

/// Somebody's weight among all, and since when.
#[derive(Default)]
struct Weights(HashMap<String, (f64, u64)>);

impl Weights {
    fn add(&mut self, identity: &str, n: f64, at_us: u64) {
        if n > 0.0 {
            self.0.entry(identity.into()).or_insert((0.0, at_us)).0 += n;
        }
    }

    fn fade(&mut self) {
        self.0.retain(|_, (weight, _)| {
            *weight *= FADES;
            *weight > 0.03
        });
    }
}

/// Every second of a scenario, as gateways would tell it.
pub fn moments(scenario: &Scenario) -> Result<Vec<Snapshot>, String> {
    let (seconds, mode) = watched(scenario)?;
    let (mut seen, mut refused) = (Weights::default(), Weights::default());
    let nodes = scenario.limiters.first().map_or(1, |limiter| limiter.nodes.max(1));
    let mut all = Vec::with_capacity(seconds.len());
    for second in &seconds {
        let at_us = EPOCH.0 + second.at.0;
        for who in &second.who {
            seen.add(&who.identity, who.asked as f64, at_us);
            refused.add(&who.identity, who.rejected as f64, at_us);
        }
        seen.fade();
        refused.fade();
        let mut snapshot = moment(second, mode, nodes, at_us);
        snapshot.rejected = ranked(&refused, second, at_us, |who| who.rejected);
        snapshot.seen = ranked(&seen, second, at_us, |who| who.asked);
        let going_on = second.going_on.join(", ");
        let name = Path::new(&scenario.file).display();
        snapshot.caption = Some(match going_on.is_empty() {
            true => format!("{} ({name})", scenario.title()),
            false => format!("{}: {going_on}", scenario.title()),
        });
        all.push(snapshot);
    }
    Ok(all)
}

fn rates(tally: &Tally, mode: OnStoreError) -> Rates {
    let degraded = tally.degraded as f64;
    let only = |of: OnStoreError| if of == mode { degraded } else { 0.0 };
    Rates {
        allowed: tally.allowed as f64,
        rejected: tally.rejected as f64,
        observed: 0.0,
        shadow: tally.shadow as f64,
        open: only(OnStoreError::Open),
        closed: only(OnStoreError::Closed),
        local: only(OnStoreError::Local),
    }
}

fn moment(second: &Watched, mode: OnStoreError, nodes: usize, at_us: u64) -> Snapshot {
    let us = |took: Option<Micros>| took.map(|took| took.0);
    let whole = rates(&second.all, mode);
    let n = nodes as f64;
    let part = Rates {
        allowed: whole.allowed / n,
        rejected: whole.rejected / n,
        observed: whole.observed / n,
        shadow: whole.shadow / n,
        open: whole.open / n,
        closed: whole.closed / n,
        local: whole.local / n,
    };
    let gateway = |node: usize| Gateway {
        id: format!("node-{node}"),
        source: "a scenario".into(),
        ready: true,
        rates: part,
        p50_us: us(second.p50),
        p99_us: us(second.p99),
        policy_version: Some(1),
        live: true,
        ..Gateway::default()
    };
    let rule = |(name, tally): &(String, Tally)| Rule {
        name: name.clone(),
        allowed: tally.allowed as f64,
        rejected: tally.rejected as f64,
        shadow: tally.shadow as f64,
        degraded: tally.degraded as f64,
        on_store_error: Some(mode.name().into()),
        ..Rule::default()
    };
    Snapshot {
        at_us,
        sources: vec![Source { name: "a scenario".into(), heard_us: Some(at_us), trouble: None }],
        rates: whole,
        p50_us: us(second.p50),
        p99_us: us(second.p99),
        gateways: (0..nodes).map(gateway).collect(),
        rules: second.rules.iter().map(rule).collect(),
        shards: shards(second),
        policy: Policy { version: Some(1), ..Policy::default() },
        ..Snapshot::default()
    }
}

fn shards(second: &Watched) -> Vec<Shard> {
    let of = |(n, calls): (usize, &crate::scenario::run::Calls)| {
        let own = second.breakers.iter().filter(|(_, shard, _)| *shard == n);
        let is_down = calls.made > 0 && calls.failed == calls.made;
        Shard {
            name: format!("shard-{n}"),
            role: Some("primary".into()),
            is_down,
            trouble: is_down.then(|| "no call is answered".to_string()),
            p50_us: calls.p50.map(|took| took.0),
            p99_us: calls.p99.map(|took| took.0),
            calls: calls.made as f64,
            errors: calls.failed,
            breakers: own
                .map(|(node, _, state)| Breaker {
                    gateway: format!("node-{node}"),
                    state: (*state).into(),
                })
                .collect(),
            ..Shard::default()
        }
    };
    second.shards.iter().enumerate().map(of).collect()
}

fn ranked(weights: &Weights, second: &Watched, at_us: u64, of: fn(&Asked) -> u64) -> Vec<Who> {
    let total: f64 = weights.0.values().map(|(weight, _)| weight).sum();
    let now: HashMap<&str, &Asked> =
        second.who.iter().map(|who| (who.identity.as_str(), who)).collect();
    let mut all: Vec<(&String, &(f64, u64))> = weights.0.iter().collect();
    all.sort_by(|a, b| b.1.0.total_cmp(&a.1.0).then_with(|| a.0.cmp(b.0)));
    let who = |(identity, (weight, since)): (&String, &(f64, u64))| {
        let asked = now.get(identity.as_str());
        Who {
            identity: identity.clone(),
            per_second: asked.map_or(0.0, |asked| of(asked) as f64),
            weight: *weight,
            share: share(*weight, total),
            rule: asked.and_then(|asked| asked.rule.clone()).unwrap_or_default(),
            reason: "limited".into(),
            last_us: asked.map_or(at_us, |asked| EPOCH.0 + asked.last.0),
            since_us: Some(*since),
            retry_after_us: asked.and_then(|asked| asked.retry_after).map(|wait| wait.0),
            gateway: "a scenario".into(),
            ..Who::default()
        }
    };
    all.into_iter().take(MAX_WHO).map(who).collect()
}
