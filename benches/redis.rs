//! Checks on a real Redis beside `redis-benchmark` running the same script in the same run, and
//! what our scripts cost the server beside the plain scripts that people write by hand.
//! `cargo bench --bench redis [-- --quick]`. The server has one core, the client the other.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rlctl::engine::clock::Micros;
use rlctl::engine::identity::Identity;
use rlctl::engine::limit::{Algorithm, Cost, Limit};
use rlctl::engine::store::keys::Prefix;
use rlctl::engine::store::redis::{RedisAddress, RedisOptions};
use rlctl::engine::store::{Check, RedisStore, RuleLimit};

#[path = "support/machine.rs"]
mod machine;
#[path = "support/rng.rs"]
mod rng;
use machine::{median, settings, stolen_share};
use rng::Rng;

const KEYS: usize = 100_000;
const LIMIT: &str = "1000/1h";

/// The usual hand-written GCRA: one GET, one SET with a TTL, the server's clock, doubles.
const PLAIN_GCRA: &str = "
local now = redis.call('TIME')
now = now[1] * 1000000 + now[2]
local interval, burst, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local tat = tonumber(redis.call('GET', KEYS[1]) or now)
if tat < now then tat = now end
local new_tat = tat + interval * cost
local wait = new_tat - now - interval * burst
if wait > 0 then return {0, 0, math.ceil(wait), math.ceil(tat - now)} end
redis.call('SET', KEYS[1], string.format('%.0f', new_tat), 'PX', math.ceil((new_tat - now) / 1000))
return {1, math.floor(-wait / interval), 0, math.ceil(new_tat - now)}";

/// The usual token bucket, packed into a string: tokens and time as doubles.
const PLAIN_TOKEN_BUCKET: &str = "
local now = redis.call('TIME')
now = now[1] * 1000000 + now[2]
local interval, burst, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local tokens, last = burst, now
local state = redis.call('GET', KEYS[1])
if state then tokens, last = struct.unpack('dd', state) end
tokens = math.min(burst, tokens + math.max(0, now - last) / interval)
if tokens < cost then return {0, math.floor(tokens), math.ceil((cost - tokens) * interval), 0} end
tokens = tokens - cost
redis.call('SET', KEYS[1], struct.pack('dd', tokens, now), 'PX', math.ceil((burst - tokens) * interval / 1000))
return {1, math.floor(tokens), 0, math.ceil((burst - tokens) * interval)}";

struct Script {
    text: String,
    arguments: Vec<String>,
}

struct Server {
    process: Child,
    port: u16,
    _dir: tempfile::TempDir,
}

