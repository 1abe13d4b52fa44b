//! How commands behave beside what they print: closed pipes, Ctrl-C, secrets, colours, formats that
//! mean nothing, and contexts in which nothing may be written.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::cli::rlctl;
use crate::support::api::Served;
use crate::support::redis::RedisServer;

/// A Redis with something in it, and a gateway on it.
struct Stage {
    redis: RedisServer,
    served: Served,
    folder: tempfile::TempDir,
}

impl Stage {
    async fn new() -> Stage {
        let redis = RedisServer::start();
        let served = Served::published(&redis).await;
        let stage = Stage { redis, served, folder: tempfile::tempdir().unwrap() };
        for line in [
            "check user:1 --limit 5/1d -q",
            "block user:666 --for forever --reason scraping",
            "tier set user:1 gold --reason deal",
        ] {
            let ran = stage.command(line).output().unwrap();
            assert!(ran.status.success(), "{line}: {}", text(&ran));
        }
        stage
    }

    fn command(&self, line: &str) -> Command {
        let mut command = rlctl();
        command
            .args(line.split(' '))
            .env("RLCTL_REDIS", self.redis.url())
            .env("HOME", self.folder.path())
            .current_dir(&self.folder);
        command
    }

    fn gateway(&self) -> String {
        format!("http://{}", self.served.address)
    }
}

fn text(output: &Output) -> String {
    let both = [output.stdout.as_slice(), &output.stderr].concat();
    String::from_utf8_lossy(&both).into_owned()
}

