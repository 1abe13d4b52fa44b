//! Where a Redis is and how to log in there, from a URL; and that URL without its secrets.

use std::fmt;
use std::time::Duration;

use redis::io::tcp::{TcpSettings, socket2};
use redis::{ConnectionInfo, IntoConnectionInfo};

/// A place to connect to. Prints itself without its password.
#[derive(Clone)]
pub struct RedisAddress {
    info: ConnectionInfo,
    shown: String,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RedisAddressError {
    #[error(
        "`{shown}` is not a redis URL: {why}; write redis://[user:pass@]host:port/db, rediss://… or redis+unix:///path"
    )]
    NotAUrl { shown: String, why: String },
    #[error(
        "`{0}`: this version speaks to a standalone redis only; give the address of a master as redis://host:port"
    )]
    Topology(String),
    #[error(
        "`{0}`: a TLS connection that trusts anyone is no protection; drop #insecure and, for a CA of your own, set SSL_CERT_FILE"
    )]
    Insecure(String),
}

impl RedisAddress {
    /// `password` is used where the URL has none.
    pub fn parse(text: &str, password: Option<String>) -> Result<RedisAddress, RedisAddressError> {
        let shown = without_secrets(text);
        let not_a_url =
            |why: &str| RedisAddressError::NotAUrl { shown: shown.clone(), why: why.into() };
        let (scheme, rest) = text.split_once("://").ok_or_else(|| not_a_url("it has no scheme"))?;
        if ["redis-sentinel", "redis-cluster", "valkey-sentinel", "valkey-cluster"]
            .contains(&scheme)
        {
            return Err(RedisAddressError::Topology(shown));
        }
        if rest.ends_with("#insecure") {
            return Err(RedisAddressError::Insecure(shown));
        }
        let info = text.into_connection_info().map_err(|e| not_a_url(&reason(&e)))?;
        let mut login = info.redis_settings().clone();
        if let (None, Some(password)) = (login.password(), password) {
            login = login.set_password(password);
        }
        let info = info.set_redis_settings(login).set_tcp_settings(tcp_settings());
        Ok(RedisAddress { info, shown })
    }

    /// `host:port`, or the path of a socket: without scheme, login, database and query.
    pub(super) fn place(&self) -> &str {
        let (scheme, rest) = self.shown.split_once("://").unwrap_or(("", &self.shown));
        let rest = rest.rsplit_once('@').map_or(rest, |(_, place)| place);
        let end = if scheme.ends_with("unix") { "?" } else { "/?" };
        rest.split(|c| end.contains(c)).next().unwrap_or(rest)
    }

    pub(super) fn info(&self) -> ConnectionInfo {
        self.info.clone()
    }
}

/// The crate's words without the name of their kind; they never quote the URL.
fn reason(error: &redis::RedisError) -> String {
    error.to_string().split(" - ").next().unwrap_or_default().to_lowercase()
}

impl fmt::Display for RedisAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for RedisAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisAddress({})", self.shown)
    }
}

/// Small writes go out at once, and a peer that vanished is noticed within seconds.
fn tcp_settings() -> TcpSettings {
    let keepalive = socket2::TcpKeepalive::new()
        .with_time(Duration::from_secs(5))
        .with_interval(Duration::from_secs(1));
    let settings = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
    #[cfg(target_os = "linux")]
    let settings = settings.set_user_timeout(Duration::from_secs(1));
    settings
}

/// A URL as it may be shown: without userinfo, and of a query only what is known to be harmless;
/// also for text that does not parse.
pub fn without_secrets(text: &str) -> String {
    let (start, rest) = match text.split_once("://") {
        Some((scheme, rest)) => (format!("{scheme}://"), rest),
        None => (String::new(), text),
    };
    let (place, query) = match rest.split_once('?') {
        Some((place, query)) => (place, Some(query)),
        None => (rest, None),
    };
    // A password may hold anything, also a slash: what stands before the last @ goes.
    let place = match place.rsplit_once('@') {
        Some((_, after)) => format!("***@{after}"),
        None => place.to_string(),
    };
    let harmless =
        |part: &&str| ["db=", "protocol=", "master="].iter().any(|name| part.starts_with(name));
    let query = query.map(|query| {
        let parts = query.split(['&', '#']).map(|part| if harmless(&part) { part } else { "***" });
        format!("?{}", parts.collect::<Vec<_>>().join("&"))
    });
    format!("{start}{place}{}", query.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_spelling_of_a_url_shows_its_password() {
        for (text, shown) in [
            ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
            ("redis://:secret@host:1/2", "redis://***@host:1/2"),
            ("rediss://bob:se@cr@et@host", "rediss://***@host"),
            ("redis+unix:///run/r.sock?pass=secret&db=1", "redis+unix:///run/r.sock?***&db=1"),
            ("redis+unix:///run/r.sock?pass=se@cret", "redis+unix:///run/r.sock?***"),
            ("redis+unix:///run/r.sock?p%61ss=secret", "redis+unix:///run/r.sock?***"),
            ("redis://h:1/?password=secret#x", "redis://h:1/?***&***"),
            ("redis://:se/cret@h:1", "redis://***@h:1"),
            ("bob:secret@host", "***@host"),
        ] {
            assert_eq!(without_secrets(text), shown);
        }
        let address = RedisAddress::parse("redis://bob:secret@host:1/2", None).unwrap();
        assert!(!format!("{address} {address:?}").contains("secret"));
    }

    #[test]
    fn what_is_not_a_standalone_redis_is_refused_without_its_password() {
        for text in [
            "",
            "localhost:6379",
            "http://localhost",
            "redis://:secret@host:notaport",
            "redis://host/notadb",
            "redis-sentinel://:secret@a:1,b:2/0?master=m",
            "redis-cluster://a:1,b:2",
            "rediss://:secret@host#insecure",
        ] {
            let error = RedisAddress::parse(text, None).unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
