//! `rlctl rules effective`: every limit that holds for one identity, and where it comes from.

use std::io::{self, Write};

use comfy_table::{Table, presets};
use serde::Serialize;

use super::target_args::TargetArgs;
use super::{Context, Exit, Failure, Output, policy, print_json};
use crate::engine::clock::Micros;
use crate::engine::identity::Identity;
use crate::engine::plan::{Attempt, Entry, Origin, Plan, Question, Source, Standing, plan};
use crate::engine::policy::Rule;
use crate::engine::rules::Rules;
use crate::engine::store::RuleLimit;
use crate::output::{SCHEMA, Untrusted, about};

/// Show every limit that holds for an identity, and where it comes from
///
/// With --endpoint the limits that a request there would meet; without, those of every rule that
/// can apply to the identity, of which the most specific one wins for each request.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rlctl rules effective user:123 --rules rules.toml
  rlctl rules effective user:123 --rules rules.toml --endpoint /api/v1/orders --method POST")]
pub(super) struct Args {
    /// user:123, apikey:ak_9, ip:203.0.113.7, header:x-tenant:acme, global:all
    identity: Identity,
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Serialize)]
struct Report<'a> {
    schema: &'static str,
    identity: &'a str,
    tier: Option<String>,
    blocked: Option<EntryItem>,
    exempt: Option<EntryItem>,
    items: Vec<Item>,
}

#[derive(Serialize)]
struct EntryItem {
    reason: String,
    until_us: Option<u64>,
    place: Option<String>,
}

#[derive(Serialize)]
struct Item {
    rule: String,
    endpoint: String,
    methods: Vec<String>,
    algorithm: &'static str,
    limit: u64,
    period_us: u64,
    burst: Option<u64>,
    cost: u64,
    shadow: bool,
    /// `rule`, `tier` or `override`.
    source: &'static str,
    /// In words: file:line:column, the tier, until when and why.
    from: String,
    #[serde(skip)]
    text: String,
}

pub(super) async fn run(args: Args, context: &Context) -> Result<Exit, Failure> {
    let in_force = policy::load(context).await?;
    let rules = &in_force.rules;
    let now = Micros::now();
    let standing = in_force.standing(&args.identity).await?;
    let place = args.target.read()?;
    let target = place.target();
    let identities = [args.identity.clone()];
    let attempt = Attempt { identities: &identities, target, tier: None };
    let mut report = Report {
        schema: SCHEMA,
        identity: args.identity.as_str(),
        tier: None,
        blocked: None,
        exempt: None,
        items: Vec::new(),
    };
    match plan(rules, &attempt, std::slice::from_ref(&standing), now) {
        Plan::Blocked { entry, .. } => report.blocked = Some(EntryItem::of(entry)),
        Plan::Missing { .. } => {}
        Plan::Ask(questions) => {
            report.tier.clone_from(&questions.tier);
            report.exempt =
                questions.exempt.into_iter().next().map(|(_, entry)| EntryItem::of(entry));
            if target.path.is_some() {
                let all = questions.enforced.iter().chain(&questions.shadow);
                report.items = all.flat_map(items).collect();
            }
        }
    }
    if target.path.is_none() && report.exempt.is_none() {
        report.items =
            for_any_endpoint(rules, &args.identity, report.tier.as_deref(), &standing, now);
    }
    let nothing = report.items.is_empty() && report.blocked.is_none() && report.exempt.is_none();
    if let Some(reason) = &in_force.observe {
        context.note(policy::observe_note(reason));
    }
    match context.output {
        Output::Json => print_json(&report)?,
        Output::Table => io::stdout().lock().write_all(in_words(&report).as_bytes())?,
    }
    Ok(if nothing { Exit::NothingMatched } else { Exit::Fine })
}

/// The limits of every rule that could win or apply for this identity somewhere.
fn for_any_endpoint(
    rules: &Rules,
    identity: &Identity,
    tier: Option<&str>,
    standing: &Standing,
    now: Micros,
) -> Vec<Item> {
    let applied = rules.anywhere(identity, tier);
    applied
        .flat_map(|applied| items(&Question::of(rules, applied, identity, tier, standing, now)))
        .collect()
}

fn items(question: &Question<'_>) -> Vec<Item> {
    question
        .limits
        .iter()
        .zip(&question.sources)
        .map(|(limit, source)| Item::of(limit, source))
        .collect()
}

impl Item {
    fn of(limit: &RuleLimit, source: &Source<'_>) -> Item {
        let Source { rule, origin } = source;
        let Rule { name, endpoint, methods, cost, shadow, place, .. } = rule;
        let (kind, from) = match origin {
            Origin::Rule => ("rule", place.to_string()),
            Origin::Tier { name, place } => ("tier", format!("tier {name}, {place}")),
            Origin::Override { until, reason } => {
                let until = until.map_or("for ever".into(), |until| {
                    format!("for another {}", about(until.saturating_sub(Micros::now())))
                });
                ("override", format!("override {until}: {reason}"))
            }
        };
        let it = limit.limit();
        Item {
            rule: name.clone(),
            endpoint: endpoint.to_string(),
            methods: methods.clone(),
            algorithm: it.algorithm().name(),
            limit: it.requests(),
            period_us: it.period().0,
            burst: it.algorithm().is_bucket().then_some(it.capacity()),
            cost: cost.get(),
            shadow: *shadow,
            source: kind,
            from,
            text: it.to_string(),
        }
    }
}

impl EntryItem {
    fn of(entry: Entry) -> EntryItem {
        EntryItem {
            reason: entry.reason,
            until_us: entry.until.map(|until| until.0),
            place: entry.place.map(|place| place.to_string()),
        }
    }

    fn in_words(&self, what: &str) -> String {
        let until = match self.until_us {
            Some(until) => {
                format!(" for another {}", about(Micros(until).saturating_sub(Micros::now())))
            }
            None => " for ever".into(),
        };
        let place =
            self.place.as_ref().map_or(String::new(), |place| format!(" ({})", Untrusted(place)));
        format!("{what}{until}: {}{place}\n", Untrusted(&self.reason))
    }
}

fn in_words(report: &Report<'_>) -> String {
    let tier = report.tier.as_ref().map_or(String::new(), |tier| format!(", tier {tier}"));
    let mut text = format!("{}{tier}\n", Untrusted(report.identity));
    if let Some(entry) = &report.blocked {
        return text + &entry.in_words("blocked");
    }
    if let Some(entry) = &report.exempt {
        return text + &entry.in_words("exempt");
    }
    if report.items.is_empty() {
        return text + "no rule limits it\n";
    }
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_header(["RULE", "ENDPOINT", "METHODS", "LIMIT", "COST", "FROM"]);
    for item in &report.items {
        let methods = if item.methods.is_empty() { "all".into() } else { item.methods.join(",") };
        let shadow = if item.shadow { " (shadow)" } else { "" };
        let cells = [
            format!("{}{shadow}", item.rule),
            item.endpoint.clone(),
            methods,
            format!("{} {}", item.text, item.algorithm),
            item.cost.to_string(),
            item.from.clone(),
        ];
        table.add_row(cells.map(|cell| Untrusted(&cell).to_string()));
    }
    text += &table.trim_fmt();
    text + "\n"
}
