//! A request is decided: by the engine's own limiter, or by a gateway that runs somewhere.

use std::rc::Rc;

use super::time::Time;
use super::told::Told;
use super::world::{Decider, Node, Request, World};
use crate::engine::clock::Micros;
use crate::engine::concurrency::Place;
use crate::engine::limiter::{By, Demand, Limiter, Verdict};
use crate::engine::plan::Attempt;
use crate::engine::policy::RuleLimits;
use crate::engine::rules::Target;
use crate::engine::store::simulated::Call;
use crate::engine::store::{Idempotency, Settlement, StoreError};
use crate::ops::checks::{Answer, Question};
use crate::scenario::model::{IdempotencyPart, LimiterPart};

/// Whatever decided about a request; neither: nobody answered.
#[derive(Default)]
pub(super) struct Said {
    pub(super) verdict: Option<Verdict>,
    answer: Option<Answer>,
}

impl Said {
    pub(super) fn told(&self) -> Told<'_> {
        match (&self.verdict, &self.answer) {
            (Some(verdict), _) => verdict.into(),
            (None, Some(answer)) => answer.into(),
            (None, None) => Told::NOTHING,
        }
    }
}

impl World {
    pub(super) async fn decide(&self, request: Request, node: usize) -> Said {
        let part = &self.scenario.traffic[request.due.traffic];
        let name = part.idempotency.map(|how| match how {
            IdempotencyPart::PerRequest => format!("{}-{}", request.number, request.attempt),
            IdempotencyPart::Retries => request.number.to_string(),
        });
        let node = &self.nodes[node];
        match &node.decider {
            Decider::Limiter(limiter) => {
                let limiter = limiter.borrow().clone();
                let verdict = self.decide_here(request, node, &limiter, name.as_deref()).await;
                Said { verdict, ..Said::default() }
            }
            Decider::Gateway(remote) => {
                let key = request.due.key;
                let identity = &self.table.keys[key as usize];
                let assigned = || self.policy.borrow().assign.get(identity).cloned();
                let tier = part.tier.clone().or_else(assigned);
                let question = Question {
                    endpoint: part.endpoint.as_deref(),
                    method: part.method.as_deref(),
                    cost: request.due.cost.get(),
                    idempotency_key: name.as_deref(),
                    tier: tier.as_deref(),
                    ..Question::default()
                };
                let answer = remote.decide(identity, key, question, self.most_delay).await;
                Said { answer, ..Said::default() }
            }
        }
    }

    async fn decide_here(
        &self,
        request: Request,
        node: &Node,
        limiter: &Limiter,
        name: Option<&str>,
    ) -> Option<Verdict> {
        let part = &self.scenario.traffic[request.due.traffic];
        let own_time = self.time.stamp(node.skew.get());
        let key = request.due.key;
        let standings = self.standings.borrow().get(&key).cloned();
        let identities = &self.identities[key as usize];
        let attempt = Attempt {
            identities,
            target: Target {
                path: part.endpoint.as_deref(),
                method: part.method.as_deref(),
                ..Target::default()
            },
            tier: part.tier.as_deref(),
        };
        let remember = self.policy.borrow().defaults.idempotency_ttl;
        let idempotency = name.and_then(|key| Idempotency::new(key, remember).ok());
        let under_way = Some(&node.under_way);
        let demand = Demand { cost: request.due.cost, idempotency, at: own_time, under_way };
        let standings = standings.as_deref().unwrap_or(&self.unknown[..identities.len()]);
        let verdict = limiter.check(&attempt, standings, demand).await.ok()?;
        if !verdict.is_overdue() {
            return Some(verdict);
        }
        // Nobody holds a request that long: what it took is given back.
        for charge in &verdict.charges {
            drop(limiter.store.settle(charge, Settlement::Refund, own_time).await);
        }
        Some(verdict.refuse_overdue())
    }

    /// Whoever was let in is under way for so long.
    pub(super) fn hold(self: &Rc<Self>, places: Vec<Place>, lasts: Micros) {
        if places.is_empty() {
            return;
        }
        let (world, end) = (self.clone(), self.now() + lasts);
        self.time.spawn(async move {
            world.time.sleep_until(end).await;
            drop(places);
        });
    }

    /// Real servers do not write down who called them; every decision did that was not taken here.
    pub(super) fn note_call(&self, at: Micros, node: usize, verdict: &Verdict) {
        let degraded = verdict.degraded.as_ref();
        let is_broken = degraded.is_some_and(|d| matches!(d.why, StoreError::Broken { .. }));
        let is_of_store = verdict.decided_by() == By::Store && !is_broken;
        if matches!(self.time, Time::Real(_)) && is_of_store {
            let (took, failed) = (self.now().saturating_sub(at), degraded.is_some());
            self.recording.borrow_mut().calls.push(Call { at, node, shard: 0, took, failed });
        }
    }
}

/// The longest that a limiter of the file holds a request; none: it holds none.
pub(super) fn most_delay(limiter: &LimiterPart) -> Option<Micros> {
    let own = limiter.policy.rules.iter().filter_map(|rule| match &rule.limits {
        RuleLimits::Own(limits) => Some(limits),
        RuleLimits::OfTier => None,
    });
    own.flatten().map(|spec| spec.max_delay).max()
}
