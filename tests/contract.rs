//! Each behaviour that goes beyond a single decision, on both stores: giving back, settling,
//! answering a retry, and limits that change.

use std::sync::Arc;

use rlctl::engine::clock::Micros;
use rlctl::engine::limit::Algorithm;
use rlctl::engine::store::charge::CHARGE_LIFE;
use rlctl::engine::store::{Answer, Charge, Check, Idempotency, RuleLimit, Settlement, StoreError};

use crate::support::{Rig, TODAY, cost, id, named, one, several};

const SECOND: u64 = 1_000_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
/// Where windows of a minute, an hour and a day begin.
const MIDNIGHT: u64 = TODAY - TODAY % (24 * HOUR);

impl Rig {
    async fn settle(&self, charge: &Charge, to: Settlement, at: u64) -> bool {
        self.store.settle(charge, to, Some(Micros(at))).await.unwrap()
    }

    async fn refund(&self, charge: &Charge, at: u64) -> bool {
        self.settle(charge, Settlement::Refund, at).await
    }

    /// What a peek says is left, and when the quota is whole.
    async fn left(&self, limits: &[Arc<RuleLimit>], at: u64) -> (u64, u64) {
        let decision = self.decide(limits, 0, at).await;
        (decision.remaining, decision.reset_after.0)
    }

    async fn idempotent(
        &self,
        limits: &[Arc<RuleLimit>],
        c: u64,
        at: u64,
        key: &str,
    ) -> Result<(Answer, Option<Charge>), StoreError> {
        let identity = id("user:1");
        let check = Check {
            identity: &identity,
            limits,
            cost: cost(c),
            idempotency: Some(Idempotency::new(key, Micros(5 * MINUTE)).unwrap()),
            at: Some(Micros(at)),
        };
        let answer = self.store.check(&check).await?;
        let charge = answer.charge(&check);
        Ok((answer, charge))
    }
}

#[tokio::test]
async fn a_refund_gives_back_a_charge_and_does_so_once() {
    for rig in Rig::both().await {
        for algorithm in Algorithm::ALL {
            let limits = named(algorithm.name(), algorithm, "10/1m");
            let first = rig.charge(&limits, 3, MIDNIGHT).await;
            let second = rig.charge(&limits, 2, MIDNIGHT + 1).await;
            assert_eq!(rig.left(&limits, MIDNIGHT + 1).await.0, 5);
            assert!(rig.refund(&first, MIDNIGHT + 2).await);
            assert_eq!(rig.left(&limits, MIDNIGHT + 2).await.0, 8, "{} {algorithm}", rig.name);
            assert!(!rig.refund(&first, MIDNIGHT + 2).await);
            assert!(!rig.settle(&first, Settlement::Cost(cost(9)), MIDNIGHT + 2).await);
            assert_eq!(rig.left(&limits, MIDNIGHT + 2).await.0, 8, "{} {algorithm}", rig.name);
            assert!(rig.refund(&second, MIDNIGHT + 3).await);
            assert_eq!(rig.left(&limits, MIDNIGHT + 3).await, (10, 0), "{} {algorithm}", rig.name);
        }
    }
}

#[tokio::test]
async fn a_refund_never_fills_a_bucket_above_its_burst() {
    for rig in Rig::both().await {
        for algorithm in Algorithm::ALL.into_iter().filter(|a| a.is_bucket()) {
            let limits = named(algorithm.name(), algorithm, "10/1s burst 4");
            let charge = rig.charge(&limits, 4, TODAY).await;
            // 250 ms later 2.5 of the 4 are back already.
            assert!(rig.refund(&charge, TODAY + 250_000).await);
            assert_eq!(rig.left(&limits, TODAY + 250_000).await, (4, 0));
            assert!(rig.decide(&limits, 4, TODAY + 250_000).await.allowed);
            assert!(!rig.decide(&limits, 1, TODAY + 250_000).await.allowed);
        }
    }
}

