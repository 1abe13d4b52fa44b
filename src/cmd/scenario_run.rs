//! `rlctl scenario run`: scenarios as they happen, and reports of them.

use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use clap::ValueEnum;

use super::printing::tell;
use super::rules_file::print_findings;
use super::scenario::usable;
use super::scenario_watch::{Outputs, stamps};
use super::{Context, Exit, Failure, scenario_live};
use crate::engine::config::ConfigErrors;
use crate::output::Format as Form;
use crate::scenario::Scenario;
use crate::scenario::report::{Csv, Event, GitHub, Human, JUnit, Json, Report, Summary, Tap};
use crate::scenario::run::{self, Outcome};

/// How often `--watch` looks for changes.
const LOOK_EVERY: Duration = Duration::from_millis(300);

/// Run scenarios, in virtual time or live
///
/// Exit 0 when everything was as expected, 4 when something was not, 3 when a file cannot be used.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rlctl scenario run scenarios/
  rlctl scenario run burst.toml --seed 7         other dice, same scenario
  rlctl scenario run scenarios/ --tag failover --fail-fast
  rlctl scenario run scenarios/ --report junit=report.xml --report tap=report.tap
  rlctl scenario run scenarios/ --format github  annotations and a step summary
  rlctl scenario run burst.toml --watch          again after every change of a file
  rlctl scenario run down.toml --live --spawn single   in real time, on a Redis that is killed
  rlctl scenario run burst.toml --live --gateway http://127.0.0.1:9090   by its rules")]
pub(super) struct RunArgs {
    /// Scenario files, TOML or JSON, or folders of them
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// In place of the seeds in the files
    #[arg(long, value_name = "N")]
    pub(super) seed: Option<u64>,
    /// Only scenarios with this in their name or path
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Only scenarios with this tag; may repeat
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<String>,
    /// How many run at once [default: as many as there are cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    jobs: Option<u16>,
    /// Stop after the first scenario that is not as expected
    #[arg(long)]
    pub(super) fail_fast: bool,
    /// Also write a report: junit=FILE, json=FILE or tap=FILE; may repeat
    #[arg(long = "report", value_name = "KIND=FILE", value_parser = parse_report)]
    reports: Vec<(Kind, PathBuf)>,
    /// What to write to stdout, beside -o
    #[arg(long, value_enum, default_value_t = Format::Human)]
    format: Format,
    /// Run again whenever a file changes, until Ctrl-C
    #[arg(long)]
    watch: bool,
    /// In real time, one after the other: against --gateway, on the Redis of --redis or of --spawn
    #[arg(long, conflicts_with_all = ["watch", "jobs"])]
    live: bool,
    /// With --live: start a Redis for it, break it as the files say, and end it
    #[arg(long, value_enum, requires = "live")]
    pub(super) spawn: Option<Spawn>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people
    Human,
    /// Annotations for GitHub Actions, and a summary of the step
    Github,
    /// Test Anything Protocol
    Tap,
}

/// What `--spawn` starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Spawn {
    /// One server
    Single,
    /// A master, two replicas, three sentinels
    Sentinel,
    /// Three masters with a replica each
    Cluster,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Junit,
    Json,
    Tap,
}

fn parse_report(text: &str) -> Result<(Kind, PathBuf), String> {
    let (kind, file) = text.split_once('=').ok_or("write junit=FILE, json=FILE or tap=FILE")?;
    let kind = match kind {
        "junit" => Kind::Junit,
        "json" => Kind::Json,
        "tap" => Kind::Tap,
        _ => return Err(format!("`{kind}` is no kind of report; there are junit, json and tap")),
    };
    if file.is_empty() {
        Err("the file is missing after =".into())
    } else {
        Ok((kind, file.into()))
    }
}

pub(super) async fn run(args: RunArgs, context: &Context) -> Result<Exit, Failure> {
    if args.live {
        return scenario_live::run(&args, context).await;
    }
    if !args.watch {
        return once(&args, context);
    }
    let outputs = || Outputs::of(args.reports.iter().map(|(_, path)| path.as_path()));
    loop {
        let before = stamps(&args.paths, &outputs());
        // A file that is wrong now may be right after the next change.
        if let Err(failure) = once(&args, context)
            && !failure.what.is_empty()
        {
            tell(context.log_format, "rlctl", &failure.what);
        }
        context.note("watching; Ctrl-C ends it");
        while stamps(&args.paths, &outputs()) == before {
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                _ = tokio::signal::ctrl_c() => return Ok(Exit::Interrupted),
            }
        }
    }
}

fn once(args: &RunArgs, context: &Context) -> Result<Exit, Failure> {
    let scenarios = chosen(args, context)?;
    let mut telling = Telling::new(args, context, scenarios.len())?;
    run_all(&scenarios, args, |scenario, ran| telling.tell(scenario, ran))?;
    telling.finish()
}

/// What reporters are told, and what it comes to.
pub(super) struct Telling {
    reporters: Vec<Box<dyn Report>>,
    summary: Summary,
    failed: Option<String>,
}

impl Telling {
    pub(super) fn new(args: &RunArgs, context: &Context, count: usize) -> Result<Telling, Failure> {
        let reporters = reporters(args, context)?;
        let mut telling = Telling { reporters, summary: Summary::default(), failed: None };
        telling.event(Event::Began(count))?;
        Ok(telling)
    }

    fn event(&mut self, event: Event<'_>) -> Result<(), Failure> {
        for reporter in &mut self.reporters {
            match reporter.tell(&event) {
                // A reader that has seen enough takes nothing from the result.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
                told => told?,
            }
        }
        Ok(())
    }

