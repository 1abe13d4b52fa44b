//! Which rules apply to a request: matching and precedence, as tables.

use std::sync::Arc;

use rlctl::engine::clock::Micros;
use rlctl::engine::config::parse_policy;
use rlctl::engine::identity::Identity;
use rlctl::engine::rules::{PathError, Rules, Target, normal_path};

fn rules(text: &str) -> Rules {
    let (policy, _) = parse_policy("r.toml", text, Micros::ZERO).expect(text);
    Rules::new(Arc::new(policy))
}

/// One rule of the dimension user per entry: name, further lines.
fn user_rules(entries: &[(&str, &str)]) -> Rules {
    let tiers = "[tiers.free]\nlimits = [\"1/1s\"]\n[tiers.premium]\nlimits = [\"9/1s\"]\n";
    let rule = |(name, more): &(&str, &str)| {
        let limits = if more.contains("limits") { "" } else { "limits = [\"5/1s\"]\n" };
        format!("[[rule]]\nname = \"{name}\"\ndimension = \"user\"\n{limits}{more}\n")
    };
    rules(&entries.iter().map(rule).fold(tiers.to_owned(), |text, rule| text + &rule))
}

fn identity(text: &str) -> Identity {
    text.parse().expect(text)
}

/// The names of the rules that are enforced on `user:7`, and of its shadow rules after a `|`.
fn applying(rules: &Rules, request: &str, tier: Option<&str>) -> String {
    applying_to(rules, &["user:7"], request, tier)
}

/// `request` is a method and a path, or nothing. The first identity is asked about.
fn applying_to(rules: &Rules, who: &[&str], request: &str, tier: Option<&str>) -> String {
    let all: Vec<Identity> = who.iter().map(|text| identity(text)).collect();
    let (method, path) = request.split_once(' ').unzip();
    let path = path.map(|path| normal_path(path).expect(path));
    let found =
        rules.applying(&all[0], &all, tier, Target { path: path.as_deref(), method, only: None });
    let enforced: Vec<&str> = found.enforced.iter().map(|a| a.rule.name.as_str()).collect();
    let shadow: Vec<&str> = found.shadow.iter().map(|a| a.rule.name.as_str()).collect();
    let bar = if shadow.is_empty() { "" } else { "|" };
    format!("{}{bar}{}", enforced.join(" "), shadow.join(" "))
}

#[test]
fn the_most_specific_endpoint_wins() {
    // From the least to the most specific, so that the order of the file cannot be what decides.
    let rules = user_rules(&[
        ("any", ""),
        ("below-root", "endpoint = \"/*\""),
        ("below-api", "endpoint = \"/api/*\""),
        ("below-v1", "endpoint = \"/api/v1/*\""),
        ("three-wild", "endpoint = \"/{a}/{b}/{c}\""),
        ("two-wild", "endpoint = \"/api/{b}/{c}\""),
        ("one-wild", "endpoint = \"/api/{b}/orders\""),
        ("other-wild", "endpoint = \"/api/v1/{c}\""),
        ("exact", "endpoint = \"/api/v1/orders\""),
        ("root", "endpoint = \"/\""),
    ]);
    for (request, winner) in [
        ("GET /api/v1/orders", "exact"),
        ("GET /api/v2/orders", "one-wild"),
        ("GET /api/v1/users", "other-wild"),
        ("GET /api/v2/users", "two-wild"),
        ("GET /a/b/c", "three-wild"),
        ("GET /api/v1/orders/7", "below-v1"),
        ("GET /api/v1", "below-v1"),
        ("GET /api/v2", "below-api"),
        ("GET /api", "below-api"),
        ("GET /apis", "below-root"),
        ("GET /api/v1x", "below-api"),
        ("GET /", "root"),
        ("", "any"),
    ] {
        assert_eq!(applying(&rules, request, None), winner, "{request}");
    }
}

