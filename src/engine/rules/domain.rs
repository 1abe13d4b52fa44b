//! Some rules of a policy by themselves: those that a domain of Envoy means, perhaps under a limit
//! that the request brings along.

use std::sync::Arc;

use super::{LimitsOfRule, Rules};
use crate::engine::clock::Micros;
use crate::engine::limit::{Limit, LimitError, Quota};
use crate::engine::policy::{Policy, Rule, RuleLimits};
use crate::engine::store::{DEFAULT_MAX_DELAY, RuleLimit};

/// A limit in place of those that the rules have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Instead {
    pub requests: u64,
    pub period: Micros,
    /// Which of a rule's buckets counts it: above those of its own limits, and one for each period,
    /// so that neither starts anew whenever the other is asked.
    pub bucket: u8,
}

impl Rules {
    /// Only these rules; they stand alone, so none of them insists on an identity.
    pub fn of_domain(
        &self,
        names: &[String],
        instead: Option<Instead>,
    ) -> Result<Rules, LimitError> {
        let policy = &self.policy;
        let chosen = |rule: &Rule| names.contains(&rule.name);
        let limits_of = |rule: &Rule| match instead {
            None => Ok(LimitsOfRule::of(rule, policy)),
            Some(_) if !chosen(rule) => Ok(LimitsOfRule::Own(Vec::new())),
            Some(instead) => {
                instead.of(rule, policy).map(|limit| LimitsOfRule::Own(vec![Arc::new(limit)]))
            }
        };
        let limits = policy.rules.iter().map(limits_of).collect::<Result<Vec<_>, _>>()?;
        Ok(Rules::of(policy.clone(), self.lists.clone(), chosen, limits))
    }
}

impl Instead {
    /// As `rule` counts it: by the algorithm of its first limit.
    fn of(self, rule: &Rule, policy: &Policy) -> Result<RuleLimit, LimitError> {
        let first = match &rule.limits {
            RuleLimits::Own(specs) => specs.first(),
            RuleLimits::OfTier => None,
        };
        let algorithm = first.map_or(policy.defaults.algorithm, |spec| spec.limit.algorithm());
        let quota = Quota { requests: self.requests, period: self.period, burst: None };
        let limit = RuleLimit::new(&rule.name, self.bucket, Limit::new(algorithm, quota)?);
        Ok(limit
            .with_weight(rule.cost)
            .with_on_change(rule.on_change)
            .with_max_delay(first.map_or(DEFAULT_MAX_DELAY, |spec| spec.max_delay)))
    }
}
