//! Rules files as people get them wrong: each is refused with exit 3, its place, the words at
//! fault and what to write instead. And what is valid, but hardly meant.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Output;
use std::time::{Duration, Instant};

use rlctl::engine::clock::Micros;
use rlctl::engine::config::{Finding, known_keys, parse_policy};
use rlctl::engine::limit::Algorithm;
use rlctl::engine::policy::{Endpoint, OnChange, OnStoreError, Policy, RuleLimits};
use rlctl::output::finding_text;
use serde_json::Value;

use crate::cli::rlctl;

/// 2026-11-18, in the middle of a night.
const NOW: Micros = Micros(1_795_000_000_000_000);

/// A wrong file: its text, `line:column`, words of the message, words of the hint.
type Wrong = (&'static str, &'static str, &'static str, &'static str);

/// A rule without its last line, which each case adds.
macro_rules! rule {
    ($rest:literal) => {
        concat!("[[rule]]\nname = \"r\"\ndimension = \"user\"\n", $rest)
    };
}

/// The same beside a rule for everybody, which keeps the usual warning away.
macro_rules! with_global {
    ($rest:literal) => {
        concat!(
            "[[rule]]\nname = \"all\"\ndimension = \"global\"\nlimits = [\"9/1s\"]\n",
            rule!($rest)
        )
    };
}

const NOT_TOML: [Wrong; 12] = [
    ("a = ", "1:5", "must be quoted", "in quotes"),
    ("[[rule]]\nname = per-user\n", "2:8", "must be quoted", "name = \"per-user\""),
    ("[[rule]]\nname = \"x\nlimits = []", "2:10", "invalid basic string", "end the text"),
    ("version 1", "1:9", "key with no value", "key = value"),
    ("version = 1 # one\ndefault_tier = \"a\" \"b\"", "2:20", "unexpected key or value", "newline"),
    ("[[rule]\nname = 1", "1:8", "unclosed", "`]`"),
    ("[tiers\nfree = 1", "1:7", "unclosed table", "`]`"),
    ("version = 01", "1:11", "leading zero", "without it"),
    ("x = \"\\q\"", "1:7", "escaped value", "expected here"),
    ("[[block]]\nuntil = 2026-13-01T00:00:00Z", "2:9", "invalid date", "month"),
    ("version = 1\nversion = 1", "2:1", "`version` is given twice", "r.toml:1:1"),
    (
        "[tiers.a]\nlimits = [\"1/1s\"]\n[tiers.b]\n[tiers.a]\n",
        "4:8",
        "`a` is given twice",
        "r.toml:1:1",
    ),
];

const WRONG_SHAPE: [Wrong; 25] = [
    ("version = 2", "1:11", "from 1 to 1, found the number 2", "version = 1"),
    ("version = \"1\"", "1:11", "found the text \"1\"", "version = 1"),
    ("rules = 3", "1:1", "`rules` is not a key of a rules file", "did you mean `rule`?"),
    ("[rule]\nname = \"x\"", "1:1", "`rule` wants a list, found a table", "[[rule]]"),
    ("frobnicate = 1", "1:1", "not a key of a rules file", "there are version, default_tier"),
    (rule!("limts = [\"1/1s\"]\nlimits = [\"1/1s\"]"), "4:1", "`limts` is not a key", "`limits`?"),
    (rule!("limits = [\"1/1s\"]\ncost = \"5\""), "5:8", "found the text \"5\"", "cost = 5"),
    (rule!("limits = [\"1/1s\"]\ncost = 0"), "5:8", "from 1 to 1000000000", "cost = 5"),
    (rule!("limits = [\"1/1s\"]\ncost = 1000000001"), "5:8", "1000000001", "cost = 5"),
    (rule!("limits = [\"1/1s\"]\ncost = 1.5"), "5:8", "whole number", "cost = 5"),
    (rule!("limits = [\"1/1s\"]\nshadow = \"yes\""), "5:10", "true or false", "shadow = true"),
    (
        rule!("limits = [\"1/1s\"]\nmethods = \"GET\""),
        "5:11",
        "wants a list",
        "[\"POST\", \"PUT\"]",
    ),
    (
        rule!("limits = [\"1/1s\"]\non_store_error = \"close\""),
        "5:18",
        "one of open, closed, local, not `close`",
        "did you mean `closed`?",
    ),
    (rule!("limits = [\"1/1s\"]\non_change = \"zap\""), "5:13", "one of keep, scale", "\"keep\""),
    (
        "[[rule]]\nname = \"Per User\"\ndimension = \"user\"\nlimits = [\"1/1s\"]",
        "2:8",
        "a name of a-z, 0-9 and -, 1 to 64 long",
        "per-user",
    ),
    ("[[rule]]\ndimension = \"user\"\nlimits = [\"1/1s\"]", "1:1", "a rule needs `name`", "name ="),
    ("[[rule]]\nname = \"x\"\nlimits = [\"1/1s\"]", "1:1", "needs `dimension`", "\"user\""),
    ("[[rule]]\nname = \"x\"\ndimension = \"user\"", "1:1", "needs `limits`", "[\"100/1m\"]"),
    ("[defaults]\ndeadline = 50", "2:12", "a duration from 1ms to 1m", "\"50ms\""),
    ("[defaults]\ndeadline = \"2h\"", "2:12", "found the text \"2h\"", "\"50ms\""),
    (
        "[defaults.breaker]\nfailure_ratio = 1.5",
        "2:17",
        "a number from 0 to 1, found the number 1.5",
        "0.5",
    ),
    ("[identity]\napikey = { header = \"X API\" }", "2:21", "name of a header", "X-API-Key"),
    ("[identity]\nuser = { trust = \"all\" }", "2:18", "one of proxies, any", "\"any\""),
    ("[tiers.Free]\nlimits = [\"1/1s\"]", "1:8", "`Free` cannot be a name", "headers"),
    ("[response]\nheaders = \"ietff\"", "2:11", "one of both, x, ietf", "did you mean `ietf`?"),
];

