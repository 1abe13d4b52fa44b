//! The assertion grammar: every example of the specification is read and judged, mistakes are named
//! with their place, and windows agree with a calculation that looks at everything.

use std::ops::Range;

use proptest::prelude::*;
use rlctl::engine::clock::Micros;
use rlctl::engine::limit::Algorithm;
use rlctl::expect::{
    Claim, Counted, Event, Gauge, Journal, Labels, Measured, PerKey, Timed, Value, Verdict, judge,
    parse, weighted_quantile,
};

use crate::support::limit;

fn seconds(s: f64) -> Micros {
    Micros((s * 1e6) as u64)
}

fn event(at: Micros, key: &str, counted: Counted, took: &[(Timed, Micros)]) -> Event {
    let outcome = if counted == Counted::Allowed { "allowed" } else { "rejected" };
    let labels =
        Labels { key: Some(key.into()), outcome: Some(outcome.into()), ..Labels::default() };
    Event { at, cost: 1, counted: vec![counted], took: took.to_vec(), labels }
}

/// 60 seconds: 10 a second, except from 20 s to 28 s, when everything is refused in 50 ms.
fn outage() -> Journal {
    let mut journal = Journal::new(seconds(60.0), Some(limit(Algorithm::TokenBucket, "10/1s")));
    for n in 0..600u64 {
        let at = Micros(n * 100_000);
        let down = (seconds(20.0)..seconds(28.0)).contains(&at);
        journal.push(if down {
            let took = [(Timed::Response, Micros(50_000)), (Timed::RetryAfter, seconds(2.0))];
            event(at, "user:1", Counted::Rejected, &took)
        } else {
            let took = [(Timed::Response, Micros(1_000 + n))];
            event(at, if n % 2 == 0 { "user:1" } else { "user:2" }, Counted::Allowed, &took)
        });
    }
    journal.name("primary dies", seconds(20.0)..seconds(28.0));
    for (at, state) in [(0.0, "closed"), (20.3, "open"), (28.2, "half-open"), (28.25, "closed")] {
        journal.set(Gauge::Breaker, seconds(at), Value::Word(state.into()));
    }
    // Throttled for no time at all.
    for (at, state) in [(0.0, "normal"), (20.0, "throttled"), (20.0, "normal")] {
        journal.set(Gauge::State("user:9".into()), seconds(at), Value::Word(state.into()));
    }
    journal
}

fn verdict(text: &str) -> Verdict {
    let assertion = parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
    judge(&assertion, &outage()).unwrap_or_else(|e| panic!("{text}: {e}"))
}

#[test]
fn what_is_true_holds_and_what_is_not_does_not() {
    for (text, holds) in [
        ("allowed == 520", true),
        ("allowed in 520..521", true),
        ("allowed in 521..600", false),
        ("rejected<=80", true),
        ("limited < 80", false),
        ("rejected == 82 +-2", true),
        ("rejected == 82 +-2%", false),
        ("rejected == 82 +-2.5%", true),
        ("rate(allowed) during 5s..20s == 10/s +-2%", true),
        ("rate(allowed) during 5s..20s == 600/m", true),
        ("share(rejected) during 20s..28s == 100%", true),
        ("share(rejected) during 'primary dies' == 100%", true),
        ("share(rejected) == 13% +-1%", true),
        ("share(rejected) == 12% +-1%", false),
        ("always share(rejected) per 1s < 50%", false),
        ("always share(rejected) per 1s during 0s..20s == 0%", true),
        ("p99(response){outcome=allowed} over 1s < 2ms", true),
        ("p99(response) over 1s < 2ms", false),
        ("max(response){outcome=rejected} == 50ms", true),
        ("p50(response){outcome=allowed} <= 1.4ms", true),
        ("state(user:9) becomes throttled within 1s of 'primary dies'", true),
        ("state(user:9) becomes warning within 1s of 'primary dies'", false),
        ("always retry_after in 0s..60s", true),
        ("retry_after in 3s..60s", false),
        // user:1 and user:2 take turns at 10/s: 5 each in any second.
        ("worst_window(1s) == 5", true),
        ("worst_window(1s){key=user:2} == 5", true),
        ("worst_window(1s){key='user:1'} <= 5", true),
        ("over_admitted == 0", true),
        ("fairness > 0.9", true),
        ("breaker becomes open within 500ms of 'primary dies'", true),
        ("breaker becomes open within 200ms of 'primary dies'", false),
        ("breaker becomes closed within 1s of end of 'primary dies'", true),
        ("breaker during 21s..28s == open", true),
        ("breaker during 21s..29s == open", false),
        ("breaker during 0s..20s != open", true),
        ("breaker during 0s..20s == 0", true),
        ("breaker during 21s..28s == 2", true),
        ("breaker during 21s..28s == 1", false),
        ("breaker becomes 2 within 500ms of 'primary dies'", true),
        ("rate(allowed) during 5s..20s == 11/s +-2", true),
        ("rate(allowed) during 5s..20s == 720/m +-120", true),
        ("rate(allowed) during 5s..20s == 720/m +-60", false),
        ("rate(rejected) during 0s..20s == 0", true),
        ("share(rejected) during 0s..20s == 0", true),
        ("rate(allowed) over 1s becomes 10/s +-2% within 1s of end of 'primary dies'", true),
        ("rate(allowed) over 1s becomes 10/s +-2% within 5s of 'primary dies'", false),
        ("rate(allowed) over 1s becomes 10/s within 9s of 'primary dies'", true),
        ("allowed over 61s == 0", false),
    ] {
        let verdict = verdict(text);
        assert_eq!(verdict.holds, holds, "{text}: {}", verdict.words);
    }
}

