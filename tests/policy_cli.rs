//! What the commands say about a policy and what is on record beside it.

use serde_json::{Value, json};

use crate::registry_cli::Shell;

/// A shell with rules in the file `rules.toml`, which is the one in use.
fn shell_with(rules: &str) -> (Shell, String) {
    let shell = Shell::new();
    let file = shell.redis.dir.path().join("rules.toml");
    std::fs::write(&file, rules).unwrap();
    let path = file.to_str().unwrap().to_string();
    (shell, path)
}

const POLICY: &str = r#"
default_tier = "free"
[tiers.free]
limits = ["10/1d"]
[[rule]]
name = "per-user"
dimension = "user"
limits = "tier"
[[rule]]
name = "orders"
dimension = "user"
endpoint = "/orders"
methods = ["POST"]
limits = ["20/1d", "1000/30d"]
cost = 5
[[rule]]
name = "admin"
dimension = "apikey"
endpoint = "/admin/*"
missing = "reject"
limits = ["5/1d"]
[[rule]]
name = "everybody"
dimension = "global"
limits = ["40/1d"]
[[exempt]]
match = ["user:vip"]
reason = "ours"
"#;

fn rules_of(report: &Value) -> Vec<&str> {
    report["items"].as_array().unwrap().iter().map(|item| item["rule"].as_str().unwrap()).collect()
}

#[test]
fn effective_names_every_limit_that_a_request_meets() {
    let (shell, path) = shell_with(POLICY);
    let effective =
        |more: &str| shell.fine(&format!("rules effective {more} --rules {path} -o json")).json();
    let anywhere = effective("user:1");
    assert_eq!(rules_of(&anywhere), ["per-user", "orders", "orders", "everybody"]);
    assert_eq!(anywhere["items"][3]["identity"], "global:all");
    assert_eq!(rules_of(&effective("user:1 --method GET")), ["per-user", "everybody"]);
    let orders = effective("user:1 --endpoint /orders --method post");
    assert_eq!(rules_of(&orders), ["orders", "orders", "everybody"]);
    assert_eq!(rules_of(&effective("global:all")), ["everybody"]);
    let vip = effective("user:vip");
    assert_eq!((rules_of(&vip), &vip["exempt"]["reason"]), (vec!["everybody"], &json!("ours")));
    let admin = effective("user:1 --endpoint /admin/x");
    assert_eq!((&admin["missing"], &admin["tier"]), (&json!("admin"), &json!("free")));
    assert_eq!(rules_of(&admin), ["per-user", "everybody"]);
    shell.fine("block user:1 --for 1h --reason abuse");
    let blocked = effective("user:1");
    assert_eq!((&blocked["tier"], rules_of(&blocked).len()), (&json!("free"), 4));
    let noted = shell.fine(&format!("rules effective user:2 --endpoint /orders --rules {path}"));
    assert!(noted.err.contains("left out: orders (POST)"), "{}", noted.err);
}

#[test]
fn effective_says_until_when_an_override_holds_and_why() {
    let (shell, path) = shell_with(POLICY);
    shell.fine("override set user:1 --rule per-user --limit 5/1m --for 2h --reason import");
    let item = |shell: &Shell| {
        let ran = shell.fine(&format!("rules effective user:1 --rules {path} -o json"));
        ran.json()["items"][0].clone()
    };
    let first = item(&shell);
    assert!(first["until_us"].as_u64().is_some(), "{first}");
    assert_eq!(first["reason"], "import");
    let told = shell.fine(&format!("rules effective user:1 --rules {path}")).out;
    assert!(told.contains("override until 20") && told.contains("Z: import"), "{told}");
    shell.fine("override set user:1 --rule per-user --limit 5/1m --for forever --reason deal");
    assert_eq!(item(&shell)["until_us"], Value::Null);
}

#[test]
fn check_counts_everybody_too_and_says_what_was_not_taken() {
    let (shell, path) = shell_with(POLICY);
    let check = |more: &str| shell.run(&format!("check {more} --rules {path}"));
    for user in ["a", "b", "c", "d"] {
        assert_eq!(check(&format!("user:{user} --cost 10")).code, 0);
    }
    let shared = check("user:e -v");
    assert_eq!(shared.code, 8, "{}", shared.out);
    assert!(shared.out.contains("  rule everybody, token-bucket 40/1d: 0 of 40 left"));
    assert!(shared.out.contains("a cost of 1 would pass; nothing was taken"), "{}", shared.out);
    assert!(!shared.out.contains("was taken and leaves"), "{}", shared.out);
    let whole = check("user:e --cost 0 -o json").json();
    assert_eq!(whole["rule"], "everybody");
    let never = check("user:f --endpoint /orders --method POST --cost 9");
    assert!(
        never.out.contains("a cost of 9, 45 by this rule, never passes: at most 20"),
        "{}",
        never.out
    );
    let vip = check("user:vip --cost 0");
    assert!(vip.out.contains("  exempt for ever: ours\n"), "{}", vip.out);
}

#[test]
fn a_rule_that_is_switched_off_is_said_wherever_it_is_missed() {
    let (shell, path) = shell_with(POLICY);
    shell.fine("rules disable per-user --reason incident");
    shell.fine("rules disable nobody-has-this --reason typo");
    for line in ["rules effective user:1", "check user:1"] {
        let ran = shell.fine(&format!("{line} --rules {path}"));
        assert!(ran.err.contains("note: rule per-user is switched off: incident (by alice)"));
        assert!(!ran.err.contains("nobody-has-this"), "{}", ran.err);
    }
}
