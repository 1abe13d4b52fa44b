//! Checks per second of the memory store beside the `governor` crate's keyed limiter, in one run:
//! the contestants alternate in random order, medians are compared, and rounds in which the
//! machine gave its time to others are dropped. Every round begins with checks that are not timed,
//! on the threads that are timed: a thread that starts on another core than the last one ran on finds
//! its data in that one's cache. `cargo bench --bench memory [-- --quick] [ALGORITHM…]`

use std::hint::black_box;
use std::num::NonZeroU32;
use std::process::Command;
use std::sync::{Arc, Barrier};
use std::time::Instant;

use governor::clock::MonotonicClock;
use governor::middleware::NoOpMiddleware;
use governor::state::keyed::DashMapStateStore;
use governor::{DefaultKeyedRateLimiter, Quota as GovernorQuota, RateLimiter};
use rlctl::engine::identity::Identity;
use rlctl::engine::limit::{Algorithm, Cost, Limit, Quota};
use rlctl::engine::store::{Check, MemoryStore, RuleLimit};

#[path = "support/machine.rs"]
mod machine;
#[path = "support/rng.rs"]
mod rng;
use machine::{median, settings, stolen_share};
use rng::Rng;

/// Slow to refill, so that every key stays in use for the whole run and none may be forgotten.
const PER_HOUR: u32 = 1_000;
const CHECKS: usize = 400_000;
const WARM_UP: usize = 400_000;
const MAX_STOLEN: f64 = 0.05;
const GOVERNOR: &str = "governor";
const GOVERNOR_STD: &str = "governor, std clock";

enum Contestant {
    Governor(DefaultKeyedRateLimiter<String>),
    /// The same with the standard library's clock instead of the CPU's cycle counter.
    GovernorStdClock(GovernorOnStdClock),
    Rlctl(Box<MemoryStore>, [Arc<RuleLimit>; 1]),
}

type GovernorOnStdClock =
    RateLimiter<String, DashMapStateStore<String>, MonotonicClock, NoOpMiddleware<Instant>>;

/// Keys in the order they will ask, laid out one after the other: a request's key is in the cache
/// when it is checked, for it has just been read.
enum Requests {
    Strings(Vec<String>),
    Identities(Vec<Identity>),
}

impl Contestant {
    fn named(name: &str) -> Contestant {
        let quota = GovernorQuota::per_hour(NonZeroU32::new(PER_HOUR).expect("not zero"));
        match name.parse() {
            Ok(algorithm) => {
                let limit: Quota = format!("{PER_HOUR}/1h").parse().expect("a limit");
                let limit = Limit::new(algorithm, limit).expect("in range");
                let store = Box::new(MemoryStore::default());
                Contestant::Rlctl(store, [Arc::new(RuleLimit::new("bench", 0, limit))])
            }
            Err(_) if name == GOVERNOR => Contestant::Governor(RateLimiter::keyed(quota)),
            Err(_) => {
                let clock = MonotonicClock;
                Contestant::GovernorStdClock(RateLimiter::dashmap_with_clock(quota, clock))
            }
        }
    }

    fn requests(&self, keys: impl Iterator<Item = usize>) -> Requests {
        match self {
            Contestant::Rlctl(..) => Requests::Identities(
                keys.map(|n| Identity::opaque(&key(n)).expect("plain")).collect(),
            ),
            _ => Requests::Strings(keys.map(key).collect()),
        }
    }

    fn run(&self, requests: &Requests) {
        match (self, requests) {
            (Contestant::Governor(limiter), Requests::Strings(keys)) => {
                for key in keys {
                    black_box(&limiter.check_key(key));
                }
            }
            (Contestant::GovernorStdClock(limiter), Requests::Strings(keys)) => {
                for key in keys {
                    black_box(&limiter.check_key(key));
                }
            }
            (Contestant::Rlctl(store, limits), Requests::Identities(identities)) => {
                for identity in identities {
                    let cost = Cost::ONE;
                    let check = Check { identity, limits, cost, idempotency: None, at: None };
                    black_box(&store.check(&check));
                }
            }
            _ => unreachable!("requests are made by who runs them"),
        }
    }

