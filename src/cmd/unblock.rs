//! `rlctl unblock`: takes a block back.

use super::registry_args::{Target, WriteArgs, change_target};
use super::{Context, Exit, Failure};
use crate::engine::registry::{Change, ListChange};

/// Take back a block, under the name it was made with
///
/// Exit 7 when there is none.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rlctl unblock user:666 --reason \"they apologised\"
  rlctl unblock 198.51.100.0/24 --reason over")]
pub(super) struct Args {
    /// An identity (user:123), a network (ip:10.0.0.0/8) or a pattern (apikey:internal-*)
    target: Target,
    #[command(flatten)]
    write: WriteArgs,
}

pub(super) async fn run(args: Args, context: &Context) -> Result<Exit, Failure> {
    let many = |pattern| ListChange::Unblock { pattern };
    change_target(&args.target, &args.write, context, Change::Unblock, many).await
}
