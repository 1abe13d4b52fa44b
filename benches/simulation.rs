//! Decisions per second of a simulation, beside a plain loop that makes the same arrivals, draws the
//! same keys and runs the same arithmetic, and measures nothing. Time is taken for pieces of a few
//! milliseconds, and the median of them counts: who is put aside meanwhile loses a few pieces.
//! `cargo bench --bench simulation [-- --quick]`

use std::hint::black_box;
use std::time::Instant;

use rlctl::engine::algo::{State, check};
use rlctl::engine::clock::Micros;
use rlctl::engine::limit::{Algorithm, Cost, Limit};
use rlctl::sim::Event;
use rlctl::sim::lane::LaneSpec;
use rlctl::sim::run::{BATCH, Simulation, Span};
use rlctl::traffic::{Arrivals, KeySpec, Keys, Traffic};

#[path = "support/machine.rs"]
mod machine;
use machine::{median, settings, stolen_share};

const REQUESTS: u64 = 4_000_000;
const KEYS: usize = 100_000;
const PIECE: u64 = 40_000;
const MAX_STOLEN: f64 = 0.05;
/// A midnight, as `rlctl simulate` begins at.
const START: Micros = Micros(20_454 * Micros::DAY.0);
const RUN: Micros = Micros(40 * Micros::SECOND.0);

fn source(keys: &str) -> (Arrivals, Keys) {
    let traffic: Traffic = "poisson:100k/s".parse().expect("traffic");
    let keys: KeySpec = keys.parse().expect("keys");
    (traffic.arrivals(RUN, 1), keys.load(1).expect("keys"))
}

fn limit(algorithm: Algorithm) -> Limit {
    Limit::new(algorithm, "2/1s".parse().expect("a quota")).expect("a limit")
}

/// Takes the time of pieces of a run.
struct Pieces {
    began: Instant,
    count: u64,
    ns: Vec<f64>,
}

impl Pieces {
    fn start() -> Pieces {
        Pieces { began: Instant::now(), count: 0, ns: Vec::new() }
    }

    fn done(&mut self, decisions: u64) {
        self.count += decisions;
        if self.count >= PIECE {
            self.ns.push(self.began.elapsed().as_nanos() as f64 / self.count as f64);
            (self.began, self.count) = (Instant::now(), 0);
        }
    }
}

/// Nanoseconds per decision, and how many passed.
fn plain(algorithm: Algorithm, keys: &str) -> (f64, u64) {
    let (arrivals, mut keys) = source(keys);
    let mut states = vec![State::fresh(algorithm); KEYS];
    let limit = limit(algorithm);
    let (mut passed, mut pieces) = (0u64, Pieces::start());
    for offset in arrivals {
        let state = &mut states[keys.draw() as usize];
        let decision = check(&limit, state, START + offset, Cost::ONE);
        passed += u64::from(decision.is_some_and(|d| d.allowed));
        pieces.done(1);
    }
    (median(&mut pieces.ns), black_box(passed))
}

fn simulated(algorithms: &[Algorithm], keys: &str) -> (f64, u64) {
    let (arrivals, mut keys) = source(keys);
    let spec = |algorithm: &Algorithm| LaneSpec {
        label: algorithm.name().into(),
        limit: limit(*algorithm),
        nodes: None,
        reference: None,
    };
    let span = Span { start: Some(START), length: Some(RUN) };
    let mut simulation = Simulation::new(algorithms.iter().map(spec).collect(), span, 1);
    let mut batch = Vec::with_capacity(BATCH);
    let (mut pieces, lanes) = (Pieces::start(), algorithms.len() as u64);
    for offset in arrivals {
        batch.push(Event { at: START + offset, key: keys.draw(), cost: 1 });
        if batch.len() == BATCH {
            simulation.feed(&batch);
            pieces.done(batch.len() as u64 * lanes);
            batch.clear();
        }
    }
    simulation.feed(&batch);
    let outcome = simulation.outcome(|key| key.to_string());
    (median(&mut pieces.ns), black_box(outcome.lanes[0].allowed))
}

fn main() {
    let rounds = settings().rounds;
    println!("{REQUESTS} Poisson arrivals over {KEYS} keys, 2/1s; ns per decision\n");
    println!("{:16} {:>6} {:>8} {:>6} {:>12}", "", "plain", "simulate", "ratio", "decisions/s");
    for (name, keys) in [("uniform", "uniform:100k"), ("zipf 1.1", "zipf:1.1:100k")] {
        println!("{name}");
        let mut single = 0.0;
        for algorithm in Algorithm::ALL {
            let (mut a, mut b) = (Vec::new(), Vec::new());
            for round in 0..rounds {
                let (((p, passed), (s, same)), stolen) = stolen_share(|| {
                    if round % 2 == 0 {
                        let p = plain(algorithm, keys);
                        (p, simulated(&[algorithm], keys))
                    } else {
                        let s = simulated(&[algorithm], keys);
                        (plain(algorithm, keys), s)
                    }
                });
                assert_eq!(passed, same, "the same arithmetic");
                if stolen <= MAX_STOLEN {
                    a.push(p);
                    b.push(s);
                }
            }
            let (p, s) = (median(&mut a), median(&mut b));
            single += s;
            println!(
                "{:16} {p:>6.1} {s:>8.1} {:>6.2} {:>10.1} M",
                algorithm.name(),
                s / p,
                1e3 / s
            );
        }
        let mut all: Vec<f64> = (0..rounds).map(|_| simulated(&Algorithm::ALL, keys).0).collect();
        let all = median(&mut all) * Algorithm::ALL.len() as f64;
        println!(
            "{:16} {:>6} {all:>8.1} {:>6.2}  of six runs",
            "all six at once",
            "",
            all / single
        );
    }
}
