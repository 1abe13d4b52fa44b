//! Text that others chose, through every command that shows it and the gateway's log: nothing of it
//! reaches a terminal that could move the cursor, change colours, hide or reorder what stands there.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::cli::rlctl;
use crate::support::redis::RedisServer;

/// Of a stream: its id, and its fields with their values.
type Entry = (String, Vec<(Vec<u8>, Vec<u8>)>);

/// Escape sequences, C1, bidi, zero width, tags, line ends.
const EVIL: &str = "x\u{1b}]0;owned\u{7}\u{9b}31m\u{202e}\u{2066}\u{200b}\u{feff}\u{ad}\u{e0041}\r\u{8}\u{7f}\u{2028}y";
/// What of it an identity may hold.
const EVIL_NAME: &str = "x\u{202e}\u{2066}\u{200b}\u{feff}\u{ad}\u{e0041}\u{2028}y";
const FORMATS: [&str; 5] = ["table", "wide", "json", "ndjson", "csv"];

fn is_harmful(c: char) -> bool {
    c.is_control() && c != '\n'
        || matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
}

fn is_clean(about: &str, output: &Output) {
    for (name, bytes) in [("stdout", &output.stdout), ("stderr", &output.stderr)] {
        let text = String::from_utf8(bytes.clone()).unwrap_or_else(|e| panic!("{about}: {e}"));
        let harmful = text.chars().find(|c| is_harmful(*c));
        assert_eq!(harmful, None, "{about}: {name}: {text:?}");
    }
}

/// Runs a command in every form, and gives all that it printed.
fn in_every_form(about: &str, command: impl Fn() -> Command) -> String {
    let mut all = String::new();
    for format in FORMATS {
        for more in [&["-v"][..], &["--log-format", "json"]] {
            let ran = command().args(["-o", format]).args(more).output().expect("rlctl runs");
            is_clean(&format!("{about} -o {format}"), &ran);
            all += &String::from_utf8_lossy(&ran.stdout);
            all += &String::from_utf8_lossy(&ran.stderr);
        }
    }
    all
}

/// In every value that the store keeps, a word becomes something evil, as if another program had
/// written it.
fn poison(redis: &RedisServer, word: &str) {
    let evil = json!(EVIL).to_string();
    let poisoned = |text: Vec<u8>| -> Option<Vec<u8>> {
        let text = String::from_utf8(text).ok()?;
        text.contains(word).then(|| text.replace(word, evil.trim_matches('"')).into_bytes())
    };
    let mut connection = redis.connection();
    let mut changed = 0;
    let keys: Vec<String> = redis.command(&["KEYS", "*"]);
    for key in keys {
        let kind: String = redis.command(&["TYPE", &key]);
        match kind.as_str() {
            "string" => {
                let value: Vec<u8> = redis::cmd("GET").arg(&key).query(&mut connection).unwrap();
                if let Some(value) = poisoned(value) {
                    let mut set = redis::cmd("SET");
                    set.arg(&key).arg(value).arg("KEEPTTL").exec(&mut connection).unwrap();
                    changed += 1;
                }
            }
            "hash" => {
                let all: Vec<(Vec<u8>, Vec<u8>)> =
                    redis::cmd("HGETALL").arg(&key).query(&mut connection).unwrap();
                for (field, value) in all {
                    if let Some(value) = poisoned(value) {
                        let mut set = redis::cmd("HSET");
                        set.arg(&key).arg(field).arg(value).exec(&mut connection).unwrap();
                        changed += 1;
                    }
                }
            }
            "stream" => {
                let entries: Vec<Entry> = redis::cmd("XRANGE")
                    .arg(&key)
                    .arg("-")
                    .arg("+")
                    .query(&mut connection)
                    .unwrap();
                for (_, fields) in entries {
                    let mut add = redis::cmd("XADD");
                    add.arg(&key).arg("*");
                    for (field, value) in fields {
                        add.arg(field).arg(poisoned(value.clone()).unwrap_or(value));
                    }
                    add.exec(&mut connection).unwrap();
                    changed += 1;
                }
            }
            _ => {}
        }
    }
    assert!(changed > 3, "{word} was found {changed} times");
}

