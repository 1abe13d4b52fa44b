//! Gateways under test, and upstreams for them: real sockets on free ports.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rlctl::engine::clock::Micros;
use rlctl::engine::store::keys::Prefix;
use rlctl::engine::store::redis::RedisAddress;
use rlctl::gateway::proxy::{Destination, Upstream};
use rlctl::gateway::serve::{ServeOptions, Serving, bind};
use rlctl::gateway::tls::Roots;
use rlctl::gateway::{About, Backing, Gateway, PolicySource};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::redis::RedisServer;

/// A running gateway; ends when it is dropped.
pub(crate) struct Running {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) serving: Serving,
    pub(crate) address: SocketAddr,
}

/// How a gateway is started.
pub(crate) struct Start<'a> {
    pub(crate) policy: &'a str,
    pub(crate) redis: Option<&'a RedisServer>,
    pub(crate) options: ServeOptions,
}

impl<'a> Start<'a> {
    /// Policy in memory, echo behind it.
    pub(crate) fn with(policy: &'a str) -> Start<'a> {
        let options =
            ServeOptions { drain: Duration::from_secs(5), ..ServeOptions::to(Upstream::Echo) };
        Start { policy, redis: None, options }
    }

    pub(crate) fn redis(self, server: &'a RedisServer) -> Start<'a> {
        Start { redis: Some(server), ..self }
    }

    pub(crate) fn upstream(self, address: SocketAddr) -> Start<'a> {
        let url = format!("http://{address}");
        let destination = Destination::parse(&url, || Roots::default().connector()).unwrap();
        Start {
            options: ServeOptions { upstream: Upstream::At(destination), ..self.options },
            ..self
        }
    }

    pub(crate) fn options(self, change: impl FnOnce(&mut ServeOptions)) -> Start<'a> {
        let mut options = self.options;
        change(&mut options);
        Start { options, ..self }
    }

    pub(crate) async fn run(self) -> Running {
        let source = PolicySource::Given { name: "policy.toml".into(), text: self.policy.into() };
        let backing = self.redis.map(|server| Backing {
            address: RedisAddress::parse(&server.url(), None).unwrap(),
            prefix: Prefix::default(),
            connect_timeout: Micros::SECOND,
        });
        let gateway = Arc::new(Gateway::open(&source, backing, About::new(Vec::new())).await);
        let status = gateway.limiter.policy.status();
        assert!(status.loaded.is_some() || self.policy.is_empty(), "{status:?}");
        gateway.keep_up();
        let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let serving = Serving::start(&gateway, &listener, &self.options).unwrap();
        Running { gateway, serving, address }
    }
}

impl Running {
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Bytes in, everything that comes back until the other side closes.
    pub(crate) async fn raw(&self, bytes: &[u8]) -> String {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        // It may be refused before all of it was written.
        let _ = stream.write_all(bytes).await;
        let mut reply = Vec::new();
        let read = stream.read_to_end(&mut reply);
        let _ = tokio::time::timeout(Duration::from_secs(10), read).await.expect("it closes");
        String::from_utf8_lossy(&reply).into_owned()
    }
}

pub(crate) fn client() -> reqwest::Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(30)).build().unwrap()
}

/// An upstream that does with each connection what it is told, one after the other.
pub(crate) async fn upstream<F>(each: impl Fn(TcpStream) -> F + Send + 'static) -> SocketAddr
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(each(stream));
        }
    });
    address
}

/// Reads the head of a request; empty when the connection was closed instead.
pub(crate) async fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        match stream.read(&mut byte).await {
            Ok(1) => head.push(byte[0]),
            _ => break,
        }
    }
    String::from_utf8_lossy(&head).into_owned()
}
