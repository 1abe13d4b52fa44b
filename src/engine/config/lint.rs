//! What is valid and hardly meant: rules that never win, limits that never decide, tiers that
//! nobody has, requests that nobody limits.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use super::super::clock::Micros;
use super::super::identity::{Dimension, Pattern};
use super::super::limit::{Algorithm, Limit};
use super::super::policy::{Endpoint, LimitSpec, Listed, Policy, Rule, RuleLimits, Tier};
use super::policy::Spans;
use super::source::{Findings, Span};

pub(super) fn lint(policy: &Policy, spans: &Spans, now: Micros, findings: &mut Findings<'_>) {
    let rules = || policy.rules.iter().zip(spans.rules.iter().copied());
    if policy.rules.is_empty() {
        let hint = "add a [[rule]] with name, dimension and limits";
        findings.warn(Span::default(), "there are no rules: nothing is limited", hint);
    } else {
        warn_of_anonymous(policy, spans.rules[0], findings);
    }
    warn_of_unreachable(rules(), findings);
    for (rule, span) in rules() {
        warn_of_idle_keys(rule, span, findings);
        match &rule.limits {
            RuleLimits::Own(limits) => warn_of_cost(rule, limits, span, findings),
            RuleLimits::OfTier => warn_of_tiers_without_limits(rule, policy, span, findings),
        }
    }
    for (tier, span) in policy.tiers.iter().zip(spans.tiers.iter().copied()) {
        warn_of_unused(tier, policy, span, findings);
    }
    for (store, span) in policy.stores.iter().zip(spans.stores.iter().copied()) {
        if !policy.rules.iter().any(|rule| rule.store.as_ref() == Some(&store.name)) {
            let message = format!("no rule uses the store `{}`", store.name);
            findings.warn(span, message, "give a rule store = \"…\", or remove it");
        }
    }
    warn_of_ended("block", &policy.block, &spans.block, now, findings);
    warn_of_ended("exemption", &policy.exempt, &spans.exempt, now, findings);
}

fn is_enforced(rule: &Rule) -> bool {
    rule.enabled && !rule.shadow
}

/// Whether every request meets the rule, whoever sends it.
fn covers_everybody(rule: &Rule) -> bool {
    is_enforced(rule)
        && matches!(rule.dimension, Dimension::Ip | Dimension::Global)
        && rule.endpoint == Endpoint::Any
        && rule.methods.is_empty()
        && rule.tiers.is_empty()
        && rule.matches.is_empty()
}

fn warn_of_anonymous(policy: &Policy, span: Span, findings: &mut Findings<'_>) {
    let enforced = || policy.rules.iter().filter(|rule| is_enforced(rule));
    if enforced().any(|rule| covers_everybody(rule) || rule.reject_missing) {
        return;
    }
    let mut named: Vec<String> = enforced()
        .map(|rule| rule.dimension.to_string())
        .filter(|name| name != "ip" && name != "global")
        .collect();
    named.sort();
    named.dedup();
    let message = match named.as_slice() {
        [] => "a request outside the rules' endpoints is not limited".into(),
        named => format!("a request without {} is not limited", named.join(" or ")),
    };
    let hint = "add a rule with dimension = \"ip\" or \"global\" for every endpoint, \
                or missing = \"reject\"";
    findings.warn(span, message, hint);
}

/// What decides, besides the request, whether a rule competes.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Claim<'p> {
    dimension: &'p Dimension,
    endpoint: &'p Endpoint,
    methods: Vec<&'p str>,
    tiers: Vec<&'p str>,
    matches: &'p [Pattern],
    unless: &'p [Dimension],
}

impl<'p> Claim<'p> {
    fn of(rule: &'p Rule) -> Claim<'p> {
        let sorted = |list: &'p [String]| {
            let mut sorted: Vec<&str> = list.iter().map(String::as_str).collect();
            sorted.sort_unstable();
            sorted
        };
        Claim {
            dimension: &rule.dimension,
            endpoint: &rule.endpoint,
            methods: sorted(&rule.methods),
            tiers: sorted(&rule.tiers),
            matches: &rule.matches,
            unless: &rule.unless,
        }
    }

    /// The same for every identity.
    fn of_everybody(&self) -> Claim<'p> {
        Claim { matches: &[], unless: &[], ..self.clone() }
    }
}

/// Among equally specific rules the first in the file wins, so a later one with the same claim, or
/// with one that an earlier makes for everybody, never applies.
fn warn_of_unreachable<'p>(
    rules: impl Iterator<Item = (&'p Rule, Span)>,
    findings: &mut Findings<'_>,
) {
    let mut first: HashMap<Claim<'p>, &'p str, RandomState> = HashMap::default();
    for (rule, span) in rules.filter(|(rule, _)| is_enforced(rule) && !rule.also) {
        let claim = Claim::of(rule);
        let narrowed = !rule.matches.is_empty() || !rule.unless.is_empty();
        let of_everybody = narrowed.then(|| first.get(&claim.of_everybody())).flatten();
        if let Some(earlier) = first.get(&claim).or(of_everybody) {
            let message = format!("rule `{}` never applies: `{earlier}` always wins", rule.name);
            let hint = format!("put it before `{earlier}`, or add also = true to apply both");
            findings.warn(span, message, hint);
        } else {
            first.insert(claim, &rule.name);
        }
    }
}

