//! The first sentence: is it traffic, Redis, the rules, a clock, or is nothing wrong; since when,
//! who, by which rule, and what to do. A pure function of what is known, so that recorded incidents
//! can be its tests.
//!
//! Asked in the order in which an answer matters: nobody can be protected by figures that are
//! missing; limits that are not enforced are worse than limits that are; a broken store explains
//! everything after it.

mod calm;
mod redis;
mod traffic;

use super::act::Act;
use super::data::{Point, Snapshot, share};
use super::words::{lasts, time};

/// What is looked at: a moment, and the minutes before it, oldest first.
#[derive(Clone, Copy, Debug)]
pub struct Situation<'a> {
    pub now: &'a Snapshot,
    pub past: &'a [Point],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    NothingWrong,
    Traffic,
    Redis,
    Config,
    Clock,
    /// Limits are off although Redis answers.
    FailOpen,
    /// Nothing can be said.
    NoData,
}

impl Cause {
    pub fn name(self) -> &'static str {
        match self {
            Cause::NothingWrong => "NOTHING WRONG",
            Cause::Traffic => "TRAFFIC",
            Cause::Redis => "REDIS",
            Cause::Config => "CONFIG",
            Cause::Clock => "CLOCK",
            Cause::FailOpen => "FAIL-OPEN",
            Cause::NoData => "NO DATA",
        }
    }
}

