//! State of hand-written limiters: read, listed, reset and judged where it is described, and said to
//! be unknown where it is not.

use std::fs;

use rlctl::engine::clock::Micros;
use serde_json::{Value, json};

use crate::cli::rlctl;
use crate::registry_cli::{Ran, Shell};

/// What the usual tutorials leave behind, used a moment ago.
fn hand_written(shell: &Shell) {
    let now = Micros::now().0;
    let seconds = format!("{}.{:06}", now / 1_000_000, now % 1_000_000);
    let minute = (now / 60_000_000 * 60).to_string();
    let before = (now / 60_000_000 * 60 - 60).to_string();
    let ask = |words: &[&str]| drop(shell.redis.command::<redis::Value>(words));
    for key in ["ratelimit:203.0.113.7", "rl:tb:user:42"] {
        ask(&["HSET", key, "tokens", "3.5", "last_refill", &seconds]);
        ask(&["EXPIRE", key, "60"]);
    }
    for key in ["ratelimit:user:42:window:60", "rl:swl:user:42"] {
        for member in 0..4 {
            ask(&["ZADD", key, &seconds, &format!("m{member}")]);
        }
        ask(&["ZADD", key, "1000000000", "long ago"]);
        ask(&["EXPIRE", key, "60"]);
    }
    for key in ["ratelimit:fixed:user:42", "rl:fw:user:42", "rl:swc:user:42"] {
        ask(&["SET", &format!("{key}:{minute}"), "6", "EX", "60"]);
    }
    ask(&["SET", &format!("rl:swc:user:42:{before}"), "6", "EX", "60"]);
    ask(&["SET", "user:42:tokens", "2", "EX", "60"]);
}

fn limits(shell: &Shell, line: &str) -> Vec<Value> {
    let report = shell.fine(&format!("{line} -o json")).json();
    report["limits"].as_array().unwrap().clone()
}

#[test]
fn whoever_looks_for_ours_is_told_that_another_limiter_is_at_work() {
    let shell = Shell::new();
    for line in ["keys", "reset user:42 --dry-run"] {
        let told = shell.run(line);
        assert!(told.code == 7 && !told.err.contains("--dialect"), "{line}: {}", told.err);
    }
    assert!(!shell.fine("doctor").out.contains("--dialect"));
    hand_written(&shell);
    for line in ["keys", "reset user:42 --dry-run", "reset --match user:* --yes"] {
        let told = shell.run(line);
        assert!(
            told.code == 7 && told.err.contains("looks like another limiter's: --dialect shipped"),
            "{line}: {}",
            told.err
        );
    }
    let told = shell.fine("doctor");
    assert!(told.out.contains("another limiter: `r"), "{}", told.out);
    assert!(told.out.contains("--dialect shipped examines those"), "{}", told.out);
}

#[test]
fn every_shipped_layout_is_read_without_being_named() {
    let shell = Shell::new();
    hand_written(&shell);
    let before = shell.redis.dump();
    let found = limits(&shell, "inspect user:42 --limit 10/1m");
    let of = |rule: &str| {
        let limit = found.iter().find(|limit| limit["rule"] == rule);
        limit.unwrap_or_else(|| panic!("{rule} is not in {found:#?}")).clone()
    };
    for (rule, algorithm, used) in [
        ("zset-window", "sliding-log", 4),
        ("fixed-window", "fixed-window", 6),
        ("rl-tb", "token-bucket", 7),
        ("rl-fw", "fixed-window", 6),
        ("rl-swl", "sliding-log", 4),
        ("user-tokens", "token-bucket", 8),
    ] {
        let limit = of(rule);
        assert_eq!((&limit["algorithm"], &limit["limit"]), (&json!(algorithm), &json!(10)));
        // A minute may turn, and a token come, between writing and looking.
        let told = limit["used"].as_u64().unwrap();
        assert!(told == used || told + 1 == used || told == 0, "{limit}");
        assert_eq!(limit["source"], format!("dialect {rule}"));
    }
    let counter = of("rl-swc");
    assert!((6..=10).contains(&counter["used"].as_u64().unwrap()), "{counter}");
    let by_address = limits(&shell, "inspect ip:203.0.113.7 --limit 10/1m");
    assert_eq!(by_address[0]["rule"], "hash-token-bucket");
    // Without a limit, what is counted is shown as it stands.
    let bare = limits(&shell, "inspect ip:203.0.113.7");
    assert_eq!((&bare[0]["remaining"], &bare[0]["limit"]), (&json!(3), &Value::Null));
    assert!(shell.fine("inspect user:42").out.contains("zset-window"));
    let all = shell.fine("keys --dialect shipped --limit 10/1m -o json").json();
    assert_eq!(all["items"].as_array().unwrap().len(), 9, "{all:#}");
    let some = shell.fine("keys --dialect shipped --match user:* --sort used -o json").json();
    assert_eq!(some["items"].as_array().unwrap().len(), 8, "{some:#}");
    assert!(shell.redis.dump() == before, "looking changed something");
}

