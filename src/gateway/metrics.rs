//! What is counted, in the text format of Prometheus (0.0.4). Labels are names of rules and of
//! servers, and words from here: never an identity, so their number is bounded by the policy.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Gateway;
use super::counters::{Counted, Mode};
use super::stats::Stats;
use crate::engine::breaker::State;
use crate::engine::clock::Micros;
use crate::engine::histogram::{BOUNDS_US, Counts};
use crate::engine::limit::QuotaState;
use crate::engine::store::redis::{Meter, Shard};
use crate::engine::store::{MemoryStore, One, Store};

impl Stats {
    pub fn metrics(&self, gateway: &Gateway, now: Micros) -> String {
        let mut text = Text::default();
        self.decisions(&mut text);
        stores(&mut text, &gateway.limiter.store);
        memory(&mut text, gateway);
        policy(&mut text, gateway, now);
        self.requests(&mut text, gateway);
        self.about(&mut text, gateway);
        text.0
    }

    fn decisions(&self, text: &mut Text) {
        let mut rules: Vec<_> =
            self.rules.all().into_iter().map(|rule| (rule.counts(), rule)).collect();
        rules.sort_by(|(_, a), (_, b)| a.name.cmp(&b.name));
        let is_used = |counts: &super::counters::Counts| counts.iter().flatten().any(|n| *n > 0);
        let used = || rules.iter().filter(|(counts, _)| is_used(counts));
        text.family(
            "rlctl_decisions_total",
            "counter",
            "Decisions by rule, outcome and who decided: the store, this process by what it had from there, or a failure mode.",
        );
        for (counts, rule) in used() {
            for outcome in Counted::ALL {
                for mode in Mode::ALL {
                    let count = counts[outcome as usize][mode as usize];
                    // Both are always there to compare with; the others once they happen.
                    let usual = mode == Mode::Store && outcome != Counted::ShadowRejected;
                    if count > 0 || usual {
                        let labels = [
                            ("rule", &*rule.name),
                            ("outcome", outcome.name()),
                            ("mode", mode.name()),
                        ];
                        text.sample("rlctl_decisions_total", &labels, count);
                    }
                }
            }
        }
        let name = "rlctl_concurrency_rejected_total";
        text.family(name, "counter", "Refused because too much of one identity was under way.");
        for (_, rule) in used() {
            let busy = rule.busy.load(Ordering::Relaxed);
            if busy > 0 {
                text.sample(name, &[("rule", &rule.name)], busy);
            }
        }
        let name = "rlctl_replicas_total";
        text.family(name, "counter", "Charges that a rule waits for replicas with, by what came.");
        for (_, rule) in used() {
            let [confirmed, short] = rule.replicas.each_ref().map(|n| n.load(Ordering::Relaxed));
            if confirmed + short > 0 {
                for (outcome, count) in [("confirmed", confirmed), ("short", short)] {
                    text.sample(name, &[("rule", &rule.name), ("outcome", outcome)], count);
                }
            }
        }
        text.family("rlctl_decision_seconds", "histogram", "Time that a decision took, by rule.");
        for (_, rule) in used() {
            text.histogram("rlctl_decision_seconds", &[("rule", &rule.name)], &rule.took.counts());
        }
    }

