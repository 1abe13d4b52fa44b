//! What the registry says of one identity, as a plan needs it. Pure.

use super::data::{Lists, Subject, Switches, Terms};
use crate::engine::clock::Micros;
use crate::engine::identity::Identity;
use crate::engine::limit::Algorithm;
use crate::engine::plan::{Entry, Override, Standing};
use crate::engine::policy::{Policy, RuleLimits};

/// The standing of `identity` under `policy`: its own record before the lists of patterns.
pub fn standing(
    subject: &Subject,
    lists: &Lists,
    identity: &Identity,
    policy: &Policy,
    now: Micros,
) -> Standing {
    let entry = |terms: &Terms| Entry {
        reason: terms.reason.clone(),
        until: terms.until,
        whole_request: false,
        place: None,
    };
    let block = subject.block_at(now).or_else(|| lists.block_at(identity, now).map(|l| &l.terms));
    let exempt =
        subject.exempt_at(now).or_else(|| lists.exempt_at(identity, now).map(|l| &l.terms));
    let tier = subject.tier_at(now);
    let overrides = subject.overrides.iter().filter(|o| o.terms.hold(now)).map(|o| {
        let algorithm = algorithm_of(policy, &o.rule, tier);
        Override {
            rule: o.rule.clone(),
            limits: o.limits.iter().filter_map(|limit| limit.resolve(algorithm)).collect(),
            until: o.terms.until,
            reason: o.terms.reason.clone(),
        }
    });
    Standing {
        tier: tier.map(String::from),
        // One of which nothing can be read would be a rule without limits: rather the rule's own.
        overrides: overrides.filter(|o| !o.limits.is_empty()).collect(),
        block: block.map(entry),
        exempt: exempt.map(entry),
    }
}

/// The algorithm of a rule's first limit, which an override without one takes over.
fn algorithm_of(policy: &Policy, rule: &str, tier: Option<&str>) -> Algorithm {
    let first = policy.rule(rule).and_then(|rule| match &rule.limits {
        RuleLimits::Own(limits) => limits.first(),
        RuleLimits::OfTier => {
            let tier = tier.or(policy.default_tier.as_deref())?;
            policy.tier(tier).and_then(|tier| tier.limits.first())
        }
    });
    first.map_or(policy.defaults.algorithm, |spec| spec.limit.algorithm())
}

/// The policy without the rules that are switched off.
pub fn switched(mut policy: Policy, switches: &Switches) -> Policy {
    for rule in &mut policy.rules {
        rule.enabled &= !switches.disabled.contains_key(&rule.name);
    }
    policy
}
