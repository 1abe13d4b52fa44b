//! Contexts: where settings come from, and that no secret in them is ever shown.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

use crate::cli::rlctl;
use crate::support::redis::RedisServer;

const USER: &str = r#"
# mine
use = "staging"

[context.staging]
redis = "redis://bob:hunter2@127.0.0.1:1"
prefix = "st:"

[context.prod]
redis = "redis://:hunter2@127.0.0.1:2/3"
rules = "prod.toml"
protected = true

[context.look]
redis = "redis://127.0.0.1:3"
readonly = true
"#;

/// A home with a config file, and a project in it.
struct Home(TempDir);

impl Home {
    fn new(user: &str) -> Home {
        let home = tempfile::tempdir().expect("a folder");
        fs::create_dir_all(home.path().join("config/rlctl")).expect("folders");
        fs::create_dir_all(home.path().join("project/deep")).expect("folders");
        fs::write(home.path().join("config/rlctl/config.toml"), user).expect("writes");
        Home(home)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = rlctl();
        command.args(arguments).env("XDG_CONFIG_HOME", self.path().join("config"));
        command.env_remove("RLCTL_CONTEXT").current_dir(self.path().join("project/deep"));
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let output = self.command(arguments).output().expect("rlctl runs");
        let all = [output.stdout.clone(), output.stderr.clone()].concat();
        assert!(!String::from_utf8_lossy(&all).contains("hunter2"), "{arguments:?} shows a secret");
        output
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run(&[arguments, &["-o", "json"]].concat());
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"))
    }
}

#[test]
fn contexts_are_listed_without_their_secrets() {
    let home = Home::new(USER);
    let list = home.json(&["context", "list"]);
    let names: Vec<_> =
        list["items"].as_array().expect("items").iter().map(|i| i["name"].as_str()).collect();
    assert_eq!(names, [Some("look"), Some("prod"), Some("staging")]);
    assert_eq!(list["items"][2]["in_use"], true);
    assert_eq!(list["items"][2]["redis"], "redis://***@127.0.0.1:1");
    let table = String::from_utf8(home.run(&["context", "list"]).stdout).expect("UTF-8");
    assert!(table.contains("protected") && table.contains("readonly"), "{table}");
    home.run(&["context", "show"]);
    home.run(&["check", "user:1", "--limit", "1/1s"]);
}

#[test]
fn a_flag_wins_over_the_environment_over_the_project_over_the_user() {
    let home = Home::new(USER);
    let prefix = |home: &Home, arguments: &[&str], env: Option<&str>| {
        let mut command = home.command(&[arguments, &["context", "show", "-o", "json"]].concat());
        if let Some(name) = env {
            command.env("RLCTL_CONTEXT", name);
        }
        let shown: Value =
            serde_json::from_slice(&command.output().expect("runs").stdout).expect("JSON");
        (shown["items"][0]["name"].clone(), shown["items"][0]["prefix"].clone())
    };
    assert_eq!(prefix(&home, &[], None), ("staging".into(), "st:".into()));
    fs::write(
        home.path().join("project/.rlctl.toml"),
        "use = 'here'\n[context.here]\nprefix = 'pr:'\n",
    )
    .expect("writes");
    assert_eq!(prefix(&home, &[], None), ("here".into(), "pr:".into()));
    assert_eq!(prefix(&home, &[], Some("prod")), ("prod".into(), "rl1:".into()));
    assert_eq!(prefix(&home, &["--context", "look"], Some("prod")), ("look".into(), "rl1:".into()));
    assert_eq!(prefix(&home, &["--prefix", "x:"], None), ("here".into(), "x:".into()));
}

#[test]
fn choosing_a_context_keeps_the_rest_of_the_file() {
    let home = Home::new(USER);
    assert_eq!(home.run(&["context", "use", "prod"]).status.code(), Some(0));
    let text = fs::read_to_string(home.path().join("config/rlctl/config.toml")).expect("text");
    assert_eq!(text, USER.replace("use = \"staging\"", "use = \"prod\""));
    let unknown = home.run(&["context", "use", "nowhere"]);
    assert_eq!(unknown.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("known: look, prod, staging"));
}

