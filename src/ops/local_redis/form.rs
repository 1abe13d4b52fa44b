//! Starting servers and making them one: replicas of a master, sentinels over it, a cluster.

use std::fmt::Write;
use std::fs;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use super::process::{self, CONFIG, usual_config};
use super::view::{KnownNode, known_nodes};
use super::{
    GLANCE, Kind, LocalRedis, LocalRedisError, MASTER_NAME, Node, Plan, Tell, pause, wait_until,
};

const SLOTS: u32 = 16_384;
/// Cluster nodes talk to each other on their port and this.
const BUS: u16 = 10_000;
const SENTINELS: u16 = 3;
const TIME_TO_START: Duration = Duration::from_secs(20);
/// Where free ports are looked for: these and their bus lie below those that systems give out to
/// clients.
const FREE_PORTS: std::ops::Range<u16> = 10_000..21_000;
/// Slots named in one command.
const SLOTS_AT_ONCE: usize = 2_000;

impl Plan {
    pub(super) fn check(&self) -> Result<(), LocalRedisError> {
        let wrong = |what: &str| Err(LocalRedisError::Impossible(what.into()));
        match self.kind {
            Kind::Single if (self.masters, self.replicas) != (1, 0) => {
                wrong("a single redis has one master and no replicas")
            }
            Kind::Sentinel if self.masters != 1 => wrong("sentinels here watch over one master"),
            Kind::Sentinel if self.replicas == 0 => {
                wrong("without a replica there is nothing to fail over to; --replicas 1 or more")
            }
            Kind::Cluster if self.masters < 3 => {
                wrong("a cluster needs three masters or more: fewer cannot agree that one has died")
            }
            _ if self.servers() > 64 => wrong("at most 64 servers on one machine"),
            _ if u32::from(self.base_port) + self.servers() + u32::from(BUS) > 65_535 => {
                wrong("--base-port is too high: a cluster also uses the ports 10000 above")
            }
            _ => Ok(()),
        }
    }

    fn servers(&self) -> u32 {
        let sentinels = if self.kind == Kind::Sentinel { SENTINELS } else { 0 };
        u32::from(self.masters) * (1 + u32::from(self.replicas)) + u32::from(sentinels)
    }
}

impl LocalRedis {
    pub(super) async fn form(
        &mut self,
        plan: &Plan,
        tell: Tell<'_>,
    ) -> Result<(), LocalRedisError> {
        let ports = ports(plan)?;
        let data = (plan.masters * (1 + plan.replicas)) as usize;
        let extra: String = plan.config.iter().map(|line| format!("{line}\n")).collect();
        tell(&format!("starting {data} servers on ports {}", span(&ports[..data])));
        for port in &ports[..data] {
            let config = self.data_config(*port, ports[0]) + &extra;
            self.start(*port, false, &config)?;
        }
        for port in &ports[..data] {
            self.answers(*port).await?;
        }
        match plan.kind {
            Kind::Single => Ok(()),
            Kind::Sentinel => self.watch_over(&ports[..data], &ports[data..], tell).await,
            Kind::Cluster => self.join(&ports, plan, tell).await,
        }
    }

    /// What a server that keeps data is told; `first` is the master under sentinels.
    fn data_config(&self, port: u16, first: u16) -> String {
        let mut config = usual_config(port);
        config += "save \"\"\nappendonly no\nrepl-diskless-sync-delay 0\n";
        let timeout = self.state.node_timeout_ms;
        match self.state.kind {
            Kind::Single => {}
            Kind::Sentinel if port == first => {}
            Kind::Sentinel => {
                let _ = writeln!(config, "replicaof 127.0.0.1 {first}");
            }
            // One lost shard must not cost the others their limits.
            Kind::Cluster => {
                config += "cluster-enabled yes\ncluster-require-full-coverage no\n";
                let _ = writeln!(config, "cluster-node-timeout {timeout}");
            }
        }
        config
    }

