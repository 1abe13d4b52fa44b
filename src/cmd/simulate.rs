//! `rlctl simulate`: what limits do to a trace, in virtual time.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, IsTerminal, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use comfy_table::{CellAlignment, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::limit_args::LimitArgs;
use super::{Context, Exit, Failure, Output, print_json};
use crate::engine::clock::Micros;
use crate::engine::limit::Decision;
use crate::engine::store::keys::Prefix;
use crate::engine::store::{MemoryStore, Store};
use crate::output::{SCHEMA, Untrusted};
use crate::sim::replay::{BATCH, Replay};
use crate::traffic::trace::{Request, Trace};

/// A batch of a trace may wait longer than a check.
const BATCH_DEADLINE: Micros = Micros(10 * Micros::SECOND.0);

/// Run a trace against limits, in virtual time
///
/// Reads CSV with the header t_us,key,cost (Unix microseconds; keys are opaque) and decides every
/// line in file order at the time it names, in memory or in a real Redis: there under a prefix of
/// its own that is removed at the end.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rlctl simulate --limit 100/1m --algorithm all --trace requests.csv
  rlctl simulate --limit 100/1m --algorithm gcra --trace requests.csv --decisions out.ndjson
  zcat requests.csv.gz | rlctl simulate --limit 10/s --trace - --decisions -
  rlctl simulate --limit 10/s --trace requests.csv --store redis://127.0.0.1:6379")]
pub(super) struct Args {
    #[command(flatten)]
    limits: LimitArgs,
    /// The trace; - is stdin
    #[arg(long, value_name = "FILE")]
    trace: String,
    /// Write every decision, one JSON object a line; - is stdout, and then nothing else is.
    /// Needs one limit and one algorithm
    #[arg(long, value_name = "FILE")]
    decisions: Option<String>,
    /// Where buckets live: memory, or the URL of a Redis
    #[arg(long, value_name = "memory|URL", default_value = "memory")]
    store: String,
}

#[derive(Serialize)]
struct Report {
    schema: &'static str,
    requests: u64,
    keys: usize,
    interrupted: bool,
    items: Vec<Item>,
}

#[derive(Serialize)]
struct Item {
    algorithm: &'static str,
    limit: u64,
    period_us: u64,
    burst: Option<u64>,
    allowed: u64,
    denied: u64,
}

#[derive(Serialize)]
struct DecisionLine<'a> {
    t_us: u64,
    key: &'a str,
    cost: u64,
    allowed: bool,
    remaining: u64,
    retry_after_us: Option<u64>,
    reset_after_us: u64,
    delay_us: u64,
}

pub(super) async fn run(args: Args, context: &Context) -> Result<Exit, Failure> {
    let limits = args.limits.limits(context)?;
    if args.decisions.is_some() && limits.len() != 1 {
        return Err(Failure::usage(format!(
            "--decisions needs one limit and one algorithm, not {} of them; drop --decisions to compare",
            limits.len()
        )));
    }
    // Files first: a path that cannot be opened should not cost a connection.
    let progress = progress_bar(context, &args.trace);
    let trace = open_trace(&args.trace, &progress)?;
    let mut decisions = args.decisions.as_deref().map(create).transpose()?;
    let store = match args.store.as_str() {
        "memory" => Store::Memory(MemoryStore::unbounded()),
        url => {
            Store::Redis(context.connect(url, own_prefix(&context.prefix)?, BATCH_DEADLINE).await?)
        }
    };
    let interrupted = interruption();
    let mut replay = Replay::new(store, limits);
    let ended = replay_all(trace, &mut replay, &mut decisions, &interrupted, &args.trace).await;
    let flushed = decisions.as_mut().map_or(Ok(()), |out| out.flush());
    progress.finish_and_clear();
    let report = report(&replay, interrupted.load(Ordering::Relaxed));
    if let Err(error) = replay.clean_up().await {
        context
            .note(format!("could not remove the trace's keys ({error}); they expire within a day"));
    }
    ended?;
    flushed?;
    if args.decisions.as_deref() != Some("-") {
        print_report(context, &report)?;
    }
    Ok(if report.interrupted { Exit::Interrupted } else { Exit::Fine })
}

async fn replay_all(
    trace: Trace<Box<dyn Read>>,
    replay: &mut Replay,
    decisions: &mut Option<Box<dyn Write>>,
    interrupted: &AtomicBool,
    path: &str,
) -> Result<(), Failure> {
    let mut batch = Vec::with_capacity(BATCH);
    for request in trace {
        let broken = match request {
            Ok(request) => {
                batch.push(request);
                None
            }
            Err(error) => {
                Some(Failure::new(Exit::BadFile, format!("{}: {error}", Untrusted(path))))
            }
        };
        if broken.is_some() || batch.len() == BATCH {
            replay
                .decide(&batch, |request, decision| write_decision(decisions, request, decision))
                .await?;
            batch.clear();
        }
        if let Some(failure) = broken {
            return Err(failure);
        }
        if interrupted.load(Ordering::Relaxed) {
            return Ok(());
        }
    }
    replay.decide(&batch, |request, decision| write_decision(decisions, request, decision)).await
}

