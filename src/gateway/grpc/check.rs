//! `rlctl.v1.RateLimiter`.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::json;
use smallvec::SmallVec;
use tonic::{Request, Response, Status};

use super::messages::rlctl::v1::rate_limiter_server::RateLimiter;
use super::messages::rlctl::v1::{
    CheckRequest, CheckResponse, Outcome as SaidOutcome, Quota, QuotaRequest, QuotaResponse,
    Replicas, ResetRequest, ResetResponse, ShadowVerdict,
};
use super::{admit, duration, no_policy, overloaded, unanswered};
use crate::engine::clock::Micros;
use crate::engine::identity::{Dimension, Identity};
use crate::engine::limit::{Cost, QuotaState};
use crate::engine::limiter::{Asked, Demand, Reached, Verdict};
use crate::engine::plan::Attempt;
use crate::engine::registry::Intent;
use crate::engine::rules::{Rules, Target, normal_path};
use crate::engine::store::Idempotency;
use crate::gateway::access::{Access, Role};
use crate::gateway::{Answer, Gateway, Outcome};

/// The longest that a `google.protobuf.Duration` may be, about 10 000 years.
const LONGEST_SECONDS: i128 = 315_576_000_000;

#[derive(Debug)]
pub(super) struct Service {
    pub(super) gateway: Arc<Gateway>,
    pub(super) access: Arc<Access>,
}

#[tonic::async_trait]
impl RateLimiter for Service {
    async fn check_rate_limit(
        &self,
        request: Request<CheckRequest>,
    ) -> Result<Response<CheckResponse>, Status> {
        admit(&self.access, &request, Role::Read)?;
        if !self.gateway.admit_check() {
            return Err(overloaded());
        }
        let request = request.into_inner();
        let skew = request.timestamp.map(|theirs| clock_skew(theirs, Micros::now()));
        let moment = self.gateway.moment();
        let rules = moment.current.as_ref().map(|current| &current.rules).ok_or_else(no_policy)?;
        let cost = Cost::new(request.cost.unwrap_or(1)).map_err(invalid)?;
        let remember = rules.policy().defaults.idempotency_ttl;
        let idempotency = match request.idempotency_key.as_str() {
            "" => None,
            key => Some(Idempotency::new(key, remember).map_err(invalid)?),
        };
        let asked = Who {
            identifier: &request.identifier,
            dimension: &request.dimension,
            others: &request.dimensions,
        };
        let identities = asked.identities(rules)?;
        let about = About::of(&request.endpoint, &request.method, &request.tier)?;
        let demand = Demand { idempotency, ..Demand::of(cost) };
        let (_, answer) = self
            .gateway
            .decide(&moment, &about.attempt(&identities), demand)
            .await
            .map_err(|error| unanswered(&error))?;
        Ok(Response::new(CheckResponse { clock_skew: skew, ..response(answer, Micros::now()) }))
    }

    /// A question is no decision, so it is not counted as one.
    async fn get_remaining_quota(
        &self,
        request: Request<QuotaRequest>,
    ) -> Result<Response<QuotaResponse>, Status> {
        admit(&self.access, &request, Role::Read)?;
        if !self.gateway.admit_check() {
            return Err(overloaded());
        }
        let request = request.into_inner();
        let moment = self.gateway.moment();
        let rules = moment.current.as_ref().map(|current| &current.rules).ok_or_else(no_policy)?;
        let asked = Who {
            identifier: &request.identifier,
            dimension: &request.dimension,
            others: &request.dimensions,
        };
        let identities = asked.identities(rules)?;
        let about = About::of(&request.endpoint, &request.method, &request.tier)?;
        let demand = Demand::of(Cost::PEEK);
        let (verdict, _) = self
            .gateway
            .peek(&moment, &about.attempt(&identities), demand)
            .await
            .map_err(|error| unanswered(&error))?;
        Ok(Response::new(quotas(verdict, Micros::now())))
    }

