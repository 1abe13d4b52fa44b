//! How many virtual requests a second pass through the whole limiter: rules, store, failure modes and
//! the recording that assertions are judged by.
//! `cargo bench --bench scenario [-- --quick]`

use std::time::Instant;

use rlctl::scenario::read::parse;
use rlctl::scenario::run;

#[path = "support/machine.rs"]
mod machine;
use machine::{median, settings, stolen_share};

const MAX_STOLEN: f64 = 0.05;

fn text(store: &str, keys: &str) -> String {
    format!(
        "name = \"bench\"\nrun = \"10s\"\nstore = {store}\n\
         traffic = [ {{ rate = \"100k/s\", arrivals = \"poisson\", keys = {keys} }} ]\n\
         [limiter.api]\nlimit = \"10/1s\"\n[expect]\n\"runs\" = \"errors == 0\"\n"
    )
}

/// Virtual requests in a real second, and how many requests they were.
fn per_second(text: &str) -> (f64, u64) {
    let (scenarios, _) = parse("bench.toml", text).expect("a scenario");
    let begun = Instant::now();
    let outcome = run::run(&scenarios[0], None).expect("it runs");
    let requests = outcome.limiters[0].totals.requests;
    (requests as f64 / begun.elapsed().as_secs_f64(), requests)
}

fn main() {
    let rounds = settings().rounds;
    println!("{:<34} {:>14} {:>12} {:>8}", "", "requests/s", "requests", "stolen");
    for (name, store, keys) in [
        ("memory, one key", "{ kind = \"memory\" }", "\"user:1\""),
        ("memory, 10 000 keys", "{ kind = \"memory\" }", "{ count = 10000 }"),
        ("simulated redis, 10 000 keys", "{ kind = \"redis\" }", "{ count = 10000 }"),
    ] {
        let text = text(store, keys);
        let (mut rates, mut stolen, mut requests) = (Vec::new(), Vec::new(), 0);
        for _ in 0..rounds {
            let ((rate, count), share) = stolen_share(|| per_second(&text));
            requests = count;
            if share <= MAX_STOLEN {
                rates.push(rate);
            }
            stolen.push(share);
        }
        let rate = median(&mut rates);
        let stolen = 100.0 * median(&mut stolen);
        println!("{name:<34} {rate:>14.0} {requests:>12} {stolen:>7.1}%");
    }
}
