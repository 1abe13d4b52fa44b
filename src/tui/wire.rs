//! What a gateway says of itself (`/api/v1/stats`), read with patience: an older or newer one may
//! lack a field or have one more.

use serde::Deserialize;
use serde_json::Value;

use super::data::{
    Breaker, Detail, Event, Gateway, Hot, LimitUse, MAX_WHO, Point, Policy, Rates, Rule, Shard, Who,
};

/// One gateway at one moment.
#[derive(Clone, Debug, Default)]
pub struct Told {
    pub at_us: u64,
    pub gateway: Gateway,
    pub rules: Vec<Rule>,
    pub rejected: Vec<Who>,
    pub seen: Vec<Who>,
    pub shards: Vec<Shard>,
    pub policy: Policy,
    pub events: Vec<Event>,
    pub quotas: (u64, u64),
    pub shed: u64,
    pub clock_jumps: u64,
    pub hot: Vec<Hot>,
    /// The five minutes before, oldest first.
    pub past: Vec<Point>,
}

#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct Wire {
    at_us: u64,
    gateway: String,
    version: String,
    ready: bool,
    rates: WireRates,
    degraded_since_us: Option<u64>,
    decision: Latency,
    rules: Vec<WireRule>,
    store: Vec<WireShard>,
    policy: WirePolicy,
    observe_only: bool,
    quotas: Quotas,
    top_rejected: Vec<WireWho>,
    top_seen: Vec<WireWho>,
    inflight: u64,
    shed: u64,
    clock_jumps: u64,
    hot_keys: Vec<Hot>,
    events: Vec<WireEvent>,
    history: History,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireRates {
    last_second: SecondRates,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct SecondRates {
    decided: f64,
    allowed: f64,
    rejected: f64,
    shadow_rejected: f64,
    modes: Modes,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Modes {
    open: f64,
    closed: f64,
    local: f64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Latency {
    count: u64,
    p50_us: Option<u64>,
    p99_us: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireRule {
    rule: String,
    allowed: f64,
    rejected: f64,
    shadow_rejected: f64,
    degraded: f64,
    shadow: bool,
    on_store_error: Option<String>,
    limits: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireShard {
    shard: String,
    latency: Latency,
    breaker: String,
    down_since_us: Option<u64>,
    trouble: Option<String>,
    errors: std::collections::BTreeMap<String, u64>,
    failovers: u64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WirePolicy {
    version: Option<u64>,
    hash: Option<String>,
    source: Option<String>,
    age_us: Option<u64>,
    refused: Option<Why>,
    trouble: Option<Why>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Why {
    why: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Quotas {
    warning: u64,
    throttled: u64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireWho {
    identity: String,
    per_second: f64,
    weight: f64,
    share: f64,
    rule: String,
    reason: String,
    limit: Option<String>,
    used: Option<u64>,
    last_us: u64,
    since_us: Option<u64>,
    endpoint: Option<String>,
    retry_after_us: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireEvent {
    at_us: u64,
    level: String,
    text: String,
    identity: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct History {
    at_us: Vec<u64>,
    allowed: Vec<f64>,
    rejected: Vec<f64>,
    degraded: Vec<f64>,
    p99_us: Vec<Option<u64>>,
}

/// Ten seconds are what a gateway counts calls over.
const COUNTED_OVER_SECONDS: f64 = 10.0;

impl Told {
    /// `now_us` is this machine's time when it was heard.
    pub fn read(text: &str, source: &str, now_us: u64) -> Result<Told, serde_json::Error> {
        let wire: Wire = serde_json::from_str(text)?;
        let id = wire.gateway.clone();
        let of_second = wire.rates.last_second;
        let rates = Rates {
            allowed: of_second.allowed,
            rejected: of_second.rejected,
            observed: (of_second.decided - of_second.allowed - of_second.rejected).max(0.0),
            shadow: of_second.shadow_rejected,
            open: of_second.modes.open,
            closed: of_second.modes.closed,
            local: of_second.modes.local,
        };
        let clock_us = i64::try_from(wire.at_us).unwrap_or(0) - i64::try_from(now_us).unwrap_or(0);
        let gateway = Gateway {
            id: id.clone(),
            source: source.into(),
            version: wire.version,
            ready: wire.ready,
            rates,
            p50_us: wire.decision.p50_us,
            p99_us: wire.decision.p99_us,
            policy_version: wire.policy.version,
            policy_hash: wire.policy.hash.clone(),
            observe_only: wire.observe_only,
            degraded_since_us: wire.degraded_since_us,
            inflight: wire.inflight,
            clock_us: Some(clock_us),
            live: true,
        };
        let who = |wire: Vec<WireWho>| -> Vec<Who> {
            wire.into_iter().take(MAX_WHO).map(|who| who.with(&id)).collect()
        };
        Ok(Told {
            at_us: wire.at_us,
            gateway,
            rules: wire.rules.into_iter().map(WireRule::read).collect(),
            rejected: who(wire.top_rejected),
            seen: who(wire.top_seen),
            shards: wire.store.into_iter().map(|shard| shard.read(&id)).collect(),
            policy: wire.policy.read(wire.at_us),
            events: wire.events.into_iter().map(|event| event.read(&id)).collect(),
            quotas: (wire.quotas.warning, wire.quotas.throttled),
            shed: wire.shed,
            clock_jumps: wire.clock_jumps,
            hot: wire.hot_keys,
            past: wire.history.points(),
        })
    }
}

impl WireWho {
    fn with(self, gateway: &str) -> Who {
        Who {
            identity: self.identity,
            per_second: self.per_second,
            weight: self.weight,
            share: self.share,
            rule: self.rule,
            reason: self.reason,
            limit: self.limit,
            used: self.used,
            last_us: self.last_us,
            since_us: self.since_us,
            endpoint: self.endpoint,
            retry_after_us: self.retry_after_us,
            gateway: gateway.into(),
        }
    }
}

impl WireRule {
    fn read(self) -> Rule {
        Rule {
            name: self.rule,
            allowed: self.allowed,
            rejected: self.rejected,
            shadow: self.shadow_rejected,
            degraded: self.degraded,
            is_shadow: self.shadow,
            on_store_error: self.on_store_error,
            limits: self.limits,
        }
    }
}

impl WireShard {
    fn read(self, gateway: &str) -> Shard {
        Shard {
            name: self.shard,
            role: Some("primary".into()),
            is_down: self.down_since_us.is_some(),
            down_since_us: self.down_since_us,
            trouble: self.trouble.filter(|_| self.down_since_us.is_some()),
            p50_us: self.latency.p50_us,
            p99_us: self.latency.p99_us,
            calls: self.latency.count as f64 / COUNTED_OVER_SECONDS,
            errors: self.errors.values().sum(),
            failovers: self.failovers,
            breakers: vec![Breaker { gateway: gateway.into(), state: self.breaker }],
            ..Shard::default()
        }
    }
}

impl WirePolicy {
    fn read(self, at_us: u64) -> Policy {
        Policy {
            version: self.version,
            hash: self.hash,
            source: self.source,
            changed_us: self.age_us.map(|age| at_us.saturating_sub(age)),
            refused: self.refused.map(|refused| refused.why),
            trouble: self.trouble.map(|trouble| trouble.why),
            differs: false,
        }
    }
}

impl WireEvent {
    fn read(self, gateway: &str) -> Event {
        let Self { at_us, level, text, identity: who } = self;
        Event { at_us, level, text, who, from: gateway.into() }
    }
}

impl History {
    fn points(self) -> Vec<Point> {
        let at = |list: &[f64], n: usize| list.get(n).copied().unwrap_or(0.0);
        let point = |(n, at_us): (usize, &u64)| Point {
            at_us: *at_us,
            allowed: at(&self.allowed, n),
            rejected: at(&self.rejected, n),
            degraded: at(&self.degraded, n),
            p99_us: self.p99_us.get(n).copied().flatten(),
        };
        self.at_us.iter().enumerate().map(point).collect()
    }
}

/// What `/users/{identity}/limits` answers.
pub fn read_detail(value: &Value, now_us: u64) -> Detail {
    let entry = |name: &str| {
        let entry = &value[name];
        let reason = entry["reason"].as_str().unwrap_or("no reason is given");
        (!entry.is_null()).then(|| reason.to_string())
    };
    let text = |value: &Value| value.as_str().map(String::from);
    let items = value["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    let limit = |item: &Value| LimitUse {
        rule: text(&item["rule"]).unwrap_or_default(),
        endpoint: text(&item["endpoint"]),
        algorithm: text(&item["algorithm"]).unwrap_or_default(),
        limit: item["limit"].as_u64().unwrap_or(0),
        period_us: item["period_us"].as_u64().unwrap_or(0),
        capacity: item["capacity"].as_u64().unwrap_or(0),
        shadow: item["shadow"].as_bool().unwrap_or(false),
        from: text(&item["from"]),
        used: item["used"].as_u64(),
        remaining: item["remaining"].as_u64(),
        reset_after_us: item["reset_after_us"].as_u64(),
        state: text(&item["state"]),
    };
    Detail {
        identity: text(&value["identity"]).unwrap_or_default(),
        at_us: now_us,
        tier: text(&value["tier"]),
        blocked: entry("blocked"),
        exempt: entry("exempt"),
        limits: items.iter().map(limit).collect(),
        trouble: text(&value["store_error"]),
    }
}
