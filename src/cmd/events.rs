//! `rlctl events`: who changed what and why, and what happened to gateways.

use std::collections::HashSet;
use std::io::Write;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::printing::{is_reader_gone, until_interrupted};
use super::registry_args::state;
use super::{Context, Exit, Failure};
use crate::engine::clock::Micros;
use crate::engine::registry::{
    DEFAULT_MAX_EVENTS, Event, EventId, FOLLOW_EVERY, News, Registry, RegistryError,
};
use crate::ops::admin::Admin;
use crate::ops::fleet::{GatewayEvent, GatewayStats, ask, ask_all};
use crate::output::{Column, Row, Rows, Tone, moment};

/// Of one gateway that are remembered while following: more than it ever tells at once.
const REMEMBERED: usize = 1_000;

/// Show who changed what, when and why, and what happened to gateways
///
/// The changes that operators made come from Redis, or without --redis from a gateway; the store
/// keeps the last 10 000. What happened to gateways (the store lost and found, quotas at their end,
/// policies refused) they remember themselves, the last two hundred each. The newest come last.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rlctl events --audit --redis redis://127.0.0.1:6379
  rlctl events --gateway http://127.0.0.1:9090 --gateway http://127.0.0.1:9091
  rlctl events --follow -o json                      one object on each line, as they come
  rlctl events --rows 1000 -o json | jq '.items[] | select(.by == \"alice\")'")]
pub(super) struct Args {
    /// Only changes that operators made
    #[arg(long)]
    audit: bool,
    /// Go on with what happens from now on, until interrupted
    #[arg(long)]
    follow: bool,
    /// Most events to begin with
    #[arg(long, value_name = "N", default_value_t = 100)]
    rows: usize,
}

/// A change or a happening, with the fields of both.
#[derive(Serialize)]
struct Line {
    id: Option<String>,
    at_us: u64,
    /// Who made the change; null for what happened by itself.
    by: Option<String>,
    action: Option<String>,
    kind: Value,
    /// The identity, pattern, rule or version.
    subject: Option<String>,
    before: Value,
    after: Value,
    reason: Option<String>,
    /// Whom it happened to; null for changes.
    gateway: Option<String>,
    level: Option<String>,
    text: Option<String>,
    rule: Option<String>,
    #[serde(skip)]
    was: String,
    #[serde(skip)]
    now: String,
}

/// Where events come from.
struct Sources {
    changes: Changes,
    gateways: Vec<Admin>,
    /// What was told of gateways already: gateway, moment and text.
    told: HashSet<(String, u64, String)>,
}

/// Where changes come from, and the last one that was seen.
struct Changes {
    from: ChangesFrom,
    seen: Option<EventId>,
}

enum ChangesFrom {
    Store(Registry),
    /// The first of them.
    Gateways(Vec<Admin>),
}

#[derive(Deserialize)]
struct Trail {
    items: Vec<Event>,
}

pub(super) async fn run(args: Args, context: &Context) -> Result<Exit, Failure> {
    let mut sources = Sources::open(&args, context).await?;
    let mut lines = sources.begin(args.rows, context).await?;
    lines.sort_by_key(|line| line.at_us);
    lines.drain(..lines.len().saturating_sub(args.rows));
    if args.follow {
        let mut rows = context.endless_rows()?;
        return until_interrupted(async {
            add(&mut rows, &lines)?;
            sources.tell_news(&mut rows, context).await
        })
        .await;
    }
    if lines.is_empty() && context.look.format.is_for_people() {
        context.note("nothing was changed yet");
    }
    let mut rows = context.rows()?;
    add(&mut rows, &lines)?;
    rows.end()?;
    Ok(Exit::Fine)
}

/// A reader that is gone ends it: whoever follows would go on for nobody.
fn add(rows: &mut Rows<Line, impl Write>, lines: &[Line]) -> Result<(), Failure> {
    lines.iter().try_for_each(|line| rows.push(line))?;
    Ok(rows.flush()?)
}

impl Sources {
    async fn open(args: &Args, context: &Context) -> Result<Sources, Failure> {
        let gateways = context.all_gateways()?;
        let from = match (&context.redis, context.gateways.first()) {
            (None, Some(_)) => ChangesFrom::Gateways(context.all_gateways()?),
            _ => ChangesFrom::Store(context.registry().await?),
        };
        Ok(Sources {
            changes: Changes { from, seen: None },
            gateways: if args.audit { Vec::new() } else { gateways },
            told: HashSet::new(),
        })
    }

    /// The latest of all.
    async fn begin(&mut self, most: usize, context: &Context) -> Result<Vec<Line>, Failure> {
        let mut lines = self.happened(context).await;
        let changes = &mut self.changes;
        let events = match &mut changes.from {
            ChangesFrom::Store(registry) => {
                changes.seen = registry.last_event().await?;
                registry.events(None, most).await?
            }
            ChangesFrom::Gateways(gateways) => {
                let path = format!("/api/v1/events?limit={}", most.clamp(1, 1_000));
                let mut answers = ask_all::<Trail>(gateways, &path).await;
                // All on one store tell the same: the first that answers is asked from now on.
                let first = answers.iter().position(Result::is_ok).unwrap_or(0);
                gateways.swap(0, first);
                answers.swap_remove(first)?.items
            }
        };
        // What came between two questions is told once.
        changes.seen = events.last().map_or(changes.seen, |event| event.id);
        lines.extend(events.into_iter().map(Line::of_change));
        Ok(lines)
    }

