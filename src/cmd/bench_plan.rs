//! What is sent when: `--rps`, `--stages`, `--ramp`, `--log`, `--closed` and their neighbours.

use std::fs::File;
use std::sync::Arc;

use super::{Exit, Failure};
use crate::engine::clock::Micros;
use crate::engine::identity::Identity;
use crate::engine::units;
use crate::load::plan::{Mode, Plan, Planned, Stage};
use crate::output::Untrusted;
use crate::traffic::log::{Field, LogOptions, LogReader, Names};
use crate::traffic::{KeySpec, Keys, Rate, Shape, Traffic};

const USUAL_LENGTH: Micros = Micros(30 * Micros::SECOND.0);
/// Longer runs would outgrow what is kept of every second.
const MAX_LENGTH: Micros = Micros::DAY;
/// Requests of a log that are kept, 16 bytes each.
const MAX_REPLAYED: usize = 10_000_000;

#[derive(Debug, clap::Args)]
pub(super) struct PlanArgs {
    /// Requests per second: 500, 10k, 2.5, or 600/m
    #[arg(long, value_name = "N", value_parser = parse_rate, conflicts_with_all = ["stages", "ramp", "closed", "log"])]
    rps: Option<Rate>,
    /// How long [default: 30s, or as long as the stages]
    #[arg(long = "for", value_name = "D", value_parser = units::parse_period, conflicts_with = "stages")]
    lasts: Option<Micros>,
    /// Sent before that and not counted
    #[arg(long, value_name = "D", default_value = "0s", value_parser = parse_warmup)]
    warmup: Micros,
    /// One rate after the other, each RATE:DURATION or FROM..TO:DURATION, e.g. 1k:10s,1k..20k:1m
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_stage, conflicts_with_all = ["closed", "log"])]
    stages: Vec<StageSpec>,
    /// Rise evenly from one rate to another, then stay there: FROM..TO:DURATION
    #[arg(long, value_name = "FROM..TO:D", value_parser = parse_stage, conflicts_with_all = ["stages", "closed", "log"])]
    ramp: Option<StageSpec>,
    /// So many more at one moment: N@TIME, e.g. 500@10s; repeat for several
    #[arg(long, value_name = "N@T", conflicts_with_all = ["closed", "log"])]
    spike: Vec<String>,
    /// At random moments, as from many clients, instead of evenly spaced
    #[arg(long, conflicts_with_all = ["closed", "log"])]
    poisson: bool,
    /// No plan: each connection sends when its last answer came. Hides waiting; see docs/bench.md
    #[arg(long)]
    closed: bool,
    /// For whom: one:user:1, uniform:1000, zipf:1.1:100k, hot:5%:1000, file:PATH
    #[arg(long, value_name = "SPEC")]
    keys: Option<KeySpec>,
    /// Send what an access log says, its keys at its times: common, combined, JSON or CSV, also .gz
    #[arg(long, value_name = "FILE", conflicts_with_all = ["keys", "closed"])]
    log: Option<String>,
    /// What of a log's line is its key
    #[arg(long, value_name = "FIELD", default_value = "ip", requires = "log")]
    log_key: Field,
    /// So many times as fast as the log, e.g. 10x
    #[arg(long, value_name = "N", default_value = "1x", value_parser = parse_speed, requires = "log")]
    speed: f64,
    /// Start of all that is random
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// A log that was read.
struct Replay {
    requests: Vec<Planned>,
    keys: Keys,
    lasts: Micros,
    /// What became of its lines.
    note: String,
}

/// A stage as it was typed.
#[derive(Clone, Debug)]
pub(super) struct StageSpec {
    from: Rate,
    to: Option<Rate>,
    lasts: Micros,
}

fn parse_rate(text: &str) -> Result<Rate, String> {
    let full = if text.contains('/') { text.into() } else { format!("{text}/s") };
    let rate: Rate = full.parse().map_err(|_| {
        format!("`{text}` is not a rate; write requests per second, e.g. 500, 10k, 2.5, or 600/m")
    })?;
    Ok(rate)
}

fn parse_warmup(text: &str) -> Result<Micros, String> {
    units::parse_duration(text).map_err(|error| error.to_string())
}

