//! inspect, keys, reset and undo, as processes, on one server, under Sentinel and on a cluster: the
//! same answers everywhere, and nothing changed but what was asked for.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde_json::{Value, json};

use crate::cli::rlctl;
use crate::registry_cli::{Ran, Shell};
use crate::support::operated::Operated;

/// Somebody has used something: five users with one limit each of every kind, one with two.
fn use_some(redis: &Operated) {
    for (number, algorithm) in
        ["token-bucket", "gcra", "leaky-bucket", "fixed-window", "sliding-window", "sliding-log"]
            .iter()
            .enumerate()
    {
        let user = format!("user:{number}");
        redis.fine(&format!("check {user} --limit 1000/30d --algorithm {algorithm} --cost 7 -q"));
    }
    redis.fine("check user:two --limit 10/30d --limit 900/300d --cost 4 -q");
    let refused = redis.run("check user:two --limit 10/30d --limit 900/300d --cost 7 -q");
    assert_eq!(refused.code, 8);
}

/// What does not depend on where it is asked, and when.
fn lasting(value: &Value) -> Value {
    let mut value = value.clone();
    for of in value.get_mut("overrides").and_then(Value::as_array_mut).into_iter().flatten() {
        of["at_us"].take();
        of["until_us"].take();
    }
    let name = if value["limits"].is_array() { "limits" } else { "items" };
    let limits = value[name].as_array_mut();
    for limit in limits.into_iter().flatten() {
        let limit = limit.as_object_mut().unwrap();
        for name in ["node", "slot", "retry_after_us", "reset_after_us", "ttl_us", "memory_bytes"] {
            limit.remove(name);
        }
    }
    value
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_of_redis_gives_the_same_answers_and_looking_changes_nothing() {
    let mut answers: Vec<(Vec<Value>, &str)> = Vec::new();
    for redis in Operated::all().await {
        use_some(&redis);
        redis.fine("override set user:1 --rule cli --limit 5/1m --for 2h --reason big");
        let before = redis.dump().await;
        let mut told = Vec::new();
        for user in ["user:0", "user:1", "user:2", "user:3", "user:4", "user:5", "user:two"] {
            let report = redis.fine(&format!("inspect {user} -o json")).json();
            for limit in report["limits"].as_array().unwrap() {
                assert_eq!(limit["slot"].is_null(), redis.name != "cluster", "{limit}");
                assert!(limit["node"].as_str().unwrap().starts_with("127.0.0.1:"), "{limit}");
                assert!(limit["memory_bytes"].as_u64().unwrap() > 50, "{limit}");
                let (ttl, whole) = (&limit["ttl_us"], &limit["reset_after_us"]);
                assert!(ttl.as_u64().unwrap() + 2_000 > whole.as_u64().unwrap(), "{limit}");
            }
            told.push(lasting(&report));
        }
        let two = redis.fine("inspect user:two --explain");
        assert!(
            two.out.contains("decides, as the one with the least left: rule cli"),
            "{}",
            two.out
        );
        redis.fine("inspect user:0 user:5 --raw -o wide");
        let nobody = redis.run("inspect user:nobody -o json");
        assert_eq!((nobody.code, &nobody.json()["limits"]), (7, &json!([])));
        let piped = redis.with_input("inspect - -o ndjson", "user:3\n\n user:5\nuser:nobody\n");
        assert_eq!((piped.code, piped.out.lines().count()), (0, 3), "{}", piped.err);
        let mut keys = lasting(&redis.fine("keys -o json").json());
        let by_name = |item: &Value| (item["identity"].to_string(), item["limit"].as_u64());
        keys["items"].as_array_mut().unwrap().sort_by_key(by_name);
        told.push(keys);
        told.push(lasting(&redis.fine("keys --sort remaining --rows 2 -o json").json()));
        told.push(lasting(&redis.fine("keys --match user:t* --rule cli -o json").json()));
        redis.fine("doctor");
        redis.fine("reset --match user:* --dry-run");
        assert!(redis.dump().await == before, "{}: looking changed something", redis.name);
        answers.push((told, redis.name));
    }
    let (first, _) = &answers[0];
    for (told, name) in &answers[1..] {
        assert_eq!(told, first, "{name} differs");
    }
    let two = &first[6]["limits"];
    assert_eq!((&two[0]["used"], &two[0]["remaining"]), (&json!(4), &json!(6)));
    assert_eq!((&two[0]["rule"], &two[0]["algorithm"]), (&json!("cli"), &json!("token-bucket")));
    assert_eq!((&two[0]["limit"], &two[0]["burst"]), (&json!(10), &json!(10)));
    assert_eq!((&two[0]["state"], &two[0]["source"]), (&json!("normal"), &json!("store")));
    assert_eq!(first[1]["overrides"][0]["limits"][0]["limit"], "5/1m");
    // The sliding log has all of its charges.
    assert_eq!(first[5]["limits"][0]["used"], 7);
    assert_eq!(first[7]["items"].as_array().unwrap().len(), 8);
    assert_eq!(first[8]["items"][0]["remaining"], 6);
    assert_eq!(first[9]["items"].as_array().unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_reset_comes_back_bit_for_bit() {
    for redis in Operated::all().await {
        use_some(&redis);
        redis.fine("override set user:5 --rule cli --limit 500/1m --for forever --reason stays");
        let before = redis.quota().await;
        let all = redis.fine("reset --match user:* --yes --backup all.jsonl -o json").json();
        assert_eq!((&all["identities"], &all["limits"]), (&json!(7), &json!(8)), "{}", redis.name);
        assert_eq!((&all["written"], &all["backup"]), (&json!(true), &json!("all.jsonl")));
        let left: Vec<String> = redis.quota().await.into_iter().map(|(key, ..)| key).collect();
        assert_eq!(left, ["rl1:{user:5}:s"], "{}: what operators decided stays", redis.name);
        // Used since then; replaced by what was there.
        redis.fine("check user:5 --limit 1000/30d --algorithm sliding-log -q");
        let plan = redis.fine("undo all.jsonl --dry-run").out;
        let replaced = plan.lines().last().unwrap();
        assert!(replaced.starts_with("2 keys were used since then and are replaced: "), "{plan}");
        assert!(replaced.contains("rl1:{user:5}:log"), "{plan}");
        let undone = redis.fine("undo all.jsonl --yes -o json").json();
        assert_eq!((&undone["restored"], &undone["expired"]), (&json!(8), &json!(0)));
        assert_eq!(undone["replaced"], 2);
        // A second time nothing is another than it was.
        let again = redis.fine("undo all.jsonl --dry-run -o json").json();
        assert_eq!((&again["restored"], &again["replaced"]), (&json!(8), &json!(0)));
        assert!(redis.quota().await == before, "{}: not as it was", redis.name);

        // One rule of one identity, and its default name of a backup.
        assert_eq!(redis.run("reset user:two user:3 --rule other --dry-run").code, 7);
        let one = redis.fine("reset user:two --rule cli --yes --reason wrong");
        assert!(one.out.contains("forgotten: 2 limits of 1 identity"), "{}", one.out);
        let undo = one.out.lines().find_map(|line| line.strip_prefix("undo: rlctl ")).unwrap();
        assert!(undo.starts_with("undo rlctl-reset-20"), "{undo}");
        assert_eq!(redis.run("inspect user:two").code, 7);
        redis.fine(&format!("{undo} --yes"));
        assert!(redis.quota().await == before, "{}: not as it was", redis.name);
        let trail = redis.fine("events -o json").json()["items"].clone();
        let actions: Vec<&str> =
            trail.as_array().unwrap().iter().map(|e| e["action"].as_str().unwrap()).collect();
        assert_eq!(actions, ["override set", "reset", "undo", "reset", "undo"], "{}", redis.name);
        assert_eq!(
            (&trail[1]["subject"], &trail[3]["reason"]),
            (&json!("user:*"), &json!("wrong"))
        );
    }
}

/// Ends with the test, however that ends.
struct Gateway {
    child: std::process::Child,
    admin: String,
}

impl Gateway {
    fn start(redis: &str, rules: &str) -> Gateway {
        let mut child = rlctl()
            .args(["serve", "-q", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
            .args(["--redis", redis, "--rules", rules])
            .stdout(Stdio::piped())
            .spawn()
            .expect("rlctl starts");
        let told = BufReader::new(child.stdout.take().unwrap()).lines();
        let admin = told.map_while(Result::ok).find_map(|line| {
            line.strip_prefix("listening admin ").map(|address| format!("http://{address}"))
        });
        Gateway { child, admin: admin.expect("an admin address") }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const RULES: &str = "default_tier = \"free\"\n[tiers.free]\nlimits = [\"10/1d\"]\n[tiers.gold]\nlimits = [\"99/1d\"]\n[[rule]]\nname = \"per-user\"\ndimension = \"user\"\nlimits = \"tier\"\n[[rule]]\nname = \"orders\"\ndimension = \"user\"\nendpoint = \"/orders\"\nlimits = [\"7/1d\"]\n";

#[test]
fn with_rules_also_unused_limits_are_shown_and_where_each_is_from() {
    let shell = Shell::new();
    let file = shell.redis.dir.path().join("rules.toml");
    std::fs::write(&file, RULES).unwrap();
    let rules = file.to_str().unwrap();
    shell.fine(&format!("check user:1 --rules {rules} --cost 4 -q"));
    let inspect = |user: &str| -> Vec<Value> {
        let line = format!("inspect {user} --rules {rules} -o json");
        let report = shell.fine(&line).json();
        let short = |limit: &Value| {
            json!([
                limit["rule"],
                limit["limit"],
                limit["used"],
                limit["source"],
                limit["ttl_us"].is_null()
            ])
        };
        let mut told: Vec<Value> = report["limits"].as_array().unwrap().iter().map(short).collect();
        told.push(report["tier"].clone());
        told
    };
    let unused = json!(["orders", 7, 0, "rule", true]);
    let first = json!(["per-user", 10, 4, "tier", false]);
    assert_eq!(inspect("user:1"), [first, unused.clone(), json!("free")]);
    // What was used stays used under another limit.
    shell.fine("tier set user:1 gold --reason deal -q");
    let gold = json!(["per-user", 99, 4, "tier", false]);
    assert_eq!(inspect("user:1"), [gold, unused.clone(), json!("gold")]);
    shell.fine("override set user:1 --rule per-user --limit 50/1d --for 1h --reason r -q");
    let over = json!(["per-user", 50, 4, "override", false]);
    assert_eq!(inspect("user:1"), [over, unused.clone(), json!("gold")]);
    let nobody = json!(["per-user", 10, 0, "tier", true]);
    assert_eq!(inspect("user:2"), [nobody, unused, json!("free")]);
    assert_eq!(shell.run(&format!("inspect ip:10.0.0.1 --rules {rules}")).code, 7);
    shell.fine("block user:1 --for 1h --reason abuse -q");
    let blocked = shell.fine("inspect user:1 --explain").out;
    assert!(blocked.contains("blocked until 20") && blocked.contains(": abuse"), "{blocked}");
}

#[test]
fn a_gateway_is_asked_and_told() {
    let shell = Shell::new();
    let file = shell.redis.dir.path().join("rules.toml");
    std::fs::write(&file, RULES).unwrap();
    let rules = file.to_str().unwrap();
    shell.fine(&format!("check user:1 --rules {rules} --cost 4 -q"));
    let gateway = Gateway::start(&shell.redis.url(), rules);
    let asked: Ran = rlctl()
        .args(["inspect", "user:1", "-o", "json", "--gateway", &gateway.admin])
        .output()
        .unwrap()
        .into();
    assert_eq!(asked.code, 0, "{}", asked.err);
    let limit = asked.json()["limits"][0].clone();
    assert_eq!((&limit["rule"], &limit["used"]), (&json!("per-user"), &json!(4)));
    assert_eq!((&limit["key"], &limit["node"]), (&json!(""), &Value::Null));
    let backup = shell.redis.dir.path().join("b");
    let line =
        format!("reset user:1 --yes --backup {} --gateway {}", backup.display(), gateway.admin);
    shell.fine(&line);
    let trail = shell.fine("events -o json").json()["items"].as_array().unwrap().len();
    assert_eq!(trail, 2, "ours, and that of the gateway");
    assert_eq!(shell.run("inspect user:1").code, 7);
    for user in 0..25 {
        shell.fine(&format!("check user:{user} --rules {rules} -q"));
    }
    shell.fine(&format!(
        "reset --match user:* --yes --backup {}2 --gateway {}",
        backup.display(),
        gateway.admin
    ));
    let trail = shell.fine("events -o json").json()["items"].as_array().unwrap().len();
    assert_eq!(trail, 2 + 1 + 25, "the pattern, and what the gateway was told of each");
}

#[test]
fn names_that_others_chose_cannot_take_the_pen() {
    let shell = Shell::new();
    let wicked = "user:\u{202e}x\u{200b}\u{9b}31m".replace('\u{9b}', "\u{2066}");
    let words = ["check", &wicked, "--limit", "10/1h", "-q"];
    let mut check = rlctl();
    check.args(words).env("RLCTL_REDIS", shell.redis.url());
    assert!(check.status().unwrap().success());
    shell.redis.command::<String>(&["SET", "rl1:{\u{1b}[2J}", "x"]);
    shell.redis.command::<i64>(&[
        "HSET",
        "ratelimit:\u{1b}]0;x\u{7}",
        "tokens",
        "1",
        "last_refill",
        "1",
    ]);
    for line in [
        "keys",
        "keys -o wide",
        "keys -o json",
        "keys -o csv",
        "keys --dialect shipped",
        "reset --match user:* --dry-run",
        "doctor",
        "doctor -o json",
        "doctor --dialect shipped",
    ] {
        let told = shell.run(line);
        assert!(told.code == 0 || told.code == 4, "{line}: {}", told.err);
        let shown = told.out + &told.err;
        let is_harmful =
            |c: char| (c.is_control() && c != '\n') || "\u{202e}\u{200b}\u{2066}".contains(c);
        assert!(!shown.contains(is_harmful), "{line}: {shown:?}");
    }
}

#[test]
fn whoever_has_seen_enough_ends_it_quietly() {
    let shell = Shell::new();
    for user in 0..50 {
        shell.redis.command::<String>(&["SET", &format!("user:{user}:tokens"), "1"]);
    }
    let line = format!(
        "{} keys --dialect user-tokens --redis {} | head -n 1",
        env!("CARGO_BIN_EXE_rlctl"),
        shell.redis.url()
    );
    let told = std::process::Command::new("sh").args(["-c", &line]).output().unwrap();
    assert!(told.stderr.is_empty(), "{}", String::from_utf8_lossy(&told.stderr));
    assert_eq!(String::from_utf8_lossy(&told.stdout).lines().count(), 1);
}
