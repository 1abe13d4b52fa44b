//! Keys that very much is asked about: an identity under its limits. While a key is hot, a gateway
//! charges a lease of its quota in the store and decides by itself until that is spent, and answers
//! refusals that it knows already. A store that decided thousands of times a second about one key is
//! then asked some ten times.
//!
//! Every unit that is spent was charged before, so in total nothing is over-admitted; within an
//! interval at most what was charged before it: one lease for each gateway. Pure but for `asking`,
//! which puts the questions: everything takes `now`. Bounded: 256 keys are told apart, 128 are hot.

mod asking;
mod denial;
mod sketch;
mod spending;

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::fast::RandomState;
use sha2::{Digest, Sha256};
use smallvec::SmallVec;

pub use self::asking::{By, Put};
use self::denial::{Asking, Denial};
use self::sketch::{Place, Sketch};
use self::spending::{Held, Spent, Stranded};
use super::clock::{Micros, VirtualClock};
use super::identity::Identity;
use super::limit::{Cost, Decision};
use super::plan::Question;
use super::store::{Check, RuleLimit};

/// A fleet-wide rate above which a key is hot, unless a rule says otherwise: checks a second.
pub const DEFAULT_THRESHOLD: u64 = 10_000;
/// How much of a key's demand is taken at a time, unless a rule says otherwise.
pub const DEFAULT_LEASE: Micros = Micros(100 * Micros::MILLISECOND.0);
/// How often what ended is to be given back: [`HotKeys::tidy`].
pub const TIDY_EVERY: Micros = Micros(100 * Micros::MILLISECOND.0);
/// How often gateways are to tell each other what they see: [`HotKeys::report`], [`HotKeys::hear`].
pub const SHARE_EVERY: Micros = sketch::WINDOW;
/// What others told counts for this long.
pub const HEARD_FOR: Micros = Micros(2 * Micros::SECOND.0);

/// Locks are held for a hundred nanoseconds; this many keep threads out of each other's way.
const SHARDS: usize = 16;
/// What waits to be given back; beyond it, it stays charged and comes back by itself.
const MAX_STRANDED: usize = 1_024;

/// What a rule says of hot keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Checks a second, of all gateways together.
    pub threshold: u64,
    pub lease: Micros,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { threshold: DEFAULT_THRESHOLD, lease: DEFAULT_LEASE }
    }
}

impl Settings {
    /// Of several rules in one question the most careful: none if one of them has none.
    pub fn of(question: &Question<'_>) -> Option<Settings> {
        let mut all = question.sources.iter().map(|source| source.rule.hot);
        let first = all.next()??;
        all.try_fold(first, |most: Settings, next| {
            let next = next?;
            let threshold = most.threshold.max(next.threshold);
            Some(Settings { threshold, lease: most.lease.min(next.lease) })
        })
    }
}

/// What limits of one identity say.
pub type Decisions = SmallVec<[Decision; 1]>;

/// How fast keys are asked about at one gateway, by what they are known as between gateways.
pub type Report = Vec<(u64, u64)>;

/// All of one gateway.
#[derive(Debug)]
pub struct HotKeys {
    shards: [Mutex<Shard>; SHARDS],
    hasher: RandomState,
    gateways: AtomicU64,
    /// When others were last heard of; 0: never.
    heard: AtomicU64,
    /// None: the machine's.
    clock: Option<Arc<VirtualClock>>,
}

#[derive(Debug, Default)]
struct Shard {
    sketch: Sketch,
    stranded: Vec<Stranded>,
}

/// Whose a place is.
#[derive(Debug)]
struct Who {
    identity: Identity,
    limits: Vec<Arc<RuleLimit>>,
    settings: Settings,
    /// What it is known as between gateways.
    id: u64,
}

/// A hot key, for whoever looks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HotKey {
    pub identity: Identity,
    pub rules: Vec<String>,
    /// Checks a second: here, and of all gateways as last heard.
    pub rate: u64,
    pub rate_of_all: u64,
    /// What of its lease is not spent.
    pub held: u64,
    pub since: Micros,
}

/// What there is to do about a question.
enum Look {
    /// The store is asked, as always.
    Ordinary,
    Denied(Decisions),
    /// Answered from a lease; and perhaps somebody should see to the next.
    Spent(Spent, Option<Wanted>),
    /// Somebody should see to a lease first.
    Wanted(Wanted),
    /// Somebody does already.
    Wait(Ticket),
    /// The store is asked, and its answer noted.
    Noted(Ticket),
}

