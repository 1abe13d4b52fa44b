//! What becomes of used quota when a rule changes, and requests that cost more under one rule than
//! under another; on both stores.

use std::sync::Arc;

use rlctl::engine::limit::{Algorithm, OnChange};
use rlctl::engine::store::RuleLimit;

use crate::support::{Rig, TODAY, cost, limit, named};

const MINUTE: u64 = 60_000_000;
const WINDOW: u64 = TODAY - TODAY % MINUTE;

fn changed(
    rule: &str,
    algorithm: Algorithm,
    quota: &str,
    on_change: OnChange,
) -> Vec<Arc<RuleLimit>> {
    let rule_limit = RuleLimit::new(rule, 0, limit(algorithm, quota));
    vec![Arc::new(rule_limit.with_on_change(on_change))]
}

#[tokio::test]
async fn scaling_keeps_the_used_share_rounded_up() {
    for rig in Rig::both().await {
        for algorithm in Algorithm::ALL {
            let scaled = |quota| changed(algorithm.name(), algorithm, quota, OnChange::Scale);
            rig.charge(&named(algorithm.name(), algorithm, "10/1m"), 5, WINDOW).await;
            for (quota, used, capacity) in
                [("20/1m", 10, 20), ("9/1m", 5, 9), ("3/1m", 2, 3), ("1/1m", 1, 1)]
            {
                let decision = rig.decide(&scaled(quota), 0, WINDOW).await;
                assert_eq!(
                    (decision.used(), decision.capacity),
                    (used, capacity),
                    "{} {algorithm} {quota}",
                    rig.name
                );
            }
            // Charged under the new limit, it is kept there.
            rig.charge(&scaled("20/1m"), 1, WINDOW).await;
            assert_eq!(
                rig.decide(&scaled("20/1m"), 0, WINDOW).await.used(),
                11,
                "{} {algorithm}",
                rig.name
            );
        }
    }
}

#[tokio::test]
async fn a_scaled_log_of_many_charges_forgets_them_one_by_one() {
    for rig in Rig::both().await {
        let old = named("log", Algorithm::SlidingLog, "300/1m");
        for n in 0..200 {
            rig.charge(&old, 1, WINDOW + n).await;
        }
        let new = changed("log", Algorithm::SlidingLog, "100/1m", OnChange::Scale);
        let used = |at| {
            let (rig, new) = (&rig, &new);
            async move { rig.decide(new, 0, at).await.used() }
        };
        // 200 of 300 are 67 of 100; as charges leave, the rest is rounded up as one number.
        assert_eq!(used(WINDOW + 200).await, 67, "{}", rig.name);
        for gone in [1, 2, 3, 64, 65, 128, 199, 200] {
            let left = 200u64 - gone;
            assert_eq!(
                used(WINDOW + MINUTE + gone - 1).await,
                left.div_ceil(3),
                "{} {gone}",
                rig.name
            );
        }
        rig.charge(&new, 1, WINDOW + 200).await;
        assert_eq!(used(WINDOW + 200).await, 68, "{}", rig.name);
        assert_eq!(used(WINDOW + MINUTE + 199).await, 1, "{}", rig.name);
    }
}

#[tokio::test]
async fn resetting_starts_whole_but_only_where_the_limit_is_another() {
    for rig in Rig::both().await {
        for algorithm in Algorithm::ALL {
            let reset = |quota| changed(algorithm.name(), algorithm, quota, OnChange::Reset);
            rig.charge(&reset("10/1m"), 5, WINDOW).await;
            assert_eq!(
                rig.decide(&reset("10/1m"), 0, WINDOW).await.used(),
                5,
                "{} {algorithm}",
                rig.name
            );
            assert_eq!(
                rig.decide(&reset("11/1m"), 0, WINDOW).await.used(),
                0,
                "{} {algorithm}",
                rig.name
            );
        }
    }
}

#[tokio::test]
async fn one_request_weighs_differently_under_different_rules() {
    for rig in Rig::both().await {
        let light = RuleLimit::new("light", 0, limit(Algorithm::Gcra, "10/1m"));
        let heavy =
            RuleLimit::new("heavy", 0, limit(Algorithm::FixedWindow, "10/1m")).with_weight(cost(4));
        let limits = [Arc::new(light), Arc::new(heavy)];
        let charge = rig.charge(&limits, 2, WINDOW).await;
        let used = |rig: &Rig, answer: rlctl::engine::store::Answer| {
            let used: Vec<u64> = answer.decisions.iter().map(|d| d.used()).collect();
            (rig.name, used)
        };
        assert_eq!(used(&rig, rig.check(&limits, 0, WINDOW).await), (rig.name, vec![2, 8]));
        let refused = rig.check(&limits, 1, WINDOW).await;
        assert_eq!(refused.decisions.iter().map(|d| d.allowed).collect::<Vec<_>>(), [true, false]);
        assert_eq!(refused.decisions[1].retry_after.map(|d| d.0), Some(MINUTE));
        // A weight that lifts a cost above any capacity is a cost that never passes.
        let never = rig.check(&limits, 500_000_000, WINDOW).await;
        assert!(never.decisions[1].never_passes());
        use rlctl::engine::store::Settlement;
        assert!(
            rig.store
                .settle(&charge, Settlement::Refund, Some(rlctl::engine::clock::Micros(WINDOW)))
                .await
                .unwrap()
        );
        assert_eq!(used(&rig, rig.check(&limits, 0, WINDOW).await), (rig.name, vec![0, 0]));
    }
}
