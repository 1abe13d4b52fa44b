//! `rlctl exempt`: no limit of its dimension counts for whom it names.

use super::listing::{self, List};
use super::registry_args::{Holds, Target, WriteArgs, change_target};
use super::{Context, Exit, Failure};
use crate::engine::registry::{Change, ListChange};

/// Let an identity, a network or a family pass without limits
///
/// For the rules of its own dimension: an exempt user is still limited by address. A block comes
/// before it. Obeyed by all gateways on this Redis within a second.
#[derive(Debug, clap::Args)]
#[command(override_usage = "\
rlctl exempt [OPTIONS] --for <D> --reason <TEXT> <TARGET>
       rlctl exempt [OPTIONS] --list")]
#[command(after_help = "\
Examples:
  rlctl exempt apikey:monitoring --for forever --reason \"our own probes\"
  rlctl exempt 10.0.0.0/8 --for 4h --reason migration
  rlctl exempt --list                                who is on the list now")]
pub(super) struct Args {
    /// An identity (user:123), a network (ip:10.0.0.0/8) or a pattern (apikey:internal-*)
    #[arg(required_unless_present = "list")]
    target: Option<Target>,
    /// How long: 30m, 2h, 7d, or forever
    #[arg(long = "for", value_name = "D", required_unless_present = "list")]
    holds: Option<Holds>,
    #[command(flatten)]
    write: Option<WriteArgs>,
    /// Show who is on the list now, in the store and by the rules in use
    #[arg(long, conflicts_with_all = ["target", "holds", "reason", "dry_run"])]
    list: bool,
}

pub(super) async fn run(args: Args, context: &Context) -> Result<Exit, Failure> {
    let Args { target: Some(target), holds: Some(Holds(lasts)), write: Some(write), .. } = args
    else {
        return listing::list(List::Exemptions, context).await;
    };
    let many = |pattern| ListChange::Exempt { pattern, lasts };
    change_target(&target, &write, context, Change::Exempt { lasts }, many).await
}