#[tokio::test]
async fn a_fixed_window_takes_back_only_in_the_window_of_the_charge() {
    for rig in Rig::both().await {
        let limits = one(Algorithm::FixedWindow, "10/1m");
        let early = rig.charge(&limits, 4, MIDNIGHT).await;
        rig.charge(&limits, 3, MIDNIGHT + MINUTE).await;
        assert!(rig.refund(&early, MIDNIGHT + MINUTE).await);
        assert_eq!(rig.left(&limits, MIDNIGHT + MINUTE).await.0, 7, "{}", rig.name);
    }
}

#[tokio::test]
async fn a_sliding_counter_takes_back_in_this_window_and_the_previous_one() {
    for rig in Rig::both().await {
        let limits = one(Algorithm::SlidingWindow, "10/1m");
        let [two_ago, previous, current] = [0, 1, 2].map(|n| MIDNIGHT + n * MINUTE);
        let oldest = rig.charge(&limits, 2, two_ago).await;
        let older = rig.charge(&limits, 4, previous).await;
        rig.charge(&limits, 1, current).await;
        assert_eq!(rig.left(&limits, current).await.0, 5);
        assert!(rig.refund(&oldest, current).await);
        assert_eq!(rig.left(&limits, current).await.0, 5, "{}: two windows ago", rig.name);
        assert!(rig.refund(&older, current).await);
        assert_eq!(rig.left(&limits, current).await.0, 9, "{}: the previous one", rig.name);
    }
}

#[tokio::test]
async fn a_sliding_log_of_many_charges_takes_back_any_of_them() {
    for rig in Rig::both().await {
        let limits = one(Algorithm::SlidingLog, "1000/1m");
        let mut charges = Vec::new();
        // One charge each 10 ms: five pages of the log in Redis and a bit.
        for n in 0..330 {
            charges.push(rig.charge(&limits, 1 + n % 3, TODAY + n * 10_000).await);
        }
        let now = TODAY + 330 * 10_000;
        let used = (0..330).map(|n| 1 + n % 3).sum::<u64>();
        assert_eq!(rig.left(&limits, now).await.0, 1000 - used);
        // From the middle, at page edges, and the newest ones: then the quota is whole earlier.
        for n in [100, 63, 64, 128, 127, 5] {
            assert!(rig.refund(&charges[n], now).await);
        }
        let given_back: u64 = [100, 63, 64, 128, 127, 5].iter().map(|n| 1 + n % 3).sum();
        let used = used - given_back;
        assert_eq!(
            rig.left(&limits, now).await,
            (1000 - used, MINUTE - 10_000),
            "{}: the newest is 10 ms old",
            rig.name
        );
        let mut newest = 0;
        for n in (250..330).rev() {
            assert!(rig.refund(&charges[n], now).await);
            newest += 1 + n as u64 % 3;
        }
        let used = used - newest;
        assert_eq!(rig.left(&limits, now).await, (1000 - used, MINUTE - 81 * 10_000));
        // A minute after charge 199 it and all older ones have gone.
        let later = TODAY + 199 * 10_000 + MINUTE;
        let rest: u64 = (200..250).map(|n| 1 + n % 3).sum();
        assert_eq!(rig.left(&limits, later).await, (1000 - rest, 50 * 10_000), "{}", rig.name);
        // What has gone by itself is not given back again.
        assert!(rig.refund(&charges[150], later).await);
        assert_eq!(rig.left(&limits, later).await.0, 1000 - rest, "{}", rig.name);
        assert!(rig.decide(&limits, 1000 - rest, later).await.allowed);
        assert!(!rig.decide(&limits, 1, later).await.allowed);
    }
}

#[tokio::test]
async fn a_refund_comes_too_late_a_day_after_its_charge() {
    for rig in Rig::both().await {
        let limits = one(Algorithm::TokenBucket, "10/7d");
        let charge = rig.charge(&limits, 4, TODAY).await;
        assert!(!rig.refund(&charge, TODAY + CHARGE_LIFE.0).await);
        assert_eq!(rig.left(&limits, TODAY).await.0, 6, "{}", rig.name);
        assert!(rig.refund(&charge, TODAY + CHARGE_LIFE.0 - 1).await);
    }
}

