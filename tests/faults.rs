//! Redis under load while things go wrong with it: real servers, real signals, real processes.

use std::future::Future;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rlctl::engine::clock::Micros;
use rlctl::engine::limit::{Algorithm, Decision};
use rlctl::engine::store::{Check, RedisStore, RuleLimit, StoreError};

use crate::support::redis::{RedisServer, connect_to};
use crate::support::stalls::Stalls;
use crate::support::{cost, id, named, one, several};

const DEADLINE: Micros = Micros(50_000);
const CONNECT: Micros = Micros(250_000);
/// What a call may take beyond its deadline.
const GRACE: Duration = Duration::from_millis(10);
/// For tests that are not about time.
const PATIENCE: Micros = Micros(60_000_000);

async fn take(
    store: &RedisStore,
    limits: &[Arc<RuleLimit>],
    c: u64,
) -> Result<Decision, StoreError> {
    let identity = id("user:1");
    let check = Check { identity: &identity, limits, cost: cost(c), idempotency: None, at: None };
    store.check(&check).await.map(|answer| answer.decisions[0])
}

/// One call as its caller saw it.
struct Called {
    began: Instant,
    ended: Instant,
    result: Result<Decision, StoreError>,
}

/// Callers that ask as fast as they get answers, until told to stop.
struct Load {
    stop: Arc<AtomicBool>,
    callers: Vec<tokio::task::JoinHandle<Vec<Called>>>,
}

impl Load {
    fn start(store: &Arc<RedisStore>, limits: &[Arc<RuleLimit>], callers: usize) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let caller = |_| {
            let (store, limits, stop) = (store.clone(), limits.to_vec(), stop.clone());
            tokio::spawn(async move {
                let mut calls = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let began = Instant::now();
                    let result = take(&store, &limits, 1).await;
                    calls.push(Called { began, ended: Instant::now(), result });
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                calls
            })
        };
        let callers = (0..callers).map(caller).collect();
        Load { stop, callers }
    }

    async fn stop(self) -> Vec<Called> {
        self.stop.store(true, Ordering::Relaxed);
        let mut calls = Vec::new();
        for caller in self.callers {
            calls.extend(caller.await.unwrap());
        }
        calls
    }
}

/// No caller waited longer than the deadline, but for what the machine itself stood still.
fn nobody_waited_too_long(calls: &[Called], stalls: &Stalls) {
    for call in calls {
        let took = call.ended - call.began;
        let excuse = stalls.between(call.began, call.ended);
        let most = Duration::from(DEADLINE) + GRACE + excuse;
        assert!(took <= most, "{:?} took {took:?}, of which stalled {excuse:?}", call.result);
    }
}

