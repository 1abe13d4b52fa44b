//! What can be done about it: each act with its plan in words and the command that does the same.

use serde_json::{Value, json};

use super::words::{quoted, shown};

/// How long what is done at night shall hold.
const FOR: &str = "15m";
const REASON: &str = "from the dashboard";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    Reset {
        identity: String,
        rule: Option<String>,
    },
    Override {
        identity: String,
        rule: String,
        limit: String,
    },
    Block {
        identity: String,
    },
    /// What becomes of requests while the store is away.
    Mode {
        rule: String,
        mode: &'static str,
    },
}

/// Where what is watched is found, for commands that are shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Where {
    /// What has to be typed for rlctl to work on the same Redis, if there is a way: maybe nothing.
    pub redis: Option<String>,
    /// The same for the gateways that are watched.
    pub gateways: Option<String>,
    /// An admin address.
    pub admin: Option<String>,
}

impl Where {
    /// A command of rlctl with what makes it work on what is watched.
    pub fn typed(&self, command: &str) -> String {
        let asks_gateways = ["top", "inspect", "events", "reset"]
            .iter()
            .any(|verb| command.strip_prefix("rlctl ").is_some_and(|rest| rest.starts_with(verb)));
        let gateways = self.gateways.as_deref().filter(|_| asks_gateways);
        let redis = match (&self.redis, gateways) {
            (Some(flags), _) => flags.as_str(),
            (None, None) if self.gateways.is_some() => "--redis URL",
            _ => "",
        };
        let mut flags = vec![redis];
        flags.extend(gateways.filter(|flags| *flags != redis));
        flags.retain(|flags| !flags.is_empty());
        format!("{command} {}", flags.join(" ")).trim_end().to_string()
    }
}

/// A request to a gateway's admin address.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    pub path: String,
    pub body: Value,
}

impl Act {
    /// What will be done, and what that means.
    pub fn plan(&self, at: &Where) -> Vec<String> {
        let undo = |command: String| {
            format!("undo     {}", at.typed(&format!("{command} --reason 'taken back'")))
        };
        match self {
            Act::Reset { identity, rule } => vec![
                format!("reset    {}", shown(identity)),
                match rule {
                    Some(rule) => format!("of       rule {}", shown(rule)),
                    None => "of       every rule".into(),
                },
                "then     all its quota is there again, at once; it is not blocked from using it"
                    .into(),
                "undo     there is no way back from here; `rlctl reset` can keep a backup".into(),
            ],
            Act::Override { identity, rule, limit } => vec![
                format!("override {}", shown(identity)),
                format!("of       rule {}, for {FOR}", shown(rule)),
                format!("then     its limit is {limit}; afterwards the rule's own holds again"),
                undo(format!("rlctl override rm {} --rule {}", quoted(identity), quoted(rule))),
            ],
            Act::Block { identity } => vec![
                format!("block    {}", shown(identity)),
                format!("for      {FOR}, on every gateway, within a second"),
                "then     each of its requests is refused with 429".into(),
                undo(format!("rlctl unblock {}", quoted(identity))),
            ],
            Act::Mode { rule, mode } => vec![
                format!("mode     of rule {} while Redis is away: {mode}", shown(rule)),
                "for      ever, until it is set to `policy` again".into(),
                match *mode {
                    "open" => "then     requests pass unlimited while Redis is away".into(),
                    "closed" => "then     requests are refused with 503 while Redis is away".into(),
                    "policy" => "then     the policy's own on_store_error holds again".into(),
                    _ => "then     each gateway enforces its share of the limit by itself".into(),
                },
                format!("undo     :mode policy, with rule {} marked", shown(rule)),
            ],
        }
    }

    /// The same on a command line: by Redis where that is known, else by a gateway.
    pub fn command(&self, at: &Where) -> String {
        if at.redis.is_none() || matches!(self, Act::Mode { .. }) {
            let Request { path, body } = self.request();
            let admin = at.admin.as_deref().unwrap_or("http://127.0.0.1:9090");
            return format!(
                "curl --json {} {}",
                quoted(&body.to_string()),
                quoted(&format!("{admin}{path}"))
            );
        }
        let rest = format!("--for {FOR} --reason '{REASON}'");
        at.typed(&match self {
            Act::Reset { identity, rule } => {
                let rule = rule.as_ref().map(|rule| format!(" --rule {}", quoted(rule)));
                format!("rlctl reset {}{}", quoted(identity), rule.unwrap_or_default())
            }
            Act::Override { identity, rule, limit } => {
                let (identity, rule) = (quoted(identity), quoted(rule));
                format!("rlctl override set {identity} --rule {rule} --limit {limit} {rest}")
            }
            Act::Block { identity } => format!("rlctl block {} {rest}", quoted(identity)),
            Act::Mode { .. } => String::new(),
        })
    }