#[tokio::test]
async fn a_refund_covers_every_limit_that_was_charged() {
    for rig in Rig::both().await {
        let limits = several(&[
            (Algorithm::TokenBucket, "10/1m"),
            (Algorithm::SlidingLog, "20/1m"),
            (Algorithm::FixedWindow, "30/1m"),
        ]);
        let charge = rig.charge(&limits, 4, MIDNIGHT).await;
        // The charge as its holder kept it, in text.
        let charge = Charge::from_id(&charge.to_id()).unwrap();
        assert!(rig.refund(&charge, MIDNIGHT).await);
        let left: Vec<u64> =
            rig.check(&limits, 0, MIDNIGHT).await.decisions.iter().map(|d| d.remaining).collect();
        assert_eq!(left, [10, 20, 30], "{}", rig.name);
    }
}

#[tokio::test]
async fn settling_for_less_gives_the_difference_back() {
    for rig in Rig::both().await {
        for algorithm in Algorithm::ALL {
            let limits = named(algorithm.name(), algorithm, "10/1m");
            let charge = rig.charge(&limits, 5, MIDNIGHT).await;
            assert!(rig.settle(&charge, Settlement::Cost(cost(2)), MIDNIGHT).await);
            assert_eq!(rig.left(&limits, MIDNIGHT).await.0, 8, "{} {algorithm}", rig.name);
            assert!(!rig.refund(&charge, MIDNIGHT).await, "settled once, it is settled");
            assert_eq!(rig.left(&limits, MIDNIGHT).await.0, 8, "{} {algorithm}", rig.name);
        }
    }
}

#[tokio::test]
async fn settling_for_more_takes_it_even_where_nothing_is_left() {
    for rig in Rig::both().await {
        for algorithm in Algorithm::ALL {
            let limits = named(algorithm.name(), algorithm, "10/1m");
            let charge = rig.charge(&limits, 5, MIDNIGHT).await;
            assert!(rig.settle(&charge, Settlement::Cost(cost(25)), MIDNIGHT).await);
            let after = rig.decide(&limits, 1, MIDNIGHT).await;
            assert!(!after.allowed);
            assert_eq!(after.remaining, 0, "{} {algorithm}", rig.name);
            // 25 used: a bucket owes 15 and needs 16 of them back, six seconds each. A window ends;
            // the counter's next one starts with 25·(P − into)/P, and 9 of it may be left.
            let retry = match algorithm {
                Algorithm::FixedWindow | Algorithm::SlidingLog => MINUTE,
                Algorithm::SlidingWindow => MINUTE + MINUTE * 16 / 25,
                _ => 16 * 6 * SECOND,
            };
            assert_eq!(after.retry_after, Some(Micros(retry)), "{} {algorithm}", rig.name);
            assert_eq!(after.next_after, Micros(retry));
            assert!(!rig.decide(&limits, 1, MIDNIGHT + retry - 1).await.allowed);
            assert!(rig.decide(&limits, 1, MIDNIGHT + retry).await.allowed, "{algorithm}");
        }
    }
}

#[tokio::test]
async fn settling_for_a_billion_at_the_slowest_rate_neither_breaks_nor_stalls() {
    for rig in Rig::both().await {
        for quota in ["7/366d", "1/366d", "1G/366d", "7/366d burst 1"] {
            let limits = named(&quota.replace(['/', ' '], "-"), Algorithm::Gcra, quota);
            let charge = rig.charge(&limits, 1, TODAY).await;
            let began = std::time::Instant::now();
            assert!(rig.settle(&charge, Settlement::Cost(cost(1_000_000_000)), TODAY).await);
            assert!(!rig.decide(&limits, 1_000_000_000, TODAY).await.allowed);
            let after = rig.decide(&limits, 1, TODAY).await;
            assert_eq!((after.allowed, after.remaining), (false, 0), "{}", rig.name);
            assert!(began.elapsed().as_secs() < 2, "{} {quota}", rig.name);
        }
    }
}

