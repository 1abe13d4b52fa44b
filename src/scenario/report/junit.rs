//! JUnit: a suite for each scenario, a test for each case.

use std::io::{self, Write};

use quick_junit::{NonSuccessKind, Report as Whole, TestCase, TestCaseStatus, TestSuite};

use super::{Event, Report, case_name, reproduce};
use crate::scenario::run::{CaseResult, Outcome};

#[derive(Debug)]
pub struct JUnit<W> {
    to: W,
    whole: Whole,
}

impl<W: Write> JUnit<W> {
    pub fn new(to: W) -> JUnit<W> {
        JUnit { to, whole: Whole::new("rlctl scenario") }
    }
}

fn suite(outcome: &Outcome) -> TestSuite {
    let mut suite = TestSuite::new(outcome.title.as_str());
    suite.add_property(("file", outcome.file.as_str()));
    suite.add_property(("seed", outcome.seed.to_string().as_str()));
    for case in &outcome.cases {
        let status = match case.result {
            CaseResult::Passed => TestCaseStatus::success(),
            CaseResult::Skipped => {
                let mut skipped = TestCaseStatus::skipped();
                skipped.set_message(case.words.as_str());
                skipped
            }
            CaseResult::Failed => {
                let mut failed = TestCaseStatus::non_success(NonSuccessKind::Failure);
                failed.set_message(case.words.as_str()).set_type("expectation");
                let mut lines = vec![format!("{}: {}", case.place, case.text)];
                lines.extend(case.picture.clone());
                lines.extend(case.why.as_ref().map(|why| format!("why: {why}")));
                lines.push(format!("reproduce: {}", reproduce(outcome)));
                failed.set_description(lines.join("\n"));
                failed
            }
        };
        let mut test = TestCase::new(case_name(case, outcome), status);
        test.set_classname(outcome.file.as_str());
        test.extra.insert("file".into(), case.place.file.as_ref().into());
        test.extra.insert("line".into(), case.place.line.to_string().into());
        suite.add_test_case(test);
    }
    suite
}

impl<W: Write> Report for JUnit<W> {
    fn tell(&mut self, event: &Event<'_>) -> io::Result<()> {
        match event {
            Event::Began(_) => self.whole = Whole::new("rlctl scenario"),
            Event::Ended(outcome) => {
                self.whole.add_test_suite(suite(outcome));
            }
            Event::Skipped { title, file, why } => {
                let mut skipped = TestCaseStatus::skipped();
                skipped.set_message(*why);
                let mut suite = TestSuite::new(*title);
                let mut test = TestCase::new("did not run", skipped);
                test.set_classname(*file);
                suite.add_test_case(test);
                self.whole.add_test_suite(suite);
            }
            Event::Finished(_) => {
                let text = self.whole.to_string().map_err(io::Error::other)?;
                self.to.write_all(text.as_bytes())?;
                self.to.flush()?;
            }
        }
        Ok(())
    }
}
