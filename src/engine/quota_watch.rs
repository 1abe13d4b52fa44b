//! Who is close to a limit, with hysteresis: a quota enters `warning` at 80 % used and leaves it
//! only below 70 %, so that a client who hovers at the edge makes one event and not a hundred.

use std::collections::HashMap;

use super::limit::{Decision, QuotaState};
use super::store::RuleLimit;
use crate::engine::identity::Identity;

/// Remembers the state of a bounded number of quotas that are not `normal`.
#[derive(Debug)]
pub struct QuotaWatch {
    max: usize,
    /// By identity, then by the name of the limit: whoever is not here costs one look.
    known: HashMap<Identity, Vec<(String, QuotaState)>>,
    quotas: usize,
}

/// A quota went from one state to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    pub from: QuotaState,
    pub to: QuotaState,
}

impl QuotaWatch {
    pub fn new(max: usize) -> QuotaWatch {
        QuotaWatch { max, known: HashMap::new(), quotas: 0 }
    }

    /// How many quotas are known to be in warning or throttled.
    pub fn len(&self) -> usize {
        self.quotas
    }

    pub fn is_empty(&self) -> bool {
        self.quotas == 0
    }

    /// The state after this decision, and the transition if it is a new one. When the watch is
    /// full, further quotas are judged without memory.
    pub fn observe(
        &mut self,
        identity: &Identity,
        limit: &RuleLimit,
        decision: &Decision,
    ) -> (QuotaState, Option<Transition>) {
        let known = self.known.get_mut(identity);
        let place = known.and_then(|all| all.iter_mut().find(|(name, _)| name == limit.name()));
        let from = place.as_ref().map_or(QuotaState::Normal, |(_, state)| *state);
        let mut to = decision.state();
        if to == QuotaState::Normal && from != QuotaState::Normal && !below_70_percent(decision) {
            to = QuotaState::Warning;
        }
        match (place, to) {
            (None, QuotaState::Normal) => {}
            (Some(_), QuotaState::Normal) => self.forget(identity, limit.name()),
            (Some((_, state)), _) => *state = to,
            (None, _) if self.quotas < self.max => {
                self.quotas += 1;
                let all = self.known.entry(identity.clone()).or_default();
                all.push((limit.name().into(), to));
            }
            (None, _) => return (to, None),
        }
        (to, (from != to).then_some(Transition { from, to }))
    }

    fn forget(&mut self, identity: &Identity, limit: &str) {
        let Some(all) = self.known.get_mut(identity) else { return };
        all.retain(|(name, _)| name != limit);
        self.quotas -= 1;
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
    use crate::engine::clock::Micros;
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
    fn a_full_watch_judges_newcomers_without_memory() {
        let mut watch = QuotaWatch::new(1);
        observe(&mut watch, "user:1", 0, false);
        assert_eq!(observe(&mut watch, "user:2", 0, false), (Throttled, None));
        assert_eq!(observe(&mut watch, "user:2", 25, true), (Normal, None));
        assert_eq!(watch.len(), 1);
    }
}
