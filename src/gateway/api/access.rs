//! Every request passes here first: who asks, may they, and not too often.

use std::net::{IpAddr, SocketAddr};

use axum::extract::{ConnectInfo, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::{AUTHORIZATION, HOST, ORIGIN};
use http::{Method, StatusCode};

use super::Shared;
use super::problem::Problem;
use crate::engine::clock::Micros;
use crate::gateway::access::{Denied, Role};
use crate::gateway::answer::retry_after_seconds;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// Anybody may know that we live, and how to ask.
    Nothing,
    /// Any token; how many is a matter of `max_checks`.
    Check,
    Role(Role),
}

fn need(method: &Method, path: &str) -> Need {
    match path {
        "/health" | "/ready" | "/openapi.json" | "/api/v1/openapi.json" => Need::Nothing,
        _ if path.starts_with("/api/v1/rate-limit/") || path.starts_with("/internal/") => {
            Need::Check
        }
        _ if matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS) => {
            Need::Role(Role::Read)
        }
        _ => Need::Role(Role::Write),
    }
}

pub(super) async fn guard(State(api): State<Shared>, mut request: Request, next: Next) -> Response {
    let need = need(request.method(), request.uri().path());
    if need != Need::Nothing
        && let Err(problem) = admit(&api, &mut request, need)
    {
        return problem.into_response();
    }
    next.run(request).await
}

fn admit(api: &Shared, request: &mut Request, need: Need) -> Result<(), Problem> {
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0.ip());
    let authorization = request.headers().get(AUTHORIZATION).map(|value| value.as_bytes());
    let caller = api.access.caller(peer, authorization).map_err(|denied| {
        let status = match denied {
            Denied::NoToken | Denied::WrongToken => StatusCode::UNAUTHORIZED,
            Denied::NotLocal => StatusCode::FORBIDDEN,
        };
        Problem::new(status, denied.to_string())
    })?;
    if api.access.is_local() && !is_from_no_web_page(request) {
        let detail = "without a token file this is not for web pages: call it as localhost or by \
                      a loopback address, without Origin";
        return Err(Problem::new(StatusCode::FORBIDDEN, detail));
    }
    if let Need::Role(role) = need {
        if caller.role < role {
            let detail = format!("the token of {} may only read", caller.name);
            return Err(Problem::new(StatusCode::FORBIDDEN, detail));
        }
        api.access.count(&caller, role, Micros::now()).map_err(|wait| {
            let detail = format!("{} has asked too often; try again in {wait}", caller.name);
            let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, detail);
            problem.after(retry_after_seconds(wait))
        })?;
    }
    request.extensions_mut().insert(caller);
    Ok(())
}

/// Where whoever is on this machine may write, a page in a browser on this machine must not: it
/// names itself in `Origin`, or the name it was loaded from in `Host`.
fn is_from_no_web_page(request: &Request) -> bool {
    let named = request.headers().get(HOST).and_then(|host| host.to_str().ok());
    let host = named.or_else(|| request.uri().authority().map(|authority| authority.as_str()));
    let is_local = host.is_none_or(|host| {
        let bare = match host.rsplit_once(':') {
            Some((bare, port)) if port.bytes().all(|b| b.is_ascii_digit()) => bare,
            _ => host,
        };
        let bare = bare.trim_start_matches('[').trim_end_matches(']');
        bare.eq_ignore_ascii_case("localhost")
            || bare.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
    });
    is_local && !request.headers().contains_key(ORIGIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_not_named_needs_a_role() {
        assert_eq!(need(&Method::GET, "/health"), Need::Nothing);
        assert_eq!(need(&Method::POST, "/api/v1/rate-limit/check"), Need::Check);
        assert_eq!(need(&Method::GET, "/metrics"), Need::Role(Role::Read));
        assert_eq!(need(&Method::GET, "/healthy"), Need::Role(Role::Read));
        for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::CONNECT] {
            assert_eq!(need(&method, "/api/v1/rules"), Need::Role(Role::Write));
        }
    }

    #[test]
    fn a_page_in_a_browser_is_told_by_its_origin_or_its_name() {
        let from = |host: &str, origin: Option<&str>| {
            let mut request = Request::builder().header(HOST, host);
            if let Some(origin) = origin {
                request = request.header(ORIGIN, origin);
            }
            is_from_no_web_page(&request.body(axum::body::Body::empty()).unwrap())
        };
        for host in ["127.0.0.1:9090", "localhost", "LOCALHOST:1", "[::1]:9090", "[::1]"] {
            assert!(from(host, None), "{host}");
        }
        assert!(!from("evil.example:9090", None));
        assert!(!from("127.0.0.1.evil.example", None));
        assert!(!from("127.0.0.1:9090", Some("http://evil.example")));
    }
}
