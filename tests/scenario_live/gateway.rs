//! Scenarios in real time against a gateway that runs already: by its rules, about identities of the
//! run's own, and with nothing left behind.

use std::fs;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rlctl::gateway::PolicySource;
use rlctl::gateway::access::Access;
use serde_json::Value;
use tempfile::TempDir;

use crate::cli::rlctl;
use crate::support::api::Served;
use crate::support::redis::RedisServer;

const POLICY: &str = r#"
[defaults]
deadline = "1m"
[[rule]]
name = "api"
dimension = "user"
limits = ["20/1s burst 5"]
[[rule]]
name = "windows"
dimension = "user"
endpoint = "/reports"
limits = [{ limit = "10/1s", algorithm = "fixed-window" }]
"#;

/// Less than `api` lets through, if both come as often.
const OVERLOAD: &str = r#"
name = "overload"
run  = "3s"
traffic = [ { name = "t", rate = "30/s", keys = ["user:1", "user:2"] } ]
[limiter.api]
limit = "20/1s"
burst = 5
[expect]
"each gets what it asks for" = "share(allowed) >= 95%"
"never more than promised"   = "over_admitted == 0"
"nobody errors"              = "errors == 0"
"#;

async fn gateway(server: &RedisServer) -> Served {
    let source = PolicySource::Given { name: "given".into(), text: POLICY.into() };
    let served = Served::start(source, Some(server), Access::local()).await;
    served.until("there is a policy", |gateway| gateway.is_ready()).await;
    served
}

/// Runs one file against a gateway, beside the tasks that serve it.
async fn run(file: &str, arguments: &[&str]) -> (Output, Value) {
    let folder = TempDir::new().expect("a folder");
    fs::write(folder.path().join("live.toml"), file).expect("written");
    let mut command = rlctl();
    command.args(["scenario", "run", "live.toml", "-o", "json"]).args(arguments);
    command.current_dir(folder.path());
    let ended = tokio::task::spawn_blocking(move || command.output().expect("rlctl runs"));
    let output = ended.await.expect("it ends");
    drop(folder);
    let json = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    (output, json)
}

