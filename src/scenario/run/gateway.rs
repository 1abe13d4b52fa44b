//! A gateway that runs somewhere and decides by its own rules, asked over HTTP. It is asked about
//! identities of the run's own, so that nobody else's quota is spent, and is told to forget them at
//! the end.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::{Method, StatusCode};
use serde::Deserialize;
use serde_json::json;

use crate::engine::clock::Micros;
use crate::engine::identity::Identity;
use crate::engine::policy::RuleLimits;
use crate::ops::admin::{Admin, AdminError};
use crate::ops::checks::{Answer, Question};
use crate::ops::fleet::{self, GatewayStats};
use crate::scenario::model::LimiterPart;

/// What was on its way when a run was interrupted is counted by then.
const LAST_CHARGES: Duration = Duration::from_millis(200);
/// Whoever waits for the end of a run does not wait longer.
const FORGET_WITHIN: Duration = Duration::from_secs(20);

/// A gateway as one limiter of a run asks it.
#[derive(Debug)]
pub(super) struct Remote {
    gateway: Rc<Admin>,
    run: Rc<str>,
    /// Which rule alone is asked; none: all that apply.
    rule: Option<String>,
    /// Who may have been charged.
    asked: RefCell<BTreeSet<String>>,
}

impl Remote {
    pub(super) fn new(gateway: Rc<Admin>, run: Rc<str>, limiter: &LimiterPart) -> Remote {
        let rule = (!limiter.is_policy).then(|| limiter.name.clone());
        Remote { gateway, run, rule, asked: RefCell::default() }
    }

    /// None: it did not answer with a decision. `key` is the number of the identity.
    pub(super) async fn decide(
        &self,
        identity: &Identity,
        key: u32,
        question: Question<'_>,
        most_delay: Option<Micros>,
    ) -> Option<Answer> {
        let own = own_name(&self.run, identity, key)?;
        self.asked.borrow_mut().insert(own.clone());
        let question = Question { identity: &own, rule: self.rule.as_deref(), ..question };
        let answer = self.gateway.check(&question).await.ok()?;
        let over = most_delay.map(|most| Micros(answer.delay_us).saturating_sub(most));
        match (over.filter(|over| *over > Micros::ZERO), &answer.charge) {
            // Nobody holds a request that long: what it took is given back.
            (Some(over), Some(charge)) if answer.allowed => {
                drop(self.gateway.refund(charge).await);
                let wait = Some(over.0);
                Some(Answer { allowed: false, delay_us: 0, retry_after_us: wait, ..answer })
            }
            _ => Some(answer),
        }
    }

    /// Makes it forget what the run has charged; why some of it is left, if so.
    pub(super) async fn forget(&self) -> Option<String> {
        tokio::time::sleep(LAST_CHARGES).await;
        let asked = self.asked.take();
        let mut left = asked.len();
        let reset_all = async {
            for own in &asked {
                let encoded = utf8_percent_encode(own, NON_ALPHANUMERIC);
                let path = format!("/api/v1/users/{encoded}/reset");
                let body = json!({ "reason": "made for a run of rlctl scenario, which is over" });
                self.gateway.ask(Method::POST, &path, Some(&body), &[StatusCode::OK]).await?;
                left -= 1;
            }
            Ok::<(), AdminError>(())
        };
        let why = match tokio::time::timeout(FORGET_WITHIN, reset_all).await {
            Ok(Ok(())) => return None,
            Ok(Err(error)) => error.why(),
            Err(_elapsed) => format!("it takes longer than {FORGET_WITHIN:?}"),
        };
        let (at, all) = (self.gateway.at(), asked.len());
        Some(format!(
            "{left} of the run's {all} identities are not reset at {at} ({why}); what they used ends by itself"
        ))
    }
}

/// The name of somebody whom only this run knows; none for those who cannot have one.
fn own_name(run: &str, identity: &Identity, key: u32) -> Option<String> {
    let (dimension, rest) = identity.as_str().split_once(':')?;
    let own = match dimension {
        "global" => return None,
        // Of the addresses that belong to nobody, each in a network of its own.
        "ip" => format!("ip:2001:db8:{}:{:x}::1", run.get(..4)?, u16::try_from(key).ok()?),
        "header" => {
            let (name, value) = rest.split_once(':')?;
            format!("header:{name}:rlsc-{run}-{value}")
        }
        other => format!("{other}:rlsc-{run}-{rest}"),
    };
    own.parse::<Identity>().ok().map(|own| own.as_str().to_owned())
}

/// What a gateway says before it is sent any traffic.
pub(super) struct Introduced {
    /// How far its clock is ahead of ours, in microseconds.
    pub(super) ahead: i64,
    /// What whoever reads the result should know.
    pub(super) notes: Vec<String>,
}

pub(super) async fn introduce(gateway: &Admin) -> Result<Introduced, AdminError> {
    let began = Micros::now();
    let stats: GatewayStats = fleet::ask(gateway, "/api/v1/stats").await?;
    let middle = Micros(began.0.midpoint(Micros::now().0));
    let mut notes = Vec::new();
    if stats.observe_only {
        notes.push(format!("the gateway at {} only observes: it refuses nobody", gateway.at()));
    }
    Ok(Introduced { ahead: stats.at_us.cast_signed() - middle.0.cast_signed(), notes })
}

#[derive(Debug, Deserialize)]
struct Limits {
    items: Vec<Limit>,
}

#[derive(Debug, Deserialize)]
struct Limit {
    rule: String,
    algorithm: String,
    limit: u64,
    period_us: u64,
    capacity: u64,
}

