//! docs/scenarios.md: every block that is a scenario runs and is as expected, every part of one fits
//! into a scenario, the workflow runs what it says, and no key goes unmentioned.

use std::fs;
use std::path::Path;
use std::process::Command;

use rlctl::scenario::run;
use rlctl::scenario::{load, schema};
use tempfile::TempDir;

fn text() -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/scenarios.md");
    fs::read_to_string(page).expect("docs/scenarios.md")
}

/// The blocks of one kind, with the lines they begin at.
fn blocks(text: &str, kind: &str) -> Vec<(usize, String)> {
    let (mut found, mut inside): (Vec<(usize, String)>, bool) = (Vec::new(), false);
    for (number, line) in text.lines().enumerate() {
        match line.strip_prefix("```") {
            Some(info) if !inside && info == kind => {
                inside = true;
                found.push((number + 1, String::new()));
            }
            Some(_) => inside = false,
            None if inside => {
                let block = &mut found.last_mut().expect("a block").1;
                block.push_str(line);
                block.push('\n');
            }
            None => {}
        }
    }
    found
}

#[test]
fn every_scenario_on_the_page_is_as_expected() {
    let folder = TempDir::new().expect("a folder");
    let page = text();
    let blocks = blocks(&page, "toml");
    assert!(blocks.len() >= 3);
    for (line, block) in blocks {
        let file = folder.path().join("shown.toml");
        fs::write(&file, block).expect("written");
        let (scenarios, _) = load(&file).unwrap_or_else(|error| panic!("line {line}: {error:?}"));
        for scenario in scenarios {
            let outcome = run::run(&scenario, None).expect("it runs");
            assert!(outcome.passed(), "line {line}: {:#?}", outcome.cases);
        }
    }
}

/// What a part leaves out.
const BASE: &str = "name = \"base\"\nrun = \"10s\"\n[expect]\n\"runs\" = \"errors == 0\"\n";
const BASE_TRAFFIC: &str = "traffic = [ { rate = \"20/s\", keys = [\"user:1\", \"user:2\"] } ]\n";
const BASE_LIMITER: &str = "[limiter.api]\nlimit = \"10/1s\"\n";

#[test]
fn every_part_of_a_scenario_fits_into_one() {
    let folder = TempDir::new().expect("a folder");
    let page = text();
    let parts = blocks(&page, "toml part");
    assert!(parts.len() >= 4);
    for (line, part) in parts {
        let without = |key: &str| !part.lines().any(|line| line.starts_with(key));
        let traffic = if without("traffic") { BASE_TRAFFIC } else { "" };
        let limiter = if without("[limiter") { BASE_LIMITER } else { "" };
        fs::write(folder.path().join("_base.toml"), format!("{traffic}{BASE}{limiter}"))
            .expect("written");
        let file = folder.path().join("part.toml");
        fs::write(&file, format!("import = [\"_base.toml\"]\n{part}")).expect("written");
        let (scenarios, _) = load(&file).unwrap_or_else(|error| panic!("line {line}: {error:?}"));
        let outcome = run::run(&scenarios[0], None).expect("it runs");
        assert!(outcome.passed(), "line {line}: {:#?}", outcome.cases);
    }
}

#[test]
fn the_workflow_runs_what_it_says() {
    let page = text();
    let workflow = blocks(&page, "yaml").remove(0).1;
    let command = workflow
        .lines()
        .find_map(|line| line.trim().strip_prefix("- run: rlctl "))
        .expect("a command");
    let folder = TempDir::new().expect("a folder");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    // One of the gallery is enough here; another test runs all of it.
    let shipped = folder.path().join("scenarios");
    fs::create_dir(&shipped).expect("a folder");
    fs::copy(root.join("scenarios/noscript.toml"), shipped.join("noscript.toml")).expect("copied");
    let output = Command::new(env!("CARGO_BIN_EXE_rlctl"))
        .args(command.split_whitespace())
        .env_remove("GITHUB_STEP_SUMMARY")
        .current_dir(folder.path())
        .output()
        .expect("rlctl runs");
    assert!(output.status.success(), "{output:?}");
    assert!(folder.path().join("scenarios.xml").is_file());
}

#[test]
fn no_key_goes_unmentioned() {
    let (page, schema) = (text(), schema::schema());
    let mut tables: Vec<&serde_json::Value> = vec![&schema];
    tables.extend(schema["$defs"].as_object().expect("definitions").values());
    let keys = tables.iter().filter_map(|table| table["properties"].as_object());
    for key in keys.flat_map(|properties| properties.keys()) {
        let shown =
            [format!("`{key}`"), format!("{key},"), format!(" {key} "), format!("{key} }}")];
        assert!(shown.iter().any(|form| page.contains(form)), "{key}");
    }
}
