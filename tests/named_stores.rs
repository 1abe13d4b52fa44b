//! Rules that count on a Redis of their own: what is charged where, what is given back, and who is
//! touched when one of them fails.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rlctl::engine::clock::Micros;
use rlctl::engine::limit::{Algorithm, Limit};
use rlctl::engine::limiter::Verdict;
use rlctl::engine::live::Source;
use rlctl::engine::policy::OnStoreError;
use rlctl::engine::store::{Charge, Check, RuleLimit, Settlement, Store};
use rlctl::gateway::Gateway;

use crate::cli::rlctl;
use crate::registry_cli::Ran;
use crate::support::decider::ask;
use crate::support::gateway::{Running, Start};
use crate::support::redis::RedisServer;
use crate::support::{cost, id};

/// `common` counts where all else is, `premium` on its own Redis; both apply to every user.
fn policy(premium: &RedisServer, common: &str, own: &str, more: &str) -> String {
    format!(
        r#"
        [defaults]
        deadline = "250ms"
        breaker = {{ slow = "200ms" }}

        [stores.gold]
        url = "{}"
        prefix = "gold:"
        {more}

        [[rule]]
        name = "common"
        dimension = "user"
        limits = ["{common}"]

        [[rule]]
        name = "premium"
        dimension = "user"
        also = true
        limits = ["{own}"]
        store = "gold"
        on_store_error = "local"
        "#,
        premium.url()
    )
}

async fn start(main: &RedisServer, policy: &str) -> Running {
    Start::with(policy).redis(main).run().await
}

fn keys(server: &RedisServer) -> Vec<String> {
    let all = server.dump().into_iter().map(|(key, ..)| key);
    // What was given back is remembered beside.
    all.filter(|key| !key.contains("$policy") && !key.contains(":r:")).collect()
}

async fn used(store: &Store, who: &str, rule: &str, limit: &str) -> u64 {
    let limit = Limit::new(Algorithm::TokenBucket, limit.parse().unwrap()).unwrap();
    let (identity, limits) = (id(who), [Arc::new(RuleLimit::new(rule, 0, limit))]);
    let check =
        Check { identity: &identity, limits: &limits, cost: cost(0), idempotency: None, at: None };
    store.check(&check).await.unwrap().decisions[0].used()
}

async fn used_of_both(gateway: &Gateway, common: &str, own: &str) -> (u64, u64) {
    let store = &gateway.limiter.store;
    let (_, gold) = store.others().into_iter().next().unwrap();
    let both = (used(store, "user:1", "common", common), used(&gold, "user:1", "premium", own));
    (both.0.await, both.1.await)
}

