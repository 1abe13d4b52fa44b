//! `rlctl cluster`: real servers, started, broken and ended by the binary itself.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn cluster(dir: &Path, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_rlctl"))
        .args(["cluster", "--dir"])
        .arg(dir)
        .args(words)
        .output()
        .expect("rlctl runs")
}

fn json(dir: &Path, words: &[&str]) -> Value {
    let output = cluster(dir, &[words, &["-o", "json"]].concat());
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{words:?}: {told}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{words:?}: {e}"))
}

/// Ends the servers also when a test fails.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> std::path::PathBuf {
        self.0.path().join("redis")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        cluster(&self.path(), &["down"]);
    }
}

fn is_alive(pid: u64) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

fn pids(status: &Value) -> Vec<u64> {
    status["items"].as_array().unwrap().iter().map(|n| n["pid"].as_u64().unwrap()).collect()
}

fn slots(status: &Value) -> Vec<u64> {
    status["items"].as_array().unwrap().iter().filter_map(|n| n["slots"].as_u64()).collect()
}

#[test]
fn a_cluster_grows_shrinks_fails_over_and_ends_without_a_trace() {
    let folder = Folder::new();
    let dir = folder.path();
    let up = json(&dir, &["up", "cluster", "--replicas", "1", "--base-port", "0"]);
    assert_eq!(up["kind"], "cluster");
    assert_eq!(slots(&up), [5461, 5461, 5462, 0, 0, 0]);
    let first = up["items"][0]["port"].as_u64().unwrap();

    let killed = json(&dir, &["kill-master"]);
    assert_eq!(killed["port"], first);
    let status = json(&dir, &["status"]);
    assert_eq!(status["items"][0]["life"], "gone");
    let before = status["items"][1]["port"].clone();
    let failover = json(&dir, &["failover", &before.to_string()]);
    assert_eq!((&failover["done"], &failover["port"]), (&"failover".into(), &before));
    // Those that have ended come back, and only those.
    let again = json(&dir, &["up", "cluster"]);
    assert_eq!(pids(&again)[1..], pids(&status)[1..]);
    assert!(is_alive(pids(&again)[0]));

    let added = json(&dir, &["add-node"])["port"].as_u64().unwrap().to_string();
    let moved = json(&dir, &["reshard"])["slots_moved"].as_u64().unwrap();
    assert_eq!(moved, 4096);
    let mut shares = slots(&json(&dir, &["status"]));
    shares.retain(|slots| *slots > 0);
    assert_eq!(shares, [4096; 4]);
    json(&dir, &["remove-node", &added]);
    let status = json(&dir, &["status"]);
    assert_eq!(slots(&status).iter().sum::<u64>(), 16_384);
    assert_eq!(status["items"].as_array().unwrap().len(), 6);

    json(&dir, &["down"]);
    assert!(pids(&status).into_iter().all(|pid| !is_alive(pid)));
    assert!(!dir.exists());
    let again = cluster(&dir, &["down"]);
    assert_eq!(again.status.code(), Some(7), "{again:?}");
}

#[test]
fn sentinels_let_a_replica_take_over() {
    let folder = Folder::new();
    let dir = folder.path();
    let up = json(&dir, &["up", "sentinel", "--base-port", "0", "--replicas", "1"]);
    assert_eq!(up["items"].as_array().unwrap().len(), 5);
    assert!(up["url"].as_str().unwrap().ends_with("/0?master=main"), "{up}");
    let failover = json(&dir, &["failover"]);
    assert_eq!(failover["port"], up["items"][0]["port"]);
    assert_eq!(failover["new_master"], up["items"][1]["port"]);
    let refused = cluster(&dir, &["add-node"]);
    assert_eq!(refused.status.code(), Some(2));
}

#[test]
fn a_start_that_fails_leaves_nothing_running() {
    let folder = Folder::new();
    let dir = folder.path();
    let up = json(&dir, &["up", "single", "--base-port", "0"]);
    let port = up["items"][0]["port"].to_string();
    let other = folder.0.path().join("other");
    let refused = cluster(&other, &["up", "single", "--base-port", &port]);
    assert_eq!(refused.status.code(), Some(1));
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(told.contains(&format!("port {port}")) && told.contains("--base-port"), "{told}");
    assert!(!other.exists());
    let twice = cluster(&dir, &["up", "single"]);
    assert_eq!(twice.status.code(), Some(2));
    for wrong in [&["up", "cluster", "--masters", "2"][..], &["up", "single", "--replicas", "1"]] {
        assert_eq!(cluster(&other, wrong).status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn a_process_that_is_not_ours_is_never_signalled() {
    let folder = Folder::new();
    let dir = folder.path();
    let up = json(&dir, &["up", "single", "--base-port", "0"]);
    // The number of the server now stands for somebody else, as after a restart of the machine.
    let mut bystander = Command::new("sleep").arg("60").spawn().unwrap();
    let file = dir.join("local-redis.json");
    let state = std::fs::read_to_string(&file).unwrap();
    let pid = pids(&up)[0];
    let forged = state.replace(&pid.to_string(), &bystander.id().to_string());
    std::fs::write(&file, forged).unwrap();
    assert_eq!(json(&dir, &["status"])["items"][0]["life"], "gone");
    cluster(&dir, &["kill-master"]);
    json(&dir, &["down"]);
    assert!(bystander.try_wait().unwrap().is_none(), "it still sleeps");
    bystander.kill().unwrap();
    bystander.wait().unwrap();
    // The true one is still there; nobody else would end it.
    assert!(is_alive(pid));
    std::fs::create_dir_all(dir.join("x")).unwrap();
    Command::new("kill").arg(pid.to_string()).status().unwrap();
}