const WRONG_MEANING: [Wrong; 38] = [
    (
        "[[rule]]\nname = \"x\"\ndimension = \"usr\"\nlimits = [\"1/1s\"]",
        "3:13",
        "`usr` is not a dimension",
        "did you mean `user`?",
    ),
    (
        "[[rule]]\nname = \"x\"\ndimension = \"header:a b\"\nlimits = [\"1/1s\"]",
        "3:13",
        "not a dimension",
        "header:NAME",
    ),
    (rule!("limits = \"tiers\""), "4:10", "a list or \"tier\"", "limits = \"tier\""),
    (rule!("limits = \"5/1s\""), "4:10", "a list or \"tier\"", "limits = [\"5/1s\"]"),
    (rule!("limits = \"tier\""), "4:10", "there are no tiers", "[tiers.free]"),
    (rule!("limits = []"), "4:10", "does nothing", "enabled = false"),
    (rule!("limits = [5]"), "4:11", "text or a table, found the number 5", "\"100/1m\""),
    (rule!("limits = [\"ten/1s\"]"), "4:12", "`ten` is not a number", "10k"),
    (rule!("limits = [\"10/1y\"]"), "4:15", "`1y` is not a duration", "1h30m"),
    (rule!("limits = [\"1/1s\", \"10 per second\"]"), "4:19", "is not a limit", "100/1m"),
    (rule!("limits = [\"2G/1s\"]"), "4:11", "2000000000 is too large", "at most 1000000000"),
    (rule!("limits = [\"1/400d\"]"), "4:11", "out of range", "from 1ms to 366d"),
    (rule!("limits = [\"1/1s burst 0\"]"), "4:17", "would refuse everything", "at least 1"),
    (rule!("limits = [\"1/366d burst 1000\"]"), "4:11", "over 100 years", "raise the rate"),
    (
        rule!("limits = [{ limit = \"9/1s burst 5\", algorithm = \"fixed-window\" }]"),
        "4:27",
        "belongs to the buckets",
        "fixed-window has none",
    ),
    (
        rule!("limits = [{ limit = \"9/1s\", algorithm = \"gcra\", burst = 0 }]"),
        "4:57",
        "burst of 0",
        "at least 1",
    ),
    (
        rule!("limits = [{ limit = \"9/1s burst 5\", burst = 6 }]"),
        "4:45",
        "given here and in the limit",
        "keep one",
    ),
    (
        rule!("limits = [{ limit = \"9/1s\", algorithm = \"tokn-bucket\" }]"),
        "4:41",
        "unknown algorithm `tokn-bucket`",
        "did you mean token-bucket?",
    ),
    (
        rule!("limits = [{ limit = \"200k/1s\", algorithm = \"sliding-log\" }]"),
        "4:21",
        "200000 is too large",
        "at most 100000",
    ),
    (
        rule!("limits = [{ limit = \"9/1s\", max_delay = \"1s\" }]"),
        "4:41",
        "token-bucket never holds",
        "leaky-bucket",
    ),
    (rule!("limits = [{ burst = 5 }]"), "4:11", "a limit needs `limit`", "1000/1h"),
    (rule!("limits = [{ limit = \"9/1s\", brust = 5 }]"), "4:29", "`brust` is not", "`burst`?"),
    (rule!("limits = [\"1/1s\"]\nendpoint = \"api/v1\""), "5:13", "begins with /", "/api/*"),
    (rule!("limits = [\"1/1s\"]\nendpoint = \"/api*\""), "5:13", "at the end", "/api/*"),
    (rule!("limits = [\"1/1s\"]\nendpoint = \"/u/x{id}/y\""), "5:16", "`x{id}`", "{id}"),
    (rule!("limits = [\"1/1s\"]\nendpoint = \"/u/{id}/*\""), "5:13", "do not go", "prefix"),
    (rule!("limits = [\"1/1s\"]\nendpoint = \"/a?b=1\""), "5:15", "without a query", "leave it"),
    (rule!("limits = [\"1/1s\"]\nendpoint = \"/a%2Fb\""), "5:13", "encoded slash", "/api"),
    (rule!("limits = [\"1/1s\"]\nmethods = [\"GET\", \"PO ST\"]"), "5:19", "`PO ST`", "\"POST\""),
    (rule!("limits = [\"1/1s\"]\ntier = [\"gold\"]"), "5:9", "no tier `gold`", "[tiers.free]"),
    (rule!("limits = [\"1/1s\"]\nmatch = []"), "5:9", "matches nobody", "leave it out"),
    (
        rule!("limits = [\"1/1s\"]\nmatch = [\"ip:10.0.0.0/8\"]"),
        "5:10",
        "the rule counts by user",
        "user:",
    ),
    (rule!("limits = [\"1/1s\"]\nunless = [\"apikeys\"]"), "5:11", "`apikeys`", "`apikey`?"),
    ("default_tier = \"fre\"\n[tiers.free]", "1:16", "no tier `fre`", "did you mean `free`?"),
    ("[assign]\n\"user:1\" = \"gold\"", "2:12", "no tier `gold`", "there are no tiers"),
    (
        "[tiers.a]\n[assign]\n\"ip:1.2.3.4\" = \"a\"\n\"ip:::ffff:1.2.3.4\" = \"a\"",
        "4:1",
        "`ip:1.2.3.4` is assigned twice",
        "r.toml:3:1",
    ),
    ("[tiers.a]\n[assign]\nalice = \"a\"", "3:1", "has no dimension", "user:123"),
    ("[tiers.a]\n[assign]\n\"ip:1.2.3\" = \"a\"", "3:1", "not an address", "203.0.113.7"),
];

