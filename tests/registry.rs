//! What operators keep beside the buckets, on both stores: each change and what it replaces, ends,
//! versions of the policy, the trail; and views of it in several processes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rlctl::engine::clock::Micros;
use rlctl::engine::identity::Identity;
use rlctl::engine::registry::{
    Change, EventId, FOLLOW_EVERY, Intent, KEPT_VERSIONS, ListChange, MAX_POLICY_BYTES,
    MemoryRegistry, News, Outcome, OverrideLimit, Registry, RegistryError, Subject, Switch, View,
};
use rlctl::engine::store::keys::Prefix;
use rlctl::engine::store::redis::{RedisAddress, RedisOptions, RedisRegistry};
use serde_json::Value;

use crate::support::redis::RedisServer;
use crate::support::stalls::Stalls;
use crate::support::{TODAY, id};

const HOUR: Micros = Micros::HOUR;
const NOW: Micros = Micros(TODAY);
const MAX_EVENTS: usize = 10_000;

struct Rig {
    registry: Arc<Registry>,
    server: Option<RedisServer>,
}

impl Rig {
    async fn both() -> [Rig; 2] {
        Rig::both_with(MAX_EVENTS).await
    }

    async fn both_with(max_events: usize) -> [Rig; 2] {
        let memory = Arc::new(Registry::Memory(MemoryRegistry::new(max_events)));
        let server = RedisServer::start();
        let redis = connect(&server).await.with_max_events(max_events);
        let redis = Arc::new(Registry::Redis(redis));
        [Rig { registry: memory, server: None }, Rig { registry: redis, server: Some(server) }]
    }

    fn name(&self) -> &'static str {
        if self.server.is_some() { "redis" } else { "memory" }
    }

    async fn change(&self, who: &str, change: Change) -> Outcome {
        self.registry.change(&id(who), &change, &intent("because")).await.unwrap()
    }

    async fn subject(&self, who: &str) -> Subject {
        self.registry.subject(&id(who)).await.unwrap()
    }

    /// PEXPIRETIME of a key: -1 without an end, -2 without the key.
    fn ends(&self, key: &str) -> Option<i64> {
        self.server.as_ref().map(|server| server.command(&["PEXPIRETIME", key]))
    }
}

async fn connect(server: &RedisServer) -> RedisRegistry {
    let address = RedisAddress::parse(&server.url(), None).unwrap();
    let patience = Micros(60 * Micros::SECOND.0);
    let options = RedisOptions { address, deadline: patience, connect_timeout: patience };
    RedisRegistry::connect(options, Prefix::default()).await.unwrap()
}

fn intent(reason: &str) -> Intent {
    Intent::new("alice", reason).unwrap().at(NOW)
}

fn tier(name: &str, lasts: Option<Micros>) -> Change {
    Change::SetTier { tier: name.into(), lasts }
}

fn limits(quota: &str, lasts: Option<Micros>) -> Change {
    let limits = vec![OverrideLimit::new(quota.parse().unwrap(), None).unwrap()];
    Change::SetOverride { rule: "per-user".into(), limits, lasts }
}