/// Whether a gateway has a limiter of the file.
pub(super) enum Has {
    /// With what to say about it.
    It(Vec<String>),
    /// Why not.
    Not(String),
}

impl Has {
    /// `keys` are all that will come.
    pub(super) async fn look(
        gateway: &Admin,
        run: &str,
        limiter: &LimiterPart,
        keys: &[Identity],
    ) -> Result<Has, AdminError> {
        if let Some(why) = nobody_elses(run, limiter, keys) {
            return Ok(Has::Not(why));
        }
        if limiter.is_policy
            && !limits_of(gateway, Identity::everybody().as_str()).await?.is_empty()
        {
            let why = "the gateway counts everybody together, and would count this, too";
            return Ok(Has::Not(why.into()));
        }
        let (mut seen, mut notes) = (Vec::new(), Vec::new());
        for (key, identity) in (0..).zip(keys) {
            let dimension = dimension_of(identity);
            if seen.contains(&dimension) {
                continue;
            }
            seen.push(dimension);
            let own = own_name(run, identity, key).unwrap_or_default();
            let limits = limits_of(gateway, &own).await?;
            if let Some(why) = missing(limiter, &limits, identity) {
                return Ok(Has::Not(why));
            }
            notes.extend(difference(limiter, &limits));
        }
        Ok(Has::It(notes))
    }
}

/// One of each kind is enough to ask about.
fn dimension_of(identity: &Identity) -> &str {
    let text = identity.as_str();
    let end = match text.strip_prefix("header:") {
        Some(rest) => rest.find(':').map_or(text.len(), |at| "header:".len() + at),
        None => text.find(':').unwrap_or(text.len()),
    };
    &text[..end]
}

/// Why a run would be about somebody else, or not about whom the file means, if so.
fn nobody_elses(run: &str, limiter: &LimiterPart, keys: &[Identity]) -> Option<String> {
    let unnamed = (0..).zip(keys).find(|(key, identity)| own_name(run, identity, *key).is_none());
    if let Some((_, identity)) = unnamed {
        return Some(format!("{identity} would be somebody else's quota"));
    }
    let rules = || limiter.policy.rules.iter();
    if let Some(rule) = rules().find(|rule| !rule.matches.is_empty()) {
        let why = "is for some identities by name, and the run's have names of their own";
        return Some(format!("the rule `{}` {why}", rule.name));
    }
    let rule = rules().find(|rule| rule.at_once.is_some())?;
    let why = "is counted by a gateway's proxy, not by its check API";
    Some(format!("the concurrency of `{}` {why}", rule.name))
}

async fn limits_of(gateway: &Admin, own: &str) -> Result<Vec<Limit>, AdminError> {
    let encoded = utf8_percent_encode(own, NON_ALPHANUMERIC);
    let limits: Limits = fleet::ask(gateway, &format!("/api/v1/users/{encoded}/limits")).await?;
    Ok(limits.items)
}

fn missing(limiter: &LimiterPart, limits: &[Limit], identity: &Identity) -> Option<String> {
    let has = |name: &str| limits.iter().any(|limit| limit.rule == name);
    let mut names: Vec<&str> = limits.iter().map(|limit| limit.rule.as_str()).collect();
    names.dedup();
    let known = match names.as_slice() {
        [] => "none".to_owned(),
        names => format!("`{}`", names.join("`, `")),
    };
    if !limiter.is_policy {
        let name = &limiter.name;
        let why = format!("the gateway has no rule `{name}` for {identity}; it has {known}");
        return (!has(name)).then_some(why);
    }
    let wanted = limiter.policy.rules.iter().filter(|rule| rule.enabled);
    let mut wanted = wanted.filter(|rule| rule.dimension.holds(identity));
    let missing = wanted.find(|rule| !has(&rule.name))?;
    Some(format!("the gateway has no rule `{}` for {identity}; it has {known}", missing.name))
}

/// Where the gateway's limit is another than the file's: then the gateway's is tested.
fn difference(limiter: &LimiterPart, limits: &[Limit]) -> Option<String> {
    let rule = limiter.policy.rules.first().filter(|_| !limiter.is_policy)?;
    let RuleLimits::Own(own) = &rule.limits else { return None };
    let theirs: Vec<&Limit> = limits.iter().filter(|limit| limit.rule == limiter.name).collect();
    let is_same = |(own, theirs): (&crate::engine::policy::LimitSpec, &&Limit)| {
        let limit = &own.limit;
        (limit.requests(), limit.period().0, limit.capacity(), limit.algorithm().name())
            == (theirs.limit, theirs.period_us, theirs.capacity, theirs.algorithm.as_str())
    };
    if own.len() == theirs.len() && own.iter().zip(&theirs).all(is_same) {
        return None;
    }
    let words = |limit: &&Limit| {
        let period = Micros(limit.period_us);
        format!("{} per {period}, {} at once, by {}", limit.limit, limit.capacity, limit.algorithm)
    };
    let theirs: Vec<String> = theirs.iter().map(words).collect();
    let name = &limiter.name;
    Some(format!("the gateway's `{name}` is not the file's: it has {}", theirs.join(" and ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_gets_a_name_that_only_this_run_knows() {
        for (identity, own) in [
            ("user:1", Some("user:rlsc-beef01-1")),
            ("apikey:a:b", Some("apikey:rlsc-beef01-a:b")),
            ("header:x-tenant:acme", Some("header:x-tenant:rlsc-beef01-acme")),
            ("ip:203.0.113.7", Some("ip:2001:db8:beef:7::")),
            ("global:all", None),
        ] {
            let identity: Identity = identity.parse().unwrap();
            assert_eq!(own_name("beef01", &identity, 7).as_deref(), own, "{identity}");
        }
    }
}
