//! Where a Redis is and how to log in there, from a URL; and that URL without its secrets.

use std::fmt;
use std::time::Duration;

use redis::io::tcp::{TcpSettings, socket2};
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

use super::sentinel::Sentinels;
use super::slots::Place;

/// Where sentinels listen if nothing else is said.
const SENTINEL_PORT: u16 = 26_379;

/// A place to connect to. Prints itself without its password.
#[derive(Clone)]
pub struct RedisAddress {
    at: At,
    shown: String,
}

/// How the server is found.
#[derive(Clone)]
pub(super) enum At {
    Server(Box<ConnectionInfo>),
    /// Whichever server they call the master.
    Sentinel(Box<Sentinels>),
    /// The servers that these know of, each with its login, which is the same for all.
    Cluster(Vec<ConnectionInfo>),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RedisAddressError {
    #[error(
        "`{shown}` is not a redis URL: {why}; write redis://host:port/db, rediss://…, redis+unix:///path, redis-sentinel://host1:26379,host2:26379/db?master=NAME or redis-cluster://host1:7000,host2:7001"
    )]
    NotAUrl { shown: String, why: String },
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
        if rest.ends_with("#insecure") {
            return Err(RedisAddressError::Insecure(shown));
        }
        let at = match scheme {
            "redis-cluster" | "valkey-cluster" => {
                At::Cluster(seeds(rest, "redis", password).map_err(|e| not_a_url(&e))?)
            }
            "rediss-cluster" | "valkeys-cluster" => {
                At::Cluster(seeds(rest, "rediss", password).map_err(|e| not_a_url(&e))?)
            }
            "redis-sentinel" | "valkey-sentinel" => At::Sentinel(Box::new(
                sentinels(rest, "redis", password).map_err(|e| not_a_url(&e))?,
            )),
            "rediss-sentinel" | "valkeys-sentinel" => At::Sentinel(Box::new(
                sentinels(rest, "rediss", password).map_err(|e| not_a_url(&e))?,
            )),
            _ => At::Server(Box::new(server(text, password).map_err(|e| not_a_url(&e))?)),
        };
        Ok(RedisAddress { at, shown })
    }

    /// `host:port`, or the path of a socket: without scheme, login, database and query.
    pub(super) fn place(&self) -> &str {
        let (scheme, rest) = self.shown.split_once("://").unwrap_or(("", &self.shown));
        let rest = rest.rsplit_once('@').map_or(rest, |(_, place)| place);
        let end = if scheme.ends_with("unix") { "?" } else { "/?" };
        rest.split(|c| end.contains(c)).next().unwrap_or(rest)
    }

    /// Another server of the same Redis: the same login, database and kind of connection.
    pub(super) fn server_at(&self, place: &Place) -> RedisAddress {
        let info = match &self.at {
            At::Server(info) => info.as_ref(),
            At::Sentinel(sentinels) => &sentinels.master,
            At::Cluster(seeds) => &seeds[0],
        };
        RedisAddress::beside(info, place)
    }

    /// The same, as a node of the cluster that it belongs to.
    pub(super) fn of_cluster(&self) -> RedisAddress {
        match &self.at {
            At::Server(info) => {
                let at = At::Cluster(vec![info.as_ref().clone()]);
                RedisAddress { at, shown: self.shown.clone() }
            }
            _ => self.clone(),
        }
    }

    pub(super) fn at(&self) -> &At {
        &self.at
    }

    /// Another server with the login, and the manner of connecting, of this one.
    pub(super) fn beside(info: &ConnectionInfo, place: &Place) -> RedisAddress {
        let shown = format!("{}://{place}", scheme_of(info));
        RedisAddress { at: At::Server(Box::new(at_place(info, place))), shown }
    }

    /// A server that others named.
    pub(super) fn of(info: ConnectionInfo) -> RedisAddress {
        let shown = format!("{}://{}", scheme_of(&info), info.addr());
        RedisAddress { at: At::Server(Box::new(info)), shown }
    }
}

/// The same login somewhere else.
pub(super) fn at_place(info: &ConnectionInfo, place: &Place) -> ConnectionInfo {
    let Place { host, port } = place.clone();
    let addr = match info.addr() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => ConnectionAddr::TcpTls {
            host,
            port,
            insecure: *insecure,
            tls_params: tls_params.clone(),
        },
        _ => ConnectionAddr::Tcp(host, port),
    };
    info.clone().set_addr(addr)
}

fn scheme_of(info: &ConnectionInfo) -> &'static str {
    match info.addr() {
        ConnectionAddr::TcpTls { .. } => "rediss",
        _ => "redis",
    }
}

/// One server, with its login.
fn server(url: &str, password: Option<String>) -> Result<ConnectionInfo, String> {
    let info = url.into_connection_info().map_err(|error| reason(&error))?;
    let mut login = info.redis_settings().clone();
    if let (None, Some(password)) = (login.password(), password) {
        login = login.set_password(password);
    }
    Ok(info.set_redis_settings(login).set_tcp_settings(tcp_settings()))
}

