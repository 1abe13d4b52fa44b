//! What two policies are compared by, attribute by attribute, in words.

use std::collections::BTreeMap;

use crate::engine::concurrency::AtOnce;
use crate::engine::durability::{OnShort, Replicas};
use crate::engine::hot;
use crate::engine::limit::Algorithm;
use crate::engine::policy::{
    Breaker, GatewaySettings, IdentitySources, LimitSpec, Listed, Policy, ResponseSettings, Rule,
    RuleLimits,
};
use crate::engine::store::redis::without_secrets;
use crate::output::moment;

/// By name, so that each difference is told by itself.
pub(super) type Attributes = BTreeMap<String, String>;

pub(super) fn limit_in_words(spec: &LimitSpec) -> String {
    let limit = format!("{} {}", spec.limit, spec.limit.algorithm());
    match spec.limit.algorithm() {
        Algorithm::LeakyBucket => format!("{limit}, held at most {}", spec.max_delay),
        _ => limit,
    }
}

pub(super) fn in_a_row(limits: &[LimitSpec]) -> String {
    match limits {
        [] => "no limit".into(),
        limits => limits.iter().map(limit_in_words).collect::<Vec<_>>().join(" and "),
    }
}

fn limits_in_words(rule: &Rule) -> String {
    match &rule.limits {
        RuleLimits::OfTier => "the limits of the tier".into(),
        RuleLimits::Own(limits) => in_a_row(limits),
    }
}

/// A rule that is new or gone: its limits, and all in which it is not the plain one.
pub(super) fn rule_in_words(rule: &Rule) -> String {
    let plain: Attributes = [
        ("endpoint", "all"),
        ("methods", "all"),
        ("tiers", "all"),
        ("match", "all"),
        ("unless", "none"),
        ("cost", "1"),
        ("on_store_error", "open"),
        ("local_share", "by the number of gateways"),
        ("on_change", "keep"),
        ("shadow", "false"),
        ("enabled", "true"),
        ("also", "false"),
        ("missing", "allow"),
        ("concurrency", "any"),
        ("idempotency", "none"),
        ("replicas", "none"),
        ("store", "the main one"),
        ("split", "none"),
        ("hot", "above 10000/s, leases of 100ms"),
    ]
    .map(|(what, text)| (what.to_string(), text.to_string()))
    .into();
    let mut words = format!("{} for each {}", limits_in_words(rule), rule.dimension);
    let told = |what: &str| what == "dimension" || what == "limits";
    for (what, text) in scope(rule) {
        if !told(&what) && plain.get(&what) != Some(&text) {
            words += &format!(", {what} {text}");
        }
    }
    words
}

/// Who and what a rule is for, and how it behaves.
pub(super) fn scope(rule: &Rule) -> Attributes {
    let limits = match &rule.limits {
        RuleLimits::OfTier => limits_in_words(rule),
        RuleLimits::Own(_) => "its own".into(),
    };
    let share = rule.local_share.map_or("by the number of gateways".into(), |s| s.to_string());
    [
        ("dimension", rule.dimension.to_string()),
        ("endpoint", rule.endpoint.to_string()),
        ("methods", joined(&rule.methods, "all")),
        ("tiers", joined(&rule.tiers, "all")),
        ("match", joined(&rule.matches, "all")),
        ("unless", joined(&rule.unless, "none")),
        ("limits", limits),
        ("cost", rule.cost.get().to_string()),
        ("on_store_error", rule.on_store_error.name().into()),
        ("local_share", share),
        ("on_change", format!("{:?}", rule.on_change).to_lowercase()),
        ("shadow", rule.shadow.to_string()),
        ("enabled", rule.enabled.to_string()),
        ("also", rule.also.to_string()),
        ("missing", if rule.reject_missing { "reject".into() } else { "allow".to_string() }),
        ("concurrency", at_once_in_words(rule)),
        ("replicas", replicas_in_words(rule)),
        ("store", rule.store.clone().unwrap_or_else(|| "the main one".into())),
        ("split", rule.split.map_or("none".into(), |parts| format!("into {parts}"))),
        ("hot", hot_in_words(rule)),
        ("idempotency", if rule.honours_idempotency { "header" } else { "none" }.into()),
    ]
    .map(|(name, text)| (name.to_string(), text))
    .into()
}

fn at_once_in_words(rule: &Rule) -> String {
    rule.at_once.map_or("any".into(), |AtOnce { max, wait }| format!("{max}, waiting {wait}"))
}

fn replicas_in_words(rule: &Rule) -> String {
    rule.replicas.map_or("none".into(), |Replicas { n, timeout, on_short }| {
        let then = match on_short {
            OnShort::Mark => "marked",
            OnShort::Fail => "refused",
        };
        format!("{n} within {timeout}, {then} without")
    })
}

