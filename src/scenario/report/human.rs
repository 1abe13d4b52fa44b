//! For people: a line for each scenario, and for each failure the evidence.

use std::io::{self, Write};

use super::{Event, Report, Summary, case_name, reproduce};
use crate::output::{Untrusted, about};
use crate::scenario::run::{Case, CaseResult, Outcome};

#[derive(Debug)]
pub struct Human<W> {
    to: W,
    /// Every case is listed where only one scenario runs.
    lists_cases: bool,
}

impl<W: Write> Human<W> {
    pub fn new(to: W) -> Human<W> {
        Human { to, lists_cases: false }
    }

    fn scenario(&mut self, outcome: &Outcome) -> io::Result<()> {
        let (failed, skipped) =
            (outcome.count(CaseResult::Failed), outcome.count(CaseResult::Skipped));
        let total = outcome.cases.len();
        let mark = if failed == 0 { "ok  " } else { "FAIL" };
        let mut count = match failed {
            0 => format!("{} as expected", total - skipped),
            failed => format!("{failed} of {total} not as expected"),
        };
        if skipped > 0 {
            count += &format!(", {skipped} skipped");
        }
        let requests = outcome.limiters.first().map_or(0, |limiter| limiter.totals.requests);
        writeln!(
            self.to,
            "{mark} {}: {} ({count}; {requests} requests in {}, seed {})",
            Untrusted(&outcome.file),
            Untrusted(&outcome.title),
            outcome.run,
            outcome.seed
        )?;
        for case in &outcome.cases {
            match case.result {
                CaseResult::Failed => self.failure(case, outcome)?,
                CaseResult::Passed if self.lists_cases => {
                    let name = case_name(case, outcome);
                    writeln!(
                        self.to,
                        "     ok   {}: {}",
                        Untrusted(&name),
                        Untrusted(&case.words)
                    )?;
                }
                CaseResult::Skipped => {
                    let name = case_name(case, outcome);
                    writeln!(
                        self.to,
                        "     skip {}: {}",
                        Untrusted(&name),
                        Untrusted(&case.words)
                    )?;
                }
                CaseResult::Passed => {}
            }
        }
        if let Some(live) = outcome.live.as_ref().filter(|live| live.met > 0) {
            writeln!(
                self.to,
                "     this machine stood still for {} of that, up to {} at once; {} requests met it",
                about(live.stood_still),
                about(live.longest),
                live.met
            )?;
        }
        if failed > 0 {
            writeln!(self.to, "     reproduce: {}", Untrusted(&reproduce(outcome)))?;
        }
        Ok(())
    }

    fn failure(&mut self, case: &Case, outcome: &Outcome) -> io::Result<()> {
        writeln!(self.to, "     FAIL {}", Untrusted(&case_name(case, outcome)))?;
        let place = case.place.to_string();
        writeln!(self.to, "          {}: {}", Untrusted(&place), Untrusted(&case.text))?;
        writeln!(self.to, "          measured: {}", Untrusted(&case.words))?;
        if let Some(picture) = &case.picture {
            for line in picture.lines() {
                writeln!(self.to, "          {}", Untrusted(line))?;
            }
        }
        if let Some(why) = &case.why {
            writeln!(self.to, "          why: {}", Untrusted(why))?;
        }
        Ok(())
    }

    fn end(&mut self, summary: &Summary) -> io::Result<()> {
        let count = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
        let scenarios = count(summary.scenarios, "scenario");
        let mut parts = vec![format!("{} as expected", summary.passed)];
        if summary.failed > 0 {
            parts.push(format!("{} not", summary.failed));
        }
        if summary.skipped + summary.skipped_scenarios > 0 {
            parts.push(format!("{} skipped", summary.skipped + summary.skipped_scenarios));
        }
        writeln!(self.to, "{scenarios}: {}", parts.join(", "))
    }
}

impl<W: Write> Report for Human<W> {
    fn tell(&mut self, event: &Event<'_>) -> io::Result<()> {
        match event {
            Event::Began(count) => self.lists_cases = *count == 1,
            Event::Ended(outcome) => self.scenario(outcome)?,
            Event::Skipped { title, file, why } => {
                writeln!(
                    self.to,
                    "skip {}: {}: {}",
                    Untrusted(file),
                    Untrusted(title),
                    Untrusted(why)
                )?;
            }
            Event::Finished(summary) => self.end(summary)?,
        }
        self.to.flush()
    }
}
