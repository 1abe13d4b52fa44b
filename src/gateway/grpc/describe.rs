//! A descriptor of Envoy as a request of ours: who asks, and for what. Pure.

use smallvec::SmallVec;

use super::messages::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use crate::engine::identity::{Dimension, Identity};
use crate::engine::plan::Attempt;
use crate::engine::rules::{PathError, Rules, Target, normal_path};
use crate::gateway::identity::{named, of_address, parse_address};

/// Who asks, and for what.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Described {
    identities: SmallVec<[Identity; 2]>,
    path: Option<String>,
    method: Option<String>,
}

impl Described {
    /// Of entries with the same key the first counts. Values come from clients, so there is none
    /// that frees a request from its limits; but a path that upstreams may read in another way than
    /// rules do is an error.
    pub(super) fn by(entries: &[Entry], rules: &Rules) -> Result<Described, PathError> {
        let mut described = Described::default();
        let mut names_somebody = false;
        let mut seen: SmallVec<[&str; 4]> = SmallVec::new();
        for Entry { key, value } in entries {
            names_somebody |= !matches!(key.as_str(), "path" | "method");
            if value.is_empty() || seen.contains(&key.as_str()) {
                continue;
            }
            seen.push(key);
            match key.as_str() {
                "path" => match normal_path(value) {
                    Ok(path) => described.path = Some(path.into_owned()),
                    // `*` and the like are no paths.
                    Err(PathError::NotAbsolute) => {}
                    Err(error) => return Err(error),
                },
                "method" => described.method = Some(value.to_ascii_uppercase()),
                key => described.identities.extend(identity(key, value, rules)),
            }
        }
        // What names nobody is asked for by everybody together.
        if !names_somebody && rules.counts_by(&Dimension::Global) {
            described.identities.extend("global:all".parse::<Identity>());
        }
        Ok(described)
    }

    pub(super) fn attempt(&self) -> Attempt<'_> {
        let target =
            Target { path: self.path.as_deref(), method: self.method.as_deref(), only: None };
        Attempt { identities: &self.identities, target, tier: None }
    }
}

/// None for what no rule counts by.
fn identity(key: &str, value: &str, rules: &Rules) -> Option<Identity> {
    match key {
        "remote_address" => Some(match parse_address(value) {
            Some(address) => of_address(address, rules.policy().identity.ipv6_prefix),
            None => named("ip", value.as_bytes()),
        }),
        "user" => Some(named("user", value.as_bytes())),
        "api_key" => Some(named("apikey", value.as_bytes())),
        other => {
            let name = other.to_ascii_lowercase();
            let counted = rules.counted_headers().any(|header| header == name);
            counted.then(|| named(&format!("header:{name}"), value.as_bytes()))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::engine::clock::Micros;
    use crate::engine::config::parse_policy;

    fn rules() -> Rules {
        let rule = |name: &str, dimension: &str| {
            format!(
                "[[rule]]\nname = \"{name}\"\ndimension = \"{dimension}\"\nlimits = [\"1/1s\"]\n"
            )
        };
        let text = rule("t", "header:x-tenant") + &rule("all", "global") + &rule("i", "ip");
        let (policy, _) = parse_policy("r.toml", &text, Micros::ZERO).unwrap();
        Rules::new(Arc::new(policy))
    }

    fn described(entries: &[(&str, &str)]) -> Result<(Vec<String>, Option<String>), PathError> {
        let entries: Vec<Entry> = entries
            .iter()
            .map(|(key, value)| Entry { key: key.to_string(), value: value.to_string() })
            .collect();
        let described = Described::by(&entries, &rules())?;
        let names = described.identities.iter().map(ToString::to_string).collect();
        Ok((names, described.path))
    }

    #[test]
    fn each_entry_is_an_identity_or_says_what_is_asked_for() {
        let entries = [
            ("remote_address", "::ffff:203.0.113.7"),
            ("user", "1"),
            ("api_key", "k"),
            ("X-Tenant", "acme"),
            ("x-nobody-counts", "x"),
            ("path", "/a//b/?q=1"),
        ];
        let expected = ["ip:203.0.113.7", "user:1", "apikey:k", "header:x-tenant:acme"];
        let (identities, path) = described(&entries).unwrap();
        assert_eq!(identities, expected);
        assert_eq!(path.as_deref(), Some("/a/b"));
    }

    #[test]
    fn what_names_nobody_is_asked_for_by_everybody_together() {
        let of = |entries: &[(&str, &str)]| described(entries).unwrap().0;
        assert_eq!(of(&[("path", "/a")]), ["global:all"]);
        assert_eq!(of(&[]), ["global:all"]);
        assert_eq!(of(&[("generic_key", "x"), ("path", "/a")]), [""; 0]);
    }

    #[test]
    fn no_value_of_a_client_frees_it_from_its_limits() {
        let of = |key: &str, value: &str| described(&[(key, value)]).unwrap().0.join(" ");
        assert!(of("user", &"x".repeat(5000)).starts_with("user:sha256-"));
        assert!(of("user", "a\nb").starts_with("user:sha256-"));
        assert_eq!(of("remote_address", "/var/run/socket"), "ip:/var/run/socket");
        assert_eq!(of("user", ""), "", "an empty value is none, as in any header");
        assert_eq!(of(&"k".repeat(5000), "v"), "");
        assert_eq!(described(&[("user", "1"), ("user", "2")]).unwrap().0, ["user:1"]);
        assert_eq!(described(&[("path", "/a%2Fb")]), Err(PathError::EncodedSlash));
        assert_eq!(described(&[("path", "*")]).unwrap().1, None);
    }
}
