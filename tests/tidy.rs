//! The style guide, run: the direction of dependencies, what may be called where, how long a file
//! may be. Reads the sources as text.

use std::fs;
use std::path::{Path, PathBuf};

/// A module may name only modules to its right.
const LAYERS: [&str; 11] = [
    "cmd", "tui", "scenario", "load", "sim", "gateway", "ops", "expect", "traffic", "output",
    "engine",
];

const MAX_LINES: usize = 500;

struct Source {
    path: String,
    text: String,
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn sources(folder: &str) -> Vec<Source> {
    let mut found = Vec::new();
    collect(&root().join(folder), &mut found);
    assert!(!found.is_empty(), "no sources in {folder}");
    found
}

fn collect(folder: &Path, found: &mut Vec<Source>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            collect(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs" || e == "lua") {
            let name = path.strip_prefix(root()).expect("below the root").display().to_string();
            found.push(Source { path: name, text: fs::read_to_string(&path).expect("text") });
        }
    }
}

/// The lines of the code proper, with their numbers: no comments, no tests below it or in a file of
/// their own.
fn code(source: &Source) -> impl Iterator<Item = (usize, &str)> {
    let is_code = |line: &str| line != "#[cfg(test)]" && !source.path.ends_with("/tests.rs");
    let lines = source.text.lines().enumerate().take_while(move |(_, line)| is_code(line));
    lines.map(|(n, line)| (n + 1, line)).filter(|(_, line)| !line.trim_start().starts_with("//"))
}

fn complain(wrong: &[String]) {
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}

#[test]
fn modules_name_only_modules_to_their_right() {
    let mut wrong = Vec::new();
    for source in sources("src") {
        let Some(layer) = source.path.strip_prefix("src/").and_then(|p| p.split(['/', '.']).next())
        else {
            continue;
        };
        let Some(own) = LAYERS.iter().position(|l| *l == layer) else { continue };
        for (number, line) in code(&source) {
            for (place, other) in LAYERS.iter().enumerate() {
                if line.contains(&format!("crate::{other}")) && place < own {
                    wrong.push(format!("{}:{number}: {layer} must not name {other}", source.path));
                }
            }
        }
    }
    complain(&wrong);
}

#[test]
fn folders_are_those_of_the_plan() {
    let mut wrong = Vec::new();
    for entry in fs::read_dir(root().join("src")).expect("src") {
        let name = entry.expect("an entry").file_name().into_string().expect("UTF-8");
        if name != "bin" && name != "lib.rs" && !LAYERS.contains(&name.as_str()) {
            wrong.push(format!("src/{name} is not part of the plan in docs/architecture.md"));
        }
    }
    complain(&wrong);
}

/// What is banned, where it is allowed all the same, and what to do instead.
const BANNED: [(&str, &[&str], &str); 10] = [
    (
        "SystemTime",
        &["src/engine/clock.rs"],
        "take `now` as an argument; Micros::now() at the edge",
    ),
    ("std::env::var", &["src/cmd/mod.rs"], "read it once, in Context"),
    (
        "tokio::",
        // The two follow.rs only wait between two looks at a store or a file, and requests wait for
        // others to end.
        &[
            "src/cmd/",
            "src/tui/feed/",
            "src/tui/run.rs",
            "src/gateway/",
            "src/load/",
            "src/ops/",
            "src/scenario/run/",
            "src/engine/store/redis/",
            "src/engine/registry/follow.rs",
            "src/engine/live/follow.rs",
            "src/engine/concurrency.rs",
        ],
        "the engine is pure; I/O lives at the edges",
    ),
    ("use redis", &["src/engine/store/redis/"], "only store::redis knows the redis crate"),
    ("redis::cmd", &["src/engine/store/redis/"], "only store::redis knows the redis crate"),
    ("process::exit", &[], "return an Exit"),
    ("println!(", &[], "write to a stream, and mind that it may be closed"),
    ("dbg!(", &[], "remove it"),
    ("todo!(", &[], "do it"),
    (".unwrap()", &[], "say what was expected, or return the error"),
];

#[test]
fn calls_stay_where_they_belong() {
    let mut wrong = Vec::new();
    for source in sources("src") {
        for (number, line) in code(&source) {
            for (call, allowed, instead) in BANNED {
                if line.contains(call) && !allowed.iter().any(|a| source.path.starts_with(a)) {
                    wrong.push(format!(
                        "{}:{number}: {call} is banned here: {instead}",
                        source.path
                    ));
                }
            }
        }
    }
    complain(&wrong);
}

#[test]
fn algorithms_name_only_limits_and_time() {
    let mut wrong = Vec::new();
    for source in sources("src/engine/algo") {
        for (number, line) in code(&source) {
            let named = line.contains("use super::super::") || line.contains("use crate::");
            if named && !line.contains("limit") && !line.contains("clock") {
                wrong.push(format!("{}:{number}: {line}", source.path));
            }
        }
    }
    complain(&wrong);
}

#[test]
fn files_have_one_subject() {
    let mut wrong = Vec::new();
    for source in sources("src") {
        let lines = source.text.lines().take_while(|line| *line != "#[cfg(test)]").count();
        if lines > MAX_LINES {
            wrong.push(format!(
                "{} has {lines} lines; at most {MAX_LINES} without tests",
                source.path
            ));
        }
    }
    complain(&wrong);
}

#[test]
fn every_dependency_is_used() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("Cargo.toml");
    let section = manifest
        .split("[dependencies]")
        .nth(1)
        .and_then(|s| s.split("\n[").next())
        .expect("dependencies");
    // What build.rs makes of proto/ names these two.
    let generated = ["prost", "tonic_prost"];
    let all: String = sources("src").into_iter().map(|s| s.text).collect();
    let unused: Vec<String> = section
        .lines()
        .filter_map(|line| line.split_once(" = ").map(|(name, _)| name.trim().replace('-', "_")))
        .filter(|name| !all.contains(&format!("{name}::")) && !generated.contains(&name.as_str()))
        .collect();
    complain(&unused);
}

#[test]
fn each_algorithm_file_explains_itself() {
    for name in ["bucket", "leaky_bucket", "fixed_window", "sliding_window", "sliding_log"] {
        let text =
            fs::read_to_string(root().join(format!("src/engine/algo/{name}.rs"))).expect(name);
        let opening: Vec<&str> = text.lines().take_while(|line| line.starts_with("//!")).collect();
        for word in ["Worked:", "Bound:"] {
            assert!(
                opening.iter().any(|line| line.contains(word)),
                "{name}.rs opens without {word}"
            );
        }
    }
}

/// The packages that this project is built on.
const BUILT_ON: [&str; 10] = [
    "clap",
    "ratatui",
    "crossterm",
    "tokio",
    "redis",
    "reqwest",
    "hdrhistogram",
    "serde_json",
    "indicatif",
    "comfy-table",
];

#[test]
fn what_the_project_is_built_on_is_used() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("Cargo.toml");
    let dependencies = manifest.split("\n[").find(|part| part.starts_with("dependencies]"));
    let dependencies = dependencies.expect("[dependencies]");
    let sources = sources("src");
    let mut wrong = Vec::new();
    for package in BUILT_ON {
        if !dependencies.lines().any(|line| line.starts_with(&format!("{package} ="))) {
            wrong.push(format!("{package} is no direct dependency"));
        }
        let used = format!("{}::", package.replace('-', "_"));
        if !sources.iter().any(|source| code(source).any(|(_, line)| line.contains(&used))) {
            wrong.push(format!("{package} is not used"));
        }
    }
    complain(&wrong);
}