    async fn reset_limit(
        &self,
        request: Request<ResetRequest>,
    ) -> Result<Response<ResetResponse>, Status> {
        let by = admit(&self.access, &request, Role::Write)?;
        let request = request.into_inner();
        let identity = identity(&request.identifier, &request.dimension)?
            .ok_or_else(|| Status::invalid_argument("name whose quota to reset"))?;
        let rule = Some(request.rule.as_str()).filter(|rule| !rule.is_empty());
        let intent = Intent::new(&by, &request.reason).map_err(invalid)?;
        let reset = self.gateway.reset(&identity, rule).await.map_err(|e| unanswered(&e))?;
        let before = json!({ "limits": reset, "rule": rule });
        let recorded = self.gateway.registry.record_reset(&identity, before, &intent).await;
        recorded.map_err(|error| Status::unavailable(error.to_string()))?;
        Ok(Response::new(ResetResponse { limits_reset: reset as u64 }))
    }
}

/// Who asks, as a request says it.
struct Who<'a> {
    identifier: &'a str,
    dimension: &'a str,
    others: &'a HashMap<String, String>,
}

impl Who<'_> {
    /// With everybody together, where rules count that.
    fn identities(&self, rules: &Rules) -> Result<SmallVec<[Identity; 2]>, Status> {
        let mut identities: SmallVec<[Identity; 2]> = SmallVec::new();
        identities.extend(identity(self.identifier, self.dimension)?);
        for (dimension, id) in self.others {
            identities.extend(identity(id, dimension)?);
        }
        if identities.is_empty() {
            return Err(Status::invalid_argument(
                "name who asks: identifier = \"user:123\", or dimension and identifier",
            ));
        }
        identities.sort();
        if let Some(pair) =
            identities.windows(2).find(|w| dimension_of(&w[0]) == dimension_of(&w[1]))
        {
            return Err(Status::invalid_argument(format!(
                "a request has one identity of each dimension, not both {} and {}",
                pair[0], pair[1]
            )));
        }
        let has_global = identities.iter().any(|i| Dimension::Global.holds(i));
        if rules.counts_by(&Dimension::Global) && !has_global {
            identities.extend("global:all".parse::<Identity>());
        }
        Ok(identities)
    }
}

/// None where nobody is named.
fn identity(id: &str, dimension: &str) -> Result<Option<Identity>, Status> {
    match (id, dimension) {
        ("", "") => Ok(None),
        (id, "") => id.parse().map(Some).map_err(invalid),
        (id, dimension) => {
            let dimension: Dimension = dimension.parse().map_err(invalid)?;
            format!("{dimension}:{id}").parse().map(Some).map_err(invalid)
        }
    }
}

/// `user` of `user:1`, `header:x-tenant` of `header:x-tenant:acme`.
fn dimension_of(identity: &Identity) -> &str {
    let text = identity.as_str();
    let words = if text.starts_with("header:") { 2 } else { 1 };
    let end = text.match_indices(':').nth(words - 1).map_or(text.len(), |(at, _)| at);
    &text[..end]
}

/// What is asked for, apart from who asks.
struct About<'a> {
    path: Option<std::borrow::Cow<'a, str>>,
    method: Option<String>,
    tier: Option<&'a str>,
}

impl<'a> About<'a> {
    fn of(endpoint: &'a str, method: &str, tier: &'a str) -> Result<About<'a>, Status> {
        let path = match endpoint {
            "" => None,
            path => Some(normal_path(path).map_err(invalid)?),
        };
        let method = Some(method.to_ascii_uppercase()).filter(|method| !method.is_empty());
        Ok(About { path, method, tier: Some(tier).filter(|tier| !tier.is_empty()) })
    }

    fn attempt<'b>(&'b self, identities: &'b [Identity]) -> Attempt<'b> {
        let target =
            Target { path: self.path.as_deref(), method: self.method.as_deref(), only: None };
        Attempt { identities, target, tier: self.tier }
    }
}

fn invalid(error: impl std::error::Error) -> Status {
    Status::invalid_argument(error.to_string())
}

