//! For scripts: one object at the end.

use std::io::{self, Write};

use serde_json::{Value as Json_, json};

use super::{Event, Report, Summary, reproduce};
use crate::expect::Value;
use crate::output::SCHEMA;
use crate::scenario::run::{Case, Outcome};

#[derive(Debug)]
pub struct Json<W> {
    to: W,
    items: Vec<Json_>,
}

impl<W: Write> Json<W> {
    pub fn new(to: W) -> Json<W> {
        Json { to, items: Vec::new() }
    }
}

impl<W: Write> Report for Json<W> {
    fn tell(&mut self, event: &Event<'_>) -> io::Result<()> {
        match event {
            Event::Began(_) => self.items.clear(),
            Event::Ended(outcome) => self.items.push(json_of(outcome)),
            Event::Skipped { title, file, why } => {
                self.items
                    .push(json!({ "file": file, "name": title, "result": "skipped", "why": why }));
            }
            Event::Finished(summary) => {
                let whole = whole(summary, std::mem::take(&mut self.items));
                writeln!(self.to, "{whole}")?;
                self.to.flush()?;
            }
        }
        Ok(())
    }
}

fn whole(summary: &Summary, items: Vec<Json_>) -> Json_ {
    json!({
        "schema": SCHEMA,
        "scenarios": summary.scenarios,
        "scenarios_failed": summary.failed_scenarios,
        "scenarios_skipped": summary.skipped_scenarios,
        "passed": summary.passed,
        "failed": summary.failed,
        "skipped": summary.skipped,
        "items": items,
    })
}

/// What became of one scenario.
pub fn json_of(outcome: &Outcome) -> Json_ {
    let limiters = outcome.limiters.iter().map(|limiter| {
        let mut all = json!(limiter.totals);
        if let Json_::Object(fields) = &mut all {
            fields.insert("name".into(), json!(limiter.name));
            fields.insert("digest".into(), json!(format!("{:016x}", limiter.digest)));
        }
        all
    });
    let variant = outcome.variant.iter().map(|(key, value)| (key.clone(), json!(value)));
    json!({
        "file": outcome.file,
        "name": outcome.title,
        "result": if outcome.passed() { "passed" } else { "failed" },
        "why": null,
        "seed": outcome.seed,
        "run_us": outcome.run.0,
        "tags": outcome.tags,
        "matrix": variant.collect::<serde_json::Map<_, _>>(),
        "limiters": limiters.collect::<Vec<_>>(),
        "cases": outcome.cases.iter().map(case).collect::<Vec<_>>(),
        "live": outcome.live.as_ref().map(|live| json!({
            "options": live.options,
            "stood_still_us": live.stood_still.0,
            "longest_us": live.longest.0,
            "requests_met": live.met,
        })),
        "reproduce": reproduce(outcome),
    })
}

fn case(case: &Case) -> Json_ {
    let measured = case.measured.as_ref().map(|value| match value {
        Value::Number(number) => json!(number),
        Value::Word(word) => json!(word),
    });
    json!({
        "name": case.name,
        "limiter": case.limiter,
        "file": case.place.file.as_ref(),
        "line": case.place.line,
        "column": case.place.column,
        "text": case.text,
        "result": case.result.name(),
        "words": case.words,
        "measured": measured,
        "from_us": case.at.as_ref().map(|at| at.start.0),
        "to_us": case.at.as_ref().map(|at| at.end.0),
        "picture": case.picture,
        "why": case.why,
    })
}
