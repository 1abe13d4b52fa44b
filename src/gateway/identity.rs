//! Who asks, as an enforcing gateway finds it in a request. Pure.
//!
//! The address is that of the peer; only what a trusted proxy says of others is believed, read from
//! right to left, because everything left of the last trusted word may be invented.

use std::net::{IpAddr, Ipv6Addr};

use compact_str::format_compact;
use http::HeaderMap;
use http::header::HeaderName;
use sha2::{Digest, Sha256};
use smallvec::SmallVec;

use crate::engine::identity::{Dimension, Identity, MAX_IDENTITY_BYTES};
use crate::engine::policy::IdentitySources;
use crate::engine::rules::Rules;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    pub identities: SmallVec<[Identity; 3]>,
    /// Named by a proxy that is trusted.
    pub tier: Option<String>,
    pub address: IpAddr,
    /// Whether what the peer says of its clients is believed.
    pub peer_is_trusted: bool,
}

/// Why it cannot be said who asks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the header {0} is given more than once, with different values")]
pub struct Ambiguous(String);

impl Caller {
    pub fn of(rules: &Rules, peer: IpAddr, headers: &HeaderMap) -> Result<Caller, Ambiguous> {
        let sources = &rules.policy().identity;
        let peer = peer.to_canonical();
        let peer_is_trusted = is_trusted(sources, peer);
        let address = if peer_is_trusted { client_address(sources, peer, headers) } else { peer };
        let mut identities = SmallVec::new();
        if peer_is_trusted || sources.trust_user_from_any {
            let user = only_value(headers, &sources.user_header)?;
            identities.extend(user.map(|value| named("user", value)));
        }
        let apikey = only_value(headers, &sources.apikey_header)?;
        identities.extend(apikey.map(|value| named("apikey", value)));
        for name in rules.counted_headers() {
            let value = only_value(headers, name)?;
            identities.extend(value.map(|value| named(&format!("header:{name}"), value)));
        }
        identities.push(of_address(address, sources.ipv6_prefix));
        if rules.counts_by(&Dimension::Global) {
            identities.push(Identity::everybody());
        }
        let tier = match &sources.tier_header {
            Some(name) if peer_is_trusted => only_value(headers, name)?,
            _ => None,
        };
        let tier = tier.and_then(|value| String::from_utf8(value.to_vec()).ok());
        Ok(Caller { identities, tier, address, peer_is_trusted })
    }

    /// Takes away what was not believed, or an upstream would believe that the gateway did.
    pub fn drop_unbelieved(&self, sources: &IdentitySources, headers: &mut HeaderMap) {
        if self.peer_is_trusted {
            return;
        }
        if !sources.trust_user_from_any {
            remove_in_any_spelling(headers, &sources.user_header);
        }
        if let Some(tier) = &sources.tier_header {
            remove_in_any_spelling(headers, tier);
        }
    }
}

/// Removes a header, and those that an upstream may take for it: to many, `X_User_Id` and
/// `X-User-Id` are one.
pub(super) fn remove_in_any_spelling(headers: &mut HeaderMap, name: &str) {
    let spelled = |byte: u8| if byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
    let is_one = |other: &&HeaderName| {
        let other = other.as_str();
        other.len() == name.len() && other.bytes().map(spelled).eq(name.bytes().map(spelled))
    };
    // Hardly a message has any.
    if !headers.keys().any(|other| is_one(&other)) {
        return;
    }
    let others: Vec<HeaderName> = headers.keys().filter(is_one).cloned().collect();
    others.iter().for_each(|other| drop(headers.remove(other)));
}

fn is_trusted(sources: &IdentitySources, address: IpAddr) -> bool {
    sources.trusted_proxies.iter().any(|network| network.contains(&address))
}

