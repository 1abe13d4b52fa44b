//! How the servers stand: who runs, who is master, who holds which slots.

use serde::Serialize;

use super::{Kind, Life, LocalRedis, LocalRedisError, MASTER_NAME};

/// All servers of a folder at one moment.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    pub kind: Kind,
    pub url: String,
    pub dir: String,
    pub items: Vec<NodeStatus>,
}

#[derive(Clone, Debug, Serialize)]
pub struct NodeStatus {
    pub port: u16,
    pub pid: u32,
    pub role: Role,
    pub life: &'static str,
    /// Whose replica it is.
    pub replica_of: Option<u16>,
    /// How many slots it serves; none but in a cluster.
    pub slots: Option<u32>,
    /// Ranges of slots, first and last.
    pub slot_ranges: Vec<(u16, u16)>,
    pub keys: Option<u64>,
    pub memory_bytes: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    Master,
    Replica,
    Sentinel,
    /// It does not run, and nobody knows.
    Unknown,
}

/// A node as another node of the cluster knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KnownNode {
    pub(super) id: String,
    pub(super) port: u16,
    pub(super) is_master: bool,
    pub(super) has_failed: bool,
    is_myself: bool,
    is_settled: bool,
    pub(super) master: Option<String>,
    pub(super) slots: Vec<(u16, u16)>,
}

impl KnownNode {
    /// Neither shaking hands nor suspected.
    pub(super) fn is_settled(&self) -> bool {
        self.is_settled
    }

    pub(super) fn slot_count(&self) -> u32 {
        self.slots.iter().map(|(first, last)| u32::from(last - first) + 1).sum()
    }
}

/// What `CLUSTER NODES` says: `id ip:port@bus flags master ping pong epoch link slot…`.
pub(super) fn known_nodes(text: &str) -> Vec<KnownNode> {
    let node = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [id, place, flags, master, _, _, _, link, slots @ ..] = fields.as_slice() else {
            return None;
        };
        let port = place.split('@').next()?.rsplit(':').next()?.parse().ok()?;
        let has = |flag: &str| flags.split(',').any(|f| f == flag);
        let range = |text: &&str| {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            // A slot on its way is written in brackets, beside the range that it still counts in.
            Some((first.parse().ok()?, last.parse().ok()?))
        };
        Some(KnownNode {
            id: (*id).into(),
            port,
            is_master: has("master"),
            has_failed: has("fail"),
            is_myself: has("myself"),
            is_settled: *link == "connected"
                && !["handshake", "noaddr", "fail", "fail?"].into_iter().any(has),
            master: Some((*master).into()).filter(|_| *master != "-"),
            slots: slots.iter().filter_map(range).collect(),
        })
    };
    text.lines().filter_map(node).collect()
}

impl LocalRedis {
    /// Never fails for servers that are gone: that is what it is to tell.
    pub async fn status(&self) -> Status {
        let known = self.known().await.unwrap_or_default();
        let mut items = Vec::new();
        for node in self.nodes() {
            let life = self.life(node.port);
            let info = match self.console(node.port).await {
                Ok(console) if life == Life::Running => {
                    console.text(&["INFO"]).await.unwrap_or_default()
                }
                _ => String::new(),
            };
            let mut item = NodeStatus {
                port: node.port,
                pid: node.pid,
                role: if node.is_sentinel { Role::Sentinel } else { role(&info) },
                life: life.name(),
                replica_of: field(&info, "master_port").and_then(|port| port.parse().ok()),
                slots: None,
                slot_ranges: Vec::new(),
                keys: (!info.is_empty() && !node.is_sentinel).then(|| keys(&info)),
                memory_bytes: field(&info, "used_memory").and_then(|bytes| bytes.parse().ok()),
            };
            if let Some(known) = known.iter().find(|known| known.port == node.port) {
                item.slots = Some(known.slot_count());
                item.slot_ranges = known.slots.clone();
            }
            items.push(item);
        }
        let dir = self.folder().display().to_string();
        Status { kind: self.kind(), url: self.url(), dir, items }
    }