fn parse_speed(text: &str) -> Result<f64, String> {
    let number = text.trim_end_matches('x').parse().ok();
    number.filter(|n| (0.001..=100_000.0).contains(n)).ok_or_else(|| {
        format!("`{text}` is not a speed; write how many times as fast, e.g. 10x, 0.5x")
    })
}

fn parse_stage(text: &str) -> Result<StageSpec, String> {
    let wrong =
        || format!("`{text}` is not a stage; write RATE:DURATION, e.g. 10k:1m or 0..10k:30s");
    let (rates, lasts) = text.rsplit_once(':').ok_or_else(wrong)?;
    let lasts =
        units::parse_duration(lasts).ok().filter(|d| *d > Micros::ZERO).ok_or_else(wrong)?;
    let (from, to) = match rates.split_once("..") {
        Some((from, to)) => (parse_rate(from)?, Some(parse_rate(to)?)),
        None => (parse_rate(rates)?, None),
    };
    Ok(StageSpec { from, to, lasts })
}

impl PlanArgs {
    pub(super) fn has_keys(&self) -> bool {
        self.keys.is_some() || self.log.is_some()
    }

    /// The plan, and what is to be said about it.
    pub(super) fn plan(&self, connections: Option<u32>) -> Result<(Plan, Option<String>), Failure> {
        if self.closed && connections.is_none() {
            return Err(Failure::usage("--closed needs to know how many clients: -c N"));
        }
        let mut note = None;
        let (mode, lasts, keys) = if let Some(path) = &self.log {
            let replay = self.replay(path)?;
            note = Some(replay.note);
            (Mode::Replay(Arc::new(replay.requests)), replay.lasts, replay.keys)
        } else if self.closed {
            (Mode::Closed, self.lasts.unwrap_or(USUAL_LENGTH), self.load_keys()?)
        } else {
            let stages = self.staged()?;
            let lasts = Micros(stages.iter().map(|stage| stage.lasts.0).sum());
            (Mode::Open(stages), lasts, self.load_keys()?)
        };
        if lasts > MAX_LENGTH {
            return Err(Failure::usage(format!("{lasts} is too long a run; at most {MAX_LENGTH}")));
        }
        if lasts == Micros::ZERO {
            return Err(Failure::usage("--for 0s is no run at all"));
        }
        Ok((Plan { mode, warmup: self.warmup, lasts, keys, seed: self.seed }, note))
    }

    fn load_keys(&self) -> Result<Keys, Failure> {
        let one = || KeySpec::One(Identity::opaque("user:1").expect("this is an identity"));
        let spec = self.keys.clone().unwrap_or_else(one);
        spec.load(self.seed).map_err(Failure::usage)
    }

    fn staged(&self) -> Result<Vec<Stage>, Failure> {
        let specs = match (&self.rps, &self.ramp) {
            // A run of spikes alone is one, too.
            (Some(rate), _) if rate.requests == 0 && self.spike.is_empty() => {
                return Err(Failure::usage(
                    "--rps 0 sends nothing; write how many requests per second, e.g. --rps 500",
                ));
            }
            (Some(rate), _) => {
                let lasts = self.lasts.unwrap_or(USUAL_LENGTH);
                vec![StageSpec { from: *rate, to: None, lasts }]
            }
            (None, Some(ramp)) => {
                let whole = self.lasts.unwrap_or(ramp.lasts);
                if whole < ramp.lasts {
                    return Err(Failure::usage("the ramp takes longer than --for"));
                }
                let rest = whole.saturating_sub(ramp.lasts);
                let stay = StageSpec { from: ramp.to.unwrap_or(ramp.from), to: None, lasts: rest };
                [ramp.clone(), stay].into_iter().filter(|s| s.lasts > Micros::ZERO).collect()
            }
            (None, None) if !self.stages.is_empty() => self.stages.clone(),
            (None, None) => {
                return Err(Failure::usage(
                    "how much? give --rps N, --stages, --ramp or --log, or --closed -c N",
                ));
            }
        };
        if self.poisson && specs.iter().any(|stage| stage.to.is_some()) {
            return Err(Failure::usage("--poisson knows steady rates only; leave out the ramp"));
        }
        let mut stages: Vec<Stage> = specs.iter().map(|spec| self.stage(spec)).collect();
        self.spikes(&mut stages)?;
        Ok(stages)
    }

