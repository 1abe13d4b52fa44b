//! A Redis Cluster of three primaries and three replicas: the same answers as one server, and
//! nothing lost or counted twice while slots and primaries change under load.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rlctl::engine::clock::Micros;
use rlctl::engine::identity::Identity;
use rlctl::engine::limit::Algorithm;
use rlctl::engine::store::redis::{RedisAddress, primaries};
use rlctl::engine::store::{
    Check, Idempotency, MemoryStore, RedisStore, RuleLimit, Settlement, Store, StoreError,
};
use rlctl::ops::local_redis::Kind;

use crate::support::rng::Rng;
use crate::support::servers::Servers;
use crate::support::stalls::Stalls;
use crate::support::{TODAY, cost, id, named, one, several};

const PATIENCE: Micros = Micros(60 * Micros::SECOND.0);
const DEADLINE: Micros = Micros(50_000);
const GRACE: Duration = Duration::from_millis(10);

async fn cluster() -> Servers {
    Servers::start(Kind::Cluster, 3, 1).await
}

async fn ask(
    store: &RedisStore,
    identity: &Identity,
    limits: &[Arc<RuleLimit>],
    c: u64,
) -> Result<u64, StoreError> {
    let check = Check { identity, limits, cost: cost(c), idempotency: None, at: None };
    let answer = store.check(&check).await?;
    assert!(answer.allowed(), "{answer:?}");
    Ok(answer.decisions[0].used())
}

/// One call as its caller saw it.
struct Called {
    identity: usize,
    began: Instant,
    ended: Instant,
    result: Result<u64, StoreError>,
}

/// Callers that ask for identities in turn until told to stop.
struct Load {
    stop: Arc<AtomicBool>,
    callers: Vec<tokio::task::JoinHandle<Vec<Called>>>,
}

fn identities() -> Vec<Identity> {
    (0..120).map(|n| id(&format!("user:{n}"))).collect()
}

