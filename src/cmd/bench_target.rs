//! What is loaded: a URL, the engine, a Redis, a gateway of the context, or one in this process.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Method, Uri};
use rustls::pki_types::ServerName;

use super::bench_plan::PlanArgs;
use super::serve::policy_of;
use super::{Context, Exit, Failure};
use crate::engine::clock::Micros;
use crate::engine::limit::{Algorithm, Limit};
use crate::engine::store::keys::Prefix;
use crate::engine::store::{MemoryStore, RuleLimit};
use crate::engine::units;
use crate::gateway::proxy::Upstream;
use crate::gateway::serve::{ServeOptions, Serving, bind};
use crate::gateway::tls::Roots;
use crate::gateway::{About, Gateway, PolicySource};
use crate::load::http::Target;
use crate::load::http::target::Way;
use crate::load::http::template::{KeyPlace, Parts};
use crate::load::local::Local;
use crate::load::plan::Plan;
use crate::load::run::{Aim, RedisAim};
use crate::output::Untrusted;

/// What the engine and a gateway in this process allow where nobody says anything.
const USUAL_LIMIT: &str = "1000/1s";
const USUAL_CONNECTIONS: u32 = 64;
const MAX_BODY_BYTES: u64 = 16 << 20;
/// Identities that the engine keeps at once.
const MAX_IDENTITIES: usize = 10_000_000;

#[derive(Debug, clap::Args)]
pub(super) struct TargetArgs {
    /// http(s)://…, engine (in memory), redis…:// (the engine on that Redis); none: the gateway of
    /// the context, or one in this process
    #[arg(value_name = "TARGET")]
    target: Option<String>,
    /// Connections open at once; on Redis, checks under way at once [default: 64]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_535))]
    connections: Option<u32>,
    /// Requests under way on one connection
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_024))]
    pipeline: u32,
    /// Where a request has its key: header:NAME, query:NAME, or path (in place of {key}, or last)
    #[arg(long, value_name = "PLACE")]
    key_in: Option<KeyPlace>,
    #[arg(long, value_name = "M", default_value = "GET")]
    /// The method of every request
    method: Method,
    /// A header of every request, "Name: value"; repeat for several
    #[arg(long = "header", short = 'H', value_name = "H", value_parser = parse_header)]
    headers: Vec<(String, String)>,
    /// The body of every request, in a file
    #[arg(long, value_name = "FILE")]
    body: Option<PathBuf>,
    /// Speak HTTP/2 (without TLS: with prior knowledge)
    #[arg(long)]
    http2: bool,
    /// Connect to this socket instead of the URL's address
    #[arg(long, value_name = "FILE")]
    unix_socket: Option<PathBuf>,
    /// How long an answer may take
    #[arg(long, value_name = "D", default_value = "5s", value_parser = units::parse_period)]
    timeout: Micros,
    /// Load this host although it is another machine: it is yours; repeat for several
    #[arg(long, value_name = "HOST")]
    own: Vec<String>,
}

/// A target, ready to be loaded.
pub(super) struct Prepared {
    /// For people, without secrets.
    pub(super) name: String,
    pub(super) aim: Aim,
    /// What it allows, as far as was said.
    pub(super) limits: Arc<[Arc<RuleLimit>]>,
    pub(super) embedded: Option<Serving>,
}

fn parse_header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("write a header as \"Name: value\"")?;
    let (name, value) = (name.trim(), value.trim());
    HeaderName::try_from(name).map_err(|_| format!("`{name}` is not the name of a header"))?;
    HeaderValue::try_from(value).map_err(|_| format!("`{value}` cannot be sent in a header"))?;
    if ["content-length", "transfer-encoding", "connection", "host"]
        .contains(&name.to_ascii_lowercase().as_str())
    {
        return Err(format!("{name} is set by rlctl itself"));
    }
    Ok((name.into(), value.into()))
}

impl TargetArgs {
    pub(super) fn connections(&self) -> Option<u32> {
        self.connections
    }

