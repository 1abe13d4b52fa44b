//! What a worker measures, handed over many times a second: bounded, however long a run lasts.

use hdrhistogram::Histogram;

use super::answer::{Answer, Outcome};
use super::feed::{FeedCounts, Shot};
use super::keys::KeyTable;

/// Longest time that is told apart, in microseconds: an hour.
const MAX_US: u64 = 3_600_000_000;
const DIGITS: u8 = 3;

/// How long a worker gathers before it hands over.
pub const TICK_NS: u64 = 100_000_000;

/// Microseconds, to three digits.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, MAX_US, DIGITS).expect("the bounds are right")
}

/// The two times of every request.
#[derive(Clone, Debug)]
pub struct Timings {
    /// From sending.
    pub service: Histogram<u64>,
    /// From the moment the plan says.
    pub response: Histogram<u64>,
}

impl Timings {
    pub fn new() -> Timings {
        Timings { service: histogram(), response: histogram() }
    }

    pub fn add(&mut self, other: &Timings) {
        for (all, some) in
            [(&mut self.service, &other.service), (&mut self.response, &other.response)]
        {
            if !some.is_empty() {
                // Both have the same bounds.
                let _ = all.add(some);
            }
        }
    }

    fn clear(&mut self) {
        if !self.service.is_empty() {
            self.service.reset();
            self.response.reset();
        }
    }
}

impl Default for Timings {
    fn default() -> Timings {
        Timings::new()
    }
}

/// What happened in a tenth of a second, after the warm-up.
#[derive(Clone, Debug)]
pub struct Tick {
    pub outcomes: [Timings; 5],
    /// Sent after the planned moment, by so much.
    pub lag: Histogram<u64>,
    /// The same for those that had a connection at once: how exact the client is.
    pub lateness: Histogram<u64>,
    pub sent: u64,
    /// Counted since the start.
    pub feed: FeedCounts,
    pub under_way: u64,
    /// How long the worker neither slept nor watched the clock.
    pub busy_ns: u64,
    pub cpu_ns: u64,
    pub lasted_ns: u64,
    pub reconnects: u64,
    /// What went wrong last, for people.
    pub trouble: Option<String>,
    /// One number for each thing that expectations look at; see [`super::series`].
    pub marks: Vec<u64>,
}

impl Tick {
    pub fn new() -> Tick {
        Tick {
            outcomes: std::array::from_fn(|_| Timings::new()),
            lag: histogram(),
            lateness: histogram(),
            sent: 0,
            feed: FeedCounts::default(),
            under_way: 0,
            busy_ns: 0,
            cpu_ns: 0,
            lasted_ns: 0,
            reconnects: 0,
            trouble: None,
            marks: Vec::new(),
        }
    }

    fn clear(&mut self) {
        self.outcomes.iter_mut().for_each(Timings::clear);
        self.lag.reset();
        self.lateness.reset();
        (self.sent, self.busy_ns, self.cpu_ns, self.lasted_ns) = (0, 0, 0, 0);
        (self.reconnects, self.trouble) = (0, None);
        self.marks.clear();
    }
}

impl Default for Tick {
    fn default() -> Tick {
        Tick::new()
    }
}

/// Which marks are left for expectations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    pub counts: bool,
    pub service: bool,
    pub response: bool,
    pub retry_after: bool,
}

/// What a worker measures with.
#[derive(Debug)]
pub struct Recorder {
    tick: Box<Tick>,
    spare: Option<Box<Tick>>,
    pub keys: KeyTable,
    warm_ns: u64,
    wanted: Wanted,
    tick_began_ns: u64,
    cpu_before_ns: u64,
}

impl Recorder {
    pub fn new(keys: KeyTable, warm_ns: u64, wanted: Wanted) -> Recorder {
        Recorder {
            tick: Box::default(),
            spare: None,
            keys,
            warm_ns,
            wanted,
            tick_began_ns: 0,
            cpu_before_ns: super::pace::thread_cpu_ns(),
        }
    }