const WRONG_LISTS: [Wrong; 14] = [
    ("[[block]]\nmatch = [\"ip:10.0.0.0/33\"]", "2:14", "`10.0.0.0/33` is not", "10.0.0.0/8"),
    ("[[block]]\nmatch = [\"bob\"]", "2:10", "`bob` has no dimension", "user:12*"),
    ("[[block]]\nreason = \"abuse\"", "1:1", "a block needs `match`", "user:666"),
    (
        "[[block]]\nmatch = [\"user:1\"]\nscope = \"request\"",
        "3:1",
        "`scope` is not a key",
        "match",
    ),
    (
        "[[block]]\nmatch = [\"user:1\"]\nuntil = \"tomorrow\"",
        "3:9",
        "`tomorrow` is not a moment",
        "T00:00:00Z",
    ),
    ("[[exempt]]\nmatch = [\"user:1\"]\nuntil = 2030-01-01", "3:9", "with its offset", "+02:00"),
    ("[identity]\ntrusted_proxies = [\"10.0.0.0/8\", \"lan\"]", "2:34", "`lan` is not", "fd00::/8"),
    ("[domains]\nedge = [\"per-ip\"]", "2:9", "there is no rule `per-ip`", ""),
    ("[cors]\norigins = [\"*\"]", "2:1", "`origins` is not a key of [cors]", "charge_preflight"),
    (
        "[[upstream]]\nprefix = \"/a\"\nurl = \"http://b\"\n[[upstream]]\nprefix = \"/a/\"\nurl = \"http://c\"",
        "5:10",
        "`/a/` has two upstreams",
        "2:10",
    ),
    (rule!("limits = [\"1/1s\"]\nstore = \"gold\""), "5:9", "no store `gold`", "[stores.gold]"),
    ("[stores.a]\nurl = \"localhost\"", "2:7", "a URL with its scheme", "redis://"),
    ("[[upstream]]\nprefix = \"api\"\nurl = \"http://a\"", "2:10", "begins with /", "/api"),
    (
        "[[rule]]\nname = \"a\"\ndimension = \"ip\"\nlimits = [\"1/1s\"]\n\
         [[rule]]\nname = \"a\"\ndimension = \"ip\"\nlimits = [\"1/1s\"]",
        "6:8",
        "two rules called `a`",
        "r.toml:2:8",
    ),
];

