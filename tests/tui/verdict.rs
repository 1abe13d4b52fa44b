//! The verdict on recorded situations.

use rlctl::tui::data::{Gateway, Point, Rates, Shard, Snapshot, Source, Who};
use rlctl::tui::verdict::{Alarm, Cause, Does, Situation, Verdict, verdict};

use super::{judged, told};

fn of_story(story: &str, seconds: u64) -> (Verdict, u64) {
    let (_, mut past, moments) = told(story, seconds);
    past.extend(moments.iter().map(Point::of));
    let now = moments.last().unwrap();
    (verdict(&Situation { now, past: &past }), now.at_us)
}

#[test]
fn a_quiet_evening_is_called_that() {
    let (verdict, _) = of_story("incident", 8);
    assert_eq!((verdict.cause, verdict.alarm), (Cause::NothingWrong, Alarm::Calm));
    assert_eq!(verdict.shout, None);
}

#[test]
fn a_hot_key_is_traffic_with_who_rule_and_since_when() {
    let (verdict, now) = of_story("incident", 20);
    assert_eq!(verdict.cause, Cause::Traffic);
    assert_eq!(verdict.who.as_deref(), Some("apikey:ak_7f3c2"));
    assert_eq!(verdict.rule.as_deref(), Some("search"));
    // It began in the eleventh second.
    let since = now - verdict.since_us.unwrap();
    assert!((8_000_000..=10_000_000).contains(&since), "{since}");
    assert!(verdict.headline.starts_with("TRAFFIC, not Redis."), "{}", verdict.headline);
    assert!(matches!(&verdict.advice[0].does, Does::Look(who) if who == "apikey:ak_7f3c2"));
}

#[test]
fn a_dead_primary_is_named_at_once_and_fail_open_is_shouted() {
    let (verdict, now) = of_story("failover", 11);
    assert_eq!((verdict.cause, verdict.alarm), (Cause::Redis, Alarm::Alarm));
    assert!(verdict.headline.contains("10.0.0.5:6379"), "{}", verdict.headline);
    let shout = verdict.shout.clone().unwrap();
    assert!(shout.starts_with("LIMITS ARE NOT ENFORCED: 4 of 4 gateways fail open"), "{shout}");
    assert!(now - verdict.since_us.unwrap() <= 2_000_000);
    assert!(matches!(verdict.advice[0].does, Does::Act(_)));
}

#[test]
fn recovery_is_told_with_what_was_missed() {
    let (verdict, _) = of_story("failover", 38);
    // The server that died is not back yet.
    assert_eq!((verdict.cause, verdict.alarm), (Cause::NothingWrong, Alarm::Watch));
    assert!(verdict.headline.starts_with("RECOVERED"), "{}", verdict.headline);
    assert!(verdict.because[1].contains("Redis was away 21s"), "{:?}", verdict.because);
    let (verdict, _) = of_story("failover", 44);
    assert_eq!((verdict.cause, verdict.alarm), (Cause::NothingWrong, Alarm::Calm));
    assert!(verdict.because[0].contains("Redis was away 21s"), "{:?}", verdict.because);
}

#[test]
fn rules_that_hit_many_at_once_are_the_cause() {
    let (verdict, _) = of_story("config", 25);
    assert_eq!(verdict.cause, Cause::Config, "{verdict:?}");
    assert_eq!(verdict.rule.as_deref(), Some("plan"));
    assert!(matches!(&verdict.advice[0].does, Does::Command(c) if c.contains("rules rollback 41")));
}

#[test]
fn a_gateway_that_was_just_started_is_no_change_of_the_rules() {
    let (_, mut past, moments) = told("config", 25);
    past.extend(moments.iter().map(Point::of));
    // All that is known began with the refusals.
    let now = moments.last().unwrap();
    past.retain(|point| point.at_us + 12_000_000 > now.at_us);
    let verdict = verdict(&Situation { now, past: &past });
    assert_eq!(verdict.cause, Cause::Traffic, "{verdict:?}");
}

#[test]
fn a_slow_redis_and_a_wrong_clock_are_told_apart() {
    let (slow, _) = of_story("trouble", 25);
    assert_eq!((slow.cause, slow.alarm), (Cause::Redis, Alarm::Watch), "{slow:?}");
    let (clock, _) = of_story("trouble", 70);
    assert_eq!(clock.cause, Cause::Clock, "{clock:?}");
    assert!(clock.headline.contains("10.0.0.7:6379"), "{}", clock.headline);
}

