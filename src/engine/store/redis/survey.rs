//! What a cluster looks like, as its nodes see it.
//!
//! Several are asked at once, and the one that knows the latest change is believed: a node that was
//! cut off still claims the slots that others have taken over from it.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, Pipeline, Value};
use tokio::time::{Instant, timeout, timeout_at};

use super::address::at_place;
use super::slots::{Place, Range, read_slots};
use super::words::explain;

/// Nodes that are asked each time, one after the other in turn.
const ASKED_AT_ONCE: usize = 5;
/// How long others may take once one has answered.
const GRACE: Duration = Duration::from_millis(30);

/// What one node says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct View {
    /// Counts failovers, and moves of slots.
    epoch: u64,
    /// Whether the cluster serves, as far as it knows.
    is_ok: bool,
    pub(super) ranges: Vec<Range>,
}

/// Those who can be asked, with the connections to them, which are kept.
pub(super) struct Survey {
    seeds: Vec<ConnectionInfo>,
    connections: HashMap<Place, MultiplexedConnection>,
    turn: usize,
}

type Said = (Place, Result<(View, MultiplexedConnection), String>);

impl Survey {
    pub(super) fn new(seeds: Vec<ConnectionInfo>) -> Survey {
        Survey { seeds, connections: HashMap::new(), turn: 0 }
    }

    /// The latest that anybody knows; or why nobody answers. `known` are further nodes.
    pub(super) async fn look(
        &mut self,
        known: impl Iterator<Item = Place>,
        within: Duration,
    ) -> Result<View, String> {
        let all: BTreeSet<Place> =
            self.seeds.iter().filter_map(|s| place_of(s.addr())).chain(known).collect();
        let Some(login) = self.seeds.first() else { return Err("there is no address".into()) };
        self.connections.retain(|place, _| all.contains(place));
        let asked: Vec<&Place> =
            all.iter().cycle().skip(self.turn % all.len().max(1)).take(all.len()).collect();
        self.turn += ASKED_AT_ONCE;
        // Who is slow must not keep the others waiting: they are asked at the same time.
        let mut asking: FuturesUnordered<_> = asked
            .into_iter()
            .take(ASKED_AT_ONCE)
            .map(|place| ask(place, login, self.connections.remove(place), within))
            .collect();
        let (mut best, mut troubles): (Option<View>, Vec<String>) = (None, Vec::new());
        let mut until = Instant::now() + within;
        while let Ok(Some((place, said))) = timeout_at(until, asking.next()).await {
            match said {
                Ok((view, connection)) => {
                    self.connections.insert(place, connection);
                    until = until.min(Instant::now() + GRACE);
                    best = Some(match best {
                        Some(best) => later(best, view),
                        None => view,
                    });
                }
                Err(why) => troubles.push(format!("{place}: {why}")),
            }
        }
        best.ok_or_else(|| {
            let why =
                if troubles.is_empty() { "nobody answers".into() } else { troubles.join("; ") };
            format!("no node of the cluster tells who has which keys ({why})")
        })
    }
}

/// Of two views the one to believe.
fn later(one: View, other: View) -> View {
    let rank = |view: &View| (view.epoch, view.is_ok, view.ranges.len());
    if rank(&other) > rank(&one) { other } else { one }
}

async fn ask(
    place: &Place,
    login: &ConnectionInfo,
    kept: Option<MultiplexedConnection>,
    within: Duration,
) -> Said {
    let question = async {
        let mut connection = match kept {
            Some(connection) => connection,
            None => connect(at_place(login, place), within).await?,
        };
        let mut questions = Pipeline::new();
        questions.cmd("CLUSTER").arg("INFO");
        questions.cmd("CLUSTER").arg("SLOTS");
        let said = connection.send_packed_commands(&questions, 0, 2).await;
        let said = said.map_err(|error| explain(&error))?;
        let view = read(said.try_into().map_err(|_| "it says too little".to_owned())?, place)?;
        Ok((view, connection))
    };
    let said = timeout(within, question).await;
    (place.clone(), said.unwrap_or_else(|_| Err("it does not answer".into())))
}

async fn connect(info: ConnectionInfo, within: Duration) -> Result<MultiplexedConnection, String> {
    let client = Client::open(info).map_err(|error| error.to_string())?;
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(within))
        .set_response_timeout(Some(within));
    let connected = client.get_multiplexed_async_connection_with_config(&config).await;
    connected.map_err(|error| explain(&error))
}

fn read([info, slots]: [Value; 2], asked: &Place) -> Result<View, String> {
    for said in [&info, &slots] {
        if let Value::ServerError(error) = said {
            let why = error.details().unwrap_or("it refuses");
            let hint = match why.contains("cluster support disabled") {
                true => "; it is no cluster: write redis://host:port",
                false => "",
            };
            return Err(format!("{} {why}{hint}", error.code()));
        }
    }
    let info = redis::from_redis_value::<String>(info)
        .map_err(|_| "its answer to CLUSTER INFO has another form".to_owned())?;
    let of = |name: &str| info.lines().find_map(|line| line.strip_prefix(name));
    let epoch = of("cluster_current_epoch:").and_then(|n| n.trim().parse().ok()).unwrap_or(0);
    let is_ok = of("cluster_state:").is_some_and(|state| state.trim() == "ok");
    Ok(View { epoch, is_ok, ranges: read_slots(&slots, &asked.host)? })
}

fn place_of(addr: &ConnectionAddr) -> Option<Place> {
    match addr {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            Some(Place { host: host.clone(), port: *port })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_knows_the_latest_change_is_believed() {
        let view = |epoch, is_ok| View { epoch, is_ok, ranges: Vec::new() };
        assert_eq!(later(view(3, true), view(4, false)), view(4, false));
        assert_eq!(later(view(4, false), view(3, true)), view(4, false));
        assert_eq!(later(view(4, false), view(4, true)), view(4, true));
    }

    #[test]
    fn what_is_no_cluster_says_so_with_what_to_write() {
        let place = Place { host: "h".into(), port: 1 };
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let info = text("cluster_state:ok\r\ncluster_current_epoch:7\r\n");
        let view = read([info, Value::Array(Vec::new())], &place).unwrap();
        assert_eq!(view, View { epoch: 7, is_ok: true, ranges: Vec::new() });
        assert!(read([Value::Nil, Value::Nil], &place).is_err());
    }
}
