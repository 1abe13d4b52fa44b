//! A scenario in plain words, with a timeline, before it runs.

use super::model::{
    ArrivalPart, ChangeWhat, Client, FaultPart, IdempotencyPart, KeyPart, Kind, LimiterPart,
    Scenario, Spread, TrafficPart,
};
use crate::engine::clock::Micros;
use crate::engine::policy::RuleLimits;
use crate::output::Untrusted;
use crate::traffic::Shape;

const COLUMNS: u64 = 48;

/// Several lines of text, with a line end at the end.
pub fn explain(scenario: &Scenario) -> String {
    let mut text = format!("{}\n", Untrusted(&scenario.title()));
    if let Some(description) = &scenario.description {
        text += &format!("{}\n", Untrusted(description));
    }
    text +=
        &format!("\nIt runs for {} of virtual time, with seed {}.\n", scenario.run, scenario.seed);
    text += &format!("The store is {}.\n", store(scenario));
    for limiter in &scenario.limiters {
        text +=
            &format!("Limiter `{}`: {}.\n", Untrusted(&limiter.name), words_of_limiter(limiter));
    }
    text += "\nWhat happens:\n";
    text += &timeline(scenario);
    text += "\nWhat must be true:\n";
    for expectation in &scenario.expectations {
        let (name, said) = (Untrusted(&expectation.name), Untrusted(&expectation.assertion.text));
        text += &format!("  {name}: {said}\n");
    }
    text
}

fn store(scenario: &Scenario) -> String {
    let store = &scenario.store;
    let replicas = match store.replicas {
        0 => String::new(),
        n => format!(
            " with {n} replica{} each; one takes over {} after its primary is down",
            if n == 1 { "" } else { "s" },
            store.failover_after
        ),
    };
    let jitter = match store.jitter {
        Micros::ZERO => String::new(),
        jitter => format!(" give or take {jitter}"),
    };
    let way = format!(
        "a round trip takes {}{jitter}, and nobody waits longer than {}",
        store.latency, store.deadline
    );
    match store.kind {
        Kind::Memory => "the gateway's own memory: it answers at once".into(),
        Kind::Redis => format!("one Redis; {way}"),
        Kind::Sentinel => format!("a Redis watched by sentinels{replicas}; {way}"),
        Kind::Cluster => format!("a Redis Cluster of {} shards{replicas}; {way}", store.shards),
    }
}

fn words_of_limiter(limiter: &LimiterPart) -> String {
    let mut words = match limiter.policy.rules.as_slice() {
        [rule, ..] if limiter.limit.is_some() => match &rule.limits {
            RuleLimits::Own(limits) => {
                let one = |spec: &crate::engine::policy::LimitSpec| {
                    format!("{} by {}", spec.limit, spec.limit.algorithm())
                };
                limits.iter().map(one).collect::<Vec<_>>().join(" and ")
            }
            RuleLimits::OfTier => "the limits of the request's tier".into(),
        },
        rules => format!("a policy of {} rules", rules.len()),
    };
    if limiter.nodes > 1 {
        words += &format!(", on {} gateways that take turns", limiter.nodes);
        if limiter.skew.iter().any(|skew| *skew != 0) {
            words += " and whose clocks differ";
        }
    }
    if let Some(rule) = limiter.policy.rules.first() {
        words += &format!(", {} when the store does not answer", rule.on_store_error.name());
    }
    if let Some(at_once) = limiter.policy.rules.first().and_then(|rule| rule.at_once)
        && !limiter.is_policy
    {
        words += &format!(
            ", at most {} under way at a time on each gateway, others wait up to {}",
            at_once.max, at_once.wait
        );
    }
    if let Some(breaker) = &limiter.breaker {
        words += &format!(
            ", with a breaker that opens after {} failures for {}",
            breaker.consecutive, breaker.open_for
        );
    }
    words
}

