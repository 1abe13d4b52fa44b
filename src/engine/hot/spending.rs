//! A lease: quota of one key that was charged in the store and is spent here, piece by piece. What
//! has not been spent when it ends is given back.
//!
//! It is topped up when half of it is gone, by one caller at a time, so what this process holds is
//! never more than one lease. Between two looks at a store that had nothing left, nobody asks.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

use super::denial::{Asking, Denial, weight};
use super::sketch::WINDOW;
use super::{Decisions, Settings};
use crate::engine::clock::Micros;
use crate::engine::limit::{Algorithm, Cost, Decision, Limit};
use crate::engine::store::{Charge, RuleLimit, Settlement};

/// A lease lasts for so many of its intervals, then what is left goes back: demand has ebbed.
const INTERVALS: u64 = 2;
/// Nobody looks at a store that had nothing left more often than this.
const LEAST_PAUSE: Micros = Micros::MILLISECOND;

/// What is known of a hot key and held for it.
#[derive(Debug, Default)]
pub(super) struct Spending {
    /// Oldest first: spent first.
    held: VecDeque<Held>,
    pub(super) denial: Option<Denial>,
    /// How much was granted last, and when.
    last: Option<(u64, Micros)>,
    /// Somebody is asking the store for all.
    pub(super) is_asking: bool,
    /// Who waits for that.
    pub(super) waiting: Waiting,
    /// The store had too little: nothing is asked for before.
    pub(super) not_before: Micros,
    /// Changes when what was known is to be forgotten.
    pub(super) epoch: u64,
}

/// Whoever waits is woken also when there is nothing left to wait for.
#[derive(Debug, Default)]
pub(super) struct Waiting(Vec<Waker>);

impl Waiting {
    pub(super) fn add(&mut self, waker: &Waker) {
        if !self.0.iter().any(|known| known.will_wake(waker)) {
            self.0.push(waker.clone());
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.drain(..).for_each(Waker::wake);
    }
}

/// One charge, partly spent.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) charge: Charge,
    pub(super) decisions: Decisions,
    granted: u64,
    rest: u64,
    /// By this process's clock: before the store was asked.
    taken: Micros,
    ends: Micros,
}

/// A piece of a lease.
#[derive(Debug)]
pub(super) struct Spent {
    pub(super) decisions: Decisions,
    /// As if it had been charged by itself.
    pub(super) charge: Charge,
    /// Whence it came.
    pub(super) held: u64,
}

/// What is left of a charge that ended, to be given back.
pub(super) type Stranded = (Charge, Settlement);

impl Held {
    pub(super) fn new(
        charge: Charge,
        decisions: Decisions,
        granted: u64,
        began: Micros,
        lease: Micros,
    ) -> Held {
        let rest_of_window = window_ends(&charge, &decisions);
        let lasts = Micros(lease.0 * INTERVALS).min(rest_of_window.unwrap_or(Micros(u64::MAX)));
        // From before the store was asked: by its clock it ends no later than its window.
        let ends = began + lasts;
        Held { charge, decisions, granted, rest: granted, taken: began, ends }
    }

    fn has_ended(&self, now: Micros) -> bool {
        now >= self.ends || now + Micros::SECOND < self.taken
    }

    fn stranded(self) -> Option<Stranded> {
        let used = self.granted - self.rest;
        let to = match used {
            0 => Settlement::Refund,
            used => Settlement::Cost(Cost::new(used).unwrap_or_default()),
        };
        (self.rest > 0).then_some((self.charge, to))
    }
}

impl Spending {
    pub(super) fn rest(&self) -> u64 {
        self.held.iter().map(|held| held.rest).sum()
    }

    /// Takes `cost` of what is held.
    pub(super) fn spend(
        &mut self,
        cost: u64,
        limits: &[Arc<RuleLimit>],
        now: Micros,
    ) -> Option<Spent> {
        let fits = |held: &&mut Held| held.rest >= cost && !held.has_ended(now);
        let from = self.held.iter_mut().find(fits)?;
        from.rest -= cost;
        let (charge, held) = (from.charge.part(Cost::new(cost).ok()?), from.charge.id());
        let rest = self.held.iter().filter(|held| !held.has_ended(now)).map(|held| held.rest).sum();
        let newest = self.held.back()?;
        let gone = now.saturating_sub(newest.taken);
        let told = newest.decisions.iter().zip(limits);
        let decisions = told.map(|(decision, limit)| with_rest(decision, limit, rest, gone));
        Some(Spent { decisions: decisions.collect(), charge, held })
    }

    /// A piece comes back unused; false when its lease is no more.
    pub(super) fn give_back(&mut self, held: u64, cost: u64) -> bool {
        let of = |h: &&mut Held| h.charge.id() == held && h.granted - h.rest >= cost;
        let Some(held) = self.held.iter_mut().find(of) else { return false };
        held.rest += cost;
        true
    }

    /// Parts with what has ended.
    pub(super) fn part_with_ended(&mut self, now: Micros, stranded: &mut Vec<Stranded>) {
        while self.held.front().is_some_and(|held| held.rest == 0 || held.has_ended(now)) {
            stranded.extend(self.held.pop_front().and_then(Held::stranded));
        }
    }

    pub(super) fn part_with_all(&mut self, stranded: &mut Vec<Stranded>) {
        stranded.extend(self.held.drain(..).filter_map(Held::stranded));
    }

