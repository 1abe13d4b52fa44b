//! A made-up service with a bad evening, decided by the real engine in virtual time: customers,
//! rules, a primary with two replicas and four gateways. No Redis and no gateway are needed.

pub mod scenario;
mod servers;
mod story;
mod telling;

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::FutureExt;

pub use self::story::{BEFORE, STORIES, Story};
use self::story::{Phase, Traffic};
use self::telling::{in_use, is_low, last, rule_of, who};
use super::act::Act;
use super::data::{Detail, Event, Gateway, MAX_WHO, Policy, Rates, Rule, Snapshot, Source};
use crate::engine::clock::Micros;
use crate::engine::config::parse_policy;
use crate::engine::failure::OnFailure;
use crate::engine::identity::Identity;
use crate::engine::limit::{Algorithm, Cost, Decision, Limit};
use crate::engine::limiter::{Demand, Limiter};
use crate::engine::plan::{Attempt, Entry, Override, Standing};
use crate::engine::policy::RuleLimits;
use crate::engine::rules::{Rules, Target};
use crate::engine::store::{Check, MemoryStore, Store};
use crate::gateway::top::Sketch;

/// It all happens on the afternoon of 1 December 2026.
const START: Micros = Micros(1_796_133_600_000_000);
const GATEWAYS: [&str; 4] = ["gw-1", "gw-2", "gw-3", "gw-4"];
const MAX_EVENTS: usize = 60;
/// What `rules diff` would show as the mistake of the story about rules.
const RULES: &str = r#"
default_tier = "free"
[tiers.free]
limits = ["300/1m burst 30"]
[tiers.business]
limits = ["6000/1m burst 300"]
[[rule]]
name = "plan"
dimension = "apikey"
limits = "tier"
[[rule]]
name = "search"
dimension = "apikey"
endpoint = "/v1/search"
limits = ["2400/1m"]
[[rule]]
name = "login"
dimension = "ip"
endpoint = "/login"
limits = ["60/1m"]
on_store_error = "local"
[[rule]]
name = "next-plan"
dimension = "user"
limits = ["40/1m"]
shadow = true
"#;

/// Where the world is, second by second.
#[derive(Debug)]
pub struct Demo {
    story: &'static Story,
    second: u64,
    limiter: Limiter,
    standings: HashMap<String, Standing>,
    /// Rules whose failure mode was set by hand.
    modes: HashMap<String, &'static str>,
    seen: Sketch,
    refused: Sketch,
    events: Vec<Event>,
    phase: Option<&'static str>,
    policy: (u64, Micros),
    carried: HashMap<&'static str, f64>,
}

/// What happened in one second.
#[derive(Default)]
struct Second {
    rates: Rates,
    rules: HashMap<String, Rule>,
}

impl Demo {
    /// The rules are part of the program: they can be read.
    pub fn new(story: &'static Story) -> Option<Demo> {
        let limiter = limiter(RULES)?;
        let mut demo = Demo {
            story,
            second: 0,
            limiter,
            standings: HashMap::new(),
            modes: HashMap::new(),
            seen: Sketch::new(256),
            refused: Sketch::new(64),
            events: Vec::new(),
            phase: None,
            policy: (41, START.saturating_sub(Micros(12 * Micros::DAY.0))),
            carried: HashMap::new(),
        };
        let business: Vec<String> = (0..6).map(|n| format!("apikey:biz-{n}")).collect();
        for name in business {
            let standing = Standing { tier: Some("business".into()), ..Standing::default() };
            demo.standings.insert(name, standing);
        }
        Some(demo)
    }

    pub fn now(&self) -> Micros {
        Micros(START.0 + self.second * Micros::SECOND.0)
    }

    /// One second later.
    pub fn tick(&mut self) -> Snapshot {
        self.second += 1;
        let (phase, into) = self.story.at(self.second);
        self.enter(phase);
        let mut second = Second::default();
        for traffic in phase.traffic {
            self.send(traffic, phase, &mut second);
        }
        self.seen.fade();
        self.refused.fade();
        let snapshot = self.snapshot(phase, into, second);
        self.second_of_events(phase, into);
        snapshot
    }

