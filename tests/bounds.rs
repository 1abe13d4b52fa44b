//! What each algorithm promises, held against traffic that tries hard: how much an interval admits,
//! that waits are exact to the microsecond, and that only a charge changes anything.

use std::sync::Arc;

use rlctl::engine::clock::Micros;
use rlctl::engine::limit::{Algorithm, Decision, Limit, QuotaState};
use rlctl::engine::store::{Check, RuleLimit};

use crate::support::rng::Rng;
use crate::support::{Rig, TODAY, cost, id, limit, named, one, several};

const STEPS: usize = 500;

fn quotas(algorithm: Algorithm) -> &'static [&'static str] {
    match algorithm.is_bucket() {
        true => &["7/3s", "7/3s burst 2", "5/1s burst 30", "300000/s", "1/7d burst 3", "1/1ms"],
        false => &["7/3s", "10/1s", "1/7d", "3/1ms", "100/1m"],
    }
}

/// Traffic that takes what it can: it comes back when told, sits on window edges, asks for all
/// that is left, and lies about the time.
struct Greedy<'a> {
    rig: &'a Rig,
    limits: Vec<Arc<RuleLimit>>,
    rng: Rng,
    now: u64,
}

impl Greedy<'_> {
    fn new<'a>(rig: &'a Rig, algorithm: Algorithm, quota: &str, seed: u64) -> Greedy<'a> {
        let rule = format!("{algorithm}-{}", quota.replace(['/', ' '], "-"));
        let limits = named(&rule, algorithm, quota);
        Greedy { rig, limits, rng: Rng::new(seed), now: TODAY }
    }

    fn limit(&self) -> &Limit {
        self.limits[0].limit()
    }

    async fn ask(&self, cost: u64) -> Decision {
        self.rig.decide(&self.limits, cost, self.now).await
    }

    /// One request with what was said to it, and the next moment to come.
    async fn step(&mut self, only_ones: bool) -> (u64, Decision) {
        let capacity = self.limit().capacity();
        let cost = match self.rng.below(4) {
            _ if only_ones => 1,
            0 => 1 + self.rng.below(capacity),
            1 => self.ask(0).await.remaining.max(1),
            _ => 1,
        };
        let decision = self.ask(cost).await;
        let period = self.limit().period().0;
        let (now, at) = (self.now, decision.at.0);
        self.now = match self.rng.below(12) {
            0..5 => now,
            5 => at + decision.retry_after.map_or(0, |r| r.0),
            6 => at + decision.next_after.0,
            7 => now - now % period + period,
            8 => now - now % period + period - 1,
            9 => now.saturating_sub(self.rng.below(period)).max(at - period),
            10 => at + decision.reset_after.0,
            _ => now + self.rng.scale(2 * period),
        };
        (cost, decision)
    }
}

/// The most that may be admitted from the first to the last of charges that lie `d` apart: the
/// shortest half-open interval that holds both is a touch longer than `d`.
fn bound(limit: &Limit, d: u64) -> u64 {
    let (l, p, b) = (limit.requests(), limit.period().0, limit.capacity());
    let periods = d / p + 1; // ceil of d and a touch
    match limit.algorithm() {
        Algorithm::FixedWindow => l * (periods + 1),
        Algorithm::SlidingWindow => l * (periods + 1) - 1,
        Algorithm::SlidingLog => l * periods,
        _ => b + (u128::from(l) * u128::from(d) / u128::from(p)) as u64,
    }
}

/// The tightest interval of all must be within its bound; how close the tightest came, in percent.
fn hold(limit: &Limit, admitted: &[(u64, u64)], bound: impl Fn(u64) -> u64, what: &str) -> u64 {
    let mut closest = 0;
    for (i, (from, _)) in admitted.iter().enumerate() {
        let mut sum = 0;
        for (to, cost) in &admitted[i..] {
            sum += cost;
            let most = bound(to - from);
            let algorithm = limit.algorithm();
            assert!(
                sum <= most,
                "{what}: {algorithm} {limit} admitted {sum} in {} µs from {from}, at most {most}",
                to - from
            );
            closest = closest.max(100 * sum / most);
        }
    }
    closest
}

