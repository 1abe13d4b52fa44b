//! `GET /rate-limit` on the proxy: callers see their own limits, uncharged.

use bytes::Bytes;
use http::{HeaderValue, Response};
use serde_json::{Value, json};

use super::Gateway;
use super::answer::{retry_after_seconds, whole_seconds};
use super::headers::tell_limits;
use crate::engine::clock::Micros;
use crate::engine::limit::Cost;
use crate::engine::limiter::{Asked, Demand, Reached};
use crate::engine::live::Moment;
use crate::engine::plan::Attempt;
use crate::engine::policy::GatewaySettings;

/// What each limit of the caller has left. The path asked about is the endpoint of the rules, so
/// only rules for every endpoint and for this one are told.
pub(super) async fn own_limits(
    gateway: &Gateway,
    moment: &Moment,
    attempt: &Attempt<'_>,
    settings: &GatewaySettings,
) -> Response<Bytes> {
    let demand = Demand::of(Cost::PEEK);
    let Ok((verdict, answer)) = gateway.peek(moment, attempt, demand).await else {
        return super::refusal::problem(http::StatusCode::BAD_REQUEST, "that cannot be asked");
    };
    let limits: Vec<Value> = match &verdict.reached {
        Reached::Limits { asked, .. } => asked.iter().map(one).collect(),
        _ => Vec::new(),
    };
    let body = json!({
        "schema": crate::output::SCHEMA,
        "degraded": answer.degraded,
        "retry_after": answer.retry_after.map(retry_after_seconds),
        "limits": limits,
    });
    let mut response = Response::new(Bytes::from(format!("{body}\n")));
    let headers = response.headers_mut();
    headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(http::header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    tell_limits(headers, &verdict, &answer, settings.response.headers, Micros::now());
    response
}

fn one(asked: &Asked) -> Value {
    let (limit, decision) = (asked.limit.limit(), &asked.decision);
    json!({
        "rule": asked.limit.rule(),
        "algorithm": limit.algorithm().name(),
        "limit": limit.requests(),
        "period_us": limit.period().0,
        "capacity": limit.capacity(),
        "used": decision.used(),
        "remaining": decision.remaining,
        "reset_after": whole_seconds(decision.reset_after),
        "state": decision.state().name(),
    })
}