    fn start(&mut self, port: u16, is_sentinel: bool, config: &str) -> Result<(), LocalRedisError> {
        let folder = self.folder_of(port);
        fs::create_dir_all(&folder).map_err(|e| LocalRedisError::io(&folder, e))?;
        let file = folder.join(CONFIG);
        fs::write(&file, config).map_err(|e| LocalRedisError::io(&file, e))?;
        let child = process::start(&folder, is_sentinel)?;
        self.state.nodes.push(Node { port, pid: child.id(), is_sentinel });
        self.children.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner).push(child);
        // At once: whoever interrupts us finds what to end.
        self.state.write(&self.folder)
    }

    /// Starts one more that keeps data.
    pub(super) async fn start_data(&mut self, port: u16) -> Result<(), LocalRedisError> {
        check_free(port, self.state.kind)?;
        let config = self.data_config(port, port);
        self.start(port, false, &config)?;
        self.answers(port).await
    }

    /// Starts one again that has ended, as it was. Under sentinels it finds out by itself who is
    /// master now.
    pub async fn start_again(&mut self, port: u16) -> Result<(), LocalRedisError> {
        let folder = self.folder_of(port);
        let Some(node) = self.state.nodes.iter_mut().find(|node| node.port == port) else {
            return Err(LocalRedisError::Impossible(format!("no server of ours on port {port}")));
        };
        let child = process::start(&folder, node.is_sentinel)?;
        node.pid = child.id();
        self.children.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner).push(child);
        self.state.write(&self.folder)?;
        self.answers(port).await
    }

    /// Waits until the server answers, and it is that server.
    async fn answers(&self, port: u16) -> Result<(), LocalRedisError> {
        let pid = self.node(port).map_or(0, |node| node.pid);
        let folder = self.folder_of(port);
        let began = Instant::now();
        let not_started = |why: String| LocalRedisError::DidNotStart { port, why };
        while began.elapsed() < TIME_TO_START {
            if process::life(pid, &folder, port) == super::Life::Gone {
                return Err(not_started(process::last_words(&folder)));
            }
            if let Ok(console) = self.console(port).await {
                let info = console.text(&["INFO", "server"]).await.unwrap_or_default();
                if info.contains(&format!("process_id:{pid}\r")) {
                    return Ok(());
                }
                if !info.is_empty() {
                    return Err(not_started("another redis answers on its port".into()));
                }
            }
            self.reap();
            pause(GLANCE).await;
        }
        Err(not_started(format!("no answer within {} s", TIME_TO_START.as_secs())))
    }

    async fn watch_over(
        &mut self,
        data: &[u16],
        sentinels: &[u16],
        tell: Tell<'_>,
    ) -> Result<(), LocalRedisError> {
        let (master, replicas) = (data[0], data.len() - 1);
        tell("waiting for the replicas");
        let console = &self.console(master).await?;
        wait_until("the replicas follow their master", || async {
            let info = console.text(&["INFO", "replication"]).await?;
            Ok(info.matches("state=online").count() == replicas)
        })
        .await?;
        tell(&format!("starting {SENTINELS} sentinels on ports {}", span(sentinels)));
        let down_after = self.state.node_timeout_ms;
        for port in sentinels {
            let mut config = usual_config(*port);
            let quorum = SENTINELS / 2 + 1;
            let _ = write!(
                config,
                "sentinel monitor {MASTER_NAME} 127.0.0.1 {master} {quorum}\n\
                 sentinel down-after-milliseconds {MASTER_NAME} {down_after}\n\
                 sentinel failover-timeout {MASTER_NAME} {}\n\
                 sentinel parallel-syncs {MASTER_NAME} {replicas}\n",
                (down_after * 3).max(3_000),
            );
            self.start(*port, true, &config)?;
        }
        for port in sentinels {
            self.answers(*port).await?;
            let console = &self.console(*port).await?;
            let all = usize::from(SENTINELS) - 1;
            wait_until("the sentinels know each other and the replicas", || async {
                let asked = console.ask(&["SENTINEL", "MASTER", MASTER_NAME]).await?;
                let fields: Vec<String> =
                    asked.into_list().into_iter().map(|field| field.into_text()).collect();
                let is = |name: &str, wanted: usize| {
                    fields.chunks(2).any(|pair| pair[0] == name && pair[1] == wanted.to_string())
                };
                Ok(is("num-other-sentinels", all) && is("num-slaves", replicas))
            })
            .await?;
        }
        Ok(())
    }

    async fn join(
        &mut self,
        ports: &[u16],
        plan: &Plan,
        tell: Tell<'_>,
    ) -> Result<(), LocalRedisError> {
        let masters = &ports[..usize::from(plan.masters)];
        tell("handing out the slots");
        for (n, port) in (0u32..).zip(masters) {
            let console = self.console(*port).await?;
            console.ask(&["CLUSTER", "SET-CONFIG-EPOCH", &(n + 1).to_string()]).await?;
            let part = |n: u32| n * SLOTS / u32::from(plan.masters);
            let slots: Vec<String> = (part(n)..part(n + 1)).map(|slot| slot.to_string()).collect();
            for some in slots.chunks(SLOTS_AT_ONCE) {
                let words: Vec<&str> =
                    ["CLUSTER", "ADDSLOTS"].into_iter().chain(some.iter().map(|s| &**s)).collect();
                console.ask(&words).await?;
            }
        }
        for port in &ports[1..] {
            self.meet(ports[0], *port).await?;
        }
        tell("waiting until all know each other");
        self.all_know(ports).await?;
        for (n, replica) in ports[masters.len()..].iter().enumerate() {
            self.follow(*replica, masters[n % masters.len()]).await?;
        }
        tell("waiting for the replicas and the cluster");
        self.is_whole().await
    }

    pub(super) async fn meet(&self, known: u16, new: u16) -> Result<(), LocalRedisError> {
        let console = self.console(known).await?;
        console.ask(&["CLUSTER", "MEET", "127.0.0.1", &new.to_string()]).await?;
        Ok(())
    }

    /// Makes one a replica of another.
    pub(super) async fn follow(&self, replica: u16, master: u16) -> Result<(), LocalRedisError> {
        let id = self.console(master).await?.text(&["CLUSTER", "MYID"]).await?;
        let console = &self.console(replica).await?;
        let id = &*id;
        wait_until("the replica knows its master", || async move {
            Ok(console.ask(&["CLUSTER", "REPLICATE", id]).await.is_ok())
        })
        .await
    }

    pub(super) async fn all_know(&self, ports: &[u16]) -> Result<(), LocalRedisError> {
        for port in ports {
            let console = &self.console(*port).await?;
            wait_until("all servers of the cluster know each other", || async {
                let nodes = known_nodes(&console.text(&["CLUSTER", "NODES"]).await?);
                Ok(nodes.len() == ports.len() && nodes.iter().all(KnownNode::is_settled))
            })
            .await?;
        }
        Ok(())
    }

    /// Waits until every living server thinks the cluster whole, and every replica follows and is
    /// known as one to all.
    pub(super) async fn is_whole(&self) -> Result<(), LocalRedisError> {
        let running = || self.data_ports().filter(|port| self.life(*port) == super::Life::Running);
        let mut replicas = Vec::new();
        for port in running() {
            let console = &self.console(port).await?;
            wait_until("the cluster is whole", || async {
                let info = console.text(&["CLUSTER", "INFO"]).await?;
                let replication = console.text(&["INFO", "replication"]).await?;
                let follows = replication.contains("role:master")
                    || replication.contains("master_link_status:up");
                let slots = format!("cluster_slots_ok:{SLOTS}\r");
                Ok(info.contains("cluster_state:ok") && info.contains(&slots) && follows)
            })
            .await?;
            if console.text(&["INFO", "replication"]).await?.contains("role:slave") {
                replicas.push(port);
            }
        }
        for port in running() {
            let (console, replicas) = (&self.console(port).await?, &replicas);
            wait_until("all servers know the replicas", || async move {
                let nodes = known_nodes(&console.text(&["CLUSTER", "NODES"]).await?);
                let is_known = |port: &u16| nodes.iter().any(|n| n.port == *port && !n.is_master);
                Ok(replicas.iter().all(is_known))
            })
            .await?;
        }
        Ok(())
    }
}

