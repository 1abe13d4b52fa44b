//! Scenarios as people write and run them: files that are wrong, runs that fail, reports.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use rlctl::engine::config::ConfigErrors;
use rlctl::scenario::read::parse;
use serde_json::Value;
use tempfile::TempDir;

use crate::cli::rlctl;

/// A whole scenario, to which each case adds or from which it takes.
const WHOLE: &str = "name = \"n\"
run = \"10s\"
store = { kind = \"redis\" }
traffic = [ { name = \"t\", rate = \"10/s\", keys = \"user:1\" } ]
[limiter.api]
limit = \"5/1s\"
[expect]
\"c\" = \"errors == 0\"
";

/// Words of the whole and what stands in their place, `line:column`, words of the message and of the
/// hint.
type Wrong = (&'static str, &'static str, &'static str, &'static str, &'static str);

const WRONG: [Wrong; 69] = [
    ("name = \"n\"", "", "1:1", "needs `name`", "name ="),
    ("run = \"10s\"", "", "1:1", "needs `run`", "90s"),
    ("run = \"10s\"", "run = 10", "2:7", "found the number 10", "run = \"90s\""),
    ("run = \"10s\"", "run = \"10 s\"", "2:7", "wants a duration", "90s"),
    ("run = \"10s\"", "run = \"9d\"", "2:7", "from 1ms to 7d", "90s"),
    (
        "name = \"n\"",
        "nme = \"n\"",
        "1:1",
        "`nme` is not a key of a scenario",
        "did you mean `name`?",
    ),
    ("name = \"n\"", "name = what", "1:8", "must be quoted", "in quotes"),
    ("name = \"n\"", "name = \"n\"\nseed = -1", "2:8", "`seed` wants", "seed = 42"),
    ("name = \"n\"", "name = \"n\"\nclock = \"virtuel\"", "2:9", "not `virtuel`", "`virtual`?"),
    ("name = \"n\"", "name = \"n\"\ntags = \"a\"", "2:8", "wants a list", "tags = ["),
    (
        "name = \"n\"",
        "name = \"n\"\nimport = [\"nowhere.toml\"]",
        "2:11",
        "cannot read `nowhere.toml`",
        "folder",
    ),
    ("\"redis\"", "\"reddis\"", "3:18", "not `reddis`", "did you mean `redis`?"),
    ("\"redis\"", "\"redis\", latency = \"fast\"", "3:37", "not a latency", "300us +-100us"),
    ("\"redis\"", "\"redis\", latency = \"1ms +-2ms\"", "3:37", "out of range", "jitter"),
    ("\"redis\"", "\"redis\", shards = 3", "3:36", "one shard", "redis-cluster"),
    ("\"redis\"", "\"redis\", replicas = 1", "3:38", "no replicas", "redis-sentinel"),
    ("\"redis\"", "\"memory\", deadline = \"5ms\"", "3:28", "no `deadline`", "redis"),
    ("\"redis\"", "\"redis\", latncy = \"1ms\"", "3:27", "`latncy` is not a key", "`latency`?"),
    ("rate = \"10/s\", ", "", "4:13", "one of `rate`, `send`, `ramp` and `log`", "rate = "),
    ("rate = \"10/s\"", "rate = \"10\"", "4:34", "not a rate", "120/s"),
    ("rate = \"10/s\"", "rate = \"10/s\", send = 5", "4:42", "both given", "send = 100"),
    (
        "rate = \"10/s\"",
        "rate = \"10/s\", over = \"1s\"",
        "4:42",
        "`over` belongs to `send`",
        "leave",
    ),
    ("rate = \"10/s\"", "send = 5, arrivals = \"poisson\"", "4:37", "belongs to `rate`", "leave"),
    ("rate = \"10/s\"", "ramp = \"5/s\"", "4:34", "incomplete", "0..500/s"),
    ("rate = \"10/s\"", "rate = \"10G/s\"", "4:34", "too high", "1000000000/s"),
    (
        "rate = \"10/s\"",
        "rate = \"1M/s\", for = \"1h\", at = \"11s\"",
        "4:13",
        "when the run of 10s is over",
        "earlier",
    ),
    ("rate = \"10/s\"", "rate = \"100M/s\"", "4:13", "too many", "lower rate"),
    ("\"user:1\"", "\"user1\"", "4:49", "has no dimension", "user:123"),
    ("\"user:1\"", "[]", "4:49", "no keys", "user:2"),
    ("\"user:1\"", "5", "4:49", "wants a key, a list or a table", "prefix"),
    (", keys = \"user:1\"", "", "4:13", "needs `keys`", "user:1"),
    ("\"user:1\"", "{ prefix = \"user:\" }", "4:49", "keys needs `count`", "count = 1000"),
    ("\"user:1\"", "{ count = 9, dist = \"zipfian\" }", "4:69", "not `zipfian`", "`zipf`?"),
    ("\"user:1\"", "{ count = 9, s = 1.1 }", "4:62", "belongs to dist = \"zipf\"", "leave"),
    (
        "\"user:1\"",
        "{ count = 9, dist = \"zipf\", s = 99 }",
        "4:81",
        "`s` cannot be",
        "0 (all alike) to 10",
    ),
    (
        "\"user:1\"",
        "{ count = 9, dist = \"hot\", share = \"150%\" }",
        "4:84",
        "a share is wanted",
        "1%",
    ),
    ("\"user:1\"", "\"user:1\", client = \"polit\"", "4:68", "not `polit`", "`polite`?"),
    ("\"user:1\"", "\"user:1\", log = \"x.csv\"", "4:59", "both given", "rate"),
    ("limit = \"5/1s\"", "", "5:10", "needs a limit", "100/1m"),
    ("limit = \"5/1s\"", "limit = \"5\"", "6:9", "not a limit", "100/1m"),
    (
        "limit = \"5/1s\"",
        "limit = \"5/1s\"\nalgorithm = \"token-buckt\"",
        "7:13",
        "unknown algorithm",
        "token-bucket",
    ),
    (
        "limit = \"5/1s\"",
        "limit = \"5/1s\"\nalgorithm = \"fixed-window\"\nburst = 5",
        "8:9",
        "burst belongs to the buckets",
        "limit is also",
    ),
    ("limit = \"5/1s\"", "limit = \"5/1s\"\nlimits = [\"5/1s\"]", "7:1", "both given", "keep one"),
    (
        "limit = \"5/1s\"",
        "limit = \"5/1s\"\nnods = 3",
        "7:1",
        "`nods` is not a key of a limiter",
        "`nodes`?",
    ),
    (
        "limit = \"5/1s\"",
        "limit = \"5/1s\"\nnodes = 2\nskew = [\"1s\"]",
        "8:8",
        "1 skews for 2 nodes",
        "each node",
    ),
    (
        "limit = \"5/1s\"",
        "limit = \"5/1s\"\nskew = \"fast\"",
        "7:8",
        "a skew is a duration",
        "200ms",
    ),
    (
        "limit = \"5/1s\"",
        "rules = \"nowhere.toml\"",
        "6:9",
        "cannot use these rules",
        "rlctl rules lint",
    ),
    (
        "limit = \"5/1s\"",
        "limit = \"5/1s\"\nconcurrency = { max = 2 }",
        "7:1",
        "take no time",
        "takes = ",
    ),
    (
        "\"user:1\"",
        "\"user:1\", takes = \"1s\"",
        "4:59",
        "nobody counts how many",
        "concurrency = { max",
    ),
    (
        "limit = \"5/1s\"",
        "limit = \"5/1s\"\nconcurrency = { max = 2, wiat = \"1s\" }",
        "7:26",
        "`wiat` is not a key",
        "`wait`?",
    ),
    ("[limiter.api]", "[limiter.API]", "5:10", "cannot be a name", "headers, metrics"),
    (
        "[expect]",
        "[[fault]]\nat = \"1s\"\ndo = \"down\"\non = \"shard:2\"\n[expect]",
        "10:6",
        "there is no shard `2`",
        "shards are 1 to 1",
    ),
    (
        "[expect]",
        "[[fault]]\nat = \"1s\"\ndo = \"down\"\non = \"node:gw-9\"\n[expect]",
        "10:6",
        "there is no node `gw-9`",
        "nodes = 3",
    ),
    (
        "[expect]",
        "[[fault]]\nat = \"1s\"\ndo = \"down\"\non = \"stor\"\n[expect]",
        "10:6",
        "nothing that can break",
        "`store`?",
    ),
    ("[expect]", "[[fault]]\nat = \"1s\"\ndo = \"latency\"\n[expect]", "9:6", "needs `by`", "20ms"),
    (
        "[expect]",
        "[[fault]]\nat = \"1s\"\ndo = \"failover\"\n[expect]",
        "9:6",
        "no replica",
        "redis-sentinel",
    ),
    (
        "[expect]",
        "[[fault]]\nat = \"1s\"\ndo = \"explode\"\n[expect]",
        "9:6",
        "not `explode`",
        "do = ",
    ),
    (
        "[expect]",
        "[[fault]]\nat = \"1s\"\ndo = \"hang\"\nlose = \"1s\"\n[expect]",
        "10:1",
        "loses nothing",
        "lose_data",
    ),
    ("[expect]", "[[change]]\nat = \"1s\"\n[expect]", "7:1", "one of `limit`, `rules`", "limit = "),
    ("errors == 0", "eror == 0", "8:8", "unknown metric `eror`", "errors"),
    ("errors == 0", "ap: errors == 0", "8:8", "there is no limiter `ap`", "`api`?"),
    ("errors == 0", "errors during 'x' == 0", "8:23", "nothing is called 'x'", "`t`"),
    ("errors == 0", "errors during 5s..20s == 0", "8:7", "the run ends at 10s", "longer"),
    ("errors == 0", "errors{traffic=tt} == 0", "8:8", "there is no traffic `tt`", "t"),
    ("errors == 0", "errors{rule=apy} == 0", "8:8", "there is no rule `apy`", "api"),
    ("errors == 0", "errors{node=gw-2} == 0", "8:8", "there is no node `gw-2`", "gw-1"),
    ("errors == 0", "store_calls{shard=2} > 0", "8:8", "there is no shard `2`", "1"),
    ("errors == 0", "breaker == opne", "8:19", "there is no state `opne`", "open"),
    ("errors == 0", "errors", "8:14", "what must be true", "=="),
];

fn errors(words: &str, instead: &str) -> ConfigErrors {
    assert!(WHOLE.contains(words), "{words}");
    let text = WHOLE.replace(words, instead);
    parse("s.toml", &text).map(|_| ()).expect_err(&format!("{words} -> {instead}"))
}

#[test]
fn what_is_wrong_is_said_with_place_and_hint() {
    parse("s.toml", WHOLE).expect("the whole is right");
    let mut wrong = Vec::new();
    for (words, instead, place, message, hint) in WRONG {
        // What is imported can only be missed where there are files.
        if instead.contains("nowhere.toml\"]") {
            continue;
        }
        let found = errors(words, instead);
        let first = &found.errors[0];
        let at = format!("{}:{}", first.place.line, first.place.column);
        let said = first.hint.clone().unwrap_or_default();
        if at != place || !first.message.contains(message) || !said.contains(hint) {
            wrong.push(format!("{instead}: {at}: {} / {said}", first.message));
        }
    }
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}

fn run_in(folder: &Path, arguments: &[&str]) -> Output {
    let mut command: Command = rlctl();
    command.args(arguments).current_dir(folder).output().expect("rlctl runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

fn with(files: &[(&str, &str)]) -> TempDir {
    let folder = TempDir::new().expect("a folder");
    for (name, text) in files {
        fs::write(folder.path().join(name), text).expect("written");
    }
    folder
}

#[test]
fn broken_files_end_with_3_and_say_everything_once() {
    for (words, instead, place, message, _) in WRONG.iter().step_by(7).chain([&WRONG[10]]) {
        let folder = with(&[("s.toml", &WHOLE.replace(words, instead))]);
        for verb in ["run", "check", "list", "explain"] {
            let output = run_in(folder.path(), &["scenario", verb, "s.toml"]);
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(3), "{verb} {instead}: {said}");
            assert_eq!(said.matches(message).count(), 1, "{verb}: {said}");
            assert!(said.contains(&format!("s.toml:{place}: error: ")), "{said}");
        }
    }
    let nowhere = run_in(Path::new("."), &["scenario", "run", "nowhere.toml"]);
    assert_eq!(nowhere.status.code(), Some(3));
    assert!(text(&nowhere.stderr).contains("nowhere.toml: cannot read the scenario"));
}

const FAILING: &str = "errors == 0\"\n\"too few\" = \"rate(allowed) during 5s..10s == 9/s";

#[test]
fn a_failure_has_its_place_what_was_measured_and_how_to_see_it_again() {
    let folder = with(&[("s.toml", &WHOLE.replace("errors == 0", FAILING))]);
    let output = run_in(
        folder.path(),
        &[
            "scenario",
            "run",
            "s.toml",
            "--report",
            "junit=r.xml",
            "--report",
            "tap=r.tap",
            "--report",
            "json=r.json",
        ],
    );
    assert_eq!(output.status.code(), Some(4));
    let said = text(&output.stdout);
    for words in [
        "s.toml:9:14: rate(allowed) during 5s..10s == 9/s",
        "measured: 5/s; wanted == 9/s",
        "at most",
        "reproduce: rlctl scenario run s.toml --seed 1",
        "1 scenario: 1 as expected, 1 not",
    ] {
        assert!(said.contains(words), "{words}\n{said}");
    }
    let report = |name: &str| fs::read_to_string(folder.path().join(name)).expect(name);
    let junit = report("r.xml");
    assert!(
        junit.contains("<testsuite name=\"n\" tests=\"2\"") && junit.contains("failures=\"1\""),
        "{junit}"
    );
    assert!(junit.contains("<failure message=\"5/s; wanted == 9/s\""), "{junit}");
    let tap = report("r.tap");
    assert!(tap.starts_with("TAP version 14\nok 1 - n: c\nnot ok 2 - n: too few\n"), "{tap}");
    assert!(tap.ends_with("1..2\n"), "{tap}");
    let json: Value = serde_json::from_str(&report("r.json")).expect("JSON");
    assert_eq!((json["failed"].as_u64(), json["passed"].as_u64()), (Some(1), Some(1)));
    assert_eq!(json["items"][0]["cases"][1]["line"], 9);
    assert_eq!(json["items"][0]["cases"][1]["measured"], 5.0);
    let again = run_in(folder.path(), &["scenario", "run", "s.toml", "-o", "json"]);
    assert_eq!(serde_json::from_slice::<Value>(&again.stdout).expect("JSON"), json);
}

#[test]
fn github_gets_annotations_and_a_summary() {
    let folder = with(&[("s.toml", &WHOLE.replace("errors == 0", FAILING))]);
    let mut command = rlctl();
    let summary = folder.path().join("summary.md");
    command.env("GITHUB_STEP_SUMMARY", &summary).current_dir(folder.path());
    let output =
        command.args(["scenario", "run", "s.toml", "--format", "github"]).output().expect("runs");
    assert_eq!(output.status.code(), Some(4));
    let said = text(&output.stdout);
    assert!(said.contains("::error file=s.toml,line=9,col=14,title=n%3A too few::rate(allowed) during 5s..10s == 9/s%0Ameasured: 5/s"), "{said}");
    let summary = fs::read_to_string(summary).expect("a summary");
    assert!(
        summary.contains("1 as expected, 1 not")
            && summary.contains("| ❌ | n | `s.toml` | 1 of 2 |"),
        "{summary}"
    );
}

#[test]
fn imports_add_and_the_importer_has_the_last_word() {
    let base = "run = \"5s\"\nseed = 3\ntraffic = [ { name = \"base\", rate = \"10/s\", keys = \"user:1\" } ]\n[limiter.api]\nlimit = \"1/1s\"\n[expect]\n\"c\" = \"errors == 1\"\n";
    let main = "import = [\"_base.toml\"]\nname = \"main\"\nrun = \"10s\"\n[limiter.api]\nlimit = \"5/1s\"\n[expect]\n\"c\" = \"rate(allowed) during 5s..10s == 5/s\"\n";
    let folder = with(&[("_base.toml", base), ("main.toml", main)]);
    let output = run_in(folder.path(), &["scenario", "run", ".", "-o", "json"]);
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(output.status.code(), Some(0), "{json}");
    assert_eq!(json["items"].as_array().map(Vec::len), Some(1));
    assert_eq!(
        (json["items"][0]["seed"].as_u64(), json["items"][0]["run_us"].as_u64()),
        (Some(3), Some(10_000_000))
    );
    // A circle is told, and ends.
    let folder =
        with(&[("a.toml", "import = [\"b.toml\"]\n"), ("b.toml", "import = [\"a.toml\"]\n")]);
    let output = run_in(folder.path(), &["scenario", "check", "a.toml"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(text(&output.stderr).contains("imports itself"), "{}", text(&output.stderr));
}

#[test]
fn a_matrix_repeats_the_file_by_key_and_by_placeholder() {
    let matrix = "[matrix]\nalgorithm = [\"gcra\", \"fixed-window\"]\nrate = [\"10/s\", \"20/s\"]\n[limiter.api]";
    let file = WHOLE
        .replace("[limiter.api]", matrix)
        .replace("rate = \"10/s\", keys", "rate = \"${rate}\", keys");
    let (scenarios, _) = parse("s.toml", &file).unwrap_or_else(|error| panic!("{error}"));
    let titles: Vec<String> = scenarios.iter().map(|scenario| scenario.title()).collect();
    assert_eq!(
        titles,
        [
            "n [algorithm=gcra, rate=10/s]",
            "n [algorithm=gcra, rate=20/s]",
            "n [algorithm=fixed-window, rate=10/s]",
            "n [algorithm=fixed-window, rate=20/s]",
        ]
    );
    let error = errors("[limiter.api]", "[matrix]\ncolour = [\"red\"]\n[limiter.api]");
    assert!(error.errors[0].message.contains("`colour` changes nothing"));
}

#[test]
fn the_same_as_json_is_the_same_scenario() {
    let json = r#"{ "name": "n", "run": "10s", "store": { "kind": "redis" },
        "traffic": [ { "name": "t", "rate": "10/s", "keys": "user:1" } ],
        "limiter": { "api": { "limit": "5/1s" } }, "expect": { "c": "errors == 0" } }"#;
    let folder = with(&[("s.json", json), ("s.toml", WHOLE)]);
    let digest = |file: &str| {
        let output = run_in(folder.path(), &["scenario", "run", file, "-o", "json"]);
        let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        json["items"][0]["limiters"][0]["digest"].as_str().expect("a digest").to_owned()
    };
    assert_eq!(digest("s.json"), digest("s.toml"));
}

#[test]
fn filters_tags_and_what_does_not_exist() {
    let tagged = WHOLE.replace("name = \"n\"", "name = \"other\"\ntags = [\"slow\"]");
    let folder = with(&[("a.toml", WHOLE), ("b.toml", &tagged)]);
    let names = |arguments: &[&str]| {
        let mut all = vec!["scenario", "run", ".", "-o", "json"];
        all.extend(arguments);
        let output = run_in(folder.path(), &all);
        let json: Value = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
        let items = json["items"].as_array().cloned().unwrap_or_default();
        let names = items.iter().filter_map(|item| item["name"].as_str().map(String::from));
        (output.status.code(), names.collect::<Vec<_>>())
    };
    assert_eq!(names(&[]), (Some(0), vec!["n".into(), "other".into()]));
    assert_eq!(names(&["--tag", "slow"]), (Some(0), vec!["other".into()]));
    assert_eq!(names(&["--filter", "a.toml", "--jobs", "1"]), (Some(0), vec!["n".into()]));
    assert_eq!(names(&["--tag", "none"]).0, Some(7));
    assert_eq!(run_in(folder.path(), &["scenario", "run"]).status.code(), Some(2));
    let report = run_in(folder.path(), &["scenario", "run", ".", "--report", "xml=r"]);
    assert_eq!(report.status.code(), Some(2));
}

#[test]
fn what_init_writes_is_right_and_nothing_is_overwritten() {
    let folder = with(&[]);
    let init = || run_in(folder.path(), &["scenario", "init", "deep/first.toml"]);
    assert_eq!(init().status.code(), Some(0));
    assert_eq!(init().status.code(), Some(6));
    let output = run_in(folder.path(), &["scenario", "run", "deep/first.toml"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
    let explained = text(&run_in(folder.path(), &["scenario", "explain", "deep"]).stdout);
    assert!(
        explained.contains("Redis hangs: hang of the store for 5s")
            && explained.contains("What must be true"),
        "{explained}"
    );
}

#[test]
fn the_schema_knows_every_key_and_the_gallery_keeps_to_it() {
    let output = run_in(Path::new("."), &["scenario", "schema"]);
    let schema: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    for (table, key) in [
        ("traffic", "idempotency"),
        ("store", "failover_after"),
        ("fault", "lose"),
        ("change", "block"),
        ("keys", "dist"),
        ("limiter", "skew"),
        ("breaker", "consecutive"),
    ] {
        assert!(schema["$defs"][table]["properties"][key].is_object(), "{table}.{key}");
    }
    // Whatever is referred to is there.
    let whole = schema.to_string();
    for reference in whole.split("#/$defs/").skip(1) {
        let name = reference.split('"').next().expect("a name");
        assert!(schema["$defs"][name].is_object(), "{name}");
    }
}

#[test]
fn watching_sees_files_that_are_read_and_not_those_that_are_written() {
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    fs::write(at("a.toml"), WHOLE).expect("written");
    let log = TempDir::new().expect("a folder");
    let told = || fs::read_to_string(log.path().join("told")).expect("text");
    let file = |path: &Path| fs::File::create(path).expect("a file");
    let mut running = rlctl()
        .args(["scenario", "run", ".", "--watch", "-o", "json", "--report", "json=report.json"])
        .current_dir(folder.path())
        .stdout(file(&at("out.json")))
        .stderr(file(&log.path().join("told")))
        .spawn()
        .expect("rlctl runs");
    let runs_until = |wanted: usize| {
        let began = Instant::now();
        while told().matches("watching").count() < wanted {
            assert!(began.elapsed() < Duration::from_secs(30), "{}", told());
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    runs_until(1);
    fs::write(at("notes.txt"), "nothing of it").expect("written");
    std::thread::sleep(Duration::from_millis(1_200));
    assert_eq!(told().matches("watching").count(), 1, "{}", told());
    fs::write(at("a.toml"), WHOLE.replace("10s", "11s")).expect("written");
    runs_until(2);
    let pid = running.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().expect("kill").success());
    assert_eq!(running.wait().expect("it ends").code(), Some(130));
    assert!(!told().contains("error"), "a report is no scenario: {}", told());
}

/// The first is under way for a second. Whoever comes after that is refused by the limit, and takes
/// no place from the next, who would else be told to come back in a second.
#[test]
fn who_is_refused_is_not_under_way() {
    let file = WHOLE
        .replace("rate = \"10/s\",", "rate = \"5/s\", takes = \"1s\",")
        .replace("5/1s\"", "1/10s\"\nconcurrency = { max = 1, wait = \"0s\" }")
        .replace("errors == 0", "retry_after during 1.1s..2s in 8s..9s");
    let folder = with(&[("s.toml", &file)]);
    let output = run_in(folder.path(), &["scenario", "run", "s.toml"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
}

#[test]
fn a_report_of_an_earlier_run_is_no_scenario() {
    let folder = with(&[("s.toml", WHOLE)]);
    let run = |arguments: &[&str]| {
        let mut all = vec!["scenario", "run", "."];
        all.extend(arguments);
        run_in(folder.path(), &all)
    };
    assert_eq!(run(&["--report", "json=report.json"]).status.code(), Some(0));
    let again = run(&[]);
    assert_eq!(again.status.code(), Some(0), "{}", text(&again.stderr));
    fs::write(folder.path().join("report.json"), "{ \"schema\": 1 }").expect("written");
    assert_eq!(run(&[]).status.code(), Some(3), "a file that is wrong is not passed over");
}

#[test]
fn each_command_has_a_help_of_its_own() {
    for (verb, words) in [("check", "that is wrong"), ("list", "names"), ("explain", "timeline")] {
        let output = run_in(Path::new("."), &["scenario", verb, "--help"]);
        let said = text(&output.stdout);
        assert!(
            said.contains(words) && said.contains(&format!("rlctl scenario {verb} scen")),
            "{said}"
        );
    }
}

#[test]
fn a_run_warns_of_what_a_check_warns_of() {
    let folder = TempDir::new().expect("a folder");
    let file = folder.path().join("later.toml");
    fs::write(&file, WHOLE.replace("limit =", "penalty = true\nlimit =")).expect("written");
    for verb in ["check", "run"] {
        let output = rlctl().args(["scenario", verb]).arg(&file).output().expect("rlctl runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("`penalty` is not used by this version"), "{verb}: {said}");
    }
}
