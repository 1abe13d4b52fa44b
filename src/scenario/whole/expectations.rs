//! What must be true: whether it speaks of what is there.

use std::collections::BTreeMap;

use super::Whole;
use crate::engine::clock::Micros;
use crate::engine::config::read::At;
use crate::expect::{Claim, Counted, During, Gauge, Metric};
use crate::scenario::draft::{hint, inside};
use crate::scenario::model::{Expectation, Kind, LimiterPart, Spot, StorePart};

impl Whole<'_, '_> {
    pub(super) fn expectation(
        &mut self,
        expectation: &Expectation,
        spot: Spot,
        limiters: &[LimiterPart],
        store: &StorePart,
        events: &BTreeMap<String, (Micros, Micros)>,
        run: Micros,
    ) {
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
