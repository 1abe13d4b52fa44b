//! How long it takes to find the rules of a request among 100 and 10 000, to look an address up in a
//! block list as long, and to read such a file.
//! `cargo bench --bench policy [-- --quick]`

use std::fmt::Write;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use rlctl::engine::clock::Micros;
use rlctl::engine::config::parse_policy;
use rlctl::engine::identity::Identity;
use rlctl::engine::rules::{Rules, Target};

#[path = "support/machine.rs"]
mod machine;
#[path = "support/rng.rs"]
mod rng;
use machine::{median, settings, stolen_share};
use rng::Rng;

const LOOKUPS: usize = 200_000;
const MAX_STOLEN: f64 = 0.05;

/// Half of the rules for exact endpoints, a quarter each for segments and prefixes, and two that
/// every request meets.
fn policy_text(rules: usize) -> String {
    let mut text = String::from(
        "[tiers.free]\nlimits = [\"10/1s\"]\n[tiers.premium]\nlimits = [\"1000/1s\"]\n\
         [[rule]]\nname = \"per-user\"\ndimension = \"user\"\nlimits = \"tier\"\n\
         [[rule]]\nname = \"per-ip\"\ndimension = \"ip\"\nlimits = [\"300/1m\"]\n",
    );
    for n in 0..rules - 2 {
        let endpoint = match n % 4 {
            0 | 1 => format!("/api/v1/service-{n}/orders"),
            2 => format!("/api/v1/service-{n}/users/{{id}}/orders"),
            _ => format!("/api/v1/service-{n}/*"),
        };
        write!(
            text,
            "\n[[rule]]\nname = \"rule-{n}\"\ndescription = \"What service {n} can bear\"\n\
             dimension = \"user\"\nendpoint = \"{endpoint}\"\nmethods = [\"POST\", \"PUT\"]\n\
             tier = [\"free\"]\nlimits = [\"100/1m\", \"1000/1h burst 200\"]\ncost = 5\n\
             on_store_error = \"closed\"\n"
        )
        .expect("text grows");
    }
    text
}

fn path(n: usize) -> String {
    match n % 4 {
        0 | 1 => format!("/api/v1/service-{n}/orders"),
        2 => format!("/api/v1/service-{n}/users/4711/orders"),
        _ => format!("/api/v1/service-{n}/reports/2026/11"),
    }
}

/// Nanoseconds to find the rules of one identity of a request, and their limits.
fn lookup_ns(rules: &Rules, count: usize, seed: u64) -> f64 {
    let mut rng = Rng::new(seed);
    let requests: Vec<([Identity; 1], String)> = (0..LOOKUPS / 10)
        .map(|_| {
            let user = format!("user:{}", rng.below(100_000)).parse().expect("an identity");
            ([user], path(rng.below(count - 2)))
        })
        .collect();
    let start = Instant::now();
    for _ in 0..10 {
        for (identities, path) in &requests {
            let target = Target { path: Some(path), method: Some("POST"), only: None };
            let applying = rules.applying(&identities[0], identities, Some("free"), target);
            for applied in &applying.enforced {
                black_box(applied.limits(Some("free")));
            }
        }
    }
    start.elapsed().as_nanos() as f64 / LOOKUPS as f64
}

/// A list of as many networks as there are rules.
fn block_list(networks: usize) -> Rules {
    let list: Vec<String> =
        (0..networks).map(|n| format!("\"ip:10.{}.{}.0/24\"", n >> 8, n & 255)).collect();
    let text = format!("[[block]]\nreason = \"abuse\"\nmatch = [{}]\n", list.join(","));
    let (policy, _) = parse_policy("bench.toml", &text, Micros::ZERO).expect("valid");
    Rules::new(Arc::new(policy))
}

/// Nanoseconds to see that an address is not on the list.
fn blocked_ns(rules: &Rules, seed: u64) -> f64 {
    let mut rng = Rng::new(seed);
    let address = |n: usize| format!("ip:11.{}.{}.9", n >> 8, n & 255);
    let addresses: Vec<Identity> = (0..LOOKUPS / 10)
        .map(|_| address(rng.below(1 << 16)).parse().expect("an identity"))
        .collect();
    let start = Instant::now();
    for _ in 0..10 {
        for identity in &addresses {
            black_box(rules.block_of(identity, Micros::ZERO));
        }
    }
    start.elapsed().as_nanos() as f64 / LOOKUPS as f64
}

/// Milliseconds from text to rules that can be asked.
fn reload_ms(text: &str) -> f64 {
    let start = Instant::now();
    let (policy, _) = parse_policy("bench.toml", text, Micros::ZERO).expect("valid");
    black_box(Rules::new(Arc::new(policy)));
    start.elapsed().as_secs_f64() * 1e3
}

/// The median of rounds in which the machine gave its time to nobody else.
fn undisturbed(rounds: usize, mut round: impl FnMut(u64) -> f64) -> f64 {
    let mut times = Vec::new();
    let mut dropped = 0;
    while times.len() < rounds && dropped < 2 * rounds {
        let (time, share) = stolen_share(|| round(times.len() as u64));
        if share > MAX_STOLEN { dropped += 1 } else { times.push(time) }
    }
    median(&mut times)
}

fn main() {
    let rounds = settings().rounds;
    println!(
        "{:>8} {:>12} {:>12} {:>12} {:>10}",
        "rules", "lookup ns", "blocked ns", "reload ms", "file bytes"
    );
    for count in [100, 10_000] {
        let text = policy_text(count);
        let (policy, _) = parse_policy("bench.toml", &text, Micros::ZERO).expect("valid");
        let rules = Rules::new(Arc::new(policy));
        let lookup = undisturbed(rounds, |seed| lookup_ns(&rules, count, seed));
        let list = block_list(count);
        let blocked = undisturbed(rounds, |seed| blocked_ns(&list, seed));
        let reload = undisturbed(rounds, |_| reload_ms(&text));
        println!("{count:>8} {lookup:>12.0} {blocked:>12.0} {reload:>12.1} {:>10}", text.len());
    }
}
