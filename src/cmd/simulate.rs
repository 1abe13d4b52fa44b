//! `rlctl simulate`: what limits do to traffic, in virtual time. This file has the arguments and
//! what they mean together; `simulate_run.rs` runs, `simulate_print.rs` shows.

use super::limit_args::LimitArgs;
use super::{Context, Exit, Failure, simulate_policy, simulate_run, simulate_trace};
use crate::engine::clock::Micros;
use crate::engine::limit::{Algorithm, Limit, Quota};
use crate::engine::units;
use crate::sim::lane::LaneSpec;
use crate::sim::nodes::{Counting, Nodes};
use crate::sim::run::MAX_LANES;
use crate::traffic::keys::parse_share;
use crate::traffic::log::{Field, LogFormat};
use crate::traffic::{KeySpec, Traffic};

const MAX_RUN: Micros = Micros(366 * Micros::DAY.0);
const MAX_NODES: u16 = 1000;

/// See what limits do to traffic, in virtual time
///
/// Every limiter meets the same requests: traffic that you describe, an access log, or a trace.
/// Shown are what passed and when, the fullest window, who was denied and for how long, and one line
/// of what to take home. Nothing is sent anywhere, minutes take milliseconds, and the same seed
/// gives the same bytes.
///
/// Traffic: constant:120/s, poisson:120/s, ramp:0..500/s, sine:100..500/s:60s, burst:500@30s (once),
/// onoff:500/s:10s:20s, joined by +. Keys: one:user:1, uniform:1000, zipf:1.1:100k, hot:5%:1000 (one
/// key gets 5 %, the rest is spread over 1000), file:PATH (a key a line).
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rlctl simulate --limit 100/1m --algorithm all --traffic poisson:2/s+burst:200@59s --for 3m
  rlctl simulate --limit 10/s --traffic poisson:5k/s --keys zipf:1.1:1000 --html review.html
  rlctl simulate --limit 60/1m --log access.log.gz
  rlctl simulate --limit 60/1m --log app.json --key user.id --what-if limit=30,60,120
  rlctl simulate --limit 1/1m --log access.log --suggest --budget 0.1%
  rlctl simulate --rules rules.toml --log access.log
  rlctl simulate --limit 100/s --traffic poisson:150/s --nodes 4 --sync 500ms
  rlctl simulate --limit 100/1m --traffic burst:200@59s --for 2m --emit burst.toml
  rlctl simulate --limit 100/1m --trace requests.csv --decisions out.ndjson
  zcat requests.csv.gz | rlctl simulate --limit 10/s --trace - --decisions -
  rlctl simulate --limit 10/s --trace requests.csv --store redis://127.0.0.1:6379")]
