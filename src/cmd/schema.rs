//! `rlctl schema`: what files and output look like, for editors and scripts.

use std::io::{self, Write};

use clap::ValueEnum;

use super::{Context, Exit, Failure};

/// Print a JSON Schema
///
/// Editors check and complete a rules file against it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rlctl schema rules > rules.schema.json")]
pub(super) struct Args {
    /// Of what
    name: Name,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Name {
    /// The rules file
    Rules,
}

pub(super) async fn run(args: Args, _: &Context) -> Result<Exit, Failure> {
    let text = match args.name {
        Name::Rules => include_str!("schema/rules.json"),
    };
    io::stdout().write_all(text.as_bytes())?;
    Ok(Exit::Fine)
}