impl Server {
    fn start() -> Server {
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .and_then(|l| l.local_addr())
            .expect("a free port")
            .port();
        let dir = tempfile::tempdir().expect("a folder");
        let process = on_core(0, "redis-server")
            .args(["--port", &port.to_string(), "--save", "", "--appendonly", "no", "--dir"])
            .arg(dir.path())
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server runs; on Debian: apt-get install redis-server");
        let server = Server { process, port, _dir: dir };
        let started = Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(started.elapsed() < Duration::from_secs(5), "redis-server does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        server
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    fn cli(&self, words: &[&str]) -> String {
        let output =
            Command::new("redis-cli").args(["-p", &self.port.to_string()]).args(words).output();
        String::from_utf8_lossy(&output.expect("redis-cli runs").stdout).into_owned()
    }

    /// Runs `script` through redis-benchmark; calls per second, and µs per call in the server.
    fn benchmark(&self, script: &Script, calls: usize) -> (f64, f64) {
        let sha = self.cli(&["SCRIPT", "LOAD", &script.text]).trim().to_string();
        self.cli(&["CONFIG", "RESETSTAT"]);
        let output = on_core(1, "redis-benchmark")
            .args(["-p", &self.port.to_string(), "-c", "50", "-P", "16", "--csv"])
            .args(["-n", &calls.to_string(), "-r", &KEYS.to_string()])
            .args(["EVALSHA", &sha, "1", "rl1:{user:__rand_int__}"])
            .args(&script.arguments)
            .output()
            .expect("redis-benchmark runs");
        let output = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = output.lines().last().unwrap_or_default();
        let rate = line.split("\",\"").nth(1).and_then(|n| n.parse().ok());
        (rate.unwrap_or_else(|| panic!("redis-benchmark said: {output}")), self.usec_per_call())
    }

    fn usec_per_call(&self) -> f64 {
        let stats = self.cli(&["INFO", "commandstats"]);
        let line =
            stats.lines().find(|l| l.starts_with("cmdstat_evalsha:")).expect("evalsha was called");
        let text = line
            .split(',')
            .find_map(|part| part.strip_prefix("usec_per_call="))
            .expect("usec_per_call");
        text.parse().expect("a number")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A command on one core, where the system can do that.
fn on_core(core: usize, program: &str) -> Command {
    if !cfg!(target_os = "linux") {
        return Command::new(program);
    }
    let mut command = Command::new("taskset");
    command.args(["-c", &core.to_string(), program]);
    command
}

fn limits(algorithms: &[Algorithm]) -> Vec<Arc<RuleLimit>> {
    let limit =
        |algorithm| Limit::new(algorithm, LIMIT.parse().expect("a limit")).expect("in range");
    algorithms
        .iter()
        .zip(0..)
        .map(|(a, n)| Arc::new(RuleLimit::new("bench", n, limit(*a))))
        .collect()
}

async fn store(url: &str) -> RedisStore {
    let address = RedisAddress::parse(url, None).expect("an address");
    let options =
        RedisOptions { address, deadline: Micros::SECOND, connect_timeout: Micros::SECOND };
    RedisStore::connect(options, Prefix::default()).await.expect("connects")
}

/// Checks per second through the engine, `tasks` at a time.
async fn engine(url: &str, algorithm: Algorithm, tasks: usize, seconds: f64) -> f64 {
    let store = Arc::new(store(url).await);
    let limits: Arc<[_]> = limits(&[algorithm]).into();
    let started = Instant::now();
    let workers: Vec<_> = (0..tasks as u64)
        .map(|task| {
            let (store, limits) = (store.clone(), limits.clone());
            tokio::spawn(async move {
                let (mut rng, mut done) = (Rng::new(task), 0u64);
                while started.elapsed().as_secs_f64() < seconds {
                    let identity =
                        Identity::opaque(&format!("user:{:012}", rng.below(KEYS))).expect("plain");
                    let check = Check {
                        identity: &identity,
                        limits: &limits,
                        cost: Cost::ONE,
                        idempotency: None,
                        at: None,
                    };
                    store.check(&check).await.expect("a decision");
                    done += 1;
                }
                done
            })
        })
        .collect();
    let mut done = 0;
    for worker in workers {
        done += worker.await.expect("it ends");
    }
    done as f64 / started.elapsed().as_secs_f64()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|a| a == "--engine") {
        let [url, algorithm, tasks, seconds] = &arguments[at + 1..at + 5] else {
            panic!("four words")
        };
        let (algorithm, tasks) =
            (algorithm.parse().expect("a name"), tasks.parse().expect("a number"));
        let rate =
            runtime().block_on(engine(url, algorithm, tasks, seconds.parse().expect("seconds")));
        return println!("{rate}");
    }
    let server = Server::start();
    throughput(&server, settings().rounds, &arguments[0]);
    server_cost(&server, settings().rounds);
}

fn throughput(server: &Server, rounds: usize, own_program: &str) {
    println!(
        "checks per second on one connection, 256 at a time, beside redis-benchmark (50 connections,"
    );
    println!("pipeline of 16) running the same script; medians of {rounds} alternating rounds");
    println!("{:16} {:>9} {:>16} {:>6}", "", "rlctl", "redis-benchmark", "ratio");
    for algorithm in Algorithm::ALL.into_iter().filter(|a| *a != Algorithm::SlidingLog) {
        let script = script_of(server, &[algorithm]);
        let (mut ours, mut peers, mut stolen) = (Vec::new(), Vec::new(), 0.0);
        for round in 0..rounds {
            let ((), share) = stolen_share(|| {
                let mut engine = || {
                    let words = ["--engine", &server.url(), algorithm.name(), "256", "1.5"];
                    let output = on_core(1, own_program).args(words).output().expect("runs itself");
                    let text = String::from_utf8_lossy(&output.stdout).trim().to_string();
                    ours.push(text.parse::<f64>().unwrap_or_else(|_| panic!("{output:?}")));
                };
                if round % 2 == 0 {
                    engine();
                }
                peers.push(server.benchmark(&script, 60_000).0);
                if round % 2 == 1 {
                    engine();
                }
            });
            stolen += share;
        }
        let (ours, peer) = (median(&mut ours), median(&mut peers));
        println!(
            "{algorithm:16} {ours:>9.0} {peer:>16.0} {:>6.2}   {:.1} % stolen",
            ours / peer,
            100.0 * stolen / rounds as f64
        );
    }
}

/// The script of a check. redis-benchmark cuts arguments at zero bytes, so the real one is written
/// into the script, and one of the same length is sent in its place.
fn script_of(server: &Server, algorithms: &[Algorithm]) -> Script {
    let call = runtime().block_on(async {
        let identity = Identity::opaque("user:1").expect("plain");
        let limits = limits(algorithms);
        let cost = Cost::ONE;
        let check =
            Check { identity: &identity, limits: &limits, cost, idempotency: None, at: None };
        store(&server.url()).await.script_call(&check)
    });
    let [argument] = call.args.as_slice() else { panic!("one argument") };
    let bytes: String = argument.iter().map(|b| format!("\\{b:03}")).collect();
    let text = format!("local ARGV = {{'{bytes}'}}\n{}", call.text);
    Script { text, arguments: vec!["x".repeat(argument.len())] }
}

/// µs per call in the server, from `INFO commandstats`: ours beside plain scripts.
fn server_cost(server: &Server, rounds: usize) {
    let arguments = ["3600000", "1000", "1"].map(String::from).to_vec();
    let plain = |text: &str| Script { text: text.into(), arguments: arguments.clone() };
    let ours = |algorithms: &[Algorithm]| script_of(server, algorithms);
    use Algorithm::{FixedWindow, Gcra, SlidingWindow, TokenBucket};
    let contestants = [
        ("plain GCRA", plain(PLAIN_GCRA)),
        ("rlctl gcra", ours(&[Gcra])),
        ("plain token bucket", plain(PLAIN_TOKEN_BUCKET)),
        ("rlctl token-bucket", ours(&[TokenBucket])),
        ("rlctl fixed-window", ours(&[FixedWindow])),
        ("rlctl sliding-window", ours(&[SlidingWindow])),
        ("rlctl, three limits", ours(&[TokenBucket, FixedWindow, SlidingWindow])),
    ];
    let mut costs: Vec<Vec<f64>> = vec![Vec::new(); contestants.len()];
    let mut rng = Rng::new(7);
    for _ in 0..rounds {
        let first = rng.below(contestants.len());
        for n in 0..contestants.len() {
            let index = (first + n) % contestants.len();
            let script = &contestants[index].1;
            server.cli(&["FLUSHALL"]);
            server.benchmark(script, 100_000);
            costs[index].push(server.benchmark(script, 60_000).1);
        }
    }
    println!("\nµs per call in the server (INFO commandstats), medians of {rounds} rounds");
    for ((name, _), costs) in contestants.iter().zip(&mut costs) {
        println!("{name:22} {:>6.2}", median(costs));
    }
}
