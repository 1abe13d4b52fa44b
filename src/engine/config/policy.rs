//! The tree of a rules file, made into a [`Policy`].

use std::collections::HashMap;

use ipnet::IpNet;

use super::super::clock::Micros;
use super::super::identity::{Identity, IdentityError, Pattern, names_a_dimension};
use super::super::limit::Algorithm;
use super::super::policy::{
    Breaker, Defaults, IdentitySources, Listed, OnStoreError, Policy, Tier,
};
use super::read::{At, check_table, did_you_mean};
use super::rule::{self, Rules};
use super::source::{ConfigErrors, Finding, Findings, Severity, Source, Span};
use super::tree::{self, Node, Table};
use super::{format, gateway, lint, stores};

/// Reads a rules file, TOML or JSON. Either it can be used, and then there may be warnings, or all
/// that is wrong is told. `now` serves only to warn of entries that have ended.
pub fn parse_policy(
    file: &str,
    text: &str,
    now: Micros,
) -> Result<(Policy, Vec<Finding>), ConfigErrors> {
    parse(file, text, now, Severity::Error)
}

/// The same for whoever only looks: passwords may be masked, as they are where a policy is shown.
pub fn parse_shown(
    file: &str,
    text: &str,
    now: Micros,
) -> Result<(Policy, Vec<Finding>), ConfigErrors> {
    parse(file, text, now, Severity::Warning)
}

fn parse(
    file: &str,
    text: &str,
    now: Micros,
    if_masked: Severity,
) -> Result<(Policy, Vec<Finding>), ConfigErrors> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut findings = Findings::in_source(Source::new(file, text));
    let Some(root) = tree::parse(file, &mut findings) else {
        return findings.result(()).map(|_| unreachable!("no tree without an error"));
    };
    let Some(table) = root.table() else {
        let hint = "e.g. { \"rule\": [ … ] }";
        findings.error(root.span, "a rules file is a table", hint);
        return findings.result(()).map(|_| unreachable!("there is an error"));
    };
    check_table(table, root.span, &format::FILE, &mut findings);
    let (policy, spans) = build(table, &mut findings);
    for (store, span) in policy.stores.iter().zip(&spans.stores) {
        if store.url.is_masked() {
            let message = "the password in the url of this store is masked";
            let hint = "write it, or publish this over a policy in which the same store has the \
                        same url: then it is filled in";
            match if_masked {
                Severity::Error => findings.error(*span, message, hint),
                Severity::Warning => findings.warn(*span, message, hint),
            }
        }
    }
    if !findings.has_errors() {
        lint::lint(&policy, &spans, now, &mut findings);
    }
    findings.result(policy)
}

/// Where the parts of a policy stand, in its order, for what is only seen in the whole.
#[derive(Debug, Default)]
pub(super) struct Spans {
    pub(super) tiers: Vec<Span>,
    pub(super) rules: Vec<Span>,
    pub(super) exempt: Vec<Span>,
    pub(super) block: Vec<Span>,
    pub(super) stores: Vec<Span>,
}

fn build<'t>(file: &Table<'t>, findings: &mut Findings<'t>) -> (Policy, Spans) {
    let mut spans = Spans::default();
    let empty = Table::default();
    let defaults = defaults(file.table("defaults").unwrap_or(&empty), findings);
    let identity = identity(file.table("identity").unwrap_or(&empty), findings);
    let tiers = tiers(file.table("tiers").unwrap_or(&empty), &defaults, &mut spans, findings);
    let default_tier = file.text("default_tier");
    if let Some(tier) = default_tier {
        check_tier(tier, &tiers, findings);
    }
    let assign = assign(file.table("assign").unwrap_or(&empty), &tiers, findings);
    let stores = file.table("stores").unwrap_or(&empty);
    let named_stores = stores::read(stores, &mut spans, findings);
    let (rules, rule_spans) =
        Rules { defaults: &defaults, tiers: &tiers, stores, findings }.read(file.list("rule"));
    spans.rules = rule_spans;
    let exempt = listed(file.list("exempt"), &mut spans.exempt, findings);
    let block = listed(file.list("block"), &mut spans.block, findings);
    let domains =
        gateway::domains(file.table("domains").unwrap_or(&empty), file.list("rule"), findings);
    let gateway = gateway::settings(file, findings);
    let default_tier = default_tier.map(|tier| tier.it.into());
    let policy = Policy {
        default_tier,
        defaults,
        identity,
        tiers,
        assign,
        rules,
        exempt,
        block,
        stores: named_stores,
        gateway,
        domains,
    };
    (policy, spans)
}

