//! More is refused than usual: because of who asks, or because of what the rules say since lately.

use super::{Advice, Alarm, Cause, Does, Situation, Verdict, began, usual};
use crate::tui::act::{Act, raised};
use crate::tui::data::{Snapshot, Who};
use crate::tui::words::{count, lasts, percent, shown, took};

/// Below this share of refusals nobody needs to get up.
const NOTABLE: f64 = 0.01;
const TIMES_USUAL: f64 = 3.0;
/// One identity is the story from here on.
const ONE_IS_MOST: f64 = 0.5;
/// And is no more once it makes less than this of what is refused now.
const STILL_ASKS: f64 = 0.05;
/// A change of the rules is suspected for this long.
const RULES_SUSPECT_US: u64 = 3_600_000_000;

/// What is refused more than usual, and since when.
struct Rise {
    share: f64,
    usual: Option<f64>,
    since_us: Option<u64>,
}

fn rise(situation: &Situation<'_>) -> Option<Rise> {
    let past = situation.past;
    // One quiet second in an incident changes nothing: the last five are looked at together.
    let last = past.len().saturating_sub(5);
    let (all, rejected) = past[last..]
        .iter()
        .fold((0.0, 0.0), |(all, rejected), p| (all + p.all(), rejected + p.rejected));
    let share = crate::tui::data::share(rejected, all);
    if share < NOTABLE {
        return None;
    }
    let above = |bar: f64| move |point: &crate::tui::data::Point| point.rejected_share() >= bar;
    let first_guess = began(past, above(NOTABLE));
    let usual = usual(past, first_guess.unwrap_or(u64::MAX), |p| Some(p.rejected_share()));
    let bar = usual.map_or(NOTABLE, |usual| (usual * TIMES_USUAL).max(NOTABLE));
    if share < bar {
        return None;
    }
    let oldest = past.first().map(|point| point.at_us);
    let since_us = began(past, above(bar)).filter(|since| Some(*since) != oldest);
    Some(Rise { share, usual, since_us })
}

/// Many are hit at once, and the rules have changed just before.
pub(super) fn config(situation: &Situation<'_>) -> Option<Verdict> {
    let now = situation.now;
    if let Some(why) = &now.policy.refused
        && now.policy.version.is_none()
    {
        let mut verdict = Verdict::new(
            Cause::Config,
            Alarm::Alarm,
            "CONFIG.  No policy is in force: the one that is there cannot be used.",
        );
        verdict.because = vec![shown(why)];
        verdict.advice = vec![lint()];
        return Some(verdict);
    }
    let changed = now.policy.changed_us?;
    let rise = rise(situation)?;
    let since = rise.since_us?;
    // A gateway that was just started has just read its policy, too: there is no before to compare with.
    let usual = rise.usual?;
    let first = now.rejected.first();
    let is_one = first.is_some_and(|first| first.share > ONE_IS_MOST);
    let is_after = since + 5_000_000 >= changed && since < changed + RULES_SUSPECT_US;
    if is_one || !is_after || now.rejected.len() < 3 || now.at_us > changed + RULES_SUSPECT_US {
        return None;
    }
    let rule = now.rules.iter().max_by(|a, b| a.rejected.total_cmp(&b.rejected))?;
    let version = now.policy.version.map_or("the new one".into(), |n| format!("version {n}"));
    let name = shown(&rule.name);
    let mut verdict = Verdict::new(
        Cause::Config,
        Alarm::Alarm,
        format!(
            "CONFIG, not traffic.  Many clients are refused since policy {version}, by rule {name}."
        ),
    );
    verdict.since_us = Some(since);
    verdict.rule = Some(rule.name.clone());
    verdict.because = vec![
        format!(
            "The policy changed {} before; refusals went {} -> {}.",
            lasts(since.saturating_sub(changed)),
            percent(usual),
            percent(rise.share)
        ),
        format!("No client has more than {} of them.", percent(first.map_or(0.0, |w| w.share))),
    ];
    let before = now.policy.version.and_then(|n| n.checked_sub(1)).filter(|n| *n > 0);
    if let Some(before) = before {
        let rollback = format!("rlctl rules rollback {before} --reason 'too strict'");
        verdict.advice.push(Advice::new(
            format!("go back to version {before} of the policy"),
            Does::Command(rollback),
        ));
        let diff = format!("rlctl rules diff store:{before} store");
        verdict.advice.push(Advice::new("what was changed?", Does::Command(diff)));
    }
    verdict.advice.push(Advice::new("which rule refuses how much?", Does::Go("rules")));
    Some(verdict)
}

