//! Slots: that each has a server, none is on its way, none is hot; and what one dead server costs.

use super::facts::Facts;
use super::keys::Looked;
use super::{Diagnosis, Problem};
use crate::engine::clock::Micros;
use crate::engine::store::redis::{Map, SLOTS};
use crate::output::about;

/// A slot with more than this share of all use is hot, if there is enough use to say so.
const HOT_PERCENT: u64 = 20;
const ENOUGH_USE: u64 = 1_000;
const ENOUGH_SLOTS: usize = 20;
/// What a failover may take in all.
const FAILOVER: Micros = Micros(30 * Micros::SECOND.0);
/// After a server is suspected: agreeing on it, and the election.
const ELECTION: Micros = Micros(2 * Micros::SECOND.0);

pub(super) async fn examine(diagnosis: &mut Diagnosis, map: &Map, all: &[&Facts], looked: &Looked) {
    let mut found = Vec::new();
    let covered = map.covered_slots();
    if covered < usize::from(SLOTS) {
        let text = format!("{} slots have no server that answers", usize::from(SLOTS) - covered);
        let means = "identities in these slots are not limited, or refused, as their rules say";
        let remedy =
            "start the server that has them, or give them to another: redis-cli --cluster fix";
        found.push(Problem::error(text, means).remedy(remedy));
    }
    diagnosis.checked("uncovered slots", found, None);
    migrating(diagnosis, map).await;
    let mut found = Vec::new();
    for facts in all {
        if facts.setting("cluster-require-full-coverage") == Some("yes") {
            let means = "one dead shard without a replica stops all of them (CLUSTERDOWN), not only its own identities";
            let remedy = "redis-cli CONFIG SET cluster-require-full-coverage no, on every server";
            let problem = Problem::warning("cluster-require-full-coverage is on", means);
            found.push(problem.at(&facts.place).remedy(remedy));
        }
    }
    let unknown = all.iter().any(|facts| !facts.has_settings());
    let skipped = unknown.then(|| "CONFIG GET is not allowed to this user".to_owned());
    diagnosis.checked("full coverage", found, skipped.clone());
    failover(diagnosis, all, skipped);
    hot(diagnosis, looked);
}

async fn migrating(diagnosis: &mut Diagnosis, map: &Map) {
    let mut found = Vec::new();
    let mut skipped = None;
    for primary in &map.primaries {
        let Ok(text) = primary.console.text(&["CLUSTER", "NODES"]).await else {
            skipped = Some("CLUSTER NODES is not allowed to this user".to_owned());
            continue;
        };
        let own = text.lines().find(|line| line.contains("myself")).unwrap_or_default();
        let moving = own.split_whitespace().filter(|word| word.starts_with('[')).count();
        if moving > 0 {
            let text = format!("{moving} of its slots are on their way");
            let means =
                "checks there take a detour; one that needs two keys may be refused meanwhile";
            let remedy = "wait for the resharding; if nobody does one: redis-cli --cluster fix";
            found.push(Problem::warning(text, means).at(primary.place()).remedy(remedy));
        }
    }
    diagnosis.checked("migrating slots", found, skipped);
}

fn failover(diagnosis: &mut Diagnosis, all: &[&Facts], skipped: Option<String>) {
    let timeout = |facts: &&Facts| facts.setting("cluster-node-timeout")?.parse::<u64>().ok();
    let mut found = Vec::new();
    if let Some(longest) = all.iter().filter_map(timeout).max() {
        let expected = Micros(longest * 1_000) + ELECTION;
        diagnosis.fact("failover", None, format!("about {}", about(expected)));
        if expected > FAILOVER {
            let text = format!("a failover takes about {}", about(expected));
            let means = "so long every rule answers for the dead shard by its failure mode";
            let remedy = "redis-cli CONFIG SET cluster-node-timeout 5000, on every server";
            found.push(Problem::warning(text, means).remedy(remedy));
        }
    }
    diagnosis.checked("failover time", found, skipped);
}

/// By what the buckets of each slot have in use: the traffic that they have seen lately.
fn hot(diagnosis: &mut Diagnosis, looked: &Looked) {
    let used: u64 = looked.slots.values().map(|slot| slot.used).sum();
    let in_use = looked.slots.values().filter(|slot| slot.used > 0).count();
    let mut found = Vec::new();
    if used >= ENOUGH_USE && in_use >= ENOUGH_SLOTS {
        for (number, slot) in &looked.slots {
            let percent = slot.used * 100 / used;
            if percent > HOT_PERCENT {
                let text = format!(
                    "slot {number} has {percent} % of what is in use, most of it `{}`",
                    slot.most.1
                );
                let means = "one core of one server decides for it: more servers do not help";
                let remedy = format!(
                    "rlctl inspect '{}'; block or lower it, or move its slot to a server of its own",
                    slot.most.1
                );
                found.push(Problem::warning(text, means).remedy(remedy));
            }
        }
    }
    diagnosis.checked("hot slots", found, None);
}
