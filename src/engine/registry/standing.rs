//! What the registry says of one identity, as a plan needs it. Pure.

use super::data::{Lists, Subject, Switches, Terms};
use crate::engine::clock::Micros;
use crate::engine::identity::Identity;
use crate::engine::limit::{Algorithm, Limit};
use crate::engine::plan::{Entry, Override, Standing};
use crate::engine::policy::{OnStoreError, Policy, RuleLimits};

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
    // As a plan finds it: in the store before in the file, and a tier that does not exist is
    // nobody's.
    let known = tier.filter(|name| policy.tier(name).is_some());
    let assigned = known.or_else(|| policy.assign.get(identity).map(String::as_str));
    let overrides = subject.overrides.iter().filter(|o| o.terms.hold(now)).filter_map(|o| {
        let algorithm = algorithm_of(policy, &o.rule, assigned);
        // A part of its limits would be another promise: one that cannot be read wholly gives way
        // to the rule's own.
        let limits: Option<Vec<Limit>> = o.limits.iter().map(|l| l.resolve(algorithm)).collect();
        Some(Override {
            rule: o.rule.clone(),
            limits: limits.filter(|limits| !limits.is_empty())?,
            until: o.terms.until,
            reason: o.terms.reason.clone(),
        })
    });
    Standing {
        tier: tier.map(String::from),
        overrides: overrides.collect(),
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

/// The policy without the rules that are switched off, and with the modes that are set by hand.
pub fn switched(mut policy: Policy, switches: &Switches) -> Policy {
    for rule in &mut policy.rules {
        rule.enabled &= !switches.disabled.contains_key(&rule.name);
        let set = switches.on_store_error.get(&rule.name);
        // One of a later version is passed over.
        if let Some(mode) = set.and_then(|set| OnStoreError::named(&set.value)) {
            rule.on_store_error = mode;
        }
    }
    policy
}

#[cfg(test)]
mod tests {
    use super::super::data::{Grant, Listed, Override, OverrideLimit};
    use super::*;
    use crate::engine::config::parse_policy;
    use crate::engine::plan;

    const POLICY: &str = r#"
        default_tier = "free"
        [assign]
        "user:gold" = "gold"
        [tiers.free]
        limits = [{ limit = "10/1s", algorithm = "gcra" }]
        [tiers.gold]
        limits = [{ limit = "10/1s", algorithm = "sliding-window" }]
        [[rule]]
        name = "own"
        dimension = "user"
        endpoint = "/x"
        limits = ["5/1s", { limit = "9/1h", algorithm = "fixed-window" }]
        [[rule]]
        name = "by-tier"
        dimension = "user"
        limits = "tier"
    "#;
    const NOW: Micros = Micros(1_000);

    fn policy() -> Policy {
        parse_policy("test", POLICY, NOW).unwrap().0
    }

    fn terms(reason: &str, until: Option<u64>) -> Terms {
        let until = until.map(Micros);
        Terms { until, reason: reason.into(), by: "b".into(), at: Micros::ZERO }
    }

    fn instead(rule: &str, limits: &[&str]) -> Override {
        let one = |quota: &&str| OverrideLimit::new(quota.parse().unwrap(), None).unwrap();
        let limits = limits.iter().map(one).collect();
        Override { rule: rule.into(), limits, terms: terms("o", None) }
    }

    fn algorithms(subject: &Subject) -> Vec<Vec<Algorithm>> {
        algorithms_for("user:1", subject)
    }

    fn algorithms_for(user: &str, subject: &Subject) -> Vec<Vec<Algorithm>> {
        let user = user.parse().unwrap();
        let standing = standing(subject, &Lists::default(), &user, &policy(), NOW);
        let of = |o: &plan::Override| o.limits.iter().map(Limit::algorithm).collect();
        standing.overrides.iter().map(of).collect()
    }

    #[test]
    fn an_override_has_the_algorithm_of_the_rule_and_is_read_wholly_or_not_at_all() {
        use Algorithm::{Gcra, SlidingWindow, TokenBucket};
        let overrides = vec![instead("own", &["1/1s", "2/1s"]), instead("by-tier", &["1/1s"])];
        let mut subject = Subject { overrides, ..Subject::default() };
        let own = vec![TokenBucket; 2];
        assert_eq!(algorithms(&subject), [own.clone(), vec![Gcra]]);
        assert_eq!(
            algorithms_for("user:gold", &subject),
            [own.clone(), vec![SlidingWindow]],
            "by the file's assignment"
        );
        subject.tier = Some(Grant { value: "gone".into(), terms: terms("t", None) });
        assert_eq!(algorithms(&subject), [own.clone(), vec![Gcra]], "a tier that is nobody's");
        subject.tier = Some(Grant { value: "gold".into(), terms: terms("t", None) });
        assert_eq!(algorithms(&subject), [own, vec![SlidingWindow]]);
        subject.overrides[0].limits[1].algorithm = Some("quantum".into());
        assert_eq!(algorithms(&subject), [vec![SlidingWindow]], "what cannot be read is left out");
    }

    #[test]
    fn what_is_said_of_one_comes_before_the_lists_and_only_while_it_holds() {
        let user: Identity = "user:1".parse().unwrap();
        let listed =
            |reason| Listed { pattern: "user:*".parse().unwrap(), terms: terms(reason, None) };
        let lists =
            Lists { block: vec![listed("all")], exempt: vec![listed("ours")], ..Lists::default() };
        let subject = Subject { block: Some(terms("one", Some(2_000))), ..Subject::default() };
        let at = |now| standing(&subject, &lists, &user, &policy(), Micros(now));
        assert_eq!(at(1_999).block.unwrap().reason, "one");
        assert_eq!(at(2_000).block.unwrap().reason, "all");
        assert_eq!(at(2_000).exempt.unwrap().reason, "ours");
        let stranger = "ip:10.0.0.1".parse().unwrap();
        let nothing = standing(&Subject::default(), &lists, &stranger, &policy(), NOW);
        assert_eq!(nothing, Standing::default());
    }

    #[test]
    fn a_rule_that_is_switched_off_is_disabled_in_the_policy() {
        let mut switches = Switches::default();
        switches.disabled.insert("own".into(), terms("r", None));
        switches.disabled.insert("gone".into(), terms("r", None));
        let policy = switched(policy(), &switches);
        let enabled: Vec<bool> = policy.rules.iter().map(|rule| rule.enabled).collect();
        assert_eq!(enabled, [false, true]);
    }
}
