//! Who is limited: `dimension:id`, such as `user:123`, `ip:2001:db8::1`, `header:x-tenant:acme`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use compact_str::{CompactString, format_compact};
use ipnet::IpNet;

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

    /// IPv4 (also when mapped into IPv6) as it is, IPv6 by its prefix.
    pub fn of_ip(address: IpAddr) -> Identity {
        Identity(match address.to_canonical() {
            IpAddr::V4(v4) => {
                let mut text = CompactString::const_new("ip:");
                push_v4(&mut text, v4);
                text
            }
            IpAddr::V6(v6) => {
                let mask = u128::MAX << (128 - IPV6_PREFIX);
                format_compact!("ip:{}", Ipv6Addr::from_bits(v6.to_bits() & mask))
            }
        })
    }

    /// What every request is also counted as, whoever makes it.
    pub fn everybody() -> Identity {
        Identity(CompactString::const_new("global:all"))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// As its `Display` says it. The machinery of formatting takes ten times as long, and every request
/// of a gateway names an address.
pub fn push_v4(text: &mut CompactString, address: Ipv4Addr) {
    let mut digits = [0; 15];
    let mut length = 0;
    let mut put = |byte: u8| {
        digits[length] = byte;
        length += 1;
    };
    for (place, octet) in address.octets().into_iter().enumerate() {
        if place > 0 {
            put(b'.');
        }
        if octet >= 100 {
            put(b'0' + octet / 100);
        }
        if octet >= 10 {
            put(b'0' + octet / 10 % 10);
        }
        put(b'0' + octet % 10);
    }
    text.push_str(str::from_utf8(&digits[..length]).unwrap_or_default());
}

impl FromStr for Identity {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Identity, IdentityError> {
        let opaque = Identity::opaque(text)?;
        let Some((dimension, id)) = text.split_once(':') else { return Ok(opaque) };
        let lower = dimension.to_ascii_lowercase();
        match lower.as_str() {
            "user" | "apikey" | "ip" | "header" | "global" if id.is_empty() => {
                Err(IdentityError::NoId(text.into()))
            }
            "ip" => {
                id.parse().map(Identity::of_ip).map_err(|_| IdentityError::NotAnAddress(id.into()))
            }
            "header" => match id.split_once(':') {
                Some((name, value)) if is_header_name(name) && !value.is_empty() => {
                    Ok(Identity(format_compact!("header:{}:{value}", name.to_ascii_lowercase())))
                }
                _ => Err(IdentityError::NoId(text.into())),
            },
            // One spelling for each, or `User:1` would have a bucket of its own.
            "user" | "apikey" | "global" => Ok(Identity(format_compact!("{lower}:{id}"))),
            _ => Ok(opaque),
        }
    }
}

/// Whether a text, an identity or a pattern, begins with a dimension that rules can count by.
pub fn names_a_dimension(text: &str) -> bool {
    let known = ["user:", "apikey:", "ip:", "header:", "global:"];
    known.iter().any(|dimension| text.starts_with(dimension))
}

/// What kind of identity a rule counts by.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Dimension {
    User,
    ApiKey,
    Ip,
    /// By the value of a header; the name in lower case.
    Header(String),
    Global,
}

impl Dimension {
    /// Whether `identity` is of this dimension.
    pub fn holds(&self, identity: &Identity) -> bool {
        let text = identity.as_str();
        match self {
            Dimension::User => text.starts_with("user:"),
            Dimension::ApiKey => text.starts_with("apikey:"),
            Dimension::Ip => text.starts_with("ip:"),
            Dimension::Global => text.starts_with("global:"),
            Dimension::Header(name) => text
                .strip_prefix("header:")
                .and_then(|rest| rest.strip_prefix(name.as_str()))
                .is_some_and(|rest| rest.starts_with(':')),
        }
    }
}

impl fmt::Display for Dimension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dimension::User => f.write_str("user"),
            Dimension::ApiKey => f.write_str("apikey"),
            Dimension::Ip => f.write_str("ip"),
            Dimension::Header(name) => write!(f, "header:{name}"),
            Dimension::Global => f.write_str("global"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a dimension; user, apikey, ip, header:NAME or global")]
pub struct DimensionError(String);

impl FromStr for Dimension {
    type Err = DimensionError;

    fn from_str(text: &str) -> Result<Dimension, DimensionError> {
        match text {
            "user" => Ok(Dimension::User),
            "apikey" => Ok(Dimension::ApiKey),
            "ip" => Ok(Dimension::Ip),
            "global" => Ok(Dimension::Global),
            _ => match text.strip_prefix("header:") {
                Some(name) if is_header_name(name) => {
                    Ok(Dimension::Header(name.to_ascii_lowercase()))
                }
                _ => Err(DimensionError(text.into())),
            },
        }
    }
}

/// A token of RFC 9110.
pub fn is_header_name(text: &str) -> bool {
    let symbol = |b: u8| b"!#$%&'*+-.^_`|~".contains(&b);
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || symbol(b))
}

/// Which identities a list means: one, a family (`apikey:internal-*`), or a network.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Pattern {
    Exact(Identity),
    /// With at least one `*`, which stands for any text.
    Glob(String),
    Network(IpNet),
}

