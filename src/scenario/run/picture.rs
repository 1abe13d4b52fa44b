//! Evidence for people: what a metric did over the run, in one line, and what was going on when it
//! went wrong.

use std::ops::Range;

use super::record::Recording;
use crate::engine::clock::Micros;
use crate::expect::{Assertion, Count, Counted, Gauge, Measured, Metric, PerKey, Timed, Value};
use crate::scenario::model::Scenario;

const COLUMNS: u64 = 60;
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Two lines: the metric over the whole run, and where it went wrong below it.
pub(super) fn of(
    assertion: &Assertion,
    recording: &Recording,
    wrong: Option<&Range<Micros>>,
) -> Option<String> {
    let end = recording.end();
    let heights = match &assertion.metric {
        Metric::Count(what) | Metric::Rate(what) | Metric::Share(what) => {
            columns(&recording.counts(*what, &assertion.labels).ok()?, end)
        }
        Metric::PerKey(PerKey::WorstWindow(_) | PerKey::OverAdmitted | PerKey::Fairness) => {
            columns(&recording.counts(Counted::Allowed, &assertion.labels).ok()?, end)
        }
        Metric::Latency(_, timed) => highest(recording, *timed, assertion, end)?,
        Metric::RetryAfter => highest(recording, Timed::RetryAfter, assertion, end)?,
        Metric::Gauge(gauge) => return words_over_time(recording, gauge, assertion),
    };
    let most = heights.iter().copied().max().filter(|most| *most > 0)?;
    let bar = |height: &u64| match height {
        0 => ' ',
        height => BARS[((height * 8).div_ceil(most) as usize).clamp(1, 8) - 1],
    };
    let line: String = heights.iter().map(bar).collect();
    let marks = wrong.map(|wrong| {
        let column = |at: Micros| (at.0 * COLUMNS / end.0.max(1)).min(COLUMNS - 1);
        let (from, to) = (column(wrong.start), column(wrong.end.max(wrong.start)));
        (0..COLUMNS).map(|n| if (from..=to).contains(&n) { '^' } else { ' ' }).collect::<String>()
    });
    let marks =
        marks.filter(|marks| marks.contains(' ')).map(|marks| format!("\n {}", marks.trim_end()));
    Some(format!("|{line}| 0s..{end}, at most {most}{}", marks.unwrap_or_default()))
}

fn columns(counts: &[Count], end: Micros) -> Vec<u64> {
    let mut columns = vec![0; COLUMNS as usize];
    for count in counts {
        let column = (count.at.0 * COLUMNS / end.0.max(1)).min(COLUMNS - 1);
        columns[column as usize] += count.n;
    }
    columns
}

fn highest(
    recording: &Recording,
    timed: Timed,
    assertion: &Assertion,
    end: Micros,
) -> Option<Vec<u64>> {
    let mut columns = vec![0; COLUMNS as usize];
    for one in recording.lasting(timed, &assertion.labels).ok()? {
        let column = (one.at.0 * COLUMNS / end.0.max(1)).min(COLUMNS - 1);
        let height: &mut u64 = &mut columns[column as usize];
        *height = (*height).max(one.took.0);
    }
    Some(columns)
}

fn words_over_time(recording: &Recording, gauge: &Gauge, assertion: &Assertion) -> Option<String> {
    let values = recording.gauge(gauge, &assertion.labels).ok()?;
    let shown = |(at, value): &(Micros, Value)| match value {
        Value::Word(word) => format!("{at} {word}"),
        Value::Number(number) => format!("{at} {number}"),
    };
    let most: Vec<String> = values.iter().take(12).map(shown).collect();
    let more = values.len().saturating_sub(12);
    let more = if more > 0 { format!(", and {more} more") } else { String::new() };
    Some(most.join(", ") + &more)
}

/// What was going on at the time: a fault, a change, decisions without the store.
pub(super) fn why(
    assertion: &Assertion,
    recording: &Recording,
    wrong: Option<&Range<Micros>>,
    scenario: &Scenario,
) -> Option<String> {
    let wrong = wrong?;
    let meets = |during: &Range<Micros>| during.start <= wrong.end && wrong.start <= during.end;
    let mut reasons = Vec::new();
    for fault in &scenario.faults {
        if meets(&(fault.at..fault.at + fault.lasts)) {
            let on = fault.on.words();
            reasons.push(format!("'{}' was on ({} of {on})", fault.name, fault.word));
        }
    }
    for change in scenario.changes.iter().filter(|change| meets(&(change.at..change.at))) {
        reasons.push(format!("'{}' came at {}", change.name, change.at));
    }
    let degraded = recording.counts(Counted::Degraded, &assertion.labels).ok()?;
    let degraded: u64 =
        degraded.iter().filter(|count| wrong.contains(&count.at)).map(|count| count.n).sum();
    if degraded > 0 {
        reasons.push(format!("{degraded} were decided without the store then"));
    }
    (!reasons.is_empty()).then(|| reasons.join("; "))
}
