//! What `rlctl inspect` tells of one identity, and how it looks in each form.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;

use super::Failure;
use super::keys::BUCKET_FIELDS;
use super::registry_args::{limits as override_limits, until};
use crate::engine::clock::Micros;
use crate::engine::identity::Identity;
use crate::engine::limit::deciding;
use crate::engine::registry::{Override, Subject, Terms};
use crate::engine::store::record::Record;
use crate::ops::bucket::Bucket;
use crate::ops::look::{Held, Looked};
use crate::output::{Column, List, Look, Row, Tone, Untrusted, about, explain_standing};

#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) identity: String,
    pub(super) tier: Option<String>,
    pub(super) overrides: Vec<Override>,
    pub(super) block: Option<Terms>,
    pub(super) exempt: Option<Terms>,
    pub(super) limits: Vec<Bucket>,
    /// Why what is stored cannot be read, if so.
    pub(super) unreadable: Option<String>,
    /// With --raw.
    pub(super) raw: Option<Vec<Raw>>,
    /// Something was decided about it: a tier that everybody has is nothing.
    #[serde(skip)]
    pub(super) is_on_record: bool,
}

impl Report {
    pub(super) fn is_empty(&self) -> bool {
        self.limits.is_empty() && !self.is_on_record && self.unreadable.is_none()
    }
}

/// A key as it is stored.
#[derive(Debug, Serialize)]
pub(super) struct Raw {
    /// The store that rules name, where it is one.
    store: Option<String>,
    key: String,
    ttl_us: Option<u64>,
    memory_bytes: Option<u64>,
    value_base64: Option<String>,
    /// What the value says, number by number.
    records: Vec<RawRecord>,
}

#[derive(Debug, Serialize)]
struct RawRecord {
    name: String,
    algorithm: &'static str,
    limit: String,
    last_us: u64,
    whole_us: u64,
    numbers: [f64; 3],
}

/// A limit on a row of its own, for CSV.
#[derive(Serialize)]
struct LimitRow<'a> {
    identity: &'a str,
    #[serde(flatten)]
    bucket: &'a Bucket,
}

impl Row for LimitRow<'_> {
    fn columns() -> Vec<Column<Self>> {
        Vec::new()
    }

    const FIELDS: &'static [&'static str] = BUCKET_FIELDS;
}

impl Row for Report {
    fn columns() -> Vec<Column<Self>> {
        Vec::new()
    }

    const FIELDS: &'static [&'static str] = &[];
}

/// The limits of one identity as people see them.
struct Shown<'a>(&'a Bucket);

impl Serialize for Shown<'_> {
    fn serialize<S: serde::Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(out)
    }
}

impl Row for Shown<'_> {
    fn columns() -> Vec<Column<Self>> {
        vec![
            Column::new("RULE", |s| s.0.rule.clone()),
            Column::new("ALGORITHM", |s| s.0.algorithm.unwrap_or("?").into()),
            Column::new("LIMIT", |s| s.0.limit_text()),
            Column::number("USED", |s| or_unknown(s.0.used)),
            Column::number("LEFT", |s| or_unknown(s.0.remaining)),
            Column::new("STATE", |s: &Self| s.0.state.unwrap_or("?").into()).tone(tone),
            Column::new("RETRY", |s| s.0.retry_after_us.map_or("-".into(), |us| about(Micros(us)))),
            Column::new("WHOLE IN", |s| whole_in(s.0)),
            Column::new("SOURCE", |s| s.0.source.clone()),
            Column::wide("TTL", |s| s.0.ttl_us.map_or("-".into(), |us| about(Micros(us)))),
            Column::wide("BYTES", |s| or_none(s.0.memory_bytes)),
            Column::wide("SLOT", |s| s.0.slot.map_or("-".into(), |slot| slot.to_string())),
            Column::wide("NODE", |s| s.0.node.clone().unwrap_or_else(|| "-".into())),
            Column::wide("STORE", |s| s.0.store.clone().unwrap_or_else(|| "-".into())),
            Column::wide("KEY", |s| s.0.key.clone()),
        ]
    }

    const FIELDS: &'static [&'static str] = BUCKET_FIELDS;
}

fn or_unknown(number: Option<u64>) -> String {
    number.map_or("?".into(), |number| number.to_string())
}

fn or_none(number: Option<u64>) -> String {
    number.map_or("-".into(), |number| number.to_string())
}

fn whole_in(bucket: &Bucket) -> String {
    match bucket.reset_after_us {
        Some(0) => "now".into(),
        Some(us) => about(Micros(us)),
        None => "?".into(),
    }
}

fn tone(shown: &Shown<'_>) -> Tone {
    match shown.0.state {
        Some("throttled") => Tone::Bad,
        Some("warning") => Tone::Warning,
        Some("normal") => Tone::Good,
        _ => Tone::Plain,
    }
}

impl Report {
    pub(super) fn of(
        identity: &Identity,
        subject: Subject,
        now: Micros,
        limits: Vec<Bucket>,
    ) -> Report {
        let subject = subject.at(now);
        Report {
            is_on_record: !subject.is_empty(),
            identity: identity.to_string(),
            tier: subject.tier.map(|tier| tier.value),
            overrides: subject.overrides,
            block: subject.block,
            exempt: subject.exempt,
            limits,
            unreadable: None,
            raw: None,
        }
    }
}

