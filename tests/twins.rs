//! Memory, Redis and an exact model give the same answer to the same history, in every field, over
//! 100 000 random requests for each algorithm.

use std::sync::Arc;

use rlctl::engine::clock::Micros;
use rlctl::engine::identity::Identity;
use rlctl::engine::limit::{Algorithm, Decision, MAX_COUNT};
use rlctl::engine::store::{Check, RuleLimit};

use crate::model::{Expected, Model};
use crate::support::rng::Rng;
use crate::support::{Rig, TODAY, cost, id, limit};

const REQUESTS: usize = 100_000;
/// As many travel to Redis together.
const BATCH: usize = 500;
const KEYS: usize = 6;

/// Rates that do not divide, that overflow doubles, that hardly ever refill.
const RATES: [&str; 14] = [
    "7/3s",
    "1/7d",
    "10/s",
    "100/1m",
    "1/1ms",
    "300000/s",
    "1000000/1d",
    "999999937/7d",
    "1G/1ms",
    "1G/366d",
    "3/366d",
    "999999937/86399.999999s",
    "1/1s",
    "86399/1d",
];

/// Burst 1, burst far above the limit, and refills of exactly 100 years (3155760000 s).
const BURSTS: [&str; 12] = [
    "7/3s burst 1",
    "7/3s burst 1M",
    "300000/s burst 1",
    "300000/s burst 1G",
    "1/7d burst 5000",
    "1/1s burst 1G",
    "1G/366d burst 1",
    "999999937/7d burst 1G",
    "1/1ms burst 1G",
    "7/3155.76s burst 7M",
    "10000019/366d burst 997M",
    "1/3155.76s burst 1M",
];

const LOG_RATES: [&str; 8] =
    ["7/3s", "1/7d", "10/s", "100/1m", "1/1ms", "100000/1d", "99991/366d", "1000/1ms"];

fn quotas(algorithm: Algorithm) -> Vec<&'static str> {
    match algorithm {
        Algorithm::SlidingLog => LOG_RATES.to_vec(),
        a if a.is_bucket() => RATES.into_iter().chain(BURSTS).collect(),
        _ => RATES.to_vec(),
    }
}

struct Asked {
    identity: Identity,
    limits: Arc<[Arc<RuleLimit>]>,
    cost: u64,
    at: u64,
    expected: Expected,
}

impl Asked {
    fn check(&self) -> Check<'_> {
        Check {
            identity: &self.identity,
            limits: &self.limits,
            cost: cost(self.cost),
            idempotency: None,
            at: Some(Micros(self.at)),
        }
    }
}

/// One key as the traffic sees it: when it last asked and what it was told.
struct Client {
    identity: Identity,
    model: Model,
    now: u64,
    told: Option<Expected>,
}

/// Traffic that knows the answers, so that it can come back exactly when told, or a microsecond
/// early.
fn history(algorithm: Algorithm, seed: u64) -> Vec<Asked> {
    let mut rng = Rng::new(seed);
    let quotas = quotas(algorithm);
    let each = REQUESTS.div_ceil(quotas.len());
    let mut asked = Vec::with_capacity(each * quotas.len());
    for (index, quota) in quotas.iter().enumerate() {
        let limit = limit(algorithm, quota);
        let limits: Arc<[_]> = vec![Arc::new(RuleLimit::new("r", 0, limit))].into();
        let period = limit.period().0;
        let new_client = |n: usize, rng: &mut Rng| Client {
            identity: id(&format!("user:{index}-{n}")),
            model: Model::new(&limit),
            now: if n.is_multiple_of(3) {
                rng.below(3 * period)
            } else {
                TODAY + rng.below(period)
            },
            told: None,
        };
        let mut clients: Vec<Client> = (0..KEYS).map(|n| new_client(n, &mut rng)).collect();
        for _ in 0..each {
            let client = &mut clients[rng.below(KEYS as u64) as usize];
            client.now = next_moment(client, period, limit.micros(), &mut rng);
            let cost = next_cost(client, limit.capacity(), &mut rng);
            let expected = client.model.check(client.now, cost);
            client.told = Some(expected);
            let identity = client.identity.clone();
            asked.push(Asked { identity, limits: limits.clone(), cost, at: client.now, expected });
        }
    }
    asked
}

fn next_moment(client: &Client, period: u64, micros: u64, rng: &mut Rng) -> u64 {
    let now = client.now;
    let told = |field: fn(&Expected) -> i128| {
        client.told.map_or(0, |told| (told.at + field(&told)) as u64).max(now)
    };
    let next = match rng.below(20) {
        0..6 => now,
        6 => told(|e| e.retry_after.unwrap_or(0)),
        7 => told(|e| (e.retry_after.unwrap_or(0) - 1).max(0)),
        8 => told(|e| e.next_after) - u64::from(rng.chance(30)).min(told(|e| e.next_after)),
        9 => told(|e| e.reset_after) - u64::from(rng.chance(50)).min(told(|e| e.reset_after)),
        10 => now - now % period + period,
        11 => (now - now % period + period).saturating_sub(1),
        12 => now.saturating_sub(rng.scale(period)),
        13 if rng.chance(10) => now.saturating_sub(period + rng.below(3)),
        13 if rng.chance(10) => now.saturating_sub(period + rng.scale(2 * period)),
        14 if rng.chance(10) => now + rng.scale(30) * period,
        _ => now + rng.scale(micros.clamp(2, 2 * period)),
    };
    // The years up to 2255 are exact; stay well within.
    if next > TODAY + (1 << 52) { TODAY } else { next }
}

