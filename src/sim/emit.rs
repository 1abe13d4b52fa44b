//! A simulation as a scenario file: the same traffic, the same limiters, and what was seen as what
//! is expected from now on.

use std::fmt::Write;

use crate::engine::clock::Micros;
use crate::engine::identity::Identity;
use crate::engine::limit::{Algorithm, Limit};
use crate::output::Untrusted;
use crate::traffic::{KeySpec, Rate, Shape, Traffic};

use super::outcome::{LaneOutcome, Outcome};

/// Entries beyond which nobody would read the file.
const MAX_ENTRIES: usize = 500;
/// Straight pieces in place of one turn of a sine.
const PIECES: u64 = 16;
const MAX_LISTED_KEYS: usize = 1000;
/// What a limiter may hold a request at most.
const MAX_HOLD: Micros = Micros::HOUR;

/// What was simulated.
#[derive(Clone, Debug)]
pub enum Plan {
    Described { traffic: Traffic, keys: KeySpec, run: Micros, seed: u64 },
    Log { path: String },
}

/// The text, and what is to be told about it.
pub fn scenario(plan: &Plan, outcome: &Outcome) -> Result<(String, Vec<String>), String> {
    let mut notes = Vec::new();
    let length = outcome.end.saturating_sub(outcome.start);
    let (name, run, entries) = match plan {
        Plan::Described { traffic, keys, run, .. } => {
            let keys = keys_of(keys)?;
            let (mut entries, mut names) = (Vec::new(), Names::default());
            for shape in traffic.shapes() {
                if matches!(shape, Shape::Sine { .. }) {
                    notes.push(format!(
                        "a scenario has no sine: each turn of {shape} became {PIECES} straight ramps"
                    ));
                }
                entries.extend(pieces(shape, *run).into_iter().map(|piece| {
                    let name = quoted(&names.another(&shape.to_string(), ", part "));
                    format!("name = {name}, {piece}, keys = {keys}")
                }));
            }
            (traffic.to_string(), length, entries)
        }
        Plan::Log { path } => {
            // Windows begin at the same requests as in the log.
            let at = Micros(outcome.start.0 % Micros::DAY.0);
            let entry = format!("name = \"log\", at = \"{at}\", log = {}", quoted(path));
            (format!("log {path}"), at + length, vec![entry])
        }
    };
    if entries.len() > MAX_ENTRIES {
        return Err(format!(
            "this traffic needs {} entries in a scenario, at most {MAX_ENTRIES}; make --for shorter",
            entries.len()
        ));
    }
    let mut text = String::from("# Made by rlctl simulate: what was seen is what is expected.\n");
    let _ = writeln!(text, "name  = {}\nclock = \"virtual\"", quoted(&name));
    if let Plan::Described { seed, .. } = plan {
        let _ = writeln!(text, "seed  = {seed}");
    }
    let _ = writeln!(text, "run   = \"{run}\"\ntraffic = [");
    entries.iter().for_each(|entry| {
        let _ = writeln!(text, "  {{ {entry} }},");
    });
    text += "]\n\n[limiter]\n";
    let names = names(outcome);
    for (name, lane) in names.iter().zip(&outcome.lanes) {
        if let Some(limit) = lane.limit {
            let _ = writeln!(text, "{name} = {}", limiter(&limit));
            if longest_hold(&limit) > MAX_HOLD {
                notes.push(format!(
                    "{name} may hold requests longer than {MAX_HOLD}; a scenario refuses those"
                ));
            }
        }
    }
    text += "\n[expect]\n";
    for (name, lane) in names.iter().zip(&outcome.lanes) {
        text += &expectations(name, lane, is_exact(plan));
    }
    Ok((text, notes))
}

fn quoted(text: &str) -> String {
    toml_edit::Value::from(text).to_string()
}

/// Names that were given, so that no two parts have the same.
#[derive(Default)]
struct Names(Vec<String>);

