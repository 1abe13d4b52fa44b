//! Limiters that others wrote: where their state lies in Redis and how it is read. A dialect is a
//! small file (docs/dialects.md); some are shipped.

mod file;
mod pattern;
mod read;

use std::path::Path;

use pattern::KeyPattern;

use crate::engine::clock::Micros;
use crate::engine::limit::{Algorithm, Limit, LimitError, Quota};
pub use file::DialectError;
pub use read::Reading;

/// The hand-written limiters that one meets everywhere.
const SHIPPED: &str = include_str!("shipped.toml");

/// Layouts that belong together.
#[derive(Clone, Debug)]
pub struct Dialect {
    pub layouts: Vec<Layout>,
}

/// One kind of key, and how it is read.
#[derive(Clone, Debug)]
pub struct Layout {
    pub name: String,
    key: KeyPattern,
    /// What an identity is called here: `ip:{id}`.
    identity: String,
    value: Value,
    pub algorithm: Algorithm,
    quota: Option<Quota>,
    /// None: told from its size.
    unit: Option<Unit>,
}

/// What the key holds.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    /// Tokens left, and when they were counted.
    TokenHash { tokens: String, last: String },
    /// Tokens left.
    Tokens,
    /// Requests so far.
    Count,
    /// Requests with their times as scores.
    Log,
}

/// In what times are written; fractions are understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Seconds,
    Milliseconds,
    Microseconds,
    Nanoseconds,
}

impl Unit {
    fn named(name: &str) -> Option<Unit> {
        Some(match name {
            "s" => Unit::Seconds,
            "ms" => Unit::Milliseconds,
            "us" => Unit::Microseconds,
            "ns" => Unit::Nanoseconds,
            _ => return None,
        })
    }

    /// The only one in which a time lies within a few centuries of 1970.
    fn of(time: f64) -> Unit {
        match time {
            t if t < 1e11 => Unit::Seconds,
            t if t < 1e14 => Unit::Milliseconds,
            t if t < 1e17 => Unit::Microseconds,
            _ => Unit::Nanoseconds,
        }
    }

    fn micros(self, time: f64) -> Micros {
        let factor = match self {
            Unit::Seconds => 1e6,
            Unit::Milliseconds => 1e3,
            Unit::Microseconds => 1.0,
            Unit::Nanoseconds => 1e-3,
        };
        let us = time * factor;
        if us.is_finite() && us > 0.0 { Micros(us as u64).min(Micros::LAST) } else { Micros::ZERO }
    }
}

impl Dialect {
    /// All that are shipped.
    pub fn shipped() -> Dialect {
        file::parse("shipped", SHIPPED).expect("what is shipped is well formed")
    }

    /// One that is shipped, by its name, or a file.
    pub fn load(named: &str) -> Result<Dialect, DialectError> {
        let shipped = Dialect::shipped();
        if named == "shipped" {
            return Ok(shipped);
        }
        let names = || shipped.layouts.iter().map(|l| l.name.clone()).collect::<Vec<_>>();
        if let Some(layout) = shipped.layouts.iter().find(|layout| layout.name == named) {
            return Ok(Dialect { layouts: vec![layout.clone()] });
        }
        if !Path::new(named).exists() && !named.contains(['/', '.']) {
            return Err(DialectError::Unknown { name: named.into(), known: names().join(", ") });
        }
        file::read(Path::new(named))
    }

    /// The same with a limit that the layouts themselves do not know.
    pub fn with_quota(mut self, quota: Quota) -> Result<Dialect, LimitError> {
        for layout in &mut self.layouts {
            Limit::new(layout.algorithm, quota)?;
            layout.quota = Some(quota);
        }
        Ok(self)
    }
}

impl Layout {
    /// The keys of an identity: one that is known, or a pattern for SCAN.
    pub fn keys_of(&self, identity: &str) -> Vec<Place> {
        let mut ids = Vec::new();
        if let Some(id) = self.id_of(identity) {
            ids.push(id);
        }
        // Many write the dimension into the key, too.
        if !ids.contains(&identity) && !self.identity.starts_with("user:") {
            ids.push(identity);
        }
        ids.into_iter().map(|id| self.key.place(id)).collect()
    }

    /// What SCAN takes to find all keys of this layout.
    pub fn glob(&self) -> String {
        self.key.glob()
    }

    /// How much of a key is text: of two layouts that fit, the one with more is meant.
    pub fn precision(&self) -> usize {
        self.key.text_length()
    }

    /// Whose key this is; none if it is no key of this layout.
    pub fn owner(&self, key: &str) -> Option<String> {
        let id = self.key.parse(key)?.id;
        // A dimension in the key is one already.
        let has_dimension = crate::engine::identity::names_a_dimension(&id);
        Some(if has_dimension { id } else { self.identity.replace("{id}", &id) })
    }

    fn id_of<'a>(&self, identity: &'a str) -> Option<&'a str> {
        let (before, after) = self.identity.split_once("{id}")?;
        identity.strip_prefix(before)?.strip_suffix(after).filter(|id| !id.is_empty())
    }

    fn moment(&self, time: f64) -> Micros {
        self.unit.unwrap_or_else(|| Unit::of(time)).micros(time)
    }

    /// The limit, with the period that the key says where it does.
    fn limit(&self, period_of_key: Option<Micros>) -> Option<Limit> {
        let quota = self.quota?;
        let period = period_of_key.unwrap_or(quota.period);
        Limit::new(self.algorithm, Quota { period, ..quota }).ok()
    }
}

/// Where keys are looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    Key(String),
    Glob(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shipped(name: &str) -> Layout {
        Dialect::load(name).unwrap().layouts.remove(0)
    }

    #[test]
    fn identities_lead_to_keys_and_keys_back() {
        let bucket = shipped("hash-token-bucket");
        assert_eq!(bucket.keys_of("ip:10.0.0.1")[0], Place::Key("ratelimit:10.0.0.1".into()));
        assert_eq!(bucket.owner("ratelimit:10.0.0.1").as_deref(), Some("ip:10.0.0.1"));
        let log = shipped("zset-window");
        assert_eq!(log.keys_of("user:7"), [Place::Glob("ratelimit:user:7:window:*".into())]);
        assert_eq!(log.owner("ratelimit:user:7:window:60").as_deref(), Some("user:7"));
        assert_eq!(log.owner("ratelimit:user:7:window:x"), None);
        let fixed = shipped("fixed-window");
        assert_eq!(fixed.owner("ratelimit:fixed:user:7:1763425020").as_deref(), Some("user:7"));
        assert_eq!(shipped("user-tokens").owner("user:7:tokens").as_deref(), Some("user:7"));
        for layout in Dialect::shipped().layouts {
            assert!(layout.glob().contains('*'), "{}", layout.name);
        }
    }

    #[test]
    fn what_is_not_known_is_told_with_what_is() {
        let error = Dialect::load("redis-cel").unwrap_err().to_string();
        assert!(
            error.contains("hash-token-bucket") && error.contains("docs/dialects.md"),
            "{error}"
        );
    }
}