fn mode(verdict: &Verdict) -> Option<OnStoreError> {
    verdict.degraded.as_ref().map(|degraded| degraded.mode)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_rule_is_charged_on_its_own_store_and_given_back_when_the_other_refuses() {
    let (main, gold) = (RedisServer::start(), RedisServer::start());
    for (common, own) in [("3/1d", "5/1d"), ("5/1d", "3/1d")] {
        let running = start(&main, &policy(&gold, common, own, "connections = 3")).await;
        let gateway = &running.gateway;
        gateway.reset(&id("user:1"), None).await.unwrap();
        let mut passed = Vec::new();
        for _ in 0..8 {
            let verdict = ask(gateway, &["user:1"]).await;
            assert_eq!(mode(&verdict), None, "{verdict:?}");
            passed.push(verdict);
        }
        assert_eq!(passed.iter().filter(|verdict| verdict.allowed).count(), 3);
        assert_eq!(used_of_both(gateway, common, own).await, (3, 3), "a refusal took from neither");
        assert_eq!(keys(&main), ["rl1:{user:1}"]);
        assert_eq!(keys(&gold), ["gold:{user:1}"]);
        // What was charged is found again by its id, wherever it was.
        for charge in &passed[0].charges {
            let charge = Charge::from_id(&charge.to_id()).unwrap();
            let store = &gateway.limiter.store;
            assert!(store.settle(&charge, Settlement::Refund, None).await.unwrap());
            assert!(!store.settle(&charge, Settlement::Refund, None).await.unwrap());
        }
        assert_eq!(used_of_both(gateway, common, own).await, (2, 2));
        assert_eq!(gateway.reset(&id("user:1"), None).await.unwrap(), 2);
        assert_eq!(used_of_both(gateway, common, own).await, (0, 0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_gateways_admit_exactly_the_limit_of_a_named_store() {
    let (main, gold) = (RedisServer::start(), RedisServer::start());
    let policy = policy(&gold, "100000/1d", "100/1d", "connections = 4\ndeadline = \"10s\"")
        .replace("250ms", "10s");
    let gateways = [start(&main, &policy).await, start(&main, &policy).await];
    let asked = (0..300).map(|n| ask(&gateways[n % 2].gateway, &["user:1"]));
    let verdicts = join_all(asked).await;
    assert!(verdicts.iter().all(|verdict| mode(verdict).is_none()));
    assert_eq!(verdicts.iter().filter(|verdict| verdict.allowed).count(), 100);
    assert_eq!(used_of_both(&gateways[0].gateway, "100000/1d", "100/1d").await, (100, 100));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_fails_takes_only_its_own_rules_with_it() {
    let (main, gold) = (RedisServer::start(), RedisServer::start());
    let running = start(&main, &policy(&gold, "4/1d", "2/1d", "")).await;
    let gateway = &running.gateway;
    assert_eq!(mode(&ask(gateway, &["user:1"]).await), None);
    gold.pause();
    // `premium` decides here, with a share that is whole; `common` still counts.
    let mut seen = Vec::new();
    for _ in 0..5 {
        let verdict = ask(gateway, &["user:1"]).await;
        seen.push((verdict.allowed, mode(&verdict)));
    }
    let local = Some(OnStoreError::Local);
    assert_eq!(seen[..2], [(true, local), (true, local)], "{seen:?}");
    assert!(seen[2..].iter().all(|(allowed, _)| !allowed), "{seen:?}");
    for n in 0..20 {
        ask(gateway, &[&format!("user:other-{n}")]).await;
    }
    let breaker = |name: &str| {
        let shards = gateway.limiter.store.shards();
        let shard = shards.into_iter().find(|shard| shard.name.starts_with(name));
        shard.map(|shard| shard.breaker.state.name()).unwrap()
    };
    assert_eq!((breaker("127"), breaker("gold/127")), ("closed", "open"));
    let text = gateway.stats.metrics(gateway, Micros::now());
    let line = format!("rlctl_breaker_state{{shard=\"gold/127.0.0.1:{}\"}} 2\n", gold.port);
    assert!(text.contains(&line), "{text}");
    gold.wake();
    let began = Instant::now();
    while mode(&ask(gateway, &["user:new"]).await).is_some() {
        assert!(began.elapsed() < Duration::from_secs(20), "it is never asked again");
        gateway.reset(&id("user:new"), None).await.ok();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // The other way round: what counts by its own Redis goes on counting.
    main.pause();
    // Until nobody waits for its records any more.
    for n in 0..15 {
        ask(gateway, &[&format!("user:more-{n}")]).await;
    }
    let mut refused = 0;
    for _ in 0..5 {
        let verdict = ask(gateway, &["user:2"]).await;
        refused += usize::from(!verdict.allowed);
    }
    main.wake();
    assert_eq!(refused, 3, "two of five pass `premium`");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_a_new_policy_names_is_asked_from_the_first_request() {
    let (main, gold, other) = (RedisServer::start(), RedisServer::start(), RedisServer::start());
    let running = start(&main, &policy(&gold, "9/1d", "5/1d", "")).await;
    let gateway = &running.gateway;
    assert!(ask(gateway, &["user:1"]).await.allowed);
    let live = &gateway.limiter.policy;
    let text = policy(&other, "9/1d", "5/1d", "");
    live.offer(&text, &Source::File("policy.toml".into()), Micros::now()).unwrap();
    let verdict = ask(gateway, &["user:1"]).await;
    assert_eq!((verdict.allowed, mode(&verdict)), (true, None));
    assert_eq!(keys(&other), ["gold:{user:1}"]);
    let store = &gateway.limiter.store;
    let (_, gold) = store.others().into_iter().next().unwrap();
    assert_eq!(used(&gold, "user:1", "premium", "5/1d").await, 1, "it begins afresh there");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_see_and_take_from_the_store_that_a_rule_names() {
    let (main, gold) = (RedisServer::start(), RedisServer::start());
    let rules = main.dir.path().join("rules.toml");
    std::fs::write(&rules, policy(&gold, "9/1d", "5/1d", "")).unwrap();
    let run = |words: &[&str]| {
        let rules = rules.to_str().unwrap();
        let output = rlctl()
            .args(words)
            .args(["--redis", &main.url(), "--rules", rules])
            .output()
            .expect("it runs");
        String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap()
    };
    let told = run(&["check", "user:1", "--cost", "2"]);
    assert!(told.contains("allowed"), "{told}");
    assert_eq!((keys(&main).len(), keys(&gold).len()), (1, 1));
    let told: serde_json::Value =
        serde_json::from_str(&run(&["inspect", "user:1", "-o", "json"])).unwrap();
    let of = |rule: &str| {
        let all = told["limits"].as_array().unwrap();
        let one = all.iter().find(|one| one["rule"] == rule);
        one.map(|one| (one["used"].clone(), one["key"].clone())).unwrap()
    };
    assert_eq!(of("common"), (2.into(), "rl1:{user:1}".into()), "{told}");
    assert_eq!(of("premium"), (2.into(), "gold:{user:1}".into()), "{told}");
    gold.pause();
    drop(gold);
    let told = run(&["inspect", "user:1"]);
    assert!(told.contains("what the store gold counts is not shown"), "{told}");
}

/// A policy with a store of its own, under the hands of an operator.
struct Desk {
    main: RedisServer,
    gold: RedisServer,
    rules: String,
}

impl Desk {
    fn new() -> Desk {
        let (main, gold) = (RedisServer::start(), RedisServer::start());
        let rules = main.dir.path().join("rules.toml");
        std::fs::write(&rules, policy(&gold, "9/1d", "5/1d", "")).unwrap();
        let desk = Desk { rules: rules.to_str().unwrap().into(), main, gold };
        for user in ["user:1", "user:2"] {
            assert_eq!(desk.with_rules(&format!("check {user} --cost 2")).code, 0);
        }
        desk
    }

    fn run(&self, line: &str) -> Ran {
        let mut command = rlctl();
        command.args(line.split(' ')).env("RLCTL_REDIS", self.main.url());
        command.current_dir(self.main.dir.path()).output().expect("it runs").into()
    }

    fn with_rules(&self, line: &str) -> Ran {
        self.run(&format!("{line} --rules {}", self.rules))
    }

    /// Of both, as they are stored.
    fn quota(&self) -> Vec<(String, Vec<u8>, i64)> {
        let mut all = self.main.dump();
        all.extend(self.gold.dump());
        all.retain(|(key, ..)| !key.contains("$policy"));
        all
    }
}

/// Which stores the items of a list are of.
fn stores(told: &Ran) -> Vec<Option<String>> {
    let value = told.json();
    let items = value["items"].as_array().unwrap().iter();
    let mut all: Vec<_> = items.map(|item| item["store"].as_str().map(String::from)).collect();
    all.sort();
    all
}

#[test]
fn with_rules_operators_list_and_examine_every_store_and_without_they_are_told_of_the_others() {
    let desk = Desk::new();
    let gold = || Some("gold".to_string());
    assert_eq!(stores(&desk.run("keys -o json")), [None, None]);
    for line in ["keys -o json", "keys --sort used -o json", "keys --match user:* -o json"] {
        assert_eq!(stores(&desk.with_rules(line)), [None, None, gold(), gold()], "{line}");
    }
    assert_eq!(stores(&desk.with_rules("keys --rows 3 -o json")).len(), 3);
    let wide = desk.with_rules("keys --rule premium -o wide").out;
    assert!(wide.contains("STORE") && wide.matches(" gold ").count() == 2, "{wide}");
    let raw = desk.with_rules("inspect user:1 --raw").out;
    assert!(raw.contains("gold gold:{user:1}  expires in"), "{raw}");

    desk.gold.command::<i64>(&["PERSIST", "gold:{user:1}"]);
    assert_eq!(desk.run("doctor").code, 0, "this Redis alone is well");
    let told = desk.with_rules("doctor -o json");
    let found = told.json()["items"][0].clone();
    assert_eq!((told.code, found["check"].as_str()), (4, Some("keys without TTL")));
    assert_eq!(found["store"], "gold");
    let told = desk.with_rules("doctor").out;
    assert!(told.contains("error: keys without TTL gold: 1 key never expires"), "{told}");
    assert_eq!(desk.with_rules("doctor --fix").code, 0);
    assert!(desk.gold.command::<i64>(&["PTTL", "gold:{user:1}"]) > 0);

    // Where nothing is published, nothing is named.
    assert_eq!(stores(&desk.run("keys --rules store -o json")), [None, None]);
    // What is published names it, too.
    let publish = format!("rules publish {} --reason first -q", desk.rules);
    assert_eq!(desk.run(&publish).code, 0);
    let hint = "rules of the published policy count on gold; with --rules store";
    for line in ["keys", "inspect user:1", "doctor", "reset user:1 --dry-run"] {
        let told = desk.run(line);
        assert!(told.err.contains(hint), "{line}: {}", told.err);
        let told = desk.run(&format!("{line} --rules store"));
        assert!(told.code == 0 && !told.err.contains(hint), "{line}: {}", told.err);
    }
    assert_eq!(stores(&desk.run("keys --rules store -o json")).len(), 4);
}

#[test]
fn with_rules_a_reset_forgets_on_every_store_and_undo_brings_all_of_it_back() {
    let desk = Desk::new();
    let before = desk.quota();
    let told = desk.with_rules("reset user:1 --yes --backup b");
    assert!(told.out.contains("forgotten: 2 limits of 1 identity\n"), "{}{}", told.out, told.err);
    let undo = format!("undo: rlctl undo b --rules {}\n", desk.rules);
    assert!(told.out.contains(&undo), "{}", told.out);
    let left: Vec<String> = desk.quota().into_iter().map(|(key, ..)| key).collect();
    assert_eq!(left, ["rl1:{user:2}", "gold:{user:2}"]);
    let refused = desk.run("undo b --yes");
    assert_eq!(refused.code, 2, "{}", refused.err);
    assert!(refused.err.contains("keys of the store gold: give the rules"), "{}", refused.err);
    assert_eq!(desk.quota().len(), 2, "nothing came back");
    let undone = desk.with_rules("undo b --yes -o json").json();
    assert_eq!((&undone["restored"], &undone["replaced"]), (&2.into(), &0.into()));
    assert!(desk.quota() == before);

    let all = desk.with_rules("reset --match user:* --yes --backup c -o json").json();
    assert_eq!(
        (&all["identities"], &all["limits"], &all["keys"]),
        (&2.into(), &4.into(), &4.into())
    );
    assert_eq!(desk.quota().len(), 0);
    // Without rules only this Redis is meant.
    assert_eq!(desk.with_rules("undo c --yes").code, 0);
    assert_eq!(desk.run("reset user:1 --yes --backup d").code, 0);
    let left: Vec<String> = desk.quota().into_iter().map(|(key, ..)| key).collect();
    assert_eq!(left, ["rl1:{user:2}", "gold:{user:1}", "gold:{user:2}"]);
}

#[test]
fn a_store_that_is_away_is_named_and_nothing_is_done_in_part() {
    let mut desk = Desk::new();
    desk.gold.kill();
    let listed = desk.with_rules("keys -o csv");
    assert_eq!((listed.code, listed.out.lines().count()), (5, 3), "{}", listed.err);
    assert!(listed.err.contains("the store gold: cannot reach redis"), "{}", listed.err);
    let examined = desk.with_rules("doctor -o json");
    let found = examined.json()["items"][0].clone();
    assert_eq!(
        (examined.code, &found["check"], &found["store"]),
        (4, &"reachable".into(), &"gold".into())
    );
    let before = desk.main.dump();
    let reset = desk.with_rules("reset user:1 --yes --backup b");
    assert_eq!(reset.code, 5, "{}", reset.out);
    assert!(reset.err.contains("the store gold") && reset.err.contains("nothing was changed"));
    assert!(desk.main.dump() == before && !desk.main.dir.path().join("b").exists());
}
