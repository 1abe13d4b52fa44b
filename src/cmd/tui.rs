//! `rlctl tui`: the dashboard.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::ValueEnum;
use tokio::sync::mpsc::channel;

use super::printing::print;
use super::{Context, Exit, Failure, OPERATOR_DEADLINE};
use crate::engine::clock::Micros;
use crate::engine::store::redis::without_secrets;
use crate::ops::admin::Admin;
use crate::scenario::{self, LoadError};
use crate::tui::act::Where;
use crate::tui::data::Snapshot;
use crate::tui::demo::scenario::moments;
use crate::tui::demo::{Demo, STORIES, Story};
use crate::tui::feed::{Live, Store, run_demo, run_moments};
use crate::tui::model::{Model, Options, Permission, Theme};
use crate::tui::record::{RecordError, Recorder, Recording};
use crate::tui::run::{End, Session, run as run_session};
use crate::tui::timeline::Timeline;
use crate::tui::words::quoted;

/// Watch gateways: what is wrong, since when, who, by which rule, what to do
///
/// Read-only unless --write is given or W is pressed; every change shows its plan and the command
/// that does the same, and asks. ? lists the keys.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rlctl tui --demo                                   a story that needs nothing
  rlctl tui --demo scenarios/sentinel-failover.toml
  rlctl tui --gateway http://127.0.0.1:9090
  rlctl tui --context prod-eu --record incident.rlrec
  rlctl tui --replay incident.rlrec --at 14:02:11
  rlctl report incident.rlrec                        the post-mortem, in Markdown")]
pub(super) struct Args {
    /// A made-up evening in virtual time: incident, hot-key, failover, config, trouble; or the first
    /// scenario of a file
    #[arg(long, value_name = "STORY|FILE", num_args = 0..=1, default_missing_value = "incident", conflicts_with = "replay")]
    demo: Option<String>,
    /// Write down all that is seen; never over a file that is there
    #[arg(long, value_name = "FILE", conflicts_with = "replay")]
    record: Option<PathBuf>,
    /// Look at what was recorded
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,
    /// Begin a replay at this time of day, UTC
    #[arg(long, value_name = "HH:MM:SS", requires = "replay")]
    at: Option<String>,
    /// Allow changes: reset, override, block, failure mode
    #[arg(long, conflicts_with = "replay")]
    write: bool,
    /// Colours; NO_COLOR and --color never switch them off
    #[arg(long, value_enum, default_value_t = ThemeArg::Dark)]
    theme: ThemeArg,
    /// Draw with ASCII only; the default where the locale is not UTF-8
    #[arg(long)]
    ascii: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ThemeArg {
    /// For a dark background
    Dark,
    /// For a light background
    Light,
    /// For eyes that do not tell red from green
    Wong,
    /// No colour
    Mono,
}

pub(super) async fn run(args: Args, context: &Context) -> Result<Exit, Failure> {
    let plan = Plan::of(&args, context)?;
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        return Err(Failure::usage(
            "the dashboard needs a terminal; rlctl top --once gives the same figures without",
        ));
    }
    let mut options = options(&args, context, &plan);
    let recorder = match &args.record {
        Some(path) => {
            options.recording_since_us = Some(Micros::now().0);
            Some(Recorder::create(path, &options.title)?)
        }
        None => None,
    };
    let (news_to, news) = channel(256);
    let (asks, asked) = channel(16);
    let mut timeline = Timeline::default();
    match plan {
        Plan::Demo(demo) => drop(tokio::spawn(run_demo(*demo, news_to, asked))),
        Plan::Scenario(_, shown) => drop(tokio::spawn(run_moments(shown, news_to, asked))),
        Plan::Live(live) => drop(tokio::spawn(live.run(news_to, asked))),
        Plan::Replay(recording) => timeline = recording.into_timeline(),
    }
    if let Some(at) = &args.at
        && !timeline.seek(at)
    {
        return Err(Failure::usage(format!("--at: the recording ends before {at}")));
    }
    let folder = std::env::current_dir()?;
    let model = Model::new(options, timeline);
    let End { interrupted, picture } =
        run_session(Session { model, news, asks, recorder, folder }).await?;
    if let Some(picture) = picture {
        print(&picture)?;
    }
    Ok(if interrupted { Exit::Interrupted } else { Exit::Fine })
}

/// Where the figures come from.
enum Plan {
    Demo(Box<Demo>),
    /// What it is called, and all of it.
    Scenario(String, Vec<Snapshot>),
    Live(Live),
    Replay(Recording),
}

