//! Access logs: every format tells the same story, dirt and disorder are said, and a policy meets
//! what a log has seen.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Output, Stdio};

use rlctl::traffic::Rng;
use serde_json::Value;
use tempfile::TempDir;

use crate::cli::rlctl;
use crate::simulate::{errors, item, json, run, text};

/// Requests of three clients within some minutes: (second, ip, user, method, path).
fn requests() -> Vec<(u64, String, &'static str, &'static str, String)> {
    let mut rng = Rng::new(11, 0);
    let mut second = 0;
    let each = (0..600).map(|n| {
        second += rng.below(2);
        let client = rng.below(10).saturating_sub(6).min(2);
        let user = ["-", "alice", "bob"][rng.below(3) as usize];
        let method = if rng.below(4) == 0 { "POST" } else { "GET" };
        (second, format!("203.0.113.{client}"), user, method, format!("/api/{}", n % 3))
    });
    each.collect()
}

/// 2026-11-18T10:00:00Z.
const BEGAN: u64 = 1_794_996_000;

struct Logs {
    folder: TempDir,
}

impl Logs {
    fn new() -> Logs {
        Logs { folder: tempfile::tempdir().unwrap() }
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path: PathBuf = self.folder.path().join(name);
        fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_string()
    }
}

fn clf_time(second: u64) -> String {
    let (minute, second) = (second / 60, second % 60);
    format!("18/Nov/2026:{:02}:{:02}:{second:02} +0000", 10 + minute / 60, minute % 60)
}

fn common() -> String {
    let line = |(second, ip, user, method, path): &(u64, String, &str, &str, String)| {
        format!("{ip} - {user} [{}] \"{method} {path} HTTP/1.1\" 200 17\n", clf_time(*second))
    };
    requests().iter().map(line).collect()
}

fn combined() -> String {
    common().replace(" 200 17\n", " 200 17 \"-\" \"curl/8\"\n")
}

fn as_json() -> String {
    let line = |(second, ip, user, method, path): &(u64, String, &str, &str, String)| {
        let user = if *user == "-" { Value::Null } else { (*user).into() };
        let at = BEGAN + second;
        serde_json::json!({ "ts": at, "who": { "addr": ip }, "ip": ip, "user": user, "method": method, "uri": path })
            .to_string()
            + "\n"
    };
    requests().iter().map(line).collect()
}

fn as_csv() -> String {
    let mut text = String::from("timestamp,ip,user,method,path\n");
    for (second, ip, user, method, path) in requests() {
        writeln!(text, "{},{ip},{user},{method},{path}", BEGAN + second).unwrap();
    }
    text
}

fn zipped(text: &str) -> Vec<u8> {
    let mut zip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    zip.write_all(text.as_bytes()).unwrap();
    zip.finish().unwrap()
}

/// What is the same whatever the form of the log.
fn story(report: &Value) -> Value {
    let mut items = report["items"].clone();
    items.as_array_mut().unwrap().iter_mut().for_each(|item| drop(item["label"].take()));
    serde_json::json!([
        report["requests"],
        report["keys"],
        report["start_us"],
        report["length_us"],
        items
    ])
}

const LIMIT: [&str; 4] = ["--limit", "20/1m", "--algorithm", "all"];

