//! What it costs to watch.

use std::time::{Duration, Instant};

use serde_json::json;

use super::sources::gateway;
use super::terminal::Terminal;
use crate::support::api::Served;
use crate::support::redis::RedisServer;

const IDENTITIES: usize = 10_000;
const BATCH: usize = 100;
const MEASURED: Duration = Duration::from_secs(10);

async fn each_asks_once(served: &Served) {
    for first in (0..IDENTITIES).step_by(BATCH) {
        let check = |n: usize| json!({ "identity": format!("user:{n}") });
        let checks: Vec<_> = (first..first + BATCH).map(check).collect();
        let path = "/api/v1/rate-limit/check/batch";
        let reply = served.ask("POST", path, json!({ "checks": checks })).await;
        assert_eq!(reply.status, 200);
    }
}

/// Time of a processor that a process has taken, of its own and of the system's. Linux counts it in
/// hundredths of a second.
fn processor_time(id: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap();
    let after_name = stat.rsplit_once(") ").unwrap().1;
    let ticks = after_name.split(' ').skip(11).take(2).map(|n| n.parse::<u64>().unwrap());
    Duration::from_millis(ticks.sum::<u64>() * 10)
}

/// Four pictures a second, as many as it ever draws by itself: it records.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn watching_ten_thousand_identities_takes_little_of_a_processor() {
    let server = RedisServer::start();
    let served = gateway(&server).await;
    each_asks_once(&served).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.rlrec").to_str().unwrap().to_string();
    let (address, redis) = (format!("http://{}", served.address), server.url());
    let arguments = ["tui", "--gateway", &address, "--redis", &redis, "--record", &path];
    let terminal = Terminal::rlctl(&arguments, (120, 40));
    terminal.shows("redis 1/1 up");
    let id = terminal.process_id();
    let (began, before) = (Instant::now(), processor_time(id));
    while began.elapsed() < MEASURED {
        each_asks_once(&served).await;
    }
    let took = processor_time(id) - before;
    let share = took.as_secs_f64() / began.elapsed().as_secs_f64();
    eprintln!("{:.2} % of a processor", share * 100.0);
    assert!(share < 0.02, "{took:?} in {:?}\n{}", began.elapsed(), terminal.text());
}
