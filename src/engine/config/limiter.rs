//! A rule written inside another kind of file, where it needs neither a name nor a dimension.

use super::super::identity::{Dimension, Identity};
use super::super::limit::{Algorithm, Limit};
use super::super::policy::{Breaker, Defaults, Rule, RuleLimits};
use super::format;
use super::policy;
use super::read::{At, Shape};
use super::rule::{self, Rules};
use super::source::{Findings, Span};
use super::tree::Table;

pub(crate) const BREAKER: Shape = Shape::Table(&format::BREAKER);
pub(crate) const CONCURRENCY: Shape = Shape::Table(&format::CONCURRENCY);

/// The rule that a table makes: one limit by `limit` and its companions, or several by `limits`.
/// Its dimension is a placeholder. The table was checked against the keys of its own format.
pub(crate) fn rule<'t>(
    table: &Table<'t>,
    span: Span,
    name: &str,
    findings: &mut Findings<'t>,
) -> Option<Rule> {
    let defaults = Defaults::default();
    let limits = match (table.get("limit"), table.get("limits")) {
        (Some(_), Some(both)) => {
            findings.error(both.key_span, "`limit` and `limits` are both given", "keep one");
            return None;
        }
        (Some(_), None) => {
            rule::limit_of_checked(table, defaults.algorithm, findings).map(|l| vec![l])
        }
        (None, Some(_)) => Some(rule::limits(table.list("limits"), own_algorithm(table), findings)),
        (None, None) => {
            findings.error(span, "a limiter needs a limit", "e.g. limit = \"100/1m\"");
            None
        }
    };
    let stores = Table::default();
    let mut rules = Rules { defaults: &defaults, tiers: &[], stores: &stores, findings };
    let dimension = Some(Dimension::Global);
    rules.rule_of(table, span, Some(name), dimension, limits.map(RuleLimits::Own))
}

fn own_algorithm(table: &Table<'_>) -> Algorithm {
    let named = table.text("algorithm").and_then(|name| name.it.parse().ok());
    named.unwrap_or(Defaults::default().algorithm)
}

/// A limit by itself, as in `override = "500/1m"`.
pub(crate) fn limit_of_text(
    text: At<&str>,
    algorithm: Algorithm,
    findings: &mut Findings<'_>,
) -> Option<Limit> {
    let limit = text.it.parse().and_then(|quota| Limit::new(algorithm, quota));
    limit.map_err(|error| rule::report_limit_error(text.span, &error, findings)).ok()
}

pub(crate) fn breaker(table: &Table<'_>) -> Breaker {
    policy::breaker(table)
}

pub(crate) fn identity(text: At<&str>, findings: &mut Findings<'_>) -> Option<Identity> {
    policy::identity_of(text, findings)
}
