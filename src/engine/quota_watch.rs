//! Who is close to a limit, with hysteresis: a quota enters `warning` at 80 % used and leaves it
//! only below 70 %, so that a client who hovers at the edge makes one event and not a hundred.

use std::collections::HashMap;

use super::clock::Micros;
use super::limit::{Decision, QuotaState};
use super::store::RuleLimit;
use crate::engine::identity::Identity;

/// Remembers the state of a bounded number of quotas that are not `normal`.
#[derive(Debug)]
pub struct QuotaWatch {
    max: usize,
    /// By identity, then by the name of the limit: whoever is not here costs one look.
    known: HashMap<Identity, Vec<Watched>>,
    warning: usize,
    throttled: usize,
}

#[derive(Debug)]
struct Watched {
    /// Its limit.
    name: String,
    state: QuotaState,
    /// When it is whole again, if nobody comes.
    whole_at: Micros,
}

/// A quota went from one state to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    pub from: QuotaState,
    pub to: QuotaState,
}

impl QuotaWatch {
    pub fn new(max: usize) -> QuotaWatch {
        QuotaWatch { max, known: HashMap::new(), warning: 0, throttled: 0 }
    }

    /// How many quotas are known to be in warning or throttled.
    pub fn len(&self) -> usize {
        self.warning + self.throttled
    }

    /// How many are in `warning`, and how many are `throttled`.
    pub fn by_state(&self) -> (usize, usize) {
        (self.warning, self.throttled)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The state after this decision, and the transition if it is a new one. When the watch is
    /// full, further quotas are judged without memory.
    pub fn observe(
        &mut self,
        identity: &Identity,
        limit: &RuleLimit,
        decision: &Decision,
    ) -> (QuotaState, Option<Transition>) {
        let has_room = self.len() < self.max;
        let known = self.known.get_mut(identity);
        let place = known.and_then(|all| all.iter_mut().find(|w| w.name == limit.name()));
        let from = place.as_ref().map_or(QuotaState::Normal, |watched| watched.state);
        let mut to = decision.state();
        if to == QuotaState::Normal && from != QuotaState::Normal && !below_70_percent(decision) {
            to = QuotaState::Warning;
        }
        let whole_at = decision.at + decision.reset_after;
        match (place, to) {
            (None, QuotaState::Normal) => {}
            (Some(_), QuotaState::Normal) => self.forget(identity, limit.name()),
            (Some(watched), _) => {
                (watched.state, watched.whole_at) = (to, whole_at);
            }
            (None, _) if has_room => {
                let all = self.known.entry(identity.clone()).or_default();
                all.push(Watched { name: limit.name().into(), state: to, whole_at });
            }
            (None, _) => return (to, None),
        }
        self.count(from, -1);
        self.count(to, 1);
        (to, (from != to).then_some(Transition { from, to }))
    }

    /// Forgets whoever stayed away until the quota was whole: that is normal again.
    pub fn forget_past(&mut self, now: Micros) {
        let (mut warning, mut throttled) = (0, 0);
        self.known.retain(|_, all| {
            all.retain(|watched| watched.whole_at > now);
            all.iter().for_each(|watched| match watched.state {
                QuotaState::Throttled => throttled += 1,
                _ => warning += 1,
            });
            !all.is_empty()
        });
        (self.warning, self.throttled) = (warning, throttled);
    }

    fn count(&mut self, state: QuotaState, by: isize) {
        let counter = match state {
            QuotaState::Normal => return,
            QuotaState::Warning => &mut self.warning,
            QuotaState::Throttled => &mut self.throttled,
        };
        *counter = counter.saturating_add_signed(by);
    }

    fn forget(&mut self, identity: &Identity, limit: &str) {
        let Some(all) = self.known.get_mut(identity) else { return };
        all.retain(|watched| watched.name != limit);
        if all.is_empty() {
            self.known.remove(identity);
        }
    }
}

/// Used is below 70 % of the capacity.
fn below_70_percent(decision: &Decision) -> bool {
    decision.used() * 10 < decision.capacity * 7
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::limit::{Algorithm, Limit};
    use QuotaState::{Normal, Throttled, Warning};

    fn observe(
        watch: &mut QuotaWatch,
        who: &str,
        remaining: u64,
        allowed: bool,
    ) -> (QuotaState, Option<Transition>) {
        let limit = Limit::new(Algorithm::Gcra, "100/1m".parse().unwrap()).unwrap();
        let decision = Decision { allowed, remaining, ..Decision::at(&limit, Micros::ZERO) };
        watch.observe(&who.parse().unwrap(), &RuleLimit::new("r", 0, limit), &decision)
    }

    #[test]
    fn a_warning_is_entered_at_80_percent_and_left_below_70() {
        let mut watch = QuotaWatch::new(10);
        let steps =
            [(21, Normal), (20, Warning), (25, Warning), (30, Warning), (31, Normal), (25, Normal)];
        for (remaining, state) in steps {
            assert_eq!(observe(&mut watch, "user:1", remaining, true).0, state, "{remaining}");
        }
        assert!(watch.is_empty());
    }

    #[test]
    fn each_transition_is_told_once() {
        let mut watch = QuotaWatch::new(10);
        let told: Vec<_> =
            [(20, true), (19, true), (0, true), (0, false), (25, true), (31, true), (50, true)]
                .into_iter()
                .filter_map(|(remaining, allowed)| {
                    observe(&mut watch, "user:1", remaining, allowed).1
                })
                .map(|t| (t.from, t.to))
                .collect();
        assert_eq!(
            told,
            [(Normal, Warning), (Warning, Throttled), (Throttled, Warning), (Warning, Normal)]
        );
    }

    #[test]
    fn who_stays_away_until_the_quota_is_whole_is_forgotten() {
        let mut watch = QuotaWatch::new(10);
        let limit = Limit::new(Algorithm::Gcra, "100/1m".parse().unwrap()).unwrap();
        let rule = RuleLimit::new("r", 0, limit);
        for (who, remaining, reset) in [("user:1", 0, 50), ("user:2", 20, 40), ("user:3", 10, 60)] {
            let decision = Decision { remaining, ..Decision::at(&limit, Micros(100)) };
            let decision = Decision { reset_after: Micros(reset), ..decision };
            watch.observe(&who.parse().unwrap(), &rule, &decision);
        }
        assert_eq!(watch.by_state(), (2, 1));
        watch.forget_past(Micros(140));
        assert_eq!(watch.by_state(), (1, 1));
        watch.forget_past(Micros(159));
        assert_eq!(watch.by_state(), (1, 0));
        watch.forget_past(Micros(160));
        assert!(watch.is_empty());
        assert!(watch.known.is_empty());
    }

    #[test]
    fn a_full_watch_judges_newcomers_without_memory() {
        let mut watch = QuotaWatch::new(1);
        observe(&mut watch, "user:1", 0, false);
        assert_eq!(observe(&mut watch, "user:2", 0, false), (Throttled, None));
        assert_eq!(observe(&mut watch, "user:2", 25, true), (Normal, None));
        assert_eq!(watch.len(), 1);
    }
}
