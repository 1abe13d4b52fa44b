//! What operators keep in the store beside the buckets: tiers, overrides, blocks and exemptions of
//! identities, lists of patterns, switches, the published policy with its history, and the trail
//! of who changed what and why.
//!
//! A write reads the document, makes the next version of it (`edit`, the same for every store),
//! and replaces it only if it is still the one that was read; otherwise it begins again. So no
//! change undoes another one unseen, and what it replaced is known.

mod cache;
mod data;
mod edit;
pub(crate) mod fleet;
mod follow;
mod memory;
mod standing;
mod view;

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::json;
use sha2::{Digest, Sha256};

use super::clock::Micros;
use super::hot::Report;
use super::identity::Identity;
use super::store::StoreError;
use super::store::redis::RedisRegistry;
pub use data::{
    Event, EventId, EventIdError, Grant, Kind, Listed, Lists, Override, OverrideLimit, Published,
    Subject, Switches, Terms, Version,
};
pub use edit::{Change, Lasts, ListChange, MAX_NAME_BYTES, MAX_OVERRIDES, MAX_PATTERNS, Switch};
pub(crate) use edit::{Edit, OfSubject, edited};
pub use fleet::{HEARD_WITHIN, Member};
pub use follow::FOLLOW_EVERY;
pub use memory::MemoryRegistry;
pub use standing::{standing, switched};
pub use view::{Snapshot, View};

pub const MAX_REASON_BYTES: usize = 1_024;
const MAX_ACTOR_BYTES: usize = 256;
pub const MAX_POLICY_BYTES: usize = 8 << 20;
/// Versions of the policy that are kept with their text.
pub const KEPT_VERSIONS: u64 = 50;
/// Events that are kept.
pub const DEFAULT_MAX_EVENTS: usize = 10_000;
/// More news than this at once is told as a gap: reading everything again is cheaper.
pub(crate) const MAX_NEWS: usize = 1_000;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("a change needs a reason; write why, for whoever finds it in a year")]
    NoReason,
    #[error("{what} of {bytes} bytes is too long; at most {most}")]
    TooLong { what: &'static str, bytes: usize, most: usize },
    #[error("{0} cannot contain control characters (found U+{1:04X})")]
    Control(&'static str, u32),
    #[error(
        "`{name}` cannot be the name of {what}; 1 to {MAX_NAME_BYTES} of a-z, 0-9 and -, as in a rules file"
    )]
    Name { what: &'static str, name: String },
    #[error("an override needs a limit; to let somebody pass without one, exempt them")]
    NoLimit,
    #[error("there are too many {what}; at most {most}")]
    TooMany { what: &'static str, most: usize },
    #[error(
        "the policy is at version {current} by now, not at {expected}; rlctl rules history shows who published it"
    )]
    Conflict { current: u64, expected: u64 },
    #[error("version {0} of the policy is not kept; rlctl rules history shows those that are")]
    NoVersion(u64),
    #[error("others keep changing {0}; try again")]
    Contended(String),
    #[error("the change holds, but its event could not be written: {0}; make it once more")]
    Unrecorded(StoreError),
    #[error("`{key}` holds what this version of rlctl cannot read: {why}")]
    Unreadable { key: String, why: String },
}

/// Who wants a change, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intent {
    by: String,
    reason: String,
    at: Option<Micros>,
    dry_run: bool,
}

impl Intent {
    pub fn new(by: &str, reason: &str) -> Result<Intent, RegistryError> {
        let reason = reason.trim();
        if reason.is_empty() {
            return Err(RegistryError::NoReason);
        }
        check_text("a reason", reason, MAX_REASON_BYTES)?;
        check_text("the name of who changes it", by, MAX_ACTOR_BYTES)?;
        Ok(Intent { by: by.into(), reason: reason.into(), at: None, dry_run: false })
    }

    /// At this time and not on the store's clock: for virtual time and tests.
    pub fn at(self, now: Micros) -> Intent {
        Intent { at: Some(now), ..self }
    }

