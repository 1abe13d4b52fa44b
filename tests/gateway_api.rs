//! The check API and the admin API over real sockets, on a real Redis.

use http_body_util::BodyExt;
use rlctl::engine::registry::EventId;
use rlctl::gateway::PolicySource;
use rlctl::gateway::access::Access;
use serde_json::{Value, json};

use crate::support::api::{POLICY, Reply, Served};
use crate::support::redis::RedisServer;

fn outcome(reply: &Reply) -> (u16, bool, Value) {
    let body = reply.json();
    (reply.status, body["allowed"].as_bool().unwrap(), body["remaining"].clone())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_charges_and_tells_all_there_is_to_tell() {
    let server = RedisServer::start();
    let served = Served::published(&server).await;
    let ask = || served.check(json!({"identity": "user:1"}));
    for left in [2, 1, 0] {
        assert_eq!(outcome(&ask().await), (200, true, json!(left)));
    }
    let refused = ask().await;
    assert_eq!(outcome(&refused), (429, false, json!(0)));
    let body = refused.json();
    assert_eq!(
        (&body["rule"], &body["limit"], &body["used"]),
        (&json!("per-user"), &json!(3), &json!(3))
    );
    assert_eq!((&body["algorithm"], &body["state"]), (&json!("token-bucket"), &json!("throttled")));
    assert_eq!((&body["charge"], &body["degraded"]), (&Value::Null, &Value::Null));
    let us = body["retry_after_us"].as_u64().unwrap();
    assert!((1_100_000_000..=1_200_000_000).contains(&us), "{us}");
    assert_eq!(body["retry_after"], us.div_ceil(1_000_000));
    assert!(body["reset_at"].as_str().unwrap().ends_with('Z'), "{body}");
    assert_eq!(refused.header("retry-after"), body["retry_after"].to_string());
    assert_eq!(refused.header("x-ratelimit-limit"), "3");
    assert!(refused.header("ratelimit-policy").starts_with("\"per-user"), "{:?}", refused.headers);
    // Looking takes nothing.
    let look = served.check(json!({"identity": "user:2", "cost": 0})).await;
    assert_eq!(outcome(&look), (200, true, json!(3)));
    assert_eq!(look.json()["charge"], Value::Null);
    // By the path, by one rule only, by several identities, by tier.
    let path = served
        .check(json!({"identity": "user:2", "endpoint": "/orders/7?x=1", "method": "post"}))
        .await;
    assert_eq!((&path.json()["rule"], &path.json()["remaining"]), (&json!("orders"), &json!(6)));
    let only = json!({"identity": "user:2", "endpoint": "/orders/7", "rule": "per-user"});
    assert_eq!(served.check(only).await.json()["rule"], "per-user");
    let several =
        json!({"identities": {"user": "3", "ip": "192.0.2.1", "header:x-tenant": "acme"}});
    for left in [1, 0] {
        let body = served.check(several.clone()).await.json();
        assert_eq!((&body["rule"], &body["remaining"]), (&json!("per-tenant"), &json!(left)));
    }
    assert_eq!(served.check(several).await.status, 429);
    let user = served.check(json!({"identity": "user:3", "cost": 0})).await;
    assert_eq!(user.json()["remaining"], 1, "what the refused one took was given back");
    let gold = served.check(json!({"identity": "apikey:k", "tier": "gold"})).await;
    assert_eq!(gold.json()["limit"], 1000);
    let blocked = served.check(json!({"identity": "user:666"})).await;
    assert_eq!((blocked.status, &blocked.json()["outcome"]), (429, &json!("blocked")));
    let alias = json!({"identifier": "9", "identifier_type": "user", "cost": 2});
    let alias = served.ask("POST", "/internal/rate_limit/check", alias).await;
    assert_eq!(outcome(&alias), (200, true, json!(1)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idempotency_key_is_charged_once() {
    let server = RedisServer::start();
    let served = Served::published(&server).await;
    let again = json!({"identity": "user:1", "idempotency_key": "k", "cost": 2});
    let first = served.check(again.clone()).await;
    assert_eq!(outcome(&first), (200, true, json!(1)));
    assert!(first.json()["charge"].is_string());
    let second = served.check(again).await;
    assert_eq!(outcome(&second), (200, true, json!(1)));
    assert_eq!(second.json()["charge"], Value::Null, "the charge is of whoever was first");
    let other = json!({"identity": "user:1", "idempotency_key": "k", "cost": 1});
    let other = served.check(other).await;
    assert_eq!(other.status, 422, "{}", other.json());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_charge_is_given_back_or_settled_once_by_any_gateway() {
    let server = RedisServer::start();
    let (one, two) = (Served::published(&server).await, Served::published(&server).await);
    let ask = json!({"identities": {"user": "1", "ip": "192.0.2.1"}, "cost": 2});
    let left = async |who: &str| {
        one.check(json!({"identity": who, "cost": 0})).await.json()["remaining"].clone()
    };
    let charge = one.check(ask.clone()).await.json()["charge"].clone();
    assert_eq!((left("user:1").await, left("ip:192.0.2.1").await), (json!(1), json!(3)));
    let refund = json!({"charge": charge});
    let path = "/api/v1/rate-limit/refund";
    assert_eq!(two.ask("POST", path, refund.clone()).await.json(), json!({"refunded": true}));
    assert_eq!((left("user:1").await, left("ip:192.0.2.1").await), (json!(3), json!(5)));
    assert_eq!(two.ask("POST", path, refund.clone()).await.json(), json!({"refunded": false}));
    assert_eq!(left("user:1").await, 3);
    // A cost that is known afterwards.
    let charge = one.check(ask).await.json()["charge"].clone();
    let path = "/api/v1/rate-limit/settle";
    let settle = json!({"charge": charge, "cost": 1});
    assert_eq!(two.ask("POST", path, settle.clone()).await.json(), json!({"settled": true}));
    assert_eq!((left("user:1").await, left("ip:192.0.2.1").await), (json!(2), json!(4)));
    assert_eq!(two.ask("POST", path, settle).await.json(), json!({"settled": false}));
    // Nobody makes one up, and nobody changes one.
    let real = charge.as_str().unwrap();
    let (signed, ids) = real.rsplit_once('.').unwrap();
    let swapped = format!("{signed}.A{}", ids.replacen("AA", "AB", 1));
    let (part, unsigned) = (signed.to_string(), ids.to_string());
    for forged in ["", "v1", "v1..", "v1.AAAA.BBBB", "v2.x.y", &swapped, &part, &unsigned, "💥"] {
        let reply = two.ask("POST", "/api/v1/rate-limit/refund", json!({"charge": forged})).await;
        assert_eq!(reply.status, 422, "{forged}: {}", reply.json());
    }
    assert_eq!(left("user:1").await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_is_answered_in_order_or_charges_nobody() {
    let server = RedisServer::start();
    let served = Served::published(&server).await;
    let path = "/api/v1/rate-limit/check/batch";
    let mut checks: Vec<Value> = Vec::new();
    for n in 0..5 {
        checks.push(json!({"identity": "user:1"}));
        checks.push(json!({"identity": format!("user:other-{n}"), "cost": 2}));
    }
    let reply = served.ask("POST", path, json!({"checks": checks})).await;
    let answers = reply.json()["answers"].clone();
    let of = |place: usize| {
        let answer = &answers[place];
        (answer["status"].as_u64().unwrap(), answer["remaining"].as_u64().unwrap())
    };
    let own: Vec<_> = (0..5).map(|n| of(2 * n)).collect();
    assert_eq!(own, [(200, 2), (200, 1), (200, 0), (429, 0), (429, 0)]);
    assert!((0..5).all(|n| of(2 * n + 1) == (200, 1)), "{answers}");
    // One that cannot be read spoils all, before any is asked.
    let bad = json!({"checks": [{"identity": "user:9"}, {"identity": "user:9", "cost": -1}]});
    let reply = served.ask("POST", path, bad).await;
    assert_eq!(reply.status, 422);
    assert!(reply.json()["detail"].as_str().unwrap().starts_with("checks[1]: cost:"));
    let left = served.check(json!({"identity": "user:9", "cost": 0})).await;
    assert_eq!(left.json()["remaining"], 3);
    for checks in [vec![], vec![json!({"identity": "user:9"}); 1001]] {
        assert_eq!(served.ask("POST", path, json!({"checks": checks})).await.status, 422);
    }
    let most = vec![json!({"identity": "user:9", "cost": 0}); 1000];
    let reply = served.ask("POST", path, json!({"checks": most})).await;
    assert_eq!(reply.json()["answers"].as_array().unwrap().len(), 1000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_read_or_meant_is_told_and_charges_nobody() {
    let served = Served::given(POLICY, Access::local()).await;
    for (body, status, word) in [
        ("", 400, "EOF"),
        ("{", 400, "EOF"),
        ("[]", 400, "invalid"),
        ("{}", 400, "`identity`"),
        (r#"{"identity":"user:1","identities":{"ip":"::1"}}"#, 400, "`identity`"),
        (r#"{"identity":"user:1","colour":"red"}"#, 400, "colour"),
        (r#"{"identity":1}"#, 400, "invalid type"),
        (r#"{"identity":"user:1","cost":"x"}"#, 400, "invalid type"),
        (r#"{"identity":"user:1","cost":-1}"#, 422, "cost"),
        (r#"{"identity":"user:1","cost":1.5}"#, 422, "cost"),
        (r#"{"identity":"user:1","cost":99999999999999999999}"#, 422, "cost"),
        (r#"{"identity":""}"#, 422, "identity"),
        (r#"{"identity":"user:"}"#, 422, "identity"),
        (r#"{"identity":"nobody"}"#, 422, "dimension"),
        (r#"{"identity":"planet:earth"}"#, 422, "dimension"),
        (r#"{"identity":"ip:localhost"}"#, 422, "address"),
        ("{\"identity\":\"user:a\\u001b[31m\"}", 422, "control"),
        ("{\"identity\":\"user:a\\u0000\"}", 422, "control"),
        (r#"{"identities":{}}"#, 422, "identities"),
        (r#"{"identities":{"planet":"earth"}}"#, 422, "dimension"),
        (r#"{"identities":{"header:X-A":"1","header:x-a":"2"}}"#, 422, "two of"),
        (r#"{"identity":"user:1","endpoint":"orders"}"#, 422, "endpoint"),
        (r#"{"identity":"user:1","rule":"nope"}"#, 422, "no rule"),
        (r#"{"identity":"user:1","idempotency_key":""}"#, 422, "idempotency_key"),
    ] {
        let reply = served.send("POST", "/api/v1/rate-limit/check", &[], Some(body)).await;
        assert_eq!(reply.status, status, "{body}");
        assert_eq!(reply.header("content-type"), "application/problem+json");
        let problem = reply.json();
        assert_eq!((&problem["status"], &problem["type"]), (&json!(status), &json!("about:blank")));
        assert!(problem["detail"].as_str().unwrap().contains(word), "{body}: {problem}");
    }
    let deep = format!("{}1{}", "[".repeat(10_000), "]".repeat(10_000));
    let large = format!("{{\"identity\":\"user:{}\"}}", "x".repeat(16 << 10));
    let text = [("content-type", "text/plain")];
    let path = "/api/v1/rate-limit/check";
    assert_eq!(served.send("POST", path, &[], Some(&deep[..16_000])).await.status, 400);
    assert_eq!(served.send("POST", path, &[], Some(&large)).await.status, 413);
    assert_eq!(served.send("POST", path, &text, Some("{}")).await.status, 415);
    let long = format!("user:{}", "x".repeat(1_020));
    assert_eq!(served.check(json!({"identity": long})).await.status, 422);
    let batch = format!("{{\"checks\":[\"{}\"]}}", "x".repeat(1 << 20));
    let reply = served.send("POST", &format!("{path}/batch"), &[], Some(&batch)).await;
    assert_eq!(reply.status, 413);
    assert_eq!(served.get("/api/v1/nothing").await.status, 404);
    assert_eq!(served.get(path).await.status, 405);
    assert_eq!(served.get("/api/v1/users/%FF/limits").await.status, 400);
    assert_eq!(served.check(json!({"identity": "user:1", "cost": 0})).await.json()["remaining"], 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_identities_stay_what_they_are() {
    let server = RedisServer::start();
    let served = Served::published(&server).await;
    for id in
        ["}{", "*", "$policy", "a%7Db", "' or 1=1 --", "../../etc", "\u{202e}evil", "💥:x", "a b"]
    {
        let identity = format!("user:{id}");
        let reply = served.check(json!({"identity": identity})).await;
        assert_eq!(outcome(&reply), (200, true, json!(2)), "{id}");
        let in_path =
            percent_encoding::utf8_percent_encode(&identity, percent_encoding::NON_ALPHANUMERIC);
        let limits = served.get(&format!("/api/v1/users/{in_path}/limits")).await.json();
        assert_eq!(
            (&limits["identity"], &limits["items"][0]["used"]),
            (&json!(identity), &json!(1))
        );
        let reset = format!("/api/v1/users/{in_path}/reset");
        let reset = served.ask("POST", &reset, json!({"reason": "a test"})).await;
        assert_eq!((reset.status, &reset.json()["limits"]), (200, &json!(1)), "{id}");
        let look = served.check(json!({"identity": identity, "cost": 0})).await;
        assert_eq!(look.json()["remaining"], 3);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_checks_than_a_gateway_takes_on_are_shed() {
    let text = format!("{POLICY}[gateway]\nmax_checks = 3\n");
    let served = Served::given(&text, Access::local()).await;
    let mut shed = 0;
    for _ in 0..20 {
        let reply = served.check(json!({"identity": "user:1", "cost": 0})).await;
        if reply.status == 503 {
            assert_eq!(reply.header("content-type"), "application/problem+json");
            assert_eq!(reply.header("retry-after"), "1");
            shed += 1;
        }
    }
    assert!(shed > 0, "20 checks took seven seconds?");
    assert_eq!(served.gateway.shed.refused(), shed);
    assert_eq!(served.get("/health").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_its_store_a_check_is_answered_as_the_rule_says() {
    let mut server = RedisServer::start();
    let served = Served::published(&server).await;
    let mode = json!({"rule": "per-user", "on_store_error": "closed", "reason": "an exercise"});
    assert_eq!(served.ask("POST", "/api/v1/mode", mode).await.status, 200);
    let closed = |gateway: &rlctl::gateway::Gateway| {
        let current = gateway.limiter.policy.current().unwrap();
        current.rules.policy().rule("per-user").unwrap().on_store_error.name() == "closed"
    };
    served.until("the mode is obeyed", closed).await;
    let rule = served.get("/api/v1/rules/per-user").await.json();
    assert_eq!(rule["on_store_error"]["value"], "closed");
    assert_eq!(rule["rule"]["on_store_error"], Value::Null, "what is written stays");
    server.kill();
    let reply = served.check(json!({"identity": "user:1"})).await;
    let body = reply.json();
    assert_eq!(
        (reply.status, &body["allowed"], &body["degraded"]),
        (503, &json!(false), &json!("closed"))
    );
    assert_eq!(reply.header("x-ratelimit-status"), "degraded;mode=closed");
    let reply = served.check(json!({"identity": "ip:192.0.2.1"})).await;
    let body = reply.json();
    assert_eq!(
        (reply.status, &body["degraded"], &body["charge"]),
        (200, &json!("open"), &Value::Null)
    );
    // Operators are told, and what needs no store still answers.
    let change = json!({"tier": "gold", "reason": "a test"});
    assert_eq!(served.ask("PUT", "/api/v1/users/user:1/tier", change).await.status, 503);
    assert_eq!(served.get("/api/v1/events").await.status, 503);
    assert_eq!(served.get("/api/v1/rules").await.status, 200);
    assert_eq!(served.get("/ready").await.status, 200);
    let limits = served.get("/api/v1/users/user:1/limits").await.json();
    assert!(limits["store_error"].is_string() && limits["items"][0]["used"].is_null(), "{limits}");
}

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
