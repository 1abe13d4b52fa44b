//! One limit of one identity as it stands: what `inspect` and `keys` show.

use serde::Serialize;

use crate::engine::algo::{State, decide};
use crate::engine::clock::Micros;
use crate::engine::limit::{Cost, Decision, Limit, QuotaState};

/// What a limit says now, without anything being taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    pub limit: Limit,
    /// As it is.
    pub now: Decision,
    /// What a cost of 1 would be told.
    pub of_one: Decision,
}

impl Standing {
    pub fn of(limit: &Limit, state: &State, now: Micros) -> Standing {
        let ask = |cost| decide(limit, state, now, cost);
        Standing { limit: *limit, now: ask(Cost::PEEK), of_one: ask(Cost::ONE) }
    }

    pub fn state(&self) -> QuotaState {
        if self.of_one.allowed { self.now.state() } else { QuotaState::Throttled }
    }
}

/// The names are those of the JSON output.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Bucket {
    pub rule: String,
    pub algorithm: Option<&'static str>,
    pub limit: Option<u64>,
    pub period_us: Option<u64>,
    /// Of the buckets; null for windows.
    pub burst: Option<u64>,
    pub used: Option<u64>,
    pub remaining: Option<u64>,
    /// For a cost of 1; null when it would pass, or never will.
    pub retry_after_us: Option<u64>,
    pub reset_after_us: Option<u64>,
    /// Null where the key does not exist or never expires.
    pub ttl_us: Option<u64>,
    pub key: String,
    /// Null but in a cluster.
    pub slot: Option<u16>,
    pub node: Option<String>,
    /// Of the key, which all limits of an identity share; with the charges of a sliding log.
    pub memory_bytes: Option<u64>,
    pub state: Option<&'static str>,
    /// `store` for what is known from the stored value alone; else where the limit is from.
    pub source: String,
    /// The store that rules name, where it is one; null: the Redis that counts what names no other.
    pub store: Option<String>,
    #[serde(skip)]
    pub standing: Option<Standing>,
}

impl Bucket {
    /// With everything that a limit and its state say.
    pub fn standing(self, standing: Standing) -> Bucket {
        let Standing { limit, now, of_one } = &standing;
        Bucket {
            algorithm: Some(limit.algorithm().name()),
            limit: Some(limit.requests()),
            period_us: Some(limit.period().0),
            burst: limit.algorithm().is_bucket().then_some(limit.capacity()),
            used: Some(now.used()),
            remaining: Some(now.remaining),
            retry_after_us: of_one.retry_after.map(|wait| wait.0),
            reset_after_us: Some(now.reset_after.0),
            state: Some(standing.state().name()),
            standing: Some(standing),
            ..self
        }
    }

    /// `10/1m burst 20`, as far as it is known.
    pub fn limit_text(&self) -> String {
        match (&self.standing, self.limit, self.period_us) {
            (Some(standing), ..) => standing.limit.to_string(),
            (None, Some(limit), Some(period)) => format!("{limit}/{}", Micros(period)),
            _ => "unknown".into(),
        }
    }
}
