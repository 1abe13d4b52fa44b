//! The commands that work on what operators keep in the store: what they print, and how they end.

use std::io::{BufRead, BufReader};
use std::process::{Child, Output, Stdio};

use serde_json::{Value, json};

use crate::cli::rlctl;
use crate::support::redis::RedisServer;

pub(crate) struct Shell {
    pub(crate) redis: RedisServer,
}

/// What a command printed, and how it ended.
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    pub(crate) fn json(&self) -> Value {
        let value: Value = serde_json::from_str(&self.out)
            .unwrap_or_else(|e| panic!("{e}: {} {}", self.out, self.err));
        assert_eq!(value["schema"], "rlctl/v1");
        value
    }
}

/// Ends with the test, however that ends.
struct Follower(Child);

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl From<Output> for Ran {
    fn from(output: Output) -> Ran {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
        let code = output.status.code().expect("it ended by itself");
        Ran { code, out: text(output.stdout), err: text(output.stderr) }
    }
}

impl Shell {
    pub(crate) fn new() -> Shell {
        Shell { redis: RedisServer::start() }
    }

    fn command(&self, arguments: &[&str]) -> std::process::Command {
        let mut command = rlctl();
        command.args(arguments).env("RLCTL_REDIS", self.redis.url()).env("RLCTL_ACTOR", "alice");
        command
    }

    pub(crate) fn run(&self, line: &str) -> Ran {
        self.words(&line.split(' ').collect::<Vec<_>>())
    }

    fn words(&self, arguments: &[&str]) -> Ran {
        self.command(arguments).output().expect("rlctl runs").into()
    }

    /// A command that must do what was asked.
    pub(crate) fn fine(&self, line: &str) -> Ran {
        let ran = self.run(line);
        assert_eq!(ran.code, 0, "{line}: {}{}", ran.out, ran.err);
        ran
    }
}

#[test]
fn overrides_are_set_listed_and_removed_and_show_what_they_replace() {
    let shell = Shell::new();
    let set = shell
        .fine("override set user:123 --rule per-user --limit 500/1m --for forever --reason import");
    assert_eq!(
        set.out,
        "override set  user:123\n  was  without an override\n  now  500/1m for per-user for ever\n"
    );
    let lower = shell.fine(
        "override set user:123 --rule per-user --limit 5/1m --limit 9/1h --burst 2 --algorithm gcra --for 2h --reason less",
    );
    assert!(lower.out.contains("was  500/1m for per-user for ever, by alice at "), "{}", lower.out);
    assert!(lower.out.contains(": import\n"), "{}", lower.out);
    assert!(lower.out.contains("now  5/1m burst 2 gcra, 9/1h burst 2 gcra for per-user until 20"));
    shell.fine("override set user:9 --rule other --limit 1/1s --for forever --reason r");
    let all = shell.fine("override list -o json").json();
    let names: Vec<&Value> =
        all["items"].as_array().unwrap().iter().map(|i| &i["identity"]).collect();
    assert_eq!(names, ["user:123", "user:9"]);
    let one = shell.fine("override list user:123 -o json").json()["items"][0].clone();
    assert_eq!(one["limits"][0], json!({"limit": "5/1m burst 2", "algorithm": "gcra"}));
    assert_eq!(one["until_us"].as_u64().unwrap() - one["at_us"].as_u64().unwrap(), 7_200_000_000);
    let table = shell.fine("override list");
    assert!(table.out.contains(" user:9    other     1/1s "), "{}", table.out);
    let removed = shell.fine("override rm user:123 --rule per-user --reason done -o json").json();
    assert_eq!((&removed["after"], &removed["written"]), (&Value::Null, &json!(true)));
    let again = shell.run("override rm user:123 --rule per-user --reason done");
    assert_eq!((again.code, again.out.as_str()), (7, ""));
    assert!(again.err.contains("user:123 is without such an override already"), "{}", again.err);
    assert!(shell.fine("override list user:123 -o json").json()["items"] == json!([]));
    assert!(shell.fine("override list user:123").err.contains("there are no overrides"));
}

