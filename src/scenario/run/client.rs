//! What clients make of refusals; the same as those of `rlctl bench`.

use std::collections::HashMap;

use crate::engine::clock::Micros;
use crate::scenario::model::Client;

const STORM_ATTEMPTS: u32 = 3;
/// A request that was refused this often is given up.
const PATIENT_ATTEMPTS: u32 = 10;
const FIRST_BACKOFF: Micros = Micros(100 * Micros::MILLISECOND.0);
const LAST_BACKOFF: Micros = Micros(30 * Micros::SECOND.0);

/// Which keys are silent, and until when.
#[derive(Debug, Default)]
pub(super) struct Silence(HashMap<(usize, u32), Micros>);

impl Silence {
    pub(super) fn is_silent(&self, traffic: usize, key: u32, now: Micros) -> bool {
        !self.0.is_empty() && self.0.get(&(traffic, key)).is_some_and(|until| now < *until)
    }

    /// When a refused request is tried again; `retry_after` is what the refusal said.
    pub(super) fn refused(
        &mut self,
        client: Client,
        traffic: usize,
        key: u32,
        attempt: u32,
        retry_after: Option<Micros>,
        now: Micros,
    ) -> Option<Micros> {
        let (attempts, wait) = match client {
            Client::Naive => return None,
            Client::RetryStorm => (STORM_ATTEMPTS, Micros::ZERO),
            // Without a word about when, there is nothing to obey.
            Client::Polite => (PATIENT_ATTEMPTS, whole_seconds(retry_after?)),
            Client::Backoff => {
                let wait = FIRST_BACKOFF.0 << attempt.min(20);
                (PATIENT_ATTEMPTS, Micros(wait).min(LAST_BACKOFF))
            }
        };
        let was_silent = self.is_silent(traffic, key, now);
        let until = now + wait;
        if wait > Micros::ZERO {
            let known = self.0.entry((traffic, key)).or_default();
            *known = (*known).max(until);
        }
        // One request of a silent key is tried again, not all that were under way.
        (attempt < attempts && !was_silent).then_some(until)
    }
}

/// As the header has it: whole seconds, at least one.
fn whole_seconds(retry_after: Micros) -> Micros {
    Micros(retry_after.0.div_ceil(Micros::SECOND.0).max(1) * Micros::SECOND.0)
}
