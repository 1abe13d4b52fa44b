//! One very hot identity over several slots: a rule with `split = n` has n buckets for each identity,
//! its parts, each with its share of every limit, and a request is counted by one of them.
//!
//! The shares add up to the limit exactly, and every bound is linear in the limit, so together the
//! parts never admit more than one bucket would. They may admit less: a request is refused when the
//! part that it comes to, and then another, have no room, though a third may have. Where a limit is
//! smaller than n, there are fewer parts, so that each has at least 1.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;

use super::clock::Micros;
use super::identity::Identity;
use super::limit::{Cost, Decision, Limit, Quota};
use super::limiter::{Asking, Demand, Lent, Limiter, check};
use super::plan::Question;
use super::store::{Answer, Charge, Check, Chosen, Confirm, RuleLimit, Store, StoreError};

/// Whose turn it is: evenly, in an order that no traffic keeps in step with, and the same in every
/// run.
#[derive(Debug, Default)]
pub(super) struct Turns(AtomicU64);

impl Turns {
    fn next(&self, parts: u64) -> u64 {
        // Multiples of the golden ratio: each falls into the widest gap that is left.
        let turn = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        scaled(turn, parts)
    }
}

fn scaled(random: u64, parts: u64) -> u64 {
    ((u128::from(random) * u128::from(parts)) >> 64) as u64
}

/// One part of an identity: what it is called in the store, and its share of each limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub identity: Identity,
    pub limits: Vec<Arc<RuleLimit>>,
}

/// Into how many parts a question is divided; none: it is not.
fn parts_of(question: &Question<'_>) -> Option<u64> {
    let wanted = question.sources.iter().find_map(|source| source.rule.split)?;
    // A part without any of a limit would refuse everybody.
    let limits = question.limits.iter().map(|limit| limit.limit());
    let least = limits.map(|limit| limit.requests().min(limit.capacity())).min()?;
    let parts = u64::from(wanted).min(least);
    let last = || part(question, parts - 1, parts);
    (parts > 1 && last().is_some()).then_some(parts)
}

/// All parts that a question is divided into; none where it is not.
pub fn parts(question: &Question<'_>) -> Vec<Part> {
    let Some(parts) = parts_of(question) else { return Vec::new() };
    (0..parts).filter_map(|n| part(question, n, parts)).collect()
}

fn part(question: &Question<'_>, n: u64, parts: u64) -> Option<Part> {
    let share = |limit: &Arc<RuleLimit>| {
        let shared = share(limit.limit(), n, parts)?;
        Some(Arc::new(RuleLimit::clone(limit).with_limit(shared)))
    };
    let limits = question.limits.iter().map(share).collect::<Option<_>>()?;
    Some(Part { identity: name(question.identity, n)?, limits })
}

/// No dimension is called so, and thus no request. None when it would be too long.
pub fn name(identity: &Identity, n: u64) -> Option<Identity> {
    Identity::opaque(&format!("split:{n}:{identity}")).ok()
}

/// Whose part it is, by its name; itself where it is none.
pub fn whole(identity: &str) -> &str {
    let part = identity.strip_prefix("split:").and_then(|rest| rest.split_once(':'));
    part.filter(|(n, _)| n.parse::<u64>().is_ok()).map_or(identity, |(_, whole)| whole)
}

/// What is left over goes to the first ones, a request each.
fn share(limit: &Limit, n: u64, parts: u64) -> Option<Limit> {
    let of = |whole: u64| whole / parts + u64::from(n < whole % parts);
    let burst = Some(of(limit.capacity())).filter(|_| limit.algorithm().is_bucket());
    let quota = Quota { requests: of(limit.requests()), period: limit.period(), burst };
    Limit::new(limit.algorithm(), quota).ok()
}

/// What was answered, and what was charged for it.
pub(super) type Said = Result<(Answer, Option<Charge>), StoreError>;

impl Lent<'_> {
    /// One question, asked of the store that counts it, and what replicas shall confirm.
    pub(super) async fn ask(
        &self,
        question: &Question<'_>,
        demand: Demand<'_>,
        asking: &Asking,
        confirm: Option<Confirm>,
    ) -> Said {
        // The records are where what names no store is counted.
        if let (None, Some(error)) = (question.store, &asking.unreachable) {
            return Err(error.clone());
        }
        let store = self.store.of(question.store, self.rules.policy(), question.identity)?;
        if let Chosen::Named(store) = &store {
            // A policy may have named it a moment ago.
            store.tried(None).await;
        }
        let line = Line { store: &store, question, spent: asking.spent, confirm };
        let check = check(question, demand);
        match parts_of(question) {
            None => line.ask(&check).await,
            Some(parts) if check.cost == Cost::PEEK => line.whole(&check, parts).await,
            Some(parts) => {
                let first = match check.idempotency {
                    // The same key comes to the same part, or it would be answered by another.
                    Some(idempotency) => scaled(hash(idempotency.key), parts),
                    None => self.rules.turns.next(parts),
                };
                let (mut answer, mut charge) = line.ask_part(&check, first, parts).await?;
                if !answer.allowed() && check.idempotency.is_none() {
                    let other = (first + 1 + self.rules.turns.next(parts - 1)) % parts;
                    if let Ok(second) = line.ask_part(&check, other, parts).await
                        && (second.0.allowed() || is_sooner(&second.0, &answer))
                    {
                        (answer, charge) = second;
                    }
                }
                for (decision, limit) in answer.decisions.iter_mut().zip(&question.limits) {
                    widen(decision, limit.limit(), parts);
                }
                Ok((answer, charge))
            }
        }
    }
}