pub(super) struct Args {
    #[command(flatten)]
    limits: LimitArgs,
    /// What comes, e.g. poisson:120/s+burst:500@30s
    #[arg(long, value_name = "SPEC", conflicts_with_all = ["log", "trace"])]
    pub(super) traffic: Option<Traffic>,
    /// Whom it is for, e.g. zipf:1.1:100k [default: one:user:1]
    #[arg(long, value_name = "SPEC")]
    pub(super) keys: Option<KeySpec>,
    /// How long [default: 1m]
    #[arg(long = "for", value_name = "D", value_parser = units::parse_duration)]
    pub(super) run: Option<Micros>,
    /// Another number, other traffic of the same kind
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) seed: u64,
    /// An access log, plain or gzipped; - is stdin
    #[arg(long, value_name = "FILE", conflicts_with = "trace")]
    pub(super) log: Option<String>,
    /// common, combined, json or csv [default: as the first line looks]
    #[arg(long, value_name = "FORMAT", value_parser = parse_format)]
    pub(super) format: Option<LogFormat>,
    /// What a limit counts by: ip, user, apikey, path, agent, header:NAME, a JSON path or a column
    /// [default: ip]
    #[arg(long, value_name = "FIELD")]
    pub(super) key: Option<Field>,
    /// Where JSON and CSV have the time [default: time, timestamp, ts and the like]
    #[arg(long, value_name = "FIELD")]
    pub(super) time: Option<String>,
    /// CSV with the header t_us,key,cost (Unix microseconds; keys are opaque), decided in file order
    /// at the times it names; - is stdin
    #[arg(long, value_name = "FILE")]
    pub(super) trace: Option<String>,
    /// Write every decision of a trace, one JSON object a line; - is stdout, and then nothing else
    /// is. Needs one limit and one algorithm
    #[arg(long, value_name = "FILE")]
    decisions: Option<String>,
    /// Where the buckets of a trace live: memory, or the URL of a Redis, under a prefix of its own
    /// that is removed at the end [default: memory, or --redis]
    #[arg(long, value_name = "memory|URL")]
    store: Option<String>,
    /// Try other numbers as well: limit=80,100,150 or burst=10,20
    #[arg(long, value_name = "WHAT=N,N…", value_parser = parse_what_if)]
    what_if: Option<WhatIf>,
    /// Find the smallest limit that denies at most --budget of all keys
    #[arg(long, conflicts_with_all = ["what_if", "nodes", "emit"])]
    pub(super) suggest: bool,
    /// The share of keys that may be denied at least once
    #[arg(long, value_name = "SHARE", default_value = "0.1%", value_parser = parse_share, requires = "suggest")]
    pub(super) budget: f64,
    /// So many nodes take the requests, each at random
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(2..=i64::from(MAX_NODES)))]
    nodes: Option<u16>,
    /// Each node counts alone, against the whole limit
    #[arg(long, requires = "nodes", conflicts_with = "sync")]
    local: bool,
    /// Each node counts alone, and hears of the others this often
    #[arg(long, value_name = "D", value_parser = units::parse_duration, requires = "nodes")]
    sync: Option<Micros>,
    /// The nodes' clocks lie this far apart, and each stamps with its own
    #[arg(long, value_name = "D", value_parser = units::parse_duration, requires = "nodes")]
    skew: Option<Micros>,
    /// Count where the others decide otherwise than this algorithm, e.g. sliding-log
    #[arg(long, value_name = "ALGORITHM", conflicts_with_all = ["nodes", "suggest"])]
    against: Option<Algorithm>,
    /// Draw it into an SVG file
    #[arg(long, value_name = "FILE")]
    pub(super) svg: Option<String>,
    /// Write one page with everything, for a review
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<String>,
    /// Write it as a scenario, with what was seen as what is expected
    #[arg(long, value_name = "FILE", conflicts_with = "nodes")]
    pub(super) emit: Option<String>,
}

