//! What a check asks for, read from its body; and what it is answered.

use std::collections::BTreeMap;

use http::StatusCode;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::input;
use super::problem::Problem;
use crate::engine::clock::Micros;
use crate::engine::durability::Confirmed;
use crate::engine::identity::{Dimension, Identity};
use crate::engine::limit::Cost;
use crate::engine::limiter::Shadow;
use crate::engine::live::Moment;
use crate::engine::policy::Defaults;
use crate::engine::rules::normal_path;
use crate::engine::store::Idempotency;
use crate::gateway::answer::{Answer, Outcome, retry_after_seconds, whole_seconds};
use crate::output::moment as spelled;

const MAX_IDENTITIES: usize = 16;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CheckBody {
    pub(super) identity: Option<String>,
    pub(super) identities: Option<BTreeMap<String, String>>,
    pub(super) endpoint: Option<String>,
    pub(super) method: Option<String>,
    pub(super) cost: Option<serde_json::Number>,
    pub(super) idempotency_key: Option<String>,
    pub(super) tier: Option<String>,
    pub(super) rule: Option<String>,
}

/// The same question in other words.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AliasBody {
    identifier: String,
    identifier_type: Option<String>,
    endpoint: Option<String>,
    method: Option<String>,
    cost: Option<serde_json::Number>,
    idempotency_key: Option<String>,
    tier: Option<String>,
    rule: Option<String>,
}

impl From<AliasBody> for CheckBody {
    fn from(alias: AliasBody) -> CheckBody {
        let AliasBody { identifier, identifier_type, .. } = alias;
        let identity = match identifier_type.as_deref() {
            Some("api_key") => format!("apikey:{identifier}"),
            Some(dimension) => format!("{dimension}:{identifier}"),
            None => identifier,
        };
        CheckBody {
            identity: Some(identity),
            identities: None,
            endpoint: alias.endpoint,
            method: alias.method,
            cost: alias.cost,
            idempotency_key: alias.idempotency_key,
            tier: alias.tier,
            rule: alias.rule,
        }
    }
}

/// A check that can be asked.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) identities: SmallVec<[Identity; 3]>,
    pub(super) path: Option<String>,
    pub(super) method: Option<String>,
    pub(super) only: Option<[String; 1]>,
    pub(super) tier: Option<String>,
    pub(super) cost: Cost,
    idempotency_key: Option<String>,
}

impl Wanted {
    pub(super) fn read(body: CheckBody, moment: &Moment) -> Result<Wanted, Problem> {
        let mut identities = match (body.identity, body.identities) {
            (Some(one), None) => SmallVec::from_iter([input::identity(&one)?]),
            (None, Some(several)) => named_by_dimension(&several)?,
            _ => return Err(Problem::malformed("give one of `identity` and `identities`")),
        };
        let rules = moment.current.as_ref().map(|current| &current.rules);
        let counts_all = rules.is_some_and(|rules| rules.counts_by(&Dimension::Global));
        if counts_all && !identities.iter().any(|i| Dimension::Global.holds(i)) {
            identities.extend("global:all".parse::<Identity>());
        }
        if let (Some(name), Some(rules)) = (&body.rule, rules)
            && rules.policy().rule(name).is_none()
        {
            return Err(Problem::impossible(format!("rule: there is no rule `{name}`")));
        }
        let path = body.endpoint.as_deref().map(normal_path).transpose();
        let path = path.map_err(|error| Problem::impossible(format!("endpoint: {error}")))?;
        if let Some(key) = &body.idempotency_key {
            Idempotency::new(key, Micros::SECOND)
                .map_err(|error| Problem::impossible(format!("idempotency_key: {error}")))?;
        }
        Ok(Wanted {
            identities,
            path: path.map(|path| path.into_owned()),
            method: body.method.map(|method| method.to_ascii_uppercase()),
            only: body.rule.map(|rule| [rule]),
            tier: body.tier,
            cost: cost(body.cost.as_ref())?,
            idempotency_key: body.idempotency_key,
        })
    }

