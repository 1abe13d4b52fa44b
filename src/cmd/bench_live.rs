//! What is seen of a run while it lasts: a few lines drawn over themselves on a terminal, a bar
//! where only stderr is one, nothing in a pipe.

use std::io::{self, IsTerminal, Write};

use indicatif::{ProgressBar, ProgressStyle};
use unicode_width::UnicodeWidthChar;

use super::Context;
use crate::engine::clock::Micros;
use crate::load::answer::Outcome;
use crate::load::collect::{Collected, Second};
use crate::load::plan::Plan;
use crate::load::record::histogram;
use crate::output::{Untrusted, about};

const DRAW_EVERY_US: u64 = 250_000;
/// Seconds that are shown side by side.
const SHOWN: usize = 40;
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Of a terminal that does not say how large it is.
const USUAL_SIZE: (u16, u16) = (80, 24);
/// The upper ends of the rows of the histogram, in microseconds.
const ROWS: [(u64, &str); 7] = [
    (100, "100us"),
    (300, "300us"),
    (1_000, "1ms"),
    (3_000, "3ms"),
    (10_000, "10ms"),
    (100_000, "100ms"),
    (u64::MAX, "more"),
];

pub(super) struct Live {
    screen: Screen,
    target: String,
    warmup: Micros,
    end: Micros,
    planned: Option<u64>,
    drawn_us: u64,
}

enum Screen {
    Nothing,
    Bar(ProgressBar),
    /// How many lines were drawn last.
    Lines(usize),
}

impl Live {
    pub(super) fn new(context: &Context, plan: &Plan, target: &str) -> Live {
        let dumb = context.env("TERM").is_none_or(|term| term == "dumb");
        let screen = match (context.progress, io::stdout().is_terminal() && !dumb) {
            (false, _) => Screen::Nothing,
            (true, true) => Screen::Lines(0),
            (true, false) => {
                let bar = ProgressBar::new(plan.end().0 / 1_000);
                let template = "{wide_bar} {msg}";
                bar.set_style(ProgressStyle::with_template(template).expect("it is right"));
                Screen::Bar(bar)
            }
        };
        let (warmup, end) = (plan.warmup, plan.end());
        Live { screen, target: target.into(), warmup, end, planned: plan.planned(), drawn_us: 0 }
    }

    /// Draws, when it is time.
    pub(super) fn show(&mut self, collected: &Collected, now_us: u64) {
        if now_us < self.drawn_us + DRAW_EVERY_US {
            return;
        }
        self.drawn_us = now_us;
        let lines = match &self.screen {
            Screen::Nothing => return,
            Screen::Bar(bar) => {
                bar.set_position(now_us.min(self.end.0) / 1_000);
                bar.set_message(rates(collected.seconds.last()));
                return;
            }
            Screen::Lines(_) => self.lines(collected, now_us),
        };
        let lines = fitting(lines, crossterm::terminal::size().unwrap_or(USUAL_SIZE));
        if let Screen::Lines(before) = &mut self.screen {
            let mut text = String::new();
            if *before > 0 {
                text += &format!("\u{1b}[{before}A");
            }
            for line in &lines {
                text += &format!("{line}\u{1b}[K\n");
            }
            *before = lines.len();
            // Whoever closed stderr does not want to see it.
            let _ = io::stderr().write_all(text.as_bytes());
        }
    }

    /// Makes room for the report.
    pub(super) fn end(&mut self) {
        match &self.screen {
            Screen::Nothing | Screen::Lines(0) => {}
            Screen::Bar(bar) => bar.finish_and_clear(),
            Screen::Lines(lines) => {
                let _ = write!(io::stderr(), "\u{1b}[{lines}A\u{1b}[J");
            }
        }
    }

