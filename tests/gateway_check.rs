//! The check API over real sockets, on a real Redis.

use std::sync::Arc;

use rlctl::gateway::access::Access;
use rlctl::gateway::api;
use serde_json::{Value, json};

use crate::support::api::{POLICY, Reply, Served};
use crate::support::redis::RedisServer;
use crate::support::rng::Rng;

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
    assert_eq!(served.gateway.stats.shed.load(std::sync::atomic::Ordering::Relaxed), shed);
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
async fn no_body_whatever_it_holds_does_harm() {
    let served = Served::given(POLICY, Access::local()).await;
    let router = api::router(served.gateway.clone(), Arc::new(Access::local()));
    let charge = served.check(json!({"identity": "user:0"})).await.json()["charge"].clone();
    let seeds = [
        (
            "/api/v1/rate-limit/check",
            json!({"identities": {"user": "1", "header:x-tenant": "a"}, "endpoint": "/orders/%41?x", "method": "POST", "cost": 1, "idempotency_key": "k", "tier": "gold", "rule": "orders"}),
        ),
        (
            "/api/v1/rate-limit/check/batch",
            json!({"checks": [{"identity": "user:1", "cost": 2}, {"identity": "ip:::1"}]}),
        ),
        ("/api/v1/rate-limit/refund", json!({"charge": charge})),
        ("/api/v1/rate-limit/settle", json!({"charge": charge, "cost": 1})),
        ("/internal/rate_limit/check", json!({"identifier": "1", "identifier_type": "user"})),
    ];
    let mut rng = Rng::new(7);
    let mut seen = std::collections::BTreeMap::<u16, u32>::new();
    for _ in 0..20_000 {
        let (path, seed) = rng.pick(&seeds);
        let mut bytes = seed.to_string().into_bytes();
        for _ in 0..rng.scale(8) {
            let at = rng.below(bytes.len() as u64) as usize;
            match rng.below(4) {
                0 => bytes[at] = rng.next() as u8,
                1 => drop(bytes.remove(at)),
                2 => bytes.insert(at, *rng.pick(b"\"{}[]:,-0e9\\")),
                _ => bytes.truncate(at.max(1)),
            }
            if bytes.is_empty() {
                break;
            }
        }
        let request = http::Request::post(*path).header("content-type", "application/json");
        let request = request.body(axum::body::Body::from(bytes.clone())).unwrap();
        let response = api::answer(router.clone(), request, served.address).await;
        let status = response.status().as_u16();
        let text = String::from_utf8_lossy(&bytes);
        assert!([200, 400, 422, 429].contains(&status), "{status}: {path} {text}");
        *seen.entry(status).or_default() += 1;
    }
    assert_eq!(seen.len(), 4, "every kind of answer is met: {seen:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_in_place_of_an_object_is_not_decided() {
    let served = Served::given(POLICY, Access::local()).await;
    let all = json!(["user:1", null, null, null, 1, null, null, null]);
    for (path, body) in [
        ("/api/v1/rate-limit/check", all.clone()),
        ("/api/v1/rate-limit/check/batch", json!({ "checks": [all] })),
        ("/api/v1/rate-limit/check/batch", json!([[{"identity": "user:1"}]])),
        ("/internal/rate_limit/check", json!(["1", "user", null, null, null, null, null, null])),
        ("/api/v1/rate-limit/check", json!("user:1")),
        ("/api/v1/rate-limit/check", json!({"identity": ["user:1"]})),
    ] {
        let reply = served.ask("POST", path, body.clone()).await;
        let detail = reply.json()["detail"].as_str().unwrap().to_owned();
        assert_eq!(reply.status, 400, "{path} {body}: {detail}");
        let ours = ["struct", "Body", "sequence", "map"];
        assert!(ours.iter().all(|word| !detail.contains(word)), "{path} {body}: {detail}");
    }
}
