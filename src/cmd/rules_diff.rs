//! `rlctl rules diff`: what another rules file would change, in words: who gets more, who less.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use serde::Serialize;

use super::rules_attributes::{
    Attributes, in_a_row, limit_in_words, listed, rule_in_words, scope, settings,
};
use super::rules_diff_log::{OnLog, on_log};
use super::simulate_policy::LogArgs;
use super::{Context, Exit, Failure, print, rules_file};
use crate::engine::limit::Limit;
use crate::engine::policy::{Endpoint, LimitSpec, Policy, Rule, RuleLimits};
use crate::output::{Column, Format, List, Row, Untrusted};

/// Compare two policies: who gets more, who less
///
/// Each is a rules file, `-` for stdin, `store` for what is published, or `store:7` for a version
/// that is kept. With --log both decide on the same requests: who would newly be denied, how often,
/// and by which rule; -o csv and -o ndjson then have a line for each client that is decided about
/// otherwise. Exit 0 when they mean the same, 8 when they differ.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rlctl rules diff rules.toml new-rules.toml
  rlctl rules diff store rules.toml             what publishing it would change
  rlctl rules diff store:7 store                what has changed since version 7
  rlctl rules diff rules.toml new-rules.toml --log access.log
  rlctl rules diff rules.toml new-rules.toml -o json")]
pub(super) struct Args {
    /// The rules as they are
    #[arg(value_name = "A")]
    before: String,
    /// The rules as they would be
    #[arg(value_name = "B")]
    after: String,
    #[command(flatten)]
    log: LogArgs,
}

#[derive(Serialize)]
struct Head<'a> {
    differs: bool,
    /// What it means for the requests of a log; null without one.
    log: Option<&'a OnLog>,
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

impl Row for Item {
    /// People get sentences instead.
    fn columns() -> Vec<Column<Item>> {
        Vec::new()
    }

    const FIELDS: &'static [&'static str] = &["subject", "what", "before", "after", "effect"];
}

