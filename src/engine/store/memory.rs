//! Buckets in this process: sharded by identity, each shard behind a lock of its own.
//!
//! One identity is one entry of one cache line: its name (inline up to 24 bytes), and its quota,
//! inline while it has a single limit.
//!
//! Bounded: when `max_identities` are held, those that are whole are forgotten first. If none is
//! found, the newcomer shares one overflow bucket per limit with all other newcomers, and that is
//! counted. An identity with anything used is never forgotten.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use compact_str::CompactString;
use foldhash::fast::RandomState;
use hashbrown::HashTable;
use smallvec::SmallVec;

use super::charge::{Charge, Settlement, random_id};
use super::ledger::Ledger;
use super::quotas::Quotas;
use super::{Answer, Check, Idempotency, StoreError};
use crate::engine::clock::Micros;
use crate::engine::identity::Identity;
use crate::engine::limit::{Cost, Decision};

pub const DEFAULT_MAX_IDENTITIES: usize = 1_000_000;
/// A hash table doubles when it is 7/8 full, and a table that has just doubled wastes half of its
/// memory. With this many identities to a shard a full store has tables of 16 384 places that are
/// five sixths full, and none of them has to double for being unlucky.
const IDENTITIES_PER_SHARD: usize = 13_700;
/// Every so many checks of a shard one of its places is looked at, and cleared if it is whole.
const CHECKS_PER_SWEEP: u32 = 16;
/// How many places of a shard are looked at for a newcomer before it has to share.
const SEARCH_FOR_PLACE: usize = 128;

#[derive(Debug)]
pub struct MemoryStore {
    shards: Box<[Shard]>,
    hasher: RandomState,
    max_identities: Option<usize>,
    identities: AtomicUsize,
    overflow: Mutex<Quotas>,
    overflowed: AtomicU64,
    clock_jumps: AtomicU64,
    /// Idempotent answers and returned charges.
    ledger: Box<Mutex<Ledger>>,
}

/// Aligned to two cache lines (CPUs fetch pairs), so that neighbours' locks do not collide.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard(Mutex<Table>);

#[derive(Clone, Debug, Default)]
struct Table {
    entries: HashTable<Entry>,
    /// The next place to look at for an entry that is whole.
    hand: usize,
    checks: u32,
}

#[derive(Clone, Debug)]
#[repr(align(64))]
struct Entry {
    identity: CompactString,
    quotas: Quotas,
}

impl MemoryStore {
    pub fn new(max_identities: usize) -> MemoryStore {
        MemoryStore::with(
            Some(max_identities),
            max_identities.div_ceil(IDENTITIES_PER_SHARD).max(1),
        )
    }

    /// Forgets nothing, not even what is whole: for traces, whose size is given.
    pub fn unbounded() -> MemoryStore {
        MemoryStore::with(None, 1)
    }

    fn with(max_identities: Option<usize>, shards: usize) -> MemoryStore {
        MemoryStore {
            shards: (0..shards).map(|_| Shard::default()).collect(),
            hasher: RandomState::default(),
            max_identities,
            identities: AtomicUsize::new(0),
            overflow: Mutex::new(Quotas::Many(Vec::new())),
            overflowed: AtomicU64::new(0),
            clock_jumps: AtomicU64::new(0),
            ledger: Box::default(),
        }
    }

    /// One that has counted the same up to now.
    pub(super) fn copy(&self) -> MemoryStore {
        let count = |counter: &AtomicU64| AtomicU64::new(counter.load(Ordering::Relaxed));
        MemoryStore {
            shards: self.shards.iter().map(|s| Shard(Mutex::new(lock(&s.0).clone()))).collect(),
            hasher: self.hasher.clone(),
            max_identities: self.max_identities,
            identities: AtomicUsize::new(self.identities()),
            overflow: Mutex::new(lock(&self.overflow).clone()),
            overflowed: count(&self.overflowed),
            clock_jumps: count(&self.clock_jumps),
            ledger: Box::new(Mutex::new(lock(&self.ledger).clone())),
        }
    }

    /// How many identities are held.
    pub fn identities(&self) -> usize {
        self.identities.load(Ordering::Relaxed)
    }

    /// How many charges went to a shared overflow bucket for want of room.
    pub fn overflowed(&self) -> u64 {
        self.overflowed.load(Ordering::Relaxed)
    }

    /// How many times a bucket started whole because its last charge lay in the future.
    pub fn clock_jumps(&self) -> u64 {
        self.clock_jumps.load(Ordering::Relaxed)
    }

    pub fn check(&self, check: &Check<'_>) -> Result<Answer, StoreError> {
        match check.idempotency {
            None => Ok(self.decide(check, check.at)),
            Some(idempotency) => self.check_once(check, idempotency),
        }
    }

