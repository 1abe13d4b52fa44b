//! `[stores.NAME]`: Redis servers that rules name.

use std::sync::Arc;

use super::super::clock::Micros;
use super::super::policy::{NamedStore, StoreUrl};
use super::super::store::keys::{DEFAULT_PREFIX, Prefix};
use super::super::store::redis::RedisAddress;
use super::policy::Spans;
use super::source::Findings;
use super::tree::{Entry, Table};

/// Each has connections of its own to all of its servers.
const MAX_STORES: usize = 64;
const CONNECT_WITHIN: Micros = Micros::SECOND;

pub(super) fn read<'t>(
    table: &Table<'t>,
    spans: &mut Spans,
    findings: &mut Findings<'t>,
) -> Vec<Arc<NamedStore>> {
    if let Some(entry) = table.entries.get(MAX_STORES) {
        let message = format!("{} stores are too many; at most {MAX_STORES}", table.entries.len());
        findings.error(entry.key_span, message, "a cluster takes many identities under one name");
    }
    let mut stores = Vec::new();
    for entry in table.entries.iter().take(MAX_STORES) {
        if let Some(store) = store(entry, findings) {
            stores.push(Arc::new(store));
            spans.stores.push(entry.key_span);
        }
    }
    stores
}

/// None only when something was reported.
fn store<'t>(entry: &Entry<'t>, findings: &mut Findings<'t>) -> Option<NamedStore> {
    let table = entry.node.table()?;
    let url = table.text("url")?;
    if let Err(error) = RedisAddress::parse(url.it, None) {
        let said = error.to_string();
        let (message, hint) =
            said.split_once("; ").unwrap_or((&said, "e.g. redis://10.0.0.5:6379"));
        findings.error_in_secret(url.span, message, hint);
        return None;
    }
    let prefix = match table.text("prefix") {
        None => DEFAULT_PREFIX,
        Some(text) => {
            if let Err(error) = Prefix::new(text.it) {
                let said = error.to_string();
                let (message, hint) = said.split_once("; ").unwrap_or((&said, "e.g. rl1:"));
                findings.error(text.span, message, hint);
                return None;
            }
            text.it
        }
    };
    Some(NamedStore {
        name: entry.key.as_ref().into(),
        url: StoreUrl::new(url.it),
        prefix: prefix.into(),
        connections: table.count("connections").and_then(|n| u32::try_from(n.it).ok()).unwrap_or(1),
        connect_timeout: table.duration("connect_timeout").unwrap_or(CONNECT_WITHIN),
        deadline: table.duration("deadline"),
        place: findings.source.place(entry.key_span.start),
    })
}
