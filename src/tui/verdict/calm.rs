//! Nothing is wrong, or nothing any more.

use super::redis::without_replica;
use super::{Advice, Alarm, Cause, Does, Situation, Verdict};
use crate::tui::words::{count, lasts, percent, shown, time, took};

/// An incident that is over is told for this long.
const TOLD_FOR_US: u64 = 120_000_000;

pub(super) fn nothing_wrong(situation: &Situation<'_>) -> Verdict {
    let now = situation.now;
    let mut verdict =
        Verdict::new(Cause::NothingWrong, Alarm::Calm, "NOTHING WRONG.  Limits are enforced.");
    if now.gateways.is_empty() {
        verdict.headline = "NOTHING WRONG with Redis.  No gateway is watched.".into();
        verdict.because.push("Who is refused is known to gateways: give --gateway URL.".into());
    }
    recovered(situation, &mut verdict);
    let p99 = now.shards.iter().filter_map(|shard| shard.latency_us()).max();
    if !now.gateways.is_empty() {
        let store = p99.map(|_| format!(", Redis p99 {}", took(p99))).unwrap_or_default();
        verdict.because.push(format!(
            "{}/s decided, {} refused{store}.",
            count(now.rates.all()),
            percent(now.rates.rejected_share()),
        ));
    }
    warnings(situation, &mut verdict);
    if verdict.advice.is_empty() {
        verdict.advice.push(Advice::new("who asks most?", Does::Go("keys")));
        verdict.advice.push(Advice::new("which rule refuses how much?", Does::Go("rules")));
        verdict.advice.push(Advice::new("how do the servers feel?", Does::Go("shards")));
    }
    verdict
}

fn recovered(situation: &Situation<'_>, verdict: &mut Verdict) {
    let Some(outage) = last_outage(situation) else { return };
    let ago = lasts(outage.over_for(situation.now.at_us));
    verdict.headline = format!("RECOVERED {ago} ago.  Limits are enforced again.");
    verdict.since_us = Some(outage.to_us);
    verdict.because.push(outage.told());
}

/// Time in which decisions were taken without the store.
pub(super) struct Outage {
    from_us: u64,
    to_us: u64,
    uncounted: f64,
}

impl Outage {
    pub(super) fn over_for(&self, now_us: u64) -> u64 {
        now_us.saturating_sub(self.to_us)
    }

    pub(super) fn told(&self) -> String {
        format!(
            "Redis was away {} from {}; {} decisions were taken without it.",
            lasts(self.to_us.saturating_sub(self.from_us)),
            time(self.from_us),
            count(self.uncounted),
        )
    }
}

/// The one that was over a moment ago, if there was one.
pub(super) fn last_outage(situation: &Situation<'_>) -> Option<Outage> {
    let (now, past) = (situation.now, situation.past);
    let last = past.iter().rev().find(|point| point.degraded > 0.0)?;
    if now.at_us.saturating_sub(last.at_us) > TOLD_FOR_US {
        return None;
    }
    let upto = past.partition_point(|point| point.at_us <= last.at_us);
    let from_us = super::began(&past[..upto], |p| p.degraded > 0.0).unwrap_or(last.at_us);
    let uncounted = super::uncounted(&past[..upto], from_us);
    Some(Outage { from_us, to_us: last.at_us, uncounted })
}

/// What is not wrong, but will be.
fn warnings(situation: &Situation<'_>, verdict: &mut Verdict) {
    let now = situation.now;
    let mut watch = |text: String, advice: Advice| {
        verdict.alarm = Alarm::Watch;
        verdict.because.insert(0, text);
        verdict.advice.push(advice);
    };
    if let Some(missed) = without_replica(now) {
        watch(missed.text, missed.advice);
    }
    if let Some(why) = &now.policy.refused {
        let lint = Does::Command("rlctl rules lint".into());
        let text = format!("The latest rules were refused, the old ones hold: {}", shown(why));
        watch(text, Advice::new("what is wrong in them?", lint));
    }
    if let Some(why) = &now.policy.trouble {
        let text = format!("The policy cannot be read, the last one holds: {}", shown(why));
        watch(
            text,
            Advice::new("is its source there?", Does::Command("rlctl rules history".into())),
        );
    }
    if now.policy.differs {
        let text = "Gateways obey different policies.".to_string();
        watch(text, Advice::new("which ones?", Does::Go("shards")));
    }
    let silent = now.sources.iter().filter(|source| !source.is_live(now.at_us)).count();
    if silent > 0 {
        let of = now.sources.len();
        let text =
            format!("{silent} of {of} sources are silent: the figures are not all there is.");
        watch(text, Advice::new("which ones?", Does::Go("shards")));
    }
}
