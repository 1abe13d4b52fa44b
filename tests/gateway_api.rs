//! The admin API over real sockets, on a real Redis.

use http_body_util::BodyExt;
use rlctl::engine::registry::EventId;
use rlctl::gateway::PolicySource;
use rlctl::gateway::access::Access;
use serde_json::{Value, json};

use crate::support::api::{POLICY, Served};
use crate::support::redis::RedisServer;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_are_changed_one_by_one_published_and_obeyed() {
    let server = RedisServer::start();
    let served = Served::published(&server).await;
    let rule =
        json!({"name": "added", "dimension": "apikey", "endpoint": "/x", "limits": ["1/1h"]});
    let add = json!({"rule": rule, "reason": "a new customer"});
    let reply = served.ask("POST", "/api/v1/rules", add.clone()).await;
    assert_eq!((reply.status, &reply.json()["version"]), (201, &json!(2)), "{}", reply.json());
    assert_eq!((reply.header("etag"), reply.header("location")), ("\"2\"", "/api/v1/rules/added"));
    assert_eq!(served.get("/api/v1/rules/added").await.json()["rule"], rule, "known at once");
    let version = |version: u64| {
        move |gateway: &rlctl::gateway::Gateway| {
            gateway.limiter.policy.status().loaded.is_some_and(|loaded| loaded.version == version)
        }
    };
    served.until("version 2 is obeyed", version(2)).await;
    let ask = json!({"identity": "apikey:k", "endpoint": "/x"});
    assert_eq!(served.check(ask.clone()).await.status, 200);
    assert_eq!(served.check(ask).await.json()["rule"], "added");
    assert_eq!(served.ask("POST", "/api/v1/rules", add).await.status, 409, "there already");
    // Some fields, the whole, and away with it.
    let patch = json!({"rule": {"limits": ["9/1h"], "endpoint": null}, "reason": "more"});
    assert_eq!(served.ask("PATCH", "/api/v1/rules/added", patch).await.status, 200);
    let now = served.get("/api/v1/rules/added").await.json();
    assert_eq!(now["rule"], json!({"name": "added", "dimension": "apikey", "limits": ["9/1h"]}));
    let put = json!({"rule": {"dimension": "user", "limits": "tier"}, "reason": "other"});
    let stale = [("if-match", "\"2\"")];
    let reply = served.send("PUT", "/api/v1/rules/added", &stale, Some(&put.to_string())).await;
    assert_eq!(reply.status, 412, "{}", reply.json());
    let fresh = [("if-match", "\"3\"")];
    let reply = served.send("PUT", "/api/v1/rules/added", &fresh, Some(&put.to_string())).await;
    assert_eq!(reply.status, 200, "{}", reply.json());
    let rename = json!({"rule": {"name": "other"}, "reason": "a slip"});
    assert_eq!(served.ask("PATCH", "/api/v1/rules/added", rename).await.status, 422);
    let wrong = json!({"rule": {"limits": ["ten"]}, "reason": "a slip"});
    let reply = served.ask("PATCH", "/api/v1/rules/added", wrong).await;
    assert_eq!(reply.status, 422);
    assert!(reply.json()["errors"][0]["line"].as_u64().unwrap() > 1, "{}", reply.json());
    let reason = [("x-reason", "no longer")];
    assert_eq!(served.send("DELETE", "/api/v1/rules/added", &[], None).await.status, 422);
    assert_eq!(served.send("DELETE", "/api/v1/rules/added", &reason, None).await.status, 200);
    assert_eq!(served.send("DELETE", "/api/v1/rules/added", &reason, None).await.status, 404);
    assert_eq!(served.get("/api/v1/rules/added").await.status, 404);
    let policy = served.get("/api/v1/policy").await;
    assert_eq!(
        (policy.header("etag"), &policy.json()["text"]),
        ("\"5\"", &json!(POLICY)),
        "nothing is left of it"
    );
    let by = |reply: Value| reply["items"][0]["by"].clone();
    assert_eq!(by(served.get("/api/v1/policy/history").await.json()), "local");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_whole_policy_replaces_the_version_it_was_made_from() {
    let server = RedisServer::start();
    let served = Served::published(&server).await;
    let text = POLICY.replace("3/1h", "30/1h");
    let body = json!({"text": text, "reason": "a new contract"}).to_string();
    let put = async |tag: &str| {
        let headers = [("if-match", tag)];
        let headers = if tag.is_empty() { &[][..] } else { &headers[..] };
        served.send("PUT", "/api/v1/policy", headers, Some(&body)).await
    };
    assert_eq!(put("").await.status, 428);
    assert_eq!(put("seven").await.status, 400);
    assert_eq!(put("\"7\"").await.status, 412);
    let reply = put("\"1\"").await;
    assert_eq!((reply.status, reply.header("etag")), (200, "\"2\""));
    let reply = put("\"1\"").await;
    assert_eq!(reply.status, 412, "somebody was faster: {}", reply.json());
    let broken = json!({"text": "[[rule]]\nname = 1\n", "reason": "a slip"}).to_string();
    let reply = served.send("PUT", "/api/v1/policy", &[("if-match", "*")], Some(&broken)).await;
    assert_eq!(reply.status, 422);
    assert_eq!(reply.json()["errors"][0]["line"], 1, "{}", reply.json());
    let back = json!({"version": 1, "reason": "it was better"});
    let reply = served.ask("POST", "/api/v1/policy/rollback", back).await;
    assert_eq!((reply.status, &reply.json()["version"]), (200, &json!(3)));
    assert_eq!(served.get("/api/v1/policy").await.json()["text"], POLICY);
    let lost = json!({"version": 99, "reason": "a slip"});
    assert_eq!(served.ask("POST", "/api/v1/policy/rollback", lost).await.status, 404);
    let history = served.get("/api/v1/policy/history?limit=2").await.json();
    let versions: Vec<_> =
        history["items"].as_array().unwrap().iter().map(|v| v["version"].clone()).collect();
    assert_eq!(versions, [3, 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_obeys_a_file_publishes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rules.toml");
    std::fs::write(&path, POLICY).unwrap();
    let served = Served::start(PolicySource::File(path.clone()), None, Access::local()).await;
    let rules = served.get("/api/v1/rules").await.json();
    assert_eq!(rules["items"][0]["rule"]["name"], "per-user");
    assert_eq!(rules["source"], path.display().to_string());
    let change = json!({"rule": {"cost": 2}, "reason": "a test"});
    for (method, path, body) in [
        ("PATCH", "/api/v1/rules/per-user", change.clone()),
        ("DELETE", "/api/v1/rules/per-user", json!({"reason": "a test"})),
        ("POST", "/api/v1/policy/rollback", json!({"version": 1, "reason": "a test"})),
    ] {
        let reply = served.ask(method, path, body).await;
        assert_eq!(reply.status, 409, "{method} {path}");
        assert!(reply.json()["detail"].as_str().unwrap().contains("rules.toml"));
    }
    // What is not a matter of the file can be changed.
    let block = json!({"target": "user:1", "for": "1h", "reason": "a test"});
    assert_eq!(served.ask("POST", "/api/v1/blocks", block).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn identities_are_looked_at_given_more_blocked_and_let_go_again() {
    let server = RedisServer::start();
    let served = Served::published(&server).await;
    let remaining =
        async |who: &str| served.check(json!({"identity": who, "cost": 0})).await.json();
    served.check(json!({"identity": "user:1", "cost": 2})).await;
    let limits = served.get("/api/v1/users/user:1/limits").await.json();
    let item = &limits["items"][0];
    assert_eq!((&limits["tier"], limits["items"].as_array().unwrap().len()), (&json!("free"), 2));
    assert_eq!(
        (&item["rule"], &item["used"], &item["remaining"]),
        (&json!("per-user"), &json!(2), &json!(1))
    );
    let there = served.get("/api/v1/users/user:1/limits?endpoint=/orders/1").await.json();
    assert_eq!(there["items"].as_array().unwrap().len(), 1, "only the winner: {there}");
    assert_eq!(there["items"][0]["rule"], "orders");
    // An override, and back.
    let more = json!({"rule": "per-user", "limits": ["50/1h"], "for": "1d", "reason": "a launch"});
    let reply = served.ask("POST", "/api/v1/users/user:1/override", more).await;
    assert_eq!((reply.status, &reply.json()["event"]["action"]), (200, &json!("override set")));
    let limits = served.get("/api/v1/users/user:1/limits").await.json();
    assert_eq!(
        (&limits["items"][0]["limit"], &limits["items"][0]["source"]),
        (&json!(50), &json!("override"))
    );
    // A fresh start spares it.
    let reset =
        served.ask("POST", "/api/v1/users/user:1/reset", json!({"reason": "our fault"})).await;
    assert_eq!((reset.status, &reset.json()["limits"]), (200, &json!(1)));
    let limits = served.get("/api/v1/users/user:1/limits").await.json();
    assert_eq!(
        (&limits["items"][0]["limit"], &limits["items"][0]["used"]),
        (&json!(50), &json!(0))
    );
    let path = "/api/v1/users/user:1/override?rule=per-user";
    let reason = [("x-reason", "it is over")];
    assert_eq!(served.send("DELETE", path, &reason, None).await.status, 200);
    assert_eq!(served.send("DELETE", path, &reason, None).await.status, 404);
    // A tier.
    let tier = json!({"tier": "gold", "for": "forever", "reason": "paid"});
    assert_eq!(served.ask("PUT", "/api/v1/users/apikey:k/tier", tier).await.status, 200);
    assert_eq!(served.get("/api/v1/users/apikey:k/limits").await.json()["items"][0]["limit"], 1000);
    let none = json!({"tier": "platinum", "reason": "a slip"});
    assert_eq!(served.ask("PUT", "/api/v1/users/apikey:k/tier", none).await.status, 422);
    let away = json!({"tier": null, "reason": "not paid"});
    assert_eq!(served.ask("PUT", "/api/v1/users/apikey:k/tier", away).await.status, 200);
    // Lists.
    let block = json!({"target": "ip:198.51.100.0/24", "for": "1h", "reason": "a flood"});
    assert_eq!(served.ask("POST", "/api/v1/blocks", block).await.status, 200);
    let exempt = json!({"target": "user:boss", "for": "forever", "reason": "asked nicely"});
    assert_eq!(served.ask("POST", "/api/v1/exemptions", exempt).await.status, 200);
    let listed = served.get("/api/v1/blocks").await.json();
    let targets: Vec<_> =
        listed["items"].as_array().unwrap().iter().map(|i| i["target"].clone()).collect();
    assert_eq!(targets, ["ip:198.51.100.0/24", "user:666"]);
    let lists =
        |gateway: &rlctl::gateway::Gateway| !gateway.limiter.view.snapshot().lists.block.is_empty();
    served.until("the block is obeyed", lists).await;
    assert_eq!(remaining("ip:198.51.100.7").await["outcome"], "blocked");
    assert_eq!(served.get("/api/v1/exemptions").await.json()["items"][0]["target"], "user:boss");
    let reason = [("x-reason", "it is over")];
    let path = "/api/v1/blocks?target=ip:198.51.100.0/24";
    assert_eq!(served.send("DELETE", path, &reason, None).await.status, 200);
    assert_eq!(served.send("DELETE", path, &reason, None).await.status, 404);
    // What stands in the rules is not an operator's to take away.
    let theirs = served.send("DELETE", "/api/v1/blocks?target=user:666", &reason, None).await;
    let detail = theirs.json()["detail"].as_str().unwrap().to_owned();
    assert_eq!(theirs.status, 409, "{detail}");
    assert!(detail.contains("user:666 stands in the rules, at published version 1:"), "{detail}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stats_are_told_once_a_second_to_whoever_listens() {
    let served = Served::given(POLICY, Access::local()).await;
    let response = served.open("GET", "/api/v1/stats/stream", &[], None).await;
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut body = response.into_body();
    let mut text = String::new();
    while text.matches("\n\n").count() < 2 {
        let frame = body.frame().await.expect("it goes on").unwrap();
        text += std::str::from_utf8(frame.data_ref().unwrap()).unwrap();
    }
    let snapshots: Vec<Value> = text
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let apart = snapshots[1]["at_us"].as_u64().unwrap() - snapshots[0]["at_us"].as_u64().unwrap();
    assert!((500_000..5_000_000).contains(&apart), "{apart}");
    assert_eq!(snapshots[0]["gateway"], served.gateway.about.id);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_write_is_in_the_trail() {
    let server = RedisServer::start();
    let served = Served::published(&server).await;
    let seen = served.gateway.registry.last_event().await.unwrap().unwrap();
    let writes = [
        ("POST", "/api/v1/mode", json!({"observe": true})),
        ("POST", "/api/v1/mode", json!({"rule": "per-ip", "on_store_error": "local"})),
        ("POST", "/api/v1/mode", json!({"rule": "per-ip", "on_store_error": "policy"})),
        ("POST", "/api/v1/blocks", json!({"target": "user:1", "for": "1h"})),
        ("POST", "/api/v1/exemptions", json!({"target": "apikey:in-*", "for": "1h"})),
        ("PUT", "/api/v1/users/user:1/tier", json!({"tier": "gold"})),
        (
            "POST",
            "/api/v1/users/user:1/override",
            json!({"rule": "per-user", "limits": [{"limit": "9/1m", "algorithm": "gcra"}]}),
        ),
        ("POST", "/api/v1/users/user:1/reset", json!({"rule": "per-user"})),
        ("PATCH", "/api/v1/rules/per-ip", json!({"rule": {"limits": ["6/1h"]}})),
    ];
    for (method, path, body) in &writes {
        let bare = served.ask(method, path, body.clone()).await;
        assert_eq!(bare.status, 422, "{method} {path} without a reason: {}", bare.json());
        let reason = [("x-reason", "an exercise")];
        let reply = served.send(method, path, &reason, Some(&body.to_string())).await;
        assert_eq!(reply.status, 200, "{method} {path}: {}", reply.json());
    }
    let trail = served.get(&format!("/api/v1/events?since={seen}")).await.json();
    let trail = trail["items"].as_array().unwrap();
    let actions: Vec<&str> = trail.iter().map(|event| event["action"].as_str().unwrap()).collect();
    assert_eq!(
        actions,
        [
            "rules observe on",
            "rules mode",
            "rules mode",
            "block",
            "exempt",
            "tier set",
            "override set",
            "reset",
            "rules publish",
        ]
    );
    for event in trail {
        assert_eq!((&event["by"], &event["reason"]), (&json!("local"), &json!("an exercise")));
        assert!(event["id"].as_str().unwrap().parse::<EventId>().unwrap() > seen);
    }
    assert_eq!(trail[1]["after"]["value"], "local");
    assert_eq!(trail[2]["after"], Value::Null);
    let observed = |gateway: &rlctl::gateway::Gateway| {
        gateway.limiter.view.snapshot().switches.observe.is_some()
    };
    served.until("observe-only is obeyed", observed).await;
    assert_eq!(served.check(json!({"identity": "user:666"})).await.status, 200);
    for bad in [json!({}), json!({"rule": "per-ip"}), json!({"observe": true, "rule": "per-ip"})] {
        let reply =
            served.send("POST", "/api/v1/mode", &[("x-reason", "r")], Some(&bad.to_string())).await;
        assert_eq!(reply.status, 400, "{bad}");
    }
    let wrong = json!({"rule": "per-ip", "on_store_error": "ajar", "reason": "a slip"});
    assert_eq!(served.ask("POST", "/api/v1/mode", wrong).await.status, 422);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_decided_is_told_by_rule_and_by_who_was_refused() {
    let served = Served::given(POLICY, Access::local()).await;
    for _ in 0..5 {
        served.check(json!({"identity": "user:loud"})).await;
    }
    served.check(json!({"identity": "user:calm"})).await;
    let top = served.get("/api/v1/top?by=rejected&rule=per-user").await.json();
    let items = top["items"].as_array().unwrap();
    assert_eq!((items.len(), &items[0]["identity"]), (1, &json!("user:loud")), "{top}");
    assert_eq!(served.get("/api/v1/top?by=loudness").await.status, 422);
    // History is made once a second.
    let mut usage = Value::Null;
    for _ in 0..100 {
        usage = served.get("/api/v1/rules/per-user/usage?from=2026-01-01T00:00:00Z").await.json();
        let sum = |field: &str| -> u64 {
            usage["items"].as_array().unwrap().iter().map(|i| i[field].as_u64().unwrap()).sum()
        };
        if (sum("allowed"), sum("rejected")) == (4, 2) {
            let metrics = served.get("/metrics").await;
            let text = String::from_utf8(metrics.bytes.to_vec()).unwrap();
            assert!(
                text.contains(r#"rlctl_decisions_total{rule="per-user",outcome="rejected""#),
                "{text}"
            );
            assert!(!text.contains("user:loud"), "no identity is a label");
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    panic!("never told: {usage}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_password_of_a_store_is_shown_to_nobody_and_survives_what_was_shown() {
    let server = RedisServer::start();
    let served = Served::published(&server).await;
    let store = format!("[stores.gold]\nurl = 'redis://bob:s3cret@127.0.0.1:{}'\n", server.port);
    let put = async |text: &str| {
        let body = json!({"text": text, "reason": "a test"}).to_string();
        served.send("PUT", "/api/v1/policy", &[("if-match", "*")], Some(&body)).await
    };
    let published = async || served.gateway.registry.current().await.unwrap().unwrap().text;
    let reply = put(&format!("{POLICY}{store}")).await;
    assert_eq!(reply.status, 200, "{}", reply.json());
    let shown = served.get("/api/v1/policy").await.json()["text"].as_str().unwrap().to_owned();
    assert!(shown.contains("# agreed with sales") && shown.contains("redis://***@127.0.0.1:"));
    assert!(!shown.contains("s3cret") && !shown.contains("bob"), "{shown}");
    let edited = shown.replace("3/1h", "9/1h");
    assert_eq!(put(&edited).await.status, 200);
    let now = published().await;
    assert!(now.contains("9/1h") && now.contains("redis://bob:s3cret@127.0.0.1:"), "{now}");
    let back = json!({"version": 2, "reason": "it was better"});
    assert_eq!(served.ask("POST", "/api/v1/policy/rollback", back).await.status, 200);
    assert!(published().await.contains("'redis://bob:s3cret@127.0.0.1:"));
    // Under another name, or for another server, it is nobody's password.
    for other in [edited.replace("gold", "lead"), edited.replace("@127.0.0.1", "@127.0.0.2")] {
        let reply = put(&other).await;
        assert_eq!(reply.status, 422, "{}", reply.json());
        let told = reply.json().to_string();
        assert!(told.contains("is masked") && !told.contains("s3cret"), "{told}");
    }
    assert!(published().await.contains("3/1h"), "nothing was published");
}
