//! One identity: its limits with what is left of them, its tier, overrides, and a fresh start.

use axum::extract::State;
use futures_util::future::join_all;
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::input::{Answered, For, Json, Params, Who, Writer};
use super::policy::changed;
use super::problem::Problem;
use super::rules::ReasonBody;
use super::{Api, Shared};
use crate::engine::clock::Micros;
use crate::engine::failure::OnFailure;
use crate::engine::identity::Identity;
use crate::engine::limit::{Algorithm, Cost, Decision, Quota};
use crate::engine::limiter::Limiter;
use crate::engine::live::{Current, Moment};
use crate::engine::plan::{Attempt, Entry, Origin, Plan, Question, Source, Standing, plan};
use crate::engine::registry::{Change, OverrideLimit, Subject, standing};
use crate::engine::rules::{Target, normal_path};
use crate::engine::store::{Answer as StoreAnswer, Check, RuleLimit, StoreError};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LimitsParams {
    endpoint: Option<String>,
    method: Option<String>,
}

/// With an endpoint the limits that a request there would meet, without those of every rule that can
/// apply. Looking takes nothing.
pub(super) async fn limits(
    State(api): State<Shared>,
    Who(identity): Who,
    Params(params): Params<LimitsParams>,
) -> Answered {
    let path = params.endpoint.as_deref().map(normal_path).transpose();
    let path = path.map_err(|error| Problem::impossible(format!("endpoint: {error}")))?;
    let method = params.method.map(|method| method.to_ascii_uppercase());
    let target = Target { path: path.as_deref(), method: method.as_deref(), only: None };
    let moment = api.gateway.moment();
    let now = Micros::now();
    let mut body = json!({
        "identity": identity.as_str(), "tier": null, "blocked": null, "exempt": null,
        "items": [], "store_error": null,
    });
    let Some(current) = moment.current.clone() else {
        return Ok(super::json(StatusCode::OK, &body));
    };
    let (standing, unknown) = api.standing(&moment, &current, &identity, now).await;
    let identities = [identity.clone()];
    let attempt = Attempt { identities: &identities, target, tier: None };
    let rules = &current.rules;
    let mut questions: Vec<Question<'_>> = Vec::new();
    match plan(rules, &attempt, std::slice::from_ref(&standing), now) {
        Plan::Blocked { entry, .. } => body["blocked"] = shown_entry(&entry),
        Plan::Missing { .. } => {}
        Plan::Ask(asked) => {
            body["tier"] = json!(asked.tier);
            body["exempt"] = asked.exempt.first().map_or(Value::Null, |(_, e)| shown_entry(e));
            if target.path.is_some() {
                questions.extend(asked.enforced);
                questions.extend(asked.shadow);
            } else if asked.exempt.is_empty() {
                let tier = asked.tier.as_deref();
                let of = |applied| Question::of(rules, applied, &identity, tier, &standing, now);
                questions.extend(rules.anywhere(&identity, tier, target.method).map(of));
            }
        }
    }
    let (items, error) = api.looked_at(&current, &questions).await;
    body["items"] = items.into();
    body["store_error"] = json!(unknown.or(error));
    Ok(super::json(StatusCode::OK, &body))
}

impl Api {
    /// What is on record about an identity; and why that could not be learned, if so.
    async fn standing(
        &self,
        moment: &Moment,
        current: &Current,
        identity: &Identity,
        now: Micros,
    ) -> (Standing, Option<String>) {
        let policy = current.rules.policy();
        let of =
            |subject: &Subject| standing(subject, &moment.registry.lists, identity, policy, now);
        match self.gateway.registry.subject(identity).await {
            Ok(subject) => (of(&subject), None),
            Err(error) => (of(&Subject::default()), Some(error.to_string())),
        }
    }

    /// To each question its answer, from the store that counts it.
    async fn answers(
        &self,
        current: &Current,
        questions: &[&Question<'_>],
    ) -> Vec<Result<StoreAnswer, StoreError>> {
        let store = self.gateway.limiter.store.clone();
        let is_plain = |question: &Question<'_>| {
            question.store.is_none() && question.sources.iter().all(|s| s.rule.split.is_none())
        };
        if questions.iter().all(|question| is_plain(question)) {
            let checks: Vec<Check<'_>> = questions
                .iter()
                .map(|question| Check {
                    identity: question.identity,
                    limits: &question.limits,
                    cost: Cost::PEEK,
                    idempotency: None,
                    at: None,
                })
                .collect();
            return store.check_in_order(&checks).await;
        }
        let limiter =
            Limiter { rules: current.rules.clone(), store, on_failure: OnFailure::Tell, hot: None };
        join_all(questions.iter().map(|question| limiter.look(question))).await
    }

