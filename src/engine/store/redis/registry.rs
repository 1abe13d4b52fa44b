//! The registry in Redis. Documents are JSON strings that a script replaces if they are still what
//! was read; the trail is a stream of bounded length.
//!
//! Everything but the subjects lies in one slot, so a change and its event are one step. A subject
//! lies with its identity's quota, in another slot of a cluster, so it takes two: first the
//! subject, then its event and its place in the index. In this order, because whoever hears of an
//! event reads at once, and must find what it tells. A writer that dies in between leaves a change
//! that holds, is obeyed by all when their caches expire, and says itself who made it and why; but
//! the trail and the lists do not know it until the change is made once more.

mod hot;
mod json;

use std::collections::HashSet;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use redis::{Cmd, FromRedisValue, Value, from_redis_value};
use serde::de::DeserializeOwned;
use smallvec::{SmallVec, smallvec};

use self::json::{json, parse, parse_some};
use super::link::RedisOptions;
use super::scripts::Script;
use super::servers::Servers;
use super::wire::Call;
use crate::engine::clock::Micros;
use crate::engine::identity::Identity;
use crate::engine::policy;
use crate::engine::registry::{
    Change, DEFAULT_MAX_EVENTS, Draft, Edit, Event, EventId, Intent, KEPT_VERSIONS, ListChange,
    Lists, MAX_NEWS, Member, NewVersion, News, OfSubject, Outcome, RegistryError, Secret, Subject,
    Switch, Switches, Version, edited, fleet,
};
use crate::engine::store::StoreError;
use crate::engine::store::keys::{Part, Prefix};

static SUBJECT: LazyLock<Script> =
    LazyLock::new(|| Script::plain(include_str!("registry/subject.lua")));
static RECORD: LazyLock<Script> =
    LazyLock::new(|| Script::plain(include_str!("registry/record.lua")));
static FORGET: LazyLock<Script> =
    LazyLock::new(|| Script::plain(include_str!("registry/forget.lua")));
static DOCUMENT: LazyLock<Script> =
    LazyLock::new(|| Script::plain(include_str!("registry/document.lua")));
static PUBLISH: LazyLock<Script> =
    LazyLock::new(|| Script::plain(include_str!("registry/publish.lua")));

/// How often a write begins again because somebody else was faster.
const ATTEMPTS: usize = 50;
/// Identities that are listed in one round trip.
const LISTED_AT_ONCE: usize = 500;

/// An entry of the stream: its id, and field and value by turns.
type Entry = (String, Vec<Vec<u8>>);

#[derive(Debug)]
pub struct RedisRegistry {
    servers: Servers,
    prefix: Prefix,
    max_events: usize,
}

impl RedisRegistry {
    /// With a connection of its own: a policy of megabytes must not hold up checks, and has more
    /// time than they have.
    pub async fn connect(
        options: RedisOptions,
        prefix: Prefix,
    ) -> Result<RedisRegistry, StoreError> {
        let servers = Servers::open(options).await?;
        Ok(RedisRegistry { servers, prefix, max_events: DEFAULT_MAX_EVENTS })
    }

    /// Without waiting for the connection; until there is one, every call fails at once.
    pub fn start(options: RedisOptions, prefix: Prefix) -> RedisRegistry {
        RedisRegistry { servers: Servers::start(options), prefix, max_events: DEFAULT_MAX_EVENTS }
    }

    /// From now on no call outlives this.
    pub fn set_deadline(&self, deadline: Micros) {
        self.servers.set_deadline(deadline);
    }

    /// From now on each server has a breaker, by these numbers: for what requests wait for.
    pub fn set_breaker(&self, settings: policy::Breaker) {
        self.servers.set_breaker(settings);
    }

    /// Why there is no connection, if so.
    pub fn trouble(&self) -> Option<StoreError> {
        self.servers.trouble()
    }

    pub fn with_max_events(self, max_events: usize) -> RedisRegistry {
        RedisRegistry { max_events, ..self }
    }

