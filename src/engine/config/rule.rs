//! The rules of a rules file, and their limits.

use std::collections::HashMap;

use super::super::clock::Micros;
use super::super::concurrency::{AtOnce, DEFAULT_WAIT};
use super::super::durability::{DEFAULT_TIMEOUT, OnShort, Replicas};
use super::super::hot;
use super::super::identity::{Dimension, Pattern};
use super::super::limit::{Algorithm, Cost, Limit, LimitError, Quota};
use super::super::policy::{Defaults, Endpoint, LimitSpec, OnChange, Rule, RuleLimits, Tier};
use super::super::store::DEFAULT_MAX_DELAY;
use super::super::units::UnitError;
use super::endpoint::parse_endpoint;
use super::policy::{algorithm, check_tier, on_store_error, patterns};
use super::read::{At, check_table, did_you_mean, found};
use super::source::{Findings, Span};
use super::tree::{Node, Table, Value};
use super::{format, lint};

const MAX_RULES: usize = 20_000;
/// Far more than anybody means; a bucket's place in the list is one byte.
const MAX_LIMITS: usize = 100;
/// Each pair of numbers has a connection of its own to every server.
const MAX_WAITS: usize = 16;

/// Reads rules against what the file says before them.
pub(super) struct Rules<'r, 't> {
    pub(super) defaults: &'r Defaults,
    pub(super) tiers: &'r [Tier],
    pub(super) stores: &'r Table<'t>,
    pub(super) findings: &'r mut Findings<'t>,
}