#[test]
fn every_form_of_a_log_tells_the_same_story() {
    let logs = Logs::new();
    let told = |path: &str, extra: &[&str]| json(&[&LIMIT[..], &["--log", path], extra].concat());
    let first = told(&logs.write("common.log", common()), &[]);
    assert_eq!((&first["requests"], &first["log"]["format"]), (&600.into(), &"common".into()));
    assert!(item(&first, "gcra")["denied"].as_u64() > Some(0));
    assert_eq!(item(&first, "gcra")["most_denied"][0]["key"], "ip:203.0.113.0");
    for (name, content, extra) in [
        ("combined.log", combined().into_bytes(), &[][..]),
        ("combined.log.gz", zipped(&combined()), &[]),
        ("log.json", as_json().into_bytes(), &[]),
        ("log.csv", as_csv().into_bytes(), &["--format", "csv"]),
        ("log.csv.gz", zipped(&as_csv()), &["--key", "ip", "--time", "timestamp"]),
    ] {
        let report = told(&logs.write(name, content), extra);
        assert_eq!(story(&report), story(&first), "{name}");
    }
    // A name of one's own is a key without a dimension.
    let by_path = told(&logs.write("paths.json", as_json()), &["--key", "who.addr"]);
    assert_eq!(item(&by_path, "gcra")["most_denied"][0]["key"], "203.0.113.0");
    let by_user = told(&logs.write("users.log", combined()), &["--key", "user"]);
    assert_eq!(by_user["keys"], 2);
    assert!(by_user["log"]["without_key"].as_u64() > Some(100));
}

fn piped(arguments: &[&str], input: &[u8]) -> Output {
    let mut child = rlctl()
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("rlctl runs");
    child.stdin.take().expect("a pipe").write_all(input).expect("rlctl reads");
    child.wait_with_output().expect("rlctl ends")
}

#[test]
fn stdin_is_a_log_too_also_gzipped() {
    let logs = Logs::new();
    let file = json(&["--limit", "20/1m", "--log", &logs.write("x.log", combined())]);
    for input in [combined().into_bytes(), zipped(&combined())] {
        let output = piped(&["simulate", "--limit", "20/1m", "--log", "-", "-o", "json"], &input);
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(story(&report), story(&file));
    }
}

#[test]
fn dirt_is_counted_and_shown_with_its_line() {
    let logs = Logs::new();
    let mut lines: Vec<String> = combined().lines().map(String::from).collect();
    lines.insert(5, "\u{1b}[2Jnot a line".into());
    lines.insert(9, lines[0][..60].to_string());
    let path = logs.write("dirty.log", lines.join("\n"));
    let report = json(&["--limit", "20/1m", "--log", &path]);
    assert_eq!((&report["log"]["unreadable"], &report["requests"]), (&2.into(), &600.into()));
    assert_eq!(report["log"]["unreadable_examples"][0]["line"], 6);
    let shown = text(&run(&["--limit", "20/1m", "--log", &path]));
    assert!(shown.contains("2 of 602 lines cannot be read, the first is line 6"), "{shown}");
    assert!(shown.contains("\\u{1b}[2Jnot a line") && !shown.contains('\u{1b}'));
    let none = run(&["--limit", "20/1m", "--log", &logs.write("none.log", "a [b \"c\nd [e \"f\n")]);
    assert_eq!(none.status.code(), Some(3), "{}", errors(&none));
    assert!(errors(&none).contains("none of 2 lines can be read: line 1"), "{}", errors(&none));
}

#[test]
fn disorder_is_sorted_and_said() {
    let logs = Logs::new();
    let sorted = json(&["--limit", "20/1m", "--log", &logs.write("sorted.log", common())]);
    let mut lines: Vec<String> = common().lines().map(String::from).collect();
    let mut rng = Rng::new(5, 0);
    for n in 0..lines.len() - 40 {
        lines.swap(n, n + rng.below(40) as usize);
    }
    let path = logs.write("shuffled.log", lines.join("\n"));
    let shuffled = json(&["--limit", "20/1m", "--log", &path]);
    assert!(shuffled["log"]["steps_back"].as_u64() > Some(100));
    assert_eq!(shuffled["log"]["too_late"], 0);
    for field in ["allowed", "denied", "worst_window", "keys_hit"] {
        let of = |report: &Value| item(report, "token-bucket")[field].clone();
        // Those of one second may change places, and so whom the last place goes to; not how many.
        assert_eq!(of(&shuffled), of(&sorted), "{field}");
    }
    assert!(text(&run(&["--limit", "20/1m", "--log", &path])).contains("times: sorted"));
}

