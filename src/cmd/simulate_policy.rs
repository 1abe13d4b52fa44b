//! `rlctl simulate --rules`: a whole policy against traffic.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::ProgressBar;

use super::simulate::Args;
use super::simulate_print::{Report, open_outputs};
use super::simulate_run::{
    self, ReadSoFar, command_line, exit_of, keys, notes, nothing_read, opener, until_done,
};
use super::{Context, Exit, Failure, rules_file};
use crate::engine::rules::Rules;
use crate::sim::outcome::{Ending, Outcome};
use crate::sim::picture::Caption;
use crate::sim::policy::{PolicyRun, Request};
use crate::sim::requests::{Facts, Requests};
use crate::sim::run::Span;
use crate::sim::so_what::so_what_of_policy;
use crate::sim::source::{More, START, SourceError};
use crate::traffic::log::{Field, LogFormat, LogOptions};

pub(super) async fn run(args: Args, context: &Context) -> Result<Exit, Failure> {
    let outputs = open_outputs(&args)?;
    let named = context.rules_file(None)?;
    let (policy, _) = rules_file::load(&named, context).await?;
    let length = args.traffic.as_ref().map(|_| args.run.unwrap_or(simulate_run::DEFAULT_RUN));
    let span = Span { start: length.map(|_| START), length };
    let rules = PolicyRun::new("all rules", policy, span);
    let (requests, progress) = requests(&args, rules.rules(), context)?;
    let enough = Arc::new(AtomicBool::new(false));
    let (heed, shown) = (enough.clone(), progress.clone());
    let task = tokio::task::spawn_blocking(move || simulate(rules, requests, &heed, &shown));
    let done = until_done(task, &enough).await;
    progress.finish_and_clear();
    let (outcome, read) = done?;
    if outcome.requests == 0 {
        nothing_read(&read, &outcome.ending)?;
    }
    let source = match (&args.traffic, &args.log) {
        (Some(traffic), _) => format!("{traffic} for {} (seed {})", keys(&args), args.seed),
        (None, log) => format!("log {}", log.as_deref().unwrap_or_default()),
    };
    let caption = Caption {
        source: format!("{source} under {named}"),
        command: command_line(),
        notes: notes(&read, &outcome.ending),
        so_what: so_what_of_policy(&outcome),
        dated: args.log.is_some(),
        of_rules: true,
    };
    let report = Report { outcome: &outcome, caption: &caption, read: &read, suggestion: None };
    report.print(context)?;
    outputs.write(&args, &report, context)?;
    exit_of(&outcome.ending)
}

fn simulate(
    mut rules: PolicyRun,
    mut requests: Requests,
    enough: &AtomicBool,
    progress: &ProgressBar,
) -> Result<(Outcome, ReadSoFar), Failure> {
    let is_described = matches!(requests, Requests::Described { .. });
    let ending = each_request(&mut requests, enough, |request| {
        rules.decide(request);
        if is_described {
            progress.inc(1);
        }
    });
    let outcome = Outcome { ending, ..rules.outcome() };
    Ok((outcome, requests.read_so_far()))
}

/// Hands over every request in order, those that wait to be sorted too when there is no more to come.
pub(super) fn each_request(
    requests: &mut Requests,
    enough: &AtomicBool,
    mut each: impl FnMut(&Request),
) -> Ending {
    let mut batch = Vec::new();
    let ending = loop {
        let more = match requests.fill(&mut batch) {
            Ok(more) => more,
            Err(error) => break Ending::BrokenOff(error.to_string()),
        };
        batch.iter().for_each(&mut each);
        if more == More::No {
            break Ending::Whole;
        }
        if enough.load(Ordering::Relaxed) {
            break Ending::Interrupted;
        }
    };
    requests.drain(&mut batch);
    batch.iter().for_each(&mut each);
    ending
}

fn bad_input(error: SourceError) -> Failure {
    Failure::new(Exit::BadFile, format!("the input: {error}"))
}

fn requests(
    args: &Args,
    rules: &Rules,
    context: &Context,
) -> Result<(Requests, ProgressBar), Failure> {
    if let Some(traffic) = &args.traffic {
        let run = args.run.unwrap_or(simulate_run::DEFAULT_RUN);
        let keys = keys(args).load(args.seed).map_err(|e| Failure::new(Exit::BadFile, e))?;
        let arrivals = traffic.arrivals(run, args.seed);
        let bar = simulate_run::bar_of_requests(context, traffic.expected(run));
        return Ok((Requests::Described { arrivals, keys, path: None, method: None }, bar));
    }
    let path = args.log.as_deref().unwrap_or("-");
    let options = LogOptions { format: args.format, time: args.time.clone() };
    log_requests(path, options, args.key.clone(), &[rules], context)
}

/// The requests of a log, with all that these rules ask about them.
fn log_requests(
    path: &str,
    options: LogOptions,
    user: Option<Field>,
    rules: &[&Rules],
    context: &Context,
) -> Result<(Requests, ProgressBar), Failure> {
    let (open, bar) = opener(path, context)?;
    let mut headers: Vec<String> =
        rules.iter().flat_map(|rules| rules.counted_headers()).map(String::from).collect();
    headers.sort_unstable();
    headers.dedup();
    let facts = Facts::new(user.filter(|field| *field != Field::Ip), headers);
    Ok((Requests::of_log(&open, options, facts).map_err(bad_input)?, bar))
}

/// `--log` and how to read it, for commands beside `simulate`.
#[derive(Debug, clap::Args)]
pub(super) struct LogArgs {
    /// An access log, plain or gzipped: who would newly be denied, and how often; - is stdin
    #[arg(long, value_name = "FILE")]
    pub(super) log: Option<String>,
    /// common, combined, json or csv [default: as the first line looks]
    #[arg(long, value_name = "FORMAT", value_parser = super::simulate::parse_format, requires = "log")]
    format: Option<LogFormat>,
    /// Where the log names users: a JSON path or a column [default: user and the like]
    #[arg(long, value_name = "FIELD", requires = "log")]
    key: Option<Field>,
    /// Where JSON and CSV have the time [default: time, timestamp, ts and the like]
    #[arg(long, value_name = "FIELD", requires = "log")]
    time: Option<String>,
}

impl LogArgs {
    pub(super) fn requests(
        &self,
        path: &str,
        rules: &[&Rules],
        context: &Context,
    ) -> Result<(Requests, ProgressBar), Failure> {
        let options = LogOptions { format: self.format, time: self.time.clone() };
        log_requests(path, options, self.key.clone(), rules, context)
    }
}
