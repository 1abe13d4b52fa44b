//! `rlctl rules effective`: every limit that holds for one identity, and where it comes from.

use serde::Serialize;

use super::target_args::TargetArgs;
use super::{Context, Exit, Failure, policy};
use crate::engine::clock::Micros;
use crate::engine::identity::Identity;
use crate::engine::plan::{self, Attempt, Entry, Origin, Plan, Source, Standing, plan, tier_of};
use crate::engine::policy::Rule;
use crate::engine::rules::{Applied, Rules};
use crate::engine::store::RuleLimit;
use crate::output::{Column, List, Row, Untrusted, moment};

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
    identity: &'a str,
    tier: Option<String>,
    blocked: Option<EntryItem>,
    exempt: Option<EntryItem>,
    /// A rule that refuses such requests, for want of an identity.
    missing: Option<String>,
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
    /// Who is counted: the identity itself, or everybody together.
    identity: String,
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
    /// Of an override; null: for ever.
    until_us: Option<u64>,
    /// Of an override.
    reason: Option<String>,
    #[serde(skip)]
    text: String,
    /// Others are counted in it, too.
    #[serde(skip)]
    shared: bool,
}

/// Everything that is known about the one who is asked about.
struct Question<'a> {
    rules: &'a Rules,
    attempt: Attempt<'a>,
    standings: &'a [Standing],
    tier: Option<&'a str>,
    now: Micros,
}

pub(super) async fn run(args: Args, context: &Context) -> Result<Exit, Failure> {
    let in_force = policy::load(context).await?;
    let rules = &in_force.rules;
    let place = args.target.read()?;
    let identities = policy::identities_of(&args.identity);
    let attempt = Attempt { identities: &identities, target: place.target(), tier: None };
    let standings = in_force.standings(&identities).await?;
    let tier = tier_of(rules.policy(), &attempt, &standings);
    let now = Micros::now();
    let question = Question { rules, attempt, standings: &standings, tier: tier.as_deref(), now };
    let (report, items) = question.answer(&args.identity);
    in_force.note_switches(context);
    if let Some(note) = place.left_out(rules, &args.identity) {
        context.note(note);
    }
    let nothing = items.is_empty()
        && report.blocked.is_none()
        && report.exempt.is_none()
        && report.missing.is_none();
    // Whoever is blocked meets no limit, and is told only that.
    let met = if report.blocked.is_some() && context.look.format.is_for_people() {
        &[]
    } else {
        items.as_slice()
    };
    let list = List::new(met).head(&report).above(in_words(&report, met));
    context.print_list(&list, "")?;
    Ok(if nothing { Exit::NothingMatched } else { Exit::Fine })
}

impl Question<'_> {
    fn answer<'r>(&self, asked: &'r Identity) -> (Report<'r>, Vec<Item>) {
        let mut items = Vec::new();
        let mut report = Report {
            identity: asked.as_str(),
            tier: self.tier.map(String::from),
            blocked: None,
            exempt: None,
            missing: None,
        };
        let mut free = Vec::new();
        match plan(self.rules, &self.attempt, self.standings, self.now) {
            Plan::Blocked { entry, .. } => report.blocked = Some(EntryItem::of(entry)),
            Plan::Missing { rule } => report.missing = Some(rule.name.clone()),
            Plan::Ask(questions) => {
                if questions.exempt.iter().any(|(_, entry)| entry.whole_request) {
                    free.extend(self.attempt.identities);
                }
                free.extend(questions.exempt.iter().map(|(identity, _)| *identity));
                let own = questions.exempt.into_iter().find(|(identity, _)| *identity == asked);
                report.exempt = own.map(|(_, entry)| EntryItem::of(entry));
            }
        }
        for (identity, standing) in self.attempt.identities.iter().zip(self.standings) {
            if !free.contains(&identity) {
                items.extend(self.limits_of(identity, standing));
            }
        }
        for item in &mut items {
            item.shared = item.identity != asked.as_str();
        }
        (report, items)
    }

    /// The limits that a request at the endpoint would meet, or without one those of every rule
    /// that could win or apply somewhere.
    fn limits_of(&self, identity: &Identity, standing: &Standing) -> Vec<Item> {
        let Question { rules, attempt: Attempt { identities, target, .. }, tier, now, .. } = self;
        let applied: Vec<Applied<'_>> = if target.path.is_some() {
            let applying = rules.applying(identity, identities, *tier, *target);
            applying.enforced.into_iter().chain(applying.shadow).collect()
        } else {
            rules.anywhere(identity, *tier, target.method).collect()
        };
        let limits = |applied| plan::Question::of(rules, applied, identity, *tier, standing, *now);
        applied.into_iter().flat_map(|applied| items(&limits(applied))).collect()
    }
}

