//! The parts of a scenario put together: names that others use exist, faults can happen to this
//! store, assertions speak of what is there.

mod expectations;
mod faults;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use self::expectations::Around;
use super::draft::{ChangeDraftWhat, Decides, Draft, LimiterDraft, hint};
use super::model::{
    ArrivalPart, ChangePart, ChangeWhat, KeyPart, Kind, LimiterPart, Scenario, Spot, StorePart,
    TrafficPart,
};
use crate::engine::clock::Micros;
use crate::engine::config::source::{Findings, Span};
use crate::engine::identity::{Dimension, Identity};
use crate::engine::limit::{Algorithm, Limit, Quota};
use crate::engine::policy::{Defaults, Policy, Rule, RuleLimits};

/// More requests than this are not one scenario.
const MAX_REQUESTS: u64 = 50_000_000;

/// The findings of every file, so that each is said where it belongs.
pub(super) struct Whole<'r, 't> {
    pub(super) files: &'r mut [Findings<'t>],
    pub(super) main: usize,
}

impl<'t> Whole<'_, 't> {
    fn error(&mut self, spot: Spot, message: impl Into<String>, hint: impl Into<String>) {
        self.files[spot.file].error(spot.span, message, hint);
    }

    fn error_of_file(&mut self, message: &str, hint: &str) {
        let spot = Spot { file: self.main, span: Span::default() };
        self.error(spot, message, hint);
    }

    /// None only when something was reported.
    pub(super) fn scenario(
        &mut self,
        file: &Path,
        draft: Draft,
        variant: Vec<(String, String)>,
    ) -> Option<Scenario> {
        if draft.run.is_none() {
            self.error_of_file("a scenario needs `run`", "e.g. run = \"90s\"");
        }
        for (is_missing, what, example) in [
            (draft.name.is_none(), "`name`", "name = \"burst at the boundary\""),
            (draft.traffic.is_empty(), "traffic", "[[traffic]] with rate = \"100/s\""),
            (draft.limiters.is_empty(), "a limiter", "[limiter.api] with limit = \"100/1m\""),
            (
                draft.expectations.is_empty(),
                "something to expect",
                "[expect] with \"nobody errors\" = \"errors == 0\"",
            ),
        ] {
            if is_missing {
                self.error_of_file(&format!("a scenario needs {what}"), &format!("e.g. {example}"));
            }
        }
        let run = draft.run.unwrap_or(Micros::MINUTE);
        let store = draft.store.unwrap_or_default();
        let traffic = self.traffic(&draft, run);
        let limiters: Vec<LimiterPart> =
            draft.limiters.iter().map(|limiter| self.limiter(limiter, &traffic, &store)).collect();
        let faults =
            draft.faults.iter().filter_map(|f| self.fault(f, &store, &limiters, run)).collect();
        let changes = self.changes(&draft, &limiters);
        self.under_way(&draft, &limiters, &changes);
        let events = self.names(&draft, run);
        let around = Around {
            limiters: &limiters,
            store: &store,
            traffic: &traffic,
            changes: &changes,
            events: &events,
            run,
        };
        for (expectation, spot) in &draft.expectations {
            self.expectation(expectation, *spot, &around);
        }
        Some(Scenario {
            file: file.to_owned(),
            name: draft.name?,
            description: draft.description,
            tags: draft.tags,
            variant,
            seed: draft.seed.unwrap_or(1),
            run: draft.run?,
            wants_real_time: draft.clock.as_deref() == Some("real"),
            store,
            traffic,
            limiters,
            faults,
            changes,
            expectations: draft.expectations.into_iter().map(|(one, _)| one).collect(),
        })
    }

    fn traffic(&mut self, draft: &Draft, run: Micros) -> Vec<TrafficPart> {
        let mut total = 0u64;
        let mut parts = Vec::new();
        for (number, one) in draft.traffic.iter().enumerate() {
            if one.at >= run {
                let message = format!("this begins at {}, when the run of {run} is over", one.at);
                self.error(one.spot, message, "begin earlier, or make `run` longer");
            }
            let rest = run.saturating_sub(one.at);
            let lasts = one.lasts.unwrap_or(rest);
            let count = match &one.arrivals {
                ArrivalPart::Send(n) => *n,
                ArrivalPart::Shape(shape) => shape.expected(lasts.min(rest)),
                ArrivalPart::Trace(requests) => requests.len() as u64,
            };
            total = total.saturating_add(count);
            if total > MAX_REQUESTS {
                let message = format!("over {MAX_REQUESTS} requests are too many");
                self.error(one.spot, message, "a lower rate or a shorter run shows the same");
            }
            parts.push(TrafficPart {
                name: one.name.clone().unwrap_or_else(|| format!("traffic {}", number + 1)),
                at: one.at,
                lasts,
                arrivals: one.arrivals.clone(),
                keys: one.keys.clone(),
                cost: one.cost,
                takes: one.takes.map_or(Micros::ZERO, |(takes, _)| takes),
                endpoint: one.endpoint.clone(),
                method: one.method.clone(),
                tier: one.tier.as_ref().map(|(tier, _)| tier.clone()),
                client: one.client,
                idempotency: one.idempotency,
            });
        }
        parts
    }

    fn limiter(
        &mut self,
        draft: &LimiterDraft,
        traffic: &[TrafficPart],
        store: &StorePart,
    ) -> LimiterPart {
        let (mut policy, limit) = match &draft.decides {
            Decides::Policy(policy) => (Policy::clone(policy), None),
            Decides::Rule(rule) => {
                let limit = match &rule.limits {
                    RuleLimits::Own(limits) if limits.len() == 1 && !rule.shadow => {
                        Some(limits[0].limit)
                    }
                    _ => None,
                };
                (of_rule(rule, dimensions(traffic)), limit)
            }
        };
        if let Some(mode) = draft.on_store_error {
            policy.rules.iter_mut().for_each(|rule| rule.on_store_error = mode);
        }
        if let Some((breaker, spot)) = draft.breaker {
            policy.defaults.breaker = breaker;
            if store.kind == Kind::Memory {
                let hint = "write store = { kind = \"redis\" }, or leave it out";
                self.error(spot, "a memory store needs no breaker: it always answers", hint);
            }
        }
        LimiterPart {
            name: draft.name.clone(),
            is_policy: matches!(draft.decides, Decides::Policy(_)),
            policy: Arc::new(policy),
            limit,
            nodes: draft.nodes,
            skew: draft.skew.clone(),
            breaker: draft.breaker.map(|(breaker, _)| breaker),
            on_store_error: draft.on_store_error,
        }
    }

    fn changes(&mut self, draft: &Draft, limiters: &[LimiterPart]) -> Vec<ChangePart> {
        let mut parts = Vec::new();
        for (number, change) in draft.changes.iter().enumerate() {
            let names = limiters.iter().map(|limiter| limiter.name.as_str());
            if let Some((name, spot)) = &change.limiter
                && !names.clone().any(|other| other == name)
            {
                self.error(*spot, format!("there is no limiter `{name}`"), hint(name, names));
                continue;
            }
            let limiter = change.limiter.as_ref().map(|(name, _)| name.clone());
            let meant = || {
                let named = |l: &&LimiterPart| limiter.as_ref().is_none_or(|name| *name == l.name);
                limiters.iter().filter(named)
            };
            let what = match &change.what {
                ChangeDraftWhat::Limit { text, algorithm, burst, spot } => {
                    let own = meant().find_map(|l| l.limit).map(|limit| limit.algorithm());
                    let algorithm = algorithm.or(own).unwrap_or(Algorithm::TokenBucket);
                    self.new_limit(text, algorithm, *burst, *spot).map(ChangeWhat::Limit)
                }
                ChangeDraftWhat::Rules(policy) => Some(ChangeWhat::Rules(policy.clone())),
                ChangeDraftWhat::Tier { key, tier, spot } => {
                    if meant().all(|l| l.policy.tier(tier).is_none()) {
                        let hint = "tiers come from a rules file: [limiter.api] with rules = \"rules.toml\"";
                        self.error(*spot, format!("no limiter has a tier `{tier}`"), hint);
                    }
                    Some(ChangeWhat::Tier { key: key.clone(), tier: tier.clone() })
                }
                ChangeDraftWhat::Override { key, rule, limit } => Some(ChangeWhat::Override {
                    key: key.clone(),
                    rule: rule.clone(),
                    limit: *limit,
                }),
                ChangeDraftWhat::Block(key) => Some(ChangeWhat::Block(key.clone())),
            };
            let name = change.name.clone().unwrap_or_else(|| format!("change {}", number + 1));
            parts.extend(what.map(|what| ChangePart { name, at: change.at, limiter, what }));
        }
        parts.sort_by_key(|change| change.at);
        parts
    }

    /// How long requests take and how many may be under way mean nothing without each other.
    fn under_way(&mut self, draft: &Draft, limiters: &[LimiterPart], changes: &[ChangePart]) {
        let changed = changes.iter().filter_map(|change| match &change.what {
            ChangeWhat::Rules(policy) => Some(policy),
            _ => None,
        });
        let mut policies = limiters.iter().map(|limiter| &limiter.policy).chain(changed);
        let is_counted = policies.any(|policy| policy.rules.iter().any(|r| r.at_once.is_some()));
        let mut takes = draft.traffic.iter().filter_map(|part| part.takes);
        match takes.next() {
            Some((_, spot)) if !is_counted => {
                let hint = "give a limiter concurrency = { max = 20 }, or leave `takes` out";
                self.error(spot, "nobody counts how many requests are under way", hint);
            }
            None => {
                for spot in draft.limiters.iter().filter_map(|limiter| limiter.concurrency) {
                    let hint = "say in traffic how long requests take: takes = \"200ms\"";
                    self.error(spot, "requests that take no time are never under way", hint);
                }
            }
            Some(_) => {}
        }
    }

    fn new_limit(
        &mut self,
        text: &str,
        algorithm: Algorithm,
        burst: Option<u64>,
        spot: Spot,
    ) -> Option<Limit> {
        let quota = text.parse::<Quota>();
        let limit = quota.and_then(|quota| {
            Limit::new(algorithm, Quota { burst: burst.or(quota.burst), ..quota })
        });
        match limit {
            Ok(limit) => Some(limit),
            Err(error) => {
                let said = error.to_string();
                let (message, hint) = said.split_once("; ").unwrap_or((&said, "e.g. 100/1m"));
                self.error(spot, message, hint);
                None
            }
        }
    }

    /// Everything that an assertion can name, and whether two have one name.
    fn names(&mut self, draft: &Draft, run: Micros) -> BTreeMap<String, (Micros, Micros)> {
        let mut names: BTreeMap<String, (Micros, Micros)> = BTreeMap::new();
        let traffic = draft.traffic.iter().map(|t| (&t.name, t.spot, t.at, t.lasts));
        let faults = draft.faults.iter().map(|f| (&f.name, f.spot, f.at, f.lasts));
        let changes = draft.changes.iter().map(|c| (&c.name, c.spot, c.at, Some(Micros::ZERO)));
        let all: Vec<_> = traffic.chain(faults).chain(changes).collect();
        for (name, spot, at, lasts) in all {
            let Some(name) = name else { continue };
            let end = lasts.map_or(run, |lasts| at + lasts);
            if names.insert(name.clone(), (at, end)).is_some() {
                let message = format!("two parts are called `{name}`");
                self.error(spot, message, "assertions go by these names; make them different");
            }
        }
        for fault in draft.faults.iter().filter(|fault| fault.name.is_none()) {
            let end = fault.lasts.map_or(run, |lasts| fault.at + lasts);
            names.entry(fault.effect.0.clone()).or_insert((fault.at, end));
        }
        names
    }
}