#[test]
fn tiers_are_set_shown_and_removed() {
    let shell = Shell::new();
    shell.fine("tier set user:1 premium --reason deal");
    let shown = shell.fine("tier get user:1");
    assert!(shown.out.starts_with("user:1  premium for ever\n  by alice at 20"), "{}", shown.out);
    shell.fine("tier set user:1 basic --for 1h --reason less");
    let shown = shell.fine("tier get user:1 -o json").json();
    assert_eq!((&shown["tier"], &shown["reason"]), (&json!("basic"), &json!("less")));
    shell.fine("tier rm user:1 --reason over");
    let none = shell.run("tier get user:1 -o json");
    assert_eq!((none.code, &none.json()["tier"]), (7, &Value::Null));
    assert_eq!(shell.run("tier get user:1").code, 7);
    assert_eq!(shell.run("tier rm user:1 --reason over").code, 7);
    let unfit = shell.run("tier set user:1 Gold --reason r");
    assert_eq!(unfit.code, 2);
    assert!(unfit.err.contains("cannot be the name of a tier"), "{}", unfit.err);
}

#[test]
fn one_identity_a_network_and_a_family_are_blocked_and_exempt_alike() {
    let shell = Shell::new();
    for (written, subject, kind) in [
        ("user:1", "user:1", "identity"),
        ("198.51.100.7", "ip:198.51.100.7", "identity"),
        ("ip:198.51.100.7/32", "ip:198.51.100.7", "identity"),
        ("2001:db8::1", "ip:2001:db8::", "identity"),
        ("2001:db8::/64", "ip:2001:db8::", "identity"),
        ("198.51.100.9/24", "ip:198.51.100.0/24", "pattern"),
        ("ip:2001:db8::/32", "ip:2001:db8::/32", "pattern"),
        ("apikey:trial-*", "apikey:trial-*", "pattern"),
        ("User:Trial-*", "user:Trial-*", "pattern"),
        ("*:trial", "*:trial", "pattern"),
    ] {
        for (verb, undo) in [("block", "unblock"), ("exempt", "unexempt")] {
            let made = shell.fine(&format!("{verb} {written} --for 1h --reason r -o json")).json();
            assert_eq!((&made["subject"], &made["kind"]), (&json!(subject), &json!(kind)));
            assert_eq!((&made["action"], &made["before"]), (&json!(verb), &Value::Null));
            let undone = shell.fine(&format!("{undo} {written} --reason r -o json")).json();
            assert_eq!(undone["before"], made["after"]);
            assert_eq!(shell.run(&format!("{undo} {written} --reason r")).code, 7);
        }
    }
    let fine = shell.run("block 2001:db8::1/128 --for 1h --reason r");
    assert_eq!(fine.code, 2);
    assert!(fine.err.contains("by their /64"), "{}", fine.err);
}

#[test]
fn policies_are_published_with_versions_and_rolled_back() {
    let shell = Shell::new();
    let file = shell.redis.dir.path().join("rules.toml");
    let path = file.to_str().unwrap();
    assert!(shell.fine("rules history").err.contains("no policy"));
    let policy = "[[rule]]\nname = \"per-ip\"\ndimension = \"ip\"\nlimits = [\"9/1s\"]\n";
    std::fs::write(&file, policy).unwrap();
    let first = shell.fine(&format!("rules publish {path} --reason first"));
    assert!(
        first.out.starts_with("rules publish  version 1\n  was  nothing\n  now  version 1 ("),
        "{}",
        first.out
    );
    // Names that the policy does not have are noted, for they may be mistyped.
    let noted = shell.fine("rules disable per-user --reason r --dry-run").err;
    assert!(noted.contains("version 1 of the policy has no rule `per-user`"), "{noted}");
    assert!(!shell.fine("rules disable per-ip --reason r --dry-run").err.contains("has no rule"));
    let noted = shell.fine("tier set user:1 gold --reason r --dry-run").err;
    assert!(noted.contains("has no tier `gold`"), "{noted}");
    std::fs::write(&file, policy.replace('9', "8")).unwrap();
    shell.fine(&format!("rules publish {path} --reason second --if-version 1"));
    let late = shell.run(&format!("rules publish {path} --reason late --if-version 1"));
    assert_eq!(late.code, 4);
    assert!(late.err.contains("at version 2 by now, not at 1"), "{}", late.err);
    shell.fine("rules rollback 1 --reason worse");
    assert_eq!(shell.run("rules rollback 9 --reason r").code, 7);
    let items = shell.fine("rules history -o json").json()["items"].clone();
    let versions: Vec<&Value> = items.as_array().unwrap().iter().map(|v| &v["version"]).collect();
    assert_eq!(versions, [3, 2, 1]);
    assert_eq!((&items[0]["hash"], &items[0]["rolled_back_to"]), (&items[2]["hash"], &json!(1)));
    let table = shell.fine("rules history --rows 1").out;
    assert!(table.contains("worse (the text of 1)") && !table.contains("first"), "{table}");
    for (text, words) in [
        (&b"\xff"[..], "not UTF-8"),
        (b"[[rule]]\nnam = 1\n", "nam"),
        (&[b'x'; (8 << 20) + 1], "8 MiB"),
    ] {
        std::fs::write(&file, text).unwrap();
        let bad = shell.run(&format!("rules publish {path} --reason r"));
        assert_eq!(bad.code, 3, "{}", bad.err);
        assert!(bad.err.contains(words), "{}", bad.err);
    }
    assert_eq!(shell.run("rules publish /nowhere --reason r").code, 3);
}

