//! Buckets in Redis: each check is one script call, decided on the server's clock.

mod address;
mod console;
mod dial;
mod health;
mod link;
mod meter;
mod registry;
mod scripts;
mod sentinel;
mod words;

use redis::Value;
use smallvec::{SmallVec, smallvec};

use self::link::{Call, Link};
use self::scripts::{Packed, Reply, Script, parse_reply};
use super::charge::{Charge, Settlement, random_id};
use super::keys::Prefix;
use super::{Answer, Check, StoreError};
use crate::engine::clock::Micros;
use crate::engine::identity::Identity;
use crate::engine::limit::{Algorithm, Cost};
pub use address::{RedisAddress, RedisAddressError, without_secrets};
pub use console::{Console, Said};
pub use link::RedisOptions;
pub use meter::Meter;
pub use registry::RedisRegistry;

/// Removed in one command: some tens of microseconds for the server.
const KEYS_PER_UNLINK: usize = 500;

/// A script with its keys and arguments.
#[derive(Clone, Debug)]
pub struct ScriptCall {
    pub text: String,
    pub keys: Vec<String>,
    pub args: Vec<Vec<u8>>,
}

#[derive(Debug)]
pub struct RedisStore {
    link: Link,
    prefix: Prefix,
}

impl RedisStore {
    pub async fn connect(options: RedisOptions, prefix: Prefix) -> Result<RedisStore, StoreError> {
        Ok(RedisStore { link: Link::open(options).await?, prefix })
    }

    /// Without waiting for the connection; until there is one, every check fails at once.
    pub fn start(options: RedisOptions, prefix: Prefix) -> RedisStore {
        RedisStore { link: Link::start(options), prefix }
    }

    /// From now on no check outlives this.
    pub fn set_deadline(&self, deadline: Micros) {
        self.link.set_deadline(deadline);
    }

    /// Why there is no connection, if so.
    pub fn trouble(&self) -> Option<StoreError> {
        self.link.trouble()
    }

    /// Where it is, without secrets.
    pub fn url(&self) -> String {
        self.link.url()
    }

    /// Where it is, in few words, to tell it from others.
    pub fn shard(&self) -> &str {
        self.link.address().place()
    }

    /// How it answers.
    pub fn meter(&self) -> &Meter {
        self.link.meter()
    }

    pub async fn check(&self, check: &Check<'_>) -> Result<Answer, StoreError> {
        if check.limits.is_empty() {
            return Ok(Answer::decided(SmallVec::new()));
        }
        let value = self.link.call(self.call(check)).await?;
        self.answer(check, &value)
    }

    pub async fn check_in_order(&self, checks: &[Check<'_>]) -> Vec<Result<Answer, StoreError>> {
        let calls: Vec<Call> = checks.iter().map(|check| self.call(check)).collect();
        let values = self.link.call_in_order(calls).await;
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
        let call = Call { script: Script::settle(), keys, args };
        match self.link.call(call).await? {
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
        match self.link.call(Call { script: Script::reset(), keys, args }).await? {
            Value::Int(forgotten) => Ok(usize::try_from(forgotten).unwrap_or_default()),
            other => Err(self.not_ours(&other)),
        }
    }

    /// Removes the quota of these identities, without blocking the server.
    pub async fn remove(
        &self,
        identities: impl Iterator<Item = &Identity>,
    ) -> Result<(), StoreError> {
        let mut keys =
            identities.flat_map(|i| [self.prefix.quota(i), self.prefix.log(i)]).peekable();
        while keys.peek().is_some() {
            let some: Vec<String> = keys.by_ref().take(KEYS_PER_UNLINK).collect();
            self.link.command(redis::cmd("UNLINK").arg(some)).await?;
        }
        Ok(())
    }

    /// The very script call that a check makes, to be run by others: for benches.
    pub fn script_call(&self, check: &Check<'_>) -> ScriptCall {
        let Call { script, keys, args } = self.call(check);
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
            packed.bytes(&random_id().to_le_bytes());
            args.push(packed.0);
        }
        Call { script: Script::check(check), keys, args }
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
                Ok(Answer { decisions, replayed, charge_id })
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
        StoreError::Refused { url: self.link.url(), code: "REPLY".into(), why }
    }
}
