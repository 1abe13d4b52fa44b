//! What the headers of an answer tell of limits: `X-RateLimit-*`, and `RateLimit-Policy` and
//! `RateLimit` as structured fields of the IETF draft (version 10). Pure.

use http::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};

use super::answer::{Answer, Outcome, retry_after_seconds, whole_seconds};
use crate::engine::clock::Micros;
use crate::engine::limit::QuotaState;
use crate::engine::limiter::{Asked, Reached, Verdict};
use crate::engine::policy::HeaderFamilies;
use crate::engine::store::RuleLimit;

const X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
const X_WARNING: HeaderName = HeaderName::from_static("x-ratelimit-warning");
const X_STATUS: HeaderName = HeaderName::from_static("x-ratelimit-status");
const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const LIMIT: HeaderName = HeaderName::from_static("ratelimit");

/// All of them; an upstream's own are replaced.
pub const FIELDS: [HeaderName; 7] =
    [X_LIMIT, X_REMAINING, X_RESET, X_WARNING, X_STATUS, POLICY, LIMIT];

/// Puts what the verdict tells of limits in place of whatever the fields held before; leaves them
/// alone where no rule decided and nothing was degraded.
pub fn tell_limits(
    headers: &mut HeaderMap,
    verdict: &Verdict,
    answer: &Answer,
    families: HeaderFamilies,
    now: Micros,
) {
    let Some(capacity) = answer.capacity else {
        if let Some(mode) = answer.degraded {
            headers.insert(X_STATUS, degraded(mode));
        }
        return;
    };
    // Most upstreams have none of them.
    if headers.keys().any(is_field) {
        FIELDS.iter().for_each(|field| drop(headers.remove(field)));
    }
    if families.x {
        headers.insert(X_LIMIT, number(capacity));
        if let (Some(remaining), Some(reset_after)) = (answer.remaining, answer.reset_after) {
            headers.insert(X_REMAINING, number(remaining));
            headers.insert(X_RESET, number(whole_seconds(now + reset_after)));
        }
        if answer.state == Some(QuotaState::Warning) {
            headers.insert(X_WARNING, HeaderValue::from_static("approaching-limit"));
        }
    }
    if families.ietf {
        tell_draft(headers, verdict, answer);
    }
    if let Some(mode) = answer.degraded {
        headers.insert(X_STATUS, degraded(mode));
    } else if let Some(told) = answer.replicas.as_ref().filter(|told| told.is_short()) {
        let text = format!("unconfirmed;replicas={};wanted={}", told.confirmed, told.wanted);
        headers.extend(HeaderValue::try_from(text).map(|value| (X_STATUS, value)));
    }
}

fn is_field(name: &HeaderName) -> bool {
    let text = name.as_str();
    (text.starts_with("x-ratelimit-") || text.starts_with("ratelimit")) && FIELDS.contains(name)
}

/// When a refused request may come again.
pub fn tell_retry(headers: &mut HeaderMap, answer: &Answer) {
    match (answer.outcome, answer.retry_after) {
        // A store that is away may be back any moment.
        (Outcome::Unavailable, _) => drop(headers.insert(RETRY_AFTER, 1.into())),
        (Outcome::Allowed, _) | (_, None) => {}
        (_, Some(wait)) => drop(headers.insert(RETRY_AFTER, retry_after_seconds(wait).into())),
    }
}

fn degraded(mode: &'static str) -> HeaderValue {
    HeaderValue::from_static(match mode {
        "local" => "degraded;mode=local",
        "closed" => "degraded;mode=closed",
        _ => "degraded;mode=open",
    })
}

