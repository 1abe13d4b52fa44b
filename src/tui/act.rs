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
    pub flags: Option<String>,
    /// An admin address.
    pub admin: Option<String>,
}

/// A request to a gateway's admin address.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    pub path: String,
    pub body: Value,
}

impl Act {
    /// What will be done, and what that means.
    pub fn plan(&self) -> Vec<String> {
        match self {
            Act::Reset { identity, rule } => vec![
                format!("reset    {}", shown(identity)),
                match rule {
                    Some(rule) => format!("of       rule {}", shown(rule)),
                    None => "of       every rule".into(),
                },
                "then     all its quota is there again, at once; it is not blocked from using it"
                    .into(),
            ],
            Act::Override { identity, rule, limit } => vec![
                format!("override {}", shown(identity)),
                format!("of       rule {}, for {FOR}", shown(rule)),
                format!("then     its limit is {limit}; afterwards the rule's own holds again"),
            ],
            Act::Block { identity } => vec![
                format!("block    {}", shown(identity)),
                format!("for      {FOR}, on every gateway, within a second"),
                "then     each of its requests is refused with 429".into(),
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
            ],
        }
    }

    /// The same on a command line: by Redis where that is known, else by a gateway.
    pub fn command(&self, at: &Where) -> String {
        let Some(flags) = at.flags.as_deref().filter(|_| !matches!(self, Act::Mode { .. })) else {
            let Request { path, body } = self.request();
            let admin = at.admin.as_deref().unwrap_or("http://127.0.0.1:9090");
            return format!(
                "curl --json {} {}",
                quoted(&body.to_string()),
                quoted(&format!("{admin}{path}"))
            );
        };
        let flags = if flags.is_empty() { String::new() } else { format!(" {flags}") };
        let rest = format!("--for {FOR} --reason '{REASON}'{flags}");
        match self {
            Act::Reset { identity, rule } => {
                let rule = rule.as_ref().map(|rule| format!(" --rule {}", quoted(rule)));
                format!("rlctl reset {}{}{flags}", quoted(identity), rule.unwrap_or_default())
            }
            Act::Override { identity, rule, limit } => {
                let (identity, rule) = (quoted(identity), quoted(rule));
                format!("rlctl override set {identity} --rule {rule} --limit {limit} {rest}")
            }
            Act::Block { identity } => format!("rlctl block {} {rest}", quoted(identity)),
            Act::Mode { .. } => String::new(),
        }
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
        let at = Where { flags: Some("--context prod".into()), admin: None };
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
            assert_eq!(act.plan().len(), 3, "{act:?}");
        }
    }

    #[test]
    fn a_raised_limit_is_ten_times_as_much() {
        assert_eq!(raised("100/1m").as_deref(), Some("1000/1m"));
        assert_eq!(raised("10/1s burst 20").as_deref(), Some("100/1s"));
        assert_eq!(raised("nonsense"), None);
    }
}
