//! A walk over all buckets of a Redis: SCAN on every primary, and what it finds read in pipelines.
//! Never KEYS, no command that takes the server long, and no more in memory than two batches.
//!
//! A key may come twice while a server's table grows, or while its slot moves: SCAN promises no
//! more.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::task::JoinHandle;

use super::bucket::Bucket;
use super::layout::{Found, Held, Layout};
use super::look::server_time;
use crate::engine::clock::Micros;
use crate::engine::identity::{Identity, Pattern};
use crate::engine::split;
use crate::engine::store::StoreError;
use crate::engine::store::redis::{Answered, Console, Deployment, Map, Node, Said, Words, scanned};

/// What one SCAN looks at: some fifty microseconds for the server, so that it stays far below a
/// millisecond also where the server shares its core.
pub(super) const KEYS_PER_SCAN: usize = 50;
/// Fields of a hash that are read by one command.
const FIELDS_PER_READ: usize = 32;

/// Which buckets are wanted.
#[derive(Clone, Debug)]
pub struct Wish {
    pub layouts: Vec<Layout>,
    /// None: everybody's.
    pub pattern: Option<Pattern>,
    /// Also the parts of identities that rules divide.
    pub with_parts: bool,
    pub with_memory: bool,
}

/// A key with what it holds.
#[derive(Debug)]
pub struct Seen {
    pub found: Found,
    pub held: Held,
    pub buckets: Vec<Bucket>,
    pub now: Micros,
    /// Which of the layouts it is of.
    pub layout: usize,
}

/// A walk under way.
#[derive(Debug)]
pub struct Walk {
    wish: Wish,
    map: Arc<Map>,
    /// Which primary it is at.
    at: usize,
    asked: Option<Asked>,
}

/// A batch on its way: the keys that are asked about, and the answers when they come.
#[derive(Debug)]
struct Asked {
    keys: Vec<(usize, Found)>,
    answers: JoinHandle<Result<Vec<Answered>, StoreError>>,
}

impl Walk {
    pub fn new(deployment: &Deployment, wish: Wish) -> Result<Walk, StoreError> {
        let map = deployment.map();
        match map.missing.first() {
            // Part of the truth would look like the whole of it.
            Some((_, error)) => Err(error.clone()),
            None => Ok(Walk { wish, map, at: 0, asked: None }),
        }
    }

    /// How many of the primaries are done, of how many.
    pub fn primaries(&self) -> (usize, usize) {
        (self.at.min(self.map.primaries.len()), self.map.primaries.len())
    }

    /// The next keys, in no order; none at the end. While they are used, the servers work on those
    /// after them.
    pub async fn next(&mut self) -> Result<Option<Vec<Seen>>, StoreError> {
        let map = self.map.clone();
        while let Some(primary) = map.primaries.get(self.at) {
            let begin = || self.wish.ask(&primary.console, Vec::new(), Some(0));
            let Asked { keys, answers } = self.asked.take().unwrap_or_else(begin);
            let mut answers = answers.await.map_err(|_| cut_short(primary))??;
            let (next, found) = match answers.pop() {
                Some(said) => scanned(said?),
                None => (0, Vec::new()),
            };
            let found = self.wish.wanted(&map, primary, found);
            if next == 0 && found.is_empty() {
                self.at += 1;
            } else {
                let cursor = (next > 0).then_some(next);
                self.asked = Some(self.wish.ask(&primary.console, found, cursor));
            }
            let seen = self.wish.seen(&primary.console, keys, answers).await?;
            if !seen.is_empty() {
                return Ok(Some(seen));
            }
        }
        Ok(None)
    }
}

impl Wish {
    /// Everybody's buckets in these layouts.
    pub fn all(layouts: Vec<Layout>) -> Wish {
        Wish { layouts, pattern: None, with_parts: false, with_memory: false }
    }

    /// One key that is known, without looking for it.
    pub async fn read(
        &self,
        deployment: &Deployment,
        layout: usize,
        identity: &str,
        key: &str,
    ) -> Result<Option<Seen>, StoreError> {
        let map = deployment.map();
        let found = Found {
            identity: identity.into(),
            key: key.into(),
            slot: map.slot_of(key.as_bytes()),
            node: map.primary_of(key.as_bytes()).map_or(String::new(), |p| p.place().into()),
            ..Found::default()
        };
        let keys = vec![(layout, found)];
        let answers = deployment.ask_about(key.as_bytes(), &self.questions(&keys)).await?;
        let Some(primary) = map.primary_of(key.as_bytes()) else { return Ok(None) };
        Ok(self.seen(&primary.console, keys, answers).await?.pop())
    }

    fn questions(&self, keys: &[(usize, Found)]) -> Vec<Words> {
        let mut commands = Vec::with_capacity(keys.len() * 3 + 2);
        commands.push(Words::of("TIME"));
        for (layout, found) in keys {
            commands.extend(self.layouts[*layout].questions(&found.key));
            commands.push(Words::of("PTTL").and(&found.key));
            if self.with_memory {
                commands.push(Words::of("MEMORY USAGE").and(&found.key));
            }
        }
        commands
    }

