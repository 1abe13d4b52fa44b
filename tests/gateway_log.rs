//! What a gateway writes down: whole, escaped, capped, and never waited for.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rlctl::engine::clock::Micros;
use rlctl::engine::rules::Target;
use rlctl::gateway::log::{Access, Format, Log, LogOptions, Sink, Violation};
use serde_json::Value;

use crate::support::decider::{ask_for, in_memory};
use crate::support::{TODAY, id};

const PATIENCE: Duration = Duration::from_secs(10);

fn log(path: &Path, format: Format) -> Log {
    let options = LogOptions {
        format,
        sink: Sink::File(path.into()),
        gateway: "gw-1".into(),
        violations_per_second: 100,
        access: true,
    };
    Log::start(options).unwrap()
}

fn violation(identity: &str, at: u64) -> Violation<'_> {
    Violation {
        at: Micros(at),
        identity: Some(identity),
        endpoint: Some("/orders\x1b[2J\nforged"),
        method: Some("POST"),
        rule: Some("per-user"),
        limit: Some(10),
        used: Some(10),
        period: Some(Micros::MINUTE),
        mode: "store",
        reason: "limited",
        observed: false,
    }
}

fn lines(path: &Path) -> Vec<String> {
    fs::read_to_string(path).unwrap().lines().map(String::from).collect()
}

#[test]
fn a_violation_has_all_its_fields_and_nothing_a_terminal_obeys() {
    let folder = tempfile::tempdir().unwrap();
    let hostile = "user:\u{9b}31m\u{202e}evil\"}\u{7f}";
    for (format, name) in [(Format::Json, "json"), (Format::Human, "text")] {
        let path = folder.path().join(name);
        let log = log(&path, format);
        log.violation(&violation(hostile, TODAY));
        assert!(log.flush(PATIENCE));
        let lines = lines(&path);
        assert_eq!(lines.len(), 1, "{lines:?}");
        let harmless = |c: char| !c.is_control() && c != '\u{202e}';
        assert!(lines[0].chars().all(harmless), "{lines:?}");
    }
    let json: Value = serde_json::from_str(&lines(&folder.path().join("json"))[0]).unwrap();
    assert_eq!(json["identity"], hostile);
    assert_eq!(json["endpoint"], "/orders\x1b[2J\nforged");
    assert_eq!(json["time"], "2025-11-18T00:16:40.123457Z");
    for (field, value) in [
        ("method", Value::from("POST")),
        ("rule", "per-user".into()),
        ("limit", 10.into()),
        ("used", 10.into()),
        ("period_us", 60_000_000.into()),
        ("region", Value::Null),
        ("gateway", "gw-1".into()),
        ("mode", "store".into()),
        ("log", "violation".into()),
    ] {
        assert_eq!(json.get(field), Some(&value), "{field} in {json}");
    }
    let text = &lines(&folder.path().join("text"))[0];
    assert!(text.contains("rule=per-user limit=10 used=10 period=1m mode=store"), "{text}");
}

#[test]
fn more_violations_than_a_hundred_a_second_are_told_with_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let log = log(&path, Format::Json);
    for _ in 0..350 {
        log.violation(&violation("user:1", TODAY));
    }
    log.violation(&violation("user:2", TODAY + Micros::SECOND.0));
    assert_eq!(log.dropped(), 250);
    assert!(log.flush(PATIENCE));
    let lines = lines(&path);
    assert_eq!(lines.len(), 101);
    let dropped = |line: &str| serde_json::from_str::<Value>(line).unwrap()["dropped"].clone();
    assert_eq!(dropped(&lines[99]), Value::Null);
    assert_eq!(dropped(&lines[100]), 250);
}

#[test]
fn a_pipe_that_nobody_reads_holds_no_request() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    // Open in both directions, so that the writer finds a reader; but nothing is ever read.
    let reader = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let log = log(&path, Format::Json);
    let path_of_request = "/x".repeat(400);
    let access = Access {
        at: Micros(TODAY),
        client: "192.0.2.1",
        method: "GET",
        path: &path_of_request,
        status: 200,
        identity: Some("user:1"),
        rule: None,
        allowed: true,
        degraded: None,
        took: Micros(120),
        upstream: None,
    };
    let began = Instant::now();
    for _ in 0..20_000 {
        log.access(&access);
    }
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert!(log.dropped() > 10_000, "{}", log.dropped());
    assert!(!log.flush(Duration::from_millis(20)), "nothing was read");
    drop(reader);
}

#[test]
fn what_waits_is_written_when_the_log_ends() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let log = log(&path, Format::Human);
    let other = log.clone();
    other.violation(&violation("user:1", TODAY));
    drop(other);
    log.violation(&violation("user:2", TODAY));
    assert!(log.flush(PATIENCE));
    drop(log);
    assert_eq!(lines(&path).len(), 2);
}

#[tokio::test]
async fn a_gateway_writes_its_refusals_and_events() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let policy = "[[rule]]\nname = \"r\"\ndimension = \"user\"\nlimits = [\"1/1h\"]\n";
    let gateway = in_memory(policy).await;
    gateway.stats.log_to(log(&path, Format::Json));
    let target = Target { path: Some("/orders"), method: Some("GET"), only: None };
    for _ in 0..3 {
        ask_for(&gateway, &[id("user:1")], target).await;
    }
    gateway.stats.tick(&gateway, Micros(TODAY + 1));
    assert!(gateway.stats.log().unwrap().flush(PATIENCE));
    let lines: Vec<Value> =
        lines(&path).iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let violations: Vec<_> = lines.iter().filter(|line| line["log"] == "violation").collect();
    assert_eq!(violations.len(), 2, "{lines:#?}");
    assert_eq!(violations[0]["endpoint"], "/orders");
    assert_eq!((&violations[0]["limit"], &violations[0]["used"]), (&1.into(), &1.into()));
    assert!(lines.iter().any(|line| line["log"] == "event" && line["kind"] == "policy"));
    assert!(lines.iter().any(|line| line["log"] == "event" && line["identity"] == "user:1"));
}