    pub(super) async fn prepare(
        &self,
        plan: &Plan,
        plan_args: &PlanArgs,
        limits: &[Limit],
        context: &Context,
    ) -> Result<Prepared, Failure> {
        let target = match &self.target {
            Some(target) => target.clone(),
            None if self.unix_socket.is_some() => "http://localhost/".into(),
            None => match context.gateways.first() {
                Some(_) => gateway_of_context(context).await?,
                None => return self.embedded(plan_args, limits, context).await,
            },
        };
        let usual = || {
            context.note(format!("no --limit: each key may do {USUAL_LIMIT}"));
            vec![usual_limit()]
        };
        let typed = |limits: &[Limit]| if limits.is_empty() { usual() } else { limits.to_vec() };
        let is_http = target.starts_with("http://") || target.starts_with("https://");
        if !is_http && let Some(flag) = self.http_only() {
            return Err(Failure::usage(format!("{flag} is for HTTP, and {target} is not")));
        }
        if target == "engine" {
            let limits = rule_limits(&typed(limits));
            let room = plan.keys.count().clamp(1_000_000, MAX_IDENTITIES);
            let store = Arc::new(MemoryStore::new(room));
            let aim = Aim::Engine(Local { store, limits: limits.clone() });
            return Ok(Prepared { name: "engine (memory)".into(), aim, limits, embedded: None });
        }
        if is_http {
            return self.http(&target, plan_args, limits);
        }
        if target.contains("://") {
            return self.redis(&target, &typed(limits), context);
        }
        Err(Failure::usage(format!(
            "`{}` is no target; write http://…, https://…, engine, or redis://…",
            Untrusted(&target)
        )))
    }

