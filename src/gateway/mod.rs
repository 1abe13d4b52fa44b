//! The limiter as a service: what stands in front of an upstream, answers checks for others, and
//! lets operators look and change. Every interface asks [`Gateway::decide`], and everything that is
//! shown is counted there.

pub mod access;
pub mod answer;
pub mod api;
pub mod counters;
pub mod events;
pub mod grpc;
pub mod headers;
pub mod history;
mod hot;
pub mod identity;
mod impatient;
pub mod listen;
pub mod log;
mod metrics;
mod notice;
mod open;
mod own_limits;
pub mod proxy;
pub mod refusal;
pub mod serve;
pub mod shed;
pub mod sides;
mod snapshot;
pub mod spread;
pub mod stats;
pub mod tls;
pub mod top;
mod upkeep;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::join_all;

use crate::engine::clock::Micros;
use crate::engine::concurrency::Concurrency;
use crate::engine::failure::Local;
use crate::engine::identity::Identity;
use crate::engine::limit::{Cost, QuotaState};
use crate::engine::limiter::{Demand, Reached, Verdict};
use crate::engine::live::{LiveLimiter, Moment};
use crate::engine::plan::Attempt;
use crate::engine::policy::OnStoreError;
use crate::engine::quota_watch::QuotaWatch;
use crate::engine::registry::Registry;
use crate::engine::split;
use crate::engine::store::{Settlement, StoreError};
pub use answer::{Answer, Outcome};
pub use open::{Backing, PolicySource};
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
    /// What passes through the proxy now, for rules that say how much may.
    pub under_way: Arc<Concurrency>,
    /// How much is taken on for others.
    pub shed: Shed,
    pub grpc: grpc::Counts,
    pub about: About,
    watch: Mutex<QuotaWatch>,
    /// How many quotas it knows to be in warning or throttled.
    watched: AtomicUsize,
    /// Nothing new is to be sent here.
    draining: AtomicBool,
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
            under_way: Arc::default(),
            shed: Shed::default(),
            grpc: grpc::Counts::default(),
            about,
            watch: Mutex::new(QuotaWatch::new(WATCHED_QUOTAS)),
            watched: AtomicUsize::new(0),
            draining: AtomicBool::new(false),
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
        let answer = self.count(attempt, &verdict, began);
        Ok((verdict, answer))
    }

    /// The same for whoever holds a request until its turn: one that would have to wait longer than
    /// its limit allows is refused, and what it was charged is given back.
    pub async fn decide_and_hold(
        &self,
        moment: &Moment,
        attempt: &Attempt<'_>,
        demand: Demand<'_>,
    ) -> Result<(Verdict, Answer), StoreError> {
        let began = Micros::now();
        let mut verdict = self.limiter.check(moment, attempt, demand).await?;
        if verdict.is_overdue() {
            let refunds = verdict
                .charges
                .iter()
                .map(|c| self.limiter.settle(c, Settlement::Refund, demand.at));
            // What cannot be given back stays charged.
            drop(join_all(refunds).await);
            verdict = verdict.refuse_overdue();
        }
        let answer = self.count(attempt, &verdict, began);
        Ok((verdict, answer))
    }

    /// What a decision would be, neither charged nor counted.
    pub async fn peek(
        &self,
        moment: &Moment,
        attempt: &Attempt<'_>,
        demand: Demand<'_>,
    ) -> Result<(Verdict, Answer), StoreError> {
        let demand = Demand { cost: Cost::PEEK, idempotency: None, ..demand };
        let verdict = self.limiter.check(moment, attempt, demand).await?;
        let answer = Answer::of(&verdict, None, Micros::now());
        Ok((verdict, answer))
    }

    /// The refusal of somebody who is blocked, counted; for requests that are not charged. None for
    /// everybody else.
    pub async fn refuse_blocked(
        &self,
        moment: &Moment,
        attempt: &Attempt<'_>,
    ) -> Option<(Verdict, Answer)> {
        let began = Micros::now();
        let verdict = self.limiter.block(moment, attempt, began).await?;
        let answer = self.count(attempt, &verdict, began);
        Some((verdict, answer)).filter(|(verdict, _)| !verdict.allowed)
    }

    fn count(&self, attempt: &Attempt<'_>, verdict: &Verdict, began: Micros) -> Answer {
        let now = Micros::now();
        self.stats.decided(attempt, verdict, began, now);
        Answer::of(verdict, self.state_of(verdict), now)
    }

    /// The state of the deciding quota, with memory.
    fn state_of(&self, verdict: &Verdict) -> Option<QuotaState> {
        let Reached::Limits { decided, asked } = &verdict.reached else { return None };
        let asked = &asked[*decided];
        // Where nobody is close to a limit, nobody waits for anybody to say so.
        if self.watched.load(Ordering::Relaxed) == 0 && asked.decision.state() == QuotaState::Normal
        {
            return Some(QuotaState::Normal);
        }
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        let (state, transition) = watch.observe(&asked.identity, &asked.limit, &asked.decision);
        self.watched.store(watch.len(), Ordering::Relaxed);
        drop(watch);
        if let Some(transition) = transition {
            self.stats.transition(&asked.identity, asked.limit.rule(), transition);
        }
        Some(state)
    }

    /// Forgets who stayed away until its quota was whole.
    fn forget_watched(&self, now: Micros) {
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        watch.forget_past(now);
        self.watched.store(watch.len(), Ordering::Relaxed);
    }

    /// From now on it is not ready: it finishes what it has and takes on nothing new.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Forgets the quota of an identity, of all rules or of one; says of how many limits. Also what
    /// this process counted by itself while the store was away.
    pub async fn reset(
        &self,
        identity: &Identity,
        rule: Option<&str>,
    ) -> Result<usize, StoreError> {
        self.local.reset(identity, rule);
        let store = &self.limiter.store;
        let forgotten = store.reset(identity, rule).await;
        // Where a rule divides it, all of its parts.
        let current = self.limiter.policy.current();
        let rules = current.iter().flat_map(|current| &current.rules.policy().rules);
        let most = rules.filter_map(|rule| rule.split).max().unwrap_or_default();
        let parts: Vec<Identity> =
            (0..u64::from(most)).filter_map(|n| split::name(identity, n)).collect();
        let all = join_all(parts.iter().map(|part| store.reset(part, rule))).await;
        // What was known of the old quota, also what was learned while it was being reset.
        self.limiter.hot.iter().for_each(|hot| hot.forget(identity));
        all.into_iter().try_fold(forgotten?, |sum, one| Ok(sum + one?))
    }

    /// Whether requests should be sent here: not before there is a policy, nor at the end. A Redis
    /// that is away is no reason, or an outage would empty the fleet; only where every rule is
    /// `closed` it is.
    pub fn is_ready(&self) -> bool {
        if self.is_draining() {
            return false;
        }
        let Some(current) = self.limiter.policy.current() else { return false };
        let rules = &current.rules.policy().rules;
        let all_closed = !rules.is_empty()
            && rules.iter().all(|rule| rule.on_store_error == OnStoreError::Closed);
        !(all_closed && self.limiter.store.trouble().is_some())
    }
}
