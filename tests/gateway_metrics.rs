//! The metrics text, read by a strict reader; and what is shipped to be used with it: every alert
//! and panel asks for metrics that there are.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use rlctl::engine::clock::Micros;
use rlctl::engine::store::Store;
use rlctl::gateway::Gateway;

use crate::support::TODAY;
use crate::support::decider::{ask, in_memory, on};
use crate::support::redis::RedisServer;

const POLICY: &str = r#"
[[rule]]
name = "per-user"
dimension = "user"
limits = ["3/1h"]
"#;

#[derive(Debug, Default)]
struct Family {
    kind: String,
    /// Name, labels and value.
    samples: Vec<(String, BTreeMap<String, String>, f64)>,
}

/// Reads the text format, and panics at whatever is not of it.
fn read(text: &str) -> BTreeMap<String, Family> {
    assert!(text.ends_with('\n'), "the last line ends");
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let (mut helped, mut current) = (String::new(), String::new());
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect(line);
            assert!(!help.is_empty() && is_name(name), "{line}");
            helped = name.into();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect(line);
            assert_eq!(name, helped, "HELP comes first");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            current = name.into();
            let family = Family { kind: kind.into(), samples: Vec::new() };
            assert!(families.insert(name.into(), family).is_none(), "{name} twice");
        } else {
            let (name, labels, value) = sample(line);
            let family = families.get_mut(&current).expect("a TYPE before samples");
            let base = match family.kind.as_str() {
                "histogram" => name
                    .strip_suffix("_bucket")
                    .or_else(|| name.strip_suffix("_sum"))
                    .or_else(|| name.strip_suffix("_count"))
                    .expect(line),
                _ => &name,
            };
            assert_eq!(base, current, "{line}");
            let key = (&name, &labels);
            assert!(!family.samples.iter().any(|(n, l, _)| (n, l) == key), "twice: {line}");
            family.samples.push((name, labels, value));
        }
    }
    families.values().filter(|f| f.kind == "histogram").for_each(check_histograms);
    families
}

fn is_name(text: &str) -> bool {
    text.starts_with("rlctl_") && text.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
}

fn sample(line: &str) -> (String, BTreeMap<String, String>, f64) {
    let end = line.find(['{', ' ']).expect(line);
    let (name, mut rest) = line.split_at(end);
    assert!(is_name(name), "{line}");
    let mut labels = BTreeMap::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        loop {
            let (label, after) = rest.split_once("=\"").expect(line);
            let mut value = String::new();
            let mut chars = after.char_indices();
            let end = loop {
                match chars.next().expect(line) {
                    (at, '"') => break at,
                    (_, '\\') => value.push(match chars.next().expect(line).1 {
                        'n' => '\n',
                        c @ ('\\' | '"') => c,
                        c => panic!("\\{c} in {line}"),
                    }),
                    (_, c) => value.push(c),
                }
            };
            assert!(labels.insert(label.to_string(), value).is_none(), "{line}");
            rest = &after[end + 1..];
            match rest.strip_prefix(',') {
                Some(more) => rest = more,
                None => break,
            }
        }
        rest = rest.strip_prefix('}').expect(line);
    }
    let value = rest.strip_prefix(' ').expect(line).parse().expect(line);
    (name.into(), labels, value)
}

/// Buckets grow, end with +Inf, and that is the count.
fn check_histograms(family: &Family) {
    type Sample = (String, Option<String>, f64);
    let mut series: BTreeMap<BTreeMap<String, String>, Vec<Sample>> = BTreeMap::new();
    for (name, labels, value) in &family.samples {
        let mut labels = labels.clone();
        let bound = labels.remove("le");
        series.entry(labels).or_default().push((name.clone(), bound, *value));
    }
    for samples in series.values() {
        let buckets: Vec<_> = samples.iter().filter(|s| s.0.ends_with("_bucket")).collect();
        let bound = |s: &Sample| s.1.as_ref().unwrap().parse::<f64>();
        for pair in buckets.windows(2) {
            assert!(bound(pair[0]).unwrap() < bound(pair[1]).unwrap(), "{pair:?}");
            assert!(pair[0].2 <= pair[1].2, "{pair:?}");
        }
        let last = buckets.last().unwrap();
        assert_eq!(last.1.as_deref(), Some("+Inf"));
        let count = samples.iter().find(|s| s.0.ends_with("_count")).unwrap();
        assert_eq!(last.2, count.2);
        assert!(samples.iter().any(|s| s.0.ends_with("_sum")));
    }
}

fn text(gateway: &Gateway) -> String {
    gateway.stats.metrics(gateway, Micros(TODAY + 90 * Micros::SECOND.0))
}

fn value(families: &BTreeMap<String, Family>, name: &str, labels: &[(&str, &str)]) -> f64 {
    let wanted: BTreeMap<String, String> =
        labels.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
    let family = families.get(name).unwrap_or_else(|| panic!("{name} is there"));
    let found = family.samples.iter().find(|(n, l, _)| n == name && *l == wanted);
    found.unwrap_or_else(|| panic!("{name} {wanted:?} in {family:#?}")).2
}

