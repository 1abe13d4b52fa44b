//! The same file in virtual time and on real servers, within what docs/scenarios.md gives a live run.

use std::path::Path;
use std::thread;

use serde_json::Value;

use crate::cli::rlctl;

/// Every case with its result and what was measured.
fn cases(file: &str, live: &[&str]) -> Vec<(String, String, String)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios").join(file);
    let output = rlctl()
        .args(["scenario", "run", "-o", "json"])
        .arg(path)
        .args(live)
        .output()
        .expect("rlctl runs");
    let json: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{file} {live:?}: {}", String::from_utf8_lossy(&output.stderr)));
    let all = json["items"][0]["cases"].as_array().cloned().unwrap_or_default();
    assert!(!all.is_empty(), "{file} {live:?}: {json}");
    let text = |case: &Value, key: &str| case[key].as_str().unwrap_or_default().to_owned();
    let of = |case: &Value| {
        (
            format!("{}: {}", text(case, "limiter"), text(case, "name")),
            text(case, "result"),
            format!("{}; {}", text(case, "words"), json["items"][0]["live"]),
        )
    };
    all.iter().map(of).collect()
}

/// What is not as expected, in either time.
fn disagreements(file: &str, spawn: &str) -> Vec<String> {
    let virtual_ = cases(file, &[]);
    let live = cases(file, &["--live", "--spawn", spawn]);
    assert_eq!(virtual_.len(), live.len());
    let not_passed = virtual_.iter().chain(&live).filter(|(_, result, _)| result != "passed");
    not_passed.map(|(name, result, words)| format!("{file}: {name}: {result}: {words}")).collect()
}

#[test]
fn boundary_burst_and_redis_down_in_every_mode() {
    let files = [
        "boundary-burst.toml",
        "redis-down-open.toml",
        "redis-down-closed.toml",
        "redis-down-local.toml",
    ];
    // They hardly load the machine, and each waits for most of its time.
    let wrong: Vec<String> = thread::scope(|scope| {
        let each = files.map(|file| scope.spawn(move || disagreements(file, "single")));
        each.into_iter().flat_map(|one| one.join().expect("it ends")).collect()
    });
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}

#[test]
fn hot_key() {
    let wrong = disagreements("hot-key.toml", "cluster");
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}

#[test]
fn sentinel_failover() {
    let wrong = disagreements("sentinel-failover.toml", "sentinel");
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}
