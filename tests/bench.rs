//! `rlctl bench` as people and scripts meet it, against real servers: what it prints, how it ends,
//! and whether what it says is true.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde_json::Value;
use tempfile::TempDir;

use crate::cli::rlctl;
use crate::support::redis::{RedisServer, free_port};
use crate::support::stalls::Stalls;

fn bench(arguments: &[&str]) -> Output {
    rlctl().arg("bench").args(arguments).output().expect("rlctl runs")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("UTF-8")
}

fn json(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text} {}", stderr(output)))
}

/// A run whose report is wanted.
fn report(arguments: &[&str]) -> Value {
    let output = bench(&[arguments, &["-o", "json"]].concat());
    assert!(matches!(output.status.code(), Some(0 | 4)), "{}", stderr(&output));
    json(&output)
}

fn us(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// A server that answers each request as `answer` says, on as many threads as there are clients.
fn server(answer: impl Fn(u64, &str) -> String + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}/", listener.local_addr().expect("an address"));
    let (answer, count) = (Arc::new(answer), Arc::new(AtomicU64::new(0)));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (answer, count) = (answer.clone(), count.clone());
            std::thread::spawn(move || serve(stream, &*answer, &count));
        }
    });
    url
}

fn serve(stream: TcpStream, answer: &dyn Fn(u64, &str) -> String, count: &AtomicU64) {
    let _ = stream.set_nodelay(true);
    let mut lines = BufReader::new(stream.try_clone().expect("a handle"));
    let mut out = stream;
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            match lines.read_line(&mut head) {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
        let reply = answer(count.fetch_add(1, Ordering::SeqCst), &head);
        if out.write_all(reply.as_bytes()).is_err() {
            return;
        }
    }
}

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

#[test]
fn json_says_what_the_specification_names() {
    let report = report(&["--rps", "200", "--for", "1s", "--limit", "50/1s"]);
    assert_eq!((report["schema"].as_str(), us(&report["sent"])), (Some("rlctl/v1"), 200));
    assert_eq!(
        (report["planned_rps"].as_f64(), us(&report["elapsed_us"])),
        (Some(200.0), 1_000_000)
    );
    for field in ["delivered_rps", "client_cpu_percent"] {
        assert!(report[field].is_number(), "{field}: {report}");
    }
    assert!(report["client_bound"].is_boolean() && report["expectations"].is_array());
    us(&report["schedule_lag_p99_us"]);
    for outcome in ["allowed", "limited", "shed", "error", "timeout"] {
        let of = &report["outcomes"][outcome];
        let count = us(&of["count"]);
        for time in ["service", "response"] {
            for field in ["p50_us", "p90_us", "p99_us", "p999_us", "max_us"] {
                assert_eq!(of[time][field].is_u64(), count > 0, "{outcome} {time} {field}: {of}");
                assert!(of[time].get(field).is_some());
            }
        }
    }
    let count = |outcome: &str| us(&report["outcomes"][outcome]["count"]);
    assert!((90..=130).contains(&count("allowed")), "{report}");
    assert_eq!(count("allowed") + count("limited"), 200);
}