impl Limiter {
    /// How a question stands, without taking anything: of all its parts together.
    pub async fn look(&self, question: &Question<'_>) -> Result<Answer, StoreError> {
        let demand = Demand::of(Cost::PEEK);
        Ok(self.lent().ask(question, demand, &Asking::default(), None).await?.0)
    }
}

/// A question and whoever answers it.
struct Line<'a> {
    store: &'a Store,
    question: &'a Question<'a>,
    spent: Duration,
    confirm: Option<Confirm>,
}

impl Line<'_> {
    async fn ask(&self, check: &Check<'_>) -> Said {
        let answer = self.store.check_confirmed(check, self.spent, self.confirm).await?;
        let charge = answer.charge_unless_replayed(check);
        Ok((answer, charge.map(|charge| charge.on(self.question.store))))
    }

    async fn ask_part(&self, check: &Check<'_>, n: u64, parts: u64) -> Said {
        match part(self.question, n, parts) {
            Some(Part { identity, limits }) => {
                self.ask(&Check { identity: &identity, limits: &limits, ..*check }).await
            }
            // The last one can be made, so all can.
            None => self.ask(check).await,
        }
    }

    /// What all parts have together.
    async fn whole(&self, check: &Check<'_>, parts: u64) -> Said {
        let asked = (0..parts).map(|n| self.ask_part(check, n, parts));
        let mut sum: Option<Answer> = None;
        for said in join_all(asked).await {
            let (answer, _) = said?;
            match &mut sum {
                None => sum = Some(answer),
                Some(sum) => {
                    let both = sum.decisions.iter_mut().zip(&answer.decisions);
                    both.for_each(|(sum, one)| add(sum, one));
                }
            }
        }
        match sum {
            Some(sum) => Ok((sum, None)),
            None => self.ask(check).await,
        }
    }
}

fn add(sum: &mut Decision, one: &Decision) {
    sum.limit += one.limit;
    sum.capacity += one.capacity;
    sum.remaining += one.remaining;
    sum.reset_after = sum.reset_after.max(one.reset_after);
    let sooner = |a: Micros, b: Micros| if a == Micros::ZERO { b } else { a.min(b) };
    sum.next_after = match one.next_after {
        Micros::ZERO => sum.next_after,
        next => sooner(sum.next_after, next),
    };
    sum.clock_jump |= one.clock_jump;
}

/// What one part says, told of the whole: as if all of them were like it.
fn widen(decision: &mut Decision, whole: &Limit, parts: u64) {
    decision.limit = whole.requests();
    decision.capacity = whole.capacity();
    decision.remaining = decision.remaining.saturating_mul(parts).min(whole.capacity());
}

/// Of two refusals the one that is over first; "never" is last.
fn is_sooner(one: &Answer, other: &Answer) -> bool {
    let wait = |answer: &Answer| match answer.deciding() {
        Some((_, decision)) if !decision.allowed => decision.retry_after.unwrap_or(Micros::LAST),
        _ => Micros::ZERO,
    };
    wait(one) < wait(other)
}

