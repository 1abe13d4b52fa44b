//! Where buckets live. A store owns atomicity, an algorithm owns meaning: whatever the store, the
//! same history gives the same answers, to the microsecond.

pub mod charge;
pub mod keys;
mod ledger;
pub mod memory;
mod quotas;
pub mod record;
pub mod redis;
mod several;
pub mod simulated;

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

pub use self::redis::RedisStore;
use super::clock::Micros;
use super::identity::Identity;
use super::limit::{Cost, Decision, Limit, OnChange, deciding};
pub use charge::{Charge, Settlement};
pub use memory::MemoryStore;
pub use several::{Chosen, Several};
pub use simulated::SimulatedStore;

/// How long an allowed answer is remembered for its idempotency key, unless configured.
pub const DEFAULT_IDEMPOTENCY_TTL: Micros = Micros(5 * Micros::MINUTE.0);
pub const MAX_IDEMPOTENCY_KEY_BYTES: usize = 255;
/// Retries of one request that cost its client nothing.
pub const MAX_CLIENT_REPLAYS: u32 = 5;
/// How long a leaky bucket may hold a request, unless configured.
pub const DEFAULT_MAX_DELAY: Micros = Micros::SECOND;

/// One limit of one rule, under the name its bucket has in every store: `rule#index`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleLimit {
    name: String,
    /// For people and headers: the rule and the period, `per-user-1m`.
    label: String,
    limit: Limit,
    /// How often a request's cost counts under this rule.
    weight: u64,
    on_change: OnChange,
    /// The longest that whoever enforces a leaky bucket holds a request.
    max_delay: Micros,
}

impl RuleLimit {
    /// `rule` is a rule's name (`[a-z0-9-]`, at most 200 bytes), `index` the place in its list.
    pub fn new(rule: &str, index: u8, limit: Limit) -> RuleLimit {
        assert!(
            !rule.is_empty() && rule.len() <= 200,
            "rule names are checked where they are read"
        );
        RuleLimit {
            name: format!("{rule}#{index}"),
            label: format!("{rule}-{}", limit.period()),
            limit,
            weight: 1,
            on_change: OnChange::Keep,
            max_delay: DEFAULT_MAX_DELAY,
        }
    }

    /// The same, under a rule whose requests cost this much each.
    pub fn with_weight(self, weight: Cost) -> RuleLimit {
        RuleLimit { weight: weight.get().max(1), ..self }
    }

    /// The same, under a rule that says what becomes of used quota when this limit is new.
    pub fn with_on_change(self, on_change: OnChange) -> RuleLimit {
        RuleLimit { on_change, ..self }
    }

    /// The same, under a rule that holds requests no longer than this.
    pub fn with_max_delay(self, max_delay: Micros) -> RuleLimit {
        RuleLimit { max_delay, ..self }
    }

    /// The same bucket under another limit.
    pub fn with_limit(self, limit: Limit) -> RuleLimit {
        RuleLimit { limit, ..self }
    }

    pub fn max_delay(&self) -> Micros {
        self.max_delay
    }

    pub fn on_change(&self) -> OnChange {
        self.on_change
    }

    /// What a request of `cost` takes from this limit. More than any capacity stays more.
    pub fn cost(&self, cost: Cost) -> Cost {
        cost.times(self.weight)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The rule and the period, `per-user-1m`; two limits of a rule may have the same.
    pub fn label(&self) -> &str {
        &self.label
    }

    pub fn rule(&self) -> &str {
        self.name.rsplit_once('#').map_or(&self.name, |(rule, _)| rule)
    }

    pub fn limit(&self) -> &Limit {
        &self.limit
    }
}

/// One identity asking to pass all of these limits.
#[derive(Clone, Copy, Debug)]
pub struct Check<'a> {
    pub identity: &'a Identity,
    pub limits: &'a [Arc<RuleLimit>],
    pub cost: Cost,
    pub idempotency: Option<Idempotency<'a>>,
    /// The time to decide at; none for the store's own clock. Given by traces and tests.
    pub at: Option<Micros>,
}

/// A retried request with the same key gets the first allowed answer again, uncharged.
#[derive(Clone, Copy, Debug)]
pub struct Idempotency<'a> {
    pub key: &'a str,
    pub remember: Micros,
    /// How often the answer is given again before the same key is counted like any other request;
    /// none: always.
    pub max_replays: Option<u32>,
}

impl<'a> Idempotency<'a> {
    pub fn new(key: &'a str, remember: Micros) -> Result<Idempotency<'a>, IdempotencyKeyError> {
        let fits = (1..=MAX_IDEMPOTENCY_KEY_BYTES).contains(&key.len());
        let printable = !key.chars().any(char::is_control);
        let idempotency = Idempotency { key, remember, max_replays: None };
        if fits && printable { Ok(idempotency) } else { Err(IdempotencyKeyError) }
    }

    /// The same under a key that a client chose, and could use to have everything for the price of
    /// one: it is believed a few times, and only by rules that say so.
    pub fn of_client(
        key: &'a str,
        remember: Micros,
    ) -> Result<Idempotency<'a>, IdempotencyKeyError> {
        let max_replays = Some(MAX_CLIENT_REPLAYS);
        Ok(Idempotency { max_replays, ..Idempotency::new(key, remember)? })
    }

