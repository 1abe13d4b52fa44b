//! A charge that can be given back: everything a store needs to find it again, carried by whoever
//! was charged, so that the many charges nobody returns cost the store nothing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::{Answer, Check, RuleLimit};
use crate::engine::clock::Micros;
use crate::engine::identity::Identity;
use crate::engine::limit::{Algorithm, Cost, Limit, Quota};

/// How long after it was made a charge can be given back or settled.
pub const CHARGE_LIFE: Micros = Micros::DAY;

/// How an id begins: the version of its format; the second has the name of a store.
const PLAIN: u8 = 1;
const ELSEWHERE: u8 = 2;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Charge {
    pub(super) id: u64,
    pub(super) identity: Identity,
    pub(super) cost: Cost,
    /// The name of the store that was charged, where it has one.
    store: Option<Arc<str>>,
    pub(super) idempotency_key: Option<String>,
    /// What was charged, and when.
    pub(super) parts: Vec<(Arc<RuleLimit>, Micros)>,
}

/// What becomes of a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// It is given back, and its idempotency answer forgotten.
    Refund,
    /// It shall have cost this: less is given back, more is taken even where nothing is left.
    Cost(Cost),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("that is not the id of a charge")]
pub struct ChargeIdError;

impl Charge {
    pub(super) fn of(check: &Check<'_>, answer: &Answer, id: Option<u64>) -> Charge {
        let times = answer.decisions.iter().map(|d| d.at);
        Charge {
            id: id.unwrap_or_else(random_id),
            identity: check.identity.clone(),
            cost: check.cost,
            store: None,
            idempotency_key: check.idempotency.map(|i| i.key.into()),
            parts: check.limits.iter().cloned().zip(times).collect(),
        }
    }

    /// The same, made on the store of this name.
    pub fn on(self, store: Option<&str>) -> Charge {
        Charge { store: store.map(Arc::from), ..self }
    }

    pub fn store(&self) -> Option<&str> {
        self.store.as_deref()
    }

    pub(super) fn lapses_at(&self) -> Micros {
        self.parts.iter().map(|(_, at)| *at).min().unwrap_or_default() + CHARGE_LIFE
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    pub(crate) fn limits(&self) -> impl Iterator<Item = &Limit> {
        self.parts.iter().map(|(limit, _)| limit.limit())
    }

    /// A part of it, as if it had been charged by itself: it can be given back by itself.
    pub(crate) fn part(&self, cost: Cost) -> Charge {
        Charge { id: random_id(), cost, ..self.clone() }
    }

    /// The opaque text that callers keep.
    pub fn to_id(&self) -> String {
        let mut bytes = vec![if self.store.is_some() { ELSEWHERE } else { PLAIN }];
        self.store.iter().for_each(|name| put_text(&mut bytes, name));
        bytes.extend(self.id.to_le_bytes());
        bytes.extend(self.cost.get().to_le_bytes());
        put_text(&mut bytes, self.identity.as_str());
        put_text(&mut bytes, self.idempotency_key.as_deref().unwrap_or_default());
        for (rule_limit, at) in &self.parts {
            let limit = rule_limit.limit();
            put_text(&mut bytes, rule_limit.name());
            bytes.push(limit.algorithm().code());
            let weight = rule_limit.cost(Cost::ONE).get();
            for number in [limit.requests(), limit.period().0, limit.capacity(), at.0, weight] {
                bytes.extend(number.to_le_bytes());
            }
        }
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Reads what [`Charge::to_id`] wrote. It comes back from strangers, so nothing is believed.
    pub fn from_id(text: &str) -> Result<Charge, ChargeIdError> {
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| ChargeIdError)?;
        Reader(&bytes).charge().ok_or(ChargeIdError)
    }
}

/// Ids need not be secret, only different: a random start for this process, then a sequence that
/// visits every number once, because asking the system each time costs more than a check.
pub(super) fn random_id() -> u64 {
    static NEXT: LazyLock<AtomicU64> = LazyLock::new(|| {
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes).expect("the system gives random bytes");
        AtomicU64::new(u64::from_le_bytes(bytes))
    });
    // An odd step walks through all of them, and far apart: two processes that start close to each
    // other do not meet soon.
    NEXT.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)
}

