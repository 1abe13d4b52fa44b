//! Who is limited: `dimension:id`, such as `user:123`, `ip:2001:db8::1`, `header:x-tenant:acme`.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use compact_str::{CompactString, format_compact};

pub const MAX_IDENTITY_BYTES: usize = 1024;

/// An IPv6 customer holds a /64 at least: limiting single addresses would limit nobody.
const IPV6_PREFIX: u32 = 64;

/// An identity in its one canonical spelling, so that every command and store means the same one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity(CompactString);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    #[error(
        "an identity cannot be empty; write dimension:id, e.g. user:123, ip:203.0.113.7, apikey:ak_9"
    )]
    Empty,
    #[error("`{0}` names nobody; write something after the colon, e.g. user:123")]
    NoId(String),
    #[error("an identity of {0} bytes is too long; at most {MAX_IDENTITY_BYTES}")]
    TooLong(usize),
    #[error("an identity cannot contain control characters (found U+{0:04X})")]
    Control(u32),
    #[error("`{0}` is not an address; write ip:203.0.113.7 or ip:2001:db8::1")]
    NotAnAddress(String),
}

impl Identity {
    /// A key whose form means nothing to us, as in a trace.
    pub fn opaque(text: &str) -> Result<Identity, IdentityError> {
        if text.is_empty() {
            return Err(IdentityError::Empty);
        }
        if text.len() > MAX_IDENTITY_BYTES {
            return Err(IdentityError::TooLong(text.len()));
        }
        if let Some(c) = text.chars().find(|c| c.is_control()) {
            return Err(IdentityError::Control(u32::from(c)));
        }
        Ok(Identity(text.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Identity {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Identity, IdentityError> {
        let opaque = Identity::opaque(text)?;
        let Some((dimension, id)) = text.split_once(':') else { return Ok(opaque) };
        match dimension {
            "user" | "apikey" | "ip" | "header" | "global" if id.is_empty() => {
                Err(IdentityError::NoId(text.into()))
            }
            "ip" => canonical_ip(id).map(Identity),
            "header" => match id.split_once(':') {
                Some((name, value)) if !name.is_empty() && !value.is_empty() => {
                    Ok(Identity(format_compact!("header:{}:{value}", name.to_ascii_lowercase())))
                }
                _ => Err(IdentityError::NoId(text.into())),
            },
            _ => Ok(opaque),
        }
    }
}

/// IPv4 (also when mapped into IPv6) as it is, IPv6 by its prefix.
fn canonical_ip(text: &str) -> Result<CompactString, IdentityError> {
    let address: IpAddr = text.parse().map_err(|_| IdentityError::NotAnAddress(text.into()))?;
    Ok(match address.to_canonical() {
        IpAddr::V4(v4) => format_compact!("ip:{v4}"),
        IpAddr::V6(v6) => {
            let mask = u128::MAX << (128 - IPV6_PREFIX);
            format_compact!("ip:{}", Ipv6Addr::from_bits(v6.to_bits() & mask))
        }
    })
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_one_client_is_one_identity() {
        for (written, canonical) in [
            ("user:123", "user:123"),
            ("user:a:b", "user:a:b"),
            ("user:{}", "user:{}"),
            ("{}", "{}"),
            (":", ":"),
            ("alice", "alice"),
            ("ip:203.0.113.7", "ip:203.0.113.7"),
            ("ip:::ffff:203.0.113.7", "ip:203.0.113.7"),
            ("ip:2001:db8:1:2:3:4:5:6", "ip:2001:db8:1:2::"),
            ("ip:2001:DB8::1", "ip:2001:db8::"),
            ("header:X-Tenant:Acme:1", "header:x-tenant:Acme:1"),
            ("user:日本", "user:日本"),
        ] {
            assert_eq!(written.parse::<Identity>().map(|i| i.to_string()), Ok(canonical.into()));
        }
    }

    #[test]
    fn what_names_nobody_is_refused() {
        let long = format!("user:{}", "x".repeat(1020));
        for text in
            ["", "user:", "ip:", "ip:300.1.1.1", "header:x", "header::y", "a\nb", "a\u{85}b", &long]
        {
            assert!(text.parse::<Identity>().is_err(), "{text:?}");
        }
        assert!(format!("user:{}", "x".repeat(1019)).parse::<Identity>().is_ok());
    }
}
