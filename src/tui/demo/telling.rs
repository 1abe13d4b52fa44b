//! What of a decision is told on the screen.

use super::GATEWAYS;
use crate::engine::clock::Micros;
use crate::engine::limit::Decision;
use crate::engine::limiter::{Reached, Verdict};
use crate::gateway::answer::Outcome;
use crate::gateway::top::{Last, Ranked};
use crate::tui::data::{LimitUse, Who, share};

pub(super) fn rule_of(verdict: &Verdict) -> String {
    match &verdict.reached {
        Reached::Limits { decided, asked } => asked[*decided].limit.rule().to_string(),
        Reached::Unanswered { limit, .. } => limit.rule().to_string(),
        Reached::Blocked { .. } => "(blocked)".into(),
        Reached::Missing { rule } => rule.clone(),
        Reached::Busy(_) => "(busy)".into(),
        Reached::NoLimit | Reached::NoPolicy => "(no limit)".into(),
    }
}

pub(super) fn last(verdict: &Verdict, rule: String, refused: bool, path: &str, at: Micros) -> Last {
    let asked = match &verdict.reached {
        Reached::Limits { decided, asked } => Some(&asked[*decided]),
        _ => None,
    };
    let outcome = match (&verdict.reached, refused) {
        (Reached::Blocked { .. }, _) => Outcome::Blocked,
        (_, true) => Outcome::Limited,
        (_, false) => Outcome::Allowed,
    };
    Last {
        rule: rule.into(),
        outcome,
        limit: asked.map(|asked| asked.limit.clone()),
        used: asked.map(|asked| asked.decision.used()),
        retry_after: asked.and_then(|asked| asked.decision.retry_after),
        endpoint: Some(format!("POST {path}").into()),
        at,
    }
}

pub(super) fn who(ranked: &Ranked) -> Who {
    Who {
        identity: ranked.identity.to_string(),
        per_second: ranked.per_second,
        weight: ranked.weight,
        share: ranked.share,
        rule: ranked.last.rule.to_string(),
        reason: ranked.last.outcome.name().into(),
        limit: ranked.last.limit.as_ref().map(|limit| limit.limit().to_string()),
        used: ranked.last.used,
        last_us: ranked.last.at.0,
        since_us: Some(ranked.since.0),
        endpoint: ranked.last.endpoint.as_deref().map(String::from),
        retry_after_us: ranked.last.retry_after.map(|wait| wait.0),
        gateway: GATEWAYS[ranked.identity.as_str().len() % GATEWAYS.len()].into(),
    }
}

/// Little is left of its limit.
pub(super) fn is_low(ranked: &Ranked) -> bool {
    let capacity = ranked.last.limit.as_ref().map_or(0, |limit| limit.limit().capacity());
    share(ranked.last.used.unwrap_or(0) as f64, capacity as f64) >= 0.8
}

pub(super) fn in_use(
    limit: &crate::engine::store::RuleLimit,
    shadow: bool,
    from: String,
    decision: Option<&Decision>,
) -> LimitUse {
    let it = limit.limit();
    LimitUse {
        rule: limit.rule().to_string(),
        endpoint: None,
        algorithm: it.algorithm().name().into(),
        limit: it.requests(),
        period_us: it.period().0,
        capacity: it.capacity(),
        shadow,
        from: Some(from),
        used: decision.map(Decision::used),
        remaining: decision.map(|decision| decision.remaining),
        reset_after_us: decision.map(|decision| decision.reset_after.0),
        state: decision.map(|decision| decision.state().name().into()),
    }
}
