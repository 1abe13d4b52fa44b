//! What a simulation found, in every form that it can be asked for.

use std::io::Write;
use std::path::Path;

use serde::Serialize;

use super::out_file::OutFile;
use super::simulate::Args;
use super::simulate_run::{self, ReadSoFar};
use super::{Context, Exit, Failure, print, simulate_trace};
use crate::output::{Column, List, Row, Untrusted};
use crate::sim::emit;
use crate::sim::outcome::{Ending, LaneOutcome, Outcome};
use crate::sim::picture::{self, Caption};
use crate::sim::suggest::Suggestion;

/// Everything that is told about a run.
pub(super) struct Report<'a> {
    pub(super) outcome: &'a Outcome,
    pub(super) caption: &'a Caption,
    pub(super) read: &'a ReadSoFar,
    pub(super) suggestion: Option<&'a Suggestion>,
}

#[derive(Serialize)]
struct Head<'a> {
    requests: u64,
    keys: u64,
    interrupted: bool,
    /// Why the input could not be read to its end; null when it was.
    broken_off: Option<&'a str>,
    source: &'a str,
    /// Where times are counted from, Unix microseconds.
    start_us: u64,
    length_us: u64,
    so_what: &'a str,
    /// Null for described traffic.
    log: Option<LogHead>,
    /// Null unless asked for.
    suggestion: Option<SuggestionHead>,
}

#[derive(Serialize)]
struct LogHead {
    format: Option<&'static str>,
    lines: u64,
    read: u64,
    unreadable: u64,
    unreadable_examples: Vec<Example>,
    without_key: u64,
    steps_back: u64,
    too_late: u64,
    keys_beyond: u64,
}

#[derive(Serialize)]
struct Example {
    line: u64,
    why: String,
    text: String,
}

#[derive(Serialize)]
struct SuggestionHead {
    algorithm: &'static str,
    limit: u64,
    period_us: u64,
    burst: Option<u64>,
    keys_hit: u64,
    /// How many keys a limit of one less would deny; null when that is not known.
    keys_hit_by_one_less: Option<u64>,
}

#[derive(Serialize)]
struct Item {
    label: String,
    algorithm: Option<&'static str>,
    limit: Option<u64>,
    period_us: Option<u64>,
    burst: Option<u64>,
    allowed: u64,
    denied: u64,
    denied_share: f64,
    worst_window: Option<u64>,
    worst_window_end_us: Option<u64>,
    worst_window_key: Option<String>,
    most_at_once: u64,
    starved_us: Option<u64>,
    starved_from_us: Option<u64>,
    starved_key: Option<String>,
    first_denial_us: Option<u64>,
    fairness: Option<f64>,
    keys_hit: u64,
    state_bytes_per_key: Option<f64>,
    wrongly_allowed: Option<u64>,
    wrongly_denied: Option<u64>,
    most_denied: Vec<KeyItem>,
}

#[derive(Serialize)]
struct KeyItem {
    key: String,
    allowed: u64,
    denied: u64,
}

impl Row for Item {
    /// People get a picture instead.
    fn columns() -> Vec<Column<Item>> {
        Vec::new()
    }

    const FIELDS: &'static [&'static str] = &[
        "label",
        "algorithm",
        "limit",
        "period_us",
        "burst",
        "allowed",
        "denied",
        "denied_share",
        "worst_window",
        "worst_window_end_us",
        "worst_window_key",
        "most_at_once",
        "starved_us",
        "starved_from_us",
        "starved_key",
        "first_denial_us",
        "fairness",
        "keys_hit",
        "state_bytes_per_key",
        "wrongly_allowed",
        "wrongly_denied",
    ];
}

fn item(lane: &LaneOutcome) -> Item {
    let limit = lane.limit;
    let (worst, starved, against) = (&lane.worst, &lane.starved, &lane.against);
    let named = lane.most_denied.iter().map(|k| KeyItem {
        key: k.key.clone(),
        allowed: k.allowed,
        denied: k.denied,
    });
    Item {
        label: lane.label.clone(),
        algorithm: lane.algorithm().map(|algorithm| algorithm.name()),
        limit: limit.map(|limit| limit.requests()),
        period_us: limit.map(|limit| limit.period().0),
        burst: limit.filter(|l| l.algorithm().is_bucket()).map(|limit| limit.capacity()),
        allowed: lane.allowed,
        denied: lane.denied,
        denied_share: lane.denied_share(),
        worst_window: worst.as_ref().map(|worst| worst.amount),
        worst_window_end_us: worst.as_ref().map(|worst| worst.at.0),
        worst_window_key: worst.as_ref().map(|worst| worst.key.clone()),
        most_at_once: lane.most_at_once,
        starved_us: starved.as_ref().map(|starved| starved.amount),
        starved_from_us: starved.as_ref().map(|starved| starved.at.0),
        starved_key: starved.as_ref().map(|starved| starved.key.clone()),
        first_denial_us: lane.first_denial.map(|at| at.0),
        fairness: lane.fairness,
        keys_hit: lane.keys_hit,
        state_bytes_per_key: lane.state_bytes_per_key,
        wrongly_allowed: against.as_ref().map(|against| against.wrongly_allowed),
        wrongly_denied: against.as_ref().map(|against| against.wrongly_denied),
        most_denied: named.collect(),
    }
}