fn defaults(table: &Table<'_>, findings: &mut Findings<'_>) -> Defaults {
    let usual = Defaults::default();
    Defaults {
        algorithm: table
            .text("algorithm")
            .and_then(|name| algorithm(name, findings))
            .unwrap_or(usual.algorithm),
        on_store_error: on_store_error(table).unwrap_or(usual.on_store_error),
        deadline: table.duration("deadline").unwrap_or(usual.deadline),
        breaker: table.table("breaker").map_or(usual.breaker, breaker),
        idempotency_ttl: table.duration("idempotency_ttl").unwrap_or(usual.idempotency_ttl),
    }
}

pub(super) fn breaker(table: &Table<'_>) -> Breaker {
    let usual = Breaker::default();
    let count = |key: &str, usual: u32| {
        table.count(key).and_then(|n| u32::try_from(n.it).ok()).unwrap_or(usual)
    };
    Breaker {
        consecutive: count("consecutive", usual.consecutive),
        min_calls: count("min_calls", usual.min_calls),
        failure_ratio: table.ratio("failure_ratio").unwrap_or(usual.failure_ratio),
        window: table.duration("window").unwrap_or(usual.window),
        open_for: table.duration("open_for").unwrap_or(usual.open_for),
        slow: table.duration("slow"),
        background_probe: table.flag("background_probe").unwrap_or(usual.background_probe),
    }
}

pub(super) fn on_store_error(table: &Table<'_>) -> Option<OnStoreError> {
    match table.text("on_store_error")?.it {
        "open" => Some(OnStoreError::Open),
        "closed" => Some(OnStoreError::Closed),
        "local" => Some(OnStoreError::Local),
        _ => None,
    }
}

pub(super) fn algorithm(name: At<&str>, findings: &mut Findings<'_>) -> Option<Algorithm> {
    if name.it.eq_ignore_ascii_case("sliding_window") {
        findings.warn(
            name.span,
            "`sliding_window` means the counter here, elsewhere often the log",
            "write sliding-window for the counter, sliding-log for the log",
        );
    }
    match name.it.parse() {
        Ok(algorithm) => Some(algorithm),
        Err(error) => {
            rule::report_limit_error(name.span, &error, findings);
            None
        }
    }
}

fn identity(table: &Table<'_>, findings: &mut Findings<'_>) -> IdentitySources {
    let usual = IdentitySources::default();
    let header = |key: &str| Some(table.table(key)?.text("header")?.it.to_ascii_lowercase());
    let trust = table.table("user").and_then(|user| user.text("trust"));
    let mut trusted_proxies = Vec::new();
    for proxy in table.texts("trusted_proxies") {
        let address = || proxy.it.parse().map(|address: std::net::IpAddr| address.into());
        match proxy.it.parse::<ipnet::IpNet>().or_else(|_| address()) {
            Ok(network) => trusted_proxies.push(network.trunc()),
            Err(_) => findings.error(
                proxy.span,
                format!("`{}` is not a network", proxy.it),
                "write addresses and CIDR ranges, e.g. 10.0.0.0/8, 192.0.2.7, fd00::/8",
            ),
        }
    }
    IdentitySources {
        apikey_header: header("apikey").unwrap_or(usual.apikey_header),
        user_header: header("user").unwrap_or(usual.user_header),
        trust_user_from_any: trust.is_some_and(|trust| trust.it == "any"),
        tier_header: header("tier"),
        trusted_proxies,
        ipv6_prefix: table
            .count("ipv6_prefix")
            .and_then(|n| u8::try_from(n.it).ok())
            .unwrap_or(usual.ipv6_prefix),
    }
}

fn tiers(
    table: &Table<'_>,
    defaults: &Defaults,
    spans: &mut Spans,
    findings: &mut Findings<'_>,
) -> Vec<Tier> {
    let mut tiers = Vec::new();
    for entry in &table.entries {
        let Some(tier) = entry.node.table() else { continue };
        let limits = rule::limits(tier.list("limits"), defaults.algorithm, findings);
        let place = findings.source.place(entry.key_span.start);
        tiers.push(Tier { name: entry.key.as_ref().into(), limits, place });
        spans.tiers.push(entry.key_span);
    }
    tiers
}

/// Reports a tier that does not exist.
pub(super) fn check_tier(name: At<&str>, tiers: &[Tier], findings: &mut Findings<'_>) -> bool {
    if tiers.iter().any(|tier| tier.name == name.it) {
        return true;
    }
    let names = || tiers.iter().map(|tier| tier.name.as_str());
    let hint = did_you_mean(name.it, names()).unwrap_or_else(|| match tiers {
        [] => "there are no tiers; write e.g. [tiers.free] with limits = [\"10/1s\"]".into(),
        _ => format!("there are {}", names().collect::<Vec<_>>().join(", ")),
    });
    findings.error(name.span, format!("there is no tier `{}`", name.it), hint);
    false
}

