//! How far what a live run measured may be off, which docs/scenarios.md states. Where time is virtual
//! nothing is.

use std::ops::Range;

use super::LiveOutcome;
use super::record::{Outcome, Recording, Row};
use super::stalls::{Standstill, USUAL};
use crate::engine::clock::Micros;
use crate::expect::{Labels, Metric, PerKey, worst_window};

/// Real stores and networks take longer than those of a file, by this much at most.
pub(super) const LATENCY: Micros = Micros(5 * Micros::MILLISECOND.0);
/// Takeovers and reconnections of real servers may come this much later than a file says.
pub(super) const LATER: Micros = Micros::SECOND;
/// Where more of the requests met a standstill, nothing can be said.
const TOO_MANY: f64 = 0.25;

/// What is known of a run in real time beside what was decided.
#[derive(Clone, Debug, Default)]
pub(super) struct RealTime {
    pub(super) still: Standstill,
    /// Only answers were seen, not when they were decided, nor what a store was asked.
    pub(super) answers_only: bool,
    /// From question to answer, of all requests.
    pub(super) longest_trip: Micros,
}

impl Recording {
    /// Takes off what the machine stood still, and marks who met it.
    pub(super) fn be_real(&mut self, still: Standstill, answers_only: bool) {
        let longest_trip = self.rows.iter().map(|row| row.decision).max().unwrap_or_default();
        let queued = still.with_aftermath();
        for row in &mut self.rows {
            let stood = still.within(&(row.at..row.at + row.decision));
            // One that was sent late met it, too.
            let before = row.at.saturating_sub(USUAL)..row.at + row.decision;
            row.met_standstill = queued.within(&before) > Micros::ZERO;
            row.decision = row.decision.saturating_sub(stood);
            row.response = row.response.saturating_sub(stood);
        }
        for call in &mut self.calls {
            call.took = call.took.saturating_sub(still.within(&(call.at..call.at + call.took)));
        }
        self.real = Some(RealTime { still, answers_only, longest_trip });
    }

    pub(super) fn live_outcome(&self, options: &str) -> Option<LiveOutcome> {
        let real = self.real.as_ref()?;
        Some(LiveOutcome {
            options: options.into(),
            stood_still: real.still.within(&(Micros::ZERO..self.end)),
            longest: real.still.longest(),
            met: self.rows.iter().filter(|row| row.met_standstill).count() as u64,
        })
    }

    pub(super) fn sees_answers_only(&self) -> bool {
        self.real.as_ref().is_some_and(|real| real.answers_only)
    }

    fn met(&self, only: &Labels, during: &Range<Micros>, is: impl Fn(&Row) -> bool) -> u64 {
        let only = Labels { outcome: None, ..only.clone() };
        let Ok(rows) = self.chosen(&only, during) else { return 0 };
        rows.filter(|row| row.met_standstill && is(row)).map(|row| row.cost).sum()
    }

    /// In the unit of the metric.
    pub(super) fn give_of(&self, metric: &Metric, only: &Labels, during: &Range<Micros>) -> f64 {
        let Some(real) = &self.real else { return 0.0 };
        let met = || self.met(only, during, |_| true) as f64;
        match metric {
            Metric::Count(_) => met(),
            Metric::Rate(_) => {
                let us = during.end.saturating_sub(during.start).0.max(1);
                met() * Micros::SECOND.0 as f64 / us as f64
            }
            Metric::Share(_) | Metric::PerKey(PerKey::Fairness) => self.met_share(only, during),
            Metric::Latency(..) => LATENCY.0 as f64,
            Metric::PerKey(PerKey::WorstWindow(_)) => met() + self.of_trips(real, only, during),
            // Who met it was perhaps let in without the store, for want of an answer in time.
            Metric::PerKey(PerKey::OverAdmitted) => {
                let let_in = |row: &Row| row.degraded && row.outcome == Outcome::Allowed;
                self.met(only, during, let_in) as f64 + self.of_trips(real, only, during)
            }
            Metric::RetryAfter | Metric::Gauge(_) => 0.0,
        }
    }

    /// When something was decided is known to within its trip, where only answers are seen: so many
    /// seem to lie in an interval that they do not lie in.
    fn of_trips(&self, real: &RealTime, only: &Labels, during: &Range<Micros>) -> f64 {
        if !real.answers_only {
            return 0.0;
        }
        let Ok(keys) = self.by_key(only, during) else { return 0.0 };
        let most = |admitted: &Vec<_>| worst_window(admitted, real.longest_trip);
        keys.values().map(|(_, admitted)| most(admitted)).max().unwrap_or_default() as f64
    }

    /// By how much something may come later than said.
    pub(super) fn later_of(&self, during: &Range<Micros>) -> Micros {
        self.real.as_ref().map_or(Micros::ZERO, |real| LATER + real.still.within(during))
    }