    /// What was typed that means nothing without HTTP.
    fn http_only(&self) -> Option<&'static str> {
        let given = [
            (self.key_in.is_some(), "--key-in"),
            (self.method != Method::GET, "--method"),
            (!self.headers.is_empty(), "--header"),
            (self.body.is_some(), "--body"),
            (self.http2, "--http2"),
            (self.unix_socket.is_some(), "--unix-socket"),
            (self.pipeline > 1, "--pipeline"),
        ];
        given.into_iter().find_map(|(given, flag)| given.then_some(flag))
    }

    fn http(&self, url: &str, plan_args: &PlanArgs, limits: &[Limit]) -> Result<Prepared, Failure> {
        let wrong = |why: &str| Failure::usage(format!("{}: {why}", Untrusted(url)));
        // The place of a key is not written as URLs are.
        let plain = url.replace("{key}", "rlctl-key-goes-here");
        let uri: Uri = plain.parse().map_err(|_| wrong("this is not a URL"))?;
        let authority = uri.authority().ok_or_else(|| wrong("a host is missing"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("no passwords in URLs; use --header \"Authorization: …\""));
        }
        let tls = uri.scheme_str() == Some("https");
        let port = authority.port_u16().unwrap_or(if tls { 443 } else { 80 });
        let host = authority.host().trim_matches(['[', ']']);
        let way = match &self.unix_socket {
            Some(path) => Way::Unix(path.clone()),
            None => Way::Tcp(self.resolve(host, port)?),
        };
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let path = path.replace("rlctl-key-goes-here", "{key}");
        let target = self.target(way, authority.as_str(), &path, tls.then_some(host), plan_args)?;
        let aim = if self.http2 { Aim::Http2(target) } else { Aim::Http(target) };
        Ok(Prepared { name: url.into(), aim, limits: rule_limits(limits), embedded: None })
    }

    fn target(
        &self,
        way: Way,
        authority: &str,
        path: &str,
        tls: Option<&str>,
        plan_args: &PlanArgs,
    ) -> Result<Target, Failure> {
        let open = path.contains("{key}");
        let key_in = match &self.key_in {
            Some(place) => Some(place.clone()),
            None if open => Some(KeyPlace::Path),
            None if plan_args.has_keys() => Some(KeyPlace::Header("X-API-Key".into())),
            None => None,
        };
        let parts = Parts {
            method: self.method.clone(),
            authority: authority.into(),
            path: path.into(),
            headers: self.headers.clone(),
            body: self.read_body()?,
            key_in,
        };
        let tls = match tls {
            None => None,
            Some(host) => {
                let name = ServerName::try_from(host.to_owned())
                    .map_err(|_| Failure::usage(format!("`{host}` is no name for TLS")))?;
                let connector = Roots::default().connector().map_err(Failure::usage)?;
                let mut config = (**connector.config()).clone();
                config.alpn_protocols =
                    vec![if self.http2 { b"h2".to_vec() } else { b"http/1.1".to_vec() }];
                Some((name, Arc::new(config)))
            }
        };
        let (connections, pipeline) = match self.http2 {
            // Requests of one connection run side by side, so a few connections do.
            true => {
                (self.connections.unwrap_or(4), if self.pipeline == 1 { 32 } else { self.pipeline })
            }
            false => (self.connections.unwrap_or(USUAL_CONNECTIONS), self.pipeline),
        };
        Ok(Target {
            way,
            parts,
            tls,
            connections: connections as usize,
            pipeline: pipeline as usize,
            patience: Duration::from(self.timeout),
        })
    }

    fn read_body(&self) -> Result<Vec<u8>, Failure> {
        let Some(path) = &self.body else { return Ok(Vec::new()) };
        let bad =
            |why: String| Failure::new(Exit::BadFile, format!("--body {}: {why}", path.display()));
        let size = std::fs::metadata(path).map_err(|error| bad(error.to_string()))?.len();
        if size > MAX_BODY_BYTES {
            return Err(bad(format!("{size} bytes are too many; at most {MAX_BODY_BYTES}")));
        }
        std::fs::read(path).map_err(|error| bad(error.to_string()))
    }

    fn redis(&self, url: &str, limits: &[Limit], context: &Context) -> Result<Prepared, Failure> {
        let options = context.options(url, self.timeout)?;
        for host in redis_hosts(url) {
            self.allow(&host, &resolved(&host, 6379).unwrap_or_default())?;
        }
        let limits = rule_limits(limits);
        let connections = self.connections.unwrap_or(USUAL_CONNECTIONS);
        let aim = Aim::Redis(Box::new(RedisAim {
            options,
            prefix: own_prefix(&context.prefix)?,
            limits: limits.clone(),
            at_most: connections as usize,
        }));
        let name = format!("engine on {}", crate::engine::store::redis::without_secrets(url));
        Ok(Prepared { name, aim, limits, embedded: None })
    }

    /// A gateway in this process, in front of nothing.
    async fn embedded(
        &self,
        plan_args: &PlanArgs,
        limits: &[Limit],
        context: &Context,
    ) -> Result<Prepared, Failure> {
        let usual = [usual_limit()];
        let limits = if limits.is_empty() { &usual } else { limits };
        let dimension = match (plan_args.has_keys(), &self.key_in) {
            (false, None) => "ip".into(),
            (true, None) => "apikey".into(),
            (_, Some(KeyPlace::Header(name))) => format!("header:{}", name.to_ascii_lowercase()),
            (_, Some(_)) => {
                return Err(Failure::usage(
                    "the gateway in this process knows keys in a header only; name a target, or \
                     --key-in header:NAME",
                ));
            }
        };
        let text = policy_of(limits, &dimension);
        let source = PolicySource::Given { name: "--limit".into(), text };
        let gateway = Arc::new(Gateway::open(&source, None, About::new(Vec::new())).await);
        gateway.keep_up();
        let listener = bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        let address = listener.local_addr()?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        // One core is the client's.
        let workers = (cores - 1).max(1);
        let options = ServeOptions {
            workers,
            drain: Duration::from_millis(200),
            ..ServeOptions::to(Upstream::Echo)
        };
        let serving = Serving::start(&gateway, &listener, &options)?;
        let first = &limits[0];
        context.note(format!(
            "no target: a gateway in this process on {address}, {dimension} {first} {}",
            first.algorithm()
        ));
        let target = self.target(Way::Tcp(address), &address.to_string(), "/", None, plan_args)?;
        let aim = if self.http2 { Aim::Http2(target) } else { Aim::Http(target) };
        Ok(Prepared {
            name: format!("http://{address}/ (in this process)"),
            aim,
            limits: rule_limits(limits),
            embedded: Some(serving),
        })
    }

    fn resolve(&self, host: &str, port: u16) -> Result<SocketAddr, Failure> {
        let found = resolved(host, port).map_err(|error| {
            let what = format!("cannot find {}: {error}", Untrusted(host));
            Failure::new(Exit::Unreachable, what)
        })?;
        self.allow(host, &found)?;
        found.first().copied().ok_or_else(|| {
            Failure::new(Exit::Unreachable, format!("{} has no address", Untrusted(host)))
        })
    }

    /// Nobody loads another machine by a slip.
    fn allow(&self, host: &str, addresses: &[SocketAddr]) -> Result<(), Failure> {
        let here = |address: &SocketAddr| address.ip().to_canonical().is_loopback();
        let local = !addresses.is_empty() && addresses.iter().all(here);
        if local || self.own.iter().any(|own| own.eq_ignore_ascii_case(host)) {
            return Ok(());
        }
        let host = Untrusted(host);
        let what =
            format!("{host} is another machine; if it is yours to load, say so with --own {host}");
        Err(Failure::new(Exit::Refused, what))
    }
}

