//! Runs a simulation: on a thread of its own, with progress on stderr, until it ends or somebody has
//! seen enough.

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::{ProgressBar, ProgressStyle};

use super::simulate::{Args, quota_of};
use super::simulate_print::{self, Report};
use super::simulate_trace::Interruption;
use super::{Context, Exit, Failure};
use crate::engine::clock::Micros;
use crate::engine::config::without_passwords;
use crate::engine::identity::Identity;
use crate::engine::limit::Limit;
use crate::output::{Untrusted, count};
use crate::sim::lane::LaneSpec;
use crate::sim::outcome::{Ending, Outcome};
use crate::sim::picture::Caption;
use crate::sim::run::Simulation;
use crate::sim::so_what::{percent, so_what};
use crate::sim::source::{Disorder, More, Source, SourceError, SourceSpec};
use crate::sim::suggest::{NoSuggestion, Suggestion, suggest};
use crate::traffic::KeySpec;
use crate::traffic::log::{Field, LogOptions, LogReport};

pub(super) const DEFAULT_RUN: Micros = Micros::MINUTE;

/// What was read, and how well.
pub(super) type ReadSoFar = Option<(LogReport, Disorder)>;

/// What a thread works on.
struct Work {
    source: SourceSpec,
    seed: u64,
    progress: ProgressBar,
    enough: Arc<AtomicBool>,
}

pub(super) async fn run(
    args: Args,
    limits: Vec<Limit>,
    specs: Vec<LaneSpec>,
    context: &Context,
) -> Result<Exit, Failure> {
    let outputs = simulate_print::open_outputs(&args)?;
    let (source, progress) = source(&args, context)?;
    let enough = Arc::new(AtomicBool::new(false));
    let work = Work { source, seed: args.seed, progress: progress.clone(), enough: enough.clone() };
    let budget = args.suggest.then_some(args.budget);
    let task = tokio::task::spawn_blocking(move || match budget {
        Some(budget) => work.suggest(&limits, budget),
        None => work.simulate(specs).map(|(outcome, read)| (outcome, read, None)),
    });
    let done = until_done(task, &enough).await;
    progress.finish_and_clear();
    let (outcome, read, suggestion) = done?;
    if outcome.requests == 0 {
        nothing_read(&read, &outcome.ending)?;
    }
    let mut caption = caption(&args, &read, &outcome.ending);
    caption.so_what = match &suggestion {
        Some(suggestion) => suggested(suggestion, args.budget),
        None => so_what(&outcome),
    };
    let report = Report {
        outcome: &outcome,
        caption: &caption,
        read: &read,
        suggestion: suggestion.as_ref(),
    };
    report.print(context)?;
    outputs.write(&args, &report, context)?;
    exit_of(&outcome.ending)
}

/// Waits for a thread; an interruption tells it to come to an end with what there is.
pub(super) async fn until_done<T>(
    task: tokio::task::JoinHandle<Result<T, Failure>>,
    enough: &AtomicBool,
) -> Result<T, Failure> {
    let mut interruption = Interruption::new()?;
    tokio::pin!(task);
    let joined = tokio::select! {
        joined = &mut task => joined,
        () = interruption.come() => {
            enough.store(true, Ordering::Relaxed);
            task.await
        }
    };
    joined.map_err(|error| Failure::new(Exit::Failed, format!("the simulation ended: {error}")))?
}

impl Work {
    fn simulate(&self, specs: Vec<LaneSpec>) -> Result<(Outcome, ReadSoFar), Failure> {
        let mut source = self.source.open().map_err(|e| self.failure(e))?;
        let mut simulation = Simulation::new(specs, self.source.span(), self.seed);
        let mut events = Vec::new();
        let ending = loop {
            let more = match source.fill(&mut events) {
                Ok(more) => more,
                Err(error) => break Ending::BrokenOff(error.to_string()),
            };
            simulation.feed(&events);
            if matches!(source, Source::Described { .. }) {
                self.progress.inc(events.len() as u64);
            }
            if more == More::No {
                break Ending::Whole;
            }
            if self.enough.load(Ordering::Relaxed) {
                break Ending::Interrupted;
            }
        };
        source.drain(&mut events);
        simulation.feed(&events);
        let mut outcome = simulation.outcome(|key| source.name(key));
        outcome.ending = ending;
        Ok((outcome, source.read_so_far()))
    }