#[test]
fn ipv6_counts_by_its_prefix() {
    let logs = Logs::new();
    let line = |ip: &str| format!("{ip} - - [{}] \"GET / HTTP/1.1\" 200 1\n", clf_time(0));
    let all =
        ["2001:db8::1", "2001:db8::2", "2001:db8:0:1::1", "::ffff:203.0.113.7", "203.0.113.7"];
    let path = logs.write("six.log", all.map(line).concat());
    assert_eq!(json(&["--limit", "1/1m", "--log", &path])["keys"], 3);
}

const RULES: &str = "\
[[rule]]\nname = \"per-ip\"\ndimension = \"ip\"\nlimits = [\"40/1m\"]\n\
[[rule]]\nname = \"writes\"\ndimension = \"user\"\nmethods = [\"POST\"]\nlimits = [\"3/1m\"]\n\
[[rule]]\nname = \"trial\"\ndimension = \"ip\"\nlimits = [\"5/1m\"]\nshadow = true\n";

#[test]
fn a_rules_file_meets_a_log() {
    let logs = Logs::new();
    let (log, rules) = (logs.write("x.log", combined()), logs.write("rules.toml", RULES));
    let report = json(&["--rules", &rules, "--log", &log]);
    let lane = |label: &str| {
        let items = report["items"].as_array().unwrap();
        items.iter().find(|item| item["label"] == label).expect(label).clone()
    };
    let all = lane("all rules");
    assert_eq!(all["allowed"].as_u64().unwrap() + all["denied"].as_u64().unwrap(), 600);
    let posts = requests().iter().filter(|r| r.3 == "POST" && r.2 != "-").count() as u64;
    let writes = lane("writes");
    assert_eq!(writes["allowed"].as_u64().unwrap() + writes["denied"].as_u64().unwrap(), posts);
    assert!(writes["denied"].as_u64() > Some(0) && lane("per-ip")["denied"].as_u64() > Some(0));
    let trial = lane("trial (shadow)");
    assert_eq!(
        trial["allowed"].as_u64().unwrap() + trial["denied"].as_u64().unwrap(),
        all["allowed"]
    );
    let shown = text(&run(&["--rules", &rules, "--log", &log]));
    assert!(shown.contains("RULE ") && shown.contains("so what: "), "{shown}");
    let described =
        json(&["--rules", &rules, "--traffic", "constant:2/s", "--keys", "one:ip:203.0.113.9"]);
    assert_eq!(described["items"][1]["label"], "per-ip");
}

#[test]
fn a_rule_alone_decides_as_its_limit_does() {
    let logs = Logs::new();
    let log = logs.write("x.log", combined());
    for algorithm in ["gcra", "fixed-window", "sliding-window", "sliding-log"] {
        let rules = format!(
            "[[rule]]\nname = \"r\"\ndimension = \"ip\"\nlimits = [{{ limit = \"9/1m\", algorithm = \"{algorithm}\" }}]\n"
        );
        let by_rules = json(&["--rules", &logs.write("r.toml", rules), "--log", &log]);
        let by_limit = json(&["--limit", "9/1m", "--algorithm", algorithm, "--log", &log]);
        for field in
            ["allowed", "denied", "worst_window", "keys_hit", "starved_us", "first_denial_us"]
        {
            assert_eq!(
                by_rules["items"][1][field], by_limit["items"][0][field],
                "{algorithm} {field}"
            );
        }
    }
}

fn diff(before: &str, after: &str, log: &str, extra: &[&str]) -> Output {
    let fixed = ["rules", "diff", before, after, "--log", log];
    rlctl().args(fixed).args(extra).output().expect("rlctl runs")
}

