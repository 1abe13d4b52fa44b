//! What arrives, and for whom.

use std::sync::Arc;

use super::{Drafter, TrafficDraft};
use crate::engine::clock::Micros;
use crate::engine::config::limiter;
use crate::engine::config::read::{At, check_table, found};
use crate::engine::config::source::Span;
use crate::engine::config::tree::{Node, Table, Value};
use crate::engine::identity::Identity;
use crate::engine::limit::Cost;
use crate::scenario::model::{ArrivalPart, Client, IdempotencyPart, KeyPart, Spread};
use crate::scenario::{files, format};
use crate::traffic::Shape;
use crate::traffic::keys::parse_share;

impl<'t> Drafter<'_, 't> {
    pub(super) fn traffic(&mut self, table: &Table<'t>, span: Span) -> Option<TrafficDraft> {
        let arrivals = self.arrivals(table, span);
        let keys = match (table.node("keys"), &arrivals) {
            (None, Some(ArrivalPart::Trace(_))) => Some(KeyPart::Traced),
            (Some(node), Some(ArrivalPart::Trace(_))) => {
                self.findings.error(node.span, "a log names its own keys", "leave `keys` out");
                None
            }
            (Some(node), _) => self.keys(node),
            (None, _) => {
                self.findings.error(span, "traffic needs `keys`", "e.g. keys = \"user:1\"");
                None
            }
        };
        let lasts = table.duration("for").or_else(|| table.duration("over"));
        let sends = matches!(arrivals, Some(ArrivalPart::Send(_)));
        Some(TrafficDraft {
            spot: self.spot(span),
            name: table.text("name").map(|name| name.it.to_owned()),
            at: table.duration("at").unwrap_or_default(),
            lasts: lasts.or(sends.then_some(Micros::ZERO)),
            arrivals: arrivals?,
            keys: keys?,
            cost: table.count("cost").map_or(Some(Cost::ONE), |cost| Cost::new(cost.it).ok())?,
            takes: table
                .get("takes")
                .and_then(|entry| Some((table.duration("takes")?, self.spot(entry.key_span)))),
            endpoint: table.text("endpoint").map(|path| path.it.to_owned()),
            method: table.text("method").map(|method| method.it.to_ascii_uppercase()),
            tier: table.text("tier").map(|tier| self.located(tier)),
            client: match table.text("client").map(|client| client.it) {
                Some("polite") => Client::Polite,
                Some("backoff") => Client::Backoff,
                Some("retry-storm") => Client::RetryStorm,
                _ => Client::Naive,
            },
            idempotency: table.text("idempotency").map(|how| match how.it {
                "retries" => IdempotencyPart::Retries,
                _ => IdempotencyPart::PerRequest,
            }),
        })
    }

    /// One of `rate`, `send`, `ramp` and `log`.
    fn arrivals(&mut self, table: &Table<'t>, span: Span) -> Option<ArrivalPart> {
        let ways = ["rate", "send", "ramp", "log"];
        let given: Vec<_> = ways.iter().filter_map(|way| table.get(way)).collect();
        let [way] = given.as_slice() else {
            let (at, message) = match given.get(1) {
                Some(second) => (
                    second.key_span,
                    format!("`{}` and `{}` are both given", given[0].key, second.key),
                ),
                None => (span, "traffic needs one of `rate`, `send`, `ramp` and `log`".into()),
            };
            self.findings.error(
                at,
                message,
                "e.g. rate = \"100/s\", or send = 100 with over = \"1s\"",
            );
            return None;
        };
        for (key, needs) in [("over", "send"), ("arrivals", "rate")] {
            if let Some(entry) = table.get(key).filter(|_| way.key != needs) {
                let message = format!("`{key}` belongs to `{needs}`");
                self.findings.error(entry.key_span, message, format!("leave `{key}` out"));
            }
        }
        let poisson = table.text("arrivals").is_some_and(|how| how.it == "poisson");
        let text = way.node.text();
        match way.key.as_ref() {
            "send" => table.count("send").map(|n| ArrivalPart::Send(n.it)),
            "log" => self.trace(text?),
            "ramp" => self.shape(text?, &format!("ramp:{}", text?.it)),
            _ if poisson => self.shape(text?, &format!("poisson:{}", text?.it)),
            _ => self.shape(text?, &format!("constant:{}", text?.it)),
        }
    }

    fn shape(&mut self, text: At<&str>, spec: &str) -> Option<ArrivalPart> {
        match spec.parse::<Shape>() {
            Ok(shape) => Some(ArrivalPart::Shape(shape)),
            Err(error) => {
                let said = error.to_string();
                let (message, hint) = said.split_once("; ").unwrap_or((&said, "e.g. 100/s"));
                let kind = spec.split_inclusive(':').next().unwrap_or_default();
                let (message, hint) = (message.replace(kind, ""), hint.replace(kind, ""));
                self.findings.error(text.span, message, hint);
                None
            }
        }
    }

    fn trace(&mut self, text: At<&str>) -> Option<ArrivalPart> {
        match files::read_requests(&self.folder.join(text.it)) {
            Ok(requests) => Some(ArrivalPart::Trace(Arc::new(requests))),
            Err(why) => {
                let hint = "an access log, or a CSV file with the header t_us,key,cost, beside the scenario";
                self.findings.error(text.span, format!("cannot use this log: {why}"), hint);
                None
            }
        }
    }

    fn keys(&mut self, node: &Node<'t>) -> Option<KeyPart> {
        match &node.value {
            Value::Text(text) => {
                self.identity(At { it: text.as_ref(), span: node.span }).map(KeyPart::One)
            }
            Value::List(items) if items.is_empty() => {
                self.findings.error(node.span, "no keys", "e.g. keys = [\"user:1\", \"user:2\"]");
                None
            }
            Value::List(items) => {
                let read = |item: &Node<'t>| match item.text() {
                    Some(text) => self.identity(text),
                    None => {
                        let message = format!("a key is text, found {}", found(&item.value));
                        self.findings.error(item.span, message, "e.g. \"user:1\"");
                        None
                    }
                };
                let all: Vec<_> = items.iter().map(read).collect();
                all.into_iter().collect::<Option<_>>().map(KeyPart::Listed)
            }
            Value::Table(table) => self.numbered(table, node.span),
            other => {
                let message =
                    format!("`keys` wants a key, a list or a table, found {}", found(other));
                let hint = "e.g. keys = \"user:1\" or { prefix = \"user:\", count = 1000 }";
                self.findings.error(node.span, message, hint);
                None
            }
        }
    }

    pub(super) fn identity(&mut self, text: At<&str>) -> Option<Identity> {
        limiter::identity(text, self.findings)
    }

    fn numbered(&mut self, table: &Table<'t>, span: Span) -> Option<KeyPart> {
        check_table(table, span, &format::KEYS, self.findings);
        let prefix = table.text("prefix");
        if let Some(prefix) = prefix {
            let first = format!("{}1", prefix.it);
            self.identity(At { it: first.as_str(), span: prefix.span })?;
        }
        let dist = table.text("dist").map_or("uniform", |dist| dist.it);
        for (key, needs) in [("s", "zipf"), ("share", "hot")] {
            if let Some(entry) = table.get(key).filter(|_| dist != needs) {
                let message = format!("`{key}` belongs to dist = \"{needs}\"");
                self.findings.error(entry.key_span, message, format!("leave `{key}` out"));
            }
        }
        let spread = match dist {
            "zipf" => Spread::Zipf(self.exponent(table.node("s"))?),
            "hot" => Spread::Hot(match table.node("share") {
                None => 0.5,
                Some(node) => self.share(node)?,
            }),
            _ => Spread::Uniform,
        };
        let prefix = prefix.map_or("user:", |prefix| prefix.it).to_owned();
        Some(KeyPart::Numbered { prefix, count: table.count("count")?.it, spread })
    }

    fn exponent(&mut self, node: Option<&Node<'t>>) -> Option<f64> {
        let Some(node) = node else { return Some(1.0) };
        let number = match node.value {
            Value::Number(number) => Some(number),
            Value::Integer(number) => Some(number as f64),
            _ => None,
        };
        let fits = number.filter(|s| (0.0..=10.0).contains(s));
        if fits.is_none() {
            let hint = "a number from 0 (all alike) to 10, e.g. s = 1.1";
            self.findings.error(node.span, format!("`s` cannot be {}", found(&node.value)), hint);
        }
        fits
    }

    /// `"1%"` or `0.01`.
    pub(super) fn share(&mut self, node: &Node<'t>) -> Option<f64> {
        let share = match &node.value {
            Value::Text(text) => parse_share(text).ok(),
            Value::Number(share) => Some(*share),
            Value::Integer(share) => Some(*share as f64),
            _ => None,
        };
        let fits = share.filter(|share| (0.0..=1.0).contains(share));
        if fits.is_none() {
            let message = format!("a share is wanted, found {}", found(&node.value));
            self.findings.error(node.span, message, "e.g. \"1%\" or 0.01, at most 100%");
        }
        fits
    }
}