fn ports(plan: &Plan) -> Result<Vec<u16>, LocalRedisError> {
    // Fits, as the plan was checked.
    let count = plan.servers() as u16;
    if plan.base_port > 0 {
        let ports: Vec<u16> = (plan.base_port..plan.base_port + count).collect();
        ports.iter().try_for_each(|port| check_free(*port, plan.kind))?;
        return Ok(ports);
    }
    let mut last = None;
    for _ in 0..100 {
        let mut bytes = [0; 2];
        let _ = getrandom::fill(&mut bytes);
        let room = FREE_PORTS.end - FREE_PORTS.start - count;
        let first = FREE_PORTS.start + u16::from_le_bytes(bytes) % room;
        let ports: Vec<u16> = (first..first + count).collect();
        match ports.iter().try_for_each(|port| check_free(*port, plan.kind)) {
            Ok(()) => return Ok(ports),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or(LocalRedisError::Impossible("no free ports".into())))
}

fn check_free(port: u16, kind: Kind) -> Result<(), LocalRedisError> {
    let bus = (kind == Kind::Cluster).then_some(port + BUS);
    for port in [Some(port), bus].into_iter().flatten() {
        TcpListener::bind(("127.0.0.1", port))
            .map_err(|error| LocalRedisError::Port { port, why: error.to_string() })?;
    }
    Ok(())
}

/// `7000` or `7000–7005`.
fn span(ports: &[u16]) -> String {
    match ports {
        [first, .., last] => format!("{first}–{last}"),
        [only] => only.to_string(),
        [] => String::new(),
    }
}