#[tokio::test]
async fn no_interval_admits_more_than_promised() {
    for rig in Rig::both().await {
        for (algorithm, seed) in Algorithm::ALL.into_iter().zip(100..) {
            for quota in quotas(algorithm) {
                let mut greedy = Greedy::new(&rig, algorithm, quota, seed);
                let mut admitted = Vec::new();
                for _ in 0..STEPS {
                    let (cost, decision) = greedy.step(false).await;
                    assert!(!decision.clock_jump);
                    if decision.allowed {
                        admitted.push((decision.at.0, cost));
                    }
                }
                let limit = *greedy.limit();
                let what = format!("{}, seed {seed}", rig.name);
                let closest = hold(&limit, &admitted, |d| bound(&limit, d), &what);
                // A bound that nobody comes near proves nothing. The counter's is an adversary's.
                let near = match algorithm {
                    Algorithm::SlidingWindow => 50,
                    a if a.is_bucket() => 100,
                    _ => 90,
                };
                assert!(closest >= near, "{what}: {algorithm} {quota} came only to {closest} %");
            }
        }
    }
}

#[tokio::test]
async fn a_leaky_bucket_lets_out_at_an_even_pace() {
    for rig in Rig::both().await {
        for quota in quotas(Algorithm::LeakyBucket) {
            let mut greedy = Greedy::new(&rig, Algorithm::LeakyBucket, quota, 7);
            let mut left = Vec::new();
            for _ in 0..STEPS {
                let (_, decision) = greedy.step(true).await;
                if decision.allowed {
                    left.push((decision.at.0 + decision.delay.0, 1));
                }
            }
            assert!(left.is_sorted(), "{} {quota}: nobody overtakes", rig.name);
            let limit = *greedy.limit();
            // A delay is rounded up to the microsecond, so a gap may look that much too short.
            let (l, p) = (u128::from(limit.requests()), u128::from(limit.period().0));
            let most = |d: u64| 1 + (l * (u128::from(d) + 1) / p) as u64;
            hold(&limit, &left, most, rig.name);
        }
    }
}

#[tokio::test]
async fn a_wait_is_exact_to_the_microsecond() {
    for rig in Rig::both().await {
        for (algorithm, seed) in Algorithm::ALL.into_iter().zip(200..) {
            for quota in quotas(algorithm) {
                let mut greedy = Greedy::new(&rig, algorithm, quota, seed);
                let (mut waits, mut nexts) = (0, 0);
                for _ in 0..STEPS {
                    let (cost, decision) = greedy.step(false).await;
                    let context = format!("{} {algorithm} {quota}, seed {seed}", rig.name);
                    if greedy.rng.chance(30) && decision.next_after > Micros::ZERO {
                        greedy.now = decision.at.0 + decision.next_after.0 - 1;
                        let before = greedy.ask(0).await;
                        assert_eq!(before.remaining, decision.remaining, "{context}: early");
                        assert_eq!(before.next_after, Micros(1), "{context}");
                        greedy.now += 1;
                        let after = greedy.ask(0).await;
                        assert!(after.remaining > decision.remaining, "{context}: {after:?}");
                        nexts += 1;
                    } else if let Some(wait) = decision.retry_after {
                        greedy.now = decision.at.0 + wait.0 - 1;
                        let early = greedy.ask(cost).await;
                        assert!(!early.allowed, "{context}: {cost} passed early");
                        assert_eq!(early.retry_after, Some(Micros(1)), "{context}");
                        greedy.now += 1;
                        assert!(greedy.ask(cost).await.allowed, "{context}: {cost} did not pass");
                        waits += 1;
                    }
                }
                assert!(waits >= 20 && nexts >= 20, "{algorithm} {quota}: {waits} {nexts}");
            }
        }
    }
}

