//! The doors: connections are accepted, bounded, timed, spoken to in HTTP/1.1 or HTTP/2, and let
//! finish what they began when the gateway stops.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::header::UPGRADE;
use http::{Request, Response};
use hyper::body::{Body, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use super::impatient::Impatient;
use super::proxy::Peer;

/// From the first byte that is awaited to the end of a request's head; so it is also how long a
/// connection may idle between two requests.
const HEAD_WITHIN: Duration = Duration::from_secs(30);
const TLS_WITHIN: Duration = Duration::from_secs(10);
/// A client that takes nothing of its answer for so long has gone, whatever its connection says.
const TAKES_WITHIN: Duration = Duration::from_secs(60);
/// Request line and headers of one request.
const MAX_HEAD_BYTES: usize = 64 << 10;
const MAX_HEADERS: usize = 100;
pub(super) const TOO_MANY_HEADERS: &str = "more than 100 headers";
const MAX_STREAMS: u32 = 200;
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// After a failure to accept (no file descriptors left) others must end before it can go better.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// In HTTP/1.1 hyper refuses more while it reads them, unless told of another number, which it takes
/// longer for; HTTP/2 counts only their bytes.
pub(super) fn has_too_many_headers<B>(request: &Request<B>) -> bool {
    request.headers().len() > MAX_HEADERS
}

/// One of the connections that may be open, until the last who holds it lets go.
#[derive(Clone, Debug)]
pub(super) struct Place {
    _permit: Arc<OwnedSemaphorePermit>,
}

impl Place {
    fn new(permit: OwnedSemaphorePermit) -> Place {
        Place { _permit: Arc::new(permit) }
    }
}

/// What all connections of one door share.
#[derive(Clone)]
pub struct Door {
    pub tls: Option<TlsAcceptor>,
    /// One for each connection that may be open.
    pub places: Arc<Semaphore>,
    /// True once everybody shall finish.
    pub closing: watch::Receiver<bool>,
    pub head_within: Duration,
    /// How long a client may take nothing of what it is sent.
    pub takes_within: Duration,
}

impl Door {
    pub fn new(max_connections: usize, closing: watch::Receiver<bool>) -> Door {
        let places = Arc::new(Semaphore::new(max_connections));
        Door { tls: None, places, closing, head_within: HEAD_WITHIN, takes_within: TAKES_WITHIN }
    }

    /// Accepts until closing, then returns; connections finish by themselves, see [`Door::drained`].
    pub async fn serve<S, F, B>(self, listener: TcpListener, serve: S)
    where
        S: Fn(Request<Incoming>, Peer) -> F + Clone + Send + 'static,
        F: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data = bytes::Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
            + Send
            + 'static,
    {
        let mut closing = self.closing.clone();
        loop {
            let accepted = tokio::select! {
                accepted = self.accept(&listener) => accepted,
                _ = closing.wait_for(|closing| *closing) => return,
            };
            match accepted {
                Ok((stream, address, place)) => {
                    let (door, serve, place) = (self.clone(), serve.clone(), Place::new(place));
                    tokio::spawn(door.talk(stream, address, place, serve));
                }
                Err(_) => sleep(ACCEPT_PAUSE).await,
            }
        }
    }

    /// Waits for a place first: whoever comes when all are taken waits in the system's queue.
    async fn accept(
        &self,
        listener: &TcpListener,
    ) -> io::Result<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
        let place = self.places.clone().acquire_owned().await.map_err(io::Error::other)?;
        let (stream, address) = listener.accept().await?;
        Ok((stream, address, place))
    }

    async fn talk<S, F, B>(self, stream: TcpStream, address: SocketAddr, place: Place, serve: S)
    where
        S: Fn(Request<Incoming>, Peer) -> F + Clone + Send + 'static,
        F: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data = bytes::Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
            + Send
            + 'static,
    {
        // A connection that cannot be set so works as well, only later.
        let _ = stream.set_nodelay(true);
        let Some(tls) = &self.tls else {
            let Some(is_http2) = self.begins_as_http2(&stream).await else { return };
            let peer = Peer { address, is_tls: false };
            let io = TokioIo::new(Impatient::new(stream, self.takes_within));
            return self.speak(io, is_http2, peer, place, serve).await;
        };
        // Somebody who does not finish the handshake is no client.
        let Ok(Ok(stream)) = timeout(TLS_WITHIN, tls.accept(stream)).await else { return };
        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        let peer = Peer { address, is_tls: true };
        let io = TokioIo::new(Impatient::new(stream, self.takes_within));
        self.speak(io, is_http2, peer, place, serve).await;
    }

    /// Looks at the first bytes without taking them; none when they do not come in time.
    async fn begins_as_http2(&self, stream: &TcpStream) -> Option<bool> {
        let look = async {
            let mut bytes = [0; HTTP2_PREFACE.len()];
            loop {
                let seen = stream.peek(&mut bytes).await.ok().filter(|seen| *seen > 0)?;
                if !HTTP2_PREFACE.starts_with(&bytes[..seen]) {
                    return Some(false);
                }
                if seen == bytes.len() {
                    return Some(true);
                }
                // The same bytes would be seen again at once.
                sleep(Duration::from_millis(10)).await;
            }
        };
        let mut closing = self.closing.clone();
        tokio::select! {
            looked = timeout(self.head_within, look) => looked.ok()?,
            _ = closing.wait_for(|closing| *closing) => None,
        }
    }

    async fn speak<I, S, F, B>(self, io: I, is_http2: bool, peer: Peer, place: Place, serve: S)
    where
        I: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
        S: Fn(Request<Incoming>, Peer) -> F + Clone + Send + 'static,
        F: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data = bytes::Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
            + Send
            + 'static,
    {
        let begun = Arc::new(Notify::new());
        let asked = begun.clone();
        let service = service_fn(move |mut request: Request<Incoming>| {
            asked.notify_one();
            // A tunnel outlives the HTTP on its connection, and keeps its place.
            if request.headers().contains_key(UPGRADE) {
                request.extensions_mut().insert(place.clone());
            }
            let reply = serve(request, peer);
            async move { Ok::<_, Infallible>(reply.await) }
        });
        let mut closing = self.closing.clone();
        // Errors of a connection are its client's: there is nobody left to tell.
        if is_http2 {
            let connection = http2_builder().serve_connection(io, service);
            let mut connection = std::pin::pin!(connection);
            tokio::select! {
                biased;
                _ = connection.as_mut() => return,
                _ = closing.wait_for(|closing| *closing) => {}
                // Pings keep it open, but nobody asks: streams that are open may finish.
                () = no_more(&begun, self.head_within) => {}
            }
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        } else {
            let mut builder = http1::Builder::new();
            builder
                .timer(TokioTimer::new())
                .header_read_timeout(self.head_within)
                .max_buf_size(MAX_HEAD_BYTES);
            let connection = builder.serve_connection(io, service).with_upgrades();
            let mut connection = std::pin::pin!(connection);
            tokio::select! {
                biased;
                _ = connection.as_mut() => return,
                _ = closing.wait_for(|closing| *closing) => {}
            }
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
    }

    /// Waits until every connection has ended; false when some have not `within` that time.
    pub async fn drained(&self, max_connections: usize, within: Duration) -> bool {
        let all = u32::try_from(max_connections).unwrap_or(u32::MAX);
        timeout(within, self.places.acquire_many(all)).await.is_ok()
    }
}

/// Returns once nothing was begun for that long.
async fn no_more(begun: &Notify, within: Duration) {
    while timeout(within, begun.notified()).await.is_ok() {}
}

fn http2_builder() -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(Some(Duration::from_secs(20)))
        .keep_alive_timeout(Duration::from_secs(10))
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEAD_BYTES as u32)
        .max_pending_accept_reset_streams(Some(20))
        .max_local_error_reset_streams(Some(100));
    builder
}

impl std::fmt::Debug for Door {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Door").field("is_tls", &self.tls.is_some()).finish_non_exhaustive()
    }
}
