//! The proxy over real sockets: what passes, what is told, what upstreams do, what strangers try.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::gateway::{Start, client, read_head, upstream};

const TEN: &str = r#"
[[rule]]
name = "per-client"
dimension = "ip"
limits = ["10/1h"]
"#;

#[tokio::test]
async fn ten_pass_and_the_eleventh_is_told_when_to_return() {
    let running = Start::with(TEN).run().await;
    let client = client();
    for left in (0..10).rev() {
        let reply = client.get(running.url("/a?b=1")).send().await.unwrap();
        assert_eq!(reply.status(), 200);
        assert_eq!(reply.headers()["x-ratelimit-limit"], "10");
        assert_eq!(reply.headers()["x-ratelimit-remaining"], left.to_string().as_str());
        assert_eq!(reply.headers()["ratelimit-policy"], "\"per-client-1h\";q=10;w=3600");
    }
    let reply = client.get(running.url("/")).send().await.unwrap();
    assert_eq!(reply.status(), 429);
    let wait: u64 = reply.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((355..=360).contains(&wait), "{wait}");
    let body: serde_json::Value = reply.json().await.unwrap();
    assert_eq!(body["error"], "rate_limit_exceeded");
    assert_eq!(body["rule"], "per-client");
    assert_eq!(body["retry_after"], wait);
    for path in ["/health", "/ready"] {
        assert_eq!(client.get(running.url(path)).send().await.unwrap().status(), 200, "{path}");
    }
}

#[tokio::test]
async fn bodies_go_through_both_ways_and_other_methods_too() {
    let running = Start::with(TEN).run().await;
    let body = vec![7u8; 3 << 20];
    let reply = client().put(running.url("/x")).body(body.clone()).send().await.unwrap();
    assert_eq!(reply.status(), 200);
    assert_eq!(reply.bytes().await.unwrap(), body);
    let reply = client().head(running.url("/x")).send().await.unwrap();
    assert_eq!(
        (reply.status().as_u16(), reply.headers()["x-ratelimit-remaining"].clone()),
        (200, 8.into())
    );
}

