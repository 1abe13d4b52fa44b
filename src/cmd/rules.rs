//! `rlctl rules`: what a rules file says, and what is wrong with it. What is done with a policy in
//! the store is in `rules_store`.

use clap::Subcommand;
use serde::Serialize;

use super::rules_file::{self, Reading, findings_of, print_findings};
use super::rules_store::StoreVerb;
use super::{Context, Exit, Failure, policy, print, rules_diff, rules_effective};
use crate::engine::config::Finding;
use crate::engine::config::secrets::masked;
use crate::engine::policy::{LimitSpec, OnStoreError, Rule, RuleLimits, Tier};
use crate::engine::registry::{Version, switched};
use crate::output::{Column, List, Row, Untrusted, moment};

/// Check and show rules files, publish them, and switch rules off and on
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rlctl rules lint rules.toml                   errors and warnings with their places
  rlctl rules lint --deny-warnings *.toml       for CI: exit 3 on either
  rlctl rules show rules.toml                   the rules as a table
  rlctl rules effective user:123 --rules rules.toml
  rlctl rules diff rules.toml new-rules.toml    who gets more, who less
  rlctl rules diff store rules.toml             what publishing it would change
  rlctl rules publish rules.toml --reason \"premium gets 2000/s\"
  rlctl rules rollback 7 --reason \"8 was wrong\"
  rlctl rules disable orders-write --reason \"incident 12\"
  rlctl rules observe on --reason \"429s for everybody\"")]
pub(super) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Lint(LintArgs),
    Show(ShowArgs),
    Effective(rules_effective::Args),
    Diff(rules_diff::Args),
    #[command(flatten)]
    Store(StoreVerb),
}

/// Check rules files: every error and warning with its place
///
/// Exit 0 when the files can be used, 3 when one cannot. Findings go to stderr, a line per file to
/// stdout; with -o json all goes to stdout.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rlctl rules lint rules.toml
  rlctl rules lint --deny-warnings *.toml       exit 3 on warnings too
  rlctl rules lint rules.toml -o json           items with file, line, column, message, hint")]
struct LintArgs {
    /// Rules files, TOML or JSON; - is stdin; store or store:VERSION; none: the one of --rules
    #[arg(value_name = "FILE")]
    files: Vec<String>,
    /// Treat warnings as errors: exit 3
    #[arg(long)]
    deny_warnings: bool,
}

/// Show the rules of a policy as a table
///
/// Of a file, or of what is published: then also which version it is, and what is switched off.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rlctl rules show rules.toml
  RLCTL_RULES=rules.toml rlctl rules show -o json
  rlctl rules show store                        what is published
  rlctl rules show store:7 --text > seven.toml  version 7 as it was written, but for passwords")]
struct ShowArgs {
    /// Rules file, TOML or JSON; - is stdin; store or store:VERSION; none: the one of --rules
    #[arg(value_name = "FILE")]
    file: Option<String>,
    /// The text itself, as it was written, but for passwords
    #[arg(long)]
    text: bool,
}

pub(super) async fn run(args: Args, context: &Context) -> Result<Exit, Failure> {
    match args.verb {
        Verb::Lint(args) => lint(args, context).await,
        Verb::Show(args) => show(args, context).await,
        Verb::Effective(args) => rules_effective::run(args, context).await,
        Verb::Diff(args) => rules_diff::run(args, context).await,
        Verb::Store(verb) => verb.run(context).await,
    }
}

async fn lint(args: LintArgs, context: &Context) -> Result<Exit, Failure> {
    let files = if args.files.is_empty() { vec![context.rules_file(None)?] } else { args.files };
    let mut read = Vec::new();
    for file in &files {
        read.push(rules_file::read(file, context).await?);
    }
    let (mut errors, mut warnings) = (0, 0);
    for outcome in &read {
        match outcome {
            Ok((_, found)) => warnings += found.len(),
            Err(found) => errors += found.errors.len() + found.more,
        }
    }
    if context.look.format.is_for_people() {
        for (file, outcome) in files.iter().zip(&read) {
            print_findings(outcome);
            print(&format!("{}: {}\n", Untrusted(file), in_words(outcome)))?;
        }
    } else {
        let items: Vec<Item<'_>> = read.iter().flat_map(findings_of).map(Item::of).collect();
        context.print_list(&List::new(&items).head(&LintHead { errors, warnings }), "")?;
    }
    let refused = errors > 0 || args.deny_warnings && warnings > 0;
    Ok(if refused { Exit::BadFile } else { Exit::Fine })
}

