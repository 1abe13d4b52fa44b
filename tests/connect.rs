//! Reaching a Redis, and failing to: every wrong address gets a clear answer in time.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rlctl::engine::clock::Micros;
use rlctl::engine::limit::Algorithm;
use rlctl::engine::registry::Registry;
use rlctl::engine::store::keys::Prefix;
use rlctl::engine::store::redis::{Deployment, RedisAddress, RedisOptions, RedisRegistry};
use rlctl::engine::store::{Check, RedisStore, StoreError};
use rlctl::ops::look::look;

use crate::support::redis::{RedisServer, connect_to, free_port};
use crate::support::stalls::Stalls;
use crate::support::{cost, id, one};

const DEADLINE: Micros = Micros(50_000);
const CONNECT: Micros = Micros(250_000);
const PATIENCE: Micros = Micros(60_000_000);

async fn works(store: &RedisStore) {
    let identity = id("user:1");
    let limits = one(Algorithm::TokenBucket, "10/366d");
    let check =
        Check { identity: &identity, limits: &limits, cost: cost(1), idempotency: None, at: None };
    assert!(store.check(&check).await.unwrap().allowed());
}

/// What a connection attempt fails with, in time.
async fn fails(url: &str) -> String {
    let stalls = Stalls::watch();
    let began = Instant::now();
    let error = connect_to(url, DEADLINE, CONNECT).await.unwrap_err();
    let took = began.elapsed();
    let excuse = stalls.between(began, Instant::now());
    assert!(took <= Duration::from(CONNECT) + Duration::from_millis(10) + excuse, "{took:?}");
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error:?}");
    assert!(!error.outcome_unknown());
    error.to_string()
}

#[tokio::test]
async fn nobody_there_is_said_with_what_to_do() {
    let url = format!("redis://127.0.0.1:{}", free_port());
    let error = fails(&url).await;
    assert!(error.contains("is redis-server running there?"), "{error}");
    assert!(error.contains(&url), "{error}");
}

#[tokio::test]
async fn something_that_accepts_and_never_answers_holds_nobody() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    // Once in the listener's queue only, once accepted and held.
    let queued = fails(&format!("redis://127.0.0.1:{port}")).await;
    std::thread::spawn(move || {
        let held: Vec<_> = listener.incoming().collect();
        drop(held);
    });
    let accepted = fails(&format!("redis://127.0.0.1:{port}")).await;
    for error in [queued, accepted] {
        assert!(error.contains("did not speak redis within 250ms"), "{error}");
    }
}

#[tokio::test]
async fn something_that_is_not_redis_is_called_that() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let error = fails(&format!("redis://127.0.0.1:{port}")).await;
    assert!(error.contains("what answers there is not redis"), "{error}");
}

#[tokio::test]
async fn something_that_hangs_up_at_once_is_an_error_in_time() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || listener.incoming().for_each(drop));
    let error = fails(&format!("redis://127.0.0.1:{port}")).await;
    assert!(error.contains("cannot reach redis"), "{error}");
}

#[tokio::test]
async fn passwords_users_and_databases_are_used_and_never_shown() {
    let server = RedisServer::start();
    server.command::<()>(&["ACL", "SETUSER", "bob", "on", ">p4ss", "~rl1:*", "+@all"]);
    server.command::<()>(&["CONFIG", "SET", "requirepass", "hunter2"]);
    let at = |login: &str| format!("redis://{login}127.0.0.1:{}/3", server.port);
    for login in ["", ":wr0ng@", "bob:wr0ng@"] {
        let error = fails(&at(login)).await;
        assert!(error.contains("give the password"), "{error}");
        assert!(!error.contains("wr0ng"), "{error}");
    }
    for login in [":hunter2@", "bob:p4ss@"] {
        works(&connect_to(&at(login), PATIENCE, PATIENCE).await.unwrap()).await;
    }
    let client = redis::Client::open(at(":hunter2@")).unwrap();
    let keys: Vec<String> =
        redis::cmd("KEYS").arg("*").query(&mut client.get_connection().unwrap()).unwrap();
    assert_eq!(keys, ["rl1:{user:1}"], "in database 3");
}

