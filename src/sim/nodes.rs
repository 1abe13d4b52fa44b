//! Several nodes in front of one limit: what is lost when they count each alone, tell each other
//! only now and then, or have clocks that differ.
//!
//! - **shared**: one state for all, but each node stamps with its own clock;
//! - **local**: each node counts alone, against the whole limit;
//! - **sync**: each node counts alone, and every so often learns what the others let pass: that is
//!   charged to its own state, fitting or not, as of that moment.

use crate::engine::algo::{State, take};
use crate::engine::clock::Micros;
use crate::engine::limit::{Cost, Limit};

use super::Event;
use super::lane::passes;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counting {
    Shared,
    Local,
    Sync(Micros),
}

#[derive(Clone, Debug)]
pub struct Nodes {
    count: u16,
    counting: Counting,
    /// How far the last node's clock is ahead of the first's; the others lie evenly between.
    skew: Micros,
    /// By key and then by node; shared: by key.
    states: Vec<State>,
    /// What passed since the nodes last heard of each other.
    untold: Vec<(u32, u16, u32)>,
    next_sync: Option<Micros>,
}

impl Nodes {
    pub fn new(count: u16, counting: Counting, skew: Micros) -> Nodes {
        Nodes { count, counting, skew, states: Vec::new(), untold: Vec::new(), next_sync: None }
    }

    pub fn count(&self) -> u16 {
        self.count
    }

    /// How they count, in words.
    pub fn label(&self) -> String {
        let counting = match self.counting {
            Counting::Shared => None,
            Counting::Local => Some("alone".into()),
            Counting::Sync(every) => Some(format!("sync {every}")),
        };
        let skew = (self.skew > Micros::ZERO).then(|| format!("skew {}", self.skew));
        let words = counting.into_iter().chain(skew).map(|word| format!(", {word}"));
        format!("{} nodes{}", self.count, words.collect::<String>())
    }

    pub(super) fn passes(&mut self, limit: &Limit, event: &Event, node: u16) -> bool {
        let Event { at, key, cost } = *event;
        if let Counting::Sync(every) = self.counting {
            let next = self.next_sync.unwrap_or(at + every);
            if at >= next {
                self.sync(limit, next);
            }
            let missed = at.saturating_sub(next).0 / every.0;
            let due = if at >= next { next + Micros((missed + 1) * every.0) } else { next };
            self.next_sync = Some(due);
        }
        let stamp = at + self.ahead(node);
        let place = self.place(key, node);
        self.make_room(limit, key);
        let allowed = passes(limit, &mut self.states[place], stamp, cost);
        if allowed && matches!(self.counting, Counting::Sync(_)) {
            self.untold.push((key, node, cost));
        }
        allowed
    }

    fn ahead(&self, node: u16) -> Micros {
        let others = u64::from(self.count.max(2) - 1);
        Micros(self.skew.0 * u64::from(node) / others)
    }

    fn place(&self, key: u32, node: u16) -> usize {
        match self.counting {
            Counting::Shared => key as usize,
            _ => key as usize * usize::from(self.count) + usize::from(node),
        }
    }

    fn make_room(&mut self, limit: &Limit, key: u32) {
        let needed = self.place(key, self.count - 1) + 1;
        if needed > self.states.len() {
            self.states.resize(needed * 2, State::fresh(limit.algorithm()));
        }
    }

    /// All nodes hear what the others let pass, each by its own clock.
    fn sync(&mut self, limit: &Limit, at: Micros) {
        for (key, from, cost) in std::mem::take(&mut self.untold) {
            let Ok(cost) = Cost::new(u64::from(cost)) else { continue };
            for node in (0..self.count).filter(|node| *node != from) {
                let (place, stamp) = (self.place(key, node), at + self.ahead(node));
                take(limit, &mut self.states[place], stamp, cost);
            }
        }
    }

    pub(super) fn state_bytes(&self) -> u64 {
        let used = |state: &&State| state.is_used();
        self.states.iter().filter(used).map(|state| state.bytes() as u64).sum()
    }
}
