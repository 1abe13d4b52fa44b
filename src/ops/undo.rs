//! The backup of a reset brought back: every key as it was, in place of what is there now.

use std::iter::Peekable;

use super::backup::{Backup, BackupError, Entries, Entry};
use super::reset::{KEYS_AT_ONCE, SHOWN, all_done, now, send};
use super::site::Site;
use crate::engine::clock::Micros;
use crate::engine::store::StoreError;
use crate::engine::store::redis::{Deployment, Words};

#[derive(Debug, thiserror::Error)]
pub enum UndoError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Backup(#[from] BackupError),
    #[error("this backup has keys of the store {0}: give the rules that name it with --rules")]
    NoStore(String),
}

/// How a backup was brought back, or would be.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Restored {
    pub restored: u64,
    /// Would have expired by now.
    pub expired: u64,
    /// Of the restored, those that hold something else before it.
    pub replaced: u64,
    /// The first of these.
    #[serde(skip)]
    pub replaced_keys: Vec<String>,
}

/// What would be put back, and in place of what; nothing is changed.
pub async fn restorable(sites: &[Site], backup: &Backup) -> Result<Restored, UndoError> {
    let mut result = Restored::default();
    let mut batches = Batches::of(backup)?;
    while let Some(Batch { store, entries }) = batches.next()? {
        let deployment = deployment_of(sites, store.as_deref())?;
        let alive = result.alive(entries, now(deployment).await?);
        let dump = |entry: &Entry| (entry.key.clone(), Words::of("DUMP").and(&entry.key));
        let commands: Vec<_> = alive.iter().map(dump).collect();
        for (entry, held) in alive.iter().zip(send(deployment, &commands).await?) {
            if held?.into_bytes().is_some_and(|held| held != entry.dump) {
                result.replaced += 1;
                if result.replaced_keys.len() < SHOWN {
                    result.replaced_keys.push(String::from_utf8_lossy(&entry.key).into());
                }
            }
        }
    }
    Ok(result)
}

/// Puts every key of a backup back as it was, in place of what is there now.
pub async fn restore(
    sites: &[Site],
    backup: &Backup,
    mut tell: impl FnMut(u64),
) -> Result<Restored, UndoError> {
    let mut result = Restored::default();
    let mut batches = Batches::of(backup)?;
    while let Some(Batch { store, entries }) = batches.next()? {
        let deployment = deployment_of(sites, store.as_deref())?;
        let alive = result.alive(entries, now(deployment).await?);
        let restore = |Entry { key, dump, expires_ms, .. }: Entry| {
            let at = expires_ms.unwrap_or(0).to_string();
            let words = Words::of("RESTORE").and(&key).and(at).and(dump);
            (key, words.and("REPLACE").and("ABSTTL"))
        };
        let commands: Vec<_> = alive.into_iter().map(restore).collect();
        all_done(send(deployment, &commands).await?)?;
        tell(result.restored);
    }
    Ok(result)
}

impl Restored {
    /// Counts some entries, and gives those that have not expired.
    fn alive(&mut self, mut batch: Vec<Entry>, now: Micros) -> Vec<Entry> {
        let all = batch.len() as u64;
        batch.retain(|entry| entry.expires_ms.is_none_or(|at| at > now.0 / 1_000));
        self.restored += batch.len() as u64;
        self.expired += all - batch.len() as u64;
        batch
    }
}

fn deployment_of<'a>(sites: &'a [Site], store: Option<&str>) -> Result<&'a Deployment, UndoError> {
    let site = sites.iter().find(|site| site.store.as_deref() == store);
    let unknown = || UndoError::NoStore(store.unwrap_or_default().into());
    site.map(|site| &site.deployment).ok_or_else(unknown)
}

/// Keys of one store.
struct Batch {
    store: Option<String>,
    entries: Vec<Entry>,
}

/// A backup in pieces.
struct Batches<'a>(Peekable<Entries<'a>>);

impl Batches<'_> {
    fn of(backup: &Backup) -> Result<Batches<'_>, BackupError> {
        Ok(Batches(backup.entries()?.peekable()))
    }

    fn next(&mut self) -> Result<Option<Batch>, BackupError> {
        let Some(first) = self.0.next().transpose()? else { return Ok(None) };
        let store = first.store.clone();
        let mut entries = vec![first];
        let is_here = |entry: &Result<Entry, BackupError>| match entry {
            Ok(entry) => entry.store == store,
            Err(_) => true,
        };
        while entries.len() < KEYS_AT_ONCE
            && let Some(entry) = self.0.next_if(is_here)
        {
            entries.push(entry?);
        }
        Ok(Some(Batch { store, entries }))
    }
}
