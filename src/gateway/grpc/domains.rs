//! The rules that Envoy's domains mean, made once for each policy.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tonic::Status;

use super::messages::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use super::messages::envoy::r#type::v3::RateLimitUnit;
use crate::engine::clock::Micros;
use crate::engine::live::Current;
use crate::engine::rules::Instead;

/// Domains and limits of their own come from Envoy's configuration, so there are few; whoever sends
/// more has them made again.
const MOST_KEPT: usize = 256;
/// Above the numbers of the limits that a rule can have itself.
const FIRST_BUCKET: u8 = 100;

#[derive(Debug, Default)]
pub(super) struct Domains(Mutex<Made>);

#[derive(Debug, Default)]
struct Made {
    /// The policy that they were made of.
    of: Option<Arc<Current>>,
    by: HashMap<(String, Option<Instead>), Arc<Current>>,
}

impl Domains {
    /// The policy with only the rules of `domain`; none when there is no such domain.
    pub(super) fn rules(
        &self,
        current: &Arc<Current>,
        domain: &str,
        limit: Option<&RateLimitOverride>,
    ) -> Result<Option<Arc<Current>>, Status> {
        let Some(names) = current.rules.policy().domains.get(domain) else { return Ok(None) };
        let instead = limit.map(instead).transpose()?;
        let mut made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_fresh = made.of.as_ref().is_some_and(|of| Arc::ptr_eq(of, current));
        if !is_fresh || made.by.len() >= MOST_KEPT {
            *made = Made { of: Some(current.clone()), by: HashMap::new() };
        }
        let key = (domain.to_owned(), instead);
        if let Some(found) = made.by.get(&key) {
            return Ok(Some(found.clone()));
        }
        let rules = current
            .rules
            .of_domain(names, instead)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        let new = Arc::new(Current { rules: Arc::new(rules), loaded: current.loaded.clone() });
        made.by.insert(key, new.clone());
        Ok(Some(new))
    }
}

fn instead(limit: &RateLimitOverride) -> Result<Instead, Status> {
    let period = match limit.unit() {
        RateLimitUnit::Unknown => {
            return Err(Status::invalid_argument("the limit of a descriptor needs a unit"));
        }
        RateLimitUnit::Second => Micros::SECOND,
        RateLimitUnit::Minute => Micros::MINUTE,
        RateLimitUnit::Hour => Micros::HOUR,
        RateLimitUnit::Day => Micros::DAY,
        RateLimitUnit::Month => Micros(30 * Micros::DAY.0),
        RateLimitUnit::Year => Micros(365 * Micros::DAY.0),
    };
    Ok(Instead {
        requests: limit.requests_per_unit.into(),
        period,
        bucket: FIRST_BUCKET + limit.unit() as u8,
    })
}