/// `[user:pass@]host:port,host:port/db?master=NAME`: login and database are the master's.
fn sentinels(rest: &str, scheme: &str, password: Option<String>) -> Result<Sentinels, String> {
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let name = query.split('&').find_map(|part| part.strip_prefix("master="));
    let name = name.filter(|name| !name.is_empty()).ok_or("it does not say ?master=NAME")?;
    if query.split('&').any(|part| !part.starts_with("master=")) {
        return Err("after the ? only master=NAME is known".into());
    }
    let (login, places) = match rest.rsplit_once('@') {
        Some((login, places)) => (format!("{login}@"), places),
        None => (String::new(), rest),
    };
    let (places, database) = places.split_once('/').unwrap_or((places, ""));
    let sentinels = places.split(',').map(|place| sentinel(place, scheme));
    // The sentinels will say which host.
    let master = server(&format!("{scheme}://{login}unknown/{database}"), password)?;
    let sentinels = sentinels.collect::<Result<_, _>>()?;
    Ok(Sentinels { sentinels, name: name.into(), master })
}

/// `[user:pass@]host:port,host:port`: the login is that of every node.
fn seeds(
    rest: &str,
    scheme: &str,
    password: Option<String>,
) -> Result<Vec<ConnectionInfo>, String> {
    if rest.contains('?') {
        return Err("nothing is known after a ? here".into());
    }
    let (login, places) = match rest.rsplit_once('@') {
        Some((login, places)) => (format!("{login}@"), places),
        None => (String::new(), rest),
    };
    let (places, database) = places.split_once('/').unwrap_or((places, ""));
    if !["", "0"].contains(&database) {
        return Err("a cluster has only database 0".into());
    }
    let seed = |place: &str| match place {
        "" => Err("a host is missing".into()),
        place => server(&format!("{scheme}://{login}{place}"), password.clone()),
    };
    places.split(',').map(seed).collect()
}

fn sentinel(place: &str, scheme: &str) -> Result<ConnectionInfo, String> {
    if place.is_empty() {
        return Err("a host is missing".into());
    }
    let info = server(&format!("{scheme}://{place}"), None)?;
    // Without a port the crate takes that of a server that keeps data.
    let says_port = place.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    Ok(match info.addr() {
        ConnectionAddr::Tcp(host, _) if !says_port => {
            let addr = ConnectionAddr::Tcp(host.clone(), SENTINEL_PORT);
            info.set_addr(addr)
        }
        _ => info,
    })
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

/// Whether the secrets of this URL were taken out, as above.
pub fn is_masked(url: &str) -> bool {
    url.contains("***") && without_secrets(url) == url
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
    fn sentinels_are_read_with_the_login_of_their_master() {
        let text = "redis-sentinel://bob:secret@a:1,b,[::1]:3/2?master=main";
        let address = RedisAddress::parse(text, None).unwrap();
        let At::Sentinel(sentinels) = address.at() else { panic!("{address:?}") };
        let places: Vec<String> =
            sentinels.sentinels.iter().map(|s| s.addr().to_string()).collect();
        assert_eq!(places, ["a:1", "b:26379", "::1:3"]);
        assert_eq!(sentinels.name, "main");
        let login = sentinels.master.redis_settings();
        assert_eq!(
            (login.username(), login.password(), login.db()),
            (Some("bob"), Some("secret"), 2)
        );
        assert!(sentinels.sentinels.iter().all(|s| s.redis_settings().password().is_none()));
        assert_eq!(address.to_string(), "redis-sentinel://***@a:1,b,[::1]:3/2?master=main");
    }

    #[test]
    fn the_nodes_of_a_cluster_share_a_login() {
        let text = "rediss-cluster://bob:secret@a:1,b,[::1]:3";
        let address = RedisAddress::parse(text, None).unwrap();
        let At::Cluster(seeds) = address.at() else { panic!("{address:?}") };
        let places: Vec<String> = seeds.iter().map(|s| s.addr().to_string()).collect();
        assert_eq!(places, ["a:1", "b:6379", "::1:3"]);
        assert_eq!(address.to_string(), "rediss-cluster://***@a:1,b,[::1]:3");
        let place = Place { host: "c".into(), port: 4 };
        let other = RedisAddress::beside(&seeds[0], &place);
        assert_eq!(other.to_string(), "rediss://c:4");
        let At::Server(other) = other.at() else { panic!("{other:?}") };
        let login = other.redis_settings();
        assert_eq!((login.username(), login.password()), (Some("bob"), Some("secret")));
        assert!(
            matches!(other.addr(), ConnectionAddr::TcpTls { host, insecure: false, .. } if host == "c")
        );
        let given = RedisAddress::parse("redis-cluster://a:1,b:2/0", Some("hidden".into()));
        let At::Cluster(seeds) = given.unwrap().at().clone() else { panic!() };
        assert!(seeds.iter().all(|seed| seed.redis_settings().password() == Some("hidden")));
    }

    #[test]
    fn what_is_no_redis_that_is_known_is_refused_without_its_password() {
        for text in [
            "",
            "localhost:6379",
            "http://localhost",
            "redis://:secret@host:notaport",
            "redis://host/notadb",
            "redis-sentinel://:secret@a:1,b:2/0",
            "redis-sentinel://:secret@a:1,,b:2/0?master=m",
            "redis-sentinel://:secret@a:1/0?master=m&pass=secret",
            "redis-cluster://:secret@a:1,b:2/1",
            "redis-cluster://:secret@a:1,,b:2",
            "redis-cluster://a:1?pass=secret",
            "rediss://:secret@host#insecure",
        ] {
            let error = RedisAddress::parse(text, None).unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
