//! The binary as people and scripts meet it: what it prints, where, and how it ends.

use std::io::Write;
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::support::redis::RedisServer;

pub(crate) fn rlctl() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rlctl"));
    for variable in [
        "RLCTL_REDIS",
        "RLCTL_RULES",
        "RLCTL_REDIS_PASSWORD_FILE",
        "REDISCLI_AUTH",
        "RLCTL_ACTOR",
        "RLCTL_GATEWAY",
        "RLCTL_TOKEN",
        "RLCTL_LISTEN",
        "RLCTL_UPSTREAM",
    ] {
        command.env_remove(variable);
    }
    command
}

fn run(arguments: &[&str]) -> Output {
    rlctl().args(arguments).output().expect("rlctl runs")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("UTF-8")
}

fn json_of(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", stdout(output)))
}

fn run_with_input(arguments: &[&str], input: &str) -> Output {
    let mut child = rlctl()
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("rlctl runs");
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("rlctl reads");
    child.wait_with_output().expect("rlctl ends")
}

#[test]
fn bad_arguments_end_with_2_and_say_what_to_write() {
    let long = "x".repeat(1025);
    for (arguments, words) in [
        (vec!["frobnicate"], "unrecognized subcommand"),
        (vec!["check", "user:1"], "--limit"),
        (vec!["check", "user:1", "--limit", "ten/1m"], "not a number"),
        (vec!["check", "user:1", "--limit", "10"], "100/1m"),
        (vec!["check", "user:1", "--limit", "10/1y"], "not a duration"),
        (vec!["check", "user:1", "--limit", "10/0.5ms"], "from 1ms to 366d"),
        (vec!["check", "user:1", "--limit", "2G/1s"], "at most 1000000000"),
        (vec!["check", "user:1", "--limit", "10/1m", "--burst", "0"], "at least 1"),
        (
            vec!["check", "user:1", "--limit", "10/1m", "--algorithm", "tokn-bucket"],
            "did you mean token-bucket?",
        ),
        (
            vec![
                "check",
                "user:1",
                "--limit",
                "10/1m",
                "--algorithm",
                "fixed-window",
                "--burst",
                "5",
            ],
            "belongs to the buckets",
        ),
        (
            vec!["check", "user:1", "--limit", "200k/1m", "--algorithm", "sliding-log"],
            "at most 100000",
        ),
        (vec!["check", "user:1", "--limit", "10/1m", "--cost", "-1"], "unexpected argument"),
        (vec!["check", "user:1", "--limit", "10/1m", "--cost=-1"], "not a cost"),
        (vec!["check", "user:1", "--limit", "10/1m", "--cost", "1000000001"], "not a cost"),
        (vec!["check", "", "--limit", "10/1m"], "cannot be empty"),
        (vec!["check", &long, "--limit", "10/1m"], "at most 1024"),
        (vec!["check", "a\u{1b}[2J", "--limit", "10/1m"], "control characters"),
        (vec!["check", "ip:1.2.3", "--limit", "10/1m"], "not an address"),
        (vec!["check", "user:1", "--limit", "10/1m", "--idempotency-key", ""], "1 to 255 bytes"),
        (vec!["check", "user:1", "--limit", "10/1m", "--prefix", "a{b"], "cannot be a key prefix"),
        (vec!["check", "user:1", "--limit", "10/1m", "--redis", "localhost"], "not a redis URL"),
        (
            vec!["check", "user:1", "--limit", "10/1m", "--redis", "redis-cluster://a:1,,b:2"],
            "a host is missing",
        ),
        (vec!["simulate", "--limit", "10/1m"], "--trace"),
        (vec!["check", "user:1", "--limit", "\u{1b}]0;owned\u{7}"], "is not a limit"),
        (vec!["\u{1b}[2Jfrob"], "unrecognized subcommand"),
        (vec!["demo", "\u{202e}x"], "u{202e}"),
    ] {
        let output = run(&arguments);
        let told = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {told}");
        assert!(told.contains(words), "{arguments:?}: {told}");
        assert!(!told.contains('\u{1b}'), "{arguments:?}: raw escape in {told:?}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}

#[test]
fn strange_but_valid_identities_are_accepted() {
    for identity in ["{}", ":", "user:a b", "user:日本", "user:{1}:%", "no-colon", "user:*?[x]"] {
        let output = run(&["check", identity, "--limit", "10/1m", "-q", "-o", "json"]);
        assert_eq!(output.status.code(), Some(0), "{identity}: {}", stderr(&output));
        assert_eq!(json_of(&output)["identity"], identity);
    }
}

#[test]
fn check_in_memory_decides_and_says_that_nothing_is_remembered() {
    let output = run(&["check", "user:1", "--limit", "10/1m"]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(
        stdout(&output),
        "allowed  user:1\n  token-bucket 10/1m: 9 of 10 left\n  whole again in 6s\n"
    );
    assert!(stderr(&output).contains("nothing is remembered"));
    let quiet = run(&["check", "user:1", "--limit", "10/1m", "-q"]);
    assert!(quiet.stderr.is_empty());
}

#[test]
fn check_gives_the_documented_json() {
    let output = run(&["check", "ip:2001:db8::1", "--limit", "5/1m", "--cost", "6", "-o", "json"]);
    assert_eq!(output.status.code(), Some(8));
    assert_eq!(
        json_of(&output),
        json!({
            "schema": "rlctl/v1", "identity": "ip:2001:db8::", "allowed": false, "limit": 5, "capacity": 5,
            "remaining": 5, "retry_after_us": null, "reset_after_us": 0, "delay_us": 0, "rule": "cli",
            "algorithm": "token-bucket", "state": "throttled", "degraded": null, "replicas": null, "shadow": [],
        })
    );
}

#[test]
fn check_on_redis_counts_and_denies_with_8() {
    let redis = RedisServer::start();
    let url = redis.url();
    let check = |more: &[&str]| {
        let arguments =
            [&["check", "user:1", "--limit", "2/1d", "-o", "json", "--redis", &url], more].concat();
        run(&arguments)
    };
    let remaining: Vec<Value> = (0..2).map(|_| json_of(&check(&[]))["remaining"].clone()).collect();
    assert_eq!(remaining, [json!(1), json!(0)]);
    let denied = check(&[]);
    assert_eq!(denied.status.code(), Some(8));
    assert!(json_of(&denied)["retry_after_us"].as_u64() > Some(43_000_000_000));
    // A prefix of its own is a bucket of its own.
    assert_eq!(check(&["--prefix", "other:"]).status.code(), Some(0));
    assert_eq!(check(&["--cost", "0"]).status.code(), Some(0));
}

#[test]
fn an_idempotency_key_is_charged_once_and_not_with_another_cost() {
    let redis = RedisServer::start();
    let url = redis.url();
    let check = |cost: &str| {
        run(&[
            "check",
            "user:1",
            "--limit",
            "9/1d",
            "-o",
            "json",
            "--redis",
            &url,
            "--idempotency-key",
            "k1",
            "--cost",
            cost,
        ])
    };
    assert_eq!(json_of(&check("2"))["remaining"], 7);
    assert_eq!(json_of(&check("2"))["remaining"], 7);
    let other = check("3");
    assert_eq!(other.status.code(), Some(2));
    assert!(stderr(&other).contains("another --cost"), "{}", stderr(&other));
    assert_eq!(
        json_of(&run(&["check", "user:1", "--limit", "9/1d", "-o", "json", "--redis", &url]))["remaining"],
        6
    );
}

#[test]
fn a_redis_that_cannot_be_asked_ends_with_5_and_without_secrets() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let silent = format!("redis://bob:hunter2@{}", silent.local_addr().expect("bound"));
    for (url, words) in
        [("redis://bob:hunter2@127.0.0.1:1", "refused"), (silent.as_str(), "did not speak redis")]
    {
        let output = run(&["check", "user:1", "--limit", "10/1m", "--redis", url]);
        let told = stderr(&output);
        assert_eq!(output.status.code(), Some(5), "{told}");
        assert!(told.contains(words), "{told}");
        assert!(!told.contains("hunter2"), "{told}");
    }
}

#[test]
fn a_password_that_is_typed_in_the_wrong_place_is_not_repeated() {
    let url = "redis://bob:hunter2@127.0.0.1:1";
    for arguments in [
        vec!["check", "user:1", url],
        vec!["check", "user:1", "--limit", url],
        vec!["rules", "lint", url],
        vec!["events", "--context", url],
    ] {
        let output = rlctl().args(&arguments).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(told.contains("redis://***@127.0.0.1:1"), "{arguments:?}: {told}");
        assert!(!told.contains("hunter2"), "{arguments:?}: {told}");
    }
}

#[test]
fn passwords_come_from_a_file_or_the_environment() {
    let redis = RedisServer::start_with(|_| vec!["--requirepass".into(), "hunter2".into()]);
    let url = redis.url();
    let arguments = ["check", "user:1", "--limit", "10/1m", "--redis", &url];
    let refused = run(&arguments);
    assert_eq!(refused.status.code(), Some(5));
    assert!(stderr(&refused).contains("RLCTL_REDIS_PASSWORD_FILE"), "{}", stderr(&refused));
    let by_environment =
        rlctl().args(arguments).env("REDISCLI_AUTH", "hunter2").output().expect("runs");
    assert_eq!(by_environment.status.code(), Some(0), "{}", stderr(&by_environment));
    let file = redis.dir.path().join("password");
    std::fs::write(&file, "hunter2\n").expect("writes");
    let by_file =
        rlctl().args(arguments).env("RLCTL_REDIS_PASSWORD_FILE", &file).output().expect("runs");
    assert_eq!(by_file.status.code(), Some(0), "{}", stderr(&by_file));
}

const TRACE: &str = "t_us,key,cost\n0,a,1\n0,a,1\n10,\"b,c\",0\n500000,a,1\n";

#[test]
fn decisions_are_one_json_line_per_request_in_trace_order() {
    let output =
        run_with_input(&["simulate", "--limit", "1/1s", "--trace", "-", "--decisions", "-"], TRACE);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(
        stdout(&output),
        concat!(
            r#"{"t_us":0,"key":"a","cost":1,"allowed":true,"remaining":0,"retry_after_us":null,"reset_after_us":1000000,"delay_us":0}"#,
            "\n",
            r#"{"t_us":0,"key":"a","cost":1,"allowed":false,"remaining":0,"retry_after_us":1000000,"reset_after_us":1000000,"delay_us":0}"#,
            "\n",
            r#"{"t_us":10,"key":"b,c","cost":0,"allowed":true,"remaining":1,"retry_after_us":null,"reset_after_us":0,"delay_us":0}"#,
            "\n",
            r#"{"t_us":500000,"key":"a","cost":1,"allowed":false,"remaining":0,"retry_after_us":500000,"reset_after_us":500000,"delay_us":0}"#,
            "\n",
        )
    );
}

#[test]
fn a_trace_gives_the_same_decisions_on_redis_and_leaves_nothing_there() {
    let redis = RedisServer::start();
    let url = redis.url();
    let mut trace = String::from("t_us,key,cost\n");
    for n in 0..2_000u64 {
        trace += &format!("{},user:{},{}\n", 1_700_000_000_000_000 + n * 7_919, n % 13, n % 4);
    }
    for algorithm in
        ["token-bucket", "leaky-bucket", "fixed-window", "sliding-window", "sliding-log"]
    {
        let decide = |store| {
            let arguments = [
                "simulate",
                "--limit",
                "7/3s",
                "--algorithm",
                algorithm,
                "--trace",
                "-",
                "--decisions",
                "-",
                "--store",
                store,
            ];
            let output = run_with_input(&arguments, &trace);
            assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
            stdout(&output)
        };
        let (memory, real) = (decide("memory"), decide(&url));
        assert_eq!(memory.lines().count(), 2_000);
        assert!(memory.contains("\"allowed\":false"));
        assert_eq!(memory, real, "{algorithm}");
        assert!(redis.dump().is_empty());
    }
}

#[test]
fn a_broken_line_ends_with_3_after_what_came_before_it() {
    let redis = RedisServer::start();
    for store in ["memory", &redis.url()] {
        let trace = "t_us,key,cost\n1,a,1\n2,a,1\nthree,a,1\n4,a,1\n";
        let arguments =
            ["simulate", "--limit", "9/1s", "--trace", "-", "--decisions", "-", "--store", store];
        let output = run_with_input(&arguments, trace);
        assert_eq!(output.status.code(), Some(3));
        assert_eq!(stdout(&output).lines().count(), 2);
        assert!(stderr(&output).contains("line 4: `three` is not a time"), "{}", stderr(&output));
    }
    assert!(redis.dump().is_empty());
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let missing = run(&["simulate", "--limit", "1/1s", "--trace", "/no/such/file"]);
    assert_eq!(missing.status.code(), Some(3));
    assert!(stderr(&missing).contains("/no/such/file: cannot open"), "{}", stderr(&missing));
    let arguments =
        ["simulate", "--limit", "1/1s", "--trace", "-", "--decisions", "/no/such/dir/x"];
    let unwritable = run_with_input(&arguments, TRACE);
    assert_eq!(unwritable.status.code(), Some(1));
    assert!(stderr(&unwritable).contains("/no/such/dir/x"), "{}", stderr(&unwritable));
    let several = run_with_input(
        &["simulate", "--limit", "1/1s", "--algorithm", "all", "--trace", "-", "--decisions", "-"],
        TRACE,
    );
    assert_eq!(several.status.code(), Some(2));
}

#[test]
fn without_decisions_a_trace_is_summed_up_per_algorithm() {
    let arguments = [
        "simulate",
        "--limit",
        "1/1s",
        "--burst",
        "2",
        "--algorithm",
        "gcra,fixed-window",
        "--trace",
        "-",
    ];
    let output = run_with_input(&[&arguments[..], &["-o", "json"]].concat(), TRACE);
    assert_eq!(
        json_of(&output),
        json!({
            "schema": "rlctl/v1", "requests": 4, "keys": 2, "interrupted": false,
            "items": [
                {"algorithm": "gcra", "limit": 1, "period_us": 1_000_000, "burst": 2, "allowed": 3, "denied": 1},
                {"algorithm": "fixed-window", "limit": 1, "period_us": 1_000_000, "burst": null, "allowed": 2, "denied": 2},
            ],
        })
    );
    assert!(
        stderr(&output).contains("applies to the buckets only, not to fixed-window"),
        "{}",
        stderr(&output)
    );
    let table = stdout(&run_with_input(&arguments, TRACE));
    assert!(table.starts_with("4 requests of 2 keys\n"), "{table}");
    assert!(table.contains("gcra") && table.contains("1/1s burst 2"), "{table}");
}

#[test]
fn a_reader_that_has_seen_enough_ends_it_quietly() {
    let mut trace = tempfile::NamedTempFile::new().expect("a file");
    writeln!(trace, "t_us,key,cost").expect("writes");
    for n in 0..50_000 {
        writeln!(trace, "{n},a,1").expect("writes");
    }
    let path = trace.path().to_str().expect("UTF-8");
    let mut child = rlctl()
        .args(["simulate", "--limit", "1/1s", "--trace", path, "--decisions", "-"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("rlctl runs");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("rlctl ends");
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()));
}

#[test]
fn a_reader_that_has_seen_enough_does_not_turn_a_no_into_a_yes() {
    let file = |limit: &str| {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let rule = format!("[[rule]]\nname = 'a'\ndimension = 'ip'\nlimits = ['{limit}']\n");
        std::fs::write(file.path(), rule).expect("writes");
        file
    };
    let (one, two, bad) = (file("1/1s"), file("2/1s"), file("x"));
    let path = |file: &tempfile::NamedTempFile| file.path().to_str().expect("UTF-8").to_string();
    for (arguments, code) in [
        (vec!["check", "user:1", "--limit", "0/1s", "-q"], 8),
        (vec!["rules", "diff", &path(&one), &path(&two)], 8),
        (vec!["rules", "diff", &path(&one), &path(&two), "-o", "json"], 8),
        (vec!["rules", "effective", "user:1", "--rules", &path(&one)], 7),
        (vec!["rules", "lint", &path(&one), &path(&bad)], 3),
    ] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let status = rlctl()
            .args(&arguments)
            .stdout(writer)
            .stderr(Stdio::null())
            .status()
            .expect("rlctl runs");
        assert_eq!(status.code(), Some(code), "{arguments:?}");
    }
}

/// Linux has a device that is always full.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_a_failure_and_said_so() {
    let full = std::fs::File::options().write(true).open("/dev/full").expect("Linux has it");
    let output = rlctl().args(["demo"]).stdout(full).output().expect("rlctl runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("cannot write"), "{}", stderr(&output));
}

#[test]
fn demo_needs_nothing_and_shows_the_double_at_the_turn_of_a_window() {
    let output = run(&["demo", "-o", "json"]);
    assert_eq!(output.status.code(), Some(0));
    let report = json_of(&output);
    let of = |name: &str| {
        let items = report["items"].as_array().expect("items");
        items.iter().find(|i| i["algorithm"] == name).expect("all six").clone()
    };
    assert_eq!(of("fixed-window")["worst_second"], 20);
    assert_eq!(of("sliding-log")["worst_second"], 10);
    assert_eq!(of("token-bucket")["decisions"], of("gcra")["decisions"]);
    assert_eq!(of("leaky-bucket")["longest_hold_us"], 900_000);
    let statuses: Vec<u64> = report["gateway"]
        .as_array()
        .expect("what its gateway answered")
        .iter()
        .map(|answer| answer["status"].as_u64().expect("a status"))
        .collect();
    assert_eq!(statuses, [vec![200; 10], vec![429; 2]].concat());
    let picture = stdout(&run(&["demo"]));
    assert!(picture.contains("fixed-window let 20 through"), "{picture}");
    assert!(picture.lines().all(|line| line.len() <= 80), "{picture}");
}

#[test]
fn every_help_has_examples_and_version_is_the_packages() {
    for command in [
        "check", "simulate", "demo", "serve", "cluster", "rules", "scenario", "schema", "override",
        "tier", "block", "unblock", "exempt", "unexempt", "events",
    ] {
        let help = stdout(&run(&[command, "--help"]));
        assert!(help.contains("Examples:\n  "), "{command}: {help}");
    }
    assert_eq!(stdout(&run(&["--version"])), concat!("rlctl ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[cfg(unix)]
#[test]
fn an_interruption_is_heard_even_while_waiting_for_input() {
    let redis = RedisServer::start();
    for store in ["memory", &redis.url()] {
        for signal in ["-INT", "-TERM"] {
            let mut child = rlctl()
                .args(["simulate", "--limit", "1/1s", "--trace", "-", "--store", store])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("rlctl runs");
            let mut input = child.stdin.take().expect("a pipe");
            let mut lines = String::from("t_us,key,cost\n");
            (0..300).for_each(|n| lines += &format!("{n},user:{n},1\n"));
            input.write_all(lines.as_bytes()).expect("rlctl reads");
            // Long enough to have decided the first batch; the rest of the input never comes.
            std::thread::sleep(std::time::Duration::from_millis(300));
            let kill = Command::new("kill").args([signal, &child.id().to_string()]).status();
            assert!(kill.expect("kill runs").success());
            let output = child.wait_with_output().expect("rlctl ends");
            drop(input);
            assert_eq!(output.status.code(), Some(130), "{store} {signal}");
            assert!(
                stdout(&output).starts_with("interrupted after 256 requests"),
                "{}",
                stdout(&output)
            );
        }
    }
    assert!(redis.dump().is_empty());
}

#[test]
fn a_broken_trace_is_summed_up_to_where_it_breaks() {
    let output = run_with_input(
        &["simulate", "--limit", "1/1s", "--trace", "-"],
        "t_us,key,cost\n1,a,1\nx\n",
    );
    assert_eq!(output.status.code(), Some(3));
    assert!(stdout(&output).starts_with("1 requests of 1 keys"), "{}", stdout(&output));
}

#[test]
fn a_named_redis_is_used_and_a_trace_is_not_overwritten() {
    let output = run_with_input(
        &["simulate", "--limit", "1/1s", "--trace", "-", "--redis", "redis://127.0.0.1:1"],
        TRACE,
    );
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    let trace = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(trace.path(), TRACE).expect("writes");
    let path = trace.path().to_str().expect("UTF-8");
    let output = run(&["simulate", "--limit", "1/1s", "--trace", path, "--decisions", path]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert_eq!(std::fs::read_to_string(path).expect("text"), TRACE);
}
