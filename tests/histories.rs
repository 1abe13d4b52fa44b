//! Random lives of a store: checks over several limits, refunds, settlements, idempotency keys,
//! rules that change under it and clocks that jump. Memory and Redis tell the same story.

use std::sync::Arc;

use rlctl::engine::clock::Micros;
use rlctl::engine::limit::{Algorithm, OnChange};
use rlctl::engine::store::{Answer, Charge, Check, Idempotency, RuleLimit, Settlement};

use crate::support::rng::Rng;
use crate::support::{Rig, TODAY, cost, id, limit};

const STEPS: usize = 12_000;

/// The same rule over time: each time it is read it may be another of these.
const BUCKETS: [&str; 6] =
    ["7/3s", "7/3s burst 20", "100/1m burst 10", "1/1s burst 3", "10/1s", "1M/1d burst 5"];
const WINDOWS: [&str; 5] = ["7/3s", "20/3s", "3/3s", "10/1s", "100/1m"];

fn any_limit(rng: &mut Rng) -> (Algorithm, &'static str) {
    let algorithm = *rng.pick(&Algorithm::ALL);
    let quota = if algorithm.is_bucket() { *rng.pick(&BUCKETS) } else { *rng.pick(&WINDOWS) };
    (algorithm, if rng.chance(2) { "0/1s" } else { quota })
}

/// Rules as they are now. Mostly only the numbers of a limit change, so that states are kept.
fn change(rules: &mut [Vec<Arc<RuleLimit>>; 3], rng: &mut Rng) {
    let rule = rng.below(3) as usize;
    let index = rng.below(rules[rule].len() as u64) as usize;
    let (mut algorithm, quota) = any_limit(rng);
    let present = rules[rule][index].limit().algorithm();
    if rng.chance(70) && present.is_bucket() == algorithm.is_bucket() {
        algorithm = present;
    }
    let name = rules[rule][index].rule().to_string();
    let limit = RuleLimit::new(&name, index as u8, limit(algorithm, quota));
    let on_change = *rng.pick(&[OnChange::Keep, OnChange::Keep, OnChange::Scale, OnChange::Reset]);
    rules[rule][index] =
        Arc::new(limit.with_weight(cost(1 + rng.below(3))).with_on_change(on_change));
}

/// Everything an answer says but the random name of its charge.
fn said(answer: &Result<Answer, String>) -> String {
    match answer {
        Ok(answer) => format!("{} {:?}", answer.replayed, answer.decisions),
        Err(error) => error.clone(),
    }
}

async fn lives_alike(seed: u64) {
    let mut rng = Rng::new(seed);
    let rigs = Rig::both().await;
    let identities = [id("user:1"), id("user:{2}"), id("apikey:%")];
    let start = |rule: &str, count: u8, rng: &mut Rng| {
        let each = |index| {
            let (algorithm, quota) = any_limit(rng);
            Arc::new(RuleLimit::new(rule, index, limit(algorithm, quota)))
        };
        (0..count).map(each).collect::<Vec<_>>()
    };
    let mut rules = [start("a", 1, &mut rng), start("b", 2, &mut rng), start("c", 3, &mut rng)];
    let mut charges: Vec<[Charge; 2]> = Vec::new();
    let (mut now, mut latest) = (TODAY, TODAY);
    let (mut allowed, mut rejected, mut returned, mut replayed, mut jumps) = (0, 0, 0, 0, 0);
    for step in 0..STEPS {
        let context = format!("seed {seed}, step {step}, at {now}");
        now = match rng.below(40) {
            0 => now - rng.scale(10_000_000),
            1 => now - rng.scale(1_000_000),
            2 => now + rng.scale(200_000_000),
            3..20 => now,
            _ => now + rng.scale(700_000),
        };
        if rng.chance(5) {
            change(&mut rules, &mut rng);
        }
        if rng.chance(25) && !charges.is_empty() {
            // Recent ones, so that most still count; some a second time.
            let back = rng.scale(charges.len() as u64) as usize;
            let pair = charges[charges.len() - back].clone();
            let to = match rng.below(4) {
                0 => Settlement::Cost(cost(rng.below(8))),
                1 if rng.chance(20) => Settlement::Cost(cost(30)),
                _ => Settlement::Refund,
            };
            let mut done = Vec::new();
            for (rig, charge) in rigs.iter().zip(&pair) {
                done.push(rig.store.settle(charge, to, Some(Micros(now))).await.unwrap());
            }
            assert_eq!(done[0], done[1], "{context}: {to:?}");
            returned += usize::from(done[0]);
            continue;
        }
        let limits = rng.pick(&rules).clone();
        let key = format!("k{}", rng.below(5));
        let idempotent = rng.chance(10);
        // An answer whose time was over may be forgotten; a clock that goes back does not bring it
        // back. So those who use keys have good clocks.
        latest = latest.max(now);
        let now = if idempotent { latest } else { now };
        let check = Check {
            identity: rng.pick(&identities),
            limits: &limits,
            cost: cost(match idempotent {
                true => 1 + rng.below(2),
                false if rng.chance(10) => 0,
                false => rng.scale(8),
            }),
            idempotency: idempotent.then(|| Idempotency::new(&key, Micros(20_000_000)).unwrap()),
            at: Some(Micros(now)),
        };
        let mut answers = Vec::new();
        for rig in &rigs {
            answers.push(rig.store.check(&check).await.map_err(|e| e.to_string()));
        }
        assert_eq!(
            said(&answers[0]),
            said(&answers[1]),
            "{context}: memory (left) and redis (right) differ on {check:?}"
        );
        let Ok(answer) = &answers[0] else { continue };
        jumps += answer.decisions.iter().filter(|d| d.clock_jump).count();
        replayed += usize::from(answer.replayed);
        if answer.allowed() {
            allowed += 1;
        } else {
            rejected += 1;
        }
        let pair: Vec<Charge> =
            answers.iter().filter_map(|a| a.as_ref().unwrap().charge(&check)).collect();
        if let Ok(pair) = <[Charge; 2]>::try_from(pair) {
            charges.push(pair);
        }
    }
    let seen = (allowed, rejected, returned, replayed, jumps);
    assert!(allowed > STEPS / 10 && rejected > STEPS / 10, "seed {seed}: {seen:?}");
    assert!(returned > STEPS / 20 && replayed > 10 && jumps > 10, "seed {seed}: {seen:?}");
}

#[tokio::test]
async fn memory_and_redis_live_alike() {
    lives_alike(1).await;
}

#[tokio::test]
async fn memory_and_redis_live_alike_once_more() {
    lives_alike(2).await;
}

#[tokio::test]
async fn memory_and_redis_live_alike_a_third_time() {
    lives_alike(3).await;
}
