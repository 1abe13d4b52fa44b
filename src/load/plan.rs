//! An arrival plan: what is to be sent when, computed ahead of sending and independent of it.

use std::fmt;
use std::sync::Arc;

use crate::engine::clock::Micros;
use crate::traffic::{Arrivals, Keys, Traffic};

/// A part of a plan, with a shape of its own.
#[derive(Clone, Debug)]
pub struct Stage {
    pub traffic: Traffic,
    pub lasts: Micros,
}

/// When a request is due, since the start, and whose it is.
pub type Planned = (Micros, u32);

/// How load is made.
#[derive(Clone, Debug)]
pub enum Mode {
    /// By the plan, whatever the target does.
    Open(Vec<Stage>),
    /// As fast as answers come, on every connection.
    Closed,
    /// What a log says, at these offsets from the start and for these keys, in order.
    Replay(Arc<Vec<Planned>>),
}

#[derive(Clone, Debug)]
pub struct Plan {
    pub mode: Mode,
    /// Sent like the rest before it, and not counted.
    pub warmup: Micros,
    pub lasts: Micros,
    pub keys: Keys,
    pub seed: u64,
}

/// Which part of a plan a worker sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub worker: u32,
    pub of: u32,
    /// Each key belongs to one worker; else requests are dealt out in turn.
    pub by_key: bool,
}

impl Part {
    pub const WHOLE: Part = Part { worker: 0, of: 1, by_key: false };

    #[inline]
    fn has(self, number: u64, key: u32) -> bool {
        let dealt = if self.by_key { u64::from(key) } else { number };
        self.of == 1 || dealt % u64::from(self.of) == u64::from(self.worker)
    }
}

impl Plan {
    pub fn end(&self) -> Micros {
        self.warmup + self.lasts
    }

    pub fn is_closed(&self) -> bool {
        matches!(self.mode, Mode::Closed)
    }

    /// How many requests are due after the warm-up, Poisson on average; none in a closed loop.
    pub fn planned(&self) -> Option<u64> {
        match &self.mode {
            Mode::Open(stages) => {
                let each = stages.iter().map(|stage| stage.traffic.expected(stage.lasts));
                Some(each.fold(0, u64::saturating_add))
            }
            Mode::Replay(all) => Some(all.len() as u64),
            Mode::Closed => None,
        }
    }

    /// The planned moments and keys of one worker, in order; none in a closed loop.
    pub(super) fn moments(&self, part: Part) -> Moments {
        let stages = match &self.mode {
            Mode::Open(stages) => {
                let warm = stages.first().filter(|_| self.warmup > Micros::ZERO);
                let warm = warm.map(|first| Stage { lasts: self.warmup, ..first.clone() });
                warm.into_iter().chain(stages.iter().cloned()).rev().collect()
            }
            Mode::Closed | Mode::Replay(_) => Vec::new(),
        };
        let replay = match &self.mode {
            Mode::Replay(all) => Some((all.clone(), 0)),
            _ => None,
        };
        Moments {
            stages,
            replay,
            warmup: self.warmup,
            current: None,
            began: Micros::ZERO,
            ends: Micros::ZERO,
            keys: self.keys.clone(),
            number: 0,
            seed: self.seed,
            part,
        }
    }
}

/// The planned moments of one worker.
pub(super) struct Moments {
    /// Those to come, the next one last.
    stages: Vec<Stage>,
    /// A log, and how far it was sent.
    replay: Option<(Arc<Vec<Planned>>, usize)>,
    warmup: Micros,
    current: Option<Arrivals>,
    began: Micros,
    ends: Micros,
    keys: Keys,
    number: u64,
    seed: u64,
    part: Part,
}

impl fmt::Debug for Moments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Moments").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Moments {
    /// Any key of the plan, for a loop that has no moments.
    pub(super) fn any_key(&mut self) -> u32 {
        self.keys.draw()
    }

    fn next_of_all(&mut self) -> Option<Planned> {
        if let Some((all, at)) = &mut self.replay {
            let (due, key) = *all.get(*at)?;
            *at += 1;
            return Some((self.warmup + due, key));
        }
        loop {
            if let Some(due) = self.current.as_mut().and_then(Iterator::next) {
                return Some((self.began + due, self.keys.draw()));
            }
            let stage = self.stages.pop()?;
            self.began = self.ends;
            self.ends = self.began + stage.lasts;
            // Each stage has numbers of its own.
            self.seed = self.seed.wrapping_add(1);
            self.current = Some(stage.traffic.arrivals(stage.lasts, self.seed));
        }
    }
}

impl Iterator for Moments {
    type Item = Planned;

    fn next(&mut self) -> Option<Planned> {
        loop {
            let (due, key) = self.next_of_all()?;
            let number = self.number;
            self.number += 1;
            if self.part.has(number, key) {
                return Some((due, key));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::KeySpec;

    fn plan(warmup: Micros) -> Plan {
        let stage = |text: &str, s: u64| Stage {
            traffic: text.parse().unwrap(),
            lasts: Micros(s * Micros::SECOND.0),
        };
        let stages = vec![stage("constant:10/s", 2), stage("poisson:100/s+burst:5@1s", 3)];
        let keys: KeySpec = "uniform:20".parse().unwrap();
        let lasts = Micros(5 * Micros::SECOND.0);
        Plan { mode: Mode::Open(stages), warmup, lasts, keys: keys.load(1).unwrap(), seed: 1 }
    }

    #[test]
    fn stages_follow_each_other_and_a_warm_up_comes_before() {
        let all: Vec<u64> =
            plan(Micros::SECOND).moments(Part::WHOLE).map(|(due, _)| due.0).collect();
        assert!(all.is_sorted());
        let within = |s: u64| all.iter().filter(|due| **due / 1_000_000 == s).count();
        assert_eq!([within(0), within(1), within(2)], [10, 10, 10]);
        assert!((60..150).contains(&within(3)) && within(6) == 0, "{} {}", within(3), within(6));
        assert!(all.iter().filter(|due| **due == 4_000_000).count() >= 5);
    }

    #[test]
    fn workers_share_a_plan_without_losing_or_doubling_any_of_it() {
        for by_key in [false, true] {
            let whole: Vec<_> = plan(Micros::ZERO).moments(Part::WHOLE).collect();
            let mut parts: Vec<_> = (0..3)
                .flat_map(|worker| plan(Micros::ZERO).moments(Part { worker, of: 3, by_key }))
                .collect();
            parts.sort_by_key(|(due, _)| *due);
            let mut sorted = whole.clone();
            sorted.sort_unstable();
            parts.sort_unstable();
            assert_eq!(parts, sorted, "{by_key}");
        }
    }
}