/// The last address in `X-Forwarded-For` that no trusted proxy has. What cannot be read ends the
/// search at whoever wrote it.
fn client_address(sources: &IdentitySources, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
    let mut nearest = peer;
    let lines: SmallVec<[&[u8]; 2]> =
        headers.get_all(X_FORWARDED_FOR).iter().map(|value| value.as_bytes()).collect();
    let entries = lines.iter().rev().flat_map(|line| line.rsplit(|byte| *byte == b','));
    for entry in entries {
        let Some(address) = std::str::from_utf8(entry).ok().and_then(parse_address) else {
            return nearest;
        };
        nearest = address;
        if !is_trusted(sources, address) {
            return nearest;
        }
    }
    nearest
}

/// `203.0.113.7`, `203.0.113.7:4711`, `2001:db8::1`, `[2001:db8::1]:4711`, `fe80::1%eth0`.
pub(super) fn parse_address(text: &str) -> Option<IpAddr> {
    let text = text.trim().trim_matches('"');
    let bare = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?.0,
        // One colon is a port, more are IPv6.
        None if text.matches(':').count() == 1 => text.split_once(':')?.0,
        None => text,
    };
    let bare = bare.split('%').next().unwrap_or(bare);
    bare.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

pub(super) fn of_address(address: IpAddr, ipv6_prefix: u8) -> Identity {
    let address = match address {
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(ipv6_prefix)).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & mask))
        }
        v4 => v4,
    };
    Identity::of_ip(address)
}

/// The value of a header that names somebody. Two different ones would let a client be counted as
/// one and served as the other.
fn only_value<'h>(headers: &'h HeaderMap, name: &str) -> Result<Option<&'h [u8]>, Ambiguous> {
    // To look through the few headers of a request is cheaper than to hash what is looked for.
    let is_meant = |other: &HeaderName| {
        other.as_str().len() == name.len() && other.as_str().eq_ignore_ascii_case(name)
    };
    let meant = headers.iter().filter(|(other, _)| is_meant(other));
    let mut values = meant.map(|(_, value)| value.as_bytes().trim_ascii());
    let first = values.next();
    match values.find(|other| Some(*other) != first) {
        Some(_) => Err(Ambiguous(name.into())),
        None => Ok(first.filter(|value| !value.is_empty())),
    }
}

