//! A policy that changes while traffic flows: what is in force, where it came from, and why a newer
//! one is not. Texts are fed in, whole policies come out; only `follow` waits and only `file` reads.

mod file;
mod follow;
mod limiter;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwapOption;
use sha2::{Digest, Sha256};

use super::clock::Micros;
use super::config::{ConfigErrors, parse_policy};
use super::policy::Policy;
use super::registry::{Snapshot, Switches, switched};
use super::rules::Rules;
pub use follow::{FILE_EVERY, REGISTRY_EVERY};
pub use limiter::{LiveLimiter, Moment};

/// Enough of a hash to tell policies apart, as for published versions.
const SHORT_HASH: usize = 12;

/// Where a policy comes from; a process has one kind of source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    File(Arc<str>),
    /// The version that is published in the store.
    Published(u64),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::File(path) => f.write_str(path),
            Source::Published(version) => write!(f, "published version {version}"),
        }
    }
}

/// What is known of the policy in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    pub source: Source,
    /// The published one; of a file, how many texts of it this process has accepted.
    pub version: u64,
    /// SHA-256 of the text, in hex.
    pub hash: String,
    pub at: Micros,
    /// How much in it is valid but hardly meant.
    pub warnings: usize,
}

impl Loaded {
    pub fn short_hash(&self) -> &str {
        self.hash.get(..SHORT_HASH).unwrap_or(&self.hash)
    }
}

/// The policy in force, without the rules that are switched off. Whole: a request takes it once.
#[derive(Debug)]
pub struct Current {
    pub rules: Arc<Rules>,
    pub loaded: Arc<Loaded>,
}

/// The policy as somebody wrote it.
#[derive(Clone, Debug)]
pub struct Written {
    pub policy: Arc<Policy>,
    pub text: Arc<str>,
    pub loaded: Arc<Loaded>,
}

/// A text that did not become the policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the policy was refused, and what was in force stays: {why}")]
pub struct Refused {
    pub from: Source,
    pub why: ConfigErrors,
    pub at: Micros,
    /// Of the text, where it could be read as one.
    hash: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// It is the policy from now on.
    New(Arc<Loaded>),
    /// It was already.
    Unchanged,
}

/// Why the source cannot be read, since when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    pub why: String,
    pub since: Micros,
}

/// What there is to tell about a policy.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// None: there was none to be had yet.
    pub loaded: Option<Arc<Loaded>>,
    /// Why the newest text is not in force, if that is so.
    pub refused: Option<Arc<Refused>>,
    /// How many texts were refused since the start.
    pub refusals: u64,
    pub trouble: Option<Trouble>,
}

#[derive(Debug, Default)]
pub struct LivePolicy {
    current: ArcSwapOption<Current>,
    /// Whoever changes what is in force holds this; whoever decides never waits for it.
    feed: Mutex<Feed>,
}

#[derive(Debug, Default)]
struct Feed {
    /// As it was written, before anything is switched off.
    written: Option<Written>,
    switches: Arc<Switches>,
    accepted: u64,
    refused: Option<Arc<Refused>>,
    refusals: u64,
    trouble: Option<Trouble>,
}

impl LivePolicy {
    /// The policy in force, for one request from its start to its end; none: there is none yet.
    pub fn current(&self) -> Option<Arc<Current>> {
        self.current.load_full()
    }

    /// What is in force, before anything is switched off by hand.
    pub fn written(&self) -> Option<Written> {
        self.feed().written.clone()
    }

    pub fn status(&self) -> Status {
        let feed = self.feed();
        Status {
            loaded: feed.written.as_ref().map(|written| written.loaded.clone()),
            refused: feed.refused.clone(),
            refusals: feed.refusals,
            trouble: feed.trouble.clone(),
        }
    }

    /// A text from the source. If it cannot be used, what is in force stays.
    pub fn offer(
        &self,
        text: &str,
        source: &Source,
        now: Micros,
    ) -> Result<Accepted, Arc<Refused>> {
        let mut feed = self.feed();
        let taken = feed.take(text, source, now);
        if let Ok(Accepted::New(_)) = &taken {
            self.put_in_force(&feed);
        }
        taken
    }

    /// The source could be read, but not as a text.
    pub fn refuse(&self, source: &Source, why: ConfigErrors, now: Micros) -> Arc<Refused> {
        let mut feed = self.feed();
        feed.trouble = None;
        feed.refuse(Refused { from: source.clone(), why, at: now, hash: None })
    }