fn warn_of_idle_keys(rule: &Rule, span: Span, findings: &mut Findings<'_>) {
    let name = &rule.name;
    if rule.unless.contains(&rule.dimension) {
        let message = format!("rule `{name}` never applies: its `unless` is its own dimension");
        findings.warn(span, message, "name other dimensions there");
    }
    if rule.shadow && rule.also {
        let message = format!("`also` does nothing in the shadow rule `{name}`");
        findings.warn(span, message, "shadow rules never compete; remove one of the two");
    }
    if rule.shadow && rule.replicas.is_some() {
        let message = format!("`replicas` does nothing in the shadow rule `{name}`");
        findings.warn(span, message, "nobody waits for a shadow; remove one of the two");
    }
    if rule.shadow && rule.reject_missing {
        let message = format!("`missing` does nothing in the shadow rule `{name}`");
        findings.warn(span, message, "shadow rules never reject; remove one of the two");
    }
}

fn warn_of_cost(rule: &Rule, limits: &[LimitSpec], span: Span, findings: &mut Findings<'_>) {
    let least = limits.iter().map(|spec| &spec.limit).filter(|limit| limit.requests() > 0);
    let Some(limit) = least.min_by_key(|limit| limit.capacity()) else { return };
    if let Some(parts) = rule.split.map(u64::from)
        && parts > limit.capacity().min(limit.requests())
    {
        let message = format!("{limit} is too small for {parts} parts");
        findings.warn(span, message, "there are as many as it has requests; lower `split`");
    } else if let Some(parts) = rule.split.map(u64::from)
        && rule.cost.get() > limit.capacity() / parts
        && rule.cost.get() <= limit.capacity()
    {
        let (cost, most) = (rule.cost.get(), limit.capacity() / parts);
        let message = format!("no request passes: it costs {cost}, and a part has room for {most}");
        findings.warn(span, message, "lower `split` or the cost, or raise the limit or its burst");
    }
    if rule.cost.get() > limit.capacity() {
        let (cost, most) = (rule.cost.get(), limit.capacity());
        let message =
            format!("no request passes: it costs {cost}, and {limit} has room for {most}");
        findings.warn(span, message, "lower the cost, or raise the limit or its burst");
    }
}

/// Whether `one` never rejects what `other` lets through: what `other` admits in any time `t` is at
/// most `at_once + rate·t`, and `one` has room for that.
fn is_pointless_beside(one: &Limit, other: &Limit) -> bool {
    let wide = u128::from;
    // At the turn of a window its counters admit up to twice their limit.
    let turns = match other.algorithm() {
        Algorithm::FixedWindow | Algorithm::SlidingWindow => 2,
        _ => 1,
    };
    let at_once = turns * wide(other.capacity());
    let (rate, period) = (wide(other.requests()), wide(other.period().0));
    match one.algorithm() {
        algorithm if algorithm.is_bucket() => {
            at_once <= wide(one.capacity())
                && rate * wide(one.period().0) <= wide(one.requests()) * period
        }
        algorithm => {
            // The counter still feels the window before.
            let windows = if algorithm == Algorithm::SlidingWindow { 2 } else { 1 };
            let in_window = rate * wide(one.period().0) * windows;
            (at_once * period + in_window) <= wide(one.requests()) * period
        }
    }
}

/// Among the limits of one rule or tier; `spans` are where they stand.
pub(super) fn warn_of_pointless(limits: &[LimitSpec], spans: &[Span], findings: &mut Findings<'_>) {
    for (n, (LimitSpec { limit: one, .. }, span)) in limits.iter().zip(spans).enumerate() {
        let others = limits.iter().map(|spec| &spec.limit).enumerate().filter(|(m, _)| *m != n);
        let mut before = others.filter(|(m, other)| {
            // Of two that are equal the first is kept.
            is_pointless_beside(one, other) && (n > *m || !is_pointless_beside(other, one))
        });
        if let Some((_, other)) = before.next() {
            let message =
                format!("the limit {one} never decides: {other} always rejects before it");
            findings.warn(*span, message, "remove one of them; is a number or a period mistyped?");
        }
    }
}

fn warn_of_tiers_without_limits(
    rule: &Rule,
    policy: &Policy,
    span: Span,
    findings: &mut Findings<'_>,
) {
    let has_limits = |name: &String| policy.tier(name).is_some_and(|tier| !tier.limits.is_empty());
    if !rule.tiers.is_empty() && !rule.tiers.iter().any(has_limits) {
        let message = format!("rule `{}` limits nobody: none of its tiers has limits", rule.name);
        findings.warn(span, message, "give a tier limits, or the rule limits of its own");
    }
}

/// A tier counts as used when a rule asks for it: who is in it may be known to the store only.
fn warn_of_unused(tier: &Tier, policy: &Policy, span: Span, findings: &mut Findings<'_>) {
    let asks = |rule: &Rule| {
        let listed = rule.tiers.contains(&tier.name);
        listed || rule.tiers.is_empty() && rule.limits == RuleLimits::OfTier
    };
    if !policy.rules.iter().any(asks) {
        let message = format!("no rule uses the tier `{}`", tier.name);
        findings.warn(span, message, "add a rule with limits = \"tier\"");
    }
}

fn warn_of_ended(
    what: &str,
    entries: &[Listed],
    spans: &[Span],
    now: Micros,
    findings: &mut Findings<'_>,
) {
    for (entry, span) in entries.iter().zip(spans) {
        if entry.until.is_some_and(|until| until <= now) {
            findings.warn(
                *span,
                format!("this {what} has ended"),
                "remove it, or give it more time",
            );
        }
    }
}
