//! `rlctl inspect --gateway`: what a gateway says about an identity. It does not tell where state
//! lies, nor how long a refused request has to wait.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::{Method, StatusCode};
use serde::Deserialize;

use super::inspect_report::Report;
use super::{Exit, Failure};
use crate::engine::clock::Micros;
use crate::engine::identity::Identity;
use crate::engine::limit::{Algorithm, QuotaState};
use crate::engine::registry::Terms;
use crate::ops::admin::Admin;
use crate::ops::bucket::Bucket;

#[derive(Debug, Deserialize)]
struct Told {
    tier: Option<String>,
    blocked: Option<Listed>,
    exempt: Option<Listed>,
    items: Vec<Limit>,
    store_error: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Listed {
    reason: String,
    until_us: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct Limit {
    rule: String,
    algorithm: String,
    limit: u64,
    period_us: u64,
    capacity: u64,
    used: Option<u64>,
    remaining: Option<u64>,
    reset_after_us: Option<u64>,
    state: Option<String>,
    source: String,
}

pub(super) async fn report(gateway: &Admin, identity: &Identity) -> Result<Report, Failure> {
    let encoded = utf8_percent_encode(identity.as_str(), NON_ALPHANUMERIC);
    let path = format!("/api/v1/users/{encoded}/limits");
    let (_, answer) = gateway.ask(Method::GET, &path, None, &[StatusCode::OK]).await?;
    let at = gateway.at();
    let told: Told = serde_json::from_value(answer).map_err(|error| {
        let what = format!("{at} answers no limits ({error}); is it the --admin address?");
        Failure::new(Exit::Unreachable, what)
    })?;
    if let Some(why) = told.store_error {
        return Err(Failure::new(Exit::Unreachable, format!("the gateway at {at}: {why}")));
    }
    let terms = |listed: Listed| Terms {
        until: listed.until_us.map(Micros),
        reason: listed.reason,
        by: String::new(),
        at: Micros::ZERO,
    };
    Ok(Report {
        is_on_record: told.blocked.is_some() || told.exempt.is_some(),
        identity: identity.to_string(),
        tier: told.tier,
        overrides: Vec::new(),
        block: told.blocked.map(terms),
        exempt: told.exempt.map(terms),
        limits: told.items.into_iter().map(bucket).collect(),
        unreadable: None,
        raw: None,
    })
}

fn bucket(limit: Limit) -> Bucket {
    let algorithm: Option<Algorithm> = limit.algorithm.parse().ok();
    let states = [QuotaState::Normal, QuotaState::Warning, QuotaState::Throttled];
    let state = states.into_iter().find(|s| Some(s.name()) == limit.state.as_deref());
    Bucket {
        rule: limit.rule,
        algorithm: algorithm.map(Algorithm::name),
        limit: Some(limit.limit),
        period_us: Some(limit.period_us),
        burst: algorithm.filter(|a| a.is_bucket()).map(|_| limit.capacity),
        used: limit.used,
        remaining: limit.remaining,
        reset_after_us: limit.reset_after_us,
        state: state.map(QuotaState::name),
        source: limit.source,
        ..Bucket::default()
    }
}
