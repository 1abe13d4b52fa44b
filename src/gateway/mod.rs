//! The limiter as a service: what stands in front of an upstream, answers checks for others, and
//! lets operators look and change. Every interface asks [`Gateway::decide`], and everything that is
//! shown is counted there.

pub mod answer;
pub mod grpc;
pub mod headers;
pub mod identity;
pub mod refusal;
pub mod shed;
pub mod stats;
mod upkeep;

use std::sync::{Arc, Mutex, PoisonError};

use crate::engine::clock::Micros;
use crate::engine::failure::Local;
use crate::engine::identity::Identity;
use crate::engine::limit::QuotaState;
use crate::engine::limiter::{Demand, Reached, Verdict};
use crate::engine::live::{LiveLimiter, Moment};
use crate::engine::plan::Attempt;
use crate::engine::quota_watch::QuotaWatch;
use crate::engine::registry::Registry;
use crate::engine::store::StoreError;
pub use answer::{Answer, Outcome};
pub use shed::Shed;
pub use stats::Stats;

/// Quotas in warning or throttled that are remembered, for hysteresis: about 100 bytes each.
const WATCHED_QUOTAS: usize = 100_000;

#[derive(Debug)]
pub struct Gateway {
    pub limiter: LiveLimiter,
    /// What operators keep; also changed through the admin API.
    pub registry: Arc<Registry>,
    /// Decides while the store is away.
    pub local: Arc<Local>,
    pub stats: Stats,
    /// How much is taken on for others.
    pub shed: Shed,
    pub grpc: grpc::Counts,
    pub about: About,
    watch: Mutex<QuotaWatch>,
}

/// One run of this process, as others see it.
#[derive(Clone, Debug)]
pub struct About {
    /// Different for every run.
    pub id: String,
    pub version: &'static str,
    pub started: Micros,
    /// Names and real addresses of what it listens on.
    pub listening: Vec<(&'static str, String)>,
}

impl Gateway {
    pub fn new(
        limiter: LiveLimiter,
        registry: Arc<Registry>,
        local: Arc<Local>,
        about: About,
    ) -> Gateway {
        Gateway {
            limiter,
            registry,
            local,
            stats: Stats::new(about.started),
            shed: Shed::default(),
            grpc: grpc::Counts::default(),
            about,
            watch: Mutex::new(QuotaWatch::new(WATCHED_QUOTAS)),
        }
    }

    /// What a request is decided by, from its start to its end.
    pub fn moment(&self) -> Moment {
        self.limiter.moment()
    }

    /// One decision, counted; only a caller's own mistake is an error (an idempotency key used with
    /// another cost). A store that fails is answered for by the rules.
    pub async fn decide(
        &self,
        moment: &Moment,
        attempt: &Attempt<'_>,
        demand: Demand<'_>,
    ) -> Result<(Verdict, Answer), StoreError> {
        let began = Micros::now();
        let verdict = self.limiter.check(moment, attempt, demand).await?;
        let now = Micros::now();
        self.stats.decided(attempt, &verdict, began, now);
        let answer = Answer::of(&verdict, self.state_of(&verdict), now);
        Ok((verdict, answer))
    }

    /// The state of the deciding quota, with memory.
    fn state_of(&self, verdict: &Verdict) -> Option<QuotaState> {
        let Reached::Limits { decided, asked } = &verdict.reached else { return None };
        let asked = &asked[*decided];
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        let (state, transition) = watch.observe(&asked.identity, &asked.limit, &asked.decision);
        drop(watch);
        if let Some(transition) = transition {
            self.stats.transition(&asked.identity, asked.limit.rule(), transition);
        }
        Some(state)
    }

    /// Forgets the quota of an identity, of all rules or of one; says of how many limits. Also what
    /// this process counted by itself while the store was away.
    pub async fn reset(
        &self,
        identity: &Identity,
        rule: Option<&str>,
    ) -> Result<usize, StoreError> {
        self.local.reset(identity, rule);
        self.limiter.store.reset(identity, rule).await
    }

    /// Whether requests should be sent here: not before there is a policy. A Redis that is away is
    /// no reason, or an outage would empty the fleet; only where every rule is `closed` it is.
    pub fn is_ready(&self) -> bool {
        let Some(current) = self.limiter.policy.current() else { return false };
        let rules = &current.rules.policy().rules;
        let all_closed = !rules.is_empty()
            && rules
                .iter()
                .all(|r| r.on_store_error == crate::engine::policy::OnStoreError::Closed);
        !(all_closed && self.limiter.store.trouble().is_some())
    }
}