impl Names {
    fn another(&mut self, wanted: &str, before_number: &str) -> String {
        let mut name = wanted.to_string();
        for number in 2.. {
            if !self.0.contains(&name) {
                break;
            }
            name = format!("{wanted}{before_number}{number}");
        }
        self.0.push(name.clone());
        name
    }
}

/// The entries of one shape, without their names and keys.
fn pieces(shape: &Shape, run: Micros) -> Vec<String> {
    match shape {
        Shape::Constant(rate) => vec![format!("rate = \"{rate}\", for = \"{run}\"")],
        Shape::Poisson(rate) => {
            vec![format!("rate = \"{rate}\", arrivals = \"poisson\", for = \"{run}\"")]
        }
        Shape::Ramp { from, to } => {
            vec![format!("ramp = \"{}\", for = \"{run}\"", between(from, to))]
        }
        Shape::Burst { at, .. } if *at >= run => Vec::new(),
        Shape::Burst { requests, at } => {
            vec![format!("at = \"{at}\", send = {requests}, over = \"1us\"")]
        }
        Shape::OnOff { rate, on, off } => {
            let cycle = on.0 + off.0;
            let starts = (0..run.0.div_ceil(cycle)).map(|n| n * cycle);
            starts
                .map(|at| {
                    let length = Micros(on.0.min(run.0 - at));
                    format!("at = \"{}\", rate = \"{rate}\", for = \"{length}\"", Micros(at))
                })
                .collect()
        }
        Shape::Sine { low, high, period } => sine(low.hz(), high.hz(), *period, run),
    }
}

fn between(from: &Rate, to: &Rate) -> String {
    if from.period == to.period {
        return format!("{}..{to}", from.requests);
    }
    format!("{}..{}/s", hz(from.hz()), hz(to.hz()))
}

