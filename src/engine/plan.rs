//! What has to be asked for one request: which limits of which rules, for which of its identities.
//! Pure: rules, the request, and what is on record about its identities go in, a plan comes out.
//!
//! Authority: a block ends the request; an exemption frees its dimension, or the whole request; an
//! override replaces the limits of one rule for one identity; then the tier, then the rule.

use std::sync::Arc;

use smallvec::SmallVec;

use super::clock::Micros;
use super::identity::Identity;
use super::limit::Limit;
use super::policy::{Listed, Place, Policy, Rule, RuleLimits};
use super::rules::{Applied, Rules, Target};
use super::store::RuleLimit;

/// A request asking to pass.
#[derive(Clone, Copy, Debug)]
pub struct Attempt<'a> {
    /// At most one of each dimension.
    pub identities: &'a [Identity],
    pub target: Target<'a>,
    /// Named by a trusted header.
    pub tier: Option<&'a str>,
}

/// What is on record about one identity.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Standing {
    pub tier: Option<String>,
    pub overrides: Vec<Override>,
    pub block: Option<Entry>,
    pub exempt: Option<Entry>,
}

/// Other limits than the rule's, for one identity.
#[derive(Clone, Debug, PartialEq)]
pub struct Override {
    pub rule: String,
    pub limits: Vec<Limit>,
    pub until: Option<Micros>,
    pub reason: String,
}

/// Why somebody is blocked or exempt, and until when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub reason: String,
    pub until: Option<Micros>,
    pub whole_request: bool,
    pub place: Option<Place>,
}

#[derive(Debug)]
pub enum Plan<'a> {
    Blocked {
        identity: &'a Identity,
        entry: Entry,
    },
    /// A rule insists on an identity that the request does not have.
    Missing {
        rule: &'a Rule,
    },
    Ask(Questions<'a>),
}

#[derive(Debug, Default)]
pub struct Questions<'a> {
    pub tier: Option<String>,
    /// One for each identity that has limits, and store that counts them: all of them in one step.
    pub enforced: SmallVec<[Question<'a>; 2]>,
    /// One for each shadow rule and identity.
    pub shadow: Vec<Question<'a>>,
    pub exempt: Vec<(&'a Identity, Entry)>,
}

/// The limits of one identity that one store counts.
#[derive(Debug)]
pub struct Question<'a> {
    pub identity: &'a Identity,
    /// By name; none: the one that counts what names no other.
    pub store: Option<&'a str>,
    pub limits: SmallVec<[Arc<RuleLimit>; 1]>,
    /// For each of them, whose it is.
    pub sources: Vec<Source<'a>>,
}

/// Where a limit comes from.
#[derive(Clone, Debug)]
pub struct Source<'a> {
    pub rule: &'a Rule,
    pub origin: Origin<'a>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Origin<'a> {
    Rule,
    Tier { name: &'a str, place: &'a Place },
    Override { until: Option<Micros>, reason: String },
}

/// `standings` are those of the attempt's identities, in their order.
pub fn plan<'a>(
    rules: &'a Rules,
    attempt: &Attempt<'a>,
    standings: &[Standing],
    now: Micros,
) -> Plan<'a> {
    let policy: &'a Policy = rules.policy();
    for (identity, standing) in attempt.identities.iter().zip(standings) {
        let listed = || rules.block_of(identity, now).map(Entry::of);
        if let Some(entry) = standing.block.clone().filter(|e| e.is_on(now)).or_else(listed) {
            return Plan::Blocked { identity, entry };
        }
    }
    let tier = tier_of(policy, attempt, standings);
    if let Some(rule) = rules.missing(attempt.identities, tier.as_deref(), attempt.target) {
        return Plan::Missing { rule };
    }
    let mut questions = Questions { tier, ..Questions::default() };
    for (identity, standing) in attempt.identities.iter().zip(standings) {
        let listed = || rules.exemption_of(identity, now).map(Entry::of);
        match standing.exempt.clone().filter(|e| e.is_on(now)).or_else(listed) {
            Some(entry) => questions.exempt.push((identity, entry)),
            None => questions.ask_about(rules, attempt, identity, standing, now),
        }
    }
    if questions.exempt.iter().any(|(_, entry)| entry.whole_request) {
        questions.enforced.clear();
        questions.shadow.clear();
    }
    Plan::Ask(questions)
}