impl<'t> Rules<'_, 't> {
    pub(super) fn read(mut self, nodes: &[Node<'t>]) -> (Vec<Rule>, Vec<Span>) {
        let (mut rules, mut spans) = (Vec::new(), Vec::new());
        let mut names: HashMap<&str, Span> = HashMap::new();
        if let Some(node) = nodes.get(MAX_RULES) {
            let message = format!("{} rules are too many; at most {MAX_RULES}", nodes.len());
            let hint = "limit families of identities by tiers or by match = [\"…*\"]";
            self.findings.error(node.span, message, hint);
        }
        for node in nodes.iter().take(MAX_RULES) {
            let Some(table) = node.table() else { continue };
            let name = table.text("name");
            if let Some(At { it, span }) = name {
                match names.get(it) {
                    None => drop(names.insert(it, span)),
                    Some(first) => {
                        let place = self.findings.source.place(first.start);
                        let message = format!("there are two rules called `{it}`");
                        let hint = format!("the first is at {place}; names are unique");
                        self.findings.error(span, message, hint);
                    }
                }
            }
            if let Some(rule) = self.rule(table, node.span) {
                rules.push(rule);
                spans.push(name.map_or(node.span, |name| name.span));
            }
        }
        self.refuse_many_waits(&rules, &spans);
        (rules, spans)
    }

    fn refuse_many_waits(&mut self, rules: &[Rule], spans: &[Span]) {
        let mut waits = Vec::new();
        for (rule, span) in rules.iter().zip(spans) {
            let Some(Replicas { n, timeout, .. }) = rule.replicas else { continue };
            if !waits.contains(&(n, timeout)) {
                waits.push((n, timeout));
                if waits.len() == MAX_WAITS + 1 {
                    let message = format!("more than {MAX_WAITS} different `replicas`");
                    let hint = "each n and timeout takes a connection; let rules share them";
                    return self.findings.error(*span, message, hint);
                }
            }
        }
    }

    /// None only when something was reported.
    fn rule(&mut self, table: &Table<'t>, span: Span) -> Option<Rule> {
        let dimension = table.text("dimension").and_then(|text| self.dimension(text));
        let limits = table.node("limits").and_then(|node| self.limits(node));
        let name = table.text("name").map(|name| name.it);
        self.rule_of(table, span, name, dimension, limits)
    }

    /// The same where the name, the dimension and the limits are known.
    pub(super) fn rule_of(
        &mut self,
        table: &Table<'t>,
        span: Span,
        name: Option<&str>,
        dimension: Option<Dimension>,
        limits: Option<RuleLimits>,
    ) -> Option<Rule> {
        let endpoint = table.text("endpoint").map_or(Some(Endpoint::Any), |e| self.endpoint(e));
        let methods = self.methods(table);
        let tiers = self.tier_list(table);
        let matches = self.matches(table, dimension.as_ref());
        let unless = self.unless(table);
        let cost = table.count("cost").map_or(Some(Cost::ONE), |n| Cost::new(n.it).ok());
        let store = self.store(table);
        Some(Rule {
            name: name?.into(),
            description: table.text("description").map(|text| text.it.into()),
            dimension: dimension?,
            endpoint: endpoint?,
            methods,
            tiers,
            matches,
            unless,
            limits: limits?,
            cost: cost?,
            on_store_error: on_store_error(table).unwrap_or(self.defaults.on_store_error),
            on_change: match table.text("on_change").map(|text| text.it) {
                Some("scale") => OnChange::Scale,
                Some("reset") => OnChange::Reset,
                _ => OnChange::Keep,
            },
            shadow: table.flag("shadow").unwrap_or(false),
            enabled: table.flag("enabled").unwrap_or(true),
            also: table.flag("also").unwrap_or(false),
            reject_missing: table.text("missing").is_some_and(|text| text.it == "reject"),
            at_once: at_once(table),
            replicas: replicas(table),
            store,
            split: table.count("split").and_then(|n| u32::try_from(n.it).ok()),
            hot: self.hot(table),
            honours_idempotency: table.text("idempotency").is_some_and(|text| text.it == "header"),
            local_share: table.ratio("local_share"),
            place: self.findings.source.place(span.start),
        })
    }

    fn dimension(&mut self, text: At<&str>) -> Option<Dimension> {
        let parsed = text.it.parse();
        if parsed.is_err() {
            let known = ["user", "apikey", "ip", "global"];
            let hint = did_you_mean(text.it, known.into_iter())
                .unwrap_or_else(|| "user, apikey, ip, header:NAME or global".into());
            self.findings.error(text.span, format!("`{}` is not a dimension", text.it), hint);
        }
        parsed.ok()
    }

    fn endpoint(&mut self, text: At<&str>) -> Option<Endpoint> {
        parse_endpoint(text.it)
            .map_err(|error| {
                let span = self.findings.source.narrowed(text.span, &error.words);
                self.findings.error(span, error.message, error.hint);
            })
            .ok()
    }

    /// Upper-cased: methods are, and `post` could only mean POST.
    fn methods(&mut self, table: &Table<'t>) -> Vec<String> {
        let mut methods = Vec::new();
        for text in table.texts("methods") {
            let name = text.it.to_ascii_uppercase();
            let plain = |b: u8| b.is_ascii_uppercase() || b == b'-' || b == b'_';
            if !name.bytes().all(plain) || name.len() > 32 {
                let message = format!("`{}` is not a method", text.it);
                self.findings.error(text.span, message, "e.g. methods = [\"GET\", \"POST\"]");
            } else if methods.contains(&name) {
                let message = format!("`{name}` is listed twice");
                self.findings.error(text.span, message, "once is enough");
            } else {
                methods.push(name);
            }
        }
        self.refuse_empty(table, "methods");
        methods
    }

    fn tier_list(&mut self, table: &Table<'t>) -> Vec<String> {
        let mut tiers: Vec<String> = Vec::new();
        for text in table.texts("tier") {
            if check_tier(text, self.tiers, self.findings) {
                tiers.push(text.it.into());
            }
        }
        self.refuse_empty(table, "tier");
        tiers
    }

    /// An empty list could mean everything or nothing; nobody should have to guess.
    fn refuse_empty(&mut self, table: &Table<'t>, key: &str) {
        if let Some(Node { span, value: Value::List(items) }) = table.node(key)
            && items.is_empty()
        {
            let message = format!("an empty `{key}` would match nothing");
            self.findings.error(*span, message, format!("leave `{key}` out to mean all"));
        }
    }

    /// A pattern of another dimension than the rule's would never match.
    fn matches(&mut self, table: &Table<'t>, dimension: Option<&Dimension>) -> Vec<Pattern> {
        let mut matches = Vec::new();
        for (pattern, span) in patterns(table, self.findings) {
            let text = pattern.to_string();
            let fits = |dimension: &Dimension| text.starts_with(&format!("{dimension}:"));
            if let Some(dimension) = dimension.filter(|d| !text.starts_with('*') && !fits(d)) {
                let message = format!("`{text}` never matches: the rule counts by {dimension}");
                let hint = format!("write {dimension}:…, or change the rule's dimension");
                self.findings.error(span, message, hint);
            }
            matches.push(pattern);
        }
        matches
    }

    fn unless(&mut self, table: &Table<'t>) -> Vec<Dimension> {
        table.texts("unless").filter_map(|text| self.dimension(text)).collect()
    }

    fn limits(&mut self, node: &Node<'t>) -> Option<RuleLimits> {
        match &node.value {
            Value::Text(text) if text == "tier" => {
                if self.tiers.is_empty() {
                    let hint = "add e.g. [tiers.free] with limits = [\"10/1s\"]";
                    self.findings.error(node.span, "limits of tiers, but there are no tiers", hint);
                }
                Some(RuleLimits::OfTier)
            }
            Value::List(items) if items.is_empty() => {
                let hint = "e.g. limits = [\"100/1m\"], or enabled = false to rest the rule";
                self.findings.error(node.span, "a rule without limits does nothing", hint);
                None
            }
            Value::List(items) => {
                Some(RuleLimits::Own(limits(items, self.defaults.algorithm, self.findings)))
            }
            other => {
                let message = format!("`limits` wants a list or \"tier\", found {}", found(other));
                let hint = match other {
                    Value::Text(text) if text.parse::<Quota>().is_ok() => {
                        format!("write limits = [\"{text}\"]")
                    }
                    _ => "e.g. limits = [\"100/1m\"] or limits = \"tier\"".into(),
                };
                self.findings.error(node.span, message, hint);
                None
            }
        }
    }

    /// `hot = { threshold, lease }`, or false for never.
    fn hot(&mut self, table: &Table<'t>) -> Option<hot::Settings> {
        let usual = hot::Settings::default();
        let Some(node) = table.node("hot") else { return Some(usual) };
        let (Value::Table(table), span) = (&node.value, node.span) else {
            match node.value {
                Value::Flag(false) => return None,
                Value::Flag(true) => return Some(usual),
                _ => {}
            }
            let message = format!("`hot` wants a table or false, found {}", found(&node.value));
            let hint = "e.g. hot = { threshold = \"10k/s\" }, or false for no leases";
            self.findings.error(node.span, message, hint);
            return Some(usual);
        };
        check_table(table, span, &format::HOT, self.findings);
        let threshold = table.text("threshold").and_then(|text| self.per_second(text));
        Some(hot::Settings {
            threshold: threshold.unwrap_or(usual.threshold),
            lease: table.duration("lease").unwrap_or(usual.lease),
        })
    }

    /// A rate, in requests a second, rounded up.
    fn per_second(&mut self, text: At<&str>) -> Option<u64> {
        let quota = text.it.parse::<Quota>().ok().filter(|quota| quota.burst.is_none());
        let rate = quota.and_then(|quota| {
            let rate = u128::from(quota.requests) * u128::from(Micros::SECOND.0);
            u64::try_from(rate.div_ceil(u128::from(quota.period.0.max(1)))).ok()
        });
        if rate.is_none_or(|rate| rate == 0) {
            let message = format!("`{}` is not a rate to be above", text.it);
            self.findings.error(text.span, message, "e.g. threshold = \"10k/s\"");
        }
        rate.filter(|rate| *rate > 0)
    }

    fn store(&mut self, table: &Table<'t>) -> Option<String> {
        let name = table.text("store")?;
        if self.stores.get(name.it).is_none() {
            let names = self.stores.entries.iter().map(|entry| entry.key.as_ref());
            let hint = did_you_mean(name.it, names)
                .unwrap_or_else(|| format!("add [stores.{}] with url = \"redis://…\"", name.it));
            self.findings.error(name.span, format!("there is no store `{}`", name.it), hint);
        }
        Some(name.it.into())
    }
}