#[test]
fn what_lies_in_the_store_and_in_rules_is_shown_escaped() {
    let redis = RedisServer::start();
    let folder = tempfile::tempdir().unwrap();
    let command = |words: &[&str]| {
        let mut command = rlctl();
        command
            .args(words)
            .env("RLCTL_REDIS", redis.url())
            .env("RLCTL_ACTOR", "sentinel-word")
            .current_dir(&folder);
        command
    };
    let fine = |words: &[&str]| {
        let ran = command(words).output().unwrap();
        assert!(ran.status.success(), "{words:?}: {}", String::from_utf8_lossy(&ran.stderr));
    };
    let evil_in_toml = json!(EVIL).to_string().replace('\u{7f}', "\\u007f");
    let who = format!("user:{EVIL_NAME}");
    let rules = format!(
        "[[rule]]\nname = \"a\"\ndescription = {evil_in_toml}\ndimension = \"user\"\nlimits = [\"5/1d\"]\n\
         [[rule]]\nname = \"b\"\ndimension = \"user\"\nendpoint = \"/{EVIL_NAME}\"\nlimits = [\"5/1d\"]\n\
         [[block]]\nmatch = [{}]\nreason = {evil_in_toml}\n",
        json!(format!("user:evil-{EVIL_NAME}"))
    );
    std::fs::write(folder.path().join("rules.toml"), &rules).unwrap();
    std::fs::write(folder.path().join("new.toml"), rules.replace("5/1d", "6/1d")).unwrap();
    let bad = format!("[[rule]]\nname = {evil_in_toml}\ndimension = {evil_in_toml}\n");
    std::fs::write(folder.path().join("bad.toml"), bad).unwrap();
    fine(&["rules", "publish", "rules.toml", "--reason", "sentinel-word"]);
    fine(&["check", &who, "--limit", "5/1d", "-q"]);
    fine(&["tier", "set", &who, "sentinel-word", "--reason", "sentinel-word"]);
    fine(&["block", "user:2", "--for", "1h", "--reason", "sentinel-word"]);
    fine(&["exempt", &format!("user:e{EVIL_NAME}*"), "--for", "1h", "--reason", "sentinel-word"]);
    fine(&["rules", "disable", "b", "--reason", "sentinel-word"]);
    fine(&["rules", "observe", "on", "--reason", "sentinel-word"]);
    let set = ["override", "set", &who, "--rule", "a", "--limit", "9/1d", "--for", "1h"];
    fine(&[&set[..], &["--reason", "sentinel-word"]].concat());
    poison(&redis, "sentinel-word");
    let mut shown = String::new();
    for words in [
        &["rules", "show", "rules.toml"][..],
        &["rules", "show", "store"],
        &["rules", "lint", "rules.toml", "bad.toml"],
        &["rules", "lint", EVIL],
        &["rules", "diff", "rules.toml", "new.toml"],
        &["rules", "effective", &who, "--rules", "rules.toml"],
        &["rules", "effective", &format!("user:evil-{EVIL_NAME}"), "--rules", "rules.toml"],
        &["rules", "history"],
        &["rules", "publish", "bad.toml", "--reason", "r"],
        &["rules", "disable", "b", "--reason", "r", "--dry-run"],
        &["rules", "observe", "off", "--reason", "r", "--dry-run"],
        &["override", "list"],
        &["override", "rm", &who, "--rule", "a", "--reason", "r", "--dry-run"],
        &["tier", "get", &who],
        &["tier", "rm", &who, "--reason", "r", "--dry-run"],
        &["block", "--list", "--rules", "rules.toml"],
        &["unblock", "user:2", "--reason", "r", "--dry-run"],
        &["exempt", "--list"],
        &["events"],
        &["status"],
        &["check", &who, "--rules", "rules.toml", "--endpoint", "/x", "--cost", "0"],
        &["check", &who, "--rules", EVIL],
        &["check", &who, "--limit", EVIL],
        &["inspect", &who, "--explain", "--rules", "rules.toml"],
        &["inspect", &who, "--raw"],
        &["inspect", &format!("user:nobody-{EVIL_NAME}")],
        &["keys"],
        &["keys", "--match", &format!("user:{EVIL_NAME}*")],
        &["reset", &who, "--dry-run", "--reason", "r"],
        &["undo", EVIL, "--yes", "--reason", "r"],
        &["doctor"],
        &["context", "show", EVIL],
        &["schema", EVIL],
        &["simulate", "--limit", "1/1s", "--trace", EVIL],
    ] {
        shown += &in_every_form(&words.join(" "), || command(words));
    }
    assert!(shown.contains("\\u{202e}") && shown.contains("\\u202e"), "it was shown, escaped");
    assert!(shown.contains("\\u{1b}]0;owned"), "it was shown, escaped");
}

