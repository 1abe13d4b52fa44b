//! The policy as a whole: what is published, its versions, and the switches over it.

use axum::extract::State;
use axum::response::Response;
use http::header::{ETAG, IF_MATCH};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Shared;
use super::input::{Answered, HUGE, Json, Params, Writer};
use super::problem::Problem;
use super::rules::beside;
use crate::engine::clock::Micros;
use crate::engine::config::parse_policy;
use crate::engine::config::secrets::{masked, unmasked};
use crate::engine::policy::OnStoreError;
use crate::engine::registry::{KEPT_VERSIONS, NewVersion, Outcome, RegistryError, Switch};

pub(super) async fn show(State(api): State<Shared>) -> Answered {
    let newest = api.newest().await;
    let status = api.gateway.limiter.policy.status();
    let now = Micros::now();
    let in_force = status.loaded.as_ref().map(|loaded| {
        json!({
            "version": loaded.version,
            "hash": loaded.hash,
            "source": loaded.source.to_string(),
            "since_us": loaded.at.0,
            "age_us": now.saturating_sub(loaded.at).0,
            "warnings": loaded.warnings,
        })
    });
    let refused = status.refused.as_ref().map(|refused| {
        json!({
            "source": refused.from.to_string(),
            "why": refused.why.to_string(),
            "at_us": refused.at.0,
        })
    });
    let body = json!({
        "version": newest.version,
        "source": newest.source,
        "text": masked(&newest.text),
        "in_force": in_force,
        "refused": refused,
        "trouble": status.trouble.map(|trouble| trouble.why),
    });
    Ok(with_etag(super::json(StatusCode::OK, &body), newest.version.unwrap_or(0)))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PolicyBody {
    text: String,
    reason: Option<String>,
}

pub(super) async fn publish(
    State(api): State<Shared>,
    writer: Writer,
    headers: HeaderMap,
    Json(body): Json<PolicyBody, HUGE>,
) -> Answered {
    let intent = writer.intent(body.reason.as_deref())?;
    let Some(expected) = if_match(&headers)? else {
        let detail = "say which version this replaces: If-Match: \"7\" (0: none yet, *: any)";
        return Err(Problem::new(StatusCode::PRECONDITION_REQUIRED, detail));
    };
    api.may_publish()?;
    let known = api.gateway.registry.current().await?.map(|current| current.text);
    let text = usable(unmasked(&body.text, known.as_deref().unwrap_or_default())).await?;
    let new = api.gateway.registry.publish(&text, expected, &intent).await?;
    Ok(published(StatusCode::OK, &new))
}

/// The text, if it is a policy.
async fn usable(text: String) -> Result<String, Problem> {
    beside(move || {
        parse_policy("the new policy", &text, Micros::now())?;
        Ok(text)
    })
    .await?
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HistoryParams {
    limit: Option<usize>,
}

pub(super) async fn history(
    State(api): State<Shared>,
    Params(params): Params<HistoryParams>,
) -> Answered {
    let most = params.limit.unwrap_or(KEPT_VERSIONS as usize).clamp(1, KEPT_VERSIONS as usize);
    let items = api.gateway.registry.history(most).await?;
    Ok(super::json(StatusCode::OK, &json!({ "items": items })))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RollbackBody {
    version: u64,
    reason: Option<String>,
}

pub(super) async fn rollback(
    State(api): State<Shared>,
    writer: Writer,
    Json(body): Json<RollbackBody>,
) -> Answered {
    let intent = writer.intent(body.reason.as_deref())?;
    api.may_publish()?;
    let registry = &api.gateway.registry;
    let old = registry.text(body.version).await?;
    let old = old.ok_or(RegistryError::NoVersion(body.version))?;
    // What was fine for an older rlctl need not be for this one.
    usable(old.to_string()).await?;
    let new = registry.rollback(body.version, &intent).await?;
    Ok(published(StatusCode::OK, &new))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ModeBody {
    rule: Option<String>,
    /// `policy`: as the policy says.
    on_store_error: Option<String>,
    observe: Option<bool>,
    reason: Option<String>,
}

pub(super) async fn mode(
    State(api): State<Shared>,
    writer: Writer,
    Json(body): Json<ModeBody>,
) -> Answered {
    let intent = writer.intent(body.reason.as_deref())?;
    let switch = match (body.rule, body.on_store_error, body.observe) {
        (None, None, Some(observe)) => Switch::Observe(observe),
        (Some(rule), Some(mode), None) => {
            let mode = match mode.as_str() {
                "policy" => None,
                name => Some(OnStoreError::named(name).ok_or_else(|| {
                    Problem::impossible("on_store_error: open, local, closed or policy")
                })?),
            };
            if mode.is_some() {
                api.known_rule(&rule)?;
            }
            Switch::OnStoreError { rule, mode }
        }
        _ => {
            let detail = "give `rule` and `on_store_error`, or `observe`";
            return Err(Problem::malformed(detail));
        }
    };
    let outcome = api.gateway.registry.set_switch(&switch, &intent).await?;
    Ok(changed(&outcome))
}

impl super::Api {
    /// A name that the policy in force does not have is a slip of the pen.
    pub(super) fn known_rule(&self, name: &str) -> Result<(), Problem> {
        match self.gateway.limiter.policy.current() {
            Some(current) if current.rules.policy().rule(name).is_none() => {
                Err(Problem::impossible(format!("rule: there is no rule `{name}`")))
            }
            _ => Ok(()),
        }
    }
}

/// What a change changed.
pub(super) fn changed(outcome: &Outcome) -> Response {
    let body = json!({ "written": outcome.written, "event": outcome.event });
    super::json(StatusCode::OK, &body)
}

/// A new version, and what the trail says of it.
pub(super) fn published(status: StatusCode, new: &NewVersion) -> Response {
    let version = &new.version;
    let body: Value = json!({
        "version": version.version,
        "hash": version.hash,
        "event": new.outcome.event,
    });
    with_etag(super::json(status, &body), version.version)
}

fn with_etag(mut response: Response, version: u64) -> Response {
    if let Ok(tag) = HeaderValue::try_from(format!("\"{version}\"")) {
        response.headers_mut().insert(ETAG, tag);
    }
    response
}

/// The version that a change is meant for: none when nothing was said, some none for any.
pub(super) fn if_match(headers: &HeaderMap) -> Result<Option<Option<u64>>, Problem> {
    let Some(value) = headers.get(IF_MATCH) else { return Ok(None) };
    let text = value.to_str().unwrap_or_default().trim();
    if text == "*" {
        return Ok(Some(None));
    }
    let number = text.strip_prefix('"').and_then(|t| t.strip_suffix('"')).unwrap_or(text);
    match number.parse() {
        Ok(version) => Ok(Some(Some(version))),
        Err(_) => Err(Problem::malformed("If-Match is the number of one version, or *")),
    }
}
