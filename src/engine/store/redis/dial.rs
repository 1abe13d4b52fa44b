//! A new connection: to the server at an address, or to the one that sentinels call the master.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ConnectionAddr, RedisError, Value};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::address::At;
use super::link::RedisOptions;
use super::sentinel::{Watch, is_master};
use super::words::explain;
use crate::engine::store::StoreError;

/// Pipelines on the wire at once: one being answered while the next travels.
const BATCHES_IN_FLIGHT: usize = 4;
/// Servers that sentinels watch are near each other; one that hangs must not delay its successor.
pub(super) const MASTER_WITHIN: Duration = Duration::from_millis(800);
/// An attempt that has heard nothing for so long gets company: packets that were lost are not sent
/// again soon, so the line may be whole long before it finds out.
const ATTEMPT_AGAIN: Duration = Duration::from_millis(250);

pub(super) struct Connection {
    pub(super) redis: MultiplexedConnection,
    /// Where it leads to.
    pub(super) server: ConnectionAddr,
    pub(super) batches: Arc<Semaphore>,
}

pub(super) async fn connect(options: &RedisOptions) -> Result<Arc<Connection>, StoreError> {
    let unreachable =
        |why: String| StoreError::Unreachable { url: options.address.to_string(), why };
    let mut patience: Duration = options.connect_timeout.into();
    let info = match options.address.at() {
        At::Server(info) => info.as_ref().clone(),
        At::Cluster(_) => {
            return Err(unreachable("one server is meant here, not a cluster".into()));
        }
        At::Sentinel(sentinels) => {
            patience = patience.min(MASTER_WITHIN);
            Watch::new(sentinels.as_ref().clone()).find(patience).await.map_err(unreachable)?
        }
    };
    let is_watched = matches!(options.address.at(), At::Sentinel(_));
    let server = info.addr().clone();
    let client = Client::open(info).map_err(|e| unreachable(e.to_string()))?;
    let deadline: Duration = options.deadline.into();
    let config = AsyncConnectionConfig::new()
        // Ours come first; these only end what a given-up connection still waits for.
        .set_connection_timeout(Some(patience * 2))
        .set_response_timeout(Some(deadline * 2 + patience));
    let dial = async {
        let mut redis = client.get_multiplexed_async_connection_with_config(&config).await?;
        // Sentinels may name one that has not heard of it yet, or no longer is one.
        let question = redis::cmd(if is_watched { "ROLE" } else { "PING" });
        match redis.send_packed_command(&question).await? {
            Value::ServerError(error) => Err(RedisError::from(error)),
            answer if is_watched && !is_master(&answer) => {
                Err((redis::ErrorKind::Io, "the server that sentinels name is no master yet")
                    .into())
            }
            _pong => Ok(redis),
        }
    };
    match timeout(patience, dial).await {
        Ok(Ok(redis)) => {
            let batches = Arc::new(Semaphore::new(BATCHES_IN_FLIGHT));
            Ok(Arc::new(Connection { redis, server, batches }))
        }
        Ok(Err(error)) => Err(unreachable(explain(&error))),
        Err(_elapsed) => Err(unreachable(format!(
            "something accepts connections there but did not speak redis within {}",
            options.connect_timeout
        ))),
    }
}

/// The first of several attempts that succeeds or is refused: none waits for one that hangs.
pub(super) async fn connect_again(options: &RedisOptions) -> Result<Arc<Connection>, StoreError> {
    let mut attempts = FuturesUnordered::new();
    loop {
        attempts.push(connect(options));
        if let Ok(Some(outcome)) = timeout(ATTEMPT_AGAIN, attempts.next()).await {
            return outcome;
        }
    }
}