pub(super) async fn run(args: Args, context: &Context) -> Result<Exit, Failure> {
    let (before, _) = rules_file::load(&args.before, context).await?;
    let (after, _) = rules_file::load(&args.after, context).await?;
    let items = differences(&before, &after);
    let differs = !items.is_empty();
    let met = match &args.log.log {
        Some(path) => Some(on_log(&args.log, path, before, after, context).await?),
        None => None,
    };
    let exit = if differs { Exit::AnswerIsNo } else { Exit::Fine };
    match (context.look.format, &met) {
        (format, _) if format.is_for_people() => {
            let met = met.as_ref().map_or(String::new(), OnLog::in_words);
            print(&(in_words(&items) + &met))?;
        }
        // A line for each result: with a log these are the clients.
        (Format::Csv | Format::Ndjson, Some(met)) => {
            context.print_list(&List::new(met.clients_affected()), "")?;
        }
        (_, met) => {
            context
                .print_list(&List::new(&items).head(&Head { differs, log: met.as_ref() }), "")?;
        }
    }
    met.map_or(Ok(exit), |met| met.exit(exit))
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

/// What a difference means for those it is about.
type Effect = &'static str;
const MORE: Effect = "more";
const LESS: Effect = "less";
const OTHER: Effect = "other";

fn differences(before: &Policy, after: &Policy) -> Vec<Item> {
    let mut items = Vec::new();
    compare(&mut items, "policy", &settings(before), &settings(after), |what, _, _| match what {
        "default_tier" => {
            let (old, new) = (before.default_tier.as_deref(), after.default_tier.as_deref());
            effect_of_tiers(tier_limits(before, old), tier_limits(after, new))
        }
        _ => OTHER,
    });
    compare_tiers(&mut items, before, after);
    compare_rules(&mut items, before, after);
    compare_order(&mut items, before, after);
    let blocks = (listed(&before.block), listed(&after.block));
    compare(&mut items, "blocked", &blocks.0, &blocks.1, |_, old, new| taken_or_given(new, old));
    let exempt = (listed(&before.exempt), listed(&after.exempt));
    compare(&mut items, "exempt", &exempt.0, &exempt.1, |_, old, new| taken_or_given(old, new));
    compare_assignments(&mut items, before, after);
    items
}

/// What is bad for somebody when it comes, and good when it goes; both: neither.
fn taken_or_given(good: Option<&String>, bad: Option<&String>) -> Effect {
    match (good, bad) {
        (None, Some(_)) => MORE,
        (Some(_), None) => LESS,
        _ => OTHER,
    }
}

fn compare(
    items: &mut Vec<Item>,
    subject: &str,
    before: &Attributes,
    after: &Attributes,
    effect: impl Fn(&str, Option<&String>, Option<&String>) -> Effect,
) {
    for what in before.keys().chain(after.keys().filter(|key| !before.contains_key(*key))) {
        let (old, new) = (before.get(what), after.get(what));
        if old != new {
            items.push(Item {
                subject: subject.into(),
                what: what.clone(),
                before: old.cloned(),
                after: new.cloned(),
                effect: effect(what, old, new),
            });
        }
    }
}

fn compare_tiers(items: &mut Vec<Item>, before: &Policy, after: &Policy) {
    let names = before.tiers.iter().map(|tier| &tier.name);
    let added =
        after.tiers.iter().map(|tier| &tier.name).filter(|name| before.tier(name).is_none());
    for name in names.chain(added) {
        let subject = format!("tier {name}");
        let limits = |policy: &Policy| policy.tier(name).map(|tier| tier.limits.clone());
        match (limits(before), limits(after)) {
            (Some(old), Some(new)) => compare_limits(items, &subject, &old, &new, true),
            // Whom it is for is told where they are assigned.
            (old, new) => items.push(Item {
                subject,
                what: "limits".into(),
                before: old.map(|limits| in_a_row(&limits)),
                after: new.map(|limits| in_a_row(&limits)),
                effect: OTHER,
            }),
        }
    }
}

fn compare_rules(items: &mut Vec<Item>, before: &Policy, after: &Policy) {
    let names = before.rules.iter().map(|rule| &rule.name);
    let added =
        after.rules.iter().map(|rule| &rule.name).filter(|name| before.rule(name).is_none());
    for name in names.chain(added) {
        let subject = format!("rule {name}");
        match (before.rule(name), after.rule(name)) {
            (Some(old), Some(new)) => compare_rule(items, &subject, old, new),
            (old, new) => {
                let enforced = old.or(new).is_some_and(is_enforced);
                let effect = if new.is_some() { LESS } else { MORE };
                items.push(Item {
                    subject,
                    what: "rule".into(),
                    before: old.map(rule_in_words),
                    after: new.map(rule_in_words),
                    effect: if enforced { effect } else { OTHER },
                });
            }
        }
    }
}

fn compare_rule(items: &mut Vec<Item>, subject: &str, old: &Rule, new: &Rule) {
    let enforced = is_enforced(old) && is_enforced(new);
    compare(items, subject, &scope(old), &scope(new), |what, _, _| match what {
        "shadow" | "enabled" => match (is_enforced(old), is_enforced(new)) {
            (true, false) => MORE,
            (false, true) => LESS,
            _ => OTHER,
        },
        "cost" if enforced => {
            if new.cost > old.cost {
                LESS
            } else {
                MORE
            }
        }
        "concurrency" if enforced => {
            let max = |rule: &Rule| rule.at_once.map_or(u32::MAX, |at_once| at_once.max);
            match max(new).cmp(&max(old)) {
                Ordering::Less => LESS,
                Ordering::Greater => MORE,
                Ordering::Equal => OTHER,
            }
        }
        "missing" if enforced => {
            if new.reject_missing {
                LESS
            } else {
                MORE
            }
        }
        _ => OTHER,
    });
    if let (RuleLimits::Own(old), RuleLimits::Own(new)) = (&old.limits, &new.limits) {
        compare_limits(items, subject, old, new, enforced);
    }
}

fn is_enforced(rule: &Rule) -> bool {
    rule.enabled && !rule.shadow
}

fn compare_limits(
    items: &mut Vec<Item>,
    subject: &str,
    before: &[LimitSpec],
    after: &[LimitSpec],
    enforced: bool,
) {
    let count = before.len().max(after.len());
    for n in 0..count {
        let (old, new) = (before.get(n), after.get(n));
        if old != new {
            let what = if count == 1 { "limit".into() } else { format!("limit {}", n + 1) };
            let effect = effect(old.map(|s| &s.limit), new.map(|s| &s.limit));
            items.push(Item {
                subject: subject.into(),
                what,
                before: old.map(limit_in_words),
                after: new.map(limit_in_words),
                effect: if enforced { effect } else { OTHER },
            });
        }
    }
}

/// More when neither rate nor capacity falls, less when neither rises; a new limit takes, one that
/// is gone gives.
fn effect(old: Option<&Limit>, new: Option<&Limit>) -> Effect {
    let (Some(old), Some(new)) = (old, new) else {
        return if new.is_some() { LESS } else { MORE };
    };
    let rate =
        |limit: &Limit, other: &Limit| u128::from(limit.requests()) * u128::from(other.period().0);
    let rates = rate(new, old).cmp(&rate(old, new));
    let capacities = new.capacity().cmp(&old.capacity());
    match (rates, capacities) {
        (std::cmp::Ordering::Equal, std::cmp::Ordering::Equal) => OTHER,
        (r, c) if r.is_ge() && c.is_ge() => MORE,
        (r, c) if r.is_le() && c.is_le() => LESS,
        _ => OTHER,
    }
}

/// The same for whoever comes from one tier into another; a tier without limits is unlimited.
fn effect_of_tiers(old: Option<&[LimitSpec]>, new: Option<&[LimitSpec]>) -> Effect {
    let (Some(old), Some(new)) = (old, new) else { return OTHER };
    let pairs = (0..old.len().max(new.len())).map(|n| (old.get(n), new.get(n)));
    let effects: Vec<Effect> = pairs
        .filter(|(old, new)| old != new)
        .map(|(old, new)| effect(old.map(|s| &s.limit), new.map(|s| &s.limit)))
        .collect();
    match effects.first() {
        Some(first) if effects.iter().all(|effect| effect == first) => first,
        _ => OTHER,
    }
}

fn tier_limits<'a>(policy: &'a Policy, tier: Option<&str>) -> Option<&'a [LimitSpec]> {
    tier.and_then(|name| policy.tier(name)).map(|tier| tier.limits.as_slice())
}