/// Waits for something that has to come true, and says how long it took.
async fn becomes_true<F: Future<Output = bool>>(mut holds: impl FnMut() -> F) -> Duration {
    let began = Instant::now();
    while !holds().await {
        assert!(began.elapsed() < Duration::from_secs(30), "it never came true");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    began.elapsed()
}

#[tokio::test]
async fn every_change_of_an_identity_is_kept_and_says_what_it_replaced() {
    for rig in Rig::both().await {
        let who = "user:1";
        let first = rig.change(who, tier("premium", None)).await;
        assert!(first.written && first.event.before.is_null());
        assert_eq!(first.event.after["value"], "premium");
        let second = rig.change(who, tier("basic", Some(HOUR))).await;
        assert_eq!(second.event.before, first.event.after, "{}", rig.name());
        assert_eq!(second.event.after["until_us"], NOW.0 + HOUR.0);
        rig.change(who, limits("500/1m", None)).await;
        let lower = rig.change(who, limits("5/1m burst 2", Some(HOUR))).await;
        assert_eq!(lower.event.before["limits"][0]["limit"], "500/1m");
        assert_eq!(lower.event.after["limits"][0]["limit"], "5/1m burst 2");
        rig.change(who, Change::Block { lasts: Some(HOUR) }).await;
        rig.change(who, Change::Exempt { lasts: None }).await;
        let subject = rig.subject(who).await;
        assert_eq!(subject.tier_at(NOW), Some("basic"));
        assert_eq!(subject.override_at("per-user", NOW).unwrap().limits[0].limit, "5/1m burst 2");
        assert!(subject.override_at("other", NOW).is_none());
        let block = subject.block_at(NOW).unwrap();
        assert_eq!((block.by.as_str(), block.reason.as_str()), ("alice", "because"));
        assert!(subject.exempt_at(NOW).is_some());
        for change in [
            Change::ClearTier,
            Change::ClearOverride { rule: "per-user".into() },
            Change::Unblock,
            Change::Unexempt,
        ] {
            let gone = rig.change(who, change.clone()).await;
            assert!(gone.written && gone.event.after.is_null(), "{change:?}");
            let again = rig.change(who, change).await;
            assert!(!again.written && again.was_nothing() && again.event.id.is_none());
        }
        assert_eq!(rig.subject(who).await, Subject::default());
        assert_eq!(rig.ends("rl1:{user:1}:s").unwrap_or(-2), -2);
    }
}

#[tokio::test]
async fn a_dry_run_tells_and_changes_nothing() {
    for rig in Rig::both().await {
        let dry = intent("trying").dry_run(true);
        let told = rig.registry.change(&id("user:1"), &tier("basic", None), &dry).await.unwrap();
        assert!(!told.written && !told.was_nothing());
        let switch = Switch::Disable { rule: "r".into() };
        assert!(!rig.registry.set_switch(&switch, &dry).await.unwrap().written);
        let draft = rig.registry.publish("text", None, &dry).await.unwrap();
        assert_eq!(draft.version.version, 1);
        assert_eq!(rig.registry.version().await.unwrap(), None);
        assert_eq!(rig.registry.last_event().await.unwrap(), None);
        assert!(rig.server.as_ref().is_none_or(|server| server.dump().is_empty()));
    }
}

#[tokio::test]
async fn what_has_ended_counts_as_absent_and_is_dropped_by_the_next_change() {
    for rig in Rig::both().await {
        let now = Micros::now();
        let long_ago = Intent::new("alice", "r").unwrap().at(now.saturating_sub(HOUR));
        let who = id("user:1");
        let brief = Some(Micros::MINUTE);
        for change in [tier("premium", brief), limits("9/1s", None)] {
            rig.registry.change(&who, &change, &long_ago).await.unwrap();
        }
        let subject = rig.registry.subject(&who).await.unwrap();
        assert_eq!(subject.tier_at(now), None);
        assert!(subject.tier.is_some(), "{}: kept as it was written", rig.name());
        let at_once = Intent::new("alice", "r").unwrap();
        let block = Change::Block { lasts: None };
        rig.registry.change(&who, &block, &at_once).await.unwrap();
        assert_eq!(rig.registry.subject(&who).await.unwrap().tier, None);
        let told = rig.registry.change(&who, &tier("basic", None), &at_once).await.unwrap();
        assert!(told.event.before.is_null(), "{}: it replaced nothing", rig.name());
    }
}

#[tokio::test]
async fn a_key_expires_with_the_last_of_what_it_holds_and_only_then() {
    let [_, rig] = Rig::both().await;
    let (who, key) = ("user:1", "rl1:{user:1}:s");
    // On the server's clock; gives the end of what was set, in ms.
    let make = async |change: Change| {
        let intent = Intent::new("alice", "r").unwrap();
        let told = rig.registry.change(&id(who), &change, &intent).await.unwrap();
        told.event.after["until_us"].as_u64().map(|us| us.div_ceil(1_000) as i64)
    };
    let hour = make(tier("premium", Some(HOUR))).await;
    assert!(hour.is_some());
    assert_eq!(rig.ends(key), hour);
    let day = make(Change::Block { lasts: Some(Micros::DAY) }).await;
    assert_eq!(rig.ends(key), day);
    make(Change::Exempt { lasts: None }).await;
    assert_eq!(rig.ends(key), Some(-1));
    make(Change::Unexempt).await;
    assert_eq!(rig.ends(key), day);
    make(Change::Unblock).await;
    assert_eq!(rig.ends(key), hour);
    make(Change::ClearTier).await;
    assert_eq!(rig.ends(key), Some(-2));
    make(tier("premium", Some(Micros(200_000)))).await;
    becomes_true(async || rig.subject(who).await == Subject::default()).await;
    // What belongs to nobody never ends by itself.
    for key in ["rl1:{$policy}:events", "rl1:{$policy}:subjects"] {
        assert_eq!(rig.ends(key), Some(-1));
    }
}

#[tokio::test]
async fn patterns_are_blocked_and_exempt_until_they_end() {
    for rig in Rig::both().await {
        let lists = async |change: ListChange| {
            rig.registry.change_lists(&change, &intent("abuse")).await.unwrap()
        };
        let network: rlctl::engine::identity::Pattern = "ip:10.0.0.0/8".parse().unwrap();
        let family: rlctl::engine::identity::Pattern = "apikey:internal-*".parse().unwrap();
        lists(ListChange::Block { pattern: network.clone(), lasts: Some(HOUR) }).await;
        lists(ListChange::Exempt { pattern: family.clone(), lasts: None }).await;
        let held = rig.registry.lists().await.unwrap();
        assert!(held.block_at(&id("ip:10.1.2.3"), NOW).is_some());
        assert!(held.block_at(&id("ip:10.1.2.3"), NOW + HOUR).is_none());
        assert!(held.block_at(&id("ip:11.1.2.3"), NOW).is_none());
        assert!(held.exempt_at(&id("apikey:internal-7"), NOW + Micros::DAY).is_some());
        let again = lists(ListChange::Block { pattern: network.clone(), lasts: None }).await;
        assert_eq!(again.event.before["until_us"], NOW.0 + HOUR.0, "{}", rig.name());
        assert_eq!(rig.registry.lists().await.unwrap().block.len(), 1);
        assert!(lists(ListChange::Unblock { pattern: network.clone() }).await.written);
        assert!(lists(ListChange::Unblock { pattern: network }).await.was_nothing());
        assert!(lists(ListChange::Unexempt { pattern: family }).await.written);
        let held = rig.registry.lists().await.unwrap();
        assert!(held.block.is_empty() && held.exempt.is_empty());
    }
}

#[tokio::test]
async fn rules_are_switched_off_and_on_and_the_whole_to_watching() {
    for rig in Rig::both().await {
        let set = async |switch: Switch| {
            rig.registry.set_switch(&switch, &intent("incident")).await.unwrap()
        };
        let rule = || "orders".to_string();
        assert!(set(Switch::Enable { rule: rule() }).await.was_nothing());
        set(Switch::Disable { rule: rule() }).await;
        set(Switch::Observe(true)).await;
        let switches = rig.registry.switches().await.unwrap();
        assert_eq!(switches.disabled["orders"].reason, "incident");
        assert_eq!(switches.observe.unwrap().by, "alice");
        set(Switch::Enable { rule: rule() }).await;
        set(Switch::Observe(false)).await;
        let switches = rig.registry.switches().await.unwrap();
        assert!(switches.disabled.is_empty() && switches.observe.is_none(), "{}", rig.name());
    }
}

#[tokio::test]
async fn versions_follow_each_other_and_a_conflict_is_told() {
    for rig in Rig::both().await {
        let registry = &rig.registry;
        assert_eq!(registry.current().await.unwrap(), None);
        let why = intent("first");
        let one = registry.publish("version = 1\n", Some(0), &why).await.unwrap();
        assert_eq!(one.version.version, 1);
        // sha256sum says so, too.
        let hash = "dbab12665d98aef021ba64953c61b0ed8a908cfb56a1c01e2fcb4b052b71a2a1";
        assert_eq!((one.version.hash.as_str(), one.version.short_hash()), (hash, &hash[..12]));
        let late = registry.publish("other", Some(0), &why).await.unwrap_err();
        assert_eq!(late, RegistryError::Conflict { current: 1, expected: 0 });
        let two = registry.publish("b = 2\n", Some(1), &why).await.unwrap();
        assert_eq!(two.outcome.event.before["version"], 1);
        assert_ne!(one.version.short_hash(), two.version.short_hash());
        let current = registry.current().await.unwrap().unwrap();
        assert_eq!((current.version, &*current.text), (two.version.clone(), "b = 2\n"));
        let back = registry.rollback(1, &intent("it was better")).await.unwrap();
        assert_eq!(back.version.version, 3);
        assert_eq!(back.version.rolled_back_to, Some(1));
        assert_eq!(back.version.hash, one.version.hash);
        assert_eq!(&*registry.current().await.unwrap().unwrap().text, "version = 1\n");
        let unknown = registry.rollback(9, &why).await.unwrap_err();
        assert_eq!(unknown, RegistryError::NoVersion(9));
        let history = registry.history(10).await.unwrap();
        assert_eq!(history, [back.version, two.version, one.version], "{}", rig.name());
        assert_eq!(registry.history(1).await.unwrap().len(), 1);
    }
}

#[tokio::test]
async fn only_so_many_versions_and_only_so_large_ones_are_kept() {
    for rig in Rig::both().await {
        let registry = &rig.registry;
        for number in 0..KEPT_VERSIONS + 3 {
            registry.publish(&number.to_string(), None, &intent("more")).await.unwrap();
        }
        let history = registry.history(1_000).await.unwrap();
        assert_eq!(history.len() as u64, KEPT_VERSIONS, "{}", rig.name());
        assert_eq!(history.last().unwrap().version, 4);
        assert_eq!(registry.rollback(3, &intent("r")).await, Err(RegistryError::NoVersion(3)));
        let most = "x".repeat(MAX_POLICY_BYTES);
        registry.publish(&most, None, &intent("large")).await.unwrap();
        assert_eq!(registry.current().await.unwrap().unwrap().text.len(), MAX_POLICY_BYTES);
        let error = registry.publish(&(most + "x"), None, &intent("r")).await.unwrap_err();
        assert!(matches!(error, RegistryError::TooLong { what: "a policy", .. }), "{error}");
    }
}

#[tokio::test]
async fn publishers_at_the_same_time_each_get_a_version_of_their_own() {
    for rig in Rig::both().await {
        let publish = |number: usize| {
            let registry = rig.registry.clone();
            tokio::spawn(async move {
                let text = number.to_string();
                registry.publish(&text, None, &intent("race")).await.unwrap().version.version
            })
        };
        let racing: Vec<_> = (0..20).map(publish).collect();
        let mut versions = Vec::new();
        for one in racing {
            versions.push(one.await.unwrap());
        }
        versions.sort_unstable();
        assert_eq!(versions, (1..=20).collect::<Vec<u64>>(), "{}", rig.name());
    }
}

#[tokio::test]
async fn changes_at_the_same_time_do_not_undo_each_other() {
    for rig in Rig::both().await {
        let set = |number: usize| {
            let registry = rig.registry.clone();
            let limits = vec![OverrideLimit::new("1/1s".parse().unwrap(), None).unwrap()];
            let change = Change::SetOverride { rule: format!("r{number}"), limits, lasts: None };
            tokio::spawn(async move {
                registry.change(&id("user:1"), &change, &intent("race")).await.unwrap();
            })
        };
        for one in (0..20).map(set).collect::<Vec<_>>() {
            one.await.unwrap();
        }
        assert_eq!(rig.subject("user:1").await.overrides.len(), 20, "{}", rig.name());
        assert_eq!(rig.registry.events(None, 100).await.unwrap().len(), 20);
    }
}

#[tokio::test]
async fn the_trail_tells_who_did_what_when_and_why_and_is_capped() {
    for rig in Rig::both_with(50).await {
        let registry = &rig.registry;
        rig.change("user:1", tier("basic", None)).await;
        registry.publish("text", None, &intent("policy")).await.unwrap();
        let events = registry.events(None, 10).await.unwrap();
        let actions: Vec<&str> = events.iter().map(|e| e.action.as_str()).collect();
        assert_eq!(actions, ["tier set", "rules publish"]);
        assert_eq!(events[0].subject, "user:1");
        assert_eq!((events[0].by.as_str(), events[0].reason.as_str()), ("alice", "because"));
        assert_eq!((events[0].at, &events[0].before), (NOW, &Value::Null));
        assert!(!events[1].after.to_string().contains("text"), "the text is not in the trail");
        let seen = events[0].id;
        assert_eq!(registry.events(seen, 10).await.unwrap(), events[1..]);
        assert_eq!(registry.events(None, 1).await.unwrap(), events[1..]);
        for number in 0..60 {
            rig.change(&format!("user:{number}"), Change::Block { lasts: None }).await;
        }
        let events = registry.events(None, 1_000).await.unwrap();
        assert_eq!(events.len(), 50, "{}", rig.name());
        assert_eq!(events[49].subject, "user:59");
        assert!(events.is_sorted_by_key(|event| event.id));
        assert_eq!(registry.news(seen).await.unwrap(), News::Gap);
        assert_eq!(registry.news(None).await.unwrap(), News::Gap);
        let News::Events(news) = registry.news(events[39].id).await.unwrap() else {
            panic!("{}: nothing is missing", rig.name())
        };
        assert_eq!(news.len(), 10);
        let future = EventId { ms: u64::MAX, number: 0 };
        assert_eq!(registry.news(Some(future)).await.unwrap(), News::Gap);
    }
}

#[tokio::test]
async fn those_of_whom_something_is_known_are_listed_and_others_are_not() {
    for rig in Rig::both().await {
        for number in 0..1_200 {
            rig.change(&format!("user:{number}"), Change::Block { lasts: None }).await;
        }
        for number in 0..1_000 {
            rig.change(&format!("user:{number}"), Change::Unblock).await;
        }
        let mut listed = Vec::new();
        rig.registry.subjects(|identity, _| listed.push(identity)).await.unwrap();
        listed.sort();
        let mut wanted: Vec<Identity> = (1_000..1_200).map(|n| id(&format!("user:{n}"))).collect();
        wanted.sort();
        assert_eq!(listed, wanted, "{}", rig.name());
        // Those that are gone were also taken out of the index.
        if let Some(server) = &rig.server {
            assert_eq!(server.command::<usize>(&["HLEN", "rl1:{$policy}:subjects"]), 200);
        }
    }
}

const HOSTILE: [&str; 8] = [
    "user:\u{202e}evil",
    "user:{}",
    "user:'; redis.call('FLUSHALL') --",
    "user:\"}{\"",
    "$policy",
    "user:%24policy",
    "user:*?[x]",
    "{$policy}:current",
];

#[tokio::test]
async fn hostile_identities_and_reasons_are_only_text() {
    for rig in Rig::both().await {
        for who in HOSTILE {
            let who = Identity::opaque(who).unwrap();
            for why in ["\"}]", "ARGV[1]", "$(reboot)", "\u{202e}", "日本 %s %n"] {
                let change = Change::Block { lasts: None };
                let why = intent(why);
                let told = rig.registry.change(&who, &change, &why).await.unwrap();
                assert_eq!(told.event.subject, who.as_str());
                let kept = rig.registry.subject(&who).await.unwrap();
                assert_eq!(kept.block.unwrap().reason, why.reason());
            }
        }
        let mut listed = Vec::new();
        rig.registry.subjects(|identity, _| listed.push(identity.to_string())).await.unwrap();
        listed.sort();
        let mut wanted = HOSTILE.to_vec();
        wanted.sort_unstable();
        assert_eq!(listed, wanted, "{}", rig.name());
        assert_eq!(rig.registry.version().await.unwrap(), None);
    }
}

#[tokio::test]
async fn what_is_too_much_is_refused_with_the_bound() {
    let refused = |by: &str, reason: &str| Intent::new(by, reason).unwrap_err().to_string();
    assert!(refused("a", &"x".repeat(100_000)).contains("at most 1024"));
    assert!(refused(&"x".repeat(300), "r").contains("at most 256"));
    assert!(refused("a", " \t ").contains("needs a reason"));
    assert!(refused("a", "a\u{1b}[2Jb").contains("control characters"));
    for rig in Rig::both().await {
        let change = async |change: Change| {
            let result = rig.registry.change(&id("user:1"), &change, &intent("r")).await;
            result.unwrap_err().to_string()
        };
        for name in ["", "Gold", "a b", "a\u{1b}", &"x".repeat(201)] {
            assert!(change(tier(name, None)).await.contains("cannot be the name of a tier"));
        }
        for number in 0..100 {
            let limits = vec![OverrideLimit::new("1/1s".parse().unwrap(), None).unwrap()];
            let one = Change::SetOverride { rule: format!("r{number}"), limits, lasts: None };
            rig.change("user:1", one).await;
        }
        assert!(change(limits("1/1s", None)).await.contains("at most 100"), "{}", rig.name());
        let none = Change::SetOverride { rule: "r0".into(), limits: vec![], lasts: None };
        assert!(change(none).await.contains("needs a limit"));
        let for_ever = Some(Micros(u64::MAX));
        let told = rig.change("user:2", tier("basic", for_ever)).await;
        assert_eq!(told.event.after["until_us"], Micros::LAST.0);
    }
}

#[tokio::test]
async fn a_value_that_cannot_be_read_is_named_and_left_alone() {
    let [_, rig] = Rig::both().await;
    let server = rig.server.as_ref().unwrap();
    let key = "rl1:{user:1}:s";
    let _: () = server.command(&["SET", key, "{\"tier\": 7}"]);
    let error = rig.registry.subject(&id("user:1")).await.unwrap_err().to_string();
    assert!(error.contains(key), "{error}");
    let change = Change::Block { lasts: None };
    assert!(rig.registry.change(&id("user:1"), &change, &intent("r")).await.is_err());
    assert_eq!(server.command::<String>(&["GET", key]), "{\"tier\": 7}");
}

#[tokio::test]
async fn a_change_whose_event_cannot_be_written_holds_and_can_be_made_once_more() {
    let [_, rig] = Rig::both().await;
    let server = rig.server.as_ref().unwrap();
    let events = "rl1:{$policy}:events";
    let _: () = server.command(&["SET", events, "not a stream"]);
    let block = Change::Block { lasts: None };
    let error = rig.registry.change(&id("user:1"), &block, &intent("r")).await.unwrap_err();
    assert!(matches!(error, RegistryError::Unrecorded(_)), "{error:?}");
    assert!(error.to_string().contains("the change holds"), "{error}");
    assert!(rig.subject("user:1").await.block.is_some());
    // A document and its event are one step: neither is written.
    let observe = Switch::Observe(true);
    assert!(rig.registry.set_switch(&observe, &intent("r")).await.is_err());
    let _: () = server.command(&["DEL", events]);
    let again = intent("r").at(NOW + HOUR);
    let told = rig.registry.change(&id("user:1"), &block, &again).await.unwrap();
    assert!(told.written && !told.event.before.is_null());
    let mut listed = 0;
    rig.registry.subjects(|_, _| listed += 1).await.unwrap();
    assert_eq!(listed, 1);
}

#[tokio::test]
async fn two_processes_obey_each_others_changes_within_a_second() {
    let server = RedisServer::start();
    let ours = Registry::Redis(connect(&server).await);
    let theirs = Arc::new(Registry::Redis(connect(&server).await));
    let view = View::follow(theirs).await;
    assert!(view.age(Micros::now()).is_some_and(|age| age < Micros::MINUTE));
    let (who, other) = (id("user:1"), id("user:2"));
    for identity in [&who, &other] {
        assert!(view.subject(identity, Micros::now()).await.unwrap().is_empty());
    }
    let why = Intent::new("alice", "r").unwrap();
    let blocked = async || {
        let now = Micros::now();
        view.subject(&who, now).await.unwrap().block_at(now).is_some()
    };
    let stalls = Stalls::watch();
    let mut took = Vec::new();
    for lasts in [None, Some(Micros::HOUR)] {
        ours.change(&who, &Change::Block { lasts }, &why).await.unwrap();
        took.push((becomes_true(blocked).await, Instant::now()));
        ours.change(&who, &Change::Unblock, &why).await.unwrap();
        took.push((becomes_true(async || !blocked().await).await, Instant::now()));
    }
    let pattern: rlctl::engine::identity::Pattern = "ip:10.0.0.0/8".parse().unwrap();
    ours.change_lists(&ListChange::Block { pattern, lasts: None }, &why).await.unwrap();
    let listed = async || !view.snapshot().lists.block.is_empty();
    took.push((becomes_true(listed).await, Instant::now()));
    ours.set_switch(&Switch::Observe(true), &why).await.unwrap();
    let observed = async || view.snapshot().switches.observe.is_some();
    took.push((becomes_true(observed).await, Instant::now()));
    for text in ["a", "b"] {
        ours.publish(text, None, &why).await.unwrap();
        let published =
            async || view.snapshot().published.as_ref().is_some_and(|p| &*p.text == text);
        took.push((becomes_true(published).await, Instant::now()));
    }
    for (took, until) in took {
        let excuse = stalls.between(until - took, until);
        assert!(took < Duration::from_secs(1) + excuse, "{took:?}");
    }
    // What nobody changed stays what it was.
    assert!(view.subject(&other, Micros::now()).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_view_of_memory_follows_it_as_well() {
    let registry = Arc::new(Registry::Memory(MemoryRegistry::default()));
    let view = View::follow(registry.clone()).await;
    let why = Intent::new("alice", "r").unwrap();
    let who = id("user:1");
    let now = Micros::now();
    assert_eq!(view.subject(&who, now).await.unwrap().tier_at(now), None);
    registry.change(&who, &tier("basic", None), &why).await.unwrap();
    let has_tier = async || view.subject(&who, now).await.unwrap().tier_at(now) == Some("basic");
    becomes_true(has_tier).await;
    registry.publish("text", None, &why).await.unwrap();
    becomes_true(async || view.snapshot().published.is_some()).await;
}

#[tokio::test]
async fn a_gap_in_the_trail_makes_a_view_read_everything_again() {
    let server = RedisServer::start();
    let ours = Registry::Redis(connect(&server).await.with_max_events(1));
    let why = Intent::new("alice", "r").unwrap();
    let who = id("user:1");
    ours.set_switch(&Switch::Observe(true), &why).await.unwrap();
    let view = View::follow(Arc::new(Registry::Redis(connect(&server).await))).await;
    assert!(view.snapshot().switches.observe.is_some());
    assert!(view.subject(&who, Micros::now()).await.unwrap().is_empty());
    // Of these only the last leaves a trace.
    ours.change(&who, &Change::Block { lasts: None }, &why).await.unwrap();
    ours.set_switch(&Switch::Observe(false), &why).await.unwrap();
    ours.change(&id("user:2"), &Change::Block { lasts: None }, &why).await.unwrap();
    becomes_true(async || view.snapshot().switches.observe.is_none()).await;
    let blocked = async || view.subject(&who, Micros::now()).await.unwrap().block.is_some();
    becomes_true(blocked).await;
    // What cannot be read is told, and what was known stays.
    let _: () = server.command(&["SET", "rl1:{$policy}:lists", "[]"]);
    let _: () = server.command(&["DEL", "rl1:{$policy}:events"]);
    becomes_true(async || view.trouble().is_some()).await;
    assert!(view.trouble().unwrap().to_string().contains("lists"), "{:?}", view.trouble());
    assert!(blocked().await);
    let _: () = server.command(&["DEL", "rl1:{$policy}:lists"]);
    becomes_true(async || view.trouble().is_none()).await;
}

#[tokio::test]
async fn nothing_is_lost_over_a_restart_and_a_view_goes_on_from_what_it_knew() {
    let mut server = RedisServer::start_with(|_| {
        ["--appendonly", "yes", "--appendfsync", "always"].map(String::from).to_vec()
    });
    let ours = Registry::Redis(connect(&server).await);
    let view = View::follow(Arc::new(Registry::Redis(connect(&server).await))).await;
    let why = Intent::new("alice", "r").unwrap();
    let (who, stranger) = (id("user:1"), id("user:2"));
    ours.change(&who, &tier("premium", None), &why).await.unwrap();
    ours.publish("text", None, &why).await.unwrap();
    becomes_true(async || view.snapshot().published.is_some()).await;
    assert!(view.subject(&who, Micros::now()).await.unwrap().tier.is_some());
    server.kill();
    becomes_true(async || view.trouble().is_some()).await;
    // Down: what was known still counts, also when it is old; its age is told.
    let later = Micros::now() + Micros::HOUR;
    assert!(view.subject(&who, later).await.unwrap().tier.is_some());
    assert!(view.subject(&stranger, later).await.is_err());
    assert!(view.snapshot().published.is_some());
    assert!(view.age(later).unwrap() >= Micros::HOUR);
    server.restart();
    becomes_true(async || view.trouble().is_none()).await;
    becomes_true(async || ours.now().await.is_ok()).await;
    // The scripts are gone with the old process, the data is not.
    ours.change(&who, &tier("basic", None), &why).await.unwrap();
    let now = Micros::now();
    becomes_true(async || view.subject(&who, now).await.unwrap().tier_at(now) == Some("basic"))
        .await;
    assert_eq!(ours.history(10).await.unwrap().len(), 1);
    assert_eq!(ours.events(None, 10).await.unwrap().len(), 3);
}

#[tokio::test]
async fn a_view_begins_empty_when_the_store_is_away_and_notices_lost_data() {
    let mut server = RedisServer::start();
    let registry = Arc::new(Registry::Redis(connect(&server).await));
    let why = Intent::new("alice", "r").unwrap();
    registry.set_switch(&Switch::Observe(true), &why).await.unwrap();
    server.kill();
    let view = View::follow(registry.clone()).await;
    assert_eq!(view.age(Micros::now()), None);
    assert!(view.trouble().is_some());
    // An empty server in its place.
    server.restart();
    becomes_true(async || view.age(Micros::now()).is_some()).await;
    assert!(view.snapshot().switches.observe.is_none());
    registry.set_switch(&Switch::Observe(true), &why).await.unwrap();
    becomes_true(async || view.snapshot().switches.observe.is_some()).await;
    // Emptied without the connection being lost.
    let _: () = server.command(&["FLUSHALL"]);
    becomes_true(async || view.snapshot().switches.observe.is_none()).await;
    assert!(Duration::from(FOLLOW_EVERY) < Duration::from_secs(1));
}
