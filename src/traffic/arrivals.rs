//! A plan of arrivals: shapes joined by `+`, told one by one in order of time. It needs the same
//! memory whether it tells ten or ten billion.

use std::fmt;
use std::str::FromStr;

use super::rng::Rng;
use super::shape::{Shape, SpecError};
use crate::engine::clock::Micros;

/// More of them than a picture could show.
const MAX_SHAPES: usize = 64;

/// What comes: `poisson:120/s+burst:500@30s`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traffic {
    shapes: Vec<Shape>,
}

impl FromStr for Traffic {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Traffic, SpecError> {
        let shapes =
            text.split('+').map(|part| part.trim().parse()).collect::<Result<Vec<_>, _>>()?;
        if shapes.len() > MAX_SHAPES {
            let why =
                format!("{} kinds of traffic are too many; at most {MAX_SHAPES}", shapes.len());
            return Err(SpecError::Range(why));
        }
        Ok(Traffic { shapes })
    }
}

impl fmt::Display for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shapes: Vec<String> = self.shapes.iter().map(Shape::to_string).collect();
        f.write_str(&shapes.join("+"))
    }
}

impl From<Shape> for Traffic {
    fn from(shape: Shape) -> Traffic {
        Traffic { shapes: vec![shape] }
    }
}

impl Traffic {
    pub fn shapes(&self) -> &[Shape] {
        &self.shapes
    }

    /// The arrivals of a run of that length, as offsets from its start.
    pub fn arrivals(&self, run: Micros, seed: u64) -> Arrivals {
        let streams = self.shapes.iter().zip(ARRIVALS..);
        Arrivals {
            streams: streams
                .map(|(shape, purpose)| Stream::new(*shape, run, Rng::new(seed, purpose)))
                .collect(),
        }
    }

    /// How many come in a run of that length: exactly, for Poisson on average.
    pub fn expected(&self, run: Micros) -> u64 {
        self.shapes.iter().map(|shape| shape.expected(run)).fold(0, u64::saturating_add)
    }
}

/// What the seed's streams of numbers are for: keys are 0, the shapes come after.
const ARRIVALS: u64 = 1;

/// Offsets from the start of a run, in order; those of one moment in the order of their shapes.
#[derive(Clone, Debug)]
pub struct Arrivals {
    streams: Vec<Stream>,
}

impl Iterator for Arrivals {
    type Item = Micros;

    #[inline]
    fn next(&mut self) -> Option<Micros> {
        let [stream] = self.streams.as_mut_slice() else { return self.earliest() };
        let due = stream.next?;
        stream.step();
        Some(due)
    }
}

impl Arrivals {
    fn earliest(&mut self) -> Option<Micros> {
        let waiting = self.streams.iter_mut().filter(|stream| stream.next.is_some());
        let stream = waiting.min_by_key(|stream| stream.next)?;
        let due = stream.next?;
        stream.step();
        Some(due)
    }
}

#[derive(Clone, Debug)]
struct Stream {
    shape: Shape,
    run: Micros,
    /// The next one due.
    next: Option<Micros>,
    number: u64,
    poisson: Poisson,
}

/// What Poisson arrivals remember: the mean gap, and the part of a microsecond that the last one
/// was past its stamp, so that rounding does not add up.
#[derive(Clone, Debug)]
struct Poisson {
    rng: Rng,
    mean_gap: f64,
    rest: f64,
}

impl Stream {
    fn new(shape: Shape, run: Micros, rng: Rng) -> Stream {
        let mean_gap = match shape {
            Shape::Poisson(rate) => Micros::SECOND.0 as f64 / rate.hz(),
            _ => 0.0,
        };
        let poisson = Poisson { rng, mean_gap, rest: 0.0 };
        let mut stream = Stream { shape, run, next: Some(Micros::ZERO), number: 0, poisson };
        match shape {
            Shape::Poisson(_) => stream.step(),
            _ => stream.next = shape.due(0, run),
        }
        stream
    }

    #[inline]
    fn step(&mut self) {
        let Some(last) = self.next else { return };
        self.number += 1;
        self.next = match self.shape {
            Shape::Poisson(_) => {
                let gap =
                    self.poisson.rng.exponential() * self.poisson.mean_gap + self.poisson.rest;
                let whole = gap as u64;
                self.poisson.rest = gap - whole as f64;
                last.0.checked_add(whole).map(Micros).filter(|due| *due < self.run)
            }
            Shape::Constant(rate) => rate.due(self.number).filter(|due| *due < self.run),
            shape => shape.due(self.number, self.run),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrivals(text: &str, seconds: u64, seed: u64) -> Vec<u64> {
        let traffic: Traffic = text.parse().unwrap();
        traffic.arrivals(Micros(seconds * 1_000_000), seed).map(|at| at.0).collect()
    }

    #[test]
    fn a_seed_gives_the_same_arrivals_for_ever() {
        let first = arrivals("poisson:120/s", 60, 42);
        assert_eq!(first, arrivals("poisson:120/s", 60, 42));
        assert_ne!(first, arrivals("poisson:120/s", 60, 43));
        assert_eq!(first[..4], FIRST_OF_SEED_42);
    }

    const FIRST_OF_SEED_42: [u64; 4] = [10_373, 35_263, 47_419, 47_619];

    #[test]
    fn poisson_is_poisson() {
        let due = arrivals("poisson:1000/s", 1_000, 1);
        assert!(due.len().abs_diff(1_000_000) < 4_000, "{}", due.len());
        // Counts of a second vary as much as they are.
        let mut counts = vec![0.0f64; 1_000];
        due.iter().for_each(|at| counts[(at / 1_000_000) as usize] += 1.0);
        let mean = due.len() as f64 / 1_000.0;
        let variance = counts.iter().map(|c| (c - mean).powi(2)).sum::<f64>() / 999.0;
        assert!((variance / mean - 1.0).abs() < 0.2, "{variance} {mean}");
    }

    #[test]
    fn joined_traffic_is_told_in_order_and_all_of_it() {
        let due = arrivals("poisson:100/s+burst:50@5s+constant:10/s", 10, 3);
        assert!(due.is_sorted());
        assert!(due.iter().filter(|at| **at == 5_000_000).count() >= 51);
        let poisson = arrivals("poisson:100/s", 10, 3);
        assert_eq!(due.len(), poisson.len() + 50 + 100);
        // What joins it leaves the rest as it was.
        assert!(poisson.iter().all(|at| due.binary_search(at).is_ok()));
    }

    #[test]
    fn the_expected_count_is_close() {
        for text in ["poisson:100/s+ramp:0..10/s", "onoff:7/3s:5s:5s", "sine:1..9/s:7s"] {
            let traffic: Traffic = text.parse().unwrap();
            let (told, expected) =
                (arrivals(text, 100, 1).len(), traffic.expected(Micros(100_000_000)));
            assert!(told.abs_diff(expected as usize) <= 400, "{text}: {told} {expected}");
        }
        assert!("".parse::<Traffic>().is_err() && "constant:1/s+".parse::<Traffic>().is_err());
        assert!(arrivals("poisson:0/s", 10, 1).is_empty());
    }
}
