//! The rules that a command works by: a file, or what is published in the store; and what the store
//! says of identities.

use std::sync::Arc;

use super::{Context, Exit, Failure, rules_file};
use crate::engine::clock::Micros;
use crate::engine::config::parse_policy;
use crate::engine::identity::Identity;
use crate::engine::plan::Standing;
use crate::engine::policy::Policy;
use crate::engine::registry::{Lists, Registry, Subject, Switches, standing, switched};
use crate::engine::rules::Rules;
use crate::output::Untrusted;

/// `--rules store`: the published policy and not a file.
pub(super) const STORE: &str = "store";

/// Rules in force, and the registry they are completed from where there is a Redis.
pub(super) struct InForce {
    pub(super) rules: Arc<Rules>,
    registry: Option<Registry>,
    lists: Lists,
    /// Why nothing is enforced, if that is so.
    pub(super) observe: Option<String>,
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
    let policy =
        if named == STORE { published(registry.as_ref()).await? } else { of_file(&named)? };
    let rules = Arc::new(Rules::new(Arc::new(switched(policy, &switches))));
    let observe = switches.observe.map(|terms| terms.reason);
    Ok(InForce { rules, registry, lists, observe })
}

impl InForce {
    /// What is on record about an identity.
    pub(super) async fn standing(&self, identity: &Identity) -> Result<Standing, Failure> {
        let subject = match &self.registry {
            Some(registry) => registry.subject(identity).await?,
            None => Subject::default(),
        };
        Ok(standing(&subject, &self.lists, identity, self.rules.policy(), Micros::now()))
    }
}

pub(super) fn of_file(file: &str) -> Result<Policy, Failure> {
    rules_file::load(file).map(|(policy, _warnings)| policy)
}

async fn published(registry: Option<&Registry>) -> Result<Policy, Failure> {
    let Some(registry) = registry else {
        return Err(Failure::usage(
            "--rules store is kept in a Redis; say in which one with --redis URL",
        ));
    };
    let Some(published) = registry.current().await? else {
        return Err(Failure::new(
            Exit::NothingMatched,
            "no policy is published there; see rlctl rules publish",
        ));
    };
    let name = format!("published version {}", published.version.version);
    rules_file::usable(parse_policy(&name, &published.text, Micros::now()))
        .map(|(policy, _)| policy)
}

/// Said wherever a decision is shown that nobody enforces.
pub(super) fn observe_note(reason: &str) -> String {
    format!("observe-only is on, nothing is enforced: {}", Untrusted(reason))
}