#[tokio::test]
async fn the_quota_is_whole_exactly_when_said() {
    for rig in Rig::both().await {
        for (algorithm, seed) in Algorithm::ALL.into_iter().zip(300..) {
            for quota in quotas(algorithm) {
                let mut greedy = Greedy::new(&rig, algorithm, quota, seed);
                for _ in 0..40 {
                    let (_, decision) = greedy.step(false).await;
                    if decision.reset_after == Micros::ZERO {
                        continue;
                    }
                    let capacity = decision.capacity;
                    let whole_at = decision.at.0 + decision.reset_after.0;
                    let peek = async |at| rig.decide(&greedy.limits, 0, at).await;
                    let early = peek(whole_at - 1).await;
                    assert_eq!(early.reset_after, Micros(1), "{} {algorithm} {quota}", rig.name);
                    assert!(early.remaining < capacity, "{} {algorithm} {quota}", rig.name);
                    let then = peek(whole_at).await;
                    let (left, reset, next) = (then.remaining, then.reset_after, then.next_after);
                    assert_eq!((left, reset.0, next.0), (capacity, 0, 0), "{algorithm} {quota}");
                }
            }
        }
    }
}

#[tokio::test]
async fn rejections_and_peeks_write_nothing_not_even_a_ttl() {
    let rig = Rig::redis().await;
    for (algorithm, seed) in Algorithm::ALL.into_iter().zip(400..) {
        for quota in &quotas(algorithm)[..3] {
            let mut greedy = Greedy::new(&rig, algorithm, quota, seed);
            let (mut before, mut unchanged) = (rig.dump(), 0);
            for _ in 0..60 {
                let (cost, decision) = greedy.step(false).await;
                // The step may have peeked, too.
                let after = rig.dump();
                if !decision.allowed {
                    assert_eq!(before, after, "{algorithm} {quota}: {cost} was rejected");
                    unchanged += 1;
                }
                for asked in [0, decision.capacity + 1] {
                    greedy.ask(asked).await;
                    assert_eq!(after, rig.dump(), "{algorithm} {quota}: asked {asked}");
                }
                before = after;
            }
            assert!(unchanged >= 5, "{algorithm} {quota}: only {unchanged} rejections");
        }
    }
}

#[tokio::test]
async fn in_memory_rejections_and_peeks_leave_no_trace() {
    for (algorithm, seed) in Algorithm::ALL.into_iter().zip(500..) {
        for quota in quotas(algorithm) {
            // Two stores: one hears everything, the other only of what passes.
            let (busy, calm) = (Rig::memory(), Rig::memory());
            let mut greedy = Greedy::new(&busy, algorithm, quota, seed);
            for _ in 0..STEPS {
                let asked_at = greedy.now;
                let (cost, decision) = greedy.step(false).await;
                greedy.ask(0).await;
                if decision.allowed {
                    let same = calm.decide(&greedy.limits, cost, asked_at).await;
                    assert_eq!(same, decision, "{algorithm} {quota}, seed {seed}");
                }
            }
        }
    }
}

