//! The check API of a gateway, as a client asks it.

use reqwest::{Method, StatusCode};
use serde::{Deserialize, Serialize};

use super::admin::{Admin, AdminError};
use crate::engine::durability::Confirmed;
use crate::engine::limiter::Shadow;

const CHECK: &str = "/api/v1/rate-limit/check";
const REFUND: &str = "/api/v1/rate-limit/refund";
/// Decisions, whatever they are.
const EXPECTED: [StatusCode; 3] =
    [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE];

/// What is left out is not sent.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Question<'a> {
    pub identity: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<&'a str>,
    pub cost: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tier: Option<&'a str>,
    /// Which rule alone is asked; none: all that apply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<&'a str>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Answer {
    pub allowed: bool,
    pub outcome: String,
    pub limit: Option<u64>,
    pub capacity: Option<u64>,
    pub remaining: Option<u64>,
    pub retry_after_us: Option<u64>,
    pub reset_after_us: Option<u64>,
    pub delay_us: u64,
    pub rule: Option<String>,
    pub algorithm: Option<String>,
    pub state: Option<String>,
    pub degraded: Option<String>,
    pub replicas: Option<Confirmed>,
    pub shadow: Vec<Shadow>,
    pub charge: Option<String>,
}

impl Admin {
    /// Takes a real decision there.
    pub async fn check(&self, question: &Question<'_>) -> Result<Answer, AdminError> {
        let no_decision = |error: serde_json::Error| AdminError::NoGateway {
            at: self.at(),
            why: format!("it answers no decision ({error})"),
        };
        let question = serde_json::to_value(question).map_err(no_decision)?;
        let (_, answer) = self.ask(Method::POST, CHECK, Some(&question), &EXPECTED).await?;
        serde_json::from_value(answer).map_err(no_decision)
    }

    /// Gives back what a decision has charged.
    pub async fn refund(&self, charge: &str) -> Result<(), AdminError> {
        let body = serde_json::json!({ "charge": charge });
        self.ask(Method::POST, REFUND, Some(&body), &[StatusCode::OK]).await.map(drop)
    }
}
