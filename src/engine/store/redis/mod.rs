//! Buckets in Redis: each check is one script call, decided on the server's clock.

mod address;
mod cluster;
mod console;
mod deployment;
mod dial;
mod guard;
mod health;
mod kept;
mod link;
mod lookout;
mod map;
mod meter;
mod registry;
mod scripts;
mod sentinel;
mod servers;
mod slots;
mod survey;
mod topology;
mod wire;
mod words;

use std::time::Duration;

use redis::Value;
use smallvec::{SmallVec, smallvec};

use self::kept::{Asks, Told};
use self::scripts::{Packed, Reply, Script, parse_reply};
use self::servers::Servers;
use self::wire::Call;
use super::charge::{Charge, Settlement, random_id};
use super::keys::Prefix;
use super::{Answer, Check, Confirm, StoreError};
use crate::engine::clock::Micros;
use crate::engine::identity::Identity;
use crate::engine::limit::{Algorithm, Cost};
use crate::engine::policy;
pub use address::{RedisAddress, RedisAddressError, is_masked, without_secrets};
pub use console::{Answered, Console, Said, Words};
pub use deployment::{Deployment, Map, Node, Topology, scanned};
pub use guard::BreakerStatus;
pub use link::RedisOptions;
pub use lookout::Lookout;
pub use meter::Meter;
pub use registry::RedisRegistry;
pub use servers::Shard;
pub use slots::{Place, SLOTS, slot_of};
pub use topology::{Primary, primaries};

/// A script with its keys and arguments.
#[derive(Clone, Debug)]
pub struct ScriptCall {
    pub text: String,
    pub keys: Vec<String>,
    pub args: Vec<Vec<u8>>,
}

/// Forgets the records of one rule in an identity's quota, and their charges; the rest stays.
pub fn reset_of_rule(quota: &[u8], log: &[u8], rule: &str) -> Words {
    Words::of("EVAL").and(&Script::reset().text).and("2").and(quota).and(log).and(rule)
}

/// A script as a server knows it.
#[derive(Clone, Debug)]
pub struct ScriptText {
    pub sha: String,
    pub text: String,
}

/// Every script that checks may take.
pub fn check_scripts() -> Vec<ScriptText> {
    let of = |script: &Script| ScriptText { sha: script.sha.clone(), text: script.text.clone() };
    Script::checks().map(of).collect()
}

#[derive(Debug)]
pub struct RedisStore {
    servers: Servers,
    prefix: Prefix,
}

impl RedisStore {
    pub async fn connect(options: RedisOptions, prefix: Prefix) -> Result<RedisStore, StoreError> {
        Ok(RedisStore { servers: Servers::open(options).await?, prefix })
    }

    /// Without waiting for the connection; until there is one, every check fails at once.
    pub fn start(options: RedisOptions, prefix: Prefix) -> RedisStore {
        RedisStore { servers: Servers::start(options), prefix }
    }

    /// From now on no check outlives this.
    pub fn set_deadline(&self, deadline: Micros) {
        self.servers.set_deadline(deadline);
    }

    /// From now on each server has a breaker, by these numbers.
    pub fn set_breaker(&self, settings: policy::Breaker) {
        self.servers.set_breaker(settings);
    }

    /// Waits until it was tried for the first time to connect, but no longer than this, or than a
    /// call may take.
    pub async fn tried(&self, within: Option<Duration>) {
        self.servers.tried(within).await;
    }

    /// Why no check can be answered, if so.
    pub fn trouble(&self) -> Option<StoreError> {
        self.servers.trouble()
    }

    /// Where it is, without secrets.
    pub fn url(&self) -> String {
        self.servers.address().to_string()
    }

    /// The servers that count: one, or the primaries of a cluster as it is now.
    pub fn shards(&self) -> Vec<Shard> {
        self.servers.shards()
    }

    /// Looks at replicas and sentinels; what is seen is in the meters.
    pub async fn look_around(&self, lookout: &mut Lookout) {
        lookout.look(&self.servers).await;
    }

    /// How often a cluster sent calls from one server to another: `moved`, `ask`, `tryagain`.
    pub fn redirects(&self) -> Vec<(&'static str, u64)> {
        self.servers.redirects()
    }

    pub async fn check(&self, check: &Check<'_>) -> Result<Answer, StoreError> {
        self.check_after(check, Duration::ZERO).await
    }

    /// The same where so much of the deadline is gone already.
    pub async fn check_after(
        &self,
        check: &Check<'_>,
        spent: Duration,
    ) -> Result<Answer, StoreError> {
        self.check_confirmed(check, spent, None).await
    }

    /// The same with replicas that shall confirm what is charged, if so; for that there is time of
    /// its own.
    pub async fn check_confirmed(
        &self,
        check: &Check<'_>,
        spent: Duration,
        confirm: Option<Confirm>,
    ) -> Result<Answer, StoreError> {
        if check.limits.is_empty() {
            return Ok(Answer::decided(SmallVec::new()));
        }
        // What looks charges nothing.
        let confirm = confirm.filter(|_| check.cost > Cost::PEEK);
        let (limits, idempotent) = (check.limits.len(), check.idempotency.is_some());
        let asks = confirm.map(|confirm| Asks { confirm, limits, idempotent });
        let value = self.servers.call(Call { asks, ..self.call(check) }, spent).await?;
        match Told::of(&value) {
            Some(Told { said, confirmed, .. }) => {
                Ok(Answer { confirmed, ..self.answer(check, &said)? })
            }
            None => self.answer(check, &value),
        }
    }