    pub(super) fn tell(&mut self, scenario: &Scenario, ran: Ran) -> Result<(), Failure> {
        let why = match ran {
            Ran::Ended(outcome) => {
                self.summary.add(&outcome);
                return self.event(Event::Ended(&outcome));
            }
            Ran::Skipped(why) => why,
            Ran::Failed(why) => self.failed.insert(why).clone(),
        };
        self.summary.skipped_scenarios += 1;
        let (title, file) = (scenario.title(), scenario.file.display().to_string());
        self.event(Event::Skipped { title: &title, file: &file, why: &why })
    }

    pub(super) fn finish(mut self) -> Result<Exit, Failure> {
        let summary = self.summary;
        self.event(Event::Finished(&summary))?;
        match self.failed {
            Some(why) => Err(Failure::new(Exit::BadFile, why)),
            None if summary.failed > 0 => Ok(Exit::NotAsExpected),
            None => Ok(Exit::Fine),
        }
    }
}

/// What became of a scenario.
pub(super) enum Ran {
    Ended(Outcome),
    Skipped(String),
    Failed(String),
}

fn run_one(scenario: &Scenario, seed: Option<u64>) -> Ran {
    if scenario.wants_real_time {
        return Ran::Skipped("its clock is real, and time is virtual here".into());
    }
    run::run(scenario, seed).map_or_else(Ran::Failed, Ran::Ended)
}

pub(super) fn chosen(args: &RunArgs, context: &Context) -> Result<Vec<Scenario>, Failure> {
    let outputs = Outputs::of(args.reports.iter().map(|(_, path)| path.as_path()));
    let (all, warnings) = usable(&args.paths, |path| !outputs.contain(path))?;
    if !context.quiet {
        print_findings(&Err(ConfigErrors { errors: warnings, more: 0 }));
    }
    let fits = |scenario: &Scenario| {
        let named = args.filter.as_deref().is_none_or(|text| {
            scenario.title().contains(text) || scenario.file.display().to_string().contains(text)
        });
        named && (args.tags.is_empty() || args.tags.iter().any(|tag| scenario.tags.contains(tag)))
    };
    let count = all.len();
    let scenarios: Vec<Scenario> = all.into_iter().filter(fits).collect();
    if scenarios.is_empty() {
        let what =
            format!("none of {count} scenarios has that name or tag; see rlctl scenario list");
        return Err(Failure::new(Exit::NothingMatched, what));
    }
    Ok(scenarios)
}

fn reporters(args: &RunArgs, context: &Context) -> Result<Vec<Box<dyn Report>>, Failure> {
    let mut reporters: Vec<Box<dyn Report>> = Vec::new();
    reporters.push(match (context.look.format, args.format) {
        (Form::Json | Form::Ndjson, _) => Box::new(Json::new(io::stdout())),
        (Form::Csv, _) => Box::new(Csv::new(io::stdout(), context.look)),
        (_, Format::Human) => Box::new(Human::new(io::stdout())),
        (_, Format::Tap) => Box::new(Tap::new(io::stdout())),
        (_, Format::Github) => {
            let summary = context.env("GITHUB_STEP_SUMMARY").map(|path| {
                fs::OpenOptions::new().create(true).append(true).open(&path).map_err(|error| {
                    Failure::new(
                        Exit::Failed,
                        format!("cannot write the step summary {path}: {error}"),
                    )
                })
            });
            Box::new(GitHub::new(io::stdout(), summary.transpose()?))
        }
    });
    if args.format == Format::Github && context.look.format.is_for_people() {
        reporters.insert(0, Box::new(Human::new(io::stdout())));
    }
    for (kind, path) in &args.reports {
        let file = File::create(path).map_err(|error| {
            let what = format!("cannot write the report {}: {error}", path.display());
            Failure::new(Exit::Failed, what)
        })?;
        let file = BufWriter::new(file);
        reporters.push(match kind {
            Kind::Junit => Box::new(JUnit::new(file)),
            Kind::Json => Box::new(Json::new(file)),
            Kind::Tap => Box::new(Tap::new(file)),
        });
    }
    Ok(reporters)
}

/// Runs scenarios on several threads; each is told in the order of the files.
fn run_all(
    scenarios: &[Scenario],
    args: &RunArgs,
    mut told: impl FnMut(&Scenario, Ran) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = args.jobs.map_or(cores, usize::from).min(scenarios.len());
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (sender, receiver) = mpsc::channel();
    let sender = Mutex::new(sender);
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                let sender = sender.lock().map(|sender| sender.clone());
                let Ok(sender) = sender else { return };
                while !stop.load(Ordering::Relaxed) {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(scenario) = scenarios.get(number) else { return };
                    let outcome = run_one(scenario, args.seed);
                    // Nobody listens any more: then nobody wants to know.
                    if sender.send((number, outcome)).is_err() {
                        return;
                    }
                }
            });
        }
        let mut waiting = std::collections::BTreeMap::new();
        let mut due = 0;
        while due < scenarios.len() {
            let Ok((number, outcome)) = receiver.recv() else { break };
            waiting.insert(number, outcome);
            while let Some(outcome) = waiting.remove(&due) {
                let failed = matches!(&outcome, Ran::Ended(outcome) if !outcome.passed());
                let result = told(&scenarios[due], outcome);
                due += 1;
                if result.is_err() || failed && args.fail_fast {
                    stop.store(true, Ordering::Relaxed);
                    return result;
                }
            }
        }
        Ok(())
    })
}