#[test]
fn without_a_target_a_gateway_of_its_own_is_loaded_and_that_is_said() {
    let output = bench(&["--rps", "100", "--for", "1s", "--keys", "uniform:5"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stderr(&output).contains("a gateway in this process on 127.0.0.1:"));
    let text = String::from_utf8(output.stdout).unwrap();
    for words in ["delivered 100 of 100", "allowed", "response", "service", "fairness 1 over 5"] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[test]
fn mistakes_end_with_their_code_and_say_what_to_type() {
    let free = format!("http://127.0.0.1:{}/", free_port());
    for (arguments, code, words) in [
        (vec![], 2, "--rps N"),
        (vec!["--rps", "many"], 2, "requests per second"),
        (vec!["--closed"], 2, "-c N"),
        (vec!["--closed", "-c", "2", "--rps", "5"], 2, "cannot be used with"),
        (vec!["ftp", "--rps", "5"], 2, "is no target"),
        (vec!["http://192.0.2.1/", "--rps", "5"], 6, "--own 192.0.2.1"),
        (vec!["redis://192.0.2.1", "--rps", "5"], 6, "--own 192.0.2.1"),
        (vec![&free, "--rps", "5"], 5, "cannot reach"),
        (vec!["engine", "--rps", "5", "--expect", "p98(response) < 1s"], 2, "did you mean p"),
        (vec!["engine", "--rps", "5", "--expect", "breaker == open"], 2, "bench sees answers only"),
        (vec!["engine", "--rps", "5", "--expect", "x: allowed > 1"], 2, "one limiter"),
        (vec!["engine", "--rps", "5", "--abort-on", "fairness < 1"], 2, "--expect"),
        (
            vec!["engine", "--rps", "5", "--expect", "over_admitted{key=a} == 0"],
            2,
            "leave the label",
        ),
        (vec!["engine", "--rps", "5", "--save", "/nonexistent/x"], 1, "cannot write --save"),
        (vec!["--log", "/nonexistent/x"], 3, "cannot open"),
        (vec!["diff", "/nonexistent/x", "/nonexistent/y"], 3, "/nonexistent/x"),
        (vec!["--rps", "5", "--stages", "5:1s"], 2, "cannot be used with"),
        (vec!["--rps", "5", "--for", "2d"], 2, "too long"),
    ] {
        let output = bench(&arguments);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(words), "{arguments:?}: {said}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}

#[test]
fn an_expectation_that_is_not_met_ends_with_4() {
    let arguments = ["engine", "--rps", "500", "--for", "1s", "--limit", "100/1s"];
    let held = bench(&[&arguments[..], &["--expect", "allowed in 190..230"]].concat());
    assert_eq!(held.status.code(), Some(0), "{}", String::from_utf8_lossy(&held.stdout));
    let expectations = [
        "--expect",
        "share(limited) over 100ms < 10%",
        "--expect",
        "worst_window(1s) <= 200",
        "--expect",
        "over_admitted == 0",
    ];
    let output = bench(&[&arguments[..], &expectations, &["-o", "json"]].concat());
    assert_eq!(output.status.code(), Some(4));
    let told = json(&output)["expectations"].clone();
    let met: Vec<bool> =
        told.as_array().unwrap().iter().map(|e| e["met"].as_bool().unwrap()).collect();
    assert_eq!(met, [false, true, true], "{told}");
    assert!(told[0]["message"].as_str().unwrap().contains("wanted < 10%"));
}

#[test]
fn a_run_is_ended_when_what_must_not_happen_happens() {
    let url = server(|n, _| match n {
        0..200 => OK.into(),
        _ => "HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n".into(),
    });
    let began = Instant::now();
    let words = ["--rps", "200", "--for", "60s", "--abort-on", "share(errors) over 500ms > 50%"];
    let output = bench(&[&[url.as_str()], &words[..]].concat());
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    assert!(stderr(&output).contains("--abort-on became true"));
    assert!(began.elapsed() < Duration::from_secs(20));
}

/// Stands still from 500 ms to 800 ms of every second since its first request.
fn stalling() -> String {
    let first: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    server(move |_, _| {
        let since = first.get_or_init(Instant::now).elapsed().as_micros() as u64 % 1_000_000;
        if (500_000..800_000).contains(&since) {
            std::thread::sleep(Duration::from_micros(800_000 - since));
        }
        OK.into()
    })
}

#[test]
fn a_stall_is_in_the_response_times_and_not_in_the_service_times() {
    // One connection, as one client has: while the server stands still, nothing can be sent.
    let (stalls, began) = (Stalls::watch(), Instant::now());
    let report =
        report(&[&stalling(), "--rps", "200", "--for", "4s", "-c", "1", "--timeout", "10s"]);
    let lost = stalls.between(began, Instant::now()).as_micros() as u64;
    // By hand: of the requests of a second, those planned during the stall wait for its end.
    let mut by_hand = Histogram::<u64>::new(3).unwrap();
    for n in 0..800u64 {
        let planned = n * 5_000 % 1_000_000;
        let waits = if (500_000..800_000).contains(&planned) { 800_000 - planned } else { 0 };
        by_hand.record(waits.max(1)).unwrap();
    }
    let response = &report["outcomes"]["allowed"]["response"];
    let service = &report["outcomes"]["allowed"]["service"];
    for (share, field) in [(0.9, "p90_us"), (0.99, "p99_us"), (1.0, "max_us")] {
        let (told, expected) = (us(&response[field]), by_hand.value_at_quantile(share));
        // The machine may add something, and never takes anything away.
        let range = expected - 20_000..=expected + 60_000 + lost;
        assert!(range.contains(&told), "{field}: {told} instead of {expected}: {report}");
    }
    assert!(us(&service["p90_us"]) < 50_000 + lost, "{report}");
    assert!(us(&response["p50_us"]) < 60_000 + lost, "{report}");
    // A closed loop sees as good as nothing of it.
    let closed = self::report(&[&stalling(), "--closed", "-c", "1", "--for", "2s"]);
    assert!(us(&closed["outcomes"]["allowed"]["response"]["p99_us"]) < 50_000, "{closed}");
}

/// A real nginx of the test's own, ended with it.
struct Nginx {
    child: Child,
    port: u16,
    _folder: TempDir,
}

impl Nginx {
    fn limiting(rate: &str, burst: u32) -> Nginx {
        let folder = tempfile::tempdir().expect("a folder");
        let dir = folder.path().display();
        let port = free_port();
        let paths = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path {dir}/t;"))
            .concat();
        let text = format!(
            "worker_processes 1; daemon off; pid {dir}/pid; error_log {dir}/error.log crit;\n\
             events {{ }}\nhttp {{ access_log off; keepalive_requests 1000000; {paths}\n\
             limit_req_zone $arg_k zone=k:1m rate={rate}; limit_req_status 429;\n\
             server {{ listen 127.0.0.1:{port}; location / {{\n\
             limit_req zone=k burst={burst} nodelay; empty_gif; }} }} }}\n"
        );
        let config = folder.path().join("nginx.conf");
        std::fs::write(&config, text).expect("a file");
        let child = Command::new("nginx")
            .arg("-c")
            .arg(&config)
            .arg("-p")
            .arg(folder.path())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|e| panic!("cannot run nginx ({e}): apt-get install nginx-light"));
        let until = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < until, "nginx does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        Nginx { child, port, _folder: folder }
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // Its worker ends with it only when it is asked.
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}

#[test]
fn nginx_admits_what_it_is_configured_to_and_the_verdict_says_so() {
    let nginx = Nginx::limiting("400r/s", 20);
    let url = format!("http://127.0.0.1:{}/", nginx.port);
    // `burst` of nginx comes on top of the one that passes.
    let limit = ["--limit", "400/1s", "--burst", "21"];
    let load = ["--rps", "2400", "--for", "4s", "--keys", "uniform:3", "--key-in", "query:k"];
    let (stalls, began) = (Stalls::watch(), Instant::now());
    let report = report(&[&[url.as_str()], &load[..], &limit].concat());
    // One in a hundred, and what the machine took away of the four seconds.
    let give = 0.01 + stalls.between(began, Instant::now()).as_secs_f64() / 4.0;
    let limiter = &report["limiter"];
    // Three keys of 21 and 400 a second for 4 s.
    let (admitted, by_hand) = (us(&limiter["admitted"]) as f64, 3.0 * (21.0 + 1_600.0));
    assert!((admitted / by_hand - 1.0).abs() < give, "{admitted} instead of {by_hand}: {limiter}");
    let expected = us(&limiter["expected_admitted"]) as f64;
    assert!((admitted / expected - 1.0).abs() < give, "{limiter}");
    assert_eq!(us(&limiter["over_admitted"]), 0, "{limiter}");
    let worst = &limiter["worst_window"];
    assert!(us(&worst["admitted"]) <= us(&worst["bound"]), "{limiter}");
    assert!(limiter["fairness"].as_f64().unwrap() > 0.99, "{limiter}");
    // nginx names no time to come back.
    assert!(us(&limiter["headers"]["limited_without_retry_after"]) > 0);
    // Said to be stricter than it is, it is found out.
    let strict = ["--limit", "200/1s", "--burst", "10"];
    let found = self::report(&[&[url.as_str()], &load[..], &strict].concat());
    assert!(us(&found["limiter"]["over_admitted"]) > 0, "{found}");
}

#[test]
fn headers_that_lie_are_found_out_and_honest_ones_are_not() {
    let refuse = "HTTP/1.1 429 No\r\nContent-Length: 0\r\nRetry-After: 1\r\n\r\n";
    let liar = server(move |_, _| refuse.into());
    let words = ["--rps", "20", "--for", "4s", "--clients", "polite"];
    let told = report(&[&[liar.as_str()], &words[..]].concat());
    let headers = &told["limiter"]["headers"];
    assert!(us(&headers["retry_after_too_short"]) >= 2, "{headers}");
    assert!(us(&told["held_back"]) > 60 && us(&told["retries"]) >= 2, "{told}");
    let wild = server(|n, _| {
        let (left, reset) = (if n % 2 == 0 { 90 } else { 10 }, if n % 2 == 0 { 60 } else { 50 });
        format!(
            "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-RateLimit-Limit: 100\r\n\
             X-RateLimit-Remaining: {left}\r\nX-RateLimit-Reset: {reset}\r\n\r\n"
        )
    });
    let told = report(&[&wild, "--rps", "50", "--for", "1s", "-c", "1"]);
    assert!(us(&told["limiter"]["headers"]["remaining_rose"]) > 5, "{told}");
    let past = server(|_, _| {
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-RateLimit-Limit: 100\r\n\
         X-RateLimit-Remaining: 5\r\nX-RateLimit-Reset: 1000000000\r\n\r\n"
            .into()
    });
    let told = report(&[&past, "--rps", "50", "--for", "1s"]);
    assert_eq!(us(&told["limiter"]["headers"]["reset_in_the_past"]), 50, "{told}");
    // Our own gateway, with clients that believe it.
    let words = ["--rps", "20", "--for", "5s", "--limit", "2/1s", "--clients", "polite"];
    let honest = report(&words)["limiter"]["headers"].clone();
    assert!(us(&honest["retry_after_judged"]) > 0, "{honest}");
    for field in ["retry_after_too_short", "remaining_rose", "reset_in_the_past"] {
        assert_eq!(us(&honest[field]), 0, "{field}: {honest}");
    }
}

#[test]
fn outcomes_are_told_apart() {
    let url = server(|n, _| match n % 5 {
        0 => OK.into(),
        1 => "HTTP/1.1 429 No\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nno\r\n0\r\n\r\n".into(),
        2 => "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n".into(),
        3 => "HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n".into(),
        _ => {
            std::thread::sleep(Duration::from_millis(4_000));
            OK.into()
        }
    });
    let words = ["--rps", "50", "--for", "1s", "-c", "32", "--timeout", "2s"];
    let told = report(&[&[url.as_str()], &words[..]].concat());
    for outcome in ["allowed", "limited", "shed", "error", "timeout"] {
        assert_eq!(us(&told["outcomes"][outcome]["count"]), 10, "{outcome}: {told}");
    }
    assert_eq!(told["trouble"], "the target answered 500", "{told}");
    let timeout = us(&told["outcomes"]["timeout"]["service"]["p50_us"]);
    assert!((2_000_000..4_000_000).contains(&timeout), "{timeout}");
    // Nobody there at all is no result.
    let closing = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", closing.local_addr().unwrap());
    std::thread::spawn(move || closing.incoming().for_each(drop));
    let output = bench(&[&url, "--rps", "50", "--for", "500ms"]);
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
}

#[test]
fn a_target_that_dies_fails_everything_after_it() {
    let dying = || {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("http://{}/", listener.local_addr().expect("an address"));
        std::thread::spawn(move || {
            listener.set_nonblocking(true).expect("a socket");
            let (began, mut open) = (Instant::now(), Vec::new());
            while began.elapsed() < Duration::from_millis(1_500) {
                std::thread::sleep(Duration::from_millis(1));
                let Ok((stream, _)) = listener.accept() else { continue };
                stream.set_nonblocking(false).expect("a socket");
                open.push(stream.try_clone().expect("a handle"));
                std::thread::spawn(move || serve(stream, &|_, _| OK.into(), &AtomicU64::new(0)));
            }
            drop(listener);
            open.iter().for_each(|stream| drop(stream.shutdown(std::net::Shutdown::Both)));
        });
        url
    };
    let planned = ["--rps", "100", "--for", "4s", "--expect", "errors == 0"];
    let output = bench(&[&[dying().as_str()], &planned[..], &["-o", "json"]].concat());
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    let told = json(&output);
    assert!(us(&told["outcomes"]["error"]["count"]) >= 200, "{told}");
    // But for what was due in the last moments: nobody waits for it.
    assert!(us(&told["not_sent"]) <= 5, "{told}");
    assert_eq!(told["expectations"][0]["met"], false, "{told}");
    // Clients of a closed loop fail as often as they try to connect.
    let closed = ["--closed", "-c", "2", "--for", "4s"];
    let told = report(&[&[dying().as_str()], &closed[..]].concat());
    let failed = us(&told["outcomes"]["error"]["count"]);
    assert!((10..1_000).contains(&failed), "{told}");
}

#[test]
fn what_was_not_sent_is_said() {
    let url = server(|_, _| {
        std::thread::sleep(Duration::from_millis(100));
        OK.into()
    });
    // Two connections carry 20 a second.
    let output = bench(&[&url, "--rps", "100", "--for", "2s", "-c", "2"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("of 200 planned requests"), "{text}");
    assert!(!text.contains("delivered 200"), "{text}");
    assert!(stderr(&output).contains("were never sent"), "{}", stderr(&output));
    let told = report(&[&url, "--rps", "100", "--for", "2s", "-c", "2"]);
    assert_eq!(us(&told["sent"]) + us(&told["not_sent"]), 200, "{told}");
    assert!(!told["client_bound"].as_bool().unwrap() || us(&told["send_lateness_p99_us"]) > 10_000);
}

#[test]
fn an_interrupted_run_reports_what_it_has() {
    let mut child = rlctl()
        .args(["bench", "engine", "--rps", "200", "--for", "60s", "-o", "json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("rlctl runs");
    std::thread::sleep(Duration::from_millis(1_500));
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-s", "INT", &pid]).status().unwrap().success());
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let told: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(told["interrupted"], true);
    assert!(us(&told["sent"]) >= 50 && us(&told["elapsed_us"]) < 30_000_000, "{told}");
}

#[test]
fn keys_stand_where_they_were_asked_for() {
    for (place, path, wanted) in [
        ("header:X-Tenant", "", "X-Tenant: user:"),
        ("query:who", "", "GET /?who=user:"),
        ("path", "", "GET /user:"),
        ("path", "v1/{key}/x?y=1", "/x?y=1 HTTP/1.1"),
    ] {
        let url = server(move |_, head| {
            let right = head.contains(wanted) && head.contains("user:");
            if right { OK.into() } else { "HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n".into() }
        });
        let url = format!("{url}{path}");
        let told = report(&[
            &url,
            "--rps",
            "40",
            "--for",
            "500ms",
            "--keys",
            "uniform:9",
            "--key-in",
            place,
        ]);
        assert_eq!(us(&told["outcomes"]["allowed"]["count"]), 20, "{place}: {told}");
    }
}

#[test]
fn http2_unix_sockets_pipelines_and_bodies_get_through() {
    let two = report(&["--rps", "200", "--for", "1s", "--http2", "--limit", "1000/1s"]);
    assert_eq!(us(&two["outcomes"]["allowed"]["count"]), 200, "{two}");
    let piped = ["--rps", "2000", "--for", "1s", "--pipeline", "16", "-c", "2", "--limit", "9k/1s"];
    let piped = report(&piped);
    assert_eq!(us(&piped["outcomes"]["allowed"]["count"]), 2_000, "{piped}");
    let folder = tempfile::tempdir().unwrap();
    let (socket, body) = (folder.path().join("s"), folder.path().join("body"));
    std::fs::write(&body, "{\"a\":1}").unwrap();
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut bytes = [0; 4_096];
                while let Ok(n @ 1..) = stream.read(&mut bytes) {
                    let text = String::from_utf8_lossy(&bytes[..n]).into_owned();
                    let right = text.starts_with("POST /x ")
                        && text.contains("X-A: b\r\n")
                        && text.ends_with("\r\n\r\n{\"a\":1}");
                    let reply =
                        if right { OK } else { "HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n" };
                    let _ = stream.write_all(reply.as_bytes());
                }
            });
        }
    });
    let (socket, body) = (socket.display().to_string(), body.display().to_string());
    let told = report(&[
        "http://localhost/x",
        "--unix-socket",
        &socket,
        "--method",
        "POST",
        "--header",
        "X-A: b",
        "--body",
        &body,
        "--rps",
        "100",
        "--for",
        "1s",
        "-c",
        "4",
    ]);
    assert_eq!(us(&told["outcomes"]["allowed"]["count"]), 100, "{told}");
}

/// A certificate for localhost that signs itself.
fn certificate(folder: &Path) -> (String, String) {
    let (cert, key) = (folder.join("cert.pem"), folder.join("key.pem"));
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
        ])
        .args(["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE", "-keyout"])
        .arg(&key)
        .arg("-out")
        .arg(&cert)
        .stderr(Stdio::null())
        .status();
    assert!(made.expect("openssl runs").success());
    (cert.display().to_string(), key.display().to_string())
}

