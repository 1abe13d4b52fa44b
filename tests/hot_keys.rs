//! Keys that very much is asked about. In virtual time: whatever the limit and the traffic, nothing
//! is over-admitted in total, within an interval at most one lease for each gateway, and nothing is
//! lost for ever. On real servers: the store hears of such a key a hundredth of the time and less.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rlctl::engine::algo::bound;
use rlctl::engine::clock::Micros;
use rlctl::engine::identity::Identity;
use rlctl::engine::limit::{Algorithm, Limit};
use rlctl::engine::limiter::{By, Demand, Verdict};
use rlctl::engine::plan::Attempt;
use rlctl::engine::rules::Target;
use rlctl::engine::store::keys::Prefix;
use rlctl::engine::store::redis::RedisAddress;
use rlctl::expect::Value;
use rlctl::gateway::{About, Backing, Gateway, PolicySource};
use rlctl::scenario::read::parse;
use rlctl::scenario::run;

use crate::support::redis::RedisServer;
use crate::support::rng::Rng;
use crate::support::{cost, id, limit};

/// One key in virtual time.
#[derive(Clone, Copy, Debug)]
struct Case {
    algorithm: Algorithm,
    limit: &'static str,
    /// Checks a second, for five seconds; then a second of silence, then as much for two seconds.
    rate: u64,
    nodes: u64,
    lease_ms: u64,
    latency_us: u64,
    seed: u64,
}

struct Seen {
    allowed: u64,
    asked: u64,
    calls: u64,
    worst: u64,
    /// Of the last two seconds.
    late: u64,
    over: u64,
    errors: u64,
}

const RUN: u64 = 8;

impl Case {
    fn limit(&self) -> Limit {
        limit(self.algorithm, self.limit)
    }

    fn run(&self, hot: bool) -> Seen {
        let Case { algorithm, rate, nodes, lease_ms, latency_us, seed, .. } = self;
        let hot = match hot {
            true => format!("{{ threshold = \"{}/s\", lease = \"{lease_ms}ms\" }}", rate / 2),
            false => "false".into(),
        };
        let text = format!(
            "name = \"n\"\nseed = {seed}\nrun = \"{RUN}s\"\n\
             store = {{ kind = \"redis\", latency = \"{latency_us}us +-{}us\" }}\n\
             traffic = [ {{ name = \"t\", rate = \"{rate}/s\", arrivals = \"poisson\", for = \"5s\", keys = \"user:1\" }},\n\
             {{ name = \"u\", at = \"6s\", rate = \"{rate}/s\", for = \"2s\", keys = \"user:1\" }} ]\n\
             [limiter.x]\nalgorithm = \"{algorithm}\"\nlimit = \"{}\"\nnodes = {nodes}\nhot = {hot}\n\
             [expect]\n\"over\" = \"over_admitted >= 0\"\n\"worst\" = \"worst_window({RUN}s) >= 0\"\n\
             \"late\" = \"allowed during 6s..8s >= 0\"\n",
            latency_us / 4,
            self.limit,
        );
        let (scenarios, _) = parse("case.toml", &text).unwrap_or_else(|e| panic!("{text}\n{e}"));
        let outcome = run::run(&scenarios[0], None).expect("it runs");
        let measured = |name: &str| {
            let case = outcome.cases.iter().find(|case| case.name == name).expect("a case");
            match &case.measured {
                Some(Value::Number(n)) => *n as u64,
                other => panic!("{name}: {other:?} {}", case.words),
            }
        };
        let totals = outcome.limiters[0].totals;
        Seen {
            allowed: totals.allowed,
            asked: totals.requests,
            calls: totals.store_calls,
            worst: measured("worst"),
            late: measured("late"),
            over: measured("over"),
            errors: totals.errors,
        }
    }

    /// The most that one gateway holds.
    fn lease(&self) -> u64 {
        // One and a half intervals of its demand, which dice and the last window make larger.
        let demand = self.rate * self.lease_ms * 3 / 2 / 1_000 / self.nodes;
        (demand * 13 / 10 + 20).min(self.limit().capacity())
    }
}