const NOT_JSON: [Wrong; 14] = [
    ("{", "1:2", "a key is wanted", "\"key\": value"),
    ("{\"version\": 1,}", "1:14", "nothing follows the comma", "remove"),
    ("{\"version\" 1}", "1:12", "a colon is wanted", "\"key\": value"),
    ("{\"version\": 1} x", "1:16", "something follows the end", "remove"),
    ("{\n  \"rule\": [\n    {\"name\": tru}\n", "3:14", "a value is wanted", "true"),
    ("{\"version\": 01}", "1:13", "badly written", "0.5"),
    ("{\"default_tier\": \"a\n\"}", "1:20", "does not end", "quote"),
    ("{\"a\": \"\\x\"}", "1:8", "unknown escape", "\\uXXXX"),
    ("{\"a\": \"\\ud800\"}", "1:8", "unknown escape", "\\uXXXX"),
    ("{\"version\": 1,\n \"version\": 1}", "2:2", "`version` is given twice", "r.toml:1:2"),
    ("{\"version\": null}", "1:13", "found null", "\"version\": 1"),
    (
        "{\"rule\": [{\"name\": \"a\", \"dimension\": \"usr\", \"limits\": [\"1/1s\"]}]}",
        "1:38",
        "`usr` is not a dimension",
        "did you mean `user`?",
    ),
    (
        "{\"rule\": [{\"name\": \"a\", \"dimension\": \"ip\", \"limts\": [\"1/1s\"], \"limits\": \"tier\"}]}",
        "1:44",
        "`limts` is not a key of a rule",
        "`limits`?",
    ),
    ("{\"block\": [\n  {\"match\": [\"ip:10.0.0.0/33\"]}]}", "2:18", "`10.0.0.0/33`", "10.0.0.0/8"),
];

fn all_wrong() -> impl Iterator<Item = Wrong> {
    [&NOT_TOML[..], &WRONG_SHAPE, &WRONG_MEANING, &WRONG_LISTS, &NOT_JSON].concat().into_iter()
}