/// What the server counted is what it told callers that it counted, and at most the calls of which
/// nobody knows.
async fn nothing_counts_twice(
    store: &RedisStore,
    limits: &[Arc<RuleLimit>],
    calls: &[Called],
) -> (u64, u64) {
    let allowed = calls.iter().filter(|c| matches!(&c.result, Ok(d) if d.allowed)).count() as u64;
    let unknown = calls.iter().filter(|c| matches!(&c.result, Err(e) if e.outcome_unknown()));
    let unknown = unknown.count() as u64;
    // It may be connecting still.
    let until = Instant::now() + Duration::from_secs(5);
    let used = loop {
        match take(store, limits, 0).await {
            Ok(peek) => break peek.used(),
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert!(
        (allowed..=allowed + unknown).contains(&used),
        "{used} were counted: {allowed} allowed, {unknown} unknown, {} calls",
        calls.len()
    );
    (allowed, unknown)
}

const HAMMER_URL: &str = "RLCTL_TEST_HAMMER_URL";
const HAMMER_OUT: &str = "RLCTL_TEST_HAMMER_OUT";

/// 64 tasks, 3200 calls for each algorithm; returns how many passed of each.
async fn hammer(url: &str) -> [u64; 6] {
    let store = Arc::new(connect_to(url, PATIENCE, PATIENCE).await.unwrap());
    let mut allowed = [0; 6];
    for (algorithm, allowed) in Algorithm::ALL.into_iter().zip(&mut allowed) {
        let task = |_| {
            let store = store.clone();
            let limits = named(algorithm.name(), algorithm, "4000/366d");
            tokio::spawn(async move {
                let mut allowed = 0;
                for _ in 0..50 {
                    allowed += u64::from(take(&store, &limits, 1).await.unwrap().allowed);
                }
                allowed
            })
        };
        let tasks: Vec<_> = (0..64).map(task).collect();
        for task in tasks {
            *allowed += task.await.unwrap();
        }
    }
    allowed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_of_64_tasks_admit_exactly_the_limit() {
    // This very test, run again by itself, is also the two processes.
    if let (Ok(url), Ok(out)) = (std::env::var(HAMMER_URL), std::env::var(HAMMER_OUT)) {
        let allowed = hammer(&url).await.map(|n| n.to_string());
        std::fs::write(out, allowed.join(" ")).unwrap();
        return;
    }
    let server = RedisServer::start();
    let run = |n: usize| {
        let out = server.dir.path().join(format!("allowed-{n}"));
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "faults::two_processes_of_64_tasks_admit_exactly_the_limit"])
            .env(HAMMER_URL, server.url())
            .env(HAMMER_OUT, &out)
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        (child, out)
    };
    let mut total = [0; 6];
    for (mut child, out) in [run(1), run(2)] {
        assert!(child.wait().unwrap().success());
        let allowed = std::fs::read_to_string(out).unwrap();
        for (sum, n) in total.iter_mut().zip(allowed.split(' ')) {
            *sum += n.parse::<u64>().unwrap();
        }
    }
    assert_eq!(total, [4000; 6], "of 6400 calls for each algorithm");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_flush_under_load_costs_nobody_an_answer() {
    let server = RedisServer::start();
    let store = Arc::new(server.store().await);
    let limits =
        several(&[(Algorithm::FixedWindow, "1G/366d"), (Algorithm::SlidingLog, "100k/1d")]);
    let load = Load::start(&store, &limits, 64);
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(15)).await;
        server.command::<()>(&["SCRIPT", "FLUSH"]);
    }
    let calls = load.stop().await;
    for call in &calls {
        assert!(call.result.as_ref().is_ok_and(|d| d.allowed), "{:?}", call.result);
    }
    let (allowed, _) = nothing_counts_twice(&store, &limits, &calls).await;
    assert!(allowed > 500, "{allowed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_under_load_counts_nothing_twice_and_hangs_nobody() {
    // With its file of commands a killed server comes back with all it has acknowledged.
    let keep = |_: &std::path::Path| vec!["--appendonly".into(), "yes".into()];
    let mut server = RedisServer::start_with(keep);
    let store = Arc::new(server.store_within(DEADLINE, CONNECT).await);
    let limits = named("restart", Algorithm::FixedWindow, "1G/366d");
    let stalls = Stalls::watch();
    let load = Load::start(&store, &limits, 64);
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(200)).await;
        tokio::task::block_in_place(|| server.restart());
        let up = Instant::now();
        while take(&store, &limits, 0).await.is_err() {
            let excuse = stalls.between(up, Instant::now());
            assert!(up.elapsed() < Duration::from_secs(1) + excuse, "not found again in 1 s");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    let calls = load.stop().await;
    nobody_waited_too_long(&calls, &stalls);
    let failed = calls.iter().filter(|c| c.result.is_err()).count();
    let (allowed, _) = nothing_counts_twice(&store, &limits, &calls).await;
    assert!(failed > 10 && allowed > 500, "{failed} failed, {allowed} passed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs_costs_each_caller_its_deadline_and_is_found_again() {
    let server = RedisServer::start();
    let store = Arc::new(server.store_within(DEADLINE, CONNECT).await);
    let limits = named("stop", Algorithm::FixedWindow, "1G/366d");
    let stalls = Stalls::watch();
    let load = Load::start(&store, &limits, 32);
    tokio::time::sleep(Duration::from_millis(200)).await;
    server.pause();
    let paused = Instant::now();
    tokio::time::sleep(Duration::from_millis(1500)).await;
    server.wake();
    let woke = Instant::now();
    while take(&store, &limits, 0).await.is_err() {
        let excuse = stalls.between(woke, Instant::now());
        assert!(woke.elapsed() < Duration::from_secs(1) + excuse, "not found again in 1 s");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    let calls = load.stop().await;
    nobody_waited_too_long(&calls, &stalls);
    nothing_counts_twice(&store, &limits, &calls).await;
    let during = |c: &&Called| c.began > paused && c.ended < woke;
    let hung: Vec<_> = calls.iter().filter(during).collect();
    assert!(hung.len() > 100, "{}", hung.len());
    assert!(hung.iter().all(|c| c.result.is_err()), "a stopped server decides nothing");
    // After three timeouts in a row nobody waits for it any more.
    let patient = hung.iter().filter(|c| c.ended - c.began > Duration::from_millis(40)).count();
    assert!(patient <= 32 * 5, "{patient} of {} waited out their deadline", hung.len());
}

#[tokio::test]
async fn whoever_calls_alone_gets_a_hung_server_back_too() {
    // One caller a time: three timeouts, then it is told at once, and no call of the pause counts
    // twice.
    let server = RedisServer::start();
    let store = server.store_within(DEADLINE, CONNECT).await;
    let limits = named("alone", Algorithm::FixedWindow, "1000/366d");
    assert!(take(&store, &limits, 1).await.unwrap().allowed);
    server.pause();
    let mut unknown = 0;
    for n in 0..6 {
        let error = take(&store, &limits, 1).await.unwrap_err();
        unknown += u64::from(error.outcome_unknown());
        assert_eq!(error.outcome_unknown(), n < 3, "call {n}: {error}");
    }
    server.wake();
    let woke = Instant::now();
    let used = loop {
        match take(&store, &limits, 0).await {
            Ok(peek) => break peek.used(),
            Err(error) => assert!(woke.elapsed().as_secs() < 5, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert!((1..=1 + unknown).contains(&used), "{used}");
}

#[tokio::test]
async fn a_server_without_memory_refuses_and_counts_nothing() {
    let server = RedisServer::start();
    let store = server.store().await;
    for algorithm in Algorithm::ALL {
        let limits = named(algorithm.name(), algorithm, "10/366d");
        assert!(take(&store, &limits, 1).await.unwrap().allowed);
        server.command::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
        let error = take(&store, &limits, 1).await.unwrap_err();
        assert!(error.to_string().contains("OOM"), "{error}");
        assert!(!error.outcome_unknown(), "it says that nothing was written");
        server.command::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
        assert_eq!(take(&store, &limits, 0).await.unwrap().remaining, 9, "{algorithm}");
    }
}

#[tokio::test]
async fn a_master_that_becomes_a_replica_and_back_is_found_again() {
    let server = RedisServer::start();
    let store = server.store_within(PATIENCE, PATIENCE).await;
    let limits = named("role", Algorithm::Gcra, "10/366d");
    assert!(take(&store, &limits, 1).await.unwrap().allowed);
    server.command::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
    let error = take(&store, &limits, 1).await.unwrap_err();
    assert!(matches!(&error, StoreError::Refused { code, .. } if code == "READONLY"), "{error:?}");
    server.command::<()>(&["REPLICAOF", "NO", "ONE"]);
    let began = Instant::now();
    while take(&store, &limits, 1).await.is_err() {
        assert!(began.elapsed() < Duration::from_secs(2));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(take(&store, &limits, 0).await.unwrap().remaining, 8);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_cut_under_load_count_nothing_twice() {
    let server = RedisServer::start();
    let store = Arc::new(server.store_within(DEADLINE, CONNECT).await);
    let limits = named("cut", Algorithm::SlidingLog, "100k/1d");
    let stalls = Stalls::watch();
    let load = Load::start(&store, &limits, 32);
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_millis(60)).await;
        server.command::<u64>(&["CLIENT", "KILL", "TYPE", "normal"]);
    }
    let calls = load.stop().await;
    nobody_waited_too_long(&calls, &stalls);
    let (allowed, _) = nothing_counts_twice(&store, &limits, &calls).await;
    assert!(allowed > 100, "{allowed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_callers_than_may_wait_are_told_at_once() {
    let server = RedisServer::start();
    let store = Arc::new(server.store_within(Micros::SECOND, PATIENCE).await);
    let limits = named("crowd", Algorithm::FixedWindow, "1G/366d");
    server.pause();
    let mut crowd = tokio::task::JoinSet::new();
    for _ in 0..20_000 {
        let (store, limits) = (store.clone(), limits.clone());
        crowd.spawn(async move {
            let began = Instant::now();
            let error = take(&store, &limits, 1).await.unwrap_err();
            (error, began.elapsed())
        });
    }
    let told = crowd.join_all().await;
    let too_many: Vec<_> =
        told.iter().filter(|(e, _)| matches!(e, StoreError::Overloaded { .. })).collect();
    assert!((3_000..4_000).contains(&too_many.len()), "{}", too_many.len());
    assert!(too_many.iter().all(|(e, took)| !e.outcome_unknown() && took.as_millis() < 500));
    server.wake();
    // Who gave up while still waiting was never sent: only what was on the wire may count.
    let until = Instant::now() + Duration::from_secs(5);
    let used = loop {
        match take(&store, &limits, 0).await {
            Ok(peek) => break peek.used(),
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert!(used <= 1_000, "{used} were sent although nobody waited for them");
}

#[tokio::test]
async fn callers_who_go_away_cost_the_others_nothing() {
    let server = RedisServer::start();
    let store = server.store().await;
    let limits = one(Algorithm::Gcra, "1000000/1d");
    let identity = id("user:1");
    let check =
        Check { identity: &identity, limits: &limits, cost: cost(1), idempotency: None, at: None };
    for round in 0..500 {
        // Polled once, so that it is queued, and dropped before anybody could answer.
        let mut gone = Box::pin(store.check(&check));
        let polled =
            std::future::poll_fn(|cx| std::task::Poll::Ready(gone.as_mut().poll(cx).is_ready()))
                .await;
        drop(gone);
        assert!(!polled, "round {round}: it cannot have been answered yet");
        if round % 10 == 0 {
            store.check(&check).await.unwrap_or_else(|e| panic!("round {round}: {e}"));
        }
    }
}
