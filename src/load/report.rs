//! The report of a run: what was delivered, how long it took, and what it says about the limiter.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::answer::{Outcome, Told};
use super::collect::{Collected, Second};
use super::keys::{Audit, KeyTable, Worst};
use super::record::Timings;
use crate::engine::algo::bound;
use crate::engine::clock::Micros;
use crate::engine::limit::Limit;
use crate::expect::jain;
use crate::traffic::Keys;

/// Above this share of its time a worker has no room left to be exact.
const BUSY: f64 = 0.85;
/// In a closed loop the client waits only for the target, unless its core is full.
const FULL_CPU_PERCENT: f64 = 95.0;
/// A client that sends this late with a connection free was not given its core.
const MAX_LATENESS_US: u64 = 10_000;

/// Percentiles of one kind of time; null where nothing was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Percentiles {
    pub p50_us: Option<u64>,
    pub p90_us: Option<u64>,
    pub p99_us: Option<u64>,
    pub p999_us: Option<u64>,
    pub max_us: Option<u64>,
}

impl Percentiles {
    pub fn of(histogram: &Histogram<u64>) -> Percentiles {
        let at = |share| (!histogram.is_empty()).then(|| histogram.value_at_quantile(share));
        Percentiles {
            p50_us: at(0.5),
            p90_us: at(0.9),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: (!histogram.is_empty()).then(|| histogram.max()),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutcomeReport {
    pub count: u64,
    pub service: Percentiles,
    pub response: Percentiles,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcomes {
    pub allowed: OutcomeReport,
    pub limited: OutcomeReport,
    pub shed: OutcomeReport,
    pub error: OutcomeReport,
    pub timeout: OutcomeReport,
}

impl Outcomes {
    fn of(all: &[Timings; 5]) -> Outcomes {
        let of = |outcome: Outcome| {
            let timings = &all[outcome as usize];
            OutcomeReport {
                count: timings.service.len(),
                service: Percentiles::of(&timings.service),
                response: Percentiles::of(&timings.response),
            }
        };
        Outcomes {
            allowed: of(Outcome::Allowed),
            limited: of(Outcome::Limited),
            shed: of(Outcome::Shed),
            error: of(Outcome::Error),
            timeout: of(Outcome::Timeout),
        }
    }

    pub fn each(&self) -> [(Outcome, &OutcomeReport); 5] {
        [
            (Outcome::Allowed, &self.allowed),
            (Outcome::Limited, &self.limited),
            (Outcome::Shed, &self.shed),
            (Outcome::Error, &self.error),
            (Outcome::Timeout, &self.timeout),
        ]
    }
}

/// What became of an expectation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Expectation {
    pub expression: String,
    pub met: bool,
    /// In the unit of the metric: microseconds, per second, a share of 1.
    pub measured: Option<f64>,
    pub from_us: Option<u64>,
    pub to_us: Option<u64>,
    pub message: String,
}

/// The limit that the target has, as far as is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configured {
    pub limit: u64,
    pub period_us: Option<u64>,
    pub burst: Option<u64>,
    pub algorithm: Option<String>,
    /// `--limit` or `headers`.
    pub source: String,
}

/// The busiest window of any key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorstWindow {
    pub window_us: u64,
    pub admitted: u64,
    /// The most that the limit promises to let through in such a window.
    pub bound: Option<u64>,
    pub over: Option<u64>,
    pub key: String,
    /// Its end, since the start.
    pub until_us: u64,
}

/// What the run says about the limiter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimiterReport {
    pub offered: u64,
    pub admitted: u64,
    pub configured: Option<Configured>,
    /// What that limit lets through of the very same requests.
    pub expected_admitted: Option<u64>,
    pub worst_window: Option<WorstWindow>,
    /// By how much keys exceeded the bound in their worst window, summed.
    pub over_admitted: Option<u64>,
    pub fairness: Option<f64>,
    pub keys: u64,
    /// Keys beyond those that are looked at one by one.
    pub keys_not_seen: u64,
    pub first_limited_us: Option<u64>,
    /// Null when several workers shared the keys.
    pub headers: Option<Audit>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub schema: String,
    pub target: String,
    /// `open`, `closed` or `replay`.
    pub mode: String,
    pub started: String,
    pub planned_rps: Option<f64>,
    pub delivered_rps: f64,
    pub planned: Option<u64>,
    pub sent: u64,
    /// Planned and not sent, for want of time or connections.
    pub not_sent: u64,
    /// Planned and not sent, because clients wait.
    pub held_back: u64,
    pub retries: u64,
    pub elapsed_us: u64,
    pub interrupted: bool,
    pub outcomes: Outcomes,
    pub schedule_lag_p50_us: Option<u64>,
    pub schedule_lag_p99_us: Option<u64>,
    /// The same for requests that had a connection at once.
    pub send_lateness_p50_us: Option<u64>,
    pub send_lateness_p99_us: Option<u64>,
    pub client_cpu_percent: f64,
    pub client_busy_percent: f64,
    pub client_bound: bool,
    pub reconnects: u64,
    pub trouble: Option<String>,
    pub limiter: LimiterReport,
    pub expectations: Vec<Expectation>,
}

