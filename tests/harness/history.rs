//! What was recorded while things went wrong, and the one checker of it.
//!
//! Every call is there as its caller saw it. The checker knows nothing of how a limiter works: only
//! what was promised.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rlctl::engine::breaker::State;

/// One call as its caller saw it.
#[derive(Clone, Debug)]
pub(crate) struct Called {
    pub(crate) identity: usize,
    pub(crate) began: Instant,
    pub(crate) ended: Instant,
    pub(crate) allowed: bool,
    /// As many replicas as there are have the charge: it outlives its master.
    pub(crate) confirmed: bool,
    /// Marked as decided without the store; and whether the store may have counted it all the same.
    pub(crate) degraded: Option<Unknown>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unknown(pub(crate) bool);

/// What was promised of this run.
#[derive(Clone, Debug)]
pub(crate) struct Promise {
    pub(crate) deadline: Duration,
    /// Per second, and at once.
    pub(crate) rate: f64,
    pub(crate) burst: f64,
    /// Moments at which the servers may have lost what they counted: each may let through one
    /// burst more.
    pub(crate) losses: usize,
    /// Not all of it: only what a replica had not heard of when it took over.
    pub(crate) at_most_lost: Option<u64>,
}

/// A time without the store, as long as its servers need to be whole again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outage {
    pub(crate) began: Instant,
    /// When the servers themselves could serve every key again.
    pub(crate) healed: Instant,
}

/// All that is known of one run.
pub(crate) struct History {
    pub(crate) calls: Vec<Called>,
    pub(crate) outages: Vec<Outage>,
    /// What breakers were seen in, of each shard in turn.
    pub(crate) breakers: HashMap<String, Vec<State>>,
    /// What the servers have counted of each identity in the end.
    pub(crate) used: Vec<u64>,
    /// Keys that would never go away.
    pub(crate) immortal: Vec<String>,
}

/// What a call may take beyond its deadline.
const GRACE: Duration = Duration::from_millis(10);
/// Enforcement is back so long after the servers.
const BACK_WITHIN: Duration = Duration::from_secs(1);

impl History {
    /// What was promised and not kept; `stalled` is how long the machine itself stood still.
    pub(crate) fn broken_promises(
        &self,
        promise: &Promise,
        stalled: &dyn Fn(Instant, Instant) -> Duration,
    ) -> Vec<String> {
        let mut broken = Vec::new();
        broken.extend(self.too_long(promise, stalled));
        broken.extend(self.too_many(promise));
        broken.extend(self.counted_wrongly(promise));
        broken.extend(self.not_back(stalled));
        broken.extend(self.breakers_that_jump());
        broken.extend(self.immortal.iter().map(|key| format!("{key} has no TTL")));
        broken
    }

    fn too_long(
        &self,
        promise: &Promise,
        stalled: &dyn Fn(Instant, Instant) -> Duration,
    ) -> Option<String> {
        let over = |call: &Called| {
            let most = promise.deadline + GRACE + stalled(call.began, call.ended);
            (call.ended - call.began).checked_sub(most)
        };
        let (over, call) = self
            .calls
            .iter()
            .filter_map(|call| Some((over(call)?, call)))
            .max_by_key(|(over, _)| *over)?;
        Some(format!("a call took {:?}, {over:?} too long: {call:?}", call.ended - call.began))
    }

    /// What the store let through, which is all that is not marked, in any interval.
    fn too_many(&self, promise: &Promise) -> Option<String> {
        // What is confirmed is never lost, so of that no more passes whatever is.
        let extra = promise.losses as f64 * promise.burst;
        self.more_than(promise, extra, |_| true)
            .or_else(|| self.more_than(promise, 0.0, |call| call.confirmed))
    }

    fn more_than(
        &self,
        promise: &Promise,
        extra: f64,
        counts: impl Fn(&Called) -> bool,
    ) -> Option<String> {
        for identity in self.identities() {
            let mut passed: Vec<&Called> = self
                .of(identity)
                .filter(|c| c.allowed && c.degraded.is_none() && counts(c))
                .collect();
            passed.sort_by_key(|call| call.ended);
            for first in &passed {
                // Each was decided at some time while it was under way.
                let mut count = 0.0;
                for call in passed.iter().filter(|call| call.began >= first.began) {
                    count += 1.0;
                    let seconds = (call.ended - first.began).as_secs_f64();
                    let most = promise.burst + (promise.rate * seconds).floor() + extra;
                    if count > most {
                        return Some(format!(
                            "identity {identity}: {count} passed within {seconds:.3} s, at most {most} may"
                        ));
                    }
                }
            }
        }
        None
    }

    /// What was told to callers was counted, once; what is unknown, at most once.
    fn counted_wrongly(&self, promise: &Promise) -> Option<String> {
        self.used.iter().enumerate().find_map(|(identity, used)| {
            let told = self.of(identity).filter(|c| c.allowed && c.degraded.is_none()).count() as u64;
            let unknown = self.of(identity).filter(|c| c.degraded == Some(Unknown(true))).count() as u64;
            let lost = match (promise.losses, promise.at_most_lost) {
                (0, _) => 0,
                (_, Some(most)) => most,
                (_, None) => u64::MAX,
            };
            let confirmed = self.of(identity).filter(|c| c.confirmed).count() as u64;
            let least = told.saturating_sub(lost).max(confirmed);
            (*used < least || *used > told + unknown).then(|| {
                format!("identity {identity}: {used} counted, {told} told, {confirmed} of them confirmed, {unknown} unknown, {lost} may be lost")
            })
        })
    }

    /// Every identity is decided by the store soon after each outage, and to the end.
    fn not_back(&self, stalled: &dyn Fn(Instant, Instant) -> Duration) -> Option<String> {
        for (n, outage) in self.outages.iter().enumerate() {
            let next = self.outages.get(n + 1).map(|next| next.began);
            let by = outage.healed + BACK_WITHIN;
            let by = by + stalled(outage.began, by);
            let late = self.calls.iter().find(|call| {
                call.degraded.is_some()
                    && call.began > by
                    && next.is_none_or(|next| call.began < next)
            });
            if let Some(call) = late {
                let since = call.began.duration_since(outage.healed);
                return Some(format!("{since:?} after the servers were back: {call:?}"));
            }
        }
        None
    }

    fn breakers_that_jump(&self) -> Option<String> {
        self.breakers.iter().find_map(|(shard, states)| {
            // Half-open comes only after open.
            let jump = states.windows(2).find(|pair| pair == &[State::Closed, State::HalfOpen]);
            jump.map(|_| format!("the breaker of {shard} went {states:?}"))
        })
    }

    fn of(&self, identity: usize) -> impl Iterator<Item = &Called> {
        self.calls.iter().filter(move |call| call.identity == identity)
    }

    fn identities(&self) -> impl Iterator<Item = usize> {
        0..self.calls.iter().map(|call| call.identity + 1).max().unwrap_or(0)
    }

    /// Whether some breaker was ever seen in this state.
    pub(crate) fn was_seen(&self, state: State) -> bool {
        self.breakers.values().flatten().any(|seen| *seen == state)
    }

    pub(crate) fn confirmed(&self) -> usize {
        self.calls.iter().filter(|call| call.confirmed).count()
    }

    pub(crate) fn degraded(&self) -> usize {
        self.calls.iter().filter(|call| call.degraded.is_some()).count()
    }
}
