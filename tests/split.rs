//! Rules that divide an identity over several slots, on a real cluster.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use rlctl::engine::clock::Micros;
use rlctl::engine::limiter::{Demand, Reached};
use rlctl::engine::plan::Attempt;
use rlctl::engine::rules::Target;
use rlctl::engine::store::redis::slot_of;
use rlctl::engine::store::{Settlement, Store};
use rlctl::gateway::Gateway;
use rlctl::ops::local_redis::Kind;

use crate::cli::rlctl;
use crate::registry_cli::Ran;
use crate::support::decider::{ask, on};
use crate::support::servers::Servers;
use crate::support::{cost, id};

const DEADLINE: Micros = Micros(5_000_000);
const RULES: &str = r#"
[[rule]]
name = "whole"
dimension = "user"
limits = ["1000/1d"]

[[rule]]
name = "divided"
dimension = "user"
also = true
limits = ["103/1d"]
split = 8
"#;

async fn left(gateway: &Gateway) -> (u64, u64) {
    let identities = [id("user:1")];
    let attempt = Attempt { identities: &identities, target: Target::default(), tier: None };
    let (verdict, _) =
        gateway.peek(&gateway.moment(), &attempt, Demand::of(cost(0))).await.unwrap();
    let Reached::Limits { asked, .. } = verdict.reached else { panic!("no limits") };
    (asked[0].decision.remaining, asked[1].decision.remaining)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_divided_identity_is_spread_over_slots_and_admitted_its_limit_exactly() {
    let servers = Servers::start(Kind::Cluster, 3, 0).await;
    let gateways = [
        on(Store::Redis(servers.store(DEADLINE).await), RULES).await,
        on(Store::Redis(servers.store(DEADLINE).await), RULES).await,
    ];
    let asked = (0..600).map(|n| ask(&gateways[n % 2], &["user:1"]));
    let verdicts = join_all(asked).await;
    let passed: Vec<_> = verdicts.iter().filter(|verdict| verdict.allowed).collect();
    assert_eq!(passed.len(), 103);
    assert_eq!(left(&gateways[0]).await, (897, 0), "a refusal takes from neither");
    let mut keys = BTreeSet::new();
    for port in servers.local.data_ports() {
        let console = servers.local.console(port).await.unwrap();
        let found = console.ask(&["KEYS", "rl1:{*}"]).await.unwrap().into_list();
        keys.extend(found.into_iter().map(|key| key.into_text()));
    }
    let expected: BTreeSet<String> = (0..8)
        .map(|n| format!("rl1:{{split:{n}:user:1}}"))
        .chain(["rl1:{user:1}".to_owned()])
        .collect();
    assert_eq!(keys, expected);
    let slots: BTreeSet<u16> = keys.iter().map(|key| slot_of(key)).collect();
    assert_eq!(slots.len(), 9);
    // What is given back goes to the part that it came from.
    let store = &gateways[1].limiter.store;
    for charge in passed.iter().take(20).flat_map(|verdict| &verdict.charges) {
        assert!(store.settle(charge, Settlement::Refund, None).await.unwrap());
    }
    assert_eq!(left(&gateways[0]).await, (917, 20));
    let rules = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(rules.path(), RULES).unwrap();
    let output = rlctl()
        .args(["inspect", "user:1", "-o", "json", "--redis", &servers.local.url(), "--rules"])
        .arg(rules.path())
        .output()
        .unwrap();
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let limits = told["limits"].as_array().unwrap();
    let sum = |rule: &str, what: &str| {
        let of = limits.iter().filter(|limit| limit["rule"] == rule);
        of.map(|limit| limit[what].as_u64().unwrap()).sum::<u64>()
    };
    assert_eq!((sum("divided", "limit"), sum("divided", "remaining")), (103, 20), "{told}");
    assert_eq!((sum("whole", "limit"), sum("whole", "remaining")), (1_000, 917), "{told}");
    assert!(told.to_string().contains("rule, part 8 of 8"), "{told}");
    // An operator who gives the rules forgets all parts, and brings all of them back.
    let folder = tempfile::tempdir().unwrap();
    let run = |line: &str| -> Ran {
        let mut command = rlctl();
        command.args(line.split(' ')).args(["--redis", &servers.local.url()]);
        command.arg("--rules").arg(rules.path()).current_dir(folder.path());
        command.output().unwrap().into()
    };
    let reset = run("reset user:1 --yes --backup b");
    assert!(reset.out.contains("forgotten: 9 limits of 1 identity"), "{}{}", reset.out, reset.err);
    assert_eq!(left(&gateways[0]).await, (1_000, 103));
    assert_eq!(run("undo b --yes").code, 0);
    assert_eq!(left(&gateways[0]).await, (917, 20));
    let reset = run("reset --match user:* --yes --backup c");
    assert!(reset.out.contains("forgotten: 9 limits of 1 identity"), "{}{}", reset.out, reset.err);
    assert_eq!(left(&gateways[0]).await, (1_000, 103));
    assert_eq!(run("undo c --yes").code, 0);
    assert_eq!(gateways[0].reset(&id("user:1"), None).await.unwrap(), 9);
    assert_eq!(left(&gateways[0]).await, (1_000, 103));
}