fn url(served: &Served) -> String {
    format!("http://{}", served.address)
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn results(json: &Value) -> Vec<(String, String)> {
    let cases = json["items"][0]["cases"].as_array().cloned().unwrap_or_default();
    let text = |case: &Value, key: &str| case[key].as_str().unwrap_or_default().to_owned();
    cases.iter().map(|case| (text(case, "name"), text(case, "result"))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_keeps_its_word_does_as_in_virtual_time_and_forgets_the_run() {
    let server = RedisServer::start();
    let served = gateway(&server).await;
    let greedy = OVERLOAD
        .replace("keys = [\"user:1\", \"user:2\"]", "keys = \"user:1\"")
        .replace("share(allowed) >= 95%", "rate(allowed) during 1s..3s == 20/s +-5%");
    for file in [OVERLOAD, &greedy] {
        for live in [&["--live", "--gateway", &url(&served)][..], &[]] {
            let (output, json) = run(file, live).await;
            assert_eq!(output.status.code(), Some(0), "{live:?}: {json}");
            assert!(results(&json).iter().all(|(_, result)| result == "passed"), "{json}");
        }
    }
    let left: Vec<String> = server.command(&["KEYS", "*rlsc*"]);
    assert_eq!(left, Vec::<String>::new());
    let others: Vec<String> = server.command(&["KEYS", "*user:1*"]);
    assert_eq!(others, Vec::<String>::new(), "whoever really has that name spent nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_with_another_limit_is_told_and_fails() {
    let server = RedisServer::start();
    let served = gateway(&server).await;
    let file = OVERLOAD
        .replace("limit = \"20/1s\"\nburst = 5", "limit = \"5/1s\"")
        .replace("share(allowed) >= 95%", "rate(allowed) during 1s..3s <= 12/s");
    let (output, json) = run(&file, &["--live", "--gateway", &url(&served)]).await;
    assert_eq!(output.status.code(), Some(4), "{json}");
    let told = said(&output);
    let words =
        "the gateway's `api` is not the file's: it has 20 per 1s, 5 at once, by token-bucket";
    assert!(told.contains(words), "{told}");
    let again = json["items"][0]["reproduce"].as_str().expect("a command");
    assert!(again.ends_with(&format!(" --live --gateway {}", url(&served))), "{again}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_gateway_does_not_have_or_tell_is_skipped_and_not_passed() {
    let server = RedisServer::start();
    let served = gateway(&server).await;
    let address = url(&served);
    let live = ["--live", "--gateway", &address];
    let two = format!(
        "{OVERLOAD}\"no calls\" = \"api: store_calls == 0\"\n[limiter.other]\nlimit = \"20/1s\"\n"
    );
    let two = two.replace("run  =", "store = { kind = \"redis\" }\nrun  =");
    let (output, json) = run(&two, &live).await;
    assert_eq!(output.status.code(), Some(0), "{json}");
    let of = |limiter: &str| {
        let cases = json["items"][0]["cases"].as_array().cloned().unwrap_or_default();
        let cases = cases.into_iter().filter(move |case| case["limiter"] == limiter);
        cases.collect::<Vec<_>>()
    };
    assert!(of("other").iter().all(|case| case["result"] == "skipped"), "{json}");
    let why = of("other")[0]["words"].to_string();
    assert!(why.contains("no rule `other` for user:1; it has `api`"), "{why}");
    let calls = of("api").into_iter().find(|case| case["name"] == "no calls").expect("a case");
    assert_eq!(calls["result"], "skipped", "{calls}");
    assert_eq!((json["passed"].as_u64(), json["skipped"].as_u64()), (Some(3), Some(4)), "{json}");

    let fault = "[[fault]]\nname = \"gone\"\nat = \"1s\"\ndo = \"down\"\n[expect]";
    let change = "[[change]]\nname = \"more\"\nat = \"1s\"\nlimit = \"50/1s\"\n[expect]";
    let redis = OVERLOAD.replace("run  =", "store = { kind = \"redis\" }\nrun  =");
    for (file, words) in [
        (redis.replace("[expect]", fault), "'gone' (down of the store) cannot be made here"),
        (OVERLOAD.replace("[expect]", change), "'more' would change a gateway"),
        (OVERLOAD.replace("burst = 5", "burst = 5\nnodes = 2"), "give --gateway 2 times"),
        (OVERLOAD.replace("[limiter.api]", "[limiter.other]"), "no rule `other`"),
        (OVERLOAD.replace("\"user:1\", \"user:2\"", "\"global:all\""), "somebody else's quota"),
        (
            OVERLOAD
                .replace("keys =", "takes = \"50ms\", keys =")
                .replace("burst = 5", "concurrency = { max = 3 }"),
            "is counted by a gateway's proxy",
        ),
    ] {
        let (output, json) = run(&file, &live).await;
        assert_eq!(output.status.code(), Some(0), "{words}: {json} {}", said(&output));
        assert_eq!(json["scenarios_skipped"], 1, "{words}: {json}");
        let why = json["items"][0]["why"].as_str().unwrap_or_default();
        assert!(why.contains(words), "{why}");
    }
    let left: Vec<String> = server.command(&["KEYS", "*rlsc*"]);
    assert_eq!(left, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_is_not_there_or_not_ours_is_said() {
    let (output, _) = run(OVERLOAD, &["--live", "--gateway", "http://127.0.0.1:1"]).await;
    assert_eq!(output.status.code(), Some(5), "{}", said(&output));
    let tokens = Access::from_text("tokens", "write writer-token-0001 alice\n").expect("tokens");
    let served = Served::given(POLICY, tokens).await;
    let (output, _) = run(OVERLOAD, &["--live", "--gateway", &url(&served)]).await;
    assert_eq!(output.status.code(), Some(5), "{}", said(&output));
    assert!(said(&output).contains("RLCTL_TOKEN"), "{}", said(&output));
    let both = ["--live", "--gateway", "http://127.0.0.1:1", "--spawn", "single"];
    assert_eq!(run(OVERLOAD, &both).await.0.status.code(), Some(2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_run_is_forgotten_by_the_gateway() {
    let server = RedisServer::start();
    let served = gateway(&server).await;
    let folder = TempDir::new().expect("a folder");
    let long = OVERLOAD.replace("\"3s\"", "\"10m\"");
    fs::write(folder.path().join("live.toml"), long).expect("written");
    let mut running = rlctl()
        .args(["scenario", "run", "live.toml", "--live", "--gateway", &url(&served)])
        .current_dir(folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("rlctl runs");
    let keys = || server.command::<Vec<String>>(&["KEYS", "*rlsc*"]);
    let began = Instant::now();
    while keys().is_empty() {
        assert!(began.elapsed() < Duration::from_secs(30), "it counts nothing");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let pid = running.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().expect("kill").success());
    let ended = tokio::task::spawn_blocking(move || running.wait().expect("it ends").code());
    assert_eq!(ended.await.expect("a code"), Some(130));
    assert_eq!(keys(), Vec::<String>::new());
}
