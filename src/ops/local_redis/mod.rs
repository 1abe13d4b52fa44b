//! A real Redis of this machine, for demos and tests: alone, under Sentinel, or a cluster.
//!
//! Its servers outlive whoever starts them; a file in their folder says what runs. Nothing is ever
//! signalled that is not known to be one of them.

mod change;
mod form;
mod process;
mod slots;
mod state;
mod view;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

pub use self::process::Life;
use self::state::State;
pub use self::state::{Kind, Node};
pub use self::view::{NodeStatus, Role, Status};
use crate::engine::clock::Micros;
use crate::engine::store::StoreError;
use crate::engine::store::redis::{Console, RedisAddress};

/// What Sentinel calls the master.
pub const MASTER_NAME: &str = "main";
/// How long one server may take to answer a command.
const PATIENCE: Micros = Micros(5 * Micros::SECOND.0);
/// How long servers may take to agree on something.
const TIME_TO_AGREE: Duration = Duration::from_secs(60);
const GLANCE: Duration = Duration::from_millis(20);

/// What to start.
#[derive(Clone, Debug)]
pub struct Plan {
    pub kind: Kind,
    pub masters: u16,
    /// For each master.
    pub replicas: u16,
    /// The first port; 0: whichever are free.
    pub base_port: u16,
    /// How long a silent server counts as alive: what a failover takes, less about a second.
    pub node_timeout: Micros,
    /// Further lines for the configuration of every server that keeps data.
    pub config: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum LocalRedisError {
    #[error(
        "there is neither redis-server nor valkey-server in PATH; install one: apt-get install redis-server, dnf install valkey, or brew install redis"
    )]
    NotInstalled,
    #[error("{}: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
    #[error("{}: this is not the state of a local redis: {why}", path.display())]
    State { path: PathBuf, why: String },
    #[error("no local redis runs in {}; rlctl cluster up starts one", .0.display())]
    NothingHere(PathBuf),
    #[error(
        "a local {0:?} runs there already, with ports {1}; rlctl cluster down ends it, --dir names another folder"
    )]
    RunsAlready(Kind, String),
    #[error("port {port} of 127.0.0.1 cannot be used: {why}; --base-port takes others")]
    Port { port: u16, why: String },
    #[error("the server on port {port} did not start: {why}")]
    DidNotStart { port: u16, why: String },
    #[error("waited {seconds} s in vain until {what}")]
    NoAgreement { what: String, seconds: u64 },
    #[error("{0}")]
    Impossible(String),
    #[error("cannot signal process {pid:?}: {error}")]
    Signal { pid: Pid, error: io::Error },
    #[error("the server on port {port} (process {pid}) does not end")]
    Lives { pid: u32, port: u16 },
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl LocalRedisError {
    fn io(path: &Path, error: io::Error) -> LocalRedisError {
        LocalRedisError::Io { path: path.into(), error }
    }
}

/// Where progress is told.
pub type Tell<'a> = &'a (dyn Fn(&str) + Sync);

/// The servers of one folder.
#[derive(Debug)]
pub struct LocalRedis {
    folder: PathBuf,
    state: State,
    /// Those that this process started, to be waited for when they end.
    children: Mutex<Vec<Child>>,
}

impl LocalRedis {
    /// Starts servers in `folder` and waits until they work together. When that fails nothing is
    /// left running; whoever drops this future half-way calls [`LocalRedis::open`] and
    /// [`LocalRedis::down`]. Where they run already, those that have ended are started again.
    pub async fn up(
        folder: &Path,
        plan: &Plan,
        tell: Tell<'_>,
    ) -> Result<LocalRedis, LocalRedisError> {
        plan.check()?;
        fs::create_dir_all(folder).map_err(|e| LocalRedisError::io(folder, e))?;
        if let Some(state) = State::read(folder)? {
            let known = LocalRedis { folder: folder.into(), state, children: Mutex::default() };
            return known.again(plan, tell).await;
        }
        let state = State {
            kind: plan.kind,
            nodes: Vec::new(),
            node_timeout_ms: plan.node_timeout.as_millis_ceil(),
        };
        let mut new = LocalRedis { folder: folder.into(), state, children: Mutex::default() };
        match new.form(plan, tell).await {
            Ok(()) => Ok(new),
            Err(error) => {
                tell("it failed; ending what was started");
                new.down().await?;
                Err(error)
            }
        }
    }