#[test]
fn a_readonly_or_protected_context_is_not_written_to() {
    let redis = RedisServer::start();
    let text = format!(
        "[context.look]\nredis = '{0}'\nreadonly = true\n[context.prod]\nredis = '{0}'\nprotected = true\n",
        redis.url()
    );
    let home = Home::new(&text);
    for name in ["look", "prod"] {
        let check = |cost| {
            home.run(&["--context", name, "check", "user:1", "--limit", "1/1d", "--cost", cost])
        };
        assert_eq!(check("1").status.code(), Some(6), "{name}");
        assert_eq!(check("0").status.code(), Some(0), "{name}");
    }
    assert!(redis.dump().is_empty());
}

#[test]
fn a_password_command_is_run_and_not_shown() {
    let redis = RedisServer::start_with(|_| vec!["--requirepass".into(), "hunter2".into()]);
    let with = |command: &str| {
        let text = format!(
            "use = 'a'\n[context.a]\nredis = '{}'\npassword_command = \"{command}\"\n",
            redis.url()
        );
        Home::new(&text).run(&["check", "user:1", "--limit", "1/1d"])
    };
    assert_eq!(with("printf 'hun%s\\n' ter2").status.code(), Some(0));
    let failed = with("exit 9");
    assert_eq!(failed.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&failed.stderr).contains("password_command failed"));
}

#[test]
fn a_broken_settings_file_is_named_with_the_line_but_not_quoted() {
    for (text, line, words) in [
        ("use = 'a'\n[context.a]\nredis = 'redis://:hunter2@h\n", 3, ""),
        ("[context.a]\nredsi = 'redis://:hunter2@h'\n", 2, "redsi"),
        ("context.a = 'redis://:hunter2@h'\n", 1, "expected a table of settings"),
        ("[context.a]\nprotected = 'hunter2'\n", 2, "expected a boolean"),
        ("use = 'nowhere'\n", 0, "no context `nowhere`"),
    ] {
        let output = Home::new(text).run(&["demo"]);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(3), "{told}");
        assert!(told.contains(words), "{told}");
        assert!(line == 0 || told.contains(&format!("config.toml: line {line}")), "{told}");
    }
}

#[test]
fn a_password_command_is_run_only_for_the_redis_of_its_context() {
    let (own, other) = (RedisServer::start(), RedisServer::start());
    let text = format!(
        "use = 'a'\n[context.a]\nredis = '{}'\npassword_command = \"echo asked >&2; exit 9\"\n",
        own.url()
    );
    let home = Home::new(&text);
    let asked = |arguments: &[&str]| {
        let told = home.run(arguments).stderr;
        String::from_utf8_lossy(&told).matches("asked").count()
    };
    assert_eq!(asked(&["demo"]), 0);
    assert_eq!(asked(&["context", "list"]), 0);
    assert_eq!(asked(&["events", "--redis", &other.url()]), 0);
    assert_eq!(asked(&["events", "--redis", "nonsense"]), 0);
    assert_eq!(asked(&["events"]), 1);
    let good = text.replace("exit 9", "echo");
    let rules = Home::new(&good);
    fs::write(rules.path().join("project/deep/r.toml"), "").expect("writes");
    let twice = rules.run(&["check", "user:1", "--rules", "r.toml"]).stderr;
    assert_eq!(String::from_utf8_lossy(&twice).matches("asked").count(), 1, "once for both");
}

#[test]
fn a_project_cannot_have_a_command_run() {
    let home = Home::new(USER);
    let mark = home.path().join("mark");
    let project = format!(
        "use = 'x'\n[context.x]\nredis = 'redis://127.0.0.1:1'\npassword_command = 'touch {}'\n",
        mark.display()
    );
    fs::write(home.path().join("project/.rlctl.toml"), project).expect("writes");
    let refused = home.run(&["events"]);
    assert_eq!(refused.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("only from your own config file"));
    assert!(!mark.exists());
}

#[test]
fn a_choice_that_exists_no_more_can_be_mended() {
    let home = Home::new(&USER.replace("use = \"staging\"", "use = \"gone\""));
    let lost = home.run(&["events"]);
    assert_eq!(lost.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&lost.stderr).contains("rlctl context use NAME"));
    assert_eq!(home.json(&["context", "list"])["items"][0]["in_use"], false);
    assert_eq!(home.run(&["context", "use", "look"]).status.code(), Some(0));
    assert_eq!(home.json(&["context", "show"])["items"][0]["name"], "look");
}