fn items(question: &plan::Question<'_>) -> Vec<Item> {
    question
        .limits
        .iter()
        .zip(&question.sources)
        .map(|(limit, source)| Item::of(question.identity, limit, source))
        .collect()
}

impl Item {
    fn of(identity: &Identity, limit: &RuleLimit, source: &Source<'_>) -> Item {
        let Source { rule, origin } = source;
        let Rule { name, endpoint, methods, cost, shadow, place, .. } = rule;
        let (kind, from) = match origin {
            Origin::Rule => ("rule", place.to_string()),
            Origin::Tier { name, place } => ("tier", format!("tier {name}, {place}")),
            Origin::Override { until, reason } => {
                ("override", format!("override {}: {reason}", holds(*until)))
            }
        };
        let (until, reason) = match origin {
            Origin::Override { until, reason } => (*until, Some(reason.clone())),
            _ => (None, None),
        };
        let it = limit.limit();
        Item {
            rule: name.clone(),
            identity: identity.to_string(),
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
            until_us: until.map(|until| until.0),
            reason,
            text: it.to_string(),
            shared: false,
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
        let until = holds(self.until_us.map(Micros));
        let place =
            self.place.as_ref().map_or(String::new(), |place| format!(" ({})", Untrusted(place)));
        format!("{what} {until}: {}{place}\n", Untrusted(&self.reason))
    }
}

fn holds(until: Option<Micros>) -> String {
    until.map_or("for ever".into(), |until| format!("until {}", moment(until)))
}

/// What stands above the table.
fn in_words(report: &Report<'_>, items: &[Item]) -> String {
    let tier = report.tier.as_ref().map_or(String::new(), |t| format!(", tier {}", Untrusted(t)));
    let mut text = format!("{}{tier}\n", Untrusted(report.identity));
    if let Some(entry) = &report.blocked {
        return text + &entry.in_words("blocked");
    }
    if let Some(entry) = &report.exempt {
        text += &entry.in_words("exempt");
    }
    if let Some(rule) = &report.missing {
        let rule = Untrusted(rule);
        text +=
            &format!("refused: rule {rule} asks for an identity that the request does not have\n");
    }
    if items.is_empty() && report.exempt.is_none() && report.missing.is_none() {
        text += "no rule limits it\n";
    }
    text
}

impl Row for Item {
    fn columns() -> Vec<Column<Item>> {
        let rule = |item: &Item| {
            let shadow = if item.shadow { " (shadow)" } else { "" };
            let shared = if item.shared { " (shared by all)" } else { "" };
            format!("{}{shadow}{shared}", item.rule)
        };
        let methods = |item: &Item| match item.methods.is_empty() {
            true => "all".into(),
            false => item.methods.join(","),
        };
        vec![
            Column::new("RULE", rule),
            Column::wide("COUNTS", |item| item.identity.clone()),
            Column::new("ENDPOINT", |item| item.endpoint.clone()),
            Column::new("METHODS", methods),
            Column::new("LIMIT", |item| format!("{} {}", item.text, item.algorithm)),
            Column::new("COST", |item| item.cost.to_string()),
            Column::new("FROM", |item| item.from.clone()),
        ]
    }

    const FIELDS: &'static [&'static str] = &[
        "rule",
        "identity",
        "endpoint",
        "methods",
        "algorithm",
        "limit",
        "period_us",
        "burst",
        "cost",
        "shadow",
        "source",
        "from",
        "until_us",
        "reason",
    ];
}
