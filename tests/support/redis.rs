//! A real `redis-server` of a test's own, on a free port, in a folder of its own, ended by its
//! handle when the test ends.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rlctl::engine::clock::Micros;
use rlctl::engine::store::RedisStore;
use rlctl::engine::store::keys::Prefix;
use rlctl::engine::store::redis::{RedisAddress, RedisOptions};
use tempfile::TempDir;

/// For tests of meaning, not of time: a busy machine must not fail them.
const PATIENCE: Micros = Micros(60 * Micros::SECOND.0);

pub(crate) struct RedisServer {
    child: Child,
    pub(crate) port: u16,
    pub(crate) dir: TempDir,
    arguments: Vec<String>,
}

impl RedisServer {
    pub(crate) fn start() -> RedisServer {
        RedisServer::start_with(|_| Vec::new())
    }

    /// `arguments` are made from the server's folder.
    pub(crate) fn start_with(arguments: impl Fn(&Path) -> Vec<String>) -> RedisServer {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let arguments = arguments(dir.path());
        // Between finding a free port and taking it somebody else may take it.
        for _ in 0..20 {
            let port = free_port();
            let mut child = spawn(port, dir.path(), &arguments);
            if answers(&mut child, port) {
                return RedisServer { child, port, dir, arguments };
            }
        }
        let log = std::fs::read_to_string(dir.path().join("redis.log")).unwrap_or_default();
        panic!("redis-server does not start: {log}");
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    pub(crate) async fn store(&self) -> RedisStore {
        self.store_within(PATIENCE, PATIENCE).await
    }

    pub(crate) async fn store_within(&self, deadline: Micros, connect: Micros) -> RedisStore {
        connect_to(&self.url(), deadline, connect).await.unwrap_or_else(|e| panic!("{e}"))
    }

    /// A plain connection beside the store's.
    pub(crate) fn connection(&self) -> redis::Connection {
        redis::Client::open(self.url()).unwrap().get_connection().expect("a connection")
    }

    pub(crate) fn command<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        let mut command = redis::cmd(words[0]);
        words[1..].iter().for_each(|word| {
            command.arg(word);
        });
        command.query(&mut self.connection()).unwrap_or_else(|e| panic!("{words:?}: {e}"))
    }

    /// Every key, its value as DUMP spells it, and the moment it expires (ms; -1 never).
    pub(crate) fn dump(&self) -> Vec<(String, Vec<u8>, i64)> {
        let mut connection = self.connection();
        let mut keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut connection).unwrap();
        keys.sort();
        let each = |key: String| {
            let value = redis::cmd("DUMP").arg(&key).query(&mut connection).unwrap();
            let expires = redis::cmd("PEXPIRETIME").arg(&key).query(&mut connection).unwrap();
            (key, value, expires)
        };
        keys.into_iter().map(each).collect()
    }

    /// Alive, connected, and answering nothing: what a hung machine looks like.
    pub(crate) fn pause(&self) {
        self.signal("STOP");
    }

    pub(crate) fn wake(&self) {
        self.signal("CONT");
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Kills it and starts an empty one in its place.
    pub(crate) fn restart(&mut self) {
        self.kill();
        for _ in 0..50 {
            self.child = spawn(self.port, self.dir.path(), &self.arguments);
            if answers(&mut self.child, self.port) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("redis-server does not come back on port {}", self.port);
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let status = Command::new("kill").args(["-s", name, &pid]).status().expect("kill runs");
        assert!(status.success(), "kill -s {name} {pid}");
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}

pub(crate) async fn connect_to(
    url: &str,
    deadline: Micros,
    connect_timeout: Micros,
) -> Result<RedisStore, rlctl::engine::store::StoreError> {
    let address = RedisAddress::parse(url, None).unwrap();
    let options = RedisOptions { address, deadline, connect_timeout };
    RedisStore::connect(options, Prefix::default()).await
}

pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn spawn(port: u16, dir: &Path, arguments: &[String]) -> Child {
    Command::new("redis-server")
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
        .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
        .args(["--logfile", "redis.log", "--dir"])
        .arg(dir)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|e| {
            panic!("cannot run redis-server ({e}); these tests need a real one: apt-get install redis-server")
        })
}

/// Waits until it answers a PING (to ask for a password is an answer, too); false when it ended,
/// or when another process answers in its place.
fn answers(child: &mut Child, port: u16) -> bool {
    let until = Instant::now() + Duration::from_secs(20);
    while Instant::now() < until {
        if let Ok(Some(_)) = child.try_wait() {
            return false;
        }
        let reply = TcpStream::connect(("127.0.0.1", port)).and_then(|mut stream| {
            stream.set_read_timeout(Some(Duration::from_secs(5)))?;
            stream.write_all(b"PING\r\n")?;
            let mut first = [0; 5];
            stream.read_exact(&mut first)?;
            Ok(first)
        });
        if reply.is_ok_and(|first| first == *b"+PONG" || first == *b"-NOAU") {
            // Another test's server may have taken the port: then ours has ended, or soon will.
            return matches!(child.try_wait(), Ok(None)) && is_ours(port, child.id());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = child.kill();
    let _ = child.wait();
    panic!("redis-server runs on port {port} but does not answer within 20 s");
}

/// Whether the process that answers on this port is the one that was started.
fn is_ours(port: u16, pid: u32) -> bool {
    let info = TcpStream::connect(("127.0.0.1", port)).and_then(|mut stream| {
        stream.set_read_timeout(Some(Duration::from_millis(500)))?;
        stream.write_all(b"INFO server\r\nQUIT\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    });
    info.is_ok_and(|text| {
        text.starts_with("-NOAUTH") || text.contains(&format!("process_id:{pid}\r"))
    })
}