#[derive(Clone, Debug)]
struct WhatIf {
    what: Varied,
    values: Vec<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Varied {
    Limit,
    Burst,
}

fn parse_what_if(text: &str) -> Result<WhatIf, String> {
    let form = || format!("`{text}` is not a question; write limit=80,100,150 or burst=10,20");
    let (what, values) = text.split_once('=').ok_or_else(form)?;
    let what = match what {
        "limit" => Varied::Limit,
        "burst" => Varied::Burst,
        _ => return Err(form()),
    };
    let values: Result<Vec<u64>, _> = values.split(',').map(units::parse_count).collect();
    let mut values = values.map_err(|e| e.to_string())?;
    values.sort_unstable();
    values.dedup();
    Ok(WhatIf { what, values })
}

pub(super) fn parse_format(text: &str) -> Result<LogFormat, String> {
    let found = LogFormat::ALL.into_iter().find(|format| format.name() == text);
    found.ok_or_else(|| format!("`{text}` is not a format; there are common, combined, json, csv"))
}

pub(super) async fn run(args: Args, context: &Context) -> Result<Exit, Failure> {
    if args.traffic.is_none() && args.log.is_none() && args.trace.is_none() {
        return Err(Failure::usage(
            "say what comes: --traffic poisson:100/s, --log access.log, or --trace requests.csv",
        ));
    }
    args.refuse_misplaced()?;
    if args.run.is_some_and(|run| run == Micros::ZERO || run > MAX_RUN) {
        return Err(Failure::usage("--for is out of range; from 1us to 366d"));
    }
    if !args.limits.are_given() {
        if context.rules.is_none() {
            return Err(Failure::usage(
                "give at least one --limit, e.g. --limit 100/1m, or --rules FILE",
            ));
        }
        args.refuse_with_rules()?;
        return simulate_policy::run(args, context).await;
    }
    if let (Some(trace), false) = (&args.trace, args.wants_a_picture()) {
        let order = simulate_trace::Order {
            limits: args.limits.limits(context)?,
            trace: trace.clone(),
            decisions: args.decisions,
            store: args.store,
        };
        return simulate_trace::run(order, context).await;
    }
    args.refuse_in_pictures()?;
    let limits = args.varied(args.limits.limits(context)?)?;
    let specs = args.lanes(&limits)?;
    simulate_run::run(args, limits, specs, context).await
}

impl Args {
    /// Anything that only a simulation in memory can give.
    fn wants_a_picture(&self) -> bool {
        self.svg.is_some()
            || self.html.is_some()
            || self.emit.is_some()
            || self.what_if.is_some()
            || self.suggest
            || self.nodes.is_some()
            || self.against.is_some()
    }

    /// What says nothing about this input, and so was not meant.
    fn refuse_misplaced(&self) -> Result<(), Failure> {
        let given = [
            ("--keys", "--traffic", self.keys.is_some() && self.traffic.is_none()),
            ("--for", "--traffic", self.run.is_some() && self.traffic.is_none()),
            ("--format", "--log", self.format.is_some() && self.log.is_none()),
            ("--key", "--log", self.key.is_some() && self.log.is_none()),
            ("--time", "--log", self.time.is_some() && self.log.is_none()),
            ("--decisions", "--trace", self.decisions.is_some() && self.trace.is_none()),
            ("--store", "--trace", self.store.is_some() && self.trace.is_none()),
        ];
        match given.into_iter().find(|(_, _, misplaced)| *misplaced) {
            Some((flag, input, _)) => Err(Failure::usage(format!("{flag} goes with {input}"))),
            None => Ok(()),
        }
    }

    fn refuse_in_pictures(&self) -> Result<(), Failure> {
        let given = [("--decisions", self.decisions.is_some()), ("--store", self.store.is_some())];
        match given.into_iter().find(|(_, given)| *given) {
            Some((flag, _)) => Err(Failure::usage(format!(
                "{flag} is for a plain run of a trace; leave it out, or --svg, --html, --emit, --what-if, --suggest, --nodes and --against"
            ))),
            None => Ok(()),
        }
    }

    fn refuse_with_rules(&self) -> Result<(), Failure> {
        let given = [
            ("--trace", self.trace.is_some()),
            ("--what-if", self.what_if.is_some()),
            ("--suggest", self.suggest),
            ("--nodes", self.nodes.is_some()),
            ("--against", self.against.is_some()),
            ("--emit", self.emit.is_some()),
        ];
        match given.into_iter().find(|(_, given)| *given) {
            Some((flag, _)) => Err(Failure::usage(format!(
                "{flag} goes with --limit, not with a rules file; give --limit 100/1m as well to leave the rules aside"
            ))),
            None => Ok(()),
        }
    }