#[tokio::test]
async fn http2_is_spoken_to_those_who_begin_with_it() {
    let running = Start::with(TEN).run().await;
    let stream = TcpStream::connect(running.address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    tokio::spawn(connection);
    let ask = |sender: &mut hyper::client::conn::http2::SendRequest<Empty<bytes::Bytes>>| {
        let request = http::Request::get(running.url("/two")).body(Empty::new()).unwrap();
        sender.send_request(request)
    };
    let several = join_all((0..12).map(|_| ask(&mut sender))).await;
    let statuses: Vec<u16> =
        several.iter().map(|r| r.as_ref().unwrap().status().as_u16()).collect();
    assert_eq!(statuses.iter().filter(|s| **s == 200).count(), 10, "{statuses:?}");
    assert_eq!(statuses.iter().filter(|s| **s == 429).count(), 2, "{statuses:?}");
    let first = several.into_iter().next().unwrap().unwrap();
    assert_eq!(first.into_body().collect().await.unwrap().to_bytes().len(), 44);
}

#[tokio::test]
async fn upstream_trouble_is_a_502_or_504_and_never_a_hang() {
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let silent = upstream(|stream| async move {
        let _open = stream;
        tokio::time::sleep(Duration::from_secs(20)).await;
    })
    .await;
    let garbage = upstream(|mut stream| async move {
        read_head(&mut stream).await;
        let _ = stream.write_all(b"\x00\x01garbage\r\n\r\n").await;
    })
    .await;
    let hangs_up = upstream(|mut stream| async move {
        read_head(&mut stream).await;
    })
    .await;
    let switches = upstream(|mut stream| async move {
        read_head(&mut stream).await;
        let head = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n";
        let _ = stream.write_all(head.as_bytes()).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
    })
    .await;
    let all = [(gone, 502), (silent, 504), (garbage, 502), (hangs_up, 502), (switches, 502)];
    for (address, status) in all {
        let running = Start::with("version = 1\n")
            .upstream(address)
            .options(|options| options.upstream_patience = Duration::from_millis(300))
            .run()
            .await;
        let reply = client().get(running.url("/")).send().await.unwrap();
        assert_eq!(reply.status(), status);
        assert_eq!(reply.headers()["content-type"], "application/problem+json");
    }
}

#[tokio::test]
async fn an_answer_in_chunks_has_no_other_length() {
    let both = upstream(|mut stream| async move {
        read_head(&mut stream).await;
        let reply = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n\
                     4\r\nwhat\r\n0\r\n\r\n";
        let _ = stream.write_all(reply.as_bytes()).await;
    })
    .await;
    let running = Start::with("version = 1\n").upstream(both).run().await;
    let reply = running.raw(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
    assert!(reply.starts_with("HTTP/1.1 200") && reply.contains("what"), "{reply}");
    assert!(!reply.to_ascii_lowercase().contains("content-length"), "{reply}");
}

#[tokio::test]
async fn more_than_a_hundred_headers_are_too_many_in_either_protocol() {
    let running = Start::with("version = 1\n").run().await;
    let stream = TcpStream::connect(running.address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    tokio::spawn(connection);
    for (count, status) in [(100, 200), (101, 431)] {
        let mut request = http::Request::get(running.url("/"));
        for n in 0..count {
            request = request.header(format!("x-{n}"), "v");
        }
        let request = request.body(Empty::<bytes::Bytes>::new()).unwrap();
        let reply = sender.send_request(request).await.unwrap();
        assert_eq!(reply.status(), status, "{count}");
    }
    let many: String = (0..101).map(|n| format!("x-{n}: v\r\n")).collect();
    let reply = running.raw(format!("GET / HTTP/1.1\r\nHost: a\r\n{many}\r\n").as_bytes()).await;
    assert!(reply.starts_with("HTTP/1.1 431"), "{reply}");
}

#[tokio::test]
async fn a_body_that_breaks_off_or_stalls_ends_in_an_error() {
    for stalls in [false, true] {
        let half = upstream(move |mut stream| async move {
            read_head(&mut stream).await;
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf").await;
            if stalls {
                tokio::time::sleep(Duration::from_secs(20)).await;
            }
        })
        .await;
        let running = Start::with("version = 1\n")
            .upstream(half)
            .options(|options| options.upstream_patience = Duration::from_millis(300))
            .run()
            .await;
        let reply = client().get(running.url("/")).send().await.unwrap();
        assert_eq!(reply.status(), 200);
        let began = Instant::now();
        assert!(reply.bytes().await.is_err());
        assert!(began.elapsed() < Duration::from_secs(5));
    }
}

#[tokio::test]
async fn connections_to_the_upstream_are_used_again_and_a_closed_one_is_replaced() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    let opened = Arc::new(AtomicUsize::new(0));
    let counter = opened.clone();
    // Three answers on each connection, then it is closed without a word.
    let address = upstream(move |mut stream| {
        counter.fetch_add(1, Ordering::Relaxed);
        async move {
            for _ in 0..3 {
                if read_head(&mut stream).await.is_empty() {
                    return;
                }
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
            }
        }
    })
    .await;
    let running = Start::with("version = 1\n")
        .upstream(address)
        .options(|options| options.workers = 1)
        .run()
        .await;
    let client = client();
    for _ in 0..9 {
        let reply = client.get(running.url("/")).send().await.unwrap();
        assert_eq!((reply.status().as_u16(), reply.text().await.unwrap().as_str()), (200, "ok"));
        // The upstream's end of a connection needs a moment to be seen.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(opened.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn the_upstream_sees_who_asked_and_nothing_that_was_for_us_alone() {
    let shows = upstream(|mut stream| async move {
        let head = read_head(&mut stream).await;
        let reply = format!(
            "HTTP/1.1 200 OK\r\nX-RateLimit-Remaining: 777\r\nConnection: X-Gone\r\nX-Gone: 1\r\nContent-Length: {}\r\n\r\n{head}",
            head.len()
        );
        let _ = stream.write_all(reply.as_bytes()).await;
    })
    .await;
    let running = Start::with(TEN).upstream(shows).run().await;
    let reply = client()
        .get(running.url("/p%20q?x=1"))
        .header("x-forwarded-for", "9.9.9.9")
        .header("x-user-id", "admin")
        .header("proxy-authorization", "secret")
        .header("connection", "x-private")
        .header("x-private", "1")
        .send()
        .await
        .unwrap();
    assert_eq!(reply.headers()["x-ratelimit-remaining"], "9");
    assert!(!reply.headers().contains_key("x-gone"));
    let seen = reply.text().await.unwrap().to_lowercase();
    assert!(seen.starts_with("get /p%20q?x=1 http/1.1\r\n"), "{seen}");
    assert!(seen.contains("x-forwarded-for: 127.0.0.1\r\n"), "{seen}");
    for gone in ["9.9.9.9", "x-user-id", "proxy-authorization", "x-private", "connection:"] {
        assert!(!seen.contains(gone), "{gone} in {seen}");
    }
}

#[tokio::test]
async fn a_policy_sends_paths_to_upstreams_of_their_own() {
    let says = |word: &'static str| {
        upstream(move |mut stream| async move {
            read_head(&mut stream).await;
            let reply = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{word}", word.len());
            let _ = stream.write_all(reply.as_bytes()).await;
        })
    };
    let (api, deep) = (says("api").await, says("deep").await);
    let policy = format!(
        "[[upstream]]\nprefix = \"/api\"\nurl = \"http://{api}\"\n[[upstream]]\nprefix = \"/api/deep\"\nurl = \"http://{deep}\"\n"
    );
    let running = Start::with(&policy).run().await;
    for (path, word) in [("/api", "api"), ("/api/x", "api"), ("/api/deep/x", "deep")] {
        let reply = client().get(running.url(path)).send().await.unwrap();
        assert_eq!(reply.text().await.unwrap(), word, "{path}");
    }
    let reply = client().get(running.url("/apixx")).send().await.unwrap();
    assert!(reply.text().await.unwrap().contains("\"path\":\"/apixx\""));
}

#[tokio::test]
async fn a_leaky_bucket_holds_requests_and_refuses_those_it_would_hold_too_long() {
    let policy = r#"
[[rule]]
name = "slow"
dimension = "ip"
limits = [{ limit = "10/1s", algorithm = "leaky-bucket", max_delay = "250ms" }]
"#;
    let running = Start::with(policy).run().await;
    let client = client();
    let began = Instant::now();
    let ask = || async {
        let reply = client.get(running.url("/")).send().await.unwrap();
        (reply.status().as_u16(), began.elapsed(), reply.headers().get("retry-after").cloned())
    };
    let mut replies = join_all((0..8).map(|_| ask())).await;
    replies.sort_by_key(|(_, at, _)| *at);
    let passed: Vec<_> = replies.iter().filter(|(status, ..)| *status == 200).collect();
    // At once, after 100 ms and after 200 ms; more could only be held longer than 250 ms, and what
    // those were charged is given back.
    assert_eq!(passed.len(), 3, "{replies:?}");
    assert!(passed[2].1 >= Duration::from_millis(195), "{replies:?}");
    assert!(replies.iter().filter(|r| r.0 == 429).all(|r| r.2.as_ref().is_some_and(|v| v == "1")));
}

#[tokio::test]
async fn whoever_goes_away_while_held_is_not_charged() {
    let policy = r#"
[[rule]]
name = "slow"
dimension = "ip"
limits = [{ limit = "1/10s", algorithm = "leaky-bucket", burst = 2, max_delay = "30s" }]
"#;
    let running = Start::with(policy).run().await;
    assert_eq!(client().get(running.url("/")).send().await.unwrap().status(), 200);
    let mut held = TcpStream::connect(running.address).await.unwrap();
    held.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let peek = || async {
        let client = client();
        let reply = client.get(running.url("/")).timeout(Duration::from_millis(200)).send().await;
        reply.map(|reply| reply.status().as_u16()).ok()
    };
    // Two are in the queue of two: the next one is refused at once.
    let full = async { while peek().await != Some(429) {} };
    tokio::time::timeout(Duration::from_secs(5), full).await.expect("the queue fills");
    drop(held);
    // Its place is free again: the next one is held, not refused.
    let free = async {
        while peek().await == Some(429) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), free).await.expect("a place is given back");
}

#[tokio::test]
async fn a_client_that_is_still_sending_after_its_answer_delays_nobody() {
    let early = upstream(|mut stream| async move {
        loop {
            if read_head(&mut stream).await.is_empty() {
                return;
            }
            let reply = b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno";
            if stream.write_all(reply).await.is_err() {
                return;
            }
        }
    });
    let early = early.await;
    let running = Start::with(TEN).upstream(early).options(|options| options.workers = 1);
    let running = running.run().await;
    let mut slow = TcpStream::connect(running.address).await.unwrap();
    let head = b"POST /up HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n";
    slow.write_all(head).await.unwrap();
    assert!(read_head(&mut slow).await.starts_with("HTTP/1.1 413"), "before all of it was sent");
    let other = client().get(running.url("/")).send();
    let other = tokio::time::timeout(Duration::from_secs(5), other).await;
    assert_eq!(other.expect("nobody waits for the slow one").unwrap().status(), 413);
}

#[tokio::test]
async fn a_websocket_goes_through_when_it_may() {
    use futures_util::{SinkExt, StreamExt};
    use tokio_tungstenite::tungstenite::Message;
    let echo = upstream(|stream| async move {
        let Ok(mut socket) = tokio_tungstenite::accept_async(stream).await else { return };
        while let Some(Ok(message)) = socket.next().await {
            if message.is_text() && socket.send(message).await.is_err() {
                return;
            }
        }
    })
    .await;
    let policy = format!("[gateway]\nwebsocket = true\n{TEN}");
    let running = Start::with(&policy).upstream(echo).run().await;
    let url = format!("ws://{}/chat", running.address);
    let (mut socket, reply) = tokio_tungstenite::connect_async(&url).await.unwrap();
    assert_eq!(reply.headers()["x-ratelimit-remaining"], "9");
    for word in ["one", "two"] {
        socket.send(Message::text(word)).await.unwrap();
        assert_eq!(socket.next().await.unwrap().unwrap().into_text().unwrap(), word);
    }
    socket.close(None).await.unwrap();
    let few = Start::with(&policy).upstream(echo).options(|options| {
        options.workers = 1;
        options.max_connections = 2;
    });
    let few = few.run().await;
    let url = format!("ws://{}/chat", few.address);
    let first = tokio_tungstenite::connect_async(&url).await.unwrap();
    let _second = tokio_tungstenite::connect_async(&url).await.unwrap();
    let mut third = Box::pin(tokio_tungstenite::connect_async(&url));
    let waits = tokio::time::timeout(Duration::from_millis(300), &mut third).await;
    assert!(waits.is_err(), "a tunnel keeps its place among the connections");
    drop(first);
    assert!(tokio::time::timeout(Duration::from_secs(10), third).await.unwrap().is_ok());
    let closed = Start::with(TEN).upstream(echo).run().await;
    let refused = tokio_tungstenite::connect_async(format!("ws://{}/", closed.address)).await;
    assert!(refused.is_err(), "upgrades are off unless asked for");
}

#[tokio::test]
async fn what_is_ambiguous_or_too_much_is_refused() {
    let running = Start::with(TEN)
        .options(|options| options.head_within = Duration::from_millis(400))
        .run()
        .await;
    let many: String = (0..200).map(|n| format!("X-{n}: 1\r\n")).collect();
    let long = format!("GET / HTTP/1.1\r\nHost: a\r\nX-Long: {}\r\n\r\n", "x".repeat(300_000));
    for (bytes, status) in [
        ("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned(), "400"),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 5\r\nConnection: close\r\n\r\nabc".to_owned(), "400"),
        ("GET http://other.example/ HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".to_owned(), "400"),
        ("CONNECT other.example:443 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".to_owned(), "400"),
        ("GET / HTTP/1.1\r\nConnection: close\r\n\r\n".to_owned(), "400"),
        ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\nConnection: close\r\n\r\n".to_owned(), "400"),
        ("OPTIONS /a%2Fb HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".to_owned(), "400"),
        ("GET /a%2Fb HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".to_owned(), "400"),
        ("GET / HTTP/1.1\r\nHost: a\r\nX-API-Key: a\r\nX-API-Key: b\r\nConnection: close\r\n\r\n".to_owned(), "400"),
        (format!("GET / HTTP/1.1\r\nHost: a\r\n{many}\r\n"), "431"),
        (long, "431"),
        ("\x16\x03\x01garbage\r\n\r\n".to_owned(), "400"),
    ] {
        let reply = running.raw(bytes.as_bytes()).await;
        let line = reply.lines().next().unwrap_or_default();
        assert!(line.starts_with(&format!("HTTP/1.1 {status}")), "{line:?} to {:.80}", bytes);
    }
    // Somebody who sends a head byte by byte, or half of HTTP/2's, is not waited for.
    for slow in ["G", "GET / HTTP/1.1\r\nHost: a\r\n", "PRI * HT"] {
        let began = Instant::now();
        running.raw(slow.as_bytes()).await;
        assert!(began.elapsed() < Duration::from_secs(5), "{slow:?}");
    }
    assert_eq!(client().get(running.url("/")).send().await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_body_with_two_lengths_goes_on_with_one() {
    let shows = upstream(|mut stream| async move {
        let head = read_head(&mut stream).await;
        let reply = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{head}", head.len());
        let _ = stream.write_all(reply.as_bytes()).await;
    })
    .await;
    let running = Start::with(TEN).upstream(shows).run().await;
    let smuggled =
        b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 30\r\nTransfer-Encoding: chunked\r\n\r\n\
        0\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let replies = running.raw(smuggled).await.to_lowercase();
    assert!(!replies.contains("content-length: 30"), "{replies}");
    assert!(replies.contains("x-ratelimit-remaining: 9"), "{replies}");
    // What came after the body is not even looked at.
    assert!(replies.contains("connection: close") && !replies.contains("get /b"), "{replies}");
}

#[tokio::test]
async fn nobody_gets_round_the_rule_by_address_with_invented_headers() {
    let running = Start::with(TEN).run().await;
    let client = client();
    let mut passed = 0;
    for n in 0..30 {
        let reply = client
            .get(running.url("/"))
            .header("x-forwarded-for", format!("198.51.100.{n}"))
            .header("x-real-ip", format!("198.51.100.{n}"))
            .header("forwarded", format!("for=198.51.100.{n}"))
            .header("x-api-key", format!("random-{n}"))
            .header("x-user-id", format!("user-{n}"))
            .send()
            .await
            .unwrap();
        passed += usize::from(reply.status() == 200);
    }
    assert_eq!(passed, 10);
}

#[tokio::test]
async fn preflights_are_free_and_callers_may_look_at_their_own_limits() {
    let policy = format!("[gateway]\nself_limits = true\n[cors]\nexpose_headers = true\n{TEN}");
    let running = Start::with(&policy).run().await;
    let client = client();
    for _ in 0..20 {
        let request = client
            .request(reqwest::Method::OPTIONS, running.url("/"))
            .header("origin", "https://shop.example")
            .header("access-control-request-method", "GET");
        assert_eq!(request.send().await.unwrap().status(), 200);
    }
    for _ in 0..3 {
        let reply = client.get(running.url("/rate-limit")).send().await.unwrap();
        let body: serde_json::Value = reply.json().await.unwrap();
        assert_eq!(body["limits"][0]["remaining"], 10, "{body}");
    }
    let reply = client.get(running.url("/")).send().await.unwrap();
    assert_eq!(reply.headers()["x-ratelimit-remaining"], "9");
    assert!(
        reply.headers()["access-control-expose-headers"].to_str().unwrap().contains("RateLimit")
    );
}

#[tokio::test]
async fn a_stop_lets_open_requests_finish_and_takes_no_new_ones() {
    let slow = upstream(|mut stream| async move {
        read_head(&mut stream).await;
        tokio::time::sleep(Duration::from_millis(400)).await;
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone").await;
    })
    .await;
    let running = Start::with("version = 1\n").upstream(slow).run().await;
    let (url, address) = (running.url("/"), running.address);
    let open = tokio::spawn(async move { client().get(url).send().await.unwrap().text().await });
    tokio::time::sleep(Duration::from_millis(150)).await;
    running.gateway.drain();
    let idle = TcpStream::connect(address).await.unwrap();
    let ready = running.raw(b"GET /ready HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
    assert!(ready.starts_with("HTTP/1.1 503"), "{ready}");
    assert!(running.serving.stop().await, "all finish in time");
    assert_eq!(open.await.unwrap().unwrap(), "done");
    assert!(TcpStream::connect(address).await.is_err(), "the door is closed");
    drop(idle);
}

#[tokio::test]
async fn tls_is_spoken_with_the_certificate_given() {
    let folder = tempfile::tempdir().unwrap();
    let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    let made = std::process::Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"])
        .args(["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&cert)
        .output()
        .unwrap();
    assert!(made.status.success());
    let _ = client();
    let acceptor = rlctl::gateway::tls::acceptor(&cert, &key).unwrap();
    let running = Start::with(TEN).options(|o| o.tls = Some(acceptor)).run().await;
    let trusted = reqwest::Certificate::from_pem(&std::fs::read(&cert).unwrap()).unwrap();
    let client = reqwest::Client::builder()
        .no_proxy()
        .tls_certs_only([trusted])
        .resolve("localhost", running.address)
        .build()
        .unwrap();
    let url = format!("https://localhost:{}/", running.address.port());
    assert_eq!(client.get(&url).send().await.unwrap().status(), 200);
    let plain = running.raw(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert!(!plain.contains("200"), "{plain}");
    assert!(rlctl::gateway::tls::acceptor(&key, &key).is_err());
}

#[tokio::test]
async fn a_gateway_without_a_policy_lets_pass_and_says_so() {
    let running = Start::with("").run().await;
    // Nothing to read is an empty policy; take it away as a store without one would.
    assert!(running.gateway.is_ready());
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await.unwrap();
    assert!(reply.starts_with("HTTP/1.1 200") && !reply.contains("ratelimit"), "{reply}");
}
