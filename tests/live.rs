//! A policy that changes while traffic flows: files in all the ways they are replaced, the store,
//! and two real processes that obey within a second, each answer by one whole policy.

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rlctl::engine::clock::Micros;
use rlctl::engine::failure::OnFailure;
use rlctl::engine::identity::Identity;
use rlctl::engine::limiter::{Demand, Reached, Verdict};
use rlctl::engine::live::{Accepted, LiveLimiter, LivePolicy, Source};
use rlctl::engine::plan::Attempt;
use rlctl::engine::registry::{
    Change, DEFAULT_MAX_EVENTS, Intent, MemoryRegistry, OverrideLimit, Registry, Switch, Switches,
    View,
};
use rlctl::engine::rules::Target;
use rlctl::engine::store::keys::Prefix;
use rlctl::engine::store::redis::{RedisAddress, RedisOptions, RedisRegistry};
use rlctl::engine::store::{MemoryStore, Store};

use crate::support::redis::{RedisServer, connect_to};
use crate::support::stalls::Stalls;
use crate::support::{TODAY, cost, id};

const NOW: Micros = Micros(TODAY);
const PATIENCE: Micros = Micros(60 * Micros::SECOND.0);
const BROKEN: &str = "[[rule]]\nname = \"r\"\ndimension = \"user\"\nlimits = [\"ten\"]\n";

/// Rules whose names and limits both begin with the number of the policy: 1 is `one`, 2 is `two`.
fn policy(number: u64) -> String {
    let name = if number == 1 { "one" } else { "two" };
    format!(
        r#"default_tier = "free"
[tiers.free]
limits = ["{number}200000/1d"]
[tiers.gold]
limits = ["{number}300000/1d"]
[[rule]]
name = "{name}-user"
dimension = "user"
limits = ["{number}100000/1d"]
[[rule]]
name = "{name}-key"
dimension = "apikey"
limits = "tier"
"#
    )
}

fn file(name: &str) -> Source {
    Source::File(name.into())
}

fn rules_of(live: &LivePolicy) -> Vec<String> {
    let current = live.current();
    let policy = current.as_ref().map(|current| current.rules.policy().clone());
    let rules = policy.iter().flat_map(|policy| policy.rules.iter());
    rules.filter(|rule| rule.enabled).map(|rule| rule.name.clone()).collect()
}

fn intent() -> Intent {
    Intent::new("alice", "because").unwrap()
}

fn memory_registry() -> Arc<Registry> {
    Arc::new(Registry::Memory(MemoryRegistry::new(DEFAULT_MAX_EVENTS)))
}

async fn redis_registry(url: &str, deadline: Micros) -> Arc<Registry> {
    let address = RedisAddress::parse(url, None).unwrap();
    let options = RedisOptions { address, deadline, connect_timeout: deadline };
    Arc::new(Registry::Redis(RedisRegistry::connect(options, Prefix::default()).await.unwrap()))
}