    /// Nanoseconds per check, over all threads together.
    fn round(&self, keys: usize, threads: usize, seed: u64) -> f64 {
        let lists: Vec<[Requests; 2]> = (0..threads as u64)
            .map(|thread| {
                let mut rng = Rng::new(seed + thread);
                [WARM_UP, CHECKS]
                    .map(|checks| self.requests((0..checks / threads).map(|_| rng.below(keys))))
            })
            .collect();
        let together = Barrier::new(threads);
        let timed = |[warm_up, list]: &[Requests; 2]| {
            self.run(warm_up);
            together.wait();
            let start = Instant::now();
            self.run(list);
            start.elapsed().as_nanos() as f64
        };
        let longest = std::thread::scope(|scope| {
            let running: Vec<_> = lists.iter().map(|list| scope.spawn(|| timed(list))).collect();
            running.into_iter().map(|thread| thread.join().expect("it ends")).fold(0.0, f64::max)
        });
        longest / CHECKS as f64
    }
}

fn key(n: usize) -> String {
    format!("user:{n}")
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|a| a == "--bytes-of") {
        return print_bytes_per_key(&arguments[at + 1]);
    }
    let rounds = settings().rounds;
    let mut chosen: Vec<Algorithm> = arguments.iter().filter_map(|a| a.parse().ok()).collect();
    if chosen.is_empty() {
        chosen.extend(Algorithm::ALL);
    }
    println!("memory store beside governor's keyed limiter (DashMap), {PER_HOUR}/h per key");
    println!("ratio: how many checks of rlctl take the time of one of governor's");
    println!(
        "{:16} {:>8} {:>7} {:>6} {:>9} {:>6} {:>10} {:>6}",
        "", "keys", "threads", "rlctl", "governor", "ratio", "std clock", "ratio"
    );
    for keys in [1, 100_000, 1_000_000] {
        let peers = [GOVERNOR, GOVERNOR_STD].map(|name| filled(name, keys));
        for algorithm in chosen.iter().copied() {
            let ours = filled(algorithm.name(), keys);
            for threads in [1, 2] {
                let contestants = [&ours, &peers[0], &peers[1]];
                print_line(
                    algorithm.name(),
                    keys,
                    threads,
                    compare(contestants, keys, threads, rounds),
                );
            }
        }
    }
    println!("\nbytes per key at 1 000 000 keys: resident memory of a process of its own");
    for name in chosen.iter().map(|a| a.name()).chain([GOVERNOR]) {
        let child = Command::new(&arguments[0]).args(["--bytes-of", name]).output();
        print!("{}", String::from_utf8_lossy(&child.expect("runs itself").stdout));
    }
}

/// A contestant that has seen every key.
fn filled(name: &str, keys: usize) -> Contestant {
    let contestant = Contestant::named(name);
    contestant.run(&contestant.requests(0..keys));
    contestant
}

struct Outcome {
    medians: [f64; 3],
    rounds: usize,
    dropped: usize,
    stolen: f64,
}

/// Rounds of all three in an order that changes, until enough of them were undisturbed.
fn compare(contestants: [&Contestant; 3], keys: usize, threads: usize, rounds: usize) -> Outcome {
    let mut rng = Rng::new(42);
    let mut times: [Vec<f64>; 3] = Default::default();
    let (mut dropped, mut stolen) = (0, 0.0);
    while times[0].len() < rounds && dropped < 2 * rounds {
        let (first, seed) = (rng.below(3), rng.next());
        let (round, share) = stolen_share(|| {
            let order = [first, (first + 1) % 3, (first + 2) % 3];
            order.map(|i| (i, contestants[i].round(keys, threads, seed)))
        });
        if share > MAX_STOLEN {
            dropped += 1;
            continue;
        }
        stolen += share;
        round.into_iter().for_each(|(i, ns)| times[i].push(ns));
    }
    let rounds = times[0].len();
    Outcome { medians: times.map(|mut t| median(&mut t)), rounds, dropped, stolen }
}

fn print_line(name: &str, keys: usize, threads: usize, outcome: Outcome) {
    let [ours, peer, std_clock] = outcome.medians;
    let stolen = 100.0 * outcome.stolen / outcome.rounds.max(1) as f64;
    println!(
        "{name:16} {keys:>8} {threads:>7} {ours:>6.0} {peer:>9.0} {:>6.2} {std_clock:>10.0} {:>6.2}   {} rounds, {} dropped, {stolen:.1} % stolen",
        peer / ours,
        std_clock / ours,
        outcome.rounds,
        outcome.dropped,
    );
}

fn print_bytes_per_key(name: &str) {
    let keys = 1_000_000;
    let contestant = Contestant::named(name);
    let requests = contestant.requests(0..keys);
    let before = resident_bytes();
    contestant.run(&requests);
    let per_key = (resident_bytes() - before) as f64 / keys as f64;
    println!("{name:16} {per_key:>6.1}");
}

/// Resident memory of this process (0 where the system does not tell).
fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: usize = statm.split_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or(0);
    pages * 4096
}
