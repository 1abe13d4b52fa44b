//! `rlctl doctor` on real servers: it finds what is wrong with them, and nothing on healthy ones.

use std::process::Command;
use std::time::Duration;

use rlctl::ops::local_redis::Kind;
use serde_json::Value;

use crate::cli::rlctl;
use crate::registry_cli::{Ran, Shell};
use crate::support::operated::Operated;
use crate::support::proxy::Proxy;

/// What was found by a check, each with its severity.
fn found(diagnosis: &Value, check: &str) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let items = diagnosis["items"].as_array().unwrap().iter();
    let of_check = items.filter(|item| item["check"] == check);
    of_check.map(|item| (text(&item["severity"]), text(&item["found"]))).collect()
}

/// The one finding of a check, which says `words`.
fn assert_finds(diagnosis: &Value, check: &str, severity: &str, words: &str) {
    let found = found(diagnosis, check);
    assert!(
        found.iter().any(|(s, text)| s == severity && text.contains(words)),
        "{check}: {severity} with `{words}` is not in {diagnosis:#}"
    );
    for item in diagnosis["items"].as_array().unwrap() {
        assert!(!item["means"].as_str().unwrap().is_empty(), "{item}");
        assert!(!item["do"].as_str().unwrap().is_empty(), "{item}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_found_on_healthy_servers_in_use() {
    for redis in Operated::all().await {
        for user in 0..30 {
            redis.fine(&format!("check user:{user} --limit 100/1h --limit 9/1m -q"));
        }
        redis.fine("check user:log --limit 9/1m --algorithm sliding-log --idempotency-key k -q");
        redis.fine("block user:9 --for forever --reason r");
        let nothing = serde_json::json!([]);
        let healthy =
            redis.when_calm("doctor -o json", |ran| ran.json()["items"] == nothing).json();
        assert_eq!(healthy["items"], nothing, "{}: {healthy:#}", redis.name);
        let skipped = healthy["checks"].as_array().unwrap().iter();
        let skipped: Vec<&Value> = skipped.filter(|check| !check["skipped"].is_null()).collect();
        assert!(skipped.is_empty(), "{}: {skipped:?}", redis.name);
        let says_so = |ran: &Ran| ran.out.contains("checks: nothing found");
        let told = redis.when_calm("doctor", says_so);
        assert!(says_so(&told), "{}: {}", redis.name, told.out);
    }
}

#[test]
fn keys_eviction_and_scripts_are_judged_and_mended() {
    let shell = Shell::new();
    for user in ["endless", "absurd", "short"] {
        shell.fine(&format!("check user:{user} --limit 100/1h --cost 50 -q"));
    }
    shell.fine("check user:log --limit 100/1h --algorithm sliding-log --cost 50 -q");
    let redis = &shell.redis;
    let ttl = redis.command::<i64>(&["PEXPIRETIME", "rl1:{user:endless}"]);
    redis.command::<i64>(&["PERSIST", "rl1:{user:endless}"]);
    redis.command::<i64>(&["PERSIST", "rl1:{user:log}:log"]);
    redis.command::<i64>(&["PEXPIRE", "rl1:{user:absurd}", "99999999999"]);
    redis.command::<i64>(&["PEXPIRE", "rl1:{user:short}", "60000"]);
    redis.command::<String>(&["SET", "rl1:{user:garbage\u{1b}[2J}", "garbage"]);
    redis.command::<i64>(&["RPUSH", "rl1:{user:list}", "x"]);
    redis.command::<String>(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    redis.command::<String>(&["CONFIG", "SET", "maxmemory", "100mb"]);
    redis.command::<String>(&["SCRIPT", "FLUSH"]);
    let before = redis.dump();
    let ran = shell.run("doctor -o json");
    assert_eq!(ran.code, 4, "{}", ran.err);
    let told = ran.json();
    assert_finds(&told, "keys without TTL", "error", "`rl1:{user:endless}`");
    assert_finds(&told, "absurd TTL", "warning", "1 key lives far too long: `rl1:{user:absurd}`");
    assert_finds(&told, "absurd TTL", "error", "`rl1:{user:short}`");
    assert_finds(&told, "eviction", "error", "allkeys-lru");
    assert_finds(&told, "scripts", "warning", "none of the scripts");
    assert_finds(&told, "readable values", "warning", "`rl1:{user:list}` (it is not a string)");
    assert!(redis.dump() == before, "looking changed something");
    // On a terminal a key cannot take the pen.
    assert!(!shell.run("doctor").out.contains('\u{1b}'));

    let fixed = shell.run("doctor --fix -o json").json();
    let mended: Vec<&Value> =
        fixed["items"].as_array().unwrap().iter().filter(|i| i["fixed"] == true).collect();
    assert_eq!(mended.len(), 1, "scripts only; of the keys some cannot be read: {fixed:#}");
    assert_eq!(redis.command::<i64>(&["PEXPIRETIME", "rl1:{user:endless}"]), ttl);
    let log = redis.command::<i64>(&["PEXPIRETIME", "rl1:{user:log}:log"]);
    assert_eq!(log, redis.command::<i64>(&["PEXPIRETIME", "rl1:{user:log}"]));
    assert_eq!(redis.command::<String>(&["GET", "rl1:{user:garbage\u{1b}[2J}"]), "garbage");
    assert_eq!(redis.command::<i64>(&["LLEN", "rl1:{user:list}"]), 1);
    assert!(shell.fine("events").out.contains("doctor fix"));
}

#[test]
fn a_clock_five_seconds_off_is_found_through_whatever_tells_it() {
    let shell = Shell::new();
    let proxy = Proxy::start(shell.redis.port, 5);
    let told: Ran = rlctl()
        .args(["doctor", "-o", "json", "--redis", &proxy.url()])
        .output()
        .expect("rlctl runs")
        .into();
    assert_eq!(told.code, 4);
    assert_finds(&told.json(), "clock", "error", "5s ahead of this machine's");
    let right = Proxy::start(shell.redis.port, 0);
    let told: Ran = rlctl()
        .args(["doctor", "-o", "json", "--redis", &right.url()])
        .output()
        .expect("rlctl runs")
        .into();
    assert_eq!((told.code, &told.json()["items"]), (0, &serde_json::json!([])));
}

fn signal(name: &str, pid: u32) {
    let status = Command::new("kill").args(["-s", name, &pid.to_string()]).status().unwrap();
    assert!(status.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_lags_or_disagrees_is_found() {
    let redis = Operated::start(Kind::Sentinel).await;
    for user in 0..20 {
        redis.fine(&format!("check user:{user} --limit 100/1h -q"));
    }
    let master = redis.servers.local.masters().await.unwrap()[0];
    let replica = redis.servers.local.nodes().find(|n| !n.is_sentinel && n.port != master).unwrap();
    // One that was written to by itself.
    let client = redis::Client::open(format!("redis://127.0.0.1:{}", replica.port)).unwrap();
    let mut connection = client.get_connection().unwrap();
    let mut set = |words: &[&str]| {
        let mut command = redis::cmd(words[0]);
        words[1..].iter().for_each(|word| {
            command.arg(word);
        });
        command.query::<redis::Value>(&mut connection).unwrap();
    };
    set(&["CONFIG", "SET", "replica-read-only", "no"]);
    set(&["SET", "rl1:{user:3}", "something else"]);
    let told = redis.run("doctor -o json").json();
    assert_finds(&told, "replicas agree", "warning", "disagrees about 1 of 20 keys");
    let pid = replica.pid;
    signal("STOP", pid);
    std::thread::sleep(Duration::from_secs(4));
    redis.fine("check user:1 --limit 100/1h -q");
    let ran = redis.run("doctor -o json");
    signal("CONT", pid);
    assert_eq!(ran.code, 4, "{}", ran.err);
    assert_finds(&ran.json(), "replication lag", "error", "was last heard of");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_that_are_hot_moving_or_without_a_server_are_found() {
    let redis = Operated::start(Kind::Cluster).await;
    for user in 0..40 {
        redis.fine(&format!("check user:{user} --limit 10k/30d --cost 30 -q"));
    }
    redis.fine("check user:whale --limit 10k/30d --cost 9000 -q");
    let masters = redis.servers.local.masters().await.unwrap();
    let ask = |port: u16, words: &[&str]| -> String {
        let client = redis::Client::open(format!("redis://127.0.0.1:{port}")).unwrap();
        let mut command = redis::cmd(words[0]);
        words[1..].iter().for_each(|word| {
            command.arg(word);
        });
        let said: redis::Value = command.query(&mut client.get_connection().unwrap()).unwrap();
        redis::from_redis_value(said).unwrap_or_default()
    };
    for port in &masters {
        ask(*port, &["CONFIG", "SET", "cluster-require-full-coverage", "yes"]);
    }
    // A slot that is on its way for ever.
    let ids: Vec<String> = masters.iter().map(|port| ask(*port, &["CLUSTER", "MYID"])).collect();
    let slot = rlctl::engine::store::redis::slot_of("rl1:{user:whale}").to_string();
    let told = redis.fine("doctor -o json").json();
    assert_finds(&told, "full coverage", "warning", "cluster-require-full-coverage is on");
    assert_finds(&told, "hot slots", "warning", &format!("slot {slot} has 88 %"));
    assert_finds(&told, "hot slots", "warning", "`user:whale`");
    let owner = redis.fine("inspect user:whale -o json").json()["limits"][0]["node"].to_string();
    let owner = masters.iter().position(|port| owner.contains(&port.to_string())).unwrap();
    let other = (owner + 1) % masters.len();
    ask(masters[other], &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &ids[owner]]);
    ask(masters[owner], &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &ids[other]]);
    let told = redis.fine("doctor -o json").json();
    assert_finds(&told, "migrating slots", "warning", "1 of its slots are on their way");
    // Everything of it is still found where it is, also what is not there.
    let whale = redis.fine("inspect user:whale -o json").json();
    assert_eq!(whale["limits"][0]["used"], 9000);
    let reset = redis.fine("reset user:whale --yes --backup whale.jsonl -o json").json();
    assert_eq!(reset["limits"], 1);
    redis.fine("undo whale.jsonl --yes");
    let again = redis.fine("inspect user:whale -o json").json();
    assert_eq!(again["limits"][0]["used"], 9000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_without_a_server_are_found_and_their_identities_are_not_taken_for_unused() {
    let redis = Operated::start(Kind::Cluster).await;
    redis.fine("check user:1 --limit 10/30d -q");
    let node = redis.fine("inspect user:1 -o json").json()["limits"][0]["node"].to_string();
    let masters = redis.servers.local.masters().await.unwrap();
    let owner = *masters.iter().find(|port| node.contains(&port.to_string())).unwrap();
    let all = redis.servers.local.status().await;
    let copies = all.items.iter().filter(|n| n.replica_of == Some(owner)).map(|n| n.port);
    for port in copies.chain([owner]) {
        redis.servers.local.kill(port).await.unwrap();
    }
    let told = redis.run("doctor -o json");
    assert_eq!(told.code, 4, "{}", told.err);
    assert_finds(&told.json(), "reachable", "error", "cannot reach redis");
    assert_finds(&told.json(), "uncovered slots", "error", "slots have no server that answers");
    for line in ["inspect user:1", "keys", "reset --match user:* --yes"] {
        let told = redis.run(line);
        assert_eq!(told.code, 5, "{line}: {}{}", told.out, told.err);
    }
}
