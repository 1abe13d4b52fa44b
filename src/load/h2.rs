//! HTTP/2: many requests on few connections, by hyper.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::SendRequest;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use super::answer::{Answer, Outcome, Told};
use super::calls::Calls;
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
}

#[derive(Debug)]
struct Line {
    sender: RefCell<SendRequest<Full<Bytes>>>,
    /// Somebody is making it again.
    opening: Cell<bool>,
}

impl Line {
    /// Something to send on.
    async fn sender(&self, target: &Target) -> Option<SendRequest<Full<Bytes>>> {
        let mut sender = self.sender.borrow().clone();
        if sender.ready().await.is_ok() {
            return Some(sender);
        }
        if self.opening.replace(true) {
            // Not at once again and again, where nobody listens any more.
            tokio::time::sleep(Duration::from_millis(1)).await;
            return None;
        }
        let opened = open(target).await;
        self.opening.set(false);
        let opened = opened.ok()?;
        *self.sender.borrow_mut() = opened.clone();
        Some(opened)
    }
}

trait Wire: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Wire for T {}

impl Http2 {
    pub async fn connect(target: &Target, connections: usize, keys: Keys) -> io::Result<Http2> {
        let target = Rc::new(target.clone());
        let mut lines = Vec::new();
        for _ in 0..connections.max(1) {
            let opened = tokio::time::timeout(target.patience, open(&target)).await;
            let sender = opened.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
            let line = Line { sender: RefCell::new(sender), opening: Cell::new(false) };
            lines.push(Rc::new(line));
        }
        Ok(Http2 { target, lines, next: 0, keys })
    }
}

async fn open(target: &Target) -> io::Result<SendRequest<Full<Bytes>>> {
    let plain: Box<dyn Wire> = match &target.way {
        Way::Tcp(address) => {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            Box::new(stream)
        }
        Way::Unix(path) => Box::new(UnixStream::connect(path).await?),
    };
    let wire: Box<dyn Wire> = match &target.tls {
        None => plain,
        Some((name, config)) => {
            let connector = tokio_rustls::TlsConnector::from(config.clone());
            Box::new(connector.connect(name.clone(), plain).await?)
        }
    };
    let local = LocalExecutor;
    let io = hyper_util::rt::TokioIo::new(wire);
    let made = hyper::client::conn::http2::handshake(local, io).await;
    let (sender, connection) = made.map_err(io::Error::other)?;
    tokio::task::spawn_local(async move {
        // Whoever sends on it is told.
        let _ = connection.await;
    });
    Ok(sender)
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
        let request = self.request(key);
        async move {
            let Ok(request) = request else { return Answer::plain(Outcome::Error) };
            let Some(mut sender) = line.sender(&target).await else {
                return Answer::plain(Outcome::Error);
            };
            let Ok(response) = sender.send_request(request).await else {
                return Answer::plain(Outcome::Error);
            };
            let (head, mut body) = response.into_parts();
            while let Some(frame) = body.frame().await {
                if frame.is_err() {
                    return Answer::plain(Outcome::Error);
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