fn cases() -> Vec<Case> {
    let mut rng = Rng::new(7);
    let mut pick = |from: &[u64]| from[rng.below(from.len() as u64) as usize];
    let mut cases = Vec::new();
    let limits = [
        (Algorithm::TokenBucket, "1000000/1s"),
        (Algorithm::TokenBucket, "1000/1s"),
        (Algorithm::TokenBucket, "7/3s burst 100"),
        (Algorithm::Gcra, "20000/1s burst 5000"),
        (Algorithm::Gcra, "500/1s burst 50"),
        (Algorithm::FixedWindow, "9000/1s"),
        (Algorithm::FixedWindow, "100/250ms"),
        (Algorithm::SlidingWindow, "5000/1s"),
        (Algorithm::SlidingWindow, "100000/1s"),
        (Algorithm::SlidingLog, "3000/1s"),
        (Algorithm::LeakyBucket, "300/1s"),
    ];
    for (algorithm, limit) in limits {
        for nodes in [1, 4] {
            cases.push(Case {
                algorithm,
                limit,
                nodes,
                rate: pick(&[2_000, 4_000]),
                lease_ms: pick(&[50, 100, 200]),
                latency_us: pick(&[200, 1_000]),
                seed: pick(&[1, 2, 3, 4, 5]),
            });
        }
    }
    cases
}

#[test]
fn nothing_is_over_admitted_in_total_and_at_most_a_lease_for_each_gateway_within_an_interval() {
    for case in cases() {
        let seen = case.run(true);
        let whole = bound(&case.limit(), Micros(RUN * 1_000_000));
        assert!(seen.worst <= whole, "{case:?}: {} > {whole}", seen.worst);
        let most = case.nodes * case.lease();
        assert!(seen.over <= most, "{case:?}: {} > {most}", seen.over);
        assert_eq!(seen.errors, 0, "{case:?}");
    }
}

#[test]
fn nothing_is_lost_for_ever_and_the_store_hears_little() {
    for case in cases() {
        let (with, without) = (case.run(true), case.run(false));
        // In the end as much passes as where the store decides everything.
        let missing = without.late.saturating_sub(with.late);
        let most = without.late / 20 + case.nodes * case.lease() / 4 + 10;
        assert!(missing <= most, "{case:?}: {} of {} pass", with.late, without.late);
        assert!(with.allowed * 20 >= without.allowed * 17, "{case:?}: {}", with.allowed);
        let share = with.calls as f64 / with.asked as f64;
        // So often it is asked for however much there is to ask: the more, the less is this.
        let most = match case.algorithm {
            // Without leases each gateway asks whenever one request may pass, and those who come
            // while it asks may, too.
            Algorithm::LeakyBucket => {
                let may_pass = (case.nodes * case.limit().requests()) as f64 / case.rate as f64;
                (2.5 * may_pass).min(0.7)
            }
            _ => 0.25,
        };
        assert!(share < most, "{case:?}: {share}");
        assert_eq!(without.calls, without.asked, "{case:?}");
    }
}

/// The figure of the whole: 100 000 checks a second by four gateways.
#[test]
fn of_a_hundred_thousand_checks_a_second_the_store_hears_less_than_a_hundredth() {
    for limit in ["1000000/1s", "20000/1s"] {
        let text = format!(
            "name = \"n\"\nrun = \"3s\"\nstore = {{ kind = \"redis\", latency = \"500us +-200us\" }}\n\
             traffic = [ {{ name = \"t\", rate = \"100000/s\", for = \"3s\", keys = \"user:1\" }} ]\n\
             [limiter.x]\nlimit = \"{limit}\"\nnodes = 4\n[expect]\n\
             \"found\" = \"hot_keys becomes 1 within 1s of 't'\"\n\
             \"calls\" = \"rate(store_calls) during 1s..3s <= 1000/s\"\n\
             \"in total\" = \"worst_window(3s) <= 300000\"\n\
             \"leases\" = \"over_admitted <= 15000\"\n"
        );
        let (scenarios, _) = parse("case.toml", &text).unwrap_or_else(|e| panic!("{text}\n{e}"));
        let outcome = run::run(&scenarios[0], None).expect("it runs");
        for case in &outcome.cases {
            assert_eq!(
                case.result,
                run::CaseResult::Passed,
                "{limit}: {} {}",
                case.text,
                case.words
            );
        }
        let totals = outcome.limiters[0].totals;
        if limit == "20000/1s" {
            assert!(totals.allowed <= 20_000 + 3 * 20_000, "{totals:?}");
            assert!(totals.allowed >= 20_000 + 2 * 20_000, "{totals:?}");
        }
    }
}