    /// Something begins: it is told, and rules may be others.
    fn enter(&mut self, phase: &'static Phase) {
        if self.phase == Some(phase.name) {
            return;
        }
        self.phase = Some(phase.name);
        for (level, text) in phase.events {
            self.tell(level, text);
        }
        if let Some((from, to)) = phase.rules
            && let Some(limiter) = limiter(&RULES.replace(from, to))
        {
            self.limiter.rules = limiter.rules;
            self.policy = (self.policy.0 + 1, self.now());
            self.tell("info", &format!("policy version {} is in force", self.policy.0));
        }
        if phase.is_start {
            // The story begins anew, and so does everything that was done to it.
            self.standings.retain(|name, _| name.starts_with("apikey:biz-"));
            for standing in self.standings.values_mut() {
                *standing = Standing { tier: Some("business".into()), ..Standing::default() };
            }
            self.modes.clear();
            if let Some(limiter) = limiter(RULES) {
                self.limiter.rules = limiter.rules;
            }
        }
    }

    fn tell(&mut self, level: &str, text: &str) {
        let event = Event {
            at_us: self.now().0,
            level: level.into(),
            text: text.into(),
            who: None,
            from: String::new(),
        };
        self.events.insert(0, event);
        self.events.truncate(MAX_EVENTS);
    }

    fn second_of_events(&mut self, phase: &'static Phase, into: u64) {
        for (at, level, text) in phase.later {
            if *at == into {
                self.tell(level, text);
            }
        }
    }

    /// The requests of one kind, spread over the second.
    fn send(&mut self, traffic: &'static Traffic, phase: &Phase, second: &mut Second) {
        let carried = self.carried.entry(traffic.name).or_default();
        let wave = 1.0 + 0.08 * (self.second as f64 / 7.0).sin();
        *carried += traffic.per_second * wave;
        let n = carried.floor();
        *carried -= n;
        for k in 0..n as u64 {
            let at = Micros(self.now().0 + k * Micros::SECOND.0 / (n as u64).max(1));
            let Some(identity) = traffic.who(self.second, k) else { continue };
            self.one(&identity, traffic, phase, at, second);
        }
    }

    fn one(
        &mut self,
        identity: &Identity,
        traffic: &Traffic,
        phase: &Phase,
        at: Micros,
        second: &mut Second,
    ) {
        let identities = [identity.clone()];
        let target = Target { path: Some(traffic.path), method: Some("POST"), only: None };
        let attempt = Attempt { identities: &identities, target, tier: None };
        let standing = self.standings.get(identity.as_str()).cloned().unwrap_or_default();
        let demand = Demand { cost: Cost::ONE, idempotency: None, at: Some(at), under_way: None };
        let standings = [standing];
        let asking = self.limiter.check(&attempt, &standings, demand);
        // Memory answers at once.
        let Some(Ok(verdict)) = asking.now_or_never() else { return };
        let rule = rule_of(&verdict);
        // Only what asks the store is decided without it.
        let mode = self.mode_of(&rule).filter(|_| phase.is_away && !rule.starts_with('('));
        let is_open = mode == Some("open");
        let refused = !verdict.allowed && !is_open;
        let would = verdict.shadow.iter().any(|shadow| !shadow.allowed);
        match mode {
            Some("open") => second.rates.open += 1.0,
            Some("closed") => second.rates.closed += 1.0,
            Some(_) => second.rates.local += 1.0,
            None => {}
        }
        let tally = second.rules.entry(rule.clone()).or_default();
        if refused {
            tally.rejected += 1.0;
            second.rates.rejected += 1.0;
        } else {
            tally.allowed += 1.0;
            second.rates.allowed += 1.0;
        }
        tally.degraded += if mode.is_some() { 1.0 } else { 0.0 };
        if would {
            second.rates.shadow += 1.0;
            second.rules.entry("next-plan".into()).or_default().shadow += 1.0;
        }
        let last = last(&verdict, rule, refused, traffic.path, at);
        self.seen.record(identity, 1.0, last.clone());
        if refused {
            self.refused.record(identity, 1.0, last);
        }
    }

