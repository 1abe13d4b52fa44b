//! What a gateway counts: exactly, from many threads, in bounded memory, and true to what the store
//! did, also when it answered too late.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rlctl::engine::clock::Micros;
use rlctl::engine::identity::Identity;
use rlctl::engine::limiter::{Reached, Verdict};
use rlctl::engine::live::Source;
use rlctl::engine::plan::Attempt;
use rlctl::engine::rules::Target;
use rlctl::engine::store::Store;
use rlctl::engine::store::redis::Meter;
use rlctl::gateway::counters::{Counted, MAX_RULES, Mode, RuleTable};
use rlctl::gateway::stats::{By, REFUSED, SEEN};
use rlctl::gateway::top::Sketch;
use rlctl::gateway::{Gateway, Stats};

use crate::support::decider::{ask, in_memory, on};
use crate::support::redis::RedisServer;
use crate::support::rng::Rng;
use crate::support::{TODAY, id};

const POLICY: &str = r#"
[[rule]]
name = "per-user"
dimension = "user"
limits = ["10/1h"]
[[rule]]
name = "keys"
dimension = "apikey"
limits = ["2/1h"]
on_store_error = "closed"
[[rule]]
name = "try-out"
dimension = "user"
limits = ["5/1h"]
shadow = true
"#;

fn at(second: u64) -> Micros {
    Micros(TODAY + second * Micros::SECOND.0)
}