impl Pattern {
    pub fn matches(&self, identity: &Identity) -> bool {
        match self {
            Pattern::Exact(one) => one == identity,
            Pattern::Glob(glob) => glob_matches(glob.as_bytes(), identity.as_str().as_bytes()),
            Pattern::Network(network) => identity
                .as_str()
                .strip_prefix("ip:")
                .and_then(|ip| ip.parse::<IpAddr>().ok())
                .is_some_and(|ip| network.contains(&ip)),
        }
    }
}

impl FromStr for Pattern {
    type Err = IdentityError;

    /// `user:123`, `user:12*`, `ip:10.0.0.0/8`.
    fn from_str(text: &str) -> Result<Pattern, IdentityError> {
        if text.contains('*') {
            return Identity::opaque(text).map(|_| Pattern::Glob(canonical_glob(text)));
        }
        match text.strip_prefix("ip:").filter(|ip| ip.contains('/')) {
            Some(network) => network
                .parse::<IpNet>()
                .map(|network| Pattern::Network(network.trunc()))
                .map_err(|_| IdentityError::NotAnAddress(network.into())),
            None => text.parse().map(Pattern::Exact),
        }
    }
}

/// A family in the spelling of its members: `User:1*` would match nobody.
fn canonical_glob(text: &str) -> String {
    let Some((dimension, id)) = text.split_once(':') else { return text.into() };
    let lower = dimension.to_ascii_lowercase();
    match (lower.as_str(), id.split_once(':')) {
        ("header", Some((name, value))) => format!("header:{}:{value}", name.to_ascii_lowercase()),
        ("ip", _) => format!("ip:{}", id.to_ascii_lowercase()),
        ("user" | "apikey" | "global" | "header", _) => format!("{lower}:{id}"),
        _ => text.into(),
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pattern::Exact(identity) => write!(f, "{identity}"),
            Pattern::Glob(glob) => f.write_str(glob),
            Pattern::Network(network) => write!(f, "ip:{network}"),
        }
    }
}

/// Only `*` is special. Remembers the last star, so it takes at most `pattern × text` steps.
fn glob_matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        if pattern.get(p) == Some(&b'*') {
            star = Some((p, t));
            p += 1;
        } else if pattern.get(p) == Some(&text[t]) {
            (p, t) = (p + 1, t + 1);
        } else if let Some((star_at, matched)) = star {
            star = Some((star_at, matched + 1));
            (p, t) = (star_at + 1, matched + 1);
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|b| *b == b'*')
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
    fn addresses_are_written_as_everybody_writes_them() {
        for bits in [0, 1, 0x0a0a_0a0a, 0x6363_6409, 0xc0a8_0064, 0xff00_ff01, u32::MAX] {
            let address = Ipv4Addr::from_bits(bits);
            let mut text = CompactString::new("at ");
            push_v4(&mut text, address);
            assert_eq!(text, format!("at {address}"));
        }
    }

    #[test]
    fn every_spelling_of_one_client_is_one_identity() {
        for (written, canonical) in [
            ("user:123", "user:123"),
            ("user:a:b", "user:a:b"),
            ("User:A", "user:A"),
            ("IP:203.0.113.7", "ip:203.0.113.7"),
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
    fn a_pattern_means_one_a_family_or_a_network() {
        for (pattern, identity, fits) in [
            ("user:1", "user:1", true),
            ("user:1", "user:12", false),
            ("user:1*", "user:12", true),
            ("user:*9", "user:129", true),
            ("*:a*b*", "user:xaxbx", false),
            ("*:a*b*", "user:axbx", true),
            ("User:1*", "user:12", true),
            ("user:A*", "user:a1", false),
            ("header:X-Tenant:Ac*", "header:x-tenant:Acme", true),
            ("IP:2001:DB8:*", "ip:2001:db8:1::", true),
            ("apikey:internal-*", "apikey:internal-", true),
            ("ip:10.0.0.0/8", "ip:10.255.0.1", true),
            ("ip:10.0.0.0/8", "ip:11.0.0.1", false),
            ("ip:10.0.0.0/8", "user:10.0.0.1", false),
            ("ip:2001:db8::/32", "ip:2001:db8:1::", true),
        ] {
            let pattern: Pattern = pattern.parse().unwrap();
            assert_eq!(pattern.matches(&identity.parse().unwrap()), fits, "{pattern} {identity}");
        }
        assert!("ip:10.0.0.0/33".parse::<Pattern>().is_err());
    }

    #[test]
    fn a_dimension_holds_its_own_identities_only() {
        let tenant: Dimension = "header:X-Tenant".parse().unwrap();
        assert!(tenant.holds(&"header:x-tenant:acme".parse().unwrap()));
        assert!(!tenant.holds(&"header:x-tenant2:acme".parse().unwrap()));
        assert!(Dimension::Ip.holds(&"ip:10.0.0.1".parse().unwrap()));
        for text in ["", "users", "header:", "header:a b", "IP"] {
            assert!(text.parse::<Dimension>().is_err(), "{text}");
        }
    }

    #[test]
    fn what_names_nobody_is_refused() {
        let long = format!("user:{}", "x".repeat(1020));
        for text in [
            "",
            "user:",
            "ip:",
            "ip:300.1.1.1",
            "header:x",
            "header::y",
            "header:X Y:a",
            "a\nb",
            "a\u{85}b",
            &long,
        ] {
            assert!(text.parse::<Identity>().is_err(), "{text:?}");
        }
        assert!(format!("user:{}", "x".repeat(1019)).parse::<Identity>().is_ok());
    }
}