#[test]
fn a_failure_says_what_was_measured_and_where() {
    for (text, words) in [
        ("rejected < 80", "80; wanted < 80"),
        ("allowed == 500 +-2%", "520; wanted == 500 +-2%"),
        ("always share(rejected) per 1s < 50%", "100% at worst in 27s..28s; wanted < 50%"),
        (
            "breaker becomes open within 200ms of 'primary dies'",
            "not within 200ms; it came as near as closed at 20s; wanted becomes open within 200ms of 'primary dies'",
        ),
        ("retry_after in 3s..60s", "2s at 27.9s; wanted in 3s..1m"),
        ("allowed over 61s == 0", "nothing was measured: 1m hold no window of 1m1s"),
    ] {
        assert_eq!(verdict(text).words, words, "{text}");
    }
    let at = verdict("p99(response) over 1s < 2ms").at.unwrap();
    assert!(at.start >= seconds(19.0) && at.end <= seconds(29.0), "{at:?}");
}

#[test]
fn mistakes_are_named_with_their_place_and_a_way_out() {
    for (text, column, what, hint) in [
        ("", 1, "a metric is missing", "allowed"),
        ("alowed == 5", 1, "unknown metric `alowed`", "did you mean allowed?"),
        ("p98(response) < 1s", 1, "unknown metric `p98`", "did you mean p"),
        ("always p99(respnse) < 1s", 12, "`respnse`", "did you mean response?"),
        ("p99 < 1s", 5, "`(` is missing", "p99(response)"),
        ("rate(x) > 1/s", 6, "nothing that is counted", "there are allowed"),
        ("allowed{outcom=x} > 1", 9, "unknown label `outcom`", "did you mean outcome?"),
        ("allowed{outcome=alowed} > 1", 17, "unknown outcome", "did you mean allowed?"),
        ("allowed{key=a,key=b} > 1", 15, "given twice", "once"),
        ("allowed", 8, "not said what must be true", "VALUE"),
        ("allowed is 5", 9, "`is` is not understood", "VALUE"),
        ("allowed == five", 12, "`five` does not fit", "a number"),
        ("share(errors) < 0.1", 17, "does not fit", "percent"),
        ("rate(errors) < 10", 16, "does not fit", "a rate"),
        ("p99(response) < 10", 17, "does not fit", "a duration"),
        ("breaker < open", 9, "not more or less", "=="),
        ("allowed in 5..3", 12, "empty", "LOW..HIGH"),
        ("allowed during 9s..3s == 1", 16, "not before", "earlier"),
        ("allowed over 1 == 1", 14, "not a duration", "5ms"),
        ("allowed over 10us == 1", 14, "at least 1ms", "1s"),
        ("allowed == 5 5", 14, "too much", "ends"),
        ("breaker becomes open within 5s of x", 35, "in quotes", "'primary dies'"),
        ("breaker becomes open in 5s", 22, "`within` is missing", "within 5s of"),
        (": allowed == 5", 1, "name is missing", "NAME:"),
        ("日本 == 5", 1, "unknown metric `日本`", "there are"),
        ("allowed{key='日} == 5", 13, "closing ' is missing", "quote"),
    ] {
        let error = parse(text).expect_err(text);
        assert!(error.what.contains(what), "{text}: {error}");
        assert!(error.hint.as_ref().unwrap().contains(hint), "{text}: {error}");
        assert_eq!(error.column(text), column, "{text}: {error}");
    }
}

#[test]
fn what_was_not_recorded_is_an_error_and_not_a_failure() {
    let ask = |text: &str| judge(&parse(text).unwrap(), &outage()).expect_err(text).to_string();
    assert!(ask("breaker becomes open within 1s of 'nothing'").contains("'primary dies'"));
    assert!(ask("policy_version == 2").contains("nobody recorded"));
    assert!(ask("rate(allowed) becomes 1/s within 1s of 'primary dies'").contains("over 1s"));
}

#[test]
fn a_limiter_and_spaces_are_read_as_they_stand() {
    let assertion = parse("  fixed-1 :always\tworst_window( 60s )per 2m == 200 ").unwrap();
    assert_eq!(assertion.limiter.as_deref(), Some("fixed-1"));
    assert!(assertion.always);
    assert_eq!(
        &"  fixed-1 :always\tworst_window( 60s )"[assertion.metric_at],
        "worst_window( 60s )"
    );
    assert!(matches!(assertion.claim, Claim::Compare(..)));
}