/// An identity of `dimension`. What is too long for one, or not plain text, is known by its hash.
pub(super) fn named(dimension: &str, value: &[u8]) -> Identity {
    let plain = std::str::from_utf8(value).ok().filter(|text| {
        dimension.len() + 1 + text.len() <= MAX_IDENTITY_BYTES
            && !text.chars().any(char::is_control)
    });
    let text = match plain {
        Some(text) => format_compact!("{dimension}:{text}"),
        None => {
            let digest = Sha256::digest(value);
            let hex = digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
            format_compact!("{dimension}:sha256-{hex}")
        }
    };
    Identity::opaque(&text).expect("its length and characters were looked at")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::HeaderValue;

    use super::*;
    use crate::engine::clock::Micros;
    use crate::engine::config::parse_policy;

    const POLICY: &str = r#"
[identity]
trusted_proxies = ["10.0.0.0/8", "fd00::/8"]
tier = { header = "X-Tier" }
[[rule]]
name = "tenant"
dimension = "header:X-Tenant"
limits = ["1/1s"]
"#;

    fn caller(peer: &str, given: &[(&'static str, &[u8])]) -> Result<Caller, Ambiguous> {
        let (policy, _) = parse_policy("p.toml", POLICY, Micros::ZERO).unwrap();
        let mut headers = HeaderMap::new();
        for (name, value) in given {
            headers.append(*name, HeaderValue::from_bytes(value).unwrap());
        }
        Caller::of(&Rules::new(Arc::new(policy)), peer.parse().unwrap(), &headers)
    }

    fn names(peer: &str, given: &[(&'static str, &[u8])]) -> Vec<String> {
        let caller = caller(peer, given).unwrap();
        caller.identities.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_stranger_is_its_address_whatever_it_says() {
        let lies: &[(&str, &[u8])] = &[
            ("x-forwarded-for", b"10.0.0.1"),
            ("forwarded", b"for=10.0.0.1"),
            ("x-real-ip", b"10.0.0.1"),
            ("x-user-id", b"root"),
            ("x-tier", b"premium"),
        ];
        assert_eq!(names("203.0.113.7", lies), ["ip:203.0.113.7"]);
        assert_eq!(caller("203.0.113.7", lies).unwrap().tier, None);
    }

    #[test]
    fn what_a_stranger_claims_reaches_no_upstream_in_any_spelling() {
        let (policy, _) = parse_policy("p.toml", POLICY, Micros::ZERO).unwrap();
        let all = ["x-user-id", "x_user_id", "x-user_id", "x_tier", "x_other", "accept"];
        for (peer, left) in [("203.0.113.7", &["x_other", "accept"][..]), ("10.9.9.9", &all)] {
            let mut headers = HeaderMap::new();
            for name in all {
                headers.append(name, HeaderValue::from_static("v"));
            }
            let caller = caller(peer, &[]).unwrap();
            caller.drop_unbelieved(&policy.identity, &mut headers);
            let names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
            assert_eq!(names.len(), left.len(), "{peer}: {names:?}");
            assert!(left.iter().all(|name| names.contains(name)), "{peer}: {names:?}");
        }
    }

    #[test]
    fn a_trusted_proxy_is_believed_from_right_to_left() {
        for (forwarded, address) in [
            (vec!["198.51.100.1"], "198.51.100.1"),
            (vec!["1.1.1.1, 198.51.100.1"], "198.51.100.1"),
            (vec!["1.1.1.1, 198.51.100.1, 10.2.3.4"], "198.51.100.1"),
            (vec!["1.1.1.1", "198.51.100.1", "10.2.3.4"], "198.51.100.1"),
            (vec!["198.51.100.1:4711"], "198.51.100.1"),
            (vec!["[2001:db8:1:2:3::1]:4711"], "2001:db8:1:2::"),
            (vec!["2001:db8:1:2:3::1"], "2001:db8:1:2::"),
            (vec!["::ffff:198.51.100.1"], "198.51.100.1"),
            (vec!["fe80::1%eth0"], "fe80::"),
            (vec!["198.51.100.1, unknown"], "10.9.9.9"),
            (vec!["198.51.100.1, unknown, 10.2.3.4"], "10.2.3.4"),
            (vec!["10.1.1.1, 10.2.3.4"], "10.1.1.1"),
            (vec![""], "10.9.9.9"),
            (vec![], "10.9.9.9"),
        ] {
            let given: Vec<(&str, &[u8])> =
                forwarded.iter().map(|v| ("x-forwarded-for", v.as_bytes())).collect();
            assert_eq!(names("10.9.9.9", &given), [format!("ip:{address}")], "{forwarded:?}");
        }
        assert_eq!(names("::ffff:10.9.9.9", &[("x-user-id", b"7")]), ["user:7", "ip:10.9.9.9"]);
    }

    #[test]
    fn keys_and_headers_are_identities_and_odd_ones_are_hashed() {
        let given: &[(&str, &[u8])] = &[("x-api-key", b"ak_9"), ("x-tenant", b"acme:1")];
        let all = ["apikey:ak_9", "header:x-tenant:acme:1", "ip:203.0.113.7"];
        assert_eq!(names("203.0.113.7", given), all);
        let long = vec![b'k'; 8_000];
        for odd in [&long[..], b"caf\xe9", b"a\tb"] {
            let found = names("203.0.113.7", &[("x-api-key", odd)]);
            assert!(found[0].starts_with("apikey:sha256-") && found[0].len() == 78, "{found:?}");
        }
        assert_eq!(names("203.0.113.7", &[("x-api-key", b" ")]), ["ip:203.0.113.7"]);
    }

    #[test]
    fn two_different_keys_are_nobody() {
        let two = caller("203.0.113.7", &[("x-api-key", b"a"), ("x-api-key", b"b")]);
        assert_eq!(two, Err(Ambiguous("x-api-key".into())));
        assert!(caller("203.0.113.7", &[("x-api-key", b"a"), ("x-api-key", b"a")]).is_ok());
    }
}
