//! A gateway put together: its store, what operators keep there, and the policy it follows.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep};

use super::{About, Gateway};
use crate::engine::clock::Micros;
use crate::engine::failure::{Local, OnFailure};
use crate::engine::live::{LiveLimiter, LivePolicy};
use crate::engine::policy::Defaults;
use crate::engine::registry::{MemoryRegistry, Registry, View};
use crate::engine::store::keys::Prefix;
use crate::engine::store::redis::{RedisAddress, RedisOptions, RedisRegistry};
use crate::engine::store::{MemoryStore, One, RedisStore, Store};

/// A policy has up to 8 MiB, and the line to it may be slow.
const REGISTRY_DEADLINE: Micros = Micros(10 * Micros::SECOND.0);
/// Identities that are decided here while the store is away, or for good where there is none.
const MAX_IDENTITIES: usize = 1_000_000;
/// How long a start waits for the first answers of a Redis, so that nobody is let through for want
/// of one that is there.
const FIRST_CONTACT: Duration = Duration::from_millis(1_500);

/// Where the policy comes from; one source for the life of a process.
#[derive(Clone, Debug)]
pub enum PolicySource {
    File(PathBuf),
    Published,
    /// A text, and what to call it.
    Given {
        name: String,
        text: String,
    },
}

/// The Redis that counts, if there is one.
#[derive(Clone, Debug)]
pub struct Backing {
    pub address: RedisAddress,
    pub prefix: Prefix,
    pub connect_timeout: Micros,
}

impl Gateway {
    /// Opens everything a gateway needs. A Redis that is not there yet is waited for a moment, then
    /// done without, as the rules say; whether the policy can be used is in its status.
    pub async fn open(source: &PolicySource, backing: Option<Backing>, about: About) -> Gateway {
        let local = Arc::new(Local::new(MAX_IDENTITIES));
        let (store, registry, view) = match backing {
            None => {
                let registry = Arc::new(Registry::Memory(MemoryRegistry::default()));
                let view = View::follow(registry.clone()).await;
                (Store::Memory(MemoryStore::new(MAX_IDENTITIES)), registry, view)
            }
            Some(backing) => backing.open().await,
        };
        let policy = match source {
            PolicySource::File(path) => LivePolicy::follow_file(path, &view).await,
            PolicySource::Published => LivePolicy::follow_published(&view).await,
            PolicySource::Given { name, text } => LivePolicy::given(name, text, &view),
        };
        let store = Arc::new(store.with_others());
        if let Some(current) = policy.current() {
            store.follow(current.rules.policy());
            join_all(store.others().iter().map(|(_, other)| other.tried(Some(FIRST_CONTACT))))
                .await;
        }
        let on_failure = OnFailure::ByRule(local.clone());
        // In memory a lease would save nothing.
        let hot = matches!(store.one(), One::Redis(_)).then(Arc::default);
        let limiter = LiveLimiter { policy, view, store, on_failure, hot };
        Gateway::new(limiter, registry, local, about)
    }
}

impl Backing {
    async fn open(self) -> (Store, Arc<Registry>, Arc<View>) {
        let options = |deadline: Micros| RedisOptions {
            address: self.address.clone(),
            deadline,
            connect_timeout: self.connect_timeout,
        };
        // Until a policy says otherwise.
        let deadline = Defaults::default().deadline;
        let store = RedisStore::start(options(deadline), self.prefix.clone());
        let registry = RedisRegistry::start(options(REGISTRY_DEADLINE), self.prefix.clone());
        let lookups = RedisRegistry::start(options(deadline), self.prefix.clone());
        let patience = Instant::now() + FIRST_CONTACT;
        while Instant::now() < patience
            && (store.trouble().is_some()
                || registry.trouble().is_some()
                || lookups.trouble().is_some())
        {
            sleep(Duration::from_millis(5)).await;
        }
        let registry = Arc::new(Registry::Redis(registry));
        let view = View::follow_apart(registry.clone(), Arc::new(Registry::Redis(lookups))).await;
        (Store::Redis(store), registry, view)
    }
}

impl About {
    pub fn new(listening: Vec<(&'static str, String)>) -> About {
        let mut bytes = [0; 6];
        // Two gateways of one id would only count as one.
        let _ = getrandom::fill(&mut bytes);
        let id = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        About { id, version: env!("CARGO_PKG_VERSION"), started: Micros::now(), listening }
    }
}