#[tokio::test]
async fn several_limits_are_charged_all_or_none() {
    for rig in Rig::both().await {
        let mut rng = Rng::new(600);
        let quotas =
            Algorithm::ALL.map(|a| (a, if a.is_bucket() { "9/3s burst 5" } else { "7/3s" }));
        let limits = several(&quotas);
        // Each limit by itself, under a name of its own, charged only when all of them passed.
        let alone: Vec<_> = quotas.iter().map(|(a, q)| named(a.name(), *a, q)).collect();
        let mut now = TODAY;
        let (mut passed, mut rejected) = (0, 0);
        for _ in 0..600 {
            now += rng.below(900_000) * rng.below(2);
            let cost = rng.below(6);
            let before = rig.dump();
            let answer = rig.check(&limits, cost, now).await;
            let mut verdicts = Vec::new();
            for limit in &alone {
                // What it would say: asked of a store that is not charged for a rejection.
                verdicts.push(rig.decide(limit, 0, now).await.remaining >= cost);
            }
            assert_eq!(answer.allowed(), verdicts.iter().all(|v| *v), "{}", rig.name);
            if answer.allowed() {
                passed += 1;
                for (limit, decision) in alone.iter().zip(&answer.decisions) {
                    assert_eq!(rig.decide(limit, cost, now).await, *decision, "{}", rig.name);
                }
                let fewest = answer.decisions.iter().map(|d| d.remaining).min();
                let (index, decision) = answer.deciding().unwrap();
                assert_eq!(Some(decision.remaining), fewest);
                let first = answer.decisions.iter().position(|d| Some(d.remaining) == fewest);
                assert_eq!(Some(index), first);
                let longest = answer.decisions.iter().map(|d| d.delay).max();
                assert_eq!(Some(answer.delay()), longest);
            } else {
                rejected += 1;
                assert_eq!(before, rig.dump());
                let longest = answer.decisions.iter().filter_map(|d| d.retry_after).max();
                let (index, decision) = answer.deciding().unwrap();
                assert_eq!(decision.retry_after, longest);
                assert!(!decision.allowed && decision.state() == QuotaState::Throttled);
                assert!(!verdicts[index]);
                for (limit, decision) in alone.iter().zip(&answer.decisions) {
                    let ask = if decision.allowed { 0 } else { cost };
                    assert_eq!(rig.decide(limit, ask, now).await, *decision, "{}", rig.name);
                }
            }
        }
        assert!(passed > 100 && rejected > 100, "{passed} {rejected}");
    }
}

#[tokio::test]
async fn the_longest_wait_speaks_for_a_rejection_and_never_is_longest() {
    for rig in Rig::both().await {
        let limits = several(&[
            (Algorithm::TokenBucket, "1/1s burst 2"),
            (Algorithm::TokenBucket, "1/1m burst 2"),
            (Algorithm::FixedWindow, "100/1s"),
        ]);
        rig.check(&limits, 2, TODAY).await;
        let answer = rig.check(&limits, 1, TODAY).await;
        let (index, decision) = answer.deciding().unwrap();
        assert_eq!((index, decision.retry_after), (1, Some(Micros::MINUTE)), "{}", rig.name);
        // What would have let it through answers as to a peek.
        assert_eq!((answer.decisions[2].allowed, answer.decisions[2].remaining), (true, 98));
        let answer = rig.check(&limits, 3, TODAY).await;
        let (index, decision) = answer.deciding().unwrap();
        assert!(index == 0 && decision.never_passes(), "{}: both never, the first", rig.name);
    }
}

#[tokio::test]
async fn a_clock_jump_shows_although_another_limit_rejects() {
    for rig in Rig::both().await {
        let limits = several(&[(Algorithm::Gcra, "5/1s"), (Algorithm::FixedWindow, "1/366d")]);
        assert!(rig.check(&limits, 1, TODAY + 2_000_000).await.allowed());
        let answer = rig.check(&limits, 1, TODAY).await;
        let jumps: Vec<_> = answer.decisions.iter().map(|d| (d.allowed, d.clock_jump)).collect();
        assert_eq!(jumps, [(true, true), (false, false)], "{}", rig.name);
    }
}

