//! `rlctl rules diff`: what another rules file would change, in words: who gets more, who less.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::Serialize;

use super::{Context, Exit, Failure, Output, policy, print_json};
use crate::engine::limit::Limit;
use crate::engine::policy::{LimitSpec, Listed, Policy, Rule, RuleLimits};
use crate::output::{SCHEMA, Untrusted};

/// Compare two rules files: who gets more, who less
///
/// Exit 0 when they mean the same, 8 when they differ.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rlctl rules diff rules.toml new-rules.toml
  rlctl rules diff rules.toml new-rules.toml -o json")]
pub(super) struct Args {
    /// The rules as they are
    #[arg(value_name = "A")]
    before: String,
    /// The rules as they would be
    #[arg(value_name = "B")]
    after: String,
}

#[derive(Serialize)]
struct Report {
    schema: &'static str,
    differs: bool,
    items: Vec<Item>,
}

/// One difference.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Item {
    /// A rule, a tier, or a part of the file.
    subject: String,
    /// What of it.
    what: String,
    before: Option<String>,
    after: Option<String>,
    /// For whom it is about: `more`, `less`, or `other`.
    effect: &'static str,
}

pub(super) async fn run(args: Args, context: &Context) -> Result<Exit, Failure> {
    let items = differences(&policy::of_file(&args.before)?, &policy::of_file(&args.after)?);
    let differs = !items.is_empty();
    match context.output {
        Output::Json => print_json(&Report { schema: SCHEMA, differs, items })?,
        Output::Table => io::stdout().lock().write_all(in_words(&items).as_bytes())?,
    }
    Ok(if differs { Exit::AnswerIsNo } else { Exit::Fine })
}

fn in_words(items: &[Item]) -> String {
    if items.is_empty() {
        return "no difference\n".into();
    }
    let line = |Item { subject, what, before, after, effect }: &Item| {
        let change = match (before, after) {
            (Some(before), Some(after)) => format!("{before} -> {after}"),
            (None, Some(after)) => format!("new: {after}"),
            (Some(before), None) => format!("gone: {before}"),
            (None, None) => String::new(),
        };
        let effect = if *effect == "other" { String::new() } else { format!("  ({effect})") };
        format!("{}  {what}  {}{effect}\n", Untrusted(subject), Untrusted(&change))
    };
    items.iter().map(line).collect()
}

fn differences(before: &Policy, after: &Policy) -> Vec<Item> {
    let mut items = Vec::new();
    compare(&mut items, "policy", &settings(before), &settings(after));
    let tiers =
        |policy: &Policy| policy.tiers.iter().map(|t| (t.name.clone(), t.limits.clone())).collect();
    let (old, new): (BTreeMap<_, _>, BTreeMap<_, _>) = (tiers(before), tiers(after));
    for name in old.keys().chain(new.keys().filter(|name| !old.contains_key(*name))) {
        compare_limits(&mut items, &format!("tier {name}"), old.get(name), new.get(name));
    }
    let names = before.rules.iter().map(|rule| &rule.name);
    let added =
        after.rules.iter().map(|rule| &rule.name).filter(|name| before.rule(name).is_none());
    for name in names.chain(added) {
        let subject = format!("rule {name}");
        let (old, new) = (before.rule(name), after.rule(name));
        let scope = |rule: Option<&Rule>| rule.map(scope).unwrap_or_default();
        compare(&mut items, &subject, &scope(old), &scope(new));
        compare_limits(&mut items, &subject, old.and_then(own_limits), new.and_then(own_limits));
    }
    compare(&mut items, "blocked", &listed(&before.block), &listed(&after.block));
    compare(&mut items, "exempt", &listed(&before.exempt), &listed(&after.exempt));
    let assigned = |policy: &Policy| {
        policy.assign.iter().map(|(who, tier)| (who.to_string(), tier.clone())).collect()
    };
    compare(&mut items, "tier of", &assigned(before), &assigned(after));
    items
}

/// Attributes by name, so that each difference is told by itself.
type Attributes = BTreeMap<String, String>;

fn compare(items: &mut Vec<Item>, subject: &str, before: &Attributes, after: &Attributes) {
    for what in before.keys().chain(after.keys().filter(|key| !before.contains_key(*key))) {
        let (old, new) = (before.get(what), after.get(what));
        if old != new {
            items.push(Item {
                subject: subject.into(),
                what: what.clone(),
                before: old.cloned(),
                after: new.cloned(),
                effect: "other",
            });
        }
    }
}