    pub async fn check_in_order(&self, checks: &[Check<'_>]) -> Vec<Result<Answer, StoreError>> {
        let calls: Vec<Call> = checks.iter().map(|check| self.call(check)).collect();
        let values = self.servers.call_in_order(calls).await;
        let each = |(check, value): (_, Result<Value, _>)| self.answer(check, &value?);
        checks.iter().zip(values).map(each).collect()
    }

    pub async fn settle(
        &self,
        charge: &Charge,
        to: Settlement,
        at: Option<Micros>,
    ) -> Result<bool, StoreError> {
        let identity = &charge.identity;
        let mut keys = smallvec![
            self.prefix.quota(identity),
            self.prefix.log(identity),
            self.prefix.returned(identity, charge.id),
        ];
        if let (Settlement::Refund, Some(key)) = (to, &charge.idempotency_key) {
            keys.push(self.prefix.answer(identity, key));
        }
        let settled = match to {
            Settlement::Refund => Cost::PEEK,
            Settlement::Cost(cost) => cost,
        };
        let mut packed = Packed::default();
        packed.time(at).number(charge.lapses_at().0).charge_parts(charge, settled);
        let args = smallvec![packed.0, charge.id.to_le_bytes().to_vec()];
        let call = Call::new(Script::settle(), keys, args);
        match self.servers.call(call, Duration::ZERO).await? {
            Value::Int(done) => Ok(done == 1),
            other => Err(self.not_ours(&other)),
        }
    }

    /// Forgets the quota of an identity, of all rules or of one; says of how many limits. What
    /// operators decided about it stays, and so do answers to idempotency keys.
    pub async fn reset(
        &self,
        identity: &Identity,
        rule: Option<&str>,
    ) -> Result<usize, StoreError> {
        let keys = smallvec![self.prefix.quota(identity), self.prefix.log(identity)];
        let args = rule.into_iter().map(|rule| rule.as_bytes().to_vec()).collect();
        let call = Call::new(Script::reset(), keys, args);
        match self.servers.call(call, Duration::ZERO).await? {
            Value::Int(forgotten) => Ok(usize::try_from(forgotten).unwrap_or_default()),
            other => Err(self.not_ours(&other)),
        }
    }

    /// Removes the quota of these identities, without blocking the server.
    pub async fn remove(
        &self,
        identities: impl Iterator<Item = &Identity>,
    ) -> Result<(), StoreError> {
        let keys = identities.map(|i| vec![self.prefix.quota(i), self.prefix.log(i)]);
        self.servers.unlink_all(keys).await
    }

    /// The very script call that a check makes, to be run by others: for benches.
    pub fn script_call(&self, check: &Check<'_>) -> ScriptCall {
        let Call { script, keys, args, .. } = self.call(check);
        ScriptCall { text: script.text.clone(), keys: keys.into_vec(), args: args.into_vec() }
    }

    fn call(&self, check: &Check<'_>) -> Call {
        let mut packed = Packed(Vec::with_capacity(16 + 80 * check.limits.len()));
        packed.time(check.at).number(check.cost.get());
        for limit in check.limits {
            packed.limit(limit, check.cost);
        }
        let mut keys = smallvec![self.prefix.quota(check.identity)];
        let mut args = smallvec![packed.0];
        let has_log = check.limits.iter().any(|l| l.limit().algorithm() == Algorithm::SlidingLog);
        if has_log || check.idempotency.is_some() {
            keys.push(self.prefix.log(check.identity));
        }
        if let Some(idempotency) = check.idempotency {
            keys.push(self.prefix.answer(check.identity, idempotency.key));
            let mut packed = Packed::default();
            packed.number(idempotency.remember.0).number(check.limits.len() as u64);
            packed.count_or_none(idempotency.max_replays);
            packed.bytes(&random_id().to_le_bytes());
            args.push(packed.0);
        }
        Call::new(Script::check(check), keys, args)
    }

    fn answer(&self, check: &Check<'_>, value: &Value) -> Result<Answer, StoreError> {
        let reply = match value {
            Value::BulkString(bytes) => {
                parse_reply(bytes, check.limits, check.idempotency.is_some())
            }
            _ => None,
        };
        match reply {
            Some(Reply::Decided { decisions, charge_id, replayed }) => {
                Ok(Answer { replayed, charge_id, ..Answer::decided(decisions) })
            }
            Some(Reply::OtherCost) => Err(StoreError::OtherCost),
            None => Err(self.not_ours(value)),
        }
    }

    fn not_ours(&self, value: &Value) -> StoreError {
        let kind = match value {
            Value::Nil => "nothing",
            Value::Int(_) => "a number",
            Value::BulkString(_) => "a string of another form",
            _ => "something else",
        };
        let why = format!("expected a decision, got {kind}");
        StoreError::Refused { url: self.url(), code: "REPLY".into(), why }
    }
}