#[test]
fn each_wrong_file_is_refused_with_its_place_and_what_to_write() {
    let mut wrong = Vec::new();
    for (text, place, message, hint) in all_wrong() {
        let Err(found) = parse_policy("r.toml", text, NOW) else {
            wrong.push(format!("accepted:\n{text}"));
            continue;
        };
        let fits = |finding: &&Finding| {
            let told = finding.hint.clone().unwrap_or_default();
            format!("{}:{}", finding.place.line, finding.place.column) == place
                && finding.message.contains(message)
                && told.contains(hint)
        };
        if found.errors.iter().find(fits).is_none() {
            wrong.push(format!("{text}\nwanted {place} {message} / {hint}\n{found:#?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n----\n"));
    assert!(all_wrong().count() >= 100);
}

fn lint(file: &Path, more: &[&str]) -> Output {
    rlctl().args(["rules", "lint"]).arg(file).args(more).output().expect("rlctl runs")
}

fn told(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("UTF-8")
}

#[test]
fn the_command_ends_with_3_and_shows_the_place() {
    let folder = tempfile::tempdir().expect("a folder");
    for (n, (text, place, message, _)) in all_wrong().enumerate() {
        let file = folder.path().join(format!("{n}.toml"));
        std::fs::write(&file, text).expect("writes");
        let output = lint(&file, &[]);
        assert_eq!(output.status.code(), Some(3), "{text}");
        let start = format!("{}:{place}: error: ", file.display());
        let told = told(&output);
        let line = told.lines().find(|line| line.starts_with(&start) && line.contains(message));
        assert!(line.is_some(), "{text}\n{told}");
    }
}

#[test]
fn all_errors_are_told_at_once_in_the_order_of_the_file() {
    let text =
        "version = 3\n[[rule]]\nnam = \"a\"\ndimension = \"x\"\nlimits = [\"1\", \"2/1q\"]\n";
    let errors = parse_policy("r.toml", text, NOW).unwrap_err().errors;
    let places: Vec<_> = errors.iter().map(|e| (e.place.line, e.place.column)).collect();
    assert_eq!(places, [(1, 11), (3, 1), (4, 13), (5, 11), (5, 19)]);
    let many = "[[rule]]\n".repeat(1_000);
    let errors = parse_policy("r.toml", &many, NOW).unwrap_err();
    assert_eq!((errors.errors.len(), errors.more), (200, 2_800));
    let warned: String = (0..300)
        .map(|n| format!("[[rule]]\nname=\"{n}\"\ndimension=\"ip\"\nlimits=[\"1/1s\"]\nsplit=2\n"))
        .collect();
    let (_, warnings) = accepted(&warned);
    assert_eq!(warnings.len(), 201);
    assert_eq!(warnings[200].message, "there are 399 more warnings");
}

#[test]
fn what_is_no_text_is_refused_with_its_place() {
    let folder = tempfile::tempdir().expect("a folder");
    let garbage: Vec<u8> =
        (0..4096u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let deep = [
        format!("a = {}", "[".repeat(100_000)),
        format!("a = {}{}", "[".repeat(60), "]".repeat(60)),
        format!("{}1{}", "{\"a\":".repeat(200_000), "}".repeat(200_000)),
        format!("{} = 1", vec!["a"; 100_000].join(".")),
        format!("[{}]", vec!["a"; 60].join(".")),
    ];
    let mut cases: Vec<(&[u8], &str, &str)> = vec![
        (&garbage, "", ""),
        (b"\x7fELF\x02\x01\x01\0\0\0", "1:", "not TOML"),
        (b"version = 1\n# caf\xe9\n", "2:6", "0xE9 is not UTF-8"),
        (b"\xff\xfev\0e\0r\0", "1:1", "0xFF is not UTF-8"),
    ];
    cases.extend(deep.iter().map(|text| (text.as_bytes(), "1:", "nested too deeply")));
    for (n, (bytes, place, words)) in cases.iter().enumerate() {
        let file = folder.path().join(format!("{n}.toml"));
        std::fs::write(&file, bytes).expect("writes");
        let output = lint(&file, &[]);
        assert_eq!(output.status.code(), Some(3), "{n}: {}", told(&output));
        let start = format!("{}:{place}", file.display());
        assert!(told(&output).starts_with(&start), "{n}: {}", told(&output));
        assert!(told(&output).contains(words), "{n}: {}", told(&output));
        assert!(told(&output).len() < 20_000, "{n}");
    }
}

#[test]
fn a_huge_file_is_refused_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("huge.toml");
    std::fs::File::create(&file).and_then(|f| f.set_len(100_000_000)).expect("a sparse file");
    let started = Instant::now();
    let output = lint(&file, &[]);
    assert_eq!(output.status.code(), Some(3));
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
    assert!(told(&output).contains("huge.toml:1:1: error: the file has 100000000 bytes"));
    let endless = lint(Path::new("/dev/zero"), &[]);
    assert_eq!(endless.status.code(), Some(3));
    assert!(told(&endless).contains("over 8 MiB"), "{}", told(&endless));
    let missing = lint(&folder.path().join("none.toml"), &[]);
    assert_eq!(missing.status.code(), Some(3));
    assert!(told(&missing).contains("none.toml: cannot open"), "{}", told(&missing));
}

/// Files made to take long: one line, a million duplicates, many errors.
#[test]
fn no_file_takes_long() {
    let rule = r#"{"name":"r","dimension":"user","limits":["1/1s"]},"#;
    let many: String = (0..20_000).map(|n| rule.replace("\"r\"", &format!("\"r{n}\""))).collect();
    let distinct: String = (0..100_000).map(|n| format!("\"user:{n}\":\"a\",")).collect();
    for text in [
        format!("{{\"rule\":[{}]}}", many.trim_end_matches(',')),
        format!("{{{}\"version\":1}}", "\"version\":1,".repeat(500_000)),
        format!("{{\"tiers\":{{\"a\":{{}}}},\"assign\":{{{}}}}}", distinct.trim_end_matches(',')),
        "a = 1\n".repeat(300_000),
        "[[rule]]\n".repeat(300_000),
        "= ".repeat(500_000),
    ] {
        let started = Instant::now();
        let _ = parse_policy("r", &text, NOW);
        let start = &text[..40];
        assert!(started.elapsed() < Duration::from_secs(5), "{start}: {:?}", started.elapsed());
    }
}

#[test]
fn escapes_in_a_file_do_not_reach_the_terminal() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("evil.toml");
    let text = "\"\u{1b}]0;owned\u{7}\" = 1\n[\"\u{202e}\"]\n[[rule]]\nname = \"\\u001b[31m\"\n";
    std::fs::write(&file, text).expect("writes");
    let output = lint(&file, &[]);
    assert_eq!(output.status.code(), Some(3));
    let told = told(&output);
    assert!(!told.contains(['\u{1b}', '\u{7}', '\u{202e}']), "{told:?}");
    assert!(told.contains("\\u{1b}"), "{told}");
}

#[test]
fn a_password_in_a_file_is_never_shown() {
    for text in [
        "[stores.a]\nurl = \"redis://bob:hunter2@h:1\" x",
        "[stores.a]\nurl = \"redis:/bob:hunter2@h:1\"",
        "stores = { a = { url = \"redis://bob:hunter2@h:1\", prefx = 1 } }",
        "stores = { a = { prefx = 1, url = \"redis://bob:hunter2@h:1\" } }",
    ] {
        let errors = parse_policy("r.toml", text, NOW).unwrap_err();
        assert!(!format!("{errors:?}").contains("hunter2"), "{errors:#?}");
    }
}

fn accepted(text: &str) -> (Policy, Vec<Finding>) {
    parse_policy("r.toml", text, NOW).unwrap_or_else(|errors| panic!("{errors:#?}\n{text}"))
}

#[test]
fn marks_and_line_ends_of_other_systems_are_read() {
    let text = rule!("limits = [\"1/1s\"]\nshadow = true\n");
    let (plain, _) = accepted(text);
    for other in [format!("\u{feff}{text}"), text.replace('\n', "\r\n")] {
        assert_eq!(accepted(&other).0, plain);
    }
    let broken = text.replace('\n', "\r\n").replace("shadow", "shdow");
    let errors = parse_policy("r.toml", &broken, NOW).unwrap_err().errors;
    assert_eq!((errors[0].place.line, errors[0].place.column), (5, 1));
    assert_eq!(errors[0].after, " = true");
}

#[test]
fn an_empty_file_is_valid_and_warned_of() {
    for text in ["", "\n\n", "# nothing\n", "{}", " \n{ }\n"] {
        let (policy, warnings) = accepted(text);
        assert!(policy.rules.is_empty());
        assert!(warnings[0].message.contains("nothing is limited"), "{warnings:?}");
    }
}

/// The sample of the format's description, as it stands there.
const SAMPLE: &str = include_str!("data/sample.toml");
const SAMPLE_AS_JSON: &str = include_str!("data/sample.json");

#[test]
fn the_sample_means_what_it_says() {
    let (policy, warnings) = accepted(SAMPLE);
    assert_eq!(policy.default_tier.as_deref(), Some("free"));
    assert_eq!(policy.tier("premium").expect("a tier").limits[0].limit.capacity(), 2_000);
    assert_eq!(policy.assign[&"user:42".parse().expect("an identity")], "premium");
    assert_eq!(policy.identity.trusted_proxies[0].to_string(), "127.0.0.0/8");
    let rule = policy.rule("orders-write").expect("a rule");
    assert_eq!(rule.endpoint, Endpoint::Exact("/api/v1/orders".into()));
    assert_eq!((rule.methods.len(), rule.tiers.len(), rule.cost.get()), (2, 2, 5));
    assert_eq!((rule.on_store_error, rule.on_change), (OnStoreError::Closed, OnChange::Keep));
    let RuleLimits::Own(limits) = &rule.limits else { panic!("limits of its own") };
    assert_eq!(limits[1].limit.algorithm(), Algorithm::SlidingWindow);
    assert_eq!((rule.place.line, rule.place.column), (31, 1));
    assert!(policy.rule("per-ip").expect("a rule").shadow);
    assert_eq!(policy.block[0].until, Some(Micros(1_796_083_200_000_000)));
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].message.contains("a request without user is not limited"));
}

