//! The rules that a command works by: a file, or what is published in the store; and what the store
//! says of identities.

use std::sync::Arc;

use super::{Context, Failure, rules_file};
use crate::engine::clock::Micros;
use crate::engine::identity::{Dimension, Identity};
use crate::engine::plan::Standing;
use crate::engine::policy::Policy;
use crate::engine::registry::{Lists, Registry, Subject, Switches, Terms, standing, switched};
use crate::engine::rules::Rules;
use crate::output::Untrusted;

/// Rules in force, and the registry they are completed from where there is a Redis.
pub(super) struct InForce {
    pub(super) rules: Arc<Rules>,
    registry: Option<Registry>,
    lists: Lists,
    /// Why nothing is enforced, if that is so.
    pub(super) observe: Option<Terms>,
    /// Rules that would apply and are switched off.
    disabled: Vec<(String, Terms)>,
}

/// Reads the rules of the context; what is wrong with them is told on stderr.
pub(super) async fn load(context: &Context) -> Result<InForce, Failure> {
    let named = context.rules_file(None)?;
    let registry = match &context.redis {
        Some(_) => Some(context.registry().await?),
        None => None,
    };
    let (lists, switches) = match &registry {
        Some(registry) => (registry.lists().await?, registry.switches().await?),
        None => (Lists::default(), Switches::default()),
    };
    let policy = match (rules_file::in_store(&named), &registry) {
        (Some(version), Some(registry)) => {
            let published = rules_file::published(registry, version).await?;
            rules_file::usable(rules_file::parsed(&published))?.0
        }
        _ => rules_file::load(&named, context).await?.0,
    };
    let disabled = switched_off(&policy, &switches);
    let rules = Arc::new(Rules::new(Arc::new(switched(policy, &switches))));
    Ok(InForce { rules, registry, lists, observe: switches.observe, disabled })
}

/// The rules of a policy that a switch holds back, and why.
pub(super) fn switched_off(policy: &Policy, switches: &Switches) -> Vec<(String, Terms)> {
    let would_apply = |name: &str| policy.rule(name).is_some_and(|rule| rule.enabled);
    let held = switches.disabled.iter().filter(|(name, _)| would_apply(name));
    held.map(|(name, terms)| (name.clone(), terms.clone())).collect()
}

/// The identities of the request that somebody asks about: everybody shares in the global ones.
pub(super) fn identities_of(identity: &Identity) -> Vec<Identity> {
    let everybody = Identity::everybody();
    let is_shared = Dimension::Global.holds(identity);
    std::iter::once(identity.clone()).chain((!is_shared).then_some(everybody)).collect()
}

impl InForce {
    /// What is on record about each of some identities.
    pub(super) async fn standings(
        &self,
        identities: &[Identity],
    ) -> Result<Vec<Standing>, Failure> {
        let mut standings = Vec::new();
        for identity in identities {
            standings.push(self.standing(identity).await?);
        }
        Ok(standings)
    }

    /// What follows from what is on record about one identity.
    pub(super) fn standing_of(
        &self,
        identity: &Identity,
        subject: &Subject,
        now: Micros,
    ) -> Standing {
        standing(subject, &self.lists, identity, self.rules.policy(), now)
    }

    /// Says what is switched off by hand: whoever wonders why nobody is refused finds it here.
    pub(super) fn note_switches(&self, context: &Context) {
        note_switches(self.observe.as_ref(), &self.disabled, context);
    }

    async fn standing(&self, identity: &Identity) -> Result<Standing, Failure> {
        let subject = match &self.registry {
            Some(registry) => registry.subject(identity).await?,
            None => Subject::default(),
        };
        Ok(self.standing_of(identity, &subject, Micros::now()))
    }
}

pub(super) fn note_switches(
    observe: Option<&Terms>,
    disabled: &[(String, Terms)],
    context: &Context,
) {
    let why = |terms: &Terms| format!("{} (by {})", Untrusted(&terms.reason), Untrusted(&terms.by));
    if let Some(terms) = observe {
        context.note(format!("observe-only is on, nothing is enforced: {}", why(terms)));
    }
    for (rule, terms) in disabled {
        context.note(format!("rule {} is switched off: {}", Untrusted(rule), why(terms)));
    }
}
