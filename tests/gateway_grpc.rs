//! The limiter over gRPC, on both stores: real sockets, a real client, and the bytes that Envoy
//! sends.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prost::Message;
use prost::bytes::{Buf, BufMut};
use rlctl::engine::clock::Micros;
use rlctl::engine::failure::{Local, OnFailure};
use rlctl::engine::live::{LiveLimiter, LivePolicy, Source};
use rlctl::engine::registry::{DEFAULT_MAX_EVENTS, MemoryRegistry, Registry, View};
use rlctl::engine::store::Store;
use rlctl::gateway::grpc::messages::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use rlctl::gateway::grpc::messages::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use rlctl::gateway::grpc::messages::envoy::r#type::v3::RateLimitUnit;
use rlctl::gateway::grpc::messages::envoy::service::ratelimit::v3::rate_limit_response::Code as Said;
use rlctl::gateway::grpc::messages::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use rlctl::gateway::grpc::messages::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use rlctl::gateway::grpc::messages::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse,
};
use rlctl::gateway::grpc::messages::rlctl::v1::rate_limiter_client::RateLimiterClient;
use rlctl::gateway::grpc::messages::rlctl::v1::{
    CheckRequest, CheckResponse, Outcome, QuotaRequest, ResetRequest,
};
use rlctl::gateway::grpc::{Access, Wanted, serve};
use rlctl::gateway::{About, Gateway};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

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
        let access = Access::loopback_only;
        let [memory, redis] = Rig::both().await;
        [Served::on(memory, POLICY, access()).await, Served::on(redis, POLICY, access()).await]
    }

    async fn in_memory(policy: &str) -> Served {
        Served::on(Rig::memory(), policy, Access::loopback_only()).await
    }

    async fn on(rig: Rig, policy: &str, access: Access) -> Served {
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

fn header<'a>(answer: &'a RateLimitResponse, name: &str) -> Option<&'a str> {
    let all = &answer.response_headers_to_add;
    all.iter().find(|header| header.key == name).map(|header| header.value.as_str())
}

#[tokio::test]
async fn a_check_over_grpc_passes_until_the_limit_and_tells_what_is_left() {
    for served in Served::both().await {
        for left in (0..5).rev() {
            let answer = served.check(user("1")).await.unwrap();
            assert!(answer.allowed, "{}: {answer:?}", served.name);
            assert_eq!((answer.remaining, answer.current_count), (Some(left), Some(5 - left)));
            assert_eq!((answer.limit, answer.capacity), (Some(5), Some(5)));
            assert_eq!(answer.retry_after, None);
        }
        let answer = served.check(user("1")).await.unwrap();
        assert!(!answer.allowed, "{}", served.name);
        assert_eq!(answer.outcome(), Outcome::Limited);
        assert_eq!((answer.rule.as_str(), answer.algorithm.as_str()), ("per-user", "token-bucket"));
        assert_eq!((answer.state.as_str(), answer.degraded.as_str()), ("throttled", ""));
        let wait = answer.retry_after.unwrap().seconds;
        assert!((700..=720).contains(&wait), "one of five in an hour: {wait} s");
        let reset = answer.reset_at.unwrap().seconds - (Micros::now().0 / 1_000_000) as i64;
        assert!((3590..=3601).contains(&reset), "whole in an hour: {reset} s");
        assert!(served.check(user("2")).await.unwrap().allowed, "somebody else");
    }
}

#[tokio::test]
async fn every_identity_of_a_check_is_limited_and_none_charged_when_one_refuses() {
    for served in Served::both().await {
        let both = || CheckRequest {
            dimensions: [("ip".to_string(), "203.0.113.7".to_string())].into(),
            ..user("1")
        };
        for _ in 0..3 {
            assert!(served.check(both()).await.unwrap().allowed, "{}", served.name);
        }
        let answer = served.check(both()).await.unwrap();
        assert_eq!((answer.allowed, answer.rule.as_str()), (false, "per-ip"), "{}", served.name);
        let peek = served.check(CheckRequest { cost: Some(0), ..user("1") }).await.unwrap();
        assert_eq!(peek.remaining, Some(2), "{}", served.name);
    }
}

