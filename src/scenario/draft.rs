//! One file of a scenario, from its tree to typed parts. What only the whole can tell (names that
//! others use, the end of the run) is looked at in `whole.rs`.

mod traffic;

use std::path::Path;
use std::sync::Arc;

use super::files;
use super::format;
use super::model::{
    ArrivalPart, Client, Expectation, IdempotencyPart, KeyPart, Kind, Spot, StorePart,
};
use crate::engine::clock::Micros;
use crate::engine::config::limiter;
use crate::engine::config::read::{At, check_table, did_you_mean};
use crate::engine::config::source::{Findings, Span};
use crate::engine::config::tree::{Node, Table, Value};
use crate::engine::identity::Identity;
use crate::engine::limit::{Algorithm, Cost, Limit};
use crate::engine::policy::{Breaker, OnStoreError, Policy, Rule};
use crate::engine::units;
use crate::expect;

/// What one file says; a file that imports others adds to what they say.
#[derive(Clone, Debug, Default)]
pub(super) struct Draft {
    pub(super) name: Option<String>,
    pub(super) description: Option<String>,
    pub(super) tags: Vec<String>,
    pub(super) seed: Option<u64>,
    pub(super) run: Option<Micros>,
    pub(super) clock: Option<String>,
    pub(super) store: Option<StorePart>,
    pub(super) traffic: Vec<TrafficDraft>,
    pub(super) limiters: Vec<LimiterDraft>,
    pub(super) faults: Vec<FaultDraft>,
    pub(super) changes: Vec<ChangeDraft>,
    pub(super) expectations: Vec<(Expectation, Spot)>,
}

#[derive(Clone, Debug)]
pub(super) struct TrafficDraft {
    pub(super) spot: Spot,
    pub(super) name: Option<String>,
    pub(super) at: Micros,
    pub(super) lasts: Option<Micros>,
    pub(super) arrivals: ArrivalPart,
    pub(super) keys: KeyPart,
    pub(super) cost: Cost,
    pub(super) takes: Option<(Micros, Spot)>,
    pub(super) endpoint: Option<String>,
    pub(super) method: Option<String>,
    pub(super) tier: Option<(String, Spot)>,
    pub(super) client: Client,
    pub(super) idempotency: Option<IdempotencyPart>,
}

#[derive(Clone, Debug)]
pub(super) struct LimiterDraft {
    pub(super) name: String,
    pub(super) decides: Decides,
    pub(super) nodes: usize,
    pub(super) skew: Vec<i64>,
    pub(super) breaker: Option<(Breaker, Spot)>,
    /// Where it says how many requests may be under way.
    pub(super) concurrency: Option<Spot>,
    pub(super) on_store_error: Option<OnStoreError>,
}

/// What a limiter decides by.
#[derive(Clone, Debug)]
pub(super) enum Decides {
    Rule(Box<Rule>),
    Policy(Arc<Policy>),
}

#[derive(Clone, Debug)]
pub(super) struct FaultDraft {
    pub(super) spot: Spot,
    pub(super) name: Option<String>,
    pub(super) at: Micros,
    pub(super) lasts: Option<Micros>,
    pub(super) on: (String, Spot),
    pub(super) effect: (String, Spot),
    pub(super) rate: Option<f64>,
    pub(super) lose: Option<(Micros, Spot)>,
    pub(super) by: Option<(String, Spot)>,
}

#[derive(Clone, Debug)]
pub(super) struct ChangeDraft {
    pub(super) spot: Spot,
    pub(super) name: Option<String>,
    pub(super) at: Micros,
    pub(super) limiter: Option<(String, Spot)>,
    pub(super) what: ChangeDraftWhat,
}

#[derive(Clone, Debug)]
pub(super) enum ChangeDraftWhat {
    Limit { text: String, algorithm: Option<Algorithm>, burst: Option<u64>, spot: Spot },
    Rules(Arc<Policy>),
    Tier { key: Identity, tier: String, spot: Spot },
    Override { key: Identity, rule: Option<String>, limit: Limit },
    Block(Identity),
}

/// What a limiter says of its one rule, and a rules file of each of its own.
const RULE_KEYS: [&str; 13] = [
    "limit",
    "limits",
    "algorithm",
    "burst",
    "max_delay",
    "cost",
    "endpoint",
    "methods",
    "on_change",
    "shadow",
    "local_share",
    "hot",
    "concurrency",
];