    /// What gateways tell that was not told before. Those that do not answer are left out: `status`
    /// is there to tell that.
    async fn happened(&mut self, context: &Context) -> Vec<Line> {
        let answers = ask_all::<GatewayStats>(&self.gateways, "/api/v1/stats").await;
        let mut lines = Vec::new();
        for (gateway, answer) in self.gateways.iter().zip(answers) {
            let stats = match answer {
                Ok(stats) => stats,
                Err(error) => {
                    context.detail(format!("{} {}", gateway.at(), error.why()));
                    continue;
                }
            };
            if self.told.len() > REMEMBERED * self.gateways.len() {
                let oldest = stats.events.iter().map(|event| event.at_us).min().unwrap_or(0);
                self.told.retain(|(id, at, _)| *id != stats.gateway || *at >= oldest);
            }
            for event in stats.events {
                if self.told.insert((stats.gateway.clone(), event.at_us, event.text.clone())) {
                    lines.push(Line::of_gateway(&stats.gateway, event));
                }
            }
        }
        lines.sort_by_key(|line| line.at_us);
        lines
    }

    /// Tells what happens, for as long as somebody listens. A store that is away for a while is
    /// noted and waited for.
    async fn tell_news(
        &mut self,
        rows: &mut Rows<Line, impl Write>,
        context: &Context,
    ) -> Result<Exit, Failure> {
        let mut away = false;
        loop {
            tokio::time::sleep(FOLLOW_EVERY.into()).await;
            if is_reader_gone() {
                return Ok(Exit::Fine);
            }
            let mut lines = self.happened(context).await;
            match self.changes.catch_up().await {
                Ok((events, gap)) => {
                    if gap {
                        context.note("events may be missing here: the store has lost the last one");
                    }
                    lines.extend(events.into_iter().map(Line::of_change));
                    away = false;
                }
                Err(failure) => {
                    if !std::mem::replace(&mut away, true) {
                        context.note(format!("{}; waiting for it", failure.what));
                    }
                }
            }
            add(rows, &lines)?;
        }
    }
}

impl Changes {
    /// What is new, and whether something before it may be missing.
    async fn catch_up(&mut self) -> Result<(Vec<Event>, bool), Failure> {
        match &self.from {
            ChangesFrom::Store(registry) => Ok(catch_up(registry, &mut self.seen).await?),
            ChangesFrom::Gateways(gateways) => {
                let since = self.seen.map(|id| format!("&since={id}")).unwrap_or_default();
                let path = format!("/api/v1/events?limit=1000{since}");
                let gateway = gateways.first().expect("there is one, or the store is asked");
                let events = ask::<Trail>(gateway, &path).await?.items;
                self.seen = events.last().map_or(self.seen, |event| event.id);
                Ok((events, false))
            }
        }
    }
}

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

impl Line {
    fn of_change(event: Event) -> Line {
        Line {
            was: state(&event, &event.before),
            now: state(&event, &event.after),
            id: event.id.map(|id| id.to_string()),
            at_us: event.at.0,
            by: Some(event.by),
            action: Some(event.action),
            kind: serde_json::to_value(event.kind).unwrap_or_default(),
            subject: Some(event.subject),
            before: event.before,
            after: event.after,
            reason: Some(event.reason),
            gateway: None,
            level: None,
            text: None,
            rule: None,
        }
    }

    fn of_gateway(gateway: &str, event: GatewayEvent) -> Line {
        Line {
            was: String::new(),
            now: event.text.clone(),
            id: None,
            at_us: event.at_us,
            by: None,
            action: None,
            kind: event.kind.into(),
            subject: event.identity,
            before: Value::Null,
            after: Value::Null,
            reason: None,
            gateway: Some(gateway.into()),
            level: Some(event.level),
            text: Some(event.text),
            rule: event.rule,
        }
    }

    fn tone(&self) -> Tone {
        match self.level.as_deref() {
            Some("critical") => Tone::Bad,
            Some("warning") => Tone::Warning,
            _ => Tone::Plain,
        }
    }
}

impl Row for Line {
    fn columns() -> Vec<Column<Line>> {
        let by = |line: &Line| match (&line.by, &line.gateway) {
            (Some(by), _) => by.clone(),
            (None, gateway) => format!("gateway {}", gateway.as_deref().unwrap_or("-")),
        };
        let action = |line: &Line| match (&line.action, line.kind.as_str()) {
            (Some(action), _) => action.clone(),
            (None, kind) => kind.unwrap_or("-").into(),
        };
        let subject = |line: &Line| line.subject.clone().unwrap_or_else(|| "-".into());
        vec![
            Column::new("AT", |line: &Line| moment(Micros(line.at_us))),
            Column::new("BY", by),
            Column::new("ACTION", action),
            Column::new("SUBJECT", subject),
            Column::new("WAS", |line| line.was.clone()),
            Column::new("NOW", |line: &Line| line.now.clone()).tone(Line::tone),
            Column::new("REASON", |line| line.reason.clone().unwrap_or_default()),
            Column::wide("ID", |line| line.id.clone().unwrap_or_else(|| "-".into())),
        ]
    }

    const FIELDS: &'static [&'static str] = &[
        "id", "at_us", "by", "action", "kind", "subject", "before", "after", "reason", "gateway",
        "level", "text", "rule",
    ];
}