#[test]
fn a_wildcard_stands_for_one_segment_and_not_for_none() {
    let rules =
        user_rules(&[("one", "endpoint = \"/{id}\""), ("deep", "endpoint = \"/u/{id}/x\"")]);
    for (request, winner) in [
        ("GET /a", "one"),
        ("GET /", ""),
        ("GET /a/b", ""),
        ("GET /u/7/x", "deep"),
        ("GET /u/7/8/x", ""),
        ("GET /u//x", ""),
        ("GET /u/a%20b/x", "deep"),
    ] {
        assert_eq!(applying(&rules, request, None), winner, "{request}");
    }
}

#[test]
fn equally_specific_endpoints_are_told_apart_by_methods_then_tiers_then_order() {
    let rules = user_rules(&[
        ("plain", "endpoint = \"/a\""),
        ("later", "endpoint = \"/a\""),
        ("tiers", "endpoint = \"/a\"\ntier = [\"free\"]"),
        ("methods", "endpoint = \"/a\"\nmethods = [\"POST\", \"put\"]"),
        ("both", "endpoint = \"/a\"\nmethods = [\"POST\"]\ntier = [\"free\", \"premium\"]"),
    ]);
    for (request, tier, winner) in [
        ("GET /a", None, "plain"),
        ("GET /a", Some("free"), "tiers"),
        ("GET /a", Some("premium"), "plain"),
        ("GET /a", Some("unheard-of"), "plain"),
        ("PUT /a", Some("free"), "methods"),
        ("POST /a", None, "methods"),
        ("POST /a", Some("premium"), "both"),
        ("DELETE /a", None, "plain"),
    ] {
        assert_eq!(applying(&rules, request, tier), winner, "{request} {tier:?}");
    }
}

#[test]
fn a_rule_that_does_not_fit_gives_way_to_a_less_specific_one() {
    let rules = user_rules(&[
        ("any", ""),
        ("below", "endpoint = \"/a/*\"\nmethods = [\"GET\"]"),
        ("segments", "endpoint = \"/a/{x}\"\ntier = [\"premium\"]"),
        ("exact", "endpoint = \"/a/b\"\nmatch = [\"user:1\", \"user:2*\"]"),
    ]);
    for (who, request, tier, winner) in [
        ("user:1", "GET /a/b", None, "exact"),
        ("user:29", "GET /a/b", None, "exact"),
        ("user:7", "GET /a/b", Some("premium"), "segments"),
        ("user:7", "GET /a/b", None, "below"),
        ("user:7", "PUT /a/b", None, "any"),
    ] {
        assert_eq!(applying_to(&rules, &[who], request, tier), winner, "{who} {request} {tier:?}");
    }
}

#[test]
fn also_and_shadow_rules_do_not_compete() {
    let rules = user_rules(&[
        ("shadow-any", "shadow = true"),
        ("also-any", "also = true"),
        ("winner", "endpoint = \"/a\""),
        ("loser", ""),
        ("shadow-a", "endpoint = \"/a\"\nshadow = true"),
        ("also-get", "methods = [\"GET\"]\nalso = true"),
        ("off", "endpoint = \"/a\"\nmethods = [\"GET\"]\nenabled = false"),
        ("also-off", "also = true\nenabled = false"),
    ]);
    for (request, names) in [
        ("GET /a", "winner also-any also-get|shadow-any shadow-a"),
        ("PUT /a", "winner also-any|shadow-any shadow-a"),
        ("GET /b", "loser also-any also-get|shadow-any"),
        ("", "loser also-any|shadow-any"),
    ] {
        assert_eq!(applying(&rules, request, None), names, "{request}");
    }
}

