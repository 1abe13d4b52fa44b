//! All gateways asked at once: how each is, who stands out among those they see, what happened. The
//! same facts feed `status`, `top`, `events` and the dashboard.

use std::collections::HashMap;

use futures_util::future::join_all;
use reqwest::{Method, StatusCode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::admin::{Admin, AdminError};

/// What a gateway tells of itself. What a version leaves out is not known.
#[derive(Clone, Debug, Deserialize)]
pub struct GatewayStats {
    pub at_us: u64,
    pub gateway: String,
    pub version: String,
    pub uptime_us: u64,
    pub ready: bool,
    pub rates: Rates,
    pub degraded_since_us: Option<u64>,
    #[serde(default)]
    pub store: Vec<Shard>,
    pub policy: PolicyStats,
    #[serde(default)]
    pub observe_only: bool,
    #[serde(default)]
    pub events: Vec<GatewayEvent>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Rates {
    pub last_10_seconds: Rate,
}

/// Decisions a second.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub struct Rate {
    pub allowed: f64,
    pub rejected: f64,
}

/// One part of the store, as its gateway sees it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Shard {
    pub shard: String,
    pub breaker: String,
    pub down_since_us: Option<u64>,
    pub trouble: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct PolicyStats {
    pub version: Option<u64>,
    pub hash: Option<String>,
    pub age_us: Option<u64>,
    #[serde(default)]
    refused: Option<Why>,
    #[serde(default)]
    trouble: Option<Why>,
}

#[derive(Clone, Debug, Deserialize)]
struct Why {
    why: String,
}

impl PolicyStats {
    /// Why a newer policy is not obeyed, or cannot be read.
    pub fn trouble(&self) -> Option<&str> {
        self.refused.as_ref().or(self.trouble.as_ref()).map(|trouble| trouble.why.as_str())
    }
}

/// Something that happened to a gateway.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct GatewayEvent {
    pub at_us: u64,
    pub kind: String,
    pub level: String,
    pub text: String,
    #[serde(default)]
    pub identity: Option<String>,
    #[serde(default)]
    pub rule: Option<String>,
}

/// Somebody who stands out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Standout {
    pub identity: String,
    /// Requests a second of late, weighted towards now.
    pub per_second: f64,
    /// Of all that are counted.
    pub share: f64,
    pub weight: f64,
    /// Weights are never too low.
    pub too_high_by: f64,
    pub rule: Option<String>,
    pub reason: Option<String>,
    pub limit: Option<String>,
    pub used: Option<u64>,
    pub last_us: u64,
    /// How many gateways told of it.
    #[serde(default)]
    pub gateways: usize,
}

/// Asks all at the same time; the answers are in the order of the gateways.
pub async fn ask_all<T: DeserializeOwned>(
    gateways: &[Admin],
    path: &str,
) -> Vec<Result<T, AdminError>> {
    join_all(gateways.iter().map(|gateway| ask(gateway, path))).await
}

pub async fn ask<T: DeserializeOwned>(gateway: &Admin, path: &str) -> Result<T, AdminError> {
    let (_, answer): (_, Value) = gateway.ask(Method::GET, path, None, &[StatusCode::OK]).await?;
    serde_json::from_value(answer).map_err(|error| AdminError::NoGateway {
        at: gateway.at(),
        why: format!("it answers something else ({error})"),
    })
}

/// What several gateways tell of the same identities, as one list, heaviest first.
pub fn merged(lists: impl IntoIterator<Item = Vec<Standout>>, most: usize) -> Vec<Standout> {
    let mut all: HashMap<String, Standout> = HashMap::new();
    let mut whole = 0.0;
    for list in lists {
        // A share of the list's own total; anyone in it tells how much that is.
        let told = list.iter().find(|one| one.share > 0.0);
        whole += told.map_or(0.0, |one| one.weight / one.share);
        for one in list {
            match all.get_mut(&one.identity) {
                Some(known) => known.add(one),
                None => drop(all.insert(one.identity.clone(), Standout { gateways: 1, ..one })),
            }
        }
    }
    let mut all: Vec<Standout> = all.into_values().collect();
    for one in &mut all {
        one.share = if whole > 0.0 { one.weight / whole } else { 0.0 };
    }
    all.sort_by(|a, b| b.weight.total_cmp(&a.weight).then_with(|| a.identity.cmp(&b.identity)));
    all.truncate(most);
    all
}

impl Standout {
    /// The same identity at another gateway; the latest of both says why.
    fn add(&mut self, other: Standout) {
        let latest = if other.last_us > self.last_us { other.clone() } else { self.clone() };
        *self = Standout {
            per_second: self.per_second + other.per_second,
            weight: self.weight + other.weight,
            too_high_by: self.too_high_by + other.too_high_by,
            gateways: self.gateways + 1,
            ..latest
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(identity: &str, weight: f64, share: f64, last_us: u64) -> Standout {
        Standout {
            identity: identity.into(),
            per_second: weight / 10.0,
            share,
            weight,
            too_high_by: 1.0,
            rule: Some(format!("rule-{last_us}")),
            reason: None,
            limit: None,
            used: None,
            last_us,
            gateways: 0,
        }
    }

    #[test]
    fn the_same_identity_at_two_gateways_is_one() {
        let first = vec![one("a", 60.0, 0.6, 5), one("b", 40.0, 0.4, 5)];
        let second = vec![one("b", 50.0, 0.5, 9)];
        let merged = merged([first, second], 10);
        assert_eq!(merged.len(), 2);
        assert_eq!((merged[0].identity.as_str(), merged[0].weight), ("b", 90.0));
        assert_eq!(merged[0].share, 0.45);
        assert_eq!(merged[0].rule.as_deref(), Some("rule-9"));
        assert_eq!((merged[0].gateways, merged[1].gateways), (2, 1));
        assert_eq!(merged[0].too_high_by, 2.0);
    }
}