impl Plan {
    fn of(args: &Args, context: &Context) -> Result<Plan, Failure> {
        if let Some(path) = &args.replay {
            return Ok(Plan::Replay(Recording::read(path)?));
        }
        if let Some(name) = &args.demo {
            let Some(story) = Story::named(name) else { return scenario_demo(name) };
            let broken = || Failure::new(Exit::Failed, "the rules of the demo cannot be read");
            return Ok(Plan::Demo(Box::new(Demo::new(story).ok_or_else(broken)?)));
        }
        let gateway = |url: &String| context.gateway(url).map(Arc::new);
        let gateways: Vec<Arc<Admin>> =
            context.gateways.iter().map(gateway).collect::<Result<_, _>>()?;
        let redis = match &context.redis {
            Some(url) => Some(Store {
                address: context.options(url, OPERATOR_DEADLINE)?.address,
                prefix: context.prefix.clone(),
            }),
            None => None,
        };
        if gateways.is_empty() && redis.is_none() {
            return Err(Failure::usage(
                "nothing to watch; give --gateway URL (of rlctl serve --admin), --redis URL, or \
                 both; or try --demo",
            ));
        }
        Ok(Plan::Live(Live { gateways, redis }))
    }
}

/// A scenario file in place of a story.
fn scenario_demo(name: &str) -> Result<Plan, Failure> {
    let path = Path::new(name);
    if !path.exists() {
        let known: Vec<&str> = STORIES.iter().map(|story| story.name).collect();
        let known = known.join(", ");
        return Err(Failure::usage(format!(
            "--demo: there is no story `{name}` and no such scenario file; known: {known}"
        )));
    }
    let (scenarios, _) = scenario::load(path).map_err(|error| match error {
        LoadError::Unreadable(why) => Failure::new(Exit::BadFile, why),
        LoadError::Bad(_) => {
            let next = format!("rlctl scenario check {name} says where");
            Failure::new(Exit::BadFile, format!("{name} has mistakes; {next}"))
        }
    })?;
    let empty = || Failure::new(Exit::BadFile, format!("{name} has no scenario"));
    let first = scenarios.first().ok_or_else(empty)?;
    let shown = moments(first).map_err(|why| Failure::new(Exit::Failed, why))?;
    Ok(Plan::Scenario(first.title(), shown))
}

impl From<RecordError> for Failure {
    fn from(error: RecordError) -> Failure {
        let exit = match error {
            RecordError::Open { .. } => Exit::Failed,
            _ => Exit::BadFile,
        };
        Failure::new(exit, error)
    }
}

fn options(args: &Args, context: &Context, plan: &Plan) -> Options {
    let title = match (plan, &context.name) {
        (Plan::Demo(_), _) => "demo".to_string(),
        (Plan::Scenario(title, _), _) => title.clone(),
        (Plan::Replay(recording), _) => recording.of.clone(),
        (Plan::Live(_), Some(name)) => name.clone(),
        (Plan::Live(live), None) => match (live.gateways.as_slice(), &live.redis) {
            ([], Some(store)) => store.address.to_string(),
            ([one], _) => one.at(),
            (several, _) => format!("{} gateways", several.len()),
        },
    };
    let permission = match (plan, &context.name) {
        (Plan::Replay(_), _) => Permission::Never("a recording cannot be changed".into()),
        (Plan::Scenario(..), _) => Permission::Never("a scenario happens as it is written".into()),
        (Plan::Demo(_), _) => Permission::Allowed,
        (_, Some(name)) if context.readonly => {
            Permission::Never(format!("context `{name}` is readonly"))
        }
        (_, Some(name)) if context.protected => Permission::Protected(name.clone()),
        _ => Permission::Allowed,
    };
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(|name| context.env(name));
    let is_utf8 = locale.is_none_or(|name| {
        let name = name.to_ascii_lowercase();
        name.contains("utf-8") || name.contains("utf8")
    });
    Options {
        title,
        permission,
        write: args.write,
        theme: match args.theme {
            ThemeArg::Dark => Theme::Dark,
            ThemeArg::Light => Theme::Light,
            ThemeArg::Wong => Theme::Wong,
            ThemeArg::Mono => Theme::Mono,
        },
        no_color: !context.look.colours,
        ascii: args.ascii || !is_utf8,
        at: place(context),
        recording_since_us: None,
    }
}

/// How the same place is named on a command line.
fn place(context: &Context) -> Where {
    let by_name = |name: &String| format!("--context {}", quoted(name));
    // Where neither says it the environment does, also to the command.
    let redis = context.redis.as_ref().map(|_| match (&context.redis_flag, &context.name) {
        (Some(url), _) => format!("--redis {}", quoted(&without_secrets(url))),
        (None, Some(name)) => by_name(name),
        (None, None) => String::new(),
    });
    let typed = |url: &String| format!("--gateway {}", quoted(url));
    let all = context.gateways.iter().map(typed).collect::<Vec<_>>().join(" ");
    let gateways = (!context.gateways.is_empty()).then(|| match &context.name {
        _ if context.gateway_flag => all,
        Some(name) => by_name(name),
        None => String::new(),
    });
    Where { redis, gateways, admin: context.gateways.first().cloned() }
}
