//! Who may ask the API, over real sockets: tokens, roles, this machine, and how often.

use rlctl::gateway::access::{Access, READS_PER_MINUTE, WRITES_PER_MINUTE};
use serde_json::json;

use crate::support::api::{POLICY, READER, Served, TOKENS, WRITER};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_open_what_their_role_may_do() {
    let served = Served::given(POLICY, Access::from_text("tokens", TOKENS).unwrap()).await;
    let wrong = ("authorization", "Bearer reader-token-0002");
    let body = json!({"identity": "user:1"}).to_string();
    let block = json!({"target": "user:9", "for": "1h", "reason": "a test"}).to_string();
    let (check, blocks) = ("/api/v1/rate-limit/check", "/api/v1/blocks");
    for (header, read, checked, write) in [
        (None, 401, 401, 401),
        (Some(wrong), 401, 401, 401),
        (Some(READER), 200, 200, 403),
        (Some(WRITER), 200, 200, 200),
    ] {
        let headers: Vec<_> = header.into_iter().collect();
        let got = served.send("GET", "/api/v1/rules", &headers, None).await;
        assert_eq!(got.status, read, "{headers:?}");
        if read == 401 {
            assert_eq!(got.header("www-authenticate"), "Bearer");
            assert_eq!(got.header("content-type"), "application/problem+json");
            assert_eq!(served.send("GET", "/metrics", &headers, None).await.status, 401);
            assert_eq!(served.send("GET", "/api/v1/nothing", &headers, None).await.status, 401);
        }
        assert_eq!(served.send("POST", check, &headers, Some(&body)).await.status, checked);
        assert_eq!(served.send("POST", blocks, &headers, Some(&block)).await.status, write);
        for open in ["/health", "/ready", "/openapi.json"] {
            assert_eq!(served.send("GET", open, &headers, None).await.status, 200, "{open}");
        }
    }
    let events = served.send("GET", "/api/v1/events", &[READER], None).await.json();
    assert_eq!(
        (events["items"].as_array().unwrap().len(), &events["items"][0]["by"]),
        (1, &json!("alice"))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_tokens_no_web_page_may_ask() {
    let served = Served::given(POLICY, Access::local()).await;
    assert_eq!(served.get("/api/v1/rules").await.status, 200);
    for header in [("origin", "http://evil.example"), ("host", "evil.example:9090")] {
        assert_eq!(served.send("GET", "/api/v1/rules", &[header], None).await.status, 403);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_asks_so_often_a_minute_and_checks_are_not_counted() {
    let served = Served::given(POLICY, Access::from_text("tokens", TOKENS).unwrap()).await;
    let post = json!({"observe": false, "reason": "a test"}).to_string();
    let mut passed = 0;
    let refused = loop {
        let reply = served.send("POST", "/api/v1/mode", &[WRITER], Some(&post)).await;
        match reply.status {
            200 => passed += 1,
            _ => break reply,
        }
    };
    assert_eq!(refused.status, 429, "{}", refused.json());
    assert_eq!(refused.header("retry-after"), "1");
    // What came back while they were sent may pass as well.
    assert!((WRITES_PER_MINUTE..2 * WRITES_PER_MINUTE).contains(&passed), "{passed}");
    let read = served.send("GET", "/api/v1/gateways", &[WRITER], None).await;
    assert_eq!(read.status, 200, "reads are counted apart from writes");
    let body = json!({"identity": "user:1", "cost": 0}).to_string();
    for _ in 0..READS_PER_MINUTE / 4 {
        let reply = served.send("POST", "/api/v1/rate-limit/check", &[WRITER], Some(&body)).await;
        assert_eq!(reply.status, 200);
    }
}
