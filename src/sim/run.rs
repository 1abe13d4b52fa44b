//! A simulation: all limiters see the same events, batch by batch, in bounded memory.

use std::ops::Range;

use crate::engine::clock::Micros;
use crate::traffic::Rng;

use super::Event;
use super::lane::{Lane, LaneSpec};
use super::outcome::{Ending, LaneOutcome, Outcome};
use super::timeline::Timeline;
use super::window::Windows;

/// Verdicts are bits of one word.
pub const MAX_LANES: usize = 32;
/// Enough that the states of a limiter pay for coming close to the processor before it is another
/// one's turn: 5 MB of requests.
pub const BATCH: usize = 1 << 18;
/// What the seed's numbers are for that send each request to a node; others are for times and keys.
const NODES: u64 = 1 << 32;

/// When the run begins, where that is known, and how long it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Span {
    pub start: Option<Micros>,
    pub length: Option<Micros>,
}

#[derive(Debug)]
pub struct Simulation {
    lanes: Vec<Lane>,
    /// One for each period, of the limiters that have it.
    windows: Vec<Windows>,
    span: Span,
    timeline: Option<Timeline>,
    last: Micros,
    requests: u64,
    keys: usize,
    nodes: u16,
    node_rng: Rng,
    verdicts: Vec<u32>,
    sent_to: Vec<u16>,
    /// The events of a batch that lie in one bin of the timeline, and a time in that.
    pieces: Vec<(Micros, Range<usize>)>,
}

impl Simulation {
    /// At most [`MAX_LANES`] limiters.
    pub fn new(specs: Vec<LaneSpec>, span: Span, seed: u64) -> Simulation {
        assert!(specs.len() <= MAX_LANES, "callers count them");
        let mut windows: Vec<Windows> = Vec::new();
        for (number, spec) in specs.iter().enumerate() {
            let period = spec.limit.period();
            let place = windows.iter().position(|windows| windows.period() == period);
            let place = place.unwrap_or_else(|| {
                windows.push(Windows::new(period));
                windows.len() - 1
            });
            windows[place].join(number);
        }
        let nodes = specs.iter().filter_map(|spec| spec.nodes.as_ref()).map(|n| n.count()).max();
        let unset = Timeline::new(Micros::ZERO, None);
        Simulation {
            lanes: specs.into_iter().map(|spec| Lane::new(spec, unset.clone())).collect(),
            windows,
            span,
            timeline: None,
            last: Micros::ZERO,
            requests: 0,
            keys: 0,
            nodes: nodes.unwrap_or(1),
            node_rng: Rng::new(seed, NODES),
            verdicts: Vec::new(),
            sent_to: Vec::new(),
            pieces: Vec::new(),
        }
    }

    /// Decides the next events. Those of a trace may step back in time: they are decided as
    /// stamped, and shown at the latest time so far.
    pub fn feed(&mut self, events: &[Event]) {
        for batch in events.chunks(BATCH) {
            self.feed_batch(batch);
        }
    }

    fn feed_batch(&mut self, events: &[Event]) {
        let Some(first) = events.first() else { return };
        if self.timeline.is_none() {
            let start = self.span.start.unwrap_or(first.at);
            let timeline = Timeline::new(start, self.span.length);
            self.lanes.iter_mut().for_each(|lane| lane.totals.timeline = timeline.clone());
            self.timeline = Some(timeline);
        }
        let keys = events.iter().map(|event| event.key as usize + 1).max().unwrap_or(0);
        if keys > self.keys {
            // Twice as much, so that it is seldom.
            self.keys = keys.max(self.keys * 2);
            self.lanes.iter_mut().for_each(|lane| lane.make_room(self.keys));
        }
        self.sent_to.clear();
        self.verdicts.clear();
        self.verdicts.resize(events.len(), 0);
        if self.nodes > 1 {
            let nodes = u64::from(self.nodes);
            self.sent_to.extend(events.iter().map(|_| self.node_rng.below(nodes) as u16));
        }
        self.decide(events);
        self.measure(events);
        self.requests += events.len() as u64;
    }

    /// One limiter after the other, each bin by bin of the timeline: the states of one stay close to
    /// the processor meanwhile, those of all would not.
    fn decide(&mut self, events: &[Event]) {
        let Some(timeline) = &mut self.timeline else { return };
        self.pieces.clear();
        let mut from = 0;
        while from < events.len() {
            let at = events[from].at.max(self.last);
            let (bin, end) = timeline.place(at);
            let length = events[from..].iter().take_while(|event| event.at < end).count().max(1);
            let range = from..from + length;
            timeline.add(bin, length as u64, 0);
            self.last = events[range.clone()].iter().map(|e| e.at).fold(self.last, Micros::max);
            from = range.end;
            self.pieces.push((at, range));
        }
        for (bit, lane) in self.lanes.iter_mut().enumerate() {
            for (at, range) in &self.pieces {
                let sent_to = self.sent_to.get(range.clone()).unwrap_or_default();
                let verdicts = &mut self.verdicts[range.clone()];
                lane.decide(*at, &events[range.clone()], sent_to, verdicts, bit);
            }
        }
    }

    fn measure(&mut self, events: &[Event]) {
        let start = self.timeline.as_ref().map_or(Micros::ZERO, Timeline::start);
        for windows in &mut self.windows {
            let (mut latest, members) = (windows.latest(), windows.lanes());
            for (event, verdict) in events.iter().zip(&self.verdicts) {
                latest = latest.max(event.at.saturating_sub(start));
                let lanes = verdict & members;
                if lanes != 0 {
                    windows.passed(latest, event.key, event.cost, lanes);
                }
            }
            windows.count();
        }
        for (number, lane) in self.lanes.iter_mut().enumerate() {
            let Some(reference) = lane.spec.reference else { continue };
            for verdict in &self.verdicts {
                let (own, right) = (verdict >> number & 1, verdict >> reference & 1);
                lane.totals.wrongly_allowed += u64::from(own & !right & 1);
                lane.totals.wrongly_denied += u64::from(!own & right & 1);
            }
        }
    }

    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// What there is so far.
    pub fn outcome(&self, name: impl Fn(u32) -> String) -> Outcome {
        let start = self
            .span
            .start
            .unwrap_or_else(|| self.timeline.as_ref().map_or(self.last, Timeline::start));
        let last = if self.requests == 0 { start } else { self.last + Micros(1) };
        let end = self.span.length.map_or(last, |length| start + length);
        let worst = |number| {
            self.windows.iter().find_map(|windows| windows.worst(number)).unwrap_or_default()
        };
        let lanes: Vec<LaneOutcome> = self
            .lanes
            .iter()
            .enumerate()
            .map(|(number, lane)| LaneOutcome::of(lane, worst(number), start, &name))
            .collect();
        let keys = self.lanes.first().map_or(0, |lane| lane.tallies().count());
        Outcome {
            start,
            end,
            requests: self.requests,
            keys: keys as u64,
            timeline: self.timeline.clone().unwrap_or_else(|| Timeline::new(start, None)),
            lanes,
            ending: Ending::Whole,
        }
    }
}