fn count(gateway: &Gateway, rule: &str, outcome: Counted, mode: Mode) -> u64 {
    let rule = gateway.stats.rules.get(rule).expect("it decided something");
    rule.counts()[outcome as usize][mode as usize]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn eight_threads_lose_no_count() {
    let gateway = in_memory(POLICY).await;
    let all = (0..8).map(|thread| {
        let gateway = gateway.clone();
        tokio::spawn(async move {
            for n in 0..2_000 {
                ask(&gateway, &[&format!("user:{}", n % 100)]).await;
                if n % 100 == thread {
                    gateway.stats.tick(&gateway, at(n));
                }
            }
        })
    });
    for task in all.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    assert_eq!(count(&gateway, "per-user", Counted::Allowed, Mode::Store), 1_000);
    assert_eq!(count(&gateway, "per-user", Counted::Rejected, Mode::Store), 15_000);
    // Of the ten that pass, five are more than the shadow rule would let through.
    assert_eq!(count(&gateway, "try-out", Counted::ShadowRejected, Mode::Store), 500);
    let rule = gateway.stats.rules.get("per-user").unwrap();
    assert_eq!(rule.took.counts().total(), 16_000);
    gateway.stats.tick(&gateway, at(100_000));
    let usage = gateway.stats.usage("per-user", Micros::ZERO, at(200_000));
    let rejected: u32 = usage.iter().map(|(_, tally)| tally.rejected).sum();
    assert_eq!(rejected, 15_000);
}

#[tokio::test]
async fn blocked_unlimited_and_observed_requests_are_counted_apart() {
    let policy = format!("{POLICY}\n[[block]]\nmatch = [\"user:bad\"]\nreason = \"fraud\"\n");
    let gateway = in_memory(&policy).await;
    ask(&gateway, &["user:bad"]).await;
    ask(&gateway, &["ip:192.0.2.1"]).await;
    assert_eq!(count_of(&gateway.stats, "(blocked)"), (0, 1, 0));
    assert_eq!(count_of(&gateway.stats, "(none)"), (1, 0, 0));
    // As under observe-only: a verdict that passes only because nothing is enforced.
    let identities = [id("user:bad")];
    let attempt = Attempt { identities: &identities, target: Target::default(), tier: None };
    let observed = Verdict::by(false, Reached::Missing { rule: "strict".into() }).observed();
    gateway.stats.decided(&attempt, &observed, at(0), at(0));
    assert_eq!(count_of(&gateway.stats, "strict"), (0, 0, 1));
}

/// Allowed, rejected and shadow-rejected by the store.
fn count_of(stats: &Stats, rule: &str) -> (u64, u64, u64) {
    let all = stats.rules.all();
    let rule = all.iter().find(|known| *known.name == *rule).expect("counted");
    let by = |outcome| rule.counts()[outcome as usize][Mode::Store as usize];
    (by(Counted::Allowed), by(Counted::Rejected), by(Counted::ShadowRejected))
}

#[test]
fn more_rules_than_there_is_room_for_are_counted_together() {
    let table = RuleTable::default();
    for n in 0..MAX_RULES + 50 {
        table.with(&format!("rule-{n}"), |rule| rule.count(Counted::Allowed, Mode::Store));
    }
    let all = table.all();
    assert_eq!(all.len(), MAX_RULES + 4);
    let other = all.iter().find(|rule| *rule.name == *"(other)").unwrap();
    assert_eq!(other.counts()[Counted::Allowed as usize][Mode::Store as usize], 50);
}

#[test]
fn random_keys_do_not_grow_a_sketch_and_do_not_hide_a_heavy_hitter() {
    let stats = Stats::new(at(0));
    let mut rng = Rng::new(1);
    for n in 0..500_000u64 {
        let name =
            if n % 5 == 0 { "apikey:greedy".into() } else { format!("apikey:{}", rng.next()) };
        refuse(&stats, &name);
    }
    let seen = stats.top(By::Seen, None, 10_000);
    assert_eq!(seen.len(), SEEN);
    let refused = stats.top(By::Rejected, Some("keys"), 10_000);
    assert_eq!(refused.len(), REFUSED);
    for top in [&seen[0], &refused[0], &stats.top(By::Rejected, None, 1)[0]] {
        assert_eq!(top.identity.as_str(), "apikey:greedy");
        assert_eq!(&*top.last.rule, "keys");
    }
    assert!((0.15..=0.2).contains(&stats.top_share()), "{}", stats.top_share());
    // 256 rules with a sketch of their own, one shared, one of all who were seen.
    let bound = Sketch::max_bytes(SEEN) + 257 * Sketch::max_bytes(REFUSED);
    assert!(bound < 24 << 20, "{bound}");
}

fn refuse(stats: &Stats, who: &str) {
    let identities: [Identity; 1] = [id(who)];
    let attempt = Attempt { identities: &identities, target: Target::default(), tier: None };
    let verdict = Verdict::by(false, Reached::Missing { rule: "keys".into() });
    stats.decided(&attempt, &verdict, at(0), at(0));
}

#[tokio::test]
async fn under_load_samples_find_the_same_heavy_hitters() {
    let gateway = in_memory(POLICY).await;
    let mut rng = Rng::new(7);
    let mut a_second_of = |stats: &Stats| {
        for _ in 0..100_000 {
            let who = rng.below(1_000);
            // user:0 has a third of everything.
            let who = if who < 333 { 0 } else { who };
            refuse(stats, &format!("user:{who}"));
        }
    };
    a_second_of(&gateway.stats);
    gateway.stats.tick(&gateway, at(1));
    for second in 2..20 {
        a_second_of(&gateway.stats);
        gateway.stats.tick(&gateway, at(second));
    }
    let share = gateway.stats.top_share();
    assert!((0.30..=0.36).contains(&share), "{share}");
    let top = &gateway.stats.top(By::Rejected, Some("keys"), 1)[0];
    assert_eq!(top.identity.as_str(), "user:0");
}

#[tokio::test]
async fn rates_history_and_usage_follow_the_ticks() {
    let gateway = in_memory(POLICY).await;
    for second in 1..=400 {
        ask(&gateway, &["apikey:a"]).await;
        gateway.stats.tick(&gateway, at(second));
    }
    let snapshot = gateway.stats.snapshot(&gateway, at(400));
    assert_eq!(snapshot["rates"]["last_10_seconds"]["rejected"], 1.0);
    assert_eq!(snapshot["rates"]["last_second"]["allowed"], 0.0);
    assert_eq!(snapshot["history"]["rejected"].as_array().unwrap().len(), 300);
    let usage = gateway.stats.usage("keys", at(350), at(359));
    assert_eq!(usage.len(), 10);
    assert!(usage.iter().all(|(_, tally)| tally.rejected == 1 && tally.allowed == 0));
    assert!(gateway.stats.usage("keys", at(0), at(99)).is_empty(), "only 300 s are kept");
}

#[tokio::test]
async fn a_snapshot_says_all_that_a_dashboard_draws() {
    let gateway = in_memory(POLICY).await;
    for _ in 0..12 {
        ask(&gateway, &["user:1"]).await;
    }
    gateway.stats.tick(&gateway, at(1));
    let snapshot = gateway.stats.snapshot(&gateway, at(2));
    for pointer in [
        "/schema",
        "/at_us",
        "/gateway",
        "/version",
        "/uptime_us",
        "/ready",
        "/decision/p50_us",
        "/decision/p99_us",
        "/policy/version",
        "/policy/hash",
        "/policy/age_us",
        "/policy/refusals",
        "/quotas/throttled",
        "/events/0/text",
        "/history/p99_us/0",
        "/top_identity_share",
        "/inflight",
        "/rates/last_second/modes/local",
        "/gateways",
        "/observe_only",
    ] {
        let found = snapshot.pointer(pointer);
        assert!(found.is_some_and(|value| !value.is_null()), "{pointer} in {snapshot:#}");
    }
    assert_eq!(snapshot["rates"]["last_second"]["allowed"], 10.0);
    assert_eq!(snapshot["rates"]["last_second"]["rejected"], 2.0);
    assert_eq!(snapshot["rates"]["last_second"]["shadow_rejected"], 5.0);
    assert_eq!(snapshot["uptime_us"], 2_000_000);
    let top = &snapshot["top_rejected"][0];
    assert_eq!((&top["identity"], &top["rule"]), (&"user:1".into(), &"per-user".into()));
    assert_eq!((&top["reason"], &top["limit"]), (&"limited".into(), &"10/1h".into()));
    assert_eq!(top["used"], 10);
    assert_eq!(snapshot["rules"][0]["rule"], "per-user");
    assert_eq!(snapshot["quotas"]["throttled"], 1);
    let events = snapshot["events"].as_array().unwrap();
    assert!(events.iter().any(|e| e["kind"] == "quota" && e["identity"] == "user:1"), "{events:?}");
    assert!(events.iter().any(|e| e["kind"] == "policy"), "{events:?}");
}

#[tokio::test]
async fn a_refused_policy_is_an_event_told_once() {
    let gateway = in_memory(POLICY).await;
    gateway.stats.tick(&gateway, at(1));
    let source = Source::File("policy.toml".into());
    gateway.limiter.policy.offer("[[rule]]\nname = 1", &source, at(2)).unwrap_err();
    gateway.stats.tick(&gateway, at(2));
    gateway.stats.tick(&gateway, at(3));
    let snapshot = gateway.stats.snapshot(&gateway, at(3));
    let refused =
        |event: &&serde_json::Value| event["text"].as_str().unwrap().contains("was refused");
    let events = snapshot["events"].as_array().unwrap();
    assert_eq!(events.iter().filter(refused).count(), 1, "{events:?}");
    assert_eq!(snapshot["policy"]["refusals"], 1);
}

fn times(meter: &Meter, outcome: &str) -> (u64, Option<Micros>) {
    let all = meter.times();
    let (_, counts) = all.iter().find(|(name, _)| *name == outcome).unwrap();
    (counts.total(), counts.quantile(0.5))
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(20), "not within 20 s: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_reply_after_the_deadline_is_recorded_at_its_true_time() {
    let server = RedisServer::start();
    let store = server.store_within(Micros(50_000), Micros(5_000_000)).await;
    let gateway = on(Store::Redis(store), POLICY).await;
    let meter = |gateway: &Arc<Gateway>| {
        let shards = gateway.limiter.store.shards();
        times(&shards[0].meter, "late")
    };
    assert!(ask(&gateway, &["apikey:1"]).await.degraded.is_none());
    server.pause();
    let verdict = ask(&gateway, &["apikey:1"]).await;
    assert!(verdict.degraded.is_some());
    tokio::time::sleep(Duration::from_millis(300)).await;
    server.wake();
    until("a late reply", || meter(&gateway).0 == 1).await;
    let shards = gateway.limiter.store.shards();
    let meter = &shards[0].meter;
    let (late, took) = times(meter, "late");
    assert_eq!(late, 1);
    assert!(took.unwrap() >= Micros(250_000), "{took:?}");
    assert_eq!(times(meter, "ok").0, 1);
    let (timeouts, waited) = times(meter, "timeout");
    assert_eq!(timeouts, 1);
    assert!(waited.unwrap() < Micros(250_000), "{waited:?}");
    assert_eq!(meter.unknown(), 1);
    let errors: Vec<_> = meter.errors().filter(|(_, n)| *n > 0).collect();
    assert_eq!(errors, [("timeout", 1)]);
    assert_eq!(count(&gateway, "keys", Counted::Rejected, Mode::Closed), 1);
}

#[tokio::test]
async fn late_replies_are_heard_also_on_a_connection_that_was_given_up() {
    let server = RedisServer::start();
    let store = server.store_within(Micros(50_000), Micros(5_000_000)).await;
    let gateway = on(Store::Redis(store), POLICY).await;
    let shards = gateway.limiter.store.shards();
    let meter = &shards[0].meter;
    server.pause();
    // Three timeouts end the connection; who comes then is refused at once.
    for _ in 0..5 {
        assert!(ask(&gateway, &["apikey:1"]).await.degraded.is_some());
    }
    assert_eq!((times(meter, "timeout").0, times(meter, "late").0), (3, 0));
    let errors: Vec<_> = meter.errors().filter(|(_, n)| *n > 0).collect();
    assert_eq!(errors, [("unreachable", 2), ("timeout", 3)]);
    assert!(meter.down_since().is_some());
    server.wake();
    until("the late replies", || times(meter, "late").0 == 3).await;
    until("a new connection", || meter.down_since().is_none()).await;
    assert_eq!(meter.connections(), 2);
}

#[tokio::test]
async fn a_store_that_is_lost_and_found_is_told_with_its_time() {
    let mut server = RedisServer::start();
    let store = server.store_within(Micros(200_000), Micros(1_000_000)).await;
    let gateway = on(Store::Redis(store), POLICY).await;
    ask(&gateway, &["user:1"]).await;
    gateway.stats.tick(&gateway, Micros::now());
    server.kill();
    ask(&gateway, &["user:1"]).await;
    ask(&gateway, &["apikey:1"]).await;
    until("a store that is away", || gateway.limiter.store.trouble().is_some()).await;
    gateway.stats.tick(&gateway, Micros::now());
    let snapshot = gateway.stats.snapshot(&gateway, Micros::now());
    let shard = &snapshot["store"][0];
    // Two failures are too few to leave it alone for.
    assert_eq!(shard["breaker"], "closed", "{shard}");
    assert!(shard["down_since_us"].is_u64() && shard["trouble"].is_string(), "{shard}");
    assert!(snapshot["degraded_since_us"].is_u64());
    assert_eq!(count(&gateway, "keys", Counted::Rejected, Mode::Closed), 1);
    server.restart();
    until("a store that is back", || gateway.limiter.store.trouble().is_none()).await;
    ask(&gateway, &["user:1"]).await;
    gateway.stats.tick(&gateway, Micros::now());
    let snapshot = gateway.stats.snapshot(&gateway, Micros::now());
    let texts: Vec<&str> = snapshot["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| e["text"].as_str().unwrap())
        .collect();
    for wanted in [" is away", "decisions are taken without", "answers again", "decides again"] {
        assert!(texts.iter().any(|text| text.contains(wanted)), "{wanted} in {texts:#?}");
    }
    assert!(snapshot["degraded_since_us"].is_null());
    assert_eq!(snapshot["store"][0]["connections"], 2);
}

#[tokio::test]
async fn counting_a_decision_costs_little_also_from_two_threads() {
    let gateway = in_memory(POLICY).await;
    let verdict = ask(&gateway, &["user:1"]).await;
    let a_round = || {
        let identities = [id("user:1")];
        let attempt = Attempt { identities: &identities, target: Target::default(), tier: None };
        let began = Instant::now();
        for _ in 0..100_000 {
            gateway.stats.decided(&attempt, &verdict, at(0), at(0));
        }
        began.elapsed().as_nanos() / 100_000
    };
    let (mut alone, mut together) = (u128::MAX, u128::MAX);
    for second in 1..20 {
        alone = alone.min(a_round());
        gateway.stats.tick(&gateway, at(second));
        let both = std::thread::scope(|scope| {
            let other = scope.spawn(a_round);
            a_round().max(other.join().unwrap())
        });
        together = together.min(both);
        gateway.stats.tick(&gateway, at(second));
    }
    println!("counting a decision: {alone} ns alone, {together} ns from two threads");
    // Tens of nanoseconds; but this may be a slow build on a busy machine.
    assert!(alone < 1_000 && together < 2_000, "{alone} {together}");
}
