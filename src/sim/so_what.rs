//! What to take home, in words, from the numbers and nothing else.

use std::cmp::Ordering;

use crate::engine::clock::Micros;
use crate::output::{about, count};

use super::outcome::{LaneOutcome, Outcome, share};

/// One sentence or two, all of them true.
pub fn so_what(outcome: &Outcome) -> String {
    if outcome.requests == 0 {
        return "nothing came, so nothing can be said".into();
    }
    let lanes: Vec<&LaneOutcome> = outcome.lanes.iter().collect();
    match lanes.as_slice() {
        [] => "there is no limiter to judge".into(),
        [only] => alone(only, outcome),
        several => match several.iter().find(|lane| lane.against.is_some()) {
            Some(_) => nodes(several, outcome),
            None => compared(several, outcome),
        },
    }
}

/// The same for a policy: the first lane is all of it, the others its rules.
pub fn so_what_of_policy(outcome: &Outcome) -> String {
    let Some((whole, rules)) = outcome.lanes.split_first().filter(|_| outcome.requests > 0) else {
        return "nothing came, so nothing can be said".into();
    };
    if rules.is_empty() && whole.denied == 0 {
        return "no rule applies to any of these requests".into();
    }
    if whole.denied == 0 {
        return format!("nobody is denied: all {} requests pass", count(outcome.requests));
    }
    let mut text = format!(
        "{} of the requests are denied, to {}",
        percent(whole.denied_share()),
        keys_in_words(whole.keys_hit, outcome)
    );
    let strictest = rules.iter().filter(|rule| rule.denied > 0).max_by_key(|rule| rule.denied);
    match strictest {
        Some(rule) => text += &format!("; {} refuses most ({})", rule.label, count(rule.denied)),
        None => text += "; none of them by a limit",
    }
    if let (Some(most), true) = (whole.most_denied.first(), outcome.keys > 1) {
        text += &format!(
            "; most often {} ({} of {})",
            most.key,
            count(most.denied),
            count(most.allowed + most.denied)
        );
    }
    text
}

/// A share in percent, with as many digits as it takes to be other than 0 and 100.
pub fn percent(share: f64) -> String {
    match share * 100.0 {
        p if p == 0.0 || p == 100.0 => format!("{p:.0} %"),
        p if p < 0.01 => "under 0.01 %".into(),
        p if p > 99.99 => "over 99.99 %".into(),
        p if !(1.0..=99.0).contains(&p) => format!("{p:.2} %"),
        p => format!("{p:.1} %"),
    }
}

fn keys_in_words(hit: u64, outcome: &Outcome) -> String {
    match (hit, outcome.keys) {
        (_, 1) => "the only key".into(),
        (hit, all) if hit == all => format!("all {} keys", count(all)),
        (hit, all) => {
            format!("{} of {} keys ({})", count(hit), count(all), percent(share(hit, all)))
        }
    }
}

fn alone(lane: &LaneOutcome, outcome: &Outcome) -> String {
    let worst = lane.worst.as_ref().map_or(0, |worst| worst.amount);
    let Some(limit) = lane.limit else {
        return format!(
            "{} denies {} of the requests, to {}",
            lane.label,
            percent(lane.denied_share()),
            keys_in_words(lane.keys_hit, outcome)
        );
    };
    if lane.denied == 0 {
        let room = if worst < limit.requests() {
            format!("; {} would have been enough on a sliding log", count(worst))
        } else {
            String::new()
        };
        return format!(
            "nobody is denied: the busiest key had {} in its fullest {}, of {} allowed{room}",
            count(worst),
            limit.period(),
            count(limit.requests()),
        );
    }
    let mut text = format!(
        "{} of the requests are denied, to {}",
        percent(lane.denied_share()),
        keys_in_words(lane.keys_hit, outcome)
    );
    if let (Some(most), true) = (lane.most_denied.first(), outcome.keys > 1) {
        text += &format!(
            ", most to {} ({} of {})",
            most.key,
            count(most.denied),
            count(most.allowed + most.denied)
        );
    }
    if let Some(starved) = &lane.starved {
        text +=
            &format!("; the longest anyone asked in vain was {}", about(Micros(starved.amount)));
    }
    text + &over(lane)
}

/// Whether more passed in a period than the limit says.
fn over(lane: &LaneOutcome) -> String {
    match (&lane.worst, lane.limit) {
        (Some(worst), Some(limit)) if worst.amount > limit.requests() => format!(
            "; up to {} passed within {}, {} times the limit",
            count(worst.amount),
            limit.period(),
            times(worst.amount, limit.requests())
        ),
        _ => String::new(),
    }
}