fn tell_draft(headers: &mut HeaderMap, verdict: &Verdict, answer: &Answer) {
    let mut policy = String::with_capacity(64);
    let mut limit = String::with_capacity(64);
    match &verdict.reached {
        Reached::Limits { decided, asked } => {
            for (place, one) in asked.iter().enumerate() {
                let same = |other: &Asked| other.limit.label() == one.limit.label();
                let before = asked[..place].iter().filter(|other| same(other)).count();
                put_policy(&mut policy, &one.limit, before);
                if place == *decided
                    && let Some(remaining) = answer.remaining
                {
                    put_name(&mut limit, &one.limit, before);
                    put(&mut limit, ";r=", remaining);
                    let next = answer.next_after.map_or(0, whole_seconds);
                    if next > 0 {
                        put(&mut limit, ";t=", next);
                    }
                }
            }
        }
        Reached::Unanswered { limit, .. } => put_policy(&mut policy, limit, 0),
        _ => {}
    }
    for (name, text) in [(POLICY, policy), (LIMIT, limit)] {
        if let (false, Ok(value)) = (text.is_empty(), HeaderValue::from_str(&text)) {
            headers.insert(name, value);
        }
    }
}

fn put_policy(text: &mut String, limit: &RuleLimit, before: usize) {
    if !text.is_empty() {
        text.push_str(", ");
    }
    put_name(text, limit, before);
    put(text, ";q=", limit.limit().capacity());
    let period = limit.limit().period();
    if period.0.is_multiple_of(Micros::SECOND.0) {
        put(text, ";w=", period.0 / Micros::SECOND.0);
    }
}

/// `"per-user-1m"`; a second limit of that name is `"per-user-1m-2"`.
fn put_name(text: &mut String, limit: &RuleLimit, before: usize) {
    text.push('"');
    text.push_str(limit.label());
    if before > 0 {
        put(text, "-", before as u64 + 1);
    }
    text.push('"');
}

fn put(text: &mut String, name: &str, number: u64) {
    text.push_str(name);
    text.push_str(itoa::Buffer::new().format(number));
}