    fn stage(&self, spec: &StageSpec) -> Stage {
        let shape = match spec.to {
            Some(to) => Shape::Ramp { from: spec.from, to },
            None if self.poisson => Shape::Poisson(spec.from),
            None => Shape::Constant(spec.from),
        };
        Stage { traffic: Traffic::from(shape), lasts: spec.lasts }
    }

    /// Puts each spike into the stage in which it falls.
    fn spikes(&self, stages: &mut [Stage]) -> Result<(), Failure> {
        for text in &self.spike {
            let parsed: Shape = format!("burst:{text}").parse().map_err(|_| {
                Failure::usage(format!("`{text}` is not a spike; write N@TIME, e.g. 500@10s"))
            })?;
            let Shape::Burst { requests, at } = parsed else { continue };
            let mut began = Micros::ZERO;
            let within = stages.iter_mut().find_map(|stage| {
                let here = (began..began + stage.lasts).contains(&at);
                let offset = at.saturating_sub(began);
                began = began + stage.lasts;
                here.then_some((stage, offset))
            });
            let Some((stage, at)) = within else {
                return Err(Failure::usage(format!("the spike {text} comes after the end")));
            };
            let joined = format!("{}+burst:{requests}@{at}", stage.traffic);
            stage.traffic = joined.parse().map_err(Failure::usage)?;
        }
        Ok(())
    }

    /// Reads the log; its requests by their time, its keys, and how long it takes.
    fn replay(&self, path: &str) -> Result<Replay, Failure> {
        let bad = |why: String| Failure::new(Exit::BadFile, format!("{}: {why}", Untrusted(path)));
        let file = File::open(path).map_err(|error| bad(format!("cannot open it: {error}")))?;
        let wanted = vec![self.log_key.clone()];
        let mut reader = LogReader::new(Box::new(file), LogOptions::default(), wanted)
            .map_err(|error| bad(error.to_string()))?;
        let (mut requests, mut names) = (Vec::new(), Names::default());
        while let Some(at) = reader.next_line().map_err(|error| bad(error.to_string()))? {
            let Some(key) = reader.values().get(0) else {
                reader.no_key();
                continue;
            };
            requests.push((at, names.number(key)));
            if requests.len() == MAX_REPLAYED {
                break;
            }
        }
        let report = reader.report();
        if requests.is_empty() {
            let lines = report.lines;
            return Err(bad(format!("no request could be read from its {lines} lines")));
        }
        requests.sort_by_key(|(at, _)| *at);
        let first = requests[0].0;
        let paced = |at: Micros| Micros(((at - first).0 as f64 / self.speed) as u64);
        requests.iter_mut().for_each(|(at, _)| *at = paced(*at));
        let all = Micros(requests.last().map_or(0, |(at, _)| at.0) + 1);
        let lasts = self.lasts.unwrap_or(all.max(Micros::SECOND));
        requests.retain(|(at, _)| *at < lasts);
        let list = |n| Identity::opaque(names.name(n)).unwrap_or_else(|_| Identity::everybody());
        let keys = Keys::listed((0..names.count() as u32).map(list).collect());
        let skipped = report.unreadable + report.without_key;
        let note = format!(
            "{} requests of {} keys in {lasts}, {skipped} of {} lines left out",
            requests.len(),
            names.count(),
            report.lines
        );
        Ok(Replay { requests, keys, lasts, note })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_stages_and_speeds_are_read() {
        assert_eq!(parse_rate("10k").unwrap().hz(), 10_000.0);
        assert_eq!(parse_rate("600/m").unwrap().hz(), 10.0);
        assert_eq!(parse_rate("2.5").unwrap().hz(), 2.5);
        let stage = parse_stage("1k..20k:1m").unwrap();
        assert_eq!((stage.from.hz(), stage.to.unwrap().hz()), (1_000.0, 20_000.0));
        assert_eq!(stage.lasts, Micros::MINUTE);
        assert_eq!(parse_speed("10x"), Ok(10.0));
        for (text, words) in [
            ("10k", "`10k` is not a stage"),
            ("x:1m", "`x` is not a rate"),
            ("10:", "`10:` is not a stage"),
            ("10:0s", "`10:0s` is not a stage"),
            ("1..:5s", "`` is not a rate"),
        ] {
            let told = parse_stage(text).unwrap_err();
            assert!(told.starts_with(words), "{text}: {told}");
        }
        assert!(parse_speed("0x").is_err() && parse_rate("many").is_err());
    }
}
