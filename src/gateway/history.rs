//! The last five minutes, second by second: what rates, sparklines and the usage of a rule are
//! drawn from.
//!
//! Bounded: 300 seconds, and fewer where so many rules were busy that their parts in them pass a
//! million (24 MB).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::counters::{Counted, Counts, Mode, RuleStats};
use crate::engine::clock::Micros;
use crate::engine::histogram;

pub const SECONDS: usize = 300;
const MAX_PARTS: usize = 1_000_000;

/// Decisions of a stretch of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub allowed: u32,
    pub rejected: u32,
    pub shadow: u32,
    /// Of all these, how many were decided without the store.
    pub degraded: u32,
}

impl Tally {
    fn of(counts: &Counts) -> Tally {
        let sum = |outcome: Counted| counts[outcome as usize].iter().sum::<u64>();
        let degraded = Mode::ALL.into_iter().filter(|mode| mode.is_degraded());
        let degraded = degraded.flat_map(|mode| counts.iter().map(move |n| n[mode as usize]));
        Tally {
            allowed: narrow(sum(Counted::Allowed)),
            rejected: narrow(sum(Counted::Rejected)),
            shadow: narrow(sum(Counted::ShadowRejected)),
            degraded: narrow(degraded.sum()),
        }
    }

    pub fn all(&self) -> u64 {
        u64::from(self.allowed) + u64::from(self.rejected) + u64::from(self.shadow)
    }

    fn add(&mut self, other: &Tally) {
        self.allowed = self.allowed.saturating_add(other.allowed);
        self.rejected = self.rejected.saturating_add(other.rejected);
        self.shadow = self.shadow.saturating_add(other.shadow);
        self.degraded = self.degraded.saturating_add(other.degraded);
    }
}

fn narrow(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// From one tick to the next: about a second.
#[derive(Clone, Debug, Default)]
pub struct Second {
    /// When it ended.
    pub at: Micros,
    pub length: Micros,
    pub tally: Tally,
    pub modes: [u64; Mode::ALL.len()],
    pub took: histogram::Counts,
    /// Of each shard.
    pub replies: Vec<(String, histogram::Counts)>,
    /// Of the rules that decided anything.
    pub rules: Vec<(Arc<RuleStats>, Tally)>,
}

impl Second {
    /// All but its rules.
    fn add(&mut self, other: &Second) {
        self.at = self.at.max(other.at);
        self.length = self.length + other.length;
        self.tally.add(&other.tally);
        self.modes.iter_mut().zip(other.modes).for_each(|(sum, n)| *sum += n);
        self.took.add(&other.took);
        for (shard, counts) in &other.replies {
            match self.replies.iter_mut().find(|(known, _)| known == shard) {
                Some((_, sum)) => sum.add(counts),
                None => self.replies.push((shard.clone(), counts.clone())),
            }
        }
    }

    /// So many, by the second.
    pub fn rate(&self, count: u64) -> f64 {
        if self.length == Micros::ZERO {
            return 0.0;
        }
        count as f64 * Micros::SECOND.0 as f64 / self.length.0 as f64
    }
}

#[derive(Debug, Default)]
pub struct History {
    seconds: VecDeque<Second>,
    parts: usize,
    ticked: Option<Micros>,
    took: histogram::Counts,
    replies: Vec<(String, histogram::Counts)>,
}

impl History {
    /// Closes a second: what `rules` and `replies` count more than the last time.
    pub fn tick(
        &mut self,
        rules: &[Arc<RuleStats>],
        replies: Vec<(String, histogram::Counts)>,
        since: Micros,
        now: Micros,
    ) -> &Second {
        let began = self.ticked.replace(now).unwrap_or(since);
        let mut second = Second { at: now, length: now.saturating_sub(began), ..Second::default() };
        let mut took = histogram::Counts::default();
        for rule in rules {
            let news = rule.news();
            let tally = Tally::of(&news);
            took.add(&rule.took.counts());
            if tally.all() > 0 {
                second.tally.add(&tally);
                for modes in &news {
                    second.modes.iter_mut().zip(modes).for_each(|(sum, n)| *sum += n);
                }
                second.rules.push((rule.clone(), tally));
            }
        }
        second.took = took.since(&self.took);
        self.took = took;
        let none = histogram::Counts::default();
        let before = |shard: &str| self.replies.iter().find(|(known, _)| known == shard);
        let fresh = |(shard, counts): &(String, histogram::Counts)| {
            (shard.clone(), counts.since(before(shard).map_or(&none, |(_, counts)| counts)))
        };
        second.replies = replies.iter().map(fresh).collect();
        self.replies = replies;
        self.keep(second)
    }

    fn keep(&mut self, second: Second) -> &Second {
        self.parts += second.rules.len();
        self.seconds.push_back(second);
        while self.seconds.len() > SECONDS || (self.parts > MAX_PARTS && self.seconds.len() > 1) {
            let oldest = self.seconds.pop_front();
            self.parts -= oldest.map_or(0, |second| second.rules.len());
        }
        &self.seconds[self.seconds.len() - 1]
    }

    /// The last `n` seconds as one, its rules by name.
    pub fn last(&self, n: usize) -> Second {
        let mut sum = Second::default();
        let mut rules: BTreeMap<&str, (&Arc<RuleStats>, Tally)> = BTreeMap::new();
        for second in self.seconds.iter().rev().take(n) {
            sum.add(second);
            for (rule, tally) in &second.rules {
                rules.entry(&rule.name).or_insert((rule, Tally::default())).1.add(tally);
            }
        }
        sum.rules = rules.into_values().map(|(rule, tally)| (rule.clone(), tally)).collect();
        sum
    }

    /// Oldest first.
    pub fn seconds(&self) -> impl Iterator<Item = &Second> {
        self.seconds.iter()
    }
}
