//! What Redis holds about one identity, in one round trip and at one moment. Looking changes
//! nothing, not even a TTL.

use std::collections::HashMap;

use super::bucket::{Bucket, Standing};
use crate::engine::algo::{State, carry_over};
use crate::engine::clock::Micros;
use crate::engine::identity::Identity;
use crate::engine::registry::{RegistryError, Subject};
use crate::engine::store::keys::Prefix;
use crate::engine::store::record::{Record, RecordError, records};
use crate::engine::store::redis::{Answered, Deployment, Said, Words};
use crate::engine::store::{RuleLimit, StoreError};

/// Where a limit that is shown comes from, and the limit.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub limit: std::sync::Arc<RuleLimit>,
    pub source: String,
}

/// A key with what it holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    pub key: String,
    /// None: it is not there, or holds something else than expected.
    pub value: Option<Vec<u8>>,
    /// None: it is not there, or never expires.
    pub ttl: Option<Micros>,
    pub exists: bool,
    pub memory_bytes: Option<u64>,
}

/// All that is stored about an identity.
#[derive(Debug)]
pub struct Looked {
    pub identity: Identity,
    /// On the server's clock.
    pub now: Micros,
    pub quota: Held,
    pub log: Held,
    /// The charges of its sliding logs, by field.
    pub charges: HashMap<String, Vec<u8>>,
    /// Why the quota cannot be read, if so.
    pub records: Result<Vec<Record>, RecordError>,
    pub subject: Subject,
    pub slot: Option<u16>,
    pub node: Option<String>,
}

pub async fn look(
    deployment: &Deployment,
    prefix: &Prefix,
    identity: &Identity,
) -> Result<Looked, LookError> {
    let (quota, log) = (prefix.quota(identity), prefix.log(identity));
    let about = |key: &str| [Words::of("PTTL").and(key), Words::of("MEMORY USAGE").and(key)];
    let mut commands = vec![
        Words::of("TIME"),
        Words::of("GET").and(&quota),
        Words::of("HGETALL").and(&log),
        Words::of("GET").and(prefix.subject(identity)),
    ];
    commands.extend(about(&quota));
    commands.extend(about(&log));
    let answers = deployment.ask_about(quota.as_bytes(), &commands).await?;
    let mut answers = answers.into_iter();
    let mut next = || answers.next().unwrap_or(Ok(Said::Nothing));
    let now = server_time(&next()?);
    let value = next();
    let charges = next();
    let subject = next()?.into_bytes();
    let held = |key: &str, value: Option<Vec<u8>>, ttl: Answered, memory: Answered| {
        let ttl = ttl.ok().and_then(|ttl| ttl.number()).unwrap_or(-2);
        Held {
            key: key.into(),
            value,
            ttl: u64::try_from(ttl).ok().map(|ms| Micros(ms * 1_000)),
            exists: ttl != -2,
            memory_bytes: memory.ok().and_then(|m| u64::try_from(m.number()?).ok()),
        }
    };
    let (ttl, memory) = (next(), next());
    let (log_ttl, log_memory) = (next(), next());
    let of_another_type = is_wrong_type(&value);
    let quota_held = held(&quota, unless_wrong_type(value)?.into_bytes(), ttl, memory);
    let charges = pairs(unless_wrong_type(charges)?);
    let records = match &quota_held.value {
        Some(value) => records(value),
        None if of_another_type => Err(RecordError::Type),
        None => Ok(Vec::new()),
    };
    let map = deployment.map();
    let subject = match subject {
        Some(text) => serde_json::from_slice(&text).map_err(|error| RegistryError::Unreadable {
            key: prefix.subject(identity),
            why: error.to_string(),
        })?,
        None => Subject::default(),
    };
    Ok(Looked {
        identity: identity.clone(),
        now,
        log: held(&log, None, log_ttl, log_memory),
        charges,
        records,
        subject,
        slot: map.slot_of(quota.as_bytes()),
        node: map.primary_of(quota.as_bytes()).map(|primary| primary.place().to_owned()),
        quota: quota_held,
    })
}

#[derive(Debug, thiserror::Error)]
pub enum LookError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Registry(#[from] RegistryError),
}

impl Looked {
    /// Every limit that was used, and every one of `wanted` that was not; those of `wanted` as they
    /// are now, whatever they were when they were charged.
    pub fn buckets(&self, wanted: &[Wanted]) -> Vec<Bucket> {
        let mut left: Vec<&Wanted> = wanted.iter().collect();
        let mut buckets = Vec::new();
        for record in self.records.iter().flatten() {
            let place = left.iter().position(|wanted| wanted.limit.name() == record.name);
            let wanted = place.map(|place| left.remove(place));
            buckets.push(self.bucket(record, wanted));
        }
        let unused = left.into_iter().map(|wanted| {
            let limit = wanted.limit.limit();
            let state = State::fresh(limit.algorithm());
            let bucket = Bucket {
                rule: wanted.limit.rule().into(),
                source: wanted.source.clone(),
                ..self.place(None)
            };
            bucket.standing(Standing::of(limit, &state, self.now))
        });
        buckets.extend(unused);
        buckets
    }

    fn bucket(&self, record: &Record, wanted: Option<&Wanted>) -> Bucket {
        let bucket = Bucket {
            rule: record.rule().into(),
            source: wanted.map_or("store".into(), |wanted| wanted.source.clone()),
            ..self.place(Some(record))
        };
        let Ok(mut state) = record.state(|field| self.charges.get(field).map(Vec::as_slice)) else {
            return bucket;
        };
        let mut limit = record.limit;
        if let Some(now) = wanted.filter(|wanted| *wanted.limit.limit() != record.limit) {
            limit = *now.limit.limit();
            let on_change = now.limit.on_change();
            state = carry_over(&record.limit, &limit, on_change, state, self.now);
        }
        bucket.standing(Standing::of(&limit, &state, self.now))
    }

    /// What is the same for every limit of the identity.
    fn place(&self, record: Option<&Record>) -> Bucket {
        let has_log = record.is_some_and(|record| !record.chunks().is_empty());
        let of_log = self.log.memory_bytes.filter(|_| has_log).unwrap_or(0);
        Bucket {
            ttl_us: self.quota.ttl.filter(|_| record.is_some()).map(|ttl| ttl.0),
            key: self.quota.key.clone(),
            slot: self.slot,
            node: self.node.clone(),
            memory_bytes: self.quota.memory_bytes.filter(|_| record.is_some()).map(|m| m + of_log),
            ..Bucket::default()
        }
    }
}

/// `TIME`: seconds and microseconds.
pub fn server_time(said: &Said) -> Micros {
    let Said::List(parts) = said else { return Micros::ZERO };
    let number = |index: usize| parts.get(index).and_then(Said::number).unwrap_or(0) as u64;
    Micros(number(0) * Micros::SECOND.0 + number(1))
}

/// Names and values in turn.
pub fn pairs(said: Said) -> HashMap<String, Vec<u8>> {
    let mut parts = said.into_list().into_iter();
    let mut found = HashMap::new();
    while let (Some(name), Some(value)) = (parts.next(), parts.next()) {
        found.insert(name.into_text(), value.into_bytes().unwrap_or_default());
    }
    found
}

fn is_wrong_type(answer: &Answered) -> bool {
    matches!(answer, Err(StoreError::Refused { code, .. }) if code == "WRONGTYPE")
}

/// A key that holds something else reads as if it were not there.
pub fn unless_wrong_type(answer: Answered) -> Answered {
    if is_wrong_type(&answer) { Ok(Said::Nothing) } else { answer }
}
