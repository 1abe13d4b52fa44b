//! The requests of a scenario, in the order of time: the same for every limiter that sees them.

use std::collections::HashMap;
use std::sync::Arc;

use crate::engine::clock::Micros;
use crate::engine::identity::Identity;
use crate::engine::limit::Cost;
use crate::scenario::model::{ArrivalPart, KeyPart, Scenario, Spread, TrafficPart};
use crate::traffic::trace::Request;
use crate::traffic::{Arrivals, KeySpec, Keys, SpecError, Traffic};

/// A request that is due.
#[derive(Clone, Copy, Debug)]
pub(super) struct Due {
    /// Since the start of the run.
    pub(super) at: Micros,
    pub(super) traffic: usize,
    pub(super) key: u32,
    pub(super) cost: Cost,
}

/// Every key of a scenario, by number.
#[derive(Debug, Default)]
pub(super) struct KeyTable {
    numbers: HashMap<Identity, u32>,
    pub(super) keys: Vec<Identity>,
}

impl KeyTable {
    fn number(&mut self, identity: Identity) -> u32 {
        let next = self.keys.len() as u32;
        *self.numbers.entry(identity).or_insert_with_key(|identity| {
            self.keys.push(identity.clone());
            next
        })
    }

    pub(super) fn find(&self, identity: &Identity) -> Option<u32> {
        self.numbers.get(identity).copied()
    }
}

/// All parts of the traffic, merged.
#[derive(Debug)]
pub(super) struct Plan {
    streams: Vec<Stream>,
    run: Micros,
}

#[derive(Debug)]
struct Stream {
    times: Times,
    keys: Draw,
    start: Micros,
    cost: Cost,
    next: Option<(Micros, u32, Cost)>,
}

#[derive(Debug)]
enum Times {
    Shape(Arrivals),
    Send { count: u64, sent: u64, over: Micros },
    Trace { requests: Arc<Vec<Request>>, next: usize },
}

#[derive(Debug)]
enum Draw {
    /// Numbers of the table that a draw stands for.
    Of(Keys, Vec<u32>),
    Traced(Vec<u32>),
}

impl Plan {
    pub(super) fn new(
        scenario: &Scenario,
        seed: u64,
        table: &mut KeyTable,
    ) -> Result<Plan, SpecError> {
        let mut streams = Vec::new();
        for (number, part) in scenario.traffic.iter().enumerate() {
            // Each part draws from numbers of its own: what joins it leaves the rest as it was.
            let seed = seed ^ (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            streams.push(Stream::new(part, scenario.run, seed, table)?);
        }
        Ok(Plan { streams, run: scenario.run })
    }
}

impl Iterator for Plan {
    type Item = Due;

    fn next(&mut self) -> Option<Due> {
        let waiting = self.streams.iter().enumerate();
        let (_, traffic) = waiting
            .filter_map(|(number, stream)| stream.next.map(|(at, ..)| (at, number)))
            .min()?;
        let stream = &mut self.streams[traffic];
        let (at, key, cost) = stream.next?;
        stream.step(self.run);
        Some(Due { at, traffic, key, cost })
    }
}

impl Stream {
    fn new(
        part: &TrafficPart,
        run: Micros,
        seed: u64,
        table: &mut KeyTable,
    ) -> Result<Stream, SpecError> {
        let lasts = part.lasts.min(run.saturating_sub(part.at));
        let times = match &part.arrivals {
            ArrivalPart::Shape(shape) => Times::Shape(Traffic::from(*shape).arrivals(lasts, seed)),
            ArrivalPart::Send(count) => Times::Send { count: *count, sent: 0, over: part.lasts },
            ArrivalPart::Trace(requests) => Times::Trace { requests: requests.clone(), next: 0 },
        };
        let keys = Draw::new(part, seed, table)?;
        let mut stream = Stream { times, keys, start: part.at, cost: part.cost, next: None };
        stream.step(run);
        Ok(stream)
    }

    fn step(&mut self, run: Micros) {
        let due = match &mut self.times {
            Times::Shape(arrivals) => arrivals.next().map(|at| (at, None)),
            Times::Send { count, sent, over } => (*sent < *count).then(|| {
                let at = u128::from(over.0) * u128::from(*sent) / u128::from(*count);
                *sent += 1;
                (Micros(at as u64), None)
            }),
            Times::Trace { requests, next } => requests.get(*next).map(|request| {
                let first = requests[0].at;
                *next += 1;
                (request.at - first, Some((*next - 1, request.cost)))
            }),
        };
        self.next = due.map(|(at, traced)| {
            let key = self.keys.draw(traced.map(|(number, _)| number));
            (self.start + at, key, traced.map_or(self.cost, |(_, cost)| cost))
        });
        self.next = self.next.filter(|(at, ..)| *at < run);
    }
}

impl Draw {
    fn new(part: &TrafficPart, seed: u64, table: &mut KeyTable) -> Result<Draw, SpecError> {
        let (spec, identities): (KeySpec, Vec<Identity>) = match &part.keys {
            KeyPart::One(identity) => (KeySpec::One(identity.clone()), vec![identity.clone()]),
            KeyPart::Listed(all) => (KeySpec::Uniform(all.len() as u64), all.clone()),
            KeyPart::Numbered { prefix, count, spread } => {
                let named = |n: u64| format!("{prefix}{n}").parse::<Identity>();
                let all = (1..=*count).map(named).collect::<Result<Vec<_>, _>>();
                let spec = match spread {
                    Spread::Uniform => KeySpec::Uniform(*count),
                    Spread::Zipf(s) => KeySpec::Zipf { s: *s, count: *count },
                    Spread::Hot(_) if *count == 1 => KeySpec::Uniform(1),
                    Spread::Hot(share) => KeySpec::Hot { share: *share, others: count - 1 },
                };
                (spec, all.map_err(|error| SpecError::Range(error.to_string()))?)
            }
            KeyPart::Traced => {
                let ArrivalPart::Trace(requests) = &part.arrivals else {
                    return Ok(Draw::Traced(Vec::new()));
                };
                let numbers = requests.iter().map(|request| table.number(request.key.clone()));
                return Ok(Draw::Traced(numbers.collect()));
            }
        };
        let numbers = identities.into_iter().map(|identity| table.number(identity)).collect();
        Ok(Draw::Of(spec.load(seed)?, numbers))
    }

    fn draw(&mut self, traced: Option<usize>) -> u32 {
        match self {
            Draw::Of(keys, numbers) => numbers[keys.draw() as usize],
            Draw::Traced(numbers) => {
                traced.and_then(|n| numbers.get(n)).copied().unwrap_or_default()
            }
        }
    }
}