/// A lease to ask for.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    ticket: Ticket,
    /// None: leases do not serve here; only one shall ask at a time.
    size: Option<u64>,
    settings: Settings,
    pause: Micros,
    /// This process's part of the traffic, and all of it.
    part: (u64, u64),
    /// The store has less than is wanted: there is no more until the next look.
    is_all: bool,
}

/// Whose answer it is, and what was known when it was asked.
#[derive(Clone, Copy, Debug)]
struct Ticket {
    hash: u64,
    epoch: u64,
}

impl Default for HotKeys {
    fn default() -> HotKeys {
        HotKeys {
            shards: Default::default(),
            hasher: RandomState::default(),
            gateways: AtomicU64::new(1),
            heard: AtomicU64::new(0),
            clock: None,
        }
    }
}

impl HotKeys {
    /// Where time is made: see [`VirtualClock`].
    pub fn in_virtual_time(clock: Arc<VirtualClock>) -> HotKeys {
        HotKeys { clock: Some(clock), ..HotKeys::default() }
    }

    /// Says what there is to do about a question; `is_new`: it is to be counted.
    fn look(&self, check: &Check<'_>, settings: Settings, now: Micros, is_new: bool) -> Look {
        let cost = check.cost.get();
        // Who only looks is answered by the store; who comes again gets what the store remembers.
        if check.cost == Cost::PEEK || check.limits.is_empty() {
            return Look::Ordinary;
        }
        let hash = self.hash(check);
        let mut shard = self.shard(hash);
        shard.go_on(now);
        let Shard { sketch, stranded } = &mut *shard;
        let place = match is_new {
            true => sketch.count(hash, cost),
            false => match sketch.find(hash) {
                Some(place) => place,
                None => return Look::Ordinary,
            },
        };
        if place.who.is_none() && place.is_worth_a_name() {
            place.who = Some(Box::new(Who::new(check, settings)));
        }
        let Some(who) = place.who.as_mut().filter(|who| who.is(check)) else {
            return Look::Ordinary;
        };
        who.settings = settings;
        let (rate, demand, elsewhere) = (place.rate(), place.demand(), place.elsewhere);
        let Some(hot) = place.hot.as_mut().filter(|_| check.idempotency.is_none()) else {
            return Look::Ordinary;
        };
        let spending = &mut hot.spending;
        spending.part_with_ended(now, stranded);
        stranded.truncate(MAX_STRANDED);
        let part = self.part(rate, elsewhere, now);
        let demand = demand.max(spending.rush(now));
        let size = spending::size(check.limits, settings, demand, part);
        let ticket = Ticket { hash, epoch: spending.epoch };
        let pause = spending::pause(check.limits, settings);
        let wanted = |size| Wanted { ticket, size, settings, pause, part, is_all: false };
        if let Some(spent) = spending.spend(cost, check.limits, now) {
            let more = size.and_then(|size| spending.wants(size, now));
            spending.is_asking |= more.is_some();
            return Look::Spent(spent, more.map(|more| wanted(Some(more))));
        }
        let denial = spending.denial.as_ref().filter(|d| d.covers(cost, check.limits));
        if let Some(denial) = denial
            && (spending.is_asking || !denial.is_over(now))
        {
            return Look::Denied(denial.answer(cost, check.limits, now));
        }
        let more = size.map(|size| spending.wants(size, now));
        match more {
            _ if spending.is_asking => Look::Wait(ticket),
            // Enough is held for others, but not for as much as this.
            Some(None) => Look::Noted(ticket),
            more => {
                spending.is_asking = true;
                Look::Wanted(wanted(more.flatten()))
            }
        }
    }

    /// A lease was granted.
    fn take_in(&self, ticket: Ticket, held: Held) {
        let mut shard = self.shard(ticket.hash);
        let Shard { sketch, stranded } = &mut *shard;
        match sketch.find(ticket.hash).and_then(|place| place.hot.as_mut()) {
            Some(hot) => hot.spending.take_in(held),
            // It cooled meanwhile.
            None => {
                let mut spending = spending::Spending::default();
                spending.take_in(held);
                spending.part_with_all(stranded);
            }
        }
    }

    /// The store had less than a lease: it is left alone until then.
    fn leave_alone(&self, ticket: Ticket, until: Micros) {
        self.with_hot(ticket, |hot| hot.spending.not_before = until);
    }

