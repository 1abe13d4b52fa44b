//! The limiter over gRPC, on both stores: real sockets, a real client, and the bytes that Envoy
//! sends.

mod envoy;
mod own;
mod wire;

use std::net::SocketAddr;
use std::sync::Arc;

use rlctl::engine::clock::Micros;
use rlctl::engine::failure::{Local, OnFailure};
use rlctl::engine::live::{LiveLimiter, LivePolicy, Source};
use rlctl::engine::registry::{DEFAULT_MAX_EVENTS, MemoryRegistry, Registry, View};
use rlctl::gateway::grpc::messages::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use rlctl::gateway::grpc::messages::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use rlctl::gateway::grpc::messages::envoy::service::ratelimit::v3::rate_limit_response::Code as Said;
use rlctl::gateway::grpc::messages::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use rlctl::gateway::grpc::messages::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse,
};
use rlctl::gateway::grpc::messages::rlctl::v1::rate_limiter_client::RateLimiterClient;
use rlctl::gateway::grpc::messages::rlctl::v1::{CheckRequest, CheckResponse};
use rlctl::gateway::access::Access;
use rlctl::gateway::grpc::serve;
use rlctl::gateway::{About, Gateway};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::support::Rig;
use crate::support::redis::RedisServer;

/// Buckets that give back one request in twelve minutes at most, so that no test is so slow.
const POLICY: &str = r#"
[domains]
edge = ["per-user", "per-ip", "watched", "slow-path", "everybody"]
addresses = ["per-ip"]
[[rule]]
name = "per-user"
dimension = "user"
limits = ["5/1h"]
[[rule]]
name = "per-ip"
dimension = "ip"
limits = ["3/1h"]
[[rule]]
name = "watched"
dimension = "header:x-tenant"
limits = ["1/1h"]
shadow = true
[[rule]]
name = "slow-path"
dimension = "user"
endpoint = "/slow/*"
limits = ["2/1d"]
[[rule]]
name = "everybody"
dimension = "global"
endpoint = "/all"
limits = ["1/1d"]
"#;

/// A gateway that answers on a socket, and the store behind it.
struct Served {
    name: &'static str,
    gateway: Arc<Gateway>,
    address: SocketAddr,
    redis: Option<RedisServer>,
    stop: Option<oneshot::Sender<()>>,
    ended: JoinHandle<Result<(), tonic::transport::Error>>,
}

impl Served {
    async fn both() -> [Served; 2] {
        let access = || Arc::new(Access::local());
        let [memory, redis] = Rig::both().await;
        [Served::on(memory, POLICY, access()).await, Served::on(redis, POLICY, access()).await]
    }

    async fn in_memory(policy: &str) -> Served {
        Served::on(Rig::memory(), policy, Arc::new(Access::local())).await
    }

    async fn on(rig: Rig, policy: &str, access: Arc<Access>) -> Served {
        let registry = Arc::new(Registry::Memory(MemoryRegistry::new(DEFAULT_MAX_EVENTS)));
        let live = Arc::new(LivePolicy::default());
        if !policy.is_empty() {
            live.offer(policy, &Source::File("p.toml".into()), Micros::now()).unwrap();
        }
        let local = Arc::new(Local::new(1000));
        let limiter = LiveLimiter {
            policy: live,
            view: View::follow(registry.clone()).await,
            store: Arc::new(rig.store),
            on_failure: OnFailure::ByRule(local.clone()),
            hot: None,
        };
        let about = About {
            id: "one".into(),
            version: "test",
            started: Micros::now(),
            listening: Vec::new(),
        };
        let gateway = Arc::new(Gateway::new(limiter, registry, local, about));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let until = async {
            let _ = stopped.await;
        };
        let ended = tokio::spawn(serve(gateway.clone(), listener, access, until));
        let stop = Some(stop);
        Served { name: rig.name, gateway, address, redis: rig.server, stop, ended }
    }

    async fn channel(&self) -> Channel {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address)).unwrap();
        endpoint.connect().await.unwrap()
    }

    async fn own(&self) -> RateLimiterClient<Channel> {
        RateLimiterClient::new(self.channel().await)
    }

    async fn check(&self, request: CheckRequest) -> Result<CheckResponse, Status> {
        self.own().await.check_rate_limit(request).await.map(tonic::Response::into_inner)
    }

    async fn envoy(&self, request: RateLimitRequest) -> Result<RateLimitResponse, Status> {
        let mut client = RateLimitServiceClient::new(self.channel().await);
        client.should_rate_limit(request).await.map(tonic::Response::into_inner)
    }

    /// The codes of all descriptors, and what is left of each.
    async fn codes(&self, descriptors: Vec<RateLimitDescriptor>) -> (Said, Vec<(Said, u32)>) {
        let answer = self.envoy(edge(descriptors)).await.unwrap();
        let each = answer.statuses.iter().map(|s| (s.code(), s.limit_remaining)).collect();
        (answer.overall_code(), each)
    }
}

fn user(id: &str) -> CheckRequest {
    CheckRequest { identifier: id.into(), dimension: "user".into(), ..CheckRequest::default() }
}

fn edge(descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest { domain: "edge".into(), descriptors, hits_addend: 0 }
}

fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |(key, value): &(&str, &str)| Entry { key: (*key).into(), value: (*value).into() };
    RateLimitDescriptor {
        entries: entries.iter().map(entry).collect(),
        ..RateLimitDescriptor::default()
    }
}

fn code_of<T>(answer: Result<T, Status>) -> Code {
    answer.map_or_else(|status| status.code(), |_| Code::Ok)
}
