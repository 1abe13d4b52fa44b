//! Copies: that they follow, and that they say the same.

use std::time::{Duration, Instant};

use super::facts::{Facts, field};
use super::{Diagnosis, Problem};
use crate::engine::clock::Micros;
use crate::engine::store::redis::{Console, Deployment, Node, Place, Topology, Words};
use crate::output::about;

/// A replica that needs longer for what its master has said already is worth a look; one that does
/// not get there is behind.
const LAG_WARNING: Duration = Duration::from_millis(100);
const LAG_ERROR: Duration = Duration::from_secs(1);
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Seconds since a replica was last heard of; they report every second.
const SILENT: u64 = 3;

/// How long each replica takes to have what its master had when it was asked.
pub(super) async fn lag(diagnosis: &mut Diagnosis, deployment: &Deployment, all: &[&Facts]) {
    let mut found = Vec::new();
    let mut skipped = None;
    let map = deployment.map();
    for primary in &map.primaries {
        let Ok(info) = primary.console.text(&["INFO", "replication"]).await else {
            skipped = Some("INFO is not allowed to this user".to_owned());
            continue;
        };
        let of_master = field(&info, "master_repl_offset").and_then(|o| o.parse::<u64>().ok());
        for line in info.lines().filter(|line| is_replica(line)) {
            found.extend(as_the_master_sees_it(line, of_master).map(|p| p.at(primary.place())));
        }
        if map.topology != Topology::Standalone && primary.replicas.is_empty() {
            let means = "when it dies nobody takes over, and its limits are gone";
            let problem = Problem::warning("it has no replica", means).at(primary.place());
            found.push(problem.remedy("add one; rlctl cluster add-node does on a local cluster"));
        }
        let (Some(offset), true) = (of_master, found.is_empty()) else { continue };
        for replica in &primary.replicas {
            if let Ok(console) = deployment.console_at(replica).await {
                found.extend(catches_up(&console, replica, offset).await);
            }
        }
    }
    let links = all.iter().filter(|f| f.info("master_link_status") == Some("down"));
    found.extend(links.map(|facts| {
        let means = "it has an old copy, and would bring that back in a failover";
        let problem = Problem::error("it is cut off from its master", means).at(&facts.place);
        problem.remedy("look at its log: network, password, or its master's output buffer limit")
    }));
    diagnosis.checked("replication lag", found, skipped);
}

fn is_replica(line: &str) -> bool {
    let number = line.strip_prefix("slave").and_then(|rest| rest.split(':').next());
    number.is_some_and(|number| number.parse::<u32>().is_ok())
}

/// `slave0:ip=127.0.0.1,port=7001,state=online,offset=42,lag=1`.
fn as_the_master_sees_it(line: &str, offset: Option<u64>) -> Option<Problem> {
    let fields = line.split_once(':')?.1;
    let of =
        |key: &str| fields.trim().split(',').find_map(|f| f.strip_prefix(key)?.strip_prefix('='));
    let place = format!("{}:{}", of("ip")?, of("port")?);
    let means = "in a failover, what was counted since then is lost: that much more passes";
    let remedy = "look at that machine and the network to it; until then do not fail over to it";
    if of("state") != Some("online") {
        let text = format!("replica {place} is not in step yet ({})", of("state")?);
        return Some(Problem::warning(text, means).remedy("wait until it has its first copy"));
    }
    let silent: u64 = of("lag")?.parse().ok()?;
    let behind = offset?.saturating_sub(of("offset")?.parse().ok()?);
    (silent >= SILENT).then(|| {
        let text = format!(
            "replica {place} was last heard of {silent} s ago and is {behind} bytes behind"
        );
        Problem::error(text, means).remedy(remedy)
    })
}