    /// Every limit with what is used of it; and why that is not known, if so.
    async fn looked_at(
        &self,
        current: &Current,
        questions: &[Question<'_>],
    ) -> (Vec<Value>, Option<String>) {
        let asked: Vec<&Question<'_>> = questions.iter().filter(|q| !q.limits.is_empty()).collect();
        let mut answers = self.answers(current, &asked).await.into_iter();
        let (mut items, mut error) = (Vec::new(), None);
        for question in asked {
            let answer = match answers.next() {
                Some(Ok(answer)) => Some(answer),
                Some(Err(why)) => {
                    error.get_or_insert_with(|| why.to_string());
                    None
                }
                None => None,
            };
            let both = question.limits.iter().zip(&question.sources).enumerate();
            items.extend(both.map(|(place, (limit, source))| {
                let decision = answer.as_ref().and_then(|answer| answer.decisions.get(place));
                shown_limit(limit, source, decision)
            }));
        }
        (items, error)
    }
}

fn shown_limit(limit: &RuleLimit, source: &Source<'_>, decision: Option<&Decision>) -> Value {
    let Source { rule, origin } = source;
    let (kind, from) = match origin {
        Origin::Rule => ("rule", rule.place.to_string()),
        Origin::Tier { name, place } => ("tier", format!("tier {name}, {place}")),
        Origin::Override { until, reason } => {
            let until = until.map_or("for ever".into(), |until| {
                format!("until {}", crate::output::moment(until))
            });
            ("override", format!("override {until}: {reason}"))
        }
    };
    let it = limit.limit();
    json!({
        "rule": rule.name,
        "endpoint": rule.endpoint.pattern(),
        "methods": rule.methods,
        "algorithm": it.algorithm().name(),
        "limit": it.requests(),
        "period_us": it.period().0,
        "capacity": it.capacity(),
        "cost": rule.cost.get(),
        "shadow": rule.shadow,
        "source": kind,
        "from": from,
        "used": decision.map(Decision::used),
        "remaining": decision.map(|decision| decision.remaining),
        "reset_after_us": decision.map(|decision| decision.reset_after.0),
        "state": decision.map(|decision| decision.state().name()),
    })
}

fn shown_entry(entry: &Entry) -> Value {
    json!({
        "reason": entry.reason,
        "until_us": entry.until.map(|until| until.0),
        "place": entry.place.as_ref().map(|place| place.to_string()),
    })
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TierBody {
    /// Null takes it away.
    tier: Option<String>,
    #[serde(rename = "for")]
    lasts: Option<For>,
    reason: Option<String>,
}

pub(super) async fn tier(
    State(api): State<Shared>,
    Who(identity): Who,
    writer: Writer,
    Json(body): Json<TierBody>,
) -> Answered {
    let intent = writer.intent(body.reason.as_deref())?;
    let change = match body.tier {
        Some(tier) => {
            if let Some(current) = api.gateway.limiter.policy.current()
                && current.rules.policy().tier(&tier).is_none()
            {
                return Err(Problem::impossible(format!("tier: there is no tier `{tier}`")));
            }
            Change::SetTier { tier, lasts: body.lasts.and_then(|lasts| lasts.0) }
        }
        None => Change::ClearTier,
    };
    Ok(changed(&api.gateway.registry.change(&identity, &change, &intent).await?))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OverrideBody {
    rule: String,
    limits: Vec<LimitBody>,
    #[serde(rename = "for")]
    lasts: Option<For>,
    reason: Option<String>,
}

/// `"500/1m"`, or the same with an algorithm.
#[derive(Debug, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum LimitBody {
    Text(String),
    With { limit: String, algorithm: Option<String> },
}

impl LimitBody {
    fn read(&self) -> Result<OverrideLimit, Problem> {
        let (limit, algorithm) = match self {
            LimitBody::Text(limit) => (limit, None),
            LimitBody::With { limit, algorithm } => (limit, algorithm.as_deref()),
        };
        let read = || {
            let quota: Quota = limit.parse()?;
            OverrideLimit::new(quota, algorithm.map(str::parse::<Algorithm>).transpose()?)
        };
        read().map_err(|error| Problem::impossible(format!("limits: {error}")))
    }
}

pub(super) async fn set_override(
    State(api): State<Shared>,
    Who(identity): Who,
    writer: Writer,
    Json(body): Json<OverrideBody>,
) -> Answered {
    let intent = writer.intent(body.reason.as_deref())?;
    api.known_rule(&body.rule)?;
    let limits = body.limits.iter().map(LimitBody::read).collect::<Result<_, _>>()?;
    let lasts = body.lasts.and_then(|lasts| lasts.0);
    let change = Change::SetOverride { rule: body.rule, limits, lasts };
    Ok(changed(&api.gateway.registry.change(&identity, &change, &intent).await?))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OverrideParams {
    rule: String,
}

pub(super) async fn clear_override(
    State(api): State<Shared>,
    Who(identity): Who,
    Params(params): Params<OverrideParams>,
    writer: Writer,
    Json(body): Json<ReasonBody>,
) -> Answered {
    let intent = writer.intent(body.reason.as_deref())?;
    let change = Change::ClearOverride { rule: params.rule };
    let outcome = api.gateway.registry.change(&identity, &change, &intent).await?;
    if outcome.was_nothing() {
        return Err(Problem::not_found(format!("{identity} has no such override")));
    }
    Ok(changed(&outcome))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ResetBody {
    /// None: of all rules.
    rule: Option<String>,
    reason: Option<String>,
}

pub(super) async fn reset(
    State(api): State<Shared>,
    Who(identity): Who,
    writer: Writer,
    Json(body): Json<ResetBody>,
) -> Answered {
    let intent = writer.intent(body.reason.as_deref())?;
    let limits = api.gateway.reset(&identity, body.rule.as_deref()).await?;
    let before = json!({ "limits": limits, "rule": body.rule });
    let event = api.gateway.registry.record_reset(&identity, before, &intent).await?;
    Ok(super::json(StatusCode::OK, &json!({ "limits": limits, "event": event })))
}