    /// What runs in `folder`.
    pub fn open(folder: &Path) -> Result<LocalRedis, LocalRedisError> {
        let state = State::read(folder)?;
        let state = state.ok_or_else(|| LocalRedisError::NothingHere(folder.into()))?;
        Ok(LocalRedis { folder: folder.into(), state, children: Mutex::default() })
    }

    /// Starts those again that have ended; what they were told before, they still have.
    async fn again(self, plan: &Plan, tell: Tell<'_>) -> Result<LocalRedis, LocalRedisError> {
        let gone: Vec<Node> =
            self.nodes().filter(|n| self.life(n.port) == Life::Gone).cloned().collect();
        if gone.is_empty() || plan.kind != self.state.kind {
            let ports: Vec<String> = self.nodes().map(|n| n.port.to_string()).collect();
            return Err(LocalRedisError::RunsAlready(self.state.kind, ports.join(" ")));
        }
        let mut this = self;
        for node in gone {
            tell(&format!("starting the server on port {} again", node.port));
            this.start_again(node.port).await?;
        }
        Ok(this)
    }

    /// Ends all servers and removes their folders.
    pub async fn down(&mut self) -> Result<(), LocalRedisError> {
        for node in &self.state.nodes {
            let folder = self.folder_of(node.port);
            process::end(node.pid, &folder, node.port).await?;
        }
        self.reap();
        for node in &self.state.nodes {
            let folder = self.folder_of(node.port);
            fs::remove_dir_all(&folder).map_err(|e| LocalRedisError::io(&folder, e))?;
        }
        self.state.nodes.clear();
        State::forget(&self.folder);
        // Gone if it was ours alone.
        let _ = fs::remove_dir(&self.folder);
        Ok(())
    }

    pub fn kind(&self) -> Kind {
        self.state.kind
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.state.nodes.iter()
    }

    /// Those that keep data.
    pub fn data_ports(&self) -> impl Iterator<Item = u16> + '_ {
        self.nodes().filter(|n| !n.is_sentinel).map(|n| n.port)
    }

    /// What `--redis` takes.
    pub fn url(&self) -> String {
        let places = |sentinels: bool| {
            let those = self.nodes().filter(|n| n.is_sentinel == sentinels);
            those.map(|n| format!("127.0.0.1:{}", n.port)).collect::<Vec<_>>().join(",")
        };
        match self.state.kind {
            Kind::Single => format!("redis://{}", places(false)),
            Kind::Sentinel => format!("redis-sentinel://{}/0?master={MASTER_NAME}", places(true)),
            Kind::Cluster => format!("redis-cluster://{}", places(false)),
        }
    }

    /// A server by its port, to be spoken to.
    pub async fn console(&self, port: u16) -> Result<Console, LocalRedisError> {
        Ok(Console::connect(&address(port)?, PATIENCE).await?)
    }

    pub fn life(&self, port: u16) -> Life {
        self.reap();
        self.node(port).map_or(Life::Gone, |n| process::life(n.pid, &self.folder_of(port), port))
    }

    fn node(&self, port: u16) -> Option<&Node> {
        self.nodes().find(|node| node.port == port)
    }

    fn folder_of(&self, port: u16) -> PathBuf {
        State::folder_of(&self.folder, port)
    }

    /// Sends a signal to one server, if it is there and ours.
    fn signal(&self, port: u16, signal: Signal) -> Result<(), LocalRedisError> {
        match self.node(port).filter(|_| self.life(port) != Life::Gone) {
            Some(node) => process::signal(node.pid, signal),
            None => Err(LocalRedisError::Impossible(format!("no server of ours on port {port}"))),
        }
    }

    /// Those that we started and that have ended are ours to wait for.
    fn reap(&self) {
        let mut children = self.children.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        children.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
    }
}

fn address(port: u16) -> Result<RedisAddress, LocalRedisError> {
    let text = format!("redis://127.0.0.1:{port}");
    RedisAddress::parse(&text, None).map_err(|e| LocalRedisError::Impossible(e.to_string()))
}

async fn pause(time: Duration) {
    tokio::time::sleep(time).await;
}

/// Looks until `is_so`; an error while looking only means not yet.
async fn wait_until<F>(what: &str, mut is_so: impl FnMut() -> F) -> Result<(), LocalRedisError>
where
    F: Future<Output = Result<bool, LocalRedisError>>,
{
    let began = Instant::now();
    while began.elapsed() < TIME_TO_AGREE {
        if is_so().await.unwrap_or(false) {
            return Ok(());
        }
        pause(GLANCE).await;
    }
    let seconds = TIME_TO_AGREE.as_secs();
    Err(LocalRedisError::NoAgreement { what: what.into(), seconds })
}