#[test]
fn switches_take_effect_and_are_undone() {
    let shell = Shell::new();
    let off = shell.fine("rules disable orders --reason incident");
    assert_eq!(off.out, "rules disable  orders\n  was  enabled\n  now  disabled\n");
    let on = shell.fine("rules enable orders --reason over");
    assert!(on.out.contains("was  disabled, by alice at "), "{}", on.out);
    assert_eq!(shell.run("rules enable orders --reason over").code, 7);
    assert!(shell.fine("rules observe on --reason x").out.contains("now  only observed"));
    assert!(shell.fine("rules observe off --reason x").out.contains("now  enforced"));
    assert_eq!(shell.run("rules observe maybe --reason x").code, 2);
}

#[test]
fn events_tell_every_change_in_order_and_go_on_with_follow() {
    let shell = Shell::new();
    assert!(shell.fine("events").err.contains("nothing was changed yet"));
    shell.fine("tier set user:1 basic --reason one");
    shell.words(&["block", "user:2", "--for", "forever", "--reason", "a \u{202e} b"]);
    let told = shell.fine("events --audit").out;
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines.len(), 3);
    assert!(lines[1].contains("alice  tier set  user:1   without a tier  basic for ever "));
    assert!(lines[1].ends_with("  one"), "{told}");
    assert!(lines[2].ends_with("not blocked     blocked for ever  a \\u{202e} b"), "{told}");
    let last = shell.fine("events --rows 1 -o json").json();
    assert_eq!(last["items"].as_array().unwrap().len(), 1);
    assert_eq!(last["items"][0]["subject"], "user:2");
    let mut command = shell.command(&["events", "--follow", "--rows", "1", "-o", "json", "-q"]);
    let mut follower = Follower(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(follower.0.stdout.take().unwrap()).lines();
    let mut next = || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    assert_eq!(next()["subject"], "user:2");
    shell.fine("unblock user:2 --reason over");
    assert_eq!(next()["action"], "unblock");
    // A trail that is lost begins again.
    let _: () = shell.redis.command(&["FLUSHALL"]);
    shell.fine("tier set user:3 basic --reason new");
    assert_eq!(next()["subject"], "user:3");
}

#[test]
fn what_is_missing_or_too_much_ends_with_2_and_says_what_to_write() {
    let shell = Shell::new();
    let long = "x".repeat(100_000);
    for (arguments, words) in [
        (vec!["block", "user:1", "--for", "1h"], "--reason"),
        (vec!["block", "user:1", "--reason", "r"], "--for"),
        (vec!["block", "user:1", "--for", "0s", "--reason", "r"], "end at once"),
        (vec!["block", "user:1", "--for", "soon", "--reason", "r"], "or forever"),
        (vec!["block", "user:1", "--for", "1h", "--reason", " "], "needs a reason"),
        (vec!["block", "user:1", "--for", "1h", "--reason", &long], "at most 1024"),
        (vec!["block", "user:1", "--for", "1h", "--reason", "\u{1b}[2J"], "control characters"),
        (vec!["block", "ip:10.0.0.0/99", "--for", "1h", "--reason", "r"], "not an address"),
        (vec!["block", "bob", "--for", "1h", "--reason", "r"], "`bob` has no dimension"),
        (vec!["exempt", "usr:5*", "--for", "1h", "--reason", "r"], "`usr:5*` has no dimension"),
        (vec!["tier", "set", "usr:5", "free", "--reason", "r"], "`usr:5` has no dimension"),
        (
            vec![
                "override", "set", "user:1", "--rule", "a b", "--limit", "1/1s", "--for", "1h",
                "--reason", "r",
            ],
            "cannot be the name of a rule",
        ),
        (
            vec![
                "override",
                "set",
                "user:1",
                "--rule",
                "r",
                "--limit",
                "1/1s",
                "--algorithm",
                "fixed-window",
                "--burst",
                "2",
                "--for",
                "1h",
                "--reason",
                "r",
            ],
            "belongs to the buckets",
        ),
    ] {
        let ran = shell.words(&arguments);
        assert_eq!(ran.code, 2, "{arguments:?}: {}", ran.err);
        assert!(ran.err.contains(words), "{arguments:?}: {}", ran.err);
        assert!(!ran.err.contains('\u{1b}'), "{:?}", ran.err);
    }
    assert!(shell.redis.dump().is_empty());
    let nowhere = rlctl().args(["tier", "get", "user:1"]).output().unwrap();
    assert_eq!(nowhere.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&nowhere.stderr).contains("--redis URL or RLCTL_REDIS"));
}