    fn suggest(
        &self,
        limits: &[Limit],
        budget: f64,
    ) -> Result<(Outcome, ReadSoFar, Option<Suggestion>), Failure> {
        let [limit] = limits else {
            return Err(Failure::usage(
                "--suggest looks for one limit: give one --limit (its period and algorithm count) and one --algorithm",
            ));
        };
        let spec = |limit: &Limit| LaneSpec {
            label: format!("{} {limit}", limit.algorithm()),
            limit: *limit,
            nodes: None,
            reference: None,
        };
        let quota = quota_of(limit);
        let found = suggest(limit.algorithm(), quota, budget, |tried| {
            self.progress.set_position(0);
            self.simulate(tried.iter().map(spec).collect()).map(|(outcome, _)| outcome)
        });
        let found = found?.map_err(|error| match error {
            NoSuggestion::None(..) => Failure::new(Exit::AnswerIsNo, error),
            NoSuggestion::Nothing if self.enough.load(Ordering::Relaxed) => {
                Failure::new(Exit::Interrupted, "interrupted before a limit was found")
            }
            NoSuggestion::Nothing => Failure::new(Exit::NothingMatched, error),
        })?;
        // Once more with the answer, beside what was given.
        let mut both = vec![spec(&found.limit)];
        if found.limit != *limit {
            both.push(spec(limit));
        }
        let (outcome, read) = self.simulate(both)?;
        Ok((outcome, read, Some(found)))
    }

    fn failure(&self, error: SourceError) -> Failure {
        match error {
            SourceError::Spec(error) => Failure::new(Exit::BadFile, error),
            error => Failure::new(Exit::BadFile, format!("the input: {error}")),
        }
    }
}

fn source(args: &Args, context: &Context) -> Result<(SourceSpec, ProgressBar), Failure> {
    if let Some(traffic) = &args.traffic {
        let run = args.run.unwrap_or(DEFAULT_RUN);
        let bar = bar_of_requests(context, traffic.expected(run));
        return Ok((
            SourceSpec::Described {
                traffic: traffic.clone(),
                keys: keys(args),
                run,
                seed: args.seed,
            },
            bar,
        ));
    }
    let Some(path) = args.log.as_ref().or(args.trace.as_ref()) else {
        return Err(Failure::usage("say what comes"));
    };
    if path == "-" && args.suggest {
        return Err(Failure::usage(
            "--suggest reads its input several times; write stdin to a file first",
        ));
    }
    let (open, bar) = opener(path, context)?;
    let spec = if args.log.is_some() {
        let options = LogOptions { format: args.format, time: args.time.clone() };
        SourceSpec::Log { open, options, key: args.key.clone().unwrap_or(Field::Ip) }
    } else {
        SourceSpec::Trace { open }
    };
    Ok((spec, bar))
}

/// Whom described traffic is for.
pub(super) fn keys(args: &Args) -> KeySpec {
    args.keys
        .clone()
        .unwrap_or_else(|| KeySpec::One(Identity::opaque("user:1").expect("a plain name")))
}

/// Opens a file or stdin, and shows how far it was read.
pub(super) fn opener(
    path: &str,
    context: &Context,
) -> Result<(crate::sim::source::Opener, ProgressBar), Failure> {
    let size = match path {
        "-" => None,
        path => {
            let cannot = |e: io::Error| {
                Failure::new(Exit::BadFile, format!("{}: cannot open: {e}", Untrusted(path)))
            };
            let file = File::open(path).and_then(|file| file.metadata()).map_err(cannot)?;
            if file.is_dir() {
                return Err(cannot(io::ErrorKind::IsADirectory.into()));
            }
            file.is_file().then_some(file.len())
        }
    };
    let bar = match size {
        Some(size) => bar(context, size, "{wide_bar} {bytes} of {total_bytes}, {eta} left"),
        None if context.progress && !io::stdin().is_terminal() => ProgressBar::new_spinner(),
        None => ProgressBar::hidden(),
    };
    let (path, counted) = (path.to_string(), bar.clone());
    let open = move || -> io::Result<Box<dyn Read + Send>> {
        Ok(match path.as_str() {
            "-" => Box::new(counted.wrap_read(io::stdin())),
            path => Box::new(counted.wrap_read(File::open(path)?)),
        })
    };
    Ok((Box::new(open), bar))
}

pub(super) fn bar_of_requests(context: &Context, expected: u64) -> ProgressBar {
    bar(context, expected, "{wide_bar} {human_pos} of {human_len}, {eta} left")
}

