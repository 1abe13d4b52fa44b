//! `rlctl serve` as a process of its own: its addresses, who may ask there, how it changes while it
//! runs and how it ends.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdout, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rlctl::gateway::grpc::messages::rlctl::v1::CheckRequest;
use rlctl::gateway::grpc::messages::rlctl::v1::rate_limiter_client::RateLimiterClient;
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tonic::transport::{Channel, Endpoint};

use crate::cli::rlctl;
use crate::support::gateway::{client, read_head, upstream};
use crate::support::redis::RedisServer;
use crate::support::stalls::Stalls;

const TOKENS: &str = "read reader-token-0001 grafana\nwrite writer-token-0001 alice\n";

/// A gateway that runs, and ends with the test.
struct Process {
    child: Child,
    /// Kept open: it may still have something to say.
    _stdout: BufReader<ChildStdout>,
    http: SocketAddr,
    admin: SocketAddr,
    grpc: SocketAddr,
}

impl Process {
    fn start(arguments: &[&str]) -> Process {
        let addresses =
            ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--grpc", "127.0.0.1:0"];
        let mut child = rlctl()
            .arg("serve")
            .args(addresses)
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("rlctl starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut told = |name: &str| -> SocketAddr {
            let mut line = String::new();
            stdout.read_line(&mut line).expect("a line");
            let address = line.strip_prefix(&format!("listening {name} "));
            address
                .unwrap_or_else(|| panic!("{name}: {line:?}"))
                .trim()
                .parse()
                .expect("an address")
        };
        let (http, admin, grpc) = (told("http"), told("admin"), told("grpc"));
        Process { child, _stdout: stdout, http, admin, grpc }
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = std::process::Command::new("kill").args(["-s", name, &pid]).status();
        assert!(sent.expect("kill runs").success());
    }

    /// Ends it as a service manager would; what it said on stderr, and how it ended.
    fn stop(mut self) -> (Option<i32>, String) {
        self.signal("TERM");
        let status = self.child.wait().expect("it ends");
        let mut said = String::new();
        self.child.stderr.take().expect("a pipe").read_to_string(&mut said).expect("text");
        (status.code(), said)
    }

    async fn status(&self, path: &str, header: (&str, &str)) -> u16 {
        let url = format!("http://{}{path}", self.http);
        client().get(url).header(header.0, header.1).send().await.unwrap().status().as_u16()
    }

    async fn until_status(&self, wanted: u16, path: &str, header: (&str, &str)) -> Duration {
        let began = Instant::now();
        while self.status(path, header).await != wanted {
            assert!(began.elapsed() < Duration::from_secs(20), "{path} never answers {wanted}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        began.elapsed()
    }

    async fn stats(&self) -> Value {
        let url = format!("http://{}/api/v1/stats", self.admin);
        client().get(url).send().await.unwrap().json().await.unwrap()
    }

    async fn grpc(&self) -> RateLimiterClient<Channel> {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.grpc)).unwrap();
        RateLimiterClient::new(endpoint.connect().await.unwrap())
    }