    /// Decides unless that was done before, under the same idempotency key.
    fn check_once(
        &self,
        check: &Check<'_>,
        idempotency: Idempotency<'_>,
    ) -> Result<Answer, StoreError> {
        let now = check.at.unwrap_or_else(Micros::now);
        let mut ledger = lock(&self.ledger);
        let mut is_used_up = false;
        if let Some(remembered) = ledger.answer(check.identity, idempotency.key, now) {
            if remembered.cost != check.cost {
                return Err(StoreError::OtherCost);
            }
            // An answer of other limits than are asked now would be no answer.
            if remembered.limits() == check.limits.len() {
                match remembered.replay(idempotency.max_replays) {
                    Some(answer) => return Ok(answer),
                    // From now on it is counted, and what is remembered stays as it is.
                    None => is_used_up = true,
                }
            }
        }
        let answer = Answer { charge_id: Some(random_id()), ..self.decide(check, Some(now)) };
        if answer.allowed() && check.cost > Cost::PEEK && !is_used_up {
            ledger.remember(check.identity, idempotency, check.cost, &answer, now);
        }
        Ok(answer)
    }

    fn decide(&self, check: &Check<'_>, at: Option<Micros>) -> Answer {
        let identity = check.identity.as_str();
        let hash = self.hasher.hash_one(identity);
        let mut table = self.lock_shard(hash);
        let found = table.find(hash, identity);
        // Only now, for the clock is read while the entry is still on its way from memory.
        let now = at.unwrap_or_else(Micros::now);
        let Some(entry) = found else {
            return self.decide_newcomer(table, hash, check, now);
        };
        if let Some(decision) = entry.quotas.check_alone(check, now) {
            self.sweep_now_and_then(&mut table, now);
            return Answer::decided(SmallVec::from_buf([decision]));
        }
        let answer = entry.quotas.check(check, now);
        self.count_jumps(&answer.decisions);
        self.sweep_now_and_then(&mut table, now);
        answer
    }

    /// Apart, so that what it needs on the stack does not weigh on those who are known.
    #[inline(never)]
    fn decide_newcomer(
        &self,
        mut table: MutexGuard<'_, Table>,
        hash: u64,
        check: &Check<'_>,
        now: Micros,
    ) -> Answer {
        let mut quotas = Quotas::none();
        let answer = quotas.check(check, now);
        if quotas.is_empty() {
            // Nothing is charged; but where there is no room, what a charge would meet is told.
            let full = self.max_identities.is_some_and(|max| self.identities() >= max);
            return if full { lock(&self.overflow).check(check, now) } else { answer };
        }
        if self.admit(&mut table, now) {
            table.insert(hash, check.identity.as_str(), quotas, |id| self.hasher.hash_one(id));
            return answer;
        }
        drop(table);
        self.overflowed.fetch_add(1, Ordering::Relaxed);
        let answer = lock(&self.overflow).check(check, now);
        self.count_jumps(&answer.decisions);
        answer
    }

    /// Gives back a charge or replaces its cost, once; false when done before or too late.
    pub fn settle(&self, charge: &Charge, to: Settlement, at: Option<Micros>) -> bool {
        let now = at.unwrap_or_else(Micros::now);
        let mut ledger = lock(&self.ledger);
        if charge.lapses_at() <= now || !ledger.mark_returned(charge.id, charge.lapses_at(), now) {
            return false;
        }
        if to == Settlement::Refund
            && let Some(key) = &charge.idempotency_key
        {
            ledger.forget(&charge.identity, key, charge.id);
        }
        let settled = match to {
            Settlement::Refund => Cost::PEEK,
            Settlement::Cost(cost) => cost,
        };
        let hash = self.hasher.hash_one(charge.identity.as_str());
        let mut table = self.lock_shard(hash);
        if let Some(entry) = table.find(hash, charge.identity.as_str()) {
            entry.quotas.settle(charge, settled, now);
        } else if settled > charge.cost {
            if self.admit(&mut table, now) {
                let mut quotas = Quotas::none();
                quotas.settle(charge, settled, now);
                table.insert(hash, charge.identity.as_str(), quotas, |id| self.hasher.hash_one(id));
            } else {
                drop(table);
                self.overflowed.fetch_add(1, Ordering::Relaxed);
                lock(&self.overflow).settle(charge, settled, now);
            }
        }
        true
    }

    /// Forgets the quota of an identity, of all rules or of one; says of how many limits.
    pub fn reset(&self, identity: &Identity, rule: Option<&str>) -> usize {
        let hash = self.hasher.hash_one(identity.as_str());
        let mut table = self.lock_shard(hash);
        let found = table.entries.find_entry(hash, |entry| entry.identity == identity.as_str());
        let Ok(mut entry) = found else { return 0 };
        let quotas = &mut entry.get_mut().quotas;
        let had = quotas.all().len();
        quotas.forget(rule);
        let left = quotas.all().len();
        if left == 0 {
            entry.remove();
            self.identities.fetch_sub(1, Ordering::Relaxed);
        }
        had - left
    }

