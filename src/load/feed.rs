//! What a worker has to send next: its part of the plan, and what clients make of refusals.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::answer::{Answer, Outcome};
use super::plan::{Moments, Part, Plan};

/// How clients take a refusal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Clients {
    /// Send what is planned, whatever was answered
    #[default]
    Naive,
    /// Are silent for Retry-After, then try that request again
    Polite,
    /// Wait twice as long after every refusal, from 100 ms to 30 s, then try again
    Backoff,
    /// Try again at once, up to three times
    RetryStorm,
}

const STORM_ATTEMPTS: u8 = 3;
/// A request that was refused this often is given up.
const PATIENT_ATTEMPTS: u8 = 10;
const FIRST_BACKOFF_NS: u64 = 100_000_000;
const LAST_BACKOFF_NS: u64 = 30_000_000_000;
/// Retries that wait at once; more are not kept. Far more than there are requests under way.
const MAX_RETRIES: usize = 1_000_000;
/// How often a closed loop looks for a key that is not silent.
const DRAWS: usize = 8;

/// One request to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shot {
    /// When it should be sent, in nanoseconds since the start.
    pub intended_ns: u64,
    pub key: u32,
    /// How often it was refused before.
    pub attempt: u8,
}

/// What happened to the plan besides being sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeedCounts {
    /// Due after the warm-up, without retries.
    pub planned: u64,
    /// Not sent, because its client waits.
    pub held_back: u64,
    /// Sent again after a refusal.
    pub retries: u64,
}

#[derive(Debug)]
pub struct Feed {
    moments: Moments,
    next: Option<Shot>,
    closed: bool,
    clients: Clients,
    /// Since the start, as everywhere.
    end_ns: u64,
    warm_ns: u64,
    retries: BinaryHeap<Reverse<(u64, u32, u8)>>,
    /// Until when a key is silent.
    silent: HashMap<u32, u64, foldhash::fast::RandomState>,
    pub counts: FeedCounts,
}

impl Feed {
    pub fn new(plan: &Plan, part: Part, clients: Clients) -> Feed {
        let mut feed = Feed {
            moments: plan.moments(part),
            next: None,
            closed: plan.is_closed(),
            clients,
            end_ns: plan.end().0 * 1_000,
            warm_ns: plan.warmup.0 * 1_000,
            retries: BinaryHeap::new(),
            silent: HashMap::default(),
            counts: FeedCounts::default(),
        };
        feed.step();
        feed
    }

    fn step(&mut self) {
        let next = self.moments.next();
        self.next = next
            .map(|(due, key)| Shot { intended_ns: due.0 * 1_000, key, attempt: 0 })
            .filter(|shot| shot.intended_ns < self.end_ns);
    }

    /// Whether clients send when they have their answer, and not by a plan.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// When the next one is due: in a closed loop at once. None when there is none any more.
    #[inline]
    pub fn due_ns(&self) -> Option<u64> {
        let retry = self.retries.peek().map(|Reverse((due, ..))| *due);
        if self.closed {
            return Some(0);
        }
        match (self.next.map(|shot| shot.intended_ns), retry) {
            (Some(planned), Some(retry)) => Some(planned.min(retry)),
            (one, other) => one.or(other),
        }
    }

    /// Whether something is planned that was not taken yet.
    pub fn has_due(&self) -> bool {
        self.next.is_some()
    }

    /// The next one that is due by now.
    #[inline]
    pub fn take(&mut self, now_ns: u64) -> Option<Shot> {
        if self.closed && now_ns >= self.end_ns {
            return None;
        }
        if let Some(Reverse((due, key, attempt))) = self.retries.peek().copied()
            && due <= now_ns
            && self.next.is_none_or(|shot| due <= shot.intended_ns)
        {
            self.retries.pop();
            self.silent.remove(&key);
            self.counts.retries += u64::from(due >= self.warm_ns);
            return Some(Shot { intended_ns: due, key, attempt });
        }
        if self.closed { self.any(now_ns) } else { self.planned(now_ns) }
    }

    fn planned(&mut self, now_ns: u64) -> Option<Shot> {
        while let Some(shot) = self.next.filter(|shot| shot.intended_ns <= now_ns) {
            self.step();
            let counts = u64::from(shot.intended_ns >= self.warm_ns);
            self.counts.planned += counts;
            if self.is_silent(shot.key, shot.intended_ns) {
                self.counts.held_back += counts;
            } else {
                return Some(shot);
            }
        }
        None
    }

    fn any(&mut self, now_ns: u64) -> Option<Shot> {
        let key = (0..DRAWS).map(|_| self.moments.any_key()).find(|key| {
            self.silent.is_empty() || self.silent.get(key).is_none_or(|until| *until <= now_ns)
        })?;
        self.counts.planned += u64::from(now_ns >= self.warm_ns);
        Some(Shot { intended_ns: now_ns, key, attempt: 0 })
    }

    fn is_silent(&self, key: u32, at_ns: u64) -> bool {
        !self.silent.is_empty() && self.silent.get(&key).is_some_and(|until| at_ns < *until)
    }

