//! `rlctl override`: other limits for one identity.

use serde::Serialize;

use super::registry_args::{Holds, Known, WriteArgs, change_identity, limits};
use super::{Context, Exit, Failure};
use crate::engine::identity::Identity;
use crate::engine::limit::{Algorithm, Quota};
use crate::engine::registry::{Change, Override, OverrideLimit};
use crate::engine::units;
use crate::output::{Column, List, Row, moment};

/// Give one identity other limits than its rule says
///
/// Replaces all limits of one rule for one identity, until it ends. Obeyed by all gateways on this
/// Redis within a second; what was used stays used. What an override replaces is shown.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rlctl override set user:123 --rule per-user --limit 500/1m --for 2h --reason \"big import\"
  rlctl override set user:123 --rule per-user --limit 50/1s --limit 10k/1h --for 7d --reason deal
  rlctl override list
  rlctl override list user:123 -o json
  rlctl override rm user:123 --rule per-user --reason \"import is done\"")]
pub(super) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Set the limits of a rule for an identity
    #[command(after_help = "\
Examples:
  rlctl override set user:123 --rule per-user --limit 500/1m --for 2h --reason \"big import\"
  rlctl override set user:123 --rule per-user --limit 500/1m --burst 50 --for 1d --reason deal")]
    Set(SetArgs),
    /// Show the overrides in force, of one identity or of all
    #[command(after_help = "\
Examples:
  rlctl override list
  rlctl override list user:123 -o wide")]
    List { identity: Option<Identity> },
    /// Take an override back; exit 7 when there is none
    #[command(after_help = "\
Examples:
  rlctl override rm user:123 --rule per-user --reason \"import is done\"")]
    Rm {
        identity: Identity,
        /// The rule it is for
        #[arg(long, value_name = "NAME")]
        rule: String,
        #[command(flatten)]
        write: WriteArgs,
    },
}

#[derive(Debug, clap::Args)]
struct SetArgs {
    identity: Known,
    /// The rule whose limits are replaced
    #[arg(long, value_name = "NAME")]
    rule: String,
    /// Requests per period, e.g. 100/1m, 10/s, "5000/1h burst 200"; repeat for several
    #[arg(long = "limit", value_name = "L/P", required = true)]
    limits: Vec<Quota>,
    /// Another algorithm than the rule's
    #[arg(long, value_name = "NAME")]
    algorithm: Option<Algorithm>,
    /// Most that may pass at once (buckets only; default: the limit)
    #[arg(long, value_name = "N", value_parser = units::parse_count)]
    burst: Option<u64>,
    /// How long: 30m, 2h, 7d, or forever
    #[arg(long = "for", value_name = "D")]
    holds: Holds,
    #[command(flatten)]
    write: WriteArgs,
}

#[derive(Serialize)]
struct Item {
    identity: String,
    #[serde(flatten)]
    of: Override,
}

pub(super) async fn run(args: Args, context: &Context) -> Result<Exit, Failure> {
    match args.verb {
        Verb::Set(args) => {
            let limits = args.limits()?;
            let Holds(lasts) = args.holds;
            let change = Change::SetOverride { rule: args.rule, limits, lasts };
            change_identity(&args.identity.0, &change, &args.write, context).await
        }
        Verb::Rm { identity, rule, write } => {
            change_identity(&identity, &Change::ClearOverride { rule }, &write, context).await
        }
        Verb::List { identity } => list(identity, context).await,
    }
}

impl SetArgs {
    fn limits(&self) -> Result<Vec<OverrideLimit>, Failure> {
        let one = |quota: &Quota| {
            let quota = Quota { burst: self.burst.or(quota.burst), ..*quota };
            OverrideLimit::new(quota, self.algorithm).map_err(Failure::usage)
        };
        self.limits.iter().map(one).collect()
    }
}

async fn list(identity: Option<Identity>, context: &Context) -> Result<Exit, Failure> {
    let registry = context.registry().await?;
    let now = registry.now().await?;
    let mut items = Vec::new();
    let mut add = |identity: Identity, overrides: Vec<Override>| {
        items.extend(overrides.into_iter().map(|of| Item { identity: identity.to_string(), of }));
    };
    match identity {
        Some(identity) => {
            let subject = registry.subject(&identity).await?.at(now);
            add(identity, subject.overrides);
        }
        None => {
            registry.subjects(|identity, subject| add(identity, subject.at(now).overrides)).await?;
        }
    }
    items.sort_by(|a, b| (&a.identity, &a.of.rule).cmp(&(&b.identity, &b.of.rule)));
    context.print_list(&List::new(&items), "there are no overrides")?;
    Ok(Exit::Fine)
}

impl Row for Item {
    fn columns() -> Vec<Column<Item>> {
        vec![
            Column::new("IDENTITY", |item: &Item| item.identity.clone()),
            Column::new("RULE", |item| item.of.rule.clone()),
            Column::new("LIMITS", |item| limits(&item.of.limits)),
            Column::new("UNTIL", |item| item.of.terms.until.map_or("for ever".into(), moment)),
            Column::new("BY", |item| item.of.terms.by.clone()),
            Column::wide("SINCE", |item| moment(item.of.terms.at)),
            Column::new("REASON", |item| item.of.terms.reason.clone()),
        ]
    }

    const FIELDS: &'static [&'static str] =
        &["identity", "rule", "limits", "until_us", "reason", "by", "at_us"];
}