#[test]
fn a_dry_run_shows_the_change_and_makes_none() {
    let shell = Shell::new();
    for line in [
        "override set user:1 --rule r --limit 1/1s --for 1h --reason r --dry-run",
        "tier set user:1 basic --reason r --dry-run",
        "block 10.0.0.0/8 --for 1h --reason r --dry-run",
        "exempt user:1 --for 1h --reason r --dry-run",
        "rules disable x --reason r --dry-run",
        "rules observe on --reason r --dry-run",
    ] {
        let ran = shell.fine(line);
        assert!(ran.out.contains("  now  "), "{}", ran.out);
        assert!(ran.err.contains("nothing was changed"), "{}", ran.err);
    }
    assert!(shell.redis.dump().is_empty());
}

#[test]
fn who_did_it_is_the_user_unless_another_name_is_given() {
    let shell = Shell::new();
    let by = |variables: &[(&str, &str)]| {
        let mut command =
            shell.command(&["tier", "set", "user:1", "basic", "--reason", "r", "-o", "json"]);
        for name in ["RLCTL_ACTOR", "USER", "LOGNAME"] {
            command.env_remove(name);
        }
        let ran: Ran = command.envs(variables.iter().copied()).output().unwrap().into();
        ran.json()["by"].clone()
    };
    assert_eq!(by(&[("RLCTL_ACTOR", "deploy-bot"), ("USER", "bob")]), "deploy-bot");
    assert_eq!(by(&[("USER", "bob"), ("LOGNAME", "rob")]), "bob");
    assert_eq!(by(&[("LOGNAME", "rob")]), "rob");
    assert_eq!(by(&[]), "unknown");
}

#[test]
fn a_readonly_context_is_looked_at_and_not_changed() {
    let shell = Shell::new();
    let folder = shell.redis.dir.path();
    std::fs::write(folder.join(".rlctl.toml"), "[context.prod]\nreadonly = true\n").unwrap();
    let run = |line: &str| -> Ran {
        let words: Vec<&str> = line.split(' ').collect();
        let mut command = shell.command(&words);
        command.current_dir(folder).env("RLCTL_CONTEXT", "prod").output().unwrap().into()
    };
    let refused = run("block user:1 --for 1h --reason r");
    assert_eq!(refused.code, 6, "{}", refused.err);
    assert!(refused.err.contains("readonly"), "{}", refused.err);
    assert_eq!(run("block user:1 --for 1h --reason r --dry-run").code, 0);
    assert_eq!(run("override list").code, 0);
    assert!(shell.redis.dump().is_empty());
}

#[test]
fn check_and_effective_obey_what_is_on_record() {
    let shell = Shell::new();
    let file = shell.redis.dir.path().join("rules.toml");
    let policy = "default_tier = \"free\"\n[tiers.free]\nlimits = [\"10/1d\"]\n\
        [tiers.gold]\nlimits = [{ limit = \"1000/1d\", algorithm = \"gcra\" }]\n\
        [[rule]]\nname = \"per-user\"\ndimension = \"user\"\nlimits = \"tier\"\n";
    std::fs::write(&file, policy).unwrap();
    let path = file.to_str().unwrap();
    let check = || shell.run(&format!("check user:1 --rules {path} -o json"));
    assert_eq!(check().json()["limit"], 10);
    shell.fine("tier set user:1 gold --reason r");
    assert_eq!(check().json()["limit"], 1000);
    shell.fine("override set user:1 --rule per-user --limit 500/1d --for 1h --reason import");
    let decided = check().json();
    assert_eq!((&decided["limit"], &decided["algorithm"]), (&json!(500), &json!("gcra")));
    let effective = shell.fine(&format!("rules effective user:1 --rules {path} -o json")).json();
    assert_eq!(effective["items"][0]["source"], "override");
    assert_eq!(effective["tier"], "gold");
    shell.fine("block user:* --for 1h --reason abuse");
    assert_eq!(check().code, 8);
    let effective = shell.fine(&format!("rules effective user:1 --rules {path} -o json")).json();
    assert_eq!(effective["blocked"]["reason"], "abuse");
    shell.fine("unblock user:* --reason r");
    shell.fine("override rm user:1 --rule per-user --reason r");
    shell.fine("tier rm user:1 --reason r");
    assert_eq!(check().json()["limit"], 10);
}