#[tokio::test]
async fn a_look_at_the_quota_charges_nothing() {
    for served in Served::both().await {
        served.check(user("1")).await.unwrap();
        for _ in 0..10 {
            let asked = QuotaRequest {
                identifier: "user:1".into(),
                endpoint: "/slow/x".into(),
                dimensions: [("ip".to_string(), "203.0.113.7".to_string())].into(),
                ..QuotaRequest::default()
            };
            let answer = served.own().await.get_remaining_quota(asked).await.unwrap().into_inner();
            let mut quotas: Vec<_> = answer
                .quotas
                .iter()
                .map(|q| (q.identity.as_str(), q.rule.as_str(), q.remaining, q.capacity))
                .collect();
            quotas.sort_unstable();
            let expected = [("ip:203.0.113.7", "per-ip", 3, 3), ("user:1", "slow-path", 2, 2)];
            assert_eq!(quotas, expected, "{}", served.name);
            let tightest = answer.tightest.unwrap();
            assert_eq!((tightest.rule.as_str(), tightest.state.as_str()), ("slow-path", "normal"));
            assert_eq!(tightest.period.unwrap().seconds, 86_400);
            assert!(!answer.refused);
        }
        let asked = QuotaRequest { identifier: "user:1".into(), ..QuotaRequest::default() };
        let answer = served.own().await.get_remaining_quota(asked).await.unwrap().into_inner();
        let quota = answer.tightest.unwrap();
        assert_eq!((quota.remaining, quota.current_count), (4, 1), "{}", served.name);
    }
}

#[tokio::test]
async fn a_reset_over_grpc_makes_a_quota_whole_of_one_rule_or_all() {
    for served in Served::both().await {
        let slow = || CheckRequest { endpoint: "/slow/x".into(), ..user("1") };
        for _ in 0..2 {
            served.check(user("1")).await.unwrap();
            served.check(slow()).await.unwrap();
        }
        assert!(!served.check(slow()).await.unwrap().allowed, "{}", served.name);
        let reset = async |rule: &str| {
            let asked = ResetRequest {
                identifier: "user:1".into(),
                rule: rule.into(),
                ..ResetRequest::default()
            };
            served.own().await.reset_limit(asked).await.unwrap().into_inner().limits_reset
        };
        assert_eq!(reset("slow-path").await, 1, "{}", served.name);
        assert_eq!(served.check(slow()).await.unwrap().remaining, Some(1), "{}", served.name);
        assert_eq!(served.check(user("1")).await.unwrap().remaining, Some(2), "the other stays");
        assert_eq!(reset("").await, 2, "{}", served.name);
        assert_eq!(served.check(user("1")).await.unwrap().remaining, Some(4), "{}", served.name);
        assert_eq!(reset("no-such-rule").await, 0);
    }
}

#[tokio::test]
async fn a_retry_with_its_idempotency_key_is_charged_once() {
    for served in Served::both().await {
        let keyed =
            |cost| CheckRequest { idempotency_key: "k".into(), cost: Some(cost), ..user("1") };
        for _ in 0..3 {
            assert_eq!(served.check(keyed(2)).await.unwrap().remaining, Some(3), "{}", served.name);
        }
        let other = served.check(keyed(1)).await.unwrap_err();
        assert_eq!(other.code(), Code::FailedPrecondition, "{other}");
        assert_eq!(served.check(user("1")).await.unwrap().remaining, Some(2));
    }
}

#[tokio::test]
async fn the_callers_clock_is_measured_and_never_decides() {
    for served in Served::both().await {
        let an_hour_ahead = (Micros::now().0 / 1_000_000) as i64 + 3600;
        let at = |seconds| CheckRequest {
            timestamp: Some(prost_types::Timestamp { seconds, nanos: 0 }),
            cost: Some(5),
            ..user("1")
        };
        let answer = served.check(at(an_hour_ahead)).await.unwrap();
        assert!(answer.allowed);
        let skew = answer.clock_skew.unwrap().seconds;
        assert!((3590..=3600).contains(&skew), "{skew}");
        for seconds in [an_hour_ahead + 7200, 0, i64::MIN, i64::MAX] {
            assert!(!served.check(at(seconds)).await.unwrap().allowed, "{}", served.name);
        }
    }
}

