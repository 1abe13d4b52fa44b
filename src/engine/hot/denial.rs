//! A refusal that is known already: until it could be another answer, the same question need not be
//! asked. The answer counts down to the moment that the store named.

use std::sync::Arc;

use smallvec::SmallVec;

use super::Decisions;
use super::spending::passed;
use crate::engine::clock::Micros;
use crate::engine::limit::{Algorithm, Decision};
use crate::engine::store::RuleLimit;

/// However long a refusal holds, the store is asked again after this: what operators and refunds
/// change there is to be obeyed everywhere within a second.
pub(super) const DENIED_AT_MOST: Micros = Micros::SECOND;

#[derive(Clone, Debug)]
pub(super) struct Denial {
    /// The smallest cost that is known to be refused.
    cost: u64,
    decisions: Decisions,
    /// By this process's clock: before the store was asked.
    asked: Micros,
    /// From here on it may be another answer.
    until: Micros,
    /// When each limit lets this cost pass, by this process's clock; for those that refuse.
    passes: SmallVec<[Option<Micros>; 1]>,
}

/// When a question was put, by this process's clock, and how long its answer took.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asking {
    pub(super) began: Micros,
    pub(super) took: Micros,
}

impl Asking {
    /// A moment of the store's clock by ours: between the question and its answer.
    pub(super) fn ours(&self, at: Micros) -> Micros {
        at.clamp(self.began, self.began + self.took)
    }
}

impl Denial {
    /// What a refusal tells of the next `cost`; none when it passed.
    pub(super) fn of(cost: u64, decisions: &Decisions, asking: Asking) -> Option<Denial> {
        let waits = decisions.iter().filter(|d| !d.allowed).map(|d| d.retry_after);
        // All must pass: the longest wait counts.
        let wait = waits.map(|wait| wait.unwrap_or(DENIED_AT_MOST)).max()?;
        let passes = |d: &Decision| Some(asking.ours(d.at) + d.retry_after?);
        let passes = decisions.iter().map(passes).collect();
        Some(Denial::until(cost, decisions.clone(), asking, wait, passes))
    }

    /// What an admission tells that took the last there was: for whom nothing is left.
    pub(super) fn after(
        limits: &[Arc<RuleLimit>],
        decisions: &Decisions,
        asking: Asking,
    ) -> Option<Denial> {
        let waits = limits.iter().zip(decisions).map(|(limit, decision)| {
            let missing = weight(limit).checked_sub(decision.remaining + 1)?;
            let further = match limit.limit().algorithm().is_bucket() {
                true => limit.limit().span(missing).ceil(),
                false => Micros::ZERO,
            };
            Some(decision.next_after + further)
        });
        Denial::waiting(decisions, waits.collect(), asking)
    }

    /// For those who come when a lease is spent that was all this process may have until a moment;
    /// the limit with the least left refuses them.
    pub(super) fn of_spent_lease(
        limits: &[Arc<RuleLimit>],
        decisions: &Decisions,
        asking: Asking,
        until: Micros,
    ) -> Option<Denial> {
        let left =
            |(_, (limit, d)): &(usize, (&Arc<RuleLimit>, &Decision))| d.remaining / weight(limit);
        let (least, _) = limits.iter().zip(decisions).enumerate().min_by_key(left)?;
        let wait = until.saturating_sub(asking.began);
        let waits = (0..decisions.len()).map(|n| (n == least).then_some(wait));
        Denial::waiting(decisions, waits.collect(), asking)
    }

    /// Decisions as they read for whom these limits refuse for so long; none if none does.
    fn waiting(
        decisions: &Decisions,
        waits: SmallVec<[Option<Micros>; 1]>,
        asking: Asking,
    ) -> Option<Denial> {
        let longest = waits.iter().copied().flatten().max()?;
        let mut refusing = decisions.clone();
        for (decision, wait) in refusing.iter_mut().zip(&waits) {
            decision.delay = Micros::ZERO;
            if wait.is_some() {
                (decision.allowed, decision.retry_after) = (false, *wait);
            }
        }
        let passes = |(d, wait): (&Decision, &Option<Micros>)| Some(asking.ours(d.at) + (*wait)?);
        let passes = decisions.iter().zip(&waits).map(passes).collect();
        Some(Denial::until(1, refusing, asking, longest, passes))
    }

    fn until(
        cost: u64,
        decisions: Decisions,
        asking: Asking,
        wait: Micros,
        passes: SmallVec<[Option<Micros>; 1]>,
    ) -> Denial {
        let asked = asking.began;
        // From before the store was asked: never longer than it meant.
        let until = asked + wait.min(DENIED_AT_MOST);
        Denial { cost, decisions, asked, until, passes }
    }

    /// The same, and nobody asks before this moment in any case.
    pub(super) fn at_least_until(mut self, moment: Micros) -> Denial {
        let moment = moment.min(self.asked + DENIED_AT_MOST);
        self.until = self.until.max(moment);
        for passes in self.passes.iter_mut().flatten() {
            *passes = (*passes).max(moment);
        }
        self
    }

    /// Whether it was asked no later than this.
    pub(super) fn is_older(&self, asking: Asking) -> bool {
        self.asked <= asking.began
    }

    pub(super) fn is_over(&self, now: Micros) -> bool {
        // A clock that was set back would prolong it.
        now >= self.until || now + Micros::SECOND < self.asked
    }

    /// Whether this is known of `cost`, too. A greater cost waits longer: for buckets it is known
    /// how much.
    pub(super) fn covers(&self, cost: u64, limits: &[Arc<RuleLimit>]) -> bool {
        let is_known = |(limit, d): (&Arc<RuleLimit>, &Decision)| {
            d.allowed
                || d.retry_after.is_none()
                || limit.limit().algorithm().is_bucket()
                || limit.limit().algorithm() == Algorithm::FixedWindow
        };
        cost == self.cost || cost > self.cost && limits.iter().zip(&self.decisions).all(is_known)
    }

    /// The answer now.
    pub(super) fn answer(&self, cost: u64, limits: &[Arc<RuleLimit>], now: Micros) -> Decisions {
        let mut decisions = self.decisions.clone();
        let gone = now.saturating_sub(self.asked);
        for ((decision, passes), limit) in decisions.iter_mut().zip(&self.passes).zip(limits) {
            *decision = passed(decision, gone);
            let Some(passes) = passes else { continue };
            let more = (cost - self.cost).saturating_mul(weight(limit));
            let too_much = cost.saturating_mul(weight(limit)) > limit.limit().capacity();
            let further = match limit.limit().algorithm().is_bucket() {
                true => limit.limit().span(more).ceil(),
                false => Micros::ZERO,
            };
            let wait = passes.saturating_sub(now) + further;
            decision.retry_after = (!too_much).then(|| wait.max(Micros(1)));
        }
        decisions
    }
}

/// How much a request of cost 1 takes from a limit.
pub(super) fn weight(limit: &RuleLimit) -> u64 {
    limit.cost(crate::engine::limit::Cost::ONE).get()
}
