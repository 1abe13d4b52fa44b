//! The words of the grammar: metrics, what may stand in their parentheses, labels, outcomes.

use super::ast::{Counted, Timed};

/// Metrics that are plain counts; also what `rate` and `share` take.
pub(super) const COUNTED: [(&str, Counted); 9] = [
    ("allowed", Counted::Allowed),
    ("rejected", Counted::Rejected),
    ("limited", Counted::Rejected),
    ("shadow_rejected", Counted::ShadowRejected),
    ("degraded", Counted::Degraded),
    ("errors", Counted::Errors),
    ("store_calls", Counted::StoreCalls),
    ("deny_cache_hits", Counted::DenyCacheHits),
    ("lease_hits", Counted::LeaseHits),
];

/// What percentiles are taken of.
pub(super) const TIMED: [(&str, Timed); 4] = [
    ("decision", Timed::Decision),
    ("response", Timed::Response),
    ("service", Timed::Service),
    ("store", Timed::Store),
];

pub(super) const QUANTILES: [(&str, f64); 4] =
    [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999)];

pub(super) const OTHERS: [&str; 13] = [
    "max",
    "rate",
    "share",
    "worst_window",
    "over_admitted",
    "fairness",
    "retry_after",
    "hot_keys",
    "breaker",
    "state",
    "policy_version",
    "drift",
    "sync_lag",
];

pub(super) const LABELS: [&str; 7] =
    ["traffic", "key", "rule", "outcome", "region", "node", "shard"];

pub(super) const OUTCOMES: [&str; 8] =
    ["allowed", "rejected", "limited", "shadow_rejected", "degraded", "shed", "error", "timeout"];

/// What a breaker can be, by the number that metrics have for it.
pub(super) const BREAKER: [&str; 3] = ["closed", "half-open", "open"];
/// What a quota can be, likewise.
pub(super) const QUOTA: [&str; 3] = ["normal", "warning", "throttled"];

/// One of these states, named or numbered.
pub(super) fn state(states: &[&'static str; 3], written: &str) -> Option<&'static str> {
    let numbered = written.parse::<usize>().ok().and_then(|number| states.get(number));
    numbered.or_else(|| states.iter().find(|state| **state == written)).copied()
}

/// Every metric there is.
pub(super) fn metrics() -> impl Iterator<Item = &'static str> + Clone {
    let counted = COUNTED.iter().map(|(name, _)| *name);
    counted.chain(QUANTILES.iter().map(|(name, _)| *name)).chain(OTHERS)
}

pub(super) fn counted(name: &str) -> Option<Counted> {
    COUNTED.iter().find(|(known, _)| *known == name).map(|(_, counted)| *counted)
}

pub(super) fn timed(name: &str) -> Option<Timed> {
    TIMED.iter().find(|(known, _)| *known == name).map(|(_, timed)| *timed)
}

/// `did you mean x?`, or else everything that could have been meant.
pub(super) fn hint(typed: &str, known: impl Iterator<Item = &'static str> + Clone) -> String {
    let typed = typed.to_ascii_lowercase();
    let nearest = known
        .clone()
        .map(|name| (strsim::damerau_levenshtein(&typed, name), name))
        .min()
        .filter(|(distance, _)| *distance <= typed.len().div_ceil(3));
    match nearest {
        Some((_, name)) => format!("did you mean {name}?"),
        None => format!("there are {}", known.collect::<Vec<_>>().join(", ")),
    }
}

impl Counted {
    pub fn name(self) -> &'static str {
        COUNTED.iter().find(|(_, counted)| *counted == self).map_or("", |(name, _)| name)
    }
}

impl Timed {
    pub fn name(self) -> &'static str {
        let known = TIMED.iter().find(|(_, timed)| *timed == self);
        known.map_or("retry_after", |(name, _)| name)
    }
}
