//! CSV: a row for each case.

use std::io::{self, Write};

use serde::Serialize;

use super::{Event, Report};
use crate::output::{Column, List, Look, Row};

#[derive(Debug)]
pub struct Csv<W> {
    to: W,
    look: Look,
    rows: Vec<CaseRow>,
}

#[derive(Debug, Serialize)]
struct CaseRow {
    file: String,
    scenario: String,
    limiter: String,
    case: String,
    result: &'static str,
    words: String,
    line: usize,
    column: usize,
}

impl Row for CaseRow {
    /// People get another report.
    fn columns() -> Vec<Column<CaseRow>> {
        Vec::new()
    }

    const FIELDS: &'static [&'static str] =
        &["file", "scenario", "limiter", "case", "result", "words", "line", "column"];
}

impl<W: Write> Csv<W> {
    pub fn new(to: W, look: Look) -> Csv<W> {
        Csv { to, look, rows: Vec::new() }
    }
}

impl<W: Write> Report for Csv<W> {
    fn tell(&mut self, event: &Event<'_>) -> io::Result<()> {
        match event {
            Event::Began(_) => self.rows.clear(),
            Event::Ended(outcome) => self.rows.extend(outcome.cases.iter().map(|case| CaseRow {
                file: outcome.file.clone(),
                scenario: outcome.title.clone(),
                limiter: case.limiter.clone(),
                case: case.name.clone(),
                result: case.result.name(),
                words: case.words.clone(),
                line: case.place.line,
                column: case.place.column,
            })),
            Event::Skipped { title, file, why } => self.rows.push(CaseRow {
                file: (*file).into(),
                scenario: (*title).into(),
                limiter: String::new(),
                case: String::new(),
                result: "skipped",
                words: (*why).into(),
                line: 0,
                column: 0,
            }),
            Event::Finished(_) => {
                let text = List::new(&self.rows).render(self.look, false)?;
                self.to.write_all(text.as_bytes())?;
                self.to.flush()?;
            }
        }
        Ok(())
    }
}
