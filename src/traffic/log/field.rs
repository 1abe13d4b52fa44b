//! What of a line is wanted: by a word that every format understands, or by the name it has there.

use std::fmt;
use std::str::FromStr;

/// A part of a request that a log tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Field {
    Ip,
    User,
    ApiKey,
    Method,
    Path,
    Status,
    Referer,
    Agent,
    /// A JSON path or a column of CSV.
    Named(String),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldError {
    #[error(
        "a common or combined log has no `{0}`; it has ip, user, method, path, status, referer and agent; other fields need JSON or CSV"
    )]
    NotInCombined(String),
    #[error("there is no column `{0}`; there are {1}")]
    NoColumn(String, String),
    #[error(
        "no column of {0} is known to be a time; name it with --time COLUMN, e.g. --time timestamp"
    )]
    NoTime(String),
}

/// The names that servers give these, the commonest first.
const KNOWN: [(Field, &str, &[&str]); 8] = [
    (
        Field::Ip,
        "ip",
        &[
            "ip",
            "remote_addr",
            "client_ip",
            "remote_ip",
            "clientip",
            "c-ip",
            "ClientIP",
            "request.remote_ip",
            "request.client_ip",
            "httpRequest.remoteIp",
            "client.ip",
            "ClientHost",
            "remote_host",
            "host",
            "key",
            "client",
        ],
    ),
    (
        Field::User,
        "user",
        &["user", "remote_user", "user_id", "userid", "username", "cs-username", "ClientUsername"],
    ),
    (
        Field::ApiKey,
        "apikey",
        &["apikey", "api_key", "x_api_key", "http_x_api_key", "request.headers.X-Api-Key"],
    ),
    (
        Field::Method,
        "method",
        &[
            "method",
            "request_method",
            "verb",
            "request.method",
            "httpRequest.requestMethod",
            "RequestMethod",
        ],
    ),
    (
        Field::Path,
        "path",
        &[
            "path",
            "uri",
            "request_uri",
            "url",
            "request_path",
            "endpoint",
            "request.uri",
            "httpRequest.requestUrl",
            "RequestPath",
        ],
    ),
    (Field::Status, "status", &["status", "status_code", "response", "code"]),
    (
        Field::Referer,
        "referer",
        &["referer", "referrer", "http_referer", "request.headers.Referer"],
    ),
    (
        Field::Agent,
        "agent",
        &["agent", "user_agent", "http_user_agent", "request.headers.User-Agent"],
    ),
];

/// Where JSON and CSV keep the time, the commonest first.
pub(super) const TIMES: [&str; 13] = [
    "time",
    "timestamp",
    "@timestamp",
    "ts",
    "t_us",
    "time_local",
    "time_iso8601",
    "msec",
    "datetime",
    "date",
    "start_time",
    "StartUTC",
    "t",
];

impl FromStr for Field {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Field, Self::Err> {
        let lower = text.to_ascii_lowercase();
        let word = match lower.as_str() {
            "header:user-agent" | "user-agent" | "useragent" => "agent",
            "header:referer" => "referer",
            "header:x-api-key" => "apikey",
            "client" | "remote_addr" => "ip",
            other => other,
        };
        let known = KNOWN.iter().find(|(_, name, _)| *name == word);
        let named = || Field::Named(text.strip_prefix("$.").unwrap_or(text).into());
        Ok(known.map_or_else(named, |(field, _, _)| field.clone()))
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self, KNOWN.iter().find(|(field, _, _)| field == self)) {
            (_, Some((_, name, _))) => f.write_str(name),
            (Field::Named(name), None) => f.write_str(name),
            _ => Ok(()),
        }
    }
}

impl Field {
    /// Under which names a format without fixed places may have it.
    pub(super) fn names(&self) -> Vec<String> {
        match self {
            Field::Named(name) => match name.strip_prefix("header:") {
                Some(header) => in_headers(header),
                None => vec![name.clone()],
            },
            known => {
                let found = KNOWN.iter().find(|(field, _, _)| field == known);
                let names = found.map_or(&[][..], |(_, _, names)| names);
                let header = match known {
                    Field::ApiKey => Some("X-API-Key"),
                    Field::Referer => Some("Referer"),
                    Field::Agent => Some("User-Agent"),
                    _ => None,
                };
                let headers = header.map(in_headers).into_iter().flatten();
                names.iter().map(|name| name.to_string()).chain(headers).collect()
            }
        }
    }

    /// How an identity by this field begins.
    pub fn dimension(&self) -> &'static str {
        match self {
            Field::Ip => "ip:",
            Field::User => "user:",
            Field::ApiKey => "apikey:",
            _ => "",
        }
    }
}

/// `x-tenant` is also `http_x_tenant` (nginx) and `request.headers.X-Tenant` (Caddy).
fn in_headers(header: &str) -> Vec<String> {
    let lower = header.to_ascii_lowercase();
    let words = lower.split('-').map(|word| {
        let mut letters = word.chars();
        let first = letters.next().map(|c| c.to_ascii_uppercase());
        first.into_iter().chain(letters).collect::<String>()
    });
    let title = words.collect::<Vec<_>>().join("-");
    vec![
        format!("request.headers.{header}"),
        format!("headers.{header}"),
        format!("request.headers.{title}"),
        format!("headers.{title}"),
        format!("headers.{lower}"),
        format!("http_{}", lower.replace('-', "_")),
        lower,
        title,
    ]
}