#[test]
fn they_are_reset_and_come_back_and_are_judged() {
    let shell = Shell::new();
    hand_written(&shell);
    let folder = tempfile::tempdir().unwrap();
    let run = |line: &str| -> Ran {
        let mut command = rlctl();
        command.args(line.split(' ')).env("RLCTL_REDIS", shell.redis.url());
        command.current_dir(folder.path()).output().expect("rlctl runs").into()
    };
    let before = shell.redis.dump();
    let reset = run("reset user:42 --dialect shipped --yes --backup b");
    assert_eq!(reset.code, 0, "{}", reset.err);
    assert!(reset.err.contains("its own caches may go on refusing"), "{}", reset.err);
    let left: Vec<String> = shell.redis.dump().into_iter().map(|(key, ..)| key).collect();
    assert_eq!(left, ["ratelimit:203.0.113.7"]);
    assert_eq!(run("undo b --yes").code, 0);
    assert!(shell.redis.dump() == before);
    let healthy = run("doctor --dialect shipped --limit 10/1m");
    assert_eq!(healthy.code, 0, "{}", healthy.out);
    shell.redis.command::<i64>(&["PERSIST", "rl:tb:user:42"]);
    let endless = run("doctor --dialect shipped --limit 10/1m");
    assert_eq!(endless.code, 4);
    assert!(endless.out.contains("1 key never expires: `rl:tb:user:42`"), "{}", endless.out);
}

#[test]
fn a_layout_of_ones_own_is_described_in_a_file_and_an_unknown_one_is_said_so() {
    let shell = Shell::new();
    let file = shell.redis.dir.path().join("mine.toml");
    let path = file.to_str().unwrap();
    shell.redis.command::<String>(&["SET", "throttle/acme/77", "12", "PX", "30000"]);
    let unknown = shell.run("inspect user:77");
    assert_eq!(unknown.code, 7);
    assert!(unknown.err.contains("`throttle/acme/77` (string)"), "{}", unknown.err);
    assert!(unknown.err.contains("docs/dialects.md"), "{}", unknown.err);
    let text = "[[layout]]\nname = \"throttle\"\nkey = \"throttle/{any}/{id}\"\nidentity = \"user:{id}\"\ntype = \"string\"\nalgorithm = \"fixed-window\"\nlimit = \"20/1m\"\n";
    fs::write(&file, text).unwrap();
    let found = limits(&shell, &format!("inspect user:77 --dialect {path}"));
    assert_eq!((&found[0]["used"], &found[0]["remaining"]), (&json!(12), &json!(8)));
    let ends = found[0]["reset_after_us"].as_u64().unwrap();
    assert!((25_000_000..=30_000_000).contains(&ends), "{ends}");
    assert!(
        shell
            .fine(&format!("inspect user:77 --explain --dialect {path}"))
            .out
            .contains("12 of 20 are used")
    );
    fs::write(&file, text.replace("string", "list")).unwrap();
    let wrong = shell.run(&format!("keys --dialect {path}"));
    assert_eq!(wrong.code, 3);
    assert!(wrong.err.contains("hash, string or zset"), "{}", wrong.err);
}