    pub(crate) async fn now(&self) -> Result<Micros, RegistryError> {
        // The clock of the server that keeps the trail.
        let key = self.prefix.policy(Part::Events);
        let (seconds, micros): (u64, u64) = self.command(&key, &redis::cmd("TIME")).await?;
        Ok(Micros(seconds * Micros::SECOND.0 + micros))
    }

    pub(crate) async fn subject(&self, identity: &Identity) -> Result<Subject, RegistryError> {
        let key = self.prefix.subject(identity);
        parse(&key, &self.get(&key).await?)
    }

    pub(crate) async fn subjects(
        &self,
        mut each: impl FnMut(Identity, Subject) + Send,
    ) -> Result<(), RegistryError> {
        let index = self.prefix.policy(Part::Subjects);
        let mut cursor = 0u64;
        // HSCAN may tell one twice.
        let mut told = HashSet::new();
        loop {
            let mut scan = redis::cmd("HSCAN");
            scan.arg(&index).arg(cursor).arg("COUNT").arg(LISTED_AT_ONCE);
            let (next, found): (u64, Vec<(String, String)>) = self.command(&index, &scan).await?;
            let new = found.into_iter().filter_map(|(text, event)| {
                let identity = Identity::opaque(&text).ok()?;
                told.insert(identity.clone()).then_some((identity, event))
            });
            self.tell(&index, new.collect(), &mut each).await?;
            cursor = next;
            if cursor == 0 {
                return Ok(());
            }
        }
    }

    /// Hands over those of which something is known, and takes the others out of the index.
    async fn tell(
        &self,
        index: &str,
        listed: Vec<(Identity, String)>,
        each: &mut (impl FnMut(Identity, Subject) + Send),
    ) -> Result<(), RegistryError> {
        let mut gone: SmallVec<[Vec<u8>; 2]> = SmallVec::new();
        for some in listed.chunks(LISTED_AT_ONCE) {
            let keys: Vec<String> = some.iter().map(|(i, _)| self.prefix.subject(i)).collect();
            let values = self.servers.get_all(&keys).await.map_err(StoreError::of_a_read)?;
            let values: Vec<Option<Vec<u8>>> = self.read(Value::Array(values))?;
            for (((identity, event), key), value) in some.iter().zip(&keys).zip(values) {
                match value {
                    Some(value) => each(identity.clone(), parse(key, &value)?),
                    None => gone.extend([identity.as_str().into(), event.clone().into_bytes()]),
                }
            }
        }
        if !gone.is_empty() {
            let call = Call::new(&FORGET, smallvec![index.into()], gone);
            // Whoever may only read lists all the same.
            let _ = self.servers.call(call, Duration::ZERO).await;
        }
        Ok(())
    }

    pub(crate) async fn change(
        &self,
        identity: &Identity,
        change: &Change,
        intent: &Intent,
    ) -> Result<Outcome, RegistryError> {
        let key = self.prefix.subject(identity);
        let now = self.time_of(intent).await?;
        let mut read = self.get(&key).await?;
        for _ in 0..ATTEMPTS {
            let edit = OfSubject(identity, change);
            let (after, mut event) = edited(&edit, parse(&key, &read)?, intent, now)?;
            if intent.is_dry_run() || event.before == event.after {
                return Ok(Outcome { event, written: false });
            }
            let text = if after.is_empty() { Vec::new() } else { json(&after) };
            let (how, ms) = expiry(&after, intent);
            let args = smallvec![read, text, how.into(), ms.to_string().into_bytes()];
            let call = Call::new(&SUBJECT, smallvec![key.clone()], args);
            match self.swap(call).await? {
                Ok(_) => {
                    event.id = Some(self.record(identity, &event).await?);
                    return Ok(Outcome { event, written: true });
                }
                Err(held) => read = held,
            }
        }
        Err(RegistryError::Contended(identity.to_string()))
    }