impl Report<'_> {
    pub(super) fn print(&self, context: &Context) -> Result<(), Failure> {
        if context.look.format.is_for_people() {
            return print(&picture::text::draw(self.outcome, self.caption, context.look.colours));
        }
        let items: Vec<Item> = self.outcome.lanes.iter().map(item).collect();
        context.print_list(&List::new(&items).head(&self.head()), "")
    }

    fn head(&self) -> Head<'_> {
        let Report { outcome, caption, .. } = self;
        Head {
            requests: outcome.requests,
            keys: outcome.keys,
            interrupted: outcome.ending.is_interrupted(),
            broken_off: outcome.ending.broken_off(),
            source: &caption.source,
            start_us: outcome.start.0,
            length_us: outcome.end.saturating_sub(outcome.start).0,
            so_what: &caption.so_what,
            log: self.read.as_ref().map(|(report, disorder)| LogHead {
                format: report.format.map(|format| format.name()),
                lines: report.lines,
                read: report.read,
                unreadable: report.unreadable,
                unreadable_examples: report
                    .examples
                    .iter()
                    .map(|bad| Example {
                        line: bad.number,
                        why: bad.why.clone(),
                        text: bad.text.clone(),
                    })
                    .collect(),
                without_key: report.without_key,
                steps_back: disorder.steps_back,
                too_late: disorder.too_late,
                keys_beyond: disorder.beyond,
            }),
            suggestion: self.suggestion.map(|found| SuggestionHead {
                algorithm: found.limit.algorithm().name(),
                limit: found.limit.requests(),
                period_us: found.limit.period().0,
                burst: found.limit.algorithm().is_bucket().then(|| found.limit.capacity()),
                keys_hit: found.lane.keys_hit,
                keys_hit_by_one_less: found.one_less.map(|(_, hit)| hit),
            }),
        }
    }
}

/// Files that are written at the end, and opened at the start: a path that cannot be written is
/// told in the first second.
#[derive(Debug, Default)]
pub(super) struct Outputs {
    svg: Option<OutFile>,
    html: Option<OutFile>,
    emit: Option<OutFile>,
}

pub(super) fn open_outputs(args: &Args) -> Result<Outputs, Failure> {
    if args.emit.is_some() {
        plan(args)?;
    }
    let input = args.log.as_ref().or(args.trace.as_ref());
    let open = |flag: &str, path: &Option<String>| {
        let Some(path) = path else { return Ok(None) };
        if input.is_some_and(|input| simulate_trace::is_same_file(input, path)) {
            return Err(Failure::usage(format!(
                "{flag} would overwrite the input; name another file"
            )));
        }
        let cannot =
            |e| Failure::new(Exit::Failed, format!("cannot write {flag} {}: {e}", Untrusted(path)));
        OutFile::open(Path::new(path)).map(Some).map_err(cannot)
    };
    Ok(Outputs {
        svg: open("--svg", &args.svg)?,
        html: open("--html", &args.html)?,
        emit: open("--emit", &args.emit)?,
    })
}

/// What a scenario is made of; what it has no words for is refused.
pub(super) fn plan(args: &Args) -> Result<emit::Plan, Failure> {
    match (&args.traffic, &args.log) {
        (Some(traffic), _) => Ok(emit::Plan::Described {
            traffic: traffic.clone(),
            keys: simulate_run::keys(args),
            run: args.run.unwrap_or(simulate_run::DEFAULT_RUN),
            seed: args.seed,
        }),
        (None, Some(path)) if path != "-" && args.key.is_none() && args.time.is_none() => {
            Ok(emit::Plan::Log { path: from_beside(path, args.emit.as_deref())? })
        }
        _ => Err(Failure::usage(
            "a scenario knows described traffic, and logs in a file that are counted by ip; leave out --emit, or --trace, --key and --time",
        )),
    }
}

/// A scenario looks for its files beside itself.
fn from_beside(path: &str, scenario: Option<&str>) -> Result<String, Failure> {
    let folder = scenario.and_then(|scenario| Path::new(scenario).parent());
    if folder.is_none_or(|folder| folder.as_os_str().is_empty()) {
        return Ok(path.into());
    }
    let whole = std::fs::canonicalize(path).map_err(|error| {
        Failure::new(Exit::BadFile, format!("{}: cannot open: {error}", Untrusted(path)))
    })?;
    Ok(whole.display().to_string())
}

impl Outputs {
    pub(super) fn write(
        self,
        args: &Args,
        report: &Report<'_>,
        context: &Context,
    ) -> Result<(), Failure> {
        let Report { outcome, caption, .. } = report;
        if let Some(mut file) = self.svg {
            file.write_all(picture::svg::draw(outcome, caption).as_bytes())?;
        }
        if let Some(mut file) = self.html {
            file.write_all(picture::html::page(outcome, caption).as_bytes())?;
        }
        if outcome.ending != Ending::Whole && self.emit.is_some() {
            context.note("no scenario is made of a part of the run");
        } else if let Some(mut file) = self.emit {
            let (text, notes) = emit::scenario(&plan(args)?, outcome).map_err(Failure::usage)?;
            file.write_all(text.as_bytes())?;
            notes.iter().for_each(|note| context.note(note));
        }
        Ok(())
    }
}