    /// A request is about to be sent; `at_once` when nothing but the plan held it up.
    #[inline]
    pub fn sent(&mut self, shot: &Shot, now_ns: u64, at_once: bool) {
        let counts = shot.intended_ns >= self.warm_ns;
        self.keys.sent(shot, now_ns, counts);
        if counts {
            self.tick.sent += 1;
            let late = to_us(now_ns.saturating_sub(shot.intended_ns));
            self.tick.lag.saturating_record(late);
            if at_once {
                self.tick.lateness.saturating_record(late);
            }
        }
    }

    /// Its answer came, or none will.
    #[inline]
    pub fn done(&mut self, shot: &Shot, sent_ns: u64, now_ns: u64, answer: &Answer) {
        let counts = shot.intended_ns >= self.warm_ns;
        self.keys.done(shot, sent_ns, now_ns, answer, counts);
        if !counts {
            return;
        }
        let service = to_us(now_ns.saturating_sub(sent_ns));
        let response = to_us(now_ns.saturating_sub(shot.intended_ns));
        let timings = &mut self.tick.outcomes[answer.outcome as usize];
        timings.service.saturating_record(service);
        timings.response.saturating_record(response);
        if self.wanted.counts {
            self.mark(shot, answer, service, response);
        }
        if answer.outcome == Outcome::Error && answer.status > 0 && self.tick.trouble.is_none() {
            self.tick.trouble = Some(format!("the target answered {}", answer.status));
        }
    }

    fn mark(&mut self, shot: &Shot, answer: &Answer, service: u64, response: u64) {
        use super::series::{Kind, mark};
        let at_ms = (shot.intended_ns - self.warm_ns) / 1_000_000;
        let marks = &mut self.tick.marks;
        marks.push(mark(at_ms, answer.outcome, Kind::Count, 0));
        if self.wanted.service {
            marks.push(mark(at_ms, answer.outcome, Kind::Service, service));
        }
        if self.wanted.response {
            marks.push(mark(at_ms, answer.outcome, Kind::Response, response));
        }
        if self.wanted.retry_after
            && answer.outcome == Outcome::Limited
            && let Some(seconds) = answer.told.retry_after_s
        {
            marks.push(mark(at_ms, answer.outcome, Kind::RetryAfter, seconds * 1_000_000));
        }
    }

    pub fn busy(&mut self, ns: u64) {
        self.tick.busy_ns += ns;
    }

    /// What went wrong, and how many connections that cost.
    pub fn trouble(&mut self, connections: u64, why: Option<String>) {
        self.tick.reconnects += connections;
        self.tick.trouble = why.or(self.tick.trouble.take());
    }

    /// Whether it is time to hand over.
    #[inline]
    pub fn is_full(&self, now_ns: u64) -> bool {
        now_ns >= self.tick_began_ns + TICK_NS
    }

    /// What was gathered; goes on with an empty one.
    pub fn hand_over(&mut self, now_ns: u64, feed: FeedCounts, under_way: u64) -> Box<Tick> {
        let empty = self.spare.take().unwrap_or_default();
        let mut tick = std::mem::replace(&mut self.tick, empty);
        let cpu = super::pace::thread_cpu_ns();
        tick.cpu_ns = cpu - self.cpu_before_ns;
        tick.lasted_ns = now_ns.saturating_sub(self.tick_began_ns);
        (tick.feed, tick.under_way) = (feed, under_way);
        (self.cpu_before_ns, self.tick_began_ns) = (cpu, now_ns);
        tick
    }

    /// Nobody took it: what came since is added to it.
    pub fn take_back(&mut self, tick: Box<Tick>) {
        self.tick_began_ns -= tick.lasted_ns;
        self.cpu_before_ns -= tick.cpu_ns;
        self.spare = Some(std::mem::replace(&mut self.tick, tick));
    }

    /// A tick that was read, to be used again.
    pub fn give_back(&mut self, mut tick: Box<Tick>) {
        tick.clear();
        self.spare = Some(tick);
    }
}

/// Whole microseconds, to the nearest.
#[inline]
fn to_us(ns: u64) -> u64 {
    (ns + 500) / 1_000
}