    /// Says what would change, and changes nothing.
    pub fn dry_run(self, dry_run: bool) -> Intent {
        Intent { dry_run, ..self }
    }

    pub fn by(&self) -> &str {
        &self.by
    }

    pub fn reason(&self) -> &str {
        &self.reason
    }

    pub(crate) fn given_time(&self) -> Option<Micros> {
        self.at
    }

    pub(crate) fn is_dry_run(&self) -> bool {
        self.dry_run
    }

    fn terms(&self, at: Micros, until: Option<Micros>) -> Terms {
        Terms { until, reason: self.reason.clone(), by: self.by.clone(), at }
    }
}

fn check_text(what: &'static str, text: &str, most: usize) -> Result<(), RegistryError> {
    if text.len() > most {
        return Err(RegistryError::TooLong { what, bytes: text.len(), most });
    }
    match text.chars().find(|c| c.is_control()) {
        Some(c) => Err(RegistryError::Control(what, u32::from(c))),
        None => Ok(()),
    }
}

/// What a change replaced and by what, as the trail tells it.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    pub event: Event,
    /// False for a dry run, and where there was nothing to change.
    pub written: bool,
}

impl Outcome {
    /// What was to be removed was not there.
    pub fn was_nothing(&self) -> bool {
        self.event.before == self.event.after
    }
}

/// A version of the policy that was made, or that would be.
#[derive(Clone, Debug, PartialEq)]
pub struct NewVersion {
    pub version: Version,
    pub outcome: Outcome,
}

/// A text on its way to become a version.
#[derive(Clone, Debug)]
pub(crate) struct Draft<'a> {
    text: &'a str,
    expected: Option<u64>,
    rolled_back_to: Option<u64>,
}

impl Draft<'_> {
    /// The next version after `current`, and how the trail tells it.
    pub(crate) fn after(
        &self,
        current: Option<&Version>,
        intent: &Intent,
        now: Micros,
    ) -> Result<(Version, Event), RegistryError> {
        let newest = current.map_or(0, |v| v.version);
        if let Some(expected) = self.expected.filter(|expected| *expected != newest) {
            return Err(RegistryError::Conflict { current: newest, expected });
        }
        let digest = Sha256::digest(self.text.as_bytes());
        let version = Version {
            version: newest + 1,
            hash: digest.iter().map(|byte| format!("{byte:02x}")).collect(),
            bytes: self.text.len() as u64,
            at: now,
            by: intent.by.clone(),
            reason: intent.reason.clone(),
            rolled_back_to: self.rolled_back_to,
        };
        let shown = |v: &Version| json!({"version": v.version, "hash": v.hash, "bytes": v.bytes});
        let action = if self.rolled_back_to.is_some() { "rules rollback" } else { "rules publish" };
        let event = Event {
            id: None,
            at: now,
            by: intent.by.clone(),
            action: action.into(),
            kind: Kind::Policy,
            subject: format!("version {}", version.version),
            before: current.map_or(serde_json::Value::Null, shown),
            after: shown(&version),
            reason: intent.reason.clone(),
        };
        Ok((version, event))
    }

    pub(crate) fn text(&self) -> &str {
        self.text
    }
}

/// What the trail says since an event that was seen.
#[derive(Clone, Debug, PartialEq)]
pub enum News {
    /// In order; without the event where it is one that this version cannot read.
    Events(Vec<(EventId, Option<Event>)>),
    /// That event is gone, or too much came after it: anything may have changed.
    Gap,
}

/// Known to the gateways of one store, and to nobody who asks them.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub [u8; 32]);

impl Secret {
    pub(crate) fn random() -> Secret {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).expect("the system gives random bytes");
        Secret(bytes)
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// Where it is kept. Closed, like [`super::store::Store`].
#[derive(Debug)]
pub enum Registry {
    Memory(MemoryRegistry),
    Redis(RedisRegistry),
}

/// The same question to whichever store there is.
macro_rules! ask {
    ($registry:expr, $store:ident => $memory:expr, $redis:expr) => {
        match $registry {
            Registry::Memory($store) => $memory,
            Registry::Redis($store) => $redis.await,
        }
    };
}

impl Registry {
    /// The store's clock, on which everything ends.
    pub async fn now(&self) -> Result<Micros, RegistryError> {
        ask!(self, store => Ok(store.now()), store.now())
    }

