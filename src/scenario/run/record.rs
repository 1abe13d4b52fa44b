//! What one limiter did, request by request, and the answers to every question about it.

use std::collections::BTreeMap;
use std::ops::Range;

use super::give::RealTime;
use crate::engine::clock::Micros;
use crate::engine::identity::Identity;
use crate::engine::limit::{Limit, QuotaState};
use crate::engine::limiter::By;
use crate::engine::store::simulated::Call;
use crate::expect::{
    Count, Counted, Gauge, Labels, Lasting, Measured, Metric, NotMeasured, PerKey, Timed, Value,
    excess, jain, worst_window,
};

/// One request and what became of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    /// Since the start of the run.
    pub(super) at: Micros,
    pub(super) cost: u64,
    pub(super) key: u32,
    pub(super) traffic: u16,
    pub(super) rule: u16,
    pub(super) node: u16,
    pub(super) shard: u16,
    pub(super) outcome: Outcome,
    pub(super) degraded: bool,
    pub(super) shadow_rejected: bool,
    pub(super) decision: Micros,
    pub(super) response: Micros,
    pub(super) retry_after: Option<Micros>,
    /// When the store took the decision, where it did.
    pub(super) taken: Micros,
    /// Who decided.
    pub(super) by: By,
    pub(super) state: QuotaState,
    /// The machine stood still meanwhile.
    pub(super) met_standstill: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Allowed,
    Rejected,
    Error,
}

/// No rule decided.
pub(super) const NO_RULE: u16 = u16::MAX;

/// Everything that one limiter did.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    pub(super) rows: Vec<Row>,
    pub(super) calls: Vec<Call>,
    pub(super) keys: Vec<Identity>,
    pub(super) traffic: Vec<String>,
    pub(super) rules: Vec<String>,
    pub(super) nodes: usize,
    pub(super) shards: usize,
    pub(super) breakers: Vec<(Micros, usize, usize, &'static str)>,
    pub(super) versions: Vec<Micros>,
    /// How many keys are hot at each node, where that changed.
    pub(super) hot: Vec<(Micros, usize, usize)>,
    pub(super) named: BTreeMap<String, Range<Micros>>,
    /// What every key is limited to, where that is one limit that never changes.
    pub(super) limit: Option<Limit>,
    pub(super) end: Micros,
    pub(super) has_store: bool,
    /// None: time was virtual.
    pub(super) real: Option<RealTime>,
}

/// The sums of a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Totals {
    pub requests: u64,
    pub offered: u64,
    pub allowed: u64,
    pub rejected: u64,
    pub shadow_rejected: u64,
    pub degraded: u64,
    pub errors: u64,
    pub store_calls: u64,
}

impl Recording {
    pub(super) fn number_of_rule(&mut self, name: &str) -> u16 {
        let known = self.rules.iter().position(|rule| rule == name);
        let number = known.unwrap_or_else(|| {
            self.rules.push(name.to_owned());
            self.rules.len() - 1
        });
        u16::try_from(number).unwrap_or(NO_RULE)
    }

    pub fn totals(&self) -> Totals {
        let mut totals = Totals { store_calls: self.calls.len() as u64, ..Totals::default() };
        for row in &self.rows {
            totals.requests += 1;
            totals.offered += row.cost;
            match row.outcome {
                Outcome::Allowed => totals.allowed += row.cost,
                Outcome::Rejected => totals.rejected += row.cost,
                Outcome::Error => totals.errors += row.cost,
            }
            totals.degraded += if row.degraded { row.cost } else { 0 };
            totals.shadow_rejected += if row.shadow_rejected { row.cost } else { 0 };
        }
        totals
    }

