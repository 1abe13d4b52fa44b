//! `rlctl block`: nobody it names gets through.

use super::registry_args::{Holds, Target, WriteArgs, change_target};
use super::{Context, Exit, Failure};
use crate::engine::registry::{Change, ListChange};

/// Refuse every request of an identity, a network or a family
///
/// Comes before every rule, override and exemption. Obeyed by all gateways on this Redis within a
/// second; ends by itself unless it is for ever.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rlctl block user:666 --for 2h --reason scraping
  rlctl block 198.51.100.0/24 --for 1d --reason \"credential stuffing\"
  rlctl block 'apikey:trial-*' --for forever --reason \"trial has ended\" --dry-run")]
pub(super) struct Args {
    /// An identity (user:123), a network (ip:10.0.0.0/8) or a pattern (apikey:internal-*)
    target: Target,
    /// How long: 30m, 2h, 7d, or forever
    #[arg(long = "for", value_name = "D")]
    holds: Holds,
    #[command(flatten)]
    write: WriteArgs,
}

pub(super) async fn run(args: Args, context: &Context) -> Result<Exit, Failure> {
    let Holds(lasts) = args.holds;
    let many = |pattern| ListChange::Block { pattern, lasts };
    change_target(&args.target, &args.write, context, Change::Block { lasts }, many).await
}