    fn met_share(&self, only: &Labels, during: &Range<Micros>) -> f64 {
        let only = Labels { outcome: None, ..only.clone() };
        let Ok(rows) = self.chosen(&only, during) else { return 0.0 };
        let (mut met, mut all) = (0, 0);
        for row in rows {
            all += row.cost;
            met += if row.met_standstill { row.cost } else { 0 };
        }
        if all == 0 { 0.0 } else { met as f64 / all as f64 }
    }

    /// So many requests met a standstill of the machine that nothing can be said, if so in words.
    pub(super) fn is_no_evidence(&self, only: &Labels, during: &Range<Micros>) -> Option<String> {
        self.real.as_ref()?;
        let share = self.met_share(only, during);
        let percent = (share * 100.0).round();
        (share > TOO_MANY).then(|| {
            format!(
                "this machine stood still during {percent}% of the requests: nothing can be said"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::limit::QuotaState;
    use crate::engine::limiter::By;
    use crate::expect::{Verdict, judge, parse};

    const MS: u64 = Micros::MILLISECOND.0;

    /// 100 requests in a second, each of which took 2 ms; those between 500 and 540 ms took until then,
    /// and were let in without the store.
    fn recording(limit: &str) -> Recording {
        let row = |n: u64| {
            let at = Micros(n * 10 * MS);
            let is_late = (500..540).contains(&(n * 10));
            let took = if is_late { Micros(542 * MS) - at } else { Micros(2 * MS) };
            Row {
                at,
                cost: 1,
                key: 0,
                traffic: 0,
                rule: 0,
                node: 0,
                shard: 0,
                outcome: Outcome::Allowed,
                degraded: is_late,
                shadow_rejected: false,
                decision: took,
                response: took,
                retry_after: None,
                taken: at,
                by: By::Store,
                state: QuotaState::Normal,
                met_standstill: false,
            }
        };
        Recording {
            rows: (0..100).map(row).collect(),
            keys: vec!["user:1".parse().unwrap()],
            limit: Some(
                crate::engine::limit::Limit::new(
                    crate::engine::limit::Algorithm::TokenBucket,
                    limit.parse().unwrap(),
                )
                .unwrap(),
            ),
            nodes: 1,
            shards: 1,
            end: Micros::SECOND,
            ..Recording::default()
        }
    }

    fn stood_still(recording: &mut Recording, answers_only: bool) {
        let still = Standstill::of(vec![Micros(500 * MS)..Micros(540 * MS)]);
        recording.be_real(still, answers_only);
    }

    fn verdict(recording: &Recording, text: &str) -> Verdict {
        judge(&parse(text).unwrap(), recording).unwrap()
    }

    #[test]
    fn a_machine_that_stood_still_is_no_reason_to_fail() {
        let mut real = recording("90/1s burst 7");
        for text in ["max(response) <= 3ms", "degraded == 0", "over_admitted == 0"] {
            assert!(!verdict(&real, text).holds, "in virtual time nothing is given: {text}");
        }
        stood_still(&mut real, false);
        for text in ["max(response) <= 3ms", "degraded == 0", "over_admitted == 0"] {
            assert!(verdict(&real, text).holds, "{text}: {}", verdict(&real, text).words);
        }
        let given = verdict(&real, "degraded == 0");
        assert!(given.is_given && given.words.ends_with(", give or take 9"), "{}", given.words);
        assert!(!verdict(&real, "max(response) <= 3ms").is_given, "it was 2 ms");
    }

    #[test]
    fn more_than_that_is_not_given() {
        let mut real = recording("90/1s burst 3");
        stood_still(&mut real, false);
        for text in [
            "over_admitted == 0",
            "allowed == 90",
            "share(allowed) == 90%",
            "rate(allowed) == 90/s",
            "p50(response) >= 8ms",
            "degraded during 0s..0.4s == 1",
        ] {
            assert!(!verdict(&real, text).holds, "{text}: {}", verdict(&real, text).words);
        }
        assert!(verdict(&real, "p50(response) >= 7ms").is_given);
        assert!(real.is_no_evidence(&Labels::default(), &(Micros::ZERO..real.end)).is_none());
        let during = Micros(500 * MS)..Micros(550 * MS);
        assert!(real.is_no_evidence(&Labels::default(), &during).is_some());
    }

    #[test]
    fn who_only_sees_answers_knows_times_to_within_a_trip() {
        let mut real = recording("1000/1s");
        stood_still(&mut real, true);
        // In any 100 ms there are 10; in the longest trip, 42 ms, up to 5 more.
        assert!(verdict(&real, "worst_window(100ms) during 0s..0.4s == 5").holds);
        assert!(!verdict(&real, "worst_window(100ms) during 0s..0.4s == 4").holds);
        let asked = judge(&parse("store_calls == 0").unwrap(), &real).unwrap_err();
        assert!(asked.what.contains("over HTTP"), "{asked}");
    }
}
