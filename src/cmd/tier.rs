//! `rlctl tier`: which tier an identity belongs to.

use serde::Serialize;

use super::registry_args::{Holds, Known, WriteArgs, change_identity, until};
use super::{Context, Exit, Failure};
use crate::engine::clock::Micros;
use crate::engine::identity::Identity;
use crate::engine::registry::{Change, Grant};
use crate::output::{SCHEMA, Untrusted, about, moment};

/// Assign identities to tiers
///
/// An assignment in the store wins over the one in a rules file, and is obeyed by all gateways on
/// this Redis within a second.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rlctl tier set user:123 premium --reason \"contract 4711\"
  rlctl tier set user:123 premium --for 14d --reason trial
  rlctl tier get user:123 -o json
  rlctl tier rm user:123 --reason \"contract ended\"")]
pub(super) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Assign an identity to a tier
    #[command(after_help = "\
Examples:
  rlctl tier set user:123 premium --reason \"contract 4711\"
  rlctl tier set user:123 premium --for 14d --reason trial
  rlctl tier set user:123 premium --reason test --dry-run")]
    Set {
        identity: Known,
        /// Its name in the rules file
        tier: String,
        /// How long: 30m, 2h, 14d, or forever
        #[arg(long = "for", value_name = "D", default_value = "forever")]
        holds: Holds,
        #[command(flatten)]
        write: WriteArgs,
    },
    /// Show the assignment of an identity; exit 7 when there is none in the store
    #[command(after_help = "\
Examples:
  rlctl tier get user:123
  rlctl tier get user:123 -o json")]
    Get { identity: Identity },
    /// Take an assignment back; exit 7 when there is none
    #[command(after_help = "\
Examples:
  rlctl tier rm user:123 --reason \"contract ended\"")]
    Rm {
        identity: Identity,
        #[command(flatten)]
        write: WriteArgs,
    },
}

#[derive(Default, Serialize)]
struct Report<'a> {
    schema: &'static str,
    identity: &'a str,
    tier: Option<&'a str>,
    until_us: Option<u64>,
    reason: Option<&'a str>,
    by: Option<&'a str>,
    at_us: Option<u64>,
}

pub(super) async fn run(args: Args, context: &Context) -> Result<Exit, Failure> {
    match args.verb {
        Verb::Set { identity: Known(identity), tier, holds: Holds(lasts), write } => {
            change_identity(&identity, &Change::SetTier { tier, lasts }, &write, context).await
        }
        Verb::Rm { identity, write } => {
            change_identity(&identity, &Change::ClearTier, &write, context).await
        }
        Verb::Get { identity } => get(&identity, context).await,
    }
}

async fn get(identity: &Identity, context: &Context) -> Result<Exit, Failure> {
    let registry = context.registry().await?;
    let now = registry.now().await?;
    let tier = registry.subject(identity).await?.at(now).tier;
    let exit = if tier.is_some() { Exit::Fine } else { Exit::NothingMatched };
    let mut report = Report { schema: SCHEMA, identity: identity.as_str(), ..Report::default() };
    if let Some(tier) = &tier {
        report.tier = Some(&tier.value);
        report.until_us = tier.terms.until.map(|until| until.0);
        report.reason = Some(&tier.terms.reason);
        report.by = Some(&tier.terms.by);
        report.at_us = Some(tier.terms.at.0);
    } else if context.look.format.is_for_people() {
        return Err(Failure::new(exit, format!("{identity} has no tier in the store")));
    }
    context.print_one(&report, || {
        tier.as_ref().map_or(String::new(), |t| in_words(identity, t, now))
    })?;
    Ok(exit)
}

fn in_words(identity: &Identity, tier: &Grant<String>, now: Micros) -> String {
    let (shown, value, terms) = (Untrusted(identity.as_str()), Untrusted(&tier.value), &tier.terms);
    let left = terms.until.map(|until| format!(", {} left", about(until.saturating_sub(now))));
    let left = left.unwrap_or_default();
    let (by, reason) = (Untrusted(&terms.by), Untrusted(&terms.reason));
    let line = format!("{shown}  {value} {}{left}\n", until(terms));
    line + &format!("  by {by} at {}: {reason}\n", moment(terms.at))
}
