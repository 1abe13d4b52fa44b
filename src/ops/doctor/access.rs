//! What the user that is logged in may do: enough to look, to repair, to enforce.

use super::{Diagnosis, Problem};
use crate::engine::store::StoreError;
use crate::engine::store::redis::{Node, Words};
use crate::ops::layout::Layout;

/// Somebody who works with the keys, and the commands that takes: as in docs/keys.md.
#[derive(Clone, Copy, Debug)]
pub struct Role {
    pub name: &'static str,
    pub commands: &'static [&'static str],
}

pub const ROLES: [Role; 3] = [
    Role {
        name: "read-only",
        commands: &[
            "ping",
            "echo",
            "time",
            "info",
            "role",
            "scan",
            "type",
            "get",
            "mget",
            "hget",
            "hmget",
            "hgetall",
            "hscan",
            "pttl",
            "multi",
            "exec",
            "memory|usage",
            "xrange",
            "xrevrange",
            "config|get",
            "script|exists",
            "cluster|info",
            "cluster|nodes",
            "cluster|slots",
            "asking",
            "readonly",
            "acl|whoami",
            "acl|dryrun",
        ],
    },
    Role {
        name: "operator",
        commands: &[
            "eval",
            "evalsha",
            "set",
            "del",
            "unlink",
            "dump",
            "restore",
            "pexpiretime",
            "hset",
            "hdel",
            "hexists",
            "xadd",
            "pexpire",
            "pexpireat",
            "script|load",
        ],
    },
    Role {
        name: "gateway",
        commands: &[
            "ping",
            "role",
            "eval",
            "evalsha",
            "time",
            "get",
            "set",
            "del",
            "mget",
            "hget",
            "hmget",
            "hgetall",
            "hscan",
            "hset",
            "hdel",
            "hexists",
            "pexpire",
            "pexpireat",
            "xadd",
            "xrange",
            "xrevrange",
            "unlink",
            "cluster|info",
            "cluster|slots",
            "asking",
        ],
    },
];

pub(super) async fn examine(diagnosis: &mut Diagnosis, primaries: &[Node], layouts: &[Layout]) {
    let Some(primary) = primaries.first() else { return };
    let key = match layouts.first() {
        Some(Layout::Own(prefix)) => format!("{}{{x}}", prefix.as_str()),
        _ => return,
    };
    let Ok(user) = primary.console.text(&["ACL", "WHOAMI"]).await else {
        let why = "ACL WHOAMI is not allowed to this user, or not known".to_owned();
        return diagnosis.checked("access", Vec::new(), Some(why));
    };
    let (mut found, mut suffices) = (Vec::new(), Vec::new());
    for role in &ROLES {
        let Some(missing) = missing(primary, &user, role, &key).await else {
            let why = "ACL DRYRUN is not allowed to this user, or not known".to_owned();
            return diagnosis.checked("access", Vec::new(), Some(why));
        };
        if missing.is_empty() {
            suffices.push(role.name);
        } else if role.name == "read-only" {
            let text = format!("user `{user}` may not run {}", missing.join(", "));
            let means = "some of inspect, keys and doctor cannot be done as this user";
            found.push(
                Problem::warning(text, means).remedy("docs/keys.md lists what each role needs"),
            );
        }
    }
    let roles = if suffices.is_empty() { "none".into() } else { suffices.join(", ") };
    diagnosis.fact("access", None, format!("user {user} has the rights of: {roles}"));
    diagnosis.checked("access", found, None);
}

/// Commands of the role that the user may not run; none where that cannot be asked.
async fn missing(primary: &Node, user: &str, role: &Role, key: &str) -> Option<Vec<String>> {
    let ask = |command: &&str| {
        let words = command.split('|').fold(Words::of("ACL DRYRUN").and(user), Words::and);
        arguments(command, key).iter().fold(words, Words::and)
    };
    let commands: Vec<Words> = role.commands.iter().map(ask).collect();
    let answers = primary.console.ask_all(&commands).await.ok()?;
    let mut missing = Vec::new();
    for (command, answer) in role.commands.iter().zip(answers) {
        match answer {
            Ok(said) if said.clone().into_text() == "OK" => {}
            Ok(_) => missing.push((*command).to_owned()),
            Err(StoreError::Refused { code, .. }) if code == "NOPERM" => return None,
            // The server does not know DRYRUN, or this command.
            Err(_) => return None,
        }
    }
    Some(missing)
}

/// Enough that the server takes it for a call.
fn arguments(command: &str, key: &str) -> Vec<String> {
    let words: Vec<&str> = match command {
        "ping" | "time" | "info" | "role" | "multi" | "exec" | "acl|whoami" | "cluster|info"
        | "cluster|nodes" | "cluster|slots" | "asking" | "readonly" => vec![],
        "echo" | "scan" => vec!["0"],
        "config|get" => vec!["maxmemory"],
        "script|exists" | "script|load" => vec!["x"],
        "acl|dryrun" => vec!["default", "ping"],
        "eval" | "evalsha" => vec!["x", "1", key],
        "set" | "hget" | "hdel" | "hexists" | "hmget" | "hscan" | "pexpire" | "pexpireat" => {
            vec![key, "1"]
        }
        "hset" => vec![key, "f", "v"],
        "restore" => vec![key, "0", "x"],
        "xadd" => vec![key, "*", "e", "x"],
        "xrange" | "xrevrange" => vec![key, "-", "+"],
        _ => vec![key],
    };
    words.into_iter().map(String::from).collect()
}
