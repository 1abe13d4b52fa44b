//! The whole path of a decision by a policy, on both stores: every identity must pass, what was
//! charged in vain is given back, and authority goes block, exempt, override, tier, rule.

use std::sync::Arc;

use rlctl::engine::clock::Micros;
use rlctl::engine::config::parse_policy;
use rlctl::engine::failure::OnFailure;
use rlctl::engine::identity::Identity;
use rlctl::engine::limit::{Algorithm, Decision};
use rlctl::engine::limiter::{Demand, Limiter, Reached, Verdict};
use rlctl::engine::plan::{Attempt, Entry, Override, Standing};
use rlctl::engine::rules::{Rules, Target};
use rlctl::engine::store::Settlement;

use crate::support::{Rig, TODAY, cost, id, limit};

const POLICY: &str = r#"
default_tier = "free"
[tiers.free]
limits = ["3/1d"]
[tiers.gold]
limits = ["10/1d", { limit = "100/30d", algorithm = "fixed-window" }]
[assign]
"user:gold" = "gold"
[[rule]]
name = "per-user"
dimension = "user"
limits = "tier"
[[rule]]
name = "exports"
dimension = "user"
endpoint = "/exports/*"
limits = ["1/1d"]
cost = 1
[[rule]]
name = "also"
dimension = "user"
also = true
limits = ["20/1d"]
cost = 4
[[rule]]
name = "per-ip"
dimension = "ip"
limits = ["5/1d"]
[[rule]]
name = "next"
dimension = "ip"
shadow = true
limits = ["1/1d"]
[[rule]]
name = "admin"
dimension = "apikey"
endpoint = "/admin/*"
missing = "reject"
limits = ["9/1d"]
[[block]]
match = ["user:666"]
reason = "abuse"
[[exempt]]
match = ["ip:10.0.0.0/8"]
reason = "ours"
[[exempt]]
match = ["user:root"]
reason = "ours"
scope = "request"
"#;

struct World {
    limiter: Limiter,
    name: &'static str,
    _server: Option<crate::support::redis::RedisServer>,
}

async fn worlds() -> Vec<World> {
    let (policy, _) = parse_policy("policy.toml", POLICY, Micros(TODAY)).expect("a good policy");
    let rules = Arc::new(Rules::new(Arc::new(policy)));
    let world = |rig: Rig| World {
        limiter: Limiter {
            rules: rules.clone(),
            store: Arc::new(rig.store),
            on_failure: OnFailure::Tell,
            hot: None,
        },
        name: rig.name,
        _server: rig.server,
    };
    Rig::both().await.into_iter().map(world).collect()
}

impl World {
    async fn ask(&self, identities: &[&str], path: Option<&str>) -> Verdict {
        self.ask_as(identities, path, &vec![Standing::default(); identities.len()], 1).await
    }

    async fn ask_as(
        &self,
        identities: &[&str],
        path: Option<&str>,
        standings: &[Standing],
        c: u64,
    ) -> Verdict {
        let identities: Vec<Identity> = identities.iter().map(|text| id(text)).collect();
        let target = Target { path, ..Target::default() };
        let attempt = Attempt { identities: &identities, target, tier: None };
        let demand = Demand { at: Some(Micros(TODAY)), ..Demand::of(cost(c)) };
        self.limiter.check(&attempt, standings, demand).await.expect("the store answers")
    }

    /// What each limit of these identities has used, by rule.
    async fn used(&self, identities: &[&str]) -> Vec<(String, u64)> {
        let verdict =
            self.ask_as(identities, None, &vec![Standing::default(); identities.len()], 0).await;
        let used = |(rule, decision): (String, Decision)| (rule, decision.used());
        asked(&verdict).into_iter().map(used).collect()
    }
}

fn asked(verdict: &Verdict) -> Vec<(String, Decision)> {
    match &verdict.reached {
        Reached::Limits { asked, .. } => {
            asked.iter().map(|a| (a.limit.rule().to_string(), a.decision)).collect()
        }
        _ => Vec::new(),
    }
}

fn decided(verdict: &Verdict) -> &str {
    match &verdict.reached {
        Reached::Limits { decided, asked } => asked[*decided].limit.rule(),
        Reached::Blocked { .. } => "blocked",
        Reached::Missing { .. } => "missing",
        Reached::Busy(_) => "busy",
        Reached::Unanswered { .. } => "unanswered",
        Reached::NoLimit => "none",
        Reached::NoPolicy => "no policy",
    }
}

#[tokio::test]
async fn all_identities_pass_or_nobody_is_charged() {
    for world in worlds().await {
        let both = ["user:1", "ip:192.0.2.1"];
        for _ in 0..3 {
            assert!(world.ask(&both, None).await.allowed, "{}", world.name);
        }
        // The user has used up the free tier; the address has not, and must not pay for the refusal.
        for _ in 0..5 {
            let refused = world.ask(&both, None).await;
            assert_eq!((refused.allowed, decided(&refused)), (false, "per-user"), "{}", world.name);
            assert!(refused.charges.is_empty());
        }
        let used = world.used(&both).await;
        assert_eq!(
            used,
            [("per-user".into(), 3), ("also".into(), 12), ("per-ip".into(), 3)],
            "{}",
            world.name
        );
        // Now the address is the one that refuses, and another user keeps what it has.
        for _ in 0..2 {
            assert!(world.ask(&["user:2", "ip:192.0.2.1"], None).await.allowed);
        }
        let refused = world.ask(&["user:2", "ip:192.0.2.1"], None).await;
        assert_eq!((refused.allowed, decided(&refused)), (false, "per-ip"), "{}", world.name);
        assert_eq!(world.used(&["user:2"]).await[0].1, 2, "{}", world.name);
    }
}