#[test]
fn rules_diff_says_who_would_newly_be_denied() {
    let logs = Logs::new();
    let log = logs.write("x.log", combined());
    let before = logs.write("old.toml", RULES);
    let after = logs.write("new.toml", RULES.replace("40/1m", "10/1m"));
    let output = diff(&before, &after, &log, &["-o", "json"]);
    assert_eq!(output.status.code(), Some(8));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let effect = &report["log"];
    let number = |field: &str| effect[field].as_u64().unwrap();
    // The two policies one by one say the same.
    let denied = |rules: &str| {
        json(&["--rules", rules, "--log", &log])["items"][0]["denied"].as_u64().unwrap()
    };
    assert_eq!(
        (number("denied_before"), number("denied_after")),
        (denied(&before), denied(&after))
    );
    assert_eq!(
        number("denied_after") + number("newly_allowed"),
        number("denied_before") + number("newly_denied")
    );
    assert!(number("newly_denied") > 0 && number("clients_newly_denied") > 0);
    assert_eq!(effect["by_rule"][0]["rule"], "per-ip");
    let words = text(&diff(&before, &after, &log, &[]));
    assert!(
        words.contains("rule per-ip  limit  40/1m") && words.contains("newly denied: "),
        "{words}"
    );
    let same = diff(&before, &before, &log, &[]);
    assert_eq!(same.status.code(), Some(0));
    assert!(text(&same).contains("nobody is newly denied"));
}

#[test]
fn a_pipe_that_nobody_writes_to_can_be_interrupted() {
    let mut child = rlctl()
        .args(["simulate", "--limit", "20/1m", "--log", "-", "-o", "json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("rlctl runs");
    let mut input = child.stdin.take().expect("a pipe");
    input.write_all(combined().as_bytes()).expect("rlctl reads");
    std::thread::sleep(std::time::Duration::from_millis(500));
    let pid = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let output = child.wait_with_output().expect("rlctl ends");
    drop(input);
    assert_eq!(output.status.code(), Some(130), "{}", errors(&output));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&report["interrupted"], &report["requests"]), (&true.into(), &600.into()));
}

/// A download that stopped, or a file that is still being written.
fn cut(zipped: &[u8]) -> &[u8] {
    &zipped[..zipped.len() * 2 / 3]
}

#[test]
fn what_can_be_read_of_a_file_that_was_cut_off_is_shown() {
    let logs = Logs::new();
    let path = logs.write("cut.log.gz", cut(&zipped(&combined())));
    let rules = logs.write("rules.toml", RULES);
    for limiters in [&LIMIT[..], &["--rules", &rules]] {
        let output = run(&[limiters, &["--log", &path, "-o", "json"]].concat());
        assert_eq!(output.status.code(), Some(3), "{}", errors(&output));
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let read = report["requests"].as_u64().unwrap();
        assert!((200..600).contains(&read), "{read}");
        let why = format!("line {}: cannot read: the gzipped data is cut off", read + 1);
        assert_eq!(report["broken_off"], why);
        assert!(errors(&output).contains(&format!("{why}; what came before it")), "{output:?}");
        // What was read is what stands at the beginning of the whole.
        let lines: Vec<String> = combined().lines().take(read as usize).map(String::from).collect();
        let beginning = logs.write("beginning.log", lines.join("\n"));
        let whole = json(&[limiters, &["--log", &beginning]].concat());
        assert_eq!(story(&report), story(&whole));
    }
    let scenario = logs.folder.path().join("x.toml");
    let shown = run(&["--limit", "20/1m", "--log", &path, "--emit", scenario.to_str().unwrap()]);
    assert!(text(&shown).contains("data is cut off; this is what came"), "{}", text(&shown));
    assert!(errors(&shown).contains("no scenario is made of a part") && !scenario.exists());
    let compared = diff(&rules, &rules, &path, &["-o", "json"]);
    assert_eq!(compared.status.code(), Some(3), "{}", errors(&compared));
    let report: Value = serde_json::from_slice(&compared.stdout).expect("JSON");
    assert!(report["log"]["broken_off"].as_str().unwrap().contains("is cut off"), "{report}");
    // Of what was cut off before its first line there is nothing to show.
    let nothing = run(&["--limit", "20/1m", "--log", &logs.write("nothing.gz", [0x1f, 0x8b, 8])]);
    assert_eq!(nothing.status.code(), Some(3), "{}", errors(&nothing));
    assert!(nothing.stdout.is_empty(), "{}", text(&nothing));
}