#[test]
fn a_name_that_the_given_rules_do_not_have_is_refused() {
    let shell = Shell::new();
    let file = shell.redis.dir.path().join("rules.toml");
    let rules = "[tiers.gold]\nlimits = [\"9/1m\"]\n[[rule]]\nname = \"per-user\"\ndimension = \"user\"\nlimits = [\"5/1m\"]\n";
    std::fs::write(&file, rules).unwrap();
    let file = file.to_str().unwrap();
    let before = shell.redis.dump();
    for (line, words) in [
        (
            "override set user:1 --rule per-usr --limit 9/1m --for 1h --reason r",
            "rules.toml has no rule `per-usr`; did you mean `per-user`?",
        ),
        ("tier set user:1 golden --reason r", "has no tier `golden`; did you mean `gold`?"),
        ("rules disable per-uzer --reason r", "did you mean `per-user`?"),
        ("override set user:1 --rule zzz --limit 9/1m --for 1h --reason r", "no rule `zzz`\n"),
    ] {
        let told = shell.run(&format!("{line} --rules {file}"));
        assert_eq!(told.code, 2, "{line}: {}", told.err);
        assert!(told.err.contains(words), "{line}: {}", told.err);
        assert!(shell.redis.dump() == before, "{line}: something was changed");
    }
    let set = "override set user:1 --rule per-user --limit 9/1m --for 1h --reason r";
    shell.fine(&format!("{set} --rules {file}"));
    shell.fine(&format!("rules publish {file} --reason r"));
    let typed = set.replace("per-user", "per-usr");
    // By what is published it is only noted: gateways may work by a file.
    let noted = shell.fine(&typed);
    let words = "version 1 of the policy has no rule `per-usr`; did you mean `per-user`?";
    assert!(noted.err.contains(words), "{}", noted.err);
    let told = shell.run(&format!("{typed} --rules store"));
    assert_eq!(told.code, 2, "{}", told.err);
    assert!(told.err.contains("the published policy has no rule `per-usr`"), "{}", told.err);
}

#[test]
fn a_policy_that_is_shown_has_no_passwords_and_can_be_edited_and_published_again() {
    let shell = Shell::new();
    let file = |name: &str, text: &str| {
        let path = shell.redis.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let rules = "[[rule]]\nname = \"per-user\"\ndimension = \"user\"\nlimits = [\"5/1m\"]\nstore = \"gold\"\n[stores.gold]\nurl = \"redis://:s3cret@127.0.0.1:1\" # theirs\n";
    let first = file("first.toml", rules);
    shell.fine(&format!("rules publish {first} --reason r"));
    for line in ["rules show store --text", &format!("rules show {first} --text")] {
        let shown = shell.fine(line).out;
        assert_eq!(shown, rules.replace(":s3cret", "***"), "{line}");
    }
    let edited = rules.replace(":s3cret", "***").replace("5/1m", "6/1m");
    let second = file("second.toml", &edited);
    // It can be looked at as it is,
    let linted = shell.fine(&format!("rules lint {second}"));
    assert!((linted.out + &linted.err).contains("password in the url of this store is masked"));
    let differs = shell.run(&format!("rules diff store {second}"));
    assert_eq!(differs.code, 8, "{}", differs.err);
    assert!(differs.out.contains("6/1m") && !differs.out.contains("stores"), "{}", differs.out);
    shell.fine(&format!("rules publish {second} --reason r"));
    let published: String = shell.redis.command(&["HGET", "rl1:{$policy}:history", "2:text"]);
    assert_eq!(published, rules.replace("5/1m", "6/1m"));
    // but nobody enforces it.
    let other = file("other.toml", &edited.replace("gold", "lead"));
    let refused = shell.run(&format!("rules publish {other} --reason r"));
    assert_eq!(refused.code, 3, "{}", refused.err);
    assert!(refused.err.contains("is masked"), "{}", refused.err);
    let served = shell.run(&format!("serve --rules {second} --listen 127.0.0.1:0 -q"));
    assert_eq!(served.code, 3, "{}", served.err);
    assert!(served.err.contains("is masked"), "{}", served.err);
}
