//! `rlctl simulate`: known results, the same bytes for a seed, measures against a slow exact model.

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rlctl::engine::algo::{State, decide, take};
use rlctl::engine::clock::Micros;
use rlctl::engine::limit::{Algorithm, Cost, Limit};
use rlctl::sim::Event;
use rlctl::sim::lane::LaneSpec;
use rlctl::sim::outcome::{LaneOutcome, Outcome};
use rlctl::sim::run::{Simulation, Span};
use rlctl::traffic::Rng;
use serde_json::Value;

use crate::cli::rlctl;
use crate::support::{limit, rng};

pub(crate) fn run(arguments: &[&str]) -> Output {
    rlctl().arg("simulate").args(arguments).output().expect("rlctl runs")
}

pub(crate) fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

pub(crate) fn errors(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("UTF-8")
}

pub(crate) fn json(arguments: &[&str]) -> Value {
    let output = run(&[arguments, &["-o", "json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", errors(&output));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// The item of that algorithm.
pub(crate) fn item<'a>(report: &'a Value, algorithm: &str) -> &'a Value {
    let items = report["items"].as_array().expect("items");
    items.iter().find(|item| item["algorithm"] == algorithm).expect(algorithm)
}

const BOUNDARY: [&str; 6] =
    ["--traffic", "burst:100@59.5s+burst:100@60s", "--for", "2m", "--algorithm", "all"];

#[test]
fn a_fixed_window_lets_twice_the_limit_pass_at_its_edge() {
    let report = json(&[&["--limit", "100/1m"], &BOUNDARY[..]].concat());
    let worst = |algorithm: &str| item(&report, algorithm)["worst_window"].as_u64().unwrap();
    assert_eq!(report["requests"], 200);
    assert_eq!(worst("fixed-window"), 200);
    assert_eq!(worst("sliding-log"), 100);
    assert_eq!(worst("sliding-window"), 100);
    assert_eq!(worst("gcra"), 100);
    assert_eq!(item(&report, "fixed-window")["worst_window_end_us"], 60_000_000);
    assert_eq!(item(&report, "fixed-window")["most_at_once"], 100);
    let so_what = report["so_what"].as_str().unwrap();
    assert!(
        so_what.contains("fixed-window let 200 through within one 1m, 2 times the limit"),
        "{so_what}"
    );
}

#[test]
fn a_token_bucket_is_gcra() {
    for (seed, traffic) in
        (0..).zip(["poisson:30/s", "onoff:90/s:2s:3s", "sine:1..60/s:7s", "ramp:0..50/s"])
    {
        let seed = seed.to_string();
        let report = json(&[
            "--limit",
            "7/3s",
            "--burst",
            "11",
            "--algorithm",
            "token-bucket,gcra",
            "--traffic",
            traffic,
            "--keys",
            "zipf:1.1:20",
            "--seed",
            &seed,
        ]);
        let (mut a, mut b) = (item(&report, "token-bucket").clone(), item(&report, "gcra").clone());
        for item in [&mut a, &mut b] {
            item["label"].take();
            item["algorithm"].take();
        }
        assert!(a["denied"].as_u64() > Some(0), "{traffic}");
        assert_eq!(a, b, "{traffic}");
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let made = |seed: &str| {
        let folder = tempfile::tempdir().unwrap();
        let paths = ["x.svg", "x.html", "x.toml"].map(|name| folder.path().join(name));
        let [svg, html, toml] = paths.each_ref().map(|path| path.to_str().unwrap());
        let arguments = [
            "--limit",
            "5/1s",
            "--algorithm",
            "all",
            "--traffic",
            "poisson:200/s+burst:50@3s",
            "--keys",
            "hot:10%:50",
            "--for",
            "10s",
            "--seed",
            seed,
        ];
        let table = run(&[&arguments[..], &["--svg", svg, "--emit", toml]].concat());
        // The page names the command, and so its own path.
        let page = run(&[&arguments[..], &["--html", html, "-o", "csv"]].concat());
        let [svg, page_file, scenario] = paths.map(|path| std::fs::read_to_string(path).unwrap());
        let page_file = page_file.replace(folder.path().to_str().unwrap(), "folder");
        [text(&table), text(&page), svg, page_file, scenario]
    };
    let (first, again, other) = (made("7"), made("7"), made("8"));
    for ((first, again), other) in first.iter().zip(&again).zip(&other) {
        // The pages are too long to be shown.
        assert!(first == again, "not the same again");
        assert!(first != other, "another seed changes nothing");
    }
}

/// The same measures by looking at everything again and again.
struct Model {
    allowed: Vec<Event>,
    denied: Vec<Event>,
    starved: u64,
}

fn model(limit: &Limit, events: &[Event]) -> Model {
    let keys = events.iter().map(|event| event.key as usize + 1).max().unwrap_or(0);
    let mut states = vec![State::fresh(limit.algorithm()); keys];
    let mut since = vec![None; keys];
    let mut model = Model { allowed: Vec::new(), denied: Vec::new(), starved: 0 };
    for event in events {
        let (key, cost) = (event.key as usize, Cost::new(event.cost.into()).unwrap());
        if decide(limit, &states[key], event.at, cost).allowed {
            take(limit, &mut states[key], event.at, cost);
            model.allowed.push(*event);
            since[key] = None;
        } else {
            model.denied.push(*event);
            let from: u64 = *since[key].get_or_insert(event.at.0);
            model.starved = model.starved.max(event.at.0 - from);
        }
    }
    model
}

impl Model {
    fn worst(&self, period: u64) -> u64 {
        let within = |first: &Event| {
            let window = first.at.0..first.at.0 + period;
            let counted =
                self.allowed.iter().filter(|e| e.key == first.key && window.contains(&e.at.0));
            counted.map(|event| u64::from(event.cost)).sum::<u64>()
        };
        self.allowed.iter().map(within).max().unwrap_or(0)
    }

    fn fairness(&self) -> f64 {
        let mut keys: Vec<u32> = self.allowed.iter().chain(&self.denied).map(|e| e.key).collect();
        keys.sort_unstable();
        keys.dedup();
        let count = |of: &[Event], key: u32| of.iter().filter(|e| e.key == key).count() as f64;
        let shares = keys.iter().map(|key| {
            let passed = count(&self.allowed, *key);
            passed / (passed + count(&self.denied, *key))
        });
        let shares: Vec<f64> = shares.collect();
        let sum: f64 = shares.iter().sum();
        sum * sum / (shares.len() as f64 * shares.iter().map(|x| x * x).sum::<f64>())
    }

    fn keys_hit(&self) -> usize {
        let mut keys: Vec<u32> = self.denied.iter().map(|event| event.key).collect();
        keys.sort_unstable();
        keys.dedup();
        keys.len()
    }
}

fn simulate(limits: &[Limit], events: &[Event]) -> Outcome {
    let spec = |limit: &Limit| LaneSpec {
        label: limit.algorithm().to_string(),
        limit: *limit,
        nodes: None,
        reference: None,
    };
    let specs = limits.iter().map(spec).collect();
    let mut simulation = Simulation::new(specs, Span::default(), 1);
    // Pieces of any size make no difference.
    events.chunks(37).for_each(|events| simulation.feed(events));
    simulation.outcome(|key| key.to_string())
}

fn random_events(seed: u64) -> Vec<Event> {
    let mut rng = rng::Rng::new(seed);
    let mut at = crate::support::TODAY;
    let events = (0..300).map(|_| {
        at += rng.below(3) * rng.scale(400_000);
        Event { at: Micros(at), key: rng.below(4) as u32, cost: 1 + rng.below(3) as u32 }
    });
    events.collect()
}

#[test]
fn measures_are_those_of_a_slow_exact_model() {
    for seed in 0..40 {
        let events = random_events(seed);
        let quota = ["7/3s", "20/1s", "3/500ms", "50/10s"][seed as usize % 4];
        let limits = Algorithm::ALL.map(|algorithm| limit(algorithm, quota));
        let outcome = simulate(&limits, &events);
        for (limit, lane) in limits.iter().zip(&outcome.lanes) {
            let model = model(limit, &events);
            let told = format!("seed {seed}, {} {quota}", limit.algorithm());
            assert_eq!(lane.allowed, model.allowed.len() as u64, "{told}");
            assert_eq!(lane.denied, model.denied.len() as u64, "{told}");
            let worst = lane.worst.as_ref().map_or(0, |worst| worst.amount);
            assert_eq!(worst, model.worst(limit.period().0), "{told}");
            let starved = lane.starved.as_ref().map_or(0, |starved| starved.amount);
            assert_eq!(starved, model.starved, "{told}");
            assert_eq!(lane.keys_hit as usize, model.keys_hit(), "{told}");
            assert!((lane.fairness.unwrap() - model.fairness()).abs() < 1e-9, "{told}");
            let first = model.denied.first().map(|event| event.at.0 - events[0].at.0);
            assert_eq!(lane.first_denial.map(|at| at.0), first, "{told}");
            let (columns, _) = lane.timeline.columns(outcome.end, 50);
            assert_eq!(columns.iter().map(|bin| bin.allowed).sum::<u64>(), lane.allowed, "{told}");
            assert_eq!(columns.iter().map(|bin| bin.offered).sum::<u64>(), 300, "{told}");
        }
    }
}

#[test]
fn several_limiters_at_once_decide_as_each_alone() {
    let events = random_events(99);
    let limits = [
        limit(Algorithm::Gcra, "7/3s"),
        limit(Algorithm::SlidingLog, "20/1s"),
        limit(Algorithm::FixedWindow, "9/1s"),
    ];
    let together = simulate(&limits, &events);
    let figures = |lane: &LaneOutcome| {
        (lane.allowed, lane.worst.clone(), lane.starved.clone(), lane.most_at_once)
    };
    for (limit, lane) in limits.iter().zip(&together.lanes) {
        assert_eq!(figures(&simulate(&[*limit], &events).lanes[0]), figures(lane));
    }
}

#[test]
fn a_picture_of_a_trace_counts_what_the_trace_does() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.csv");
    let mut rng = Rng::new(4, 0);
    // Times step back too: a trace is decided in file order.
    let line = |n: u64, rng: &mut Rng| {
        let at = 1_700_000_000_000_000 + n * 40_000 - rng.below(200_000);
        format!("{at},k{},{}\n", rng.below(5), rng.below(4))
    };
    let lines: String = (5..400).map(|n| line(n, &mut rng)).collect();
    std::fs::write(&path, format!("t_us,key,cost\n{lines}")).unwrap();
    let path = path.to_str().unwrap();
    let plain = json(&["--limit", "9/1s", "--algorithm", "all", "--trace", path]);
    let svg = folder.path().join("x.svg");
    let drawn = json(&[
        "--limit",
        "9/1s",
        "--algorithm",
        "all",
        "--trace",
        path,
        "--svg",
        svg.to_str().unwrap(),
    ]);
    for algorithm in Algorithm::ALL.map(Algorithm::name) {
        for field in ["allowed", "denied", "limit", "period_us", "burst"] {
            assert_eq!(
                item(&plain, algorithm)[field],
                item(&drawn, algorithm)[field],
                "{algorithm} {field}"
            );
        }
    }
    assert_eq!((&plain["requests"], &plain["keys"]), (&drawn["requests"], &drawn["keys"]));
}

#[test]
fn what_if_tries_other_numbers_beside_the_given_one() {
    let report = json(&[
        "--limit",
        "100/1m",
        "--algorithm",
        "sliding-log",
        "--traffic",
        "constant:3/s",
        "--for",
        "2m",
        "--what-if",
        "limit=180,150",
    ]);
    let seen: Vec<(u64, u64)> = report["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| (item["limit"].as_u64().unwrap(), item["allowed"].as_u64().unwrap()))
        .collect();
    assert_eq!(seen, [(100, 200), (150, 300), (180, 360)]);
    assert!(report["so_what"].as_str().unwrap().contains("180 is enough for all"), "{report}");
    let bad = run(&["--limit", "1/s", "--traffic", "constant:1/s", "--what-if", "size=3"]);
    assert_eq!(bad.status.code(), Some(2));
    assert!(errors(&bad).contains("limit=80,100,150"));
}

#[test]
fn a_suggestion_is_the_smallest_limit_within_the_budget() {
    for (algorithm, budget, keys) in [
        ("token-bucket", "10%", "zipf:1.1:60"),
        ("fixed-window", "0%", "uniform:40"),
        ("sliding-window", "5%", "hot:20%:30"),
    ] {
        let with = |limit: &str, extra: &[&str]| {
            let fixed = [
                "--algorithm",
                algorithm,
                "--traffic",
                "poisson:60/s",
                "--keys",
                keys,
                "--for",
                "30s",
            ];
            json(&[&["--limit", limit], &fixed[..], extra].concat())
        };
        let report = with("1/10s", &["--suggest", "--budget", budget]);
        let found = report["suggestion"]["limit"].as_u64().unwrap();
        let share: f64 = budget.trim_end_matches('%').parse::<f64>().unwrap() / 100.0;
        let hit = |limit: u64| {
            let report = with(&format!("{limit}/10s"), &[]);
            report["items"][0]["keys_hit"].as_f64().unwrap() / report["keys"].as_f64().unwrap()
        };
        assert!(hit(found) <= share, "{algorithm}: {found} denies {}", hit(found));
        assert!(found == 1 || hit(found - 1) > share, "{algorithm}: {} would do", found - 1);
        assert_eq!(report["items"][0]["limit"], found);
    }
    let never = run(&[
        "--limit",
        "5/1s",
        "--burst",
        "2",
        "--traffic",
        "burst:9@1s",
        "--suggest",
        "--budget",
        "0%",
    ]);
    assert_eq!(never.status.code(), Some(8));
    assert!(errors(&never).contains("no limit keeps to that"), "{}", errors(&never));
}

#[test]
fn nodes_that_count_alone_let_more_through_the_less_they_hear_of_each_other() {
    let with = |extra: &[&str]| {
        let fixed = [
            "--limit",
            "100/1s",
            "--algorithm",
            "gcra",
            "--traffic",
            "poisson:800/s",
            "--for",
            "20s",
            "--nodes",
            "4",
        ];
        let report = json(&[&fixed[..], extra].concat());
        let items = report["items"].as_array().unwrap().clone();
        assert_eq!(items.len(), 2);
        let allowed = |n: usize| items[n]["allowed"].as_f64().unwrap();
        (allowed(1) / allowed(0), items[1]["wrongly_allowed"].as_u64().unwrap())
    };
    let (alone, wrong) = with(&["--local"]);
    assert!((3.5..4.1).contains(&alone) && wrong > 1_000, "{alone} {wrong}");
    let (slow, _) = with(&["--sync", "2s"]);
    let (quick, _) = with(&["--sync", "10ms"]);
    assert!(quick < 1.3 && quick < slow && slow < alone, "{quick} {slow} {alone}");
    let (skewed, _) = with(&["--skew", "200ms"]);
    assert!((0.9..1.1).contains(&skewed), "{skewed}");
    let unsaid = run(&["--limit", "1/s", "--traffic", "constant:1/s", "--nodes", "2"]);
    assert_eq!(unsaid.status.code(), Some(2));
    assert!(errors(&unsaid).contains("--local"));
}

#[test]
fn the_counter_is_close_to_the_log_and_says_how_close() {
    let report = json(&[
        "--limit",
        "100/1s",
        "--algorithm",
        "sliding-window",
        "--against",
        "sliding-log",
        "--traffic",
        "poisson:120/s",
        "--for",
        "5m",
    ]);
    let (counter, log) = (item(&report, "sliding-window"), item(&report, "sliding-log"));
    let ratio = counter["allowed"].as_f64().unwrap() / log["allowed"].as_f64().unwrap();
    assert!((0.95..1.05).contains(&ratio), "{ratio}");
    assert!(counter["wrongly_allowed"].as_u64() > Some(0) && log["wrongly_allowed"].is_null());
    assert!(counter["worst_window"].as_u64() < Some(140));
}

#[test]
fn pictures_fit_80_columns_and_have_colours_only_when_asked() {
    let arguments = [
        "--limit",
        "100/1m",
        "--algorithm",
        "all",
        "--traffic",
        "poisson:9/s+burst:300@59s",
        "--keys",
        "zipf:1.1:1000",
        "--for",
        "1h",
    ];
    let plain = text(&run(&arguments));
    assert!(plain.is_ascii(), "{plain}");
    let coloured = text(&run(&[&arguments[..], &["--color", "always"]].concat()));
    let mut bare = String::new();
    for piece in coloured.split('\u{1b}') {
        let rest = piece.strip_prefix('[').and_then(|rest| rest.split_once('m'));
        bare += rest.map_or(piece, |(_, rest)| rest);
    }
    assert!(coloured.contains("\u{1b}[32m") && bare.contains('▇'));
    for line in plain.lines().chain(bare.lines()) {
        assert!(line.chars().count() <= 80, "{line}");
    }
    assert!(plain.lines().last().unwrap().len() > 1 && plain.contains("so what: "));
}

#[test]
fn csv_has_the_names_of_the_json() {
    let arguments =
        ["--limit", "5/1s", "--algorithm", "gcra,sliding-log", "--traffic", "constant:9/s"];
    let csv = text(&run(&[&arguments[..], &["-o", "csv"]].concat()));
    let report = json(&arguments);
    let head: Vec<&str> = csv.lines().next().unwrap().split(',').collect();
    assert!(head.iter().all(|name| report["items"][0].get(name).is_some()), "{head:?}");
    assert!(head.contains(&"worst_window") && csv.lines().count() == 3, "{csv}");
}

#[test]
fn what_cannot_be_meant_is_refused_with_what_to_write() {
    for (arguments, words) in [
        (vec!["--limit", "1/s"], "--traffic poisson:100/s"),
        (vec!["--traffic", "constant:1/s"], "--rules FILE"),
        (vec!["--limit", "1/s", "--traffic", "posson:1/s"], "did you mean poisson?"),
        (
            vec!["--limit", "1/s", "--traffic", "constant:1/s", "--keys", "zip:1:2"],
            "did you mean zipf?",
        ),
        (vec!["--limit", "1/s", "--traffic", "constant:1/s", "--for", "0s"], "--for"),
        (vec!["--limit", "1/s", "--traffic", "constant:1/s", "--log", "x"], "cannot be used with"),
        (vec!["--limit", "1/s", "--traffic", "constant:1/s", "--key", "ip"], "--log"),
        (vec!["--limit", "1/s", "--log", "x", "--format", "xml"], "common, combined, json, csv"),
        (
            vec!["--limit", "1/s", "--traffic", "constant:1/s", "--nodes", "3", "--sync", "0s"],
            "--sync",
        ),
        (vec!["--limit", "1/s", "--log", "-", "--suggest"], "several times"),
        (vec!["--limit", "1/s", "--traffic", "constant:1/s", "--decisions", "-"], "--trace"),
    ] {
        let output = run(&arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", errors(&output));
        assert!(errors(&output).contains(words), "{arguments:?}: {}", errors(&output));
        assert!(output.stdout.is_empty());
    }
    let unwritable =
        run(&["--limit", "1/s", "--traffic", "constant:1/s", "--svg", "/no/such/folder/x.svg"]);
    assert_eq!(unwritable.status.code(), Some(1));
    let missing = run(&["--limit", "1/s", "--log", "/no/such/log"]);
    assert_eq!(missing.status.code(), Some(3));
}

#[test]
fn an_interruption_gives_what_there_is() {
    let started = Instant::now();
    let child = rlctl()
        .args([
            "simulate",
            "--limit",
            "10/s",
            "--traffic",
            "poisson:1M/s",
            "--for",
            "300d",
            "-o",
            "json",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("rlctl runs");
    std::thread::sleep(Duration::from_millis(700));
    let told = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill");
    assert!(told.success());
    let output = child.wait_with_output().expect("rlctl ends");
    assert_eq!(output.status.code(), Some(130), "{}", errors(&output));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["interrupted"], true);
    assert!(report["requests"].as_u64() > Some(0));
    assert!(started.elapsed() < Duration::from_secs(60));
}