#[tokio::test]
async fn a_cost_above_capacity_never_passes_and_a_peek_always_does() {
    for rig in Rig::both().await {
        for algorithm in Algorithm::ALL {
            let limits = named(algorithm.name(), algorithm, "5/1s");
            let never = rig.decide(&limits, 6, TODAY).await;
            assert!(never.never_passes(), "{} {algorithm}", rig.name);
            assert_eq!((never.remaining, never.reset_after), (5, Micros::ZERO));
            let most = rig.decide(&limits, 1_000_000_000, TODAY).await;
            assert!(most.never_passes(), "{} {algorithm}", rig.name);
            assert!(rig.decide(&limits, 5, TODAY).await.allowed);
            let peek = rig.decide(&limits, 0, TODAY).await;
            assert!(peek.allowed && peek.retry_after.is_none() && peek.remaining == 0);
            assert_eq!(peek.delay, Micros::ZERO, "{} {algorithm}", rig.name);
            let blocked = rig.decide(&named("zero", algorithm, "0/1s"), 1, TODAY).await;
            assert!(blocked.never_passes() && blocked.state() == QuotaState::Throttled);
            let (left, reset, next) = (blocked.remaining, blocked.reset_after, blocked.next_after);
            assert_eq!((left, reset, next), (0, Micros::ZERO, Micros::ZERO));
        }
    }
}

#[tokio::test]
async fn rules_of_one_identity_do_not_disturb_one_another() {
    for rig in Rig::both().await {
        let mut rng = Rng::new(700);
        let rules: Vec<_> = Algorithm::ALL.map(|a| named(a.name(), a, "7/3s")).into();
        // Each rule once more, on an identity that knows no other rule.
        let apart: Vec<_> = Algorithm::ALL.map(|a| id(&format!("apart:{a}"))).into();
        let mut now = TODAY;
        for _ in 0..800 {
            now += rng.below(400_000);
            let n = rng.below(6) as usize;
            let c = 1 + rng.below(3);
            let together = rig.decide(&rules[n], c, now).await;
            let check = Check {
                identity: &apart[n],
                limits: &rules[n],
                cost: cost(c),
                idempotency: None,
                at: Some(Micros(now)),
            };
            let alone = rig.store.check(&check).await.unwrap().decisions[0];
            assert_eq!(together, alone, "{}", rig.name);
        }
    }
}

#[tokio::test]
async fn a_batch_in_order_is_decided_in_order_even_when_a_script_is_new() {
    for rig in Rig::both().await {
        let (known, unknown) = (
            one(Algorithm::FixedWindow, "5/1d"),
            several(&[(Algorithm::FixedWindow, "5/1d"), (Algorithm::Gcra, "5/1d")]),
        );
        // Only the first script is known to the server when the batch comes.
        rig.decide(&known, 1, TODAY).await;
        let identity = id("user:1");
        let check = |limits| Check {
            identity: &identity,
            limits,
            cost: cost(1),
            idempotency: None,
            at: Some(Micros(TODAY)),
        };
        let batch = [check(&known), check(&unknown), check(&known), check(&unknown)];
        let answers = rig.store.check_in_order(&batch).await;
        let left: Vec<u64> =
            answers.iter().map(|a| a.as_ref().unwrap().decisions[0].remaining).collect();
        assert_eq!(left, [3, 2, 1, 0], "{}", rig.name);
    }
}

#[test]
fn limits_at_the_edges_are_accepted_and_beyond_them_refused() {
    for algorithm in Algorithm::ALL {
        let make = |quota: &str| Limit::new(algorithm, quota.parse().unwrap());
        let log = algorithm == Algorithm::SlidingLog;
        for quota in ["1/1ms", "1/366d", "0/1s", "100000/366d"] {
            assert!(make(quota).is_ok(), "{algorithm} {quota}");
        }
        assert_eq!(make("1G/1ms").is_ok(), !log, "{algorithm}");
        for quota in ["1/999us", "1/8784h1us", "1000000001/1s"] {
            assert!(make(quota).is_err(), "{algorithm} {quota}");
        }
        assert_eq!(make("10/1s burst 5").is_ok(), algorithm.is_bucket());
        // Exactly 100 years of 365.25 days, and a little more.
        assert_eq!(make("1/3155.76s burst 1M").is_ok(), algorithm.is_bucket());
        assert!(make("1/3155.760001s burst 1M").is_err());
        assert!(make("10/1s burst 0").is_err());
    }
    assert_eq!(limit(Algorithm::SlidingLog, "100k/1s").capacity(), 100_000);
}