    /// One number for the whole history: two runs that differ anywhere differ in it.
    pub fn digest(&self) -> u64 {
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        let mut add = |n: u64| hash = (hash ^ n).wrapping_mul(0x0100_0000_01b3).rotate_left(29);
        for row in &self.rows {
            add(row.at.0);
            add(u64::from(row.key) << 32 | u64::from(row.traffic) << 16 | u64::from(row.node));
            add(row.outcome as u64 | u64::from(row.degraded) << 2 | row.cost << 8);
            add(row.response.0);
            add(row.retry_after.map_or(u64::MAX, |wait| wait.0));
        }
        for call in &self.calls {
            add(call.at.0);
            add(call.took.0 << 16 | (call.shard as u64) << 8 | u64::from(call.failed));
        }
        hash
    }

    fn all_chosen(&self, only: &Labels) -> Result<impl Iterator<Item = &Row>, NotMeasured> {
        self.chosen(only, &(Micros::ZERO..Micros(u64::MAX)))
    }

    pub(super) fn chosen(
        &self,
        only: &Labels,
        during: &Range<Micros>,
    ) -> Result<impl Iterator<Item = &Row>, NotMeasured> {
        let filter = Filter::of(self, only)?;
        let first = self.rows.partition_point(|row| row.at < during.start);
        let end = during.end;
        let within = self.rows[first..].iter().take_while(move |row| row.at < end);
        Ok(within.filter(move |row| filter.fits(row)))
    }

    /// What only whoever calls the store can know.
    fn seen_from_inside(&self) -> Result<(), NotMeasured> {
        if self.sees_answers_only() {
            let what = "a gateway that is asked over HTTP does not tell this";
            return Err(NotMeasured::new(what, "--live with --redis or --spawn shows it"));
        }
        Ok(())
    }

    fn counted_calls(&self, only: &Labels) -> Result<impl Iterator<Item = &Call>, NotMeasured> {
        self.seen_from_inside()?;
        if !self.has_store {
            let hint = "write store = { kind = \"redis\" }";
            return Err(NotMeasured::new("a memory store is not called", hint));
        }
        let other = only.given().find(|(name, _)| !matches!(*name, "node" | "shard"));
        if let Some((name, _)) = other {
            let what = format!("calls to the store are not told apart by {name}");
            return Err(NotMeasured::new(what, "by node and shard they are"));
        }
        let filter = Filter::of(self, only)?;
        Ok(self.calls.iter().filter(move |call| {
            let fits = |wanted: Option<u16>, is: usize| wanted.is_none_or(|w| usize::from(w) == is);
            fits(filter.node, call.node) && fits(filter.shard, call.shard)
        }))
    }

    /// When each key was admitted how much, and was offered, within `during`.
    pub(super) fn by_key(
        &self,
        only: &Labels,
        during: &Range<Micros>,
    ) -> Result<BTreeMap<u32, (u64, Vec<Count>)>, NotMeasured> {
        let mut keys: BTreeMap<u32, (u64, Vec<Count>)> = BTreeMap::new();
        for row in self.chosen(only, during)? {
            let (offered, admitted) = keys.entry(row.key).or_default();
            *offered += row.cost;
            if row.outcome == Outcome::Allowed {
                admitted.push(Count { at: row.taken, n: row.cost });
            }
        }
        keys.values_mut().for_each(|(_, admitted)| admitted.sort_by_key(|count| count.at));
        Ok(keys)
    }

    /// At the node that has most of them, where none is named.
    fn hot_keys(&self, only: &Labels) -> Result<Vec<(Micros, Value)>, NotMeasured> {
        let filter = Filter::of(self, only)?;
        let mut now = vec![0; self.nodes];
        let mut told = vec![(Micros::ZERO, Value::Number(0.0))];
        for (at, node, count) in &self.hot {
            if filter.node.is_none_or(|wanted| usize::from(wanted) == *node) {
                now[*node] = *count;
                let most = now.iter().max().copied().unwrap_or_default() as u32;
                told.push((*at, Value::Number(most.into())));
            }
        }
        Ok(told)
    }