fn assign(
    table: &Table<'_>,
    tiers: &[Tier],
    findings: &mut Findings<'_>,
) -> HashMap<Identity, String> {
    let mut assigned: HashMap<Identity, (String, Span)> = HashMap::new();
    for entry in &table.entries {
        let key = At { it: entry.key.as_ref(), span: entry.key_span };
        let tier = entry.node.text().filter(|tier| check_tier(*tier, tiers, findings));
        let Some(identity) = identity_of(key, findings) else { continue };
        if key.it.contains('*') {
            let hint = "to limit a family, give a rule a match = [\"…*\"]";
            findings.warn(key.span, "`*` stands for itself here", hint);
        }
        if let Some((_, first)) = assigned.get(&identity) {
            let place = findings.source.place(first.start);
            let message = format!("`{identity}` is assigned twice");
            findings.error(key.span, message, format!("it is first assigned at {place}"));
        } else if let Some(tier) = tier {
            assigned.insert(identity, (tier.it.into(), key.span));
        }
    }
    assigned.into_iter().map(|(identity, (tier, _))| (identity, tier)).collect()
}

pub(super) fn identity_of(text: At<&str>, findings: &mut Findings<'_>) -> Option<Identity> {
    let parsed = text.it.parse::<Identity>().map_err(|error| error.to_string());
    match parsed.and_then(|identity| {
        let known = names_a_dimension(text.it);
        known.then_some(identity).ok_or_else(|| no_dimension(text.it))
    }) {
        Ok(identity) => Some(identity),
        Err(message) => {
            findings.error(text.span, message, "e.g. user:123, apikey:ak_9, ip:203.0.113.7");
            None
        }
    }
}

fn no_dimension(identity: &str) -> String {
    format!("`{identity}` has no dimension (user, apikey, ip, header:NAME or global)")
}

/// Part of a /64 means nobody: all of it is one client.
fn warn_of_too_fine(pattern: &Pattern, span: Span, findings: &mut Findings<'_>) {
    if let Pattern::Network(IpNet::V6(network)) = pattern
        && network.prefix_len() > 64
    {
        let message = format!("`{network}` matches nobody: IPv6 clients are counted by their /64");
        findings.warn(span, message, format!("write ip:{}", network.addr()));
    }
}

/// The patterns of a `match`.
pub(super) fn patterns(table: &Table<'_>, findings: &mut Findings<'_>) -> Vec<(Pattern, Span)> {
    let mut patterns = Vec::new();
    for text in table.texts("match") {
        match text.it.parse::<Pattern>() {
            Ok(_) if !names_a_dimension(text.it) && !text.it.starts_with('*') => {
                findings.error(text.span, no_dimension(text.it), "e.g. user:12*, ip:10.0.0.0/8");
            }
            Ok(pattern) => {
                warn_of_too_fine(&pattern, text.span, findings);
                patterns.push((pattern, text.span));
            }
            Err(IdentityError::NotAnAddress(address)) => findings.error(
                findings.source.narrowed(text.span, &address),
                format!("`{address}` is not an address or a network"),
                "e.g. ip:203.0.113.7, ip:10.0.0.0/8, ip:2001:db8::/32",
            ),
            Err(error) => {
                findings.error(text.span, error.to_string(), "e.g. user:12*, ip:10.0.0.0/8");
            }
        }
    }
    let is_empty = table.node("match").is_some() && table.list("match").is_empty();
    if let (true, Some(node)) = (is_empty, table.node("match")) {
        let hint = "leave it out to mean everybody, or e.g. match = [\"user:12*\"]";
        findings.error(node.span, "an empty `match` matches nobody", hint);
    }
    patterns
}

fn listed(entries: &[Node<'_>], spans: &mut Vec<Span>, findings: &mut Findings<'_>) -> Vec<Listed> {
    let mut all = Vec::new();
    for node in entries {
        let Some(table) = node.table() else { continue };
        let matches = patterns(table, findings).into_iter().map(|(pattern, _)| pattern).collect();
        let until = table.text("until").and_then(|text| time(text, findings));
        all.push(Listed {
            matches,
            reason: table.text("reason").map_or(String::new(), |reason| reason.it.into()),
            until,
            whole_request: table.text("scope").is_some_and(|scope| scope.it == "request"),
            place: findings.source.place(node.span.start),
        });
        spans.push(table.node("until").map_or(node.span, |until| until.span));
    }
    all
}

fn time(text: At<&str>, findings: &mut Findings<'_>) -> Option<Micros> {
    let parsed = text.it.parse::<jiff::Timestamp>().ok();
    let micros = parsed.and_then(|time| u64::try_from(time.as_microsecond()).ok()).map(Micros);
    if micros.is_none() {
        findings.error(
            text.span,
            format!("`{}` is not a moment: a date and time with its offset is wanted", text.it),
            "e.g. until = \"2030-01-01T00:00:00Z\" or 2030-01-01T00:00:00+02:00",
        );
    }
    micros
}
