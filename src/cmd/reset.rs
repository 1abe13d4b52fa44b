//! `rlctl reset`: forgets what somebody used, with a way back.

use std::path::{Path, PathBuf};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::{Method, StatusCode};
use serde::Serialize;
use serde_json::{Value, json};

use super::operate_args::{DialectArgs, Progress, Who, identities};
use super::{Context, Exit, Failure};
use crate::engine::clock::Micros;
use crate::engine::identity::{Identity, Pattern};
use crate::engine::registry::Intent;
use crate::engine::split;
use crate::engine::store::redis::without_secrets;
use crate::ops::backup::{Backup, BackupError, Header, OfStore, Writer};
use crate::ops::layout::Layout;
use crate::ops::reset::{NAMED, Plan, Planned, ResetError, SHOWN, Scope, now};
use crate::ops::site::Site;
use crate::output::{Column, List, Row, Untrusted, counted, moment};

/// What stands in the trail where nobody said why.
const NO_REASON: &str = "no reason given";

/// Forget what an identity, or all that fit a pattern, have used
///
/// Says first what is there, then asks; without a terminal --yes is needed. Everything is written to
/// a backup before it is removed, and `rlctl undo FILE` brings it back bit for bit, also when it
/// expires. What operators decided (overrides, tiers, blocks) stays. Patterns are found by SCAN on
/// every primary. With --rules also on the stores that the rules name. Gateways given with --gateway
/// forget what they count themselves, too. Exit 7 when there is nothing to forget, 6 when it was not
/// confirmed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rlctl reset user:123                               asks, and names the backup
  rlctl reset user:123 --rule per-user --yes --reason \"import went wrong\"
  rlctl reset --match 'user:12*' --dry-run           what would be forgotten
  rlctl reset --match ip:10.0.0.0/8 --yes --backup before.jsonl
  rlctl reset user:123 --rules store                 also on the stores that rules name
  rlctl undo before.jsonl")]
pub(super) struct Args {
    /// user:123, apikey:ak_9, ip:203.0.113.7, header:x-tenant:acme; - reads them from stdin
    #[arg(
        value_name = "IDENTITY",
        required_unless_present = "pattern",
        conflicts_with = "pattern"
    )]
    identities: Vec<Who>,
    /// All of a family (user:12*) or a network (ip:10.0.0.0/8)
    #[arg(long = "match", value_name = "PATTERN")]
    pattern: Option<Pattern>,
    /// Only what was used of one rule
    #[arg(long, value_name = "R")]
    rule: Option<String>,
    /// Why; kept in the audit trail
    #[arg(long, value_name = "TEXT", default_value = NO_REASON)]
    reason: String,
    /// Say what would be forgotten, and forget nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    /// Where to write the backup [default: rlctl-reset-TIME.jsonl in this folder]
    #[arg(long, value_name = "FILE")]
    backup: Option<PathBuf>,
    #[command(flatten)]
    dialect: DialectArgs,
}

#[derive(Serialize)]
struct Report<'a> {
    dry_run: bool,
    written: bool,
    identities: u64,
    limits: u64,
    used: u64,
    rule: Option<&'a str>,
    backup: Option<String>,
    /// How many keys are in the backup.
    keys: Option<u64>,
}

impl Row for Planned {
    fn columns() -> Vec<Column<Planned>> {
        vec![
            Column::new("IDENTITY", |p: &Planned| p.identity.clone()),
            Column::new("RULE", |p| p.rule.clone()),
            Column::new("LIMIT", |p| p.limit.clone()),
            Column::number("USED", |p| p.used.map_or("?".into(), |n| n.to_string())),
            Column::number("LEFT", |p| p.remaining.map_or("?".into(), |n| n.to_string())),
            Column::wide("STORE", |p| p.store.clone().unwrap_or_else(|| "-".into())),
            Column::wide("KEY", |p| p.key.clone()),
        ]
    }

    const FIELDS: &'static [&'static str] =
        &["identity", "rule", "limit", "used", "remaining", "key", "store"];
}