const POLICY: &str = r#"
[defaults]
deadline = "2s"
[[rule]]
name = "per-user"
dimension = "user"
limits = ["200000/1s"]
hot = { threshold = "4k/s" }
"#;

pub(crate) async fn gateway(server: &RedisServer, policy: &str) -> Arc<Gateway> {
    let source = PolicySource::Given { name: "policy.toml".into(), text: policy.into() };
    let backing = Backing {
        address: RedisAddress::parse(&server.url(), None).unwrap(),
        prefix: Prefix::default(),
        connect_timeout: Micros::SECOND,
    };
    let gateway = Gateway::open(&source, Some(backing), About::new(Vec::new())).await;
    let gateway = Arc::new(gateway);
    gateway.keep_up();
    gateway
}

async fn ask(gateway: &Gateway, identities: &[Identity]) -> Verdict {
    let attempt = Attempt { identities, target: Target::default(), tier: None };
    gateway.decide(&gateway.moment(), &attempt, Demand::of(cost(1))).await.expect("a verdict").0
}

/// What four gateways saw of one key.
#[derive(Default)]
struct Load {
    asked: AtomicU64,
    allowed: AtomicU64,
    leased: AtomicU64,
    denied: AtomicU64,
    degraded: AtomicU64,
}

impl Load {
    fn note(&self, verdict: &Verdict) {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.allowed.fetch_add(u64::from(verdict.allowed), Ordering::Relaxed);
        self.degraded.fetch_add(u64::from(verdict.degraded.is_some()), Ordering::Relaxed);
        match verdict.decided_by() {
            By::Store => {}
            By::Lease => drop(self.leased.fetch_add(1, Ordering::Relaxed)),
            By::DenyCache => drop(self.denied.fetch_add(1, Ordering::Relaxed)),
        }
    }
}