    pub fn request(&self) -> Request {
        let user = |identity: &str, what: &str| {
            let identity =
                percent_encoding::utf8_percent_encode(identity, percent_encoding::NON_ALPHANUMERIC);
            format!("/api/v1/users/{identity}/{what}")
        };
        match self {
            Act::Reset { identity, rule } => Request {
                path: user(identity, "reset"),
                body: json!({ "rule": rule, "reason": REASON }),
            },
            Act::Override { identity, rule, limit } => Request {
                path: user(identity, "override"),
                body: json!({ "rule": rule, "limits": [limit], "for": FOR, "reason": REASON }),
            },
            Act::Block { identity } => Request {
                path: "/api/v1/blocks".into(),
                body: json!({ "target": identity, "for": FOR, "reason": REASON }),
            },
            Act::Mode { rule, mode } => Request {
                path: "/api/v1/mode".into(),
                body: json!({ "rule": rule, "on_store_error": mode, "reason": REASON }),
            },
        }
    }
}

/// Ten times a limit as it is written, to make room for somebody: `100/1m` → `1000/1m`.
pub fn raised(limit: &str) -> Option<String> {
    let (requests, rest) = limit.split_once('/')?;
    let period = rest.split(' ').next()?;
    let requests: u64 = requests.parse().ok()?;
    Some(format!("{}/{period}", requests.checked_mul(10)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_act_has_a_plan_a_command_and_a_request() {
        let identity = "user:a b".to_string();
        let at = Where { redis: Some("--context prod".into()), ..Where::default() };
        let block = Act::Block { identity: identity.clone() };
        assert_eq!(
            block.command(&at),
            "rlctl block 'user:a b' --for 15m --reason 'from the dashboard' --context prod"
        );
        assert_eq!(
            block.command(&Where::default()),
            "curl --json '{\"for\":\"15m\",\"reason\":\"from the dashboard\",\"target\":\"user:a b\"}' http://127.0.0.1:9090/api/v1/blocks"
        );
        assert_eq!(block.request().body["target"], "user:a b");
        let reset = Act::Reset { identity: identity.clone(), rule: Some("r".into()) };
        assert_eq!(reset.command(&at), "rlctl reset 'user:a b' --rule r --context prod");
        assert_eq!(reset.request().path, "/api/v1/users/user%3Aa%20b/reset");
        let mode = Act::Mode { rule: "r".into(), mode: "local" };
        assert!(mode.command(&at).starts_with("curl --json '{\"on_store_error\":\"local\""));
        for act in [block, reset, mode] {
            assert!(act.plan(&at).iter().any(|line| line.starts_with("undo ")), "{act:?}");
        }
    }

    #[test]
    fn commands_are_typed_so_that_they_work_where_they_are_shown() {
        let gateways = "--gateway http://a --gateway http://b";
        let at = |redis: Option<&str>, gateways: Option<&str>| Where {
            redis: redis.map(String::from),
            gateways: gateways.map(String::from),
            admin: None,
        };
        let only = at(None, Some(gateways));
        assert_eq!(only.typed("rlctl top --once"), format!("rlctl top --once {gateways}"));
        assert_eq!(only.typed("rlctl doctor"), "rlctl doctor --redis URL");
        let both = at(Some("--redis redis://r"), Some(gateways));
        assert_eq!(both.typed("rlctl doctor"), "rlctl doctor --redis redis://r");
        assert_eq!(
            both.typed("rlctl reset user:1"),
            format!("rlctl reset user:1 --redis redis://r {gateways}")
        );
        let context = at(Some("--context prod"), Some("--context prod"));
        assert_eq!(context.typed("rlctl events"), "rlctl events --context prod");
        // The environment says it, or it is a demo.
        assert_eq!(at(Some(""), Some("")).typed("rlctl doctor"), "rlctl doctor");
        assert_eq!(Where::default().typed("rlctl doctor"), "rlctl doctor");
    }

    #[test]
    fn a_raised_limit_is_ten_times_as_much() {
        assert_eq!(raised("100/1m").as_deref(), Some("1000/1m"));
        assert_eq!(raised("10/1s burst 20").as_deref(), Some("100/1s"));
        assert_eq!(raised("nonsense"), None);
    }
}
