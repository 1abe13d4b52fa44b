//! What operators keep beside the buckets: data, and when it counts. Pure.
//!
//! All of it is stored as JSON. Fields that this version does not know are read over, and those of
//! a whole document are carried along when it is written again: versions may work side by side.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::engine::clock::Micros;
use crate::engine::identity::{Identity, Pattern};
use crate::engine::limit::{Algorithm, Limit, LimitError, Quota};

/// Until when something holds, who decided it and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// None: for ever.
    #[serde(rename = "until_us", with = "us_or_none", default)]
    pub until: Option<Micros>,
    pub reason: String,
    pub by: String,
    #[serde(rename = "at_us", with = "us")]
    pub at: Micros,
}

impl Terms {
    pub fn hold(&self, now: Micros) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}

/// Something given on terms.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant<T> {
    pub value: T,
    #[serde(flatten)]
    pub terms: Terms,
}

/// Other limits for one rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Override {
    pub rule: String,
    pub limits: Vec<OverrideLimit>,
    #[serde(flatten)]
    pub terms: Terms,
}

/// A limit as text, so that a reader that does not know its algorithm can still show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverrideLimit {
    pub limit: String,
    /// None: that of the rule.
    #[serde(default)]
    pub algorithm: Option<String>,
}

impl OverrideLimit {
    /// Without an algorithm the limit must do for a token bucket, the most lenient one.
    pub fn new(quota: Quota, algorithm: Option<Algorithm>) -> Result<OverrideLimit, LimitError> {
        let limit = Limit::new(algorithm.unwrap_or(Algorithm::TokenBucket), quota)?;
        let algorithm = algorithm.map(|a| a.name().into());
        Ok(OverrideLimit { limit: limit.to_string(), algorithm })
    }

    /// The limit in place of one of the rule's, which has the algorithm `of_rule`. Where that one
    /// cannot express it (a burst on a window) it is a token bucket. None when a later version
    /// wrote what this one cannot read.
    pub fn resolve(&self, of_rule: Algorithm) -> Option<Limit> {
        let quota: Quota = self.limit.parse().ok()?;
        match &self.algorithm {
            Some(name) => Limit::new(name.parse().ok()?, quota).ok(),
            None => Limit::new(of_rule, quota)
                .or_else(|_| Limit::new(Algorithm::TokenBucket, quota))
                .ok(),
        }
    }
}

/// What is known of one identity.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Subject {
    pub tier: Option<Grant<String>>,
    /// At most one for each rule.
    pub overrides: Vec<Override>,
    pub block: Option<Terms>,
    pub exempt: Option<Terms>,
    /// What a later version keeps here.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl Subject {
    pub fn tier_at(&self, now: Micros) -> Option<&str> {
        self.tier.as_ref().filter(|tier| tier.terms.hold(now)).map(|tier| tier.value.as_str())
    }

    pub fn block_at(&self, now: Micros) -> Option<&Terms> {
        self.block.as_ref().filter(|terms| terms.hold(now))
    }

    pub fn exempt_at(&self, now: Micros) -> Option<&Terms> {
        self.exempt.as_ref().filter(|terms| terms.hold(now))
    }

    pub fn override_at(&self, rule: &str, now: Micros) -> Option<&Override> {
        self.overrides.iter().find(|o| o.rule == rule && o.terms.hold(now))
    }

    /// Without what has ended: that counts as absent.
    pub fn at(mut self, now: Micros) -> Subject {
        self.tier.take_if(|tier| !tier.terms.hold(now));
        self.block.take_if(|terms| !terms.hold(now));
        self.exempt.take_if(|terms| !terms.hold(now));
        self.overrides.retain(|o| o.terms.hold(now));
        self
    }

    pub fn is_empty(&self) -> bool {
        self.terms().next().is_none() && self.other.is_empty()
    }

    /// When the last of it ends; none when some of it never does.
    pub fn ends(&self) -> Option<Micros> {
        if !self.other.is_empty() {
            return None;
        }
        let ends: Option<Vec<Micros>> = self.terms().map(|terms| terms.until).collect();
        ends.and_then(|ends| ends.into_iter().max())
    }

    fn terms(&self) -> impl Iterator<Item = &Terms> {
        let tier = self.tier.as_ref().map(|tier| &tier.terms);
        let overrides = self.overrides.iter().map(|o| &o.terms);
        overrides.chain(tier).chain(&self.block).chain(&self.exempt)
    }
}