fn hot_in_words(rule: &Rule) -> String {
    rule.hot.map_or("never".into(), |hot::Settings { threshold, lease }| {
        format!("above {threshold}/s, leases of {lease}")
    })
}

/// What holds for the whole policy. The fields are named, so that none is forgotten.
pub(super) fn settings(policy: &Policy) -> Attributes {
    let Policy { default_tier, defaults, identity, gateway, domains, stores, .. } = policy;
    let mut all = Attributes::new();
    let mut add = |name: &str, text: String| drop(all.insert(name.into(), text));
    add("default_tier", or_none(default_tier.as_ref()));
    // The default algorithm and failure mode are those of the rules, and told there.
    add("deadline", defaults.deadline.to_string());
    add("idempotency_ttl", defaults.idempotency_ttl.to_string());
    let Breaker { consecutive, min_calls, failure_ratio, window, open_for, slow, background_probe } =
        &defaults.breaker;
    add("breaker consecutive", consecutive.to_string());
    add("breaker min_calls", min_calls.to_string());
    add("breaker failure_ratio", failure_ratio.to_string());
    add("breaker window", window.to_string());
    add("breaker open_for", open_for.to_string());
    add("breaker slow", slow.map_or("0.8 of the deadline".into(), |slow| slow.to_string()));
    add("breaker background_probe", background_probe.to_string());
    let IdentitySources {
        apikey_header,
        user_header,
        trust_user_from_any,
        tier_header,
        trusted_proxies,
        ipv6_prefix,
    } = identity;
    add("identity apikey", apikey_header.clone());
    add("identity user", user_header.clone());
    add("identity user trust", if *trust_user_from_any { "any" } else { "proxies" }.into());
    add("identity tier", or_none(tier_header.as_ref()));
    add("identity trusted_proxies", joined(trusted_proxies, "none"));
    add("identity ipv6_prefix", ipv6_prefix.to_string());
    for store in stores {
        let (name, deadline) = (&store.name, store.deadline.unwrap_or(defaults.deadline));
        add(&format!("store {name}"), format!("{:?}", store.url));
        add(&format!("store {name} prefix"), store.prefix.clone());
        add(&format!("store {name} connections"), store.connections.to_string());
        add(&format!("store {name} connect_timeout"), store.connect_timeout.to_string());
        add(&format!("store {name} deadline"), deadline.to_string());
    }
    for (domain, rules) in domains {
        add(&format!("domain {domain}"), joined(rules, "none"));
    }
    all.extend(of_gateway(gateway));
    all
}

fn of_gateway(gateway: &GatewaySettings) -> Attributes {
    let GatewaySettings {
        health_path,
        max_checks,
        websocket,
        self_limits,
        response: ResponseSettings { status, body, documentation_url, headers },
        upstreams,
        charge_preflight,
        expose_headers,
    } = gateway;
    let headers = match (headers.x, headers.ietf) {
        (true, true) => "both",
        (true, false) => "x",
        (false, true) => "ietf",
        (false, false) => "none",
    };
    let own = [
        ("gateway health_path", health_path.clone()),
        ("gateway max_checks", max_checks.to_string()),
        ("gateway websocket", websocket.to_string()),
        ("gateway self_limits", self_limits.to_string()),
        ("response status", status.to_string()),
        ("response body", body.clone().unwrap_or_else(|| "the gateway's own".into())),
        ("response documentation_url", or_none(documentation_url.as_ref())),
        ("response headers", headers.into()),
        ("cors charge_preflight", charge_preflight.to_string()),
        ("cors expose_headers", expose_headers.to_string()),
    ]
    .map(|(name, text)| (name.to_string(), text));
    let upstreams = upstreams
        .iter()
        .map(|upstream| (format!("upstream {}", upstream.prefix), without_secrets(&upstream.url)));
    own.into_iter().chain(upstreams).collect()
}

fn or_none(text: Option<&String>) -> String {
    text.cloned().unwrap_or_else(|| "none".into())
}

fn joined(items: &[impl ToString], none: &str) -> String {
    match items {
        [] => none.into(),
        items => items.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
    }
}

pub(super) fn listed(list: &[Listed]) -> Attributes {
    let mut all = Attributes::new();
    for entry in list {
        let until = entry.until.map_or("for ever".into(), |at| format!("until {}", moment(at)));
        let scope = if entry.whole_request { ", the whole request" } else { "" };
        for pattern in &entry.matches {
            all.insert(pattern.to_string(), format!("{until}{scope}: {}", entry.reason));
        }
    }
    all
}
