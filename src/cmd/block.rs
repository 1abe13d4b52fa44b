//! `rlctl block`: nobody it names gets through.

use super::listing::{self, List};
use super::registry_args::{Holds, Target, WriteArgs, change_target};
use super::{Context, Exit, Failure};
use crate::engine::registry::{Change, ListChange};

/// Refuse every request of an identity, a network or a family
///
/// Comes before every rule, override and exemption. Obeyed by all gateways on this Redis within a
/// second; ends by itself unless it is for ever.
#[derive(Debug, clap::Args)]
#[command(override_usage = "\
rlctl block [OPTIONS] --for <D> --reason <TEXT> <TARGET>
       rlctl block [OPTIONS] --list")]
#[command(after_help = "\
Examples:
  rlctl block user:666 --for 2h --reason scraping
  rlctl block 198.51.100.0/24 --for 1d --reason \"credential stuffing\"
  rlctl block 'apikey:trial-*' --for forever --reason \"trial has ended\" --dry-run
  rlctl block --list                                who is on the list now")]
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
        return listing::list(List::Blocks, context).await;
    };
    let many = |pattern| ListChange::Block { pattern, lasts };
    change_target(&target, &write, context, Change::Block { lasts }, many).await
}