    pub fn is_of_client(&self) -> bool {
        self.max_replays.is_some()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an idempotency key has 1 to {MAX_IDEMPOTENCY_KEY_BYTES} bytes and no control characters")]
pub struct IdempotencyKeyError;

/// How many replicas shall have a charge before it is answered for, and how long is waited for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confirm {
    pub replicas: u32,
    pub within: Micros,
}

/// What the limits of one identity said, in the order they were given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub decisions: SmallVec<[Decision; 1]>,
    /// It was given before, to the same idempotency key; nothing was charged now.
    pub replayed: bool,
    /// How many replicas have what was charged, where that was asked and anything was.
    pub confirmed: Option<u32>,
    /// What an idempotent charge is known by.
    charge_id: Option<u64>,
}

impl Answer {
    pub(super) fn decided(decisions: SmallVec<[Decision; 1]>) -> Answer {
        Answer { decisions, replayed: false, confirmed: None, charge_id: None }
    }

    /// One that this process gives by what it knows.
    pub(crate) fn by_ourselves(decisions: SmallVec<[Decision; 1]>) -> Answer {
        Answer::decided(decisions)
    }

    pub fn allowed(&self) -> bool {
        self.decisions.iter().all(|d| d.allowed)
    }

    /// The decision that speaks for all of them, and which one it is.
    pub fn deciding(&self) -> Option<(usize, &Decision)> {
        deciding(&self.decisions).map(|index| (index, &self.decisions[index]))
    }

    /// How long to hold the request: the longest that any limit asks for.
    pub fn delay(&self) -> Micros {
        self.decisions.iter().map(|d| d.delay).max().unwrap_or_default()
    }

    /// As [`Answer::charge`], but none for an answer given before: its charge belongs to whoever
    /// got it first.
    pub fn charge_unless_replayed(&self, check: &Check<'_>) -> Option<Charge> {
        if self.replayed { None } else { self.charge(check) }
    }

    /// What was charged, so that it can be given back; none when nothing was.
    pub fn charge(&self, check: &Check<'_>) -> Option<Charge> {
        let charged = self.allowed() && check.cost > Cost::PEEK && !self.decisions.is_empty();
        charged.then(|| Charge::of(check, self, self.charge_id))
    }
}

/// Why a store could not decide.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    #[error("cannot reach redis at {url}: {why}")]
    Unreachable { url: String, why: String },
    #[error("redis at {url} did not answer within {deadline}; it may or may not have counted this")]
    Timeout { url: String, deadline: Micros },
    #[error("lost the connection to redis at {url}: {why}; it may or may not have counted this")]
    Lost { url: String, why: String },
    /// Of what was only read, or where whoever asked says what may have been done.
    #[error("redis at {url} did not answer within {patience}")]
    Silent { url: String, patience: Micros },
    /// The same.
    #[error("lost the connection to redis at {url}: {why}")]
    Cut { url: String, why: String },
    #[error("redis at {url} refused: {why}")]
    Refused { url: String, code: String, why: String },
    #[error("redis at {url} is busy: {waiting} checks are waiting already")]
    Overloaded { url: String, waiting: usize },
    #[error("redis at {url} is not asked: it failed too often, and is probed until it answers")]
    Broken { url: String },
    #[error(
        "{confirmed} of {wanted} replicas confirmed in time what rule {rule} charged; it stays charged"
    )]
    Short { rule: String, wanted: u32, confirmed: u32 },
    #[error("the idempotency key was used before with another cost")]
    OtherCost,
}

impl StoreError {
    /// Whether the store is at fault, and not whoever asked.
    pub fn is_of_the_store(&self) -> bool {
        !matches!(self, StoreError::OtherCost)
    }

    /// Whether the call may have been counted although no answer came.
    pub fn outcome_unknown(&self) -> bool {
        matches!(self, StoreError::Timeout { .. } | StoreError::Lost { .. })
    }

    /// The same of a call that only reads: nothing can have been counted.
    pub fn of_a_read(self) -> StoreError {
        match self {
            StoreError::Timeout { url, deadline } => StoreError::Silent { url, patience: deadline },
            StoreError::Lost { url, why } => StoreError::Cut { url, why },
            other => other,
        }
    }
}

/// The stores there are. Closed on purpose: no type parameter spreads from here.
#[derive(Debug)]
pub enum Store {
    Memory(MemoryStore),
    Redis(RedisStore),
    /// In virtual time.
    Simulated(SimulatedStore),
    /// Any of these, and others by name.
    Several(Several),
}

