//! What all workers measured, put together while they work.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::answer::Outcome;
use super::feed::FeedCounts;
use super::record::{Tick, Timings, histogram};
use super::series::Series;
use crate::engine::clock::Micros;

/// Seconds that are kept one by one: a day.
const MAX_SECONDS: usize = 86_400;

/// One second of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Second {
    /// Its end, since the end of the warm-up.
    pub until_us: u64,
    pub sent: u64,
    pub counts: [u64; 5],
    /// Of what was allowed, or where nothing was, of what was limited.
    pub p50_us: Option<u64>,
    pub p99_us: Option<u64>,
    pub max_us: Option<u64>,
}

impl Second {
    pub fn answered(&self) -> u64 {
        self.counts.iter().sum()
    }
}

#[derive(Debug)]
pub struct Collected {
    pub outcomes: [Timings; 5],
    pub lag: Histogram<u64>,
    pub lateness: Histogram<u64>,
    pub sent: u64,
    pub under_way: u64,
    pub busy_ns: u64,
    pub cpu_ns: u64,
    /// The time of all workers together.
    pub worked_ns: u64,
    pub reconnects: u64,
    pub trouble: Option<String>,
    pub series: Series,
    pub seconds: Vec<Second>,
    feeds: Vec<FeedCounts>,
    under_way_by: Vec<u64>,
    /// The second that is not over yet.
    current: [Timings; 5],
    current_sent: u64,
    warm_us: u64,
}

impl Collected {
    pub fn new(workers: usize, warmup: Micros) -> Collected {
        Collected {
            outcomes: std::array::from_fn(|_| Timings::new()),
            lag: histogram(),
            lateness: histogram(),
            sent: 0,
            under_way: 0,
            busy_ns: 0,
            cpu_ns: 0,
            worked_ns: 0,
            reconnects: 0,
            trouble: None,
            series: Series::default(),
            seconds: Vec::new(),
            feeds: vec![FeedCounts::default(); workers],
            under_way_by: vec![0; workers],
            current: std::array::from_fn(|_| Timings::new()),
            current_sent: 0,
            warm_us: warmup.0,
        }
    }

    /// Takes what a worker hands over.
    pub fn add(&mut self, worker: usize, tick: &mut Tick) {
        for (outcome, timings) in tick.outcomes.iter().enumerate() {
            self.outcomes[outcome].add(timings);
            self.current[outcome].add(timings);
        }
        for (all, some) in [(&mut self.lag, &tick.lag), (&mut self.lateness, &tick.lateness)] {
            // Both have the same bounds.
            let _ = all.add(some);
        }
        self.sent += tick.sent;
        self.current_sent += tick.sent;
        self.busy_ns += tick.busy_ns;
        self.cpu_ns += tick.cpu_ns;
        self.worked_ns += tick.lasted_ns;
        self.reconnects += tick.reconnects;
        self.trouble = tick.trouble.take().or(self.trouble.take());
        self.series.add(&mut tick.marks);
        if let Some(feed) = self.feeds.get_mut(worker) {
            *feed = tick.feed;
        }
        if let Some(under_way) = self.under_way_by.get_mut(worker) {
            *under_way = tick.under_way;
        }
        self.under_way = self.under_way_by.iter().sum();
    }

    pub fn feed(&self) -> FeedCounts {
        let sum = |of: fn(&FeedCounts) -> u64| self.feeds.iter().map(of).sum();
        FeedCounts {
            planned: sum(|feed| feed.planned),
            held_back: sum(|feed| feed.held_back),
            retries: sum(|feed| feed.retries),
        }
    }

    pub fn count(&self, outcome: Outcome) -> u64 {
        self.outcomes[outcome as usize].service.len()
    }

    pub fn answered(&self) -> u64 {
        Outcome::ALL.into_iter().map(|outcome| self.count(outcome)).sum()
    }

    /// Ends seconds that are over by `now` since the start; hands each on with its histograms. The
    /// last one may be shorter.
    pub fn roll(&mut self, now_us: u64, last: bool, mut each: impl FnMut(&Second, &[Timings; 5])) {
        let next = self.seconds.last().map_or(0, |second| second.until_us) + Micros::SECOND.0;
        let Some(now_us) = now_us.checked_sub(self.warm_us).filter(|now| *now > 0) else { return };
        let rest = last && self.current.iter().any(|timings| !timings.service.is_empty());
        if (now_us < next && !rest) || self.seconds.len() >= MAX_SECONDS {
            return;
        }
        let told = [Outcome::Allowed, Outcome::Limited]
            .map(|outcome| &self.current[outcome as usize].response)
            .into_iter()
            .find(|histogram| !histogram.is_empty());
        let second = Second {
            until_us: if last { now_us } else { now_us / Micros::SECOND.0 * Micros::SECOND.0 },
            sent: self.current_sent,
            counts: std::array::from_fn(|n| self.current[n].service.len()),
            p50_us: told.map(|histogram| histogram.value_at_quantile(0.5)),
            p99_us: told.map(|histogram| histogram.value_at_quantile(0.99)),
            max_us: told.map(|histogram| histogram.max()),
        };
        each(&second, &self.current);
        self.seconds.push(second);
        self.current = std::array::from_fn(|_| Timings::new());
        self.current_sent = 0;
    }

    /// Share of the time that workers were busy, of 1.
    pub fn busy(&self) -> f64 {
        if self.worked_ns == 0 { 0.0 } else { self.busy_ns as f64 / self.worked_ns as f64 }
    }

    /// Processor time of one worker, in percent of one core.
    pub fn cpu_percent(&self) -> f64 {
        if self.worked_ns == 0 { 0.0 } else { 100.0 * self.cpu_ns as f64 / self.worked_ns as f64 }
    }
}
