//! `rlctl bench diff`: two runs side by side.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{Context, Exit, Failure};
use crate::engine::clock::Micros;
use crate::load::compare::{Difference, FEWEST_SECONDS, Judgement, compare};
use crate::load::report::Saved;
use crate::output::{Column, List, Row, Tone, about};

/// A day, second by second, is far below.
const MAX_FILE_BYTES: u64 = 64 << 20;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rlctl bench http://127.0.0.1:8080/ --rps 5k --for 1m --save before.json
  rlctl bench http://127.0.0.1:8080/ --rps 5k --for 1m --save after.json
  rlctl bench diff before.json after.json

Exit 8 when B is significantly worse: an interval for the ratio of the medians over seconds leaves
out 1, and the ratio is off by 5 % or more.")]
pub(super) struct Args {
    /// The run before, from --save
    #[arg(value_name = "A")]
    a: PathBuf,
    /// The run after
    #[arg(value_name = "B")]
    b: PathBuf,
}

#[derive(Serialize)]
struct Head {
    significantly_worse: bool,
}

pub(super) fn run(args: &Args, context: &Context) -> Result<Exit, Failure> {
    let (a, b) = (read(&args.a)?, read(&args.b)?);
    if a.report.mode != b.report.mode || a.report.planned_rps != b.report.planned_rps {
        context.note("the runs were planned differently; what differs may come from that");
    }
    let differences = compare(&a, &b);
    let worse = differences.iter().any(|d| d.judgement == Judgement::Worse);
    let head = Head { significantly_worse: worse };
    let below = match worse {
        true => "B is significantly worse than A\n",
        false => "B is not significantly worse than A\n",
    };
    context.print_list(&List::new(&differences).head(&head).below(below.to_owned()), "")?;
    if differences.iter().any(|d| d.judgement == Judgement::TooShort) {
        context.note(format!(
            "a run needs more than {FEWEST_SECONDS} seconds to be compared; use a longer --for"
        ));
    }
    Ok(if worse { Exit::AnswerIsNo } else { Exit::Fine })
}

fn read(path: &Path) -> Result<Saved, Failure> {
    let bad = |why: String| Failure::new(Exit::BadFile, format!("{}: {why}", path.display()));
    let size = std::fs::metadata(path).map_err(|error| bad(error.to_string()))?.len();
    if size > MAX_FILE_BYTES {
        return Err(bad(format!("{size} bytes are too many for a saved run")));
    }
    let text = std::fs::read_to_string(path).map_err(|error| bad(error.to_string()))?;
    serde_json::from_str(&text)
        .map_err(|error| bad(format!("this is no run from rlctl bench --save: {error}")))
}

impl Row for Difference {
    fn columns() -> Vec<Column<Difference>> {
        vec![
            Column::new("MEDIAN OF SECONDS", |row: &Difference| name(row).into()),
            Column::number("A", |row| shown(row.metric, row.a)),
            Column::number("B", |row| shown(row.metric, row.b)),
            Column::number("CHANGE", |row| change(row.ratio)),
            Column::new("95 % INTERVAL", |row| match (row.low, row.high) {
                (Some(_), Some(_)) => format!("{} … {}", change(row.low), change(row.high)),
                _ => "-".into(),
            }),
            Column::new("", |row: &Difference| row.judgement.words().into()).tone(|row| match row
                .judgement
            {
                Judgement::Worse => Tone::Bad,
                Judgement::Better => Tone::Good,
                _ => Tone::Plain,
            }),
        ]
    }

    const FIELDS: &'static [&'static str] =
        &["metric", "a", "b", "ratio", "low", "high", "judgement"];
}

fn name(row: &Difference) -> &'static str {
    match row.metric {
        "rate" => "answers per second",
        "p50_us" => "response p50",
        "p99_us" => "response p99",
        _ => "shed, errors, timeouts",
    }
}

fn shown(metric: &str, value: f64) -> String {
    match metric {
        "rate" => format!("{value:.0}"),
        "failed" => format!("{:.2} %", value * 100.0),
        _ => about(Micros(value.round() as u64)),
    }
}

fn change(ratio: Option<f64>) -> String {
    ratio.map_or("-".into(), |ratio| format!("{:+.1} %", (ratio - 1.0) * 100.0))
}