fn write_decision(
    out: &mut Option<Box<dyn Write>>,
    request: &Request,
    decision: &Decision,
) -> Result<(), Failure> {
    let Some(out) = out else { return Ok(()) };
    let line = DecisionLine {
        t_us: request.at.0,
        key: request.key.as_str(),
        cost: request.cost.get(),
        allowed: decision.allowed,
        remaining: decision.remaining,
        retry_after_us: decision.retry_after.map(|d| d.0),
        reset_after_us: decision.reset_after.0,
        delay_us: decision.delay.0,
    };
    serde_json::to_writer(&mut *out, &line).map_err(io::Error::from)?;
    Ok(writeln!(out)?)
}

/// Set when the user has had enough: what was decided until then still counts.
fn interruption() -> Arc<AtomicBool> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = interrupted.clone();
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            flag.store(true, Ordering::Relaxed);
        }
    });
    interrupted
}

/// Nobody else's keys can lie under it: it starts like theirs but has no identity behind it.
fn own_prefix(prefix: &Prefix) -> Result<Prefix, Failure> {
    let run = Micros::now().0 % 1_000_000_000_000;
    Prefix::new(&format!("{}trace-{}-{run}:", prefix.as_str(), std::process::id()))
        .map_err(|_| Failure::usage("--prefix is too long for a trace; at most 32 characters"))
}

fn open_trace(path: &str, progress: &ProgressBar) -> Result<Trace<Box<dyn Read>>, Failure> {
    let bad = |why: String| Failure::new(Exit::BadFile, format!("{}: {why}", Untrusted(path)));
    let source: Box<dyn Read> = match path {
        "-" => Box::new(io::stdin()),
        path => Box::new(File::open(path).map_err(|e| bad(format!("cannot open the trace: {e}")))?),
    };
    let source: Box<dyn Read> =
        Box::new(BufReader::with_capacity(1 << 16, progress.wrap_read(source)));
    Trace::new(source).map_err(|e| bad(e.to_string()))
}

fn create(path: &str) -> Result<Box<dyn Write>, Failure> {
    Ok(match path {
        "-" => Box::new(BufWriter::new(io::stdout())),
        path => Box::new(BufWriter::new(File::create(path).map_err(|e| {
            Failure::new(Exit::Failed, format!("cannot write --decisions {}: {e}", Untrusted(path)))
        })?)),
    })
}

fn progress_bar(context: &Context, path: &str) -> ProgressBar {
    if !context.progress || (path == "-" && io::stdin().is_terminal()) {
        return ProgressBar::hidden();
    }
    match std::fs::metadata(path) {
        Ok(file) if file.is_file() => ProgressBar::new(file.len()).with_style(
            ProgressStyle::with_template("{wide_bar} {bytes} of {total_bytes}, {eta} left")
                .expect("the template is right"),
        ),
        _ => ProgressBar::new_spinner(),
    }
}

fn report(replay: &Replay, interrupted: bool) -> Report {
    let item = |lane: &crate::sim::replay::Lane| Item {
        algorithm: lane.limit.algorithm().name(),
        limit: lane.limit.requests(),
        period_us: lane.limit.period().0,
        burst: lane.limit.algorithm().is_bucket().then(|| lane.limit.capacity()),
        allowed: lane.allowed,
        denied: lane.denied,
    };
    let items: Vec<Item> = replay.lanes().iter().map(item).collect();
    let requests = items.first().map_or(0, |lane| lane.allowed + lane.denied);
    Report { schema: SCHEMA, requests, keys: replay.keys(), interrupted, items }
}

fn print_report(context: &Context, report: &Report) -> Result<(), Failure> {
    if context.output == Output::Json {
        return print_json(report);
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header([
        "ALGORITHM",
        "LIMIT",
        "ALLOWED",
        "DENIED",
        "DENIED %",
    ]);
    for item in &report.items {
        let limit = format!("{}/{}", item.limit, Micros(item.period_us));
        let burst = item.burst.filter(|burst| *burst != item.limit);
        table.add_row([
            item.algorithm.to_string(),
            burst.map_or(limit.clone(), |burst| format!("{limit} burst {burst}")),
            item.allowed.to_string(),
            item.denied.to_string(),
            percent(item.denied, report.requests),
        ]);
    }
    for column in 2..5 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut out = io::stdout().lock();
    writeln!(out, "{} requests of {} keys", report.requests, report.keys)?;
    Ok(writeln!(out, "{}", table.trim_fmt())?)
}

fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "-".into() } else { format!("{:.2}", part as f64 * 100.0 / whole as f64) }
}
