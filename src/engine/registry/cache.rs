//! Subjects of the identities that were asked about last.
//!
//! Not a cache from a crate, because those forget what is too old, and this one must not: while
//! the store is down, what was known last is all there is. Entries grow stale, and are dropped only
//! for want of room: the hand of a clock goes round and takes the first that was not used since it
//! came by.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::fast::RandomState;
use hashbrown::HashTable;

use super::data::Subject;
use crate::engine::clock::Micros;
use crate::engine::identity::Identity;

/// Locks are held for some tens of nanoseconds; this many keep threads out of each other's way.
const SHARDS: usize = 16;

#[derive(Debug)]
pub(super) struct Cache {
    shards: [Mutex<Shard>; SHARDS],
    hasher: RandomState,
    places: usize,
    life: Micros,
    /// How often something was made stale.
    changes: AtomicU64,
    /// Most identities have nothing, and share it.
    nothing: Arc<Subject>,
}

#[derive(Debug, Default)]
struct Shard {
    index: HashTable<usize>,
    slots: Vec<Slot>,
    hand: usize,
}

#[derive(Debug)]
struct Slot {
    identity: Identity,
    subject: Arc<Subject>,
    read_at: Micros,
    stale: bool,
    used: bool,
}

#[derive(Debug, PartialEq)]
pub(super) enum Held {
    Fresh(Arc<Subject>),
    /// Good only if the store cannot be asked.
    Stale(Arc<Subject>),
    Nothing,
}

/// Taken before the store is asked: tells whether anything changed until it had answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ticket(u64);

impl Cache {
    pub(super) fn new(identities: usize, life: Micros) -> Cache {
        Cache {
            shards: Default::default(),
            hasher: RandomState::default(),
            places: identities.div_ceil(SHARDS),
            life,
            changes: AtomicU64::new(0),
            nothing: Arc::default(),
        }
    }

    pub(super) fn get(&self, identity: &Identity, now: Micros) -> Held {
        let hash = self.hasher.hash_one(identity);
        let mut shard = self.shard(hash);
        let Some(place) = shard.find(hash, identity) else { return Held::Nothing };
        let slot = &mut shard.slots[place];
        slot.used = true;
        let old = now.saturating_sub(slot.read_at) >= self.life;
        let subject = slot.subject.clone();
        if slot.stale || old { Held::Stale(subject) } else { Held::Fresh(subject) }
    }

    pub(super) fn ticket(&self) -> Ticket {
        Ticket(self.changes.load(Ordering::SeqCst))
    }

    /// Keeps what the store answered. If anything was made stale meanwhile this may be what it was
    /// before, so it is stale, too.
    pub(super) fn put(
        &self,
        identity: &Identity,
        subject: Subject,
        ticket: Ticket,
        now: Micros,
    ) -> Arc<Subject> {
        let subject = if subject.is_empty() { self.nothing.clone() } else { Arc::new(subject) };
        let hash = self.hasher.hash_one(identity);
        let mut shard = self.shard(hash);
        // Under the lock: whoever makes it stale counts first and locks then.
        let stale = ticket.0 != self.changes.load(Ordering::SeqCst);
        let slot = Slot {
            identity: identity.clone(),
            subject: subject.clone(),
            read_at: now,
            stale,
            // Whoever comes once and never again goes first.
            used: false,
        };
        match shard.find(hash, identity) {
            Some(place) => shard.slots[place] = slot,
            None => shard.add(slot, self.places, |identity| self.hasher.hash_one(identity)),
        }
        subject
    }

    pub(super) fn make_stale(&self, identity: &Identity) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        let hash = self.hasher.hash_one(identity);
        let mut shard = self.shard(hash);
        if let Some(place) = shard.find(hash, identity) {
            shard.slots[place].stale = true;
        }
    }

    pub(super) fn make_all_stale(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.slots.iter_mut().for_each(|slot| slot.stale = true);
        }
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard> {
        // Other bits than those that the table goes by.
        let number = (hash >> 32) as usize % SHARDS;
        self.shards[number].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shard {
    fn find(&self, hash: u64, identity: &Identity) -> Option<usize> {
        self.index.find(hash, |place| self.slots[*place].identity == *identity).copied()
    }

    fn add(&mut self, slot: Slot, places: usize, hash: impl Fn(&Identity) -> u64) {
        let own = hash(&slot.identity);
        let place = if self.slots.len() < places {
            self.slots.push(slot);
            self.slots.len() - 1
        } else {
            let place = self.turn_hand();
            let old = std::mem::replace(&mut self.slots[place], slot);
            if let Ok(entry) = self.index.find_entry(hash(&old.identity), |p| *p == place) {
                entry.remove();
            }
            place
        };
        let slots = &self.slots;
        self.index.insert_unique(own, place, |place| hash(&slots[*place].identity));
    }

    fn turn_hand(&mut self) -> usize {
        loop {
            let place = self.hand;
            self.hand = (self.hand + 1) % self.slots.len();
            if !std::mem::take(&mut self.slots[place].used) {
                return place;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::data::Terms;
    use super::*;

    fn id(number: usize) -> Identity {
        Identity::opaque(&format!("user:{number}")).unwrap()
    }

    fn blocked() -> Subject {
        let terms = Terms { until: None, reason: "r".into(), by: "b".into(), at: Micros::ZERO };
        Subject { block: Some(terms), ..Subject::default() }
    }

    fn put(cache: &Cache, number: usize, now: u64) {
        cache.put(&id(number), blocked(), cache.ticket(), Micros(now));
    }

    #[test]
    fn entries_are_fresh_for_their_life_and_stale_from_then_on() {
        let cache = Cache::new(100, Micros(10));
        put(&cache, 1, 5);
        assert!(matches!(cache.get(&id(1), Micros(14)), Held::Fresh(_)));
        assert!(matches!(cache.get(&id(1), Micros(15)), Held::Stale(_)));
        assert_eq!(cache.get(&id(2), Micros(5)), Held::Nothing);
    }

    #[test]
    fn it_never_holds_more_than_it_may_and_keeps_what_is_used() {
        let cache = Cache::new(1_600, Micros(1_000));
        put(&cache, 0, 0);
        for number in 1..20_000 {
            put(&cache, number, 0);
            assert!(matches!(cache.get(&id(0), Micros(0)), Held::Fresh(_)), "{number}");
        }
        let held = |number: &usize| cache.get(&id(*number), Micros(0)) != Held::Nothing;
        let count = (0..20_000).filter(held).count();
        assert!((1_500..=1_600).contains(&count), "{count}");
        let indexed: usize = cache.shards.iter().map(|s| s.lock().unwrap().index.len()).sum();
        assert_eq!(indexed, count);
    }

    #[test]
    fn an_answer_that_a_change_overtook_is_stale_when_it_arrives() {
        let cache = Cache::new(100, Micros(10));
        let before = cache.ticket();
        cache.make_stale(&id(1));
        cache.put(&id(1), blocked(), before, Micros(0));
        assert!(matches!(cache.get(&id(1), Micros(0)), Held::Stale(_)));
        put(&cache, 1, 0);
        put(&cache, 2, 0);
        cache.make_stale(&id(1));
        assert!(matches!(cache.get(&id(1), Micros(0)), Held::Stale(_)));
        assert!(matches!(cache.get(&id(2), Micros(0)), Held::Fresh(_)));
        cache.make_all_stale();
        assert!(matches!(cache.get(&id(2), Micros(0)), Held::Stale(_)));
    }
}