    fn requests(&self, text: &mut Text, gateway: &Gateway) {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        text.one(
            "rlctl_top_identity_share",
            "gauge",
            "Share of requests that the busiest identity surely has; half of it is the last minute.",
            self.top_share(),
        );
        text.family("rlctl_quotas", "gauge", "Quotas close to or at their end, as far as watched.");
        let (warning, throttled) = super::stats::lock(&gateway.watch).by_state();
        text.sample("rlctl_quotas", &[("state", "warning")], warning);
        text.sample("rlctl_quotas", &[("state", "throttled")], throttled);
        text.one(
            "rlctl_hot_keys",
            "gauge",
            "Keys that are asked about so often that this process decides by leases.",
            gateway.hot_keys().len(),
        );
        let name = "rlctl_quota_transitions_total";
        text.family(name, "counter", "Quotas that came into a state.");
        let states = [QuotaState::Normal, QuotaState::Warning, QuotaState::Throttled];
        for (state, count) in states.iter().zip(&self.transitions) {
            text.sample(name, &[("to", state.name())], load(count));
        }
        text.one(
            "rlctl_clock_jump_total",
            "counter",
            "Decisions by a bucket whose last charge lay in the future, so that it started whole.",
            load(&self.clock_jumps),
        );
        text.one(
            "rlctl_inflight",
            "gauge",
            "Requests that are being answered.",
            self.inflight.sum(),
        );
        text.one(
            "rlctl_shed_total",
            "counter",
            "Requests turned away because of too much work.",
            load(&self.shed),
        );
        let name = "rlctl_upstream_seconds";
        text.family(name, "histogram", "Time until an upstream began to answer.");
        text.histogram(name, &[], &self.upstream.counts());
        text.one(
            "rlctl_log_dropped_total",
            "counter",
            "Log lines that were not written: too many violations in a second, or too slow a disk.",
            self.log().map_or(0, super::log::Log::dropped),
        );
    }

    fn about(&self, text: &mut Text, gateway: &Gateway) {
        text.family("rlctl_build_info", "gauge", "Always 1; the version is its label.");
        text.sample("rlctl_build_info", &[("version", gateway.about.version)], 1);
        let started = self.started.0 as f64 / Micros::SECOND.0 as f64;
        text.one("rlctl_start_time_seconds", "gauge", "When this process began.", started);
        text.one(
            "rlctl_ready",
            "gauge",
            "1 when requests should be sent here.",
            u8::from(gateway.is_ready()),
        );
        text.one(
            "rlctl_gateways",
            "gauge",
            "Gateways that share the limits, as last heard.",
            gateway.local.gateways(),
        );
    }
}

fn stores(text: &mut Text, store: &Store) {
    let shards = store.shards();
    if shards.is_empty() {
        return;
    }
    text.family(
        "rlctl_store_seconds",
        "histogram",
        "Time of store calls. timeout: the caller gave up; late: when its reply then came.",
    );
    for Shard { name: shard, meter, .. } in &shards {
        for (outcome, counts) in meter.times() {
            let labels = [("shard", &**shard), ("outcome", outcome)];
            text.histogram("rlctl_store_seconds", &labels, &counts);
        }
    }
    let name = "rlctl_store_errors_total";
    text.family(name, "counter", "Store calls that failed, by what with.");
    for Shard { name: shard, meter, .. } in &shards {
        for (kind, count) in meter.errors() {
            text.sample(name, &[("shard", shard), ("kind", kind)], count);
        }
    }
    let mut each = |name: &str, kind: &str, help: &str, of: &dyn Fn(&Meter) -> u64| {
        text.family(name, kind, help);
        for Shard { name: shard, meter, .. } in &shards {
            text.sample(name, &[("shard", shard)], of(meter));
        }
    };
    each(
        "rlctl_store_unknown_total",
        "counter",
        "Store calls that may or may not have been counted.",
        &Meter::unknown,
    );
    each(
        "rlctl_store_connections_total",
        "counter",
        "Connections made to the store; more than one means that some were lost.",
        &Meter::connections,
    );
    each(
        "rlctl_failovers_total",
        "counter",
        "Times that a replica took the place of a master.",
        &Meter::failovers,
    );
    each("rlctl_store_up", "gauge", "1 while there is a connection.", &|meter| {
        u64::from(meter.down_since().is_none())
    });
    let name = "rlctl_breaker_state";
    text.family(
        name,
        "gauge",
        "0: calls are made; 1: one at a time; 2: none, it failed too often.",
    );
    for Shard { name: shard, breaker, .. } in &shards {
        let state = match breaker.state {
            State::Closed => 0,
            State::HalfOpen => 1,
            State::Open => 2,
        };
        text.sample(name, &[("shard", shard)], state);
    }
    let name = "rlctl_breaker_opened_total";
    text.family(name, "counter", "Times that a server failed so often that it was left alone.");
    for Shard { name: shard, breaker, .. } in &shards {
        text.sample(name, &[("shard", shard)], breaker.opened);
    }
    let name = "rlctl_replication_lag_seconds";
    text.family(
        name,
        "gauge",
        "How far the farthest replica is behind; 1 or more: at least so far.",
    );
    for Shard { name: shard, meter, .. } in &shards {
        if let Some(lag) = meter.replication_lag() {
            text.sample(name, &[("shard", shard)], lag.0 as f64 / 1e6);
        }
    }
    let name = "rlctl_sentinel_quorum";
    text.family(name, "gauge", "1 while enough sentinels agree that a failover is possible.");
    for Shard { name: shard, meter, .. } in &shards {
        if let Some(is_there) = meter.sentinel_quorum() {
            text.sample(name, &[("shard", shard)], u64::from(is_there));
        }
    }
    let name = "rlctl_redirects_total";
    text.family(name, "counter", "Calls that a cluster sent from one server to another.");
    for (kind, count) in store.redirects() {
        text.sample(name, &[("kind", kind)], count);
    }
}

