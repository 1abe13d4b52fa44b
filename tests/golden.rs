//! What every command prints, word by word, for people and for programs, in tests/golden/*.md; and
//! whether what is for programs fits the schema that is published for it.
//!
//! A file is run like a document (see docs.rs): the commands of its `console` blocks one after the
//! other. A line ``Schema: `NAME` `` says what the JSON below it is. With GOLDEN=update in the
//! environment the files are written anew, numbers and moments that change left out.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::cli::rlctl;
use crate::docs::{Shown, compare, fits, run_all};
use crate::support::schema::{closed, misfit};

/// Commands without data, or that are shown at work in tests of their own.
const WITHOUT_JSON: [&str; 6] =
    ["serve", "completions", "context use", "scenario schema", "tui", "report"];
/// The rules file is no output, and a report needs a recording: tui/terminal.rs makes one.
const ELSEWHERE: [&str; 2] = ["rules", "report"];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn files() -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(folder()).expect("a folder").map(|e| e.expect("an entry").path()).collect();
    files.sort();
    files
}

pub(crate) fn schema(name: &str) -> Value {
    let printed = rlctl().args(["schema", name]).output().expect("rlctl runs").stdout;
    closed(&serde_json::from_slice(&printed).unwrap_or_else(|e| panic!("{name}: {e}")))
}

/// The schema that is named last before a line.
fn named_before(text: &str, line: usize) -> Option<&str> {
    let above = text.lines().take(line).filter_map(|line| line.strip_prefix("Schema: `"));
    above.last().map(|name| name.trim_end_matches('`'))
}

/// Checks every line of JSON against the schema; the lines of a list are those of its items.
fn validate(schema: &Value, format: &str, shown: &Shown, actual: &str) -> usize {
    let lines: Vec<&str> = actual.lines().filter(|line| line.starts_with('{')).collect();
    for line in &lines {
        let mut value: Value =
            serde_json::from_str(line).unwrap_or_else(|e| panic!("{}: {e}: {line}", shown.command));
        let is_item = schema["$defs"].get("item").is_some() && value.get("items").is_none();
        let wanted = match is_item {
            true => {
                assert!(format != "json" || shown.command.contains("--follow"), "{line}");
                let version = value.as_object_mut().and_then(|line| line.remove("schema"));
                assert_eq!(version, Some("rlctl/v1".into()), "{line}");
                &schema["$defs"]["item"]
            }
            false => schema,
        };
        if let Some(wrong) = misfit(schema, wanted, &value, "$") {
            panic!("{}: {wrong}\n{line}", shown.command);
        }
    }
    lines.len()
}

fn format_of(command: &str) -> Option<&str> {
    let (_, rest) = command.rsplit_once(" -o ")?;
    rest.split([' ', ';']).next()
}

#[test]
fn every_command_prints_what_is_written_down_and_fits_its_schema() {
    let mut used = BTreeSet::new();
    for file in files() {
        let text = fs::read_to_string(&file).expect("text");
        let mut schemas: BTreeMap<String, Value> = BTreeMap::new();
        let printed = RefCell::new(Vec::new());
        run_all(&file, |shown, actual| {
            if let Some(format @ ("json" | "ndjson")) = format_of(&shown.command) {
                let name = named_before(&text, shown.line);
                let name = name.unwrap_or_else(|| panic!("{}: no schema", shown.command));
                let schema = schemas.entry(name.into()).or_insert_with(|| schema(name));
                if validate(schema, format, shown, actual) > 0 {
                    used.insert(name.to_string());
                }
            }
            match std::env::var_os("GOLDEN").is_some() {
                true => printed.borrow_mut().push((shown.line, actual.to_string())),
                false => {
                    let output = vec![squeezed(&shown.output.join("\n"))];
                    let shown = Shown { output, command: shown.command.clone(), ..*shown };
                    compare(&file, &shown, &squeezed(actual));
                }
            }
        });
        if std::env::var_os("GOLDEN").is_some() {
            fs::write(&file, updated(&text, &printed.borrow())).expect("it is written");
        }
    }
    let listed = rlctl().args(["schema", "-o", "json"]).output().expect("rlctl runs").stdout;
    let listed: Value = serde_json::from_slice(&listed).expect("JSON");
    for item in listed["items"].as_array().expect("a list") {
        let name = item["name"].as_str().expect("a name");
        let is_used = used.contains(name) || ELSEWHERE.contains(&name);
        assert!(is_used, "nothing here has the schema `{name}`");
    }
}