fn in_words(outcome: &Reading) -> String {
    let count = |n: usize, what: &str| match n {
        1 => format!("1 {what}"),
        n => format!("{n} {what}s"),
    };
    match outcome {
        Ok((policy, warnings)) => {
            let tiers = Some(policy.tiers.len()).filter(|n| *n > 0);
            let verdict = match warnings.len() {
                0 => "fine".into(),
                n => count(n, "warning"),
            };
            let rules = Some(count(policy.rules.len(), "rule"));
            let parts = [rules, tiers.map(|n| count(n, "tier")), Some(verdict)];
            parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
        }
        Err(found) => count(found.errors.len() + found.more, "error"),
    }
}

#[derive(Serialize)]
pub(super) struct LintHead {
    pub(super) errors: usize,
    pub(super) warnings: usize,
}

#[derive(Serialize)]
pub(super) struct Item<'a> {
    file: &'a str,
    line: usize,
    column: usize,
    severity: &'static str,
    message: &'a str,
    hint: Option<&'a str>,
    /// The words at fault.
    text: &'a str,
}

impl<'a> Row for Item<'a> {
    /// People get the line with the words marked instead.
    fn columns() -> Vec<Column<Item<'a>>> {
        Vec::new()
    }

    const FIELDS: &'static [&'static str] =
        &["file", "line", "column", "severity", "message", "hint", "text"];
}

impl<'a> Item<'a> {
    pub(super) fn of(finding: &'a Finding) -> Item<'a> {
        Item {
            file: &finding.place.file,
            line: finding.place.line,
            column: finding.place.column,
            severity: finding.severity.name(),
            message: &finding.message,
            hint: finding.hint.as_deref(),
            text: &finding.words,
        }
    }
}

async fn show(args: ShowArgs, context: &Context) -> Result<Exit, Failure> {
    let named = context.rules_file(args.file)?;
    if args.text {
        context.refuse_output("--text prints the policy as it was written")?;
        print(&masked(&rules_file::text(&named, context).await?))?;
        return Ok(Exit::Fine);
    }
    let (policy, warnings, version) = match rules_file::in_store(&named) {
        Some(version) => {
            let registry = context.registry().await?;
            let published = rules_file::published(&registry, version).await?;
            let (policy, warnings) = rules_file::usable(rules_file::parsed(&published))?;
            let switches = registry.switches().await?;
            let off = policy::switched_off(&policy, &switches);
            note_version(&published.version, context);
            policy::note_switches(switches.observe.as_ref(), &off, context);
            (switched(policy, &switches), warnings, Some(published.version))
        }
        None => {
            let (policy, warnings) = rules_file::load(&named, context).await?;
            (policy, warnings, None)
        }
    };
    if !warnings.is_empty() {
        let count = warnings.len();
        context
            .note(format!("warnings: {count}; rlctl rules lint {} shows them", Untrusted(&named)));
    }
    let head = ShowHead {
        version: version.as_ref().map(|version| version.version),
        hash: version.as_ref().map(|version| version.hash.as_str()),
        default_tier: policy.default_tier.as_deref(),
        tiers: policy.tiers.iter().map(TierItem::of).collect(),
    };
    let items: Vec<RuleItem<'_>> = policy.rules.iter().map(RuleItem::of).collect();
    context.print_list(&List::new(&items).head(&head), "it has no rules")?;
    Ok(Exit::Fine)
}

fn note_version(version: &Version, context: &Context) {
    let (number, hash) = (version.version, Untrusted(version.short_hash()));
    let (by, reason) = (Untrusted(&version.by), Untrusted(&version.reason));
    let at = moment(version.at);
    context.note(format!("version {number} ({hash}), published by {by} at {at}: {reason}"));
}

impl<'a> Row for RuleItem<'a> {
    fn columns() -> Vec<Column<RuleItem<'a>>> {
        fn or_all(list: &[String]) -> String {
            if list.is_empty() { "all".into() } else { list.join(",") }
        }
        vec![
            Column::new("NAME", |item: &RuleItem<'a>| item.name.into()),
            Column::new("DIMENSION", |item| item.dimension.clone()),
            Column::new("ENDPOINT", |item| item.rule.endpoint.to_string()),
            Column::new("METHODS", |item| or_all(item.methods)),
            Column::new("TIERS", |item| or_all(item.tiers)),
            Column::new("LIMITS", |item| limits_in_words(item.rule)),
            Column::new("ON STORE ERROR", |item| item.on_store_error.into()),
            Column::new("FLAGS", |item| flags(item.rule).join(" ")),
            Column::wide("PLACE", |item| format!("{}:{}", item.file, item.line)),
            Column::wide("DESCRIPTION", |item| item.description.unwrap_or_default().into()),
        ]
    }