fn lint() -> Advice {
    Advice::new("what is wrong in the file?", Does::Command("rlctl rules lint".into()))
}

pub(super) fn traffic(situation: &Situation<'_>) -> Option<Verdict> {
    let now = situation.now;
    let rise = rise(situation)?;
    let first = now.rejected.first();
    // Shares look back some while: whoever has stopped asking is not what goes on now.
    let still_asks = |who: &Who| who.per_second >= now.rates.rejected * STILL_ASKS;
    let mut verdict = match first {
        Some(who) if who.share > ONE_IS_MOST && still_asks(who) => one(who),
        _ => many(now),
    };
    verdict.since_us = rise.since_us;
    verdict.because.insert(0, healthy(now));
    let usual = rise.usual.map(|usual| format!(" (usual {})", percent(usual)));
    verdict.because.push(format!(
        "{} of all requests are refused{}, {}/s.",
        percent(rise.share),
        usual.unwrap_or_default(),
        count(now.rates.rejected)
    ));
    if rise.since_us.is_none() {
        verdict.because.push("It has been so for as long as is known.".into());
        verdict.alarm = Alarm::Watch;
    }
    Some(verdict)
}

fn one(who: &Who) -> Verdict {
    let (name, rule) = (shown(&who.identity), shown(&who.rule));
    let mut verdict = Verdict::new(
        Cause::Traffic,
        Alarm::Alarm,
        format!(
            "TRAFFIC, not Redis.  One client makes {} of rejections: {name}  rule {rule}",
            percent(who.share)
        ),
    );
    verdict.who = Some(who.identity.clone());
    verdict.rule = Some(who.rule.clone());
    let identity = || who.identity.clone();
    verdict.advice = vec![
        Advice::new(format!("look at {name}: why is it refused?"), Does::Look(identity())),
        Advice::new(
            format!("block {name} for 15m"),
            Does::Act(Act::Block { identity: identity() }),
        ),
    ];
    if let Some(limit) = who.limit.as_deref().and_then(raised) {
        let act =
            Act::Override { identity: identity(), rule: who.rule.clone(), limit: limit.clone() };
        let text = format!("or make room: {limit} for it, 15m");
        verdict.advice.push(Advice::new(text, Does::Act(act)));
    }
    verdict
}

fn many(now: &Snapshot) -> Verdict {
    let rule = now.rules.iter().max_by(|a, b| a.rejected.total_cmp(&b.rejected));
    let by = rule.map(|rule| format!(", most by rule {}", shown(&rule.name))).unwrap_or_default();
    let n = now.rejected.len();
    let n = if n >= crate::tui::data::MAX_WHO { format!("{n} or more") } else { n.to_string() };
    let mut verdict = Verdict::new(
        Cause::Traffic,
        Alarm::Alarm,
        format!("TRAFFIC, not Redis.  {n} clients are refused, none of them most of it{by}."),
    );
    verdict.rule = rule.map(|rule| rule.name.clone());
    if let Some(first) = now.rejected.first() {
        let text = format!("look at the most refused, {}", shown(&first.identity));
        verdict.advice.push(Advice::new(text, Does::Look(first.identity.clone())));
    }
    verdict.advice.push(Advice::new("which rule refuses how much?", Does::Go("rules")));
    verdict.advice.push(Advice::new("who asks most?", Does::Go("keys")));
    verdict
}

fn healthy(now: &Snapshot) -> String {
    let p99 = now.shards.iter().filter_map(|shard| shard.latency_us()).max();
    let store = match (now.shards.is_empty(), p99) {
        (true, _) => "Limits are kept in memory, without Redis.".into(),
        (false, Some(_)) => format!("Redis is healthy (p99 {}, breakers closed).", took(p99)),
        (false, None) => "Redis is connected.".to_string(),
    };
    match now.policy.changed_us {
        Some(changed) => {
            let age = lasts(now.at_us.saturating_sub(changed));
            format!("{store}  Rules changed {age} ago.")
        }
        None => store,
    }
}
