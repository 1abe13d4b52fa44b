//! The servers of the story: a primary and two replicas.

use super::story::{Phase, Story};
use super::{GATEWAYS, START};
use crate::engine::clock::Micros;
use crate::tui::data::{Breaker, Shard};

const NAMES: [&str; 3] = ["10.0.0.5:6379", "10.0.0.6:6379", "10.0.0.7:6379"];

pub(super) fn shards(
    story: &Story,
    phase: &Phase,
    into: u64,
    now: Micros,
    calls: f64,
) -> Vec<Shard> {
    let second = (now.0 - START.0) / Micros::SECOND.0;
    let of = |(n, name): (usize, &&str)| {
        let is_primary = n == phase.primary;
        let was_first = n == 0 && phase.primary != 0;
        let is_down = (phase.is_away && is_primary) || (was_first && into < 8);
        let since = phase.began_us(story, second, START);
        let latency = phase.latency_us(into + n as u64);
        Shard {
            name: (*name).into(),
            role: Some(if is_primary { "primary" } else { "replica" }.into()),
            replica_of: (!is_primary).then(|| NAMES[phase.primary].to_string()),
            is_down,
            down_since_us: is_down.then_some(since),
            trouble: is_down.then(|| "connection refused".to_string()),
            p50_us: (is_primary && !is_down).then_some(latency / 4),
            p99_us: (is_primary && !is_down).then_some(latency),
            calls: if is_primary && !is_down { calls } else { 0.0 },
            errors: if is_down { 5 * GATEWAYS.len() as u64 + into } else { 0 },
            failovers: u64::from(phase.primary != 0),
            ops: (!is_down).then_some(if is_primary { calls as u64 } else { 14 + n as u64 }),
            ping_us: (!is_down).then_some(180 + 20 * n as u64),
            lag_us: (!is_primary && !is_down).then_some(1_000 * (1 + n as u64)),
            scripts: (!is_down).then_some(6),
            clock_us: (!is_down).then_some(if n == 2 { phase.clock_us } else { -300 * n as i64 }),
            memory_bytes: (!is_down).then_some(48_000_000),
            evicted: Some(0),
            breakers: if is_primary { breakers(phase, into) } else { Vec::new() },
        }
    };
    NAMES.iter().enumerate().map(of).collect()
}

/// One of them asks now and then whether the server is back.
fn breakers(phase: &Phase, into: u64) -> Vec<Breaker> {
    let state = |n: usize| match phase.is_away {
        false => "closed",
        true if into as usize % 5 == n => "half-open",
        true => "open",
    };
    let of = |(n, id): (usize, &&str)| Breaker { gateway: (*id).into(), state: state(n).into() };
    GATEWAYS.iter().enumerate().map(of).collect()
}