#[test]
fn tls_is_spoken_and_believed_only_with_a_known_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let (cert, key) = certificate(folder.path());
    let mut serve = rlctl()
        .args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--limit", "1M/1s"])
        .args(["--tls-cert", &cert, "--tls-key", &key])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("rlctl runs");
    let mut line = String::new();
    BufReader::new(serve.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let port = line.trim().rsplit(':').next().unwrap().to_owned();
    let url = format!("https://localhost:{port}/");
    for more in [&[][..], &["--http2"], &["--pipeline", "4"]] {
        let output = rlctl()
            .args(["bench", &url, "--rps", "100", "--for", "1s", "-c", "4", "-o", "json"])
            .args(more)
            .env("SSL_CERT_FILE", &cert)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0), "{more:?}: {}", stderr(&output));
        let told = json(&output);
        assert_eq!(us(&told["outcomes"]["allowed"]["count"]), 100, "{more:?}: {told}");
    }
    let stranger = bench(&[&url, "--rps", "10", "--for", "1s"]);
    assert_eq!(stranger.status.code(), Some(5), "{}", stderr(&stranger));
    serve.kill().unwrap();
    serve.wait().unwrap();
}

/// A gateway of its own process, and where its proxy and its admin side listen.
fn gateway() -> (Child, String, String) {
    let mut serve = rlctl()
        .args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--limit", "1M/1s"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("rlctl runs");
    let mut lines = BufReader::new(serve.stdout.take().unwrap()).lines();
    let mut told = || lines.next().unwrap().unwrap().rsplit(' ').next().unwrap().to_owned();
    let (proxy, admin) = (format!("http://{}/", told()), format!("http://{}", told()));
    (serve, proxy, admin)
}