/// A pattern that is blocked or exempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    #[serde(with = "as_text")]
    pub pattern: Pattern,
    #[serde(flatten)]
    pub terms: Terms,
}

/// Blocks and exemptions of more than one identity.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Lists {
    pub block: Vec<Listed>,
    pub exempt: Vec<Listed>,
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl Lists {
    pub fn block_at(&self, identity: &Identity, now: Micros) -> Option<&Listed> {
        first_match(&self.block, identity, now)
    }

    pub fn exempt_at(&self, identity: &Identity, now: Micros) -> Option<&Listed> {
        first_match(&self.exempt, identity, now)
    }

    pub fn at(mut self, now: Micros) -> Lists {
        self.block.retain(|listed| listed.terms.hold(now));
        self.exempt.retain(|listed| listed.terms.hold(now));
        self
    }
}

fn first_match<'a>(list: &'a [Listed], identity: &Identity, now: Micros) -> Option<&'a Listed> {
    list.iter().find(|listed| listed.terms.hold(now) && listed.pattern.matches(identity))
}

/// What is switched off by hand, whatever the policy says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Switches {
    /// Rules that are not applied.
    pub disabled: BTreeMap<String, Terms>,
    /// Nothing is enforced while this is there.
    pub observe: Option<Terms>,
    /// By rule, what becomes of requests without the store: in place of what the policy says.
    pub on_store_error: BTreeMap<String, Grant<String>>,
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// A version of the published policy, without its text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    pub version: u64,
    /// SHA-256 of the text, in hex.
    pub hash: String,
    pub bytes: u64,
    #[serde(rename = "at_us", with = "us")]
    pub at: Micros,
    pub by: String,
    pub reason: String,
    /// The version whose text this one brought back.
    #[serde(default)]
    pub rolled_back_to: Option<u64>,
}

impl Version {
    /// Enough of the hash to tell versions apart.
    pub fn short_hash(&self) -> &str {
        self.hash.get(..12).unwrap_or(&self.hash)
    }
}

/// A published policy. The text is whatever was given: reading it is another's work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    pub version: Version,
    pub text: Arc<str>,
}

/// Where in the trail an event stands: milliseconds on the store's clock, and a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId {
    pub ms: u64,
    pub number: u64,
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.ms, self.number)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not the id of an event; two numbers with a dash between them")]
pub struct EventIdError(String);

impl FromStr for EventId {
    type Err = EventIdError;

    fn from_str(text: &str) -> Result<EventId, EventIdError> {
        let parts = text.split_once('-').and_then(|(ms, number)| {
            Some(EventId { ms: ms.parse().ok()?, number: number.parse().ok()? })
        });
        parts.ok_or_else(|| EventIdError(text.into()))
    }
}

/// What kind of thing an event is about, and so what a reader has to read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Identity,
    Pattern,
    /// A rule, or all of them.
    Switch,
    Policy,
    /// Of a later version: anything may have changed.
    #[serde(other)]
    Unknown,
}

/// One line of the audit trail.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// None as long as it is not in the trail.
    #[serde(default, with = "id_or_none")]
    pub id: Option<EventId>,
    #[serde(rename = "at_us", with = "us")]
    pub at: Micros,
    pub by: String,
    /// As it is typed: `tier set`, `unblock`, `rules publish`.
    pub action: String,
    pub kind: Kind,
    /// The identity, pattern, rule or version.
    pub subject: String,
    /// What the change was about, as it was; null where there was nothing.
    pub before: Value,
    pub after: Value,
    pub reason: String,
}

pub(super) mod us {
    use serde::{Deserialize, Deserializer, Serializer};

    use super::Micros;

    pub(in super::super) fn serialize<S: Serializer>(
        at: &Micros,
        out: S,
    ) -> Result<S::Ok, S::Error> {
        out.serialize_u64(at.0)
    }

    pub(in super::super) fn deserialize<'d, D: Deserializer<'d>>(
        from: D,
    ) -> Result<Micros, D::Error> {
        u64::deserialize(from).map(Micros)
    }
}

mod us_or_none {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Micros;

    pub(super) fn serialize<S: Serializer>(at: &Option<Micros>, out: S) -> Result<S::Ok, S::Error> {
        at.map(|at| at.0).serialize(out)
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(
        from: D,
    ) -> Result<Option<Micros>, D::Error> {
        Ok(Option::<u64>::deserialize(from)?.map(Micros))
    }
}

mod id_or_none {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::EventId;