    /// What becomes of a rule's requests while the store is away.
    fn mode_of(&self, rule: &str) -> Option<&'static str> {
        if let Some(mode) = self.modes.get(rule).filter(|mode| **mode != "policy") {
            return Some(mode);
        }
        let policy = self.limiter.rules.policy();
        Some(policy.rule(rule).map_or("open", |rule| rule.on_store_error.name()))
    }

    fn snapshot(&self, phase: &Phase, into: u64, second: Second) -> Snapshot {
        let now = self.now();
        let ranked = |sketch: &Sketch| sketch.top(MAX_WHO).iter().map(who).collect::<Vec<_>>();
        let heard = Source { name: "the demo".into(), heard_us: Some(now.0), trouble: None };
        let p99 = phase.latency_us(into);
        let shards = servers::shards(self.story, phase, into, now, second.rates.all());
        Snapshot {
            at_us: now.0,
            sources: vec![heard],
            p50_us: Some(p99 / 4),
            p99_us: Some(p99),
            gateways: self.gateways(phase, &second.rates, p99),
            rules: self.rules(second.rules),
            rejected: ranked(&self.refused),
            seen: ranked(&self.seen),
            shards,
            policy: Policy {
                version: Some(self.policy.0),
                hash: Some(format!("{:08x}", self.policy.0 * 0x9e37_79b9)),
                source: Some("rules.toml".into()),
                changed_us: Some(self.policy.1.0),
                ..Policy::default()
            },
            events: self.events.clone(),
            quotas_warning: self.seen.top(MAX_WHO).iter().filter(|r| is_low(r)).count() as u64,
            quotas_throttled: self.refused.len() as u64,
            caption: Some(phase.caption.into()),
            rates: second.rates,
            ..Snapshot::default()
        }
    }

    /// Requests are spread evenly over them.
    fn gateways(&self, phase: &Phase, rates: &Rates, p99: u64) -> Vec<Gateway> {
        let part = 1.0 / GATEWAYS.len() as f64;
        let each = Rates {
            allowed: rates.allowed * part,
            rejected: rates.rejected * part,
            observed: rates.observed * part,
            shadow: rates.shadow * part,
            open: rates.open * part,
            closed: rates.closed * part,
            local: rates.local * part,
        };
        let of = |(n, id): (usize, &&str)| Gateway {
            id: (*id).into(),
            source: "the demo".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            ready: true,
            rates: each,
            p50_us: Some(p99 / 4),
            p99_us: Some(p99 + 13 * n as u64),
            policy_version: Some(self.policy.0),
            degraded_since_us: phase
                .is_away
                .then(|| phase.began_us(self.story, self.second, START)),
            clock_us: Some(n as i64 * 900 - 1_100),
            live: true,
            ..Gateway::default()
        };
        GATEWAYS.iter().enumerate().map(of).collect()
    }

    fn rules(&self, tallies: HashMap<String, Rule>) -> Vec<Rule> {
        let policy = self.limiter.rules.policy();
        let mut rules: Vec<Rule> = policy
            .rules
            .iter()
            .map(|rule| Rule {
                name: rule.name.clone(),
                is_shadow: rule.shadow,
                on_store_error: self.mode_of(&rule.name).map(String::from),
                limits: match &rule.limits {
                    RuleLimits::OfTier => vec!["by tier".into()],
                    RuleLimits::Own(own) => own.iter().map(|s| s.limit.to_string()).collect(),
                },
                ..tallies.get(&rule.name).cloned().unwrap_or_default()
            })
            .collect();
        rules.sort_by(|a, b| b.rejected.total_cmp(&a.rejected));
        rules
    }

    /// Every limit of somebody, looked at without taking anything.
    pub fn detail(&self, name: &str) -> Detail {
        let mut detail = Detail { identity: name.into(), at_us: self.now().0, ..Detail::default() };
        let Ok(identity) = name.parse::<Identity>() else {
            detail.trouble = Some("that is not an identity; write user:123".into());
            return detail;
        };
        let standing = self.standings.get(name).cloned().unwrap_or_default();
        let tier = standing.tier.clone().unwrap_or_else(|| "free".into());
        detail.blocked = standing.block.as_ref().map(|entry| entry.reason.clone());
        for applied in self.limiter.rules.anywhere(&identity, Some(&tier), None) {
            let overridden = standing.overrides.iter().find(|o| o.rule == applied.rule.name);
            let own = applied.limits(Some(&tier));
            for limit in own.iter() {
                let limit = match overridden.and_then(|o| o.limits.first()) {
                    Some(other) => Arc::new((**limit).clone().with_limit(*other)),
                    None => limit.clone(),
                };
                let decision = self.peek(&identity, &limit);
                let from = overridden.map_or(applied.rule.place.to_string(), |o| {
                    format!("an override: {}", o.reason)
                });
                detail.limits.push(in_use(&limit, applied.rule.shadow, from, decision.as_ref()));
            }
        }
        detail.tier = Some(tier);
        detail
    }

    fn peek(
        &self,
        identity: &Identity,
        limit: &Arc<crate::engine::store::RuleLimit>,
    ) -> Option<Decision> {
        let limits = [limit.clone()];
        let check = Check {
            identity,
            limits: &limits,
            cost: Cost::PEEK,
            idempotency: None,
            at: Some(Micros(self.now().0 + Micros::SECOND.0 - 1)),
        };
        let answer = self.limiter.store.check(&check).now_or_never()?.ok()?;
        answer.decisions.first().copied()
    }

    /// Does it, in the world that is made up.
    pub fn act(&mut self, act: &Act) -> Result<String, String> {
        let until = Some(Micros(self.now().0 + 15 * Micros::MINUTE.0));
        let reason = "from the dashboard".to_string();
        match act {
            Act::Reset { identity, rule } => {
                let who = identity.parse::<Identity>().map_err(|e| e.to_string())?;
                let reset = self.limiter.store.reset(&who, rule.as_deref()).now_or_never();
                let n = reset.and_then(Result::ok).unwrap_or(0);
                self.tell("info", &format!("reset of {identity} by you"));
                Ok(format!("{n} limits are whole again"))
            }
            Act::Block { identity } => {
                let entry = Entry { reason, until, whole_request: true, place: None };
                self.standings.entry(identity.clone()).or_default().block = Some(entry);
                self.tell("info", &format!("{identity} was blocked by you"));
                Ok("it is blocked for 15m".into())
            }
            Act::Override { identity, rule, limit } => {
                let quota = limit.parse().map_err(|_| "that is not a limit".to_string())?;
                let limit = Limit::new(Algorithm::TokenBucket, quota).map_err(|e| e.to_string())?;
                let entry = Override { rule: rule.clone(), limits: vec![limit], until, reason };
                self.standings.entry(identity.clone()).or_default().overrides.push(entry);
                self.tell("info", &format!("{identity} has {limit} by you"));
                Ok(format!("its limit is {limit} for 15m"))
            }
            Act::Mode { rule, mode } => {
                self.modes.insert(rule.clone(), mode);
                self.tell("warning", &format!("rule {rule} was set to fail {mode} by you"));
                Ok(format!("rule {rule} fails {mode} from now on"))
            }
        }
    }
}

fn limiter(rules: &str) -> Option<Limiter> {
    let (policy, _) = parse_policy("rules.toml", rules, START).ok()?;
    Some(Limiter {
        rules: Arc::new(Rules::new(Arc::new(policy))),
        store: Arc::new(Store::Memory(MemoryStore::new(100_000))),
        on_failure: OnFailure::Tell,
        hot: None,
    })
}