impl Load {
    fn start(store: &Arc<RedisStore>, limits: &[Arc<RuleLimit>]) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let caller = |first: usize| {
            let (store, limits, stop) = (store.clone(), limits.to_vec(), stop.clone());
            tokio::spawn(async move {
                let (identities, mut calls) = (identities(), Vec::new());
                for n in (first..).step_by(7) {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let identity = n % identities.len();
                    let began = Instant::now();
                    let result = ask(&store, &identities[identity], &limits, 1).await;
                    calls.push(Called { identity, began, ended: Instant::now(), result });
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                calls
            })
        };
        let callers = (0..16).map(caller).collect();
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

/// For each identity what the cluster counted is what it told callers, and at most the calls of
/// which nobody knows.
async fn nothing_counts_twice(servers: &Servers, limits: &[Arc<RuleLimit>], calls: &[Called]) {
    let store = servers.store(PATIENCE).await;
    let mut told: HashMap<usize, (u64, u64)> = HashMap::new();
    for call in calls {
        let (allowed, unknown) = told.entry(call.identity).or_default();
        match &call.result {
            Ok(_) => *allowed += 1,
            Err(error) if error.outcome_unknown() => *unknown += 1,
            Err(_) => {}
        }
    }
    let identities = identities();
    for (identity, (allowed, unknown)) in told {
        let used = ask(&store, &identities[identity], limits, 0).await.unwrap();
        assert!(
            (allowed..=allowed + unknown).contains(&used),
            "{}: {used} were counted, {allowed} allowed, {unknown} unknown",
            identities[identity]
        );
    }
}

fn failures(calls: &[Called]) -> Vec<String> {
    calls.iter().filter_map(|call| call.result.as_ref().err()).map(ToString::to_string).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_gives_the_answers_of_one_store_and_lies_on_all_its_primaries() {
    let servers = cluster().await;
    let redis = Store::Redis(servers.store(PATIENCE).await);
    let memory = Store::Memory(MemoryStore::unbounded());
    let all: Vec<(Algorithm, &str)> = Algorithm::ALL.into_iter().map(|a| (a, "7/3s")).collect();
    let limits = several(&all);
    let mut rng = Rng::new(5);
    let identities = identities();
    let mut at = TODAY;
    let mut of = Vec::new();
    for n in 0..1500 {
        at += rng.below(300_000);
        let key = (n % 5 == 0).then(|| format!("k{}", rng.below(40)));
        of.push((rng.below(identities.len() as u64) as usize, 1 + rng.below(2), key, at));
    }
    let checks: Vec<Check<'_>> = of
        .iter()
        .map(|(identity, c, key, at)| Check {
            identity: &identities[*identity],
            limits: &limits,
            cost: cost(*c),
            idempotency: key.as_deref().map(|key| Idempotency::new(key, Micros::HOUR).unwrap()),
            at: Some(Micros(*at)),
        })
        .collect();
    let (here, there) = (memory.check_in_order(&checks).await, redis.check_in_order(&checks).await);
    let mut allowed = 0;
    for ((here, there), check) in here.into_iter().zip(there).zip(&checks) {
        match (here, there) {
            (Ok(here), Ok(there)) => {
                assert_eq!(here.decisions, there.decisions, "{check:?}");
                assert_eq!(here.replayed, there.replayed);
                allowed += u64::from(there.allowed());
                if let (Some(a), Some(b)) = (here.charge(check), there.charge(check)) {
                    let to = Settlement::Refund;
                    if allowed % 10 == 0 {
                        let back = memory.settle(&a, to, check.at).await.unwrap();
                        assert_eq!(redis.settle(&b, to, check.at).await.unwrap(), back);
                    }
                }
            }
            (Err(here), there) => assert_eq!(Err(here), there),
            (here, Err(there)) => panic!("{there}, while memory says {here:?}"),
        }
    }
    assert!(allowed > 200, "{allowed}");
    let (Store::Redis(redis), mut sizes) = (redis, Vec::new()) else { unreachable!() };
    let address = RedisAddress::parse(&servers.local.url(), None).unwrap();
    let found = primaries(&address, &[], PATIENCE).await.unwrap();
    assert_eq!(
        found.iter().flat_map(|p| &p.slots).map(|(a, b)| u32::from(b - a) + 1).sum::<u32>(),
        16_384
    );
    for port in servers.local.masters().await.unwrap() {
        let console = servers.local.console(port).await.unwrap();
        sizes.push(console.text(&["DBSIZE"]).await.unwrap().parse::<u64>().unwrap());
    }
    assert!(sizes.iter().all(|size| *size > 10), "{sizes:?}");
    assert_eq!(redis.shards().len(), 3);
    assert_eq!(redis.reset(&identities[0], None).await.unwrap(), 6);
    redis.remove(identities.iter()).await.unwrap();
    assert_eq!(redis.reset(&identities[1], None).await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_operators_do_works_on_a_cluster() {
    let servers = cluster().await;
    let url = servers.local.url();
    let dir = tempfile::tempdir().unwrap();
    let rlctl = |words: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_rlctl"));
        let output = command.args(["--redis", &url]).args(words).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{words:?}: {told}");
        String::from_utf8(output.stdout).unwrap()
    };
    let users: Vec<String> = (0..20).map(|n| format!("user:{n}")).collect();
    for user in &users {
        rlctl(&["check", user, "--limit", "5/1h"]);
        let limit = ["--rule", "cli", "--limit", "9/1h", "--for", "1h", "--reason", "test"];
        rlctl(&[&["override", "set", user], limit.as_slice()].concat());
    }
    let listed: serde_json::Value =
        serde_json::from_str(&rlctl(&["override", "list", "-o", "json"])).unwrap();
    assert_eq!(listed["items"].as_array().unwrap().len(), users.len());
    let rules = dir.path().join("rules.toml");
    let rule = "[[rule]]\nname = \"r\"\ndimension = \"ip\"\nlimits = [\"5/1s\"]\n";
    std::fs::write(&rules, rule).unwrap();
    rlctl(&["rules", "publish", "--reason", "first", rules.to_str().unwrap()]);
    assert!(rlctl(&["rules", "history"]).contains("first"));
    assert!(rlctl(&["events", "--audit"]).contains("override set"));
    let trace = dir.path().join("trace.csv");
    let mut rng = Rng::new(9);
    let mut text = "t_us,key,cost\n".to_owned();
    for n in 0..2000 {
        text += &format!("{},k{},1\n", TODAY + n * 5_000, rng.below(50));
    }
    std::fs::write(&trace, text).unwrap();
    let replay = |store: &str| {
        let trace = trace.to_str().unwrap();
        let words = ["simulate", "--trace", trace, "--limit", "7/3s", "--decisions", "-"];
        rlctl(&[&words[..], &["--algorithm", "sliding-log", "--store", store]].concat())
    };
    assert_eq!(replay(&url), replay("memory"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_that_move_under_load_cost_nobody_an_answer() {
    let mut servers = cluster().await;
    let store = Arc::new(servers.store(Micros::SECOND).await);
    // Two keys: quota and log may be on different sides for a moment.
    let both = several(&[(Algorithm::FixedWindow, "1G/366d"), (Algorithm::SlidingLog, "10k/1d")]);
    let one_key = named("one-key", Algorithm::FixedWindow, "1G/366d");
    let loads = [&both, &one_key].map(|limits| Load::start(&store, limits));
    tokio::time::sleep(Duration::from_millis(200)).await;
    let added = servers.local.add_node(None, &|_| {}).await.unwrap();
    let moved = servers.local.balance(&|_| {}).await.unwrap();
    assert!(moved > 2000, "{moved}");
    tokio::time::sleep(Duration::from_millis(200)).await;
    for (load, limits) in loads.into_iter().zip([&both, &one_key]) {
        let calls = load.stop().await;
        let failed = failures(&calls);
        assert!(failed.is_empty(), "{} of {} failed: {}", failed.len(), calls.len(), failed[0]);
        nothing_counts_twice(&servers, limits, &calls).await;
    }
    let redirects: HashMap<_, _> = store.redirects().into_iter().collect();
    assert!(redirects["moved"] > 0, "{redirects:?}");
    assert_eq!(store.shards().len(), 4);
    servers.local.remove_node(added, &|_| {}).await.unwrap();
    // Nobody calls, so nothing says that a server has left: found out all the same.
    let began = Instant::now();
    while store.shards().len() == 4 {
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", store.shards());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Asks for each identity until all are answered; how long that took.
async fn until_all_answer(store: &RedisStore, limits: &[Arc<RuleLimit>]) -> Duration {
    let began = Instant::now();
    for identity in identities() {
        while let Err(error) = ask(store, &identity, limits, 0).await {
            assert!(began.elapsed() < Duration::from_secs(60), "nobody answers: {error}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    began.elapsed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_hands_over_dies_or_hangs_is_followed_by_another() {
    let mut servers = cluster().await;
    let limits = one(Algorithm::TokenBucket, "1G/366d");
    let store = Arc::new(servers.store(DEADLINE).await);
    let failovers =
        |store: &RedisStore| store.shards().iter().map(|s| s.meter.failovers()).sum::<u64>();
    let mut seen = 0;
    for fault in ["hands over", "hangs", "dies"] {
        until_all_answer(&store, &limits).await;
        let stalls = Stalls::watch();
        let load = Load::start(&store, &limits);
        tokio::time::sleep(Duration::from_millis(150)).await;
        let first = servers.local.master(None).await.unwrap();
        let began = Instant::now();
        match fault {
            "hands over" => {
                servers.local.fail_over(Some(first)).await.unwrap();
            }
            "hangs" => servers.local.pause(first).unwrap(),
            _ => servers.local.kill(first).await.unwrap(),
        }
        while servers.local.masters().await.unwrap().contains(&first) {
            assert!(began.elapsed() < Duration::from_secs(60), "{fault}: nobody took over");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let replaced = began.elapsed();
        let back = until_all_answer(&store, &limits).await;
        let excuse = stalls.between(began, Instant::now());
        assert!(back < Duration::from_secs(1) + excuse, "{fault}: back {back:?} after the server");
        tokio::time::sleep(Duration::from_millis(100)).await;
        let calls = load.stop().await;
        nobody_waited_too_long(&calls, &stalls);
        let failed = calls.iter().filter(|call| call.result.is_err()).count();
        eprintln!(
            "{fault}: replaced after {replaced:?}, all answer {back:?} later, {failed} of {} calls failed",
            calls.len()
        );
        seen += 1;
        assert_eq!(failovers(&store), seen, "{fault}");
        match fault {
            "hands over" => assert!(failed * 20 < calls.len(), "{:?}", failures(&calls)[0]),
            "hangs" => servers.local.wake(first).unwrap(),
            _ => servers.local.start_again(first).await.unwrap(),
        }
    }
}