#[tokio::test]
async fn an_idempotency_key_gets_its_answer_again_and_is_not_charged_again() {
    for rig in Rig::both().await {
        let limits = one(Algorithm::TokenBucket, "10/1m");
        let (first, charge) = rig.idempotent(&limits, 2, TODAY, "k").await.unwrap();
        assert!(!first.replayed);
        let (again, same_charge) = rig.idempotent(&limits, 2, TODAY + SECOND, "k").await.unwrap();
        assert!(again.replayed);
        assert_eq!(again.decisions, first.decisions, "{}", rig.name);
        assert_eq!(rig.left(&limits, TODAY).await.0, 8, "{}", rig.name);
        assert_eq!(
            rig.idempotent(&limits, 3, TODAY, "k").await.unwrap_err(),
            StoreError::OtherCost
        );
        assert_eq!(rig.left(&limits, TODAY).await.0, 8, "{}", rig.name);
        // Another key is another request.
        assert!(!rig.idempotent(&limits, 2, TODAY, "k2").await.unwrap().0.replayed);
        assert_eq!(rig.left(&limits, TODAY).await.0, 6, "{}", rig.name);
        // Whoever holds the replayed answer holds the same charge: it comes back once.
        assert!(rig.refund(&same_charge.unwrap(), TODAY).await);
        assert!(!rig.refund(&charge.unwrap(), TODAY).await);
        assert_eq!(rig.left(&limits, TODAY).await.0, 8, "{}", rig.name);
    }
}

#[tokio::test]
async fn an_idempotency_key_belongs_to_its_identity() {
    for rig in Rig::both().await {
        let limits = one(Algorithm::FixedWindow, "10/1d");
        rig.idempotent(&limits, 2, TODAY, "k").await.unwrap();
        let somebody_else = id("user:2");
        let check = Check {
            identity: &somebody_else,
            limits: &limits,
            cost: cost(3),
            idempotency: Some(Idempotency::new("k", Micros(MINUTE)).unwrap()),
            at: Some(Micros(TODAY)),
        };
        assert!(!rig.store.check(&check).await.unwrap().replayed, "{}", rig.name);
    }
}

#[tokio::test]
async fn an_idempotency_answer_ends_after_its_time() {
    for rig in Rig::both().await {
        let limits = one(Algorithm::SlidingLog, "10/1h");
        rig.idempotent(&limits, 2, TODAY, "k").await.unwrap();
        let last = TODAY + 5 * MINUTE - 1;
        assert!(rig.idempotent(&limits, 2, last, "k").await.unwrap().0.replayed, "{}", rig.name);
        let (afresh, _) = rig.idempotent(&limits, 1, last + 1, "k").await.unwrap();
        assert!(!afresh.replayed, "{}: another cost is no error any more", rig.name);
        assert_eq!(rig.left(&limits, last + 1).await.0, 7, "{}", rig.name);
    }
}

#[tokio::test]
async fn a_clients_own_key_is_free_five_times_and_then_counted() {
    for rig in Rig::both().await {
        let limits = one(Algorithm::Gcra, "10/1d");
        let ask = async |at: u64| {
            let idempotency = Idempotency::of_client("k", Micros(5 * MINUTE)).ok();
            let check = Check {
                identity: &id("user:1"),
                limits: &limits,
                cost: cost(1),
                idempotency,
                at: Some(Micros(at)),
            };
            rig.store.check(&check).await.unwrap().replayed
        };
        let replayed: Vec<bool> = [ask(TODAY).await, ask(TODAY).await, ask(TODAY).await].into();
        assert_eq!(replayed, [false, true, true], "{}", rig.name);
        for _ in 0..3 {
            assert!(ask(TODAY).await, "{}", rig.name);
        }
        assert_eq!(rig.left(&limits, TODAY).await.0, 9, "{}", rig.name);
        for left in [8, 7] {
            assert!(!ask(TODAY).await, "{}: used up, so counted", rig.name);
            assert_eq!(rig.left(&limits, TODAY).await.0, left, "{}", rig.name);
        }
        // Counting it did not begin a new term of free ones, nor prolong the old.
        assert!(!ask(TODAY + 5 * MINUTE - 1).await, "{}", rig.name);
        assert!(!ask(TODAY + 5 * MINUTE).await, "{}", rig.name);
        assert!(ask(TODAY + 5 * MINUTE).await, "{}: a new term", rig.name);
    }
}

