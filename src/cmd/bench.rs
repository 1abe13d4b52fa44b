//! `rlctl bench`: load by a plan, and what it says about a limiter.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::bench_files::Files;
use super::bench_live::Live;
use super::bench_plan::PlanArgs;
use super::bench_target::{Prepared, TargetArgs};
use super::limit_args::LimitArgs;
use super::{Context, Exit, Failure, bench_diff, bench_print};
use crate::engine::clock::Micros;
use crate::engine::limit::Limit;
use crate::engine::store::MemoryStore;
use crate::expect::{Assertion, Claim, During, ExpectError, Value, judge, parse};
use crate::load::collect::Collected;
use crate::load::feed::Clients;
use crate::load::keys::Reference;
use crate::load::measured::{Recorded, wanted, windows};
use crate::load::plan::{Mode, Plan};
use crate::load::report::{Expectation, Frame, KeyFindings, Report, Saved};
use crate::load::run::{Running, Setup, StartError};
use crate::traffic::Keys;

/// How often what workers gathered is read.
const READ_EVERY: Duration = Duration::from_millis(50);
/// How often --abort-on is looked at.
const LOOK_EVERY_US: u64 = Micros::SECOND.0;

/// Load a target by a plan, and judge its limiter
///
/// Requests are sent when the plan says, whatever the target does: response times count from the
/// planned moment, service times from sending. What was not sent is said. A 429 is a decision and
/// counted apart from errors.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_value_name = "diff",
    after_help = "\
Examples:
  rlctl bench --rps 10k                              a gateway in this process, on loopback
  rlctl bench http://127.0.0.1:8080/ --rps 10k --for 1m --keys zipf:1.1:100k
  rlctl bench http://127.0.0.1:8080/ --rps 500 --limit 100/1s --burst 20 --clients polite
  rlctl bench http://127.0.0.1:8080/ --stages 1k:10s,1k..20k:1m --expect 'share(errors) < 0.1%'
  rlctl bench engine --rps 100k                      the engine alone, in memory
  rlctl bench redis://127.0.0.1:6379 --rps 10k --limit 100/1s --keys uniform:10k
  rlctl bench http://127.0.0.1:8080/ --closed -c 64  as fast as answers come
  rlctl bench diff before.json after.json            two runs that were kept with --save

Other machines than this one are loaded only with --own HOST."
)]
pub(super) struct Args {
    #[command(subcommand)]
    other: Option<Other>,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    plan: PlanArgs,
    #[command(flatten)]
    limits: LimitArgs,
    /// What clients make of a refusal
    #[arg(long, value_enum, default_value_t = Clients::Naive)]
    clients: Clients,
    /// What must be true at the end, e.g. 'p99(response){outcome=allowed} over 1s < 2ms'; else exit
    /// 4. Repeat for several
    #[arg(long = "expect", value_name = "EXPR")]
    expectations: Vec<String>,
    /// End the run as soon as this is true, e.g. 'share(errors) over 5s > 10%', with exit 4
    #[arg(long, value_name = "EXPR")]
    abort_on: Vec<String>,
    /// Exit 4 when the client, and not the target, was the limit
    #[arg(long)]
    strict: bool,
    /// Keep the report for `bench diff`
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Write the distribution of response times, as HdrHistogram prints it
    #[arg(long, value_name = "FILE")]
    hdr: Option<PathBuf>,
    /// Write a histogram of response times for every second, as HdrHistogram logs them
    #[arg(long, value_name = "FILE")]
    hdr_log: Option<PathBuf>,
    /// Threads that send [default: 1, more from 4 cores on]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    workers: Option<u32>,
}

#[derive(Debug, clap::Subcommand)]
enum Other {
    /// Compare two runs that were kept with --save
    Diff(bench_diff::Args),
}

pub(super) async fn run(args: Args, context: &Context) -> Result<Exit, Failure> {
    if let Some(Other::Diff(args)) = args.other {
        return bench_diff::run(&args, context);
    }
    let bench = Bench::new(&args, context).await?;
    let stop = Arc::new(AtomicBool::new(false));
    let interrupted = stop.clone();
    let signals = tokio::spawn(async move {
        interruption().await;
        interrupted.store(true, Ordering::Relaxed);
    });
    let live = Live::new(context, &bench.setup.plan, &bench.prepared.name);
    let done = tokio::task::spawn_blocking(move || bench.run(live, &stop)).await;
    signals.abort();
    let mut done =
        done.map_err(|_| Failure::new(Exit::Failed, "the load generator broke down"))??;
    if let Some(embedded) = done.bench.prepared.embedded.take() {
        embedded.stop().await;
    }
    bench_print::print_report(context, &done.report, &done.seconds)?;
    bench_print::warn(context, &done.report);
    done.exit(args.strict)
}