/// Reads the tree of one file.
pub(super) struct Drafter<'r, 't> {
    pub(super) file: usize,
    /// Paths in the file count from here.
    pub(super) folder: &'r Path,
    pub(super) findings: &'r mut Findings<'t>,
}

impl<'t> Drafter<'_, 't> {
    pub(super) fn draft(mut self, root: &Node<'t>) -> Draft {
        let Some(table) = root.table() else {
            let hint = "e.g. { \"name\": …, \"traffic\": [ … ] }";
            self.findings.error(root.span, "a scenario is a table", hint);
            return Draft::default();
        };
        check_table(table, root.span, &format::FILE, self.findings);
        let store = table.table("store").map(|store| self.store(store));
        let limiters = table.table("limiter").map(|all| self.limiters(all)).unwrap_or_default();
        let traffic = self.each(table, "traffic", Self::traffic);
        let faults = self.each(table, "fault", Self::fault);
        let changes = self.each(table, "change", Self::change);
        let expectations =
            table.table("expect").map(|all| self.expectations(all)).unwrap_or_default();
        let text = |key: &str| table.text(key).map(|text| text.it.to_owned());
        Draft {
            name: text("name"),
            description: text("description"),
            tags: table.texts("tags").map(|tag| tag.it.to_owned()).collect(),
            seed: table.count("seed").map(|seed| seed.it),
            run: table.duration("run"),
            clock: text("clock"),
            store,
            traffic,
            limiters,
            faults,
            changes,
            expectations,
        }
    }

    fn spot(&self, span: Span) -> Spot {
        Spot { file: self.file, span }
    }

    fn located(&self, text: At<&str>) -> (String, Spot) {
        (text.it.to_owned(), self.spot(text.span))
    }

    fn each<T>(
        &mut self,
        file: &Table<'t>,
        key: &str,
        read: impl Fn(&mut Self, &Table<'t>, Span) -> Option<T>,
    ) -> Vec<T> {
        let nodes = file.list(key).iter();
        nodes.filter_map(|node| read(self, node.table()?, node.span)).collect()
    }

    fn store(&mut self, table: &Table<'t>) -> StorePart {
        let usual = StorePart::default();
        let kind = match table.text("kind").map(|kind| kind.it) {
            Some("redis") => Kind::Redis,
            Some("redis-sentinel") => Kind::Sentinel,
            Some("redis-cluster") => Kind::Cluster,
            _ => Kind::Memory,
        };
        for key in
            ["shards", "replicas", "latency", "deadline", "replication_lag", "failover_after"]
        {
            if let (Kind::Memory, Some(entry)) = (kind, table.get(key)) {
                let message = format!("a memory store has no `{key}`: it answers at once");
                self.findings.error(
                    entry.key_span,
                    message,
                    "write kind = \"redis\", or leave it out",
                );
            }
        }
        if let (Some(shards), Kind::Redis | Kind::Sentinel) = (table.count("shards"), kind)
            && shards.it > 1
        {
            let message = format!("{} has one shard", kind.name());
            self.findings.error(shards.span, message, "write kind = \"redis-cluster\"");
        }
        if let (Some(replicas), Kind::Redis) = (table.count("replicas"), kind) {
            let hint = "write kind = \"redis-sentinel\" or \"redis-cluster\"";
            self.findings.error(replicas.span, "a single redis has no replicas", hint);
        }
        let latency = table.text("latency").and_then(|text| self.latency(text));
        let (latency, jitter) = latency.unwrap_or((usual.latency, usual.jitter));
        let count = |key: &str, usual: usize| table.count(key).map_or(usual, |n| n.it as usize);
        let duration = |key: &str, usual: Micros| table.duration(key).unwrap_or(usual);
        StorePart {
            kind,
            shards: count("shards", if kind == Kind::Cluster { 3 } else { 1 }),
            replicas: count("replicas", usize::from(kind != Kind::Redis && kind != Kind::Memory)),
            latency,
            jitter,
            deadline: duration("deadline", usual.deadline),
            replication_lag: duration("replication_lag", usual.replication_lag),
            failover_after: duration("failover_after", usual.failover_after),
        }
    }

    /// `300us`, `300us +-100us`.
    fn latency(&mut self, text: At<&str>) -> Option<(Micros, Micros)> {
        let (mean, jitter) = text.it.split_once("+-").unwrap_or((text.it, "0us"));
        let read = |part: &str| units::parse_duration(part.trim());
        match (read(mean), read(jitter)) {
            (Ok(mean), Ok(jitter)) if jitter <= mean && mean <= Micros::MINUTE => {
                Some((mean, jitter))
            }
            (Ok(_), Ok(_)) => {
                let message = format!("`{}` is out of range", text.it);
                let hint = "at most 1m, and the jitter no more than the latency";
                self.findings.error(text.span, message, hint);
                None
            }
            _ => {
                let message = format!("`{}` is not a latency", text.it);
                self.findings.error(text.span, message, "e.g. latency = \"300us +-100us\"");
                None
            }
        }
    }

    fn limiters(&mut self, all: &Table<'t>) -> Vec<LimiterDraft> {
        let each = all.entries.iter();
        each.filter_map(|entry| {
            let table = entry.node.table()?;
            self.limiter(&entry.key, table, entry.key_span)
        })
        .collect()
    }

    fn limiter(&mut self, name: &str, table: &Table<'t>, span: Span) -> Option<LimiterDraft> {
        let decides = match table.text("rules") {
            Some(file) => {
                for key in RULE_KEYS {
                    if let Some(entry) = table.get(key) {
                        let message = format!("`{key}` and `rules` are both given");
                        let hint = "the rules file has limits of its own; keep one";
                        self.findings.error(entry.key_span, message, hint);
                    }
                }
                self.policy(file).map(Decides::Policy)
            }
            None => {
                let rule = limiter::rule(table, span, name, self.findings);
                rule.map(|rule| Decides::Rule(Box::new(rule)))
            }
        };
        let nodes = table.count("nodes").map_or(1, |nodes| nodes.it as usize);
        let skew = table.node("skew").and_then(|node| self.skew(node, nodes));
        Some(LimiterDraft {
            name: name.to_owned(),
            decides: decides?,
            nodes,
            skew: skew.unwrap_or_else(|| vec![0; nodes]),
            breaker: table.get("breaker").and_then(|entry| {
                Some((limiter::breaker(entry.node.table()?), self.spot(entry.key_span)))
            }),
            concurrency: table.get("concurrency").map(|entry| self.spot(entry.key_span)),
            on_store_error: table.text("on_store_error").and_then(|m| OnStoreError::named(m.it)),
        })
    }

    fn policy(&mut self, file: At<&str>) -> Option<Arc<Policy>> {
        match files::read_policy(&self.folder.join(file.it)) {
            Ok(policy) => Some(Arc::new(policy)),
            Err(why) => {
                let hint = "see rlctl rules lint; the path counts from the scenario's folder";
                self.findings.error(file.span, format!("cannot use these rules: {why}"), hint);
                None
            }
        }
    }

    /// One for each node, or how far each is ahead of the one before.
    fn skew(&mut self, node: &Node<'t>, nodes: usize) -> Option<Vec<i64>> {
        let wrong = |findings: &mut Findings<'t>, span: Span| {
            let hint = "e.g. skew = \"200ms\", or one for each node: [\"0s\", \"-200ms\"]";
            findings.error(span, "a skew is a duration, perhaps with a minus before it", hint);
        };
        match &node.value {
            Value::Text(text) => match signed(text) {
                Some(step) => Some((0..nodes as i64).map(|n| n * step).collect()),
                None => {
                    wrong(self.findings, node.span);
                    None
                }
            },
            Value::List(items) => {
                let mut all = Vec::new();
                for item in items {
                    match item.text().and_then(|text| signed(text.it)) {
                        Some(skew) => all.push(skew),
                        None => wrong(self.findings, item.span),
                    }
                }
                if items.len() != nodes {
                    let message = format!("{} skews for {nodes} nodes", items.len());
                    self.findings.error(node.span, message, "write one for each node");
                    return None;
                }
                (all.len() == nodes).then_some(all)
            }
            _ => {
                wrong(self.findings, node.span);
                None
            }
        }
    }

    fn fault(&mut self, table: &Table<'t>, span: Span) -> Option<FaultDraft> {
        let rate = table.node("rate").map(|node| self.share(node));
        let on = table.text("on").map(|on| self.located(on));
        Some(FaultDraft {
            spot: self.spot(span),
            name: table.text("name").map(|name| name.it.to_owned()),
            at: table.duration("at")?,
            lasts: table.duration("for"),
            on: on.unwrap_or_else(|| ("store".into(), self.spot(span))),
            effect: self.located(table.text("do")?),
            rate: match rate {
                Some(rate) => Some(rate?),
                None => None,
            },
            lose: table
                .get("lose")
                .and_then(|entry| Some((table.duration("lose")?, self.spot(entry.key_span)))),
            by: table.text("by").map(|by| self.located(by)),
        })
    }

    fn change(&mut self, table: &Table<'t>, span: Span) -> Option<ChangeDraft> {
        let ways = ["limit", "rules", "tier", "override", "block"];
        let given: Vec<_> = ways.iter().filter_map(|way| table.get(way)).collect();
        let [way] = given.as_slice() else {
            let at = given.get(1).map_or(span, |second| second.key_span);
            let message = "a change has one of `limit`, `rules`, `tier`, `override` and `block`";
            self.findings.error(at, message, "e.g. limit = \"50/1m\"");
            return None;
        };
        let text = way.node.text()?;
        let what = match way.key.as_ref() {
            "limit" => ChangeDraftWhat::Limit {
                text: text.it.to_owned(),
                algorithm: table.text("algorithm").and_then(|name| name.it.parse().ok()),
                burst: table.count("burst").map(|burst| burst.it),
                spot: self.spot(text.span),
            },
            "rules" => ChangeDraftWhat::Rules(self.policy(text)?),
            "block" => ChangeDraftWhat::Block(self.identity(text)?),
            other => {
                let Some(key) = table.text("key") else {
                    let message = format!("`{other}` needs to know for whom");
                    self.findings.error(way.key_span, message, "e.g. key = \"user:1\"");
                    return None;
                };
                let key = self.identity(key)?;
                match other {
                    "tier" => {
                        let spot = self.spot(text.span);
                        ChangeDraftWhat::Tier { key, tier: text.it.to_owned(), spot }
                    }
                    _ => ChangeDraftWhat::Override {
                        key,
                        rule: table.text("rule").map(|rule| rule.it.to_owned()),
                        limit: limiter::limit_of_text(text, Algorithm::TokenBucket, self.findings)?,
                    },
                }
            }
        };
        Some(ChangeDraft {
            spot: self.spot(span),
            name: table.text("name").map(|name| name.it.to_owned()),
            at: table.duration("at")?,
            limiter: table.text("limiter").map(|name| self.located(name)),
            what,
        })
    }

    fn expectations(&mut self, all: &Table<'t>) -> Vec<(Expectation, Spot)> {
        let mut read = Vec::new();
        for entry in &all.entries {
            let Some(text) = entry.node.text() else { continue };
            match expect::parse(text.it) {
                Ok(assertion) => {
                    let inner = self.inside(text, 0..text.it.len());
                    let place = self.findings.source.place(inner.start);
                    let name = entry.key.as_ref().to_owned();
                    let spot = self.spot(text.span);
                    read.push((Expectation { name, assertion, place }, spot));
                }
                Err(error) => {
                    let span = self.inside(text, error.at);
                    self.findings.error(span, error.what, error.hint.unwrap_or_default());
                }
            }
        }
        read
    }

    /// A part of a text in quotes, unless something in it is written otherwise than it reads.
    fn inside(&self, text: At<&str>, part: std::ops::Range<usize>) -> Span {
        inside(self.findings.source.words(text.span), text, part)
    }
}

/// See [`Drafter::inside`].
pub(super) fn inside(words: &str, text: At<&str>, part: std::ops::Range<usize>) -> Span {
    let plain = words.get(1..words.len().saturating_sub(1)) == Some(text.it);
    let start = text.span.start + 1;
    if plain { Span { start: start + part.start, end: start + part.end } } else { text.span }
}

/// `200ms`, `-200ms`, in microseconds.
pub(super) fn signed(text: &str) -> Option<i64> {
    let (sign, length) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let micros = units::parse_duration(length).ok()?;
    i64::try_from(micros.0).ok().map(|micros| sign * micros)
}

/// What was probably meant, or all there are.
pub(super) fn hint<'n>(written: &str, names: impl Iterator<Item = &'n str> + Clone) -> String {
    did_you_mean(written, names.clone())
        .unwrap_or_else(|| format!("there are {}", names.collect::<Vec<_>>().join(", ")))
}