fn next_cost(client: &Client, capacity: u64, rng: &mut Rng) -> u64 {
    let left = client.told.map_or(capacity, |told| told.remaining as u64);
    match rng.below(20) {
        0 => 0,
        1 => left + 1,
        2 | 3 => left,
        4 => capacity,
        5 => capacity + 1,
        6 if rng.chance(20) => MAX_COUNT,
        6..12 => rng.scale(capacity),
        12 => 1 + rng.below(left.max(1)),
        _ => 1,
    }
    .min(MAX_COUNT)
}

fn as_expected(decision: &Decision) -> Expected {
    Expected {
        allowed: decision.allowed,
        remaining: i128::from(decision.remaining),
        retry_after: decision.retry_after.map(|r| i128::from(r.0)),
        reset_after: i128::from(decision.reset_after.0),
        next_after: i128::from(decision.next_after.0),
        delay: i128::from(decision.delay.0),
        at: i128::from(decision.at.0),
        clock_jump: decision.clock_jump,
    }
}

/// Every answer of both stores, checked against the model's.
async fn equal_on_both_stores(algorithm: Algorithm, seed: u64) -> Vec<Asked> {
    let history = history(algorithm, seed);
    assert!(history.len() >= REQUESTS);
    for rig in Rig::both().await {
        for (batch, asked) in history.chunks(BATCH).enumerate() {
            let checks: Vec<Check<'_>> = asked.iter().map(Asked::check).collect();
            let answers = rig.store.check_in_order(&checks).await;
            for (n, (a, answer)) in asked.iter().zip(answers).enumerate() {
                let answer = answer.unwrap_or_else(|e| panic!("{}: {e}", rig.name));
                assert_eq!(
                    as_expected(&answer.decisions[0]),
                    a.expected,
                    "{} differs (left) from the model (right): seed {seed}, request {}, {algorithm} {}, {} costs {} at {}",
                    rig.name,
                    batch * BATCH + n,
                    a.limits[0].limit(),
                    a.identity,
                    a.cost,
                    a.at
                );
            }
        }
    }
    history
}

/// Random traffic that never meets an edge would prove little.
fn is_interesting(history: &[Asked]) {
    let share =
        |of: fn(&Asked) -> bool| 100 * history.iter().filter(|a| of(a)).count() / history.len();
    assert!((15..85).contains(&share(|a| a.expected.allowed)), "allowed and rejected, both often");
    assert!(share(|a| a.expected.retry_after.is_some()) >= 5, "many are told when to come back");
    assert!(share(|a| i128::from(a.at) < a.expected.at) >= 1, "some come from the past");
    assert!(history.iter().filter(|a| a.expected.clock_jump).count() >= 20, "clocks break");
    assert!(
        history.iter().filter(|a| a.expected.allowed && a.expected.remaining == 0).count() > 100
    );
}

#[tokio::test]
async fn token_bucket_equals_the_model_on_both_stores() {
    is_interesting(&equal_on_both_stores(Algorithm::TokenBucket, 11).await);
}

#[tokio::test]
async fn gcra_equals_the_model_on_both_stores() {
    is_interesting(&equal_on_both_stores(Algorithm::Gcra, 12).await);
}

#[tokio::test]
async fn leaky_bucket_equals_the_model_on_both_stores() {
    let history = equal_on_both_stores(Algorithm::LeakyBucket, 13).await;
    is_interesting(&history);
    assert!(history.iter().filter(|a| a.expected.delay > 0).count() > 1000, "many are held");
}

#[tokio::test]
async fn fixed_window_equals_the_model_on_both_stores() {
    is_interesting(&equal_on_both_stores(Algorithm::FixedWindow, 14).await);
}

#[tokio::test]
async fn sliding_window_equals_the_model_on_both_stores() {
    is_interesting(&equal_on_both_stores(Algorithm::SlidingWindow, 15).await);
}

#[tokio::test]
async fn sliding_log_equals_the_model_on_both_stores() {
    is_interesting(&equal_on_both_stores(Algorithm::SlidingLog, 16).await);
}

#[test]
fn gcra_and_token_bucket_are_the_same_bucket() {
    // Both were held to their own formulas above; here the two models meet on one history, which
    // is the token bucket's.
    let mut compared = 0;
    let mut model: Option<(Identity, Model)> = None;
    let mut asked = history(Algorithm::TokenBucket, 11);
    asked.sort_by(|a, b| a.identity.cmp(&b.identity));
    for a in &asked {
        if model.as_ref().is_none_or(|(identity, _)| *identity != a.identity) {
            let limit = limit(Algorithm::Gcra, &a.limits[0].limit().to_string());
            model = Some((a.identity.clone(), Model::new(&limit)));
        }
        let (_, gcra) = model.as_mut().unwrap();
        assert_eq!(gcra.check(a.at, a.cost), a.expected, "{} at {}", a.identity, a.at);
        compared += 1;
    }
    assert!(compared >= REQUESTS);
}
