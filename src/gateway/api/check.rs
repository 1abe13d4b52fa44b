//! The check API: decisions for others, one or many at a time, and what becomes of their charges.

use std::collections::HashMap;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::future::join_all;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::charges::ChargeError;
use super::input::{Answered, Json, LARGE, Object};
use super::problem::Problem;
use super::wanted::{self, AliasBody, CheckAnswer, CheckBody, Wanted};
use super::{Api, Shared};
use crate::engine::clock::Micros;
use crate::engine::identity::Identity;
use crate::engine::limiter::{Demand, Verdict};
use crate::engine::live::Moment;
use crate::engine::plan::Attempt;
use crate::engine::policy::ResponseSettings;
use crate::engine::rules::Target;
use crate::engine::store::Settlement;
use crate::gateway::answer::Answer;
use crate::gateway::headers::{tell_limits, tell_retry};

const MAX_BATCH: usize = 1_000;

pub(super) async fn check(State(api): State<Shared>, Json(body): Json<CheckBody>) -> Answered {
    api.decide_one(body).await
}

pub(super) async fn alias(State(api): State<Shared>, Json(body): Json<AliasBody>) -> Answered {
    api.decide_one(body.into()).await
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BatchBody {
    checks: Vec<Object<CheckBody>>,
}

/// One answer of a batch: what the check alone would be answered, and with which status.
#[derive(Serialize)]
struct InBatch {
    status: u16,
    #[serde(flatten)]
    answer: CheckAnswer,
}

/// All of them are read before any is asked: a batch that cannot be read charges nobody.
pub(super) async fn batch(
    State(api): State<Shared>,
    Json(body): Json<BatchBody, LARGE>,
) -> Answered {
    let count = body.checks.len();
    if !(1..=MAX_BATCH).contains(&count) {
        let why = format!("checks: a batch has 1 to {MAX_BATCH} checks, not {count}");
        return Err(Problem::impossible(why));
    }
    let moment = api.gateway.moment();
    let mut all = Vec::with_capacity(count);
    for (Object(body), place) in body.checks.into_iter().zip(0..) {
        let about = |problem: Problem| problem.about(&format!("checks[{place}]"));
        all.push(Wanted::read(body, &moment).map_err(about)?);
    }
    api.take_on(count)?;
    let mut answers = vec![Value::Null; count];
    let lanes = lanes(&all).into_iter().map(|lane| api.decide_in_order(&moment, &all, lane));
    for (place, answer) in join_all(lanes).await.into_iter().flatten() {
        answers[place] = answer;
    }
    Ok(super::json(StatusCode::OK, &json!({ "answers": answers })))
}

/// The places of checks that begin with the same identity: these are decided one after the other,
/// different ones beside each other.
fn lanes(all: &[Wanted]) -> Vec<Vec<usize>> {
    let mut lanes: Vec<Vec<usize>> = Vec::new();
    let mut lane_of: HashMap<&Identity, usize> = HashMap::new();
    for (place, wanted) in all.iter().enumerate() {
        let lane = *lane_of.entry(&wanted.identities[0]).or_insert_with(|| {
            lanes.push(Vec::new());
            lanes.len() - 1
        });
        lanes[lane].push(place);
    }
    lanes
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RefundBody {
    charge: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SettleBody {
    charge: String,
    cost: serde_json::Number,
}

pub(super) async fn refund(
    State(api): State<Shared>,
    Json(body): Json<RefundBody, LARGE>,
) -> Answered {
    let done = api.settle(&body.charge, Settlement::Refund).await?;
    Ok(super::json(StatusCode::OK, &json!({ "refunded": done })))
}

pub(super) async fn settle(
    State(api): State<Shared>,
    Json(body): Json<SettleBody, LARGE>,
) -> Answered {
    let cost = wanted::cost(Some(&body.cost))?;
    let done = api.settle(&body.charge, Settlement::Cost(cost)).await?;
    Ok(super::json(StatusCode::OK, &json!({ "settled": done })))
}

impl Api {
    /// Whether this process takes on so many more checks in this second.
    fn take_on(&self, count: usize) -> Result<(), Problem> {
        let taken = u32::try_from(count).is_ok_and(|count| self.gateway.admit_checks(count));
        let why = "this gateway takes on no more checks in this second (max_checks)";
        if taken { Ok(()) } else { Err(Problem::unavailable(why)) }
    }

    async fn decide_one(&self, body: CheckBody) -> Answered {
        self.take_on(1)?;
        let moment = self.gateway.moment();
        let wanted = Wanted::read(body, &moment)?;
        let (verdict, answer) = self.decide(&moment, &wanted).await?;
        let charge = self.charges.sign(&verdict.charges).await;
        let now = Micros::now();
        let status = wanted::status(answer.outcome);
        let body = CheckAnswer::of(answer.clone(), charge, now);
        let response = super::json(status, &body);
        Ok(with_client_headers(response, &moment, &verdict, &answer, now))
    }

    async fn decide(&self, moment: &Moment, wanted: &Wanted) -> Result<(Verdict, Answer), Problem> {
        let target = Target {
            path: wanted.path.as_deref(),
            method: wanted.method.as_deref(),
            only: wanted.only.as_ref().map(|only| only.as_slice()),
        };
        let attempt =
            Attempt { identities: &wanted.identities, target, tier: wanted.tier.as_deref() };
        let idempotency = wanted.idempotency(moment);
        let demand = Demand { idempotency, ..Demand::of(wanted.cost) };
        Ok(self.gateway.decide(moment, &attempt, demand).await?)
    }

    async fn decide_in_order(
        &self,
        moment: &Moment,
        all: &[Wanted],
        places: Vec<usize>,
    ) -> Vec<(usize, Value)> {
        let mut answers = Vec::with_capacity(places.len());
        for place in places {
            let answer = match self.decide(moment, &all[place]).await {
                Ok((verdict, answer)) => {
                    let charge = self.charges.sign(&verdict.charges).await;
                    let status = wanted::status(answer.outcome).as_u16();
                    let answer = CheckAnswer::of(answer, charge, Micros::now());
                    json!(InBatch { status, answer })
                }
                Err(problem) => problem.to_json(),
            };
            answers.push((place, answer));
        }
        answers
    }

    /// Whether anything was changed: false when it was done before or it is too late.
    async fn settle(&self, id: &str, to: Settlement) -> Result<bool, Problem> {
        self.take_on(1)?;
        let charges = self.charges.verify(id).await.map_err(|error| match error {
            ChargeError::Unknown => Problem::impossible(format!("charge: {error}")),
            ChargeError::Registry(error) => error.into(),
        })?;
        let limiter = &self.gateway.limiter;
        let all = join_all(charges.iter().map(|charge| limiter.settle(charge, to, None))).await;
        let mut changed = false;
        for done in all {
            changed |= done?;
        }
        Ok(changed)
    }
}

/// The headers that a client of the proxy would get.
fn with_client_headers(
    response: Response,
    moment: &Moment,
    verdict: &Verdict,
    answer: &Answer,
    now: Micros,
) -> Response {
    let mut response = response.into_response();
    let policy = moment.current.as_ref().map(|current| current.rules.policy());
    let families =
        policy.map_or_else(|| ResponseSettings::default().headers, |p| p.gateway.response.headers);
    tell_limits(response.headers_mut(), verdict, answer, families, now);
    tell_retry(response.headers_mut(), answer);
    response
}