    /// The limits, and what else is asked about them.
    fn varied(&self, limits: Vec<Limit>) -> Result<Vec<Limit>, Failure> {
        let Some(WhatIf { what, values }) = &self.what_if else { return Ok(limits) };
        let mut all = Vec::new();
        for base in limits {
            let quota = quota_of(&base);
            // The given one is one of those that are compared.
            let own = match what {
                Varied::Limit => base.requests(),
                Varied::Burst => base.capacity(),
            };
            let mut values = values.clone();
            values.push(own);
            values.sort_unstable();
            values.dedup();
            for value in values {
                let quota = match what {
                    Varied::Limit => Quota { requests: value, ..quota },
                    Varied::Burst => Quota { burst: Some(value), ..quota },
                };
                all.push(Limit::new(base.algorithm(), quota).map_err(Failure::usage)?);
            }
        }
        Ok(all)
    }

    fn lanes(&self, limits: &[Limit]) -> Result<Vec<LaneSpec>, Failure> {
        let mut limits = limits.to_vec();
        if let Some(algorithm) = self.against {
            for limit in limits.clone() {
                let quota = Quota { burst: None, ..quota_of(&limit) };
                let exact = Limit::new(algorithm, quota).map_err(Failure::usage)?;
                if !limits.iter().any(|other| same_quota(other, &exact)) {
                    limits.push(exact);
                }
            }
        }
        let first = limits.first().map(|limit| limit.to_string());
        let one_quota = limits
            .iter()
            .all(|l| (l.requests(), l.period()) == (limits[0].requests(), limits[0].period()));
        let one_algorithm = limits.iter().all(|l| l.algorithm() == limits[0].algorithm());
        let label = |limit: &Limit| match (limits.len(), one_quota && !one_algorithm) {
            (_, true) if limits.len() <= Algorithm::ALL.len() => {
                limit.algorithm().name().to_string()
            }
            (1, _) => format!("{} {}", limit.algorithm(), first.clone().unwrap_or_default()),
            _ => format!("{} {limit}", limit.algorithm()),
        };
        let mut specs = Vec::new();
        for limit in &limits {
            let exact = specs.len();
            let reference =
                self.against.filter(|a| *a != limit.algorithm()).and_then(|algorithm| {
                    let is_it = |l: &Limit| l.algorithm() == algorithm && same_rate(l, limit);
                    limits.iter().position(is_it)
                });
            specs.push(LaneSpec { label: label(limit), limit: *limit, nodes: None, reference });
            if let Some(nodes) = self.several_nodes()? {
                specs.push(LaneSpec {
                    label: format!("{} {}", limit.algorithm(), nodes.label()),
                    limit: *limit,
                    nodes: Some(nodes),
                    reference: Some(exact),
                });
            }
        }
        if specs.len() > MAX_LANES {
            return Err(Failure::usage(format!(
                "{} limiters are too many to compare; at most {MAX_LANES}",
                specs.len()
            )));
        }
        Ok(specs)
    }

    fn several_nodes(&self) -> Result<Option<Nodes>, Failure> {
        let Some(count) = self.nodes else { return Ok(None) };
        let counting = match (self.local, self.sync) {
            (true, _) => Counting::Local,
            (false, Some(Micros(0))) => return Err(Failure::usage("--sync needs at least 1us")),
            (false, Some(every)) => Counting::Sync(every),
            (false, None) => Counting::Shared,
        };
        if counting == Counting::Shared && self.skew.is_none() {
            return Err(Failure::usage(
                "say how the nodes count: --local (each alone), --sync 500ms, or --skew 200ms (one store, their own clocks)",
            ));
        }
        Ok(Some(Nodes::new(count, counting, self.skew.unwrap_or_default())))
    }
}

/// What a limit was written as.
pub(super) fn quota_of(limit: &Limit) -> Quota {
    let apart = limit.algorithm().is_bucket() && limit.capacity() != limit.requests();
    Quota {
        requests: limit.requests(),
        period: limit.period(),
        burst: apart.then(|| limit.capacity()),
    }
}

fn same_rate(a: &Limit, b: &Limit) -> bool {
    (a.requests(), a.period()) == (b.requests(), b.period())
}

fn same_quota(a: &Limit, b: &Limit) -> bool {
    a.algorithm() == b.algorithm() && same_rate(a, b)
}
