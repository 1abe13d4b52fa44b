//! Decisions by a policy that changes: each by one whole policy, and by what is on record then.

use std::sync::Arc;

use futures_util::future::join_all;
use smallvec::{SmallVec, smallvec};

use super::{Current, LivePolicy};
use crate::engine::clock::Micros;
use crate::engine::identity::Identity;
use crate::engine::limiter::{Demand, Limiter, Verdict};
use crate::engine::plan::{Attempt, Standing};
use crate::engine::registry::{Snapshot, Subject, View, standing};
use crate::engine::store::{Store, StoreError};

/// Takes decisions for as long as a process runs.
#[derive(Clone, Debug)]
pub struct LiveLimiter {
    pub policy: Arc<LivePolicy>,
    pub view: Arc<View>,
    pub store: Arc<Store>,
}

/// All that one request is decided by, taken at its start and kept to its end: also who asks is
/// found by the policy.
#[derive(Clone, Debug)]
pub struct Moment {
    /// None: there is no policy yet.
    pub current: Option<Arc<Current>>,
    pub registry: Arc<Snapshot>,
}

impl LiveLimiter {
    pub fn moment(&self) -> Moment {
        Moment { current: self.policy.current(), registry: self.view.snapshot() }
    }

    /// Decides a request; only the store that counts can fail it. Without a policy it passes.
    pub async fn check(
        &self,
        moment: &Moment,
        attempt: &Attempt<'_>,
        demand: Demand<'_>,
    ) -> Result<Verdict, StoreError> {
        let Some(current) = &moment.current else { return Ok(Verdict::without_policy()) };
        let now = demand.at.unwrap_or_else(Micros::now);
        let standings = self.standings(moment, current, attempt.identities, now).await;
        let limiter = Limiter { rules: current.rules.clone(), store: self.store.clone() };
        let verdict = limiter.check(attempt, &standings, demand).await?;
        let observe = moment.registry.switches.observe.is_some();
        Ok(if observe { verdict.observed() } else { verdict })
    }

    async fn standings(
        &self,
        moment: &Moment,
        current: &Current,
        identities: &[Identity],
        now: Micros,
    ) -> SmallVec<[Standing; 2]> {
        let subjects: SmallVec<[Arc<Subject>; 2]> = match identities {
            [only] => smallvec![self.subject(only, now).await],
            several => {
                join_all(several.iter().map(|i| self.subject(i, now))).await.into_iter().collect()
            }
        };
        let (lists, policy) = (&moment.registry.lists, current.rules.policy());
        let of = |(identity, subject): (&Identity, &Arc<Subject>)| {
            standing(subject, lists, identity, policy, now)
        };
        identities.iter().zip(&subjects).map(of).collect()
    }

    /// Of whom nothing can be learned, nothing is known: the rules hold for everybody.
    async fn subject(&self, identity: &Identity, now: Micros) -> Arc<Subject> {
        self.view.subject(identity, now).await.unwrap_or_default()
    }
}
