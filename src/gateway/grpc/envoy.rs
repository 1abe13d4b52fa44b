//! `envoy.service.ratelimit.v3.RateLimitService`. Each descriptor of a request is decided by itself;
//! when one is refused, the request is, and what the others charged is given back.

use std::sync::Arc;

use futures_util::future::join_all;
use http::HeaderMap;
use tonic::{Request, Response, Status};

use super::describe::Described;
use super::domains::Domains;
use super::messages::envoy::config::core::v3::HeaderValue;
use super::messages::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use super::messages::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use super::messages::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit,
};
use super::messages::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitService;
use super::messages::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use super::{admit, duration, no_policy, overloaded, unanswered};
use crate::engine::clock::Micros;
use crate::engine::limit::{Cost, MAX_COUNT};
use crate::engine::limiter::{Demand, Reached, Verdict};
use crate::engine::live::{Current, Moment};
use crate::engine::policy::HeaderFamilies;
use crate::engine::store::{RuleLimit, Settlement, StoreError};
use crate::gateway::access::{Access, Role};
use crate::gateway::{Answer, Gateway, headers};

/// Each is a question to the store.
const MAX_DESCRIPTORS: usize = 100;

#[derive(Debug)]
pub(super) struct Service {
    gateway: Arc<Gateway>,
    access: Arc<Access>,
    domains: Domains,
}

/// One descriptor, ready to be decided.
struct Part {
    moment: Moment,
    described: Described,
    cost: Cost,
}

type Decided = (Verdict, Answer);

impl Service {
    pub(super) fn new(gateway: Arc<Gateway>, access: Arc<Access>) -> Service {
        Service { gateway, access, domains: Domains::default() }
    }
}

#[tonic::async_trait]
impl RateLimitService for Service {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        admit(&self.access, &request, Role::Read)?;
        let request = request.into_inner();
        let count = request.descriptors.len();
        if !(1..=MAX_DESCRIPTORS).contains(&count) {
            let why = format!("{count} descriptors; a request has 1 to {MAX_DESCRIPTORS}");
            return Err(Status::invalid_argument(why));
        }
        if !self.gateway.admit_checks(count as u32) {
            return Err(overloaded());
        }
        let moment = self.gateway.moment();
        let current = moment.current.clone().ok_or_else(no_policy)?;
        let mut parts = Vec::with_capacity(count);
        let mut unreadable = Vec::with_capacity(count);
        for descriptor in &request.descriptors {
            let limit = descriptor.limit.as_ref();
            let Some(rules) = self.domains.rules(&current, &request.domain, limit)? else {
                self.gateway.grpc.unknown_domain();
                return Ok(Response::new(undecided(&vec![false; count])));
            };
            let part = Part::of(descriptor, request.hits_addend, &moment, rules);
            unreadable.push(part.is_none());
            parts.extend(part);
        }
        if unreadable.contains(&true) {
            return Ok(Response::new(undecided(&unreadable)));
        }
        let decided = self.decide(&parts).await.map_err(|error| unanswered(&error))?;
        let families = current.rules.policy().gateway.response.headers;
        Ok(Response::new(response(&decided, families, Micros::now())))
    }
}

impl Service {
    async fn decide(&self, parts: &[Part]) -> Result<Vec<Decided>, StoreError> {
        let all = parts.iter().map(|part| {
            let demand = Demand::of(part.cost);
            async move {
                self.gateway.decide(&part.moment, &part.described.attempt(), demand).await
            }
        });
        let answers = join_all(all).await;
        let passed = |answer: &Result<Decided, _>| answer.as_ref().is_ok_and(|(v, _)| v.allowed);
        if answers.iter().all(passed) {
            return answers.into_iter().collect();
        }
        // What cannot be given back stays charged: the safe side.
        let limiter = &self.gateway.limiter;
        let charges = answers.iter().flatten().flat_map(|(verdict, _)| &verdict.charges);
        drop(join_all(charges.map(|c| limiter.settle(c, Settlement::Refund, None))).await);
        let mut decided = answers.into_iter().collect::<Result<Vec<_>, _>>()?;
        let returned = decided.iter_mut().zip(parts).filter(|(d, _)| !d.0.charges.is_empty());
        let asked_again = returned.map(|(decided, part)| async move {
            let demand = Demand::of(Cost::PEEK);
            let attempt = part.described.attempt();
            if let Ok(left) = self.gateway.peek(&part.moment, &attempt, demand).await {
                *decided = left;
            }
        });
        join_all(asked_again).await;
        Ok(decided)
    }
}

