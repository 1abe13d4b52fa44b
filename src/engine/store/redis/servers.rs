//! The servers behind one address: one, or the primaries of a cluster.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use redis::{Cmd, Value};

use super::address::{At, RedisAddress};
use super::cluster::{Cluster, REDIRECTS};
use super::guard::BreakerStatus;
use super::kept;
use super::link::{Link, RedisOptions};
use super::meter::Meter;
use super::wire::{Call, Sent};
use crate::engine::clock::Micros;
use crate::engine::policy;
use crate::engine::store::StoreError;

/// Keys that are asked for or removed in one command: some tens of microseconds for the server.
const KEYS_AT_ONCE: usize = 500;

#[derive(Debug)]
pub(super) enum Servers {
    One(Link),
    Cluster(Cluster),
}

/// One server that counts, as others see it.
#[derive(Clone, Debug)]
pub struct Shard {
    /// Where it is, in few words, to tell it from others.
    pub name: Arc<str>,
    /// How it answers.
    pub meter: Arc<Meter>,
    /// Why there is no connection, if so.
    pub trouble: Option<StoreError>,
    /// Whether it is asked at all.
    pub breaker: BreakerStatus,
}

impl Servers {
    pub(super) async fn open(options: RedisOptions) -> Result<Servers, StoreError> {
        match options.address.clone().at() {
            At::Cluster(seeds) => Ok(Servers::Cluster(Cluster::open(options, seeds).await?)),
            At::Server(_) | At::Sentinel(_) => Ok(Servers::One(Link::open(options).await?)),
        }
    }

    /// Without waiting for the connection; until there is one, every call fails at once.
    pub(super) fn start(options: RedisOptions) -> Servers {
        match options.address.clone().at() {
            At::Cluster(seeds) => Servers::Cluster(Cluster::start(options, seeds)),
            At::Server(_) | At::Sentinel(_) => Servers::One(Link::start(options)),
        }
    }

    /// From now on no call outlives this.
    pub(super) fn set_deadline(&self, deadline: Micros) {
        match self {
            Servers::One(link) => link.set_deadline(deadline),
            Servers::Cluster(cluster) => cluster.set_deadline(deadline),
        }
    }

    /// From now on each server has a breaker, by these numbers.
    pub(super) fn set_breaker(&self, settings: policy::Breaker) {
        match self {
            Servers::One(link) => link.set_breaker(settings),
            Servers::Cluster(cluster) => cluster.set_breaker(settings),
        }
    }

    /// Waits until it was tried for the first time to connect, but no longer than this, or than a
    /// call may take.
    pub(super) async fn tried(&self, within: Option<Duration>) {
        let until = within.map(|within| Instant::now() + within);
        match self {
            Servers::One(link) => link.tried(until.unwrap_or(link.until(Duration::ZERO))).await,
            Servers::Cluster(cluster) => {
                cluster.tried(until.unwrap_or(cluster.until(Duration::ZERO))).await;
            }
        }
    }

    /// Why no call can be answered, if so.
    pub(super) fn trouble(&self) -> Option<StoreError> {
        match self {
            Servers::One(link) => link.trouble(),
            Servers::Cluster(cluster) => cluster.trouble(),
        }
    }

    pub(super) fn address(&self) -> &RedisAddress {
        match self {
            Servers::One(link) => link.address(),
            Servers::Cluster(cluster) => &cluster.options().address,
        }
    }

    pub(super) fn shards(&self) -> Vec<Shard> {
        let shard = |name: Arc<str>, link: &Link| Shard {
            name,
            meter: link.meter().clone(),
            trouble: link.trouble(),
            breaker: link.breaker(),
        };
        match self {
            Servers::One(link) => vec![shard(link.address().place().into(), link)],
            Servers::Cluster(cluster) => {
                cluster.map().nodes.iter().map(|n| shard(n.name.clone(), &n.link)).collect()
            }
        }
    }

    /// How often calls were sent from one server to another, by what they were told.
    pub(super) fn redirects(&self) -> Vec<(&'static str, u64)> {
        match self {
            Servers::One(_) => REDIRECTS.map(|kind| (kind, 0)).into(),
            Servers::Cluster(cluster) => cluster.redirects().collect(),
        }
    }

    /// Runs one call, in company with others where there are any; so much of its time is gone. What
    /// replicas shall confirm has time of its own beside that.
    pub(super) async fn call(&self, call: Call, spent: Duration) -> Result<Value, StoreError> {
        let patience = call.asks.map(|asks| kept::patience(asks.confirm)).unwrap_or_default();
        match self {
            Servers::One(link) => link.call(call, link.until(spent) + patience).await,
            Servers::Cluster(cluster) => cluster.call(call, cluster.until(spent) + patience).await,
        }
    }

    /// Runs calls so that those of one key keep their order.
    pub(super) async fn call_in_order(&self, calls: Vec<Call>) -> Vec<Result<Value, StoreError>> {
        match self {
            Servers::One(link) => {
                let sent = calls.into_iter().map(|call| Sent { call, asking: false }).collect();
                let (replies, _) = link.call_in_order(sent, link.until(Duration::ZERO)).await;
                replies.into_iter().map(|r| r.map_err(|failed| failed.error)).collect()
            }
            Servers::Cluster(cluster) => cluster.call_in_order(calls).await,
        }
    }

    /// An ordinary command, for what is not a check; it concerns this key.
    pub(super) async fn command(&self, key: &str, command: &Cmd) -> Result<Value, StoreError> {
        match self {
            Servers::One(link) => link.command(command).await,
            Servers::Cluster(cluster) => cluster.command(key, command).await,
        }
    }

    /// The strings at these keys, in their order.
    pub(super) async fn get_all(&self, keys: &[String]) -> Result<Vec<Value>, StoreError> {
        let mut values = Vec::with_capacity(keys.len());
        for some in keys.chunks(KEYS_AT_ONCE) {
            match self {
                Servers::One(link) => match link.command(redis::cmd("MGET").arg(some)).await? {
                    Value::Array(found) => values.extend(found),
                    other => values.push(other),
                },
                Servers::Cluster(cluster) => {
                    let get = |key: String| async move {
                        cluster.command(&key, redis::cmd("GET").arg(&key)).await
                    };
                    for value in join_all(some.iter().cloned().map(get)).await {
                        values.push(value?);
                    }
                }
            }
        }
        Ok(values)
    }

    /// Removes keys without blocking a server; each entry holds keys of one slot.
    pub(super) async fn unlink_all(
        &self,
        mut groups: impl Iterator<Item = Vec<String>>,
    ) -> Result<(), StoreError> {
        loop {
            let some: Vec<Vec<String>> = groups.by_ref().take(KEYS_AT_ONCE / 2).collect();
            if some.is_empty() {
                return Ok(());
            }
            match self {
                Servers::One(link) => {
                    link.command(redis::cmd("UNLINK").arg(some.concat())).await?;
                }
                Servers::Cluster(cluster) => {
                    let unlink = |keys: Vec<String>| async move {
                        let key = keys.first().cloned().unwrap_or_default();
                        cluster.command(&key, redis::cmd("UNLINK").arg(keys)).await
                    };
                    for removed in join_all(some.into_iter().map(unlink)).await {
                        removed?;
                    }
                }
            }
        }
    }
}
