//! What becomes of a request when the store cannot answer in time: each rule says, and the
//! strictest speaks for the request. `local` decides in this process, with its share of the limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::identity::Identity;
use super::limit::{Limit, Quota};
use super::policy::{OnStoreError, Rule};
use super::store::{MemoryStore, RuleLimit, StoreError};

/// What a limiter does when its store fails.
#[derive(Clone, Debug, Default)]
pub enum OnFailure {
    /// Whoever asks is told: an operator's question is never answered by a guess.
    #[default]
    Tell,
    /// Each rule's `on_store_error` decides.
    ByRule(Arc<Local>),
}

/// A decision that was reached without the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Degraded {
    pub mode: OnStoreError,
    pub why: StoreError,
}

/// Decisions of this process alone, while the store is away.
#[derive(Debug)]
pub struct Local {
    pub(super) store: MemoryStore,
    gateways: AtomicU32,
}

impl Local {
    pub fn new(max_identities: usize) -> Local {
        Local { store: MemoryStore::new(max_identities), gateways: AtomicU32::new(1) }
    }

    /// How many processes share the limits, as far as was seen while the store answered.
    pub fn set_gateways(&self, seen: usize) {
        let seen = u32::try_from(seen).unwrap_or(u32::MAX).max(1);
        self.gateways.store(seen, Ordering::Relaxed);
    }

    pub fn gateways(&self) -> u32 {
        self.gateways.load(Ordering::Relaxed)
    }

    /// Forgets what it has counted of an identity, under all rules or one.
    pub fn reset(&self, identity: &Identity, rule: Option<&str>) {
        self.store.reset(identity, rule);
    }

    /// What decides here, to be looked at.
    pub fn store(&self) -> &MemoryStore {
        &self.store
    }

    /// This process's part of a limit: at least 1, so that nobody is shut out altogether.
    pub(super) fn share(&self, rule: &Rule, limit: &RuleLimit) -> Arc<RuleLimit> {
        let whole = limit.limit();
        let part = |n: u64| match rule.local_share {
            _ if n == 0 => 0,
            Some(share) => ((n as f64 * share) as u64).max(1),
            None => (n / u64::from(self.gateways())).max(1),
        };
        let (requests, period) = (part(whole.requests()), whole.period());
        let burst = Some(part(whole.capacity())).filter(|_| whole.algorithm().is_bucket());
        let shared = Limit::new(whole.algorithm(), Quota { requests, period, burst })
            // A slow bucket with a vast burst may pass the longest refill by rounding; without its
            // burst it cannot.
            .or_else(|_| Limit::new(whole.algorithm(), Quota { requests, period, burst: None }))
            .unwrap_or(*whole);
        Arc::new(limit.clone().with_limit(shared))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::clock::Micros;
    use crate::engine::config::parse_policy;
    use crate::engine::rules::Rules;

    fn shared(limit: &str, share: &str, gateways: usize) -> String {
        let text = format!(
            "[[rule]]\nname = \"r\"\ndimension = \"ip\"\nlimits = [\"{limit}\"]\n{share}\n"
        );
        let (policy, _) = parse_policy("r.toml", &text, Micros::ZERO).unwrap();
        let rules = Rules::new(Arc::new(policy));
        let local = Local::new(10);
        local.set_gateways(gateways);
        let identity = "ip:192.0.2.1".parse().unwrap();
        let applied = rules.anywhere(&identity, None, None).next().unwrap();
        local.share(applied.rule, &applied.limits(None)[0]).limit().to_string()
    }

    #[test]
    fn the_share_is_the_limit_by_the_gateways_and_at_least_one() {
        assert_eq!(shared("100/1s burst 30", "", 3), "33/1s burst 10");
        assert_eq!(shared("100/1s", "", 0), "100/1s");
        assert_eq!(shared("2/1s", "", 9), "1/1s");
        assert_eq!(shared("0/1s", "", 9), "0/1s");
        assert_eq!(shared("100/1s", "local_share = 0.25", 1), "25/1s");
    }
}