#[tokio::test]
async fn a_unix_socket_will_do() {
    let server = RedisServer::start_with(|dir| {
        vec!["--unixsocket".into(), dir.join("redis.sock").display().to_string()]
    });
    let url = format!("redis+unix://{}", server.dir.path().join("redis.sock").display());
    works(&connect_to(&url, PATIENCE, PATIENCE).await.unwrap()).await;
    let error = fails("redis+unix:///nowhere/redis.sock").await;
    assert!(error.contains("/nowhere/redis.sock"), "{error}");
}

#[tokio::test]
async fn a_store_that_is_let_go_leaves_no_connection_behind() {
    let server = RedisServer::start();
    let clients = || -> usize {
        let list: String = server.command(&["CLIENT", "LIST", "TYPE", "normal"]);
        list.lines().count() - 1 // the one that asks
    };
    let store = server.store().await;
    works(&store).await;
    assert_eq!(clients(), 1);
    drop(store);
    let began = Instant::now();
    while clients() > 0 {
        assert!(began.elapsed() < Duration::from_secs(5), "still connected");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

const TLS_URL: &str = "RLCTL_TEST_TLS_URL";

#[tokio::test]
async fn tls_needs_a_certificate_that_is_trusted() {
    // Whom to trust is read from the environment, so this test runs itself with another one.
    if let Ok(url) = std::env::var(TLS_URL) {
        let _ = rustls::crypto::ring::default_provider().install_default();
        works(&connect_to(&url, PATIENCE, PATIENCE).await.unwrap_or_else(|e| panic!("{e}"))).await;
        return;
    }
    let port = free_port();
    let server = RedisServer::start_with(|dir| {
        make_certificates(dir);
        let path = |name: &str| dir.join(name).display().to_string();
        let tls_port = port.to_string();
        let words = ["--tls-port", &tls_port, "--tls-auth-clients", "no", "--tls-cert-file"];
        let mut words: Vec<String> = words.map(String::from).into();
        words.extend([path("server.crt"), "--tls-key-file".into(), path("server.key")]);
        words.extend(["--tls-ca-cert-file".into(), path("ca.crt")]);
        words
    });
    let connects = |trusted: &str, port: u16| {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "connect::tls_needs_a_certificate_that_is_trusted", "--nocapture"])
            .env(TLS_URL, format!("rediss://127.0.0.1:{port}"))
            .env("SSL_CERT_FILE", server.dir.path().join(trusted))
            .env_remove("SSL_CERT_DIR")
            .output()
            .unwrap()
    };
    let trusted = connects("ca.crt", port);
    assert!(trusted.status.success(), "{}", String::from_utf8_lossy(&trusted.stderr));
    let stranger = connects("other.crt", port);
    let said = String::from_utf8_lossy(&stranger.stderr).to_string();
    assert!(!stranger.status.success() && said.contains("certificate"), "{said}");
}

/// An authority, a server certificate signed by it, and an authority nobody asked for.
fn make_certificates(dir: &Path) {
    let openssl = |words: &str| {
        let output = Command::new("openssl")
            .args(words.split(' '))
            .current_dir(dir)
            .output()
            .expect("this test needs openssl: apt-get install openssl");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
    for name in ["ca", "other"] {
        openssl(&format!(
            "req -x509 {key} -days 2 -subj /CN={name} -keyout {name}.key -out {name}.crt"
        ));
    }
    openssl(&format!("req {key} -subj /CN=redis -keyout server.key -out server.csr"));
    std::fs::write(dir.join("san"), "subjectAltName=IP:127.0.0.1\n").unwrap();
    openssl(
        "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile san -out server.crt",
    );
}

/// Nothing can have been counted by looking.
#[tokio::test]
async fn a_look_that_gets_no_answer_does_not_say_that_something_may_have_been_counted() {
    let server = RedisServer::start();
    let patience = Micros(200 * Micros::MILLISECOND.0);
    let address = RedisAddress::parse(&server.url(), None).unwrap();
    let deployment = Deployment::connect(&address, patience).await.unwrap();
    let options = RedisOptions { address, deadline: patience, connect_timeout: patience };
    let registry = RedisRegistry::connect(options, Prefix::default()).await.unwrap();
    let registry = Registry::Redis(registry);
    let who = id("user:1");
    assert!(look(&deployment, &Prefix::default(), &who).await.is_ok());
    server.pause();
    let looked = look(&deployment, &Prefix::default(), &who).await.unwrap_err().to_string();
    let read = registry.subject(&who).await.unwrap_err().to_string();
    for error in [looked, read] {
        assert!(error.ends_with("did not answer within 200ms"), "{error}");
    }
}
