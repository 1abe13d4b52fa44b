//! `rlctl man`: the help as manual pages.

use std::fs;
use std::path::PathBuf;

use clap::CommandFactory;
use serde::Serialize;

use super::{Cli, Context, Exit, Failure};
use crate::output::{SCHEMA, Untrusted};

/// Write manual pages: one for each command
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rlctl man --out man1 && man -l man1/rlctl.1
  rlctl man --out ~/.local/share/man/man1           man rlctl-check finds them there")]
pub(super) struct Args {
    /// Folder to write them into; it is made if it is not there
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

#[derive(Serialize)]
struct Report {
    schema: &'static str,
    dir: String,
    pages: Vec<String>,
}

pub(super) async fn run(args: Args, context: &Context) -> Result<Exit, Failure> {
    let dir = args.out.display().to_string();
    let failed =
        |error: std::io::Error| Failure::new(Exit::Failed, format!("cannot write {dir}: {error}"));
    fs::create_dir_all(&args.out).map_err(failed)?;
    let mut command = Cli::command().disable_help_subcommand(true);
    clap_mangen::generate_to(command.clone(), &args.out).map_err(failed)?;
    command.build();
    let mut pages = Vec::new();
    name_pages(&command, &mut pages);
    let report = Report { schema: SCHEMA, dir: dir.clone(), pages };
    context.print_one(&report, || {
        format!(
            "{} pages; man -l {}/rlctl.1 shows the first\n",
            report.pages.len(),
            Untrusted(&dir)
        )
    })?;
    Ok(Exit::Fine)
}

/// The page of a command, and those of all below it.
fn name_pages(command: &clap::Command, pages: &mut Vec<String>) {
    pages.push(format!("{}.1", command.get_display_name().unwrap_or(command.get_name())));
    command.get_subcommands().for_each(|below| name_pages(below, pages));
}
