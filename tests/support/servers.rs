//! Several real servers that work together: under sentinels, or a cluster.

use rlctl::engine::clock::Micros;
use rlctl::engine::store::RedisStore;
use rlctl::engine::store::keys::Prefix;
use rlctl::engine::store::redis::{RedisAddress, RedisOptions, Said};
use rlctl::ops::local_redis::{Kind, LocalRedis, Plan};
use tempfile::TempDir;

/// How long a silent server counts as alive.
pub(crate) const NODE_TIMEOUT: Micros = Micros(500_000);

/// They end with the test, also when it fails.
pub(crate) struct Servers {
    pub(crate) local: LocalRedis,
    folder: TempDir,
}

impl Servers {
    pub(crate) async fn start(kind: Kind, masters: u16, replicas: u16) -> Servers {
        Servers::start_with(kind, masters, replicas, &[]).await
    }

    /// With further lines for the configuration of every server.
    pub(crate) async fn start_with(
        kind: Kind,
        masters: u16,
        replicas: u16,
        config: &[&str],
    ) -> Servers {
        let folder = TempDir::new().unwrap();
        let config = config.iter().map(|line| (*line).to_owned()).collect();
        let node_timeout = NODE_TIMEOUT;
        let plan = Plan { kind, masters, replicas, base_port: 0, node_timeout, config };
        let local = LocalRedis::up(&folder.path().join("redis"), &plan, &|_| {}).await.unwrap();
        Servers { local, folder }
    }

    /// Keys of ours that would never go away, but those that stay on purpose.
    pub(crate) async fn immortal(&self) -> Vec<String> {
        let mut found = Vec::new();
        for port in self.local.data_ports() {
            let Ok(console) = self.local.console(port).await else { continue };
            let keys = console.ask(&["KEYS", "rl1:*"]).await.unwrap().into_list();
            for key in keys.into_iter().map(Said::into_text).filter(|k| !k.contains("{$policy}")) {
                // Replicas in a cluster do not say; their masters do.
                if console.text(&["PTTL", &key]).await.is_ok_and(|ttl| ttl == "-1") {
                    found.push(key);
                }
            }
        }
        found
    }

    pub(crate) fn options(&self, deadline: Micros) -> RedisOptions {
        RedisOptions {
            address: RedisAddress::parse(&self.local.url(), None).unwrap(),
            deadline,
            connect_timeout: Micros(5 * Micros::SECOND.0),
        }
    }

    pub(crate) async fn store(&self, deadline: Micros) -> RedisStore {
        RedisStore::connect(self.options(deadline), Prefix::default()).await.unwrap()
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        let dir = self.folder.path().join("redis");
        let mut down = std::process::Command::new(env!("CARGO_BIN_EXE_rlctl"));
        down.args(["cluster", "down", "-q", "--dir"]).arg(dir);
        let _ = down.output();
    }
}
