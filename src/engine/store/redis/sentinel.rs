//! Which server is the master, as sentinels see it.
//!
//! All of them are asked, and the one that knows the latest failover is believed: a sentinel that
//! was cut off still names the old master.

use std::time::Duration;

use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ConnectionInfo, Pipeline, Value};
use tokio::time::timeout;

use super::address::at_place;
use super::slots::Place;

/// Those who know, and whom to ask them for.
#[derive(Clone)]
pub(super) struct Sentinels {
    pub(super) sentinels: Vec<ConnectionInfo>,
    pub(super) name: String,
    /// Login and database of the master; its address is what sentinels say.
    pub(super) master: ConnectionInfo,
}

/// Sentinels with the connections to them, which are kept.
pub(super) struct Watch {
    of: Sentinels,
    connections: Vec<Option<MultiplexedConnection>>,
}

/// What one sentinel says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Named {
    /// Counts failovers.
    epoch: u64,
    place: Place,
}

impl Watch {
    pub(super) fn new(of: Sentinels) -> Watch {
        let connections = vec![None; of.sentinels.len()];
        Watch { of, connections }
    }

    /// The master, with its login; or why nobody knows it.
    pub(super) async fn find(&mut self, within: Duration) -> Result<ConnectionInfo, String> {
        // The sentinel that leads a failover counts it in `MASTER` as soon as the replica is promoted,
        // but names the old address there until every other replica follows; the other question is
        // answered with the new one at once.
        let answers = self.ask_all(&["MASTER", "GET-MASTER-ADDR-BY-NAME"], within).await;
        let answers: Vec<_> = answers.into_iter().map(|a| a.and_then(|a| read(&a))).collect();
        let name = &self.of.name;
        let why = || {
            let all = answers.iter().zip(&self.of.sentinels);
            let each = all.filter_map(|(answer, at)| Some((answer.as_ref().err()?, at.addr())));
            let each = each.map(|(why, at)| format!("{at}: {why}")).collect::<Vec<_>>();
            format!("no sentinel names the master `{name}` ({})", each.join("; "))
        };
        let latest = answers.iter().flatten().max_by_key(|named| named.epoch).ok_or_else(why)?;
        Ok(at_place(&self.of.master, &latest.place))
    }

    /// Whether any of them could have its way with a failover: enough others would agree.
    pub(super) async fn has_quorum(&mut self, within: Duration) -> bool {
        let answers = self.ask_all(&["CKQUORUM"], within).await;
        answers.iter().flatten().flatten().any(|answer| !matches!(answer, Value::ServerError(_)))
    }

    async fn ask_all(
        &mut self,
        words: &[&str],
        within: Duration,
    ) -> Vec<Result<Vec<Value>, String>> {
        let mut questions = Pipeline::new();
        for word in words {
            questions.cmd("SENTINEL").arg(word).arg(&self.of.name);
        }
        let asked = self.of.sentinels.iter().zip(&mut self.connections);
        join_all(asked.map(|(info, kept)| ask(info, kept, &questions, within))).await
    }
}

/// Answers in the order of the questions, on a connection that is kept if it was answered.
async fn ask(
    info: &ConnectionInfo,
    kept: &mut Option<MultiplexedConnection>,
    questions: &Pipeline,
    within: Duration,
) -> Result<Vec<Value>, String> {
    let question = async {
        let mut connection = match kept.take() {
            Some(connection) => connection,
            None => connect(info, within).await?,
        };
        let asked = connection.send_packed_commands(questions, 0, questions.len()).await;
        let answers = asked.map_err(|e| e.to_string())?;
        *kept = Some(connection);
        Ok(answers)
    };
    timeout(within, question).await.unwrap_or_else(|_| Err("it does not answer".into()))
}

async fn connect(info: &ConnectionInfo, within: Duration) -> Result<MultiplexedConnection, String> {
    let client = Client::open(info.clone()).map_err(|error| error.to_string())?;
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(within))
        .set_response_timeout(Some(within));
    let connected = client.get_multiplexed_async_connection_with_config(&config).await;
    connected.map_err(|error| error.to_string())
}

/// How many failovers a sentinel has seen, out of names and values in turn, as a list or as a map;
/// and the master's host and port.
fn read(answers: &[Value]) -> Result<Named, String> {
    if let Some(Value::ServerError(error)) = answers.first() {
        return Err(error.details().unwrap_or("it refuses").to_string());
    }
    let text = |value: &Value| redis::from_redis_value_ref::<String>(value).ok();
    let named = || {
        let [about, place] = answers else { return None };
        let pairs: Vec<(String, String)> = match about {
            Value::Array(items) => items
                .chunks_exact(2)
                .filter_map(|pair| Some((text(&pair[0])?, text(&pair[1])?)))
                .collect(),
            Value::Map(pairs) => {
                pairs.iter().filter_map(|(k, v)| Some((text(k)?, text(v)?))).collect()
            }
            _ => return None,
        };
        let (_, epoch) = pairs.iter().find(|(name, _)| name == "config-epoch")?;
        let Value::Array(place) = place else { return None };
        let [host, port] = place.as_slice() else { return None };
        let place = Place { host: text(host)?, port: text(port)?.parse().ok()? };
        Some(Named { epoch: epoch.parse().ok()?, place })
    };
    named().ok_or_else(|| "it answers not as a sentinel would".into())
}

/// Whether a server that was asked for its `ROLE` is a master.
pub(super) fn is_master(role: &Value) -> bool {
    match role {
        Value::Array(parts) => parts
            .first()
            .and_then(|first| redis::from_redis_value_ref::<String>(first).ok())
            .is_some_and(|role| role == "master"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Value {
        Value::Array(words.iter().map(|w| Value::BulkString(w.as_bytes().to_vec())).collect())
    }

    #[test]
    fn what_a_sentinel_says_is_read_and_anything_else_is_not() {
        // In the midst of a failover, the old address is still told beside the new epoch.
        let about = words(&["name", "main", "ip", "10.0.0.9", "port", "6379", "config-epoch", "3"]);
        let said = [about.clone(), words(&["10.0.0.1", "6379"])];
        let place = Place { host: "10.0.0.1".into(), port: 6379 };
        let named = Named { epoch: 3, place };
        assert_eq!(read(&said), Ok(named));
        for strange in [Value::Nil, words(&[]), words(&["ip", "x"]), words(&["ip"])] {
            assert!(read(&[strange.clone(), words(&["10.0.0.1", "6379"])]).is_err(), "{strange:?}");
            assert!(read(&[about.clone(), strange.clone()]).is_err(), "{strange:?}");
            assert!(read(std::slice::from_ref(&strange)).is_err(), "{strange:?}");
        }
        assert!(is_master(&words(&["master", "0"])));
        assert!(!is_master(&words(&["slave", "10.0.0.1"])) && !is_master(&Value::Nil));
    }
}
