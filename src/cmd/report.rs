//! `rlctl report`: what a recording of the dashboard tells afterwards.

use std::path::PathBuf;

use super::{Context, Exit, Failure};
use crate::tui::record::Recording;
use crate::tui::report::report;

/// Write the post-mortem of an incident from a recording of rlctl tui, in Markdown
///
/// What was wrong from when to when, for how long limits were not enforced, who was refused, by
/// which rules, and what the servers did.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rlctl tui --record incident.rlrec
  rlctl report incident.rlrec > incident.md
  rlctl report incident.rlrec -o json | jq .open_us")]
pub(super) struct Args {
    /// What `rlctl tui --record FILE` has written
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

pub(super) async fn run(args: Args, context: &Context) -> Result<Exit, Failure> {
    let report = report(&Recording::read(&args.file)?);
    context.print_one(&report, || report.markdown())?;
    Ok(Exit::Fine)
}
