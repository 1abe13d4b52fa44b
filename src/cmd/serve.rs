//! `rlctl serve`: a gateway that enforces.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::limit_args::LimitArgs;
use super::{Context, Exit, Failure, LogFormat, OPERATOR_DEADLINE, rules_file};
use crate::engine::clock::Micros;
use crate::engine::limit::Limit;
use crate::engine::live::LivePolicy;
use crate::engine::units;
use crate::gateway::access::Access;
use crate::gateway::log::{DEFAULT_VIOLATIONS_PER_SECOND, Format, Log, LogOptions, Sink};
use crate::gateway::proxy::{Destination, Upstream};
use crate::gateway::serve::{ServeOptions, Serving, bind};
use crate::gateway::sides::Sides;
use crate::gateway::tls::{Roots, acceptor};
use crate::gateway::{About, Backing, Gateway, PolicySource};
use crate::output::finding_text;

/// What each client may do where nobody says anything.
const USUAL_LIMIT: &str = "1/1s burst 10";

/// How long the end waits for the last lines to be written.
const LAST_LINES: Duration = Duration::from_secs(2);
/// How long the end waits for leases to be given back.
const LAST_RETURNS: Duration = Duration::from_millis(500);

/// Enforce limits: a reverse proxy in front of an upstream
///
/// Requests that pass go on to the upstream, the others are answered 429 with the time to come
/// back. Limits come from --rules, or are the same for every client with --limit. Counted in
/// memory, or with --redis by all gateways together.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rlctl serve                                        one client: 1/s, 10 at once; answers itself
  rlctl serve --upstream http://127.0.0.1:3000 --limit 100/1m
  rlctl serve --upstream http://127.0.0.1:3000 --rules rules.toml --redis redis://127.0.0.1:6379
  rlctl serve --rules store --redis redis://127.0.0.1:6379   what `rlctl rules publish` put there
  rlctl serve --admin 0.0.0.0:9090 --token-file tokens --grpc 127.0.0.1:8081
  curl -i http://127.0.0.1:8080/
  curl http://127.0.0.1:9090/metrics

SIGHUP reads the rules again (changed files are seen without it); SIGTERM and Ctrl-C let open
requests finish.")]
pub(super) struct Args {
    /// Where clients come in [default: 127.0.0.1:8080] [env: RLCTL_LISTEN]
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Where requests go: a URL, or `echo`, which is built in [default: echo] [env: RLCTL_UPSTREAM]
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,
    #[command(flatten)]
    limits: LimitArgs,
    /// Where operators and other services ask: check API, admin API, metrics
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9090")]
    admin: String,
    /// Where checks are asked over gRPC, also by Envoy; nowhere if not given
    #[arg(long, value_name = "ADDR")]
    grpc: Option<String>,
    /// Certificate chain in PEM: clients come in by TLS
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Its private key in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Where events and refusals are written, appended to [default: stderr]
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Write a line for every request, too
    #[arg(long)]
    access_log: bool,
    /// Threads that serve [default: one for each core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    workers: Option<u16>,
    /// Client connections open at once; more wait to be accepted
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_connections: u32,
    /// How long open requests may go on after SIGTERM
    #[arg(long, value_name = "D", default_value = "30s", value_parser = units::parse_period)]
    drain: Micros,
    /// How long the upstream may be silent before a request is given up
    #[arg(long, value_name = "D", default_value = "60s", value_parser = units::parse_period)]
    upstream_timeout: Micros,
}

pub(super) async fn run(args: Args, context: &Context) -> Result<Exit, Failure> {
    context.refuse_output("serve prints where it listens and no data")?;
    let options = args.options(context)?;
    let source = args.source(context).await?;
    let listen = args.listen.clone().or_else(|| context.env("RLCTL_LISTEN"));
    let access = args.access(context)?;
    let (listener, address) = open(listen.as_deref().unwrap_or("127.0.0.1:8080"), "--listen")?;
    let (admin, admin_address) = open(&args.admin, "--admin")?;
    let grpc = args.grpc.as_deref().map(|address| open(address, "--grpc")).transpose()?;
    let scheme = if options.tls.is_some() { "https" } else { "http" };
    let mut listening = vec![(scheme, address), ("admin", admin_address)];
    listening.extend(grpc.iter().map(|(_, address)| ("grpc", *address)));
    let about =
        About::new(listening.into_iter().map(|(name, at)| (name, at.to_string())).collect());
    let gateway = Arc::new(Gateway::open(&source, backing(context)?, about).await);
    tell_start(&gateway, &source, context)?;
    let log = args.start_log(&gateway, context)?;
    gateway.keep_up();
    let mut signals = Signals::new()?;
    let serving = Serving::start(&gateway, &listener, &options)?;
    let sides = Sides::start(&gateway, &access, admin, grpc.map(|(listener, _)| listener))?;
    drop(listener);
    tell_addresses(&gateway);
    signals.until_stop(&gateway.limiter.policy, &source, context).await;
    context.note("stopping; open requests may finish");
    gateway.drain();
    sides.drain();
    let drained = async {
        let all = serving.stop().await;
        sides.stop().await;
        all
    };
    let exit = tokio::select! {
        all = drained => {
            if !all {
                context.note(format!("some requests were cut off after {}", args.drain));
            }
            Exit::Fine
        }
        () = signals.stop() => Exit::Interrupted,
    };
    // What is left of leases; a store that is away must not hold up the end.
    let _ = tokio::time::timeout(LAST_RETURNS, gateway.limiter.return_leases(true)).await;
    if let Some(log) = log {
        log.flush(LAST_LINES);
    }
    Ok(exit)
}