    pub(crate) async fn record(
        &self,
        identity: &Identity,
        event: &Event,
    ) -> Result<EventId, RegistryError> {
        let keys = smallvec![self.prefix.policy(Part::Events), self.prefix.policy(Part::Subjects)];
        let args = smallvec![json(event), self.max_events(), identity.as_str().into()];
        let reply = self.servers.call(Call::new(&RECORD, keys, args), Duration::ZERO).await;
        let id: String = self.read(reply.map_err(RegistryError::Unrecorded)?)?;
        self.event_id(&id)
    }

    /// Writes an event that is about no single identity.
    pub(crate) async fn append(&self, event: &Event) -> Result<EventId, RegistryError> {
        let key = self.prefix.policy(Part::Events);
        let mut add = redis::cmd("XADD");
        add.arg(&key).arg("MAXLEN").arg(self.max_events).arg("*").arg("e").arg(json(event));
        let id = self.servers.command(&key, &add).await.map_err(RegistryError::Unrecorded)?;
        let id: String = self.read(id)?;
        self.event_id(&id)
    }

    pub(crate) async fn lists(&self) -> Result<Lists, RegistryError> {
        self.document(Part::Lists).await
    }

    pub(crate) async fn change_lists(
        &self,
        change: &ListChange,
        intent: &Intent,
    ) -> Result<Outcome, RegistryError> {
        self.change_document(Part::Lists, change, intent).await
    }

    pub(crate) async fn switches(&self) -> Result<Switches, RegistryError> {
        self.document(Part::Switches).await
    }

    pub(crate) async fn set_switch(
        &self,
        switch: &Switch,
        intent: &Intent,
    ) -> Result<Outcome, RegistryError> {
        self.change_document(Part::Switches, switch, intent).await
    }

    async fn document<T: Default + DeserializeOwned>(
        &self,
        part: Part,
    ) -> Result<T, RegistryError> {
        let key = self.prefix.policy(part);
        parse(&key, &self.get(&key).await?)
    }

    async fn change_document<E: Edit>(
        &self,
        part: Part,
        edit: &E,
        intent: &Intent,
    ) -> Result<Outcome, RegistryError> {
        let key = self.prefix.policy(part);
        let now = self.time_of(intent).await?;
        let mut read = self.get(&key).await?;
        for _ in 0..ATTEMPTS {
            let (after, mut event) = edited(edit, parse(&key, &read)?, intent, now)?;
            if intent.is_dry_run() || event.before == event.after {
                return Ok(Outcome { event, written: false });
            }
            let keys = smallvec![key.clone(), self.prefix.policy(Part::Events)];
            let args = smallvec![read, json(&after), json(&event), self.max_events()];
            match self.swap(Call::new(&DOCUMENT, keys, args)).await? {
                Ok(id) => {
                    event.id = Some(self.event_id(&id)?);
                    return Ok(Outcome { event, written: true });
                }
                Err(held) => read = held,
            }
        }
        Err(RegistryError::Contended(edit.subject()))
    }

    pub(crate) async fn version(&self) -> Result<Option<Version>, RegistryError> {
        self.document(Part::Current).await
    }

    pub(crate) async fn text(&self, version: u64) -> Result<Option<Arc<str>>, RegistryError> {
        let mut get = redis::cmd("HGET");
        let key = self.prefix.policy(Part::History);
        get.arg(&key).arg(format!("{version}:text"));
        let text: Option<String> = self.command(&key, &get).await?;
        Ok(text.map(Arc::from))
    }

    pub(crate) async fn history(&self, most: usize) -> Result<Vec<Version>, RegistryError> {
        let Some(newest) = self.version().await? else { return Ok(Vec::new()) };
        let most = (most as u64).clamp(1, KEPT_VERSIONS);
        let numbers: Vec<u64> = (1..=newest.version).rev().take(most as usize).collect();
        let key = self.prefix.policy(Part::History);
        let found: Vec<Option<Vec<u8>>> =
            self.command(&key, redis::cmd("HMGET").arg(&key).arg(&numbers)).await?;
        found.into_iter().flatten().map(|text| parse_some(&key, &text)).collect()
    }