#[test]
fn the_gateway_of_the_context_is_loaded_where_its_proxy_is() {
    let (mut serve, proxy, admin) = gateway();
    let output = bench(&["--gateway", &admin, "--rps", "50", "--for", "1s", "-o", "json"]);
    assert!(stderr(&output).contains("the gateway of the context"), "{}", stderr(&output));
    let told = json(&output);
    assert_eq!(told["target"], proxy, "{told}");
    assert_eq!(us(&told["outcomes"]["allowed"]["count"]), 50, "{told}");
    serve.kill().unwrap();
    serve.wait().unwrap();
}

#[test]
fn a_server_that_speaks_no_http2_is_told_before_anything_is_sent() {
    let old = server(|_, _| "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n".into());
    let output = bench(&[&old, "--http2", "--rps", "10", "--for", "1s"]);
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    let why = "it does not speak HTTP/2, it answered `HTTP/1.1 400 Bad Request`; leave out --http2";
    assert!(stderr(&output).contains(why), "{}", stderr(&output));
    assert!(output.stdout.is_empty());
}

#[test]
fn requests_that_fail_have_a_reason() {
    let dies = |target: &str, extra: &[&str], kill: &mut dyn FnMut()| {
        let child = rlctl()
            .args(["bench", target, "--rps", "200", "--for", "3s", "-o", "json"])
            .args(extra)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("rlctl runs");
        std::thread::sleep(Duration::from_millis(1_500));
        kill();
        let output = child.wait_with_output().expect("rlctl ends");
        let told = json(&output);
        assert!(us(&told["outcomes"]["error"]["count"]) > 0, "{told}");
        let why = told["trouble"].as_str().unwrap_or_else(|| panic!("{told}")).to_owned();
        assert!(stderr(&output).contains(&why), "{why}: {}", stderr(&output));
    };
    let (mut serve, proxy, _) = gateway();
    dies(&proxy, &["--http2"], &mut || serve.kill().unwrap());
    serve.wait().unwrap();
    let mut redis = RedisServer::start();
    dies(&redis.url(), &["--limit", "9/1m"], &mut || redis.kill());
}