#[tokio::test]
async fn what_cannot_be_asked_is_refused_with_the_reason() {
    let served = Served::in_memory(POLICY).await;
    let from = |identifier: &str, dimension: &str| CheckRequest {
        identifier: identifier.into(),
        dimension: dimension.into(),
        ..CheckRequest::default()
    };
    let twice =
        CheckRequest { dimensions: [("user".to_string(), "2".to_string())].into(), ..user("1") };
    for (request, why) in [
        (from("", ""), "name who asks"),
        (from("1", "planet"), "is not a dimension"),
        (from("", "user"), "names nobody"),
        (from("a\nb", "user"), "control characters"),
        (from("nowhere", "ip"), "is not an address"),
        (from(&"x".repeat(2000), "user"), "too long"),
        (twice, "one identity of each dimension"),
        (CheckRequest { cost: Some(u64::MAX), ..user("1") }, "is not a cost"),
        (CheckRequest { endpoint: "orders".into(), ..user("1") }, "begins with /"),
        (CheckRequest { idempotency_key: "k".repeat(300), ..user("1") }, "255 bytes"),
    ] {
        let status = served.check(request.clone()).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{request:?}: {status}");
        assert!(status.message().contains(why), "{request:?}: {status}");
    }
    let whole = served.check(CheckRequest { cost: Some(0), ..user("1") }).await.unwrap();
    assert_eq!(whole.remaining, Some(5), "none of it was charged");
}

#[tokio::test]
async fn access_is_asked_for_every_call_and_writing_needs_more() {
    let access = Access::new(|metadata, peer, wanted| {
        assert!(peer.unwrap().ip().is_loopback());
        match metadata.get("authorization").and_then(|value| value.to_str().ok()) {
            Some("Bearer writer") => Ok(()),
            Some("Bearer reader") if wanted == Wanted::Read => Ok(()),
            Some("Bearer reader") => Err(Status::permission_denied("read only")),
            _ => Err(Status::unauthenticated("no token")),
        }
    });
    let served = Served::on(Rig::memory(), POLICY, access).await;
    let mut own = served.own().await;
    let mut envoy = RateLimitServiceClient::new(served.channel().await);
    for (token, read, write) in [
        ("", Code::Unauthenticated, Code::Unauthenticated),
        ("Bearer nobody", Code::Unauthenticated, Code::Unauthenticated),
        ("Bearer reader", Code::Ok, Code::PermissionDenied),
        ("Bearer writer", Code::Ok, Code::Ok),
    ] {
        let reset = ResetRequest { identifier: "user:1".into(), ..ResetRequest::default() };
        let quota = QuotaRequest { identifier: "user:1".into(), ..QuotaRequest::default() };
        let limit = edge(vec![descriptor(&[("user", "1")])]);
        assert_eq!(code_of(own.check_rate_limit(with(token, user("1"))).await), read);
        assert_eq!(code_of(own.get_remaining_quota(with(token, quota)).await), read);
        assert_eq!(code_of(envoy.should_rate_limit(with(token, limit)).await), read);
        assert_eq!(code_of(own.reset_limit(with(token, reset)).await), write);
    }
}

fn with<T>(token: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    if !token.is_empty() {
        request.metadata_mut().insert("authorization", token.parse().unwrap());
    }
    request
}

fn code_of<T>(answer: Result<T, Status>) -> Code {
    answer.map_or_else(|status| status.code(), |_| Code::Ok)
}

#[tokio::test]
async fn envoy_gets_a_status_for_each_descriptor_and_headers_for_its_client() {
    for served in Served::both().await {
        let ask = || {
            edge(vec![
                descriptor(&[("remote_address", "203.0.113.7")]),
                descriptor(&[("user", "1")]),
                descriptor(&[("generic_key", "nobody counts it")]),
                descriptor(&[("user", "1"), ("path", "/slow/x")]),
            ])
        };
        let answer = served.envoy(ask()).await.unwrap();
        assert_eq!(answer.overall_code(), Said::Ok, "{}", served.name);
        let statuses: Vec<_> = answer
            .statuses
            .iter()
            .map(|status| {
                let limit = status.current_limit.clone().unwrap_or_default();
                let name = limit.name.clone();
                (status.code(), name, limit.requests_per_unit, limit.unit(), status.limit_remaining)
            })
            .collect();
        let expected = [
            (Said::Ok, "per-ip".into(), 3, Unit::Hour, 2),
            (Said::Ok, "per-user".into(), 5, Unit::Hour, 4),
            (Said::Ok, String::new(), 0, Unit::Unknown, 0),
            (Said::Ok, "slow-path".into(), 2, Unit::Day, 1),
        ];
        assert_eq!(statuses, expected, "{}", served.name);
        let until = answer.statuses[0].duration_until_reset.unwrap().seconds;
        assert!((1190..=1200).contains(&until), "a third of an hour: {until} s");
        // The least is left of slow-path.
        assert_eq!(header(&answer, "x-ratelimit-limit"), Some("2"));
        assert_eq!(header(&answer, "x-ratelimit-remaining"), Some("1"));
        assert_eq!(header(&answer, "ratelimit-policy"), Some("\"slow-path-1d\";q=2;w=86400"));
        assert_eq!(header(&answer, "retry-after"), None);

        served.envoy(ask()).await.unwrap();
        let answer = served.envoy(ask()).await.unwrap();
        assert_eq!(answer.overall_code(), Said::OverLimit, "{}", served.name);
        let codes: Vec<_> = answer.statuses.iter().map(|s| s.code()).collect();
        assert_eq!(codes, [Said::Ok, Said::Ok, Said::Ok, Said::OverLimit]);
        assert_eq!(header(&answer, "x-ratelimit-remaining"), Some("0"));
        let wait: u64 = header(&answer, "retry-after").unwrap().parse().unwrap();
        assert!((43_100..=43_200).contains(&wait), "half a day: {wait} s");
    }
}

