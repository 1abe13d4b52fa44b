//! What happened to this gateway of late, for people: the last hundred quotas that changed their
//! state and the last hundred of everything else, apart, so that an attack that drives thousands of
//! quotas to their end does not wash away that the store was lost.

use std::collections::VecDeque;

use serde::Serialize;

use crate::engine::clock::Micros;

const OF_QUOTAS: usize = 100;
const OF_ELSE: usize = 100;
/// Of quotas, at most so many within a second.
const QUOTAS_PER_SECOND: u32 = 20;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Event {
    #[serde(rename = "at_us", serialize_with = "as_number")]
    pub at: Micros,
    pub kind: Kind,
    pub level: Level,
    pub text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Quota,
    Degraded,
    Policy,
    Store,
    Hot,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Info,
    Warning,
    Critical,
}

impl Level {
    pub fn name(self) -> &'static str {
        match self {
            Level::Info => "info",
            Level::Warning => "warning",
            Level::Critical => "critical",
        }
    }
}

fn as_number<S: serde::Serializer>(at: &Micros, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(at.0)
}

impl Event {
    pub fn new(at: Micros, kind: Kind, level: Level, text: impl Into<String>) -> Event {
        Event { at, kind, level, text: text.into(), identity: None, rule: None }
    }
}

#[derive(Debug, Default)]
pub struct Events {
    quotas: VecDeque<Event>,
    others: VecDeque<Event>,
    second: u64,
    in_second: u32,
}

impl Events {
    pub fn add(&mut self, event: Event) {
        let (ring, most) = match event.kind {
            Kind::Quota => (&mut self.quotas, OF_QUOTAS),
            _ => (&mut self.others, OF_ELSE),
        };
        if ring.len() == most {
            ring.pop_front();
        }
        ring.push_back(event);
    }

    /// Whether one more of a quota is wanted in this second: asked before it is made.
    pub fn wants_quota(&mut self, at: Micros) -> bool {
        let second = at.0 / Micros::SECOND.0;
        if second != self.second {
            (self.second, self.in_second) = (second, 0);
        }
        self.in_second += 1;
        self.in_second <= QUOTAS_PER_SECOND
    }

    /// Latest first; of quotas no more than half, or they would hide the rest here, too.
    pub fn latest(&self, n: usize) -> Vec<Event> {
        let last = |ring: &VecDeque<Event>, n: usize| ring.len().saturating_sub(n);
        let quotas = self.quotas.iter().skip(last(&self.quotas, n / 2));
        let others = self.others.iter().skip(last(&self.others, n - quotas.len()));
        let mut all: Vec<Event> = quotas.chain(others).cloned().collect();
        all.sort_by_key(|event| std::cmp::Reverse(event.at));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_of_quotas_do_not_wash_away_a_lost_store() {
        let mut events = Events::default();
        events.add(Event::new(Micros(5), Kind::Store, Level::Critical, "lost"));
        for n in 0..10_000 {
            let at = Micros(n * Micros::MILLISECOND.0);
            if events.wants_quota(at) {
                events.add(Event::new(at, Kind::Quota, Level::Warning, "warning → throttled"));
            }
        }
        let all = events.latest(1000);
        assert_eq!(all.len(), 101);
        assert_eq!(all[100].kind, Kind::Store);
        assert!(events.latest(4).iter().any(|event| event.kind == Kind::Store));
        let of_a_second = all.iter().filter(|e| e.at.0 / 1_000_000 == 8).count();
        assert_eq!(of_a_second, 20);
    }
}
