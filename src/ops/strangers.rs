//! State of limiters that are not ours: that of one identity, and keys that look as if they were.

use super::bucket::Bucket;
use super::dialect::Place;
use super::layout::{Held, Layout};
use super::walk::{Seen, Walk, Wish};
use crate::engine::identity::{Identity, Pattern};
use crate::engine::store::StoreError;
use crate::engine::store::keys::Prefix;
use crate::engine::store::redis::{Deployment, Words, scanned};

/// Looks at this many keys, to say what kind there is.
const SAMPLE: &str = "250";
/// Looks that a search for similar keys takes at most, and what it tells.
const MOST_LOOKS: usize = 200;
const MOST_TOLD: usize = 3;

/// Every limit of an identity in these layouts. Keys that say more than the identity are looked for
/// with SCAN; the others are known.
pub async fn buckets(
    deployment: &Deployment,
    layouts: &[Layout],
    identity: &Identity,
) -> Result<Vec<Bucket>, StoreError> {
    let mut wish = Wish { with_memory: true, ..Wish::all(layouts.to_vec()) };
    let mut all: Vec<Seen> = Vec::new();
    let mut open = Vec::new();
    for (place, layout) in layouts.iter().enumerate() {
        for key in layout.keys_of(identity) {
            match key {
                Place::Key(key) => {
                    all.extend(wish.read(deployment, place, identity.as_str(), &key).await?);
                }
                Place::Glob(_) if open.contains(&place) => {}
                Place::Glob(_) => open.push(place),
            }
        }
    }
    if !open.is_empty() {
        wish.pattern = Some(Pattern::Exact(identity.clone()));
        for place in open {
            // One layout a walk, so that the server sorts out its keys.
            let one = Wish { layouts: vec![layouts[place].clone()], ..wish.clone() };
            let mut walk = Walk::new(deployment, one)?;
            while let Some(seen) = walk.next().await? {
                all.extend(seen.into_iter().map(|seen| Seen { layout: place, ..seen }));
            }
        }
    }
    Ok(joined(layouts, all))
}

/// The two counts of a sliding window are one limit.
fn joined(layouts: &[Layout], mut all: Vec<Seen>) -> Vec<Bucket> {
    let mut buckets = Vec::new();
    // The newest first: it is the one that goes on.
    all.sort_by(|a, b| (a.layout, &b.found.key).cmp(&(b.layout, &a.found.key)));
    let mut rest = all.into_iter().peekable();
    while let Some(mut seen) = rest.next() {
        while let Some(next) = rest.peek()
            && next.layout == seen.layout
            && let (Held::Foreign(own), Held::Foreign(other)) = (&mut seen.held, &next.held)
            && own.join(other)
        {
            rest.next();
        }
        buckets.extend(layouts[seen.layout].buckets(&seen.found, &seen.held, seen.now, |_| None));
    }
    buckets
}

/// Whether anything of ours is among the first keys that come.
pub async fn has_ours(deployment: &Deployment, prefix: &Prefix) -> Result<bool, StoreError> {
    for primary in &deployment.map().primaries {
        let scan = Words::of("SCAN 0 MATCH").and(prefix.everything_glob()).and("COUNT").and(SAMPLE);
        let said = primary.console.ask_all(&[scan]).await?.into_iter().next();
        if said.is_some_and(|said| said.is_ok_and(|said| !scanned(said).1.is_empty())) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A key that is named as one of these layouts names them, if there is one among the first that
/// come.
pub async fn example(
    deployment: &Deployment,
    layouts: &[Layout],
) -> Result<Option<String>, StoreError> {
    for primary in &deployment.map().primaries {
        let mut cursor = 0;
        for _ in 0..MOST_LOOKS {
            let scan = Words::of("SCAN").and(cursor.to_string()).and("COUNT").and(SAMPLE);
            let Some(said) = primary.console.ask_all(&[scan]).await?.pop() else { break };
            let (next, keys) = scanned(said?);
            let names = keys.into_iter().filter_map(|key| String::from_utf8(key).ok());
            let is_known = |key: &String| layouts.iter().any(|l| l.owner(key).is_some());
            if let Some(key) = names.into_iter().find(is_known) {
                return Ok(Some(key));
            }
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
    }
    Ok(None)
}

/// A few keys, not ours, with the id of an identity in their names, each with its type.
pub async fn similar_keys(
    deployment: &Deployment,
    prefix: &Prefix,
    identity: &str,
) -> Result<Vec<String>, StoreError> {
    let id = identity.split_once(':').map_or(identity, |(_, id)| id);
    let plain = id.chars().all(|c| c.is_alphanumeric() || ":._-@".contains(c));
    let mut found = Vec::new();
    if !plain {
        return Ok(found);
    }
    for primary in &deployment.map().primaries {
        let mut cursor = 0;
        for _ in 0..MOST_LOOKS {
            let scan =
                Words::of("SCAN").and(cursor.to_string()).and("MATCH").and(format!("*{id}*"));
            let scan = scan.and("COUNT").and(SAMPLE);
            let Some(Ok(said)) = primary.console.ask_all(&[scan]).await?.pop() else { break };
            let (next, keys) = scanned(said);
            let not_ours = |key: &&Vec<u8>| !key.starts_with(prefix.as_str().as_bytes());
            for key in keys.iter().filter(not_ours) {
                if found.len() == MOST_TOLD {
                    return Ok(found);
                }
                let kind = Words::of("TYPE").and(key);
                let kind = primary.console.ask_all(&[kind]).await?.pop();
                let kind = kind.and_then(Result::ok).map(|kind| kind.into_text());
                let kind = kind.unwrap_or_else(|| "unknown".into());
                found.push(format!("`{}` ({kind})", String::from_utf8_lossy(key)));
            }
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
    }
    Ok(found)
}
