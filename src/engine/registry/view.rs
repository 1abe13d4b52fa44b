//! The registry as a long-running process sees it: from memory, and never older than the last look
//! at the trail, which [`Follower`] takes again and again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;

use super::cache::{Cache, Held};
use super::data::{EventId, Kind, Lists, Published, Subject, Switches};
use super::{News, Registry, RegistryError};
use crate::engine::clock::Micros;
use crate::engine::identity::Identity;

const CACHED_IDENTITIES: usize = 10_000;
/// Bounds how long a change goes unseen whose writer died before it could tell.
const CACHED_FOR: Micros = Micros(5 * Micros::MINUTE.0);

/// What is the same for every identity, at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    pub lists: Arc<Lists>,
    pub switches: Arc<Switches>,
    pub published: Option<Arc<Published>>,
}

#[derive(Debug)]
pub struct View {
    registry: Arc<Registry>,
    /// The same, asked while a request waits: with the deadline of a request.
    lookups: Arc<Registry>,
    cache: Cache,
    snapshot: ArcSwap<Snapshot>,
    /// When the store last confirmed it; 0: never.
    confirmed_at: AtomicU64,
    trouble: Mutex<Option<RegistryError>>,
}

impl View {
    pub(super) fn new(registry: Arc<Registry>, lookups: Arc<Registry>) -> View {
        View {
            registry,
            lookups,
            cache: Cache::new(CACHED_IDENTITIES, CACHED_FOR),
            snapshot: ArcSwap::default(),
            confirmed_at: AtomicU64::new(0),
            trouble: Mutex::default(),
        }
    }

    /// What is known of `identity` without asking anybody.
    pub fn known(&self, identity: &Identity, now: Micros) -> Option<Arc<Subject>> {
        match self.cache.get(identity, now) {
            Held::Fresh(subject) => Some(subject),
            Held::Stale(_) | Held::Nothing => None,
        }
    }

    /// What is known of `identity`; asks the store when that is not in memory, and makes do with
    /// what it knew last when the store does not answer.
    pub async fn subject(
        &self,
        identity: &Identity,
        now: Micros,
    ) -> Result<Arc<Subject>, RegistryError> {
        let known = match self.cache.get(identity, now) {
            Held::Fresh(subject) => return Ok(subject),
            Held::Stale(subject) => Some(subject),
            Held::Nothing => None,
        };
        let ticket = self.cache.ticket();
        // Boxed: it is large and seldom, and would weigh on every request that need not ask.
        match Box::pin(self.lookups.subject(identity)).await {
            Ok(subject) => Ok(self.cache.put(identity, subject, ticket, now)),
            Err(error) => known.ok_or(error),
        }
    }

    /// From now on no request waits longer than this to learn about an identity.
    pub fn set_deadline(&self, deadline: Micros) {
        self.lookups.set_deadline(deadline);
    }

    /// From now on a server that fails too often is not asked about identities, by these numbers.
    pub fn set_breaker(&self, settings: crate::engine::policy::Breaker) {
        self.lookups.set_breaker(settings);
    }

    /// Whole and of one moment: whoever decides takes it once for each request.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// How long ago the store confirmed all of this; none: never yet.
    pub fn age(&self, now: Micros) -> Option<Micros> {
        let at = self.confirmed_at.load(Ordering::Relaxed);
        (at > 0).then(|| now.saturating_sub(Micros(at)))
    }

    /// Why the last look at the store failed, if it did.
    pub fn trouble(&self) -> Option<RegistryError> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn looked(&self, now: Micros, result: Result<(), RegistryError>) {
        if result.is_ok() {
            self.confirmed_at.store(now.0, Ordering::Relaxed);
        }
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = result.err();
    }

    async fn published(&self) -> Result<Option<Arc<Published>>, RegistryError> {
        let held = self.snapshot.load().published.clone();
        let version = self.registry.version().await?;
        if held.as_ref().map(|published| &published.version) == version.as_ref() {
            return Ok(held);
        }
        Ok(self.registry.current().await?.map(Arc::new))
    }
}

/// Keeps a view up to date, one step at a time.
#[derive(Debug, Default)]
pub(super) struct Follower {
    seen: Option<EventId>,
    /// False at first and after any failure: then everything is read again.
    in_step: bool,
}

/// Which parts of a view the news is about.
#[derive(Debug, Default)]
struct Named {
    identities: Vec<Identity>,
    lists: bool,
    switches: bool,
    policy: bool,
}

impl Follower {
    /// One look at the trail. What it names is read again; after a gap or a failure, everything.
    pub(super) async fn step(&mut self, view: &View, now: Micros) {
        let result = self.catch_up(view).await;
        self.in_step = result.is_ok();
        view.looked(now, result);
    }

    async fn catch_up(&mut self, view: &View) -> Result<(), RegistryError> {
        if !self.in_step {
            return self.reread(view).await;
        }
        let News::Events(events) = view.registry.news(self.seen).await? else {
            return self.reread(view).await;
        };
        let Some((last, _)) = events.last() else { return Ok(()) };
        let last = *last;
        let mut named = Named::default();
        for (_, event) in events {
            let Some(event) = event else { return self.reread(view).await };
            match event.kind {
                Kind::Identity => match Identity::opaque(&event.subject) {
                    Ok(identity) => named.identities.push(identity),
                    Err(_) => return self.reread(view).await,
                },
                Kind::Pattern => named.lists = true,
                Kind::Switch => named.switches = true,
                Kind::Policy => named.policy = true,
                Kind::Unknown => return self.reread(view).await,
            }
        }
        named.refresh(view).await?;
        self.seen = Some(last);
        Ok(())
    }

    async fn reread(&mut self, view: &View) -> Result<(), RegistryError> {
        // First where the trail ends: what changes while the rest is read comes again as news.
        let seen = view.registry.last_event().await?;
        view.cache.make_all_stale();
        let all = Named { lists: true, switches: true, policy: true, ..Named::default() };
        all.refresh(view).await?;
        self.seen = seen;
        Ok(())
    }
}

impl Named {
    async fn refresh(&self, view: &View) -> Result<(), RegistryError> {
        self.identities.iter().for_each(|identity| view.cache.make_stale(identity));
        if !(self.lists || self.switches || self.policy) {
            return Ok(());
        }
        let mut snapshot = Snapshot::clone(&view.snapshot.load());
        if self.lists {
            snapshot.lists = Arc::new(view.registry.lists().await?);
        }
        if self.switches {
            snapshot.switches = Arc::new(view.registry.switches().await?);
        }
        if self.policy {
            snapshot.published = view.published().await?;
        }
        view.snapshot.store(Arc::new(snapshot));
        Ok(())
    }
}