fn resolved(host: &str, port: u16) -> std::io::Result<Vec<SocketAddr>> {
    match host.parse::<IpAddr>() {
        Ok(address) => Ok(vec![SocketAddr::new(address, port)]),
        Err(_) => Ok((host, port).to_socket_addrs()?.collect()),
    }
}

/// The hosts of a Redis URL; none of a socket's.
fn redis_hosts(url: &str) -> Vec<String> {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    if scheme.ends_with("+unix") || scheme == "unix" {
        return Vec::new();
    }
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let hosts = authority.rsplit_once('@').map_or(authority, |(_, hosts)| hosts);
    let host = |text: &str| match text.strip_prefix('[').and_then(|t| t.split_once(']')) {
        Some((inner, _)) => inner.to_owned(),
        None => text.split(':').next().unwrap_or_default().to_owned(),
    };
    hosts.split(',').map(host).collect()
}

fn usual_limit() -> Limit {
    let quota = USUAL_LIMIT.parse().expect("it is a limit");
    Limit::new(Algorithm::TokenBucket, quota).expect("it is in range")
}

fn rule_limits(limits: &[Limit]) -> Arc<[Arc<RuleLimit>]> {
    let one = |(limit, index): (&Limit, u8)| Arc::new(RuleLimit::new("bench", index, *limit));
    limits.iter().zip(0u8..).map(one).collect()
}

/// A run touches nobody's quota.
fn own_prefix(prefix: &Prefix) -> Result<Prefix, Failure> {
    let run = Micros::now().0 % 1_000_000_000_000;
    Prefix::new(&format!("{}bench-{}-{run}:", prefix.as_str(), std::process::id()))
        .map_err(|_| Failure::usage("--prefix is too long for a run; at most 32 characters"))
}

/// Where the gateway of the context has its proxy.
async fn gateway_of_context(context: &Context) -> Result<String, Failure> {
    let gateway = context.one_gateway()?;
    let ok = [http::StatusCode::OK];
    let (_, answer) = gateway.ask(Method::GET, "/api/v1/gateways", None, &ok).await?;
    let items = answer["items"].as_array().cloned().unwrap_or_default();
    let host = gateway.at().parse::<Uri>().ok().and_then(|uri| uri.host().map(String::from));
    let proxy = items.iter().find_map(|item| {
        ["http", "https"].into_iter().find_map(|scheme| {
            let address: SocketAddr = item["about"]["listening"][scheme].as_str()?.parse().ok()?;
            // One that listens everywhere is reached as its admin address is.
            let host = host.clone().filter(|_| address.ip().is_unspecified());
            let host = host.unwrap_or_else(|| address.ip().to_string());
            Some(format!("{scheme}://{host}:{}/", address.port()))
        })
    });
    let url = proxy.ok_or_else(|| {
        let what = format!("the gateway at {} does not say where its proxy is", gateway.at());
        Failure::new(Exit::Unreachable, what)
    })?;
    context.note(format!("no target: the gateway of the context, {url}"));
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_a_redis_are_found_wherever_they_stand() {
        for (url, hosts) in [
            ("redis://127.0.0.1:6379/0", vec!["127.0.0.1"]),
            ("redis://user:p@ss@[::1]:6379", vec!["::1"]),
            ("redis-sentinel://a:26379,b/0?master=m", vec!["a", "b"]),
            ("redis+unix:///tmp/x", vec![]),
        ] {
            assert_eq!(redis_hosts(url), hosts, "{url}");
        }
    }

    #[test]
    fn headers_that_frame_a_request_are_not_taken() {
        assert_eq!(parse_header("X-A: b:c"), Ok(("X-A".into(), "b:c".into())));
        assert!(parse_header("Content-Length: 5").is_err());
        assert!(parse_header("X-A").is_err() && parse_header("X A: b").is_err());
        assert!(parse_header("X-A: b\r\nEvil: 1").is_err());
    }
}
