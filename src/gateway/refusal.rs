//! What a refused caller gets: status, headers, and a body that says why and when to come back.

use std::fmt::Write;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use serde::Serialize;
use serde_json::json;

use super::answer::{Answer, Outcome, retry_after_seconds};
use super::headers::{tell_limits, tell_retry};
use crate::engine::clock::Micros;
use crate::engine::limiter::{Reached, Verdict};
use crate::engine::policy::ResponseSettings;

const PROBLEM: &str = "application/problem+json";

/// The answer to a request that does not pass.
pub fn refusal(
    verdict: &Verdict,
    answer: &Answer,
    settings: &ResponseSettings,
    asked_with: &HeaderMap,
    now: Micros,
) -> Response<Bytes> {
    let status = match answer.outcome {
        Outcome::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::from_u16(settings.status).unwrap_or(StatusCode::TOO_MANY_REQUESTS),
    };
    let (kind, body) = body(verdict, answer, settings, status, wants_problem(asked_with));
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    tell_limits(headers, verdict, answer, settings.headers, now);
    tell_retry(headers, answer);
    response
}

/// A mistake of the caller or of the way to the upstream, in the form that machines read.
pub fn problem(status: StatusCode, detail: &str) -> Response<Bytes> {
    let title = status.canonical_reason().unwrap_or("Error");
    let body = json!({
        "type": "about:blank", "title": title, "status": status.as_u16(), "detail": detail,
    });
    let mut response = Response::new(Bytes::from(body.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM));
    response
}

fn wants_problem(headers: &HeaderMap) -> bool {
    let named = |value: &HeaderValue| value.to_str().is_ok_and(|text| text.contains(PROBLEM));
    headers.get_all(ACCEPT).iter().any(named)
}

fn body(
    verdict: &Verdict,
    answer: &Answer,
    settings: &ResponseSettings,
    status: StatusCode,
    as_problem: bool,
) -> (&'static str, Bytes) {
    if let Some(own) = &settings.body {
        let is_json = serde_json::from_str::<serde::de::IgnoredAny>(own).is_ok();
        let kind = if is_json { "application/json" } else { "text/plain; charset=utf-8" };
        return (kind, Bytes::from(own.clone()));
    }
    let (error, message) = words(verdict, answer);
    let documentation_url = settings.documentation_url.as_deref();
    let body = Body {
        detail: None,
        documentation_url,
        error,
        message: Some(&message),
        retry_after: answer.retry_after.map(retry_after_seconds),
        retry_after_us: answer.retry_after.map(|wait| wait.0),
        rule: answer.rule.as_deref(),
        status: None,
        title: None,
        kind: None,
    };
    if !as_problem {
        return ("application/json", body.to_bytes());
    }
    let problem = Body {
        detail: body.message,
        message: None,
        status: Some(status.as_u16()),
        title: Some(status.canonical_reason().unwrap_or("Refused")),
        kind: Some(documentation_url.unwrap_or("about:blank")),
        ..body
    };
    (PROBLEM, problem.to_bytes())
}

/// Fields in the order of their names. Refusals are most of what a gateway says under attack, so
/// they are written without building a tree first.
#[derive(Serialize)]
struct Body<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    documentation_url: Option<&'a str>,
    error: &'a str,
    message: Option<&'a str>,
    retry_after: Option<u64>,
    retry_after_us: Option<u64>,
    rule: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<&'a str>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'a str>,
}

impl Body<'_> {
    fn to_bytes(&self) -> Bytes {
        let mut bytes = Vec::with_capacity(256);
        // Neither texts and numbers nor a vector can fail.
        let _ = serde_json::to_writer(&mut bytes, self);
        Bytes::from(bytes)
    }
}

fn words(verdict: &Verdict, answer: &Answer) -> (&'static str, String) {
    match &verdict.reached {
        Reached::Limits { decided, asked } => {
            let limit = asked[*decided].limit.limit();
            let (requests, period) = (limit.requests(), limit.period());
            let mut message = String::with_capacity(96);
            // A string takes everything.
            let _ = write!(message, "the limit is {requests} requests per {period}");
            if limit.capacity() != requests {
                let _ = write!(message, ", at most {} at once", limit.capacity());
            }
            let _ = match answer.retry_after {
                Some(wait) => write!(message, "; try again in {} s", retry_after_seconds(wait)),
                None => write!(message, "; this request can never pass"),
            };
            ("rate_limit_exceeded", message)
        }
        // Why somebody is blocked is the operator's business.
        Reached::Blocked { .. } => ("blocked", "access is blocked".into()),
        Reached::Busy(busy) => {
            let max = busy.at_once.max;
            ("too_many_at_once", format!("at most {max} requests at a time; try again in 1 s"))
        }
        Reached::Missing { rule } => {
            ("identity_required", format!("rule {rule} needs to know who asks"))
        }
        _ => ("limiter_unavailable", "limits cannot be checked now; try again in 1 s".into()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::engine::plan::Entry;

    fn blocked() -> Verdict {
        let entry = Entry {
            reason: "abuse".into(),
            until: Some(Micros(90_000_001)),
            whole_request: false,
            place: None,
        };
        let identity = "user:1".parse().unwrap();
        Verdict::by(false, Reached::Blocked { identity, entry })
    }

    fn refused(settings: &ResponseSettings, accept: &'static str) -> Response<Bytes> {
        let (verdict, now) = (blocked(), Micros(30_000_000));
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
        refusal(&verdict, &Answer::of(&verdict, None, now), settings, &headers, now)
    }

    #[test]
    fn a_block_with_an_end_says_when_and_not_why() {
        let response = refused(&ResponseSettings::default(), "*/*");
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers()["retry-after"], "61");
        let body: Value = serde_json::from_slice(response.body()).unwrap();
        assert_eq!(body["error"], "blocked");
        assert_eq!(body["retry_after"], 61);
        assert_eq!(body["retry_after_us"], 60_000_001);
        assert!(!response.body().windows(5).any(|w| w == b"abuse"));
    }

    #[test]
    fn status_body_and_form_are_as_configured() {
        let own = ResponseSettings {
            status: 420,
            body: Some("calm down".into()),
            ..ResponseSettings::default()
        };
        let response = refused(&own, "*/*");
        assert_eq!((response.status().as_u16(), &response.body()[..]), (420, &b"calm down"[..]));
        assert_eq!(response.headers()[CONTENT_TYPE], "text/plain; charset=utf-8");
        let problem = refused(&ResponseSettings::default(), PROBLEM);
        assert_eq!(problem.headers()[CONTENT_TYPE], PROBLEM);
        let body: Value = serde_json::from_slice(problem.body()).unwrap();
        assert_eq!((&body["status"], &body["detail"]), (&429.into(), &"access is blocked".into()));
    }
}
