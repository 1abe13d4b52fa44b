//! The registry of a process that has no Redis: in its memory, and gone with it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::data::{Event, EventId, Lists, Published, Subject, Switches, Version};
use super::edit::{Change, Edit, ListChange, OfSubject, Switch, edited};
use super::{
    DEFAULT_MAX_EVENTS, Draft, Intent, KEPT_VERSIONS, MAX_NEWS, Member, NewVersion, News, Outcome,
    RegistryError, Secret,
};
use crate::engine::clock::Micros;
use crate::engine::identity::Identity;

#[derive(Debug)]
pub struct MemoryRegistry {
    /// Boxed: most processes have a Redis, and none of this.
    state: Box<Mutex<State>>,
    max_events: usize,
}

#[derive(Debug, Default)]
struct State {
    subjects: HashMap<Identity, Subject>,
    /// How many subjects there may be until those that have ended are looked for.
    sweep_at: usize,
    lists: Lists,
    switches: Switches,
    versions: VecDeque<Published>,
    events: VecDeque<(EventId, Event)>,
    members: Vec<Member>,
    secret: Option<Secret>,
}

impl Default for MemoryRegistry {
    fn default() -> MemoryRegistry {
        MemoryRegistry::new(DEFAULT_MAX_EVENTS)
    }
}

impl MemoryRegistry {
    pub fn new(max_events: usize) -> MemoryRegistry {
        MemoryRegistry { state: Box::default(), max_events }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn now(&self) -> Micros {
        Micros::now()
    }

    /// Only this process can be here.
    pub(super) fn announce(&self, member: &Member) {
        self.state().members = vec![Member { seen: self.now(), ..member.clone() }];
    }

    pub(super) fn members(&self) -> Vec<Member> {
        self.state().members.clone()
    }

    pub(super) fn secret(&self) -> Secret {
        self.state().secret.get_or_insert_with(Secret::random).clone()
    }

    pub(super) fn subject(&self, identity: &Identity) -> Subject {
        self.state().subjects.get(identity).cloned().unwrap_or_default()
    }

    pub(super) fn subjects(&self, mut each: impl FnMut(Identity, Subject)) {
        let all = self.state().subjects.clone();
        all.into_iter().for_each(|(identity, subject)| each(identity, subject));
    }

    pub(super) fn change(
        &self,
        identity: &Identity,
        change: &Change,
        intent: &Intent,
    ) -> Result<Outcome, RegistryError> {
        let mut state = self.state();
        let before = state.subjects.get(identity).cloned().unwrap_or_default();
        let now = self.time_of(intent);
        self.write(&mut state, &OfSubject(identity, change), before, intent, |state, after| {
            if after.is_empty() {
                state.subjects.remove(identity);
            } else {
                state.subjects.insert(identity.clone(), after);
            }
            state.sweep(now);
        })
    }

    pub(super) fn record(&self, event: &Event) -> Result<EventId, RegistryError> {
        Ok(self.state().record(event, self.max_events))
    }

    pub(super) fn lists(&self) -> Lists {
        self.state().lists.clone()
    }

    pub(super) fn change_lists(
        &self,
        change: &ListChange,
        intent: &Intent,
    ) -> Result<Outcome, RegistryError> {
        let mut state = self.state();
        let before = state.lists.clone();
        self.write(&mut state, change, before, intent, |state, after| state.lists = after)
    }

    pub(super) fn switches(&self) -> Switches {
        self.state().switches.clone()
    }

    pub(super) fn set_switch(
        &self,
        switch: &Switch,
        intent: &Intent,
    ) -> Result<Outcome, RegistryError> {
        let mut state = self.state();
        let before = state.switches.clone();
        self.write(&mut state, switch, before, intent, |state, after| state.switches = after)
    }

    pub(super) fn version(&self) -> Option<Version> {
        self.state().versions.back().map(|published| published.version.clone())
    }

    pub(super) fn text(&self, version: u64) -> Option<Arc<str>> {
        let state = self.state();
        let found = state.versions.iter().find(|published| published.version.version == version);
        found.map(|published| published.text.clone())
    }

    pub(super) fn history(&self, most: usize) -> Vec<Version> {
        let state = self.state();
        state.versions.iter().rev().take(most).map(|published| published.version.clone()).collect()
    }

    pub(super) fn publish(
        &self,
        draft: &Draft<'_>,
        intent: &Intent,
    ) -> Result<NewVersion, RegistryError> {
        let mut state = self.state();
        let current = state.versions.back().map(|published| &published.version);
        let (version, mut event) = draft.after(current, intent, self.time_of(intent))?;
        let written = !intent.is_dry_run();
        if written {
            let text = draft.text().into();
            state.versions.push_back(Published { version: version.clone(), text });
            if state.versions.len() as u64 > KEPT_VERSIONS {
                state.versions.pop_front();
            }
            event.id = Some(state.record(&event, self.max_events));
        }
        Ok(NewVersion { version, outcome: Outcome { event, written } })
    }

    pub(super) fn events(&self, since: Option<EventId>, most: usize) -> Vec<Event> {
        let state = self.state();
        let newer = state.events.iter().rev().take_while(|(id, _)| Some(*id) > since);
        let mut found: Vec<Event> = newer.take(most).map(|(_, event)| event.clone()).collect();
        found.reverse();
        found
    }

    pub(super) fn last_event(&self) -> Option<EventId> {
        self.state().events.back().map(|(id, _)| *id)
    }

    pub(super) fn news(&self, seen: Option<EventId>) -> News {
        let state = self.state();
        let after = match seen {
            None if state.events.is_empty() => return News::Events(Vec::new()),
            None => return News::Gap,
            Some(seen) => state.events.binary_search_by_key(&seen, |(id, _)| *id),
        };
        match after {
            Ok(place) if state.events.len() - place - 1 <= MAX_NEWS => {
                let new = state.events.range(place + 1..);
                News::Events(new.map(|(id, event)| (*id, Some(event.clone()))).collect())
            }
            _ => News::Gap,
        }
    }

    fn time_of(&self, intent: &Intent) -> Micros {
        intent.given_time().unwrap_or_else(|| self.now())
    }

    fn write<E: Edit>(
        &self,
        state: &mut State,
        edit: &E,
        before: E::Document,
        intent: &Intent,
        keep: impl FnOnce(&mut State, E::Document),
    ) -> Result<Outcome, RegistryError> {
        let (after, mut event) = edited(edit, before, intent, self.time_of(intent))?;
        let written = !intent.is_dry_run() && event.before != event.after;
        if written {
            keep(state, after);
            event.id = Some(state.record(&event, self.max_events));
        }
        Ok(Outcome { event, written })
    }
}

impl State {
    fn record(&mut self, event: &Event, max_events: usize) -> EventId {
        let (last, ms) = (self.events.back().map(|(id, _)| *id), event.at.0 / 1_000);
        let id = match last {
            Some(last) if last.ms >= ms => EventId { ms: last.ms, number: last.number + 1 },
            _ => EventId { ms, number: 0 },
        };
        self.events.push_back((id, Event { id: Some(id), ..event.clone() }));
        if self.events.len() > max_events {
            self.events.pop_front();
        }
        id
    }

    /// Forgets subjects that have ended. Looks at all of them, but only when there are twice as
    /// many as were left the last time.
    fn sweep(&mut self, now: Micros) {
        if self.subjects.len() > self.sweep_at {
            self.subjects.retain(|_, subject| subject.ends().is_none_or(|end| now < end));
            self.sweep_at = (2 * self.subjects.len()).max(1_024);
        }
    }
}