/// `concurrency = { max, wait }`
fn at_once(table: &Table<'_>) -> Option<AtOnce> {
    let table = table.node("concurrency")?.table()?;
    let max = u32::try_from(table.count("max")?.it).ok()?;
    Some(AtOnce { max, wait: table.duration("wait").unwrap_or(DEFAULT_WAIT) })
}

/// `replicas = { n, timeout, on_short }`
fn replicas(table: &Table<'_>) -> Option<Replicas> {
    let table = table.node("replicas")?.table()?;
    let on_short = match table.text("on_short").map(|text| text.it) {
        Some("fail") => OnShort::Fail,
        _ => OnShort::Mark,
    };
    let n = u32::try_from(table.count("n")?.it).ok()?;
    Some(Replicas { n, timeout: table.duration("timeout").unwrap_or(DEFAULT_TIMEOUT), on_short })
}

/// The limits of a rule or tier.
pub(super) fn limits(
    items: &[Node<'_>],
    default: Algorithm,
    findings: &mut Findings<'_>,
) -> Vec<LimitSpec> {
    if let Some(node) = items.get(MAX_LIMITS) {
        let message = format!("{} limits are too many; at most {MAX_LIMITS}", items.len());
        findings.error(node.span, message, "two or three usually say it all");
    }
    let (mut limits, mut spans) = (Vec::new(), Vec::new());
    for item in items.iter().take(MAX_LIMITS) {
        if let Some(spec) = limit(item, default, findings) {
            limits.push(spec);
            spans.push(item.span);
        }
    }
    lint::warn_of_pointless(&limits, &spans, findings);
    limits
}

fn limit(node: &Node<'_>, default: Algorithm, findings: &mut Findings<'_>) -> Option<LimitSpec> {
    match &node.value {
        Value::Text(text) => {
            let quota = quota(At { it: text.as_ref(), span: node.span }, findings)?;
            let limit = checked(default, quota, node.span, findings)?;
            Some(LimitSpec { limit, max_delay: DEFAULT_MAX_DELAY })
        }
        Value::Table(table) => limit_of_table(table, node.span, default, findings),
        other => {
            let message = format!("a limit is text or a table, found {}", found(other));
            findings.error(node.span, message, "e.g. \"100/1m\" or { limit = \"100/1m\" }");
            None
        }
    }
}

fn limit_of_table(
    table: &Table<'_>,
    span: Span,
    default: Algorithm,
    findings: &mut Findings<'_>,
) -> Option<LimitSpec> {
    check_table(table, span, &format::LIMIT, findings);
    limit_of_checked(table, default, findings)
}

/// The limit that `limit`, `algorithm`, `burst` and `max_delay` of a table make.
pub(super) fn limit_of_checked(
    table: &Table<'_>,
    default: Algorithm,
    findings: &mut Findings<'_>,
) -> Option<LimitSpec> {
    let text = table.text("limit")?;
    let algorithm = match table.text("algorithm") {
        Some(name) => algorithm(name, findings)?,
        None => default,
    };
    let mut quota = quota(text, findings)?;
    let mut at = text.span;
    if let Some(burst) = table.count("burst") {
        if quota.burst.is_some() {
            let hint = "keep one of them";
            findings.error(burst.span, "the burst is given here and in the limit", hint);
        }
        quota.burst = Some(burst.it);
        at = burst.span;
    }
    if let (Some(node), false) = (table.node("max_delay"), algorithm == Algorithm::LeakyBucket) {
        findings.error(
            node.span,
            format!("`max_delay` is how long a leaky bucket holds; {algorithm} never holds"),
            "remove it, or write algorithm = \"leaky-bucket\"",
        );
    }
    let limit = checked(algorithm, quota, at, findings)?;
    Some(LimitSpec { limit, max_delay: table.duration("max_delay").unwrap_or(DEFAULT_MAX_DELAY) })
}

fn quota(text: At<&str>, findings: &mut Findings<'_>) -> Option<Quota> {
    text.it.parse().map_err(|error| report_limit_error(text.span, &error, findings)).ok()
}

fn checked(
    algorithm: Algorithm,
    quota: Quota,
    span: Span,
    findings: &mut Findings<'_>,
) -> Option<Limit> {
    Limit::new(algorithm, quota).map_err(|error| report_limit_error(span, &error, findings)).ok()
}

/// The engine's words, cut into what is wrong and what to write.
pub(super) fn report_limit_error(span: Span, error: &LimitError, findings: &mut Findings<'_>) {
    let said = error.to_string();
    let (message, mut hint) = said.split_once("; ").unwrap_or((&said, "e.g. 100/1m"));
    if let LimitError::UnknownAlgorithm(_, Some(_)) = error {
        hint = hint.split(';').next().unwrap_or(hint);
    }
    let words = match error {
        LimitError::Unit(UnitError::Count(words) | UnitError::Duration(words)) => words.as_str(),
        LimitError::BurstOnWindow(_) | LimitError::NoBurst | LimitError::TooMuchBurst(_) => {
            findings.source.words(span).find(" burst ").map_or("", |at| {
                findings.source.words(span)[at + 1..].trim_end_matches(['"', '\''])
            })
        }
        _ => "",
    };
    let span = findings.source.narrowed(span, words);
    findings.error(span, message, hint);
}