/// Asks so often a second; as much as is due at a time.
async fn load(
    gateway: Arc<Gateway>,
    who: Identity,
    per_second: u64,
    until: Instant,
    load: Arc<Load>,
) {
    let (began, mut sent) = (Instant::now(), 0);
    let who = [who];
    while Instant::now() < until {
        let due = began.elapsed().as_micros() as u64 * per_second / 1_000_000;
        // Who is late by more than this does not make up for it.
        let due = due.min(sent + 100);
        let verdicts = join_all((sent..due).map(|_| ask(&gateway, &who))).await;
        sent = due;
        for verdict in verdicts {
            load.note(&verdict);
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// All commands that a server has run, scripts as one.
fn calls(server: &RedisServer) -> u64 {
    let info: String = server.command(&["INFO", "commandstats"]);
    let scripts = info.lines().filter(|line| line.starts_with("cmdstat_eval"));
    let count = |line: &str| line.split("calls=").nth(1)?.split(',').next()?.parse::<u64>().ok();
    scripts.filter_map(count).sum()
}

/// Four gateways, 25 000 checks a second each on one key: first until it is found, then measured.
async fn four_gateways(policy: &str, measured: Duration) -> (Arc<Load>, u64, f64) {
    let server = RedisServer::start();
    let mut gateways = Vec::new();
    for _ in 0..4 {
        gateways.push(gateway(&server, policy).await);
    }
    let warm_up = Instant::now() + Duration::from_millis(1_500);
    let before = Arc::new(Load::default());
    let others = Arc::new(Load::default());
    let find = |gateway: &Arc<Gateway>| {
        let slowly = load(gateway.clone(), id("user:whale"), 2_000, warm_up, before.clone());
        tokio::spawn(slowly)
    };
    let whale: Vec<_> = gateways.iter().map(find).collect();
    for task in whale {
        task.await.unwrap();
    }
    assert!(gateways.iter().all(|gateway| gateway.hot_keys().len() == 1), "it is found everywhere");
    // Leases grow with the demand.
    let grown = Instant::now() + Duration::from_millis(600);
    let until = grown + measured;
    let grow = |gateway: &Arc<Gateway>| {
        tokio::spawn(load(gateway.clone(), id("user:whale"), 25_000, grown, before.clone()))
    };
    for task in gateways.iter().map(grow).collect::<Vec<_>>() {
        task.await.unwrap();
    }
    let (calls_before, began) = (calls(&server), Instant::now());
    let seen = Arc::new(Load::default());
    let mut tasks = Vec::new();
    for (number, gateway) in gateways.iter().enumerate() {
        let whale = load(gateway.clone(), id("user:whale"), 25_000, until, seen.clone());
        tasks.push(tokio::spawn(whale));
        let small = id(&format!("user:{number}"));
        tasks.push(tokio::spawn(load(gateway.clone(), small, 50, until, others.clone())));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let took = began.elapsed().as_secs_f64();
    let small = others.asked.load(Ordering::Relaxed);
    assert_eq!(others.allowed.load(Ordering::Relaxed), small, "other keys are unharmed");
    assert_eq!(others.leased.load(Ordering::Relaxed), 0, "and the store decides about them");
    let calls = calls(&server) - calls_before - small;
    (seen, calls, took)
}

fn figures(words: &str, load: &Load, calls: u64, took: f64) {
    if std::env::var_os("RLCTL_HOT_FIGURES").is_some() {
        let of = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let (asked, allowed) = (of(&load.asked), of(&load.allowed));
        eprintln!(
            "{words}: {:.0} checks/s for {took:.2} s, {allowed} allowed, {} by leases, {} by the \
             deny cache; {calls} script calls, {:.3} % of the checks",
            asked as f64 / took,
            of(&load.leased),
            of(&load.denied),
            calls as f64 / asked as f64 * 100.0
        );
    }
}

/// However many checks there are, the store is asked so often; of 100 000 it is far below a hundredth.
fn assert_little(calls: u64, asked: u64, took: f64) {
    // Leases and what is returned of them ten to twenty times a second each, and five reports.
    let most = (took * 4.0 * 60.0) as u64 + 20;
    assert!(calls <= most.max(asked / 100), "{calls} calls for {asked} checks in {took} s");
}

fn measured() -> Duration {
    let seconds = std::env::var("RLCTL_HOT_FIGURES").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(1))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_hot_key_the_store_hears_a_hundredth_and_less() {
    let (seen, calls, took) = four_gateways(POLICY, measured()).await;
    figures("within its limit", &seen, calls, took);
    let asked = seen.asked.load(Ordering::Relaxed);
    assert_eq!(seen.degraded.load(Ordering::Relaxed), 0);
    assert_eq!(seen.allowed.load(Ordering::Relaxed), asked, "its limit is twice as much");
    assert_little(calls, asked, took);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hot_key_above_its_limit_gets_its_limit_and_no_more() {
    let policy = POLICY.replace("200000/1s", "5000/1s burst 5000");
    let (seen, calls, took) = four_gateways(&policy, measured()).await;
    figures("at twenty times its limit", &seen, calls, took);
    let (asked, allowed) =
        (seen.asked.load(Ordering::Relaxed), seen.allowed.load(Ordering::Relaxed));
    // Spent up before, so what comes in; and what was held at the beginning.
    let held = 4 * 1_250;
    let most = (took * 5_000.0) as u64 + held;
    assert!(allowed <= most, "{allowed} of at most {most} in {took} s");
    let least = (took * 5_000.0).min(asked as f64) * 0.6;
    assert!(allowed as f64 >= least, "{allowed} of {asked} in {took} s");
    assert_little(calls, asked, took);
}