/// One gateway with one server behind it, at 100 s.
fn healthy() -> Snapshot {
    let rates = Rates { allowed: 100.0, ..Rates::default() };
    let gateway = Gateway {
        id: "a".into(),
        rates,
        policy_version: Some(1),
        live: true,
        ready: true,
        ..Gateway::default()
    };
    let shard = Shard { name: "s:1".into(), role: Some("primary".into()), ..Shard::default() };
    let source = Source { name: "g".into(), heard_us: Some(100_000_000), trouble: None };
    Snapshot {
        at_us: 100_000_000,
        sources: vec![source],
        rates,
        gateways: vec![gateway],
        shards: vec![shard],
        ..Snapshot::default()
    }
}

#[test]
fn silence_is_never_health() {
    let mut now = healthy();
    now.sources[0].heard_us = Some(90_000_000);
    assert_eq!(judged(&now).cause, Cause::NoData);
    now.sources.push(Source { name: "h".into(), heard_us: Some(100_000_000), trouble: None });
    let verdict = judged(&now);
    assert_eq!((verdict.cause, verdict.alarm), (Cause::NothingWrong, Alarm::Watch));
    assert!(verdict.because[0].contains("1 of 2 sources"), "{:?}", verdict.because);
}

#[test]
fn limits_that_are_off_are_shouted_whatever_the_reason() {
    let mut observing = healthy();
    observing.observe_only = true;
    assert_eq!(judged(&observing).cause, Cause::FailOpen);
    assert!(judged(&observing).shout.unwrap().contains("observe-only"));
    let mut without_policy = healthy();
    without_policy.gateways[0].policy_version = None;
    without_policy.rates.open = 100.0;
    let verdict = judged(&without_policy);
    assert_eq!(verdict.cause, Cause::FailOpen);
    assert!(verdict.shout.unwrap().contains("100% of requests"));
}

#[test]
fn what_gateways_do_without_redis_is_said() {
    let with = |change: fn(&mut Rates)| {
        let mut now = healthy();
        now.shards[0].is_down = true;
        change(&mut now.rates);
        now.gateways[0].rates = now.rates;
        judged(&now)
    };
    let closed = with(|rates| rates.closed = 50.0);
    assert!(closed.shout.unwrap().starts_with("REQUESTS ARE REFUSED"));
    let local = with(|rates| rates.local = 50.0);
    assert_eq!((local.cause, local.shout), (Cause::Redis, None));
    assert!(local.because[0].starts_with("Still protected"), "{:?}", local.because);
    let none = with(|_| ());
    assert_eq!(none.cause, Cause::Redis);
}

#[test]
fn an_outage_that_is_over_is_told_beside_whatever_came_after() {
    let (_, mut past, moments) = told("hot-key", 20);
    // Redis was away for the ten seconds before.
    past.iter_mut().rev().take(10).for_each(|point| point.degraded = 500.0);
    past.extend(moments.iter().map(Point::of));
    let now = moments.last().unwrap();
    let verdict = verdict(&Situation { now, past: &past });
    assert_eq!(verdict.cause, Cause::Traffic);
    let recovered = &verdict.because[0];
    assert!(recovered.starts_with("RECOVERED "), "{verdict:?}");
    assert!(recovered.contains("Redis was away 9s"), "{recovered}");
}

#[test]
fn a_server_that_was_replaced_is_no_trouble_any_more() {
    let mut now = healthy();
    let gone =
        Shard { name: "s:2".into(), role: Some("gone".into()), is_down: true, ..Shard::default() };
    now.shards.push(gone);
    let verdict = judged(&now);
    assert_eq!(verdict.cause, Cause::NothingWrong);
    assert!(verdict.headline.ends_with("Limits are enforced."), "{}", verdict.headline);
}

/// Three primaries, each with a replica.
fn cluster() -> Snapshot {
    let mut now = healthy();
    let server = |n: u16, of: Option<u16>| Shard {
        name: format!("10.0.0.{n}:6379"),
        role: Some(if of.is_some() { "replica" } else { "primary" }.into()),
        replica_of: of.map(|of| format!("10.0.0.{of}:6379")),
        ping_us: Some(200),
        ..Shard::default()
    };
    now.shards = (1..=3).map(|n| server(n, None)).collect();
    now.shards.extend((1..=3).map(|n| server(n + 3, Some(n))));
    now
}

#[test]
fn a_replica_that_is_away_is_a_warning_that_says_who_is_left_alone() {
    assert_eq!(judged(&cluster()).alarm, Alarm::Calm);
    let mut now = cluster();
    now.shards[4].is_down = true;
    let verdict = judged(&now);
    assert_eq!((verdict.cause, verdict.alarm), (Cause::NothingWrong, Alarm::Watch));
    assert_eq!(
        verdict.because[0],
        "10.0.0.5:6379 (replica) is away; if 10.0.0.2:6379 dies, nobody takes over."
    );
    assert!(matches!(&verdict.advice[0].does, Does::Command(c) if c.contains("-h 10.0.0.5")));
    // Whoever opens the dashboard later, when nobody names it any more, is told, too.
    now.shards.remove(4);
    let verdict = judged(&now);
    assert_eq!(
        verdict.because[0],
        "10.0.0.2:6379 has no replica; if 10.0.0.2:6379 dies, nobody takes over."
    );
    let mut two_each = cluster();
    two_each.shards.push(Shard { name: "10.0.0.7:6379".into(), ..cluster().shards[4].clone() });
    two_each.shards[4].is_down = true;
    let verdict = judged(&two_each);
    assert_eq!(
        verdict.because[0],
        "10.0.0.5:6379 (replica) is away; every primary still has another."
    );
}