fn times(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "many".into();
    }
    let ratio = part as f64 / whole as f64;
    let text = format!("{ratio:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

fn worst(lane: &LaneOutcome) -> u64 {
    lane.worst.as_ref().map_or(0, |worst| worst.amount)
}

/// Names of those that are meant: one, two, or how many.
fn named(lanes: &[&LaneOutcome], all: usize) -> String {
    let names: Vec<&str> = lanes.iter().map(|lane| lane.label.as_str()).collect();
    match names.as_slice() {
        [] => "none".into(),
        names if names.len() == all => "all".into(),
        [one] => one.to_string(),
        [most @ .., last] if names.len() <= 3 => format!("{} and {last}", most.join(", ")),
        names => format!("{} of the {all}", names.len()),
    }
}

fn compared(lanes: &[&LaneOutcome], outcome: &Outcome) -> String {
    if lanes.iter().all(|lane| lane.denied == 0) {
        return format!(
            "none of the {} denies anybody: at this traffic they are all the same",
            lanes.len()
        );
    }
    if let Some(text) = by_limit(lanes, outcome) {
        return text;
    }
    let kindest = lanes.iter().map(|lane| lane.allowed).max().unwrap_or(0);
    let strictest = lanes.iter().map(|lane| lane.allowed).min().unwrap_or(0);
    let kind: Vec<&LaneOutcome> =
        lanes.iter().copied().filter(|lane| lane.allowed == kindest).collect();
    let mut text = if kindest == strictest {
        format!("all let {} of {} through", count(kindest), count(outcome.requests))
    } else {
        let strict: Vec<&LaneOutcome> =
            lanes.iter().copied().filter(|lane| lane.allowed == strictest).collect();
        format!(
            "most gets through by {} ({}), least by {} ({})",
            named(&kind, lanes.len()),
            count(kindest),
            named(&strict, lanes.len()),
            count(strictest)
        )
    };
    text += &promises(lanes);
    text
}

/// Who keeps to the limit in every period, and who passes it most.
fn promises(lanes: &[&LaneOutcome]) -> String {
    let Some(limit) = lanes.first().and_then(|lane| lane.limit) else { return String::new() };
    let same = lanes.iter().all(|lane| {
        lane.limit.is_some_and(|l| (l.requests(), l.period()) == (limit.requests(), limit.period()))
    });
    if !same {
        return String::new();
    }
    let most = lanes.iter().map(|lane| worst(lane)).max().unwrap_or(0);
    let fullest: Vec<&LaneOutcome> =
        lanes.iter().copied().filter(|lane| worst(lane) == most).collect();
    let within: Vec<&LaneOutcome> =
        lanes.iter().copied().filter(|lane| worst(lane) <= limit.requests()).collect();
    if within.len() == lanes.len() {
        return format!("; none passes {} in any {}", count(limit.requests()), limit.period());
    }
    let keeps = match within.as_slice() {
        [] => format!("none keeps to {}", count(limit.requests())),
        within => {
            format!("only {} never pass {}", named(within, lanes.len()), count(limit.requests()))
                .replace(
                    " never pass ",
                    if within.len() == 1 { " never passes " } else { " never pass " },
                )
        }
    };
    format!(
        "; {} let {} through within one {}, {} times the limit; {keeps}",
        named(&fullest, lanes.len()),
        count(most),
        limit.period(),
        times(most, limit.requests()),
    )
}

/// The same limiter with limits that rise: what each step more is worth.
fn by_limit(lanes: &[&LaneOutcome], outcome: &Outcome) -> Option<String> {
    let algorithm = lanes.first()?.algorithm()?;
    let rising = lanes.windows(2).all(|pair| match (pair[0].limit, pair[1].limit) {
        (Some(a), Some(b)) => a.requests() < b.requests() && a.period() == b.period(),
        _ => false,
    });
    if !rising || lanes.iter().any(|lane| lane.algorithm() != Some(algorithm)) {
        return None;
    }
    let (first, last) = (lanes.first()?, lanes.last()?);
    let (low, high) = (first.limit?, last.limit?);
    let freed = first.keys_hit.saturating_sub(last.keys_hit);
    let whom = if outcome.keys == 1 {
        format!("{} fewer requests are denied", count(first.denied.saturating_sub(last.denied)))
    } else {
        format!("{} of {} denied keys are denied no more", count(freed), count(first.keys_hit))
    };
    let rest = match lanes.iter().find(|lane| lane.denied == 0) {
        Some(enough) => format!("{} is enough for all", enough.limit?.requests()),
        None => format!(
            "{} still denies {} of the requests, to {}",
            high.requests(),
            percent(last.denied_share()),
            keys_in_words(last.keys_hit, outcome)
        ),
    };
    Some(format!(
        "from {} to {} per {}: {whom}; {rest}",
        low.requests(),
        high.requests(),
        low.period()
    ))
}

fn nodes(lanes: &[&LaneOutcome], outcome: &Outcome) -> String {
    let mut parts = Vec::new();
    for lane in lanes {
        let Some(against) = &lane.against else { continue };
        let Some(exact) = outcome.lanes.get(against.reference) else { continue };
        let differ = against.wrongly_allowed + against.wrongly_denied;
        if differ == 0 {
            parts.push(format!("{} decides exactly as {} does", lane.label, exact.label));
            continue;
        }
        let through = match lane.allowed.cmp(&exact.allowed) {
            Ordering::Equal => format!("as much through as {}", exact.label),
            Ordering::Greater => {
                let more = percent(share(lane.allowed - exact.allowed, exact.allowed));
                format!("{more} more through than {}", exact.label)
            }
            Ordering::Less => {
                let less = percent(share(exact.allowed - lane.allowed, exact.allowed));
                format!("{less} less through than {}", exact.label)
            }
        };
        let period = lane.limit.map(|limit| limit.period()).unwrap_or_default();
        let fullest = match (worst(lane), worst(exact)) {
            (own, other) if own == other => String::new(),
            (own, other) => {
                format!(", {} in its fullest {period} instead of {}", count(own), count(other))
            }
        };
        parts.push(format!(
            "{} lets {through}{fullest}; {} of its decisions differ",
            lane.label,
            percent(share(differ, outcome.requests))
        ));
    }
    parts.join("; ")
}
