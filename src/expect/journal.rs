//! A run recorded event by event, as virtual time allows: every question can be answered exactly.

use std::collections::BTreeMap;
use std::ops::Range;

use super::ast::{Counted, Gauge, Labels, PerKey, Timed, Value};
use super::measured::{Count, Lasting, Measured, NotMeasured};
use super::per_key::{excess, jain, worst_window};
use crate::engine::clock::Micros;
use crate::engine::limit::Limit;

/// One request and what became of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    pub at: Micros,
    pub cost: u64,
    /// What it counts as, e.g. rejected, or allowed and degraded.
    pub counted: Vec<Counted>,
    /// How long things took; also the wait that a rejection named.
    pub took: Vec<(Timed, Micros)>,
    /// Who and where; `outcome` as the grammar spells it.
    pub labels: Labels,
}

/// Everything that one limiter did, in the order of time.
#[derive(Clone, Debug, Default)]
pub struct Journal {
    events: Vec<Event>,
    gauges: Vec<(Gauge, Vec<(Micros, Value)>)>,
    named: BTreeMap<String, Range<Micros>>,
    /// What every key is limited to, where that is one limit.
    limit: Option<Limit>,
    end: Micros,
}

impl Journal {
    /// Of a run that ends at `end`.
    pub fn new(end: Micros, limit: Option<Limit>) -> Journal {
        Journal { end, limit, ..Journal::default() }
    }

    /// Adds what happened; not before what was added last.
    pub fn push(&mut self, event: Event) {
        debug_assert!(self.events.last().is_none_or(|last| last.at <= event.at));
        self.events.push(event);
    }

    /// From `at` on, a gauge has this value.
    pub fn set(&mut self, gauge: Gauge, at: Micros, value: Value) {
        match self.gauges.iter_mut().find(|(known, _)| *known == gauge) {
            Some((_, values)) => values.push((at, value)),
            None => self.gauges.push((gauge, vec![(at, value)])),
        }
    }

    /// Gives a phase or a fault its name.
    pub fn name(&mut self, name: &str, during: Range<Micros>) {
        self.named.insert(name.into(), during);
    }

    fn chosen<'j>(&'j self, only: &Labels) -> impl Iterator<Item = &'j Event> {
        self.events.iter().filter(move |event| {
            only.given().all(|(name, wanted)| {
                event.labels.given().any(|(known, value)| (known, value) == (name, wanted))
            })
        })
    }

    /// When each key was admitted how much, and was offered, within `during`.
    fn by_key<'j>(
        &'j self,
        only: &Labels,
        during: &Range<Micros>,
    ) -> BTreeMap<&'j str, (u64, Vec<Count>)> {
        let mut keys: BTreeMap<&str, (u64, Vec<Count>)> = BTreeMap::new();
        for event in self.chosen(only).filter(|event| during.contains(&event.at)) {
            let (offered, admitted) =
                keys.entry(event.labels.key.as_deref().unwrap_or_default()).or_default();
            *offered += event.cost;
            if event.counted.contains(&Counted::Allowed) {
                admitted.push(Count { at: event.at, n: event.cost });
            }
        }
        keys
    }
}

impl Measured for Journal {
    fn end(&self) -> Micros {
        self.end
    }

    fn counts(&self, what: Counted, only: &Labels) -> Result<Vec<Count>, NotMeasured> {
        let counted = self.chosen(only).filter(|event| event.counted.contains(&what));
        Ok(counted.map(|event| Count { at: event.at, n: event.cost }).collect())
    }

    fn offered(&self, only: &Labels) -> Result<Vec<Count>, NotMeasured> {
        let only = Labels { outcome: None, ..only.clone() };
        Ok(self.chosen(&only).map(|event| Count { at: event.at, n: event.cost }).collect())
    }

    fn lasting(&self, what: Timed, only: &Labels) -> Result<Vec<Lasting>, NotMeasured> {
        let of = |event: &Event| {
            let took = event.took.iter().find(|(timed, _)| *timed == what)?.1;
            Some(Lasting { at: event.at, took, n: 1 })
        };
        Ok(self.chosen(only).filter_map(of).collect())
    }

    fn per_key(
        &self,
        what: PerKey,
        only: &Labels,
        during: Range<Micros>,
    ) -> Result<Option<f64>, NotMeasured> {
        let keys = self.by_key(only, &during);
        let admitted = || keys.values().map(|(_, admitted)| admitted);
        Ok(match what {
            PerKey::WorstWindow(length) => {
                admitted().map(|counts| worst_window(counts, length) as f64).reduce(f64::max)
            }
            PerKey::OverAdmitted => {
                let Some(limit) = &self.limit else {
                    return Err(NotMeasured::new(
                        "over_admitted needs one limit to compare with",
                        "name a limiter that has just one",
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

    fn gauge(&self, what: &Gauge, _only: &Labels) -> Result<Vec<(Micros, Value)>, NotMeasured> {
        let found = self.gauges.iter().find(|(known, _)| known == what);
        found.map(|(_, values)| values.clone()).ok_or_else(|| {
            NotMeasured::new("nobody recorded this", "ask for what this limiter has")
        })
    }

    fn event(&self, name: &str) -> Option<Range<Micros>> {
        self.named.get(name).cloned()
    }

    fn events(&self) -> Vec<String> {
        self.named.keys().cloned().collect()
    }
}