#[tokio::test]
async fn the_text_is_well_formed_and_says_what_happened() {
    let gateway = in_memory(POLICY).await;
    for _ in 0..5 {
        ask(&gateway, &["user:1"]).await;
    }
    gateway.stats.upstream(Micros(1_500));
    gateway.stats.tick(&gateway, Micros(TODAY + Micros::SECOND.0));
    let families = read(&text(&gateway));
    let decisions = |outcome| {
        let labels = [("rule", "per-user"), ("outcome", outcome), ("mode", "store")];
        value(&families, "rlctl_decisions_total", &labels)
    };
    assert_eq!((decisions("allowed"), decisions("rejected")), (3.0, 2.0));
    assert_eq!(value(&families, "rlctl_policy_version", &[]), 1.0);
    assert_eq!(value(&families, "rlctl_policy_age_seconds", &[]), 90.0);
    assert_eq!(value(&families, "rlctl_top_identity_share", &[]), 1.0);
    assert_eq!(value(&families, "rlctl_quotas", &[("state", "throttled")]), 1.0);
    assert_eq!(value(&families, "rlctl_identities", &[("store", "memory")]), 1.0);
    assert_eq!(value(&families, "rlctl_ready", &[]), 1.0);
}

#[tokio::test]
async fn no_label_ever_holds_an_identity() {
    let gateway = in_memory(POLICY).await;
    let hostile = ["user:needle-1", "user:needle\"} 1", "user:needle\\", "user:needle{le=\"1\"}"];
    for who in hostile {
        for _ in 0..5 {
            ask(&gateway, &[who]).await;
        }
        ask(&gateway, &["ip:192.0.2.77", who]).await;
    }
    gateway.stats.tick(&gateway, Micros(TODAY + Micros::SECOND.0));
    let text = text(&gateway);
    read(&text);
    assert!(!text.contains("needle") && !text.contains("192.0.2.77"), "{text}");
}

/// All metrics there are, from a gateway on Redis and one in memory.
async fn all_names() -> BTreeSet<String> {
    let server = RedisServer::start();
    let on_redis = on(Store::Redis(server.store().await), POLICY).await;
    ask(&on_redis, &["user:1"]).await;
    let redis = read(&text(&on_redis));
    let shard = format!("127.0.0.1:{}", server.port);
    assert_eq!(value(&redis, "rlctl_breaker_state", &[("shard", &shard)]), 0.0);
    assert_eq!(value(&redis, "rlctl_store_connections_total", &[("shard", &shard)]), 1.0);
    let in_memory = in_memory(POLICY).await;
    let memory = read(&text(&in_memory));
    redis.into_keys().chain(memory.into_keys()).collect()
}

/// Every word of the form `rlctl_…`, without the endings of histograms.
fn named(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let metrics = words.filter(|word| word.starts_with("rlctl_"));
    let plain = |word: &str| {
        let endings = ["_bucket", "_sum", "_count"];
        let ending = endings.iter().find_map(|ending| word.strip_suffix(ending));
        ending.unwrap_or(word).to_string()
    };
    metrics.map(plain).collect()
}

fn shipped(path: &str) -> String {
    fs::read_to_string(format!("{}/{path}", env!("CARGO_MANIFEST_DIR"))).expect(path)
}

#[tokio::test]
async fn alerts_dashboard_and_documents_name_metrics_that_there_are() {
    let known = all_names().await;
    for path in ["deploy/alerts.yml", "deploy/grafana-dashboard.json", "docs/metrics.md"] {
        let named = named(&shipped(path));
        assert!(named.len() > 5, "{path}: {named:?}");
        let unknown: Vec<_> = named.difference(&known).collect();
        assert!(unknown.is_empty(), "{path} names {unknown:?}");
    }
    let undocumented: Vec<_> =
        known.difference(&named(&shipped("docs/metrics.md"))).cloned().collect();
    assert!(undocumented.is_empty(), "docs/metrics.md lacks {undocumented:?}");
}

#[test]
fn every_alert_has_a_severity_and_a_chapter_of_the_runbook() {
    let (alerts, runbook) = (shipped("deploy/alerts.yml"), shipped("docs/runbook.md"));
    let (_, for_alerts) = runbook.split_once("# When an alert comes\n").expect("the alerts' part");
    let chapters: BTreeSet<String> = for_alerts
        .lines()
        .filter_map(|line| line.strip_prefix("## "))
        .map(|title| title.to_lowercase().replace(' ', "-"))
        .collect();
    let count = |word: &str| alerts.lines().filter(|l| l.trim_start().starts_with(word)).count();
    let total = count("- alert:");
    assert!(total >= 8, "{total}");
    for word in ["severity:", "summary:", "runbook_url:", "expr:", "for:"] {
        assert_eq!(count(word), total, "{word}");
    }
    let mut linked = BTreeSet::new();
    for line in alerts.lines().filter(|line| line.contains("runbook_url:")) {
        let (_, chapter) = line.split_once("docs/runbook.md#").expect(line);
        assert!(chapters.contains(chapter), "{chapter} of {chapters:?}");
        linked.insert(chapter.to_string());
    }
    assert_eq!(linked, chapters, "every chapter is for an alert");
}

#[test]
fn the_dashboard_is_json_with_a_query_in_each_panel() {
    let dashboard: serde_json::Value =
        serde_json::from_str(&shipped("deploy/grafana-dashboard.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    assert!(panels.len() >= 8);
    for panel in panels {
        assert!(
            panel["targets"][0]["expr"].as_str().is_some_and(|e| e.contains("rlctl_")),
            "{panel}"
        );
    }
}
