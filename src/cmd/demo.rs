//! `rlctl demo`: the six algorithms deciding on the same burst, then a gateway at work. No Redis, no
//! set-up, no waiting.

use std::sync::Arc;

use serde::Serialize;

use super::demo_gateway::{self, Seen};
use super::{Context, Exit, Failure, print};
use crate::engine::clock::Micros;
use crate::engine::identity::Identity;
use crate::engine::limit::{Algorithm, Cost, Limit};
use crate::engine::store::{Check, MemoryStore, RuleLimit};
use crate::output::{Column, List, Row, about};

const LIMIT: &str = "10/1s";
/// Requests, and when: two bursts around the turn of a second, and a few a little later.
const BURSTS: [(usize, Micros); 3] =
    [(12, Micros(900_000)), (12, Micros(1_000_000)), (6, Micros(1_500_000))];

/// Watch the six algorithms meet the same burst, and a gateway at work
///
/// Thirty requests of one client in virtual time, around the turn of a second, against six
/// limiters that all say 10 per second. Then a gateway and a backend on loopback, and twelve real
/// requests at a bucket of ten. Needs nothing and ends at once.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rlctl demo
  rlctl demo -o json")]
pub(super) struct Args {}

/// What one algorithm made of it.
struct Lane {
    algorithm: Algorithm,
    /// For every request, when it passed (held ones later than they came), or none.
    passed: Vec<Option<Micros>>,
}

#[derive(Serialize)]
struct Head<'a> {
    limit: &'static str,
    requests: usize,
    /// Twelve requests at a bucket of ten.
    gateway: &'a [Seen],
}

#[derive(Serialize)]
struct Item {
    algorithm: &'static str,
    allowed: usize,
    denied: usize,
    worst_second: usize,
    longest_hold_us: u64,
    decisions: Vec<bool>,
}

pub(super) async fn run(_args: Args, context: &Context) -> Result<Exit, Failure> {
    if context.redis_flag.is_some() {
        context.note("the demo decides in memory and does not use --redis");
    }
    let lanes: Vec<Lane> = Algorithm::ALL.into_iter().map(decide_all).collect();
    let seen = demo_gateway::ask().await?;
    if context.look.format.is_for_people() {
        print(&(picture(&lanes) + &demo_gateway::picture(&seen)))?;
        return Ok(Exit::Fine);
    }
    let items: Vec<Item> = lanes.iter().map(item).collect();
    let head = Head { limit: LIMIT, requests: arrivals().count(), gateway: &seen };
    context.print_list(&List::new(&items).head(&head), "")?;
    Ok(Exit::Fine)
}

impl Row for Item {
    /// People get a picture instead.
    fn columns() -> Vec<Column<Item>> {
        Vec::new()
    }

    const FIELDS: &'static [&'static str] =
        &["algorithm", "allowed", "denied", "worst_second", "longest_hold_us", "decisions"];
}

fn arrivals() -> impl Iterator<Item = Micros> {
    BURSTS.into_iter().flat_map(|(count, at)| std::iter::repeat_n(at, count))
}

fn decide_all(algorithm: Algorithm) -> Lane {
    let store = MemoryStore::default();
    let client = Identity::opaque("user:demo").expect("a plain name");
    let limit = Limit::new(algorithm, LIMIT.parse().expect("a limit")).expect("within range");
    let limits = [Arc::new(RuleLimit::new("demo", 0, limit))];
    let pass = |at| {
        let check = Check {
            identity: &client,
            limits: &limits,
            cost: Cost::ONE,
            idempotency: None,
            at: Some(at),
        };
        let answer = store.check(&check).expect("memory always answers");
        answer.allowed().then(|| at + answer.delay())
    };
    Lane { algorithm, passed: arrivals().map(pass).collect() }
}

impl Lane {
    fn allowed(&self) -> usize {
        self.passed.iter().flatten().count()
    }

    /// The most that passed within any one second.
    fn worst_second(&self) -> usize {
        let within = |start: Micros| {
            let window = start..start + Micros::SECOND;
            self.passed.iter().flatten().filter(|at| window.contains(at)).count()
        };
        self.passed.iter().flatten().map(|at| within(*at)).max().unwrap_or(0)
    }

    fn longest_hold(&self) -> Micros {
        let held =
            self.passed.iter().zip(arrivals()).filter_map(|(passed, came)| Some((*passed)? - came));
        held.max().unwrap_or_default()
    }
}

fn item(lane: &Lane) -> Item {
    Item {
        algorithm: lane.algorithm.name(),
        allowed: lane.allowed(),
        denied: lane.passed.len() - lane.allowed(),
        worst_second: lane.worst_second(),
        longest_hold_us: lane.longest_hold().0,
        decisions: lane.passed.iter().map(Option::is_some).collect(),
    }
}

fn picture(lanes: &[Lane]) -> String {
    let mut text = format!(
        "{} requests of one client meet six limiters that all say {LIMIT}.\n\n",
        arrivals().count()
    );
    let heads: Vec<String> = BURSTS.iter().map(|(count, at)| format!("{count} at {at}")).collect();
    let widths: Vec<usize> =
        heads.iter().zip(BURSTS).map(|(head, (count, _))| head.len().max(count)).collect();
    text += &format!("{:15}", "");
    for (head, width) in heads.iter().zip(&widths) {
        text += &format!("{head:width$}  ");
    }
    text += "passed  most/s\n";
    for lane in lanes {
        text += &format!("{:15}", lane.algorithm.name());
        let mut requests = lane.passed.iter();
        for ((count, _), width) in BURSTS.into_iter().zip(&widths) {
            let marks: String = requests
                .by_ref()
                .take(count)
                .map(|p| if p.is_some() { '#' } else { '.' })
                .collect();
            text += &format!("{marks:width$}  ");
        }
        text += &format!("{:>6}  {:>6}", lane.allowed(), lane.worst_second());
        if lane.longest_hold() > Micros::ZERO {
            text += &format!("  held {}", about(lane.longest_hold()));
        }
        text += "\n";
    }
    text += "\n# passed   . refused   most/s: most within any one second   held: longest wait\n\n";
    text += &conclusion(lanes);
    text
}

/// What to take home, from the numbers above it.
fn conclusion(lanes: &[Lane]) -> String {
    let most = lanes.iter().max_by_key(|lane| lane.worst_second()).expect("there are six");
    let least = lanes.iter().min_by_key(|lane| lane.worst_second()).expect("there are six");
    format!(
        "{} let {} through within one second, {} at most {}:\nthe same limit, another promise.\n",
        most.algorithm,
        most.worst_second(),
        least.algorithm,
        least.worst_second()
    )
}