    pub(super) fn idempotency(&self, moment: &Moment) -> Option<Idempotency<'_>> {
        let policy = moment.current.as_ref().map(|current| current.rules.policy());
        let remember = policy
            .map_or_else(|| Defaults::default().idempotency_ttl, |p| p.defaults.idempotency_ttl);
        let key = self.idempotency_key.as_deref()?;
        Idempotency::new(key, remember).ok()
    }
}

/// A cost, also of a settlement.
pub(super) fn cost(number: Option<&serde_json::Number>) -> Result<Cost, Problem> {
    let Some(number) = number else { return Ok(Cost::ONE) };
    let whole = number.as_u64().and_then(|cost| Cost::new(cost).ok());
    whole.ok_or_else(|| {
        let most = crate::engine::limit::MAX_COUNT;
        Problem::impossible(format!("cost: {number} is not a whole number from 0 to {most}"))
    })
}

fn named_by_dimension(
    several: &BTreeMap<String, String>,
) -> Result<SmallVec<[Identity; 3]>, Problem> {
    let wrong = |why: String| Err(Problem::impossible(format!("identities: {why}")));
    if several.is_empty() || several.len() > MAX_IDENTITIES {
        return wrong(format!("give 1 to {MAX_IDENTITIES}, not {}", several.len()));
    }
    let mut dimensions: Vec<Dimension> = Vec::new();
    let mut identities = SmallVec::new();
    for (name, id) in several {
        let dimension: Dimension = match name.parse() {
            Ok(dimension) => dimension,
            Err(error) => return wrong(format!("{error}")),
        };
        match format!("{dimension}:{id}").parse() {
            Ok(identity) => identities.push(identity),
            Err(error) => return wrong(format!("{error}")),
        }
        if dimensions.contains(&dimension) {
            return wrong(format!("there are two of {dimension}"));
        }
        dimensions.push(dimension);
    }
    Ok(identities)
}

/// What a check is answered.
#[derive(Debug, Serialize)]
pub(super) struct CheckAnswer {
    allowed: bool,
    outcome: &'static str,
    limit: Option<u64>,
    capacity: Option<u64>,
    used: Option<u64>,
    remaining: Option<u64>,
    reset_at: Option<String>,
    retry_after: Option<u64>,
    retry_after_us: Option<u64>,
    reset_after_us: Option<u64>,
    delay_us: u64,
    rule: Option<String>,
    algorithm: Option<&'static str>,
    state: Option<&'static str>,
    degraded: Option<&'static str>,
    /// Only where a rule waits for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    replicas: Option<Confirmed>,
    shadow: Vec<Shadow>,
    charge: Option<String>,
}

impl CheckAnswer {
    pub(super) fn of(answer: Answer, charge: Option<String>, now: Micros) -> CheckAnswer {
        let reset_at = |after: Micros| {
            // To the second, and not before the quota is whole.
            let seconds = whole_seconds(Micros(now.0.saturating_add(after.0)));
            spelled(Micros(seconds.saturating_mul(Micros::SECOND.0)))
        };
        CheckAnswer {
            allowed: answer.allowed,
            outcome: answer.outcome.name(),
            limit: answer.limit,
            capacity: answer.capacity,
            used: answer.used,
            remaining: answer.remaining,
            reset_at: answer.reset_after.map(reset_at),
            retry_after: answer.retry_after.map(retry_after_seconds),
            retry_after_us: answer.retry_after.map(|after| after.0),
            reset_after_us: answer.reset_after.map(|after| after.0),
            delay_us: answer.delay.0,
            rule: answer.rule,
            algorithm: answer.algorithm.map(|algorithm| algorithm.name()),
            state: answer.state.map(|state| state.name()),
            degraded: answer.degraded,
            replicas: answer.replicas,
            shadow: answer.shadow,
            charge,
        }
    }
}

pub(super) fn status(outcome: Outcome) -> StatusCode {
    match outcome {
        Outcome::Allowed => StatusCode::OK,
        Outcome::Limited | Outcome::Blocked | Outcome::Missing | Outcome::Busy => {
            StatusCode::TOO_MANY_REQUESTS
        }
        Outcome::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
    }
}