#[tokio::test]
async fn what_was_charged_can_be_given_back() {
    for world in worlds().await {
        let both = ["user:1", "ip:192.0.2.1"];
        let verdict = world.ask(&both, None).await;
        assert_eq!(verdict.charges.len(), 2);
        for charge in &verdict.charges {
            let at = Some(Micros(TODAY));
            assert!(
                world.limiter.store.settle(charge, Settlement::Refund, at).await.expect("answers")
            );
        }
        assert!(world.used(&both).await.iter().all(|(_, used)| *used == 0), "{}", world.name);
    }
}

#[tokio::test]
async fn a_shadow_rule_says_what_it_would_do_and_changes_nothing() {
    for world in worlds().await {
        let said: Vec<(bool, Vec<bool>)> = {
            let mut said = Vec::new();
            for _ in 0..6 {
                let verdict = world.ask(&["ip:192.0.2.9"], None).await;
                said.push((verdict.allowed, verdict.shadow.iter().map(|s| s.allowed).collect()));
            }
            said
        };
        let would_refuse = (true, vec![false]);
        let expected = [
            (true, vec![true]),
            would_refuse.clone(),
            would_refuse.clone(),
            would_refuse.clone(),
            would_refuse,
            (false, vec![]),
        ];
        assert_eq!(said, expected, "{}", world.name);
    }
}

#[tokio::test]
async fn tiers_come_from_the_record_before_the_file_before_the_default() {
    for world in worlds().await {
        let capacity = |verdict: &Verdict| asked(verdict)[0].1.capacity;
        assert_eq!(capacity(&world.ask(&["user:x"], None).await), 3);
        let gold = world.ask(&["user:gold"], None).await;
        assert_eq!((capacity(&gold), gold.tier.as_deref()), (10, Some("gold")));
        let on_record = |tier: &str| Standing { tier: Some(tier.into()), ..Standing::default() };
        let promoted = world.ask_as(&["user:y"], None, &[on_record("gold")], 1).await;
        assert_eq!(asked(&promoted).len(), 3, "two limits of the tier, and the rule beside it");
        let demoted = world.ask_as(&["user:gold"], None, &[on_record("free")], 1).await;
        assert_eq!(capacity(&demoted), 3);
        let unknown = world.ask_as(&["user:z"], None, &[on_record("platinum")], 1).await;
        assert_eq!(unknown.tier.as_deref(), Some("free"), "a tier that is gone is nobody's");
    }
}

#[tokio::test]
async fn authority_goes_block_exempt_override_tier_rule() {
    for world in worlds().await {
        assert_eq!(decided(&world.ask(&["user:666", "ip:192.0.2.1"], None).await), "blocked");
        let entry = |until| Entry { reason: "x".into(), until, whole_request: false, place: None };
        let banned = |until| Standing { block: Some(entry(until)), ..Standing::default() };
        let ask = |standing| async {
            decided(&world.ask_as(&["user:5"], None, &[standing], 0).await).to_string()
        };
        assert_eq!(ask(banned(None)).await, "blocked");
        assert_eq!(ask(banned(Some(Micros(TODAY + 1)))).await, "blocked");
        assert_eq!(ask(banned(Some(Micros(TODAY)))).await, "per-user", "a ban that has ended");
        // An exemption frees its own dimension only, unless it is for the whole request.
        assert_eq!(decided(&world.ask(&["user:7", "ip:10.1.2.3"], None).await), "per-user");
        assert_eq!(decided(&world.ask(&["user:root", "ip:192.0.2.1"], None).await), "none");
        let instead = Override {
            rule: "per-user".into(),
            limits: vec![limit(Algorithm::Gcra, "7/1d")],
            until: Some(Micros(TODAY + 1)),
            reason: "sale".into(),
        };
        let favoured = Standing { overrides: vec![instead], ..Standing::default() };
        let verdict = world.ask_as(&["user:8"], None, &[favoured], 0).await;
        assert_eq!(asked(&verdict)[0].1.capacity, 7, "{}", world.name);
    }
}

#[tokio::test]
async fn a_rule_may_insist_on_an_identity_at_its_endpoint() {
    for world in worlds().await {
        assert_eq!(decided(&world.ask(&["user:1"], Some("/admin/x")).await), "missing");
        assert_eq!(decided(&world.ask(&["apikey:k"], Some("/admin/x")).await), "admin");
        assert_eq!(decided(&world.ask(&["user:1"], Some("/other")).await), "per-user");
        assert_eq!(decided(&world.ask(&["user:1"], Some("/exports/a")).await), "exports");
        assert_eq!(decided(&world.ask(&["header:x-tenant:a"], None).await), "none");
    }
}

#[tokio::test]
async fn a_thousand_concurrent_requests_of_two_identities_admit_the_least_limit_exactly() {
    for world in worlds().await {
        let world = Arc::new(world);
        let asks = (0..200).map(|_| {
            let world = world.clone();
            tokio::spawn(
                async move { world.ask(&["user:gold", "ip:198.51.100.7"], None).await.allowed },
            )
        });
        let mut admitted = 0;
        for ask in asks.collect::<Vec<_>>() {
            admitted += u64::from(ask.await.expect("it ends"));
        }
        // 5 a day for the address; `also` lets 20 / 4 = 5 pass. Refusals in between may refuse each
        // other for a moment, but never let more through.
        assert!((1..=5).contains(&admitted), "{}: {admitted}", world.name);
        while world.ask(&["user:gold", "ip:198.51.100.7"], None).await.allowed {
            admitted += 1;
        }
        assert_eq!(admitted, 5, "{}: nothing was lost in refunds", world.name);
    }
}
