//! The engine in this process: no network, nothing between the plan and the decision.

use std::sync::Arc;
use std::time::Duration;

use super::answer::{Answer, Outcome};
use super::keys::{KeyTable, MAX_KEYS_SEEN};
use super::pace::Watchfulness;
use super::worker::Desk;
use crate::engine::identity::Identity;
use crate::engine::limit::Cost;
use crate::engine::store::{Check, MemoryStore, RuleLimit};
use crate::traffic::Keys;

/// Longest sleep: somebody may want to stop.
const MAX_SLEEP_NS: u64 = 20_000_000;

/// The engine on the memory store, shared by all workers.
#[derive(Clone, Debug)]
pub struct Local {
    pub store: Arc<MemoryStore>,
    pub limits: Arc<[Arc<RuleLimit>]>,
}

/// The identities of keys, made when they are first needed.
#[derive(Debug)]
pub struct Identities {
    keys: Keys,
    known: Vec<Option<Identity>>,
}

impl Identities {
    pub fn new(keys: Keys) -> Identities {
        Identities { keys, known: Vec::new() }
    }

    /// A name that is no identity has a bucket like any other.
    pub fn of(&mut self, key: u32) -> Identity {
        let at = key as usize;
        let make = |keys: &Keys| {
            Identity::opaque(&keys.name(key)).unwrap_or_else(|_| Identity::everybody())
        };
        if at >= MAX_KEYS_SEEN {
            return make(&self.keys);
        }
        if self.known.len() <= at {
            self.known.resize(at + 1, None);
        }
        self.known[at].get_or_insert_with(|| make(&self.keys)).clone()
    }

    /// All that were needed.
    pub fn known(self) -> impl Iterator<Item = Identity> {
        self.known.into_iter().flatten()
    }
}

impl Local {
    /// Decides until it is over.
    pub fn work(&self, keys: Keys, mut desk: Desk) -> KeyTable {
        let mut identities = Identities::new(keys);
        let mut watchfulness = Watchfulness::default();
        loop {
            let now = desk.watch.ns();
            if desk.is_over(now) {
                return desk.finish();
            }
            loop {
                let sent = desk.watch.ns();
                let Some(shot) = desk.feed.take(sent) else { break };
                desk.recorder.sent(&shot, sent, true);
                let identity = identities.of(shot.key);
                let began = desk.watch.ns();
                let answer = self.decide(&identity, desk.wall_s(began));
                let done = desk.watch.ns();
                // What this client does before and after is not the engine's time.
                desk.recorder.done(&shot, sent, done - (began - sent), &answer);
                desk.feed.answered(&shot, &answer, done);
                if desk.recorder.is_full(done) {
                    break;
                }
            }
            let then = desk.watch.ns();
            desk.recorder.busy(then - now);
            desk.tick(then, 0);
            sleep(&desk, then, &mut watchfulness);
        }
    }

    fn decide(&self, identity: &Identity, wall_s: u64) -> Answer {
        let check =
            Check { identity, limits: &self.limits, cost: Cost::ONE, idempotency: None, at: None };
        match self.store.check(&check) {
            Ok(answer) => match answer.deciding() {
                Some((_, decision)) => Answer::of_decision(decision, wall_s),
                None => Answer::plain(Outcome::Allowed),
            },
            Err(_) => Answer::plain(Outcome::Error),
        }
    }
}

/// Until shortly before the next one is due.
fn sleep(desk: &Desk, now: u64, watchfulness: &mut Watchfulness) {
    let wait = match desk.feed.due_ns() {
        // All clients of a closed loop are silent, or it is time.
        Some(0) => return,
        Some(due) => due.saturating_sub(now),
        None => MAX_SLEEP_NS,
    };
    // A plain sleep wakes about as late as watching begins early.
    let margin = 2 * watchfulness.margin_ns(now);
    if wait > margin {
        std::thread::sleep(Duration::from_nanos((wait - margin).min(MAX_SLEEP_NS)));
    } else {
        std::hint::spin_loop();
        watchfulness.looked(now, desk.watch.ns());
    }
}