#[test]
fn json_means_the_same_as_toml() {
    let without_places = |text: &str, file: &str| {
        let (mut policy, warnings) = parse_policy(file, text, NOW).expect("valid");
        policy.rules.iter_mut().for_each(|rule| rule.place = Default::default());
        policy.tiers.iter_mut().for_each(|tier| tier.place = Default::default());
        policy
            .exempt
            .iter_mut()
            .chain(&mut policy.block)
            .for_each(|l| l.place = Default::default());
        (policy, warnings.into_iter().map(|w| w.message).collect::<Vec<_>>())
    };
    assert_eq!(without_places(SAMPLE, "a.toml"), without_places(SAMPLE_AS_JSON, "a.json"));
    assert_eq!(without_places(SAMPLE_AS_JSON, "noname"), without_places(SAMPLE_AS_JSON, "a.json"));
}

#[test]
fn the_shipped_example_is_clean() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/policy.toml");
    let output = lint(&file, &["--deny-warnings"]);
    assert_eq!(output.status.code(), Some(0), "{}", told(&output));
    let (policy, _) = accepted(&std::fs::read_to_string(file).expect("text"));
    let per_second = |tier: &str| policy.tier(tier).expect("a tier").limits[0].limit.requests();
    let tiers = ["free", "basic", "premium", "enterprise"].map(per_second);
    assert_eq!(tiers, [10, 100, 1_000, 10_000]);
}

