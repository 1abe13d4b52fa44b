//! Single rules of the policy: each change publishes a new version of the whole.

use std::sync::Arc;

use axum::extract::State;
use http::{HeaderMap, HeaderValue, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::task::spawn_blocking;

use super::edit::{Edit, EditError, Fields, edited, name_of, rules_of};
use super::input::{Answered, Json, LARGE, Named, Writer};
use super::problem::Problem;
use super::{Api, Shared, policy};
use crate::engine::clock::Micros;
use crate::engine::config::parse_policy;
use crate::engine::live::Source;
use crate::engine::registry::{Intent, NewVersion, RegistryError, Switches};

/// How often a change begins again because somebody else was faster.
const ATTEMPTS: usize = 10;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RuleBody {
    rule: Fields,
    reason: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReasonBody {
    pub(super) reason: Option<String>,
}

pub(super) async fn list(State(api): State<Shared>) -> Answered {
    let newest = api.newest().await;
    let rules = newest.rules().await?;
    let switches = &api.gateway.limiter.view.snapshot().switches;
    let items: Vec<Value> = rules.into_iter().map(|rule| shown(rule, switches)).collect();
    let body = json!({ "version": newest.version, "source": newest.source, "items": items });
    Ok(super::json(StatusCode::OK, &body))
}

pub(super) async fn show(State(api): State<Shared>, Named(name): Named) -> Answered {
    let newest = api.newest().await;
    let rules = newest.rules().await?;
    let Some(rule) = rules.into_iter().find(|rule| name_of(rule) == Some(&name)) else {
        return Err(EditError::Missing(name).into());
    };
    let mut body = shown(rule, &api.gateway.limiter.view.snapshot().switches);
    body["version"] = newest.version.into();
    Ok(super::json(StatusCode::OK, &body))
}

pub(super) async fn add(
    State(api): State<Shared>,
    writer: Writer,
    headers: HeaderMap,
    Json(body): Json<RuleBody, LARGE>,
) -> Answered {
    let name = name_of(&body.rule).unwrap_or_default().to_owned();
    let change = Change { writer, headers, reason: body.reason, edit: Edit::Add(body.rule) };
    let mut response = change.publish(&api, StatusCode::CREATED).await?;
    if let Ok(place) = HeaderValue::try_from(format!("/api/v1/rules/{name}")) {
        response.headers_mut().insert(http::header::LOCATION, place);
    }
    Ok(response)
}

pub(super) async fn replace(
    State(api): State<Shared>,
    Named(name): Named,
    writer: Writer,
    headers: HeaderMap,
    Json(body): Json<RuleBody, LARGE>,
) -> Answered {
    let mut rule = under_its_name(body.rule, &name)?;
    rule.insert("name".into(), name.clone().into());
    let edit = Edit::Replace(name, rule);
    Change { writer, headers, reason: body.reason, edit }.publish(&api, StatusCode::OK).await
}

pub(super) async fn patch(
    State(api): State<Shared>,
    Named(name): Named,
    writer: Writer,
    headers: HeaderMap,
    Json(body): Json<RuleBody, LARGE>,
) -> Answered {
    let edit = Edit::Patch(name.clone(), under_its_name(body.rule, &name)?);
    Change { writer, headers, reason: body.reason, edit }.publish(&api, StatusCode::OK).await
}

pub(super) async fn remove(
    State(api): State<Shared>,
    Named(name): Named,
    writer: Writer,
    headers: HeaderMap,
    Json(body): Json<ReasonBody>,
) -> Answered {
    let edit = Edit::Remove(name);
    Change { writer, headers, reason: body.reason, edit }.publish(&api, StatusCode::OK).await
}

/// Buckets bear the name of their rule: under another name it is another rule.
fn under_its_name(rule: Fields, name: &str) -> Result<Fields, Problem> {
    match rule.get("name") {
        Some(other) if other.as_str() != Some(name) => Err(Problem::impossible(
            "rule: the name is in the path and cannot change; add a new rule and remove this one",
        )),
        _ => Ok(rule),
    }
}

/// A rule as it is written, and what is switched over it by hand.
fn shown(rule: Fields, switches: &Switches) -> Value {
    let name = name_of(&rule).unwrap_or_default();
    let (disabled, mode) = (switches.disabled.get(name), switches.on_store_error.get(name));
    json!({ "disabled": disabled, "on_store_error": mode, "rule": rule })
}

struct Change {
    writer: Writer,
    headers: HeaderMap,
    reason: Option<String>,
    edit: Edit,
}

impl Change {
    async fn publish(self, api: &Api, status: StatusCode) -> Answered {
        let intent = self.writer.intent(self.reason.as_deref())?;
        let expected = policy::if_match(&self.headers)?.flatten();
        api.may_publish()?;
        let new = api.publish_edit(self.edit, expected, &intent).await?;
        Ok(policy::published(status, &new))
    }
}

/// The newest policy that this gateway can learn of.
pub(super) struct Newest {
    pub(super) version: Option<u64>,
    pub(super) source: Option<String>,
    pub(super) text: Arc<str>,
}

impl Newest {
    async fn rules(&self) -> Result<Vec<Fields>, Problem> {
        let text = self.text.clone();
        Ok(beside(move || rules_of(&text)).await??)
    }
}

impl Api {
    /// What is published, even if it is not in force yet; while the store is away, what is in force.
    pub(super) async fn newest(&self) -> Newest {
        let written = self.gateway.limiter.policy.written();
        let loaded = written.as_ref().map(|written| &written.loaded);
        let held = loaded.map(|loaded| loaded.version);
        let is_file = loaded.is_some_and(|loaded| matches!(loaded.source, Source::File(_)));
        let registry = &self.gateway.registry;
        if !is_file
            && let Ok(Some(version)) = registry.version().await
            && Some(version.version) != held
            && let Ok(Some(published)) = registry.current().await
        {
            let version = published.version.version;
            let source = Some(Source::Published(version).to_string());
            return Newest { version: Some(version), source, text: published.text };
        }
        Newest {
            version: held,
            source: loaded.map(|loaded| loaded.source.to_string()),
            text: written.map_or_else(|| "".into(), |written| written.text),
        }
    }

    /// Nobody who obeys a file would hear of what is published.
    pub(super) fn may_publish(&self) -> Result<(), Problem> {
        let status = self.gateway.limiter.policy.status();
        let source = status.loaded.map(|loaded| loaded.source.clone());
        match source.or_else(|| status.refused.map(|refused| refused.from.clone())) {
            Some(Source::File(path)) => Err(Problem::conflict(format!(
                "this gateway obeys {path}, not what is published; change that, or start it with \
                 --rules store",
            ))),
            _ => Ok(()),
        }
    }

    /// Changes the text that is published; begins again when somebody else was faster, unless the
    /// change was meant for one version only.
    async fn publish_edit(
        &self,
        edit: Edit,
        expected: Option<u64>,
        intent: &Intent,
    ) -> Result<NewVersion, Problem> {
        let registry = &self.gateway.registry;
        for _ in 0..ATTEMPTS {
            let current = registry.current().await?;
            let version = current.as_ref().map_or(0, |current| current.version.version);
            if let Some(expected) = expected.filter(|expected| *expected != version) {
                return Err(RegistryError::Conflict { current: version, expected }.into());
            }
            let text = current.map_or_else(|| "".into(), |current| current.text);
            let edit = edit.clone();
            let text = beside(move || {
                let text = edited(&text, &edit)?;
                parse_policy("the new policy", &text, Micros::now())?;
                Ok::<_, Problem>(text)
            })
            .await??;
            match registry.publish(&text, Some(version), intent).await {
                Err(RegistryError::Conflict { .. }) if expected.is_none() => {}
                result => return Ok(result?),
            }
        }
        Err(RegistryError::Contended("the policy".into()).into())
    }
}

/// Does work on a whole policy where it holds up no decision.
pub(super) async fn beside<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Problem> {
    let failed = |_| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "reading the policy failed");
    spawn_blocking(work).await.map_err(failed)
}

impl From<EditError> for Problem {
    fn from(error: EditError) -> Problem {
        let status = match error {
            EditError::Missing(_) => StatusCode::NOT_FOUND,
            EditError::Exists(_) => StatusCode::CONFLICT,
            EditError::NoName | EditError::Unreadable(_) => StatusCode::UNPROCESSABLE_ENTITY,
        };
        Problem::new(status, error.to_string())
    }
}
