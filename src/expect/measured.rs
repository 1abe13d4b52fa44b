//! What whoever recorded a run can say about it.

use std::ops::Range;

use super::ast::{Counted, Gauge, Labels, Metric, PerKey, Timed, Value};
use crate::engine::clock::Micros;

/// So much of something, at a moment since the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    pub at: Micros,
    pub n: u64,
}

/// So many that began at a moment since the start and took so long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lasting {
    pub at: Micros,
    pub took: Micros,
    pub n: u64,
}

/// This recording cannot answer, and what can be asked instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}; {hint}")]
pub struct NotMeasured {
    pub what: String,
    pub hint: String,
}

impl NotMeasured {
    pub fn new(what: impl Into<String>, hint: impl Into<String>) -> NotMeasured {
        NotMeasured { what: what.into(), hint: hint.into() }
    }
}

/// A recorded run. Times count from its start; lists are in the order of their times. An empty list
/// means that nothing happened, [`NotMeasured`] that nobody looked.
pub trait Measured {
    /// When the recording ends.
    fn end(&self) -> Micros;

    /// By how much windows slide.
    fn step(&self) -> Micros {
        Micros::MILLISECOND
    }

    fn counts(&self, what: Counted, only: &Labels) -> Result<Vec<Count>, NotMeasured>;

    /// All requests, whatever became of them; a label `outcome` does not count.
    fn offered(&self, only: &Labels) -> Result<Vec<Count>, NotMeasured>;

    fn lasting(&self, what: Timed, only: &Labels) -> Result<Vec<Lasting>, NotMeasured>;

    /// None when there was nothing to look at.
    fn per_key(
        &self,
        what: PerKey,
        only: &Labels,
        during: Range<Micros>,
    ) -> Result<Option<f64>, NotMeasured>;

    /// Each value with the moment from which it held.
    fn gauge(&self, what: &Gauge, only: &Labels) -> Result<Vec<(Micros, Value)>, NotMeasured>;

    /// By how much a value may be off for the way it was measured, in the unit of the metric.
    fn give(&self, _metric: &Metric, _only: &Labels, _during: &Range<Micros>) -> f64 {
        0.0
    }

    /// By how much later than said something may come, for the way it was measured.
    fn later(&self, _during: &Range<Micros>) -> Micros {
        Micros::ZERO
    }

    /// From when to when a phase or a fault was.
    fn event(&self, name: &str) -> Option<Range<Micros>>;

    /// The names that [`Measured::event`] knows.
    fn events(&self) -> Vec<String>;
}