async fn catches_up(console: &Console, replica: &Place, offset: u64) -> Option<Problem> {
    let began = Instant::now();
    loop {
        let info = console.text(&["INFO", "replication"]).await.ok()?;
        let own = field(&info, "slave_repl_offset")?.parse::<u64>().ok()?;
        let took = began.elapsed();
        let means = "in a failover, what was counted since then is lost: that much more passes";
        let remedy = "look at the load of that machine and the network to it";
        let text = |took: Duration| {
            let took = about(Micros(took.as_micros() as u64));
            format!("replica {replica} is over {took} behind, {} bytes", offset.saturating_sub(own))
        };
        if own >= offset && took < LAG_WARNING {
            return None;
        }
        if own >= offset {
            return Some(Problem::warning(text(took), means).remedy(remedy));
        }
        if took >= LAG_ERROR {
            return Some(Problem::error(text(took), means).remedy(remedy));
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Compares a sample with its copies. What changes while it is compared is no disagreement.
pub(super) async fn agree(diagnosis: &mut Diagnosis, deployment: &Deployment, sample: &[String]) {
    let map = deployment.map();
    let mut found = Vec::new();
    let mut skipped = None;
    for primary in &map.primaries {
        let here = |key: &&String| {
            map.primary_of(key.as_bytes()).is_some_and(|p| p.place() == primary.place())
        };
        let keys: Vec<&String> = sample.iter().filter(here).collect();
        if keys.is_empty() {
            continue;
        }
        for replica in &primary.replicas {
            // Those that cannot be reached are told of elsewhere.
            let Ok(console) = deployment.console_at(replica).await else { continue };
            match differing(primary, &console, &keys, map.topology).await {
                None => skipped = Some(format!("{replica} does not say what it holds")),
                Some(0) => {}
                Some(differing) => {
                    let text = format!(
                        "replica {replica} disagrees about {differing} of {} keys",
                        keys.len()
                    );
                    let means = "after a failover these limits stand elsewhere than they do now";
                    let remedy =
                        "look at its lag; one that was written to by itself must be synced anew";
                    found.push(Problem::warning(text, means).at(primary.place()).remedy(remedy));
                }
            }
        }
    }
    diagnosis.checked("replicas agree", found, skipped);
}

async fn differing(
    primary: &Node,
    replica: &Console,
    keys: &[&String],
    topology: Topology,
) -> Option<usize> {
    if topology == Topology::Cluster {
        replica.ask(&["READONLY"]).await.ok()?;
    }
    let get: Vec<Words> = keys.iter().map(|key| Words::of("GET").and(key)).collect();
    let mut differing = usize::MAX;
    // Twice: a copy that is only late has caught up by then.
    for _ in 0..2 {
        let before = primary.console.ask_all(&get).await.ok()?;
        tokio::time::sleep(LAG_WARNING).await;
        let copies = replica.ask_all(&get).await.ok()?;
        let after = primary.console.ask_all(&get).await.ok()?;
        if copies.iter().any(Result::is_err) {
            return None;
        }
        let each = copies.iter().zip(before.iter().zip(&after));
        let now = each.filter(|(copy, (before, after))| copy != before && before == after).count();
        differing = differing.min(now);
    }
    Some(differing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_master_says_of_its_replicas_is_judged() {
        let line = |state: &str, offset: u64, lag: u64| {
            format!("slave0:ip=10.0.0.2,port=7001,state={state},offset={offset},lag={lag}\r")
        };
        assert_eq!(as_the_master_sees_it(&line("online", 100, 1), Some(100)), None);
        let silent = as_the_master_sees_it(&line("online", 40, 9), Some(100)).unwrap();
        assert!(silent.found.contains("10.0.0.2:7001") && silent.found.contains("60 bytes"));
        let new = as_the_master_sees_it(&line("wait_bgsave", 0, 0), Some(100)).unwrap();
        assert!(new.found.contains("not in step yet"));
        assert!(is_replica("slave12:ip=x") && !is_replica("slave_repl_offset:3"));
    }
}
