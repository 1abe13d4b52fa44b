//! All that a dashboard needs, as JSON: what is going on now, since when, who and which rule.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use super::Gateway;
use super::counters::Mode;
use super::history::{History, Second, Tally};
use super::stats::{By, Stats, lock};
use super::top::Ranked;
use crate::engine::clock::Micros;
use crate::engine::histogram::Counts;
use crate::engine::hot::HotKey;
use crate::engine::policy::{Rule, RuleLimits};
use crate::engine::store::redis::Shard;
use crate::output::SCHEMA;

/// Rows of each list, if nobody asks for more.
pub(super) const ROWS: usize = 20;
/// Limits of a rule that are told.
const LIMITS: usize = 8;
const EVENTS: usize = 50;

impl Stats {
    pub fn snapshot(&self, gateway: &Gateway, now: Micros) -> Value {
        self.snapshot_of(gateway, now, ROWS)
    }

    /// With so many rows of who stands out.
    pub fn snapshot_of(&self, gateway: &Gateway, now: Micros, rows: usize) -> Value {
        let kept = lock(&self.history);
        let (second, ten) = (kept.last(1), kept.last(10));
        let history = in_columns(&kept);
        drop(kept);
        let (warning, throttled) = lock(&gateway.watch).by_state();
        let top = |by| self.top(by, None, rows).iter().map(Ranked::to_json).collect::<Value>();
        let load = |n: &std::sync::atomic::AtomicU64| n.load(Ordering::Relaxed);
        json!({
            "schema": SCHEMA,
            "at_us": now.0,
            "gateway": gateway.about.id,
            "version": gateway.about.version,
            "uptime_us": now.saturating_sub(self.started).0,
            "ready": gateway.is_ready(),
            "rates": { "last_second": rates(&second), "last_10_seconds": rates(&ten) },
            "degraded_since_us": self.degraded_since().map(|since| since.0),
            "decision": latency(&ten.took),
            "upstream": latency(&self.upstream.counts()),
            "rules": rules(gateway, &ten),
            "store": stores(gateway, &ten),
            "policy": policy(gateway, now),
            "observe_only": gateway.limiter.view.snapshot().switches.observe.is_some(),
            "quotas": { "warning": warning, "throttled": throttled },
            "top_rejected": top(By::Rejected),
            "top_seen": top(By::Seen),
            "top_identity_share": self.top_share(),
            "hot_keys": gateway.hot_keys().iter().map(hot_key).collect::<Value>(),
            "inflight": self.inflight.sum(),
            "shed": load(&self.shed),
            "clock_jumps": load(&self.clock_jumps),
            "log_dropped": self.log().map_or(0, super::log::Log::dropped),
            "gateways": &*lock(&self.members),
            "events": lock(&self.events).latest(EVENTS),
            "history": history,
        })
    }

    /// Since when decisions are taken without the store, if they are.
    pub fn degraded_since(&self) -> Option<Micros> {
        lock(&self.noticed).degraded_since()
    }

    /// What a rule decided, second by second, as far back as is kept.
    pub fn usage(&self, rule: &str, from: Micros, to: Micros) -> Vec<(Micros, Tally)> {
        let kept = lock(&self.history);
        let within = kept.seconds().filter(|second| second.at >= from && second.at <= to);
        let of_rule = |second: &Second| {
            let found = second.rules.iter().find(|(known, _)| *known.name == *rule);
            (second.at, found.map_or_else(Tally::default, |(_, tally)| *tally))
        };
        within.map(of_rule).collect()
    }
}

impl Ranked {
    pub fn to_json(&self) -> Value {
        json!({
            "identity": self.identity.as_str(),
            "per_second": self.per_second,
            "share": self.share,
            "weight": self.weight,
            "too_high_by": self.too_high_by,
            "rule": &*self.last.rule,
            "reason": self.last.outcome.name(),
            "limit": self.last.limit.as_ref().map(|limit| limit.limit().to_string()),
            "used": self.last.used,
            "retry_after_us": self.last.retry_after.map(|wait| wait.0),
            "endpoint": self.last.endpoint,
            "since_us": self.since.0,
            "last_us": self.last.at.0,
        })
    }
}

fn hot_key(hot: &HotKey) -> Value {
    json!({
        "identity": hot.identity.as_str(),
        "rules": hot.rules,
        "per_second": hot.rate_of_all,
        "per_second_here": hot.rate,
        "held": hot.held,
        "since_us": hot.since.0,
    })
}

