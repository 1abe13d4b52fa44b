//! What became of one request, whoever decided it.

use super::record::Outcome;
use crate::engine::clock::Micros;
use crate::engine::limit::QuotaState;
use crate::engine::limiter::{By, Reached, Verdict};
use crate::engine::policy::OnStoreError;
use crate::ops::checks;

#[derive(Clone, Copy, Debug)]
pub(super) struct Told<'a> {
    pub(super) outcome: Outcome,
    /// The rule that decided.
    pub(super) rule: Option<&'a str>,
    pub(super) degraded: bool,
    pub(super) shadow_rejected: bool,
    pub(super) delay: Micros,
    pub(super) retry_after: Option<Micros>,
    /// When the store took the decision, where it did and says so.
    pub(super) taken: Option<Micros>,
    pub(super) by: By,
    pub(super) state: QuotaState,
}

impl Told<'_> {
    /// Nobody answered.
    pub(super) const NOTHING: Told<'static> = Told {
        outcome: Outcome::Error,
        rule: None,
        degraded: false,
        shadow_rejected: false,
        delay: Micros::ZERO,
        retry_after: None,
        taken: None,
        by: By::Store,
        state: QuotaState::Normal,
    };
}

impl<'a> From<&'a Verdict> for Told<'a> {
    fn from(verdict: &'a Verdict) -> Told<'a> {
        let decided = match &verdict.reached {
            Reached::Limits { decided, asked } => asked.get(*decided),
            _ => None,
        };
        let degraded = verdict.degraded.as_ref();
        let is_closed = degraded.is_some_and(|degraded| degraded.mode == OnStoreError::Closed);
        let told = Told {
            outcome: match verdict.allowed {
                true => Outcome::Allowed,
                false if is_closed && decided.is_none() => Outcome::Error,
                false => Outcome::Rejected,
            },
            degraded: degraded.is_some(),
            shadow_rejected: verdict.shadow.iter().any(|shadow| !shadow.allowed),
            delay: verdict.delay(),
            by: verdict.decided_by(),
            ..Told::NOTHING
        };
        match (&verdict.reached, decided) {
            // When another one ends, nobody knows.
            (Reached::Busy(busy), _) => {
                Told { rule: Some(&busy.rule), retry_after: Some(Micros::SECOND), ..told }
            }
            (_, Some(asked)) => Told {
                rule: Some(asked.limit.rule()),
                retry_after: asked.decision.retry_after,
                taken: degraded.is_none().then_some(asked.decision.at),
                state: asked.decision.state(),
                ..told
            },
            (_, None) => told,
        }
    }
}

impl<'a> From<&'a checks::Answer> for Told<'a> {
    fn from(answer: &'a checks::Answer) -> Told<'a> {
        Told {
            outcome: match answer.outcome.as_str() {
                _ if answer.allowed => Outcome::Allowed,
                "unavailable" => Outcome::Error,
                _ => Outcome::Rejected,
            },
            rule: answer.rule.as_deref(),
            degraded: answer.degraded.is_some(),
            shadow_rejected: answer.shadow.iter().any(|shadow| !shadow.allowed),
            delay: Micros(answer.delay_us),
            retry_after: answer.retry_after_us.map(Micros),
            state: match answer.state.as_deref() {
                Some("throttled") => QuotaState::Throttled,
                Some("warning") => QuotaState::Warning,
                _ => QuotaState::Normal,
            },
            ..Told::NOTHING
        }
    }
}
