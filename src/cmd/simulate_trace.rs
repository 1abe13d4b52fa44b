//! `rlctl simulate --trace`: every line decided in file order, on any store.

use std::fs::File;
use std::io::{self, BufRead, BufWriter, IsTerminal, Read, Write};

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use tokio::sync::mpsc;

use super::{Context, Exit, Failure};
use crate::engine::clock::Micros;
use crate::engine::limit::{Decision, Limit};
use crate::engine::store::keys::Prefix;
use crate::engine::store::{MemoryStore, Store};
use crate::output::{Column, List, Row, Untrusted};
use crate::sim::replay::{BATCH, Replay};
use crate::traffic::gzip;
use crate::traffic::trace::{Request, Trace};

/// A batch of a trace may wait longer than a check.
const BATCH_DEADLINE: Micros = Micros(10 * Micros::SECOND.0);
const CLEAN_UP_WITHIN: Micros = Micros(5 * Micros::SECOND.0);

/// What is asked for.
pub(super) struct Order {
    pub(super) limits: Vec<Limit>,
    /// The trace; `-` is stdin.
    pub(super) trace: String,
    pub(super) decisions: Option<String>,
    pub(super) store: Option<String>,
}

#[derive(Serialize)]
struct Report {
    requests: u64,
    keys: usize,
    interrupted: bool,
    #[serde(skip)]
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

pub(super) async fn run(args: Order, context: &Context) -> Result<Exit, Failure> {
    let limits = args.limits;
    if args.decisions.is_some() && limits.len() != 1 {
        return Err(Failure::usage(format!(
            "--decisions needs one limit and one algorithm, not {} of them; drop --decisions to compare",
            limits.len()
        )));
    }
    if args.decisions.as_deref().is_some_and(|out| is_same_file(out, &args.trace)) {
        return Err(Failure::usage("--decisions would overwrite the trace; name another file"));
    }
    let progress = progress_bar(context, &args.trace);
    let requests = read_trace(&args.trace, &progress)?;
    // A named Redis is meant; one from the environment or a context is not named here.
    let store = args.store.as_deref().or(context.redis_flag.as_deref()).unwrap_or("memory");
    let store = match store {
        "memory" => Store::Memory(MemoryStore::unbounded()),
        url => {
            Store::Redis(context.connect(url, own_prefix(&context.prefix)?, BATCH_DEADLINE).await?)
        }
    };
    let mut decisions = args.decisions.as_deref().map(create).transpose()?;
    let mut replay = Replay::new(store, limits);
    let mut interruption = Interruption::new()?;
    let ended = tokio::select! {
        ended = replay_all(requests, &mut replay, &mut decisions) => ended,
        () = interruption.come() => Err(Failure::new(Exit::Interrupted, "")),
    };
    let flushed = decisions.as_mut().map_or(Ok(()), |out| out.flush());
    progress.finish_and_clear();
    let interrupted = matches!(&ended, Err(failure) if failure.exit == Exit::Interrupted);
    let report = report(&replay, interrupted);
    clean_up(replay, context, &mut interruption).await;
    flushed?;
    if args.decisions.as_deref() != Some("-") {
        print_report(context, &report)?;
    }
    ended.map(|()| Exit::Fine)
}

async fn replay_all(
    mut requests: mpsc::Receiver<Batch>,
    replay: &mut Replay,
    decisions: &mut Option<Box<dyn Write>>,
) -> Result<(), Failure> {
    while let Some(Batch { requests, broken }) = requests.recv().await {
        replay
            .decide(&requests, |request, decision| write_decision(decisions, request, decision))
            .await?;
        // In memory nothing ever waits, and an interruption wants to be heard.
        tokio::task::yield_now().await;
        if let Some(failure) = broken {
            return Err(failure);
        }
    }
    Ok(())
}

/// Requests that are decided together, and why no more follow.
struct Batch {
    requests: Vec<Request>,
    broken: Option<Failure>,
}

/// Reads the trace on a thread of its own: a pipe that nobody writes to must not keep anyone from
/// interrupting.
fn read_trace(path: &str, progress: &ProgressBar) -> Result<mpsc::Receiver<Batch>, Failure> {
    let mut trace = open_trace(path, progress)?;
    let shown = Untrusted(path).to_string();
    let (batches, receiver) = mpsc::channel(4);
    std::thread::spawn(move || {
        loop {
            let mut batch = Batch { requests: Vec::with_capacity(BATCH), broken: None };
            while batch.requests.len() < BATCH && batch.broken.is_none() {
                match trace.next() {
                    Some(Ok(request)) => batch.requests.push(request),
                    Some(Err(error)) => {
                        batch.broken =
                            Some(Failure::new(Exit::BadFile, format!("{shown}: {error}")));
                    }
                    None => break,
                }
            }
            let last = batch.requests.len() < BATCH;
            if batches.blocking_send(batch).is_err() || last {
                return;
            }
        }
    });
    Ok(receiver)
}

/// Ctrl-C, or the wish of a supervisor.
pub(super) struct Interruption {
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
}

impl Interruption {
    pub(super) fn new() -> Result<Interruption, Failure> {
        Ok(Interruption {
            #[cfg(unix)]
            terminate: tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?,
        })
    }

