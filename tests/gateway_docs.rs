//! Every curl command of docs/api.md, run by a real curl against a real gateway.

use std::process::Command;

use crate::support::api::Served;
use crate::support::redis::RedisServer;

const SHOWN: &str = "127.0.0.1:9090";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_command_shown_does_what_it_is_shown_for() {
    let server = RedisServer::start();
    let served = Served::published(&server).await;
    let page = include_str!("../docs/api.md");
    let commands: Vec<&str> =
        page.lines().filter_map(|line| line.strip_prefix("$ curl ")).collect();
    assert!(commands.len() > 15, "only {} commands were found", commands.len());
    for command in commands {
        let real = command.replace(SHOWN, &served.address.to_string());
        let line = format!("curl --silent --show-error --fail-with-body --max-time 60 {real}");
        let run = move || Command::new("sh").args(["-c", &line]).output().expect("sh runs");
        let output = tokio::task::spawn_blocking(run).await.unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "curl {command}\n{said}\n(curl 7.82 or later is needed)");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_trail_of_the_api_is_told_in_words_on_the_command_line() {
    let server = RedisServer::start();
    let served = Served::published(&server).await;
    served.check(serde_json::json!({"identity": "user:1"})).await;
    let reset = serde_json::json!({"reason": "our mistake"});
    served.ask("POST", "/api/v1/users/user:1/reset", reset).await;
    for mode in ["closed", "policy"] {
        let body = serde_json::json!({"rule": "per-ip", "on_store_error": mode, "reason": "r"});
        assert_eq!(served.ask("POST", "/api/v1/mode", body).await.status, 200);
    }
    let url = server.url();
    let run = move || {
        let mut events = Command::new(env!("CARGO_BIN_EXE_rlctl"));
        events.args(["events", "--redis", &url]).output().expect("rlctl runs")
    };
    let output = tokio::task::spawn_blocking(run).await.unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for words in ["used in 1 limit", "whole", "as the policy says", "closed", "local"] {
        assert!(text.contains(words), "{words}: {text}");
    }
}
