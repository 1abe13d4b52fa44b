//! Where quota lies: in the Redis of the context, and in those beside it that the rules of the
//! context name (`[stores.premium]`).

use std::sync::Arc;

use super::operate_args::DialectArgs;
use super::{Context, Exit, Failure, OPERATOR_DEADLINE, rules_file};
use crate::engine::clock::Micros;
use crate::engine::config::parse_policy;
use crate::engine::policy::{NamedStore, Policy};
use crate::engine::store::StoreError;
use crate::engine::store::redis::Deployment;
use crate::ops::site::Site;
use crate::ops::strangers;
use crate::output::Untrusted;

/// What the rules of the context say of stores.
#[derive(Debug, Default)]
pub(super) struct NamedStores {
    pub(super) stores: Vec<Arc<NamedStore>>,
    /// What a check may take where its store says nothing else; none: there are no rules.
    pub(super) deadline: Option<Micros>,
    /// Over how many buckets some rule divides an identity at most; 0: none does.
    pub(super) most_parts: u64,
}

/// All that could be opened, the Redis of the context first, and the stores that could not.
#[derive(Debug)]
pub(super) struct Sites {
    pub(super) open: Vec<Site>,
    pub(super) away: Vec<Away>,
}

/// A store that rules name and that does not answer.
#[derive(Debug)]
pub(super) struct Away {
    pub(super) store: String,
    pub(super) error: StoreError,
}

impl NamedStores {
    pub(super) fn of(policy: &Policy) -> NamedStores {
        let most_parts = policy.rules.iter().filter_map(|rule| rule.split).max();
        NamedStores {
            stores: policy.stores.clone(),
            deadline: Some(policy.defaults.deadline),
            most_parts: most_parts.map_or(0, u64::from),
        }
    }
}

impl DialectArgs {
    /// The stores that the rules name, where they are meant: rules are about our own layout.
    pub(super) async fn named_stores(&self, context: &Context) -> Result<NamedStores, Failure> {
        match self.dialect {
            Some(_) => Ok(NamedStores::default()),
            None => context.named_stores().await,
        }
    }

    /// What to say where nothing of ours was found: that another limiter seems to be at work there,
    /// if so, and how to look at that.
    pub(super) async fn strangers(&self, site: &Site) -> String {
        if self.dialect.is_some() {
            return String::new();
        }
        let Ok(shipped) = self.foreign() else { return String::new() };
        // It is only a hint: whoever may not look does without.
        match strangers::example(&site.deployment, &shipped).await {
            Ok(Some(key)) => {
                format!("; `{key}` looks like another limiter's: --dialect shipped reads those")
            }
            _ => String::new(),
        }
    }
}

impl Context {
    /// The stores that the rules name, if any are given. Where there are none, those of the
    /// published policy are only told of: whoever looks at one Redis must not take it for all.
    pub(super) async fn named_stores(&self) -> Result<NamedStores, Failure> {
        let Some(rules) = &self.rules else {
            self.tell_of_published_stores().await;
            return Ok(NamedStores::default());
        };
        let is_store = matches!(rules_file::in_store(rules), Some(None));
        if is_store && self.registry().await?.current().await?.is_none() {
            // Nothing is published yet, so nothing is named.
            return Ok(NamedStores::default());
        }
        Ok(NamedStores::of(&rules_file::load(rules, self).await?.0))
    }

    async fn tell_of_published_stores(&self) {
        // It is only a hint: whoever may not read the policy does without.
        let Ok(registry) = self.registry().await else { return };
        let Ok(Some(published)) = registry.current().await else { return };
        let Ok((policy, _)) = parse_policy("published", &published.text, published.version.at)
        else {
            return;
        };
        let names: Vec<&str> = policy.stores.iter().map(|store| store.name.as_str()).collect();
        if !names.is_empty() {
            let names = names.join(", ");
            self.note(format!(
                "this Redis alone: rules of the published policy count on {}; with --rules store \
                 these are included",
                Untrusted(&names)
            ));
        }
    }

    /// The Redis of the context, which must be there, and the stores that rules name.
    pub(super) async fn sites(&self, named: &NamedStores) -> Result<Sites, Failure> {
        let deployment = self.deployment().await?;
        let main = Site { store: None, deployment, prefix: self.prefix.clone() };
        let mut sites = Sites { open: vec![main], away: Vec::new() };
        for store in &named.stores {
            // They were read when the policy was.
            let (Ok(address), Ok(prefix)) = (store.address(), store.prefix()) else { continue };
            let name = store.name.clone();
            match Deployment::connect(&address, OPERATOR_DEADLINE).await {
                Ok(deployment) => sites.open.push(Site { store: Some(name), deployment, prefix }),
                Err(error) => sites.away.push(Away { store: name, error }),
            }
        }
        Ok(sites)
    }
}

impl Sites {
    pub(super) fn main(&self) -> &Site {
        &self.open[0]
    }

    /// For what must not be done in part.
    pub(super) fn all(self) -> Result<Vec<Site>, Failure> {
        match self.away.first() {
            None => Ok(self.open),
            Some(away) => Err(away.failure("nothing was changed")),
        }
    }
}

impl Away {
    pub(super) fn failure(&self, so: &str) -> Failure {
        let Away { store, error } = self;
        Failure::new(Exit::Unreachable, format!("the store {store}: {error}; {so}"))
    }
}
