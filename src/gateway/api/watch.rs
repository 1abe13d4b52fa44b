//! What is going on: counters, events, who is there; nothing here changes anything.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use http::StatusCode;
use http::header::CONTENT_TYPE;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{MissedTickBehavior, interval};

use super::Shared;
use super::input::{Answered, Named, Params};
use super::problem::Problem;
use crate::engine::clock::Micros;
use crate::engine::registry::EventId;
use crate::gateway::history::Tally;
use crate::gateway::snapshot::ROWS;
use crate::gateway::stats::By;
use crate::gateway::top::Ranked;

/// Dashboards that are told what happens as it happens.
pub(super) const MAX_STREAMS: usize = 100;
const EVERY: Duration = Duration::from_secs(1);
const MOST_EVENTS: usize = 1_000;
const MOST_IN_TOP: usize = 100;

pub(super) async fn health() -> Response {
    super::json(StatusCode::OK, &json!({ "status": "ok" }))
}

pub(super) async fn ready(State(api): State<Shared>) -> Answered {
    if api.gateway.is_ready() {
        return Ok(super::json(StatusCode::OK, &json!({ "status": "ready" })));
    }
    if api.gateway.is_draining() {
        return Err(Problem::unavailable("this gateway is stopping"));
    }
    Err(Problem::unavailable("there is no policy yet, or every rule is closed without its store"))
}

pub(super) async fn metrics(State(api): State<Shared>) -> Response {
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    let text = api.gateway.stats.metrics(&api.gateway, Micros::now());
    ([(CONTENT_TYPE, kind)], text).into_response()
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StatsParams {
    rows: Option<usize>,
}

impl StatsParams {
    fn rows(&self) -> usize {
        self.rows.unwrap_or(ROWS).clamp(1, MOST_IN_TOP)
    }
}

pub(super) async fn stats(
    State(api): State<Shared>,
    Params(params): Params<StatsParams>,
) -> Response {
    let (gateway, now) = (&api.gateway, Micros::now());
    super::json(StatusCode::OK, &gateway.stats.snapshot_of(gateway, now, params.rows()))
}

/// One snapshot at once, and then one a second, for as long as somebody listens and the gateway
/// does not end.
pub(super) async fn stream(
    State(api): State<Shared>,
    Params(params): Params<StatsParams>,
) -> Answered {
    let Ok(place) = api.streams.clone().try_acquire_owned() else {
        return Err(Problem::unavailable(format!("{MAX_STREAMS} streams are open already")));
    };
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    // The place is given back when whoever listens goes, and the stream with them.
    let begin = (api, place, ticks, params.rows());
    let events = stream::unfold(begin, async |(api, place, mut ticks, rows)| {
        ticks.tick().await;
        if api.gateway.is_draining() {
            return None;
        }
        let data = api.gateway.stats.snapshot_of(&api.gateway, Micros::now(), rows).to_string();
        let event = Event::default().event("stats").data(data);
        Some((Ok::<_, Infallible>(event), (api, place, ticks, rows)))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::default()).into_response())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EventParams {
    since: Option<String>,
    limit: Option<usize>,
}

/// The newest events after `since`, oldest first.
pub(super) async fn events(
    State(api): State<Shared>,
    Params(params): Params<EventParams>,
) -> Answered {
    let since = params.since.as_deref().map(str::parse::<EventId>).transpose();
    let since = since.map_err(|error| Problem::malformed(format!("since: {error}")))?;
    let most = params.limit.unwrap_or(100).clamp(1, MOST_EVENTS);
    let items = api.gateway.registry.events(since, most).await?;
    Ok(super::json(StatusCode::OK, &json!({ "items": items })))
}

pub(super) async fn gateways(State(api): State<Shared>) -> Answered {
    let items = api.gateway.registry.members().await?;
    Ok(super::json(StatusCode::OK, &json!({ "items": items })))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TopParams {
    by: Option<String>,
    rule: Option<String>,
    limit: Option<usize>,
}

/// Who stands out, heaviest first.
pub(super) async fn top(State(api): State<Shared>, Params(params): Params<TopParams>) -> Answered {
    let name = params.by.as_deref().unwrap_or("rejected");
    let by = match name {
        "rejected" => By::Rejected,
        "seen" if params.rule.is_some() => {
            return Err(Problem::impossible("rule: only those it refuses are counted by rule"));
        }
        "seen" => By::Seen,
        _ => return Err(Problem::impossible("by: rejected or seen")),
    };
    let most = params.limit.unwrap_or(20).clamp(1, MOST_IN_TOP);
    let ranked = api.gateway.stats.top(by, params.rule.as_deref(), most);
    let items: Vec<Value> = ranked.iter().map(Ranked::to_json).collect();
    Ok(super::json(StatusCode::OK, &json!({ "by": name, "items": items })))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UsageParams {
    from: Option<String>,
    to: Option<String>,
}

/// What a rule decided in this process, second by second, as far back as it remembers.
pub(super) async fn usage(
    State(api): State<Shared>,
    Named(name): Named,
    Params(params): Params<UsageParams>,
) -> Answered {
    let now = Micros::now();
    let (from, to) = (time("from", params.from)?, time("to", params.to)?);
    let (from, to) = (from.unwrap_or(Micros::ZERO), to.unwrap_or(now));
    if from > to {
        return Err(Problem::impossible("from: it is after `to`"));
    }
    let is_known =
        api.gateway.limiter.policy.written().is_some_and(|w| w.policy.rule(&name).is_some());
    if !is_known {
        return Err(Problem::not_found(format!("there is no rule `{name}`")));
    }
    let seconds = api.gateway.stats.usage(&name, from, to);
    let items = seconds.iter().filter(|(_, tally)| *tally != Tally::default());
    let items: Vec<Value> = items.map(|(at, tally)| second(*at, tally)).collect();
    // What is known begins later than what was asked for, most of the time.
    let known_from = seconds.first().map(|(at, _)| at.0);
    let known_to = seconds.last().map(|(at, _)| at.0);
    let body = json!({
        "rule": name, "gateway": api.gateway.about.id,
        "known_from_us": known_from, "known_to_us": known_to, "items": items,
    });
    Ok(super::json(StatusCode::OK, &body))
}

fn second(at: Micros, tally: &Tally) -> Value {
    json!({
        "at_us": at.0,
        "allowed": tally.allowed,
        "rejected": tally.rejected,
        "shadow": tally.shadow,
        "degraded": tally.degraded,
    })
}

/// A moment as RFC 3339, or as microseconds since 1970.
fn time(what: &str, text: Option<String>) -> Result<Option<Micros>, Problem> {
    let Some(text) = text else { return Ok(None) };
    let by_number = text.parse::<u64>().ok();
    let by_words = || {
        let moment: jiff::Timestamp = text.parse().ok()?;
        u64::try_from(moment.as_microsecond()).ok()
    };
    let moment = by_number.or_else(by_words).map(Micros);
    let wrong = || Problem::malformed(format!("{what}: a moment as in 2026-12-01T00:00:00Z"));
    moment.ok_or_else(wrong).map(Some)
}