    /// What is known of `identity`, with what has ended by now.
    pub async fn subject(&self, identity: &Identity) -> Result<Subject, RegistryError> {
        ask!(self, store => Ok(store.subject(identity)), store.subject(identity))
    }

    /// Hands over every identity of which something is known, in no order.
    pub async fn subjects(
        &self,
        each: impl FnMut(Identity, Subject) + Send,
    ) -> Result<(), RegistryError> {
        ask!(self, store => { store.subjects(each); Ok(()) }, store.subjects(each))
    }

    pub async fn change(
        &self,
        identity: &Identity,
        change: &Change,
        intent: &Intent,
    ) -> Result<Outcome, RegistryError> {
        ask!(self, store => store.change(identity, change, intent), store.change(identity, change, intent))
    }

    /// Puts into the trail that somebody took something from an identity which is not kept here.
    pub async fn record_reset(
        &self,
        identity: &Identity,
        before: serde_json::Value,
        intent: &Intent,
    ) -> Result<Event, RegistryError> {
        let event =
            self.operation("reset", Kind::Identity, identity.as_str(), before, intent).await?;
        let id = ask!(self, store => store.record(&event), store.record(identity, &event))?;
        Ok(Event { id: Some(id), ..event })
    }

    /// Puts into the trail what somebody did to more than one identity, and that is not kept here:
    /// what it was, and what it became.
    pub async fn record(
        &self,
        action: &str,
        subject: &str,
        (before, after): (serde_json::Value, serde_json::Value),
        intent: &Intent,
    ) -> Result<Event, RegistryError> {
        let event = self.operation(action, Kind::Pattern, subject, before, intent).await?;
        let event = Event { after, ..event };
        let id = ask!(self, store => store.record(&event), store.append(&event))?;
        Ok(Event { id: Some(id), ..event })
    }

    async fn operation(
        &self,
        action: &str,
        kind: Kind,
        subject: &str,
        before: serde_json::Value,
        intent: &Intent,
    ) -> Result<Event, RegistryError> {
        Ok(Event {
            id: None,
            at: self.now().await?,
            by: intent.by.clone(),
            action: action.into(),
            kind,
            subject: subject.into(),
            before,
            after: serde_json::Value::Null,
            reason: intent.reason.clone(),
        })
    }

    pub async fn lists(&self) -> Result<Lists, RegistryError> {
        ask!(self, store => Ok(store.lists()), store.lists())
    }

    pub async fn change_lists(
        &self,
        change: &ListChange,
        intent: &Intent,
    ) -> Result<Outcome, RegistryError> {
        ask!(self, store => store.change_lists(change, intent), store.change_lists(change, intent))
    }

    pub async fn switches(&self) -> Result<Switches, RegistryError> {
        ask!(self, store => Ok(store.switches()), store.switches())
    }

    pub async fn set_switch(
        &self,
        switch: &Switch,
        intent: &Intent,
    ) -> Result<Outcome, RegistryError> {
        ask!(self, store => store.set_switch(switch, intent), store.set_switch(switch, intent))
    }

    /// Which version of the policy is published.
    pub async fn version(&self) -> Result<Option<Version>, RegistryError> {
        ask!(self, store => Ok(store.version()), store.version())
    }

    /// The published policy.
    pub async fn current(&self) -> Result<Option<Published>, RegistryError> {
        let Some(version) = self.version().await? else { return Ok(None) };
        let text = self.text(version.version).await?;
        let text = text.ok_or(RegistryError::NoVersion(version.version))?;
        Ok(Some(Published { version, text }))
    }

