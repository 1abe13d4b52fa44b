//! What `rlctl simulate` writes into files: pictures that a browser shows and nobody can abuse, and
//! scenarios in the format of their reference.

use std::fs;
use std::path::Path;

use rlctl::engine::clock::Micros;
use toml::Value;

use crate::cli::rlctl;
use crate::simulate::{errors, run};

fn made(folder: &Path, name: &str, arguments: &[&str]) -> String {
    let path = folder.join(name);
    let kind = format!("--{}", name.rsplit('.').next().unwrap().replace("toml", "emit"));
    let output = run(&[arguments, &[&kind, path.to_str().unwrap()]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    fs::read_to_string(path).unwrap()
}

/// Every tag is closed, in order; as XML wants it and HTML allows it.
fn assert_well_formed(text: &str, void: &[&str]) {
    let mut open = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('<') {
        let end = rest[at..].find('>').unwrap_or_else(|| panic!("no end: {}", &rest[at..][..40]));
        let tag = &rest[at + 1..at + end];
        rest = &rest[at + end + 1..];
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap();
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "{tag}");
        } else if !tag.ends_with('/') && !tag.starts_with('!') && !void.contains(&name) {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

/// Keys that others chose: as markup, as a terminal's commands, as an entity.
const HOSTILE: &str =
    "<script>alert(1)</script>\n\"><img src=x onerror=y>\nuser:\u{202e}evil\n&amp;]]>\n";

#[test]
fn pictures_are_well_formed_and_hold_nothing_that_runs() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    fs::write(&keys, HOSTILE).unwrap();
    let keys = format!("file:{}", keys.display());
    let arguments = [
        "--limit",
        "2/1s",
        "--algorithm",
        "all",
        "--traffic",
        "poisson:50/s",
        "--keys",
        &keys,
        "--for",
        "5s",
    ];
    let svg = made(folder.path(), "x.svg", &arguments);
    assert_well_formed(&svg, &[]);
    assert!(
        svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\"") && svg.ends_with("</svg>\n")
    );
    let html = made(folder.path(), "x.html", &arguments);
    assert_well_formed(&html, &["meta"]);
    for text in [&svg, &html] {
        for banned in [
            "<script",
            "<img",
            "onerror=y>",
            "javascript:",
            "\u{202e}",
            "\u{1b}",
            "<link",
            "@import",
            "url(",
        ] {
            assert!(!text.contains(banned), "{banned}");
        }
        assert!(text.contains("prefers-color-scheme:dark"));
        // The name of the format, and nothing to fetch.
        assert_eq!(text.matches("http").count() - text.matches("http-equiv").count(), 1);
    }
    assert!(html.contains("&lt;script&gt;alert(1)&lt;/script&gt;"));
    assert!(html.contains("default-src 'none'") && html.contains("Make it again"));
}

#[test]
fn a_page_of_a_comparison_shows_what_was_compared_and_says_what_it_means() {
    let folder = tempfile::tempdir().unwrap();
    let limit = ["--limit", "100/1s", "--algorithm", "gcra", "--traffic", "poisson:150/s"];
    let alone = made(folder.path(), "alone.html", &limit);
    let compared = ["--nodes", "4", "--local"];
    let compared = made(folder.path(), "compared.html", &[&limit[..], &compared].concat());
    // There is room for either on a usual screen.
    for (page, has, has_not) in
        [(&alone, "bytes a key", "too many"), (&compared, "too many", "bytes a key")]
    {
        let heading = |name: &str| format!("<th>{name}</th>");
        assert!(page.contains(&heading(has)) && !page.contains(&heading(has_not)), "{has}");
        assert!(page.to_lowercase().contains(&format!("<li><b>{has}</b>")), "{has}");
    }
    assert!(compared.contains("<h1>gcra 4 nodes, alone lets"), "names keep their letters");
    assert!(alone.contains("<h1>") && !alone.contains("<h1>g"));
}

/// The keys of a scenario file that its reference knows.
const TOP: [&str; 7] = ["name", "clock", "seed", "run", "traffic", "limiter", "expect"];
const TRAFFIC: [&str; 10] =
    ["name", "at", "for", "rate", "arrivals", "send", "over", "ramp", "log", "keys"];
const LIMITER: [&str; 4] = ["algorithm", "limit", "burst", "max_delay"];

fn only(table: &Value, known: &[&str]) {
    for key in table.as_table().expect("a table").keys() {
        assert!(known.contains(&key.as_str()), "{key}");
    }
}

fn check_scenario(text: &str) -> Value {
    let file: Value = toml::from_str(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    only(&file, &TOP);
    assert_eq!(file["clock"].as_str(), Some("virtual"));
    let duration = |value: &Value| {
        rlctl::engine::units::parse_duration(value.as_str().expect("text")).expect("a duration")
    };
    duration(&file["run"]);
    for entry in file["traffic"].as_array().expect("a list") {
        only(entry, &TRAFFIC);
        let kinds = ["rate", "send", "ramp", "log"];
        assert_eq!(kinds.iter().filter(|kind| entry.get(**kind).is_some()).count(), 1, "{entry:?}");
        ["at", "for", "over"]
            .iter()
            .filter_map(|key| entry.get(*key))
            .for_each(|value| assert!(duration(value) < Micros::DAY));
        if let Some(ramp) = entry.get("ramp") {
            let spec = format!("ramp:{}", ramp.as_str().unwrap());
            assert!(spec.parse::<rlctl::traffic::Shape>().is_ok(), "{spec}");
        }
        if let Some(rate) = entry.get("rate") {
            assert!(rate.as_str().unwrap().parse::<rlctl::traffic::Rate>().is_ok());
        }
        assert!(entry.get("log").is_some() || entry.get("keys").is_some());
    }
    let limiters = file["limiter"].as_table().expect("limiters");
    for limiter in limiters.values() {
        only(limiter, &LIMITER);
        assert!(limiter["limit"].as_str().unwrap().parse::<rlctl::engine::limit::Quota>().is_ok());
    }
    for (_, expected) in file["expect"].as_table().expect("expectations") {
        let (limiter, rest) = expected.as_str().unwrap().split_once(": ").expect("a limiter");
        assert!(limiters.contains_key(limiter), "{limiter}");
        let mut words = rest.split(' ');
        let metric = words.next().unwrap();
        assert!(metric == "allowed" || metric.starts_with("worst_window("), "{rest}");
        assert!(["==", "<="].contains(&words.next().unwrap()));
        assert!(words.next().unwrap().parse::<u64>().is_ok());
        let tolerance = words.next();
        assert!(tolerance.is_none_or(|t| t.starts_with("+-") && t.ends_with('%')), "{rest}");
        assert_eq!(words.next(), None);
    }
    file
}

#[test]
fn a_scenario_has_the_format_of_its_reference() {
    let folder = tempfile::tempdir().unwrap();
    let all = "constant:5/s+poisson:9/s+ramp:0..50/s+sine:1..9/s:10s+burst:50@3s+onoff:5/s:2s:3s";
    for (traffic, keys, entries) in [
        (all, "zipf:1.1:100", 1 + 1 + 1 + 48 + 1 + 6),
        ("burst:100@59.5s+burst:100@1m", "one:user:1", 1),
        ("poisson:0.5/s", "hot:5%:10", 1),
        ("constant:600/m", "uniform:7", 1),
    ] {
        let arguments = [
            "--limit",
            "10/1s",
            "--algorithm",
            "all",
            "--traffic",
            traffic,
            "--keys",
            keys,
            "--for",
            "30s",
        ];
        let file = check_scenario(&made(folder.path(), "x.toml", &arguments));
        let told = file["traffic"].as_array().unwrap().len();
        assert_eq!(told, if traffic.starts_with("burst") { 0 } else { entries }, "{traffic}");
        assert_eq!(file["limiter"].as_table().unwrap().len(), 6);
    }
}

#[test]
fn what_was_exact_is_expected_exactly() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = [
        "--limit",
        "100/1m",
        "--algorithm",
        "fixed-window",
        "--traffic",
        "burst:100@59.5s+burst:100@1m",
        "--for",
        "2m",
    ];
    let text = made(folder.path(), "x.toml", &arguments);
    check_scenario(&text);
    assert!(
        text.contains("allowed == 200\"") && text.contains("worst_window(1m) == 200\""),
        "{text}"
    );
}

/// Writes a scenario and runs it; says what went wrong.
fn emitted_and_run(folder: &Path, number: usize, arguments: &[&str]) {
    let name = format!("{number}.toml");
    let text = made(folder, &name, arguments);
    let output = rlctl().args(["scenario", "run"]).arg(folder.join(name)).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    let code = output.status.code();
    assert_eq!(code, Some(0), "{arguments:?}: {told}{}\n{text}", errors(&output));
}

#[test]
fn every_kind_of_traffic_becomes_a_scenario_that_passes() {
    let folder = tempfile::tempdir().unwrap();
    let described = [
        "constant:10/s",
        "constant:10/s+constant:10/s",
        "poisson:20/s",
        "ramp:0..50/s",
        "sine:1..20/s:10s",
        "burst:50@3s",
        "onoff:50/s:3s:4s",
        "constant:0/s",
    ];
    for (number, traffic) in described.into_iter().enumerate() {
        let limits = ["--limit", "5/s", "--algorithm", "all", "--for", "30s"];
        emitted_and_run(folder.path(), number, &[&limits[..], &["--traffic", traffic]].concat());
    }
    let line = |n: u64| {
        let (client, s) = (n * n % 7, n * 13 % 60);
        format!(
            "203.0.113.{client} - - [18/Nov/2026:10:{:02}:{s:02} +0000] \"GET / HTTP/1.1\" 200 17\n",
            n / 60
        )
    };
    let log = folder.path().join("access.log");
    fs::write(&log, (0..600).map(line).collect::<String>()).unwrap();
    let log = ["--log", log.to_str().unwrap()];
    for (number, limit) in (100..).zip(["10/1m", "3/10s"]) {
        let limits = ["--limit", limit, "--algorithm", "all"];
        emitted_and_run(folder.path(), number, &[&limits[..], &log].concat());
    }
}

#[test]
fn a_key_that_is_no_identity_is_refused_for_a_scenario() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.toml");
    let traffic = ["--limit", "1/s", "--traffic", "constant:1/s", "--keys", "one:acme", "--emit"];
    let output = run(&[&traffic[..], &[path.to_str().unwrap()]].concat());
    assert_eq!(output.status.code(), Some(2), "{}", errors(&output));
    assert!(errors(&output).contains("call it user:acme"), "{}", errors(&output));
    assert!(!path.exists());
}

#[test]
fn what_a_scenario_has_no_words_for_is_refused_before_the_run() {
    for extra in [&["--nodes", "2", "--local"][..], &["--suggest"]] {
        let output =
            run(&[&["--limit", "1/s", "--traffic", "constant:1/s", "--emit", "/tmp/x"], extra]
                .concat());
        assert_eq!(output.status.code(), Some(2), "{}", errors(&output));
    }
    let by_user =
        run(&["--limit", "1/s", "--log", "Cargo.toml", "--key", "user", "--emit", "x.toml"]);
    assert_eq!(by_user.status.code(), Some(2));
    assert!(errors(&by_user).contains("a scenario knows"), "{}", errors(&by_user));
}
