//! Connections to one upstream, kept for the next request. Each worker has its own, so that a
//! connection and those who use it stay on one core.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use http::uri::{Authority, PathAndQuery};
use http::{HeaderValue, Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep_until, timeout};
use tokio_rustls::TlsConnector;

use super::body::{Progress, Watched};

/// Idle connections kept for each upstream by one worker; more are closed when they are done.
const MAX_IDLE: usize = 1_024;
/// Upstreams commonly close after a minute; a connection that is about to be closed is no use.
const IDLE_FOR: Duration = Duration::from_secs(50);
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// A kept connection is ready at once, or it is better to take another.
const READY_WITHIN: Duration = Duration::from_millis(50);

type Sender = SendRequest<Watched>;

/// Where requests go.
#[derive(Clone, Debug)]
pub struct Destination {
    authority: Authority,
    host: HeaderValue,
    tls: Option<Tls>,
    /// What comes before the path of a request; without a slash at its end.
    base: String,
}

#[derive(Clone, Debug)]
struct Tls {
    connector: Arc<TlsConfig>,
    name: rustls::pki_types::ServerName<'static>,
}

struct TlsConfig(TlsConnector);

/// Why there is no answer from upstream.
#[derive(Debug, thiserror::Error)]
pub(super) enum UpstreamError {
    #[error("cannot connect: {0}")]
    Connect(std::io::Error),
    #[error("did not accept a connection within {CONNECT_WITHIN:?}")]
    ConnectTimeout,
    #[error("did not answer within {0:?}")]
    Silent(Duration),
    #[error("broke off: {0}")]
    Broken(hyper::Error),
    #[error("went on in another protocol, and nobody had asked for one")]
    Switched,
}

#[derive(Debug)]
pub(super) struct Pool {
    pub(super) destination: Destination,
    /// Each with when it was given back.
    idle: Mutex<Vec<(Connection, Instant)>>,
}

#[derive(Debug)]
struct Connection {
    sender: Sender,
    /// Ends the patience with an answer. It goes on from request to request: to put a timer off is
    /// far cheaper than to set another.
    timer: Pin<Box<Sleep>>,
}

/// A connection in use, to be given back when its answer is complete. Dropped before, it closes.
#[derive(Debug)]
pub(super) struct Lease {
    connection: Connection,
    pool: Arc<Pool>,
}

impl Lease {
    pub(super) fn finish(self) {
        if !self.connection.sender.is_closed() {
            let mut idle = self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner);
            if idle.len() < MAX_IDLE {
                idle.push((self.connection, Instant::now()));
            }
        }
    }
}

impl Destination {
    /// `http://host:port/base` or `https://…`.
    pub fn parse(
        url: &str,
        tls: impl FnOnce() -> Result<TlsConnector, String>,
    ) -> Result<Destination, String> {
        let wrong =
            |why: &str| format!("`{url}` cannot be an upstream: {why}; e.g. http://127.0.0.1:3000");
        let uri: Uri = url.parse().map_err(|_| wrong("it is not a URL"))?;
        let host =
            uri.host().filter(|host| !host.is_empty()).ok_or_else(|| wrong("it names no host"))?;
        if uri.query().is_some() {
            return Err(wrong("it has a query"));
        }
        if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return Err("an upstream takes no user and password in its URL".into());
        }
        let is_tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(wrong("it begins with neither http:// nor https://")),
        };
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let authority = format!("{host}:{port}").parse().map_err(|_| wrong("its host is odd"))?;
        let shown = uri.authority().map(Authority::as_str).unwrap_or_default();
        let tls = match is_tls {
            false => None,
            true => Some(Tls {
                connector: Arc::new(TlsConfig(tls()?)),
                name: host
                    .trim_matches(['[', ']'])
                    .to_owned()
                    .try_into()
                    .map_err(|_| wrong("its host has no certificate name"))?,
            }),
        };
        Ok(Destination {
            authority,
            host: HeaderValue::try_from(shown).map_err(|_| wrong("its host is odd"))?,
            tls,
            base: uri.path().trim_end_matches('/').into(),
        })
    }

    pub(super) fn host(&self) -> &HeaderValue {
        &self.host
    }

    /// What a request asks of this upstream: only path and query are the client's.
    pub(super) fn target(&self, asked: &Uri) -> Uri {
        let path = asked.path_and_query();
        if self.base.is_empty() {
            return path.cloned().map(Uri::from).unwrap_or_default();
        }
        let path = path.map_or("/", PathAndQuery::as_str);
        Uri::try_from(format!("{}{path}", self.base)).unwrap_or_default()
    }
}