    /// How much to ask for, so that there is as much as this; none while there is enough, or
    /// somebody asks already, or the store had too little a moment ago.
    pub(super) fn wants(&self, lease: u64, now: Micros) -> Option<u64> {
        let rest = self.rest();
        let may_ask = !self.is_asking && (now >= self.not_before || self.is_far_off(now));
        (may_ask && rest <= lease / 2).then(|| lease - rest)
    }

    /// How fast the last lease was spent, in cost a second, where that was so fast that the rates of
    /// the last window do not tell.
    pub(super) fn rush(&self, now: Micros) -> u64 {
        let Some((granted, taken)) = self.last else { return 0 };
        let took = now.saturating_sub(taken).max(Micros::MILLISECOND);
        let is_recent = took < WINDOW && self.rest() == 0;
        if is_recent { granted.saturating_mul(Micros::SECOND.0) / took.0 } else { 0 }
    }

    fn is_far_off(&self, now: Micros) -> bool {
        now + Micros::SECOND < self.not_before
    }

    /// What the store's answer says of the next question; what was changed since then is not known.
    pub(super) fn note(&mut self, denial: Option<Denial>, epoch: u64, asking: Asking) {
        let is_news = self.denial.as_ref().is_none_or(|known| known.is_older(asking));
        if epoch == self.epoch && is_news {
            self.denial = denial.map(|denial| denial.at_least_until(self.not_before));
        }
    }

    pub(super) fn take_in(&mut self, held: Held) {
        self.denial = None;
        self.last = Some((held.granted, held.taken));
        self.held.push_back(held);
    }

    /// As if nothing had been known: what is held was taken from a quota that was reset.
    pub(super) fn forget(&mut self) {
        self.held.clear();
        self.forget_denial();
    }

    pub(super) fn forget_denial(&mut self) {
        self.denial = None;
        self.not_before = Micros::ZERO;
        self.epoch += 1;
    }
}

/// How much a lease is: demand of one and a half intervals, and of the quota no more than this
/// process's share of the traffic. None where leases do not serve.
pub(super) fn size(
    limits: &[Arc<RuleLimit>],
    settings: Settings,
    demand: u64,
    (ours, of_all): (u64, u64),
) -> Option<u64> {
    // A leaky bucket tells each request how long to wait: nobody else can know.
    let leaks = |limit: &Arc<RuleLimit>| limit.limit().algorithm() == Algorithm::LeakyBucket;
    if limits.iter().any(leaks) {
        return None;
    }
    let whole = limits.iter().map(|limit| limit.limit().capacity() / weight(limit)).min()?;
    let most = share(whole, ours, of_all);
    let wanted = u128::from(demand) * u128::from(settings.lease.0) * 3;
    let wanted = u64::try_from(wanted.div_ceil(2 * u128::from(Micros::SECOND.0))).unwrap_or(most);
    // One at a time is what the store does by itself.
    Some(wanted.min(most)).filter(|size| *size >= 2)
}

/// Rounded up, so that the last one is somebody's.
pub(super) fn share(whole: u64, ours: u64, of_all: u64) -> u64 {
    let part = (u128::from(whole) * u128::from(ours)).div_ceil(u128::from(of_all.max(1)));
    u64::try_from(part).unwrap_or(whole).min(whole)
}

/// How long to leave a store alone that had too little: no longer than half of it takes to come
/// back, so that nothing is lost because nobody fetched it.
pub(super) fn pause(limits: &[Arc<RuleLimit>], settings: Settings) -> Micros {
    let half = |limit: &Limit| match limit.algorithm().is_bucket() {
        true => limit.span_of_capacity().us / 2,
        false => limit.period().0 / 2,
    };
    let least = limits.iter().map(|limit| half(limit.limit())).min().unwrap_or_default();
    Micros(least).min(settings.lease).max(LEAST_PAUSE)
}

/// How much of cost 1 the store has left after an answer.
pub(super) fn left(limits: &[Arc<RuleLimit>], decisions: &Decisions) -> u64 {
    let each = limits.iter().zip(decisions).map(|(limit, d)| d.remaining / weight(limit));
    each.min().unwrap_or_default()
}

/// How long the window of a charge lasts from when it was made, where there is one.
fn window_ends(charge: &Charge, decisions: &Decisions) -> Option<Micros> {
    let windows = charge.limits().zip(decisions).filter(|(limit, _)| {
        matches!(limit.algorithm(), Algorithm::FixedWindow | Algorithm::SlidingWindow)
    });
    windows.map(|(limit, d)| Micros(limit.period().0 - d.at.0 % limit.period().0)).min()
}

/// A decision as it reads after some time in which nothing was charged: what counts down has done so.
/// What came back meanwhile is not known exactly, and not told.
pub(super) fn passed(decision: &Decision, gone: Micros) -> Decision {
    Decision {
        reset_after: decision.reset_after.saturating_sub(gone),
        next_after: decision.next_after.saturating_sub(gone),
        at: decision.at + gone,
        ..*decision
    }
}

/// The same where `rest` of what was charged is not spent yet.
fn with_rest(decision: &Decision, limit: &RuleLimit, rest: u64, gone: Micros) -> Decision {
    let unspent = rest.saturating_mul(weight(limit));
    let mut told = passed(decision, gone);
    told.remaining = told.remaining.saturating_add(unspent).min(told.capacity);
    if limit.limit().algorithm().is_bucket() {
        let comes_back = limit.limit().span(unspent).ceil();
        told.reset_after = told.reset_after.saturating_sub(comes_back);
    }
    told
}