#[tokio::test]
async fn rejections_and_peeks_are_not_remembered() {
    for rig in Rig::both().await {
        let limits = one(Algorithm::TokenBucket, "1/1s");
        assert!(rig.idempotent(&limits, 0, TODAY, "k").await.unwrap().0.allowed());
        rig.charge(&limits, 1, TODAY).await;
        assert!(!rig.idempotent(&limits, 1, TODAY, "k").await.unwrap().0.allowed());
        let (retried, _) = rig.idempotent(&limits, 1, TODAY + SECOND, "k").await.unwrap();
        assert!(retried.allowed() && !retried.replayed, "{}", rig.name);
    }
}

#[tokio::test]
async fn a_refund_forgets_the_answer_of_its_own_charge_only() {
    for rig in Rig::both().await {
        let limits = one(Algorithm::FixedWindow, "10/1d");
        let (_, charge) = rig.idempotent(&limits, 2, TODAY, "k").await.unwrap();
        assert!(rig.refund(&charge.unwrap(), TODAY).await);
        let (afresh, old) = rig.idempotent(&limits, 2, TODAY + 1, "k").await.unwrap();
        assert!(!afresh.replayed, "{}: refunded, so decided afresh", rig.name);
        assert_eq!(rig.left(&limits, TODAY + 1).await.0, 8, "{}", rig.name);
        // Its time over, the key is used again; giving back the old charge leaves that alone.
        let later = TODAY + 10 * MINUTE;
        assert!(!rig.idempotent(&limits, 2, later, "k").await.unwrap().0.replayed);
        assert!(rig.refund(&old.unwrap(), later).await);
        assert!(rig.idempotent(&limits, 2, later, "k").await.unwrap().0.replayed, "{}", rig.name);
        assert_eq!(rig.left(&limits, later).await.0, 8, "{}", rig.name);
    }
}

#[tokio::test]
async fn settling_keeps_the_idempotency_answer() {
    for rig in Rig::both().await {
        let limits = one(Algorithm::TokenBucket, "10/1d");
        let (_, charge) = rig.idempotent(&limits, 5, TODAY, "k").await.unwrap();
        assert!(rig.settle(&charge.unwrap(), Settlement::Cost(cost(1)), TODAY).await);
        assert!(rig.idempotent(&limits, 5, TODAY, "k").await.unwrap().0.replayed, "{}", rig.name);
        assert_eq!(rig.left(&limits, TODAY).await.0, 9, "{}", rig.name);
    }
}

#[tokio::test]
async fn an_answer_is_not_replayed_to_a_rule_that_has_other_limits_now() {
    for rig in Rig::both().await {
        let before = one(Algorithm::TokenBucket, "10/1d");
        let after = several(&[(Algorithm::TokenBucket, "10/1d"), (Algorithm::FixedWindow, "5/1d")]);
        rig.idempotent(&before, 1, TODAY, "k").await.unwrap();
        let (answer, _) = rig.idempotent(&after, 1, TODAY, "k").await.unwrap();
        assert_eq!(answer.decisions.len(), 2, "{}", rig.name);
        assert!(!answer.replayed, "{}", rig.name);
        assert!(rig.idempotent(&after, 1, TODAY, "k").await.unwrap().0.replayed, "{}", rig.name);
    }
}

#[tokio::test]
async fn a_replayed_answer_is_the_first_one_although_its_limit_has_changed() {
    for rig in Rig::both().await {
        let (first, _) =
            rig.idempotent(&one(Algorithm::Gcra, "10/1d"), 1, TODAY, "k").await.unwrap();
        let lowered = one(Algorithm::Gcra, "5/1d burst 2");
        let (again, _) = rig.idempotent(&lowered, 1, TODAY, "k").await.unwrap();
        assert_eq!(again.decisions, first.decisions, "{}", rig.name);
        assert_eq!((again.decisions[0].capacity, again.decisions[0].used()), (10, 1));
    }
}