    /// What the store said to an ordinary question.
    fn note(&self, ticket: Ticket, check: &Check<'_>, decisions: &Decisions, asking: Asking) {
        let refused = Denial::of(check.cost.get(), decisions, asking);
        let denial = refused.or_else(|| Denial::after(check.limits, decisions, asking));
        self.with_hot(ticket, |hot| hot.spending.note(denial, ticket.epoch, asking));
    }

    /// What is known once a lease is spent that was all there is for this process until `until`.
    fn note_all(&self, ticket: Ticket, check: &Check<'_>, decisions: &Decisions, asking: Asking) {
        self.with_hot(ticket, |hot| {
            let until = hot.spending.not_before;
            let denial = Denial::after(check.limits, decisions, asking)
                .or_else(|| Denial::of_spent_lease(check.limits, decisions, asking, until));
            hot.spending.note(denial, ticket.epoch, asking);
        });
    }

    /// What is known to be refused of a question; counted, if so.
    pub fn refusal(&self, check: &Check<'_>, now: Micros) -> Option<Put> {
        let hash = self.hash(check);
        let mut shard = self.shard(hash);
        let place = shard.sketch.find(hash)?;
        place.who.as_ref().filter(|who| who.is(check))?;
        let (hot, cost) = (place.hot.as_ref()?, check.cost.get());
        let known = hot.spending.denial.as_ref().filter(|d| d.covers(cost, check.limits))?;
        let is_for_all = check.idempotency.is_none() && hot.spending.rest() < cost;
        let decisions = known.answer(cost, check.limits, now);
        if known.is_over(now) || !is_for_all {
            return None;
        }
        shard.sketch.count(hash, cost);
        Some(Put::denied(decisions))
    }

    /// Nobody asks for all any more.
    fn done_asking(&self, ticket: Ticket) {
        self.with_hot(ticket, |hot| {
            hot.spending.is_asking = false;
            hot.spending.waiting = spending::Waiting::default();
        });
    }

    fn with_hot(&self, ticket: Ticket, then: impl FnOnce(&mut sketch::Hot)) {
        let mut shard = self.shard(ticket.hash);
        if let Some(hot) = shard.sketch.find(ticket.hash).and_then(|place| place.hot.as_mut()) {
            then(hot);
        }
    }

    /// A piece of a lease comes back unused; false when the lease is no more.
    fn give_back(&self, check: &Check<'_>, held: u64) -> bool {
        let hash = self.hash(check);
        let mut shard = self.shard(hash);
        let hot = shard.sketch.find(hash).and_then(|place| place.hot.as_mut());
        hot.is_some_and(|hot| hot.spending.give_back(held, check.cost.get()))
    }

    /// Forgets what is known to be refused to an identity: something was given back to it.
    pub fn forget_denials(&self, identity: &Identity) {
        self.each_of(identity, |hot| hot.spending.forget_denial());
    }

    /// Forgets all there is of an identity: its quota was reset. What is left of its leases is not
    /// given back, for the quota is whole.
    pub fn forget(&self, identity: &Identity) {
        self.each_of(identity, |hot| hot.spending.forget());
    }

    fn each_of(&self, identity: &Identity, then: impl Fn(&mut sketch::Hot)) {
        for shard in &self.shards {
            let mut shard = lock(shard);
            let of =
                |place: &&mut Place| place.who.as_ref().is_some_and(|w| w.identity == *identity);
            shard
                .sketch
                .places
                .iter_mut()
                .filter(of)
                .filter_map(|p| p.hot.as_mut())
                .for_each(|hot| then(hot));
        }
    }

