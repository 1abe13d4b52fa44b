//! What happened, counted where it is decided: for metrics, the stats stream and the dashboard.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::engine::clock::Micros;
use crate::engine::identity::Identity;
use crate::engine::limiter::Verdict;
use crate::engine::plan::Attempt;
use crate::engine::quota_watch::Transition;

#[derive(Debug)]
pub struct Stats {
    pub started: Micros,
    pub allowed: AtomicU64,
    pub rejected: AtomicU64,
    pub transitions: AtomicU64,
}

impl Stats {
    pub fn new(started: Micros) -> Stats {
        Stats {
            started,
            allowed: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            transitions: AtomicU64::new(0),
        }
    }

    /// One decision, however it was asked for.
    pub fn decided(&self, _attempt: &Attempt<'_>, verdict: &Verdict, _began: Micros, _now: Micros) {
        let counter = if verdict.allowed { &self.allowed } else { &self.rejected };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// How long an upstream took to begin its answer.
    pub fn upstream(&self, _took: Micros) {}

    /// A quota went from one state to another.
    pub fn transition(&self, _identity: &Identity, _rule: &str, _transition: Transition) {
        self.transitions.fetch_add(1, Ordering::Relaxed);
    }
}
