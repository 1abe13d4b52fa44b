//! The windows of an assertion, and what a metric is in each of them.

use std::ops::Range;

use super::ast::{Counted, Labels, Metric, Quantile, Timed, Window};
use super::measured::{Count, Lasting, Measured, NotMeasured};
use super::quantile::{Moving, weighted_quantile};
use crate::engine::clock::Micros;

/// Whole windows within `range`, by the time they begin: the rest at the end is too short to say
/// anything.
pub(super) fn windows(
    range: &Range<Micros>,
    window: Option<Window>,
    slide: Micros,
) -> Vec<Range<Micros>> {
    let Some(window) = window else { return vec![range.clone()] };
    let length = window.length();
    let step = match window {
        Window::Per(_) => length,
        Window::Over(_) => slide,
    };
    let starts =
        (range.start.0..range.end.0).step_by(usize::try_from(step.0).unwrap_or(usize::MAX));
    starts
        .take_while(|start| start + length.0 <= range.end.0)
        .map(|start| Micros(start)..Micros(start + length.0))
        .collect()
}

/// The metric in each window; none where there was nothing to measure.
pub(super) fn values(
    metric: &Metric,
    labels: &Labels,
    windows: &[Range<Micros>],
    of: &dyn Measured,
) -> Result<Vec<Option<f64>>, NotMeasured> {
    let counts = |what: Counted| -> Result<Vec<u64>, NotMeasured> {
        Ok(sums(&of.counts(what, labels)?, windows))
    };
    Ok(match metric {
        Metric::Count(what) => counts(*what)?.into_iter().map(|n| Some(n as f64)).collect(),
        Metric::Rate(what) => {
            let per_second = |(n, window): (u64, &Range<Micros>)| {
                let us = (window.end - window.start).0;
                (us > 0).then(|| n as f64 * Micros::SECOND.0 as f64 / us as f64)
            };
            counts(*what)?.into_iter().zip(windows).map(per_second).collect()
        }
        Metric::Share(what) => {
            let all = sums(&of.offered(labels)?, windows);
            let share = |(n, all): (u64, u64)| (all > 0).then(|| n as f64 / all as f64);
            counts(*what)?.into_iter().zip(all).map(share).collect()
        }
        Metric::Latency(quantile, what) => {
            latencies(&of.lasting(*what, labels)?, *quantile, windows)
        }
        Metric::RetryAfter => {
            latencies(&of.lasting(Timed::RetryAfter, labels)?, Quantile::Max, windows)
        }
        Metric::PerKey(what) => {
            let each = windows.iter().map(|window| of.per_key(*what, labels, window.clone()));
            each.collect::<Result<_, _>>()?
        }
        Metric::Gauge(_) => vec![None; windows.len()],
    })
}

/// How much lies in each window. Neither the starts nor the ends of windows go back.
fn sums(counts: &[Count], windows: &[Range<Micros>]) -> Vec<u64> {
    let (mut first, mut next, mut sum) = (0, 0, 0);
    let in_window = |window: &Range<Micros>| {
        while let Some(count) = counts.get(next).filter(|count| count.at < window.end) {
            sum += count.n;
            next += 1;
        }
        while let Some(count) = counts[first..next].first().filter(|c| c.at < window.start) {
            sum -= count.n;
            first += 1;
        }
        sum
    };
    windows.iter().map(in_window).collect()
}

fn latencies(all: &[Lasting], quantile: Quantile, windows: &[Range<Micros>]) -> Vec<Option<f64>> {
    let share = quantile.share();
    if let [whole] = windows {
        let within = all.iter().filter(|one| whole.contains(&one.at));
        let mut sorted: Vec<(u64, u64)> = within.map(|one| (one.took.0, one.n)).collect();
        sorted.sort_unstable();
        return vec![weighted_quantile(&sorted, share).map(|us| us as f64)];
    }
    let mut moving = Moving::over(all.iter().map(|one| one.took.0));
    let (mut first, mut next) = (0, 0);
    let in_window = |window: &Range<Micros>| {
        while let Some(one) = all.get(next).filter(|one| one.at < window.end) {
            moving.add(one.took.0, one.n);
            next += 1;
        }
        while let Some(one) = all[first..next].first().filter(|one| one.at < window.start) {
            moving.remove(one.took.0, one.n);
            first += 1;
        }
        moving.quantile(share).map(|us| us as f64)
    };
    windows.iter().map(in_window).collect()
}
