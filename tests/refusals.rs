//! What operators may not do is refused with a reason, and nothing is changed; and what each kind
//! of user needs to be allowed, is enough.

use std::fs;
use std::path::Path;
use std::process::Command;

use rlctl::ops::doctor::ROLES;

use crate::cli::rlctl;
use crate::registry_cli::{Ran, Shell};
use crate::support::proxy::Proxy;

fn ran(mut command: Command) -> Ran {
    command.output().expect("rlctl runs").into()
}

fn in_folder(shell: &Shell, folder: &Path, line: &str) -> Ran {
    let mut command = rlctl();
    command.args(line.split(' ')).current_dir(folder).env("XDG_CONFIG_HOME", folder);
    if !line.contains("--context") {
        command.env("RLCTL_REDIS", shell.redis.url());
    }
    ran(command)
}

#[test]
fn a_reset_needs_a_yes_a_context_that_allows_it_and_a_place_for_its_backup() {
    let shell = Shell::new();
    let folder = tempfile::tempdir().unwrap();
    let url = shell.redis.url();
    let contexts = format!(
        "[context.prod]\nredis = \"{url}\"\nprotected = true\n[context.look]\nredis = \"{url}\"\nreadonly = true\n"
    );
    fs::write(folder.path().join(".rlctl.toml"), contexts).unwrap();
    shell.fine("check user:1 --limit 10/1h --cost 4 -q");
    let before = shell.redis.dump();
    fs::write(folder.path().join("taken"), "mine").unwrap();
    for (line, code, words) in [
        ("reset user:1", 6, "add --yes"),
        ("reset --match user:*", 6, "add --yes"),
        ("reset user:1 --yes --context prod", 6, "protected"),
        ("reset user:1 --yes --context look", 6, "readonly"),
        ("doctor --fix --context look", 6, "readonly"),
        ("reset user:1 --yes --backup taken", 1, "nothing was removed"),
        ("reset user:1 --yes --backup no/such/folder", 1, "nothing was removed"),
        ("reset user:2 --yes", 7, "nothing is used by user:2"),
        ("reset user:1 --rule other --yes", 7, "of rule other"),
        ("reset", 2, "IDENTITY"),
        ("reset user:1 --match user:*", 2, "cannot be used with"),
        ("undo taken --yes", 3, "no backup of rlctl"),
        ("undo nowhere --yes", 3, "cannot read"),
        ("inspect user:1 --dialect nobodys", 2, "shipped are"),
        ("keys --limit 10/1m", 2, "--dialect"),
        ("keys --rows 0", 2, "at least 1"),
    ] {
        let told = in_folder(&shell, folder.path(), line);
        assert_eq!(told.code, code, "{line}: {}{}", told.out, told.err);
        assert!(told.err.contains(words), "{line}: {}", told.err);
        assert!(shell.redis.dump() == before, "{line}: something was changed");
    }
    assert_eq!(fs::read_to_string(folder.path().join("taken")).unwrap(), "mine");
    let files: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(files.len(), 2, "no backup is left behind: {files:?}");
    // What may only be looked at, may be looked at.
    for line in [
        "inspect user:1 --context look",
        "keys --context look",
        "doctor --context look",
        "reset user:1 --dry-run --context look",
    ] {
        let told = in_folder(&shell, folder.path(), line);
        assert_eq!(told.code, 0, "{line}: {}", told.err);
    }
    let done = in_folder(&shell, folder.path(), "reset user:1 --yes");
    assert_eq!(done.code, 0, "{}", done.err);
    let file = done.out.lines().find_map(|line| line.strip_prefix("backup: ")).unwrap();
    let cut = fs::read_to_string(folder.path().join(file)).unwrap();
    let cut: Vec<&str> = cut.lines().collect();
    fs::write(folder.path().join("cut"), cut[..cut.len() - 1].join("\n")).unwrap();
    let told = in_folder(&shell, folder.path(), "undo cut --yes");
    assert_eq!((told.code, shell.redis.command::<i64>(&["EXISTS", "rl1:{user:1}"])), (3, 0));
    let unsure = in_folder(&shell, folder.path(), &format!("undo {file}"));
    assert_eq!((unsure.code, shell.redis.command::<i64>(&["EXISTS", "rl1:{user:1}"])), (6, 0));
    let undone = in_folder(&shell, folder.path(), &format!("undo {file} --yes"));
    assert_eq!((undone.code, shell.redis.command::<i64>(&["EXISTS", "rl1:{user:1}"])), (0, 1));
}

