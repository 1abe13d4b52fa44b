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

#[test]
fn what_is_published_can_be_shown_linted_and_compared_by_version() {
    let (shell, path) = shell_with(POLICY);
    for line in ["rules show store", "rules diff store store", "rules lint store"] {
        let none = shell.run(line);
        assert_eq!(none.code, 7, "{line}: {}", none.err);
        assert!(none.err.contains("rlctl rules publish"), "{line}: {}", none.err);
    }
    shell.fine(&format!("rules publish {path} --reason first"));
    std::fs::write(&path, POLICY.replace("40/1d", "30/1d")).unwrap();
    assert_eq!(shell.run(&format!("rules diff store {path}")).code, 8);
    shell.fine(&format!("rules publish {path} --reason second"));
    shell.fine(&format!("rules diff store {path}"));
    let diff = shell.run("rules diff store:1 store");
    assert_eq!(diff.code, 8);
    assert_eq!(
        diff.out,
        "rule everybody  limit  40/1d token-bucket -> 30/1d token-bucket  (less)\n"
    );
    assert_eq!(shell.fine("rules show store:1 --text").out, POLICY);
    shell.fine("rules disable orders --reason incident");
    let shown = shell.fine("rules show --rules store -o json");
    assert!(shown.err.contains("published by alice at 20"), "{}", shown.err);
    assert!(shown.err.contains("rule orders is switched off: incident"), "{}", shown.err);
    assert_eq!(shown.json()["version"], 2);
    assert_eq!(shown.json()["items"][1]["enabled"], false);
    let gone = shell.run("rules show store:9");
    assert_eq!(gone.code, 7);
    assert!(gone.err.contains("rlctl rules history"), "{}", gone.err);
    assert!(shell.fine("rules lint store").out.starts_with("store: 4 rules, 1 tier"));
}

#[test]
fn a_difference_is_told_in_words_and_for_whom_it_is_more_or_less() {
    let shell = Shell::new();
    let dir = shell.redis.dir.path().to_path_buf();
    let base = "default_tier = \"free\"\n[tiers.free]\nlimits = [\"10/1s\"]\n\
        [tiers.gold]\nlimits = [\"100/1s\"]\n";
    let rule = |name: &str, more: &str| {
        format!("[[rule]]\nname = \"{name}\"\ndimension = \"user\"\n{more}\n")
    };
    let plain = rule("a", "limits = [\"5/1s\"]");
    let diff = |before: &str, after: &str| {
        let file = |name: &str, text: &str| {
            std::fs::write(dir.join(name), format!("{base}{text}")).unwrap();
            dir.join(name).to_str().unwrap().to_string()
        };
        shell.run(&format!("rules diff {} {}", file("a.toml", before), file("b.toml", after)))
    };
    let with = |more: &str| format!("{plain}{more}");
    for (before, after, words) in [
        (
            plain.clone(),
            String::new(),
            "rule a  rule  gone: 5/1s token-bucket for each user  (more)\n",
        ),
        (
            String::new(),
            rule("b", "endpoint = \"/x\"\ncost = 2\nlimits = [\"5/1s\", \"9/1m\"]"),
            "rule b  rule  new: 5/1s token-bucket and 9/1m token-bucket for each user, cost 2, \
             endpoint /x  (less)\n",
        ),
        (
            String::new(),
            rule("b", "shadow = true\nlimits = \"tier\""),
            "rule b  rule  new: the limits of the tier for each user, shadow true\n",
        ),
        (plain.clone(), with("cost = 3"), "rule a  cost  1 -> 3  (less)\n"),
        (plain.clone(), with("enabled = false"), "rule a  enabled  true -> false  (more)\n"),
        (with("shadow = true"), plain.clone(), "rule a  shadow  true -> false  (less)\n"),
        (plain.clone(), with("missing = \"reject\""), "rule a  missing  allow -> reject  (less)\n"),
        (
            String::new(),
            "[assign]\n\"user:7\" = \"gold\"\n".into(),
            "tier of  user:7  new: gold  (more)\n",
        ),
        (
            String::new(),
            "[[block]]\nmatch = [\"user:1\"]\nreason = \"bad\"\nuntil = 2099-12-31T00:00:00Z\n"
                .into(),
            "blocked  user:1  new: until 2099-12-31T00:00:00Z: bad  (less)\n",
        ),
        (
            String::new(),
            "[[exempt]]\nmatch = [\"user:1\"]\nreason = \"ours\"\n".into(),
            "exempt  user:1  new: for ever: ours  (more)\n",
        ),
        (
            String::new(),
            "[defaults]\nbreaker = { consecutive = 5 }\n".into(),
            "policy  breaker consecutive  10 -> 5\n",
        ),
        (
            "[[upstream]]\nprefix = \"/a\"\nurl = \"http://u:hunter2@h:1\"\n".into(),
            "[response]\nstatus = 503\n".into(),
            "policy  response status  429 -> 503\npolicy  upstream /a  gone: http://***@h:1\n",
        ),
        (
            rule("a", "limits = [{ limit = \"5/1s\", algorithm = \"leaky-bucket\" }]"),
            rule(
                "a",
                "limits = [{ limit = \"5/1s\", algorithm = \"leaky-bucket\", max_delay = \"3s\" }]",
            ),
            "rule a  limit  5/1s leaky-bucket, held at most 1s -> 5/1s leaky-bucket, held at most 3s\n",
        ),
        (
            format!("{plain}{}", rule("b", "limits = [\"9/1s\"]")),
            format!("{}{plain}", rule("b", "limits = [\"9/1s\"]")),
            "policy  first to win  a, b -> b, a\n",
        ),
        (
            format!("{plain}{}", rule("b", "endpoint = \"/b\"\nlimits = [\"9/1s\"]")),
            format!("{}{plain}", rule("b", "endpoint = \"/b\"\nlimits = [\"9/1s\"]")),
            "no difference\n",
        ),
    ] {
        let ran = diff(&before, &after);
        assert_eq!(ran.out, words, "{}", ran.err);
        assert_eq!(ran.code, if words == "no difference\n" { 0 } else { 8 });
    }
    let default = diff("", "").code;
    assert_eq!(default, 0);
}