impl<'a> Questions<'a> {
    fn ask_about(
        &mut self,
        rules: &'a Rules,
        attempt: &Attempt<'a>,
        identity: &'a Identity,
        standing: &Standing,
        now: Micros,
    ) {
        let applying =
            rules.applying(identity, attempt.identities, self.tier.as_deref(), attempt.target);
        let first = self.enforced.len();
        for applied in applying.enforced {
            let tier = self.tier.as_deref();
            let store = applied.rule.store.as_deref();
            // What one store counts is decided in one step.
            let beside = self.enforced[first..].iter_mut().find(|question| {
                question.store == store && !question.is_split() && applied.rule.split.is_none()
            });
            match beside {
                Some(question) => question.add(rules, applied, tier, standing, now),
                None => {
                    let question = Question::of(rules, applied, identity, tier, standing, now);
                    self.enforced.push(question);
                }
            }
        }
        let mut number = 0;
        self.enforced.retain(|question| {
            number += 1;
            number <= first || !question.limits.is_empty()
        });
        for applied in applying.shadow {
            let tier = self.tier.as_deref();
            let alone = Question::of(rules, applied, identity, tier, standing, now);
            if !alone.limits.is_empty() {
                self.shadow.push(alone);
            }
        }
    }
}

impl<'a> Question<'a> {
    /// It is the only one of its rule then: others have no part in it.
    pub(super) fn is_split(&self) -> bool {
        self.sources.iter().any(|source| source.rule.split.is_some())
    }

    /// The limits of one rule for one identity.
    pub fn of(
        rules: &'a Rules,
        applied: Applied<'a>,
        identity: &'a Identity,
        tier: Option<&str>,
        standing: &Standing,
        now: Micros,
    ) -> Question<'a> {
        let store = applied.rule.store.as_deref();
        let (limits, sources) = (SmallVec::new(), Vec::new());
        let mut question = Question { identity, store, limits, sources };
        question.add(rules, applied, tier, standing, now);
        question
    }

    /// The limits of a rule for this identity: an override's before the tier's or the rule's own.
    fn add(
        &mut self,
        rules: &'a Rules,
        applied: Applied<'a>,
        tier: Option<&str>,
        standing: &Standing,
        now: Micros,
    ) {
        let rule = applied.rule;
        let in_force =
            |o: &&Override| o.rule == rule.name && o.until.is_none_or(|until| until > now);
        if let Some(instead) = standing.overrides.iter().find(in_force) {
            let origin = Origin::Override { until: instead.until, reason: instead.reason.clone() };
            for (limit, index) in instead.limits.iter().zip(0u8..) {
                let limit = RuleLimit::new(&rule.name, index, *limit)
                    .with_weight(rule.cost)
                    .with_on_change(rule.on_change);
                self.limits.push(Arc::new(limit));
                self.sources.push(Source { rule, origin: origin.clone() });
            }
            return;
        }
        let tier = tier.and_then(|name| rules.policy().tier(name));
        let origin = match (&rule.limits, tier) {
            (RuleLimits::OfTier, Some(tier)) => {
                Origin::Tier { name: &tier.name, place: &tier.place }
            }
            _ => Origin::Rule,
        };
        for limit in applied.limits(tier.map(|tier| tier.name.as_str())) {
            self.limits.push(limit.clone());
            self.sources.push(Source { rule, origin: origin.clone() });
        }
    }
}

impl Entry {
    fn of(listed: &Listed) -> Entry {
        Entry {
            reason: listed.reason.clone(),
            until: listed.until,
            whole_request: listed.whole_request,
            place: Some(listed.place.clone()),
        }
    }

    pub fn is_on(&self, now: Micros) -> bool {
        self.until.is_none_or(|until| until > now)
    }
}

/// The first assignment among the user, apikey, header and ip of a request (in the store before in
/// the file), else what a trusted header names, else the default. A tier that does not exist is
/// nobody's.
pub fn tier_of(policy: &Policy, attempt: &Attempt<'_>, standings: &[Standing]) -> Option<String> {
    let rank = |identity: &Identity| match identity.as_str().split(':').next() {
        Some("user") => 0,
        Some("apikey") => 1,
        Some("header") => 2,
        Some("ip") => 3,
        _ => 4,
    };
    let known = |name: &String| policy.tier(name).is_some();
    let named = || attempt.tier.map(String::from).filter(known);
    let is_assigned =
        !policy.assign.is_empty() || standings.iter().any(|standing| standing.tier.is_some());
    if !is_assigned {
        return named().or_else(|| policy.default_tier.clone());
    }
    let mut order: SmallVec<[usize; 4]> = (0..attempt.identities.len()).collect();
    order.sort_by_key(|n| rank(&attempt.identities[*n]));
    let assigned = order.into_iter().filter(|n| rank(&attempt.identities[*n]) < 4).find_map(|n| {
        let stored = standings.get(n).and_then(|standing| standing.tier.clone()).filter(known);
        stored.or_else(|| policy.assign.get(&attempt.identities[n]).cloned())
    });
    assigned.or_else(named).or_else(|| policy.default_tier.clone())
}