fn hz(rate: f64) -> String {
    let text = format!("{rate:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

fn sine(low: f64, high: f64, period: Micros, run: Micros) -> Vec<String> {
    let piece = (period.0 / PIECES).max(1);
    let rate = |at: u64| {
        let turn = (at % period.0) as f64 / period.0 as f64 * std::f64::consts::TAU;
        (low + high) / 2.0 - (high - low) / 2.0 * libm::cos(turn)
    };
    let starts = (0..run.0.div_ceil(piece)).map(|n| n * piece).take(MAX_ENTRIES + 1);
    starts
        .map(|at| {
            let length = piece.min(run.0 - at);
            format!(
                "at = \"{}\", ramp = \"{}..{}/s\", for = \"{}\"",
                Micros(at),
                hz(rate(at)),
                hz(rate(at + length)),
                Micros(length)
            )
        })
        .collect()
}

fn keys_of(keys: &KeySpec) -> Result<String, String> {
    Ok(match keys {
        KeySpec::One(key) => quoted(with_dimension(key.as_str())?),
        KeySpec::Uniform(count) => {
            format!("{{ prefix = \"user:\", count = {count}, dist = \"uniform\" }}")
        }
        KeySpec::Zipf { s, count } => {
            format!("{{ prefix = \"user:\", count = {count}, dist = \"zipf\", s = {s:?} }}")
        }
        KeySpec::Hot { share, others } => format!(
            "{{ prefix = \"user:\", count = {}, dist = \"hot\", share = {share:?} }}",
            others + 1
        ),
        KeySpec::File(path) => {
            let keys = keys.load(0).map_err(|e| e.to_string())?;
            if keys.count() > MAX_LISTED_KEYS {
                return Err(format!(
                    "{path} has {} keys, too many to list in a scenario (at most {MAX_LISTED_KEYS})",
                    keys.count()
                ));
            }
            let one = |number| Ok(quoted(with_dimension(&keys.name(number))?));
            let listed: Result<Vec<String>, String> = (0..keys.count() as u32).map(one).collect();
            format!("[{}]", listed?.join(", "))
        }
    })
}

/// Scenarios count by identities, simulations by any word.
fn with_dimension(key: &str) -> Result<&str, String> {
    match key.parse::<Identity>() {
        Ok(_) if key.contains(':') => Ok(key),
        _ => Err(format!(
            "a scenario knows identities, and {} is none; call it user:{0}, or leave out --emit",
            Untrusted(key)
        )),
    }
}

/// Names as they stand in a table and before an assertion.
fn names(outcome: &Outcome) -> Vec<String> {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let mut names = Names::default();
    for lane in &outcome.lanes {
        let base: String = lane.label.chars().map(plain).collect();
        names.another(&base, "-");
    }
    names.0
}

/// How long a leaky bucket makes its last request wait.
fn longest_hold(limit: &Limit) -> Micros {
    if limit.algorithm() != Algorithm::LeakyBucket || limit.requests() == 0 {
        return Micros::ZERO;
    }
    let us = u128::from(limit.capacity()) * u128::from(limit.period().0);
    Micros(u64::try_from(us.div_ceil(u128::from(limit.requests()))).unwrap_or(u64::MAX))
}

fn limiter(limit: &Limit) -> String {
    // A scenario refuses what would be held too long; here nobody was.
    let hold = match longest_hold(limit).min(MAX_HOLD) {
        Micros::ZERO => String::new(),
        hold => format!(", max_delay = \"{}\"", hold.max(Micros::MILLISECOND)),
    };
    let burst = if limit.algorithm().is_bucket() && limit.requests() > 0 {
        format!(", burst = {}", limit.capacity())
    } else {
        String::new()
    };
    format!(
        "{{ algorithm = \"{}\", limit = \"{}/{}\"{burst}{hold} }}",
        limit.algorithm(),
        limit.requests(),
        limit.period()
    )
}

/// Whether another generator would make the very same arrivals.
fn is_exact(plan: &Plan) -> bool {
    let Plan::Described { traffic, keys, .. } = plan else { return true };
    let exact = |shape: &Shape| {
        !matches!(shape, Shape::Poisson(_) | Shape::Sine { .. } | Shape::Ramp { .. })
    };
    traffic.shapes().iter().all(exact) && matches!(keys, KeySpec::One(_))
}

fn expectations(name: &str, lane: &LaneOutcome, exact: bool) -> String {
    let Some(limit) = lane.limit else { return String::new() };
    let period = limit.period();
    let worst = lane.worst.as_ref().map_or(0, |worst| worst.amount);
    if lane.allowed == 0 {
        return format!("\"{name} lets nothing through\" = \"{name}: allowed == 0\"\n");
    }
    if exact {
        return format!(
            "\"{name} lets through what it did\" = \"{name}: allowed == {}\"\n\
             \"{name} has the same fullest window\" = \"{name}: worst_window({period}) == {worst}\"\n",
            lane.allowed
        );
    }
    // Other random numbers of the same kind: four standard deviations, at least 2 %.
    let deviation = 400.0 / (lane.offered().max(1) as f64).sqrt();
    let tolerance = hz(deviation.clamp(2.0, 100.0));
    format!(
        "\"{name} lets through what it did\" = \"{name}: allowed == {} +-{tolerance}%\"\n\
         \"{name} keeps its promise\" = \"{name}: worst_window({period}) <= {}\"\n",
        lane.allowed,
        bound(&limit)
    )
}

/// The most that may pass on one key within one period.
fn bound(limit: &Limit) -> u64 {
    let requests = limit.requests();
    match limit.algorithm() {
        Algorithm::TokenBucket | Algorithm::Gcra | Algorithm::LeakyBucket => {
            limit.capacity() + requests
        }
        Algorithm::FixedWindow => 2 * requests,
        Algorithm::SlidingWindow => (2 * requests).saturating_sub(1),
        Algorithm::SlidingLog => requests,
    }
}
