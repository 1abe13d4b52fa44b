//! What is worth knowing of a Redis that answers: how far its replicas are behind, and whether its
//! sentinels could still agree on a failover. Asked on connections of its own, beside the checks.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use futures_util::future::join_all;

use super::address::{At, RedisAddress};
use super::console::{Console, Said};
use super::meter::Meter;
use super::sentinel::Watch;
use super::servers::Servers;
use crate::engine::clock::Micros;
use crate::engine::store::StoreError;

/// What a replica has not taken in by then counts as so far behind, however far it is.
const FARTHEST: Micros = Micros::SECOND;
const PATIENCE: Micros = Micros(3 * Micros::SECOND.0);
/// Sentinels are near each other.
const SENTINEL_PATIENCE: Duration = Duration::from_millis(800);

/// Connections that are kept from one look to the next.
#[derive(Default)]
pub struct Lookout {
    consoles: HashMap<String, Console>,
    sentinels: Option<Watch>,
}

impl Lookout {
    /// Looks at every server once, and writes down what is seen in its meter.
    pub(super) async fn look(&mut self, servers: &Servers) {
        let places = match servers {
            Servers::One(link) => match link.address().at() {
                At::Sentinel(sentinels) => {
                    let watch = self
                        .sentinels
                        .get_or_insert_with(|| Watch::new(sentinels.as_ref().clone()));
                    link.meter().set_sentinel_quorum(watch.has_quorum(SENTINEL_PATIENCE).await);
                    let master = watch.find(SENTINEL_PATIENCE).await.ok().map(RedisAddress::of);
                    master.into_iter().map(|at| (at, link.meter().clone())).collect()
                }
                _ => vec![(link.address().clone(), link.meter().clone())],
            },
            Servers::Cluster(cluster) => {
                let map = cluster.map();
                let of = |link: &super::link::Link| (link.address().clone(), link.meter().clone());
                map.nodes.iter().map(|node| of(&node.link)).collect()
            }
        };
        let looked = places.iter().map(|(address, meter)| {
            let kept = self.consoles.get(&address.to_string()).cloned();
            measured(address, kept, meter)
        });
        // Those that are not looked at any more, or failed, are let go.
        self.consoles = join_all(looked).await.into_iter().flatten().collect();
    }
}

/// The connection again, if it is still of use.
async fn measured(
    address: &RedisAddress,
    kept: Option<Console>,
    meter: &Meter,
) -> Option<(String, Console)> {
    let console = match kept {
        Some(console) => Ok(console),
        None => Console::connect(address, PATIENCE).await,
    };
    let looked = match &console {
        Ok(console) => replication_lag(console).await,
        Err(error) => Err(error.clone()),
    };
    // What cannot be asked (an ACL may forbid it) is not known.
    meter.set_replication_lag(looked.clone().ok().flatten());
    let refused = matches!(looked, Err(StoreError::Refused { .. }));
    console.ok().filter(|_| looked.is_ok() || refused).map(|c| (address.to_string(), c))
}

/// How long it takes until every replica has what this server has now; none where there are none.
/// After any command, `WAIT` is for all that was written until then, and asks replicas at once;
/// what `INFO` knows of them is up to a second old.
async fn replication_lag(console: &Console) -> Result<Option<Micros>, StoreError> {
    let replicas = match console.ask(&["ROLE"]).await? {
        Said::List(parts) => parts.into_iter().nth(2).map_or(0, |third| third.into_list().len()),
        _ => 0,
    };
    if replicas == 0 {
        return Ok(None);
    }
    let began = Instant::now();
    console.ask(&["PING"]).await?;
    let round_trip = began.elapsed();
    let (replicas, farthest) = (replicas.to_string(), (FARTHEST.0 / 1_000).to_string());
    let reached = console.ask(&["WAIT", &replicas, &farthest]).await?.into_text();
    let waited = began.elapsed().saturating_sub(round_trip * 2);
    let waited = Micros(u64::try_from(waited.as_micros()).unwrap_or(u64::MAX));
    Ok(Some(if reached == replicas { waited } else { waited.max(FARTHEST) }))
}

impl std::fmt::Debug for Lookout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lookout").field("servers", &self.consoles.len()).finish_non_exhaustive()
    }
}
