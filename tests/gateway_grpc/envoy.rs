//! What Envoy asks.

use std::sync::Arc;

use rlctl::engine::clock::Micros;
use rlctl::engine::live::Source;
use rlctl::engine::store::Store;
use rlctl::gateway::access::Access;
use rlctl::gateway::grpc::messages::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use rlctl::gateway::grpc::messages::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use rlctl::gateway::grpc::messages::envoy::r#type::v3::RateLimitUnit;
use rlctl::gateway::grpc::messages::envoy::service::ratelimit::v3::rate_limit_response::Code as Said;
use rlctl::gateway::grpc::messages::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use rlctl::gateway::grpc::messages::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use rlctl::gateway::grpc::messages::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse,
};
use rlctl::gateway::grpc::messages::rlctl::v1::{Outcome, ResetRequest};
use tonic::Code;

use super::{POLICY, Served, descriptor, edge, user};
use crate::support::Rig;

fn header<'a>(answer: &'a RateLimitResponse, name: &str) -> Option<&'a str> {
    let all = &answer.response_headers_to_add;
    all.iter().find(|header| header.key == name).map(|header| header.value.as_str())
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
    let mut served = Served::on(Rig::redis().await, policy, Arc::new(Access::local())).await;
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
    let reset = ResetRequest {
        identifier: "user:1".into(),
        reason: "because".into(),
        ..ResetRequest::default()
    };
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
    let first = Served::on(rig, &policy, Arc::new(Access::local())).await;
    let second = Served::on(other, &policy, Arc::new(Access::local())).await;
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