/// How loud it is said; a word goes with each colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Alarm {
    Calm,
    Watch,
    Alarm,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    pub cause: Cause,
    pub alarm: Alarm,
    /// Begins with the cause.
    pub headline: String,
    /// The loudest thing on the screen, where limits are not enforced.
    pub shout: Option<String>,
    /// What speaks for it, most important first.
    pub because: Vec<String>,
    pub since_us: Option<u64>,
    pub who: Option<String>,
    pub rule: Option<String>,
    pub advice: Vec<Advice>,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub struct Advice {
    pub text: String,
    pub does: Does,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Does {
    /// Changes something; needs write mode.
    Act(Act),
    /// Goes to the screen of this identity.
    Look(String),
    /// Shows the command, to be copied: for what the dashboard does not do itself.
    Command(String),
    /// Goes to the screen with this name.
    Go(&'static str),
}

impl Advice {
    fn new(text: impl Into<String>, does: Does) -> Advice {
        Advice { text: text.into(), does }
    }
}

impl Verdict {
    fn new(cause: Cause, alarm: Alarm, headline: impl Into<String>) -> Verdict {
        Verdict {
            cause,
            alarm,
            headline: headline.into(),
            shout: None,
            because: Vec::new(),
            since_us: None,
            who: None,
            rule: None,
            advice: Vec::new(),
        }
    }

    /// `since 14:02:11 (3m01s)`.
    pub fn since(&self, now_us: u64) -> Option<String> {
        let since = self.since_us?;
        Some(format!("since {} ({})", time(since), lasts(now_us.saturating_sub(since))))
    }
}

/// A rate is believed to have held for at most this long.
const MAX_GAP_US: u64 = 2_000_000;
/// A clock that is off by this much makes windows of a second meaningless.
const CLOCK_OFF_US: u64 = 1_000_000;

pub fn verdict(situation: &Situation<'_>) -> Verdict {
    no_data(situation)
        .or_else(|| redis::away(situation))
        .or_else(|| fail_open(situation))
        .or_else(|| while_enforced(situation))
        .unwrap_or_else(|| calm::nothing_wrong(situation))
}

/// What is wrong although limits are enforced; what has become of the store is told beside it.
fn while_enforced(situation: &Situation<'_>) -> Option<Verdict> {
    let mut verdict = clock(situation)
        .or_else(|| redis::slow(situation))
        .or_else(|| traffic::config(situation))
        .or_else(|| traffic::traffic(situation))?;
    if let Some(outage) = calm::last_outage(situation) {
        let ago = lasts(outage.over_for(situation.now.at_us));
        verdict.because.insert(0, format!("RECOVERED {ago} ago.  {}", outage.told()));
    }
    verdict.because.extend(redis::without_replica(situation.now).map(|missed| missed.text));
    Some(verdict)
}

fn no_data(situation: &Situation<'_>) -> Option<Verdict> {
    let now = situation.now;
    let is_any_live = now.sources.iter().any(|source| source.is_live(now.at_us));
    if is_any_live || now.sources.is_empty() {
        return None;
    }
    let heard = now.sources.iter().filter_map(|source| source.heard_us).max();
    let mut verdict = Verdict::new(
        Cause::NoData,
        Alarm::Alarm,
        match heard {
            Some(_) => "NO DATA.  Every source has gone silent; what is below is old.",
            None => "NO DATA yet.  No source has answered so far.",
        },
    );
    verdict.since_us = heard;
    let told = |source: &super::data::Source| {
        let why = source.trouble.as_deref().unwrap_or("it says nothing");
        format!("{}: {}", super::words::shown(&source.name), super::words::shown(why))
    };
    verdict.because = now.sources.iter().map(told).collect();
    verdict.advice = vec![
        Advice::new("is the gateway running, and is this its admin address?", Does::Go("shards")),
        Advice::new("look at Redis without the gateways", Does::Command("rlctl doctor".into())),
    ];
    Some(verdict)
}

/// Requests pass unlimited, and Redis is not the reason.
fn fail_open(situation: &Situation<'_>) -> Option<Verdict> {
    let now = situation.now;
    if now.rates.open > 0.0 {
        let mut verdict = Verdict::new(
            Cause::FailOpen,
            Alarm::Alarm,
            "FAIL-OPEN.  Gateways decide without limits although Redis answers.",
        );
        let share = super::words::percent(share(now.rates.open, now.rates.all()));
        verdict.shout = Some(format!("LIMITS ARE NOT ENFORCED for {share} of requests"));
        verdict.since_us = degraded_since(situation);
        let without = now.gateways.iter().filter(|g| g.policy_version.is_none()).count();
        if without > 0 {
            verdict.because.push(format!("{without} gateways have no policy, and then allow all"));
        }
        verdict.advice = vec![
            Advice::new("is there a policy?", Does::Command("rlctl rules history".into())),
            Advice::new("is the deadline too short for Redis?", Does::Go("shards")),
        ];
        return Some(verdict);
    }
    if !now.observe_only {
        return None;
    }
    let mut verdict = Verdict::new(
        Cause::FailOpen,
        Alarm::Alarm,
        "FAIL-OPEN.  The limiter only observes: somebody has switched enforcing off.",
    );
    verdict.shout = Some("LIMITS ARE NOT ENFORCED: observe-only is on".into());
    verdict.advice = vec![
        Advice::new("who did it, and why?", Does::Command("rlctl events --audit".into())),
        Advice::new(
            "enforce again",
            Does::Command("rlctl rules observe off --reason 'enforce again'".into()),
        ),
    ];
    Some(verdict)
}

fn clock(situation: &Situation<'_>) -> Option<Verdict> {
    let now = situation.now;
    let clocks = || {
        let of_shards = now.shards.iter().map(|s| (&s.name, s.clock_us));
        let of_gateways = now.gateways.iter().filter(|g| g.live).map(|g| (&g.id, g.clock_us));
        of_shards.chain(of_gateways).filter_map(|(name, clock)| Some((name, clock?)))
    };
    let (first, last) = (clocks().min_by_key(|c| c.1)?, clocks().max_by_key(|c| c.1)?);
    if first.1.abs_diff(last.1) < CLOCK_OFF_US {
        return None;
    }
    // The one that is further from this machine's is more likely the wrong one.
    let (wrong, off) = if first.1.unsigned_abs() > last.1.unsigned_abs() { first } else { last };
    let off = super::words::offset(Some(off));
    let wrong = super::words::shown(wrong);
    let mut verdict = Verdict::new(
        Cause::Clock,
        Alarm::Watch,
        format!("CLOCK.  The clock of {wrong} is off by {off}."),
    );
    verdict.because = vec![
        "Windows begin and end by the store's clock: after a failover they jump, and Retry-After \
         and reset times are wrong by as much."
            .into(),
    ];
    verdict.advice = vec![
        Advice::new(
            format!("is time synchronised on {wrong}?"),
            Does::Command("chronyc tracking".into()),
        ),
        Advice::new("all clocks side by side", Does::Go("shards")),
    ];
    Some(verdict)
}

/// Since when decisions are taken without the store: as gateways say, else as the past shows.
fn degraded_since(situation: &Situation<'_>) -> Option<u64> {
    let told = situation.now.gateways.iter().filter_map(|g| g.degraded_since_us).min();
    told.or_else(|| began(situation.past, |point| point.degraded > 0.0))
}

/// When what holds now began to hold, with gaps of up to three seconds in it.
fn began(past: &[Point], holds: impl Fn(&Point) -> bool) -> Option<u64> {
    let mut found = None;
    let mut gap = 0;
    for point in past.iter().rev() {
        if holds(point) {
            (found, gap) = (Some(point.at_us), 0);
        } else {
            gap += 1;
            if gap > 3 {
                break;
            }
        }
    }
    found
}

/// Decisions that were taken without the store from then on: rates by the time they held.
fn uncounted(past: &[Point], since_us: u64) -> f64 {
    let first = past.partition_point(|point| point.at_us < since_us);
    let before = first.checked_sub(1).map_or(since_us, |n| past[n].at_us);
    let mut last = before.max(since_us.saturating_sub(MAX_GAP_US));
    let mut sum = 0.0;
    for point in &past[first..] {
        let held = point.at_us.saturating_sub(last).min(MAX_GAP_US);
        sum += point.degraded * held as f64 / 1e6;
        last = point.at_us;
    }
    sum
}

/// What is usual: the median of a figure over the older half of the past, without the last minute.
fn usual(past: &[Point], until_us: u64, of: impl Fn(&Point) -> Option<f64>) -> Option<f64> {
    let mut figures: Vec<f64> =
        past.iter().take_while(|point| point.at_us < until_us).filter_map(of).collect();
    // Fewer seconds than this are an accident, not a habit.
    if figures.len() < 10 {
        return None;
    }
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied()
}