/// Every part on a line of its own, with a bar where it is on.
fn timeline(scenario: &Scenario) -> String {
    let mut lines: Vec<(Micros, Micros, String)> = Vec::new();
    for part in &scenario.traffic {
        lines.push((part.at, part.at + part.lasts, words_of_traffic(part)));
    }
    for fault in &scenario.faults {
        lines.push((fault.at, fault.at + fault.lasts, words_of_fault(fault)));
    }
    for change in &scenario.changes {
        let what = match &change.what {
            ChangeWhat::Limit(limit) => format!("the limit becomes {limit}"),
            ChangeWhat::Rules(_) => "another rules file decides".into(),
            ChangeWhat::Tier { key, tier } => format!("{key} gets the tier {tier}"),
            ChangeWhat::Override { key, limit, .. } => format!("{key} may have {limit} instead"),
            ChangeWhat::Block(key) => format!("{key} is blocked"),
        };
        lines.push((change.at, change.at, format!("{}: {what}", change.name)));
    }
    lines.sort_by_key(|(from, ..)| *from);
    let of = |(from, to, words): &(Micros, Micros, String)| {
        let column =
            |at: Micros| (at.0.min(scenario.run.0) * COLUMNS / scenario.run.0).min(COLUMNS - 1);
        let (first, last) = (column(*from), column(to.saturating_sub(Micros(1)).max(*from)));
        let bar: String =
            (0..COLUMNS).map(|n| if (first..=last).contains(&n) { '█' } else { '·' }).collect();
        format!("  {bar} {from} {}\n", Untrusted(words))
    };
    lines.iter().map(of).collect()
}

fn words_of_traffic(part: &TrafficPart) -> String {
    let how = match &part.arrivals {
        ArrivalPart::Shape(Shape::Constant(rate)) => format!("{rate}, evenly, for {}", part.lasts),
        ArrivalPart::Shape(Shape::Poisson(rate)) => {
            format!("{rate} on average, at random, for {}", part.lasts)
        }
        ArrivalPart::Shape(Shape::Ramp { from, to }) => {
            format!("from {from} to {to} within {}", part.lasts)
        }
        ArrivalPart::Shape(other) => format!("{other} for {}", part.lasts),
        ArrivalPart::Send(count) if part.lasts == Micros::ZERO => {
            format!("{count} requests at once")
        }
        ArrivalPart::Send(count) => format!("{count} requests over {}", part.lasts),
        ArrivalPart::Trace(requests) => format!("{} requests of a log", requests.len()),
    };
    let whom = match &part.keys {
        KeyPart::One(key) => format!(" of {key}"),
        KeyPart::Listed(all) => format!(" of {} keys", all.len()),
        KeyPart::Numbered { count, spread: Spread::Hot(share), .. } => {
            format!(" of {count} keys, one of which makes {}%", share * 100.0)
        }
        KeyPart::Numbered { count, spread: Spread::Zipf(s), .. } => {
            format!(" of {count} keys, unevenly (Zipf {s})")
        }
        KeyPart::Numbered { count, .. } => format!(" of {count} keys"),
        KeyPart::Traced => String::new(),
    };
    let takes = match part.takes {
        Micros::ZERO => String::new(),
        takes => format!("; each takes {takes}"),
    };
    let client = match part.client {
        Client::Naive => "",
        Client::Polite => "; refused clients wait as long as they are told",
        Client::Backoff => "; refused clients wait twice as long every time",
        Client::RetryStorm => "; refused clients try again at once, up to three times",
    };
    let key = match part.idempotency {
        Some(IdempotencyPart::Retries) => "; a retry has the idempotency key of its request",
        Some(IdempotencyPart::PerRequest) => "; every attempt has an idempotency key of its own",
        None => "",
    };
    format!("{}: {how}{whom}{takes}{client}{key}", part.name)
}

fn words_of_fault(fault: &FaultPart) -> String {
    let rate = match fault.rate {
        rate if rate >= 1.0 => String::new(),
        rate => format!(", for {}% of commands", rate * 100.0),
    };
    let lose =
        fault.lose.map(|lose| format!(", the last {lose} of writes are lost")).unwrap_or_default();
    format!(
        "{}: {} of {} for {}{rate}{lose}",
        fault.name,
        fault.word,
        fault.on.words(),
        fault.lasts
    )
}