/// FNV-1a, and its bits spread: the same on every gateway.
fn hash(text: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, step).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use proptest::prelude::*;

    use super::*;
    use crate::engine::algo::bound;
    use crate::engine::config::parse_policy;
    use crate::engine::failure::OnFailure;
    use crate::engine::limit::Algorithm;
    use crate::engine::plan::Attempt;
    use crate::engine::rules::{Rules, Target};
    use crate::engine::store::MemoryStore;

    #[test]
    fn a_part_leads_back_to_whose_it_is() {
        let who: Identity = "header:x-tenant:acme".parse().unwrap();
        assert_eq!(whole(name(&who, 7).unwrap().as_str()), who.as_str());
        for other in ["user:1", "split:x:user:1", "split:", "split:7"] {
            assert_eq!(whole(other), other);
        }
    }

    fn limiter(algorithm: Algorithm, limit: &str, split: u32) -> Limiter {
        let text = format!(
            "[[rule]]\nname = \"r\"\ndimension = \"ip\"\nlimits = [{{ limit = \"{limit}\", algorithm = \"{algorithm}\" }}]\nsplit = {split}\n"
        );
        let (policy, _) = parse_policy("r.toml", &text, Micros::ZERO).unwrap();
        Limiter {
            rules: Arc::new(Rules::new(Arc::new(policy))),
            store: Arc::new(Store::Memory(MemoryStore::unbounded())),
            on_failure: OnFailure::Tell,
            hot: None,
        }
    }

    fn passes(limiter: &Limiter, at: Micros, cost: u64) -> bool {
        let identities: [Identity; 1] = ["ip:192.0.2.1".parse().unwrap()];
        let attempt = Attempt { identities: &identities, target: Target::default(), tier: None };
        let demand = Demand { at: Some(at), ..Demand::of(Cost::new(cost).unwrap()) };
        let standings = [Default::default()];
        let checked = limiter.check(&attempt, &standings, demand).now_or_never();
        checked.expect("memory answers at once").unwrap().allowed
    }

    fn any_limit() -> impl Strategy<Value = Limit> {
        let buckets = (0..3usize, 1..10_000u64, 1..500_000u64, 1..10_000u64).prop_map(
            |(n, requests, ms, burst)| {
                let burst = Some(burst);
                let quota = Quota { requests, period: Micros(ms * 1_000), burst };
                (Algorithm::ALL[n], quota)
            },
        );
        let windows = (3..6usize, 1..10_000u64, 1..500_000u64).prop_map(|(n, requests, ms)| {
            let quota = Quota { requests, period: Micros(ms * 1_000), burst: None };
            (Algorithm::ALL[n], quota)
        });
        prop_oneof![buckets, windows].prop_map(|(algorithm, mut quota)| {
            quota.burst = quota.burst.filter(|_| algorithm.is_bucket());
            Limit::new(algorithm, quota).unwrap()
        })
    }

    proptest! {
        #[test]
        fn the_shares_add_up_and_nobody_has_none(limit in any_limit(), wanted in 2..64u64) {
            let parts = wanted.min(limit.requests()).min(limit.capacity());
            let shares: Vec<Limit> =
                (0..parts).map(|n| share(&limit, n, parts).unwrap()).collect();
            prop_assert_eq!(shares.iter().map(Limit::requests).sum::<u64>(), limit.requests());
            prop_assert_eq!(shares.iter().map(Limit::capacity).sum::<u64>(), limit.capacity());
            prop_assert!(shares.iter().all(|share| share.requests() > 0 && share.capacity() > 0));
            prop_assert!(shares.iter().all(|share| share.period() == limit.period()));
        }

        /// Whatever comes when: no interval admits more than one bucket would.
        #[test]
        fn the_parts_keep_the_bound_of_the_whole(
            algorithm in 0..6usize,
            requests in 4..40u64,
            split in 2..9u32,
            gaps in proptest::collection::vec((0..400u64, 1..4u64), 1..120),
        ) {
            let algorithm = Algorithm::ALL[algorithm];
            let limiter = limiter(algorithm, &format!("{requests}/10s"), split);
            let whole = Limit::new(algorithm, format!("{requests}/10s").parse().unwrap()).unwrap();
            let mut now = Micros(1_700_000_000_000_000);
            let mut admitted = Vec::new();
            for (gap, cost) in gaps {
                now = now + Micros(gap * 10_000);
                if passes(&limiter, now, cost) {
                    admitted.push((now, cost));
                }
            }
            for (first, (from, _)) in admitted.iter().enumerate() {
                let mut sum = 0;
                for (to, cost) in &admitted[first..] {
                    sum += cost;
                    let x = Micros(to.0 - from.0 + 1);
                    prop_assert!(
                        sum <= bound(&whole, x),
                        "{sum} in {x} of {whole} {algorithm} in {split}"
                    );
                }
            }
        }
    }

    #[test]
    fn all_of_a_limit_can_be_had_and_a_steady_stream_below_it_loses_little() {
        for (split, most_lost) in [(2, 2), (8, 4), (64, 12)] {
            let full = limiter(Algorithm::TokenBucket, "1000/1s", split);
            let at = Micros(1_700_000_000_000_000);
            let passed = (0..20_000).filter(|_| passes(&full, at, 1)).count();
            assert_eq!(passed, 1_000, "{split} parts");
            // For a minute, at the limit itself: what is refused although there would be room.
            let steady = limiter(Algorithm::TokenBucket, "1000/1s", split);
            let sent = 60_000;
            let lost = (0..sent).filter(|n| !passes(&steady, at + Micros(n * 1_000), 1)).count();
            assert!(lost * 1_000 <= most_lost * sent as usize, "{split} parts: {lost} of {sent}");
        }
    }

    #[test]
    fn turns_are_even_and_in_no_step_with_others() {
        for parts in [2, 3, 8, 64] {
            for every in [1, 2, 3, 8] {
                let turns = Turns::default();
                let mut counts = vec![0u32; parts as usize];
                for n in 0..parts * every * 1_000 {
                    let part = turns.next(parts);
                    if n % every == 0 {
                        counts[part as usize] += 1;
                    }
                }
                let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
                assert!(*least > 900 && *most < 1_100, "{parts} parts, one in {every}: {counts:?}");
            }
        }
    }

    #[test]
    fn one_key_comes_to_one_part() {
        let hashes: Vec<u64> = (0..1_000).map(|n| scaled(hash(&format!("key-{n}")), 8)).collect();
        let of = |part| hashes.iter().filter(|hash| **hash == part).count();
        assert!((0..8).all(|part| of(part) > 60), "{:?}", (0..8).map(of).collect::<Vec<_>>());
        assert_eq!(scaled(hash("key-1"), 8), hashes[1]);
    }
}