/// Commands that go on until they are told to end, or print more than anybody wants.
fn endless(stage: &Stage) -> Vec<String> {
    let gateway = stage.gateway();
    vec![
        "events --follow".into(),
        format!("events --follow --gateway {gateway} -o ndjson"),
        format!("top --watch=100ms --by used --gateway {gateway}"),
        format!("top --watch=100ms --by used --gateway {gateway} -o csv"),
        format!("status --watch=100ms --gateway {gateway}"),
        "status --watch=100ms -o json".into(),
        "inspect user:1 --watch=100ms".into(),
        "inspect user:1 --watch=100ms -o ndjson".into(),
        "doctor --every 100ms -o json".into(),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_has_seen_enough_ends_them_quietly() {
    let stage = Stage::new().await;
    stage.served.check(serde_json::json!({ "identity": "user:1" })).await;
    let mut lines = endless(&stage);
    lines.extend(
        ["keys", "events", "block --list -o csv", "rules history -o json"].map(String::from),
    );
    for line in lines {
        let bin = env!("CARGO_BIN_EXE_rlctl");
        let began = Instant::now();
        let ran = Command::new("timeout")
            .args(["20", "bash", "-c", &format!("set -o pipefail; {bin} {line} | head -n 1")])
            .env("RLCTL_REDIS", stage.redis.url())
            .output()
            .unwrap();
        assert_eq!(ran.status.code(), Some(0), "{line}: {}", text(&ran));
        assert!(ran.stderr.is_empty(), "{line}: {}", text(&ran));
        assert!(!ran.stdout.is_empty(), "{line}");
        assert!(began.elapsed() < Duration::from_secs(15), "{line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interruption_ends_them_with_130() {
    let stage = Stage::new().await;
    stage.served.check(serde_json::json!({ "identity": "user:1" })).await;
    for line in endless(&stage) {
        let mut child = stage.command(&line).stdout(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut first = String::new();
        out.read_line(&mut first).unwrap();
        let pid = child.id().to_string();
        assert!(Command::new("kill").args(["-s", "INT", &pid]).status().unwrap().success());
        // What it still has to say must not fill the pipe.
        let drained = std::thread::spawn(move || out.lines().count());
        assert_eq!(child.wait().unwrap().code(), Some(130), "{line}");
        drained.join().unwrap();
    }
}

#[test]
fn a_format_without_a_meaning_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("rules.toml");
    fs::write(&rules, "[[rule]]\nname = \"a\"\ndimension = \"user\"\nlimits = [\"1/1s\"]\n")
        .unwrap();
    let show = format!("rules show --text {}", rules.display());
    for line in ["serve", "completions zsh", "context use x", "schema check -o wide", &show] {
        let mut words: Vec<&str> = line.split(' ').collect();
        if !line.contains("-o") {
            words.extend(["-o", "csv"]);
        }
        let ran = rlctl().args(&words).output().unwrap();
        assert_eq!(ran.status.code(), Some(2), "{line}: {}", text(&ran));
        assert!(text(&ran).contains("leave out -o"), "{line}: {}", text(&ran));
        assert!(ran.stdout.is_empty(), "{line}");
    }
}

#[test]
fn colours_are_where_they_are_wanted_and_never_in_json() {
    let shown = |arguments: &[&str], env: &[(&str, &str)]| {
        let mut command = rlctl();
        command.env_remove("NO_COLOR").env_remove("CLICOLOR_FORCE");
        let limit = ["check", "user:1", "--limit", "1/1d", "-q"];
        let ran = command.args(limit).args(arguments).envs(env.iter().copied()).output().unwrap();
        String::from_utf8(ran.stdout).unwrap()
    };
    assert!(!shown(&[], &[]).contains('\u{1b}'), "a pipe is no terminal");
    assert!(shown(&["--color", "always"], &[("NO_COLOR", "1")]).contains("\u{1b}[32mallowed"));
    assert!(shown(&[], &[("CLICOLOR_FORCE", "1")]).contains('\u{1b}'));
    assert!(!shown(&[], &[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")]).contains('\u{1b}'));
    assert!(!shown(&["--color", "always", "-o", "json"], &[]).contains('\u{1b}'));
    assert!(!shown(&["--color", "always", "-o", "csv"], &[]).contains('\u{1b}'));
    let help = rlctl().args(["check", "--help", "--color=always"]).output().unwrap();
    assert!(text(&help).contains('\u{1b}'));
    let mut plain = rlctl();
    plain.args(["check", "--help", "--color", "never"]).env("CLICOLOR_FORCE", "1");
    assert!(!text(&plain.output().unwrap()).contains('\u{1b}'));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_is_ever_printed() {
    const SECRET: &str = "hunter2-S3CRET";
    let redis = RedisServer::start_with(|_| vec!["--requirepass".into(), SECRET.into()]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    fs::write(&file, format!("{SECRET}\n")).unwrap();
    let plain = redis.url();
    let with = plain.replace("redis://", &format!("redis://:{SECRET}@"));
    let dead = format!("redis://:{SECRET}@127.0.0.1:1");
    let file = file.display().to_string();
    let ways: [(&str, &[(&str, &str)]); 5] = [
        (&with, &[]),
        (&dead, &[]),
        (&plain, &[("REDISCLI_AUTH", SECRET)]),
        (&plain, &[("RLCTL_REDIS_PASSWORD_FILE", &file)]),
        (&plain, &[("REDISCLI_AUTH", "hunter2-S3CRET-but-wrong")]),
    ];
    let lines = [
        "check user:1 --limit 5/1d",
        "context show",
        "events",
        "status",
        "inspect user:1",
        "keys",
        "doctor",
        "tier set user:1 gold --reason r",
        "reset user:1 --yes --reason r",
        "top --once --gateway http://user:hunter2-S3CRET@127.0.0.1:1",
        "status --gateway http://user:hunter2-S3CRET@127.0.0.1:1",
        "rules publish redis://x:hunter2-S3CRET@h/0 --reason r",
        "frobnicate redis://x:hunter2-S3CRET@h/0",
    ];
    for (url, env) in ways {
        for line in lines {
            for more in [&["-v"][..], &["-v", "--log-format", "json", "-o", "json"]] {
                let mut command = rlctl();
                command.args(line.split(' ')).args(more).arg("--redis").arg(url);
                let ran = command
                    .envs(env.iter().copied())
                    .env("RLCTL_TOKEN", SECRET)
                    .env("HOME", folder.path())
                    .current_dir(&folder)
                    .output()
                    .unwrap();
                assert!(!text(&ran).contains("S3CRET"), "{line} {more:?}: {}", text(&ran));
            }
        }
    }
    // What a reset leaves behind is read by others, too.
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() && path.file_name().unwrap() != "password" {
            assert!(!fs::read_to_string(&path).unwrap().contains("S3CRET"), "{}", path.display());
        }
    }
}

fn write_context(folder: &Path, redis: &RedisServer) {
    let text = format!(
        "[context.look]\nredis = \"{0}\"\nreadonly = true\n[context.prod]\nredis = \"{0}\"\nprotected = true\n",
        redis.url()
    );
    fs::write(folder.join(".rlctl.toml"), text).unwrap();
}

/// Every write there is; `--dry-run` must do without a right.
#[tokio::test(flavor = "multi_thread")]
async fn contexts_in_which_nothing_may_be_written_hold_for_every_write() {
    let stage = Stage::new().await;
    let backup = stage.command("reset user:1 --yes --reason r --backup b.jsonl").output().unwrap();
    assert!(backup.status.success(), "{}", text(&backup));
    assert!(stage.command("check user:1 --limit 5/1d -q").output().unwrap().status.success());
    let rules = "[[rule]]\nname = \"a\"\ndimension = \"user\"\nlimits = [\"1/1s\"]\n";
    fs::write(stage.folder.path().join("rules.toml"), rules).unwrap();
    write_context(stage.folder.path(), &stage.redis);
    let redis = &stage.redis;
    // What the gateway says of itself every two seconds is not ours.
    let dump =
        || redis.dump().into_iter().filter(|(k, ..)| !k.contains("gateways")).collect::<Vec<_>>();
    let before = dump();
    for line in [
        "check user:1 --limit 5/1d",
        "override set user:1 --rule r --limit 1/1s --for 1h --reason r",
        "override rm user:1 --rule r --reason r",
        "tier set user:1 free --reason r",
        "tier rm user:1 --reason r",
        "block user:2 --for 1h --reason r",
        "unblock user:666 --reason r",
        "exempt user:2 --for 1h --reason r",
        "unexempt user:2 --reason r",
        "rules publish rules.toml --reason r",
        "rules rollback 1 --reason r",
        "rules enable a --reason r",
        "rules disable a --reason r",
        "rules observe on --reason r",
        "reset user:1 --yes --reason r",
        "undo b.jsonl --yes --reason r",
        "doctor --fix",
    ] {
        for context in ["look", "prod"] {
            let mut command = stage.command(line);
            command.env_remove("RLCTL_REDIS").args(["--context", context]).stdin(Stdio::null());
            let ran = command.output().unwrap();
            assert_eq!(ran.status.code(), Some(6), "{line} in {context}: {}", text(&ran));
            assert!(text(&ran).contains(&format!("context `{context}`")), "{line}: {}", text(&ran));
        }
    }
    assert_eq!(dump(), before);
    for line in ["block user:2 --for 1h --reason r --dry-run", "reset user:1 --dry-run --reason r"]
    {
        let mut command = stage.command(line);
        command.env_remove("RLCTL_REDIS").args(["--context", "look"]);
        let ran = command.output().unwrap();
        assert_eq!(ran.status.code(), Some(0), "{line}: {}", text(&ran));
    }
    assert_eq!(dump(), before);
}