pub(super) async fn run(args: Args, context: &Context) -> Result<Exit, Failure> {
    let intent = Intent::new(&context.actor, &args.reason)?;
    if context.readonly && !args.dry_run {
        context.allow_write()?;
    }
    let layouts = args.dialect.layouts(context)?;
    if args.rule.is_some() && args.dialect.dialect.is_some() {
        return Err(Failure::usage("--rule chooses among our rules; other limiters have none"));
    }
    let named = args.dialect.named_stores(context).await?;
    let sites = context.sites(&named).await?.all()?;
    let patterns = match &args.pattern {
        Some(pattern) => vec![pattern.clone()],
        None => identities(args.identities.clone())
            .map(|identity| identity.map(Pattern::Exact))
            .collect::<Result<_, _>>()?,
    };
    let whom = Whom { patterns, most_parts: named.most_parts, layouts, args: &args };
    let parts: Vec<Part<'_>> = sites.iter().map(|site| whom.on(site)).collect();
    let plan = planned(&parts, context).await?;
    if plan.limits == 0 {
        return nothing(&whom, &sites[0], context).await;
    }
    if args.dry_run {
        context.note("a dry run: nothing was forgotten");
        show(&args, &plan, None, context)?;
        return Ok(Exit::Fine);
    }
    if context.look.format.is_for_people() {
        // So that people see it before they answer.
        show(&args, &plan, None, context)?;
    }
    context.allow_write()?;
    context.confirm(args.yes, &question(&plan))?;
    let (path, keys) = back_up(&whom, &parts, &intent, context).await?;
    remove(&parts, &path, context).await.map_err(|failure| {
        let what = format!("{}; what is gone already is in {}", failure.what, path.display());
        Failure::new(failure.exit, what)
    })?;
    let told = after_it(&whom, &plan, &intent, context).await;
    if context.look.format.is_for_people() {
        super::print(&format!(
            "forgotten: {}\nbackup: {}\nundo: {}\n",
            in_words(&plan),
            Untrusted(&path.display().to_string()),
            Untrusted(&whom.undo(&path, &sites, context)),
        ))?;
    } else {
        show(&args, &plan, Some((&path, keys)), context)?;
    }
    told?;
    Ok(Exit::Fine)
}

/// Whose quota is forgotten.
struct Whom<'a> {
    patterns: Vec<Pattern>,
    /// Over how many buckets rules divide an identity at most.
    most_parts: u64,
    layouts: Vec<Layout>,
    args: &'a Args,
}

/// What is done on one Redis.
struct Part<'a> {
    site: &'a Site,
    scopes: Vec<Scope>,
}

impl Whom<'_> {
    fn on<'a>(&self, site: &'a Site) -> Part<'a> {
        let layouts = match site.store {
            None => self.layouts.clone(),
            Some(_) => vec![Layout::Own(site.prefix.clone())],
        };
        let scope = |pattern: Pattern| Scope {
            store: site.store.clone(),
            layouts: layouts.clone(),
            pattern,
            with_parts: self.most_parts > 0,
            rule: self.args.rule.clone(),
        };
        let whole = self.patterns.iter().cloned();
        let parts = self.patterns.iter().flat_map(|pattern| self.parts_of(pattern));
        Part { site, scopes: whole.chain(parts).map(scope).collect() }
    }

    /// The buckets that rules divide an identity over.
    fn parts_of(&self, pattern: &Pattern) -> Vec<Pattern> {
        match pattern {
            Pattern::Exact(identity) => {
                let part = |n| split::name(identity, n).map(Pattern::Exact);
                (0..self.most_parts).filter_map(part).collect()
            }
            // They are found together with what they are parts of.
            _ => Vec::new(),
        }
    }

    fn is_ours(&self) -> bool {
        matches!(self.layouts.as_slice(), [Layout::Own(_)])
    }

    /// The identities or the pattern, in few words.
    fn in_words(&self) -> String {
        let some: Vec<String> = self.patterns.iter().take(5).map(Pattern::to_string).collect();
        let more = self.patterns.len().saturating_sub(some.len());
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        some.join(", ") + &more
    }

    /// The command that brings it back.
    fn undo(&self, path: &Path, sites: &[Site], context: &Context) -> String {
        let rules = context.rules.as_ref().filter(|_| sites.len() > 1);
        let rules = rules.map_or(String::new(), |rules| format!(" --rules {rules}"));
        format!("rlctl undo {}{rules}", path.display())
    }
}

