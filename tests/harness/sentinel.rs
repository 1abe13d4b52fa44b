//! A master under sentinels.

use std::time::{Duration, Instant};

use rlctl::ops::local_redis::Kind;

use super::run::Run;
use crate::support::servers::Servers;

/// Back is a master when the sentinels tell who it is: nobody else knows.
async fn another_than(master: u16, servers: &Servers) {
    let began = Instant::now();
    while !servers.local.masters().await.is_ok_and(|masters| masters != [master]) {
        assert!(began.elapsed() < Duration::from_secs(60), "nobody takes over");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The master dies, and what it counted last has reached no replica.
async fn lose_the_last_of_a_master(servers: &Servers, run: &mut Run) {
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
    another_than(master, servers).await;
    run.healed(began);
    run.lost();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_takes_over_that_lags_behind() {
    let servers = Servers::start(Kind::Sentinel, 1, 2).await;
    let mut run = Run::start(&servers.local.url()).await;
    lose_the_last_of_a_master(&servers, &mut run).await;
    let immortal = servers.immortal().await;
    let history = run.check("a replica with lag takes over", immortal).await;
    assert!(history.degraded() > 20);
}

/// What both replicas have outlives the master, whichever of them takes over; the rest was marked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_replicas_have_confirmed_outlives_the_master() {
    let servers = Servers::start(Kind::Sentinel, 1, 2).await;
    let mut run = Run::confirmed_by(2, &servers.local.url()).await;
    tokio::time::sleep(Duration::from_millis(600)).await;
    lose_the_last_of_a_master(&servers, &mut run).await;
    let immortal = servers.immortal().await;
    let history = run.check("a master dies whose charges replicas confirm", immortal).await;
    assert!(history.confirmed() > 50, "{}", history.confirmed());
    let passed = history.calls.iter().filter(|call| call.allowed && call.degraded.is_none());
    assert!(passed.count() > history.confirmed() + 20, "nothing was short");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_hands_over_and_the_next_one_hangs() {
    let servers = Servers::start(Kind::Sentinel, 1, 2).await;
    let mut run = Run::start(&servers.local.url()).await;
    let began = Instant::now();
    servers.local.fail_over(None).await.unwrap();
    run.healed(began);
    run.lost();
    tokio::time::sleep(Duration::from_millis(1_500)).await;

    let hung = servers.local.master(None).await.unwrap();
    let began = Instant::now();
    servers.local.pause(hung).unwrap();
    another_than(hung, &servers).await;
    run.healed(began);
    run.lost();
    tokio::time::sleep(Duration::from_millis(1_000)).await;
    servers.local.wake(hung).unwrap();
    let immortal = servers.immortal().await;
    let history = run.check("a master hands over, the next one hangs", immortal).await;
    assert!(history.degraded() > 20);
}
