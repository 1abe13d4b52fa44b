//! A gateway at work: its proxy on several workers, until it is told to stop.
//!
//! Each worker is a thread with a runtime, connections and upstream pools of its own: a request
//! never changes the core it is on.

use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use std::{io, thread};

use socket2::{Domain, Socket, Type};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use super::Gateway;
use super::listen::Door;
use super::proxy::{Proxy, Upstream};
use super::tls::Roots;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 1_024;

/// How the proxy serves.
#[derive(Clone)]
pub struct ServeOptions {
    pub upstream: Upstream,
    pub tls: Option<TlsAcceptor>,
    pub roots: Roots,
    pub workers: usize,
    pub max_connections: usize,
    /// How long connections may go on after the stop.
    pub drain: Duration,
    pub upstream_patience: Duration,
    /// How long the head of a request may take, and a connection may idle before it.
    pub head_within: Duration,
    /// How long a client may take nothing of its answer.
    pub takes_within: Duration,
}

impl ServeOptions {
    pub fn to(upstream: Upstream) -> ServeOptions {
        ServeOptions {
            upstream,
            tls: None,
            roots: Roots::default(),
            workers: std::thread::available_parallelism().map_or(1, usize::from),
            max_connections: 10_000,
            drain: Duration::from_secs(30),
            upstream_patience: Duration::from_secs(60),
            head_within: Duration::from_secs(30),
            takes_within: Duration::from_secs(60),
        }
    }
}

/// The running proxy; dropped, it is told to stop.
#[derive(Debug)]
pub struct Serving {
    stop: watch::Sender<bool>,
    workers: Vec<JoinHandle<io::Result<bool>>>,
}

/// Opens a door, to which each worker may open another; port 0 takes a free one.
pub fn bind(address: SocketAddr) -> io::Result<StdListener> {
    // Alone at first: another process must not share the door unnoticed.
    let alone = open(address, false)?;
    let address = alone.local_addr()?;
    drop(alone);
    open(address, true)
}

fn open(address: SocketAddr, share: bool) -> io::Result<StdListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    // A restart must not wait for the old connections to be forgotten.
    #[cfg(unix)]
    socket.set_reuse_address(true)?;
    // One door for each worker, and the system shares clients out among them.
    #[cfg(target_os = "linux")]
    socket.set_reuse_port(share)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

impl Serving {
    /// Starts the workers, each on a door of its own where the system knows how.
    pub fn start(
        gateway: &Arc<Gateway>,
        listener: &StdListener,
        options: &ServeOptions,
    ) -> io::Result<Serving> {
        let (stop, closing) = watch::channel(false);
        let mut workers = Vec::new();
        for number in 0..options.workers.max(1) {
            let (gateway, options) = (gateway.clone(), options.clone());
            let listener = match number {
                0 => listener.try_clone()?,
                _ => another(listener)?,
            };
            let closing = closing.clone();
            let name = format!("proxy-{number}");
            let work = move || work(gateway, listener, &options, closing);
            workers.push(thread::Builder::new().name(name).spawn(work)?);
        }
        Ok(Serving { stop, workers })
    }

    /// No further connections; those that are open finish what they began. False when some were
    /// cut off.
    pub async fn stop(mut self) -> bool {
        self.stop.send_replace(true);
        let workers = std::mem::take(&mut self.workers);
        let ended = tokio::task::spawn_blocking(move || {
            let each = |worker: JoinHandle<io::Result<bool>>| matches!(worker.join(), Ok(Ok(true)));
            // All of them are waited for, whatever one says.
            workers.into_iter().map(each).fold(true, |all, one| all & one)
        });
        ended.await.unwrap_or(false)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}

/// A second door at the same address.
fn another(listener: &StdListener) -> io::Result<StdListener> {
    if cfg!(target_os = "linux") {
        open(listener.local_addr()?, true)
    } else {
        listener.try_clone()
    }
}

fn work(
    gateway: Arc<Gateway>,
    listener: StdListener,
    options: &ServeOptions,
    closing: watch::Receiver<bool>,
) -> io::Result<bool> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let share = options.max_connections.div_ceil(options.workers.max(1));
    runtime.block_on(async {
        let listener = TcpListener::from_std(listener)?;
        let (upstream, roots) = (options.upstream.clone(), options.roots.clone());
        let proxy = Arc::new(Proxy::new(gateway, upstream, roots, options.upstream_patience));
        let door = Door {
            tls: options.tls.clone(),
            head_within: options.head_within,
            takes_within: options.takes_within,
            ..Door::new(share, closing)
        };
        let serve = move |request, peer| {
            let proxy = proxy.clone();
            // Boxed: it is large, and hyper moves what it is given.
            Box::pin(async move { proxy.answer(request, peer).await })
        };
        door.clone().serve(listener, serve).await;
        Ok(door.drained(share, options.drain).await)
    })
}

impl std::fmt::Debug for ServeOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServeOptions")
            .field("upstream", &self.upstream)
            .field("workers", &self.workers)
            .finish_non_exhaustive()
    }
}