    /// Counts one more identity in, if there is room or can be made.
    fn admit(&self, table: &mut Table, now: Micros) -> bool {
        let Some(max) = self.max_identities else {
            self.identities.fetch_add(1, Ordering::Relaxed);
            return true;
        };
        self.sweep(table, 2, now);
        if self.identities.fetch_add(1, Ordering::Relaxed) < max {
            return true;
        }
        if self.sweep(table, SEARCH_FOR_PLACE, now) || self.sweep_elsewhere(now) {
            return true;
        }
        self.identities.fetch_sub(1, Ordering::Relaxed);
        false
    }

    fn sweep_now_and_then(&self, table: &mut Table, now: Micros) {
        table.checks = table.checks.wrapping_add(1);
        if table.checks.is_multiple_of(CHECKS_PER_SWEEP) && self.max_identities.is_some() {
            self.sweep(table, 1, now);
        }
    }

    /// Looks at the next `places` of a table and forgets who is whole; true if anybody was.
    fn sweep(&self, table: &mut Table, places: usize, now: Micros) -> bool {
        let forgotten = (0..places).filter(|_| table.sweep_one(now)).count();
        if forgotten > 0 {
            self.identities.fetch_sub(forgotten, Ordering::Relaxed);
            table.shrink(|id| self.hasher.hash_one(id));
        }
        forgotten > 0
    }

    /// The own shard had no whole entry; another may: each newcomer in vain looks into the next.
    /// Only one that nobody holds, lest two newcomers wait for each other.
    fn sweep_elsewhere(&self, now: Micros) -> bool {
        let shard = &self.shards[self.overflowed() as usize % self.shards.len()];
        shard.0.try_lock().is_ok_and(|mut table| self.sweep(&mut table, SEARCH_FOR_PLACE, now))
    }

    fn lock_shard(&self, hash: u64) -> MutexGuard<'_, Table> {
        // The table goes by the lowest and the seven highest bits; the shard by those between,
        // scaled to the number of shards, which need not be a power of two.
        let between = (hash >> 25) & 0xffff_ffff;
        let shard = (between * self.shards.len() as u64) >> 32;
        lock(&self.shards[shard as usize].0)
    }

    fn count_jumps(&self, decisions: &[Decision]) {
        let jumps = decisions.iter().filter(|d| d.clock_jump).count() as u64;
        if jumps > 0 {
            self.clock_jumps.fetch_add(jumps, Ordering::Relaxed);
        }
    }
}

impl Default for MemoryStore {
    fn default() -> MemoryStore {
        MemoryStore::new(DEFAULT_MAX_IDENTITIES)
    }
}

impl Table {
    fn find(&mut self, hash: u64, identity: &str) -> Option<&mut Entry> {
        self.entries.find_mut(hash, |entry| same(entry.identity.as_bytes(), identity.as_bytes()))
    }

    fn insert(&mut self, hash: u64, identity: &str, quotas: Quotas, hash_of: impl Fn(&str) -> u64) {
        let entry = Entry { identity: identity.into(), quotas };
        self.entries.insert_unique(hash, entry, |entry| hash_of(&entry.identity));
    }

    /// Looks at the next place; true if somebody whole was there and is no more.
    fn sweep_one(&mut self, now: Micros) -> bool {
        self.hand += 1;
        if self.hand >= self.entries.num_buckets() {
            self.hand = 0;
        }
        match self.entries.get_bucket_entry(self.hand) {
            Ok(entry) if entry.get().quotas.are_whole(now) => {
                entry.remove();
                true
            }
            _ => false,
        }
    }

    /// Gives memory back once three quarters of it stand empty.
    fn shrink(&mut self, hash_of: impl Fn(&str) -> u64) {
        let (used, capacity) = (self.entries.len(), self.entries.capacity());
        if capacity > 64 && used < capacity / 4 {
            self.entries.shrink_to(2 * used, |entry| hash_of(&entry.identity));
        }
    }
}

/// `a == b`, for names: comparing slices of any length is a call, and most names are short.
fn same(a: &[u8], b: &[u8]) -> bool {
    let ends = |text: &[u8]| Some((*text.first_chunk::<8>()?, *text.last_chunk::<8>()?));
    if a.len() == b.len() && (8..=16).contains(&a.len()) { ends(a) == ends(b) } else { a == b }
}

/// A thread that panicked while it held a lock left the table as it was between two statements;
/// every one of those states is consistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_with_one_limit_is_one_cache_line() {
        assert_eq!(size_of::<Entry>(), 64);
    }
}
