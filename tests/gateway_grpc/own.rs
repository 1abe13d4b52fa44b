//! `rlctl.v1.RateLimiter`.

use std::sync::Arc;

use rlctl::engine::clock::Micros;
use rlctl::gateway::access::Access;
use rlctl::gateway::grpc::messages::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use rlctl::gateway::grpc::messages::rlctl::v1::{
    CheckRequest, Outcome, QuotaRequest, ResetRequest,
};
use tonic::{Code, Request};

use super::{POLICY, Served, code_of, descriptor, edge, user};
use crate::support::Rig;

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
                identifier: "1".into(),
                dimension: "user".into(),
                rule: rule.into(),
                reason: "a mistake of ours".into(),
            };
            served.own().await.reset_limit(asked).await.unwrap().into_inner().limits_reset
        };
        assert_eq!(reset("slow-path").await, 1, "{}", served.name);
        assert_eq!(served.check(slow()).await.unwrap().remaining, Some(1), "{}", served.name);
        assert_eq!(served.check(user("1")).await.unwrap().remaining, Some(2), "the other stays");
        assert_eq!(reset("").await, 2, "{}", served.name);
        assert_eq!(served.check(user("1")).await.unwrap().remaining, Some(4), "{}", served.name);
        assert_eq!(reset("no-such-rule").await, 0);
        let events = served.gateway.registry.events(None, 10).await.unwrap();
        let told: Vec<_> = events
            .iter()
            .map(|event| (event.by.as_str(), event.action.as_str(), event.subject.as_str()))
            .collect();
        assert_eq!(told, [("local", "reset", "user:1"); 3], "{}", served.name);
        assert_eq!(events[0].reason, "a mistake of ours");
        let silent = ResetRequest { identifier: "user:1".into(), ..ResetRequest::default() };
        let status = served.own().await.reset_limit(silent).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "without a reason: {status}");
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
    let tokens = "read reader-token-0001 bob\nwrite writer-token-0001 alice";
    let access = Arc::new(Access::from_text("tokens", tokens).unwrap());
    let served = Served::on(Rig::memory(), POLICY, access).await;
    let mut own = served.own().await;
    let mut envoy = RateLimitServiceClient::new(served.channel().await);
    for (token, read, write) in [
        ("", Code::Unauthenticated, Code::Unauthenticated),
        ("Bearer nobodys-token-0001", Code::Unauthenticated, Code::Unauthenticated),
        ("Bearer reader-token-0001", Code::Ok, Code::PermissionDenied),
        ("Bearer writer-token-0001", Code::Ok, Code::Ok),
    ] {
        let reset = ResetRequest {
            identifier: "user:1".into(),
            reason: "because".into(),
            ..ResetRequest::default()
        };
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