fn memory(text: &mut Text, gateway: &Gateway) {
    let mut stores: Vec<(&str, &MemoryStore)> = Vec::new();
    if let One::Memory(store) = gateway.limiter.store.one() {
        stores.push(("memory", store));
    }
    stores.push(("local", gateway.local.store()));
    let name = "rlctl_identities";
    text.family(name, "gauge", "Identities held in memory; local: while the store is away.");
    for (label, store) in &stores {
        text.sample(name, &[("store", label)], store.identities());
    }
    let name = "rlctl_overflow_total";
    text.family(name, "counter", "Charges to a shared bucket, because memory was full.");
    for (label, store) in &stores {
        text.sample(name, &[("store", label)], store.overflowed());
    }
}

fn policy(text: &mut Text, gateway: &Gateway, now: Micros) {
    let status = gateway.limiter.policy.status();
    if let Some(loaded) = &status.loaded {
        text.one("rlctl_policy_version", "gauge", "Version in force.", loaded.version);
        let age = now.saturating_sub(loaded.at).0 as f64 / Micros::SECOND.0 as f64;
        text.one("rlctl_policy_age_seconds", "gauge", "For how long it is in force.", age);
    }
    text.one(
        "rlctl_policy_refused_total",
        "counter",
        "Policies that could not be used; what was in force stayed.",
        status.refusals,
    );
    text.one(
        "rlctl_policy_trouble",
        "gauge",
        "1 while the newest policy is refused, or cannot be read.",
        u8::from(status.refused.is_some() || status.trouble.is_some()),
    );
}

#[derive(Default)]
struct Text(String);

// Writing to a string cannot fail.
impl Text {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        self.0.push_str(name);
        for (n, (label, value)) in labels.iter().enumerate() {
            let _ = write!(self.0, "{}{label}=\"", if n == 0 { '{' } else { ',' });
            self.label_value(value);
            self.0.push('"');
        }
        let _ = writeln!(self.0, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }

    fn label_value(&mut self, value: &str) {
        for c in value.chars() {
            match c {
                '\\' => self.0.push_str("\\\\"),
                '"' => self.0.push_str("\\\""),
                '\n' => self.0.push_str("\\n"),
                c => self.0.push(c),
            }
        }
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: impl std::fmt::Display) {
        self.family(name, kind, help);
        self.sample(name, &[], value);
    }

    fn histogram(&mut self, name: &str, labels: &[(&str, &str)], counts: &Counts) {
        let bucket = format!("{name}_bucket");
        let mut below = 0;
        for (n, count) in counts.buckets.iter().enumerate() {
            below += count;
            let bound = BOUNDS_US.get(n).map_or_else(|| "+Inf".into(), |us| seconds(*us));
            let with_bound: Vec<_> = labels.iter().copied().chain([("le", &*bound)]).collect();
            self.sample(&bucket, &with_bound, below);
        }
        self.sample(&format!("{name}_sum"), labels, seconds(counts.sum_us));
        self.sample(&format!("{name}_count"), labels, below);
    }
}

fn seconds(us: u64) -> String {
    (us as f64 / Micros::SECOND.0 as f64).to_string()
}
