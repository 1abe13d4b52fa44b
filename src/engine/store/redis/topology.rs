//! The servers behind an address, one by one: for what operators do to each of them.

use super::address::{At, RedisAddress};
use super::sentinel::Watch;
use super::slots::{Place, SLOTS};
use super::survey::Survey;
use crate::engine::clock::Micros;
use crate::engine::store::StoreError;

/// A server that takes writes, and those that copy it.
#[derive(Clone, Debug)]
pub struct Primary {
    /// To be spoken to by itself, with the login of the whole.
    pub address: RedisAddress,
    /// First and last of the slots it has, one after the other; all of them outside of a cluster.
    pub slots: Vec<(u16, u16)>,
    /// As far as a cluster says; elsewhere a primary has to be asked for them.
    pub replicas: Vec<RedisAddress>,
}

/// All primaries behind an address: one, or those of a cluster in the order of their slots. `known`
/// are further servers of a cluster, that can be asked as well as those that the address names.
pub async fn primaries(
    address: &RedisAddress,
    known: &[Place],
    patience: Micros,
) -> Result<Vec<Primary>, StoreError> {
    let unreachable = |why: String| StoreError::Unreachable { url: address.to_string(), why };
    let alone =
        |address| vec![Primary { address, slots: vec![(0, SLOTS - 1)], replicas: Vec::new() }];
    match address.at() {
        At::Server(_) => Ok(alone(address.clone())),
        At::Sentinel(sentinels) => {
            let found = Watch::new(sentinels.as_ref().clone()).find(patience.into()).await;
            Ok(alone(RedisAddress::of(found.map_err(unreachable)?)))
        }
        At::Cluster(seeds) => {
            let mut survey = Survey::new(seeds.clone());
            let view = survey.look(known.iter().cloned(), patience.into()).await;
            let mut found: Vec<Primary> = Vec::new();
            for range in view.map_err(unreachable)?.ranges {
                let of = |place| RedisAddress::beside(&seeds[0], place);
                let (address, slots) = (of(&range.primary), (range.first, range.last));
                match found.iter_mut().find(|p| p.address.to_string() == address.to_string()) {
                    Some(known) => known.slots.push(slots),
                    None => {
                        let replicas = range.replicas.iter().map(of).collect();
                        found.push(Primary { address, slots: vec![slots], replicas });
                    }
                }
            }
            found.sort_by_key(|primary| primary.slots.clone());
            Ok(found)
        }
    }
}