    #[cfg(unix)]
    pub(super) async fn come(&mut self) {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = self.terminate.recv() => {}
        }
    }

    #[cfg(not(unix))]
    pub(super) async fn come(&mut self) {
        let _ = tokio::signal::ctrl_c().await;
    }
}

/// Removes the trace's keys, unless that takes too long or somebody has had enough.
async fn clean_up(replay: Replay, context: &Context, interruption: &mut Interruption) {
    let failed = tokio::select! {
        result = tokio::time::timeout(CLEAN_UP_WITHIN.into(), replay.clean_up()) => match result {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_elapsed) => Some(format!("not within {CLEAN_UP_WITHIN}")),
        },
        () = interruption.come() => Some("interrupted".into()),
    };
    if let Some(why) = failed {
        context.note(format!(
            "could not remove all of the trace's keys ({why}); they expire within a day"
        ));
    }
}

pub(super) fn is_same_file(a: &str, b: &str) -> bool {
    match (std::fs::canonicalize(a), std::fs::canonicalize(b)) {
        (Ok(a), Ok(b)) => a == b,
        _ => false,
    }
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

/// Nobody else's keys can lie under it: it starts like theirs but has no identity behind it.
fn own_prefix(prefix: &Prefix) -> Result<Prefix, Failure> {
    let run = Micros::now().0 % 1_000_000_000_000;
    Prefix::new(&format!("{}trace-{}-{run}:", prefix.as_str(), std::process::id()))
        .map_err(|_| Failure::usage("--prefix is too long for a trace; at most 32 characters"))
}

fn open_trace(path: &str, progress: &ProgressBar) -> Result<Trace<impl BufRead + use<>>, Failure> {
    let bad = |why: String| Failure::new(Exit::BadFile, format!("{}: {why}", Untrusted(path)));
    let source: Box<dyn Read + Send> = match path {
        "-" => Box::new(io::stdin()),
        path => Box::new(File::open(path).map_err(|e| bad(format!("cannot open the trace: {e}")))?),
    };
    let source = gzip::unzipped(Box::new(progress.wrap_read(source)));
    let source = source.map_err(|e| bad(format!("cannot read the trace: {e}")))?;
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
    Report { requests, keys: replay.keys(), interrupted, items }
}

fn print_report(context: &Context, report: &Report) -> Result<(), Failure> {
    let interrupted = if report.interrupted { "interrupted after " } else { "" };
    let above = format!("{interrupted}{} requests of {} keys\n", report.requests, report.keys);
    context.print_list(&List::new(&report.items).head(report).above(above), "")
}

impl Row for Item {
    fn columns() -> Vec<Column<Item>> {
        let limit = |item: &Item| {
            let limit = format!("{}/{}", item.limit, Micros(item.period_us));
            let burst = item.burst.filter(|burst| *burst != item.limit);
            burst.map_or(limit.clone(), |burst| format!("{limit} burst {burst}"))
        };
        vec![
            Column::new("ALGORITHM", |item: &Item| item.algorithm.into()),
            Column::new("LIMIT", limit),
            Column::number("ALLOWED", |item| item.allowed.to_string()),
            Column::number("DENIED", |item| item.denied.to_string()),
            Column::number("DENIED %", |item| percent(item.denied, item.allowed + item.denied)),
        ]
    }

    const FIELDS: &'static [&'static str] =
        &["algorithm", "limit", "period_us", "burst", "allowed", "denied"];
}

fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "-".into() } else { format!("{:.2}", part as f64 * 100.0 / whole as f64) }
}
