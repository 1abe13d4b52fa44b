//! The shipped scenarios: each is as expected, the same ten times over, and each shows a failure when
//! what it guards is broken.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rlctl::scenario::run::{self, CaseResult, Outcome};
use rlctl::scenario::{Scenario, files, load};
use tempfile::TempDir;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios")
}

fn gallery() -> Vec<Scenario> {
    let found = files::find(&folder()).expect("a folder");
    found.iter().flat_map(|file| load(file).expect("a scenario").0).collect()
}

fn failures(outcome: &Outcome) -> Vec<String> {
    let failed = outcome.cases.iter().filter(|case| case.result == CaseResult::Failed);
    failed.map(|case| format!("{}: {} ({})", outcome.title, case.name, case.words)).collect()
}

fn digests(outcome: &Outcome) -> Vec<u64> {
    outcome.limiters.iter().map(|limiter| limiter.digest).collect()
}

#[test]
fn everything_is_as_expected() {
    let wrong: Vec<String> = gallery()
        .iter()
        .flat_map(|scenario| failures(&run::run(scenario, None).expect("it runs")))
        .collect();
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}

#[test]
fn a_seed_gives_the_same_run_every_time() {
    for scenario in gallery() {
        let digest = || digests(&run::run(&scenario, None).expect("it runs"));
        let ten: BTreeSet<_> = (0..10).map(|_| digest()).collect();
        assert_eq!(ten.len(), 1, "{}", scenario.title());
    }
}

#[test]
fn where_dice_are_thrown_another_seed_throws_others() {
    for scenario in gallery() {
        let text = std::fs::read_to_string(&scenario.file).expect("text");
        let dice = ["poisson", "count =", "+-100us", "rate = \"1%", "rate = \"20%"];
        if dice.iter().any(|words| text.contains(words)) {
            let digest = |seed| digests(&run::run(&scenario, Some(seed)).expect("it runs"));
            assert_ne!(digest(5), digest(6), "{}", scenario.title());
        }
    }
}

/// What is broken in a file (words and what stands in their place), and the case that then fails.
type Broken = (&'static str, &'static str, &'static str, &'static str);

