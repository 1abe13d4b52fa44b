//! A cluster of three primaries and three replicas.

use std::time::{Duration, Instant};

use rlctl::engine::breaker::State;
use rlctl::engine::store::redis::Said;
use rlctl::ops::local_redis::Kind;

use super::run::Run;
use crate::support::servers::Servers;

/// Waits until every slot is served by a primary that takes writes; `but` is not asked.
async fn whole(servers: &Servers, but: Option<u16>) {
    let began = Instant::now();
    let (mut asked, mut covered) = (0, 0);
    while asked == 0 || covered < 16_384 {
        assert!(began.elapsed() < Duration::from_secs(60), "{covered} of 16384 slots are served");
        tokio::time::sleep(Duration::from_millis(5)).await;
        (asked, covered) = (0, 0);
        for port in servers.local.data_ports().filter(|port| Some(*port) != but) {
            let Ok(console) = servers.local.console(port).await else { continue };
            let Ok(Said::List(role)) = console.ask(&["ROLE"]).await else { continue };
            let info = console.text(&["CLUSTER", "INFO"]).await.unwrap_or_default();
            let nodes = console.text(&["CLUSTER", "NODES"]).await.unwrap_or_default();
            let is_primary = role.first() == Some(&Said::Text("master".into()));
            if is_primary && info.contains("cluster_state:ok") {
                asked += 1;
                covered += slots_of_myself(&nodes);
            }
        }
    }
}

fn slots_of_myself(nodes: &str) -> u32 {
    let own = nodes.lines().find(|line| line.contains("myself")).unwrap_or_default();
    let ranges = own.split(' ').skip(8).filter(|range| !range.starts_with('['));
    let count = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(last.parse::<u32>().ok()? - first.parse::<u32>().ok()? + 1)
    };
    ranges.filter_map(count).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn primaries_that_hang_die_and_hand_over() {
    let mut servers = Servers::start(Kind::Cluster, 3, 1).await;
    whole(&servers, None).await;
    let mut run = Run::start(&servers.local.url()).await;

    let hung = servers.local.master(None).await.unwrap();
    let began = Instant::now();
    servers.local.pause(hung).unwrap();
    whole(&servers, Some(hung)).await;
    run.healed(began);
    run.lost();
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    servers.local.wake(hung).unwrap();
    whole(&servers, None).await;

    let began = Instant::now();
    let dead = servers.local.master(None).await.unwrap();
    servers.local.kill(dead).await.unwrap();
    whole(&servers, Some(dead)).await;
    run.healed(began);
    run.lost();
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    servers.local.start_again(dead).await.unwrap();
    whole(&servers, None).await;
    tokio::time::sleep(Duration::from_millis(500)).await;

    let began = Instant::now();
    servers.local.fail_over(None).await.unwrap();
    run.healed(began);
    run.lost();
    let immortal = servers.immortal().await;
    let history = run.check("primaries hang, die and hand over", immortal).await;
    assert!(history.was_seen(State::Open) && history.degraded() > 50);
    // The others were never left alone.
    let calm = history.breakers.values().filter(|states| **states == [State::Closed]).count();
    assert!(calm >= 1, "{:?}", history.breakers);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_that_move_and_a_cluster_that_is_down() {
    let full = "cluster-require-full-coverage yes";
    let servers = Servers::start_with(Kind::Cluster, 3, 0, &[full]).await;
    whole(&servers, None).await;
    let mut run = Run::start(&servers.local.url()).await;

    let masters = servers.local.masters().await.unwrap();
    for (from, to) in [(0, 1), (1, 2), (2, 0)] {
        servers.local.move_slots(700, masters[from], masters[to], &|_| {}).await.unwrap();
    }

    // A slot that nobody has: all of the cluster is down for that.
    let consoles = [
        servers.local.console(masters[0]).await.unwrap(),
        servers.local.console(masters[1]).await.unwrap(),
        servers.local.console(masters[2]).await.unwrap(),
    ];
    let nodes = consoles[0].text(&["CLUSTER", "NODES"]).await.unwrap();
    let own = nodes.lines().find(|line| line.contains("myself")).unwrap();
    let slot = own.split(' ').nth(8).unwrap().split('-').next().unwrap().to_owned();
    let began = Instant::now();
    for console in &consoles {
        console.ask(&["CLUSTER", "DELSLOTS", &slot]).await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(1_000)).await;
    consoles[0].ask(&["CLUSTER", "ADDSLOTS", &slot]).await.unwrap();
    whole(&servers, None).await;
    run.healed(began);
    let immortal = servers.immortal().await;
    let history = run.check("slots move, then the cluster is down", immortal).await;
    assert!(history.was_seen(State::Open) && history.degraded() > 50);
}
