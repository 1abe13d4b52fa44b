//! GitHub Actions: an annotation at the line of each failure, and a summary of the step in Markdown.

use std::io::{self, Write};

use super::{Event, Report, Summary, case_name, reproduce};
use crate::scenario::run::{CaseResult, Outcome};

/// Annotations go to the log; the summary to the file that GitHub names, if it does.
#[derive(Debug)]
pub struct GitHub<W, S> {
    log: W,
    summary: Option<S>,
    rows: String,
}

impl<W: Write, S: Write> GitHub<W, S> {
    pub fn new(log: W, summary: Option<S>) -> GitHub<W, S> {
        GitHub { log, summary, rows: String::new() }
    }

    fn annotate(&mut self, outcome: &Outcome) -> io::Result<()> {
        for case in outcome.cases.iter().filter(|case| case.result == CaseResult::Failed) {
            let mut message = format!("{}\nmeasured: {}", case.text, case.words);
            if let Some(why) = &case.why {
                message += &format!("\nwhy: {why}");
            }
            message += &format!("\nreproduce: {}", reproduce(outcome));
            let title = format!("{}: {}", outcome.title, case_name(case, outcome));
            writeln!(
                self.log,
                "::error file={},line={},col={},title={}::{}",
                property(&case.place.file),
                case.place.line,
                case.place.column,
                property(&title),
                data(&message)
            )?;
        }
        Ok(())
    }

    fn row(&mut self, outcome: &Outcome) {
        let mark = if outcome.passed() { "✅" } else { "❌" };
        let (passed, total) = (outcome.count(CaseResult::Passed), outcome.cases.len());
        let (title, file) = (cell(&outcome.title), cell(&outcome.file));
        self.rows += &format!("| {mark} | {title} | `{file}` | {passed} of {total} |\n");
        for case in outcome.cases.iter().filter(|case| case.result == CaseResult::Failed) {
            let (name, words) = (cell(&case_name(case, outcome)), cell(&case.words));
            self.rows +=
                &format!("| | ↳ {name} | `{}` | {words} |\n", cell(&case.place.to_string()));
        }
    }

    fn finish(&mut self, summary: &Summary) -> io::Result<()> {
        let rows = std::mem::take(&mut self.rows);
        let Some(file) = &mut self.summary else { return Ok(()) };
        writeln!(
            file,
            "### rlctl scenarios: {} as expected, {} not\n\n| | scenario | file | as expected |\n| --- | --- | --- | --- |\n{rows}",
            summary.passed, summary.failed
        )?;
        file.flush()
    }
}

impl<W: Write, S: Write> Report for GitHub<W, S> {
    fn tell(&mut self, event: &Event<'_>) -> io::Result<()> {
        match event {
            Event::Began(_) => Ok(()),
            Event::Ended(outcome) => {
                self.row(outcome);
                self.annotate(outcome)
            }
            Event::Skipped { title, file, why } => {
                let (title, file, why) = (cell(title), cell(file), cell(why));
                self.rows += &format!("| ⏭ | {title} | `{file}` | skipped: {why} |\n");
                Ok(())
            }
            Event::Finished(summary) => self.finish(summary),
        }
    }
}

/// What a workflow command would take for its own is written as its code.
fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

/// A cell of a Markdown table.
fn cell(text: &str) -> String {
    let plain = text.replace('|', "\\|").replace(['\n', '\r'], " ");
    plain.replace('<', "&lt;").replace('`', "'")
}