fn compare_limits(
    items: &mut Vec<Item>,
    subject: &str,
    before: Option<&Vec<LimitSpec>>,
    after: Option<&Vec<LimitSpec>>,
) {
    let at = |list: Option<&Vec<LimitSpec>>, n: usize| {
        list.and_then(|list| list.get(n)).map(|spec| spec.limit)
    };
    let count = [before, after].into_iter().flatten().map(Vec::len).max().unwrap_or(0);
    for n in 0..count {
        let (old, new) = (at(before, n), at(after, n));
        if old != new {
            let text = |limit: Limit| format!("{limit} {}", limit.algorithm());
            items.push(Item {
                subject: subject.into(),
                what: if count == 1 { "limit".into() } else { format!("limit {}", n + 1) },
                before: old.map(text),
                after: new.map(text),
                effect: effect(old.as_ref(), new.as_ref()),
            });
        }
    }
}

/// More when neither rate nor capacity falls, less when neither rises; a new limit takes, one that
/// is gone gives.
fn effect(old: Option<&Limit>, new: Option<&Limit>) -> &'static str {
    let (Some(old), Some(new)) = (old, new) else {
        return if new.is_some() { "less" } else { "more" };
    };
    let rate =
        |limit: &Limit, other: &Limit| u128::from(limit.requests()) * u128::from(other.period().0);
    let rates = rate(new, old).cmp(&rate(old, new));
    let capacities = new.capacity().cmp(&old.capacity());
    match (rates, capacities) {
        (std::cmp::Ordering::Equal, std::cmp::Ordering::Equal) => "other",
        (r, c) if r.is_ge() && c.is_ge() => "more",
        (r, c) if r.is_le() && c.is_le() => "less",
        _ => "other",
    }
}

fn own_limits(rule: &Rule) -> Option<&Vec<LimitSpec>> {
    match &rule.limits {
        RuleLimits::Own(limits) => Some(limits),
        RuleLimits::OfTier => None,
    }
}

/// Who and what a rule is for, and how it behaves.
fn scope(rule: &Rule) -> Attributes {
    let list =
        |items: Vec<String>| if items.is_empty() { "all".to_string() } else { items.join(",") };
    let texts = |items: &[String]| list(items.to_vec());
    let limits = if matches!(rule.limits, RuleLimits::OfTier) { "of the tier" } else { "its own" };
    [
        ("dimension", rule.dimension.to_string()),
        ("endpoint", rule.endpoint.to_string()),
        ("methods", texts(&rule.methods)),
        ("tiers", texts(&rule.tiers)),
        ("match", list(rule.matches.iter().map(ToString::to_string).collect())),
        ("unless", rule.unless.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")),
        ("limits", limits.into()),
        ("cost", rule.cost.get().to_string()),
        ("on_store_error", format!("{:?}", rule.on_store_error).to_lowercase()),
        ("on_change", format!("{:?}", rule.on_change).to_lowercase()),
        ("shadow", rule.shadow.to_string()),
        ("enabled", rule.enabled.to_string()),
        ("also", rule.also.to_string()),
        ("missing", if rule.reject_missing { "reject".into() } else { "allow".to_string() }),
    ]
    .into_iter()
    .map(|(name, text)| (name.to_string(), text))
    .collect()
}

fn settings(policy: &Policy) -> Attributes {
    let Policy { default_tier, defaults, identity, .. } = policy;
    [
        ("default_tier", default_tier.clone().unwrap_or_else(|| "none".into())),
        ("deadline", defaults.deadline.to_string()),
        ("breaker", format!("{:?}", defaults.breaker)),
        ("idempotency_ttl", defaults.idempotency_ttl.to_string()),
        ("identity", format!("{identity:?}")),
    ]
    .into_iter()
    .map(|(name, text)| (name.to_string(), text))
    .collect()
}

fn listed(list: &[Listed]) -> Attributes {
    let mut all = Attributes::new();
    for entry in list {
        let until = entry.until.map_or("for ever".into(), |until| format!("until {}us", until.0));
        for pattern in &entry.matches {
            all.insert(pattern.to_string(), format!("{until}, {}", entry.reason));
        }
    }
    all
}