/// What all workers know of keys, put together.
#[derive(Clone, Debug, Default)]
pub struct KeyFindings {
    pub worst: Vec<Worst>,
    pub over_admitted: Option<u64>,
    pub fairness: Option<f64>,
    pub keys: u64,
    pub keys_not_seen: u64,
    pub first_limited_ns: Option<u64>,
    pub told: Option<Told>,
    pub audit: Option<Audit>,
    pub reference_admitted: Option<u64>,
}

impl KeyFindings {
    /// `limit` is what the target is said to have; the first window is its period.
    pub fn of(tables: &[KeyTable], limit: Option<&Limit>) -> KeyFindings {
        let exclusive = tables.iter().all(KeyTable::is_exclusive);
        let Some(first) = tables.first() else { return KeyFindings::default() };
        // Where workers share keys, no table alone knows what a window held: their sum is the most.
        let mut worst = first.worst.clone();
        for table in &tables[1..] {
            for (all, one) in worst.iter_mut().zip(&table.worst) {
                if !exclusive {
                    all.admitted += one.admitted;
                } else if one.admitted > all.admitted {
                    *all = *one;
                }
            }
        }
        let keys = first.seen().len();
        let of_key = |key: usize| {
            let seen = tables.iter().map(|table| &table.seen()[key]);
            seen.fold((0, 0), |(offered, admitted), seen| {
                (offered + seen.offered, admitted + seen.admitted)
            })
        };
        let offered: Vec<(u64, u64)> = (0..keys).map(of_key).filter(|(o, _)| *o > 0).collect();
        let shares = offered.iter().map(|(offered, admitted)| *admitted as f64 / *offered as f64);
        let mut audit = Audit::default();
        tables.iter().for_each(|table| audit.add(&table.audit));
        let bound = limit.map(|limit| bound(limit, limit.period()));
        KeyFindings {
            worst,
            over_admitted: bound
                .filter(|_| exclusive)
                .map(|most| tables.iter().map(|table| table.excess(0, most)).sum()),
            fairness: jain(shares),
            keys: offered.len() as u64,
            keys_not_seen: first.not_seen() as u64,
            first_limited_ns: tables.iter().filter_map(|table| table.first_limited_ns).min(),
            told: tables.iter().find_map(|table| table.told),
            audit: exclusive.then_some(audit),
            reference_admitted: limit
                .map(|_| tables.iter().map(|table| table.reference_admitted).sum()),
        }
    }
}

/// What a report is made from, besides what was collected.
#[derive(Debug)]
pub struct Frame<'r> {
    pub target: &'r str,
    pub mode: &'r str,
    pub started: Micros,
    pub warmup: Micros,
    /// Measured, without the warm-up.
    pub elapsed: Micros,
    /// The whole plan, without the warm-up.
    pub lasts: Micros,
    pub planned: Option<u64>,
    pub interrupted: bool,
    pub limit: Option<&'r Limit>,
    pub keys: &'r Keys,
}

