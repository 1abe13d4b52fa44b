//! One server.

use std::time::{Duration, Instant};

use rlctl::engine::breaker::State;

use super::proxy::Line;
use super::run::Run;
use crate::support::redis::RedisServer;

/// Keys of ours without a TTL, but those that stay on purpose.
fn immortal(server: &RedisServer) -> Vec<String> {
    let dump = server.dump().into_iter();
    dump.filter(|(key, _, ttl)| *ttl == -1 && !key.contains("{$policy}"))
        .map(|(key, ..)| key)
        .collect()
}

async fn pause(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_and_started_empty() {
    let mut server = RedisServer::start();
    let mut run = Run::start(&server.url()).await;
    let began = Instant::now();
    server.kill();
    pause(700).await;
    tokio::task::block_in_place(|| server.restart());
    run.healed(began);
    run.lost();
    let history = run.check("killed and started empty", immortal(&server)).await;
    assert!(history.was_seen(State::Open) && history.degraded() > 50);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hung_and_woken() {
    let server = RedisServer::start();
    let mut run = Run::start(&server.url()).await;
    let began = Instant::now();
    server.pause();
    pause(1_200).await;
    server.wake();
    run.healed(began);
    let history = run.check("hung and woken", immortal(&server)).await;
    assert!(history.was_seen(State::Open) && history.degraded() > 50);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_off_and_mended() {
    let server = RedisServer::start();
    let line = Line::to(server.port).await;
    let mut run = Run::start(&format!("redis://127.0.0.1:{}", line.port)).await;
    let began = Instant::now();
    line.cut();
    pause(1_200).await;
    line.mend();
    run.healed(began);
    let history = run.check("cut off and mended", immortal(&server)).await;
    assert!(history.was_seen(State::Open) && history.degraded() > 50);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_flushed_again_and_again() {
    let server = RedisServer::start();
    let run = Run::start(&server.url()).await;
    for _ in 0..20 {
        server.command::<()>(&["SCRIPT", "FLUSH"]);
        pause(20).await;
    }
    let history = run.check("scripts flushed", immortal(&server)).await;
    let stalled = history.calls.iter().filter(|call| call.degraded.is_some()).count();
    assert!(stalled * 100 < history.calls.len(), "{stalled} of {}", history.calls.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn out_of_memory() {
    let server = RedisServer::start();
    let mut run = Run::start(&server.url()).await;
    let began = Instant::now();
    server.command::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    pause(800).await;
    server.command::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    run.healed(began);
    let history = run.check("out of memory", immortal(&server)).await;
    assert!(history.was_seen(State::Open) && history.degraded() > 50);
}