fn put_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u16).to_le_bytes());
    bytes.extend(text.as_bytes());
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn charge(&mut self) -> Option<Charge> {
        let store = match self.take(1)? {
            [PLAIN] => None,
            [ELSEWHERE] => Some(self.text()?.into()),
            _ => return None,
        };
        let (id, cost) = (self.number()?, Cost::new(self.number()?).ok()?);
        let identity = Identity::opaque(&self.text()?).ok()?;
        let idempotency_key = Some(self.text()?).filter(|key| !key.is_empty());
        let mut parts = Vec::new();
        while !self.0.is_empty() {
            parts.push(self.part()?);
        }
        Some(Charge { id, identity, cost, store, idempotency_key, parts })
    }

    fn part(&mut self) -> Option<(Arc<RuleLimit>, Micros)> {
        let name = self.text()?;
        let (rule, index) =
            name.rsplit_once('#').filter(|(rule, _)| (1..=200).contains(&rule.len()))?;
        let code = self.take(1)?[0];
        let algorithm = Algorithm::ALL.into_iter().find(|a| a.code() == code)?;
        let (requests, period) = (self.number()?, Micros(self.number()?));
        let burst = Some(self.number()?).filter(|_| algorithm.is_bucket());
        let limit = Limit::new(algorithm, Quota { requests, period, burst }).ok()?;
        let at = Micros(self.number()?);
        let weight = Cost::new(self.number()?).ok()?;
        let rule_limit = RuleLimit::new(rule, index.parse().ok()?, limit).with_weight(weight);
        // A limit of 0 never charges.
        (requests > 0 && at <= Micros::LAST).then(|| (Arc::new(rule_limit), at))
    }

    fn take(&mut self, n: usize) -> Option<&[u8]> {
        let (taken, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    fn text(&mut self) -> Option<String> {
        let length = u16::from_le_bytes(self.take(2)?.try_into().ok()?);
        String::from_utf8(self.take(usize::from(length))?.to_vec()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::store::{Idempotency, MemoryStore};

    fn a_charge() -> Charge {
        let identity: Identity = "user:{1}".parse().unwrap();
        let limits: Vec<_> = ["10/1s", "5/3s burst 2"]
            .into_iter()
            .zip(0..)
            .map(|(text, index)| {
                let limit = Limit::new(Algorithm::Gcra, text.parse().unwrap()).unwrap();
                Arc::new(RuleLimit::new("orders", index, limit))
            })
            .collect();
        let idempotency = Some(Idempotency::new("k", Micros::MINUTE).unwrap());
        let at = Some(Micros(7));
        let check =
            Check { identity: &identity, limits: &limits, cost: Cost::ONE, idempotency, at };
        MemoryStore::unbounded().check(&check).unwrap().charge(&check).unwrap()
    }

    #[test]
    fn a_charge_survives_its_id() {
        let charge = a_charge();
        assert_eq!(Charge::from_id(&charge.to_id()), Ok(charge.clone()));
        let elsewhere = charge.clone().on(Some("premium"));
        assert_eq!(Charge::from_id(&elsewhere.to_id()), Ok(elsewhere.clone()));
        assert_ne!(elsewhere, charge);
    }

    #[test]
    fn no_broken_id_is_believed_and_none_crashes() {
        for charge in [a_charge(), a_charge().on(Some("premium"))] {
            break_it(&charge.to_id());
        }
    }

    fn break_it(id: &str) {
        for cut in 0..id.len() {
            let _ = Charge::from_id(&id[..cut]);
        }
        for (index, _) in id.char_indices() {
            let mut bent = id.to_owned();
            bent.replace_range(index..=index, "_");
            let _ = Charge::from_id(&bent);
        }
        assert_eq!(Charge::from_id(""), Err(ChargeIdError));
        assert_eq!(Charge::from_id("not base64!"), Err(ChargeIdError));
        assert_eq!(Charge::from_id(&id[..id.len() - 2]), Err(ChargeIdError));
    }
}
