//! `rlctl undo`: brings back what `rlctl reset` has forgotten.

use std::path::PathBuf;

use serde::Serialize;
use serde_json::{Value, json};

use super::operate_args::Progress;
use super::sites::NamedStores;
use super::{Context, Exit, Failure};
use crate::engine::clock::Micros;
use crate::engine::registry::Intent;
use crate::engine::store::redis::without_secrets;
use crate::ops::backup::Backup;
use crate::ops::site::Site;
use crate::ops::undo::{Restored, UndoError, restorable, restore};
use crate::output::{SCHEMA, Untrusted, counted, moment};

/// Bring back what a reset has forgotten, from its backup
///
/// Every key is put back as it was, bit for bit, with the moment at which it expires; what would
/// have expired meanwhile is said and left out. What was used since the reset is replaced, and named
/// before. Where keys of stores that rules name were backed up, too, it takes the rules (--rules).
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rlctl undo rlctl-reset-20261118T120000Z.jsonl
  rlctl undo before.jsonl --dry-run
  rlctl undo before.jsonl --yes --reason \"wrong customer\"")]
pub(super) struct Args {
    /// The backup that reset has named
    file: PathBuf,
    /// Why; kept in the audit trail
    #[arg(long, value_name = "TEXT", default_value = "undo of a reset")]
    reason: String,
    /// Say what would be brought back, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

#[derive(Serialize)]
struct Report {
    schema: &'static str,
    dry_run: bool,
    written: bool,
    #[serde(flatten)]
    restored: Restored,
    /// The identities or the pattern.
    what: String,
    reset_at_us: u64,
    reset_by: String,
}

pub(super) async fn run(args: Args, context: &Context) -> Result<Exit, Failure> {
    let intent = Intent::new(&context.actor, &args.reason)?;
    if context.readonly && !args.dry_run {
        context.allow_write()?;
    }
    let backup = Backup::open(&args.file)?;
    let header = &backup.header;
    let named = match backup.header.stores.is_empty() {
        true => NamedStores::default(),
        false => context.named_stores().await?,
    };
    let sites = context.sites(&named).await?.all()?;
    note_other_places(&backup, &sites, context);
    let plan = restorable(&sites, &backup).await?;
    if context.look.format.is_for_people() {
        super::print(&in_words(&backup, &plan))?;
    }
    let mut report = Report {
        schema: SCHEMA,
        dry_run: args.dry_run,
        written: false,
        restored: plan.clone(),
        what: header.what.clone(),
        reset_at_us: header.at_us,
        reset_by: header.by.clone(),
    };
    if plan.restored == 0 {
        context.note("nothing is left to bring back: all of it has expired");
        context.print_one(&report, String::new)?;
        return Ok(Exit::NothingMatched);
    }
    if args.dry_run {
        context.note("a dry run: nothing was changed");
        context.print_one(&report, String::new)?;
        return Ok(Exit::Fine);
    }
    context.allow_write()?;
    context.confirm(args.yes, &format!("bring back {}?", counted(plan.restored, "key")))?;
    let mut progress = Progress::new(context);
    let tell = |done| progress.tell(|| format!("{done} of {} keys brought back", backup.keys));
    let restored = restore(&sites, &backup, tell).await.map_err(|error| {
        let failure = Failure::from(error);
        let what = format!("{}; some of it may be back, and undo can be repeated", failure.what);
        Failure::new(failure.exit, what)
    })?;
    // What was replaced was known before.
    report.restored = Restored { replaced: plan.replaced, ..restored };
    report.written = true;
    drop(progress);
    if header.ours {
        let after = json!({ "keys": report.restored.restored, "expired": report.restored.expired });
        let registry = context.registry().await?;
        registry.record("undo", &header.what, (Value::Null, after), &intent).await?;
    }
    let done = format!("brought back: {}\n", counted(report.restored.restored, "key"));
    context.print_one(&report, || done)?;
    Ok(Exit::Fine)
}

/// Says where keys go to another Redis than they were of.
fn note_other_places(backup: &Backup, sites: &[Site], context: &Context) {
    let header = &backup.header;
    for site in sites {
        let (here, name) = (without_secrets(&site.deployment.url()), &site.store);
        let was = match name {
            None => Some(&header.redis),
            Some(name) => header.stores.iter().find(|of| of.name == *name).map(|of| &of.redis),
        };
        let of_store = name.as_ref().map_or(String::new(), |name| format!(" of the store {name}"));
        if let Some(was) = was.filter(|was| **was != here) {
            context.note(format!("this backup{of_store} is of {was}, and goes to {here}"));
        }
    }
}

fn in_words(backup: &Backup, plan: &Restored) -> String {
    let header = &backup.header;
    let (what, by) = (Untrusted(&header.what), Untrusted(&header.by));
    let expired = match plan.expired {
        0 => String::new(),
        expired => format!(", {expired} have expired meanwhile"),
    };
    let replaced = match plan.replaced {
        0 => String::new(),
        replaced => {
            let mut names = plan.replaced_keys.join(", ");
            if replaced > plan.replaced_keys.len() as u64 {
                names += ", …";
            }
            let (was, is) = if replaced == 1 { ("was", "is") } else { ("were", "are") };
            let keys = counted(replaced, "key");
            format!("{keys} {was} used since then and {is} replaced: {}\n", Untrusted(&names))
        }
    };
    format!(
        "reset of {what} by {by} at {}: {}\n{} to bring back{expired}\n{replaced}",
        moment(Micros(header.at_us)),
        Untrusted(&header.reason),
        counted(plan.restored, "key"),
    )
}

impl From<UndoError> for Failure {
    fn from(error: UndoError) -> Failure {
        match error {
            UndoError::Store(error) => error.into(),
            UndoError::Backup(error) => error.into(),
            UndoError::NoStore(_) => Failure::usage(error),
        }
    }
}