    fn resident_bytes(&self) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let text = std::fs::read_to_string(path).expect("Linux tells it");
        let line = text.lines().find(|line| line.starts_with("VmHWM:")).expect("its peak");
        let digits: String = line.chars().filter(char::is_ascii_digit).collect();
        digits.parse::<u64>().unwrap() * 1024
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn check(process: &Process, arguments: &[&str]) -> Output {
    let admin = process.admin.to_string();
    rlctl().args(["check", "--gateway", &admin]).args(arguments).output().expect("rlctl runs")
}

fn write(folder: &TempDir, name: &str, text: &str) -> String {
    let path = folder.path().join(name);
    std::fs::write(&path, text).expect("written");
    path.display().to_string()
}

fn per_user(limit: &str) -> String {
    let trust = "[identity]\ntrusted_proxies = [\"127.0.0.0/8\"]\n";
    format!("{trust}[[rule]]\nname = \"per-user\"\ndimension = \"user\"\nlimits = [\"{limit}\"]\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn all_three_addresses_count_in_the_same_buckets() {
    let folder = TempDir::new().unwrap();
    let rules = write(&folder, "rules.toml", &per_user("3/1h"));
    let process = Process::start(&["--rules", &rules]);
    assert_eq!(process.status("/", ("x-user-id", "7")).await, 200);
    let mut grpc = process.grpc().await;
    let asked =
        CheckRequest { identifier: "7".into(), dimension: "user".into(), ..Default::default() };
    assert_eq!(grpc.check_rate_limit(asked).await.unwrap().into_inner().remaining, Some(1));
    let last = check(&process, &["user:7"]);
    let text = String::from_utf8_lossy(&last.stdout).into_owned();
    assert_eq!(last.status.code(), Some(0), "{text}");
    assert!(text.starts_with("allowed  user:7\n  rule per-user, token-bucket: 0 of 3 left\n"));
    let denied = check(&process, &["user:7", "-o", "json"]);
    assert_eq!(denied.status.code(), Some(8));
    let report: Value = serde_json::from_slice(&denied.stdout).unwrap();
    assert_eq!(report["schema"], "rlctl/v1");
    assert_eq!((&report["allowed"], &report["rule"]), (&false.into(), &"per-user".into()));
    assert!(report["retry_after_us"].as_u64().unwrap() > 0 && report["degraded"].is_null());
    assert_eq!(process.status("/", ("x-user-id", "7")).await, 429);
    assert_eq!(check(&process, &["user:7", "--limit", "1/1s"]).status.code(), Some(2));
    assert_eq!(check(&process, &["user:7", "--endpoint", "x"]).status.code(), Some(2));
    drop(grpc);
    let (code, said) = process.stop();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("refused limited user:7 GET / rule=per-user"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_asks_needs_a_token_where_there_is_a_file_of_them() {
    let folder = TempDir::new().unwrap();
    let tokens = write(&folder, "tokens", TOKENS);
    let mine = write(&folder, "mine", "reader-token-0001\n");
    let process = Process::start(&["--token-file", &tokens]);
    let without = check(&process, &["ip:192.0.2.1"]);
    assert_eq!(without.status.code(), Some(5));
    let said = String::from_utf8_lossy(&without.stderr).into_owned();
    assert!(said.contains("401") && said.contains("--token-file"), "{said}");
    let with = check(&process, &["ip:192.0.2.1", "--token-file", &mine]);
    assert_eq!(with.status.code(), Some(0), "{}", String::from_utf8_lossy(&with.stderr));
    let admin = process.admin.to_string();
    let by_environment = rlctl()
        .args(["check", "ip:192.0.2.1"])
        .env("RLCTL_GATEWAY", &admin)
        .env("RLCTL_TOKEN", "writer-token-0001")
        .output()
        .expect("rlctl runs");
    assert_eq!(by_environment.status.code(), Some(0));
    let mut grpc = process.grpc().await;
    let refused = grpc.check_rate_limit(CheckRequest::default()).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unauthenticated);
}

/// `rlctl serve | head -1`
#[test]
fn it_serves_on_when_nobody_reads_where_it_listens() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut child = rlctl()
        .args(["serve", "--listen", "127.0.0.1:0", "--admin", &free.to_string()])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("rlctl starts");
    drop(child.stdout.take());
    let began = Instant::now();
    while std::net::TcpStream::connect(free).is_err() && began.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(5));
    }
    // It listens before it tells; give it time to have told.
    std::thread::sleep(Duration::from_millis(300));
    let ended = child.try_wait().unwrap();
    let answers = std::net::TcpStream::connect(free).is_ok();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(ended.is_none() && answers, "{ended:?}");
}