    /// The text of a version, if it is still kept.
    pub async fn text(&self, version: u64) -> Result<Option<Arc<str>>, RegistryError> {
        ask!(self, store => Ok(store.text(version)), store.text(version))
    }

    /// The newest versions, newest first.
    pub async fn history(&self, most: usize) -> Result<Vec<Version>, RegistryError> {
        ask!(self, store => Ok(store.history(most)), store.history(most))
    }

    /// Makes `text` the policy; only on top of `expected` if that is given (0: on none).
    pub async fn publish(
        &self,
        text: &str,
        expected: Option<u64>,
        intent: &Intent,
    ) -> Result<NewVersion, RegistryError> {
        self.publish_draft(&Draft { text, expected, rolled_back_to: None }, intent).await
    }

    /// Publishes the text of an old version as a new one.
    pub async fn rollback(&self, to: u64, intent: &Intent) -> Result<NewVersion, RegistryError> {
        let text = self.text(to).await?.ok_or(RegistryError::NoVersion(to))?;
        let draft = Draft { text: &text, expected: None, rolled_back_to: Some(to) };
        self.publish_draft(&draft, intent).await
    }

    async fn publish_draft(
        &self,
        draft: &Draft<'_>,
        intent: &Intent,
    ) -> Result<NewVersion, RegistryError> {
        let bytes = draft.text.len();
        if bytes > MAX_POLICY_BYTES {
            let what = "a policy";
            return Err(RegistryError::TooLong { what, bytes, most: MAX_POLICY_BYTES });
        }
        ask!(self, store => store.publish(draft, intent), store.publish(draft, intent))
    }

    /// Says that a process which enforces is there; to be said again within [`HEARD_WITHIN`].
    pub async fn announce(&self, member: &Member) -> Result<(), RegistryError> {
        ask!(self, store => { store.announce(member); Ok(()) }, store.announce(member))
    }

    /// Who is there.
    pub async fn members(&self) -> Result<Vec<Member>, RegistryError> {
        ask!(self, store => Ok(store.members()), store.members())
    }

    /// Who was heard of within the last hour; nothing is tidied up.
    pub async fn known_members(&self) -> Result<Vec<Member>, RegistryError> {
        ask!(self, store => Ok(store.members()), store.known_members())
    }

    /// Tells other gateways how fast keys are asked about here, and says how fast they are asked
    /// about there; in memory there are no others.
    pub async fn share_rates(
        &self,
        gateway: &str,
        report: &Report,
    ) -> Result<HashMap<u64, u64>, RegistryError> {
        match self {
            Registry::Memory(_) => Ok(HashMap::new()),
            Registry::Redis(registry) => registry.share_rates(gateway, report).await,
        }
    }

    /// What all gateways of this store sign with; made by whoever asks first.
    pub async fn secret(&self) -> Result<Secret, RegistryError> {
        ask!(self, store => Ok(store.secret()), store.secret())
    }

    /// From now on no call outlives this; memory always answers at once.
    pub fn set_deadline(&self, deadline: Micros) {
        if let Registry::Redis(registry) = self {
            registry.set_deadline(deadline);
        }
    }

    /// From now on a server that fails too often is left alone, by these numbers.
    pub fn set_breaker(&self, settings: super::policy::Breaker) {
        if let Registry::Redis(registry) = self {
            registry.set_breaker(settings);
        }
    }

    /// The newest `most` events after `since`, oldest first.
    pub async fn events(
        &self,
        since: Option<EventId>,
        most: usize,
    ) -> Result<Vec<Event>, RegistryError> {
        ask!(self, store => Ok(store.events(since, most)), store.events(since, most))
    }

    /// The event that the trail ends with.
    pub async fn last_event(&self) -> Result<Option<EventId>, RegistryError> {
        ask!(self, store => Ok(store.last_event()), store.last_event())
    }

    /// What happened since `seen`, which was the last event then.
    pub async fn news(&self, seen: Option<EventId>) -> Result<News, RegistryError> {
        ask!(self, store => Ok(store.news(seen)), store.news(seen))
    }
}