    pub(crate) async fn publish(
        &self,
        draft: &Draft<'_>,
        intent: &Intent,
    ) -> Result<NewVersion, RegistryError> {
        let key = self.prefix.policy(Part::Current);
        let now = self.time_of(intent).await?;
        let mut read = self.get(&key).await?;
        for _ in 0..ATTEMPTS {
            let current: Option<Version> = parse(&key, &read)?;
            let (version, mut event) = draft.after(current.as_ref(), intent, now)?;
            if intent.is_dry_run() {
                return Ok(NewVersion { version, outcome: Outcome { event, written: false } });
            }
            let dropped = version.version.saturating_sub(KEPT_VERSIONS);
            let keys = smallvec![
                key.clone(),
                self.prefix.policy(Part::History),
                self.prefix.policy(Part::Events),
            ];
            let args = smallvec![
                read,
                json(&version),
                version.version.to_string().into_bytes(),
                draft.text().into(),
                dropped.to_string().into_bytes(),
                json(&event),
                self.max_events(),
            ];
            match self.swap(Call::new(&PUBLISH, keys, args)).await? {
                Ok(id) => {
                    event.id = Some(self.event_id(&id)?);
                    return Ok(NewVersion { version, outcome: Outcome { event, written: true } });
                }
                // With an expected version the next round finds the conflict.
                Err(held) => read = held,
            }
        }
        Err(RegistryError::Contended("the policy".into()))
    }

    pub(crate) async fn events(
        &self,
        since: Option<EventId>,
        most: usize,
    ) -> Result<Vec<Event>, RegistryError> {
        let key = self.prefix.policy(Part::Events);
        let from = since.map_or("-".into(), |since| format!("({since}"));
        let mut range = redis::cmd("XREVRANGE");
        range.arg(&key).arg("+").arg(from).arg("COUNT").arg(most);
        let entries: Vec<Entry> = self.command(&key, &range).await?;
        let event = |(id, fields): &Entry| {
            let event: Event = parse_some(&key, fields.get(1).map_or(&[], Vec::as_slice))?;
            Ok(Event { id: Some(self.event_id(id)?), ..event })
        };
        entries.iter().rev().map(event).collect()
    }

    pub(crate) async fn last_event(&self) -> Result<Option<EventId>, RegistryError> {
        let key = self.prefix.policy(Part::Events);
        let mut range = redis::cmd("XREVRANGE");
        range.arg(&key).arg("+").arg("-").arg("COUNT").arg(1);
        let entries: Vec<Entry> = self.command(&key, &range).await?;
        entries.first().map(|(id, _)| self.event_id(id)).transpose()
    }

    /// Asks from the last event seen, that one included: if it does not come first it is gone, and
    /// who knows what with it.
    pub(crate) async fn news(&self, seen: Option<EventId>) -> Result<News, RegistryError> {
        let Some(seen) = seen else {
            let last = self.last_event().await?;
            return Ok(if last.is_some() { News::Gap } else { News::Events(Vec::new()) });
        };
        let key = self.prefix.policy(Part::Events);
        let mut range = redis::cmd("XRANGE");
        range.arg(&key).arg(seen.to_string()).arg("+").arg("COUNT").arg(MAX_NEWS + 2);
        let entries: Vec<Entry> = self.command(&key, &range).await?;
        let mut events = Vec::with_capacity(entries.len());
        for (id, fields) in &entries {
            let event = parse_some(&key, fields.get(1).map_or(&[], Vec::as_slice)).ok();
            events.push((self.event_id(id)?, event));
        }
        let is_whole = events.first().is_some_and(|(id, _)| *id == seen);
        if !is_whole || events.len() > MAX_NEWS + 1 {
            return Ok(News::Gap);
        }
        events.remove(0);
        Ok(News::Events(events))
    }

    pub(crate) async fn announce(&self, member: &Member) -> Result<(), RegistryError> {
        let key = self.prefix.policy(Part::Gateways);
        let member = Member { seen: self.now().await?, ..member.clone() };
        self.command::<Value>(
            &key,
            redis::cmd("HSET").arg(&key).arg(&member.id).arg(json(&member)),
        )
        .await?;
        let kept_for = Micros::DAY.as_millis_ceil();
        self.command::<Value>(&key, redis::cmd("PEXPIRE").arg(&key).arg(kept_for)).await?;
        Ok(())
    }