/// Answers every request with what the path asks for, in the words of an attacker.
fn evil_gateway() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut head = vec![0; 8192];
            let read = stream.read(&mut head).unwrap_or(0);
            let head = String::from_utf8_lossy(&head[..read]).into_owned();
            let (status, body) = evil_answer(head.split(' ').nth(1).unwrap_or_default());
            let body = body.to_string();
            let _ = write!(
                stream,
                "HTTP/1.1 {status} x\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            );
        }
    });
    address
}

fn evil_answer(path: &str) -> (u16, Value) {
    let one = json!({
        "identity": EVIL, "per_second": 1.0, "share": 1.0, "weight": 2.0, "too_high_by": 0.0,
        "rule": EVIL, "reason": EVIL, "limit": EVIL, "used": 1, "last_us": 1,
    });
    let change = json!({
        "id": "1-0", "at_us": 1, "by": EVIL, "action": EVIL, "kind": "identity", "subject": EVIL,
        "before": EVIL, "after": { EVIL: EVIL }, "reason": EVIL,
    });
    let happened = json!({
        "at_us": 1, "kind": EVIL, "level": EVIL, "text": EVIL, "identity": EVIL, "rule": EVIL,
    });
    match path.split('?').next().unwrap_or_default() {
        "/api/v1/stats" => (
            200,
            json!({
                "at_us": 1, "gateway": EVIL, "version": EVIL, "uptime_us": 1, "ready": false,
                "rates": { "last_10_seconds": { "allowed": 1.0, "rejected": 1.0 } },
                "degraded_since_us": 1, "observe_only": true, "events": [happened],
                "store": [{ "shard": EVIL, "breaker": EVIL, "down_since_us": 1, "trouble": EVIL }],
                "policy": { "version": 1, "hash": EVIL, "age_us": 1, "refused": { "why": EVIL } },
            }),
        ),
        "/api/v1/top" => (200, json!({ "by": EVIL, "items": [one] })),
        "/api/v1/events" => (200, json!({ "items": [change] })),
        "/api/v1/rate-limit/check" => (
            200,
            json!({
                "allowed": true, "outcome": EVIL, "limit": 1, "capacity": 1, "remaining": 1,
                "retry_after_us": null, "reset_after_us": 0, "delay_us": 0, "rule": EVIL,
                "algorithm": EVIL, "state": EVIL, "degraded": EVIL,
                "shadow": [{ "rule": EVIL, "allowed": false }],
            }),
        ),
        _ => (500, json!({ "type": EVIL, "title": EVIL, "status": 500, "detail": EVIL })),
    }
}

#[test]
fn what_a_gateway_answers_is_shown_escaped() {
    let gateway = format!("http://{}", evil_gateway());
    let mut shown = String::new();
    for line in [
        "status",
        "top --once",
        "top --once --by used",
        "events",
        "events --audit",
        "check user:1",
        "inspect user:1",
    ] {
        shown += &in_every_form(line, || {
            let mut command = rlctl();
            command.args(line.split(' ')).args(["--gateway", &gateway]);
            command
        });
    }
    assert!(shown.contains("\\u{1b}]0;owned"), "it was shown, escaped");
}

#[test]
fn what_a_server_replies_is_shown_escaped() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            std::thread::spawn(move || {
                let mut bytes = [0; 4096];
                while let Ok(read @ 1..) = stream.read(&mut bytes) {
                    let asked = String::from_utf8_lossy(&bytes[..read]).matches('*').count();
                    let error = format!("-ERR {}\r\n", EVIL.replace('\r', ""));
                    if stream.write_all(error.repeat(asked.max(1)).as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    for line in [
        "check user:1 --limit 1/1s",
        "inspect user:1",
        "keys",
        "events",
        "status",
        "doctor",
        "tier set user:1 gold --reason r",
        "reset user:1 --yes --reason r",
        "rules show store",
    ] {
        let told = in_every_form(line, || {
            let mut command = rlctl();
            command.args(line.split(' ')).args(["--redis", &url]);
            command
        });
        assert!(!told.is_empty(), "{line}");
    }
}