#[tokio::test]
async fn a_refused_descriptor_gives_back_what_the_others_charged() {
    for served in Served::both().await {
        let ip = || descriptor(&[("remote_address", "203.0.113.7")]);
        let user = || descriptor(&[("user", "1")]);
        assert_eq!(served.codes(vec![ip(), ip(), ip()]).await.0, Said::Ok, "{}", served.name);
        for _ in 0..20 {
            let (overall, each) = served.codes(vec![user(), ip()]).await;
            assert_eq!(overall, Said::OverLimit, "{}", served.name);
            // What is told is what is left, not what was left for a moment.
            assert_eq!(each, [(Said::Ok, 5), (Said::OverLimit, 0)], "{}", served.name);
        }
        assert_eq!(served.codes(vec![user()]).await.1, [(Said::Ok, 4)], "{}", served.name);
    }
}

#[tokio::test]
async fn hits_addend_is_the_cost_of_a_request_or_of_one_descriptor() {
    for served in Served::both().await {
        let by_user =
            |hits_addend| RateLimitDescriptor { hits_addend, ..descriptor(&[("user", "1")]) };
        let left = async |request_hits, descriptor_hits| {
            let request = RateLimitRequest {
                hits_addend: request_hits,
                ..edge(vec![by_user(descriptor_hits)])
            };
            let answer = served.envoy(request).await.unwrap();
            (answer.overall_code(), answer.statuses[0].limit_remaining)
        };
        assert_eq!(left(0, None).await, (Said::Ok, 4), "{}: 0 means 1", served.name);
        assert_eq!(left(2, None).await, (Said::Ok, 2));
        assert_eq!(left(2, Some(0)).await, (Said::Ok, 2), "{}: a peek", served.name);
        assert_eq!(left(2, Some(1)).await, (Said::Ok, 1));
        assert_eq!(left(2, None).await, (Said::OverLimit, 1), "{}: all or nothing", served.name);
        assert_eq!(left(0, Some(u64::MAX)).await, (Said::OverLimit, 1));
        assert_eq!(left(u32::MAX, None).await, (Said::OverLimit, 1));
    }
}

#[tokio::test]
async fn a_descriptor_brings_its_own_limit_which_has_a_bucket_of_its_own() {
    for served in Served::both().await {
        let limited = |requests_per_unit, unit: RateLimitUnit| RateLimitDescriptor {
            limit: Some(RateLimitOverride { requests_per_unit, unit: unit.into() }),
            ..descriptor(&[("user", "1")])
        };
        let plain = || descriptor(&[("user", "1")]);
        let answer = served.envoy(edge(vec![limited(2, RateLimitUnit::Day)])).await.unwrap();
        let limit = answer.statuses[0].current_limit.clone().unwrap();
        assert_eq!((limit.requests_per_unit, limit.unit()), (2, Unit::Day), "{}", served.name);
        assert_eq!(limit.name, "per-user");
        // Neither starts anew when the other is asked.
        assert_eq!(served.codes(vec![plain()]).await.1, [(Said::Ok, 4)], "{}", served.name);
        assert_eq!(served.codes(vec![limited(2, RateLimitUnit::Day)]).await.1, [(Said::Ok, 0)]);
        assert_eq!(served.codes(vec![plain()]).await.1, [(Said::Ok, 3)], "{}", served.name);
        let over = [(Said::OverLimit, 0)];
        assert_eq!(served.codes(vec![limited(2, RateLimitUnit::Day)]).await.1, over);
        // More of the same unit: what was used stays used.
        let more = served.codes(vec![limited(10, RateLimitUnit::Day)]).await;
        assert_eq!(more.1, [(Said::Ok, 7)], "{}", served.name);
        assert_eq!(served.codes(vec![limited(0, RateLimitUnit::Hour)]).await.1, over);
        let unknown = served.envoy(edge(vec![limited(2, RateLimitUnit::Unknown)])).await;
        assert_eq!(unknown.unwrap_err().code(), Code::InvalidArgument);
    }
}

