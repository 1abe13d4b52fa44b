//! Every command shown in the README and in docs/ is run, and prints what is shown.
//!
//! In a block marked `console` a line `$ rlctl …` is a command, and what follows up to the next one
//! is its output on stdout and stderr; `…` on a line of its own stands for any lines, within a line
//! for any text. The address redis://127.0.0.1:6379 is replaced by a Redis of the test's own, which
//! lasts from the first to the last command of a file. So does a gateway: what is shown of `rlctl
//! serve` is what it prints at its start, and its usual addresses are replaced by free ones.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::support::redis::RedisServer;

const SHOWN_ADDRESS: &str = "redis://127.0.0.1:6379";
/// The usual addresses of a gateway, in the order in which it tells them.
const SHOWN_DOORS: [(&str, &str); 2] =
    [("--listen", "127.0.0.1:8080"), ("--admin", "127.0.0.1:9090")];

/// A gateway that a document has started, and where it really listens.
struct Serving(Child, Vec<(&'static str, String)>);

impl Serving {
    fn start(command: &str, folder: &Path, path: &str) -> Serving {
        let free = SHOWN_DOORS.map(|(flag, _)| format!(" {flag} 127.0.0.1:0")).concat();
        let mut child = Command::new("sh")
            .args(["-c", &format!("exec {command}{free}")])
            .env("PATH", path)
            .current_dir(folder)
            .stdout(Stdio::piped())
            .spawn()
            .expect("sh runs");
        let told = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let real = told.take(SHOWN_DOORS.len()).map(|line| {
            let line = line.expect("a line");
            line.rsplit(' ').next().expect("an address").to_owned()
        });
        let doors = SHOWN_DOORS.iter().map(|(_, shown)| *shown).zip(real).collect();
        Serving(child, doors)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A command in a document, and what is shown of its output.
pub(crate) struct Shown {
    pub(crate) line: usize,
    pub(crate) command: String,
    pub(crate) output: Vec<String>,
}

pub(crate) fn shown_in(text: &str) -> Vec<Shown> {
    let (mut found, mut inside) = (Vec::<Shown>::new(), false);
    for (number, line) in text.lines().enumerate() {
        if line.starts_with("```") {
            inside = line == "```console";
        } else if let (true, Some(command)) = (inside, line.strip_prefix("$ ")) {
            found.push(Shown { line: number + 1, command: command.into(), output: Vec::new() });
        } else if let (true, Some(last)) = (inside, found.last_mut()) {
            last.output.push(line.into());
        }
    }
    found
}

/// Whether `actual` fits the pattern, in which `…` stands for anything.
pub(crate) fn fits(pattern: &str, actual: &str) -> bool {
    let Some((first, pattern)) = pattern.split_once('…') else { return pattern == actual };
    let Some(mut rest) = actual.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = pattern.split('…').collect();
    let last = parts.pop().unwrap_or_default();
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

fn documents() -> Vec<PathBuf> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let docs = fs::read_dir(root.join("docs")).expect("docs").map(|e| e.expect("an entry").path());
    let pages = docs.filter(|p| p.extension().is_some_and(|e| e == "md"));
    pages.chain([root.join("README.md")]).collect()
}

/// Runs all commands of a document in their order, in a folder of its own, and hands over what each
/// printed, with the addresses that are shown in place of the real ones.
pub(crate) fn run_all(document: &Path, mut ran: impl FnMut(&Shown, &str)) {
    let shown = shown_in(&fs::read_to_string(document).expect("text"));
    let needs_redis = shown.iter().any(|s| s.command.contains(SHOWN_ADDRESS));
    let redis = needs_redis.then(RedisServer::start);
    let bin =
        Path::new(env!("CARGO_BIN_EXE_rlctl")).parent().expect("a folder").display().to_string();
    let folder = tempfile::tempdir().expect("a folder");
    let path = format!("{bin}:{}", std::env::var("PATH").expect("a PATH"));
    let mut serving: Option<Serving> = None;
    for one in &shown {
        let mut real: Vec<(&str, String)> = Vec::new();
        real.extend(
            redis
                .as_ref()
                .map(|redis| (SHOWN_ADDRESS, redis.url().trim_end_matches("/0").to_string())),
        );
        real.extend(serving.iter().flat_map(|Serving(_, doors)| doors.clone()));
        let to_real = |text: &str| {
            real.iter().fold(text.to_string(), |text, (shown, real)| text.replace(shown, real))
        };
        let to_shown = |text: &str| {
            let text = text.replace(&folder.path().display().to_string(), "/home/alice");
            let text = real.iter().fold(text, |text, (shown, real)| text.replace(real, shown));
            let bare = |url: &str| url.trim_start_matches("redis://").to_string();
            real.iter().fold(text, |text, (shown, real)| text.replace(&bare(real), &bare(shown)))
        };
        if one.command.starts_with("rlctl serve") {
            serving = Some(Serving::start(&to_real(&one.command), folder.path(), &path));
            let told = SHOWN_DOORS.iter().zip(["http", "admin"]);
            let told = told.map(|((_, shown), name)| format!("listening {name} {shown}"));
            ran(one, &told.collect::<Vec<_>>().join("\n"));
            continue;
        }
        let output = Command::new("sh")
            .args(["-c", &format!("{{ {}\n}} 2>&1", to_real(&one.command))])
            .env("PATH", &path)
            .env("HOME", folder.path())
            .env("RLCTL_ACTOR", "alice")
            .current_dir(&folder)
            .output();
        let actual = String::from_utf8(output.expect("sh runs").stdout).expect("UTF-8");
        ran(one, &to_shown(&actual));
    }
}

/// Complains where a document shows something else than what was printed.
pub(crate) fn compare(document: &Path, shown: &Shown, actual: &str) {
    let wanted = shown.output.join("\n");
    assert!(
        fits(wanted.trim_end(), actual.trim_end()),
        "{}:{}: $ {}\nshown:\n{wanted}\nactual:\n{actual}",
        document.display(),
        shown.line,
        shown.command
    );
}

#[test]
fn every_command_in_the_documents_prints_what_they_show() {
    let mut count = 0;
    for document in documents() {
        run_all(&document, |shown, actual| {
            count += 1;
            compare(&document, shown, actual);
        });
    }
    assert!(count >= 50, "only {count} commands are shown");
}

#[test]
fn a_pattern_fits_only_what_it_shows() {
    assert!(fits("a\nb", "a\nb"));
    assert!(!fits("a\nb", "a\nc"));
    assert!(!fits("a", "ab"));
    assert!(fits("a…", "abc"));
    assert!(fits("a…c", "abbc"));
    assert!(fits("a…c", "acbc"));
    assert!(!fits("a…c", "abbcd"));
    assert!(!fits("x…", "abc"));
}