impl Pool {
    pub(super) fn new(destination: Destination) -> Arc<Pool> {
        Arc::new(Pool { destination, idle: Mutex::default() })
    }

    /// Sends a request and waits for the head of its answer, no longer than `patience` after the
    /// last sign of life. A connection that was closed while it lay idle is replaced: what it was
    /// given has not left this process.
    pub(super) async fn send(
        self: &Arc<Pool>,
        mut request: Request<Watched>,
        progress: &Progress,
        patience: Duration,
    ) -> Result<(Response<Incoming>, Lease), UpstreamError> {
        loop {
            let (mut connection, is_new) = match self.take_idle() {
                Some(connection) => (connection, false),
                // Boxed: it is large, and seldom.
                None => (Box::pin(self.connect()).await?, true),
            };
            let Connection { sender, timer } = &mut connection;
            // One whose last answer came before all of the question still has that to send, for as
            // long as its client likes.
            if !sender.is_ready() {
                let ready = Box::pin(timeout(READY_WITHIN, sender.ready())).await;
                if !is_new && !matches!(ready, Ok(Ok(()))) {
                    continue;
                }
            }
            let mut answer = std::pin::pin!(sender.try_send_request(request));
            let answered = loop {
                timer.as_mut().reset(progress.deadline(patience));
                match answered_in_time(answer.as_mut(), timer.as_mut()).await {
                    Some(answered) => break answered,
                    // A long upload is a sign of life.
                    None if progress.deadline(patience) > Instant::now() => {}
                    None => return Err(UpstreamError::Silent(patience)),
                }
            };
            match answered {
                Ok(response) => {
                    return Ok((response, Lease { connection, pool: self.clone() }));
                }
                Err(mut error) => match error.take_message() {
                    Some(unsent) if !is_new => request = unsent,
                    _ => return Err(UpstreamError::Broken(error.into_error())),
                },
            }
        }
    }

    fn take_idle(&self) -> Option<Connection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some((connection, since)) = idle.pop() {
            if connection.sender.is_closed() {
                continue;
            }
            if since.elapsed() > IDLE_FOR {
                // All below are older.
                idle.clear();
                return None;
            }
            return Some(connection);
        }
        None
    }

    async fn connect(&self) -> Result<Connection, UpstreamError> {
        let dial = async {
            let tcp = TcpStream::connect(self.destination.authority.as_str()).await?;
            tcp.set_nodelay(true)?;
            match &self.destination.tls {
                None => handshake(TokioIo::new(tcp)).await,
                Some(tls) => {
                    let stream = tls.connector.0.connect(tls.name.clone(), tcp).await?;
                    handshake(TokioIo::new(stream)).await
                }
            }
        };
        match timeout(CONNECT_WITHIN, dial).await {
            Ok(connected) => {
                let sender = connected.map_err(UpstreamError::Connect)?;
                Ok(Connection { sender, timer: Box::pin(sleep_until(Instant::now())) })
            }
            Err(_) => Err(UpstreamError::ConnectTimeout),
        }
    }
}

/// None when the timer ends first.
async fn answered_in_time<F: Future>(
    mut answer: Pin<&mut F>,
    mut timer: Pin<&mut Sleep>,
) -> Option<F::Output> {
    poll_fn(|context| match answer.as_mut().poll(context) {
        Poll::Ready(answered) => Poll::Ready(Some(answered)),
        Poll::Pending => timer.as_mut().poll(context).map(|()| None),
    })
    .await
}

async fn handshake<T>(io: TokioIo<T>) -> std::io::Result<Sender>
where
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = Builder::new()
        .max_buf_size(256 << 10)
        .handshake(io)
        .await
        .map_err(std::io::Error::other)?;
    // Its errors reach whoever sent a request on it.
    tokio::spawn(async move { drop(connection.with_upgrades().await) });
    Ok(sender)
}

impl std::fmt::Debug for TlsConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TlsConfig")
    }
}
