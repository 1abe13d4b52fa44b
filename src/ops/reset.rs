//! Quota forgotten, with a backup of it.
//!
//! First what is there is read and told, then it is written to a file, and only what stands in that
//! file is removed. What operators decided about an identity is spared.

use super::backup::{Backup, BackupError, Entry, Writer};
use super::bucket::Bucket;
use super::dialect::Place;
use super::layout::{Held, Layout};
use super::look::server_time;
use super::walk::{Seen, Walk, Wish};
use crate::engine::clock::Micros;
use crate::engine::identity::Pattern;
use crate::engine::split;
use crate::engine::store::StoreError;
use crate::engine::store::redis::{Answered, Deployment, Said, Words, reset_of_rule};

/// Keys in one round trip: a millisecond or so for the server in all, and none of it in one piece.
pub(super) const KEYS_AT_ONCE: usize = 200;
/// What a plan shows; more are only counted.
pub const SHOWN: usize = 20;
/// Identities that a plan knows by name; more are only counted.
pub const NAMED: usize = 100;

#[derive(Debug, thiserror::Error)]
pub enum ResetError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Backup(#[from] BackupError),
}

/// Whose quota, of which rule.
#[derive(Clone, Debug)]
pub struct Scope {
    /// What rules call the Redis that it is on; none: the one that counts what names no other.
    pub store: Option<String>,
    pub layouts: Vec<Layout>,
    pub pattern: Pattern,
    /// Also of the parts of identities that rules divide, where a family or a network is meant.
    pub with_parts: bool,
    /// None: of all.
    pub rule: Option<String>,
}

/// What would be forgotten.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    pub identities: u64,
    pub limits: u64,
    /// Sum of what is used.
    pub used: u64,
    /// The first of them.
    pub shown: Vec<Planned>,
    /// The first of the identities.
    pub owners: Vec<String>,
    /// Keys that cannot be read, and why: they stay.
    pub unreadable: Vec<(String, String)>,
}

#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Planned {
    pub identity: String,
    pub rule: String,
    pub limit: String,
    pub used: Option<u64>,
    pub remaining: Option<u64>,
    pub key: String,
    pub store: Option<String>,
}

impl Plan {
    fn add(&mut self, seen: &Seen, scope: &Scope) {
        if let Held::Unreadable(why) = &seen.held {
            if self.unreadable.len() < SHOWN {
                self.unreadable.push((seen.found.key.clone(), why.clone()));
            }
            return;
        }
        let of_rule = |name: &str| scope.rule.as_ref().is_none_or(|rule| rule == name);
        let buckets: Vec<_> = seen.buckets.iter().filter(|b| of_rule(&b.rule)).collect();
        if !buckets.is_empty() {
            let owner = split::whole(&seen.found.identity);
            let is_known = || self.owners.iter().any(|known| known == owner);
            if !(scope.with_parts && is_known()) {
                self.identities += 1;
                if self.owners.len() < NAMED {
                    self.owners.push(owner.into());
                }
            }
        }
        for bucket in buckets {
            self.limits += 1;
            self.used += bucket.used.unwrap_or(0);
            if self.shown.len() < SHOWN {
                self.shown.push(Planned {
                    identity: seen.found.identity.clone(),
                    rule: bucket.rule.clone(),
                    limit: bucket.limit_text(),
                    used: bucket.used,
                    remaining: bucket.remaining,
                    key: bucket.key.clone(),
                    store: scope.store.clone(),
                });
            }
        }
    }

    /// Whoever has used something of several stores, or in several parts, is one identity, as far as
    /// names are known.
    pub fn merge(&mut self, other: Plan) {
        let mut owners = other.owners;
        owners.retain(|owner| !self.owners.contains(owner));
        let both = other.identities.min(NAMED as u64) - owners.len() as u64;
        self.identities += other.identities - both;
        self.limits += other.limits;
        self.used += other.used;
        let room = SHOWN.saturating_sub(self.shown.len());
        self.shown.extend(other.shown.into_iter().take(room));
        let room = NAMED.saturating_sub(self.owners.len());
        self.owners.extend(owners.into_iter().take(room));
        self.unreadable.extend(other.unreadable);
    }
}

