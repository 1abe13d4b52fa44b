//! Decisions by a policy that changes: each by one whole policy, and by what is on record then.

use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join_all;
use smallvec::SmallVec;

use super::{Current, LivePolicy};
use crate::engine::clock::Micros;
use crate::engine::failure::OnFailure;
use crate::engine::hot::HotKeys;
use crate::engine::identity::Identity;
use crate::engine::limiter::{Asking, Demand, Lent, Reached, Verdict};
use crate::engine::plan::{Attempt, Plan, Standing, plan};
use crate::engine::registry::{RegistryError, Snapshot, Subject, View, standing};
use crate::engine::store::{Charge, One, Settlement, Store, StoreError};

/// Takes decisions for as long as a process runs.
#[derive(Clone, Debug)]
pub struct LiveLimiter {
    pub policy: Arc<LivePolicy>,
    pub view: Arc<View>,
    pub store: Arc<Store>,
    pub on_failure: OnFailure,
    /// See [`Limiter::hot`].
    pub hot: Option<Arc<HotKeys>>,
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
        let (standings, asking) = self.standings(moment, current, attempt.identities, now).await;
        let limiter = Lent {
            rules: &current.rules,
            store: &self.store,
            on_failure: &self.on_failure,
            hot: self.hot.as_deref(),
        };
        let observe = moment.registry.switches.observe.is_some();
        // Where nothing is enforced, nobody waits for a place either.
        let under_way = demand.under_way.filter(|_| !observe);
        let demand = Demand { under_way, ..demand };
        let verdict = limiter.check_after(attempt, &standings, demand, asking).await?;
        Ok(if observe { verdict.observed() } else { verdict })
    }

    /// Gives back a charge or replaces its cost, once; see [`Store::settle`]. What was known to be
    /// refused may pass from now on.
    pub async fn settle(
        &self,
        charge: &Charge,
        to: Settlement,
        at: Option<Micros>,
    ) -> Result<bool, StoreError> {
        let settled = self.store.settle(charge, to, at).await;
        if let Some(hot) = &self.hot {
            hot.forget_denials(charge.identity());
        }
        settled
    }

    /// Gives back what is left of leases that have ended; of all leases, where this process ends. To
    /// be called every [`crate::engine::hot::TIDY_EVERY`].
    pub async fn return_leases(&self, all: bool) {
        let Some(hot) = &self.hot else { return };
        let ended = if all { hot.part_with_all() } else { hot.tidy(Micros::now()) };
        // What cannot be given back stays charged.
        let returns = ended.iter().map(|(charge, to)| self.store.settle(charge, *to, None));
        drop(join_all(returns).await);
    }

    /// What somebody who is blocked is answered; nobody's quota is asked.
    pub async fn block(
        &self,
        moment: &Moment,
        attempt: &Attempt<'_>,
        now: Micros,
    ) -> Option<Verdict> {
        let current = moment.current.as_ref()?;
        let (standings, _) = self.standings(moment, current, attempt.identities, now).await;
        let Plan::Blocked { identity, entry } = plan(&current.rules, attempt, &standings, now)
        else {
            return None;
        };
        let verdict = Verdict::by(false, Reached::Blocked { identity: identity.clone(), entry });
        let observe = moment.registry.switches.observe.is_some();
        Some(if observe { verdict.observed() } else { verdict })
    }

    /// What is on record about each, and what it took to learn that.
    async fn standings(
        &self,
        moment: &Moment,
        current: &Current,
        identities: &[Identity],
        now: Micros,
    ) -> (SmallVec<[Standing; 2]>, Asking) {
        let (lists, policy) = (&moment.registry.lists, current.rules.policy());
        let standings = |subjects: &[Arc<Subject>]| {
            let both = identities.iter().zip(subjects);
            both.map(|(identity, subject)| standing(subject, lists, identity, policy, now))
                .collect()
        };
        let known: Option<SmallVec<[_; 2]>> =
            identities.iter().map(|identity| self.view.known(identity, now)).collect();
        if let Some(subjects) = known {
            return (standings(&subjects), Asking::default());
        }
        let (subjects, asking) = Box::pin(self.learn(identities, now)).await;
        (standings(&subjects), asking)
    }

    /// Asks the store about those who are not in memory. Where it cannot say, the one that keeps the
    /// records and the buckets need not be asked again.
    async fn learn(
        &self,
        identities: &[Identity],
        now: Micros,
    ) -> (SmallVec<[Arc<Subject>; 2]>, Asking) {
        let began = Instant::now();
        let mut unreachable = None;
        let asked = join_all(identities.iter().map(|identity| self.subject(identity, now))).await;
        let subjects = asked.into_iter().map(|subject| {
            // Of whom nothing can be learned, nothing is known: the rules hold for everybody.
            subject.unwrap_or_else(|error| {
                unreachable.get_or_insert(error);
                Arc::default()
            })
        });
        let subjects = subjects.collect();
        // Buckets in memory are there whatever becomes of the records.
        let unreachable = unreachable.filter(|_| matches!(self.store.one(), One::Redis(_)));
        // What was spent on the records is not there for the buckets: one request, one deadline.
        (subjects, Asking { unreachable, spent: began.elapsed() })
    }

    async fn subject(&self, identity: &Identity, now: Micros) -> Result<Arc<Subject>, StoreError> {
        match self.view.subject(identity, now).await {
            Ok(subject) => Ok(subject),
            Err(RegistryError::Store(error)) => Err(error),
            // A record that cannot be read is none.
            Err(_) => Ok(Arc::default()),
        }
    }
}
