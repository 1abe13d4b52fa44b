//! Slots that move from one master to another while the cluster serves.

use super::view::KnownNode;
use super::{LocalRedis, LocalRedisError, Tell};
use crate::engine::store::redis::{Console, Said};

/// Keys that move in one command: few enough to keep a server's pause short.
const KEYS_AT_ONCE: &str = "100";
const MIGRATE_TIMEOUT_MS: &str = "5000";
/// Progress is told once for so many slots.
const TOLD_EVERY: usize = 512;

/// Some slots, from whom, to whom.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Move {
    slots: Vec<u16>,
    from: u16,
    to: u16,
}

impl LocalRedis {
    /// Moves `slots` slots from one master to another; says how many it moved.
    pub async fn move_slots(
        &self,
        count: u32,
        from: u16,
        to: u16,
        tell: Tell<'_>,
    ) -> Result<u32, LocalRedisError> {
        self.must_be_cluster()?;
        let known = self.known().await?;
        let of = |port: u16| {
            let found = known.iter().find(|n| n.port == port && n.is_master && !n.has_failed);
            found.ok_or_else(|| {
                LocalRedisError::Impossible(format!("there is no living master on port {port}"))
            })
        };
        let (source, _) = (of(from)?, of(to)?);
        if from == to {
            return Err(LocalRedisError::Impossible("slots move to another master".into()));
        }
        let slots: Vec<u16> = each_slot(source).take(count as usize).collect();
        let moves = [Move { slots, from, to }];
        self.make(&moves, &known, tell).await
    }

    /// Moves as many slots as it takes for all masters to have the same number, give or take one.
    pub async fn balance(&self, tell: Tell<'_>) -> Result<u32, LocalRedisError> {
        self.must_be_cluster()?;
        let known = self.known().await?;
        let masters: Vec<&KnownNode> =
            known.iter().filter(|n| n.is_master && !n.has_failed).collect();
        self.make(&balanced(&masters), &known, tell).await
    }

    /// Spreads the slots of one master over others.
    pub(super) async fn empty(
        &self,
        leaving: &KnownNode,
        others: &[u16],
        tell: Tell<'_>,
    ) -> Result<(), LocalRedisError> {
        let slots: Vec<u16> = each_slot(leaving).collect();
        let part = slots.len().div_ceil(others.len().max(1)).max(1);
        let moves: Vec<Move> = slots
            .chunks(part)
            .zip(others)
            .map(|(slots, to)| Move { slots: slots.into(), from: leaving.port, to: *to })
            .collect();
        self.make(&moves, &self.known().await?, tell).await.map(drop)
    }

    async fn make(
        &self,
        moves: &[Move],
        known: &[KnownNode],
        tell: Tell<'_>,
    ) -> Result<u32, LocalRedisError> {
        let masters = known.iter().filter(|n| n.is_master && !n.has_failed);
        let mut consoles = Vec::new();
        for master in masters {
            consoles.push((master, self.console(master.port).await?));
        }
        let mut moved = 0;
        for Move { slots, from, to } in moves {
            tell(&format!("moving {} slots from port {from} to port {to}", slots.len()));
            for (n, slot) in slots.iter().enumerate() {
                move_slot(*slot, *from, *to, &consoles).await?;
                moved += 1;
                if (n + 1) % TOLD_EVERY == 0 {
                    tell(&format!("  {} of {} slots", n + 1, slots.len()));
                }
            }
        }
        Ok(moved)
    }
}

