//! The engine on a Redis, under a prefix of its own.

use std::sync::Arc;

use super::answer::{Answer, Outcome};
use super::calls::{Calls, Troubles};
use super::local::Identities;
use crate::engine::limit::Cost;
use crate::engine::store::{Check, RedisStore, RuleLimit, StoreError};

#[derive(Debug)]
pub struct Stored {
    pub store: Arc<RedisStore>,
    pub limits: Arc<[Arc<RuleLimit>]>,
    pub identities: Identities,
    pub troubles: Troubles,
}

impl Calls for &mut Stored {
    fn call(&mut self, key: u32, wall_s: u64) -> impl Future<Output = Answer> + 'static {
        let (store, limits) = (self.store.clone(), self.limits.clone());
        let identity = self.identities.of(key);
        let troubles = self.troubles.clone();
        async move {
            let check = Check {
                identity: &identity,
                limits: &limits,
                cost: Cost::ONE,
                idempotency: None,
                at: None,
            };
            match store.check(&check).await {
                Ok(answer) => match answer.deciding() {
                    Some((_, decision)) => Answer::of_decision(decision, wall_s),
                    None => Answer::plain(Outcome::Allowed),
                },
                Err(StoreError::Timeout { .. }) => Answer::plain(Outcome::Timeout),
                Err(StoreError::Overloaded { .. }) => Answer::plain(Outcome::Shed),
                Err(error) => {
                    troubles.note(error);
                    Answer::plain(Outcome::Error)
                }
            }
        }
    }

    fn troubles(&self) -> &Troubles {
        &self.troubles
    }
}