    fn states(&self, key: &str) -> Vec<(Micros, Value)> {
        let wanted = self.keys.iter().position(|known| known.as_str() == key);
        let mut states = vec![(Micros::ZERO, Value::Word(QuotaState::Normal.name().into()))];
        let rows = self.rows.iter().filter(|row| Some(row.key as usize) == wanted);
        for row in rows.filter(|row| row.rule != NO_RULE) {
            let word = Value::Word(row.state.name().into());
            if states.last().is_none_or(|(_, last)| *last != word) {
                states.push((row.at, word));
            }
        }
        states
    }
}

/// Labels, looked up once.
#[derive(Default)]
struct Filter {
    traffic: Option<u16>,
    key: Option<u32>,
    rule: Option<u16>,
    node: Option<u16>,
    shard: Option<u16>,
    outcome: Option<String>,
}

impl Filter {
    fn of(recording: &Recording, only: &Labels) -> Result<Filter, NotMeasured> {
        let find = |what: &str, names: &[String], wanted: &Option<String>| match wanted {
            None => Ok(None),
            Some(name) => match names.iter().position(|known| known == name) {
                Some(at) => Ok(u16::try_from(at).ok()),
                None => Err(NotMeasured::new(
                    format!("there is no {what} `{name}`"),
                    format!("there are {}", names.join(", ")),
                )),
            },
        };
        let nodes: Vec<String> = (1..=recording.nodes).map(|n| format!("gw-{n}")).collect();
        let shards: Vec<String> = (1..=recording.shards).map(|n| n.to_string()).collect();
        let key = only.key.as_ref().map(|wanted| {
            let known = recording.keys.iter().position(|key| key.as_str() == wanted);
            known.map(|key| key as u32).ok_or_else(|| {
                let what = format!("there is no key `{wanted}`");
                NotMeasured::new(what, "write it as the traffic has it, e.g. key=user:1")
            })
        });
        Ok(Filter {
            traffic: find("traffic", &recording.traffic, &only.traffic)?,
            rule: find("rule", &recording.rules, &only.rule)?,
            node: find("node", &nodes, &only.node)?,
            shard: find("shard", &shards, &only.shard)?,
            key: key.transpose()?,
            outcome: only.outcome.clone(),
        })
    }

    fn fits(&self, row: &Row) -> bool {
        let outcome = || match self.outcome.as_deref() {
            None => true,
            Some("allowed") => row.outcome == Outcome::Allowed,
            Some("rejected" | "limited") => row.outcome == Outcome::Rejected,
            Some("shadow_rejected") => row.shadow_rejected,
            Some("degraded") => row.degraded,
            Some("error" | "shed") => row.outcome == Outcome::Error,
            Some(_) => false,
        };
        self.traffic.is_none_or(|traffic| traffic == row.traffic)
            && self.key.is_none_or(|key| key == row.key)
            && self.rule.is_none_or(|rule| rule == row.rule)
            && self.node.is_none_or(|node| node == row.node)
            && self.shard.is_none_or(|shard| shard == row.shard)
            && outcome()
    }
}

impl Measured for Recording {
    fn end(&self) -> Micros {
        self.end
    }

    fn counts(&self, what: Counted, only: &Labels) -> Result<Vec<Count>, NotMeasured> {
        if what == Counted::StoreCalls {
            let calls = self.counted_calls(only)?;
            return Ok(calls.map(|call| Count { at: call.at, n: 1 }).collect());
        }
        let is = |row: &&Row| match what {
            Counted::Allowed => row.outcome == Outcome::Allowed,
            Counted::Rejected => row.outcome == Outcome::Rejected,
            Counted::Errors => row.outcome == Outcome::Error,
            Counted::Degraded => row.degraded,
            Counted::ShadowRejected => row.shadow_rejected,
            Counted::DenyCacheHits => row.by == By::DenyCache,
            Counted::LeaseHits => row.by == By::Lease,
            Counted::StoreCalls => false,
        };
        if matches!(what, Counted::DenyCacheHits | Counted::LeaseHits) {
            self.seen_from_inside()?;
        }
        Ok(self.all_chosen(only)?.filter(is).map(|row| Count { at: row.at, n: row.cost }).collect())
    }