    const FIELDS: &'static [&'static str] = &[
        "name",
        "description",
        "file",
        "line",
        "dimension",
        "endpoint",
        "methods",
        "tiers",
        "match",
        "unless",
        "limits",
        "cost",
        "on_store_error",
        "shadow",
        "enabled",
        "also",
        "reject_missing",
    ];
}

fn limits_in_words(rule: &Rule) -> String {
    match &rule.limits {
        RuleLimits::OfTier => "of the tier".into(),
        RuleLimits::Own(limits) => limits.iter().map(limit_in_words).collect::<Vec<_>>().join(", "),
    }
}

fn limit_in_words(spec: &LimitSpec) -> String {
    format!("{} {}", spec.limit, spec.limit.algorithm())
}

fn on_store_error(mode: OnStoreError) -> &'static str {
    match mode {
        OnStoreError::Open => "open",
        OnStoreError::Closed => "closed",
        OnStoreError::Local => "local",
    }
}

/// What sets a rule apart from the plain one.
fn flags(rule: &Rule) -> Vec<String> {
    let set = [
        (!rule.enabled, "disabled".into()),
        (rule.shadow, "shadow".into()),
        (rule.also, "also".into()),
        (rule.reject_missing, "missing=reject".into()),
        (rule.cost.get() != 1, format!("cost={}", rule.cost.get())),
        (!rule.matches.is_empty(), format!("match={}", joined(&rule.matches))),
        (!rule.unless.is_empty(), format!("unless={}", joined(&rule.unless))),
    ];
    set.into_iter().filter_map(|(is_set, name)| is_set.then_some(name)).collect()
}

fn joined(list: &[impl ToString]) -> String {
    list.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

#[derive(Serialize)]
struct ShowHead<'a> {
    /// Of what is published; null for a file, and so is the hash.
    version: Option<u64>,
    hash: Option<&'a str>,
    default_tier: Option<&'a str>,
    tiers: Vec<TierItem<'a>>,
}

#[derive(Serialize)]
struct TierItem<'a> {
    name: &'a str,
    limits: Vec<LimitItem>,
}

impl<'a> TierItem<'a> {
    fn of(tier: &'a Tier) -> TierItem<'a> {
        TierItem { name: &tier.name, limits: limit_items(&tier.limits) }
    }
}

#[derive(Serialize)]
struct LimitItem {
    algorithm: &'static str,
    limit: u64,
    period_us: u64,
    /// For the buckets.
    burst: Option<u64>,
}

#[derive(Serialize)]
struct RuleItem<'a> {
    #[serde(skip)]
    rule: &'a Rule,
    name: &'a str,
    description: Option<&'a str>,
    file: &'a str,
    line: usize,
    dimension: String,
    /// Null: every endpoint.
    endpoint: Option<String>,
    /// Empty: all; so are the tiers.
    methods: &'a [String],
    tiers: &'a [String],
    r#match: Vec<String>,
    unless: Vec<String>,
    /// Null: those of the request's tier.
    limits: Option<Vec<LimitItem>>,
    cost: u64,
    on_store_error: &'static str,
    shadow: bool,
    enabled: bool,
    also: bool,
    reject_missing: bool,
}

fn limit_items(limits: &[LimitSpec]) -> Vec<LimitItem> {
    let item = |spec: &LimitSpec| LimitItem {
        algorithm: spec.limit.algorithm().name(),
        limit: spec.limit.requests(),
        period_us: spec.limit.period().0,
        burst: spec.limit.algorithm().is_bucket().then_some(spec.limit.capacity()),
    };
    limits.iter().map(item).collect()
}

impl<'a> RuleItem<'a> {
    fn of(rule: &'a Rule) -> RuleItem<'a> {
        RuleItem {
            rule,
            name: &rule.name,
            description: rule.description.as_deref(),
            file: &rule.place.file,
            line: rule.place.line,
            dimension: rule.dimension.to_string(),
            endpoint: rule.endpoint.pattern(),
            methods: &rule.methods,
            tiers: &rule.tiers,
            r#match: rule.matches.iter().map(ToString::to_string).collect(),
            unless: rule.unless.iter().map(ToString::to_string).collect(),
            limits: match &rule.limits {
                RuleLimits::OfTier => None,
                RuleLimits::Own(limits) => Some(limit_items(limits)),
            },
            cost: rule.cost.get(),
            on_store_error: on_store_error(rule.on_store_error),
            shadow: rule.shadow,
            enabled: rule.enabled,
            also: rule.also,
            reject_missing: rule.reject_missing,
        }
    }
}
