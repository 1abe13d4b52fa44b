//! What may happen to servers: one dies or hangs, a replica takes over, one comes or goes.

use std::fs;
use std::time::Duration;

use rustix::process::Signal;

use super::view::KnownNode;
use super::{
    Kind, Life, LocalRedis, LocalRedisError, MASTER_NAME, Tell, pause, process, wait_until,
};

impl LocalRedis {
    /// Ends a server at once, without letting it say goodbye.
    pub async fn kill(&self, port: u16) -> Result<(), LocalRedisError> {
        self.signal(port, Signal::KILL)?;
        while self.life(port) != Life::Gone {
            pause(Duration::from_millis(2)).await;
        }
        Ok(())
    }

    /// Alive, connected, and answering nothing: what a hung machine looks like.
    pub fn pause(&self, port: u16) -> Result<(), LocalRedisError> {
        self.signal(port, Signal::STOP)
    }

    pub fn wake(&self, port: u16) -> Result<(), LocalRedisError> {
        self.signal(port, Signal::CONT)
    }

    /// Lets a replica take over from the master on `port`, or from the first one; says who it was
    /// and who is master now.
    pub async fn fail_over(&self, port: Option<u16>) -> Result<(u16, u16), LocalRedisError> {
        match self.kind() {
            Kind::Single => Err(LocalRedisError::Impossible(
                "a single redis has nobody to fail over to; rlctl cluster up sentinel has".into(),
            )),
            Kind::Sentinel => self.fail_over_by_sentinel(port).await,
            Kind::Cluster => self.fail_over_in_cluster(port).await,
        }
    }

    async fn fail_over_by_sentinel(
        &self,
        port: Option<u16>,
    ) -> Result<(u16, u16), LocalRedisError> {
        let before = self.master(port).await?;
        let sentinels =
            self.nodes().filter(|n| n.is_sentinel && self.life(n.port) == Life::Running);
        let Some(sentinel) = sentinels.map(|n| n.port).next() else {
            return Err(LocalRedisError::Impossible("no sentinel runs".into()));
        };
        let console = self.console(sentinel).await?;
        console.ask(&["SENTINEL", "FAILOVER", MASTER_NAME]).await?;
        wait_until("the sentinels have another master", || async {
            Ok(self.masters().await? != [before])
        })
        .await?;
        Ok((before, self.masters().await?[0]))
    }

    async fn fail_over_in_cluster(&self, port: Option<u16>) -> Result<(u16, u16), LocalRedisError> {
        let before = self.master(port).await?;
        let known = self.known().await?;
        let id = known.iter().find(|n| n.port == before).map(|n| n.id.clone()).unwrap_or_default();
        let is_replica =
            |n: &&KnownNode| n.master.as_ref() == Some(&id) && self.life(n.port) == Life::Running;
        let Some(replica) = known.iter().find(is_replica).map(|n| n.port) else {
            let why = format!("no replica of the master on port {before} runs");
            return Err(LocalRedisError::Impossible(why));
        };
        let console = self.console(replica).await?;
        // A master that hangs or is gone cannot hand over: then the replica takes.
        let how: &[&str] = match self.life(before) {
            Life::Running => &["CLUSTER", "FAILOVER"],
            Life::Paused | Life::Gone => &["CLUSTER", "FAILOVER", "FORCE"],
        };
        console.ask(how).await?;
        wait_until("the replica is master", || async {
            Ok(self.masters().await?.contains(&replica))
        })
        .await?;
        Ok((before, replica))
    }

    /// The master on this port, or the first one that runs.
    pub async fn master(&self, port: Option<u16>) -> Result<u16, LocalRedisError> {
        let masters = self.masters().await?;
        let found = match port {
            Some(port) => masters.iter().find(|master| **master == port),
            None => masters.iter().find(|master| self.life(**master) == Life::Running),
        };
        found.copied().ok_or_else(|| {
            let ports: Vec<String> = masters.iter().map(u16::to_string).collect();
            let which = port.map_or("that runs".into(), |port| format!("on port {port}"));
            let known = ports.join(" ");
            LocalRedisError::Impossible(format!("there is no master {which}; masters: {known}"))
        })
    }