    fn offered(&self, only: &Labels) -> Result<Vec<Count>, NotMeasured> {
        let only = Labels { outcome: None, ..only.clone() };
        Ok(self.all_chosen(&only)?.map(|row| Count { at: row.at, n: row.cost }).collect())
    }

    fn lasting(&self, what: Timed, only: &Labels) -> Result<Vec<Lasting>, NotMeasured> {
        if what == Timed::Store {
            let calls = self.counted_calls(only)?;
            return Ok(calls.map(|c| Lasting { at: c.at, took: c.took, n: 1 }).collect());
        }
        let of = |row: &Row| {
            let took = match what {
                Timed::Decision => Some(row.decision),
                Timed::Response | Timed::Service => Some(row.response),
                Timed::RetryAfter => row.retry_after,
                Timed::Store => None,
            };
            Some(Lasting { at: row.at, took: took?, n: 1 })
        };
        Ok(self.all_chosen(only)?.filter_map(of).collect())
    }

    fn per_key(
        &self,
        what: PerKey,
        only: &Labels,
        during: Range<Micros>,
    ) -> Result<Option<f64>, NotMeasured> {
        let keys = self.by_key(only, &during)?;
        let admitted = || keys.values().map(|(_, admitted)| admitted);
        Ok(match what {
            PerKey::WorstWindow(length) => {
                admitted().map(|counts| worst_window(counts, length) as f64).reduce(f64::max)
            }
            PerKey::OverAdmitted => {
                let Some(limit) = &self.limit else {
                    return Err(NotMeasured::new(
                        "over_admitted needs one limit to compare with, and one that stays",
                        "ask a limiter that has just one",
                    ));
                };
                Some(admitted().map(|counts| excess(counts, limit)).sum::<u64>() as f64)
            }
            PerKey::Fairness => {
                let share = |(offered, admitted): &(u64, Vec<Count>)| {
                    let admitted: u64 = admitted.iter().map(|count| count.n).sum();
                    (*offered > 0).then(|| admitted as f64 / *offered as f64)
                };
                jain(keys.values().filter_map(share))
            }
        })
    }

    fn gauge(&self, what: &Gauge, only: &Labels) -> Result<Vec<(Micros, Value)>, NotMeasured> {
        if !matches!(what, Gauge::State(_)) {
            self.seen_from_inside()?;
        }
        match what {
            Gauge::State(key) => Ok(self.states(key)),
            Gauge::PolicyVersion => {
                let changes = std::iter::once(&Micros::ZERO).chain(&self.versions);
                Ok(changes.zip(1u32..).map(|(at, n)| (*at, Value::Number(n.into()))).collect())
            }
            Gauge::Breaker => {
                let filter = Filter::of(self, only)?;
                let fits =
                    |wanted: Option<u16>, is: usize| wanted.is_none_or(|w| usize::from(w) == is);
                let changes = self.breakers.iter().filter(|(_, node, shard, _)| {
                    fits(filter.node, *node) && fits(filter.shard, *shard)
                });
                let closed = (Micros::ZERO, Value::Word("closed".into()));
                let words = changes.map(|(at, _, _, word)| (*at, Value::Word((*word).into())));
                Ok(std::iter::once(closed).chain(words).collect())
            }
            Gauge::HotKeys => self.hot_keys(only),
            Gauge::Drift(..) | Gauge::SyncLag => {
                Err(NotMeasured::new("this version does not measure that", "leave it out"))
            }
        }
    }

    fn give(&self, metric: &Metric, only: &Labels, during: &Range<Micros>) -> f64 {
        self.give_of(metric, only, during)
    }

    fn later(&self, during: &Range<Micros>) -> Micros {
        self.later_of(during)
    }

    fn event(&self, name: &str) -> Option<Range<Micros>> {
        self.named.get(name).cloned()
    }

    fn events(&self) -> Vec<String> {
        self.named.keys().cloned().collect()
    }
}
