//! The most that passed on one key in any interval of a length. What passed within the last such
//! interval waits in one queue, whoever's it was: memory is bounded by what passes in one period,
//! not by how long the run is. Limiters of the same period share it, each with a bit of its own.

use std::collections::VecDeque;

use crate::engine::clock::Micros;

/// The fullest window so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Worst {
    pub cost: u64,
    /// When it was full, from the beginning: the window ends here.
    pub at: Micros,
    pub key: u32,
}

/// Small, because all that passes in a period waits.
#[derive(Clone, Copy, Debug)]
struct Passed {
    /// The time, and behind it the cost in 12 bits: larger ones wait in pieces.
    at_and_cost: u64,
    key: u32,
    /// On which limiters.
    lanes: u32,
}

const COST_BITS: u32 = 12;
const MAX_COST: u32 = (1 << COST_BITS) - 1;

impl Passed {
    fn at(&self) -> Micros {
        Micros(self.at_and_cost >> COST_BITS)
    }

    fn cost(&self) -> u64 {
        self.at_and_cost & u64::from(MAX_COST)
    }
}

#[derive(Debug)]
pub struct Windows {
    period: Micros,
    lanes: usize,
    queue: VecDeque<Passed>,
    /// What passed within the last period, by key and then by limiter.
    costs: Vec<u64>,
    worst: Vec<Worst>,
}

impl Windows {
    /// At most 32 limiters.
    pub fn new(period: Micros, lanes: usize) -> Windows {
        Windows {
            period,
            lanes,
            queue: VecDeque::new(),
            costs: Vec::new(),
            worst: vec![Worst::default(); lanes],
        }
    }

    pub fn period(&self) -> Micros {
        self.period
    }

    /// When something passed last.
    pub fn latest(&self) -> Micros {
        self.queue.back().map_or(Micros::ZERO, Passed::at)
    }

    /// Something passed on these limiters, so long after the beginning (at most 142 years); times
    /// never fall.
    #[inline]
    pub fn add(&mut self, at: Micros, key: u32, cost: u32, lanes: u32) {
        let at = Micros(at.0 & (u64::MAX >> COST_BITS));
        while let Some(first) = self.queue.front() {
            if first.at() + self.period > at {
                break;
            }
            let gone = *first;
            self.each(gone.key, gone.lanes, |sum, _| *sum -= gone.cost());
            self.queue.pop_front();
        }
        let mut left = cost;
        while left > 0 {
            let part = left.min(MAX_COST);
            let at_and_cost = at.0 << COST_BITS | u64::from(part);
            self.queue.push_back(Passed { at_and_cost, key, lanes });
            left -= part;
        }
        self.each(key, lanes, |sum, worst| {
            *sum += u64::from(cost);
            if *sum > worst.cost {
                *worst = Worst { cost: *sum, at, key };
            }
        });
    }

    #[inline]
    fn each(&mut self, key: u32, mut lanes: u32, mut change: impl FnMut(&mut u64, &mut Worst)) {
        let first = key as usize * self.lanes;
        if first + self.lanes > self.costs.len() {
            let needed = first + self.lanes;
            self.costs.resize(needed + needed / 2, 0);
        }
        while lanes != 0 {
            let lane = lanes.trailing_zeros() as usize;
            change(&mut self.costs[first + lane], &mut self.worst[lane]);
            lanes &= lanes - 1;
        }
    }

    pub fn worst(&self, lane: usize) -> Worst {
        self.worst[lane]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same by looking at every interval that begins with something.
    fn exact(passed: &[(u64, u32, u32)], period: u64) -> u64 {
        let within = |from: u64, key: u32| {
            passed
                .iter()
                .filter(|(at, k, _)| *k == key && (from..from + period).contains(at))
                .map(|(_, _, cost)| u64::from(*cost))
                .sum::<u64>()
        };
        passed.iter().map(|(at, key, _)| within(*at, *key)).max().unwrap_or(0)
    }

    #[test]
    fn it_is_the_fullest_of_all_intervals() {
        let mut rng = crate::traffic::Rng::new(1, 0);
        for round in 0..200 {
            let mut windows = Windows::new(Micros(50), 2);
            let (mut at, mut passed) = (0, [Vec::new(), Vec::new()]);
            for _ in 0..100 {
                at += rng.below(20);
                let (key, cost, lanes) =
                    (rng.below(3) as u32, 1 + rng.below(10_000) as u32, rng.below(4) as u32);
                windows.add(Micros(at), key, cost, lanes);
                for (lane, passed) in passed.iter_mut().enumerate() {
                    if lanes >> lane & 1 == 1 {
                        passed.push((at, key, cost));
                    }
                }
            }
            for (lane, passed) in passed.iter().enumerate() {
                assert_eq!(windows.worst(lane).cost, exact(passed, 50), "round {round}");
            }
        }
    }
}
