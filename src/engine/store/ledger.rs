//! What a memory store remembers beside buckets: answers to idempotency keys, and which charges
//! were returned. Both are bounded.

use std::collections::{HashMap, HashSet, VecDeque};

use super::{Answer, Idempotency};
use crate::engine::clock::Micros;
use crate::engine::identity::Identity;
use crate::engine::limit::Cost;

/// 100 000 answers within five minutes are 333 a second; beyond it the oldest is forgotten, and a
/// retry of it is decided afresh.
const MAX_ANSWERS: usize = 100_000;
/// Beyond a million returns within a day nothing more is given back: never twice, rather than
/// sometimes.
const MAX_RETURNED: usize = 1_000_000;

#[derive(Clone, Debug, Default)]
pub(super) struct Ledger {
    answers: HashMap<(Identity, String), Remembered>,
    /// In the order they were remembered.
    answer_order: VecDeque<(Identity, String)>,
    returned: HashSet<u64>,
    returned_order: VecDeque<(Micros, u64)>,
}

#[derive(Clone, Debug)]
pub(super) struct Remembered {
    pub(super) cost: Cost,
    answer: Answer,
    ends: Micros,
    replays: u32,
}

impl Remembered {
    pub(super) fn limits(&self) -> usize {
        self.answer.decisions.len()
    }

    /// The answer once more; none when it was given as often as it may be.
    pub(super) fn replay(&mut self, max_replays: Option<u32>) -> Option<Answer> {
        if max_replays.is_some_and(|most| self.replays >= most) {
            return None;
        }
        self.replays += u32::from(max_replays.is_some());
        Some(Answer { replayed: true, ..self.answer.clone() })
    }
}

impl Ledger {
    pub(super) fn answer(
        &mut self,
        identity: &Identity,
        key: &str,
        now: Micros,
    ) -> Option<&mut Remembered> {
        self.answers.get_mut(&(identity.clone(), key.into())).filter(|r| r.ends > now)
    }

    pub(super) fn remember(
        &mut self,
        identity: &Identity,
        idempotency: Idempotency<'_>,
        cost: Cost,
        answer: &Answer,
        now: Micros,
    ) {
        let key = (identity.clone(), idempotency.key.to_string());
        while let Some(oldest) = self.answer_order.front() {
            let ended = self.answers.get(oldest).is_none_or(|r| r.ends <= now);
            if !ended && self.answer_order.len() < MAX_ANSWERS {
                break;
            }
            self.answers.remove(oldest);
            self.answer_order.pop_front();
        }
        let ends = now + idempotency.remember;
        let remembered = Remembered { cost, answer: answer.clone(), ends, replays: 0 };
        self.answers.insert(key.clone(), remembered);
        self.answer_order.push_back(key);
    }

    /// Forgets the answer of this charge, not of a later one under the same key.
    pub(super) fn forget(&mut self, identity: &Identity, key: &str, charge: u64) {
        let place = (identity.clone(), key.into());
        if self.answers.get(&place).is_some_and(|r| r.answer.charge_id == Some(charge)) {
            self.answers.remove(&place);
        }
    }

    /// False when the charge was returned before, or when there is no room to say that it was.
    pub(super) fn mark_returned(&mut self, charge: u64, lapses_at: Micros, now: Micros) -> bool {
        while self.returned_order.front().is_some_and(|(lapses, _)| *lapses <= now) {
            if let Some((_, lapsed)) = self.returned_order.pop_front() {
                self.returned.remove(&lapsed);
            }
        }
        if self.returned.len() >= MAX_RETURNED || !self.returned.insert(charge) {
            return false;
        }
        self.returned_order.push_back((lapses_at, charge));
        true
    }
}