/// The keys of a scope, batch by batch: by SCAN, or where they are known, without it.
enum Source {
    Walk(Box<Walk>),
    Known(Option<Vec<Seen>>),
}

impl Source {
    async fn next(&mut self) -> Result<Option<Vec<Seen>>, StoreError> {
        match self {
            Source::Walk(walk) => walk.next().await,
            Source::Known(seen) => Ok(seen.take()),
        }
    }
}

impl Scope {
    async fn source(&self, deployment: &Deployment) -> Result<Source, StoreError> {
        let wish = Wish {
            layouts: self.layouts.clone(),
            pattern: Some(self.pattern.clone()),
            with_parts: self.with_parts,
            with_memory: false,
        };
        let Pattern::Exact(identity) = &self.pattern else {
            return Ok(Source::Walk(Box::new(Walk::new(deployment, wish)?)));
        };
        let mut known = Vec::new();
        for (place, layout) in self.layouts.iter().enumerate() {
            for key in layout.keys_of(identity) {
                let Place::Key(key) = key else {
                    return Ok(Source::Walk(Box::new(Walk::new(deployment, wish)?)));
                };
                known.extend(wish.read(deployment, place, identity.as_str(), &key).await?);
            }
        }
        Ok(Source::Known(Some(known)))
    }

    /// What is there.
    pub async fn plan(
        &self,
        deployment: &Deployment,
        mut tell: impl FnMut(&Plan),
    ) -> Result<Plan, StoreError> {
        let (mut plan, mut source) = (Plan::default(), self.source(deployment).await?);
        while let Some(batch) = source.next().await? {
            batch.iter().for_each(|seen| plan.add(seen, self));
            tell(&plan);
        }
        Ok(plan)
    }

    /// Writes everything that will be removed to the backup.
    pub async fn back_up(
        &self,
        deployment: &Deployment,
        writer: &mut Writer,
        mut tell: impl FnMut(u64),
    ) -> Result<(), ResetError> {
        let mut source = self.source(deployment).await?;
        let mut done = 0;
        while let Some(batch) = source.next().await? {
            let is_meant = |bucket: &Bucket| self.rule.as_ref().is_none_or(|r| *r == bucket.rule);
            let meant = batch.iter().filter(|seen| seen.buckets.iter().any(is_meant));
            let groups: Vec<Vec<String>> = meant.map(|seen| self.keys_of(seen)).collect();
            for some in groups.chunks(KEYS_AT_ONCE) {
                for entry in dumped(deployment, some).await? {
                    writer.push(&Entry { store: self.store.clone(), ..entry })?;
                }
                done += some.len() as u64;
                tell(done);
            }
        }
        Ok(())
    }

    /// All keys that belong together; they share a slot.
    fn keys_of(&self, seen: &Seen) -> Vec<String> {
        let key = seen.found.key.clone();
        match &self.layouts[seen.layout] {
            Layout::Own(_) => vec![format!("{key}:log"), key],
            Layout::Foreign(_) => vec![key],
        }
    }

    /// Removes what stands in the backup of this Redis, and nothing else.
    pub async fn remove(
        &self,
        deployment: &Deployment,
        backup: &Backup,
        mut tell: impl FnMut(u64),
    ) -> Result<(), ResetError> {
        let mut done = 0;
        let is_here = |entry: &Result<Entry, BackupError>| {
            entry.as_ref().map_or(true, |entry| entry.store == self.store)
        };
        let mut entries = backup.entries()?.filter(is_here).peekable();
        while entries.peek().is_some() {
            let mut commands = Vec::new();
            for entry in entries.by_ref().take(KEYS_AT_ONCE) {
                let key = entry?.key;
                done += 1;
                commands.extend(self.removal(key));
            }
            all_done(send(deployment, &commands).await?)?;
            tell(done);
        }
        Ok(())
    }

