//! `rlctl exempt`: no limit of its dimension counts for whom it names.

use super::registry_args::{Holds, Target, WriteArgs, change_target};
use super::{Context, Exit, Failure};
use crate::engine::registry::{Change, ListChange};

/// Let an identity, a network or a family pass without limits
///
/// For the rules of its own dimension: an exempt user is still limited by address. A block comes
/// before it. Obeyed by all gateways on this Redis within a second.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rlctl exempt apikey:monitoring --for forever --reason \"our own probes\"
  rlctl exempt 10.0.0.0/8 --for 4h --reason migration")]
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
    let many = |pattern| ListChange::Exempt { pattern, lasts };
    change_target(&args.target, &args.write, context, Change::Exempt { lasts }, many).await
}