    pub(super) fn serialize<S: Serializer>(
        id: &Option<EventId>,
        out: S,
    ) -> Result<S::Ok, S::Error> {
        id.map(|id| id.to_string()).serialize(out)
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(
        from: D,
    ) -> Result<Option<EventId>, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        text.map(|text| text.parse().map_err(serde::de::Error::custom)).transpose()
    }
}

mod as_text {
    use serde::{Deserialize, Deserializer, Serializer};

    use super::Pattern;

    pub(super) fn serialize<S: Serializer>(pattern: &Pattern, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(pattern)
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<Pattern, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(until: Option<u64>) -> Terms {
        Terms { until: until.map(Micros), reason: "r".into(), by: "b".into(), at: Micros(1) }
    }

    #[test]
    fn what_has_ended_counts_as_absent_from_its_very_moment() {
        let tier = Some(Grant { value: "premium".into(), terms: terms(Some(100)) });
        let subject = Subject { tier, block: Some(terms(None)), ..Subject::default() };
        assert_eq!(subject.tier_at(Micros(99)), Some("premium"));
        assert_eq!(subject.tier_at(Micros(100)), None);
        assert!(subject.block_at(Micros(u64::MAX)).is_some());
        assert_eq!(subject.clone().at(Micros(100)).tier, None);
        assert_eq!(subject.clone().at(Micros(99)), subject);
    }

    #[test]
    fn a_subject_ends_when_the_last_of_it_does() {
        let subject = |untils: &[Option<u64>]| Subject {
            overrides: untils
                .iter()
                .map(|until| Override { rule: "r".into(), limits: vec![], terms: terms(*until) })
                .collect(),
            ..Subject::default()
        };
        assert_eq!(subject(&[Some(5), Some(9), Some(7)]).ends(), Some(Micros(9)));
        assert_eq!(subject(&[Some(5), None]).ends(), None);
        assert!(subject(&[]).is_empty());
    }

    #[test]
    fn what_a_later_version_wrote_is_read_over_and_carried_along() {
        let text = r#"{"tier":{"value":"x","reason":"r","by":"b","at_us":1,"colour":"red"},"penalty":{"steps":[]}}"#;
        let subject: Subject = serde_json::from_str(text).unwrap();
        assert_eq!(subject.tier_at(Micros(2)), Some("x"));
        assert_eq!(subject.ends(), None);
        let again = serde_json::to_string(&subject).unwrap();
        assert!(again.contains(r#""penalty":{"steps":[]}"#), "{again}");
        let event = r#"{"at_us":1,"by":"b","action":"region cut","kind":"region","subject":"eu","before":null,"after":1,"reason":"r"}"#;
        assert_eq!(serde_json::from_str::<Event>(event).unwrap().kind, Kind::Unknown);
    }

    #[test]
    fn an_override_takes_the_algorithm_of_its_rule_where_that_can_express_it() {
        let of =
            |quota: &str, algorithm| OverrideLimit::new(quota.parse().unwrap(), algorithm).unwrap();
        let resolved = |limit: &OverrideLimit, rule| limit.resolve(rule).unwrap().algorithm();
        let plain = of("500/1m", None);
        assert_eq!(resolved(&plain, Algorithm::SlidingWindow), Algorithm::SlidingWindow);
        let burst = of("500/1m burst 9", None);
        assert_eq!(resolved(&burst, Algorithm::SlidingWindow), Algorithm::TokenBucket);
        assert_eq!(burst.resolve(Algorithm::Gcra).unwrap().capacity(), 9);
        let named = of("500/1m", Some(Algorithm::FixedWindow));
        assert_eq!(resolved(&named, Algorithm::Gcra), Algorithm::FixedWindow);
        assert!(OverrideLimit::new("5/1m burst 0".parse().unwrap(), None).is_err());
        let later = OverrideLimit { limit: "5/1m".into(), algorithm: Some("quantum".into()) };
        assert_eq!(later.resolve(Algorithm::Gcra), None);
    }

    #[test]
    fn ids_of_events_are_in_order_as_numbers() {
        let id = |text: &str| text.parse::<EventId>().unwrap();
        assert!(id("9-9") < id("10-0"));
        assert!(id("9-9") < id("9-10"));
        assert_eq!(id("17-3").to_string(), "17-3");
        for text in ["", "1", "1-", "-1", "a-1", "1-2-3"] {
            assert!(text.parse::<EventId>().is_err(), "{text}");
        }
    }
}
