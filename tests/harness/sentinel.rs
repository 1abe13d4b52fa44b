//! A master under sentinels.

use std::time::{Duration, Instant};

use rlctl::ops::local_redis::Kind;

use super::run::Run;
use crate::support::servers::Servers;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_takes_over_that_lags_behind() {
    let servers = Servers::start(Kind::Sentinel, 1, 2).await;
    let mut run = Run::start(&servers.local.url()).await;
    let master = servers.local.master(None).await.unwrap();
    let replicas: Vec<u16> = servers.local.data_ports().filter(|port| *port != master).collect();
    // What is counted from now on, no replica ever hears of.
    let console = servers.local.console(master).await.unwrap();
    replicas.iter().for_each(|replica| servers.local.pause(*replica).unwrap());
    console.ask(&["CLIENT", "KILL", "TYPE", "replica"]).await.unwrap();
    tokio::time::sleep(Duration::from_millis(250)).await;
    let began = Instant::now();
    servers.local.kill(master).await.unwrap();
    replicas.iter().for_each(|replica| servers.local.wake(*replica).unwrap());
    // Back is a master when the sentinels tell who it is: nobody else knows.
    while !servers.local.masters().await.is_ok_and(|masters| masters != [master]) {
        assert!(began.elapsed() < Duration::from_secs(60), "nobody takes over");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    run.healed(began);
    run.lost();
    let immortal = servers.immortal().await;
    let history = run.check("a replica with lag takes over", immortal).await;
    assert!(history.degraded() > 20);
}