fn rates(second: &Second) -> Value {
    let rate = |count: u32| second.rate(u64::from(count));
    let Tally { allowed, rejected, shadow, degraded } = second.tally;
    let modes = Mode::ALL.map(|mode| (mode.name(), second.rate(second.modes[mode as usize])));
    json!({
        // Each request once; a shadow rule's refusal stands beside what was decided.
        "decided": second.rate(second.took.total()),
        "allowed": rate(allowed),
        "rejected": rate(rejected),
        "shadow_rejected": rate(shadow),
        "degraded": rate(degraded),
        "modes": modes.into_iter().collect::<std::collections::BTreeMap<_, _>>(),
    })
}

/// The busiest refusers first.
fn rules(gateway: &Gateway, ten: &Second) -> Value {
    let current = gateway.limiter.policy.current();
    let mut rules: Vec<_> = ten.rules.iter().collect();
    rules.sort_by_key(|(_, tally)| std::cmp::Reverse((tally.rejected, tally.all())));
    let of = |(rule, tally): &(std::sync::Arc<super::counters::RuleStats>, Tally)| {
        let rate = |count: u32| ten.rate(u64::from(count));
        let known = current.as_ref().and_then(|current| current.rules.policy().rule(&rule.name));
        let limits = |rule: &Rule| match &rule.limits {
            RuleLimits::OfTier => vec!["by tier".to_string()],
            RuleLimits::Own(own) => {
                own.iter().take(LIMITS).map(|spec| spec.limit.to_string()).collect()
            }
        };
        json!({
            "rule": &*rule.name,
            "shadow": known.is_some_and(|rule| rule.shadow),
            "on_store_error": known.map(|rule| rule.on_store_error.name()),
            "limits": known.map(limits).unwrap_or_default(),
            "allowed": rate(tally.allowed),
            "rejected": rate(tally.rejected),
            "shadow_rejected": rate(tally.shadow),
            "degraded": rate(tally.degraded),
        })
    };
    rules.into_iter().take(ROWS).map(of).collect()
}

fn stores(gateway: &Gateway, ten: &Second) -> Value {
    let store = &gateway.limiter.store;
    let none = Counts::default();
    let of = |shard: &Shard| {
        let (name, meter) = (&*shard.name, &shard.meter);
        let recent = ten.replies.iter().find(|(known, _)| known == name);
        let down_since = meter.down_since();
        json!({
            "shard": name,
            "latency": latency(recent.map_or(&none, |(_, counts)| counts)),
            "breaker": shard.breaker.state.name(),
            "breaker_lasted_us": shard.breaker.lasted.0,
            "breaker_opened": shard.breaker.opened,
            "down_since_us": down_since.map(|since| since.0),
            "trouble": shard.trouble.as_ref().map(ToString::to_string),
            "errors": meter.errors().filter(|(_, n)| *n > 0)
                .collect::<std::collections::BTreeMap<_, _>>(),
            "unknown": meter.unknown(),
            "connections": meter.connections(),
            "failovers": meter.failovers(),
        })
    };
    store.shards().iter().map(of).collect()
}

fn policy(gateway: &Gateway, now: Micros) -> Value {
    let status = gateway.limiter.policy.status();
    let loaded = status.loaded.as_deref();
    json!({
        "version": loaded.map(|loaded| loaded.version),
        "hash": loaded.map(|loaded| loaded.short_hash()),
        "source": loaded.map(|loaded| loaded.source.to_string()),
        "age_us": loaded.map(|loaded| now.saturating_sub(loaded.at).0),
        "refusals": status.refusals,
        "refused": status.refused.as_ref().map(|refused| json!({
            "why": refused.why.to_string(), "at_us": refused.at.0,
        })),
        "trouble": status.trouble.as_ref().map(|trouble| json!({
            "why": trouble.why, "since_us": trouble.since.0,
        })),
    })
}

fn latency(counts: &Counts) -> Value {
    let at = |share| counts.quantile(share).map(|took| took.0);
    json!({ "count": counts.total(), "p50_us": at(0.5), "p99_us": at(0.99) })
}

/// Five minutes for sparklines, oldest first: one list for each figure keeps it short.
fn in_columns(history: &History) -> Value {
    let column = |of: &dyn Fn(&Second) -> Value| history.seconds().map(of).collect::<Value>();
    let rate = |second: &Second, count: u32| json!(second.rate(u64::from(count)).round());
    json!({
        "at_us": column(&|second| json!(second.at.0)),
        "allowed": column(&|second| rate(second, second.tally.allowed)),
        "rejected": column(&|second| rate(second, second.tally.rejected)),
        "degraded": column(&|second| rate(second, second.tally.degraded)),
        "p99_us": column(&|second| json!(second.took.quantile(0.99).map(|took| took.0))),
    })
}
