//! How an identity becomes Redis keys, and back.
//!
//! `rl1:{user:123}` holds all quota of `user:123`; what else belongs to it shares the hash tag and
//! so the cluster slot. The `1` is the version of the layout: another layout takes another prefix,
//! so that two versions never read each other's values. docs/keys.md has the whole of it.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::engine::identity::Identity;

pub const DEFAULT_PREFIX: &str = "rl1:";

/// Everything is percent-encoded but letters, digits and these. Not among them: `{` and `}`, which
/// would move the hash tag; `%` itself; what a glob pattern or a shell would take for its own.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b':')
    .remove(b'.')
    .remove(b'_')
    .remove(b'-')
    .remove(b'@')
    .remove(b'/')
    .remove(b'+')
    .remove(b'=')
    .remove(b',')
    .remove(b'~');

/// The start of every key; chosen by the operator, so checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefix(String);

/// What there is under the hash tag of the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The published version, without its text.
    Current,
    /// Versions and their texts.
    History,
    /// Blocked and exempt patterns.
    Lists,
    Switches,
    /// The audit trail.
    Events,
    /// The identities of which something is known.
    Subjects,
    /// The processes that enforce, and when each was last heard of.
    Gateways,
    /// What the ids of charges are signed with.
    Secret,
    /// Which keys each process sees that may be hot.
    Hot,
}

impl Part {
    pub const ALL: [Part; 9] = [
        Part::Current,
        Part::History,
        Part::Lists,
        Part::Switches,
        Part::Events,
        Part::Subjects,
        Part::Gateways,
        Part::Secret,
        Part::Hot,
    ];

    fn name(self) -> &'static str {
        match self {
            Part::Current => "current",
            Part::History => "history",
            Part::Lists => "lists",
            Part::Switches => "switches",
            Part::Events => "events",
            Part::Subjects => "subjects",
            Part::Gateways => "gateways",
            Part::Secret => "secret",
            Part::Hot => "hot",
        }
    }
}

