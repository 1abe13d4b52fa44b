//! What a simulation found, for eyes: in a terminal, as SVG, as a page.

pub mod html;
pub mod svg;
pub mod text;

use crate::engine::clock::Micros;
use crate::output::{about, count, moment};

use super::outcome::Outcome;
use super::timeline::Bin;

/// What a picture says about itself.
#[derive(Clone, Debug, Default)]
pub struct Caption {
    /// What came: the traffic as described, or the log's name.
    pub source: String,
    /// The command that makes it again.
    pub command: String,
    /// What is worth knowing about the input, a sentence each.
    pub notes: Vec<String>,
    /// What to take home.
    pub so_what: String,
    /// Whether times are those of a log, not from a start that means nothing.
    pub dated: bool,
    /// In place of limiters: rules of a policy.
    pub of_rules: bool,
}

impl Caption {
    /// Source, length and how much, in one line.
    pub fn headline(&self, outcome: &Outcome) -> String {
        let length = about(outcome.end.saturating_sub(outcome.start));
        let from = if self.dated && outcome.requests > 0 {
            format!(" from {}", moment(outcome.start))
        } else {
            String::new()
        };
        let keys = if outcome.keys == 1 {
            "1 key".into()
        } else {
            format!("{} keys", count(outcome.keys))
        };
        let interrupted = if outcome.ending.is_interrupted() { "interrupted after " } else { "" };
        format!(
            "{}, {length}{from}: {interrupted}{} requests of {keys}",
            self.source,
            count(outcome.requests)
        )
    }
}

/// How much of what came in a column passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Nothing,
    All,
    Some,
    None,
}

impl Fate {
    pub fn of(bin: Bin) -> Fate {
        match bin {
            Bin { offered: 0, .. } => Fate::Nothing,
            Bin { offered, allowed } if offered == allowed => Fate::All,
            Bin { allowed: 0, .. } => Fate::None,
            _ => Fate::Some,
        }
    }
}

/// How many a second, no more exactly than it matters.
fn rate(per_second: f64) -> String {
    match per_second {
        r if r >= 100.0 => count(r.round() as u64),
        r if r >= 1.0 => format!("{r:.1}"),
        r => format!("{r:.3}"),
    }
}

/// Round steps for a time axis: at most `most` of them, the first at 0.
pub fn ticks(length: Micros, most: usize) -> Vec<Micros> {
    const STEPS: [u64; 31] = [
        1,
        2,
        5,
        10,
        20,
        50,
        100,
        200,
        500, // milliseconds
        1_000,
        2_000,
        5_000,
        10_000,
        15_000,
        30_000, // seconds
        60_000,
        120_000,
        300_000,
        600_000,
        900_000,
        1_800_000, // minutes
        3_600_000,
        7_200_000,
        14_400_000,
        21_600_000,
        43_200_000, // hours
        86_400_000,
        172_800_000,
        604_800_000,
        2_592_000_000,
        31_536_000_000, // days
    ];
    let fits = |step: &&u64| length.0 / (**step * 1_000) < most as u64;
    let step = STEPS.iter().find(fits).unwrap_or(&STEPS[STEPS.len() - 1]) * 1_000;
    (0..=length.0 / step).map(|n| Micros(n * step)).take(most + 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_has_round_steps_that_fit() {
        for (length, most) in
            [(90, 6), (60, 5), (3_600, 7), (86_400 * 3, 6), (1, 5), (86_400 * 4000, 6)]
        {
            let ticks = ticks(Micros(length * 1_000_000), most);
            assert!(ticks.len() <= most + 1 && ticks.len() >= 2, "{length} {ticks:?}");
        }
        assert_eq!(ticks(Micros::MINUTE, 5).last(), Some(&Micros::MINUTE));
    }
}