    /// Takes one more server into a cluster: a master without slots, or a replica. Says its port.
    pub async fn add_node(
        &mut self,
        replica_of: Option<u16>,
        tell: Tell<'_>,
    ) -> Result<u16, LocalRedisError> {
        self.must_be_cluster()?;
        if let Some(master) = replica_of {
            self.master(Some(master)).await?;
        }
        let port = self.nodes().map(|node| node.port).max().unwrap_or_default() + 1;
        tell(&format!("starting a server on port {port}"));
        if let Err(error) = self.start_data(port).await {
            self.drop_node(port).await?;
            return Err(error);
        }
        let known = self.known().await?;
        let Some(seed) = known.iter().map(|n| n.port).find(|p| self.life(*p) == Life::Running)
        else {
            return Err(LocalRedisError::Impossible("no other server runs".into()));
        };
        self.meet(seed, port).await?;
        tell("waiting until all know it");
        let living: Vec<u16> =
            self.data_ports().filter(|port| self.life(*port) == Life::Running).collect();
        let lost = self.state.nodes.len() - living.len();
        if lost == 0 {
            self.all_know(&living).await?;
        }
        if let Some(master) = replica_of {
            self.follow(port, master).await?;
        }
        self.is_whole().await?;
        Ok(port)
    }

    /// Takes a server out of a cluster; its slots go to the other masters first.
    pub async fn remove_node(&mut self, port: u16, tell: Tell<'_>) -> Result<(), LocalRedisError> {
        self.must_be_cluster()?;
        let known = self.known().await?;
        let Some(leaving) = known.iter().find(|node| node.port == port).cloned() else {
            let why = format!("the cluster knows no server on port {port}");
            return Err(LocalRedisError::Impossible(why));
        };
        let stays = |n: &&KnownNode| n.is_master && n.port != port && !n.has_failed;
        let masters: Vec<u16> = known.iter().filter(stays).map(|n| n.port).collect();
        if leaving.is_master && leaving.slot_count() > 0 && masters.len() < 3 {
            return Err(LocalRedisError::Impossible(
                "a cluster needs three masters or more; rlctl cluster add-node takes one in first"
                    .into(),
            ));
        }
        self.empty(&leaving, &masters, tell).await?;
        let orphans = known.iter().filter(|n| n.master.as_ref() == Some(&leaving.id));
        for (n, orphan) in orphans.enumerate() {
            tell(&format!("port {} follows port {} now", orphan.port, masters[n % masters.len()]));
            self.follow(orphan.port, masters[n % masters.len()]).await?;
        }
        tell(&format!("ending the server on port {port}"));
        self.drop_node(port).await?;
        for other in self.data_ports().filter(|p| self.life(*p) == Life::Running) {
            // Whoever does not know it has nothing to forget.
            let _ = self.console(other).await?.ask(&["CLUSTER", "FORGET", &leaving.id]).await;
        }
        self.is_whole().await
    }

    /// Ends a server and forgets that there was one.
    async fn drop_node(&mut self, port: u16) -> Result<(), LocalRedisError> {
        let Some(node) = self.node(port).cloned() else { return Ok(()) };
        let folder = self.folder_of(port);
        process::end(node.pid, &folder, port).await?;
        self.reap();
        self.state.nodes.retain(|node| node.port != port);
        let _ = fs::remove_dir_all(&folder);
        self.state.write(&self.folder)
    }

    pub(super) fn must_be_cluster(&self) -> Result<(), LocalRedisError> {
        match self.kind() {
            Kind::Cluster => Ok(()),
            _ => Err(LocalRedisError::Impossible(
                "only a cluster has nodes that come and go; rlctl cluster up cluster starts one"
                    .into(),
            )),
        }
    }
}
