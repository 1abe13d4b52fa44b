//! `rlctl doctor`: what is wrong with the Redis that keeps quota, and what to do about it.

use serde::Serialize;

use super::operate_args::{DialectArgs, Progress};
use super::printing::print;
use super::sites::NamedStores;
use super::{Context, Exit, Failure};
use crate::engine::clock::Micros;
use crate::engine::registry::Intent;
use crate::engine::store::StoreError;
use crate::engine::units;
use crate::ops::doctor::{Checked, Diagnosis, Fact, Finding, Severity, Wishes, examine};
use crate::ops::layout::Layout;
use crate::ops::site::Site;
use crate::output::{Column, List, Row, Tone, Untrusted, counted};

/// What a gateway gives a check, if its rules say nothing else.
const DEADLINE: Micros = Micros(50 * Micros::MILLISECOND.0);

/// Look for what makes limits wrong, slow or forgotten
///
/// Checks every server of the Redis: reachable, version, eviction, memory, clients, persistence,
/// exposure, clock, round trip, access, replication lag, copies that disagree, keys without or with
/// absurd TTL, values that are not ours, scripts, sentinels' quorum, slots that are uncovered, on
/// their way or hot, full coverage, failover time. Each finding says what it means and what to do.
/// With --rules also the stores that the rules name. Changes nothing but with --fix. Exit 4 when there
/// are errors, 0 when there are only warnings.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rlctl doctor --redis redis://127.0.0.1:6379
  rlctl doctor -o json | jq '.items[] | .found'
  rlctl doctor --fix                                 sets missing TTLs, loads missing scripts
  rlctl doctor --every 5m -o ndjson >> doctor.log
  rlctl doctor --rules store                         also the stores that the rules name
  rlctl doctor --dialect hash-token-bucket --limit 10/1s")]
pub(super) struct Args {
    /// Mend what is safe to mend: a missing TTL by what the value says, missing scripts. Never
    /// removes anything, and never touches what it cannot read
    #[arg(long)]
    fix: bool,
    /// Look again every so often, until interrupted
    #[arg(long, value_name = "D", value_parser = units::parse_period)]
    every: Option<Micros>,
    #[command(flatten)]
    dialect: DialectArgs,
}

#[derive(Serialize)]
struct Head<'a> {
    errors: usize,
    warnings: usize,
    checks: &'a [Checked],
    facts: &'a [Fact],
}

impl Row for Finding {
    fn columns() -> Vec<Column<Finding>> {
        vec![
            Column::new("SEVERITY", |f: &Finding| f.severity.name().into()).tone(tone),
            Column::new("CHECK", |f| f.check.into()),
            Column::new("NODE", |f| f.node.clone().unwrap_or_else(|| "-".into())),
            Column::wide("STORE", |f| f.store.clone().unwrap_or_else(|| "-".into())),
            Column::new("FOUND", |f| f.found.clone()),
        ]
    }

    const FIELDS: &'static [&'static str] =
        &["check", "severity", "node", "found", "means", "do", "fixed", "store"];
}

fn tone(finding: &Finding) -> Tone {
    match finding.severity {
        Severity::Error => Tone::Bad,
        Severity::Warning => Tone::Warning,
    }
}

pub(super) async fn run(args: Args, context: &Context) -> Result<Exit, Failure> {
    if args.fix {
        context.allow_write()?;
    }
    let named = args.dialect.named_stores(context).await?;
    let desk = Desk { layouts: args.dialect.layouts(context)?, named, args: &args, context };
    let Some(every) = args.every else {
        let (text, exit) = desk.look(false).await?;
        print(&text)?;
        return Ok(exit);
    };
    let again = async {
        let mut goes_on = false;
        loop {
            match desk.look(goes_on).await {
                Ok((text, _)) => print_while_read(&text)?,
                // What cannot be reached now may be the next time: that is what one waits for.
                Err(failure) => context.note(format!("{}; looking again in {every}", failure.what)),
            }
            goes_on = true;
            tokio::time::sleep(every.into()).await;
        }
    };
    tokio::select! {
        ended = again => ended,
        _ = tokio::signal::ctrl_c() => Ok(Exit::Interrupted),
    }
}

/// A reader that is gone ends it: whoever looks again and again would do so for nobody.
fn print_while_read(text: &str) -> Result<(), Failure> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// What is needed for every look.
struct Desk<'a> {
    layouts: Vec<Layout>,
    named: NamedStores,
    args: &'a Args,
    context: &'a Context,
}

