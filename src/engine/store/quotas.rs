//! What one identity has used: the buckets of its limits in this process, and how they are decided,
//! charged, settled and carried over to a changed limit.

use std::mem;
use std::sync::Arc;

use smallvec::SmallVec;

use super::charge::Charge;
use super::{Answer, Check, RuleLimit};
use crate::engine::algo::{self, State};
use crate::engine::clock::Micros;
use crate::engine::limit::{Cost, Decision};

/// The buckets of one identity.
#[derive(Clone, Debug)]
pub(super) enum Quotas {
    One(Quota),
    Many(Vec<Quota>),
}

#[derive(Clone, Debug)]
pub(super) struct Quota {
    limit: Arc<RuleLimit>,
    state: State,
}

impl Quotas {
    pub(super) fn none() -> Quotas {
        Quotas::Many(Vec::new())
    }

    pub(super) fn all(&self) -> &[Quota] {
        match self {
            Quotas::One(quota) => std::slice::from_ref(quota),
            Quotas::Many(quotas) => quotas,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all().is_empty()
    }

    pub(super) fn are_whole(&self, now: Micros) -> bool {
        self.all().iter().all(|q| q.state.whole_at(q.limit.limit()) <= now)
    }

    fn find(&self, limit: &Arc<RuleLimit>) -> Option<&Quota> {
        self.all().iter().find(|q| q.is_of(limit))
    }

    /// The common case, without looking for anything: one limit, the same as last time. Inlined
    /// down to the arithmetic, so that the decision is written once, into the answer.
    #[inline(always)]
    pub(super) fn check_alone(&mut self, check: &Check<'_>, now: Micros) -> Option<Decision> {
        match (self, check.limits) {
            (Quotas::One(quota), [limit]) if Arc::ptr_eq(&quota.limit, limit) => {
                let cost = limit.cost(check.cost);
                algo::check(limit.limit(), &mut quota.state, now, cost)
            }
            _ => None,
        }
    }

    /// Decides all limits; charges all of them, or none.
    pub(super) fn check(&mut self, check: &Check<'_>, now: Micros) -> Answer {
        let ask = |quotas: &Quotas, limit: &Arc<RuleLimit>, cost| match quotas.find(limit) {
            Some(quota) => quota.decide(limit, now, cost),
            None => {
                algo::decide(limit.limit(), &State::fresh(limit.limit().algorithm()), now, cost)
            }
        };
        let mut decisions: SmallVec<[Decision; 1]> =
            check.limits.iter().map(|limit| ask(self, limit, limit.cost(check.cost))).collect();
        if decisions.iter().all(|d| d.allowed) {
            if check.cost > Cost::PEEK {
                check.limits.iter().for_each(|limit| self.take(limit, now, limit.cost(check.cost)));
            }
        } else {
            // Nobody is charged: whoever would have let it through answers as if nothing was asked.
            for (decision, limit) in
                decisions.iter_mut().zip(check.limits).filter(|(d, _)| d.allowed)
            {
                *decision = ask(self, limit, Cost::PEEK);
            }
        }
        Answer::decided(decisions)
    }

    fn take(&mut self, limit: &Arc<RuleLimit>, now: Micros, cost: Cost) {
        let quota = self.find_or_add(limit);
        quota.adopt(limit, now);
        algo::take(limit.limit(), &mut quota.state, now, cost);
    }

    pub(super) fn find_or_add(&mut self, limit: &Arc<RuleLimit>) -> &mut Quota {
        let found = self.all().iter().position(|q| q.is_of(limit));
        let fresh =
            || Quota { limit: limit.clone(), state: State::fresh(limit.limit().algorithm()) };
        if found.is_none() {
            *self = match mem::replace(self, Quotas::none()) {
                Quotas::Many(quotas) if quotas.is_empty() => Quotas::One(fresh()),
                Quotas::One(quota) => Quotas::Many(vec![quota, fresh()]),
                Quotas::Many(mut quotas) => {
                    quotas.push(fresh());
                    Quotas::Many(quotas)
                }
            };
        }
        match self {
            Quotas::One(quota) => quota,
            Quotas::Many(quotas) => {
                let added = quotas.len() - 1;
                &mut quotas[found.unwrap_or(added)]
            }
        }
    }

    pub(super) fn forget(&mut self, rule: Option<&str>) {
        let stays = |quota: &Quota| rule.is_some_and(|rule| quota.limit.rule() != rule);
        match self {
            Quotas::One(quota) if stays(quota) => {}
            Quotas::One(_) => *self = Quotas::none(),
            Quotas::Many(quotas) => quotas.retain(stays),
        }
    }

    pub(super) fn settle(&mut self, charge: &Charge, settled: Cost, now: Micros) {
        for (limit, charged_at) in &charge.parts {
            let (was, becomes) = (limit.cost(charge.cost), limit.cost(settled));
            if becomes > was {
                let quota = self.find_or_add(limit);
                let present = quota.limit.clone();
                algo::take(present.limit(), &mut quota.state, now, becomes.less(was));
            } else if self.find(limit).is_some() {
                let quota = self.find_or_add(limit);
                let (present, back) = (quota.limit.limit(), was.less(becomes));
                algo::refund(present, &mut quota.state, limit.limit(), *charged_at, back);
            }
        }
    }
}

impl RuleLimit {
    /// What was charged under `old`, as this limit sees it.
    fn carry_over(&self, old: &RuleLimit, state: State, now: Micros) -> State {
        algo::carry_over(old.limit(), self.limit(), self.on_change(), state, now)
    }
}

impl Quota {
    fn is_of(&self, limit: &Arc<RuleLimit>) -> bool {
        Arc::ptr_eq(&self.limit, limit) || self.limit.name() == limit.name()
    }

    fn is_under(&self, limit: &Arc<RuleLimit>) -> bool {
        Arc::ptr_eq(&self.limit, limit) || self.limit.limit() == limit.limit()
    }

    fn decide(&self, limit: &Arc<RuleLimit>, now: Micros, cost: Cost) -> Decision {
        if self.is_under(limit) {
            return algo::decide(limit.limit(), &self.state, now, cost);
        }
        let carried = limit.carry_over(&self.limit, self.state.clone(), now);
        algo::decide(limit.limit(), &carried, now, cost)
    }

    /// From now on this quota is under `limit`, which may have changed since its last charge.
    fn adopt(&mut self, limit: &Arc<RuleLimit>, now: Micros) {
        if Arc::ptr_eq(&self.limit, limit) {
            return;
        }
        if !self.is_under(limit) {
            let state = mem::replace(&mut self.state, State::fresh(limit.limit().algorithm()));
            self.state = limit.carry_over(&self.limit, state, now);
        }
        self.limit = limit.clone();
    }
}