#[tokio::test]
async fn a_shadow_rule_and_an_unknown_domain_let_everything_pass() {
    for served in Served::both().await {
        let tenant = || descriptor(&[("x-tenant", "acme")]);
        for _ in 0..3 {
            assert_eq!(served.codes(vec![tenant()]).await, (Said::Ok, vec![(Said::Ok, 0)]));
        }
        assert_eq!(served.gateway.grpc.unknown_domains(), 0);
        let request = RateLimitRequest {
            domain: "nowhere".into(),
            hits_addend: 100,
            ..edge(vec![descriptor(&[("user", "1")]), tenant()])
        };
        let answer = served.envoy(request).await.unwrap();
        assert_eq!((answer.overall_code(), answer.statuses.len()), (Said::Ok, 2));
        assert!(answer.statuses.iter().all(|s| s.code() == Said::Ok && s.current_limit.is_none()));
        assert_eq!(served.gateway.grpc.unknown_domains(), 1, "{}", served.name);
        assert_eq!(served.codes(vec![descriptor(&[("user", "1")])]).await.1, [(Said::Ok, 4)]);
    }
}

#[tokio::test]
async fn a_domain_asks_only_its_rules_and_follows_the_policy() {
    let served = Served::in_memory(POLICY).await;
    let request = || RateLimitRequest {
        domain: "addresses".into(),
        hits_addend: 100,
        ..edge(vec![descriptor(&[("user", "1")])])
    };
    let answer = served.envoy(request()).await.unwrap();
    assert_eq!(answer.overall_code(), Said::Ok, "no rule of that domain is for users");
    let changed = POLICY.replace("addresses = [\"per-ip\"]", "addresses = [\"per-user\"]");
    let policy = &served.gateway.limiter.policy;
    policy.offer(&changed, &Source::File("p.toml".into()), Micros::now()).unwrap();
    let answer = served.envoy(request()).await.unwrap();
    assert_eq!(answer.overall_code(), Said::OverLimit);
}

#[tokio::test]
async fn what_names_nobody_counts_for_everybody_and_a_bent_path_is_refused() {
    for served in Served::both().await {
        let of = |path: &str| vec![descriptor(&[("path", path)])];
        assert_eq!(served.codes(of("/all")).await, (Said::Ok, vec![(Said::Ok, 0)]));
        assert_eq!(served.codes(of("/all/")).await.0, Said::OverLimit, "{}", served.name);
        assert_eq!(served.codes(of("/other")).await.0, Said::Ok);
        let mut both = vec![descriptor(&[("user", "1")])];
        both.extend(of("/x%2Fall"));
        let (overall, each) = served.codes(both).await;
        assert_eq!(overall, Said::OverLimit, "an upstream may read it as /x/all");
        assert_eq!(each, [(Said::Ok, 0), (Said::OverLimit, 0)]);
        let left = served.codes(vec![descriptor(&[("user", "1")])]).await;
        assert_eq!(left.1, [(Said::Ok, 4)], "nobody was charged");
    }
}

#[tokio::test]
async fn a_request_without_descriptors_or_with_too_many_is_refused() {
    let served = Served::in_memory(POLICY).await;
    for count in [0, 101] {
        let all = vec![descriptor(&[("user", "1")]); count];
        let status = served.envoy(edge(all)).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    }
}

/// The bytes of a `RateLimitRequest`, spelled field by field as Envoy does: number and wire type,
/// length, content.
fn bytes_of_envoy() -> Vec<u8> {
    let text = |number: u8, text: &[u8]| [&[number << 3 | 2, text.len() as u8], text].concat();
    let entry = |key: &str, value: &str| {
        text(1, &[text(1, key.as_bytes()), text(2, value.as_bytes())].concat())
    };
    // Two a minute: RateLimitOverride { requests_per_unit = 1: 2, unit = 2: MINUTE (2) }.
    let limit = text(2, &[1 << 3, 2, 2 << 3, 2]);
    // UInt64Value { value = 1: 2 }.
    let hits = text(3, &[1 << 3, 2]);
    // Envoy's newer versions may say more than we know.
    let unknown = [15 << 3, 1];
    let first = [entry("user", "1"), entry("path", "/x"), limit, hits].concat();
    let second = entry("remote_address", "203.0.113.7");
    let domain = text(1, b"edge");
    [&domain[..], &text(2, &first), &text(2, &second), &[3 << 3, 3], &unknown].concat()
}