/// Valid files with bytes changed, taken away and doubled: refused or not, never a crash, and every
/// finding can be shown.
#[test]
fn no_damage_to_a_file_crashes_the_reader() {
    let mut seed = 42u64;
    let mut below = |n: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % n
    };
    let strange = "\" \\ [ ] { } → \u{1b} \n = # \"\"\" \0 \\u12 [[ . é 0x 1e9".split(' ');
    let strange: Vec<&str> = strange.collect();
    for round in 0..6_000 {
        let mut text = if round % 2 == 0 { SAMPLE } else { SAMPLE_AS_JSON }.to_owned();
        for _ in 0..=below(3) {
            let mut at = below(text.len());
            while !text.is_char_boundary(at) {
                at -= 1;
            }
            match below(5) {
                0 | 1 => drop(text.remove(at)),
                2 | 3 => text.insert_str(at, strange[below(strange.len())]),
                _ => text.truncate(at.max(1)),
            }
        }
        match parse_policy("r", &text, NOW) {
            Ok((_, warnings)) => warnings.iter().for_each(|w| drop(finding_text(w))),
            Err(errors) => {
                assert!(!errors.errors.is_empty());
                errors.errors.iter().for_each(|e| assert!(finding_text(e).contains("error: ")));
            }
        }
    }
}

/// A valid file, and words of the one warning it gets.
const HARDLY_MEANT: [(&str, &str); 18] = [
    (
        with_global!(
            "limits = [\"1/1s\"]\n[[block]]\nmatch = [\"ip:2001:db8::1/128\"]\nreason = \"x\""
        ),
        "matches nobody: IPv6 clients are counted by their /64",
    ),
    (rule!("limits = [\"1/1s\"]"), "a request without user is not limited"),
    (
        "[[rule]]\nname = \"a\"\ndimension = \"ip\"\nendpoint = \"/a\"\nlimits = [\"1/1s\"]",
        "outside the rules' endpoints",
    ),
    (
        with_global!("limits = [\"1/1s\"]\n[stores.x]\nurl = \"redis://a\""),
        "no rule uses the store",
    ),
    (with_global!("limits = [\"3/1s\"]\nsplit = 4"), "too small for 4 parts"),
    (
        with_global!("limits = [\"1/1s\"]\nshadow = true\nreplicas = { n = 1 }"),
        "`replicas` does nothing",
    ),
    (with_global!("limits = [\"1/1s\"]\npenalty = true"), "`penalty` is not used"),
    (with_global!("limits = [\"1/1s\"]\nscope = \"global\""), "`scope` is not used"),
    (with_global!("limits = [\"1/1s\"]\n[adaptive]\nfloor = 1"), "`adaptive` is not used"),
    (
        with_global!("limits = [{ limit = \"1/1s\", algorithm = \"sliding_window\" }]"),
        "means the counter",
    ),
    (with_global!("limits = [\"100/1s\", \"10/1m\"]"), "100/1s never decides"),
    (with_global!("limits = [\"10/1s\", \"100000/1m\"]"), "100000/1m never decides"),
    (with_global!("limits = [\"10/1s\"]\ncost = 11"), "no request passes"),
    (with_global!("limits = [\"1/1s\"]\nunless = [\"user\"]"), "its own dimension"),
    (with_global!("limits = [\"1/1s\"]\nshadow = true\nalso = true"), "`also` does nothing"),
    (with_global!("limits = [\"1/1s\"]\n[tiers.a]\nlimits = [\"1/1s\"]"), "uses the tier `a`"),
    (with_global!("limits = \"tier\"\ntier = [\"a\"]\n[tiers.a]"), "none of its tiers has limits"),
    (
        with_global!(
            "limits = [\"1/1s\"]\n[[block]]\nmatch = [\"user:1\"]\nuntil = 2020-01-01T00:00:00Z"
        ),
        "this block has ended",
    ),
];

#[test]
fn what_is_hardly_meant_is_warned_of_and_accepted() {
    for (text, words) in HARDLY_MEANT {
        let (_, warnings) = accepted(text);
        assert!(warnings.iter().any(|w| w.message.contains(words)), "{text}\n{warnings:#?}");
        let notes = warnings.iter().filter(|w| !w.message.contains("not used by this version"));
        assert!(notes.count() <= 1, "{text}\n{warnings:#?}");
    }
}