#[test]
fn what_has_expired_meanwhile_is_said_and_does_not_come_back() {
    let shell = Shell::new();
    let folder = tempfile::tempdir().unwrap();
    shell.fine("check user:1 --limit 10/1h --cost 4 -q");
    shell.fine("check user:2 --limit 2/1s --cost 2 -q");
    let done = in_folder(&shell, folder.path(), "reset user:1 user:2 --yes --backup b");
    assert_eq!(done.code, 0, "{}", done.err);
    std::thread::sleep(std::time::Duration::from_millis(1_100));
    let undone = in_folder(&shell, folder.path(), "undo b --yes");
    assert!(undone.out.contains("1 key to bring back, 1 have expired meanwhile"), "{}", undone.out);
    assert_eq!(shell.redis.command::<i64>(&["EXISTS", "rl1:{user:1}", "rl1:{user:2}"]), 1);
}

#[test]
fn each_role_may_do_what_it_is_for_and_no_more() {
    let shell = Shell::new();
    let folder = tempfile::tempdir().unwrap();
    shell.fine("check user:1 --limit 10/1h --cost 4 -q");
    let url = |user: &str| format!("redis://{user}:pw@127.0.0.1:{}/0", shell.redis.port);
    let rights = |names: &[&str]| -> Vec<String> {
        let roles = ROLES.iter().filter(|role| names.contains(&role.name));
        roles.flat_map(|role| role.commands).map(|command| format!("+{command}")).collect()
    };
    let document = fs::read_to_string("docs/keys.md").unwrap();
    for (user, names, keys) in [
        ("looks", vec!["read-only"], "%R~rl1:*"),
        ("repairs", vec!["read-only", "operator"], "~rl1:*"),
        ("enforces", vec!["gateway"], "~rl1:*"),
    ] {
        let rights = rights(&names);
        let own = ROLES.iter().find(|role| Some(&role.name) == names.last()).unwrap();
        let listed: Vec<String> =
            own.commands.iter().map(|command| format!("+{command}")).collect();
        let listed = listed.join(" ");
        let spaces = document.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(spaces.contains(&listed), "docs/keys.md does not list {user}: {listed}");
        let mut words = vec!["ACL", "SETUSER", user, "on", ">pw", "resetkeys", keys, "-@all"];
        words.extend(rights.iter().map(String::as_str));
        shell.redis.command::<String>(&words);
    }
    let as_user = |user: &str, line: &str| {
        let mut command = rlctl();
        command.args(line.split(' ')).env("RLCTL_REDIS", url(user)).current_dir(folder.path());
        ran(command)
    };
    let fine = |user: &str, line: &str| {
        let told = as_user(user, line);
        assert_eq!(told.code, 0, "{user}: {line}: {}{}", told.out, told.err);
        told
    };
    for line in ["inspect user:1 --raw", "keys --sort memory", "reset --match user:* --dry-run"] {
        fine("looks", line);
        fine("repairs", line);
    }
    let told = fine("looks", "doctor");
    assert!(told.out.contains("user looks has the rights of: read-only"), "{}", told.out);
    assert!(
        told.out.contains("nothing found") && !told.out.contains("not checked"),
        "{}",
        told.out
    );
    let before = shell.redis.dump();
    for line in
        ["reset user:1 --yes", "reset --match user:* --yes", "block user:1 --for 1h --reason r"]
    {
        let told = as_user("looks", line);
        assert_eq!(told.code, 5, "{line}: {}", told.err);
        assert!(told.err.to_lowercase().contains("perm"), "{line}: {}", told.err);
        assert!(shell.redis.dump() == before, "{line} changed something");
    }
    let left = fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left, 0, "a backup of nothing is left behind");
    fine("enforces", "check user:1 --limit 10/1h");
    fine("enforces", "check user:3 --limit 10/1h --algorithm sliding-log --idempotency-key k");
    shell.redis.command::<i64>(&["PERSIST", "rl1:{user:1}"]);
    fine("repairs", "doctor --fix");
    fine("repairs", "override set user:1 --rule cli --limit 5/1m --for 2h --reason r");
    fine("repairs", "reset user:1 --yes --backup b");
    fine("repairs", "undo b --yes");
    fine("repairs", "reset user:1 --rule cli --yes --backup c");
    assert_eq!(shell.redis.command::<i64>(&["EXISTS", "rl1:{user:1}"]), 0);
}

#[test]
fn an_identity_takes_one_round_trip() {
    let shell = Shell::new();
    shell.fine("check user:1 --limit 10/1h --limit 5/1m --algorithm sliding-log -q");
    let proxy = Proxy::start(shell.redis.port, 0);
    let trips = |identity: &str, identities: usize| {
        let mut command = rlctl();
        command.arg("inspect").args(vec![identity; identities]);
        let told = ran({
            command.args(["-o", "json", "--redis", &proxy.url()]);
            command
        });
        assert_eq!(told.code, if identity == "user:1" { 0 } else { 7 }, "{}", told.err);
        proxy.round_trips()
    };
    // One that is whole has nothing stored, and is not looked for elsewhere.
    for identity in ["user:1", "user:whole"] {
        let one = trips(identity, 1);
        assert_eq!(trips(identity, 41) - one, 40, "{identity}");
    }
}
