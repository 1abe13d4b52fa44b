//! Clients that hold on to what they do not use, and ways round what was decided about them.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::Empty;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use rlctl::engine::clock::Micros;

use crate::support::gateway::{Start, client, read_head, upstream};

#[tokio::test]
async fn a_client_that_takes_nothing_of_its_answer_is_cut_off() {
    // More than all buffers on the way hold.
    let endless = upstream(|mut stream| async move {
        read_head(&mut stream).await;
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n").await;
        let some = vec![b'x'; 1 << 20];
        while stream.write_all(&some).await.is_ok() {}
    })
    .await;
    let running = Start::with("version = 1\n")
        .upstream(endless)
        .options(|options| options.takes_within = Duration::from_millis(300))
        .run()
        .await;
    let mut lazy = TcpStream::connect(running.address).await.unwrap();
    lazy.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let began = Instant::now();
    while running.gateway.stats.inflight.sum() > 0 || began.elapsed() < Duration::from_millis(600) {
        assert!(began.elapsed() < Duration::from_secs(10));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // What lay in buffers can still be read; then comes the end, long before the billionth byte.
    let mut taken = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(10), lazy.read_to_end(&mut taken)).await;
    assert!(read.is_ok(), "the connection is still open");
    assert!(taken.len() < 500_000_000);
}

#[tokio::test]
async fn an_http2_connection_that_nobody_asks_on_is_closed() {
    let running = Start::with("version = 1\n")
        .options(|options| options.head_within = Duration::from_millis(400))
        .run()
        .await;
    let stream = TcpStream::connect(running.address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    let connection = tokio::spawn(connection);
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(150)).await;
        let request = http::Request::get(running.url("/")).body(Empty::<Bytes>::new()).unwrap();
        assert_eq!(sender.send_request(request).await.unwrap().status(), 200);
    }
    assert!(!connection.is_finished(), "one that is used stays open");
    let ended = tokio::time::timeout(Duration::from_secs(5), connection).await;
    assert!(ended.is_ok(), "nobody asked for long, and it is still open");
}

#[tokio::test]
async fn a_preflight_of_somebody_blocked_is_refused() {
    let policy = "[[block]]\nmatch = [\"ip:127.0.0.1\"]\nreason = \"abuse\"\n";
    let running = Start::with(policy).run().await;
    let preflight = client()
        .request(reqwest::Method::OPTIONS, running.url("/"))
        .header("origin", "https://shop.example")
        .header("access-control-request-method", "GET");
    assert_eq!(preflight.send().await.unwrap().status(), 429);
}

#[tokio::test]
async fn the_upstream_is_chosen_by_the_path_that_rules_are_chosen_by() {
    let inner = upstream(|mut stream| async move {
        read_head(&mut stream).await;
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\ninner").await;
    })
    .await;
    let policy = format!("[[upstream]]\nprefix = \"/inner\"\nurl = \"http://{inner}\"\n");
    let running = Start::with(&policy).run().await;
    for (path, goes_inside) in
        [("/inner/a", true), ("/x/../inner/a", true), ("/%69nner", true), ("/inner/../x", false)]
    {
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        let reply = running.raw(request.as_bytes()).await;
        assert_eq!(reply.ends_with("inner"), goes_inside, "{path}: {reply}");
    }
}

#[tokio::test]
async fn retries_are_free_where_the_rules_say_so() {
    let rule = "[[rule]]\nname = \"a\"\ndimension = \"ip\"\nlimits = [\"10/1h\"]\n";
    for (policy, header, left) in [
        (format!("{rule}idempotency = \"header\"\n"), "idempotency-key", [9, 9, 9, 9, 9, 9, 8]),
        (format!("{rule}idempotency = \"header\"\n"), "x-idempotency-key", [9, 9, 9, 9, 9, 9, 8]),
        (rule.to_string(), "idempotency-key", [9, 8, 7, 6, 5, 4, 3]),
        // One rule of the same identity that does not say so is enough to count it.
        (
            format!(
                "{rule}idempotency = \"header\"\n[[rule]]\nname = \"b\"\ndimension = \"ip\"\nlimits = [\"10/1h\"]\nalso = true\n"
            ),
            "idempotency-key",
            [9, 8, 7, 6, 5, 4, 3],
        ),
    ] {
        let running = Start::with(&policy).run().await;
        for left in left {
            let reply = client().get(running.url("/")).header(header, "k").send().await.unwrap();
            assert_eq!(reply.headers()["x-ratelimit-remaining"], left.to_string().as_str());
        }
    }
}

#[tokio::test]
async fn as_many_requests_at_a_time_as_the_rule_says() {
    let slow = upstream(|mut stream| async move {
        // The head of the answer at once, its body later: it is under way until the last byte.
        while !read_head(&mut stream).await.is_empty() {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n").await;
            tokio::time::sleep(Duration::from_millis(700)).await;
            let _ = stream.write_all(b"done").await;
        }
    })
    .await;
    let policy = "[[rule]]\nname = \"few\"\ndimension = \"apikey\"\nlimits = [\"100/1h\"]\nconcurrency = { max = 2, wait = \"100ms\" }\n";
    let running = Start::with(policy).upstream(slow).run().await;
    let ask = |key: &'static str| {
        let request = client().get(running.url("/")).header("x-api-key", key);
        async move {
            let reply = request.send().await.unwrap();
            let (status, left) =
                (reply.status().as_u16(), reply.headers().get("x-ratelimit-remaining").cloned());
            (status, left, reply.text().await.unwrap())
        }
    };
    let began = Instant::now();
    let (first, second, (), other) = tokio::join!(
        ask("a"),
        ask("a"),
        async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            let (status, _, body) = ask("a").await;
            assert_eq!(status, 429, "{body}");
            assert!(
                body.contains("too_many_at_once") && body.contains("\"rule\":\"few\""),
                "{body}"
            );
            assert!(began.elapsed() >= Duration::from_millis(300), "it waits before it is refused");
        },
        ask("b")
    );
    assert_eq!((first.0, second.0, other.0), (200, 200, 200));
    let (status, left, _) = ask("a").await;
    assert_eq!((status, left.unwrap()), (200, "97".parse().unwrap()), "refused and not charged");
    assert_eq!(running.gateway.under_way.identities(), 0);
    let metrics = running.gateway.stats.metrics(&running.gateway, Micros::now());
    assert!(metrics.contains("rlctl_concurrency_rejected_total{rule=\"few\"} 1"), "{metrics}");
}