#[test]
fn the_fields_of_envoy_have_the_numbers_of_envoy() {
    let request = RateLimitRequest::decode(bytes_of_envoy().as_slice()).unwrap();
    let first = RateLimitDescriptor {
        limit: Some(RateLimitOverride { requests_per_unit: 2, unit: RateLimitUnit::Minute.into() }),
        hits_addend: Some(2),
        ..descriptor(&[("user", "1"), ("path", "/x")])
    };
    let second = descriptor(&[("remote_address", "203.0.113.7")]);
    let expected = RateLimitRequest { hits_addend: 3, ..edge(vec![first, second]) };
    assert_eq!(request, expected);
}

/// Sends and receives bytes as they are.
#[derive(Clone, Copy, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Raw;
    type Decoder = Raw;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, bytes: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&bytes);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining()).to_vec()))
    }
}

impl Served {
    async fn raw(&self, method: &str, bytes: Vec<u8>) -> Result<Vec<u8>, Status> {
        let mut client = tonic::client::Grpc::new(self.channel().await);
        client.ready().await.unwrap();
        let path = method.parse().unwrap();
        client.unary(Request::new(bytes), path, Raw).await.map(tonic::Response::into_inner)
    }
}

const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const CHECK_RATE_LIMIT: &str = "/rlctl.v1.RateLimiter/CheckRateLimit";

#[tokio::test]
async fn the_bytes_of_envoy_are_answered_with_bytes_that_envoy_reads() {
    let served = Served::in_memory(POLICY).await;
    let answer = served.raw(SHOULD_RATE_LIMIT, bytes_of_envoy()).await.unwrap();
    // overall_code = 1: OK (1); then statuses = 2.
    assert_eq!(answer[..3], [1 << 3, 1, 2 << 3 | 2]);
    let first = &answer[4..4 + usize::from(answer[3])];
    // code = 1: OK; current_limit = 2: requests_per_unit = 1: 2, unit = 2: MINUTE, name = 3.
    let limit = [&[1 << 3, 2, 2 << 3, 2, 3 << 3 | 2, 8], b"per-user".as_slice()].concat();
    let expected = [&[1 << 3, 1, 2 << 3 | 2, limit.len() as u8], limit.as_slice()].concat();
    assert_eq!(first[..expected.len()], expected, "{first:?}");
    // limit_remaining = 3 is 0, so not sent; duration_until_reset = 4: a whole minute is used up.
    assert_eq!(first[expected.len()], 4 << 3 | 2, "{first:?}");
    let read = RateLimitResponse::decode(answer.as_slice()).unwrap();
    assert_eq!(read.statuses[0].duration_until_reset.unwrap().seconds, 60);
    // The second descriptor costs what the request does: 3 of 3.
    assert_eq!((read.statuses[1].code(), read.statuses[1].limit_remaining), (Said::Ok, 0));
    let again = served.raw(SHOULD_RATE_LIMIT, bytes_of_envoy()).await.unwrap();
    assert_eq!(again[..2], [1 << 3, 2], "OVER_LIMIT");
}

#[tokio::test]
async fn broken_messages_and_garbage_are_refused_and_the_next_check_is_answered() {
    let served = Served::in_memory(POLICY).await;
    for method in [SHOULD_RATE_LIMIT, CHECK_RATE_LIMIT] {
        for garbage in [vec![0xff; 40], vec![0x0a, 0xff], vec![0x0a, 2, 0xc3, 0x28]] {
            let status = served.raw(method, garbage).await.unwrap_err();
            assert_eq!(status.code(), Code::Internal, "{status}");
        }
        let status = served.raw(method, vec![0; 70 * 1024]).await.unwrap_err();
        assert_eq!(status.code(), Code::OutOfRange, "{status}");
    }
    let unknown = served.raw("/rlctl.v1.RateLimiter/Nothing", Vec::new()).await.unwrap_err();
    assert_eq!(unknown.code(), Code::Unimplemented);
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let http1 = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    let mut half_a_frame = preface.to_vec();
    half_a_frame.extend([0xff, 0xff, 0xff, 4, 0, 0, 0, 0, 0, 1, 2, 3]);
    for bytes in [http1.to_vec(), vec![0; 100], preface[..10].to_vec(), half_a_frame] {
        let mut socket = TcpStream::connect(served.address).await.unwrap();
        socket.write_all(&bytes).await.unwrap();
        socket.shutdown().await.unwrap();
        let mut answer = Vec::new();
        let read = socket.read_to_end(&mut answer);
        // Whatever it says, it ends the connection.
        let _ = tokio::time::timeout(Duration::from_secs(20), read).await.expect("an end");
    }
    assert!(served.check(user("1")).await.unwrap().allowed);
}

