//! The client of a gateway's admin address: asks in JSON, with a token where one is needed.

use std::time::Duration;

use reqwest::header::{AUTHORIZATION, HeaderValue};
use reqwest::{Client, Method, StatusCode, Url};
use serde::Deserialize;
use serde_json::Value;

use crate::engine::config::without_passwords;

const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// Far above the deadline of any store behind it.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// A policy has up to 8 MiB, and stands escaped in JSON.
const MAX_ANSWER_BYTES: usize = 32 << 20;

#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    #[error("`{0}` is not the address of a gateway; e.g. http://127.0.0.1:9090")]
    Address(String),
    #[error("a token is one line of visible ASCII characters")]
    Token,
    #[error(
        "cannot reach the gateway at {at}: {why}; is rlctl serve running, is this its --admin?"
    )]
    Unreachable { at: String, why: String },
    #[error("the gateway at {at} answers {status}: {why}; give --token-file FILE or RLCTL_TOKEN")]
    NoToken { at: String, status: u16, why: String },
    #[error("the gateway at {at} answers {status}: {why}")]
    Refused { at: String, status: u16, why: String },
    #[error("what answers at {at} is no gateway: {why}; is this its --admin address?")]
    NoGateway { at: String, why: String },
}

impl AdminError {
    /// The reason alone, where it is said beside the address.
    pub fn why(&self) -> String {
        match self {
            AdminError::Unreachable { why, .. } => format!("does not answer: {why}"),
            AdminError::NoToken { status, why, .. } | AdminError::Refused { status, why, .. } => {
                format!("answers {status}: {why}")
            }
            AdminError::NoGateway { why, .. } => format!("is no gateway: {why}"),
            AdminError::Address(_) | AdminError::Token => self.to_string(),
        }
    }
}

/// A gateway that can be asked.
#[derive(Debug)]
pub struct Admin {
    base: Url,
    token: Option<HeaderValue>,
    http: Client,
}

/// What every error of a gateway looks like.
#[derive(Deserialize)]
struct Problem {
    detail: String,
}

impl Admin {
    pub fn new(url: &str, token: Option<&str>) -> Result<Admin, AdminError> {
        let (base, token) = (address(url)?, token.map(bearer).transpose()?);
        let http = Client::builder()
            .connect_timeout(CONNECT_WITHIN)
            .timeout(ANSWER_WITHIN)
            // Nobody else is to be told the token.
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build()
            .map_err(|error| AdminError::Unreachable { at: url.into(), why: root(&error) })?;
        Ok(Admin { base, token, http })
    }

    /// Where it is, to be shown.
    pub fn at(&self) -> String {
        shown(&self.base)
    }

    /// Asks, and gives what is answered with its status, if that is one of `expected`; everything
    /// else is an error with the gateway's own reason.
    pub async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        expected: &[StatusCode],
    ) -> Result<(StatusCode, Value), AdminError> {
        let wrong = |why: String| AdminError::NoGateway { at: self.at(), why };
        let url = self.base.join(path).map_err(|error| wrong(error.to_string()))?;
        let mut request = self.http.request(method, url);
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, token);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let unreachable =
            |error: reqwest::Error| AdminError::Unreachable { at: self.at(), why: root(&error) };
        let mut reply = request.send().await.map_err(unreachable)?;
        let status = reply.status();
        let mut bytes = Vec::new();
        while let Some(chunk) = reply.chunk().await.map_err(unreachable)? {
            if bytes.len() + chunk.len() > MAX_ANSWER_BYTES {
                return Err(wrong("it answers without end".into()));
            }
            bytes.extend_from_slice(&chunk);
        }
        if expected.contains(&status)
            && let Ok(value) = serde_json::from_slice::<Value>(&bytes)
            && value.get("detail").is_none()
        {
            return Ok((status, value));
        }
        let Ok(Problem { detail: why }) = serde_json::from_slice(&bytes) else {
            return Err(wrong(format!("it answers {status} and no JSON that is known")));
        };
        let (at, number) = (self.at(), status.as_u16());
        Err(match status {
            StatusCode::UNAUTHORIZED => AdminError::NoToken { at, status: number, why },
            _ => AdminError::Refused { at, status: number, why },
        })
    }
}

/// Server-sent events of a gateway, one after the other.
#[derive(Debug)]
pub struct Events {
    reply: reqwest::Response,
    unread: Vec<u8>,
    at: String,
}

