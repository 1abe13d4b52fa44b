//! What must be true: whether it speaks of what is there.

use std::collections::BTreeMap;

use super::Whole;
use crate::engine::clock::Micros;
use crate::engine::config::read::At;
use crate::expect::{Assertion, Claim, Counted, During, Gauge, Metric};
use crate::scenario::draft::{hint, inside};
use crate::scenario::model::{
    ChangePart, ChangeWhat, Expectation, Kind, LimiterPart, Spot, StorePart, TrafficPart,
};

/// What an assertion can speak of.
pub(super) struct Around<'a> {
    pub(super) limiters: &'a [LimiterPart],
    pub(super) store: &'a StorePart,
    pub(super) traffic: &'a [TrafficPart],
    pub(super) changes: &'a [ChangePart],
    pub(super) events: &'a BTreeMap<String, (Micros, Micros)>,
    pub(super) run: Micros,
}

impl Whole<'_, '_> {
    pub(super) fn expectation(&mut self, expectation: &Expectation, spot: Spot, all: &Around<'_>) {
        let Around { limiters, store, events, run, .. } = *all;
        let assertion = &expectation.assertion;
        let names = limiters.iter().map(|limiter| limiter.name.as_str());
        if let Some(name) = &assertion.limiter
            && !names.clone().any(|other| other == name)
        {
            let start = assertion.text.find(name.as_str()).unwrap_or(0);
            let at = self.part(expectation, spot, start..start + name.len());
            self.error(at, format!("there is no limiter `{name}`"), hint(name, names));
        }
        let known = events.keys().map(String::as_str);
        let mut unknown = Vec::new();
        if let Some(During::Phase(name, at)) = &assertion.during {
            unknown.push((name, at));
        }
        if let Claim::Becomes { event, event_at, .. } = &assertion.claim {
            unknown.push((event, event_at));
        }
        for (name, at) in unknown.into_iter().filter(|(name, _)| !events.contains_key(*name)) {
            let hint = match events.is_empty() {
                true => "give traffic, a fault or a change a name".into(),
                false => hint(name, known.clone()),
            };
            let at = self.part(expectation, spot, at.clone());
            self.error(at, format!("nothing is called '{name}'"), hint);
        }
        if let Some(During::Range(_, to)) = &assertion.during
            && *to > run
        {
            let message = format!("this looks until {to}, and the run ends at {run}");
            self.error(spot, message, "make `run` longer, or look earlier");
        }
        if let Some((message, hint)) = cannot_be_measured(&assertion.metric, store) {
            let at = self.part(expectation, spot, assertion.metric_at.clone());
            self.error(at, message, hint);
        }
        for (label, value, known) in unknown_labels(assertion, all) {
            let at = self.part(expectation, spot, assertion.metric_at.clone());
            let hint = hint(value, known.iter().map(String::as_str));
            self.error(at, format!("there is no {label} `{value}`"), hint);
        }
        if let Some(region) = &assertion.labels.region {
            self.error(
                spot,
                format!("there is no region `{region}`"),
                "this version knows no regions",
            );
        }
    }

    fn part(&self, expectation: &Expectation, spot: Spot, part: std::ops::Range<usize>) -> Spot {
        let text = At { it: expectation.assertion.text.as_str(), span: spot.span };
        let words = self.files[spot.file].source.words(spot.span);
        Spot { span: inside(words, text, part), ..spot }
    }
}

/// Labels that name nothing, with what they could have named.
fn unknown_labels<'e>(
    assertion: &'e Assertion,
    all: &Around<'_>,
) -> Vec<(&'static str, &'e str, Vec<String>)> {
    let wanted = assertion.limiter.as_deref();
    let limiters =
        || all.limiters.iter().filter(|limiter| wanted.is_none_or(|name| name == limiter.name));
    // Of an unknown limiter nothing can be known.
    if limiters().next().is_none() {
        return Vec::new();
    }
    let known = |label: &str| -> Option<Vec<String>> {
        Some(match label {
            "traffic" => all.traffic.iter().map(|part| part.name.clone()).collect(),
            "node" => {
                let most = limiters().map(|limiter| limiter.nodes).max().unwrap_or(1);
                (1..=most).map(|node| format!("gw-{node}")).collect()
            }
            "shard" => (1..=all.store.shards).map(|shard| shard.to_string()).collect(),
            "rule" => {
                let changed = all.changes.iter().filter_map(|change| match &change.what {
                    ChangeWhat::Rules(policy) => Some(policy),
                    _ => None,
                });
                let policies = limiters().map(|limiter| &limiter.policy).chain(changed);
                policies.flat_map(|policy| &policy.rules).map(|rule| rule.name.clone()).collect()
            }
            _ => return None,
        })
    };
    let given = assertion.labels.given();
    let unknown = given.filter_map(|(label, value)| {
        let known = known(label)?;
        (!known.iter().any(|name| name == value)).then_some((label, value, known))
    });
    unknown.collect()
}

fn cannot_be_measured(metric: &Metric, store: &StorePart) -> Option<(&'static str, &'static str)> {
    let counted = match metric {
        Metric::Count(what) | Metric::Rate(what) | Metric::Share(what) => Some(*what),
        _ => None,
    };
    match (metric, counted) {
        (_, Some(Counted::DenyCacheHits | Counted::LeaseHits))
        | (Metric::Gauge(Gauge::HotKeys), _)
            if store.kind == Kind::Memory =>
        {
            Some((
                "with a memory store no key is hot: a lease would save nothing",
                "write store = { kind = \"redis\" }",
            ))
        }
        (Metric::Gauge(Gauge::Drift(..) | Gauge::SyncLag), _) => {
            Some(("this version knows no regions", "leave it out"))
        }
        (Metric::Gauge(Gauge::Breaker), _) | (_, Some(Counted::StoreCalls))
            if store.kind == Kind::Memory =>
        {
            Some((
                "a memory store has neither calls nor a breaker",
                "write store = { kind = \"redis\" }",
            ))
        }
        _ => None,
    }
}