#[test]
fn match_and_unless_look_at_who_asks() {
    let rules = rules(
        "[[rule]]\nname = \"office\"\ndimension = \"ip\"\nmatch = [\"ip:10.0.0.0/8\", \"ip:2001:db8::/32\"]\n\
         limits = [\"1/1s\"]\n\
         [[rule]]\nname = \"one\"\ndimension = \"ip\"\nmatch = [\"ip:192.0.2.1\"]\nlimits = [\"1/1s\"]\n\
         [[rule]]\nname = \"anonymous\"\ndimension = \"ip\"\nunless = [\"user\", \"header:x-tenant\"]\n\
         limits = [\"1/1s\"]\n\
         [[rule]]\nname = \"tenant\"\ndimension = \"header:X-Tenant\"\nlimits = [\"1/1s\"]\n\
         [[rule]]\nname = \"all\"\ndimension = \"global\"\nlimits = [\"1/1s\"]\n",
    );
    for (who, winner) in [
        (&["ip:10.9.8.7"][..], "office"),
        (&["ip:10.9.8.7", "user:1"], "office"),
        (&["ip:2001:db8:1::5"], "office"),
        (&["ip:192.0.2.1"], "one"),
        (&["ip:192.0.2.2"], "anonymous"),
        (&["ip:192.0.2.2", "apikey:k"], "anonymous"),
        (&["ip:192.0.2.2", "user:1"], ""),
        (&["ip:192.0.2.2", "header:x-tenant:acme"], ""),
        (&["header:x-tenant:acme"], "tenant"),
        (&["header:x-tenants:acme"], ""),
        (&["global:all"], "all"),
        (&["user:1"], ""),
        (&["alice"], ""),
    ] {
        assert_eq!(applying_to(&rules, who, "GET /x", None), winner, "{who:?}");
    }
}

/// Rules for single identities are kept apart from those for many; the order of the file stands.
#[test]
fn a_rule_that_matches_in_two_ways_applies_once() {
    let rules = rules(
        "[[rule]]\nname = 'a'\ndimension = 'ip'\nalso = true\nlimits = ['1/1s']\n\
         match = ['ip:10.0.0.0/8', 'ip:10.1.0.0/16', 'ip:10.1.2.3', 'ip:10.1.2.3', 'ip:10.*']\n",
    );
    assert_eq!(applying_to(&rules, &["ip:10.1.2.3"], "GET /", None), "a");
    assert_eq!(applying_to(&rules, &["ip:10.2.2.3"], "GET /", None), "a");
    assert_eq!(applying_to(&rules, &["ip:11.1.2.3"], "GET /", None), "");
    let twice = user_rules(&[("a", "also = true\nmatch = ['user:1', 'user:1']")]);
    assert_eq!(applying_to(&twice, &["user:1"], "GET /", None), "a");
}

#[test]
fn rules_for_one_and_for_many_compete_by_the_order_of_the_file() {
    let first = user_rules(&[
        ("one", "match = [\"user:7\"]"),
        ("many", ""),
        ("late", "match = [\"user:8\"]"),
    ]);
    assert_eq!(applying_to(&first, &["user:7"], "", None), "one");
    assert_eq!(applying_to(&first, &["user:8"], "", None), "many");
    let globs = user_rules(&[("glob", "match = [\"user:*\"]"), ("one", "match = [\"user:7\"]")]);
    assert_eq!(applying(&globs, "", None), "glob");
    let specific =
        user_rules(&[("many", ""), ("one", "match = [\"user:7\"]\nmethods = [\"GET\"]")]);
    assert_eq!(applying(&specific, "GET /", None), "one");
}

#[test]
fn limits_are_the_rules_own_or_those_of_the_tier() {
    let rules = user_rules(&[("tiered", "limits = \"tier\""), ("own", "also = true")]);
    let user = [identity("user:7")];
    let limits = |tier| {
        let found = rules.applying(&user[0], &user, tier, Target::default());
        let named = found.enforced.iter().flat_map(|applied| applied.limits(tier));
        named.map(|l| format!("{} {}", l.name(), l.limit())).collect::<Vec<_>>()
    };
    assert_eq!(limits(Some("free")), ["tiered#0 1/1s", "own#0 5/1s"]);
    assert_eq!(limits(Some("premium")), ["tiered#0 9/1s", "own#0 5/1s"]);
    assert_eq!(limits(Some("unheard-of")), ["own#0 5/1s"]);
    assert_eq!(limits(None), ["own#0 5/1s"]);
}

