//! `rlctl unexempt`: takes an exemption back.

use super::registry_args::{Target, WriteArgs, change_target};
use super::{Context, Exit, Failure};
use crate::engine::registry::{Change, ListChange};

/// Take back an exemption, under the name it was made with
///
/// Exit 7 when there is none.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rlctl unexempt apikey:monitoring --reason \"probes have a limit now\"")]
pub(super) struct Args {
    /// An identity (user:123), a network (ip:10.0.0.0/8) or a pattern (apikey:internal-*)
    target: Target,
    #[command(flatten)]
    write: WriteArgs,
}

pub(super) async fn run(args: Args, context: &Context) -> Result<Exit, Failure> {
    let many = |pattern| ListChange::Unexempt { pattern };
    change_target(&args.target, &args.write, context, Change::Unexempt, many).await
}