async fn planned(parts: &[Part<'_>], context: &Context) -> Result<Plan, Failure> {
    let mut progress = Progress::new(context);
    let mut plan = Plan::default();
    for Part { site, scopes } in parts {
        for scope in scopes {
            let before = plan.identities;
            let tell = |so_far: &Plan| {
                let found = before + so_far.identities;
                progress.tell(|| format!("found {}", counted(found, "identity")));
            };
            plan.merge(scope.plan(&site.deployment, tell).await?);
        }
    }
    drop(progress);
    for (key, why) in &plan.unreadable {
        context.note(format!("`{key}` stays: {why}"));
    }
    Ok(plan)
}

async fn nothing(whom: &Whom<'_>, main: &Site, context: &Context) -> Result<Exit, Failure> {
    let args = whom.args;
    let of_rule = args.rule.as_ref().map_or(String::new(), |rule| format!(" of rule {rule}"));
    let strangers = args.dialect.strangers(main).await;
    context.note(format!("nothing is used{of_rule} by {}{strangers}", whom.in_words()));
    if !context.look.format.is_for_people() {
        show(args, &Plan::default(), None, context)?;
    }
    Ok(Exit::NothingMatched)
}

fn question(plan: &Plan) -> String {
    format!("forget {}?", in_words(plan))
}

fn in_words(plan: &Plan) -> String {
    let limits = counted(plan.limits, "limit");
    format!("{limits} of {}", counted(plan.identities, "identity"))
}

fn show(
    args: &Args,
    plan: &Plan,
    done: Option<(&Path, u64)>,
    context: &Context,
) -> Result<(), Failure> {
    let report = Report {
        dry_run: args.dry_run,
        written: done.is_some(),
        identities: plan.identities,
        limits: plan.limits,
        used: plan.used,
        rule: args.rule.as_deref(),
        backup: done.map(|(path, _)| path.display().to_string()),
        keys: done.map(|(_, keys)| keys),
    };
    let more = plan.limits.saturating_sub(SHOWN as u64);
    let more = if more > 0 { format!("… and {more} more\n") } else { String::new() };
    let total = format!("{more}{}, {} used in all\n", in_words(plan), plan.used);
    context.print_list(&List::new(&plan.shown).head(&report).below(total), "")
}

/// Writes what will be removed to a new file, and says where.
async fn back_up(
    whom: &Whom<'_>,
    parts: &[Part<'_>],
    intent: &Intent,
    context: &Context,
) -> Result<(PathBuf, u64), Failure> {
    let main = &parts[0].site.deployment;
    let at = now(main).await?;
    let path = whom.args.backup.clone().unwrap_or_else(|| free_name(at));
    let redis = without_secrets(&main.url());
    let header = Header {
        by: intent.by().into(),
        reason: intent.reason().into(),
        ours: whom.is_ours(),
        ..Header::new(at.0, redis, whom.in_words(), whom.args.rule.clone())
    };
    let of_store = |part: &Part<'_>| {
        let redis = without_secrets(&part.site.deployment.url());
        Some(OfStore { name: part.site.store.clone()?, redis })
    };
    let header = header.with_stores(parts.iter().filter_map(of_store).collect());
    let mut writer = Writer::create(&path, &header)?;
    if let Err(error) = write(parts, &mut writer, context).await {
        drop(writer);
        // It would be taken for one that is whole.
        let _ = std::fs::remove_file(&path);
        let failure = Failure::from(error);
        return Err(Failure::new(failure.exit, format!("{}; nothing was removed", failure.what)));
    }
    Ok((path, writer.finish()?))
}

async fn write(
    parts: &[Part<'_>],
    writer: &mut Writer,
    context: &Context,
) -> Result<(), ResetError> {
    let mut progress = Progress::new(context);
    for Part { site, scopes } in parts {
        for scope in scopes {
            let tell = |done| progress.tell(|| format!("{} backed up", counted(done, "identity")));
            scope.back_up(&site.deployment, writer, tell).await?;
        }
    }
    Ok(())
}

/// Two resets within a second have two names.
fn free_name(at: Micros) -> PathBuf {
    let stamp = moment(at).replace([':', '-'], "");
    let name = |number: u32| match number {
        1 => PathBuf::from(format!("rlctl-reset-{stamp}.jsonl")),
        number => PathBuf::from(format!("rlctl-reset-{stamp}-{number}.jsonl")),
    };
    (1..1_000).map(name).find(|path| !path.exists()).unwrap_or_else(|| name(1_000))
}

async fn remove(parts: &[Part<'_>], path: &Path, context: &Context) -> Result<(), Failure> {
    let backup = Backup::open(path)?;
    let mut progress = Progress::new(context);
    for Part { site, scopes } in parts {
        // They differ in whom they mean, and that is settled by what stands in the backup.
        let Some(scope) = scopes.first() else { continue };
        let of = site.store.as_ref().map_or(String::new(), |store| format!(" on {store}"));
        let tell = |done| progress.tell(|| format!("{done} keys removed{of}"));
        scope.remove(&site.deployment, &backup, tell).await?;
    }
    Ok(())
}

/// Tells the gateways and the audit trail.
async fn after_it(
    whom: &Whom<'_>,
    plan: &Plan,
    intent: &Intent,
    context: &Context,
) -> Result<(), Failure> {
    if !whom.is_ours() {
        context.note("this limiter is not ours: its own caches may go on refusing for a while");
        return Ok(());
    }
    let registry = context.registry().await?;
    let before = json!({ "limits": plan.limits, "rule": whom.args.rule });
    for pattern in &whom.patterns {
        match pattern {
            Pattern::Exact(identity) => {
                registry.record_reset(identity, before.clone(), intent).await?;
            }
            pattern => {
                let subject = pattern.to_string();
                let change = (before.clone(), Value::Null);
                registry.record("reset", &subject, change, intent).await?;
            }
        }
    }
    tell_gateways(whom.args, plan, intent, context).await
}

async fn tell_gateways(
    args: &Args,
    plan: &Plan,
    intent: &Intent,
    context: &Context,
) -> Result<(), Failure> {
    let gateways = context.all_gateways()?;
    if gateways.is_empty() {
        return Ok(());
    }
    // They are told about each identity; where there are more, only the store is cleared.
    if plan.identities > NAMED as u64 {
        context.note("too many to tell the gateways: what they count themselves ends by itself");
        return Ok(());
    }
    let owners = plan.owners.iter().filter_map(|owner| Identity::opaque(owner).ok());
    let mut all: Vec<Identity> = owners.collect();
    all.sort();
    all.dedup();
    for gateway in &gateways {
        for identity in &all {
            let encoded = utf8_percent_encode(identity.as_str(), NON_ALPHANUMERIC);
            let path = format!("/api/v1/users/{encoded}/reset");
            let body = json!({ "rule": args.rule, "reason": intent.reason() });
            let told = gateway.ask(Method::POST, &path, Some(&body), &[StatusCode::OK]).await;
            told.map_err(|error| {
                let failure = Failure::from(error);
                let what = format!("the store is reset, but not this gateway: {}", failure.what);
                Failure::new(failure.exit, what)
            })?;
        }
    }
    Ok(())
}

impl From<ResetError> for Failure {
    fn from(error: ResetError) -> Failure {
        match error {
            ResetError::Store(error) => error.into(),
            ResetError::Backup(error) => error.into(),
        }
    }
}

impl From<BackupError> for Failure {
    fn from(error: BackupError) -> Failure {
        let exit = match error {
            BackupError::Write { .. } => Exit::Failed,
            _ => Exit::BadFile,
        };
        Failure::new(exit, error)
    }
}