/// How wide a column is depends on what stands in it; that they align is tested where they are laid
/// out.
fn squeezed(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        if c != ' ' || !out.ends_with("  ") {
            out.push(c);
        }
    }
    out.replace("\n  ", "\n ")
}

/// The file with what was printed, where that is something else than what is shown.
fn updated(text: &str, printed: &[(usize, String)]) -> String {
    let (mut out, mut within) = (String::new(), false);
    let mut lines = text.lines().enumerate().peekable();
    while let Some((number, line)) = lines.next() {
        out += &format!("{line}\n");
        if line.starts_with("```") {
            within = line == "```console";
        }
        if !within || !line.starts_with("$ ") {
            continue;
        }
        let (_, actual) = printed.iter().find(|(at, _)| *at == number + 1).expect("it ran");
        let mut old = Vec::new();
        while let Some((_, line)) = lines.next_if(|(_, l)| !l.starts_with("$ ") && *l != "```") {
            old.push(line);
        }
        let (old, actual) = (old.join("\n"), actual.trim_end());
        let is_old = fits(squeezed(&old).trim_end(), &squeezed(actual));
        let new = if is_old { old } else { masked(actual) };
        if !new.is_empty() {
            out += &format!("{new}\n");
        }
    }
    out
}

/// Without what is different every time: moments, large numbers, hashes, what is left of a time.
fn masked(text: &str) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | ':' | '.');
    let (mut out, mut word) = (String::new(), String::new());
    for c in text.chars().chain(['\n']) {
        if is_part(c) {
            word.push(c);
            continue;
        }
        let bare = word.trim_matches([':', '.']);
        out += &match mask(bare) {
            Some(mask) => word.replace(bare, mask),
            None => word.clone(),
        };
        out.push(c);
        word.clear();
    }
    out.trim_end().into()
}

fn mask(word: &str) -> Option<&'static str> {
    let digits = word.chars().filter(char::is_ascii_digit).count();
    let units = word.chars().filter(char::is_ascii_lowercase).count();
    let dots = word.chars().filter(|c| *c == '.').count();
    let all = |fits: fn(char) -> bool| word.chars().all(fits);
    let is_moment = word.len() == 20 && word.ends_with('Z');
    let is_large = digits >= 6 && dots < 2 && all(|c| c.is_ascii_digit() || c == '.');
    let is_hash = word.len() >= 12 && digits > 0 && all(|c| c.is_ascii_hexdigit());
    let is_id = word.len() > 14 && word.contains('-') && all(|c| c.is_ascii_digit() || c == '-');
    let is_span = digits > 0
        && word.starts_with(|c: char| c.is_ascii_digit())
        && units > 0
        && (units > 1 || dots == 1)
        && all(|c| c.is_ascii_digit() || ".dhmsu".contains(c));
    match () {
        () if is_moment => Some("20…Z"),
        () if is_large || is_hash || is_id || is_span => Some("…"),
        () => None,
    }
}

/// Every command that can be typed, from the pages of the manual.
fn commands() -> Vec<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let printed = rlctl().args(["man", "-o", "json", "--out"]).arg(folder.path()).output();
    let printed: Value = serde_json::from_slice(&printed.expect("rlctl runs").stdout).unwrap();
    let pages = printed["pages"].as_array().expect("a list").iter();
    let names: Vec<&str> = pages.map(|page| page.as_str().expect("a name")).collect();
    let paths = names.iter().map(|name| name.trim_end_matches(".1").trim_start_matches("rlctl"));
    let paths: Vec<&str> = paths.map(|path| path.trim_start_matches('-')).collect();
    let has_below = |path: &str| paths.iter().any(|other| other.starts_with(&format!("{path}-")));
    let leaves = paths.iter().filter(|path| !path.is_empty() && !has_below(path));
    leaves.map(|path| path.replacen('-', " ", 1)).collect()
}

#[test]
fn no_command_is_forgotten() {
    let all: String = files().iter().map(|f| fs::read_to_string(f).expect("text")).collect();
    let typed: Vec<&str> = all.lines().filter(|line| line.starts_with("$ ")).collect();
    for command in commands() {
        let of: Vec<&&str> =
            typed.iter().filter(|line| line.contains(&format!("rlctl {command}"))).collect();
        let shows = |formats: &[&str]| {
            of.iter().any(|line| formats.contains(&format_of(line).unwrap_or("table")))
        };
        if WITHOUT_JSON.contains(&command.as_str()) {
            continue;
        }
        assert!(shows(&["table", "wide"]), "no table of rlctl {command} in tests/golden");
        assert!(shows(&["json", "ndjson"]), "no JSON of rlctl {command} in tests/golden");
    }
}
