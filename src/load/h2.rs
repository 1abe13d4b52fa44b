//! HTTP/2: many requests on few connections, by hyper.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::SendRequest;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use super::answer::{Answer, Outcome, Told};
use super::calls::{Calls, Troubles};
use super::http::target::{Target, Way};
use crate::traffic::Keys;

/// Connections of one worker, used in turn. A connection that is lost is made again when it is
/// needed next.
#[derive(Debug)]
pub struct Http2 {
    target: Rc<Target>,
    lines: Vec<Rc<Line>>,
    next: usize,
    keys: Keys,
    troubles: Troubles,
}

#[derive(Debug)]
struct Line {
    sender: RefCell<SendRequest<Full<Bytes>>>,
    /// Somebody is making it again.
    opening: Cell<bool>,
}

impl Line {
    /// Something to send on.
    async fn sender(
        &self,
        target: &Target,
        troubles: &Troubles,
    ) -> Option<SendRequest<Full<Bytes>>> {
        let mut sender = self.sender.borrow().clone();
        if sender.ready().await.is_ok() {
            return Some(sender);
        }
        if self.opening.replace(true) {
            // Not at once again and again, where nobody listens any more.
            tokio::time::sleep(Duration::from_millis(1)).await;
            return None;
        }
        let opened = open(target, troubles).await;
        self.opening.set(false);
        match opened {
            Ok(opened) => {
                *self.sender.borrow_mut() = opened.clone();
                Some(opened)
            }
            Err(error) => {
                troubles.note(error);
                None
            }
        }
    }
}

trait Wire: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Wire for T {}

impl Http2 {
    pub async fn connect(target: &Target, connections: usize, keys: Keys) -> io::Result<Http2> {
        let target = Rc::new(target.clone());
        let troubles = Troubles::default();
        in_time(&target, greet(&target)).await?;
        let mut lines = Vec::new();
        for _ in 0..connections.max(1) {
            let sender = in_time(&target, open(&target, &troubles)).await?;
            let line = Line { sender: RefCell::new(sender), opening: Cell::new(false) };
            lines.push(Rc::new(line));
        }
        Ok(Http2 { target, lines, next: 0, keys, troubles })
    }
}

async fn in_time<T>(target: &Target, made: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let made = tokio::time::timeout(target.patience, made).await;
    made.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// What a client says first, with the settings that it has none of.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// The head of a frame, whose fourth byte says what it is.
const FRAME_HEAD: usize = 9;
const IS_SETTINGS: u8 = 4;
/// As much is shown of another answer.
const SHOWN_BYTES: usize = 40;

/// Whether the server speaks HTTP/2 at all: others answer as well, and what becomes of requests then
/// would tell nobody why.
async fn greet(target: &Target) -> io::Result<()> {
    let refuse = |why: String| Err(io::Error::new(io::ErrorKind::InvalidData, why));
    let mut wire = wire(target).await?;
    wire.write_all(PREFACE).await?;
    wire.flush().await?;
    let (mut answer, mut read) = ([0; SHOWN_BYTES], 0);
    while read < FRAME_HEAD {
        match wire.read(&mut answer[read..]).await? {
            0 => return refuse("it hung up when it was spoken to in HTTP/2".into()),
            more => read += more,
        }
    }
    if answer[3] == IS_SETTINGS {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&answer[..read]);
    let said = said.lines().next().unwrap_or_default();
    refuse(format!(
        "it does not speak HTTP/2, it answered `{}`; leave out --http2",
        crate::output::Untrusted(said)
    ))
}

async fn wire(target: &Target) -> io::Result<Box<dyn Wire>> {
    let plain: Box<dyn Wire> = match &target.way {
        Way::Tcp(address) => {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            Box::new(stream)
        }
        Way::Unix(path) => Box::new(UnixStream::connect(path).await?),
    };
    Ok(match &target.tls {
        None => plain,
        Some((name, config)) => {
            let connector = tokio_rustls::TlsConnector::from(config.clone());
            Box::new(connector.connect(name.clone(), plain).await?)
        }
    })
}

async fn open(target: &Target, troubles: &Troubles) -> io::Result<SendRequest<Full<Bytes>>> {
    let local = LocalExecutor;
    let io = hyper_util::rt::TokioIo::new(wire(target).await?);
    let made = hyper::client::conn::http2::handshake(local, io).await;
    let (sender, connection) = made.map_err(io::Error::other)?;
    let troubles = troubles.clone();
    tokio::task::spawn_local(async move {
        match connection.await {
            Ok(()) => troubles.connection_lost("the server closed the connection"),
            Err(error) => troubles.connection_lost(root(&error)),
        }
    });
    Ok(sender)
}

/// What is behind an error: its own words only say where it was met.
fn root(error: &hyper::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// Runs on this thread.
#[derive(Clone, Copy, Debug)]
struct LocalExecutor;

impl<F> hyper::rt::Executor<F> for LocalExecutor
where
    F: Future + 'static,
    F::Output: 'static,
{
    fn execute(&self, task: F) {
        tokio::task::spawn_local(task);
    }
}

impl Calls for Http2 {
    fn call(&mut self, key: u32, wall_s: u64) -> impl Future<Output = Answer> + 'static {
        self.next = (self.next + 1) % self.lines.len();
        let (line, target) = (self.lines[self.next].clone(), self.target.clone());
        let troubles = self.troubles.clone();
        let request = self.request(key);
        async move {
            let Ok(request) = request else { return Answer::plain(Outcome::Error) };
            let Some(mut sender) = line.sender(&target, &troubles).await else {
                return Answer::plain(Outcome::Error);
            };
            let failed = |error: hyper::Error| {
                troubles.note(root(&error));
                Answer::plain(Outcome::Error)
            };
            let response = match sender.send_request(request).await {
                Ok(response) => response,
                Err(error) => return failed(error),
            };
            let (head, mut body) = response.into_parts();
            while let Some(frame) = body.frame().await {
                if let Err(error) = frame {
                    return failed(error);
                }
            }
            let mut told = Told::default();
            for (name, value) in &head.headers {
                told.read(name.as_str().as_bytes(), value.as_bytes(), wall_s);
            }
            let status = head.status.as_u16();
            Answer { outcome: Outcome::of_status(status), status, told }
        }
    }

    fn troubles(&self) -> &Troubles {
        &self.troubles
    }
}

impl Http2 {
    fn request(&self, key: u32) -> Result<Request<Full<Bytes>>, http::Error> {
        let parts = &self.target.parts;
        let (path, header) = parts.for_key(&self.keys.name(key));
        let scheme = if self.target.tls.is_some() { "https" } else { "http" };
        let mut request = Request::builder()
            .method(parts.method.clone())
            .uri(format!("{scheme}://{}{path}", parts.authority));
        for (name, value) in parts.headers.iter().chain(&header) {
            request = request.header(name, value);
        }
        request.body(Full::new(Bytes::from(parts.body.clone())))
    }
}