#[test]
fn nobody_else_may_reach_what_has_no_tokens_and_taken_addresses_are_said() {
    let refused = |arguments: &[&str]| {
        let output = rlctl().arg("serve").args(arguments).output().expect("rlctl ends");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for flag in ["--admin", "--grpc"] {
        let (code, said) = refused(&[flag, "0.0.0.0:0"]);
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains(flag) && said.contains("--token-file"), "{said}");
    }
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, said) = refused(&["--listen", "127.0.0.1:0", "--admin", &address]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(&format!("cannot listen on {address}")), "{said}");
    assert!(said.contains("choose another with --admin"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_file_is_obeyed_and_a_broken_one_is_not() {
    let folder = TempDir::new().unwrap();
    let rules = write(&folder, "rules.toml", &per_user("1/1h"));
    let process = Process::start(&["--rules", &rules]);
    let one = ("x-user-id", "1");
    process.until_status(429, "/", one).await;
    // As an editor does it: a new file takes the place of the old.
    let next = write(&folder, "rules.toml~", &per_user("1000000/1h"));
    std::fs::rename(next, &rules).unwrap();
    let took = process.until_status(200, "/", one).await;
    assert!(took < Duration::from_secs(5), "{took:?}");
    write(&folder, "rules.toml", "[[rule]]\nname = ");
    process.signal("HUP");
    let began = Instant::now();
    while process.stats().await["policy"]["refused"].is_null() {
        assert!(began.elapsed() < Duration::from_secs(20), "{}", process.stats().await);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(process.status("/", one).await, 200, "the old one stays in force");
    let (code, said) = process.stop();
    assert_eq!(code, Some(0));
    assert!(said.contains("rules.toml"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_operators_change_by_command_reaches_every_gateway_within_a_second() {
    let server = RedisServer::start();
    let url = server.url();
    let folder = TempDir::new().unwrap();
    let rules = write(&folder, "rules.toml", &per_user("2/1h"));
    let operate = |arguments: &[&str]| {
        let output = rlctl().args(arguments).args(["--redis", &url]).output().expect("rlctl runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    operate(&["rules", "publish", &rules, "--reason", "the first"]);
    let both = [(); 2].map(|()| Process::start(&["--rules", "store", "--redis", &url]));
    let stalls = Stalls::watch();
    let in_time = async |wanted: u16, header: (&str, &str)| {
        for process in &both {
            let began = Instant::now();
            let took = process.until_status(wanted, "/", header).await;
            let excuse = stalls.between(began, Instant::now());
            assert!(took < Duration::from_secs(1) + excuse, "{wanted} after {took:?}");
        }
    };
    in_time(429, ("x-user-id", "1")).await;
    operate(&[
        "override",
        "set",
        "user:1",
        "--rule",
        "per-user",
        "--limit",
        "1000000/1h",
        "--for",
        "1h",
        "--reason",
        "big import",
    ]);
    in_time(200, ("x-user-id", "1")).await;
    operate(&["block", "user:2", "--for", "1h", "--reason", "abuse"]);
    in_time(429, ("x-user-id", "2")).await;
    operate(&["unblock", "user:2", "--reason", "it was not"]);
    in_time(200, ("x-user-id", "2")).await;
    let none = write(&folder, "none.toml", &per_user("2/1h").replace("per-user", "other"));
    operate(&["rules", "publish", &none, "--reason", "another rule"]);
    for process in &both {
        let began = Instant::now();
        while process.stats().await["policy"]["version"] != 2 {
            assert!(began.elapsed() < Duration::from_secs(20));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Sends `bytes` zero bytes through the gateway to an upstream that only counts them, and takes as
/// many back; says how many arrived each way.
async fn through(process: &Process, bytes: u64) -> u64 {
    let mut stream = TcpStream::connect(process.http).await.unwrap();
    let head = format!("PUT /big HTTP/1.1\r\nHost: x\r\nContent-Length: {bytes}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let (mut from, mut to) = stream.into_split();
    let send = async {
        let chunk = vec![0; 1 << 20];
        let mut left = bytes;
        while left > 0 {
            let part = chunk.len().min(left as usize);
            to.write_all(&chunk[..part]).await.unwrap();
            left -= part as u64;
        }
    };
    let take = async {
        let mut chunk = vec![0; 1 << 20];
        let mut taken = 0;
        while taken < bytes {
            match from.read(&mut chunk).await.unwrap() {
                0 => break,
                some => taken += some as u64,
            }
        }
        taken
    };
    tokio::join!(send, take).1
}

/// Gives back what comes, as it comes.
async fn mirror(mut stream: TcpStream) {
    let head = read_head(&mut stream).await;
    let length = head
        .lines()
        .find_map(|line| line.to_lowercase().strip_prefix("content-length: ").map(String::from));
    let length: u64 = length.expect("a length").parse().unwrap();
    let reply = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all(reply.as_bytes()).await.unwrap();
    let (mut from, mut to) = stream.split();
    let _ = tokio::io::copy(&mut from, &mut to).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_of_a_gigabyte_goes_both_ways_in_constant_memory() {
    if !Path::new("/proc/self/status").exists() {
        panic!("memory is measured by /proc; run this on Linux");
    }
    let backend = upstream(mirror).await;
    let process = Process::start(&["--upstream", &format!("http://{backend}")]);
    through(&process, 64 << 20).await;
    let before = process.resident_bytes();
    let gigabyte = 1 << 30;
    assert!(through(&process, gigabyte).await >= gigabyte);
    let grown = process.resident_bytes().saturating_sub(before);
    assert!(grown < 16 << 20, "{grown} bytes more at the peak");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_it_drains_probes_and_dashboards_are_answered() {
    let (asked, release) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (began, finish) = (asked.clone(), release.clone());
    let slow = upstream(move |mut stream| {
        let (began, finish) = (began.clone(), finish.clone());
        async move {
            read_head(&mut stream).await;
            began.notify_one();
            finish.notified().await;
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone").await;
        }
    })
    .await;
    let mut process = Process::start(&["--upstream", &format!("http://{slow}")]);
    let url = format!("http://{}/", process.http);
    let open = tokio::spawn(async move { client().get(url).send().await.unwrap().text().await });
    asked.notified().await;
    process.signal("TERM");
    let admin = process.admin;
    let status = async |path: &str| {
        let reply = client().get(format!("http://{admin}{path}")).send().await;
        reply.expect("it is answered").status().as_u16()
    };
    let since = Instant::now();
    while status("/ready").await != 503 {
        assert!(since.elapsed() < Duration::from_secs(20), "it never drains");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // By now a door that is to close would have.
    tokio::time::sleep(Duration::from_millis(300)).await;
    for (path, wanted) in [("/ready", 503), ("/health", 200), ("/metrics", 200)] {
        assert_eq!(status(path).await, wanted, "{path}");
    }
    release.notify_one();
    assert_eq!(open.await.unwrap().unwrap(), "done");
    assert_eq!(process.child.wait().expect("it ends").code(), Some(0));
}