fn compare_assignments(items: &mut Vec<Item>, before: &Policy, after: &Policy) {
    let assigned = |policy: &Policy| {
        policy.assign.iter().map(|(who, tier)| (who.to_string(), tier.clone())).collect()
    };
    let (old, new): (Attributes, Attributes) = (assigned(before), assigned(after));
    compare(items, "tier of", &old, &new, |_, old, new| {
        let old = old.or(before.default_tier.as_ref()).map(String::as_str);
        let new = new.or(after.default_tier.as_ref()).map(String::as_str);
        effect_of_tiers(tier_limits(before, old), tier_limits(after, new))
    });
}

/// Rules that are equally specific: the first of them in the file wins.
type Rivals<'a> = BTreeMap<(String, String, bool, bool), Vec<&'a str>>;

fn compare_order(items: &mut Vec<Item>, before: &Policy, after: &Policy) {
    let (old, new) = (rivals(before, after), rivals(after, before));
    for (kind, old) in &old {
        // In another kind they differ by more than their order, which is told already.
        let Some(new) = new.get(kind).filter(|new| *new != old) else { continue };
        let mut sorted = (old.clone(), new.clone());
        sorted.0.sort_unstable();
        sorted.1.sort_unstable();
        if sorted.0 == sorted.1 {
            items.push(Item {
                subject: "policy".into(),
                what: "first to win".into(),
                before: Some(old.join(", ")),
                after: Some(new.join(", ")),
                effect: OTHER,
            });
        }
    }
}

/// The rules of one policy that the other has too.
fn rivals<'a>(policy: &'a Policy, other: &Policy) -> Rivals<'a> {
    let mut all = Rivals::new();
    for rule in &policy.rules {
        if !is_enforced(rule) || rule.also || other.rule(&rule.name).is_none() {
            continue;
        }
        let endpoint = match &rule.endpoint {
            Endpoint::Segments(segments) => {
                format!("{} wildcards", segments.iter().filter(|s| s.is_none()).count())
            }
            endpoint => endpoint.to_string(),
        };
        let (dimension, methods, tiers) =
            (rule.dimension.to_string(), rule.methods.is_empty(), rule.tiers.is_empty());
        all.entry((dimension, endpoint, methods, tiers)).or_default().push(&rule.name);
    }
    all
}