    /// Asks about these keys, and in the same breath for more.
    fn ask(&self, console: &Console, keys: Vec<(usize, Found)>, cursor: Option<u64>) -> Asked {
        let mut commands = self.questions(&keys);
        commands.push(match cursor {
            Some(cursor) => self.scan(cursor),
            // There is no more: something that costs nothing, so that the last answer is always that.
            None => Words::of("ECHO 0"),
        });
        let console = console.clone();
        Asked { keys, answers: tokio::spawn(async move { console.ask_all(&commands).await }) }
    }

    fn scan(&self, cursor: u64) -> Words {
        let scan = Words::of("SCAN").and(cursor.to_string());
        let scan = match self.layouts.as_slice() {
            // Parts are called otherwise.
            [one] if self.with_parts => scan.and("MATCH").and(one.glob(None)),
            [one] => scan.and("MATCH").and(one.glob(self.pattern.as_ref())),
            _ => scan,
        };
        scan.and("COUNT").and(KEYS_PER_SCAN.to_string())
    }

    /// Those of the keys that are meant.
    fn wanted(&self, map: &Map, primary: &Node, keys: Vec<Vec<u8>>) -> Vec<(usize, Found)> {
        let of_key = |key: Vec<u8>| {
            let key = String::from_utf8(key).ok()?;
            // Of several that fit, the one that says most about the key.
            let fitting = self.layouts.iter().enumerate().filter_map(|(place, layout)| {
                Some((layout.precision(), place, layout.owner(&key)?))
            });
            let (_, layout, identity) = fitting.max_by_key(|(precision, ..)| *precision)?;
            let is_part = || self.with_parts && self.means(split::whole(&identity));
            if !(self.means(&identity) || is_part()) {
                return None;
            }
            let slot = map.slot_of(key.as_bytes());
            let node = primary.place().to_owned();
            Some((layout, Found { identity, key, slot, node, ..Found::default() }))
        };
        keys.into_iter().filter_map(of_key).collect()
    }

    fn means(&self, identity: &str) -> bool {
        let means = |pattern: &Pattern| {
            Identity::opaque(identity).is_ok_and(|identity| pattern.matches(&identity))
        };
        self.pattern.as_ref().is_none_or(means)
    }

    async fn seen(
        &self,
        console: &Console,
        keys: Vec<(usize, Found)>,
        answers: Vec<Answered>,
    ) -> Result<Vec<Seen>, StoreError> {
        let mut answers = answers.into_iter();
        let now = match answers.next() {
            Some(time) => server_time(&time?),
            None => Micros::ZERO,
        };
        let mut all = Vec::with_capacity(keys.len());
        for (layout, mut found) in keys {
            let questions = self.layouts[layout].questions(&found.key).len();
            let about: Vec<Answered> = answers.by_ref().take(questions).collect();
            let ttl = answers.next().and_then(|ttl| ttl.ok()?.number()).unwrap_or(-2);
            if self.with_memory {
                let memory = answers.next().and_then(|memory| memory.ok()?.number());
                found.memory_bytes = memory.and_then(|bytes| u64::try_from(bytes).ok());
            }
            found.ttl = u64::try_from(ttl).ok().map(|ms| Micros(ms * 1_000));
            let held = match self.layouts[layout].read(&found.key, about, now) {
                // It went to another server since it was found, and will be found there.
                Err(StoreError::Refused { code, .. }) if is_gone(&code) => Held::Nothing,
                held => held?,
            };
            if ttl != -2 && !matches!(held, Held::Nothing) {
                all.push(Seen { found, held, buckets: Vec::new(), now, layout });
            }
        }
        let charges = self.charges(console, &all).await?;
        for seen in &mut all {
            let of_key = charges.get(&seen.found.key);
            let chunk = |field: &str| Some(of_key?.get(field)?.as_slice());
            let layout = &self.layouts[seen.layout];
            seen.buckets = layout.buckets(&seen.found, &seen.held, seen.now, chunk);
        }
        Ok(all)
    }

    /// The charges of sliding logs, by key and field.
    async fn charges(
        &self,
        console: &Console,
        all: &[Seen],
    ) -> Result<HashMap<String, HashMap<String, Vec<u8>>>, StoreError> {
        let (mut commands, mut asked) = (Vec::new(), Vec::new());
        for seen in all {
            let Held::Records(records) = &seen.held else { continue };
            for fields in records.iter().map(|record| record.chunks()) {
                for some in fields.chunks(FIELDS_PER_READ) {
                    let read = Words::of("HMGET").and(format!("{}:log", seen.found.key));
                    commands.push(some.iter().fold(read, |read, field| read.and(field)));
                    asked.push((&seen.found.key, some.to_vec()));
                }
            }
        }
        let mut found: HashMap<String, HashMap<String, Vec<u8>>> = HashMap::new();
        if commands.is_empty() {
            return Ok(found);
        }
        for ((key, fields), answer) in asked.into_iter().zip(console.ask_all(&commands).await?) {
            let values = answer.map(Said::into_list).unwrap_or_default();
            let of_key = found.entry(key.clone()).or_default();
            let both = fields.into_iter().zip(values.into_iter().map(Said::into_bytes));
            of_key.extend(both.filter_map(|(field, value)| Some((field, value?))));
        }
        Ok(found)
    }
}

/// Its task has ended without an answer, as when the process ends.
fn cut_short(primary: &Node) -> StoreError {
    StoreError::Cut { url: primary.place().into(), why: "the walk was cut short".into() }
}

fn is_gone(code: &str) -> bool {
    matches!(code, "MOVED" | "ASK" | "TRYAGAIN")
}