/// As `HeaderValue::from` does, which takes memory twice for it.
fn number(number: u64) -> HeaderValue {
    let digits = HeaderValue::from_str(itoa::Buffer::new().format(number));
    digits.unwrap_or_else(|_| number.into())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::engine::durability::Confirmed;
    use crate::engine::failure::Degraded;
    use crate::engine::identity::Identity;
    use crate::engine::limit::{Algorithm, Cost, Limit};
    use crate::engine::limiter::By;
    use crate::engine::policy::OnStoreError;
    use crate::engine::store::{Check, MemoryStore, StoreError};

    const BOTH: HeaderFamilies = HeaderFamilies { x: true, ietf: true };
    const NOW: Micros = Micros(1_763_425_000_123_457);

    fn verdict(limits: &[&str], cost: u64) -> Verdict {
        let identity: Identity = "user:1".parse().unwrap();
        let limits: Vec<Arc<RuleLimit>> = limits
            .iter()
            .zip(0..)
            .map(|(text, index)| {
                let limit = Limit::new(Algorithm::TokenBucket, text.parse().unwrap()).unwrap();
                Arc::new(RuleLimit::new("per-user", index, limit))
            })
            .collect();
        let cost = Cost::new(cost).unwrap();
        let check =
            Check { identity: &identity, limits: &limits, cost, idempotency: None, at: Some(NOW) };
        let answer = MemoryStore::default().check(&check).unwrap();
        let (decided, _) = answer.deciding().unwrap();
        let of = |(limit, decision): (&Arc<RuleLimit>, &crate::engine::limit::Decision)| Asked {
            identity: identity.clone(),
            limit: limit.clone(),
            decision: *decision,
            by: By::Store,
        };
        let asked = limits.iter().zip(&answer.decisions).map(of).collect();
        Verdict::by(answer.allowed(), Reached::Limits { decided, asked })
    }

    fn told(verdict: &Verdict, families: HeaderFamilies) -> Vec<String> {
        let answer = Answer::of(verdict, None, NOW);
        let mut headers = HeaderMap::new();
        headers.insert(X_REMAINING, 999.into());
        tell_limits(&mut headers, verdict, &answer, families, NOW);
        tell_retry(&mut headers, &answer);
        let line = |(name, value): (&HeaderName, &HeaderValue)| {
            format!("{name}: {}", value.to_str().unwrap())
        };
        let mut lines: Vec<String> = headers.iter().map(line).collect();
        lines.sort();
        lines
    }

    #[test]
    fn both_families_tell_the_same() {
        assert_eq!(
            told(&verdict(&["100/1m", "1000/1h"], 1), BOTH),
            [
                "ratelimit-policy: \"per-user-1m\";q=100;w=60, \"per-user-1h\";q=1000;w=3600",
                "ratelimit: \"per-user-1m\";r=99;t=1",
                "x-ratelimit-limit: 100",
                "x-ratelimit-remaining: 99",
                "x-ratelimit-reset: 1763425001",
            ]
        );
        assert_eq!(
            told(
                &verdict(&["5/500ms", "6/500ms burst 5"], 0),
                HeaderFamilies { x: false, ietf: true }
            ),
            [
                "ratelimit-policy: \"per-user-500ms\";q=5, \"per-user-500ms-2\";q=5",
                "ratelimit: \"per-user-500ms\";r=5",
            ]
        );
    }

    #[test]
    fn close_to_the_end_is_warned_of_and_beyond_it_comes_a_time_to_return() {
        let close = told(&verdict(&["10/1m"], 8), HeaderFamilies { x: true, ietf: false });
        assert!(close.contains(&"x-ratelimit-warning: approaching-limit".into()), "{close:?}");
        let mut refused = verdict(&["10/10ms burst 10"], 10);
        if let Reached::Limits { asked, .. } = &mut refused.reached {
            asked[0].decision.allowed = false;
            asked[0].decision.retry_after = Some(Micros(1));
        }
        refused.allowed = false;
        assert!(told(&refused, BOTH).contains(&"retry-after: 1".into()));
        refused = verdict(&["10/1m"], 11);
        assert!(!told(&refused, BOTH).iter().any(|line| line.starts_with("retry-after")));
    }

    #[test]
    fn what_was_decided_without_the_store_is_marked() {
        let why = StoreError::OtherCost;
        let mut open = verdict(&["100/1m"], 1);
        open.degraded = Some(Degraded { mode: OnStoreError::Open, why: why.clone() });
        assert_eq!(
            told(&open, BOTH),
            [
                "ratelimit-policy: \"per-user-1m\";q=100;w=60",
                "x-ratelimit-limit: 100",
                "x-ratelimit-status: degraded;mode=open",
            ]
        );
        let mut local = verdict(&["100/1m"], 1);
        local.degraded = Some(Degraded { mode: OnStoreError::Local, why });
        let local = told(&local, BOTH);
        assert!(local.contains(&"x-ratelimit-status: degraded;mode=local".into()));
        assert!(local.contains(&"x-ratelimit-remaining: 99".into()));
        let mut short = verdict(&["100/1m"], 1);
        let of = |confirmed| Confirmed { rule: "per-user".into(), wanted: 2, confirmed };
        short.replicas = Some(of(1));
        let mark = "x-ratelimit-status: unconfirmed;replicas=1;wanted=2";
        assert!(told(&short, BOTH).contains(&mark.into()));
        short.replicas = Some(of(2));
        assert!(!told(&short, BOTH).iter().any(|line| line.starts_with("x-ratelimit-status")));
        let nobody = told(&Verdict::by(true, Reached::NoPolicy), BOTH);
        assert!(nobody.contains(&"x-ratelimit-status: degraded;mode=open".into()));
    }

    #[test]
    fn where_no_rule_decided_the_upstreams_own_fields_stay() {
        let none = told(&Verdict::by(true, Reached::NoLimit), BOTH);
        assert_eq!(none, ["x-ratelimit-remaining: 999"]);
    }
}
