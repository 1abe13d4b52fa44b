//! The smallest limit that denies at most a share of all keys. Whether a key is ever denied only
//! falls as a limit rises, so the answer can be closed in on: every pass tries many limits at once.

use crate::engine::limit::{Algorithm, Limit, MAX_COUNT, MAX_LOG, Quota};

use super::outcome::{LaneOutcome, Outcome, share};

/// Limits that are tried in one pass.
const TRIED_AT_ONCE: u64 = 16;

#[derive(Clone, Debug)]
pub struct Suggestion {
    /// The smallest limit that keeps to the budget.
    pub limit: Limit,
    pub lane: LaneOutcome,
    /// The next smaller limit and how many keys it denies; none for a limit of 0.
    pub one_less: Option<(u64, u64)>,
    pub keys: u64,
    pub requests: u64,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum NoSuggestion {
    #[error(
        "no limit keeps to that: even the largest that {0} takes ({1}) denies {2} of {3} keys; give more --burst, or a longer period"
    )]
    None(Algorithm, u64, u64, u64),
    #[error("there were no requests to suggest a limit for")]
    Nothing,
}

/// `run` simulates these limits over the whole traffic; `quota` gives algorithm, period and burst.
pub fn suggest<E>(
    algorithm: Algorithm,
    quota: Quota,
    budget: f64,
    mut run: impl FnMut(&[Limit]) -> Result<Outcome, E>,
) -> Result<Result<Suggestion, NoSuggestion>, E> {
    let of = |requests: u64| Limit::new(algorithm, Quota { requests, ..quota }).ok();
    let keeps = |lane: &LaneOutcome, keys: u64| share(lane.keys_hit, keys) <= budget;
    let largest = if algorithm == Algorithm::SlidingLog { MAX_LOG } else { MAX_COUNT };
    // What keeps to the budget and what does not; they close in on each other.
    let (mut enough, mut too_few): (Option<Suggestion>, Option<(u64, u64)>) = (None, None);
    let mut low = 1;
    let mut high = largest;
    while low <= high {
        let tried = between(low, high);
        let limits: Vec<Limit> = tried.iter().filter_map(|requests| of(*requests)).collect();
        let outcome = run(&limits)?;
        if outcome.requests == 0 {
            return Ok(Err(NoSuggestion::Nothing));
        }
        if outcome.ending.is_interrupted() || limits.is_empty() {
            break;
        }
        let mut next = (low, high);
        for (limit, lane) in limits.iter().zip(&outcome.lanes) {
            if keeps(lane, outcome.keys) {
                next.1 = limit.requests() - 1;
                let (keys, requests) = (outcome.keys, outcome.requests);
                let lane = lane.clone();
                enough = Some(Suggestion { limit: *limit, lane, one_less: None, keys, requests });
                break;
            }
            too_few = Some((limit.requests(), lane.keys_hit));
            next.0 = limit.requests() + 1;
        }
        (low, high) = next;
        if enough.is_none() && low > high {
            let (limit, hit) = too_few.unwrap_or((largest, outcome.keys));
            return Ok(Err(NoSuggestion::None(algorithm, limit, hit, outcome.keys)));
        }
    }
    Ok(match enough {
        Some(found) => {
            let one_less = too_few.filter(|(limit, _)| limit + 1 == found.limit.requests());
            Ok(Suggestion { one_less, ..found })
        }
        None => Err(NoSuggestion::Nothing),
    })
}

/// Limits to try, rising, both ends among them: by factors first, in even steps when it is close.
fn between(low: u64, high: u64) -> Vec<u64> {
    let steps = TRIED_AT_ONCE - 1;
    let mut tried: Vec<u64> = if high / low > 4 * TRIED_AT_ONCE {
        let factor = (high as f64 / low as f64).powf(1.0 / steps as f64);
        (0..=steps).map(|n| (low as f64 * factor.powi(n as i32)) as u64).collect()
    } else {
        (0..=steps).map(|n| low + (high - low) * n / steps).collect()
    };
    tried.push(high);
    tried.retain(|limit| (low..=high).contains(limit));
    tried.sort_unstable();
    tried.dedup();
    tried
}
