//! One limiter of a simulation: a state per key, and what is counted about each.

use crate::engine::algo::{State, check, decide, take};
use crate::engine::clock::Micros;
use crate::engine::limit::{Cost, Limit};

use super::Event;
use super::nodes::Nodes;
use super::timeline::Timeline;

const NOT_WAITING: u64 = u64::MAX;
/// Requests whose keys are fetched together: a processor waits for many of them as long as for one.
const FETCHED_TOGETHER: usize = 32;

/// What a limiter is, before it has met anybody.
#[derive(Clone, Debug)]
pub struct LaneSpec {
    pub label: String,
    pub limit: Limit,
    /// Several nodes that count in some way; none: one exact limiter.
    pub nodes: Option<Nodes>,
    /// The place of the limiter that this one should equal.
    pub reference: Option<usize>,
}

/// Everything about one key, on one cache line.
#[derive(Clone, Debug)]
#[repr(align(64))]
struct Cell {
    state: State,
    tally: Tally,
}

#[derive(Clone, Copy, Debug)]
pub struct Tally {
    pub allowed: u32,
    pub denied: u32,
    /// The first of the denials since something passed.
    waiting_since: u64,
    /// The last millisecond in which something passed, and how much.
    last_ms: u64,
    in_last_ms: u32,
}

impl Default for Tally {
    fn default() -> Tally {
        Tally {
            allowed: 0,
            denied: 0,
            waiting_since: NOT_WAITING,
            last_ms: NOT_WAITING,
            in_last_ms: 0,
        }
    }
}

/// The longest that a key asked again and again and got nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Starved {
    pub time: Micros,
    pub key: u32,
    pub from: Micros,
}

/// What is counted about a limiter as a whole.
#[derive(Clone, Debug)]
pub struct Totals {
    pub allowed: u64,
    pub denied: u64,
    pub first_denial: Option<Micros>,
    pub starved: Starved,
    /// The most that passed on one key within one millisecond.
    pub most_at_once: u32,
    /// Against the reference.
    pub wrongly_allowed: u64,
    pub wrongly_denied: u64,
    pub timeline: Timeline,
}

#[derive(Debug)]
pub struct Lane {
    pub spec: LaneSpec,
    pub totals: Totals,
    cells: Vec<Cell>,
}

impl Totals {
    pub fn new(timeline: Timeline) -> Totals {
        Totals {
            allowed: 0,
            denied: 0,
            first_denial: None,
            starved: Starved::default(),
            most_at_once: 0,
            wrongly_allowed: 0,
            wrongly_denied: 0,
            timeline,
        }
    }

    /// Counts one decision.
    #[inline]
    pub fn count(&mut self, tally: &mut Tally, event: Event, allowed: bool) {
        if tally.waiting_since != NOT_WAITING || !allowed {
            self.count_waiting(tally, event, allowed);
        }
        if allowed {
            tally.allowed += 1;
            let ms = event.at.0 / Micros::MILLISECOND.0;
            tally.in_last_ms = if tally.last_ms == ms { tally.in_last_ms } else { 0 };
            tally.in_last_ms = tally.in_last_ms.saturating_add(event.cost);
            tally.last_ms = ms;
            self.most_at_once = self.most_at_once.max(tally.in_last_ms);
        } else {
            tally.denied += 1;
            self.first_denial = self.first_denial.or(Some(event.at));
        }
    }

    /// From the first to the last of denials in a row: whoever stays away does not starve.
    #[inline]
    fn count_waiting(&mut self, tally: &mut Tally, event: Event, allowed: bool) {
        if allowed {
            tally.waiting_since = NOT_WAITING;
            return;
        }
        if tally.waiting_since == NOT_WAITING {
            tally.waiting_since = event.at.0;
        }
        let from = Micros(tally.waiting_since);
        let time = event.at.saturating_sub(from);
        if time > self.starved.time {
            self.starved = Starved { time, key: event.key, from };
        }
    }
}

impl Lane {
    pub fn new(spec: LaneSpec, timeline: Timeline) -> Lane {
        Lane { spec, totals: Totals::new(timeline), cells: Vec::new() }
    }

    /// Decides events of one bin of the timeline, the one of `at`, and sets `bit` in the verdict of
    /// those that passed.
    pub fn decide(
        &mut self,
        at: Micros,
        events: &[Event],
        nodes: &[u16],
        verdicts: &mut [u32],
        bit: usize,
    ) {
        let mut passed = 0;
        let Lane { spec: LaneSpec { limit, nodes: several, .. }, totals, cells } = self;
        let together = events.chunks(FETCHED_TOGETHER).zip(verdicts.chunks_mut(FETCHED_TOGETHER));
        for (few, (events, verdicts)) in together.enumerate() {
            fetch(cells, events);
            for (number, (event, verdict)) in events.iter().zip(verdicts).enumerate() {
                let cell = &mut cells[event.key as usize];
                let allowed = match several {
                    None => passes(limit, &mut cell.state, event.at, event.cost),
                    Some(several) => {
                        several.passes(limit, event, nodes[few * FETCHED_TOGETHER + number])
                    }
                };
                totals.count(&mut cell.tally, *event, allowed);
                passed += u64::from(allowed);
                *verdict |= u32::from(allowed) << bit;
            }
        }
        totals.allowed += passed;
        totals.denied += events.len() as u64 - passed;
        let (bin, _) = totals.timeline.place(at);
        totals.timeline.add(bin, events.len() as u64, passed);
    }

    /// Makes room for keys below `count`.
    pub fn make_room(&mut self, count: usize) {
        if self.cells.len() < count {
            let fresh =
                Cell { state: State::fresh(self.spec.limit.algorithm()), tally: Tally::default() };
            self.cells.resize(count, fresh);
        }
    }

    /// Every key that came, with what is counted about it.
    pub fn tallies(&self) -> impl Iterator<Item = (u32, &Tally)> {
        let came = |(_, tally): &(u32, &Tally)| tally.allowed + tally.denied > 0;
        (0u32..).zip(self.cells.iter().map(|cell| &cell.tally)).filter(came)
    }

    /// The memory of all states that were used; shared by nodes or not.
    pub fn state_bytes(&self) -> u64 {
        let own = |cell: &Cell| cell.state.bytes() as u64;
        match &self.spec.nodes {
            None => self.cells.iter().filter(|c| c.tally.allowed > 0).map(own).sum(),
            Some(nodes) => nodes.state_bytes(),
        }
    }
}

/// Looks at what is known about these keys, one look waiting for no other: when their requests are
/// decided, it is there.
#[inline]
fn fetch(cells: &[Cell], events: &[Event]) {
    let look = |seen: u32, event: &Event| seen ^ cells[event.key as usize].tally.allowed;
    std::hint::black_box(events.iter().fold(0, look));
}

/// Decides, and charges what is allowed. In the loop itself, so that what nobody asks about the
/// decision is not worked out.
#[inline(always)]
pub(super) fn passes(limit: &Limit, state: &mut State, at: Micros, cost: u32) -> bool {
    let Ok(cost) = Cost::new(u64::from(cost)) else { return false };
    match check(limit, state, at, cost) {
        Some(decision) => decision.allowed,
        // A limit of 0, or a clock that jumped: seldom, and the long way.
        None => {
            let allowed = decide(limit, state, at, cost).allowed;
            if allowed {
                take(limit, state, at, cost);
            }
            allowed
        }
    }
}
