//! All servers of one Redis, each spoken to directly: for what operators do, never for checks.
//!
//! Alone or under Sentinel there is one primary; of a cluster there are several, and each key has
//! its own. Slots may move while somebody looks: a command that is sent to the wrong server is sent
//! on, as that one says.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::address::{At, RedisAddress};
use super::console::{Answered, Console, Said, Words};
use super::slots::{Place, SLOTS, slot_of};
use super::topology::primaries;
use crate::engine::clock::Micros;
use crate::engine::store::StoreError;

/// How often a command follows the way that servers show.
const MOST_DETOURS: usize = 20;
const BETWEEN_DETOURS: Duration = Duration::from_millis(50);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    Standalone,
    Sentinel,
    Cluster,
}

/// A server that takes writes.
#[derive(Clone, Debug)]
pub struct Node {
    pub console: Console,
    pub replicas: Vec<Place>,
    /// Ranges of slots, first and last; none but in a cluster.
    pub slots: Vec<(u16, u16)>,
}

impl Node {
    pub fn place(&self) -> &str {
        self.console.place()
    }

    fn serves(&self, slot: u16) -> bool {
        self.slots.iter().any(|(first, last)| (*first..=*last).contains(&slot))
    }
}

/// Who was what at one moment.
#[derive(Debug)]
pub struct Map {
    pub topology: Topology,
    pub primaries: Vec<Node>,
    /// Primaries of a cluster that do not answer, and why.
    pub missing: Vec<(String, StoreError)>,
}

impl Map {
    /// Where a key lives; none if no server has its slot.
    pub fn primary_of(&self, key: &[u8]) -> Option<&Node> {
        match self.slot_of(key) {
            None => self.primaries.first(),
            Some(slot) => self.primaries.iter().find(|primary| primary.serves(slot)),
        }
    }

    /// The slot of a key, where there are slots.
    pub fn slot_of(&self, key: &[u8]) -> Option<u16> {
        (self.topology == Topology::Cluster).then(|| slot(key))
    }

    fn places(&self) -> Vec<Place> {
        let each = |node: &Node| server(node.place()).into_iter().chain(node.replicas.clone());
        self.primaries.iter().flat_map(each).collect()
    }

    pub fn covered_slots(&self) -> usize {
        let covered = |slot: &u16| self.primaries.iter().any(|primary| primary.serves(*slot));
        (0..SLOTS).filter(covered).count()
    }
}

#[derive(Debug)]
pub struct Deployment {
    address: RedisAddress,
    patience: Micros,
    map: Mutex<Arc<Map>>,
}

impl Deployment {
    /// Finds and connects to all that take writes. No command outlives `patience`.
    pub async fn connect(
        address: &RedisAddress,
        patience: Micros,
    ) -> Result<Deployment, StoreError> {
        let map = Mutex::new(Arc::new(find(address, None, patience).await?));
        Ok(Deployment { address: address.clone(), patience, map })
    }

    pub fn map(&self) -> Arc<Map> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Where it is, without secrets.
    pub fn url(&self) -> String {
        self.address.to_string()
    }

    /// Finds and connects to all of them anew. Servers that were found before are asked, too: those
    /// that the address names may be the very ones that are away.
    pub async fn look_again(&self) -> Result<(), StoreError> {
        let before = self.map();
        let found = Arc::new(find(&self.address, Some(&before), self.patience).await?);
        *self.map.lock().unwrap_or_else(PoisonError::into_inner) = found;
        Ok(())
    }

    /// A server other than a primary, with the same login.
    pub async fn console_at(&self, server: &Place) -> Result<Console, StoreError> {
        let address = self.address.server_at(server);
        Console::connect(&address, self.patience).await
    }

    /// What the master is called, and each sentinel, where there are any.
    pub fn sentinels(&self) -> Option<(&str, Vec<RedisAddress>)> {
        let At::Sentinel(watched) = self.address.at() else { return None };
        let each = watched.sentinels.iter().map(|info| RedisAddress::of(info.clone()));
        Some((&watched.name, each.collect()))
    }

    pub async fn sentinel(&self, address: &RedisAddress) -> Result<Console, StoreError> {
        Console::connect(address, self.patience).await
    }

    /// Commands that are all about keys in the slot of `key`: in one round trip and at one moment,
    /// or, while the slot moves from one server to another, each for itself.
    pub async fn ask_about(
        &self,
        key: &[u8],
        commands: &[Words],
    ) -> Result<Vec<Answered>, StoreError> {
        let map = self.map();
        let Some(primary) = map.primary_of(key) else { return Err(self.uncovered(key)) };
        match primary.console.ask_at_once(commands).await {
            Err(StoreError::Refused { code, .. }) if is_detour(&code) => {}
            // Some of it is not allowed: each is told for itself, so that the rest can be shown.
            Err(StoreError::Refused { .. }) => return primary.console.ask_all(commands).await,
            answered => return answered,
        }
        let mut answers = Vec::with_capacity(commands.len());
        for command in commands {
            answers.push(self.ask_on(key, command).await);
        }
        Ok(answers)
    }