/// Random events within ten seconds.
fn journals() -> impl Strategy<Value = Journal> {
    let one = (0..10_000_000u64, 1..5u64, 0..3u8, any::<bool>(), 1..100_000u64);
    proptest::collection::vec(one, 0..120).prop_map(|mut all| {
        all.sort_unstable();
        let mut journal =
            Journal::new(seconds(10.0), Some(limit(Algorithm::TokenBucket, "7/1s burst 3")));
        for (at, cost, key, allowed, took) in all {
            let counted = if allowed { Counted::Allowed } else { Counted::Rejected };
            let took = [(Timed::Response, Micros(took))];
            let event = event(Micros(at), &format!("k{key}"), counted, &took);
            journal.push(Event { cost, ..event });
        }
        journal
    })
}

/// All windows of an assertion, the slow way.
fn all_windows(length: u64, step: u64) -> Vec<Range<u64>> {
    let starts = (0..).map(|n| n * step).take_while(|start| start + length <= 10_000_000);
    starts.map(|start| start..start + length).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn windows_agree_with_counting_each_by_itself(journal in journals(), length in 1..3_000u64) {
        let none = Labels::default();
        let allowed = journal.counts(Counted::Allowed, &none).unwrap();
        let took = journal.lasting(Timed::Response, &none).unwrap();
        let us = length * 1_000;
        for (word, step) in [("per", us), ("over", 1_000)] {
            let windows = all_windows(us, step);
            let most = windows.iter().map(|window| {
                let within = allowed.iter().filter(|count| window.contains(&count.at.0));
                within.map(|count| count.n).sum::<u64>()
            }).max().unwrap();
            let text = format!("allowed {word} {length}ms <= {most}");
            prop_assert!(judge(&parse(&text).unwrap(), &journal).unwrap().holds, "{}", text);
            if most > 0 {
                let text = format!("allowed {word} {length}ms < {most}");
                prop_assert!(!judge(&parse(&text).unwrap(), &journal).unwrap().holds, "{}", text);
            }
            let slowest = windows.iter().filter_map(|window| {
                let within = took.iter().filter(|one| window.contains(&one.at.0));
                let mut sorted: Vec<(u64, u64)> = within.map(|one| (one.took.0, one.n)).collect();
                sorted.sort_unstable();
                weighted_quantile(&sorted, 0.9)
            }).max();
            let verdict = judge(
                &parse(&format!("p90(response) {word} {length}ms <= 1ms")).unwrap(), &journal
            ).unwrap();
            let measured = verdict.measured.map(|value| match value {
                Value::Number(us) => us as u64,
                Value::Word(word) => panic!("{word}"),
            });
            prop_assert_eq!(measured, slowest);
        }
    }

    #[test]
    fn the_worst_window_is_the_worst_of_all(journal in journals(), length in 1..5_000u64) {
        let us = length * 1_000;
        let mut worst = 0;
        for key in ["k0", "k1", "k2"] {
            let only = Labels { key: Some(key.into()), ..Labels::default() };
            let allowed = journal.counts(Counted::Allowed, &only).unwrap();
            for first in &allowed {
                let window = first.at.0..first.at.0 + us;
                let within = allowed.iter().filter(|count| window.contains(&count.at.0));
                worst = worst.max(within.map(|count| count.n).sum::<u64>());
            }
        }
        let whole = Micros::ZERO..seconds(10.0);
        let told = journal.per_key(PerKey::WorstWindow(Micros(us)), &Labels::default(), whole);
        prop_assert_eq!(told.unwrap().unwrap_or(0.0) as u64, worst);
    }

    #[test]
    fn no_text_breaks_the_reader(text in "[a-z_(){}=<>+.,:'%0-9 é-]{0,60}") {
        if let Err(error) = parse(&text) {
            prop_assert!(text.is_char_boundary(error.at.start) && error.at.end <= text.len());
            prop_assert!(error.column(&text) <= text.chars().count() + 1);
        }
    }

    #[test]
    fn a_percentile_leaves_at_most_its_share_above(mut values in proptest::collection::vec((0..1000u64, 1..9u64), 1..50), share in 0.01..1.0f64) {
        values.sort_unstable();
        let total: u64 = values.iter().map(|(_, n)| n).sum();
        let found = weighted_quantile(&values, share).unwrap();
        let at_most: u64 = values.iter().filter(|(v, _)| *v <= found).map(|(_, n)| n).sum();
        let below: u64 = values.iter().filter(|(v, _)| *v < found).map(|(_, n)| n).sum();
        prop_assert!(at_most as f64 >= share * total as f64 - 1e-6);
        prop_assert!((below as f64) < share * total as f64 + 1e-6);
    }
}
