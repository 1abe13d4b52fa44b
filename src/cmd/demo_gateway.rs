//! The second half of `rlctl demo`: a gateway in front of a backend, both in this process, and a
//! client that asks for more than it may have.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use hyper::Response;
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::{Exit, Failure};
use crate::engine::clock::Micros;
use crate::gateway::listen::Door;
use crate::gateway::proxy::{Destination, Upstream};
use crate::gateway::serve::{ServeOptions, Serving, bind};
use crate::gateway::{About, Gateway, PolicySource};
use crate::output::about;

const BUCKET: u64 = 10;
const REQUESTS: usize = 12;
const POLICY: &str = "
[[rule]]
name = \"demo\"
dimension = \"ip\"
limits = [\"10/1m\"]
";
const SHOWN: [&str; 4] = ["x-ratelimit-limit", "x-ratelimit-remaining", "ratelimit", "retry-after"];

/// One answer of the gateway, as the client saw it.
#[derive(Debug, Serialize)]
pub(super) struct Seen {
    status: u16,
    headers: Vec<(String, String)>,
    body: String,
}

/// Starts both, asks, and ends both.
pub(super) async fn ask() -> Result<Vec<Seen>, Failure> {
    let (stop_backend, closing) = watch::channel(false);
    let backend = start_backend(closing).await?;
    let upstream = Destination::parse(&format!("http://{backend}"), || Err("no TLS here".into()))
        .map_err(|why| Failure::new(Exit::Failed, why))?;
    let source = PolicySource::Given { name: "the demo's policy".into(), text: POLICY.into() };
    let gateway = Arc::new(Gateway::open(&source, None, About::new(Vec::new())).await);
    let listener = bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
    let url = format!("http://{}/hello", listener.local_addr()?);
    let options = ServeOptions { workers: 1, ..ServeOptions::to(Upstream::At(upstream)) };
    let serving = Serving::start(&gateway, &listener, &options)?;
    drop(listener);
    let answers = ask_gateway(&url).await;
    stop_backend.send_replace(true);
    serving.stop().await;
    answers.map_err(|error| Failure::new(Exit::Failed, format!("the demo's gateway: {error}")))
}

async fn start_backend(closing: watch::Receiver<bool>) -> Result<SocketAddr, Failure> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let hello = |_request, _peer| async {
        Response::new(Full::new(Bytes::from_static(b"hello from the backend")))
    };
    tokio::spawn(Door::new(REQUESTS, closing).serve(listener, hello));
    Ok(address)
}

async fn ask_gateway(url: &str) -> Result<Vec<Seen>, reqwest::Error> {
    let client = reqwest::Client::builder().no_proxy().build()?;
    let mut seen = Vec::new();
    for _ in 0..REQUESTS {
        let reply = client.get(url).send().await?;
        let status = reply.status().as_u16();
        let told = |name: &str| {
            let value = reply.headers().get(name)?.to_str().ok()?;
            Some((name.to_owned(), value.to_owned()))
        };
        let headers = SHOWN.into_iter().filter_map(told).collect();
        seen.push(Seen { status, headers, body: reply.text().await? });
    }
    Ok(seen)
}

/// Each answer on a line, then what it means.
pub(super) fn picture(seen: &[Seen]) -> String {
    let mut text = format!(
        "\nNow for real: a gateway and a backend, {BUCKET} requests a minute for each client.\n\
         {REQUESTS} requests, one after the other:\n\n"
    );
    for (number, answer) in seen.iter().enumerate() {
        // The limit is said above; without it a line fits a terminal.
        let told = answer.headers.iter().filter(|(name, _)| name != SHOWN[0]);
        let told: Vec<String> = told.map(|(name, value)| format!("{name}: {value}")).collect();
        text += &format!("{:>3}  {}  {}\n", number + 1, answer.status, told.join("  "));
    }
    let passed = seen.iter().filter(|answer| answer.status == 200).count();
    let each = about(Micros(Micros::MINUTE.0 / BUCKET));
    text += &format!(
        "\nThe bucket held {BUCKET}, so {passed} went on to the backend. The others were \
         answered\n429 by the gateway, with the time to come back: one more fits every {each}.\n\nNext:\n  \
         rlctl serve --help\n  rlctl check user:123 --limit 10/1m\n  rlctl simulate --help\n"
    );
    text
}