    /// One command about `key`, wherever servers send it.
    pub async fn ask_on(&self, key: &[u8], command: &Words) -> Answered {
        let mut last = self.uncovered(key);
        for detour in 0..MOST_DETOURS {
            let map = self.map();
            let Some(primary) = map.primary_of(key) else { break };
            let answer = primary.console.ask_all(std::slice::from_ref(command)).await?.pop();
            let Some(Err(StoreError::Refused { code, why, url })) = answer else {
                return answer.unwrap_or(Err(last));
            };
            match (code.as_str(), pointed_at(&why)) {
                ("ASK", Some(server)) => {
                    let console = self.console_at(&server).await?;
                    let both = [Words::of("ASKING"), command.clone()];
                    match console.ask_all(&both).await?.pop() {
                        Some(Err(StoreError::Refused { code, why, url })) if is_detour(&code) => {
                            last = StoreError::Refused { url, code, why };
                        }
                        Some(answer) => return answer,
                        None => {}
                    }
                }
                (code, _) if is_detour(code) => {
                    last = StoreError::Refused { url, code: code.into(), why };
                    self.look_again().await?;
                }
                _ => return Err(StoreError::Refused { url, code, why }),
            }
            if detour > 0 {
                tokio::time::sleep(BETWEEN_DETOURS).await;
            }
        }
        Err(last)
    }

    fn uncovered(&self, key: &[u8]) -> StoreError {
        let why = format!("no server has slot {}; rlctl doctor says more", slot(key));
        StoreError::Unreachable { url: self.url(), why }
    }
}

/// Keys of ours are text.
fn slot(key: &[u8]) -> u16 {
    slot_of(&String::from_utf8_lossy(key))
}

/// Whether a refusal only says that somebody else is to be asked, or later.
fn is_detour(code: &str) -> bool {
    matches!(code, "MOVED" | "ASK" | "TRYAGAIN" | "EXECABORT" | "READONLY" | "CLUSTERDOWN")
}

/// `MOVED 3999 127.0.0.1:6381`.
fn pointed_at(why: &str) -> Option<Place> {
    server(why.split_whitespace().nth(2)?)
}

fn server(place: &str) -> Option<Place> {
    let (host, port) = place.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Some(Place { host: host.into(), port: port.parse().ok()? })
}

async fn find(
    address: &RedisAddress,
    before: Option<&Map>,
    patience: Micros,
) -> Result<Map, StoreError> {
    let topology = match before {
        Some(map) => map.topology,
        None => topology(address, patience).await?,
    };
    let address = match topology {
        Topology::Cluster => address.of_cluster(),
        _ => address.clone(),
    };
    let known = before.map(Map::places).unwrap_or_default();
    let mut map = Map { topology, primaries: Vec::new(), missing: Vec::new() };
    for found in primaries(&address, &known, patience).await? {
        let console = match Console::connect(&found.address, patience).await {
            Ok(console) => console,
            Err(error) => {
                map.missing.push((found.address.place().to_owned(), error));
                continue;
            }
        };
        let (slots, replicas) = match topology {
            Topology::Cluster => {
                (found.slots, found.replicas.iter().filter_map(|r| server(r.place())).collect())
            }
            _ => (Vec::new(), replicas(&console).await),
        };
        map.primaries.push(Node { console, replicas, slots });
    }
    match (map.primaries.is_empty(), map.missing.first()) {
        (true, Some((_, error))) => Err(error.clone()),
        _ => Ok(map),
    }
}

async fn topology(address: &RedisAddress, patience: Micros) -> Result<Topology, StoreError> {
    match address.at() {
        At::Sentinel(_) => return Ok(Topology::Sentinel),
        At::Cluster(_) => return Ok(Topology::Cluster),
        At::Server(_) => {}
    }
    // A node of a cluster leads to all of it. Whoever may not ask takes it for one server.
    let console = Console::connect(address, patience).await?;
    let info = console.text(&["INFO", "cluster"]).await.unwrap_or_default();
    let is_of_cluster = info.contains("cluster_enabled:1");
    Ok(if is_of_cluster { Topology::Cluster } else { Topology::Standalone })
}

/// Those that a master says it has; none where it may not be asked.
async fn replicas(console: &Console) -> Vec<Place> {
    let info = console.text(&["INFO", "replication"]).await.unwrap_or_default();
    let replica = |line: &str| {
        let (name, fields) = line.split_once(':')?;
        let number = name.strip_prefix("slave")?;
        let of = |key: &str| fields.split(',').find_map(|f| f.strip_prefix(key)?.strip_prefix('='));
        number.parse::<u32>().ok()?;
        Some(Place { host: of("ip")?.into(), port: of("port")?.trim().parse().ok()? })
    };
    info.lines().filter_map(replica).collect()
}

/// What SCAN said: where to go on, and the keys.
pub fn scanned(said: Said) -> (u64, Vec<Vec<u8>>) {
    let mut parts = said.into_list().into_iter();
    let cursor = parts.next().and_then(|cursor| cursor.into_text().parse().ok()).unwrap_or(0);
    let keys = parts.next().map(Said::into_list).unwrap_or_default();
    (cursor, keys.into_iter().filter_map(Said::into_bytes).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_that_servers_show_is_read() {
        let six = Place { host: "::1".into(), port: 6381 };
        assert_eq!(pointed_at("MOVED 3999 ::1:6381"), Some(six.clone()));
        assert_eq!(server("[::1]:6381"), Some(six));
        assert_eq!(pointed_at("ASK"), None);
    }
}