#[tokio::test]
async fn a_raised_limit_helps_at_once_and_a_lowered_one_bites_at_once() {
    for rig in Rig::both().await {
        for algorithm in Algorithm::ALL {
            let with = |quota| named(algorithm.name(), algorithm, quota);
            rig.charge(&with("10/1m"), 8, MIDNIGHT).await;
            assert_eq!(rig.left(&with("20/1m"), MIDNIGHT).await.0, 12, "{} {algorithm}", rig.name);
            assert_eq!(rig.left(&with("9/1m"), MIDNIGHT).await.0, 1, "{} {algorithm}", rig.name);
            let bitten = rig.decide(&with("5/1m"), 1, MIDNIGHT).await;
            assert_eq!((bitten.allowed, bitten.remaining), (false, 0), "{} {algorithm}", rig.name);
            // Only a charge writes: under the first limit nothing has happened.
            assert_eq!(rig.left(&with("10/1m"), MIDNIGHT).await.0, 2, "{} {algorithm}", rig.name);
            rig.charge(&with("20/1m"), 12, MIDNIGHT).await;
            assert!(!rig.decide(&with("20/1m"), 1, MIDNIGHT).await.allowed);
            assert_eq!(rig.left(&with("25/1m"), MIDNIGHT).await.0, 5, "{} {algorithm}", rig.name);
        }
    }
}

#[tokio::test]
async fn another_algorithm_or_window_period_starts_whole() {
    for rig in Rig::both().await {
        let kinds = [(0, "a"), (1, "b"), (2, "c"), (3, "d"), (4, "e"), (5, "f")];
        for (n, rule) in kinds {
            let (old, new) = (Algorithm::ALL[n], Algorithm::ALL[(n + 1) % 6]);
            rig.charge(&named(rule, old, "10/1m"), 8, MIDNIGHT).await;
            assert_eq!(rig.left(&named(rule, new, "10/1m"), MIDNIGHT).await, (10, 0), "{new}");
            // Another period resets a window; a bucket has used what it has used.
            let left = if old.is_bucket() { 2 } else { 10 };
            assert_eq!(rig.left(&named(rule, old, "10/1h"), MIDNIGHT).await.0, left, "{old}");
            rig.charge(&named(rule, new, "10/1m"), 3, MIDNIGHT).await;
            assert_eq!(rig.left(&named(rule, new, "10/1m"), MIDNIGHT).await.0, 7, "{new}");
        }
    }
}

#[tokio::test]
async fn a_charge_of_before_a_reset_is_not_given_back_after_it() {
    for rig in Rig::both().await {
        let (bucket, window) =
            (one(Algorithm::TokenBucket, "10/1m"), one(Algorithm::FixedWindow, "10/1m"));
        let old = rig.charge(&bucket, 8, MIDNIGHT).await;
        rig.charge(&window, 9, MIDNIGHT).await;
        assert!(rig.refund(&old, MIDNIGHT).await);
        assert_eq!(rig.left(&window, MIDNIGHT).await.0, 1, "{}: another algorithm", rig.name);

        let bucket = named("clock", Algorithm::TokenBucket, "10/1m");
        let ahead = rig.charge(&bucket, 8, MIDNIGHT + HOUR).await;
        assert!(rig.decide(&bucket, 9, MIDNIGHT).await.clock_jump);
        assert!(rig.refund(&ahead, MIDNIGHT).await);
        assert_eq!(rig.left(&bucket, MIDNIGHT).await.0, 1, "{}: a broken clock", rig.name);
    }
}

#[tokio::test]
async fn what_was_whole_before_a_change_is_whole_after_it() {
    // A store may have forgotten it; whether it has must not show.
    for rig in Rig::both().await {
        for algorithm in Algorithm::ALL {
            rig.charge(&named(algorithm.name(), algorithm, "100/1m"), 100, MIDNIGHT).await;
            let slow = named(algorithm.name(), algorithm, "1/1m");
            let slow = if algorithm.is_bucket() {
                named(algorithm.name(), algorithm, "1/1h burst 100")
            } else {
                slow
            };
            let capacity = slow[0].limit().capacity();
            let later = MIDNIGHT + 2 * MINUTE;
            assert_eq!(rig.left(&slow, later).await, (capacity, 0), "{} {algorithm}", rig.name);
        }
    }
}

