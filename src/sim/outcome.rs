//! What a simulation found: numbers only, for every picture and every format alike.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::engine::clock::Micros;
use crate::engine::limit::{Algorithm, Limit};

use super::lane::{Lane, Tally, Totals};
use super::timeline::Timeline;
use super::window::Worst;

/// As many of the most denied keys are named.
pub const NAMED_KEYS: usize = 10;

#[derive(Clone, Debug)]
pub struct Outcome {
    pub start: Micros,
    pub end: Micros,
    pub requests: u64,
    /// Different keys that came.
    pub keys: u64,
    /// What came, whatever became of it.
    pub timeline: Timeline,
    pub lanes: Vec<LaneOutcome>,
    pub ending: Ending,
}

/// How a run came to its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Ending {
    /// There was nothing more.
    #[default]
    Whole,
    /// Somebody had seen enough.
    Interrupted,
    /// The input could not be read any further, and why.
    BrokenOff(String),
}

impl Ending {
    pub fn is_interrupted(&self) -> bool {
        *self == Ending::Interrupted
    }

    pub fn broken_off(&self) -> Option<&str> {
        match self {
            Ending::BrokenOff(why) => Some(why),
            _ => None,
        }
    }
}

#[derive(Clone, Debug)]
pub struct LaneOutcome {
    pub label: String,
    /// None for a whole policy.
    pub limit: Option<Limit>,
    pub allowed: u64,
    pub denied: u64,
    /// The most that passed on one key in any interval as long as the period.
    pub worst: Option<Spot>,
    /// The most that passed on one key within one millisecond.
    pub most_at_once: u64,
    /// The longest that one key asked and got nothing.
    pub starved: Option<Spot>,
    /// From the start.
    pub first_denial: Option<Micros>,
    /// Jain's index of allowed by offered over the keys: 1 when all are served alike.
    pub fairness: Option<f64>,
    /// Keys that were denied at least once.
    pub keys_hit: u64,
    pub state_bytes_per_key: Option<f64>,
    /// Those denied most often.
    pub most_denied: Vec<KeyOutcome>,
    pub against: Option<Against>,
    pub timeline: Timeline,
}

/// Where something was at its worst.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spot {
    /// A cost, or microseconds.
    pub amount: u64,
    /// From the start.
    pub at: Micros,
    pub key: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyOutcome {
    pub key: String,
    pub allowed: u64,
    pub denied: u64,
}

/// How it differs from the limiter that it should equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Against {
    /// The place of that limiter.
    pub reference: usize,
    pub wrongly_allowed: u64,
    pub wrongly_denied: u64,
}

/// What is known about a limiter, to be made an outcome of.
pub(super) struct Findings<'a> {
    pub(super) label: &'a str,
    pub(super) limit: Option<Limit>,
    pub(super) totals: &'a Totals,
    pub(super) people: People,
    pub(super) worst: Worst,
    pub(super) state_bytes: Option<u64>,
    pub(super) reference: Option<usize>,
    pub(super) start: Micros,
}

impl LaneOutcome {
    pub(super) fn of(
        lane: &Lane,
        worst: Worst,
        start: Micros,
        name: impl Fn(u32) -> String,
    ) -> Self {
        let findings = Findings {
            label: &lane.spec.label,
            limit: Some(lane.spec.limit),
            totals: &lane.totals,
            people: people(lane.tallies(), &name),
            worst,
            state_bytes: Some(lane.state_bytes()),
            reference: lane.spec.reference,
            start,
        };
        LaneOutcome::from_findings(findings, name)
    }

    pub(super) fn from_findings(found: Findings<'_>, name: impl Fn(u32) -> String) -> Self {
        let Findings { label, limit, totals, people, worst, state_bytes, reference, start } = found;
        let since_start = |at: Micros| at.saturating_sub(start);
        let starved = totals.starved;
        let bytes = |bytes: u64| (people.served > 0).then(|| bytes as f64 / people.served as f64);
        LaneOutcome {
            label: label.into(),
            limit,
            allowed: totals.allowed,
            denied: totals.denied,
            worst: (worst.cost > 0).then(|| Spot {
                amount: worst.cost,
                at: worst.at,
                key: name(worst.key),
            }),
            most_at_once: u64::from(totals.most_at_once),
            starved: (starved.time > Micros::ZERO).then(|| Spot {
                amount: starved.time.0,
                at: since_start(starved.from),
                key: name(starved.key),
            }),
            first_denial: totals.first_denial.map(since_start),
            fairness: people.fairness,
            keys_hit: people.hit,
            state_bytes_per_key: state_bytes.and_then(bytes),
            most_denied: people.most_denied,
            against: reference.map(|reference| Against {
                reference,
                wrongly_allowed: totals.wrongly_allowed,
                wrongly_denied: totals.wrongly_denied,
            }),
            timeline: totals.timeline.clone(),
        }
    }

    pub fn offered(&self) -> u64 {
        self.allowed + self.denied
    }

    /// The share of requests that were denied.
    pub fn denied_share(&self) -> f64 {
        share(self.denied, self.offered())
    }

    pub fn algorithm(&self) -> Option<Algorithm> {
        self.limit.map(|limit| limit.algorithm())
    }
}

pub fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// What is known only from all keys together.
pub(super) struct People {
    pub(super) fairness: Option<f64>,
    pub(super) hit: u64,
    /// Keys on which something passed.
    pub(super) served: u64,
    pub(super) most_denied: Vec<KeyOutcome>,
}

pub(super) fn people<'a>(
    tallies: impl Iterator<Item = (u32, &'a Tally)>,
    name: impl Fn(u32) -> String,
) -> People {
    let (mut count, mut sum, mut squares) = (0u64, 0.0, 0.0);
    let (mut hit, mut served) = (0, 0);
    // The least of the most stands on top. Of those denied as often the lower numbers stay.
    let mut most = BinaryHeap::new();
    for (key, tally) in tallies {
        let part = f64::from(tally.allowed) / (f64::from(tally.allowed) + f64::from(tally.denied));
        count += 1;
        sum += part;
        squares += part * part;
        served += u64::from(tally.allowed > 0);
        if tally.denied > 0 {
            hit += 1;
            most.push(Reverse((tally.denied, Reverse(key), tally.allowed)));
            if most.len() > NAMED_KEYS {
                most.pop();
            }
        }
    }
    let most_denied =
        most.into_sorted_vec().into_iter().map(|Reverse((denied, Reverse(key), allowed))| {
            KeyOutcome { key: name(key), allowed: allowed.into(), denied: denied.into() }
        });
    People {
        fairness: (squares > 0.0).then(|| sum * sum / (count as f64 * squares)),
        hit,
        served,
        most_denied: most_denied.collect(),
    }
}
