//! `rlctl rules publish|history|rollback|enable|disable|observe`: the policy in the store.

use super::registry_args::{Named, WriteArgs, check_name};
use super::rules_file::{Reading, print_findings, read_text};
use super::{Context, Exit, Failure};
use crate::engine::clock::Micros;
use crate::engine::config::parse_policy;
use crate::engine::config::secrets::unmasked;
use crate::engine::registry::{KEPT_VERSIONS, Switch, Version};
use crate::output::{Column, List, Row, Untrusted, moment};

#[derive(Debug, clap::Subcommand)]
pub(super) enum StoreVerb {
    /// Make a rules file the policy of every gateway on this Redis, as a new version
    #[command(after_help = "\
Examples:
  rlctl rules publish rules.toml --reason \"premium gets 2000/s\"
  rlctl rules publish rules.toml --reason first --if-version 0
  rlctl rules publish rules.toml --reason test --dry-run")]
    Publish {
        /// TOML or JSON, at most 8 MiB; - reads stdin
        file: String,
        /// Only if this version is the current one (0: none yet); exit 4 otherwise
        #[arg(long, value_name = "N")]
        if_version: Option<u64>,
        #[command(flatten)]
        write: WriteArgs,
    },
    /// Show the published versions, newest first
    #[command(after_help = "\
Examples:
  rlctl rules history
  rlctl rules history --rows 5 -o wide")]
    History {
        /// Most versions to show
        #[arg(long, value_name = "N", default_value_t = KEPT_VERSIONS as usize)]
        rows: usize,
    },
    /// Publish the text of an old version as a new one; exit 7 when it is not kept
    #[command(after_help = "\
Examples:
  rlctl rules rollback 7 --reason \"8 was wrong\"")]
    Rollback {
        /// Number of the version, as history shows it
        #[arg(value_name = "VERSION")]
        to: u64,
        #[command(flatten)]
        write: WriteArgs,
    },
    /// Apply a rule again that was disabled; exit 7 when it was not
    #[command(after_help = "\
Examples:
  rlctl rules enable orders-write --reason \"it is over\"")]
    Enable {
        rule: String,
        #[command(flatten)]
        write: WriteArgs,
    },
    /// Do not apply a rule, whatever the policy says
    #[command(after_help = "\
Examples:
  rlctl rules disable orders-write --reason \"incident 12\"")]
    Disable {
        rule: String,
        #[command(flatten)]
        write: WriteArgs,
    },
    /// Count everything and enforce nothing (on), or enforce again (off)
    #[command(after_help = "\
Examples:
  rlctl rules observe on --reason \"429s for everybody\"
  rlctl rules observe off --reason \"all is well\"")]
    Observe {
        #[arg(value_enum)]
        state: OnOff,
        #[command(flatten)]
        write: WriteArgs,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum OnOff {
    On,
    Off,
}

impl StoreVerb {
    pub(super) async fn run(self, context: &Context) -> Result<Exit, Failure> {
        match self {
            StoreVerb::Publish { file, if_version, write } => {
                let intent = write.intent(context)?;
                let text = read_policy(&file, context).await?;
                let registry = context.registry().await?;
                let new = registry.publish(&text, if_version, &intent).await?;
                write.report(context, &new.outcome)
            }
            StoreVerb::Rollback { to, write } => {
                let intent = write.intent(context)?;
                let new = context.registry().await?.rollback(to, &intent).await?;
                write.report(context, &new.outcome)
            }
            StoreVerb::History { rows } => {
                let versions = context.registry().await?.history(rows).await?;
                context.print_list(&List::new(&versions), "no policy was published yet")?;
                Ok(Exit::Fine)
            }
            StoreVerb::Enable { rule, write } => {
                switch(Switch::Enable { rule }, &write, context).await
            }
            StoreVerb::Disable { rule, write } => {
                switch(Switch::Disable { rule }, &write, context).await
            }
            StoreVerb::Observe { state, write } => {
                switch(Switch::Observe(state == OnOff::On), &write, context).await
            }
        }
    }
}

async fn switch(switch: Switch, write: &WriteArgs, context: &Context) -> Result<Exit, Failure> {
    let intent = write.intent(context)?;
    let registry = context.registry().await?;
    if let Switch::Disable { rule } = &switch {
        check_name(context, &registry, Named::Rule(rule)).await?;
    }
    let outcome = registry.set_switch(&switch, &intent).await?;
    write.report(context, &outcome)
}

/// The text of a rules file that can be used, with passwords that are masked in it as the published
/// policy has them; what is wrong with it is told on stderr.
async fn read_policy(file: &str, context: &Context) -> Result<String, Failure> {
    let mut text = read_text(file)?;
    if let Ok(shown) = &mut text
        && shown.contains("***")
        && let Some(current) = context.registry().await?.current().await?
    {
        *shown = unmasked(shown, &current.text);
    }
    let outcome: Reading = text.clone().and_then(|text| parse_policy(file, &text, Micros::now()));
    if outcome.is_err() || !context.quiet {
        print_findings(&outcome);
    }
    match (text, outcome) {
        (Ok(text), Ok(_)) => Ok(text),
        _ => Err(Failure::new(
            Exit::BadFile,
            format!("{} cannot be used, so nothing was published", Untrusted(file)),
        )),
    }
}

impl Row for Version {
    fn columns() -> Vec<Column<Version>> {
        let reason = |version: &Version| {
            let back = version.rolled_back_to.map(|to| format!(" (the text of {to})"));
            version.reason.clone() + &back.unwrap_or_default()
        };
        vec![
            Column::new("VERSION", |version: &Version| version.version.to_string()),
            Column::new("HASH", |version| version.short_hash().into()),
            Column::new("BYTES", |version| version.bytes.to_string()),
            Column::new("AT", |version| moment(version.at)),
            Column::new("BY", |version| version.by.clone()),
            Column::new("REASON", reason),
            Column::wide("SHA-256", |version| version.hash.clone()),
        ]
    }

    const FIELDS: &'static [&'static str] =
        &["version", "hash", "bytes", "at_us", "by", "reason", "rolled_back_to"];
}
