//! One Redis of each kind under an operator's hands: the same commands on each.

use std::io::Write;
use std::process::{Command, Stdio};

use rlctl::ops::local_redis::Kind;

use super::servers::Servers;
use crate::cli::rlctl;
use crate::registry_cli::Ran;

/// A Redis, and a folder to work in.
pub(crate) struct Operated {
    pub(crate) name: &'static str,
    pub(crate) servers: Servers,
    pub(crate) folder: tempfile::TempDir,
}

impl Operated {
    pub(crate) async fn start(kind: Kind) -> Operated {
        let (name, masters, replicas) = match kind {
            Kind::Single => ("standalone", 1, 0),
            Kind::Sentinel => ("sentinel", 1, 2),
            Kind::Cluster => ("cluster", 3, 1),
        };
        let servers = Servers::start(kind, masters, replicas).await;
        Operated { name, servers, folder: tempfile::tempdir().unwrap() }
    }

    pub(crate) async fn all() -> [Operated; 3] {
        [
            Operated::start(Kind::Single).await,
            Operated::start(Kind::Sentinel).await,
            Operated::start(Kind::Cluster).await,
        ]
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = rlctl();
        command
            .args(arguments)
            .env("RLCTL_REDIS", self.servers.local.url())
            .env("RLCTL_ACTOR", "alice")
            .current_dir(self.folder.path());
        command
    }

    pub(crate) fn run(&self, line: &str) -> Ran {
        let words: Vec<&str> = line.split(' ').collect();
        self.command(&words).output().expect("rlctl runs").into()
    }

    pub(crate) fn with_input(&self, line: &str, input: &str) -> Ran {
        let words: Vec<&str> = line.split(' ').collect();
        let mut child = self
            .command(&words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("rlctl runs");
        child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("rlctl reads");
        child.wait_with_output().expect("rlctl ends").into()
    }

    /// A command that must do what was asked.
    pub(crate) fn fine(&self, line: &str) -> Ran {
        let ran = self.run(line);
        assert_eq!(ran.code, 0, "{}: {line}: {}{}", self.name, ran.out, ran.err);
        ran
    }

    /// What a command prints once the servers have come to rest: just started on a machine that is
    /// busy with other tests, a replica may truly be a tenth of a second behind.
    pub(crate) fn when_calm(&self, line: &str, is_calm: impl Fn(&Ran) -> bool) -> Ran {
        let mut ran = self.run(line);
        for look in 1..10 {
            if is_calm(&ran) {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(100 * look));
            ran = self.run(line);
        }
        ran
    }

    /// Every key of every primary, its value as DUMP spells it, and the moment it expires.
    pub(crate) async fn dump(&self) -> Vec<(String, Vec<u8>, i64)> {
        let mut all = Vec::new();
        for port in self.servers.local.masters().await.unwrap() {
            let client = redis::Client::open(format!("redis://127.0.0.1:{port}")).unwrap();
            let mut connection = client.get_connection().unwrap();
            let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut connection).unwrap();
            for key in keys {
                let value = redis::cmd("DUMP").arg(&key).query(&mut connection).unwrap();
                let expires = redis::cmd("PEXPIRETIME").arg(&key).query(&mut connection).unwrap();
                all.push((key, value, expires));
            }
        }
        all.sort();
        all
    }

    /// What lies under the hash tag of the policy changes with every write; the rest is quota.
    pub(crate) async fn quota(&self) -> Vec<(String, Vec<u8>, i64)> {
        let mut all = self.dump().await;
        all.retain(|(key, ..)| !key.contains("{$policy}"));
        all
    }
}