#[test]
fn only_enforced_rules_can_require_an_identity_and_only_where_they_apply() {
    let missing = |rules: &[(&str, &str)], path: &str, method: &str| {
        let target = Target { path: Some(path), method: Some(method), only: None };
        let rules = user_rules(rules);
        rules.missing(&[identity("ip:192.0.2.1")], None, target).map(|rule| rule.name.clone())
    };
    let needed =
        [("needed", "missing = \"reject\"\nendpoint = \"/admin/*\"\nmethods = [\"POST\"]")];
    assert_eq!(missing(&needed, "/admin/x", "POST"), Some("needed".into()));
    assert_eq!(missing(&needed, "/admin", "POST"), Some("needed".into()));
    assert_eq!(missing(&needed, "/admin/x", "GET"), None);
    assert_eq!(missing(&needed, "/else", "POST"), None);
    let others = [
        ("off", "missing = \"reject\"\nenabled = false"),
        ("shadow", "missing = \"reject\"\nshadow = true"),
        ("allow", "missing = \"allow\""),
        ("segments", "missing = \"reject\"\nendpoint = \"/u/{id}/x\""),
    ];
    assert_eq!(missing(&others, "/u/1/y", "GET"), None);
    assert_eq!(missing(&others, "/u/1/x", "GET"), Some("segments".into()));
}

#[test]
fn every_spelling_of_a_path_is_one_path() {
    for (written, normal) in [
        ("/a/b", "/a/b"),
        ("/", "/"),
        ("/a/b/", "/a/b"),
        ("//a///b//", "/a/b"),
        ("/a/./b/.", "/a/b"),
        ("/a/x/../b", "/a/b"),
        ("/../../a/b", "/a/b"),
        ("/a/..", "/"),
        ("/a/%62", "/a/b"),
        ("/%61%2f", ""),
        ("/a/%2e%2E/b", "/b"),
        ("/a%20b", "/a b"),
        ("/caf%C3%A9", "/café"),
        ("/a?x=/../y", "/a"),
        ("/a#frag", "/a"),
        ("/a/..b", "/a/..b"),
        ("/a/%", "/a/%"),
        ("/A", "/A"),
    ] {
        let expected = if normal.is_empty() { Err(PathError::EncodedSlash) } else { Ok(normal) };
        assert_eq!(normal_path(written).as_deref().map_err(|e| *e), expected, "{written}");
    }
    for (written, error) in [
        ("", PathError::NotAbsolute),
        ("a/b", PathError::NotAbsolute),
        ("?x", PathError::NotAbsolute),
        ("/a%2Fb", PathError::EncodedSlash),
        ("/a%2fb", PathError::EncodedSlash),
        ("/a%00b", PathError::EncodedSlash),
        ("/%FF", PathError::NotText),
    ] {
        assert_eq!(normal_path(written), Err(error), "{written}");
    }
}

#[test]
fn a_rule_meets_every_spelling_of_its_endpoint() {
    let rules = user_rules(&[
        ("orders", "endpoint = \"/api//v1/%6Frders/\""),
        ("u", "endpoint = \"/u/*\""),
    ]);
    for path in
        ["/api/v1/orders", "/api/v1/orders/", "/api/v1/./orders", "/api/x/../v1/%6frders?y=1"]
    {
        assert_eq!(applying(&rules, &format!("GET {path}"), None), "orders", "{path}");
    }
    for path in ["/u", "/u/", "/u/a/b", "//u//a"] {
        assert_eq!(applying(&rules, &format!("GET {path}"), None), "u", "{path}");
    }
    for path in ["/users", "/api/v1/Orders", "/u/../x"] {
        assert_eq!(applying(&rules, &format!("GET {path}"), None), "", "{path}");
    }
}