    fn lines(&self, collected: &Collected, now_us: u64) -> Vec<String> {
        let phase = if now_us < self.warmup.0 { "warming up, " } else { "" };
        let seconds = |us: u64| us / Micros::SECOND.0;
        let done =
            format!("{phase}{}s of {}s", seconds(now_us.min(self.end.0)), seconds(self.end.0));
        let planned = self.planned.map_or(String::new(), |planned| {
            let behind = collected.feed().planned.saturating_sub(
                collected.feed().held_back
                    + collected.sent.saturating_sub(collected.feed().retries),
            );
            format!("   sent {} of {planned}, {behind} behind", collected.sent)
        });
        let last = &collected.seconds[collected.seconds.len().saturating_sub(SHOWN)..];
        let spark = |of: fn(&Second) -> u64| sparkline(last.iter().map(of));
        let p99 =
            last.last().and_then(|second| second.p99_us).map_or("-".into(), |us| about(Micros(us)));
        let mut lines = vec![
            format!(" {done}{planned}   {}", Untrusted(&self.target)),
            format!(" {}", rates(last.last())),
            format!(
                " rate {:>12}  {}",
                last.last().map_or(0, Second::answered),
                spark(Second::answered)
            ),
            format!(" p99  {p99:>12}  {}", spark(|second| second.p99_us.unwrap_or(0))),
        ];
        lines.extend(distribution(collected));
        lines
    }
}

/// What can be drawn over itself: a line that goes on in the next one, or has left the screen, would
/// stay there.
fn fitting(mut lines: Vec<String>, (columns, rows): (u16, u16)) -> Vec<String> {
    lines.truncate(usize::from(rows).saturating_sub(1));
    for line in &mut lines {
        let mut width = 0;
        let beyond = line.char_indices().find(|(_, c)| {
            width += c.width().unwrap_or(0);
            width >= usize::from(columns)
        });
        if let Some((end, _)) = beyond {
            line.truncate(end);
        }
    }
    lines
}

fn rates(second: Option<&Second>) -> String {
    let Some(second) = second else { return "…".into() };
    let each = Outcome::ALL.map(|o| format!("{} {}/s", o.name(), second.counts[o as usize]));
    each.join("  ")
}

fn sparkline(values: impl Iterator<Item = u64> + Clone) -> String {
    let most = values.clone().max().unwrap_or(0).max(1);
    values.map(|value| BARS[(value * 7 / most) as usize]).collect()
}

/// Response times so far, whatever the outcome.
fn distribution(collected: &Collected) -> Vec<String> {
    let mut all = histogram();
    for timings in &collected.outcomes {
        if !timings.response.is_empty() {
            let _ = all.add(&timings.response);
        }
    }
    let total = all.len().max(1);
    let mut from = 0;
    let mut rows = Vec::new();
    for (to, name) in ROWS {
        let count = all.count_between(from, to - 1);
        from = to;
        let width = (count * 40).div_ceil(total) as usize;
        let bar = if count == 0 { String::new() } else { "█".repeat(width) };
        let share = count as f64 * 100.0 / total as f64;
        let sign = if to == u64::MAX { ' ' } else { '<' };
        rows.push(format!(" {sign}{name:>6} {share:>5.1}% {bar}"));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sparkline_reaches_from_nothing_to_the_most() {
        assert_eq!(sparkline([0, 50, 100].into_iter()), "▁▄█");
        assert_eq!(sparkline([0, 0].into_iter()), "▁▁");
    }

    #[test]
    fn lines_stay_on_the_screen_they_are_drawn_over() {
        let lines = || vec!["a".repeat(200), "日本".repeat(30), "short".into()];
        let fits = fitting(lines(), (20, 24));
        assert_eq!(fits, ["a".repeat(19), "日本日本日本日本日".into(), "short".into()]);
        assert_eq!(fitting(lines(), (20, 3)).len(), 2);
        assert!(fitting(lines(), (0, 0)).is_empty());
    }

    #[test]
    fn the_distribution_counts_every_answer_once() {
        let mut collected = Collected::new(1, Micros::ZERO);
        for us in [50, 200, 5_000, 3_000_000] {
            collected.outcomes[1].response.saturating_record(us);
        }
        let rows = distribution(&collected);
        let shares: f64 = rows
            .iter()
            .map(|row| {
                row.split('%')
                    .next()
                    .unwrap()
                    .split_whitespace()
                    .last()
                    .unwrap()
                    .parse::<f64>()
                    .unwrap()
            })
            .sum();
        assert_eq!((rows.len(), shares), (7, 100.0), "{rows:?}");
    }
}
