//! The most that passed on one key in any interval of a length. What passed within the last such
//! interval waits in one queue, whoever's it was: memory is bounded by what passes in one period,
//! not by how long the run is. Limiters of the same period share it, each with a bit of its own.

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

/// One limiter's part of it.
#[derive(Debug)]
struct Sums {
    lane: usize,
    /// What passed within the last period, by key.
    costs: Vec<u64>,
    worst: Worst,
}

#[derive(Debug)]
pub struct Windows {
    period: Micros,
    /// What passed and has not been counted yet stands behind `counted`, what has left its last
    /// window before `gone`.
    queue: Vec<Passed>,
    gone: usize,
    counted: usize,
    keys: usize,
    sums: Vec<Sums>,
}

impl Windows {
    pub fn new(period: Micros) -> Windows {
        Windows { period, queue: Vec::new(), gone: 0, counted: 0, keys: 0, sums: Vec::new() }
    }

    /// Of one limiter alone, number 0.
    pub fn of_one(period: Micros) -> Windows {
        let mut windows = Windows::new(period);
        windows.join(0);
        windows
    }

    /// One more limiter, before anything has passed; at most 32.
    pub fn join(&mut self, lane: usize) {
        self.sums.push(Sums { lane, costs: Vec::new(), worst: Worst::default() });
    }

    pub fn lanes(&self) -> u32 {
        self.sums.iter().fold(0, |lanes, sums| lanes | 1 << sums.lane)
    }

    /// When something passed last.
    pub fn latest(&self) -> Micros {
        self.queue.last().map_or(Micros::ZERO, Passed::at)
    }

    /// Something passed on these limiters, so long after the beginning (at most 142 years); times
    /// never fall. It is not counted before [`Windows::count`].
    #[inline]
    pub fn passed(&mut self, at: Micros, key: u32, cost: u32, lanes: u32) {
        let at = at.0 & (u64::MAX >> COST_BITS);
        self.keys = self.keys.max(key as usize + 1);
        let mut left = cost;
        while left > 0 {
            let part = left.min(MAX_COST);
            self.queue.push(Passed { at_and_cost: at << COST_BITS | u64::from(part), key, lanes });
            left -= part;
        }
    }

    /// Counts what passed, one limiter after the other: the sums of one stay close to the processor
    /// meanwhile, those of all would not.
    pub fn count(&mut self) {
        let mut gone = self.gone;
        for sums in &mut self.sums {
            if sums.costs.len() < self.keys {
                sums.costs.resize(self.keys + self.keys / 2, 0);
            }
            gone = sums.count(&self.queue, self.gone, self.counted, self.period);
        }
        (self.gone, self.counted) = (gone, self.queue.len());
        if self.gone > self.queue.len() / 2 {
            self.queue.drain(..self.gone);
            self.counted -= self.gone;
            self.gone = 0;
        }
    }

    /// Of this limiter, if it is one of these.
    pub fn worst(&self, lane: usize) -> Option<Worst> {
        self.sums.iter().find(|sums| sums.lane == lane).map(|sums| sums.worst)
    }

    pub fn period(&self) -> Micros {
        self.period
    }
}

impl Sums {
    /// Counts from `from` on, and leaves out again what is a period older; says where that ends.
    /// Without branches on whose it was: they could not be foretold.
    fn count(&mut self, queue: &[Passed], mut gone: usize, from: usize, period: Micros) -> usize {
        let (shift, costs) = (self.lane, &mut self.costs[..]);
        let own = |passed: &Passed| passed.cost() * u64::from(passed.lanes >> shift & 1);
        for passed in &queue[from..] {
            let at = passed.at();
            while queue[gone].at() + period <= at {
                costs[queue[gone].key as usize] -= own(&queue[gone]);
                gone += 1;
            }
            let sum = &mut costs[passed.key as usize];
            *sum += own(passed);
            if *sum > self.worst.cost {
                self.worst = Worst { cost: *sum, at, key: passed.key };
            }
        }
        gone
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
            let mut windows = Windows::new(Micros(50));
            (0..2).for_each(|lane| windows.join(lane));
            let (mut at, mut passed) = (0, [Vec::new(), Vec::new()]);
            for _ in 0..100 {
                at += rng.below(20);
                let (key, cost, lanes) =
                    (rng.below(3) as u32, 1 + rng.below(10_000) as u32, rng.below(4) as u32);
                windows.passed(Micros(at), key, cost, lanes);
                if rng.below(5) == 0 {
                    windows.count();
                }
                for (lane, passed) in passed.iter_mut().enumerate() {
                    if lanes >> lane & 1 == 1 {
                        passed.push((at, key, cost));
                    }
                }
            }
            windows.count();
            for (lane, passed) in passed.iter().enumerate() {
                assert_eq!(windows.worst(lane).unwrap().cost, exact(passed, 50), "round {round}");
            }
        }
    }
}
