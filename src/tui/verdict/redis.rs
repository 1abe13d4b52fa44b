//! The store is away, or slow.

use super::{Advice, Alarm, Cause, Does, Situation, Verdict, degraded_since, uncounted, usual};
use crate::tui::act::Act;
use crate::tui::data::{Rule, Shard, Snapshot};
use crate::tui::words::{count, lasts, percent, quoted, shown, took};

/// A store is slow from here on, if it is also several times slower than usual. One late answer in
/// a hundred is not yet an incident: deadlines are some 50 ms.
const SLOW_P50_US: u64 = 5_000;
const SLOW_P99_US: u64 = 100_000;
const TIMES_SLOWER: f64 = 4.0;

pub(super) fn away(situation: &Situation<'_>) -> Option<Verdict> {
    let now = situation.now;
    let primaries = || now.shards.iter().filter(|shard| counts(shard));
    let down: Vec<&Shard> =
        primaries().filter(|shard| shard.is_down || shard.open_breakers() > 0).collect();
    let is_degraded = now.rates.degraded() > 0.0;
    let known = now.gateways.iter().any(|gateway| gateway.policy_version.is_some());
    if down.is_empty() && !(is_degraded && known) {
        return None;
    }
    let headline = match down.as_slice() {
        [] => match now.shards.iter().find(|s| s.is_down && s.role.as_deref() == Some("gone")) {
            Some(gone) => format!(
                "REDIS, not traffic.  {} was replaced; gateways are about to follow.",
                shown(&gone.name)
            ),
            None => "REDIS, not traffic.  Calls are not answered within the deadline.".into(),
        },
        [one] if primaries().count() == 1 => {
            format!("REDIS, not traffic.  Primary {} is away.", shown(&one.name))
        }
        several => {
            let names: Vec<String> = several.iter().map(|shard| shown(&shard.name)).collect();
            let (n, of) = (several.len(), primaries().count());
            let is = if n == 1 { "is" } else { "are" };
            format!("REDIS, not traffic.  {n} of {of} primaries {is} away: {}.", names.join(", "))
        }
    };
    let mut verdict = Verdict::new(Cause::Redis, Alarm::Alarm, headline);
    let down_since = down.iter().filter_map(|shard| shard.down_since_us).min();
    verdict.since_us = [down_since, degraded_since(situation)].into_iter().flatten().min();
    shout(situation, &mut verdict);
    if let Some(why) = down.iter().find_map(|shard| shard.trouble.as_deref()) {
        verdict.because.push(format!("What gateways are told: {}", shown(why)));
    }
    failover(now, &down, &mut verdict);
    advise(now, &down, &mut verdict);
    Some(verdict)
}

/// Whether limits are kept there; not on replicas, nor where somebody else has taken over.
fn counts(shard: &Shard) -> bool {
    !is_beside(shard)
}

/// A replica, or a primary that was replaced.
fn is_beside(shard: &Shard) -> bool {
    matches!(shard.role.as_deref(), Some("replica" | "gone"))
}

/// Limits hold although servers are away, but who takes over when the next one dies?
pub(super) fn without_replica(now: &Snapshot) -> Option<Missed> {
    let away: Vec<&Shard> = now.shards.iter().filter(|s| is_beside(s) && s.is_down).collect();
    let is_followed = |primary: &Shard| {
        let follows = |of: Option<&str>| of.is_none_or(|of| of == primary.name);
        let up = now.shards.iter().filter(|s| s.role.as_deref() == Some("replica") && !s.is_down);
        up.map(|replica| replica.replica_of.as_deref()).any(follows)
    };
    // Where nobody has a replica, none is missed.
    let has_replicas = now.shards.iter().any(is_beside);
    let alone = now.shards.iter().filter(|s| counts(s) && !s.is_down && !is_followed(s));
    let alone: Vec<String> =
        alone.filter(|_| has_replicas).map(|shard| shown(&shard.name)).collect();
    if away.is_empty() && alone.is_empty() {
        return None;
    }
    let named = |shard: &&Shard| {
        let was = if shard.role.as_deref() == Some("gone") { "replaced" } else { "replica" };
        format!("{} ({was})", shown(&shard.name))
    };
    let first = match away.as_slice() {
        [] if alone.len() == 1 => format!("{} has no replica", alone[0]),
        [] => format!("{} have no replica", alone.join(", ")),
        [one] => format!("{} is away", named(one)),
        several => {
            format!("{} are away", several.iter().map(named).collect::<Vec<_>>().join(", "))
        }
    };
    let then = match alone.as_slice() {
        [] => "every primary still has another".into(),
        several => format!("if {} dies, nobody takes over", several.join(" or ")),
    };
    let advice = match away.first() {
        Some(shard) => Advice::new(format!("is {} running?", shown(&shard.name)), ping(shard)),
        None => Advice::new("who follows whom?", Does::Go("shards")),
    };
    Some(Missed { text: format!("{first}; {then}."), advice })
}

/// What is no trouble yet.
pub(super) struct Missed {
    pub(super) text: String,
    pub(super) advice: Advice,
}