#[test]
fn whoever_was_replaced_is_missed_and_traffic_does_not_hide_it() {
    let mut now = cluster();
    now.shards[0].is_down = true;
    now.shards[0].role = Some("gone".into());
    now.shards[3].role = Some("primary".into());
    let verdict = judged(&now);
    assert_eq!((verdict.cause, verdict.alarm), (Cause::NothingWrong, Alarm::Watch));
    let missed = "10.0.0.1:6379 (replaced) is away; if 10.0.0.4:6379 dies, nobody takes over.";
    assert_eq!(verdict.because[0], missed);
    now.rates.open = 50.0;
    let said = judged(&now).headline;
    assert!(said.contains("10.0.0.1:6379 was replaced; gateways are about to"), "{said}");
    now.rates.open = 0.0;
    now.rates.rejected = 100.0;
    now.rejected = vec![Who {
        identity: "user:1".into(),
        per_second: 100.0,
        weight: 100.0,
        share: 1.0,
        ..Who::default()
    }];
    let verdict = judged(&now);
    assert_eq!(verdict.cause, Cause::Traffic);
    assert!(verdict.because.iter().any(|why| why == missed), "{:?}", verdict.because);
}

#[test]
fn a_primary_that_nobody_can_replace_is_told_so() {
    let mut now = cluster();
    now.shards[0].is_down = true;
    let verdict = judged(&now);
    assert_eq!(verdict.cause, Cause::Redis);
    let because = |verdict: &Verdict| verdict.because.join("\n");
    assert!(because(&verdict).contains("Its replica 10.0.0.4:6379 is up"), "{verdict:?}");
    now.shards[3].is_down = true;
    let verdict = judged(&now);
    assert!(because(&verdict).contains("No replica of it is up"), "{verdict:?}");
}

#[test]
fn whoever_has_stopped_asking_is_not_named() {
    let mut now = healthy();
    now.rates.rejected = 40.0;
    let who = |name: &str, per_second: f64, share: f64| Who {
        identity: name.into(),
        per_second,
        share,
        weight: share,
        rule: "r".into(),
        ..Who::default()
    };
    now.rejected = vec![who("user:gone", 0.0, 0.7), who("user:here", 40.0, 0.3)];
    let gone = judged(&now);
    assert_eq!(gone.cause, Cause::Traffic);
    assert!(!gone.headline.contains("user:gone"), "{}", gone.headline);
    now.rejected[0].per_second = 30.0;
    assert!(judged(&now).headline.contains("user:gone"));
}

#[test]
fn names_that_attack_the_terminal_are_escaped_in_every_sentence() {
    let mut now = healthy();
    let evil = "user:\u{1b}]0;owned\u{7}\u{202e}";
    now.rates.rejected = 100.0;
    now.rejected = vec![Who {
        identity: evil.into(),
        per_second: 100.0,
        weight: 100.0,
        share: 1.0,
        rule: "r\u{1b}[2J".into(),
        limit: Some("10/1s".into()),
        ..Who::default()
    }];
    let verdict = judged(&now);
    assert_eq!(verdict.cause, Cause::Traffic);
    let mut said = vec![verdict.headline];
    said.extend(verdict.because);
    said.extend(verdict.advice.into_iter().map(|advice| advice.text));
    for text in said {
        assert!(!text.chars().any(|c| c.is_control() || c == '\u{202e}'), "{text:?}");
    }
}

#[test]
fn a_scenario_file_is_told_on_the_same_screens() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let causes = |name: &str| {
        let (scenarios, _) = rlctl::scenario::load(&path.join(name)).unwrap();
        let moments = rlctl::tui::demo::scenario::moments(&scenarios[0]).unwrap();
        let mut past = Vec::new();
        let mut said = Vec::new();
        for now in &moments {
            past.push(Point::of(now));
            said.push(verdict(&Situation { now, past: &past }).cause);
        }
        said.dedup();
        said
    };
    let down = causes("redis-down-open.toml");
    assert!(down.contains(&Cause::Redis), "{down:?}");
    assert_ne!(down.last(), Some(&Cause::Redis), "it ends: {down:?}");
    assert!(causes("hot-key.toml").contains(&Cause::Traffic));
}