impl Args {
    /// Nothing is written on stderr where that is to be quiet.
    fn start_log(&self, gateway: &Gateway, context: &Context) -> Result<Option<Log>, Failure> {
        let sink = match &self.log {
            Some(path) => Sink::File(path.clone()),
            None if context.quiet => return Ok(None),
            None => Sink::Stderr,
        };
        let log = Log::start(LogOptions {
            format: match context.log_format {
                LogFormat::Text => Format::Human,
                LogFormat::Json => Format::Json,
            },
            sink,
            gateway: gateway.about.id.clone(),
            violations_per_second: DEFAULT_VIOLATIONS_PER_SECOND,
            access: self.access_log,
        });
        let log = log.map_err(|error| {
            let path = self.log.as_deref().unwrap_or("stderr".as_ref()).display().to_string();
            Failure::new(Exit::Failed, format!("cannot write to {path}: {error}"))
        })?;
        gateway.stats.log_to(log.clone());
        Ok(Some(log))
    }

    /// Who may ask besides clients; beyond this machine only those who are known.
    fn access(&self, context: &Context) -> Result<Arc<Access>, Failure> {
        if let Some(path) = &context.token_file {
            let (access, warning) =
                Access::from_file(path).map_err(|why| Failure::new(Exit::BadFile, why))?;
            if let Some(warning) = warning {
                context.note(warning);
            }
            return Ok(Arc::new(access));
        }
        let addresses = [("--admin", Some(&self.admin)), ("--grpc", self.grpc.as_ref())];
        for (flag, address) in addresses {
            let parsed = address.and_then(|address| address.parse::<SocketAddr>().ok());
            if parsed.is_some_and(|parsed| !parsed.ip().to_canonical().is_loopback()) {
                return Err(Failure::usage(format!(
                    "{flag} {} can be reached from other machines: say who may ask with \
                     --token-file FILE, one `read|write TOKEN [NAME]` a line",
                    parsed.map_or_else(String::new, |parsed| parsed.to_string())
                )));
            }
        }
        Ok(Arc::new(Access::local()))
    }

    fn options(&self, context: &Context) -> Result<ServeOptions, Failure> {
        let roots = Roots::default();
        let named = self.upstream.clone().or_else(|| context.env("RLCTL_UPSTREAM"));
        let upstream = match named.as_deref() {
            None | Some("echo") => Upstream::Echo,
            Some(url) => {
                let destination = Destination::parse(url, || roots.connector());
                Upstream::At(destination.map_err(Failure::usage)?)
            }
        };
        let tls = match (&self.tls_cert, &self.tls_key) {
            (Some(chain), Some(key)) => {
                Some(acceptor(chain, key).map_err(|why| Failure::new(Exit::BadFile, why))?)
            }
            _ => None,
        };
        let usual = ServeOptions::to(upstream);
        Ok(ServeOptions {
            tls,
            roots,
            workers: self.workers.map_or(usual.workers, usize::from),
            max_connections: self.max_connections as usize,
            drain: self.drain.into(),
            upstream_patience: self.upstream_timeout.into(),
            ..usual
        })
    }

    async fn source(&self, context: &Context) -> Result<PolicySource, Failure> {
        match context.rules.as_deref() {
            Some(_) if self.limits.are_given() => {
                Err(Failure::usage("give --limit or --rules, not both"))
            }
            Some(named) => match rules_file::in_store(named) {
                None => {
                    // What is wrong is told now, with its place; later changes are refused in the
                    // log.
                    rules_file::load(named, context).await?;
                    Ok(PolicySource::File(named.into()))
                }
                Some(Some(_)) => Err(Failure::usage(
                    "a gateway follows the newest version; rlctl rules rollback publishes an old one",
                )),
                Some(None) if context.redis.is_none() => Err(Failure::usage(
                    "--rules store is kept in a Redis; say in which one with --redis URL",
                )),
                Some(None) => Ok(PolicySource::Published),
            },
            None => {
                let limits = self.limits.limits(context)?;
                Ok(PolicySource::Given { name: "--limit".into(), text: policy_of(&limits, "ip") })
            }
        }
    }
}