impl Desk<'_> {
    async fn look(&self, goes_on: bool) -> Result<(String, Exit), Failure> {
        let context = self.context;
        let diagnosis = self.examine().await?;
        let exit = if diagnosis.has_errors() { Exit::NotAsExpected } else { Exit::Fine };
        if diagnosis.findings.iter().any(|finding| finding.fixed) {
            record(&diagnosis, context).await?;
        }
        let head = Head {
            errors: diagnosis.left(Severity::Error),
            warnings: diagnosis.left(Severity::Warning),
            checks: &diagnosis.checks,
            facts: &diagnosis.facts,
        };
        if context.look.format.is_for_people() {
            return Ok((in_words(&diagnosis, context), exit));
        }
        let list = List::new(&diagnosis.findings).head(&head);
        Ok((list.render(context.look, goes_on)?, exit))
    }

    async fn examine(&self) -> Result<Diagnosis, Failure> {
        let sites = self.context.sites(&self.named).await?;
        let mut progress = Progress::new(self.context);
        let mut all = Diagnosis::default();
        for site in &sites.open {
            let wishes = self.wishes(site);
            let diagnosis = examine(&site.deployment, &wishes, |text| progress.tell(|| text)).await;
            match (&site.store, diagnosis) {
                (None, diagnosis) => all.merge(diagnosis?),
                (Some(store), Ok(diagnosis)) => all.merge(diagnosis.of_store(store)),
                (Some(store), Err(error)) => all.merge(unreachable(store, &error)),
            }
        }
        sites.away.iter().for_each(|away| all.merge(unreachable(&away.store, &away.error)));
        Ok(all)
    }

    fn wishes(&self, site: &Site) -> Wishes {
        let said = self.named.stores.iter().find(|said| Some(&said.name) == site.store.as_ref());
        let own = said.and_then(|said| said.deadline);
        Wishes {
            layouts: match site.store {
                None => self.layouts.clone(),
                Some(_) => vec![Layout::Own(site.prefix.clone())],
            },
            fix: self.args.fix,
            deadline: own.or(self.named.deadline).unwrap_or(DEADLINE),
        }
    }
}

fn unreachable(store: &str, error: &StoreError) -> Diagnosis {
    Diagnosis::unreachable(error).of_store(store)
}

/// What was mended is in the trail, like every other write.
async fn record(diagnosis: &Diagnosis, context: &Context) -> Result<(), Failure> {
    let mended = diagnosis.findings.iter().filter(|finding| finding.fixed);
    let mended: Vec<&str> = mended.map(|finding| finding.check).collect();
    let intent = Intent::new(&context.actor, "doctor --fix")?;
    let after = serde_json::json!({ "mended": mended });
    let change = (serde_json::Value::Null, after);
    context.registry().await?.record("doctor fix", &mended.join(", "), change, &intent).await?;
    Ok(())
}

/// The store, where rules name it, and the server.
fn place(store: Option<&String>, node: Option<&String>) -> String {
    let word = |word: &String| format!(" {}", Untrusted(word));
    store.map_or(String::new(), word) + &node.map_or(String::new(), word)
}

fn in_words(diagnosis: &Diagnosis, context: &Context) -> String {
    let mut text = String::new();
    for finding in &diagnosis.findings {
        let severity = match finding.fixed {
            true => context.paint(Tone::Good, "fixed"),
            false => context.paint(tone(finding), finding.severity.name()),
        };
        let place = place(finding.store.as_ref(), finding.node.as_ref());
        text += &format!("{severity}: {}{place}: {}\n", finding.check, Untrusted(&finding.found));
        text += &format!("  means  {}\n  do     {}\n", finding.means, Untrusted(&finding.remedy));
    }
    let skipped: Vec<&Checked> = diagnosis.checks.iter().filter(|c| c.skipped.is_some()).collect();
    for check in &skipped {
        let why = check.skipped.as_deref().unwrap_or_default();
        let place = place(check.store.as_ref(), None);
        text += &format!("not checked: {}{place}: {}\n", check.check, Untrusted(why));
    }
    for fact in &diagnosis.facts {
        let place = place(fact.store.as_ref(), fact.node.as_ref());
        text += &format!("{}{place}: {}\n", fact.about, Untrusted(&fact.value));
    }
    let made = (diagnosis.checks.len() - skipped.len()) as u64;
    let left = |severity| diagnosis.left(severity) as u64;
    let (errors, warnings) = (left(Severity::Error), left(Severity::Warning));
    let verdict = match (errors, warnings) {
        (0, 0) if diagnosis.findings.is_empty() => context.paint(Tone::Good, "nothing found"),
        (0, 0) => context.paint(Tone::Good, "all that was found is mended"),
        _ => format!("{}, {}", counted(errors, "error"), counted(warnings, "warning")),
    };
    let unmade = match skipped.len() as u64 {
        0 => String::new(),
        n => format!("; {} not made", counted(n, "check")),
    };
    text + &format!("{}: {verdict}{unmade}\n", counted(made, "check"))
}
