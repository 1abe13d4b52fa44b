//! The commonest of all requests: one identity, whose limits are counted in the memory of this
//! process. The answer is at once there, so what the long way needs to wait, to ask several and to
//! give back is not paid for.

use super::{Asked, By, Demand, Lent, Reached, Verdict, check};
use crate::engine::plan::Questions;
use crate::engine::store::{One, StoreError};

impl Lent<'_> {
    /// None where there is more to it.
    pub(super) fn decide_alone(
        &self,
        questions: &Questions<'_>,
        demand: Demand<'_>,
    ) -> Option<Result<Verdict, StoreError>> {
        let ([question], One::Memory(store)) = (questions.enforced.as_slice(), self.store.one())
        else {
            return None;
        };
        let is_plain =
            question.store.is_none() && !question.is_split() && question.confirm().is_none();
        if !is_plain || self.hot.is_some() {
            return None;
        }
        let check = check(question, demand);
        let answer = match store.check(&check) {
            Ok(answer) => answer,
            Err(error) => return Some(Err(error)),
        };
        let each = question.limits.iter().zip(&answer.decisions);
        let reached = match answer.deciding() {
            None => Reached::NoLimit,
            Some((decided, _)) => Reached::Limits {
                decided,
                asked: each
                    .map(|(limit, decision)| Asked {
                        identity: question.identity.clone(),
                        limit: limit.clone(),
                        decision: *decision,
                        by: By::Store,
                    })
                    .collect(),
            },
        };
        let charges = answer.charge_unless_replayed(&check).into_iter().collect();
        Some(Ok(Verdict { charges, ..Verdict::by(answer.allowed(), reached) }))
    }
}
