//! Who the policy itself blocks or exempts.

use super::Rules;
use crate::engine::clock::Micros;
use crate::engine::identity::Identity;
use crate::engine::patterns::Patterns;
use crate::engine::policy::{Listed, Policy};

/// The places of entries in the policy's lists, by whom they mean.
#[derive(Debug)]
pub(super) struct Lists {
    block: Patterns<usize>,
    exempt: Patterns<usize>,
}

impl Lists {
    pub(super) fn of(policy: &Policy) -> Lists {
        Lists { block: entries_of(&policy.block), exempt: entries_of(&policy.exempt) }
    }
}

impl Rules {
    /// The first entry of the policy that blocks `identity` now.
    pub fn block_of(&self, identity: &Identity, now: Micros) -> Option<&Listed> {
        first_on(&self.policy.block, &self.lists.block.of(identity), now)
    }

    pub fn exemption_of(&self, identity: &Identity, now: Micros) -> Option<&Listed> {
        first_on(&self.policy.exempt, &self.lists.exempt.of(identity), now)
    }
}

fn entries_of(list: &[Listed]) -> Patterns<usize> {
    let mut patterns = Patterns::default();
    for (number, entry) in list.iter().enumerate() {
        entry.matches.iter().for_each(|pattern| patterns.add(pattern, number));
    }
    patterns
}

fn first_on<'a>(list: &'a [Listed], matching: &[usize], now: Micros) -> Option<&'a Listed> {
    let mut entries = matching.iter().map(|number| &list[*number]);
    entries.find(|entry| entry.until.is_none_or(|until| until > now))
}
