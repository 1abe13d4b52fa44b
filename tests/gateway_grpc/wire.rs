//! What travels: bytes, garbage, health, reflection, and the end.

use std::future::Future;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use prost::Message;
use prost::bytes::{Buf, BufMut};
use rlctl::engine::clock::Micros;
use rlctl::engine::live::Source;
use rlctl::gateway::grpc::messages::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use rlctl::gateway::grpc::messages::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use rlctl::gateway::grpc::messages::envoy::r#type::v3::RateLimitUnit;
use rlctl::gateway::grpc::messages::envoy::service::ratelimit::v3::rate_limit_response::Code as Said;
use rlctl::gateway::grpc::messages::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use super::{POLICY, Served, code_of, descriptor, edge, user};

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
    let counted = served.gateway.stats.shed.load(Ordering::Relaxed);
    assert!(counted >= 4 + u64::from(refused), "{counted} of {refused} calls");
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
