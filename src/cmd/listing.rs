//! `rlctl block --list` and `rlctl exempt --list`: who is blocked or exempt now, by whom and why.

use serde::Serialize;

use super::{Context, Exit, Failure, rules_file};
use crate::engine::clock::Micros;
use crate::engine::policy::{self, Policy};
use crate::engine::registry::{Listed, Registry, Terms};
use crate::output::{Column, List as Printed, Row, moment};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum List {
    Blocks,
    Exemptions,
}

#[derive(Serialize)]
struct Item {
    /// The identity, network or pattern.
    who: String,
    until_us: Option<u64>,
    reason: String,
    /// Who put it there, and when; null where it stands in the rules.
    by: Option<String>,
    at_us: Option<u64>,
    /// Where it stands in the rules; null for the store.
    place: Option<String>,
    /// All dimensions of a request, and not only its own.
    whole_request: bool,
}

pub(super) async fn list(list: List, context: &Context) -> Result<Exit, Failure> {
    let mut items = Vec::new();
    let registry = match (&context.redis, &context.rules) {
        (None, Some(_)) => {
            context.note("without --redis only what the rules say is listed");
            None
        }
        _ => Some(context.registry().await?),
    };
    if let Some(registry) = &registry {
        items.extend(kept(list, registry).await?);
    }
    if let Some(policy) = rules_in_use(registry.as_ref(), context).await? {
        items.extend(written(list, &policy, Micros::now()));
    }
    items.sort_by(|a, b| (&a.who, &a.place).cmp(&(&b.who, &b.place)));
    let nobody = match list {
        List::Blocks => "nobody is blocked",
        List::Exemptions => "nobody is exempt",
    };
    context.print_list(&Printed::new(&items), nobody)?;
    Ok(Exit::Fine)
}

/// What is kept in the store and has not ended.
async fn kept(list: List, registry: &Registry) -> Result<Vec<Item>, Failure> {
    let now = registry.now().await?;
    let lists = registry.lists().await?.at(now);
    let patterns = match list {
        List::Blocks => lists.block,
        List::Exemptions => lists.exempt,
    };
    let of_pattern = |listed: Listed| Item::kept(listed.pattern.to_string(), listed.terms);
    let mut items: Vec<Item> = patterns.into_iter().map(of_pattern).collect();
    registry
        .subjects(|identity, subject| {
            let subject = subject.at(now);
            let terms = match list {
                List::Blocks => subject.block,
                List::Exemptions => subject.exempt,
            };
            items.extend(terms.map(|terms| Item::kept(identity.to_string(), terms)));
        })
        .await?;
    Ok(items)
}

/// The policy of `--rules`, if there is one: that none is published is no failure here.
async fn rules_in_use(
    registry: Option<&Registry>,
    context: &Context,
) -> Result<Option<Policy>, Failure> {
    let Some(named) = &context.rules else { return Ok(None) };
    if let (Some(None), Some(registry)) = (rules_file::in_store(named), registry) {
        let Some(published) = registry.current().await? else { return Ok(None) };
        return Ok(Some(rules_file::usable(rules_file::parsed(&published))?.0));
    }
    Ok(Some(rules_file::load(named, context).await?.0))
}

/// What stands in the rules and has not ended.
fn written(list: List, policy: &Policy, now: Micros) -> Vec<Item> {
    let entries = match list {
        List::Blocks => &policy.block,
        List::Exemptions => &policy.exempt,
    };
    let holds = |entry: &&policy::Listed| entry.until.is_none_or(|until| now < until);
    let of_entry = |entry: &policy::Listed| {
        let item = |who: String| Item {
            who,
            until_us: entry.until.map(|until| until.0),
            reason: entry.reason.clone(),
            by: None,
            at_us: None,
            place: Some(entry.place.to_string()),
            whole_request: entry.whole_request,
        };
        entry.matches.iter().map(|pattern| item(pattern.to_string())).collect::<Vec<_>>()
    };
    entries.iter().filter(holds).flat_map(of_entry).collect()
}

impl Item {
    fn kept(who: String, terms: Terms) -> Item {
        Item {
            who,
            until_us: terms.until.map(|until| until.0),
            reason: terms.reason,
            by: Some(terms.by),
            at_us: Some(terms.at.0),
            place: None,
            whole_request: false,
        }
    }
}

impl Row for Item {
    fn columns() -> Vec<Column<Item>> {
        let until = |item: &Item| item.until_us.map_or("for ever".into(), |at| moment(Micros(at)));
        let by = |item: &Item| item.by.clone().or(item.place.clone()).unwrap_or_default();
        let at = |item: &Item| item.at_us.map_or("-".into(), |at| moment(Micros(at)));
        let scope = |item: &Item| if item.whole_request { "request" } else { "dimension" }.into();
        vec![
            Column::new("WHO", |item: &Item| item.who.clone()),
            Column::new("UNTIL", until),
            Column::new("BY", by),
            Column::wide("SINCE", at),
            Column::wide("OF", scope),
            Column::new("REASON", |item| item.reason.clone()),
        ]
    }

    const FIELDS: &'static [&'static str] =
        &["who", "until_us", "reason", "by", "at_us", "place", "whole_request"];
}
