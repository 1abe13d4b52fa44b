//! What became of a request, as the client saw it.

use crate::engine::clock::Micros;
use crate::engine::limit::Decision;

/// The five ways a request can end. A refusal is a decision, and neither success nor failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    Allowed,
    /// 429.
    Limited,
    /// 503: refused because of load, or because a limiter fails closed.
    Shed,
    Error,
    Timeout,
}

impl Outcome {
    pub const ALL: [Outcome; 5] =
        [Outcome::Allowed, Outcome::Limited, Outcome::Shed, Outcome::Error, Outcome::Timeout];

    pub fn name(self) -> &'static str {
        match self {
            Outcome::Allowed => "allowed",
            Outcome::Limited => "limited",
            Outcome::Shed => "shed",
            Outcome::Error => "error",
            Outcome::Timeout => "timeout",
        }
    }

    /// What a status means. A redirection or 404 is an answer of what stands behind the limiter,
    /// which let it through.
    pub fn of_status(status: u16) -> Outcome {
        match status {
            429 => Outcome::Limited,
            503 => Outcome::Shed,
            500.. => Outcome::Error,
            _ => Outcome::Allowed,
        }
    }
}

/// One answer, with what it says about the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    pub outcome: Outcome,
    /// Of HTTP; 0 where there is none.
    pub status: u16,
    pub told: Told,
}

impl Answer {
    pub fn plain(outcome: Outcome) -> Answer {
        Answer { outcome, status: 0, told: Told::default() }
    }

    /// The answer of a limiter that is asked without HTTP between.
    pub fn of_decision(decision: &Decision, now_s: u64) -> Answer {
        let seconds = |wait: Micros| wait.0.div_ceil(Micros::SECOND.0);
        let told = Told {
            limit: Some(decision.capacity),
            remaining: Some(decision.remaining),
            reset_at_s: Some(now_s + seconds(decision.reset_after)),
            retry_after_s: decision.retry_after.map(|wait| seconds(wait).max(1)),
            window_s: None,
        };
        let outcome = if decision.allowed { Outcome::Allowed } else { Outcome::Limited };
        Answer { outcome, status: 0, told }
    }
}

/// What the headers say, as far as they are there and can be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told {
    pub limit: Option<u64>,
    pub remaining: Option<u64>,
    /// Unix seconds.
    pub reset_at_s: Option<u64>,
    pub retry_after_s: Option<u64>,
    /// The period of the policy.
    pub window_s: Option<u64>,
}