#[test]
fn a_trace_may_be_zipped_and_cut_off_too() {
    let logs = Logs::new();
    let lines: Vec<String> = (0..900u64)
        .map(|n| format!("{},k{},1", 1_700_000_000_000_000 + n * n * 977, n % 7))
        .collect();
    let trace = format!("t_us,key,cost\n{}\n", lines.join("\n"));
    let svg = logs.folder.path().join("x.svg");
    for more in [&[][..], &["--svg", svg.to_str().unwrap()]] {
        let of = |path: &str| run(&[&LIMIT[..], &["--trace", path, "-o", "json"], more].concat());
        let plain = of(&logs.write("trace.csv", &trace));
        assert_eq!(plain.status.code(), Some(0), "{}", errors(&plain));
        // A picture names the file.
        let values = |output: &Output| {
            let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
            (report["requests"].as_u64().unwrap(), report["items"].clone())
        };
        let of_zip = of(&logs.write("trace.csv.gz", zipped(&trace)));
        assert_eq!(values(&of_zip), values(&plain));
        let of_part = of(&logs.write("cut.csv.gz", cut(&zipped(&trace))));
        assert_eq!(of_part.status.code(), Some(3), "{}", errors(&of_part));
        let (read, _) = values(&of_part);
        assert!((300..900).contains(&read), "{read}");
        let why = format!("line {}: cannot read: the gzipped data is cut off", read + 2);
        assert!(errors(&of_part).contains(&why), "{}", errors(&of_part));
        let broken = of(&logs.write("broken.csv", format!("{trace}now,k,1\n{}", lines[0])));
        assert_eq!(broken.status.code(), Some(3), "{}", errors(&broken));
        assert_eq!(values(&broken), values(&plain), "what came before a broken line stands");
    }
}

#[test]
fn lines_of_rules_diff_are_the_clients() {
    let logs = Logs::new();
    let log = logs.write("x.log", combined());
    let before = logs.write("old.toml", RULES);
    let after = logs.write("new.toml", RULES.replace("40/1m", "10/1m"));
    let report: Value =
        serde_json::from_slice(&diff(&before, &after, &log, &["-o", "json"]).stdout).expect("JSON");
    let csv = diff(&before, &after, &log, &["-o", "csv"]);
    assert_eq!(csv.status.code(), Some(8));
    let csv = text(&csv);
    let mut lines = csv.lines();
    assert_eq!(
        lines.next(),
        Some("client,requests,denied_before,denied_after,newly_denied,newly_allowed")
    );
    let rows: Vec<Vec<&str>> = lines.map(|line| line.split(',').collect()).collect();
    let sum =
        |column: usize| -> u64 { rows.iter().map(|row| row[column].parse::<u64>().unwrap()).sum() };
    assert_eq!(
        (sum(4), sum(5)),
        (
            report["log"]["newly_denied"].as_u64().unwrap(),
            report["log"]["newly_allowed"].as_u64().unwrap(),
        )
    );
    assert_eq!(rows[0][0], report["log"]["most_newly_denied"][0]["client"]);
    let ndjson = text(&diff(&before, &after, &log, &["-o", "ndjson"]));
    assert_eq!(ndjson.lines().count(), rows.len());
    let first: Value = serde_json::from_str(ndjson.lines().next().unwrap()).expect("JSON");
    assert_eq!((&first["client"], &first["schema"]), (&rows[0][0].into(), &"rlctl/v1".into()));
}