    /// What has ended, to be settled in the store. To be called every [`TIDY_EVERY`].
    pub fn tidy(&self, now: Micros) -> Vec<Stranded> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let mut shard = lock(shard);
            shard.go_on(now);
            let Shard { sketch, stranded } = &mut *shard;
            for hot in sketch.places.iter_mut().filter_map(|place| place.hot.as_mut()) {
                hot.spending.part_with_ended(now, stranded);
            }
            all.append(stranded);
        }
        all
    }

    /// All leases, to be settled in the store: this process ends.
    pub fn part_with_all(&self) -> Vec<Stranded> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let mut shard = lock(shard);
            let Shard { sketch, stranded } = &mut *shard;
            for hot in sketch.places.iter_mut().filter_map(|place| place.hot.as_mut()) {
                hot.spending.part_with_all(stranded);
            }
            all.append(stranded);
        }
        all
    }

    /// Which keys may be hot when others add theirs: a quarter of an even share is enough, so that
    /// a key is surely found from four thirds of its threshold, however it is spread.
    pub fn report(&self, now: Micros) -> Report {
        let gateways = self.gateways.load(Ordering::Relaxed).max(1);
        let is_heard = self.hears(now);
        let mut report = Report::new();
        for shard in &self.shards {
            let mut shard = lock(shard);
            if !is_heard {
                shard.sketch.places.iter_mut().for_each(|place| place.elsewhere = 0);
            }
            shard.go_on(now);
            for place in &shard.sketch.places {
                let Some(who) = &place.who else { continue };
                let (rate, matters) = (place.rate(), who.settings.threshold / (4 * gateways));
                if rate > 0 && (rate >= matters || place.hot.is_some()) {
                    report.push((who.id, rate));
                }
            }
        }
        report
    }

    /// What all other gateways report, added up.
    pub fn hear(&self, others: &HashMap<u64, u64>, gateways: usize, now: Micros) {
        self.gateways.store(gateways.max(1) as u64, Ordering::Relaxed);
        self.heard.store(now.0, Ordering::Relaxed);
        for shard in &self.shards {
            let mut shard = lock(shard);
            for place in &mut shard.sketch.places {
                let of = |who: &Who| others.get(&who.id).copied().unwrap_or_default();
                place.elsewhere = place.who.as_deref().map_or(0, of);
            }
            shard.judge(now, false);
        }
    }

    /// This process's part of the traffic of a key, and all of it: by what others tell, or else as
    /// if it came evenly.
    fn part(&self, rate: u64, elsewhere: u64, now: Micros) -> (u64, u64) {
        let rate = rate.max(1);
        match self.hears(now) {
            true => (rate, rate + elsewhere),
            false => (1, self.gateways.load(Ordering::Relaxed).max(1)),
        }
    }

    fn hears(&self, now: Micros) -> bool {
        now.saturating_sub(Micros(self.heard.load(Ordering::Relaxed))) < HEARD_FOR
    }

    /// Those that are hot, fastest first.
    pub fn list(&self) -> Vec<HotKey> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let shard = lock(shard);
            let hot = |place: &Place| {
                let (who, hot) = (place.who.as_ref()?, place.hot.as_ref()?);
                let mut rules: Vec<_> = who.limits.iter().map(|l| l.rule().to_owned()).collect();
                rules.dedup();
                let (identity, rate) = (who.identity.clone(), place.rate());
                let rate_of_all = rate + place.elsewhere;
                let (held, since) = (hot.spending.rest(), hot.since);
                Some(HotKey { identity, rules, rate, rate_of_all, held, since })
            };
            all.extend(shard.sketch.places.iter().filter_map(hot));
        }
        all.sort_by(|a, b| (b.rate_of_all, &a.identity).cmp(&(a.rate_of_all, &b.identity)));
        all
    }

    fn hash(&self, check: &Check<'_>) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        check.identity.hash(&mut hasher);
        for limit in check.limits {
            limit.name().hash(&mut hasher);
            limit.limit().hash(&mut hasher);
        }
        hasher.finish()
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard> {
        lock(&self.shards[(hash >> 32) as usize % SHARDS])
    }
}

impl Shard {
    fn go_on(&mut self, now: Micros) {
        if self.sketch.roll(now) {
            self.judge(now, true);
        }
    }

    fn judge(&mut self, now: Micros, a_window_passed: bool) {
        for mut cooled in self.sketch.judge(now, a_window_passed) {
            cooled.spending.part_with_all(&mut self.stranded);
        }
        self.stranded.truncate(MAX_STRANDED);
    }
}

impl Who {
    fn new(check: &Check<'_>, settings: Settings) -> Who {
        let (identity, limits) = (check.identity.clone(), check.limits.to_vec());
        let mut digest = Sha256::new_with_prefix(identity.as_str());
        for limit in &limits {
            digest.update(format!(
                "\0{} {} {}",
                limit.name(),
                limit.limit().algorithm(),
                limit.limit()
            ));
        }
        let mut id = [0; 8];
        id.copy_from_slice(&digest.finalize()[..8]);
        Who { identity, limits, settings, id: u64::from_le_bytes(id) }
    }

    /// Whether a question is about this one, and not only of the same hash.
    fn is(&self, check: &Check<'_>) -> bool {
        let same = |(a, b): (&Arc<RuleLimit>, &Arc<RuleLimit>)| Arc::ptr_eq(a, b) || a == b;
        self.identity == *check.identity
            && self.limits.len() == check.limits.len()
            && self.limits.iter().zip(check.limits).all(same)
    }
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}