    /// How to remove a key; of a rule, its records go and the others stay.
    fn removal(&self, key: Vec<u8>) -> Option<(Vec<u8>, Words)> {
        let is_own = matches!(self.layouts.as_slice(), [Layout::Own(_)]);
        match &self.rule {
            Some(rule) if is_own => {
                // The hash of charges is taken care of with the quota that it belongs to.
                key.ends_with(b"}").then(|| {
                    let log = [key.as_slice(), b":log"].concat();
                    let forget = reset_of_rule(&key, &log, rule);
                    (key, forget)
                })
            }
            _ => {
                let unlink = Words::of("UNLINK").and(&key);
                Some((key, unlink))
            }
        }
    }
}

/// On the clock by which keys expire.
pub async fn now(deployment: &Deployment) -> Result<Micros, StoreError> {
    let time = deployment.ask_on(b"", &Words::of("TIME")).await?;
    Ok(server_time(&time))
}

/// Groups of keys as DUMP gives them, each group at one moment; without those that are gone.
async fn dumped(deployment: &Deployment, groups: &[Vec<String>]) -> Result<Vec<Entry>, StoreError> {
    let ask = |key: &String| [Words::of("DUMP").and(key), Words::of("PEXPIRETIME").and(key)];
    let map = deployment.map();
    let mut entries = Vec::new();
    let mut left = groups;
    while let Some(first) = left.first() {
        let here = |group: &Vec<String>| {
            let key = group.first().map_or("", String::as_str);
            map.primary_of(key.as_bytes()).map(|primary| primary.place())
        };
        let length = left.iter().take_while(|group| here(group) == here(first)).count();
        let (some, rest) = left.split_at(length);
        left = rest;
        let commands: Vec<Vec<Words>> =
            some.iter().map(|group| group.iter().flat_map(ask).collect()).collect();
        let slices: Vec<&[Words]> = commands.iter().map(Vec::as_slice).collect();
        let key = first.first().map_or("", String::as_str);
        let mut told = match map.primary_of(key.as_bytes()) {
            Some(primary) => primary.console.ask_groups(&slices).await?,
            None => Vec::new(),
        }
        .into_iter();
        for (group, commands) in some.iter().zip(&commands) {
            let answers = match told.next() {
                Some(Ok(answers)) => answers,
                // It may have moved.
                _ => deployment.ask_about(group[0].as_bytes(), commands).await?,
            };
            entries.extend(entries_of(group, answers)?);
        }
    }
    Ok(entries)
}

fn entries_of(group: &[String], answers: Vec<Answered>) -> Result<Vec<Entry>, StoreError> {
    let mut answers = answers.into_iter();
    let mut next = || answers.next().unwrap_or(Ok(Said::Nothing));
    let mut entries = Vec::new();
    for key in group {
        let (dump, expires) = (next()?, next()?);
        let Some(dump) = dump.into_bytes() else { continue };
        let expires_ms = expires.number().and_then(|at| u64::try_from(at).ok());
        entries.push(Entry { store: None, key: key.clone().into_bytes(), dump, expires_ms });
    }
    Ok(entries)
}

/// Commands with the key that each is about, in pipelines to the servers that have them.
pub(super) async fn send(
    deployment: &Deployment,
    commands: &[(Vec<u8>, Words)],
) -> Result<Vec<Answered>, StoreError> {
    let map = deployment.map();
    let mut answers = Vec::with_capacity(commands.len());
    let mut left = commands;
    while let Some((key, _)) = left.first() {
        // Runs of keys on one server travel together.
        let here = |key: &[u8]| map.primary_of(key).map(|primary| primary.place());
        let length = left.iter().take_while(|(other, _)| here(other) == here(key)).count();
        let (some, rest) = left.split_at(length);
        left = rest;
        let words: Vec<Words> = some.iter().map(|(_, words)| words.clone()).collect();
        let sent = match map.primary_of(key) {
            Some(primary) => primary.console.ask_all(&words).await?,
            None => Vec::new(),
        };
        for (place, (key, words)) in some.iter().enumerate() {
            match sent.get(place) {
                Some(Ok(said)) => answers.push(Ok(said.clone())),
                // It may have moved; then it has not run.
                _ => answers.push(deployment.ask_on(key, words).await),
            }
        }
    }
    Ok(answers)
}

pub(super) fn all_done(answers: Vec<Answered>) -> Result<(), StoreError> {
    answers.into_iter().try_for_each(|answer| answer.map(drop))
}