/// Ctrl-C, or the wish of a supervisor.
async fn interruption() {
    let terminate = tokio::signal::unix::SignalKind::terminate();
    let Ok(mut terminate) = tokio::signal::unix::signal(terminate) else {
        return;
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
}

/// Everything that was typed, understood; nothing has been sent yet.
struct Bench {
    setup: Setup,
    prepared: Prepared,
    limit: Option<Limit>,
    expectations: Vec<Assertion>,
    abort_on: Vec<Assertion>,
    files: Files,
}

/// A run that is over.
struct Done {
    bench: Bench,
    report: Report,
    seconds: Vec<crate::load::collect::Second>,
    aborted: bool,
}

impl Bench {
    async fn new(args: &Args, context: &Context) -> Result<Bench, Failure> {
        let expectations = assertions("--expect", &args.expectations)?;
        let abort_on = assertions("--abort-on", &args.abort_on)?;
        let (plan, key_note) = args.plan.plan(args.target.connections())?;
        if let Some(note) = key_note {
            context.note(note);
        }
        let limits = args.limits.limits(context)?;
        let files = Files::create(&args.save, &args.hdr, &args.hdr_log)?;
        let prepared = args.target.prepare(&plan, &args.plan, &limits, context).await?;
        let limit = prepared.limits.first().map(|limit| *limit.limit());
        let mut lengths: Vec<Micros> = match &limit {
            Some(limit) => vec![limit.period()],
            None => vec![Micros::SECOND, Micros::MINUTE],
        };
        lengths.extend(windows(&expectations));
        let reference = limit.map(|_| Reference {
            store: Arc::new(MemoryStore::new(crate::load::keys::MAX_KEYS_SEEN)),
            limits: prepared.limits.clone(),
        });
        let all: Vec<Assertion> = expectations.iter().chain(&abort_on).cloned().collect();
        let setup = Setup {
            plan,
            clients: args.clients,
            workers: args.workers.unwrap_or_else(usual_workers),
            aim: prepared.aim.clone(),
            windows: lengths,
            reference,
            wanted: wanted(&all),
        };
        let bench = Bench { setup, prepared, limit, expectations, abort_on, files };
        bench.try_expectations()?;
        Ok(bench)
    }

    /// What cannot be judged is said before anything is sent.
    fn try_expectations(&self) -> Result<(), Failure> {
        let nothing = Collected::new(0, Micros::ZERO);
        let keys = KeyFindings { over_admitted: self.limit.map(|_| 0), ..KeyFindings::default() };
        let lasts = self.setup.plan.lasts;
        for (flag, all, keys) in
            [("--expect", &self.expectations, Some(&keys)), ("--abort-on", &self.abort_on, None)]
        {
            let recorded = Recorded { collected: &nothing, keys, from: Micros::ZERO, end: lasts };
            for assertion in all {
                if flag == "--abort-on" && !matches!(assertion.claim, Claim::Compare(..)) {
                    return Err(Failure::usage(
                        "--abort-on compares: write e.g. 'share(errors) over 5s > 10%'",
                    ));
                }
                if let Some(name) = &assertion.limiter {
                    return Err(Failure::usage(format!(
                        "{flag}: there is one limiter here; leave out `{name}:`"
                    )));
                }
                judge(assertion, &recorded)
                    .map_err(|why| Failure::usage(format!("{flag} '{assertion}': {why}")))?;
            }
        }
        Ok(())
    }

    fn run(mut self, mut live: Live, stop: &AtomicBool) -> Result<Done, Failure> {
        let running = Running::start(&self.setup).map_err(|error| self.unreachable(&error))?;
        self.files.begin(running.started)?;
        let plan = self.setup.plan.clone();
        let mut collected = Collected::new(self.setup.workers as usize, plan.warmup);
        let (mut interrupted, mut aborted, mut look_us) = (false, false, 0);
        // The last ticks are read after the workers have ended.
        let mut over = false;
        while !over {
            over = running.is_over();
            running.read(|worker, tick| collected.add(worker, tick));
            let now_us = running.watch.ns() / 1_000;
            let files = &mut self.files;
            let mut written = Ok(());
            collected.roll(now_us.min(plan.end().0), over, |second, timings| {
                written = files.second(second, timings);
            });
            written?;
            if stop.load(Ordering::Relaxed) && !interrupted && !over {
                interrupted = true;
                running.stop();
            }
            if now_us >= look_us && !aborted && !self.abort_on.is_empty() {
                look_us = now_us + LOOK_EVERY_US;
                aborted = self.should_abort(&collected, now_us);
                if aborted {
                    running.stop();
                }
            }
            live.show(&collected, now_us);
            if !over {
                std::thread::sleep(READ_EVERY);
            }
        }
        live.end();
        let stopped = interrupted || aborted;
        let ended_us = if stopped { running.watch.ns() / 1_000 } else { plan.end().0 };
        let elapsed = Micros(ended_us.min(plan.end().0)).saturating_sub(plan.warmup);
        let started = running.started;
        let tables = running.finish()?;
        let keys = KeyFindings::of(&tables, self.limit.as_ref());
        let mut report = self.report(&collected, &keys, started, elapsed, stopped);
        report.expectations = self.judge(&collected, &keys, elapsed)?;
        let saved = Saved { report, seconds: collected.seconds.clone() };
        self.files.end(&saved, &collected)?;
        let Saved { report, seconds } = saved;
        Ok(Done { bench: self, report, seconds, aborted })
    }

    fn unreachable(&self, error: &StartError) -> Failure {
        let what = match error {
            // It was reached, and answered what it should not.
            StartError::Connect(error) if error.kind() == io::ErrorKind::InvalidData => {
                format!("{}: {error}", self.prepared.name)
            }
            StartError::Connect(error) => {
                format!("cannot reach {}: {error}; is it running?", self.prepared.name)
            }
            StartError::Store(error) => error.to_string(),
        };
        Failure::new(Exit::Unreachable, what)
    }

    fn report(
        &self,
        collected: &Collected,
        keys: &KeyFindings,
        started: Micros,
        elapsed: Micros,
        interrupted: bool,
    ) -> Report {
        let plan: &Plan = &self.setup.plan;
        let names: &Keys = &plan.keys;
        Report::new(
            collected,
            keys,
            &Frame {
                target: &self.prepared.name,
                mode: match plan.mode {
                    Mode::Open(_) => "open",
                    Mode::Closed => "closed",
                    Mode::Replay(_) => "replay",
                },
                started,
                warmup: plan.warmup,
                elapsed,
                lasts: plan.lasts,
                planned: plan.planned(),
                interrupted,
                limit: self.limit.as_ref(),
                keys: names,
            },
        )
    }

    fn should_abort(&self, collected: &Collected, now_us: u64) -> bool {
        let now = Micros(now_us).saturating_sub(self.setup.plan.warmup);
        self.abort_on.iter().any(|assertion| {
            // Windows that were looked at before need not be looked at again.
            let reach = assertion.window.map(|w| Micros(2 * w.length().0 + 2 * LOOK_EVERY_US));
            let from = reach.map_or(Micros::ZERO, |reach| now.saturating_sub(reach));
            let recorded = Recorded { collected, keys: None, from, end: now };
            judge_any(assertion, &recorded, from)
        })
    }

    fn judge(
        &self,
        collected: &Collected,
        keys: &KeyFindings,
        end: Micros,
    ) -> Result<Vec<Expectation>, Failure> {
        let recorded = Recorded { collected, keys: Some(keys), from: Micros::ZERO, end };
        let each = |assertion: &Assertion| {
            let verdict = judge(assertion, &recorded)
                .map_err(|why| Failure::usage(format!("--expect '{assertion}': {why}")))?;
            let measured = match verdict.measured {
                Some(Value::Number(number)) => Some(number),
                _ => None,
            };
            Ok(Expectation {
                expression: assertion.text.clone(),
                met: verdict.holds,
                measured,
                from_us: verdict.at.as_ref().map(|at| at.start.0),
                to_us: verdict.at.as_ref().map(|at| at.end.0),
                message: verdict.words,
            })
        };
        self.expectations.iter().map(each).collect()
    }
}

/// Whether it is true in any window since `from`, which is what ends a run.
fn judge_any(assertion: &Assertion, recorded: &Recorded<'_>, from: Micros) -> bool {
    let mut turned = assertion.clone();
    if assertion.window.is_some() {
        if from >= recorded.end {
            return false;
        }
        turned.during = Some(During::Range(from, recorded.end));
        // True in any window is not false in every window.
        let Claim::Compare(comparison, bound) = &assertion.claim else { return false };
        turned.claim = Claim::Compare(comparison.opposite(), bound.clone());
        return judge(&turned, recorded).is_ok_and(|v| v.measured.is_some() && !v.holds);
    }
    judge(&turned, recorded).is_ok_and(|verdict| verdict.measured.is_some() && verdict.holds)
}

impl Done {
    fn exit(self, strict: bool) -> Result<Exit, Failure> {
        if self.aborted {
            let why = "--abort-on became true; the run was ended";
            return Err(Failure::new(Exit::NotAsExpected, why));
        }
        if self.report.interrupted {
            return Ok(Exit::Interrupted);
        }
        let missed = self.report.expectations.iter().any(|expectation| !expectation.met);
        if missed || (strict && self.report.client_bound) {
            return Ok(Exit::NotAsExpected);
        }
        let failed = self.report.outcomes.error.count + self.report.outcomes.timeout.count;
        let answered: u64 = self.report.outcomes.each().iter().map(|(_, o)| o.count).sum();
        // Not one answer: then there is no target.
        let nobody = answered > 0 && failed == answered;
        Ok(if nobody { Exit::Unreachable } else { Exit::Fine })
    }
}

fn assertions(flag: &str, texts: &[String]) -> Result<Vec<Assertion>, Failure> {
    let read = |text: &String| {
        parse(text).map_err(|error: ExpectError| {
            let column = error.column(text);
            Failure::usage(format!("{flag} '{text}', column {column}: {error}"))
        })
    };
    texts.iter().map(read).collect()
}

fn usual_workers() -> u32 {
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as u32;
    (cores / 2).clamp(1, 8)
}