    /// What was due and was never sent: counted when the time is over.
    pub fn count_rest(&mut self, now_ns: u64) {
        while let Some(shot) = self.next.filter(|shot| shot.intended_ns <= now_ns) {
            self.step();
            let counts = u64::from(shot.intended_ns >= self.warm_ns);
            self.counts.planned += counts;
            self.counts.held_back +=
                if self.is_silent(shot.key, shot.intended_ns) { counts } else { 0 };
        }
    }

    /// What the client of a request makes of its answer.
    #[inline]
    pub fn answered(&mut self, shot: &Shot, answer: &Answer, now_ns: u64) {
        if self.clients == Clients::Naive || answer.outcome == Outcome::Allowed {
            return;
        }
        self.refused(shot, answer, now_ns);
    }

    fn refused(&mut self, shot: &Shot, answer: &Answer, now_ns: u64) {
        let (attempts, wait) = match self.clients {
            Clients::Naive => return,
            Clients::RetryStorm => (STORM_ATTEMPTS, 0),
            Clients::Polite => {
                // Without a word about when, there is nothing to obey.
                let Some(seconds) = answer.told.retry_after_s else { return };
                (PATIENT_ATTEMPTS, seconds.saturating_mul(1_000_000_000))
            }
            Clients::Backoff => {
                let wait = FIRST_BACKOFF_NS << shot.attempt.min(20);
                (PATIENT_ATTEMPTS, wait.min(LAST_BACKOFF_NS))
            }
        };
        let until = now_ns.saturating_add(wait);
        let was_silent = self.is_silent(shot.key, now_ns);
        if wait > 0 {
            let known = self.silent.entry(shot.key).or_default();
            *known = (*known).max(until);
        }
        // One request of a silent key is tried again, not all that were under way.
        let again = shot.attempt < attempts && self.retries.len() < MAX_RETRIES && !was_silent;
        if again && until < self.end_ns {
            self.retries.push(Reverse((until, shot.key, shot.attempt + 1)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::clock::Micros;
    use crate::load::answer::Told;
    use crate::load::plan::{Mode, Stage};
    use crate::traffic::KeySpec;

    const SECOND: u64 = 1_000_000_000;

    /// 10 a second for 10 seconds, of one key.
    fn feed(clients: Clients) -> Feed {
        let lasts = Micros(10 * Micros::SECOND.0);
        let stages = vec![Stage { traffic: "constant:10/s".parse().unwrap(), lasts }];
        let keys = "one:user:1".parse::<KeySpec>().unwrap().load(0).unwrap();
        let plan = Plan { mode: Mode::Open(stages), warmup: Micros::ZERO, lasts, keys, seed: 0 };
        Feed::new(&plan, Part::WHOLE, clients)
    }

    fn refusal(retry_after_s: Option<u64>) -> Answer {
        let told = Told { retry_after_s, ..Told::default() };
        Answer { outcome: Outcome::Limited, status: 429, told }
    }

    /// Sends all of it, refusing everything; what was sent when, as seconds.
    fn all_refused(mut feed: Feed) -> (Vec<f64>, FeedCounts) {
        let mut sent = Vec::new();
        for step in 0..=1_000 {
            let now = step * SECOND / 100;
            while let Some(shot) = feed.take(now) {
                sent.push(now as f64 / SECOND as f64);
                feed.answered(&shot, &refusal(Some(3)), now);
            }
        }
        feed.count_rest(11 * SECOND);
        (sent, feed.counts)
    }

    #[test]
    fn naive_clients_send_what_is_planned() {
        let (sent, counts) = all_refused(feed(Clients::Naive));
        assert_eq!((sent.len(), counts.planned, counts.retries), (100, 100, 0));
    }

    #[test]
    fn polite_clients_are_silent_as_long_as_they_were_told() {
        let (sent, counts) = all_refused(feed(Clients::Polite));
        assert_eq!(sent, [0.0, 3.0, 6.0, 9.0]);
        assert_eq!((counts.planned, counts.retries), (100, 3));
        assert_eq!(counts.held_back, 99);
    }

    #[test]
    fn backing_off_doubles_the_wait() {
        let (sent, _) = all_refused(feed(Clients::Backoff));
        assert_eq!(sent, [0.0, 0.1, 0.3, 0.7, 1.5, 3.1, 6.3]);
    }

    #[test]
    fn a_storm_multiplies_what_is_planned() {
        let (sent, counts) = all_refused(feed(Clients::RetryStorm));
        assert_eq!((sent.len(), counts.planned, counts.retries), (400, 100, 300));
    }

    #[test]
    fn what_is_not_taken_in_time_is_planned_all_the_same() {
        let mut feed = feed(Clients::Naive);
        assert_eq!(feed.take(0).unwrap().intended_ns, 0);
        assert_eq!(feed.take(0), None);
        assert!(feed.has_due());
        feed.count_rest(10 * SECOND);
        assert_eq!(feed.counts.planned, 100);
    }
}
