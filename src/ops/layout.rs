//! How the state of a limiter lies in Redis: ours, or one that others wrote; what is asked about a
//! key of it, and what that means.

use super::bucket::{Bucket, Standing};
use super::dialect;
use super::look::unless_wrong_type;
use crate::engine::clock::Micros;
use crate::engine::identity::{Identity, Pattern};
use crate::engine::store::StoreError;
use crate::engine::store::keys::{KeyKind, Prefix};
use crate::engine::store::record::{Record, records};
use crate::engine::store::redis::{Answered, Said, Words};

#[derive(Clone, Debug)]
pub enum Layout {
    Own(Prefix),
    Foreign(Box<dialect::Layout>),
}

/// Where a key is, and what is the same for all that it holds.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Whose it is.
    pub identity: String,
    pub key: String,
    pub slot: Option<u16>,
    pub node: String,
    /// None: it never expires.
    pub ttl: Option<Micros>,
    pub memory_bytes: Option<u64>,
}

/// What a key holds.
#[derive(Clone, Debug)]
pub enum Held {
    Records(Vec<Record>),
    Foreign(dialect::Reading),
    /// Why it cannot be read.
    Unreadable(String),
    /// It was gone before it was read, or is of another layout.
    Nothing,
}

impl Layout {
    /// What SCAN takes to find the keys of all that a pattern means.
    pub fn glob(&self, pattern: Option<&Pattern>) -> String {
        match (self, pattern) {
            (Layout::Own(prefix), None) => prefix.quota_glob("*"),
            (Layout::Own(prefix), Some(Pattern::Exact(identity))) => prefix.quota(identity),
            (Layout::Own(prefix), Some(Pattern::Glob(glob))) => prefix.quota_glob(glob),
            (Layout::Own(prefix), Some(Pattern::Network(_))) => prefix.quota_glob("ip:*"),
            (Layout::Foreign(layout), _) => layout.glob(),
        }
    }

    /// Where the keys of one identity are.
    pub fn keys_of(&self, identity: &Identity) -> Vec<dialect::Place> {
        match self {
            Layout::Own(prefix) => vec![dialect::Place::Key(prefix.quota(identity))],
            Layout::Foreign(layout) => layout.keys_of(identity.as_str()),
        }
    }

    /// How much of a key this says.
    pub fn precision(&self) -> usize {
        match self {
            Layout::Own(_) => usize::MAX,
            Layout::Foreign(layout) => layout.precision(),
        }
    }

    /// Whose key this is; none for what is not of this layout, or no quota.
    pub fn owner(&self, key: &str) -> Option<String> {
        match self {
            Layout::Own(prefix) => match prefix.kind_of(key)? {
                (KeyKind::Quota, identity) => Some(identity.to_string()),
                _ => None,
            },
            Layout::Foreign(layout) => layout.owner(key),
        }
    }

    /// What to ask about a key.
    pub fn questions(&self, key: &str) -> Vec<Words> {
        match self {
            Layout::Own(_) => vec![Words::of("GET").and(key)],
            Layout::Foreign(layout) => layout.questions(key),
        }
    }

    /// What was answered to them.
    pub fn read(&self, key: &str, answers: Vec<Answered>, now: Micros) -> Result<Held, StoreError> {
        match self {
            Layout::Own(_) => {
                let answer = answers.into_iter().next().unwrap_or(Ok(Said::Nothing));
                if matches!(&answer, Err(StoreError::Refused { code, .. }) if code == "WRONGTYPE") {
                    return Ok(Held::Unreadable("it is not a string".into()));
                }
                let Some(value) = unless_wrong_type(answer)?.into_bytes() else {
                    return Ok(Held::Nothing);
                };
                Ok(match records(&value) {
                    Ok(records) => Held::Records(records),
                    Err(error) => Held::Unreadable(error.to_string()),
                })
            }
            Layout::Foreign(layout) => {
                Ok(layout.read(key, answers, now)?.map_or(Held::Nothing, Held::Foreign))
            }
        }
    }

    /// Every limit that a key holds. `chunk` gives a part of a sliding log.
    pub fn buckets<'a>(
        &self,
        found: &Found,
        held: &Held,
        now: Micros,
        chunk: impl Fn(&str) -> Option<&'a [u8]>,
    ) -> Vec<Bucket> {
        let place = || Bucket {
            key: found.key.clone(),
            slot: found.slot,
            node: Some(found.node.clone()),
            ttl_us: found.ttl.map(|ttl| ttl.0),
            memory_bytes: found.memory_bytes,
            ..Bucket::default()
        };
        match (self, held) {
            (_, Held::Records(records)) => records
                .iter()
                .map(|record| {
                    let bucket =
                        Bucket { rule: record.rule().into(), source: "store".into(), ..place() };
                    match record.state(&chunk) {
                        Ok(state) => bucket.standing(Standing::of(&record.limit, &state, now)),
                        Err(_) => bucket,
                    }
                })
                .collect(),
            (Layout::Foreign(layout), Held::Foreign(reading)) => {
                vec![reading.bucket(layout, now, place())]
            }
            _ => Vec::new(),
        }
    }
}
