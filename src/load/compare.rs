//! Two runs side by side: what differs, and whether that is more than chance.
//!
//! Requests of one second resemble each other, so seconds are what is drawn from: a moving-block
//! bootstrap over the seconds of each run gives an interval for the ratio of their medians. A
//! difference counts when that interval leaves out 1 and the ratio itself is off by a twentieth.

use serde::Serialize;

use super::collect::Second;
use super::report::Saved;
use crate::traffic::Rng;

const DRAWS: usize = 2_000;
const SMALLEST: f64 = 0.05;
/// Fewer seconds say nothing about how much seconds differ.
pub const FEWEST_SECONDS: usize = 5;

/// Whether more of it is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Good {
    More,
    Less,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Judgement {
    Better,
    Worse,
    NotSignificant,
    /// There are too few seconds to tell.
    TooShort,
}

impl Judgement {
    pub fn words(self) -> &'static str {
        match self {
            Judgement::Better => "significantly better",
            Judgement::Worse => "significantly WORSE",
            Judgement::NotSignificant => "not significant",
            Judgement::TooShort => "too short to tell",
        }
    }
}

/// One figure of both runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    pub metric: &'static str,
    pub a: f64,
    pub b: f64,
    /// B over A.
    pub ratio: Option<f64>,
    /// Where the ratio lies, 19 times out of 20.
    pub low: Option<f64>,
    pub high: Option<f64>,
    pub judgement: Judgement,
}

type Figure = (&'static str, Good, fn(&Second) -> Option<f64>);

const FIGURES: [Figure; 4] = [
    ("rate", Good::More, |second| Some(second.answered() as f64)),
    ("p50_us", Good::Less, |second| second.p50_us.map(|us| us.max(1) as f64)),
    ("p99_us", Good::Less, |second| second.p99_us.map(|us| us.max(1) as f64)),
    ("failed", Good::Less, |second| {
        Some(second.counts[2..].iter().sum::<u64>() as f64 / second.answered().max(1) as f64)
    }),
];

pub fn compare(a: &Saved, b: &Saved) -> Vec<Difference> {
    let figure = |(metric, good, of): &Figure| {
        // The last second is mostly not a whole one.
        let values = |run: &Saved| -> Vec<f64> {
            let whole = run.seconds.len().saturating_sub(1);
            run.seconds[..whole].iter().filter_map(of).collect()
        };
        let (a, b) = (values(a), values(b));
        difference(metric, *good, &a, &b)
    };
    FIGURES.iter().map(figure).collect()
}

fn difference(metric: &'static str, good: Good, a: &[f64], b: &[f64]) -> Difference {
    let (first, second) = (median(a.to_vec()), median(b.to_vec()));
    let mut found = Difference {
        metric,
        a: first,
        b: second,
        ratio: (first > 0.0).then(|| second / first),
        low: None,
        high: None,
        judgement: Judgement::TooShort,
    };
    if a.len() < FEWEST_SECONDS || b.len() < FEWEST_SECONDS {
        return found;
    }
    found.judgement = Judgement::NotSignificant;
    if first == 0.0 && second == 0.0 {
        return found;
    }
    let mut rng = Rng::new(1, 0);
    let mut ratios: Vec<f64> = (0..DRAWS)
        .map(|_| {
            let (a, b) = (median(resample(a, &mut rng)), median(resample(b, &mut rng)));
            // Something out of nothing is infinitely more.
            if a > 0.0 {
                b / a
            } else if b > 0.0 {
                f64::INFINITY
            } else {
                1.0
            }
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    let (low, high) = (ratios[DRAWS / 40], ratios[DRAWS - 1 - DRAWS / 40]);
    (found.low, found.high) =
        (Some(low).filter(|l| l.is_finite()), Some(high).filter(|h| h.is_finite()));
    let ratio = found.ratio.unwrap_or(f64::INFINITY);
    let apart = (ratio - 1.0).abs() >= SMALLEST && !(low..=high).contains(&1.0);
    if apart {
        let more = ratio > 1.0;
        let better = more == (good == Good::More);
        found.judgement = if better { Judgement::Better } else { Judgement::Worse };
    }
    found
}

/// As many seconds, drawn in blocks, so that what follows each other stays together.
fn resample(values: &[f64], rng: &mut Rng) -> Vec<f64> {
    let block = (values.len() as f64).cbrt().ceil() as usize;
    let mut drawn = Vec::with_capacity(values.len() + block);
    while drawn.len() < values.len() {
        let start = rng.below((values.len() - block + 1) as u64) as usize;
        drawn.extend_from_slice(&values[start..start + block]);
    }
    drawn.truncate(values.len());
    drawn
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds around a value, never the same twice.
    fn noisy(around: f64, seconds: usize, seed: u64) -> Vec<f64> {
        let mut rng = Rng::new(seed, 7);
        (0..seconds).map(|_| around * (0.9 + 0.2 * rng.unit())).collect()
    }

    #[test]
    fn the_same_is_not_significant_and_half_as_fast_again_is() {
        let mut wrong = 0;
        for seed in 0..40 {
            let (a, b) = (noisy(1_000.0, 30, seed), noisy(1_000.0, 30, seed + 1_000));
            wrong += usize::from(
                difference("p99_us", Good::Less, &a, &b).judgement != Judgement::NotSignificant,
            );
            let slower = noisy(1_500.0, 30, seed + 1_000);
            assert_eq!(difference("p99_us", Good::Less, &a, &slower).judgement, Judgement::Worse);
            assert_eq!(difference("rate", Good::More, &a, &slower).judgement, Judgement::Better);
        }
        assert!(wrong <= 2, "{wrong} of 40 equal pairs were told apart");
    }

    #[test]
    fn a_few_seconds_say_nothing() {
        let found = difference("rate", Good::More, &noisy(10.0, 4, 1), &noisy(1.0, 30, 1));
        assert_eq!(found.judgement, Judgement::TooShort);
    }

    #[test]
    fn failures_out_of_nothing_are_worse() {
        let found = difference("failed", Good::Less, &[0.0; 20], &[0.3; 20]);
        assert_eq!((found.judgement, found.ratio), (Judgement::Worse, None));
        let none = difference("failed", Good::Less, &[0.0; 20], &[0.0; 20]);
        assert_eq!(none.judgement, Judgement::NotSignificant);
    }
}