/// One slot with its keys. In this order nobody is ever sent to a server that does not have it:
/// the one it goes to takes it first, then the one it leaves, then all others learn of it.
async fn move_slot(
    slot: u16,
    from: u16,
    to: u16,
    masters: &[(&KnownNode, Console)],
) -> Result<(), LocalRedisError> {
    let of = |port: u16| {
        let found = masters.iter().find(|(known, _)| known.port == port);
        found.ok_or_else(|| LocalRedisError::Impossible(format!("no master on port {port}")))
    };
    let ((source_is, source), (target_is, target)) = (of(from)?, of(to)?);
    let (slot, port) = (slot.to_string(), to.to_string());
    target.ask(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source_is.id]).await?;
    source.ask(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target_is.id]).await?;
    loop {
        let keys = source.ask(&["CLUSTER", "GETKEYSINSLOT", &slot, KEYS_AT_ONCE]).await?;
        let keys: Vec<String> = keys.into_list().into_iter().map(Said::into_text).collect();
        if keys.is_empty() {
            break;
        }
        let mut words = vec!["MIGRATE", "127.0.0.1", &port, "", "0", MIGRATE_TIMEOUT_MS, "KEYS"];
        words.extend(keys.iter().map(|key| &**key));
        source.ask(&words).await?;
    }
    let owner = ["CLUSTER", "SETSLOT", &slot, "NODE", &target_is.id];
    target.ask(&owner).await?;
    match source.ask(&owner).await {
        // It has given its last slot away, has heard of that already, and is a replica by now.
        Err(error) if error.to_string().contains("SETSLOT only with masters") => {}
        told => drop(told?),
    }
    for (known, console) in masters.iter().filter(|(n, _)| n.port != from && n.port != to) {
        // One that cannot be told now hears of it from the others.
        let _ = console.ask(&owner).await.map_err(|_| known.port);
    }
    Ok(())
}

fn each_slot(node: &KnownNode) -> impl Iterator<Item = u16> + '_ {
    node.slots.iter().flat_map(|(first, last)| *first..=*last)
}

/// Who has more than a fair share gives to who has less.
fn balanced(masters: &[&KnownNode]) -> Vec<Move> {
    let all: u32 = masters.iter().map(|n| n.slot_count()).sum();
    let count = masters.len() as u32;
    // What does not divide stays with those who have most, so that nothing moves for it.
    let mut by_slots: Vec<usize> = (0..masters.len()).collect();
    by_slots.sort_by_key(|n| std::cmp::Reverse(masters[*n].slot_count()));
    let extra = &by_slots[..(all % count.max(1)) as usize];
    let fair = |n: usize| (all / count + u32::from(extra.contains(&n))) as usize;
    let mut spare: Vec<(u16, u16)> = Vec::new();
    for (n, master) in masters.iter().enumerate() {
        spare.extend(each_slot(master).skip(fair(n)).map(|slot| (slot, master.port)));
    }
    let mut moves = Vec::<Move>::new();
    let mut spare = spare.into_iter();
    for (n, master) in masters.iter().enumerate() {
        let lacks = fair(n).saturating_sub(master.slot_count() as usize);
        for (slot, from) in spare.by_ref().take(lacks) {
            match moves.last_mut().filter(|m| (m.from, m.to) == (from, master.port)) {
                Some(last) => last.slots.push(slot),
                None => moves.push(Move { slots: vec![slot], from, to: master.port }),
            }
        }
    }
    moves
}

#[cfg(test)]
mod tests {
    use super::super::view::known_nodes;
    use super::*;

    #[test]
    fn an_empty_master_gets_its_share_from_all_others() {
        let text = "\
aa 127.0.0.1:7000@17000 master - 0 0 1 connected 0-5460
bb 127.0.0.1:7001@17001 master - 0 0 2 connected 5461-10922
cc 127.0.0.1:7002@17002 master - 0 0 3 connected 10923-16383
dd 127.0.0.1:7003@17003 master - 0 0 3 connected";
        let nodes = known_nodes(text);
        let moves = balanced(&nodes.iter().collect::<Vec<_>>());
        assert!(moves.iter().all(|m| m.to == 7003));
        assert_eq!(moves.iter().map(|m| m.slots.len()).sum::<usize>(), 4096);
        assert_eq!(moves.len(), 3);
        assert!(balanced(&nodes[..3].iter().collect::<Vec<_>>()).is_empty());
    }
}
