//! `rlctl events`: who changed what, and why.

use std::io::{self, Write};

use serde::Serialize;

use super::registry_args::state;
use super::{Context, Exit, Failure, Output, print_json};
use crate::engine::registry::{
    DEFAULT_MAX_EVENTS, Event, EventId, FOLLOW_EVERY, News, Registry, RegistryError,
};
use crate::output::{SCHEMA, Untrusted, moment};

/// Show who changed what in the store, when and why
///
/// The newest come last. The store keeps the last 10 000.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rlctl events --audit --redis redis://127.0.0.1:6379
  rlctl events --follow -o json                      one object on each line, as they come
  rlctl events --rows 1000 -o json | jq '.items[] | select(.by == \"alice\")'")]
pub(super) struct Args {
    /// Only changes that operators made; there are no other events yet
    #[arg(long)]
    audit: bool,
    /// Go on with what happens from now on, until interrupted
    #[arg(long)]
    follow: bool,
    /// Most events to begin with
    #[arg(long, value_name = "N", default_value_t = 100)]
    rows: usize,
}

#[derive(Serialize)]
struct Report<'a> {
    schema: &'static str,
    items: &'a [Event],
}

/// An event on a line of its own.
#[derive(Serialize)]
struct Line<'a> {
    schema: &'static str,
    #[serde(flatten)]
    event: &'a Event,
}

pub(super) async fn run(args: Args, context: &Context) -> Result<Exit, Failure> {
    // Every event there is was made by an operator.
    let Args { audit: _, follow, rows } = args;
    let registry = context.registry().await?;
    let seen = registry.last_event().await?;
    let events = registry.events(None, rows).await?;
    if follow {
        // What came between the two questions is told once.
        let seen = events.last().map_or(seen, |event| event.id);
        print_lines(&events, context)?;
        return tokio::select! {
            ended = tell_news(&registry, seen, context) => ended,
            _ = tokio::signal::ctrl_c() => Ok(Exit::Interrupted),
        };
    }
    match context.output {
        Output::Json => print_json(&Report { schema: SCHEMA, items: &events })?,
        Output::Table if events.is_empty() => context.note("nothing was changed yet"),
        Output::Table => print_lines(&events, context)?,
    }
    Ok(Exit::Fine)
}

/// Tells what happens, for as long as somebody listens. A store that is away for a while is noted
/// and waited for.
async fn tell_news(
    registry: &Registry,
    mut seen: Option<EventId>,
    context: &Context,
) -> Result<Exit, Failure> {
    let mut away = false;
    loop {
        tokio::time::sleep(FOLLOW_EVERY.into()).await;
        match catch_up(registry, &mut seen).await {
            Ok((events, gap)) => {
                if gap {
                    context.note("events may be missing here: the store has lost the last one");
                }
                print_lines(&events, context)?;
                away = false;
            }
            Err(error) => {
                if !std::mem::replace(&mut away, true) {
                    context.note(Untrusted(&format!("{error}; waiting for it")));
                }
            }
        }
    }
}

/// What is new, and whether something before it may be missing.
async fn catch_up(
    registry: &Registry,
    seen: &mut Option<EventId>,
) -> Result<(Vec<Event>, bool), RegistryError> {
    match registry.news(*seen).await? {
        News::Events(events) => {
            *seen = events.last().map(|(id, _)| *id).or(*seen);
            let told = events
                .into_iter()
                .filter_map(|(id, event)| event.map(|event| Event { id: Some(id), ..event }));
            Ok((told.collect(), false))
        }
        News::Gap => {
            let events = registry.events(*seen, DEFAULT_MAX_EVENTS).await?;
            // A trail that ends before what was seen is another one, to be told from its start.
            let before = std::mem::replace(seen, events.last().and_then(|event| event.id));
            Ok((events, before.is_some()))
        }
    }
}

/// A reader that is gone ends it: whoever follows would go on for nobody.
fn print_lines(events: &[Event], context: &Context) -> Result<(), Failure> {
    for event in events {
        match context.output {
            Output::Json => {
                let line = serde_json::to_string(&Line { schema: SCHEMA, event });
                writeln!(io::stdout().lock(), "{}", line.map_err(io::Error::from)?)?;
            }
            Output::Table => writeln!(io::stdout().lock(), "{}", in_words(event))?,
        }
    }
    Ok(())
}

fn in_words(event: &Event) -> String {
    let (at, by) = (moment(event.at), Untrusted(&event.by));
    let (action, subject) = (Untrusted(&event.action), Untrusted(&event.subject));
    let (before, after) = (state(event, &event.before), state(event, &event.after));
    let reason = Untrusted(&event.reason);
    format!("{at}  {by}  {action}  {subject}: {before} → {after}  ({reason})")
}