    /// The source cannot be read; what is in force stays.
    pub fn cannot_read(&self, why: &str, now: Micros) {
        let mut feed = self.feed();
        let since = feed.trouble.as_ref().map_or(now, |trouble| trouble.since);
        feed.trouble = Some(Trouble { why: why.into(), since });
    }

    /// Switches rules off and on without reading the policy again.
    pub fn switch(&self, switches: &Arc<Switches>) {
        let mut feed = self.feed();
        if feed.set_switches(switches) {
            self.put_in_force(&feed);
        }
    }

    /// What is published and what is switched off, at one moment.
    pub fn follow_snapshot(&self, snapshot: &Snapshot, now: Micros) {
        let mut feed = self.feed();
        let switched = feed.set_switches(&snapshot.switches);
        let taken = match &snapshot.published {
            Some(published) => {
                let source = Source::Published(published.version.version);
                // A refusal is kept where it is told from.
                feed.take(&published.text, &source, now).ok()
            }
            None => {
                let why = "there is no published policy to be had".to_owned();
                feed.trouble.get_or_insert(Trouble { why, since: now });
                None
            }
        };
        if switched || matches!(taken, Some(Accepted::New(_))) {
            self.put_in_force(&feed);
        }
    }

    fn put_in_force(&self, feed: &Feed) {
        let Some(Written { policy, loaded, .. }) = &feed.written else { return };
        let Switches { disabled, on_store_error, .. } = &*feed.switches;
        let policy = if disabled.is_empty() && on_store_error.is_empty() {
            policy.clone()
        } else {
            Arc::new(switched(Policy::clone(policy), &feed.switches))
        };
        let current = Current { rules: Arc::new(Rules::new(policy)), loaded: loaded.clone() };
        self.current.store(Some(Arc::new(current)));
    }

    fn feed(&self) -> MutexGuard<'_, Feed> {
        self.feed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Feed {
    fn take(&mut self, text: &str, source: &Source, now: Micros) -> Result<Accepted, Arc<Refused>> {
        self.trouble = None;
        let digest = Sha256::digest(text.as_bytes());
        let hash: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let in_force = |loaded: &Loaded| loaded.hash == hash && loaded.source == *source;
        if self.written.as_ref().is_some_and(|written| in_force(&written.loaded)) {
            // Whoever broke the file has taken that back.
            self.refused = None;
            return Ok(Accepted::Unchanged);
        }
        let again = |r: &&Arc<Refused>| r.hash.as_ref() == Some(&hash) && r.from == *source;
        if let Some(refused) = self.refused.as_ref().filter(again) {
            return Err(refused.clone());
        }
        match parse_policy(&source.to_string(), text, now) {
            Ok((policy, warnings)) => {
                self.accepted += 1;
                self.refused = None;
                let version = match source {
                    Source::File(_) => self.accepted,
                    Source::Published(version) => *version,
                };
                let source = source.clone();
                let loaded = Loaded { source, version, hash, at: now, warnings: warnings.len() };
                let loaded = Arc::new(loaded);
                let (policy, text) = (Arc::new(policy), text.into());
                self.written = Some(Written { policy, text, loaded: loaded.clone() });
                Ok(Accepted::New(loaded))
            }
            Err(why) => {
                let from = source.clone();
                Err(self.refuse(Refused { from, why, at: now, hash: Some(hash) }))
            }
        }
    }

    fn refuse(&mut self, refused: Refused) -> Arc<Refused> {
        // What is read twice is refused once.
        let same = |old: &&Arc<Refused>| {
            old.from == refused.from && old.hash == refused.hash && old.why == refused.why
        };
        if let Some(old) = self.refused.as_ref().filter(same) {
            return old.clone();
        }
        self.refusals += 1;
        let refused = Arc::new(refused);
        self.refused = Some(refused.clone());
        refused
    }

    /// Whether rules are others now: off, or with another mode. Observe-only is not a matter of
    /// rules.
    fn set_switches(&mut self, switches: &Arc<Switches>) -> bool {
        let same = self.switches.disabled.keys().eq(switches.disabled.keys())
            && self.switches.on_store_error == switches.on_store_error;
        self.switches = switches.clone();
        !same
    }
}
