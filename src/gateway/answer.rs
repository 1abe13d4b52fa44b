//! What a caller is told of a decision: the same facts for the proxy's headers, the check API and
//! gRPC. Pure.

use crate::engine::clock::Micros;
use crate::engine::durability::Confirmed;
use crate::engine::limit::{Algorithm, QuotaState};
use crate::engine::limiter::{Reached, Shadow, Verdict};

/// A verdict in the words of the interfaces. What does not apply is none.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    pub allowed: bool,
    pub outcome: Outcome,
    pub limit: Option<u64>,
    pub capacity: Option<u64>,
    pub used: Option<u64>,
    pub remaining: Option<u64>,
    /// Until the same request would pass; none when it passed, or never will.
    pub retry_after: Option<Micros>,
    pub reset_after: Option<Micros>,
    pub next_after: Option<Micros>,
    pub delay: Micros,
    /// The rule that decided.
    pub rule: Option<String>,
    pub algorithm: Option<Algorithm>,
    pub state: Option<QuotaState>,
    /// Which failure mode answered in place of the store.
    pub degraded: Option<&'static str>,
    /// What replicas said of the charge, where a rule waits for them.
    pub replicas: Option<Confirmed>,
    pub shadow: Vec<Shadow>,
}

/// Why a request passes or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Allowed,
    /// A limit is used up.
    Limited,
    /// Who asks is blocked.
    Blocked,
    /// A rule insists on an identity that the request does not have.
    Missing,
    /// Too many requests of one identity are under way.
    Busy,
    /// The store does not answer, and the rule is `closed`.
    Unavailable,
}

impl Outcome {
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Allowed => "allowed",
            Outcome::Limited => "limited",
            Outcome::Blocked => "blocked",
            Outcome::Missing => "missing",
            Outcome::Busy => "busy",
            Outcome::Unavailable => "unavailable",
        }
    }
}

impl Answer {
    /// `now` serves for the end of a block, `state` is what a watch with memory says of the quota.
    pub fn of(verdict: &Verdict, state: Option<QuotaState>, now: Micros) -> Answer {
        let mut answer = Answer {
            allowed: verdict.allowed,
            outcome: outcome(verdict),
            limit: None,
            capacity: None,
            used: None,
            remaining: None,
            retry_after: None,
            reset_after: None,
            next_after: None,
            delay: verdict.delay(),
            rule: None,
            algorithm: None,
            state: None,
            degraded: verdict.degraded.as_ref().map(|degraded| degraded.mode.name()),
            replicas: verdict.replicas.clone(),
            shadow: verdict.shadow.clone(),
        };
        // What cannot be known is not told: under `open` nothing was counted.
        let is_open = answer.degraded == Some("open");
        match &verdict.reached {
            Reached::Limits { decided, asked } => {
                let asked = &asked[*decided];
                let decision = &asked.decision;
                answer.by(asked.limit.rule(), asked.limit.limit());
                if !is_open {
                    answer.used = Some(decision.used());
                    answer.remaining = Some(decision.remaining);
                    answer.reset_after = Some(decision.reset_after);
                    answer.next_after = Some(decision.next_after);
                    answer.retry_after = decision.retry_after;
                    answer.state = Some(state.unwrap_or_else(|| decision.state()));
                }
            }
            Reached::Unanswered { limit, .. } => answer.by(limit.rule(), limit.limit()),
            Reached::Blocked { entry, .. } => {
                answer.retry_after = entry.until.map(|until| until.saturating_sub(now));
                answer.state = Some(QuotaState::Throttled);
            }
            Reached::Missing { rule } => answer.rule = Some(rule.clone()),
            Reached::Busy(busy) => {
                // When another one ends, nobody knows.
                (answer.rule, answer.retry_after) = (Some(busy.rule.clone()), Some(Micros::SECOND));
            }
            // Nobody is protected, and that is not to be silent.
            Reached::NoPolicy => answer.degraded = Some("open"),
            Reached::NoLimit => {}
        }
        answer
    }

    fn by(&mut self, rule: &str, limit: &crate::engine::limit::Limit) {
        self.rule = Some(rule.into());
        self.algorithm = Some(limit.algorithm());
        self.limit = Some(limit.requests());
        self.capacity = Some(limit.capacity());
    }
}

/// `Retry-After` in whole seconds: never 0, which clients read as "at once".
pub fn retry_after_seconds(retry_after: Micros) -> u64 {
    whole_seconds(retry_after).max(1)
}

/// Seconds, rounded up: nobody is told to come too early.
pub fn whole_seconds(duration: Micros) -> u64 {
    duration.0.div_ceil(Micros::SECOND.0)
}

fn outcome(verdict: &Verdict) -> Outcome {
    match &verdict.reached {
        _ if verdict.allowed => Outcome::Allowed,
        Reached::Blocked { .. } => Outcome::Blocked,
        Reached::Missing { .. } => Outcome::Missing,
        Reached::Busy(_) => Outcome::Busy,
        Reached::Unanswered { .. } => Outcome::Unavailable,
        Reached::Limits { .. } | Reached::NoLimit | Reached::NoPolicy => Outcome::Limited,
    }
}
