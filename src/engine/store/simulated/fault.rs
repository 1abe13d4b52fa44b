//! What can be wrong with a simulated store, and whom it meets.

use crate::engine::clock::Micros;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fault {
    pub effect: Effect,
    pub on: Target,
    /// The share of commands that it meets.
    pub rate: f64,
    /// The writes of this last while are gone.
    pub lose: Option<Micros>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Effect {
    /// Connections are refused; where there are replicas, one is promoted after a while.
    Down,
    /// Commands are taken and not answered; they run when it ends.
    Hang,
    /// Every round trip takes this much longer.
    Latency(Micros),
    /// Commands are answered by an error of that code, and nothing runs.
    Refuse(&'static str),
    /// Nothing arrives and nothing comes back.
    Partition,
    /// The scripts are forgotten.
    ScriptFlush,
    /// The server's clock is wrong by this much, in microseconds.
    ClockSkew(i64),
    /// What was counted is gone.
    LoseData,
    /// A replica takes over while the old primary lives on.
    Failover,
    /// Slots move between shards, one by one.
    Reshard,
    /// Keys are evicted before commands that ask for them.
    Evict,
    /// Requests or answers get lost on their way.
    Drop,
}

/// Whom a fault meets; shards and nodes count from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    Everything,
    Shard(usize),
    /// One gateway's way to the store.
    Node(usize),
}

impl Target {
    pub(super) fn meets(self, node: usize, shard: usize) -> bool {
        match self {
            Target::Everything => true,
            Target::Shard(one) => one == shard,
            Target::Node(one) => one == node,
        }
    }

    pub(super) fn meets_shard(self, shard: usize) -> bool {
        matches!(self, Target::Everything) || self == Target::Shard(shard)
    }
}