fn response(answer: Answer, now: Micros) -> CheckResponse {
    CheckResponse {
        allowed: answer.allowed,
        current_count: answer.used,
        limit: answer.limit,
        remaining: answer.remaining,
        reset_at: answer.reset_after.map(|after| timestamp(now + after)),
        retry_after: answer.retry_after.map(duration),
        capacity: answer.capacity,
        rule: answer.rule.unwrap_or_default(),
        algorithm: answer.algorithm.map_or_else(String::new, |a| a.name().into()),
        state: answer.state.map_or_else(String::new, |state| state.name().into()),
        degraded: answer.degraded.unwrap_or_default().into(),
        outcome: outcome(answer.outcome).into(),
        delay: Some(answer.delay).filter(|delay| *delay > Micros::ZERO).map(duration),
        shadow: answer
            .shadow
            .into_iter()
            .map(|shadow| ShadowVerdict { rule: shadow.rule, allowed: shadow.allowed })
            .collect(),
        clock_skew: None,
        replicas: answer.replicas.map(|told| Replicas {
            rule: told.rule,
            wanted: told.wanted,
            confirmed: told.confirmed,
        }),
    }
}

fn outcome(outcome: Outcome) -> SaidOutcome {
    match outcome {
        Outcome::Allowed => SaidOutcome::Allowed,
        Outcome::Limited => SaidOutcome::Limited,
        Outcome::Blocked => SaidOutcome::Blocked,
        Outcome::Missing => SaidOutcome::MissingIdentity,
        Outcome::Busy => SaidOutcome::Busy,
        Outcome::Unavailable => SaidOutcome::StoreUnavailable,
    }
}

fn quotas(verdict: Verdict, now: Micros) -> QuotaResponse {
    let (decided, asked) = match &verdict.reached {
        Reached::Limits { decided, asked } => (Some(*decided), asked.as_slice()),
        _ => (None, [].as_slice()),
    };
    let quotas: Vec<Quota> = asked.iter().map(|asked| quota(asked, now)).collect();
    QuotaResponse {
        tightest: decided.map(|decided| quotas[decided].clone()),
        quotas,
        tier: verdict.tier.unwrap_or_default(),
        degraded: verdict.degraded.map_or_else(String::new, |d| d.mode.name().into()),
        refused: matches!(verdict.reached, Reached::Blocked { .. } | Reached::Missing { .. })
            && !verdict.allowed,
    }
}

fn quota(asked: &Asked, now: Micros) -> Quota {
    let (limit, decision) = (asked.limit.limit(), &asked.decision);
    Quota {
        identity: asked.identity.to_string(),
        rule: asked.limit.rule().into(),
        algorithm: limit.algorithm().name().into(),
        limit: limit.requests(),
        period: Some(duration(limit.period())),
        capacity: limit.capacity(),
        current_count: decision.used(),
        remaining: decision.remaining,
        reset_at: Some(timestamp(now + decision.reset_after)),
        state: QuotaState::of(decision).name().into(),
    }
}

fn timestamp(at: Micros) -> prost_types::Timestamp {
    let prost_types::Duration { seconds, nanos } = duration(at);
    prost_types::Timestamp { seconds, nanos }
}

/// How far `theirs` is ahead of `ours`, whatever they send.
fn clock_skew(theirs: prost_types::Timestamp, ours: Micros) -> prost_types::Duration {
    const NANOS: i128 = 1_000_000_000;
    let theirs = i128::from(theirs.seconds) * NANOS + i128::from(theirs.nanos);
    let ahead = theirs - i128::from(ours.0) * 1_000;
    let seconds = (ahead / NANOS).clamp(-LONGEST_SECONDS, LONGEST_SECONDS);
    prost_types::Duration { seconds: seconds as i64, nanos: (ahead % NANOS) as i32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_off_is_measured_to_both_sides_and_never_overflows() {
        let skew = |seconds, nanos| {
            let theirs = prost_types::Timestamp { seconds, nanos };
            let skew = clock_skew(theirs, Micros(10 * Micros::SECOND.0));
            (skew.seconds, skew.nanos)
        };
        assert_eq!(skew(12, 500_000_000), (2, 500_000_000));
        assert_eq!(skew(8, 500_000_000), (-1, -500_000_000));
        assert_eq!(skew(i64::MAX, i32::MAX).0, 315_576_000_000);
        assert_eq!(skew(i64::MIN, i32::MIN).0, -315_576_000_000);
    }

    #[test]
    fn a_dimension_is_what_stands_before_the_id() {
        for (identity, dimension) in [
            ("user:a:b", "user"),
            ("ip:2001:db8::1", "ip"),
            ("header:x-tenant:acme:1", "header:x-tenant"),
            ("plain", "plain"),
        ] {
            assert_eq!(dimension_of(&identity.parse().unwrap()), dimension);
        }
    }
}