/// A row for each limit.
pub(super) fn in_csv(report: &Report, look: Look, has_header: bool) -> Result<String, Failure> {
    let row = |bucket| LimitRow { identity: &report.identity, bucket };
    let rows: Vec<LimitRow<'_>> = report.limits.iter().map(row).collect();
    Ok(List::new(&rows).render(look, has_header)?)
}

/// For people.
pub(super) fn words(report: &Report, explain: bool, look: Look) -> Result<String, Failure> {
    if report.is_empty() && report.raw.as_ref().is_none_or(Vec::is_empty) {
        return Ok(String::new());
    }
    let mut text = head(report);
    let rows: Vec<Shown<'_>> = report.limits.iter().map(Shown).collect();
    text += &List::new(&rows).render(look, false)?;
    if let Some(why) = &report.unreadable {
        text += &format!("{}\n", Untrusted(why));
    }
    if explain {
        text += &explained(report);
    }
    for raw in report.raw.iter().flatten() {
        text += &raw.words();
    }
    Ok(text)
}

fn head(report: &Report) -> String {
    let tier = report.tier.as_ref().map_or(String::new(), |t| format!(", tier {}", Untrusted(t)));
    let mut text = format!("{}{tier}\n", Untrusted(&report.identity));
    for (what, terms) in [("blocked", &report.block), ("exempt", &report.exempt)] {
        if let Some(terms) = terms {
            text += &format!("{what} {}: {}\n", until(terms), Untrusted(&terms.reason));
        }
    }
    for of in &report.overrides {
        let (limits, rule) = (override_limits(&of.limits), Untrusted(&of.rule));
        let (until, reason) = (until(&of.terms), Untrusted(&of.terms.reason));
        text += &format!("override {limits} for {rule} {until}: {reason}\n");
    }
    text
}

/// Which limit decides, and the arithmetic of each.
fn explained(report: &Report) -> String {
    let standings: Vec<_> =
        report.limits.iter().filter_map(|b| Some((b, b.standing.as_ref()?))).collect();
    let decisions: Vec<_> = standings.iter().map(|(_, standing)| standing.of_one).collect();
    let decides = deciding(&decisions);
    let mut text = String::new();
    if let Some(terms) = &report.block {
        text += &format!("blocked {}, whatever the limits say\n", until(terms));
    }
    for (number, (bucket, standing)) in standings.iter().enumerate() {
        let role = match (decides == Some(number), standing.of_one.allowed) {
            (true, true) => "decides, as the one with the least left:",
            (true, false) => "decides, as the one that refuses longest:",
            (false, true) => "would agree:",
            (false, false) => "would refuse, too:",
        };
        let (rule, limit) = (Untrusted(&bucket.rule), &standing.limit);
        text += &format!("{role} rule {rule}, {} {limit}\n", limit.algorithm());
        for line in explain_standing(limit, &standing.now, &standing.of_one) {
            text += &format!("  {line}\n");
        }
    }
    text
}

pub(super) fn raw(looked: &Looked, store: Option<&str>) -> Vec<Raw> {
    let record = |record: &Record| RawRecord {
        name: record.name.clone(),
        algorithm: record.limit.algorithm().name(),
        limit: record.limit.to_string(),
        last_us: record.last.0,
        whole_us: record.whole.0,
        numbers: record.numbers,
    };
    let of = |held: &Held, records: Vec<RawRecord>| Raw {
        store: store.map(String::from),
        key: held.key.clone(),
        ttl_us: held.ttl.map(|ttl| ttl.0),
        memory_bytes: held.memory_bytes,
        value_base64: held.value.as_ref().map(|value| STANDARD.encode(value)),
        records,
    };
    let mut all = Vec::new();
    if looked.quota.exists {
        let records = looked.records.iter().flatten().map(record).collect();
        all.push(of(&looked.quota, records));
    }
    if looked.log.exists {
        all.push(of(&looked.log, Vec::new()));
    }
    all
}

impl Raw {
    fn words(&self) -> String {
        let ttl = self
            .ttl_us
            .map_or("never expires".into(), |us| format!("expires in {}", about(Micros(us))));
        let bytes = self.memory_bytes.map_or(String::new(), |bytes| format!(", {bytes} bytes"));
        let store = self.store.as_ref().map_or(String::new(), |store| format!("{store} "));
        let mut text = format!("{store}{}  {ttl}{bytes}\n", Untrusted(&self.key));
        if let Some(value) = &self.value_base64 {
            text += &format!("  base64 {value}\n");
        }
        for record in &self.records {
            let RawRecord { name, algorithm, limit, last_us, whole_us, numbers } = record;
            let [a, b, c] = numbers;
            let name = Untrusted(name);
            text += &format!(
                "  {name} {algorithm} {limit} last {last_us} whole {whole_us} numbers {a} {b} {c}\n"
            );
        }
        text
    }
}