#[test]
fn the_engine_on_a_redis_is_loaded_and_nothing_is_left_behind() {
    let redis = RedisServer::start();
    let words = ["--rps", "500", "--for", "1s", "--keys", "uniform:50", "--limit", "2/1m"];
    let told = report(&[&[redis.url().as_str()], &words[..]].concat());
    let outcomes = &told["outcomes"];
    assert_eq!(us(&outcomes["allowed"]["count"]), 100, "{told}");
    assert_eq!(us(&outcomes["limited"]["count"]), 400, "{told}");
    assert_eq!(us(&told["limiter"]["expected_admitted"]), 100);
    assert!(redis.dump().is_empty(), "{:?}", redis.dump());
    let none = bench(&[&format!("redis://127.0.0.1:{}", free_port()), "--rps", "5"]);
    assert_eq!(none.status.code(), Some(5), "{}", stderr(&none));
}

#[test]
fn stages_spikes_and_warm_up_make_the_plan() {
    let words = ["engine", "--stages", "100:1s,100..300:1s,0:500ms", "--spike", "50@1.5s"];
    let told = report(&[&words[..], &["--warmup", "500ms"]].concat());
    assert_eq!((us(&told["planned"]), us(&told["sent"])), (350, 350), "{told}");
    assert_eq!(us(&told["elapsed_us"]), 2_500_000);
    let poisson = report(&["engine", "--rps", "1k", "--for", "1s", "--poisson", "--seed", "7"]);
    let planned = us(&poisson["planned"]);
    assert!((850..1_150).contains(&planned) && planned != 1_000, "{planned}");
    let again = report(&["engine", "--rps", "1k", "--for", "1s", "--poisson", "--seed", "7"]);
    assert_eq!(us(&again["planned"]), planned);
    let workers = report(&["engine", "--rps", "1k", "--for", "1s", "--workers", "3"]);
    assert_eq!(us(&workers["sent"]), 1_000);
}