fn bar(context: &Context, length: u64, template: &str) -> ProgressBar {
    if !context.progress {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(template).expect("the template is right");
    ProgressBar::new(length).with_style(style)
}

/// A log of which no line could be read is none.
pub(super) fn nothing_read(read: &ReadSoFar, ending: &Ending) -> Result<(), Failure> {
    if let Ending::BrokenOff(why) = ending {
        return Err(Failure::new(Exit::BadFile, format!("the input: {why}")));
    }
    let Some((report, _)) = read else { return Ok(()) };
    if ending.is_interrupted() {
        return Ok(());
    }
    if report.unreadable > 0 && report.read == 0 {
        let example = report.examples.first();
        let shown = example.map_or(String::new(), |bad| {
            format!(": line {} ({}): {}", bad.number, bad.why, bad.text)
        });
        return Err(Failure::new(
            Exit::BadFile,
            format!("none of {} lines can be read{shown}; is it another --format?", report.lines),
        ));
    }
    if report.without_key > 0 {
        return Err(Failure::new(
            Exit::NothingMatched,
            format!("none of {} lines has a key; name another field with --key", report.read),
        ));
    }
    Ok(())
}

/// What a run is worth that ended so; everything is printed by now.
pub(super) fn exit_of(ending: &Ending) -> Result<Exit, Failure> {
    match ending {
        Ending::Whole => Ok(Exit::Fine),
        Ending::Interrupted => Ok(Exit::Interrupted),
        Ending::BrokenOff(why) => Err(Failure::new(
            Exit::BadFile,
            format!("the input: {why}; what came before it stands"),
        )),
    }
}

/// What was typed, to be typed again; without passwords.
pub(super) fn command_line() -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    let word = |word: String| {
        if !word.is_empty() && word.chars().all(plain) {
            word
        } else {
            format!("'{}'", word.replace('\'', "'\\''"))
        }
    };
    let words = std::env::args_os().skip(1).map(|arg| word(arg.to_string_lossy().into_owned()));
    without_passwords(&format!("rlctl {}", words.collect::<Vec<_>>().join(" "))).into()
}

fn caption(args: &Args, read: &ReadSoFar, ending: &Ending) -> Caption {
    let source = match (&args.traffic, &args.log, &args.trace) {
        (Some(traffic), _, _) => format!("{traffic} for {} (seed {})", keys(args), args.seed),
        (_, Some(log), _) => format!("log {log} by {}", args.key.as_ref().unwrap_or(&Field::Ip)),
        (_, _, Some(trace)) => format!("trace {trace}"),
        _ => String::new(),
    };
    Caption {
        source,
        command: command_line(),
        notes: notes(read, ending),
        so_what: String::new(),
        dated: args.traffic.is_none(),
        of_rules: false,
    }
}

/// What is worth knowing about a log, a sentence each.
pub(super) fn notes(read: &ReadSoFar, ending: &Ending) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(why) = ending.broken_off() {
        notes.push(format!("{why}; this is what came before it"));
    }
    let Some((report, disorder)) = read else { return notes };
    if report.unreadable > 0 {
        let mut note =
            format!("{} of {} lines cannot be read", count(report.unreadable), count(report.lines));
        if let Some(bad) = report.examples.first() {
            note += &format!(", the first is line {} ({}): {}", bad.number, bad.why, bad.text);
        }
        notes.push(note);
    }
    if report.without_key > 0 {
        notes.push(match report.without_key {
            1 => "1 line has no key and is left out".into(),
            many => format!("{} lines have no key and are left out", count(many)),
        });
    }
    if disorder.steps_back > 0 {
        let late = match disorder.too_late {
            0 => "sorted".into(),
            late => {
                format!("sorted, but for {} that came too late and count as of then", count(late))
            }
        };
        notes.push(format!("times step back {} times: {late}", count(disorder.steps_back)));
    }
    if disorder.beyond > 0 {
        notes.push(format!(
            "{} requests of further keys are counted together",
            count(disorder.beyond)
        ));
    }
    notes
}

/// The answer to `--suggest` in words.
fn suggested(found: &Suggestion, budget: f64) -> String {
    let Suggestion { limit, lane, one_less, keys, .. } = found;
    let whom = match lane.keys_hit {
        0 => "denies nobody".to_string(),
        hit => {
            let named: Vec<&str> =
                lane.most_denied.iter().take(3).map(|k| k.key.as_str()).collect();
            let more = if hit as usize > named.len() { ", …" } else { "" };
            format!(
                "denies {} of {} keys ({}): {}{more}",
                count(hit),
                count(*keys),
                percent(hit as f64 / (*keys).max(1) as f64),
                named.join(", ")
            )
        }
    };
    let less = one_less
        .map_or(String::new(), |(limit, hit)| format!("; {limit} would deny {}", count(hit)));
    format!(
        "{limit} ({}) is the smallest limit within a budget of {}: it {whom}{less}",
        limit.algorithm(),
        percent(budget)
    )
}
