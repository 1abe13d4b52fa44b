//! How many requests of one identity are under way at once: in this process alone, for only it
//! knows when they end. The table holds who has something under way and nobody else, so it is
//! bounded by the requests that a process takes on.

use std::collections::HashMap;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::fast::RandomState;
use futures_util::future::{Either, select};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::clock::{Micros, VirtualClock};
use super::identity::Identity;
use super::plan::Question;

/// How long a request waits for one before it to end, unless configured.
pub const DEFAULT_WAIT: Micros = Micros(100 * Micros::MILLISECOND.0);

/// What a rule says of requests at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtOnce {
    pub max: u32,
    pub wait: Micros,
}

/// Who has how much under way, by identity and rule.
#[derive(Debug, Default)]
pub struct Concurrency {
    under_way: Mutex<HashMap<Key, Slot, RandomState>>,
    /// None: time is that of the machine.
    clock: Option<Arc<VirtualClock>>,
}

type Key = (Identity, String);

#[derive(Debug, Default)]
struct Slot {
    used: u32,
    freed: Arc<Notify>,
}

/// One request under way, until the last who holds it lets go.
#[derive(Clone, Debug)]
pub struct Place {
    _held: Arc<Held>,
}

#[derive(Debug)]
struct Held {
    table: Arc<Concurrency>,
    key: Key,
}

/// Too much of this identity is under way already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Busy {
    pub identity: Identity,
    pub rule: String,
    pub at_once: AtOnce,
}

/// The end of a wait.
enum Until {
    Real(Instant),
    Virtual(Arc<VirtualClock>, Micros),
}

impl Until {
    /// Whether something comes before it.
    async fn lets(&self, something: impl Future<Output = ()>) -> bool {
        match self {
            Until::Real(end) => timeout_at(*end, something).await.is_ok(),
            Until::Virtual(clock, end) => {
                let end = pin!(clock.sleep_until(*end));
                matches!(select(pin!(something), end).await, Either::Left(_))
            }
        }
    }
}

impl Concurrency {
    /// Where time is made: see [`VirtualClock`].
    pub fn in_virtual_time(clock: Arc<VirtualClock>) -> Concurrency {
        Concurrency { clock: Some(clock), ..Concurrency::default() }
    }

    /// Whichever time it waits in.
    pub(super) fn now(&self) -> Micros {
        self.clock.as_ref().map_or_else(Micros::now, |clock| clock.now())
    }

    fn after(&self, wait: Micros) -> Until {
        match &self.clock {
            None => Until::Real(Instant::now() + wait.into()),
            Some(clock) => Until::Virtual(clock.clone(), clock.now() + wait),
        }
    }

    /// Places for one request under all rules that count what is under way; all or none.
    pub(super) async fn enter(
        self: &Arc<Concurrency>,
        questions: &[Question<'_>],
    ) -> Result<Vec<Place>, Busy> {
        let mut places = Vec::new();
        for question in questions {
            for (index, source) in question.sources.iter().enumerate() {
                // Every limit of a rule has it as its source; its places are counted once.
                let is_first = || question.sources[..index].iter().all(|s| s.rule != source.rule);
                if let Some(at_once) = source.rule.at_once.filter(|_| is_first()) {
                    let key = (question.identity.clone(), source.rule.name.clone());
                    // Boxed: few rules have that, and every request would carry it.
                    places.push(Box::pin(self.take(key, at_once)).await?);
                }
            }
        }
        Ok(places)
    }

    async fn take(self: &Arc<Concurrency>, key: Key, at_once: AtOnce) -> Result<Place, Busy> {
        let until = self.after(at_once.wait);
        loop {
            let freed = match self.try_take(&key, at_once.max) {
                Ok(()) => return Ok(Place { _held: Arc::new(Held { table: self.clone(), key }) }),
                Err(freed) => freed,
            };
            if !until.lets(freed.notified()).await {
                let (identity, rule) = key;
                return Err(Busy { identity, rule, at_once });
            }
        }
    }

    /// Takes a place, or says who tells when there may be one. Whoever lets go after this leaves
    /// word for one waiter, so none is missed in between.
    fn try_take(&self, key: &Key, max: u32) -> Result<(), Arc<Notify>> {
        let mut under_way = self.lock();
        match under_way.get_mut(key) {
            Some(slot) if slot.used >= max => Err(slot.freed.clone()),
            Some(slot) => {
                slot.used += 1;
                if slot.used < max {
                    // Word of two places that came free at once is left for one waiter only.
                    slot.freed.notify_one();
                }
                Ok(())
            }
            None => {
                under_way.insert(key.clone(), Slot { used: 1, freed: Arc::default() });
                Ok(())
            }
        }
    }

    /// How many requests are under way that are counted, for each identity and rule.
    pub fn identities(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Slot, RandomState>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut under_way = self.table.lock();
        if let Some(slot) = under_way.get_mut(&self.key) {
            slot.used -= 1;
            slot.freed.notify_one();
            if slot.used == 0 {
                under_way.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn key(id: &str) -> Key {
        (id.parse().unwrap(), "rule".into())
    }

    const TWO: AtOnce = AtOnce { max: 2, wait: Micros(50_000) };

    #[tokio::test]
    async fn a_place_is_waited_for_and_no_longer_than_said() {
        let table = Arc::new(Concurrency::default());
        let first = table.take(key("user:1"), TWO).await.unwrap();
        let _second = table.take(key("user:1"), TWO).await.unwrap();
        assert!(table.take(key("user:2"), TWO).await.is_ok(), "others are not concerned");
        let began = Instant::now();
        let busy = table.take(key("user:1"), TWO).await.unwrap_err();
        assert!(began.elapsed() >= Duration::from_millis(50));
        assert_eq!((busy.identity.to_string().as_str(), busy.at_once), ("user:1", TWO));
        let patient = AtOnce { wait: Micros::MINUTE, ..TWO };
        let waiter = tokio::spawn({
            let table = table.clone();
            async move { table.take(key("user:1"), patient).await.is_ok() }
        });
        tokio::task::yield_now().await;
        drop(first);
        assert!(waiter.await.unwrap(), "it gets the place that came free");
    }

    /// Many take and let go at once: never more than the limit, nobody waits in vain, and nothing
    /// is left over.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn nobody_waits_for_a_place_that_is_free() {
        use std::sync::atomic::{AtomicU32, Ordering};
        let (table, inside) = (Arc::new(Concurrency::default()), Arc::new(AtomicU32::new(0)));
        let patient = AtOnce { max: 3, wait: Micros::MINUTE };
        let tasks: Vec<_> = (0..64)
            .map(|_| {
                let (table, inside) = (table.clone(), inside.clone());
                tokio::spawn(async move {
                    for _ in 0..50 {
                        let place = table.take(key("user:1"), patient).await.unwrap();
                        assert!(inside.fetch_add(1, Ordering::SeqCst) < 3);
                        tokio::task::yield_now().await;
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(place);
                    }
                })
            })
            .collect();
        let all = futures_util::future::join_all(tasks);
        let ended = tokio::time::timeout(Duration::from_secs(20), all).await.expect("nobody hangs");
        assert!(ended.iter().all(Result::is_ok));
        assert_eq!(table.identities(), 0, "nobody is remembered for nothing");
    }

    #[tokio::test]
    async fn a_clone_of_a_place_is_the_same_place() {
        let table = Arc::new(Concurrency::default());
        let place = table.take(key("user:1"), TWO).await.unwrap();
        let same = place.clone();
        drop(place);
        assert_eq!(table.identities(), 1);
        drop(same);
        assert_eq!(table.identities(), 0);
    }
}