#[test]
fn blocks_and_exemptions_in_force_are_listed_with_where_they_stand() {
    let (shell, path) = shell_with(&format!(
        "{POLICY}[[block]]\nmatch = [\"user:old\"]\nreason = \"over\"\nuntil = 2020-01-01T00:00:00Z\n"
    ));
    let who = |line: &str| -> Vec<String> {
        let report = shell.fine(&format!("{line} -o json")).json();
        let items = report["items"].as_array().unwrap().clone();
        items.iter().map(|item| item["who"].as_str().unwrap().to_string()).collect()
    };
    assert!(shell.fine("block --list").err.contains("nobody is blocked"));
    shell.fine("block user:1 --for 2h --reason abuse");
    shell.fine("block 198.51.100.0/24 --for forever --reason stuffing");
    shell.fine("exempt apikey:probe-* --for 1h --reason probes");
    shell.fine("tier set user:3 free --reason r");
    assert_eq!(who("block --list"), ["ip:198.51.100.0/24", "user:1"]);
    assert_eq!(who("exempt --list"), ["apikey:probe-*"]);
    assert_eq!(who(&format!("block --list --rules {path}")).len(), 2, "what is over is left out");
    assert_eq!(who(&format!("exempt --list --rules {path}")), ["apikey:probe-*", "user:vip"]);
    assert_eq!(who("exempt --list --rules store"), ["apikey:probe-*"], "none is published");
    let table = shell.fine("block --list").out;
    assert!(
        table.contains(" ip:198.51.100.0/24  for ever              alice  stuffing"),
        "{table}"
    );
    let both = shell.run("block user:2 --for 1h --reason r --list");
    assert_eq!(both.code, 2, "{}", both.out);
    shell.fine("unblock user:1 --reason over");
    assert_eq!(who("block --list"), ["ip:198.51.100.0/24"]);
}