impl Part {
    /// None when the path cannot be read.
    fn of(
        descriptor: &RateLimitDescriptor,
        hits_addend: u32,
        moment: &Moment,
        rules: Arc<Current>,
    ) -> Option<Part> {
        let described = Described::by(&descriptor.entries, &rules.rules).ok()?;
        let hits = descriptor.hits_addend.unwrap_or(hits_addend.max(1).into());
        let cost = Cost::new(hits.min(MAX_COUNT)).unwrap_or(Cost::ONE);
        let moment = Moment { current: Some(rules), registry: moment.registry.clone() };
        Some(Part { moment, described, cost })
    }
}

/// The answer where nothing was asked of any limit.
fn undecided(refused: &[bool]) -> RateLimitResponse {
    let status = |refused: &bool| DescriptorStatus {
        code: code(!refused).into(),
        ..DescriptorStatus::default()
    };
    RateLimitResponse {
        overall_code: code(!refused.contains(&true)).into(),
        statuses: refused.iter().map(status).collect(),
        response_headers_to_add: Vec::new(),
    }
}

fn response(decided: &[Decided], families: HeaderFamilies, now: Micros) -> RateLimitResponse {
    let mut fields = HeaderMap::new();
    if let Some((verdict, answer)) = speaking(decided) {
        headers::tell_limits(&mut fields, verdict, answer, families, now);
        headers::tell_retry(&mut fields, answer);
    }
    let header = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
        let value = value.to_str().unwrap_or_default().into();
        HeaderValue { key: name.as_str().into(), value }
    };
    RateLimitResponse {
        overall_code: code(decided.iter().all(|(verdict, _)| verdict.allowed)).into(),
        statuses: decided.iter().map(|(verdict, answer)| status(verdict, answer)).collect(),
        response_headers_to_add: fields.iter().map(header).collect(),
    }
}

/// The descriptor that the client is told of: the one refused for longest, else the one with the
/// least left.
fn speaking(decided: &[Decided]) -> Option<&Decided> {
    let refused = decided.iter().filter(|(verdict, _)| !verdict.allowed);
    let forever = Micros(u64::MAX);
    refused
        .max_by_key(|(_, answer)| answer.retry_after.unwrap_or(forever))
        .or_else(|| decided.iter().min_by_key(|(_, answer)| answer.remaining.unwrap_or(u64::MAX)))
}

fn status(verdict: &Verdict, answer: &Answer) -> DescriptorStatus {
    let limit = match &verdict.reached {
        Reached::Limits { decided, asked } => Some(&asked[*decided].limit),
        Reached::Unanswered { limit, .. } => Some(limit),
        _ => None,
    };
    DescriptorStatus {
        code: code(verdict.allowed).into(),
        current_limit: limit.map(|limit| current_limit(limit)),
        limit_remaining: small(answer.remaining.unwrap_or_default()),
        duration_until_reset: answer.reset_after.map(duration),
    }
}

fn current_limit(limit: &RuleLimit) -> RateLimit {
    let unit = match limit.limit().period() {
        Micros::SECOND => Unit::Second,
        Micros::MINUTE => Unit::Minute,
        Micros::HOUR => Unit::Hour,
        Micros::DAY => Unit::Day,
        period if period == Micros(30 * Micros::DAY.0) => Unit::Month,
        period if period == Micros(365 * Micros::DAY.0) => Unit::Year,
        _ => Unit::Unknown,
    };
    RateLimit {
        requests_per_unit: small(limit.limit().requests()),
        unit: unit.into(),
        name: limit.rule().into(),
    }
}

fn code(allowed: bool) -> Code {
    if allowed { Code::Ok } else { Code::OverLimit }
}

fn small(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
