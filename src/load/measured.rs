//! What expectations may ask of a run.

use std::ops::Range;

use super::answer::Outcome;
use super::collect::Collected;
use super::report::KeyFindings;
use super::series::{Kind, Marked};
use crate::engine::clock::Micros;
use crate::expect::{
    Assertion, Count, Counted, Gauge, Labels, Lasting, Measured, Metric, NotMeasured, PerKey,
    Timed, Value,
};

use super::record::Wanted;

/// A run, or as much of it as there is.
#[derive(Debug)]
pub struct Recorded<'r> {
    pub collected: &'r Collected,
    /// Known at the end only.
    pub keys: Option<&'r KeyFindings>,
    /// What came before is of no interest.
    pub from: Micros,
    pub end: Micros,
}

/// What has to be marked so that these can be judged.
pub fn wanted(assertions: &[Assertion]) -> Wanted {
    let times = |timed: &[Timed]| {
        assertions.iter().any(|assertion| match assertion.metric {
            Metric::Latency(_, what) => timed.contains(&what),
            _ => false,
        })
    };
    Wanted {
        counts: !assertions.is_empty(),
        service: times(&[Timed::Service, Timed::Decision]),
        response: times(&[Timed::Response]),
        retry_after: assertions.iter().any(|a| a.metric == Metric::RetryAfter),
    }
}

/// The lengths of the windows that these want admissions counted in.
pub fn windows(assertions: &[Assertion]) -> Vec<Micros> {
    let of = |assertion: &Assertion| match assertion.metric {
        Metric::PerKey(PerKey::WorstWindow(length)) => Some(length),
        _ => None,
    };
    assertions.iter().filter_map(of).collect()
}

fn not_here(what: &str) -> NotMeasured {
    NotMeasured::new(
        format!("bench sees answers only, and no {what}"),
        "ask for allowed, limited, errors, rate(x), share(x), p50 to p999 and max of response or \
         service, retry_after, worst_window(D), over_admitted, fairness",
    )
}

/// The outcomes that a label chooses.
fn outcomes(only: &Labels) -> Result<Vec<Outcome>, NotMeasured> {
    if let Some((name, _)) = only.given().find(|(name, _)| *name != "outcome") {
        return Err(NotMeasured::new(
            format!("bench does not tell requests apart by {name}"),
            "the label it knows is outcome",
        ));
    }
    match only.outcome.as_deref() {
        None => Ok(Outcome::ALL.to_vec()),
        Some("rejected") => Ok(vec![Outcome::Limited]),
        Some(name) => {
            let known = Outcome::ALL.into_iter().find(|outcome| outcome.name() == name);
            known.map(|outcome| vec![outcome]).ok_or_else(|| not_here(&format!("{name} requests")))
        }
    }
}

impl Recorded<'_> {
    fn marked(&self, kind: Kind, only: &[Outcome]) -> Vec<Marked> {
        let mut all = self.collected.series.of(kind, self.from);
        all.retain(|marked| only.contains(&marked.outcome));
        all
    }

    fn counted(&self, only: &[Outcome]) -> Vec<Count> {
        let marked = self.marked(Kind::Count, only);
        marked.into_iter().map(|marked| Count { at: marked.at, n: marked.n }).collect()
    }
}

impl Measured for Recorded<'_> {
    fn end(&self) -> Micros {
        self.end
    }

    fn step(&self) -> Micros {
        self.collected.series.step()
    }

    fn counts(&self, what: Counted, only: &Labels) -> Result<Vec<Count>, NotMeasured> {
        let counts: &[Outcome] = match what {
            Counted::Allowed => &[Outcome::Allowed],
            Counted::Rejected => &[Outcome::Limited],
            Counted::Errors => &[Outcome::Shed, Outcome::Error, Outcome::Timeout],
            other => return Err(not_here(other.name())),
        };
        let only = outcomes(only)?;
        let both: Vec<Outcome> = counts.iter().copied().filter(|o| only.contains(o)).collect();
        Ok(self.counted(&both))
    }

    fn offered(&self, only: &Labels) -> Result<Vec<Count>, NotMeasured> {
        outcomes(only)?;
        Ok(self.counted(&Outcome::ALL))
    }

    fn lasting(&self, what: Timed, only: &Labels) -> Result<Vec<Lasting>, NotMeasured> {
        let kind = match what {
            Timed::Response => Kind::Response,
            Timed::Service | Timed::Decision => Kind::Service,
            Timed::RetryAfter => Kind::RetryAfter,
            Timed::Store => return Err(not_here("store")),
        };
        let marked = self.marked(kind, &outcomes(only)?);
        let lasting = |m: Marked| Lasting { at: m.at, took: Micros(m.us), n: m.n };
        Ok(marked.into_iter().map(lasting).collect())
    }

    fn per_key(
        &self,
        what: PerKey,
        only: &Labels,
        during: Range<Micros>,
    ) -> Result<Option<f64>, NotMeasured> {
        if let Some((name, _)) = only.given().next() {
            let what = format!("bench looks at keys over all requests, not by {name}");
            return Err(NotMeasured::new(what, "leave the label out"));
        }
        if during != (Micros::ZERO..self.end) {
            let what = "bench looks at keys over the whole run";
            return Err(NotMeasured::new(what, "leave out per, over and during"));
        }
        let Some(keys) = self.keys else {
            let what = "what is known of keys is known at the end";
            return Err(NotMeasured::new(what, "write it with --expect"));
        };
        match what {
            PerKey::WorstWindow(length) => {
                let found = keys.worst.iter().find(|worst| worst.window == length);
                Ok(found.map(|worst| worst.admitted as f64))
            }
            PerKey::OverAdmitted => match keys.over_admitted {
                Some(over) => Ok(Some(over as f64)),
                None => Err(NotMeasured::new(
                    "over_admitted needs a limit to compare with",
                    "say with --limit what the target allows",
                )),
            },
            PerKey::Fairness => Ok(keys.fairness),
        }
    }

    fn gauge(&self, what: &Gauge, _only: &Labels) -> Result<Vec<(Micros, Value)>, NotMeasured> {
        Err(not_here(match what {
            Gauge::HotKeys => "hot keys",
            Gauge::Breaker => "breaker",
            Gauge::State(_) => "state of a quota",
            Gauge::PolicyVersion => "policy version",
            Gauge::Drift(..) => "drift between regions",
            Gauge::SyncLag => "sync lag",
        }))
    }

    fn event(&self, _name: &str) -> Option<Range<Micros>> {
        None
    }

    fn events(&self) -> Vec<String> {
        Vec::new()
    }
}