#[tokio::test]
async fn checks_above_the_maximum_of_a_second_are_shed() {
    let served = Served::in_memory(&format!("[gateway]\nmax_checks = 3\n{POLICY}")).await;
    let three = || edge(vec![descriptor(&[("generic_key", "x")]); 3]);
    let four = edge(vec![descriptor(&[("generic_key", "x")]); 4]);
    assert_eq!(served.envoy(four).await.unwrap_err().code(), Code::Unavailable);
    // Two of these within a second: one of them at least is refused, unless a second ends between.
    let mut refused = 0;
    for _ in 0..10 {
        refused += u32::from(code_of(served.envoy(three()).await) == Code::Unavailable);
        refused += u32::from(code_of(served.check(user("1")).await) == Code::Unavailable);
    }
    assert!(refused > 0);
    assert_eq!(served.gateway.shed.refused() > 4, refused > 0);
}

#[tokio::test]
async fn health_says_serving_while_the_gateway_is_ready() {
    let served = Served::in_memory("").await;
    let mut health = HealthClient::new(served.channel().await);
    let asked = |service: &str| HealthCheckRequest { service: service.into() };
    let mut watched = health.watch(asked("")).await.unwrap().into_inner();
    assert_eq!(watched.message().await.unwrap().unwrap().status(), ServingStatus::NotServing);
    let status = served.check(user("1")).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "there is no policy yet: {status}");
    let envoy = served.envoy(edge(vec![descriptor(&[("user", "1")])])).await.unwrap_err();
    assert_eq!(envoy.code(), Code::Unavailable);

    let policy = &served.gateway.limiter.policy;
    policy.offer(POLICY, &Source::File("p.toml".into()), Micros::now()).unwrap();
    for service in ["", "rlctl.v1.RateLimiter", "envoy.service.ratelimit.v3.RateLimitService"] {
        let answer = health.check(asked(service)).await.unwrap().into_inner();
        assert_eq!(answer.status(), ServingStatus::Serving, "{service}");
    }
    assert_eq!(watched.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    assert_eq!(health.check(asked("nothing")).await.unwrap_err().code(), Code::NotFound);
    let mut nothing = health.watch(asked("nothing")).await.unwrap().into_inner();
    let status = nothing.message().await.unwrap().unwrap().status();
    assert_eq!(status, ServingStatus::ServiceUnknown);
}

#[tokio::test]
async fn a_gateway_that_is_told_to_end_does_although_somebody_watches() {
    let mut served = Served::in_memory(POLICY).await;
    let mut health = HealthClient::new(served.channel().await);
    let asked = HealthCheckRequest::default();
    let mut watched = health.watch(asked).await.unwrap().into_inner();
    assert_eq!(watched.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    let told = Instant::now();
    served.stop.take().unwrap().send(()).unwrap();
    assert_eq!(watched.message().await.unwrap().unwrap().status(), ServingStatus::NotServing);
    assert_eq!(watched.message().await.unwrap(), None);
    within(20, served.ended).await.unwrap().unwrap();
    assert!(told.elapsed() < Duration::from_secs(4), "without waiting for the grace to pass");
}

async fn within<T>(seconds: u64, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(seconds), future).await.expect("in time")
}