/// The policy of `--limit`: the same for every client, known by this dimension.
pub(super) fn policy_of(limits: &[Limit], dimension: &str) -> String {
    let one =
        |limit: &Limit| format!("{{ limit = \"{limit}\", algorithm = \"{}\" }}", limit.algorithm());
    let limits = match limits {
        [] => format!("\"{USUAL_LIMIT}\""),
        some => some.iter().map(one).collect::<Vec<_>>().join(", "),
    };
    format!("[[rule]]\nname = \"per-client\"\ndimension = \"{dimension}\"\nlimits = [{limits}]\n")
}

fn open(address: &str, flag: &str) -> Result<(TcpListener, SocketAddr), Failure> {
    let parsed: SocketAddr = address.parse().map_err(|_| {
        Failure::usage(format!(
            "{flag}: `{address}` is not an address; e.g. 127.0.0.1:8080, [::]:80"
        ))
    })?;
    let opened = bind(parsed).and_then(|listener| {
        let real = listener.local_addr()?;
        Ok((listener, real))
    });
    opened.map_err(|error| {
        let what = format!("cannot listen on {parsed}: {error}; choose another with {flag} ADDR");
        Failure::new(Exit::Failed, what)
    })
}

fn backing(context: &Context) -> Result<Option<Backing>, Failure> {
    let Some(url) = &context.redis else { return Ok(None) };
    let options = context.options(url, OPERATOR_DEADLINE)?;
    let (address, connect_timeout) = (options.address, options.connect_timeout);
    Ok(Some(Backing { address, prefix: context.prefix.clone(), connect_timeout }))
}

/// A reader who has gone away (`rlctl serve | head -1`) is no reason to stop serving.
fn tell_addresses(gateway: &Gateway) {
    let mut stdout = io::stdout();
    for (name, address) in &gateway.about.listening {
        let _ = writeln!(stdout, "listening {name} {address}");
    }
    let _ = stdout.flush();
}

/// What a person should know who has just started it.
fn tell_start(gateway: &Gateway, source: &PolicySource, context: &Context) -> Result<(), Failure> {
    if let PolicySource::Given { text, .. } = source
        && text.contains(USUAL_LIMIT)
    {
        context.note(format!(
            "no rules: each client, by its address, may do {USUAL_LIMIT}; see --rules and --limit"
        ));
    }
    if let Some(trouble) = gateway.limiter.store.trouble() {
        context.note(format!("{trouble}; until it answers, rules decide by on_store_error"));
    }
    let status = gateway.limiter.policy.status();
    match (&status.loaded, &status.refused) {
        (Some(_), _) => Ok(()),
        (None, Some(refused)) => {
            for finding in &refused.why.errors {
                write!(io::stderr(), "{}", finding_text(finding))?;
            }
            Err(Failure::new(Exit::BadFile, ""))
        }
        (None, None) => {
            context.note("there is no policy yet: everything passes, marked degraded");
            Ok(())
        }
    }
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    fn new() -> io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    async fn stop(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// Reads the rules again at each SIGHUP, and tells what came of it.
    async fn until_stop(
        &mut self,
        policy: &Arc<LivePolicy>,
        source: &PolicySource,
        context: &Context,
    ) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.hang_up.recv() => {}
            }
            if let PolicySource::File(path) = source {
                policy.reread(path).await;
            }
            let status = policy.status();
            match (&status.refused, &status.loaded) {
                (Some(refused), _) => context.note(refused),
                (None, Some(loaded)) => context.note(format!(
                    "the policy is {}, version {}, {}",
                    loaded.source,
                    loaded.version,
                    loaded.short_hash()
                )),
                (None, None) => context.note("there is no policy yet"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::config::parse_policy;
    use crate::engine::limit::Algorithm;

    #[test]
    fn what_is_given_on_the_command_line_is_a_policy() {
        let gcra = Limit::new(Algorithm::Gcra, "5/1s burst 7".parse().unwrap()).unwrap();
        let window = Limit::new(Algorithm::FixedWindow, "100/1m".parse().unwrap()).unwrap();
        for limits in [vec![], vec![gcra], vec![gcra, window]] {
            let (policy, _) =
                parse_policy("--limit", &policy_of(&limits, "ip"), Micros::ZERO).unwrap();
            assert_eq!(policy.rules.len(), 1);
        }
    }
}
