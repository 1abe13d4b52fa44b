//! Reporters: each reads the same events and writes them in its own form.

mod csv;
mod github;
mod human;
mod json;
mod junit;
mod tap;

use std::io;

use super::run::{Case, CaseResult, Outcome};
pub use csv::Csv;
pub use github::GitHub;
pub use human::Human;
pub use json::{Json, json_of};
pub use junit::JUnit;
pub use tap::Tap;

/// What happens while scenarios run.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// So many scenarios will run.
    Began(usize),
    Ended(&'a Outcome),
    /// A scenario that did not run, and why.
    Skipped {
        title: &'a str,
        file: &'a str,
        why: &'a str,
    },
    Finished(&'a Summary),
}

/// The end of it all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub scenarios: usize,
    pub failed_scenarios: usize,
    pub skipped_scenarios: usize,
    pub passed: usize,
    pub failed: usize,
    pub skipped: usize,
}

impl Summary {
    pub fn add(&mut self, outcome: &Outcome) {
        self.scenarios += 1;
        self.failed_scenarios += usize::from(!outcome.passed());
        for case in &outcome.cases {
            *match case.result {
                CaseResult::Passed => &mut self.passed,
                CaseResult::Failed => &mut self.failed,
                CaseResult::Skipped => &mut self.skipped,
            } += 1;
        }
    }
}

/// Writes events in some form.
pub trait Report {
    fn tell(&mut self, event: &Event<'_>) -> io::Result<()>;
}

/// The one command that shows a failure again.
fn reproduce(outcome: &Outcome) -> String {
    let file = quoted(&outcome.file);
    let only = match outcome.variant.is_empty() {
        true => String::new(),
        false => format!(" --filter {}", quoted(&outcome.title)),
    };
    let live = match &outcome.live {
        None => String::new(),
        Some(live) => format!(" {}", live.options),
    };
    format!("rlctl scenario run {file} --seed {}{only}{live}", outcome.seed)
}

/// A word as a shell reads it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-=:".contains(c);
    if word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// The name of a case among those of its scenario: with its limiter where there are several.
fn case_name(case: &Case, outcome: &Outcome) -> String {
    // Also one that did not run has cases.
    let is_alone = outcome.limiters.len() == 1
        && outcome.cases.iter().all(|other| other.limiter == case.limiter);
    if is_alone { case.name.clone() } else { format!("{} ({})", case.name, case.limiter) }
}
