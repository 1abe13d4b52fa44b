//! Scenarios in real time on a real Redis: the same files, the same expectations.

mod agrees;
mod gateway;

use std::fs;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::cli::rlctl;
use crate::support::redis::RedisServer;

/// Two seconds of overload, one of which Redis does not answer.
fn scenario(fault: &str, mode: &str, meanwhile: &str) -> String {
    format!(
        "name = \"live\"\nrun = \"4s\"\nstore = {{ kind = \"redis\", deadline = \"50ms\" }}\n\
         traffic = [ {{ name = \"overload\", rate = \"100/s\", keys = \"user:1\" }} ]\n{fault}\n\
         [limiter.api]\nlimit = \"50/1s\"\nburst = 10\non_store_error = \"{mode}\"\n[expect]\n\
         \"before\" = \"rate(allowed) during 0.5s..1s <= 70/s\"\n{meanwhile}\n"
    )
}

fn run(file: &str, arguments: &[&str]) -> (Output, Value) {
    let folder = TempDir::new().expect("a folder");
    fs::write(folder.path().join("live.toml"), file).expect("written");
    let output = rlctl()
        .args(["scenario", "run", "live.toml", "-o", "json"])
        .args(arguments)
        .current_dir(folder.path())
        .output()
        .expect("rlctl runs");
    let json = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    (output, json)
}

const DOWN: &str = "fault = [ { name = \"down\", at = \"1s\", for = \"1s\", do = \"down\" } ]";
const HANG: &str = "fault = [ { name = \"down\", at = \"1s\", for = \"1s\", do = \"hang\" } ]";

#[test]
fn a_killed_redis_is_answered_by_the_mode_of_the_rule_as_in_virtual_time() {
    for (mode, meanwhile) in [
        (
            "open",
            "\"open\" = \"share(allowed) during 1.2s..1.9s == 100%\"\n\"marked\" = \"share(degraded) during 1.2s..1.9s == 100%\"",
        ),
        ("closed", "\"closed\" = \"share(errors) during 1.2s..1.9s == 100%\""),
    ] {
        let file = scenario(DOWN, mode, meanwhile);
        for live in [&["--live", "--spawn", "single"][..], &[]] {
            let (output, json) = run(&file, live);
            assert_eq!(output.status.code(), Some(0), "{mode} {live:?}: {json}");
        }
    }
}

#[test]
fn a_redis_that_hangs_costs_a_deadline() {
    let file = scenario(
        HANG,
        "open",
        "\"quick\" = \"p99(response) <= 150ms\"\n\"open\" = \"share(allowed) during 1.3s..1.9s == 100%\"",
    );
    let (output, json) = run(&file, &["--live", "--spawn", "single"]);
    assert_eq!(output.status.code(), Some(0), "{json}");
}

#[test]
fn what_cannot_be_made_is_skipped_and_what_cannot_be_reached_is_5() {
    let redis = RedisServer::start();
    let (output, json) = run(&scenario(DOWN, "open", ""), &["--live", "--redis", &redis.url()]);
    assert_eq!(output.status.code(), Some(0), "{json}");
    assert_eq!(json["scenarios_skipped"], 1);
    assert!(json["items"][0]["why"].as_str().expect("why").contains("'down'"), "{json}");
    let (output, json) = run(&scenario("", "open", ""), &["--live", "--redis", &redis.url()]);
    assert_eq!((output.status.code(), json["passed"].as_u64()), (Some(0), Some(1)), "{json}");
    let (output, _) = run(&scenario("", "open", ""), &["--live", "--redis", "redis://127.0.0.1:1"]);
    assert_eq!(output.status.code(), Some(5));
    let (output, _) = run(&scenario("", "open", ""), &["--live"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn an_interrupted_run_leaves_nothing_in_a_redis_that_is_somebodys() {
    let (redis, folder) = (RedisServer::start(), TempDir::new().expect("a folder"));
    let file = scenario("", "open", "").replace("run = \"4s\"", "run = \"10m\"");
    fs::write(folder.path().join("live.toml"), file).expect("written");
    let mut running = rlctl()
        .args(["scenario", "run", "live.toml", "--live", "--redis", &redis.url()])
        .current_dir(folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("rlctl runs");
    let keys = || redis.command::<Vec<String>>(&["KEYS", "rlsc*"]);
    let began = Instant::now();
    while keys().is_empty() {
        assert!(began.elapsed() < Duration::from_secs(30), "it counts nothing");
        std::thread::sleep(Duration::from_millis(20));
    }
    let pid = running.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().expect("kill").success());
    assert_eq!(running.wait().expect("it ends").code(), Some(130));
    assert_eq!(keys(), Vec::<String>::new());
}