impl Report {
    pub fn new(collected: &Collected, keys: &KeyFindings, frame: &Frame<'_>) -> Report {
        let feed = collected.feed();
        let closed = frame.planned.is_none();
        let seconds = (frame.elapsed.0 as f64 / Micros::SECOND.0 as f64).max(1e-6);
        let planned = (!closed).then_some(feed.planned);
        let sent_of_plan = collected.sent.saturating_sub(feed.retries);
        let due = planned.map_or(0, |planned| planned.saturating_sub(feed.held_back));
        let at = |histogram: &Histogram<u64>, share| {
            (!histogram.is_empty()).then(|| histogram.value_at_quantile(share))
        };
        let lasts = frame.lasts.0 as f64 / Micros::SECOND.0 as f64;
        Report {
            schema: crate::output::SCHEMA.into(),
            target: frame.target.into(),
            mode: frame.mode.into(),
            started: crate::output::moment(frame.started),
            planned_rps: frame.planned.map(|planned| round(planned as f64 / lasts)),
            delivered_rps: round(collected.sent as f64 / seconds),
            planned,
            sent: collected.sent,
            not_sent: due.saturating_sub(sent_of_plan),
            held_back: feed.held_back,
            retries: feed.retries,
            elapsed_us: frame.elapsed.0,
            interrupted: frame.interrupted,
            outcomes: Outcomes::of(&collected.outcomes),
            schedule_lag_p50_us: at(&collected.lag, 0.5).filter(|_| !closed),
            schedule_lag_p99_us: at(&collected.lag, 0.99).filter(|_| !closed),
            send_lateness_p50_us: at(&collected.lateness, 0.5).filter(|_| !closed),
            send_lateness_p99_us: at(&collected.lateness, 0.99).filter(|_| !closed),
            client_cpu_percent: round(collected.cpu_percent()),
            client_busy_percent: round(collected.busy() * 100.0),
            client_bound: client_bound(collected, closed),
            reconnects: collected.reconnects,
            trouble: collected.trouble.clone(),
            limiter: limiter(collected, keys, frame),
            expectations: Vec::new(),
        }
    }
}

fn client_bound(collected: &Collected, closed: bool) -> bool {
    if closed {
        return collected.cpu_percent() > FULL_CPU_PERCENT;
    }
    let late = &collected.lateness;
    collected.busy() > BUSY || (!late.is_empty() && late.value_at_quantile(0.99) > MAX_LATENESS_US)
}

fn limiter(collected: &Collected, keys: &KeyFindings, frame: &Frame<'_>) -> LimiterReport {
    let configured = configured(keys, frame.limit);
    let period = configured.as_ref().and_then(|configured| configured.period_us);
    let worst = keys.worst.iter().find(|worst| Some(worst.window.0) == period);
    let worst = worst.or(keys.worst.first()).filter(|worst| worst.admitted > 0);
    let most = |window: Micros| match (frame.limit, &configured) {
        (Some(limit), _) => Some(bound(limit, window)),
        // Whatever the algorithm, its period lets through at most twice its limit.
        (None, Some(told)) if told.period_us == Some(window.0) => Some(2 * told.limit),
        _ => None,
    };
    let worst_window = worst.map(|worst| WorstWindow {
        window_us: worst.window.0,
        admitted: worst.admitted,
        bound: most(worst.window),
        over: most(worst.window).map(|most| worst.admitted.saturating_sub(most)),
        key: frame.keys.name(worst.key).into(),
        until_us: (worst.until_ns / 1_000).saturating_sub(frame.warmup.0),
    });
    LimiterReport {
        offered: collected.sent,
        admitted: collected.count(Outcome::Allowed),
        configured,
        expected_admitted: keys.reference_admitted,
        worst_window,
        over_admitted: keys.over_admitted,
        fairness: keys.fairness.map(|index| (index * 10_000.0).round() / 10_000.0),
        keys: keys.keys,
        keys_not_seen: keys.keys_not_seen,
        first_limited_us: keys.first_limited_ns.map(|ns| ns / 1_000),
        headers: keys.audit,
    }
}

fn configured(keys: &KeyFindings, limit: Option<&Limit>) -> Option<Configured> {
    if let Some(limit) = limit {
        return Some(Configured {
            limit: limit.requests(),
            period_us: Some(limit.period().0),
            burst: limit.algorithm().is_bucket().then(|| limit.capacity()),
            algorithm: Some(limit.algorithm().name().into()),
            source: "--limit".into(),
        });
    }
    let told = keys.told?;
    Some(Configured {
        limit: told.limit?,
        period_us: told.window_s.map(|s| s.saturating_mul(Micros::SECOND.0)),
        burst: None,
        algorithm: None,
        source: "headers".into(),
    })
}

/// Two digits after the point say all there is.
fn round(number: f64) -> f64 {
    (number * 100.0).round() / 100.0
}

/// A report with what is needed to compare it with another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    #[serde(flatten)]
    pub report: Report,
    pub seconds: Vec<Second>,
}
