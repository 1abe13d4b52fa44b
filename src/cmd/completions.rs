//! `rlctl completions`: what a shell needs to complete commands and options.

use clap::CommandFactory;
use clap_complete::{Shell, generate};

use super::{Cli, Context, Exit, Failure, print};

/// Print what a shell needs to complete commands and options
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rlctl completions bash > ~/.local/share/bash-completion/completions/rlctl
  rlctl completions zsh > ~/.zfunc/_rlctl
  rlctl completions fish > ~/.config/fish/completions/rlctl.fish
  rlctl completions powershell >> $PROFILE")]
pub(super) struct Args {
    #[arg(value_enum)]
    shell: Shell,
}

pub(super) async fn run(args: Args, context: &Context) -> Result<Exit, Failure> {
    context.refuse_output("a completion is a script")?;
    let mut script = Vec::new();
    generate(args.shell, &mut Cli::command(), "rlctl", &mut script);
    print(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Fine)
}