#[test]
fn a_log_is_sent_again_at_any_speed() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("access.log");
    let lines: String = (0..100)
        .map(|n| {
            let (second, ip) = (n / 10, n % 4);
            format!(
                "10.0.0.{ip} - - [18/Nov/2026:12:00:{second:02} +0000] \"GET /a HTTP/1.1\" 200 5 \"-\" \"-\"\n"
            )
        })
        .collect();
    std::fs::write(&log, lines + "nonsense\n").unwrap();
    let log = log.display().to_string();
    let output =
        bench(&["engine", "--log", &log, "--speed", "10x", "--limit", "5/1h", "-o", "json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stderr(&output).contains("100 requests of 4 keys in 1s"), "{}", stderr(&output));
    let told = json(&output);
    assert_eq!((told["mode"].as_str(), us(&told["sent"])), (Some("replay"), 100));
    assert_eq!(us(&told["outcomes"]["allowed"]["count"]), 20, "{told}");
}

#[test]
fn runs_are_kept_and_compared() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (a, b, hdr, log) = (path("a.json"), path("b.json"), path("x.hgrm"), path("x.hlog"));
    let slow = server(|_, _| {
        std::thread::sleep(Duration::from_millis(60));
        OK.into()
    });
    let fast = server(|_, _| OK.into());
    let words = ["--rps", "100", "--for", "7s", "-c", "32"];
    let files = ["--save", &a, "--hdr", &hdr, "--hdr-log", &log];
    let runs = [
        [&[fast.as_str()], &words[..], &files].concat(),
        [&[slow.as_str()], &words[..], &["--save", &b]].concat(),
    ];
    let children = runs.map(|run| {
        rlctl().arg("bench").args(run).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
    });
    for child in children {
        assert!(child.wait_with_output().unwrap().status.success());
    }
    let worse = bench(&["diff", &a, &b]);
    let text = String::from_utf8_lossy(&worse.stdout).into_owned();
    assert_eq!(worse.status.code(), Some(8), "{text} {}", stderr(&worse));
    assert!(text.contains("significantly WORSE") && text.contains("response p50"), "{text}");
    let same = bench(&["diff", &a, &a, "-o", "json"]);
    assert_eq!(same.status.code(), Some(0));
    assert_eq!(json(&same)["significantly_worse"], false);
    let better = bench(&["diff", &b, &a]);
    assert_eq!(better.status.code(), Some(0), "{}", String::from_utf8_lossy(&better.stdout));
    let hgrm = std::fs::read_to_string(&hdr).unwrap();
    assert!(
        hgrm.contains("Percentile") && hgrm.contains("Total count    =          700"),
        "{hgrm}"
    );
    check_hdr_log(&std::fs::read_to_string(&log).unwrap());
}

/// Another reader of that format understands every line.
fn check_hdr_log(text: &str) {
    use base64::Engine as _;
    use hdrhistogram::serialization::Deserializer;
    let mut total = 0;
    for line in text.lines().filter(|line| line.starts_with("Tag=allowed,")) {
        let histogram = line.rsplit(',').next().unwrap();
        let bytes = base64::engine::general_purpose::STANDARD.decode(histogram).unwrap();
        let read: Histogram<u64> = Deserializer::new().deserialize(&mut &bytes[..]).unwrap();
        total += read.len();
    }
    assert_eq!(total, 700, "{text}");
}

#[test]
fn csv_is_one_line_a_second() {
    let output = bench(&["engine", "--rps", "100", "--for", "2s", "-o", "csv"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("until_us,sent,allowed,limited"), "{text}");
    let sent: u64 =
        lines[1..].iter().map(|l| l.split(',').nth(1).unwrap().parse::<u64>().unwrap()).sum();
    assert_eq!(sent, 200, "{text}");
}