#[tokio::test]
async fn a_limit_of_zero_blocks_and_forgets_nothing() {
    for rig in Rig::both().await {
        for algorithm in Algorithm::ALL {
            let with = |quota| named(algorithm.name(), algorithm, quota);
            rig.charge(&with("10/1m"), 4, MIDNIGHT).await;
            let blocked = rig.decide(&with("0/1m"), 1, MIDNIGHT).await;
            assert!(blocked.never_passes());
            assert_eq!((blocked.remaining, blocked.reset_after), (0, Micros::ZERO));
            assert!(rig.decide(&with("0/1m"), 0, MIDNIGHT).await.allowed, "a peek may look");
            assert_eq!(rig.left(&with("10/1m"), MIDNIGHT).await.0, 6, "{} {algorithm}", rig.name);
        }
    }
}

#[tokio::test]
async fn a_reset_forgets_one_rule_or_all_of_an_identity_and_nothing_else() {
    for rig in Rig::both().await {
        let name = rig.name;
        for algorithm in Algorithm::ALL {
            let [ours, longer, other] =
                ["a", "ab", "b"].map(|rule| named(rule, algorithm, "100/1m"));
            // More than one chunk of a sliding log.
            for n in 0..70 {
                rig.charge(&ours, 1, MIDNIGHT + n).await;
            }
            rig.charge(&longer, 2, MIDNIGHT).await;
            rig.charge(&other, 3, MIDNIGHT).await;
            let left = async |limits| rig.left(limits, MIDNIGHT + 70).await.0;
            let reset =
                async |identity: &str, rule| rig.store.reset(&id(identity), rule).await.unwrap();
            assert_eq!(reset("user:2", None).await, 0);
            assert_eq!(reset("user:1", Some("c")).await, 0);
            assert_eq!(left(&ours).await, 30);
            assert_eq!(reset("user:1", Some("a")).await, 1, "{name} {algorithm}");
            let all = [left(&ours).await, left(&longer).await, left(&other).await];
            assert_eq!(all, [100, 98, 97], "{name} {algorithm}");
            // It works on from there.
            rig.charge(&ours, 1, MIDNIGHT + 70).await;
            assert_eq!(left(&ours).await, 99, "{name} {algorithm}");
            assert_eq!(reset("user:1", None).await, 3, "{name} {algorithm}");
            let all = [left(&ours).await, left(&longer).await, left(&other).await];
            assert_eq!(all, [100; 3], "{name} {algorithm}");
            assert_eq!(rig.dump(), [], "nothing is left behind");
        }
    }
}

#[tokio::test]
async fn a_reset_counts_every_limit_of_a_rule() {
    for rig in Rig::both().await {
        let limits = several(&[(Algorithm::Gcra, "10/1m"), (Algorithm::SlidingLog, "100/1h")]);
        rig.charge(&limits, 4, MIDNIGHT).await;
        assert_eq!(rig.store.reset(&id("user:1"), Some("r")).await, Ok(2), "{}", rig.name);
        assert_eq!(rig.store.reset(&id("user:1"), Some("r")).await, Ok(0), "{}", rig.name);
        assert_eq!(rig.dump(), []);
    }
}

#[tokio::test]
async fn a_reset_keeps_what_operators_decided_and_when_the_rest_expires() {
    let rig = Rig::redis().await;
    let server = rig.server.as_ref().unwrap();
    let mut redis = server.connection();
    let (kept, reset) =
        (named("a", Algorithm::Gcra, "10/1h"), named("b", Algorithm::Gcra, "10/1h"));
    rig.charge(&kept, 1, MIDNIGHT).await;
    rig.charge(&reset, 1, MIDNIGHT).await;
    redis::cmd("SET").arg("rl1:{user:1}:s").arg("decided").exec(&mut redis).unwrap();
    let before: i64 = redis::cmd("PEXPIRETIME").arg("rl1:{user:1}").query(&mut redis).unwrap();
    rig.store.reset(&id("user:1"), Some("b")).await.unwrap();
    let after: i64 = redis::cmd("PEXPIRETIME").arg("rl1:{user:1}").query(&mut redis).unwrap();
    assert_eq!(after, before);
    rig.store.reset(&id("user:1"), None).await.unwrap();
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut redis).unwrap();
    assert_eq!(keys, ["rl1:{user:1}:s"]);
}