    /// What the nodes of a cluster know of each other, each of itself: what others heard of it may
    /// be old.
    pub(super) async fn known(&self) -> Result<Vec<KnownNode>, LocalRedisError> {
        let mut all = Vec::<KnownNode>::new();
        let mut failed = LocalRedisError::Impossible("none of its servers runs".into());
        if self.kind() != Kind::Cluster {
            return Ok(all);
        }
        for port in self.data_ports().filter(|port| self.life(*port) == Life::Running) {
            let asked = async {
                let told = self.console(port).await?.text(&["CLUSTER", "NODES"]).await?;
                Ok(known_nodes(&told))
            };
            match asked.await {
                Ok(told) if all.is_empty() => all = told,
                Ok(told) => {
                    let of_itself = told.into_iter().find(|node| node.is_myself);
                    let known =
                        all.iter_mut().find(|n| of_itself.as_ref().is_some_and(|o| o.id == n.id));
                    if let (Some(known), Some(of_itself)) = (known, of_itself) {
                        *known = of_itself;
                    }
                }
                Err(error) => failed = error,
            }
        }
        if all.is_empty() { Err(failed) } else { Ok(all) }
    }

    /// Who is master now, in the order of their ports; dead ones that nobody replaced included.
    pub async fn masters(&self) -> Result<Vec<u16>, LocalRedisError> {
        let mut masters = match self.kind() {
            Kind::Single => self.data_ports().collect(),
            Kind::Sentinel => vec![self.sentinels_master().await?],
            Kind::Cluster => {
                let known = self.known().await?;
                let serves = |n: &&KnownNode| n.is_master && n.slot_count() > 0;
                known.iter().filter(serves).map(|n| n.port).collect()
            }
        };
        masters.sort_unstable();
        Ok(masters)
    }

    async fn sentinels_master(&self) -> Result<u16, LocalRedisError> {
        let mut failed = LocalRedisError::Impossible("no sentinel runs".into());
        let sentinels: Vec<u16> =
            self.nodes().filter(|n| n.is_sentinel).map(|node| node.port).collect();
        for port in sentinels {
            let asked = async {
                let words = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER_NAME];
                let place = self.console(port).await?.ask(&words).await?.into_list();
                let port = place.into_iter().nth(1).and_then(|p| p.into_text().parse().ok());
                port.ok_or_else(|| LocalRedisError::Impossible("it knows no master".into()))
            };
            match asked.await {
                Ok(port) => return Ok(port),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }
}

impl Life {
    pub fn name(self) -> &'static str {
        match self {
            Life::Running => "running",
            Life::Paused => "paused",
            Life::Gone => "gone",
        }
    }
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

fn role(info: &str) -> Role {
    match field(info, "role") {
        Some("master") => Role::Master,
        Some("slave") => Role::Replica,
        _ => Role::Unknown,
    }
}

fn keys(info: &str) -> u64 {
    let databases = info.lines().filter(|line| line.starts_with("db"));
    let counts = databases.filter_map(|line| line.split_once("keys=")?.1.split(',').next());
    counts.filter_map(|count| count.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_cluster_says_of_its_nodes_is_read() {
        let text = "\
aa 127.0.0.1:7000@17000 myself,master - 0 0 1 connected 0-99 105 [93->-bb]
bb 127.0.0.1:7001@17001,host slave aa 0 0 2 connected
cc :7002@17002 master,fail - 0 0 3 disconnected 200-300
nonsense";
        let nodes = known_nodes(text);
        assert_eq!(nodes.len(), 3);
        assert_eq!((nodes[0].slot_count(), nodes[0].is_master), (101, true));
        assert_eq!(nodes[1].master.as_deref(), Some("aa"));
        assert!(nodes[1].is_settled() && !nodes[2].is_settled() && nodes[2].has_failed);
    }
}
