//! A trace against one or more limits, on any store: every limit sees the same requests at the
//! times of the trace, in file order.

use std::collections::HashSet;
use std::sync::Arc;

use crate::engine::identity::Identity;
use crate::engine::limit::{Decision, Limit};
use crate::engine::store::{Check, One, RuleLimit, Store, StoreError};
use crate::traffic::trace::Request;

/// Requests that travel to the store together.
pub const BATCH: usize = 256;

/// What became of a trace under one limit.
#[derive(Clone, Debug)]
pub struct Lane {
    pub limit: Limit,
    pub allowed: u64,
    pub denied: u64,
    rule_limit: [Arc<RuleLimit>; 1],
}

#[derive(Debug)]
pub struct Replay {
    store: Store,
    lanes: Vec<Lane>,
    keys: HashSet<Identity>,
}

impl Replay {
    pub fn new(store: Store, limits: Vec<Limit>) -> Replay {
        let lane = |(limit, index)| Lane {
            limit,
            allowed: 0,
            denied: 0,
            rule_limit: [Arc::new(RuleLimit::new("trace", index, limit))],
        };
        Replay {
            store,
            lanes: limits.into_iter().zip(0u8..).map(lane).collect(),
            keys: HashSet::new(),
        }
    }

    /// Decides the next requests; hands every decision of the first limit to `each`, in order.
    pub async fn decide<E>(
        &mut self,
        requests: &[Request],
        mut each: impl FnMut(&Request, &Decision) -> Result<(), E>,
    ) -> Result<(), E>
    where
        E: From<StoreError>,
    {
        for request in requests {
            if !self.keys.contains(&request.key) {
                self.keys.insert(request.key.clone());
            }
        }
        for (number, lane) in self.lanes.iter_mut().enumerate() {
            let checks: Vec<Check<'_>> = requests
                .iter()
                .map(|request| Check {
                    identity: &request.key,
                    limits: &lane.rule_limit,
                    cost: request.cost,
                    idempotency: None,
                    at: Some(request.at),
                })
                .collect();
            let answers = self.store.check_in_order(&checks).await;
            for (request, answer) in requests.iter().zip(answers) {
                let decision = answer?.decisions[0];
                *if decision.allowed { &mut lane.allowed } else { &mut lane.denied } += 1;
                if number == 0 {
                    each(request, &decision)?;
                }
            }
        }
        Ok(())
    }

    pub fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    /// How many different keys the trace had so far.
    pub fn keys(&self) -> usize {
        self.keys.len()
    }

    /// Removes what the trace left in its store.
    pub async fn clean_up(self) -> Result<(), StoreError> {
        match self.store.one() {
            One::Memory(_) | One::Simulated(_) => Ok(()),
            One::Redis(store) => store.remove(self.keys.iter()).await,
        }
    }
}
