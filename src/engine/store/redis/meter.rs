//! How one Redis answers: times, errors, connections. Atomics only; read by whoever shows it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::engine::clock::Micros;
use crate::engine::histogram::{Counts, Histogram};
use crate::engine::store::StoreError;

#[derive(Debug, Default)]
pub struct Meter {
    ok: Histogram,
    error: Histogram,
    timeout: Histogram,
    late: Histogram,
    unknown: AtomicU64,
    errors: [AtomicU64; KINDS.len()],
    connections: AtomicU64,
    failovers: AtomicU64,
    /// When the connection was lost; 0 while there is one.
    down_since_us: AtomicU64,
    /// How far the farthest replica is behind, and one more: 0 while that is not known.
    lag_us: AtomicU64,
    /// 0 not known, 1 lost, 2 there.
    quorum: AtomicU64,
}

/// What errors are counted by: a bounded number, whatever a server says.
const KINDS: [&str; 17] = [
    "unreachable",
    "timeout",
    "lost",
    "overloaded",
    "breaker",
    "oom",
    "readonly",
    "loading",
    "misconf",
    "noreplicas",
    "masterdown",
    "clusterdown",
    "tryagain",
    "busy",
    "noperm",
    "noauth",
    "other",
];

impl Meter {
    /// What a caller got, and after what time.
    pub(super) fn answered(&self, took: Duration, error: Option<&StoreError>) {
        let histogram = match error {
            None => &self.ok,
            Some(StoreError::Timeout { .. }) => &self.timeout,
            Some(_) => &self.error,
        };
        histogram.record(micros(took));
        if let Some(error) = error {
            self.failed(error);
        }
    }

    /// An error that no time went by for.
    pub(super) fn failed(&self, error: &StoreError) {
        let name = kind(error);
        let index = KINDS.iter().position(|kind| *kind == name).unwrap_or(KINDS.len() - 1);
        self.errors[index].fetch_add(1, Ordering::Relaxed);
        if error.outcome_unknown() {
            self.unknown.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The server replied to a caller who had given up. That caller's timeout was counted then.
    pub(super) fn late(&self, took: Duration) {
        self.late.record(micros(took));
    }

    pub(super) fn connected(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
        self.down_since_us.store(0, Ordering::Relaxed);
    }

    pub(super) fn disconnected(&self, now: Micros) {
        self.down_since_us.store(now.0, Ordering::Relaxed);
    }

    /// The master that was spoken to is one no more.
    pub(super) fn failed_over(&self) {
        self.failovers.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn set_replication_lag(&self, lag: Option<Micros>) {
        self.lag_us.store(lag.map_or(0, |lag| lag.0.saturating_add(1)), Ordering::Relaxed);
    }

    /// How far the farthest of its replicas is behind, as far as that is watched.
    pub fn replication_lag(&self) -> Option<Micros> {
        self.lag_us.load(Ordering::Relaxed).checked_sub(1).map(Micros)
    }

    pub(super) fn set_sentinel_quorum(&self, is_there: bool) {
        self.quorum.store(1 + u64::from(is_there), Ordering::Relaxed);
    }

    /// Whether its sentinels could agree on a failover, as far as that is watched.
    pub fn sentinel_quorum(&self) -> Option<bool> {
        self.quorum.load(Ordering::Relaxed).checked_sub(1).map(|is_there| is_there > 0)
    }

    /// By outcome: `ok`, `error`, `timeout` (whoever waited gave up), `late` (the true time of
    /// replies that nobody waited for any more).
    pub fn times(&self) -> [(&'static str, Counts); 4] {
        [
            ("ok", self.ok.counts()),
            ("error", self.error.counts()),
            ("timeout", self.timeout.counts()),
            ("late", self.late.counts()),
        ]
    }

    /// How long replies take, whether or not somebody still waited.
    pub fn replies(&self) -> Counts {
        let mut all = self.ok.counts();
        all.add(&self.late.counts());
        all
    }

    /// Calls that may or may not have been counted.
    pub fn unknown(&self) -> u64 {
        self.unknown.load(Ordering::Relaxed)
    }

    pub fn errors(&self) -> impl Iterator<Item = (&'static str, u64)> {
        KINDS.into_iter().zip(self.errors.iter().map(|n| n.load(Ordering::Relaxed)))
    }

    /// How often it was connected to.
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    /// How often it turned out to be a replica now.
    pub fn failovers(&self) -> u64 {
        self.failovers.load(Ordering::Relaxed)
    }

    /// Since when there is no connection, if so.
    pub fn down_since(&self) -> Option<Micros> {
        Some(Micros(self.down_since_us.load(Ordering::Relaxed))).filter(|since| since.0 > 0)
    }
}

fn kind(error: &StoreError) -> String {
    match error {
        StoreError::Unreachable { .. } => "unreachable".into(),
        StoreError::Timeout { .. } | StoreError::Silent { .. } => "timeout".into(),
        StoreError::Lost { .. } | StoreError::Cut { .. } => "lost".into(),
        StoreError::Overloaded { .. } => "overloaded".into(),
        StoreError::Broken { .. } => "breaker".into(),
        StoreError::Refused { code, .. } => code.to_ascii_lowercase(),
        StoreError::Short { .. } | StoreError::OtherCost => "other".into(),
    }
}

fn micros(took: Duration) -> Micros {
    Micros(u64::try_from(took.as_micros()).unwrap_or(u64::MAX))
}