const BROKEN: [Broken; 36] = [
    (
        "breaker",
        "{ consecutive = 5, open_for = \"2s\" }",
        "{ consecutive = 100000, min_calls = 100000 }",
        "no hammering of a dead Redis",
    ),
    ("costs", "limit     = \"20/1s\"", "limit     = \"30/1s\"", "cost is what is limited"),
    ("shadow-rule", "shadow    = true", "shadow    = false", "everybody passes"),
    ("boundary-burst", "\"sliding-log\"", "\"fixed-window\"", "the log is exact"),
    (
        "boundary-burst",
        "\"gcra\",           limit = \"100/1m\", burst = 100",
        "\"gcra\", limit = \"100/1m\", burst = 150",
        "gcra adds only the refill",
    ),
    (
        "every-algorithm",
        "limit = \"10/10s\"",
        "limit = \"20/10s\"",
        "in the long run it is the limit",
    ),
    ("thundering-herd", "burst     = 100", "burst     = 500", "the burst is all there is"),
    ("hot-key", "limit     = \"20/1s\"", "limit     = \"40/1s\"", "the hot key gets its limit"),
    (
        "retry-storm",
        "client = \"polite\"",
        "client = \"retry-storm\"",
        "the polite are seldom refused",
    ),
    (
        "multi-tier",
        "key = \"user:upgraded\", tier = \"premium\"",
        "key = \"user:upgraded\", tier = \"basic\"",
        "after it",
    ),
    (
        "config-change",
        "at = \"30s\", limit = \"5/1s\"",
        "at = \"30s\", limit = \"10/1s\"",
        "and holds",
    ),
    ("config-change", "block = \"user:2\"", "block = \"user:3\"", "a block is a block"),
    (
        "redis-down-open",
        "on_store_error = \"open\"",
        "on_store_error = \"closed\"",
        "clients never see a 5xx",
    ),
    (
        "redis-down-closed",
        "on_store_error = \"closed\"",
        "on_store_error = \"open\"",
        "nothing passes",
    ),
    (
        "redis-down-local",
        "on_store_error = \"local\"",
        "on_store_error = \"local\"\nlocal_share = 1.0",
        "the shares add up",
    ),
    ("redis-hangs", "do = \"hang\"", "do = \"partition\"", "what timed out was counted"),
    ("slow-redis", "by = \"80ms\"", "by = \"20ms\"", "beyond the deadline it is open"),
    ("slow-redis", "deadline = \"50ms\"", "deadline = \"200ms\"", "nobody waits longer than that"),
    ("sentinel-failover", "failover_after = \"2s\"", "failover_after = \"6s\"", "limit is back"),
    ("cluster-failover", "on = \"shard:2\"", "on = \"store\"", "the other shards do not feel it"),
    ("planned-failover", "do = \"failover\"", "do = \"down\"", "nobody is turned away"),
    (
        "resharding",
        "do = \"reshard\", rate = \"20%\"",
        "do = \"error\", rate = \"20%\"",
        "nobody is turned away",
    ),
    (
        "readonly-master",
        "on_store_error = \"local\"",
        "on_store_error = \"open\"",
        "and the limit still holds",
    ),
    ("noscript", "do = \"script_flush\"", "do = \"readonly\"", "nobody is turned away"),
    (
        "clock-skew",
        "store = { kind = \"redis\", latency = \"300us\" }",
        "store = { kind = \"memory\" }",
        "every minute has its limit",
    ),
    ("noisy-neighbour", "keys = \"user:noisy\"", "keys = \"user:quiet-1\"", "the quiet are served"),
    (
        "idempotent-retries",
        "idempotency = \"retries\"",
        "idempotency = \"per-request\"",
        "nobody is refused",
    ),
    (
        "zone-split",
        "on = \"node:gw-3\"",
        "on = \"store\"",
        "only the gateway that is cut off is degraded",
    ),
    ("one-percent-loss", "rate = \"1%\"", "rate = \"5%\"", "one in a hundred"),
    (
        "out-of-memory",
        "do = \"evict\", rate = \"1%\"",
        "do = \"evict\", rate = \"0%\"",
        "but gives quota away",
    ),
    ("loading", "do = \"loading\"", "do = \"script_flush\"", "no store, no service"),
    (
        "gateway-dies",
        "store = { kind = \"redis\", latency = \"300us\" }",
        "store = { kind = \"memory\" }",
        "never more than promised",
    ),
    (
        "concurrency-limit",
        "{ max = 5, wait = \"100ms\" }",
        "{ max = 6, wait = \"100ms\" }",
        "never more than five at a time",
    ),
    ("concurrency-limit", "wait = \"0s\"", "wait = \"1ms\"", "whoever cannot wait is refused"),
    ("lost-data", "at = \"30s\", do", "at = \"90s\", do", "twice the limit in that minute"),
    ("policy-source-down", "at = \"5s\", limit", "at = \"15s\", limit", "the last policy holds"),
];

#[test]
fn each_fails_when_what_it_guards_is_broken() {
    let mut wrong = Vec::new();
    for (name, words, instead, case) in BROKEN {
        let file = folder().join(format!("{name}.toml"));
        let text = std::fs::read_to_string(&file).expect(name);
        assert!(text.contains(words), "{name} has no {words}");
        let broken = TempDir::new().expect("a folder");
        let rules = "rules-tiers.toml";
        std::fs::copy(folder().join(rules), broken.path().join(rules)).expect("copied");
        let file = broken.path().join("broken.toml");
        std::fs::write(&file, text.replace(words, instead)).expect("written");
        let loaded = load(&file);
        let (scenarios, _) = loaded.unwrap_or_else(|error| panic!("{name}: {error:?}"));
        let fails = scenarios.iter().any(|scenario| {
            let outcome = run::run(scenario, None).expect("it runs");
            outcome.cases.iter().any(|c| c.name == case && c.result == CaseResult::Failed)
        });
        if !fails {
            wrong.push(format!("{name}: {case} still holds with {instead}"));
        }
    }
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}

#[test]
fn every_file_is_shown_to_fail() {
    let shown: BTreeSet<&str> = BROKEN.iter().map(|(name, ..)| *name).collect();
    let found = files::find(&folder()).expect("a folder");
    let names = found.iter().filter_map(|file| file.file_stem()?.to_str());
    let not: Vec<&str> = names.filter(|name| !shown.contains(name)).collect();
    assert!(not.is_empty(), "never shown to fail: {not:?}");
}