/// What it means for requests, by how gateways decide meanwhile.
fn shout(situation: &Situation<'_>, verdict: &mut Verdict) {
    let now = situation.now;
    let rates = &now.rates;
    let of = now.gateways.iter().filter(|gateway| gateway.live).count();
    let n = |has: fn(&crate::tui::data::Rates) -> f64| {
        now.gateways.iter().filter(|gateway| gateway.live && has(&gateway.rates) > 0.0).count()
    };
    if rates.open > 0.0 {
        let since = verdict.since_us.unwrap_or(now.at_us);
        let total = count(uncounted(situation.past, since).max(rates.open));
        let share = crate::tui::data::share(rates.open, rates.all());
        let part = if share < 0.5 {
            format!(" for {} of requests", percent(share))
        } else {
            String::new()
        };
        verdict.shout = Some(format!(
            "LIMITS ARE NOT ENFORCED{part}: {} of {of} gateways fail open, {} requests/s pass uncounted, {total} so far",
            n(|rates| rates.open),
            count(rates.open)
        ));
    } else if rates.closed > 0.0 {
        verdict.shout = Some(format!(
            "REQUESTS ARE REFUSED: {} of {of} gateways fail closed, {}/s get 503",
            n(|rates| rates.closed),
            count(rates.closed)
        ));
    } else if rates.local > 0.0 {
        let local = n(|rates| rates.local);
        verdict.because.push(format!(
            "Still protected: {local} of {of} gateways enforce their share of each limit by themselves."
        ));
    } else if of == 0 {
        verdict.because.push("What gateways do meanwhile is not known: none is watched.".into());
    } else {
        let since = verdict.since_us.unwrap_or(now.at_us);
        verdict.because.push(match uncounted(situation.past, since) {
            n if n > 0.0 => format!("{} decisions were taken without it; none is now.", count(n)),
            _ => "No request has been decided without it so far.".into(),
        });
    }
}

/// Who could take over: those that follow one that is away.
fn failover(now: &Snapshot, down: &[&Shard], verdict: &mut Verdict) {
    let follows = |replica: &Shard| {
        let of = replica.replica_of.as_deref();
        of.is_none_or(|of| down.iter().any(|shard| shard.name == of))
    };
    let replicas: Vec<&Shard> = now
        .shards
        .iter()
        .filter(|shard| shard.role.as_deref() == Some("replica") && !shard.is_down)
        .filter(|shard| follows(shard))
        .collect();
    let Some(best) = replicas.iter().min_by_key(|replica| replica.lag_us.unwrap_or(u64::MAX))
    else {
        if !down.is_empty() && now.shards.iter().any(is_beside) {
            let nobody = "No replica of it is up: limits come back when it does.";
            verdict.because.push(nobody.into());
        }
        return;
    };
    let lag = best.lag_us.map(|lag| format!(", {} behind", lasts(lag))).unwrap_or_default();
    let (n, name) = (replicas.len(), shown(&best.name));
    verdict.because.push(match n {
        1 => format!("Its replica {name} is up{lag} and can take over."),
        _ => format!("{n} replicas are up; {name}{lag} can take over."),
    });
}

fn advise(now: &Snapshot, down: &[&Shard], verdict: &mut Verdict) {
    if now.rates.open > 0.0 {
        let is_open = |rule: &&Rule| {
            rule.degraded > 0.0 && rule.on_store_error.as_deref().is_none_or(|mode| mode == "open")
        };
        let open = now.rules.iter().filter(is_open);
        if let Some(rule) = open.max_by(|a, b| a.degraded.total_cmp(&b.degraded)) {
            let act = Act::Mode { rule: rule.name.clone(), mode: "local" };
            let text = format!("protect again: let rule {} fail LOCAL", shown(&rule.name));
            verdict.advice.push(Advice::new(text, Does::Act(act)));
        }
    }
    verdict.advice.push(Advice::new("which servers are up, who takes over?", Does::Go("shards")));
    if let Some(shard) = down.first() {
        verdict.advice.push(Advice::new("ask that server itself", ping(shard)));
    }
    let doctor = Does::Command("rlctl doctor".into());
    verdict.advice.push(Advice::new("examine the whole deployment", doctor));
}

fn ping(shard: &Shard) -> Does {
    Does::Command(match shard.name.rsplit_once(':') {
        None => "redis-cli ping".into(),
        Some((host, port)) => format!("redis-cli -h {} -p {} ping", quoted(host), quoted(port)),
    })
}

pub(super) fn slow(situation: &Situation<'_>) -> Option<Verdict> {
    let now = situation.now;
    let slowest =
        now.shards.iter().filter(|shard| counts(shard)).max_by_key(|shard| shard.latency_us())?;
    let is_slow = slowest.p50_us.is_some_and(|us| us >= SLOW_P50_US)
        || slowest.latency_us().is_some_and(|us| us >= SLOW_P99_US);
    let latency = slowest.latency_us().filter(|_| is_slow)?;
    let minute_ago = now.at_us.saturating_sub(60_000_000);
    let usual = usual(situation.past, minute_ago, |point| point.p99_us.map(|us| us as f64));
    if usual.is_some_and(|usual| (latency as f64) < usual * TIMES_SLOWER) {
        return None;
    }
    let name = shown(&slowest.name);
    let mut verdict = Verdict::new(
        Cause::Redis,
        Alarm::Watch,
        format!("REDIS is slow, not away.  {name} answers in {} (p99).", took(Some(latency))),
    );
    let was = usual.map(|usual| format!("Usual is {}. ", took(Some(usual as u64))));
    verdict.because = vec![format!(
        "{}Limits are enforced, and each request waits for it.",
        was.unwrap_or_default()
    )];
    verdict.since_us = super::began(situation.past, |p| {
        p.p99_us.is_some_and(|us| us as f64 >= usual.unwrap_or(0.0) * TIMES_SLOWER)
    })
    .filter(|_| usual.is_some());
    verdict.advice = vec![
        Advice::new("which server, since when?", Does::Go("shards")),
        Advice::new("what is slow on it?", Does::Command("redis-cli slowlog get 16".into())),
    ];
    Some(verdict)
}