/// Waits until it holds; a second is all there is, but for what the machine itself stood still.
fn within_a_second(what: &str, stalls: &Stalls, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        let excuse = stalls.between(began, Instant::now());
        assert!(began.elapsed() < Duration::from_secs(1) + excuse, "not in 1 s: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_policy_that_cannot_be_used_is_refused_and_the_old_one_stays() {
    let live = LivePolicy::default();
    assert!(live.current().is_none() && live.status().loaded.is_none());
    let Ok(Accepted::New(loaded)) = live.offer(&policy(1), &file("p.toml"), NOW) else { panic!() };
    assert_eq!((loaded.version, loaded.short_hash().len(), loaded.at), (1, 12, NOW));
    let before = live.current().unwrap();
    let later = NOW + Micros::SECOND;
    assert_eq!(live.offer(&policy(1), &file("p.toml"), later), Ok(Accepted::Unchanged));
    let refused = live.offer(BROKEN, &file("p.toml"), later).unwrap_err();
    assert_eq!((refused.at, &refused.from), (later, &file("p.toml")));
    assert!(refused.to_string().contains("p.toml:4:"), "{refused}");
    assert!(Arc::ptr_eq(&before, &live.current().unwrap()), "nothing was touched");
    // Read once more it is the same refusal.
    assert_eq!(live.offer(BROKEN, &file("p.toml"), later), Err(refused.clone()));
    let status = live.status();
    assert_eq!((status.refusals, status.refused), (1, Some(refused)));
    assert_eq!(status.loaded.unwrap().at, NOW);
    // Whoever takes it back is in order again, and the count stays.
    assert_eq!(live.offer(&policy(1), &file("p.toml"), later), Ok(Accepted::Unchanged));
    assert_eq!((live.status().refusals, live.status().refused), (1, None));
    let Ok(Accepted::New(loaded)) = live.offer(&policy(2), &file("p.toml"), later) else {
        panic!()
    };
    assert_eq!((loaded.version, loaded.at), (2, later));
    assert_eq!(rules_of(&live), ["two-user", "two-key"]);
    assert_eq!(before.rules.policy().rules[0].name, "one-user", "whoever began keeps the old one");
}

#[tokio::test]
async fn switches_lie_on_top_of_whatever_policy_there_is() {
    let registry = memory_registry();
    let live = LivePolicy::default();
    live.offer(&policy(1), &file("p.toml"), NOW).unwrap();
    let off = Switch::Disable { rule: "one-key".into() };
    registry.set_switch(&off, &intent()).await.unwrap();
    let off = Arc::new(registry.switches().await.unwrap());
    let loaded = live.status().loaded.unwrap();
    live.switch(&off);
    assert_eq!(rules_of(&live), ["one-user"]);
    assert!(Arc::ptr_eq(&loaded, &live.current().unwrap().loaded), "it is the same policy");
    live.offer(&policy(2), &file("p.toml"), NOW).unwrap();
    live.offer(&policy(1), &file("p.toml"), NOW).unwrap();
    assert_eq!(rules_of(&live), ["one-user"], "a new policy does not switch it on again");
    live.switch(&Arc::new(Switches::default()));
    assert_eq!(rules_of(&live), ["one-user", "one-key"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_is_followed_however_it_is_replaced() {
    let stalls = Stalls::watch();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("policy.toml");
    fs::write(&path, policy(1)).unwrap();
    let view = View::follow(memory_registry()).await;
    let live = LivePolicy::follow_file(&path, &view).await;
    let names = |first: &str| rules_of(&live).first().is_some_and(|name| name == first);
    assert!(names("one-user"));
    // Same length: only the times tell.
    fs::write(&path, policy(2)).unwrap();
    within_a_second("written", &stalls, || names("two-user"));
    let aside = dir.path().join("policy.toml~");
    fs::write(&aside, policy(1)).unwrap();
    fs::rename(&aside, &path).unwrap();
    within_a_second("renamed over", &stalls, || names("one-user"));
    fs::write(&path, BROKEN).unwrap();
    within_a_second("refused", &stalls, || live.status().refused.is_some());
    assert!(names("one-user"));
    fs::write(&path, b"\xFF\xFE").unwrap();
    within_a_second("not text", &stalls, || live.status().refusals == 2);
    fs::remove_file(&path).unwrap();
    within_a_second("gone", &stalls, || live.status().trouble.is_some());
    assert!(names("one-user"));
    fs::write(&path, policy(2)).unwrap();
    within_a_second("back", &stalls, || names("two-user"));
    let status = live.status();
    assert!(status.trouble.is_none() && status.refused.is_none(), "{status:?}");
    assert_eq!((status.refusals, status.loaded.unwrap().version), (2, 4));
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mounted_config_map_is_followed() {
    use std::os::unix::fs::symlink;
    let stalls = Stalls::watch();
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for number in [1, 2] {
        let version = at(&format!("..version_{number}"));
        fs::create_dir(&version).unwrap();
        fs::write(version.join("policy.toml"), policy(number)).unwrap();
    }
    symlink("..version_1", at("..data")).unwrap();
    symlink("..data/policy.toml", at("policy.toml")).unwrap();
    let view = View::follow(memory_registry()).await;
    let live = LivePolicy::follow_file(&at("policy.toml"), &view).await;
    assert_eq!(rules_of(&live), ["one-user", "one-key"]);
    symlink("..version_2", at("..data_tmp")).unwrap();
    fs::rename(at("..data_tmp"), at("..data")).unwrap();
    fs::remove_dir_all(at("..version_1")).unwrap();
    within_a_second("swapped", &stalls, || rules_of(&live) == ["two-user", "two-key"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_being_written_is_left_alone() {
    let stalls = Stalls::watch();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("policy.toml");
    fs::write(&path, policy(1)).unwrap();
    let view = View::follow(memory_registry()).await;
    let live = LivePolicy::follow_file(&path, &view).await;
    // Each rule alone would be a policy; only all of them are the one that is meant.
    let whole = policy(2);
    let (first, rest) = whole.split_at(whole.rfind("[[rule]]").unwrap());
    fs::write(&path, first).unwrap();
    let began = Instant::now();
    let mut out = OpenOptions::new().append(true).open(&path).unwrap();
    while began.elapsed() < Duration::from_millis(600) {
        out.write_all(b"#\n").unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
        let excused = stalls.between(began, Instant::now()) > Duration::from_millis(20);
        assert!(excused || rules_of(&live) == ["one-user", "one-key"]);
    }
    out.write_all(rest.as_bytes()).unwrap();
    within_a_second("whole", &stalls, || rules_of(&live) == ["two-user", "two-key"]);
}

async fn ask(limiter: &LiveLimiter, identities: &[Identity]) -> Verdict {
    let attempt = Attempt { identities, target: Target::default(), tier: None };
    let demand = Demand::of(cost(1));
    let moment = limiter.moment();
    limiter.check(&moment, &attempt, demand).await.expect("the store answers")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_policy_or_a_registry_it_decides_by_what_it_knows() {
    let mut server = RedisServer::start();
    let registry = redis_registry(&server.url(), Micros::SECOND).await;
    let block = Change::Block { lasts: None };
    registry.change(&id("user:bad"), &block, &intent()).await.unwrap();
    let view = View::follow(registry).await;
    let policy_of = LivePolicy::follow_published(&view).await;
    let store = Arc::new(Store::Memory(MemoryStore::unbounded()));
    let limiter = LiveLimiter {
        policy: policy_of.clone(),
        view,
        store,
        on_failure: OnFailure::Tell,
        hot: None,
    };
    let verdict = ask(&limiter, &[id("user:bad")]).await;
    assert!(verdict.allowed && matches!(verdict.reached, Reached::NoPolicy), "{verdict:?}");
    assert!(policy_of.status().trouble.is_some());
    policy_of.offer(&policy(1), &Source::Published(1), NOW).unwrap();
    let verdict = ask(&limiter, &[id("user:bad"), id("apikey:k")]).await;
    assert!(matches!(verdict.reached, Reached::Blocked { .. }), "{verdict:?}");
    server.kill();
    let verdict = ask(&limiter, &[id("user:bad")]).await;
    assert!(!verdict.allowed, "known before: {verdict:?}");
    let verdict = ask(&limiter, &[id("user:new"), id("apikey:new")]).await;
    assert_eq!(in_words(&verdict), "pass one-user=1100000 one-key=1200000");
}

#[tokio::test]
async fn observe_only_lets_pass_and_tells_what_it_would_have_refused() {
    let registry = memory_registry();
    let text = "[[rule]]\nname = \"r\"\ndimension = \"user\"\nlimits = [\"1/1d\"]\n";
    registry.publish(text, None, &intent()).await.unwrap();
    registry.change(&id("user:2"), &Change::Block { lasts: None }, &intent()).await.unwrap();
    registry.set_switch(&Switch::Observe(true), &intent()).await.unwrap();
    let view = View::follow(registry).await;
    let policy = LivePolicy::follow_published(&view).await;
    let store = Arc::new(Store::Memory(MemoryStore::unbounded()));
    let limiter = LiveLimiter { policy, view, store, on_failure: OnFailure::Tell, hot: None };
    for (who, would_refuse) in [("user:1", false), ("user:1", true), ("user:2", true)] {
        let verdict = ask(&limiter, &[id(who)]).await;
        assert!(verdict.allowed && verdict.observed, "{verdict:?}");
        assert_eq!(verdict.would_refuse(), would_refuse, "{verdict:?}");
    }
}

/// The answer, and each limit that gave it.
fn in_words(verdict: &Verdict) -> String {
    let outcome = match (verdict.would_refuse(), verdict.allowed) {
        (true, _) => "observed",
        (_, true) => "pass",
        (_, false) => "refused",
    };
    let by = match &verdict.reached {
        Reached::Limits { asked, .. } => {
            let each = asked.iter().map(|a| format!("{}={}", a.limit.rule(), a.decision.capacity));
            each.collect::<Vec<_>>().join(" ")
        }
        Reached::Blocked { .. } => "blocked".into(),
        other => format!("{other:?}"),
    };
    format!("{outcome} {by}")
}

const CHILD_URL: &str = "RLCTL_TEST_LIVE_URL";
const CHILD_OUT: &str = "RLCTL_TEST_LIVE_OUT";
const PROBES: [&str; 2] = ["user:o", "user:b"];

/// What a process saw: a line whenever an answer is another than the last one to the same probe.
struct Journal {
    file: Mutex<(fs::File, HashMap<String, String>)>,
    answers: AtomicU64,
}

impl Journal {
    fn note(&self, probe: &str, saw: String) {
        self.answers.fetch_add(1, Ordering::Relaxed);
        let (file, last) = &mut *self.file.lock().unwrap();
        if last.get(probe) != Some(&saw) {
            writeln!(file, "{probe}|{saw}").unwrap();
            last.insert(probe.into(), saw);
        }
    }
}

/// Each rule with a limit of its own policy, and all of the same one.
fn is_of_one_policy(words: &str) -> bool {
    let [ones, twos] = ["one-", "two-"].map(|name| words.matches(name).count());
    let [first, second] = ["=1", "=2"].map(|limit| words.matches(limit).count());
    (ones, twos) == (first, second) && (ones == 0 || twos == 0)
}

/// Decides until there is a file `stop`.
async fn decide_continuously(url: &str, out: &Path) {
    let view = View::follow(redis_registry(url, PATIENCE).await).await;
    let policy = LivePolicy::follow_published(&view).await;
    let store = connect_to(url, PATIENCE, PATIENCE).await.unwrap();
    let limiter = LiveLimiter {
        policy,
        view,
        store: Arc::new(Store::Redis(store)),
        on_failure: OnFailure::Tell,
        hot: None,
    };
    let file = OpenOptions::new().create(true).append(true).open(out).unwrap();
    let journal =
        Arc::new(Journal { file: Mutex::new((file, HashMap::new())), answers: AtomicU64::new(0) });
    let stop = out.with_file_name("stop");
    let task = |probe: &'static str| {
        let (limiter, journal, stop) = (limiter.clone(), journal.clone(), stop.clone());
        tokio::spawn(async move {
            while !stop.exists() {
                let verdict = ask(&limiter, &[id(probe), id("apikey:k")]).await;
                let words = in_words(&verdict);
                if !is_of_one_policy(&words) {
                    journal.note("half", words.clone());
                }
                journal.note(probe, words);
                journal.note("refusals", limiter.policy.status().refusals.to_string());
                tokio::time::sleep(Duration::from_micros(500)).await;
            }
        })
    };
    let tasks: Vec<_> = PROBES.iter().chain(&PROBES).map(|probe| task(probe)).collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert!(journal.answers.load(Ordering::Relaxed) > 500, "it hardly decided anything");
}

/// The two processes, ended with the test.
struct Fleet {
    children: Vec<(Child, PathBuf)>,
    dir: tempfile::TempDir,
}

impl Fleet {
    fn start(url: &str) -> Fleet {
        let dir = tempfile::tempdir().unwrap();
        let run = |n: usize| {
            let out = dir.path().join(format!("journal-{n}"));
            let child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "live::two_processes_obey_within_a_second_and_never_by_halves"])
                .env(CHILD_URL, url)
                .env(CHILD_OUT, &out)
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            (child, out)
        };
        Fleet { children: vec![run(1), run(2)], dir }
    }

    /// Whether this is the last that both saw of a probe.
    fn all_see(&self, probe: &str, what: &str) -> bool {
        self.children.iter().all(|(_, out)| {
            let text = fs::read_to_string(out).unwrap_or_default();
            let last = text.lines().rev().find_map(|l| l.strip_prefix(probe)?.strip_prefix('|'));
            last == Some(what)
        })
    }

    fn stop(mut self) {
        fs::write(self.dir.path().join("stop"), "").unwrap();
        for (child, out) in &mut self.children {
            assert!(child.wait().unwrap().success(), "a process did not end well");
            let journal = fs::read_to_string(out).unwrap();
            assert!(!journal.contains("half|"), "an answer was not of one policy:\n{journal}");
        }
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for (child, _) in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_obey_within_a_second_and_never_by_halves() {
    // This very test, run again by itself, is also the two processes.
    if let (Ok(url), Ok(out)) = (std::env::var(CHILD_URL), std::env::var(CHILD_OUT)) {
        return decide_continuously(&url, Path::new(&out)).await;
    }
    let server = RedisServer::start();
    let registry = redis_registry(&server.url(), PATIENCE).await;
    registry.publish(&policy(1), None, &intent()).await.unwrap();
    let fleet = Fleet::start(&server.url());
    let began = Instant::now();
    while !fleet.all_see("user:o", "pass one-user=1100000 one-key=1200000") {
        assert!(began.elapsed() < Duration::from_secs(30), "they do not decide");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let stalls = Stalls::watch();
    let obeyed = |probe: &str, what: &str| {
        within_a_second(&format!("{probe} {what}"), &stalls, || fleet.all_see(probe, what));
    };
    let (o, b) = (PROBES[0], PROBES[1]);
    let change = async |who: &str, change: Change| {
        registry.change(&id(who), &change, &intent()).await.unwrap();
    };
    let switch = async |switch: Switch| {
        registry.set_switch(&switch, &intent()).await.unwrap();
    };
    registry.publish(&policy(2), None, &intent()).await.unwrap();
    obeyed(o, "pass two-user=2100000 two-key=2200000");
    let limits = vec![OverrideLimit::new("2500000/1d".parse().unwrap(), None).unwrap()];
    change(o, Change::SetOverride { rule: "two-user".into(), limits, lasts: None }).await;
    obeyed(o, "pass two-user=2500000 two-key=2200000");
    change("apikey:k", Change::SetTier { tier: "gold".into(), lasts: None }).await;
    obeyed(o, "pass two-user=2500000 two-key=2300000");
    change(b, Change::Block { lasts: None }).await;
    obeyed(b, "refused blocked");
    switch(Switch::Observe(true)).await;
    obeyed(b, "observed blocked");
    switch(Switch::Observe(false)).await;
    obeyed(b, "refused blocked");
    switch(Switch::Disable { rule: "two-key".into() }).await;
    obeyed(o, "pass two-user=2500000");
    registry.publish(BROKEN, None, &intent()).await.unwrap();
    obeyed("refusals", "1");
    assert!(fleet.all_see(o, "pass two-user=2500000"), "the old one stays");
    for _ in 0..3 {
        registry.publish(&policy(1), None, &intent()).await.unwrap();
        obeyed(o, "pass one-user=1100000 one-key=1300000");
        registry.publish(&policy(2), None, &intent()).await.unwrap();
        obeyed(o, "pass two-user=2500000");
    }
    fleet.stop();
}