#[tokio::test]
async fn reflection_lists_every_service_and_knows_its_messages() {
    let served = Served::in_memory(POLICY).await;
    let channel = served.channel().await;
    let expected = [
        "envoy.service.ratelimit.v3.RateLimitService",
        "grpc.health.v1.Health",
        "rlctl.v1.RateLimiter",
    ];
    macro_rules! ask {
        ($version:ident) => {{
            use tonic_reflection::pb::$version::ServerReflectionRequest;
            use tonic_reflection::pb::$version::server_reflection_client::ServerReflectionClient;
            use tonic_reflection::pb::$version::server_reflection_request::MessageRequest;
            use tonic_reflection::pb::$version::server_reflection_response::MessageResponse;
            let ask = |message_request| {
                let request = ServerReflectionRequest {
                    host: String::new(),
                    message_request: Some(message_request),
                };
                futures_util::stream::iter([request])
            };
            let mut client = ServerReflectionClient::new(channel.clone());
            let all = ask(MessageRequest::ListServices(String::new()));
            let mut answers = client.server_reflection_info(all).await.unwrap().into_inner();
            let answer = answers.message().await.unwrap().unwrap();
            let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else {
                panic!("{answer:?}")
            };
            let names: Vec<String> = list.service.into_iter().map(|s| s.name).collect();
            for service in expected {
                assert!(names.iter().any(|name| name == service), "{service} in {names:?}");
            }
            let one = ask(MessageRequest::FileContainingSymbol("rlctl.v1.CheckRequest".into()));
            let mut answers = client.server_reflection_info(one).await.unwrap().into_inner();
            let answer = answers.message().await.unwrap().unwrap();
            let Some(MessageResponse::FileDescriptorResponse(_)) = answer.message_response else {
                panic!("{answer:?}")
            };
        }};
    }
    ask!(v1);
    ask!(v1alpha);
}

#[tokio::test]
async fn without_its_store_a_closed_rule_refuses_and_an_open_one_lets_pass() {
    let policy = r#"
[domains]
edge = ["closed", "open"]
[[rule]]
name = "closed"
dimension = "user"
limits = ["5/1h"]
on_store_error = "closed"
[[rule]]
name = "open"
dimension = "ip"
limits = ["5/1h"]
"#;
    let mut served = Served::on(Rig::redis().await, policy, Access::loopback_only()).await;
    assert!(served.check(user("1")).await.unwrap().allowed);
    let Store::Redis(_) = &*served.gateway.limiter.store else { panic!("a real one") };
    served.redis.as_mut().unwrap().kill();
    let answer = served.check(user("1")).await.unwrap();
    assert_eq!((answer.allowed, answer.degraded.as_str()), (false, "closed"));
    assert_eq!(answer.outcome(), Outcome::StoreUnavailable);
    assert_eq!((answer.limit, answer.remaining), (Some(5), None));
    let ip = || descriptor(&[("remote_address", "203.0.113.7")]);
    let answer = served.envoy(edge(vec![ip()])).await.unwrap();
    assert_eq!(answer.overall_code(), Said::Ok);
    assert_eq!(header(&answer, "x-ratelimit-status"), Some("degraded;mode=open"));
    // Not UNAVAILABLE: Envoy lets requests pass then, unless it is told otherwise.
    let answer = served.envoy(edge(vec![ip(), descriptor(&[("user", "1")])])).await.unwrap();
    assert_eq!(answer.overall_code(), Said::OverLimit);
    assert_eq!(header(&answer, "x-ratelimit-status"), Some("degraded;mode=closed"));
    let reset = ResetRequest { identifier: "user:1".into(), ..ResetRequest::default() };
    let status = served.own().await.reset_limit(reset).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "a reset that did not happen is not said to have");
}

#[tokio::test]
async fn two_gateways_on_one_redis_admit_exactly_the_limit() {
    let rig = Rig::redis().await;
    let other = Rig {
        name: "redis",
        store: Store::Redis(rig.server.as_ref().unwrap().store().await),
        server: None,
    };
    let policy = POLICY.replace("\"5/1h\"", "\"100/1d\"");
    let first = Served::on(rig, &policy, Access::loopback_only()).await;
    let second = Served::on(other, &policy, Access::loopback_only()).await;
    let mut tasks = Vec::new();
    for served in [&first, &second] {
        for _ in 0..4 {
            let mut client = RateLimitServiceClient::new(served.channel().await);
            tasks.push(tokio::spawn(async move {
                let mut passed = 0;
                for _ in 0..50 {
                    let request = edge(vec![descriptor(&[("user", "1")])]);
                    let answer = client.should_rate_limit(request).await.unwrap().into_inner();
                    passed += u32::from(answer.overall_code() == Said::Ok);
                }
                passed
            }));
        }
    }
    let mut passed = 0;
    for task in tasks {
        passed += task.await.unwrap();
    }
    assert_eq!(passed, 100, "of 400");
}