/// The dimensions of all keys; a limiter that is one limit counts by each of them.
fn dimensions(traffic: &[TrafficPart]) -> Vec<Dimension> {
    let mut found: Vec<Dimension> = Vec::new();
    let mut add = |identity: &Identity| {
        if !found.iter().any(|dimension| dimension.holds(identity))
            && let Some(dimension) = dimension_of(identity)
        {
            found.push(dimension);
        }
    };
    for part in traffic {
        match &part.keys {
            KeyPart::One(identity) => add(identity),
            KeyPart::Listed(all) => all.iter().for_each(&mut add),
            KeyPart::Numbered { prefix, .. } => {
                if let Ok(first) = format!("{prefix}1").parse() {
                    add(&first);
                }
            }
            KeyPart::Traced => {
                if let ArrivalPart::Trace(requests) = &part.arrivals {
                    requests.iter().for_each(|request| add(&request.key));
                }
            }
        }
    }
    found
}

fn dimension_of(identity: &Identity) -> Option<Dimension> {
    let (dimension, rest) = identity.as_str().split_once(':')?;
    match dimension {
        "header" => format!("header:{}", rest.split(':').next()?).parse().ok(),
        dimension => dimension.parse().ok(),
    }
}

/// The policy of a limiter that is one rule, for every dimension that comes.
fn of_rule(rule: &Rule, dimensions: Vec<Dimension>) -> Policy {
    let alone = dimensions.len() == 1;
    let rules = dimensions.into_iter().enumerate().map(|(number, dimension)| Rule {
        name: if alone { rule.name.clone() } else { format!("{}-{}", rule.name, number + 1) },
        dimension,
        ..rule.clone()
    });
    Policy {
        default_tier: None,
        defaults: Defaults::default(),
        identity: Default::default(),
        tiers: Vec::new(),
        assign: Default::default(),
        rules: rules.collect(),
        exempt: Vec::new(),
        block: Vec::new(),
        stores: Vec::new(),
        gateway: Default::default(),
        domains: Default::default(),
    }
}

/// The same policy under another limit, as a change asks for it.
pub(super) fn with_limit(policy: &Policy, limit: Limit) -> Policy {
    let mut changed = policy.clone();
    for rule in &mut changed.rules {
        if let RuleLimits::Own(limits) = &mut rule.limits {
            limits.truncate(1);
            limits.iter_mut().for_each(|spec| spec.limit = limit);
        }
    }
    changed
}
