//! A gateway whose API is served on a real socket, and a client that asks it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::TokioIo;
use rlctl::engine::clock::Micros;
use rlctl::engine::registry::Intent;
use rlctl::engine::store::keys::Prefix;
use rlctl::engine::store::redis::RedisAddress;
use rlctl::gateway::access::Access;
use rlctl::gateway::listen::Door;
use rlctl::gateway::{About, Backing, Gateway, PolicySource, api};
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::redis::RedisServer;

const PATIENCE: Micros = Micros(60 * Micros::SECOND.0);

pub(crate) const TOKENS: &str =
    "read reader-token-0001 grafana\nwrite writer-token-0001 alice\n# nobody else\n";
pub(crate) const READER: (&str, &str) = ("authorization", "Bearer reader-token-0001");
pub(crate) const WRITER: (&str, &str) = ("authorization", "Bearer writer-token-0001");

pub(crate) const POLICY: &str = r#"# what everybody may do
default_tier = "free"
[defaults]
deadline = "1m"
[tiers.free]
limits = ["4/1h"]
[tiers.gold]
limits = ["1000/1h"]
[[rule]]
name = "per-user"
dimension = "user"
limits = ["3/1h"] # agreed with sales
[[rule]]
name = "orders"
dimension = "user"
endpoint = "/orders/*"
limits = ["7/1h"]
[[rule]]
name = "per-ip"
dimension = "ip"
limits = ["5/1h"]
[[rule]]
name = "per-tenant"
dimension = "header:x-tenant"
limits = ["2/1h"]
[[rule]]
name = "per-key"
dimension = "apikey"
limits = "tier"
[[block]]
match = ["user:666"]
reason = "abuse"
"#;

pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    pub(crate) gateway: Arc<Gateway>,
    /// Dropped, the door closes.
    _open: watch::Sender<bool>,
}

pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: http::HeaderMap,
    pub(crate) bytes: Bytes,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        let wrong = |e| panic!("{e}: {}", String::from_utf8_lossy(&self.bytes));
        serde_json::from_slice(&self.bytes).unwrap_or_else(wrong)
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

impl Served {
    /// With `POLICY` published in a Redis, and nobody but this machine.
    pub(crate) async fn published(server: &RedisServer) -> Served {
        let served = Served::start(PolicySource::Published, Some(server), Access::local()).await;
        let intent = Intent::new("test", "the first policy").unwrap();
        if served.gateway.registry.version().await.unwrap().is_none() {
            served.gateway.registry.publish(POLICY, Some(0), &intent).await.unwrap();
        }
        served.until("there is a policy", |gateway| gateway.is_ready()).await;
        served
    }

    /// In memory.
    pub(crate) async fn given(text: &str, access: Access) -> Served {
        let source = PolicySource::Given { name: "given".into(), text: text.into() };
        Served::start(source, None, access).await
    }

    pub(crate) async fn start(
        source: PolicySource,
        server: Option<&RedisServer>,
        access: Access,
    ) -> Served {
        let backing = server.map(|server| Backing {
            address: RedisAddress::parse(&server.url(), None).unwrap(),
            prefix: Prefix::default(),
            connect_timeout: PATIENCE,
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let about = About::new(vec![("admin", address.to_string())]);
        let gateway = Arc::new(Gateway::open(&source, backing, about).await);
        // A busy machine must not degrade what is decided.
        gateway.limiter.store.set_deadline(PATIENCE);
        gateway.limiter.view.set_deadline(PATIENCE);
        gateway.keep_up();
        let router = api::router(gateway.clone(), Arc::new(access));
        let (open, closing) = watch::channel(false);
        let serve = move |request: http::Request<Incoming>, peer: rlctl::gateway::proxy::Peer| {
            let router = router.clone();
            async move { api::answer(router, request, peer.address).await }
        };
        tokio::spawn(Door::new(1_000, closing).serve(listener, serve));
        Served { address, gateway, _open: open }
    }

    /// Waits for what comes by itself.
    pub(crate) async fn until(&self, what: &str, holds: impl Fn(&Gateway) -> bool) {
        let began = Instant::now();
        while !holds(&self.gateway) {
            assert!(began.elapsed() < Duration::from_secs(20), "never: {what}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.send("GET", path, &[], None).await
    }

    /// With a body of JSON.
    pub(crate) async fn ask(&self, method: &str, path: &str, body: Value) -> Reply {
        self.send(method, path, &[], Some(&body.to_string())).await
    }

    pub(crate) async fn check(&self, body: Value) -> Reply {
        self.ask("POST", "/api/v1/rate-limit/check", body).await
    }

    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&str>,
    ) -> Reply {
        let response = self.open(method, path, headers, body.map(str::as_bytes)).await;
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.expect("a whole body").to_bytes();
        Reply { status: parts.status.as_u16(), headers: parts.headers, bytes }
    }

    /// The answer as soon as its head is there.
    pub(crate) async fn open(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&[u8]>,
    ) -> http::Response<Incoming> {
        let stream = TcpStream::connect(self.address).await.expect("a connection");
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let mut request = http::Request::builder().method(method).uri(path);
        if !headers.iter().any(|(name, _)| *name == "host") {
            request = request.header("host", self.address.to_string());
        }
        if body.is_some() && !headers.iter().any(|(name, _)| *name == "content-type") {
            request = request.header("content-type", "application/json");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = Full::new(Bytes::copy_from_slice(body.unwrap_or_default()));
        sender.send_request(request.body(body).unwrap()).await.expect("an answer")
    }
}
