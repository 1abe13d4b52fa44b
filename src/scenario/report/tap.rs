//! TAP version 14: a test for each case.

use std::io::{self, Write};

use super::{Event, Report, case_name, reproduce};
use crate::output::Untrusted;
use crate::scenario::run::{CaseResult, Outcome};

#[derive(Debug)]
pub struct Tap<W> {
    to: W,
    tests: usize,
}

impl<W: Write> Tap<W> {
    pub fn new(to: W) -> Tap<W> {
        Tap { to, tests: 0 }
    }

    fn scenario(&mut self, outcome: &Outcome) -> io::Result<()> {
        for case in &outcome.cases {
            self.tests += 1;
            let not = if case.result == CaseResult::Failed { "not " } else { "" };
            let skip = match case.result {
                CaseResult::Skipped => format!(" # SKIP {}", Untrusted(&case.words)),
                _ => String::new(),
            };
            let name = format!("{}: {}", outcome.title, case_name(case, outcome));
            // A # would begin a directive.
            let name = name.replace('#', "\\#");
            writeln!(self.to, "{not}ok {} - {}{skip}", self.tests, Untrusted(&name))?;
            if case.result == CaseResult::Failed {
                let said = [
                    ("at", case.place.to_string()),
                    ("expected", case.text.clone()),
                    ("measured", case.words.clone()),
                    ("reproduce", reproduce(outcome)),
                ];
                writeln!(self.to, "  ---")?;
                for (key, value) in said {
                    // JSON's strings are YAML's.
                    writeln!(self.to, "  {key}: {}", crate::output::json_line(&value))?;
                }
                writeln!(self.to, "  ...")?;
            }
        }
        Ok(())
    }
}

impl<W: Write> Report for Tap<W> {
    fn tell(&mut self, event: &Event<'_>) -> io::Result<()> {
        match event {
            Event::Began(_) => {
                self.tests = 0;
                writeln!(self.to, "TAP version 14")?;
            }
            Event::Ended(outcome) => self.scenario(outcome)?,
            Event::Skipped { title, why, .. } => {
                self.tests += 1;
                let (title, why) = (title.replace('#', "\\#"), Untrusted(why));
                writeln!(self.to, "ok {} - {} # SKIP {why}", self.tests, Untrusted(&title))?;
            }
            Event::Finished(_) => writeln!(self.to, "1..{}", self.tests)?,
        }
        self.to.flush()
    }
}