    pub(crate) async fn members(&self) -> Result<Vec<Member>, RegistryError> {
        let (key, now) = (self.prefix.policy(Part::Gateways), self.now().await?);
        let all = self.command(&key, redis::cmd("HGETALL").arg(&key)).await?;
        let (members, gone) = fleet::living(all, now);
        if !gone.is_empty() {
            self.command::<Value>(&key, redis::cmd("HDEL").arg(&key).arg(gone)).await?;
        }
        Ok(members)
    }

    pub(crate) async fn known_members(&self) -> Result<Vec<Member>, RegistryError> {
        let key = self.prefix.policy(Part::Gateways);
        let all = self.command(&key, redis::cmd("HGETALL").arg(&key)).await?;
        Ok(fleet::known(all, self.now().await?))
    }

    pub(crate) async fn secret(&self) -> Result<Secret, RegistryError> {
        let key = self.prefix.policy(Part::Secret);
        let mut held = self.get(&key).await?;
        if held.is_empty() {
            // Of several who make one at the same time, the first is heard.
            let mut set = redis::cmd("SET");
            set.arg(&key).arg(&Secret::random().0).arg("NX");
            self.command::<Value>(&key, &set).await?;
            held = self.get(&key).await?;
        }
        let why = || "it is not 32 bytes".to_owned();
        let bytes = held.try_into().map_err(|_| RegistryError::Unreadable { key, why: why() })?;
        Ok(Secret(bytes))
    }

    async fn time_of(&self, intent: &Intent) -> Result<Micros, RegistryError> {
        match intent.given_time() {
            Some(at) => Ok(at),
            None => self.now().await,
        }
    }

    /// Empty when there is nothing.
    async fn get(&self, key: &str) -> Result<Vec<u8>, RegistryError> {
        let value: Option<Vec<u8>> = self.command(key, redis::cmd("GET").arg(key)).await?;
        Ok(value.unwrap_or_default())
    }

    /// Reads, or writes what matters to nobody but this process.
    async fn command<T: FromRedisValue>(
        &self,
        key: &str,
        command: &Cmd,
    ) -> Result<T, RegistryError> {
        let said = self.servers.command(key, command).await;
        self.read(said.map_err(StoreError::of_a_read)?)
    }

    /// Runs a script that replaces: what it says, or what was there instead.
    async fn swap(&self, call: Call) -> Result<Result<String, Vec<u8>>, RegistryError> {
        let (done, text): (bool, Vec<u8>) =
            self.read(self.servers.call(call, Duration::ZERO).await?)?;
        Ok(if done { Ok(String::from_utf8_lossy(&text).into_owned()) } else { Err(text) })
    }

    fn read<T: FromRedisValue>(&self, value: Value) -> Result<T, RegistryError> {
        from_redis_value(value).map_err(|error| {
            let why = format!("its answer has another form: {error}");
            StoreError::Refused {
                url: self.servers.address().to_string(),
                code: "REPLY".into(),
                why,
            }
            .into()
        })
    }

    fn event_id(&self, text: &str) -> Result<EventId, RegistryError> {
        let key = || self.prefix.policy(Part::Events);
        text.parse().map_err(|e| RegistryError::Unreadable { key: key(), why: format!("{e}") })
    }

    fn max_events(&self) -> Vec<u8> {
        self.max_events.to_string().into_bytes()
    }
}

/// When the server may drop a subject: when the last of it ends. At a given time, which the server
/// does not know, it lives at least an hour.
fn expiry(subject: &Subject, intent: &Intent) -> (&'static str, u64) {
    match (subject.ends(), intent.given_time()) {
        (None, _) => ("", 0),
        (Some(end), None) => ("PXAT", end.as_millis_ceil()),
        (Some(end), Some(now)) => {
            ("PX", end.saturating_sub(now).max(Micros::HOUR).as_millis_ceil())
        }
    }
}