/// The store that counts where no name is given.
#[derive(Clone, Copy, Debug)]
pub enum One<'a> {
    Memory(&'a MemoryStore),
    Redis(&'a RedisStore),
    Simulated(&'a SimulatedStore),
}

impl Store {
    pub fn one(&self) -> One<'_> {
        match self {
            Store::Memory(store) => One::Memory(store),
            Store::Redis(store) => One::Redis(store),
            Store::Simulated(store) => One::Simulated(store),
            Store::Several(several) => several.main.one(),
        }
    }

    pub async fn check(&self, check: &Check<'_>) -> Result<Answer, StoreError> {
        match self.one() {
            One::Memory(store) => store.check(check),
            One::Redis(store) => store.check(check).await,
            One::Simulated(store) => store.check(check).await,
        }
    }

    /// The same where so much of the deadline is gone already.
    pub async fn check_after(
        &self,
        check: &Check<'_>,
        spent: Duration,
    ) -> Result<Answer, StoreError> {
        match self.one() {
            One::Memory(store) => store.check(check),
            One::Redis(store) => Box::pin(store.check_after(check, spent)).await,
            // Records of virtual gateways are at hand: none of the deadline is spent on them.
            One::Simulated(store) => store.check(check).await,
        }
    }

    /// The same with replicas that shall confirm what is charged, if so. Only Redis has any that
    /// could be asked.
    pub async fn check_confirmed(
        &self,
        check: &Check<'_>,
        spent: Duration,
        confirm: Option<Confirm>,
    ) -> Result<Answer, StoreError> {
        match self.one() {
            // Boxed: a decision in memory should not carry the weight of one over the network.
            One::Redis(store) => Box::pin(store.check_confirmed(check, spent, confirm)).await,
            One::Memory(store) => store.check(check),
            // Records of virtual gateways are at hand: none of the deadline is spent on them.
            One::Simulated(store) => store.check(check).await,
        }
    }

    /// Why it cannot be asked now, as far as is known.
    pub fn trouble(&self) -> Option<StoreError> {
        match self.one() {
            One::Memory(_) | One::Simulated(_) => None,
            One::Redis(store) => store.trouble(),
        }
    }

    /// The servers behind it, as they are now; memory has none.
    pub fn shards(&self) -> Vec<redis::Shard> {
        let mut shards = match self.one() {
            One::Memory(_) | One::Simulated(_) => Vec::new(),
            One::Redis(store) => store.shards(),
        };
        if let Store::Several(several) = self {
            shards.extend(several.shards());
        }
        shards
    }

    /// How often calls were sent from one server to another, by what they were told.
    pub fn redirects(&self) -> Vec<(&'static str, u64)> {
        match self.one() {
            One::Memory(_) | One::Simulated(_) => Vec::new(),
            One::Redis(store) => store.redirects(),
        }
    }

    /// From now on a server that fails too often is left alone, by these numbers.
    pub fn set_breaker(&self, settings: super::policy::Breaker) {
        match self.one() {
            One::Memory(_) => {}
            One::Redis(store) => store.set_breaker(settings),
            One::Simulated(store) => store.set_breaker(settings),
        }
    }

    /// From now on no call outlives this; memory always answers at once.
    pub fn set_deadline(&self, deadline: Micros) {
        if let One::Redis(store) = self.one() {
            store.set_deadline(deadline);
        }
    }

    /// Decides `checks` one after the other; what came before an error stands.
    pub async fn check_in_order(&self, checks: &[Check<'_>]) -> Vec<Result<Answer, StoreError>> {
        match self.one() {
            One::Memory(store) => checks.iter().map(|check| store.check(check)).collect(),
            One::Redis(store) => store.check_in_order(checks).await,
            One::Simulated(store) => store.check_in_order(checks).await,
        }
    }

    /// Gives back a charge or replaces its cost, once; false when that was done before or it is
    /// too late.
    pub async fn settle(
        &self,
        charge: &Charge,
        to: Settlement,
        at: Option<Micros>,
    ) -> Result<bool, StoreError> {
        if let (Store::Several(several), Some(name)) = (self, charge.store()) {
            // What the policy no longer names is out of reach: it is too late.
            return match several.opened(name, &charge.identity) {
                Some(store) => Box::pin(store.settle(charge, to, at)).await,
                None => Ok(false),
            };
        }
        match self.one() {
            One::Memory(store) => Ok(store.settle(charge, to, at)),
            One::Redis(store) => Box::pin(store.settle(charge, to, at)).await,
            One::Simulated(store) => store.settle(charge, to).await,
        }
    }

    /// Forgets the quota of an identity, of all rules or of one, as if it had never been charged;
    /// says of how many limits. A charge from before can still be given back, to whatever was
    /// charged since.
    pub async fn reset(
        &self,
        identity: &Identity,
        rule: Option<&str>,
    ) -> Result<usize, StoreError> {
        let mut elsewhere = Ok(0);
        for (_, store) in self.others() {
            let reset = Box::pin(store.reset(identity, rule)).await;
            elsewhere = elsewhere.and_then(|before| Ok(before + reset?));
        }
        let here = match self.one() {
            One::Memory(store) => Ok(store.reset(identity, rule)),
            One::Redis(store) => store.reset(identity, rule).await,
            One::Simulated(store) => Ok(store.reset(identity, rule)),
        };
        Ok(here? + elsewhere?)
    }
}