/// What a key of an identity holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    Quota,
    /// The charges of its sliding logs.
    Log,
    /// What operators decided.
    Subject,
    /// An answer to an idempotency key.
    Answer,
    /// That a charge was given back.
    Returned,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` cannot be a key prefix; 1 to 64 printable ASCII characters without space, {{, }}, *, ?, [, ], ^ and \\, e.g. rl1:"
)]
pub struct PrefixError(String);

impl Prefix {
    pub fn new(text: &str) -> Result<Prefix, PrefixError> {
        let fits = (1..=64).contains(&text.len());
        let plain = text.bytes().all(|b| b.is_ascii_graphic() && !b"{}*?[]^\\".contains(&b));
        if fits && plain { Ok(Prefix(text.into())) } else { Err(PrefixError(text.into())) }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// All quota of one identity, in one string.
    pub fn quota(&self, identity: &Identity) -> String {
        format!("{}{{{}}}", self.0, utf8_percent_encode(identity.as_str(), PLAIN))
    }

    /// The charges that the sliding logs of one identity remember.
    pub fn log(&self, identity: &Identity) -> String {
        self.quota(identity) + ":log"
    }

    /// What was answered to an idempotency key.
    pub fn answer(&self, identity: &Identity, idempotency_key: &str) -> String {
        format!("{}:i:{}", self.quota(identity), utf8_percent_encode(idempotency_key, PLAIN))
    }

    /// That a charge was given back or settled, so that it is not again.
    pub fn returned(&self, identity: &Identity, charge: u64) -> String {
        format!("{}:r:{charge:016x}", self.quota(identity))
    }

    /// What operators keep about one identity.
    pub fn subject(&self, identity: &Identity) -> String {
        self.quota(identity) + ":s"
    }

    /// What operators keep that belongs to no identity, all of it in one slot. In an identity `$`
    /// is encoded, so none has this hash tag.
    pub fn policy(&self, part: Part) -> String {
        format!("{}{{$policy}}:{}", self.0, part.name())
    }

    /// What SCAN takes to find the quota of all identities that a pattern means; no other keys end
    /// like these. A `*` stays, everything else is spelled as in a key.
    pub fn quota_glob(&self, pattern: &str) -> String {
        let parts = pattern.split('*').map(|part| utf8_percent_encode(part, PLAIN).to_string());
        format!("{}{{{}}}", self.0, parts.collect::<Vec<_>>().join("*"))
    }

    /// What SCAN takes to find everything of all identities.
    pub fn everything_glob(&self) -> String {
        format!("{}{{*", self.0)
    }

    /// What a key of ours is for, and whose it is; none for what is not ours.
    pub fn kind_of(&self, key: &str) -> Option<(KeyKind, Identity)> {
        let identity = self.identity_of(key)?;
        let (_, kind) = key.split_once('}')?;
        let kind = match kind {
            "" => KeyKind::Quota,
            ":log" => KeyKind::Log,
            ":s" => KeyKind::Subject,
            _ if kind.starts_with(":i:") => KeyKind::Answer,
            _ if kind.starts_with(":r:") => KeyKind::Returned,
            _ => return None,
        };
        Some((kind, identity))
    }

    /// Whose key this is, if it is one of ours and belongs to somebody.
    pub fn identity_of(&self, key: &str) -> Option<Identity> {
        let (encoded, _kind) = key.strip_prefix(&self.0)?.strip_prefix('{')?.split_once('}')?;
        let text = percent_decode_str(encoded).decode_utf8().ok()?;
        let identity = Identity::opaque(&text).ok()?;
        let is_own_spelling = utf8_percent_encode(identity.as_str(), PLAIN).to_string() == encoded;
        is_own_spelling.then_some(identity)
    }
}

impl Default for Prefix {
    fn default() -> Prefix {
        Prefix(DEFAULT_PREFIX.into())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn plain_identities_stay_readable() {
        let prefix = Prefix::default();
        let key = |text: &str| prefix.quota(&Identity::opaque(text).unwrap());
        assert_eq!(key("user:123"), "rl1:{user:123}");
        assert_eq!(key("ip:2001:db8::"), "rl1:{ip:2001:db8::}");
        assert_eq!(key("user:1}evil{x"), "rl1:{user:1%7Devil%7Bx}");
        assert_eq!(key("a%7Db"), "rl1:{a%257Db}");
    }

    #[test]
    fn keys_are_told_apart_and_found_by_pattern() {
        let prefix = Prefix::default();
        let identity = Identity::opaque("user:1 }").unwrap();
        let kind = |key: String| prefix.kind_of(&key).map(|(kind, _)| kind);
        assert_eq!(kind(prefix.quota(&identity)), Some(KeyKind::Quota));
        assert_eq!(kind(prefix.log(&identity)), Some(KeyKind::Log));
        assert_eq!(kind(prefix.subject(&identity)), Some(KeyKind::Subject));
        assert_eq!(kind(prefix.answer(&identity, "}")), Some(KeyKind::Answer));
        assert_eq!(kind(prefix.policy(Part::Events)), None);
        assert_eq!(prefix.quota_glob("user:1 *[}"), "rl1:{user:1%20*%5B%7D}");
    }

    #[test]
    fn a_prefix_cannot_move_the_hash_tag_or_hide_keys_from_a_scan() {
        for text in ["", "rl{", "rl}", "rl *", "rl[1]", "é", &"x".repeat(65)] {
            assert!(Prefix::new(text).is_err(), "{text}");
        }
        assert!(Prefix::new("team-a:rl1:").is_ok());
    }

    #[test]
    fn nobody_can_be_called_like_the_policy() {
        let prefix = Prefix::default();
        assert_eq!(prefix.policy(Part::Current), "rl1:{$policy}:current");
        for part in Part::ALL {
            assert_eq!(prefix.identity_of(&prefix.policy(part)), None);
        }
        let impostor = Identity::opaque("$policy").unwrap();
        assert_eq!(prefix.quota(&impostor), "rl1:{%24policy}");
        assert_eq!(prefix.subject(&impostor), "rl1:{%24policy}:s");
        assert_eq!(prefix.identity_of(&prefix.subject(&impostor)), Some(impostor));
    }

    proptest! {
        #[test]
        fn a_key_leads_back_to_its_identity_and_to_no_other(text in "[^\\p{Cc}]{1,80}") {
            let prefix = Prefix::default();
            let identity = Identity::opaque(&text).unwrap();
            // Decoding undoes encoding, so no two identities share a key.
            for key in [prefix.quota(&identity), prefix.subject(&identity), prefix.log(&identity), prefix.answer(&identity, "}{:i:")] {
                let is_policy = key.starts_with("rl1:{$");
                prop_assert!(!is_policy);
                prop_assert_eq!(prefix.identity_of(&key), Some(identity.clone()));
            }
        }

        #[test]
        fn the_hash_tag_is_the_encoded_identity(text in "[{}%a:]{1,12}", other in "[{}%a:]{1,12}") {
            let prefix = Prefix::default();
            let tag = |text: &str| {
                // As Redis Cluster finds it: between the first `{` and the first `}` after it.
                let key = prefix.answer(&Identity::opaque(text).unwrap(), &other);
                let open = key.find('{').unwrap();
                let close = key[open..].find('}').unwrap() + open;
                key[open + 1..close].to_string()
            };
            prop_assert!(!tag(&text).is_empty());
            prop_assert_eq!(tag(&text) == tag(&other), text == other);
        }
    }
}
