//! What every worker has, whatever it sends to.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError};

use super::feed::{Feed, Shot};
use super::keys::KeyTable;
use super::pace::Stopwatch;
use super::record::{Recorder, Tick};
use crate::engine::clock::Micros;

/// How long after the end what was due before it may still be sent: by a client that woke late, not
/// to make up for a target that was slow.
const GRACE_NS: u64 = 250_000_000;

/// The desk of a worker: what to send, where to write it down, when to stop.
#[derive(Debug)]
pub struct Desk {
    pub feed: Feed,
    pub recorder: Recorder,
    pub watch: Stopwatch,
    /// The wall clock when the watch was started.
    pub started: Micros,
    pub end_ns: u64,
    /// When a request last had to wait for a connection.
    pub starved_ns: Option<u64>,
    pub stop: Arc<AtomicBool>,
    pub ticks: SyncSender<Box<Tick>>,
    pub used: Receiver<Box<Tick>>,
}

impl Desk {
    /// Whether nothing more is to be sent.
    pub fn is_over(&self, now_ns: u64) -> bool {
        if now_ns < self.end_ns {
            return self.stop.load(Ordering::Relaxed);
        }
        let target_is_slow = self.starved_ns.is_some_and(|at| now_ns < at + GRACE_NS);
        !self.feed.has_due() || target_is_slow || now_ns >= self.end_ns + GRACE_NS
    }

    /// Whether nothing but the plan held this one up.
    #[inline]
    pub fn is_at_once(&self, shot: &Shot) -> bool {
        self.starved_ns.is_none_or(|at| shot.intended_ns > at)
    }

    /// The wall clock in whole seconds.
    pub fn wall_s(&self, now_ns: u64) -> u64 {
        (self.started.0 + now_ns / 1_000) / Micros::SECOND.0
    }

    /// Hands over what was gathered, when it is time. A reader that is behind gets more at once.
    pub fn tick(&mut self, now_ns: u64, under_way: usize) {
        if self.recorder.is_full(now_ns) {
            self.hand_over(now_ns, under_way, false);
        }
    }

    fn hand_over(&mut self, now_ns: u64, under_way: usize, last: bool) {
        if let Ok(used) = self.used.try_recv() {
            self.recorder.give_back(used);
        }
        let tick = self.recorder.hand_over(now_ns, self.feed.counts, under_way as u64);
        if last {
            // Whoever does not listen any more needs no last words.
            let _ = self.ticks.send(tick);
        } else if let Err(TrySendError::Full(tick)) = self.ticks.try_send(tick) {
            self.recorder.take_back(tick);
        }
    }

    /// The end: what was due and not sent is counted, and everything handed over.
    pub fn finish(mut self) -> KeyTable {
        let now_ns = self.watch.ns();
        self.feed.count_rest(now_ns.min(self.end_ns));
        self.hand_over(now_ns, 0, true);
        self.recorder.keys
    }
}