#[test]
fn a_rule_that_never_wins_is_found() {
    let rule = |name: &str, more: &str| {
        format!("[[rule]]\nname = \"{name}\"\ndimension = \"ip\"\nlimits = [\"1/1s\"]\n{more}\n")
    };
    for (first, second, never) in [
        ("", "", true),
        ("", "match = [\"ip:10.0.0.1\"]", true),
        ("match = [\"ip:10.0.0.1\"]", "", false),
        ("", "unless = [\"user\"]", true),
        ("", "also = true", false),
        ("", "shadow = true", false),
        ("enabled = false", "", false),
        ("", "methods = [\"GET\"]", false),
        ("methods = [\"GET\", \"PUT\"]", "methods = [\"put\", \"get\"]", true),
        ("endpoint = \"/a/\"", "endpoint = \"//a\"", true),
        ("endpoint = \"/{a}\"", "endpoint = \"/{b}\"", true),
        ("endpoint = \"/a\"", "endpoint = \"/a/*\"", false),
    ] {
        let text = rule("a", first) + &rule("b", second);
        let found = accepted(&text).1.iter().any(|w| w.message.contains("`b` never applies"));
        assert_eq!(found, never, "{text}");
    }
}

#[test]
fn limits_that_complement_each_other_are_not_warned_of() {
    for limits in [
        "[\"10/1s\", \"100/1m\"]",
        "[\"1000/1s burst 2000\", \"100000/1h\"]",
        "[\"10/1s burst 1\", \"10/1s burst 10\"]",
        "[{ limit = \"15/1s\", algorithm = \"fixed-window\" }, { limit = \"10/1m\", algorithm = \"fixed-window\" }]",
        "[\"0/1s\"]",
    ] {
        let text = format!("[[rule]]\nname = \"a\"\ndimension = \"ip\"\nlimits = {limits}\n");
        let warnings = accepted(&text).1;
        let expected = usize::from(limits.contains("burst 1\""));
        assert_eq!(warnings.len(), expected, "{limits}: {warnings:#?}");
    }
}

#[test]
fn lint_in_json_has_an_item_per_finding() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("r.toml");
    std::fs::write(&file, "rules = 3\n").expect("writes");
    let output = lint(&file, &["-o", "json"]);
    assert_eq!(output.status.code(), Some(3));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(
        report,
        serde_json::json!({
            "schema": "rlctl/v1", "errors": 1, "warnings": 0,
            "items": [{
                "file": file.to_str(), "line": 1, "column": 1, "severity": "error",
                "message": "`rules` is not a key of a rules file",
                "hint": "did you mean `rule`?", "text": "rules",
            }],
        })
    );
    assert!(output.stderr.is_empty());
    std::fs::write(&file, "").expect("writes");
    assert_eq!(lint(&file, &[]).status.code(), Some(0));
    assert_eq!(lint(&file, &["--deny-warnings"]).status.code(), Some(3));
}

#[test]
fn show_reads_the_file_of_the_flag_or_the_environment() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let file = root.join("examples/policy.toml");
    let show = |more: &[&str]| rlctl().args(["rules", "show"]).args(more).output().expect("runs");
    let none = show(&[]);
    assert_eq!(none.status.code(), Some(2));
    assert!(told(&none).contains("--rules FILE or RLCTL_RULES"), "{}", told(&none));
    let store = show(&["--rules", "store"]);
    assert_eq!(store.status.code(), Some(2));
    assert!(told(&store).contains("say in which one with --redis"), "{}", told(&store));
    let by_flag = show(&["--rules", file.to_str().expect("UTF-8"), "-o", "json"]);
    let by_environment = rlctl()
        .args(["rules", "show", "-o", "json"])
        .env("RLCTL_RULES", &file)
        .output()
        .expect("runs");
    assert_eq!(by_flag.stdout, by_environment.stdout);
    let report: Value = serde_json::from_slice(&by_flag.stdout).expect("JSON");
    let items = report["items"].as_array().expect("items");
    let uploads = items.iter().find(|item| item["name"] == "uploads").expect("a rule");
    assert_eq!(uploads["endpoint"], "/uploads/*");
    assert_eq!(uploads["limits"][0]["burst"], 20);
    assert_eq!(items[0]["limits"], Value::Null);
}

/// The schema and the parser know the same keys.
#[test]
fn the_schema_knows_every_key_and_no_other() {
    let output = rlctl().args(["schema", "rules"]).output().expect("rlctl runs");
    let schema: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    let keys_of = |table: &Value| -> Option<BTreeSet<String>> {
        Some(table.get("properties")?.as_object()?.keys().cloned().collect())
    };
    let mut described: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    described.insert(String::new(), keys_of(&schema).expect("properties"));
    for (name, table) in schema["$defs"].as_object().expect("$defs") {
        described.extend(keys_of(table).map(|keys| (name.clone(), keys)));
    }
    let known: BTreeMap<String, BTreeSet<String>> = known_keys()
        .into_iter()
        .map(|(name, keys)| (name.into(), keys.into_iter().map(String::from).collect()))
        .collect();
    assert_eq!(described, known);
}