impl Admin {
    /// Opens a stream of events.
    pub async fn events(&self, path: &str) -> Result<Events, AdminError> {
        let wrong = |why: String| AdminError::NoGateway { at: self.at(), why };
        let url = self.base.join(path).map_err(|error| wrong(error.to_string()))?;
        // It has no end; how long each event may take is for whoever waits for it.
        let mut request = self.http.get(url).timeout(Duration::MAX);
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, token);
        }
        let unreachable =
            |error: reqwest::Error| AdminError::Unreachable { at: self.at(), why: root(&error) };
        let opening = tokio::time::timeout(ANSWER_WITHIN, request.send());
        let late = |_| AdminError::Unreachable { at: self.at(), why: "it is silent".into() };
        let reply = opening.await.map_err(late)?.map_err(unreachable)?;
        let (at, status) = (self.at(), reply.status().as_u16());
        match reply.status() {
            StatusCode::OK => Ok(Events { reply, unread: Vec::new(), at }),
            StatusCode::UNAUTHORIZED => {
                Err(AdminError::NoToken { at, status, why: "it knows no such token".into() })
            }
            StatusCode::NOT_FOUND => Err(wrong("it has no such stream".into())),
            _ => Err(AdminError::Refused { at, status, why: "it gives no stream".into() }),
        }
    }
}

impl Events {
    /// The data of the next event; none when the gateway has ended the stream.
    pub async fn next(&mut self) -> Result<Option<String>, AdminError> {
        loop {
            if let Some(end) = self.unread.windows(2).position(|two| two == b"\n\n") {
                let event: Vec<u8> = self.unread.drain(..end + 2).collect();
                let event = String::from_utf8_lossy(&event);
                let data: Vec<&str> =
                    event.lines().filter_map(|line| line.strip_prefix("data:")).collect();
                // What has no data only keeps the connection alive.
                if !data.is_empty() {
                    return Ok(Some(data.join("\n").trim_start().to_string()));
                }
                continue;
            }
            if self.unread.len() > MAX_ANSWER_BYTES {
                let why = "it sends an event without end".into();
                return Err(AdminError::NoGateway { at: self.at.clone(), why });
            }
            let chunk = self.reply.chunk().await.map_err(|error| AdminError::Unreachable {
                at: self.at.clone(),
                why: root(&error),
            })?;
            let Some(chunk) = chunk else { return Ok(None) };
            self.unread.extend_from_slice(&chunk);
        }
    }
}

/// A host and port will do.
fn address(text: &str) -> Result<Url, AdminError> {
    let wrong = || AdminError::Address(without_passwords(text).into_owned());
    let with_scheme = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    let url = Url::parse(&with_scheme).map_err(|_| wrong())?;
    let is_web = matches!(url.scheme(), "http" | "https") && url.has_host();
    if is_web { Ok(url) } else { Err(wrong()) }
}

fn bearer(token: &str) -> Result<HeaderValue, AdminError> {
    let mut value = HeaderValue::from_str(&format!("Bearer {}", token.trim()))
        .map_err(|_| AdminError::Token)?;
    value.set_sensitive(true);
    Ok(value)
}

fn shown(url: &Url) -> String {
    without_passwords(url.as_str().trim_end_matches('/')).into_owned()
}

/// What is at the bottom of an error: the layers above it only say that there is one.
fn root(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return "it does not answer in time".into();
    }
    let mut deepest: &dyn std::error::Error = error;
    while let Some(next) = deepest.source() {
        deepest = next;
    }
    deepest.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_shown_without_passwords() {
        for (given, shown) in [
            ("http://127.0.0.1:9090", "http://127.0.0.1:9090"),
            ("127.0.0.1:9090", "http://127.0.0.1:9090"),
            ("localhost:9090/", "http://localhost:9090"),
        ] {
            assert_eq!(super::shown(&address(given).unwrap()), shown);
        }
        for wrong in ["redis://127.0.0.1:6379", "http://", "", "http://[::"] {
            assert!(matches!(address(wrong), Err(AdminError::Address(_))), "{wrong}");
        }
        assert!(!super::shown(&address("http://a:secret@b:1").unwrap()).contains("secret"));
    }

    #[test]
    fn a_token_is_one_line() {
        assert_eq!(bearer("writer-token-0001\n").unwrap(), "Bearer writer-token-0001");
        assert!(matches!(bearer("a\nb"), Err(AdminError::Token)));
    }
}
