//! The check API and the admin API over HTTP, for `--admin`: others ask for decisions here, and
//! operators look and change. `openapi.json` tells all of it, and a test holds both together.
//!
//! `access` says who asks, `input` reads what they send, `problem` is every error; the rest are the
//! handlers, by subject. Handlers only translate: decisions are the gateway's, changes the
//! registry's, and so is the audit trail.

mod access;
mod charges;
mod check;
mod edit;
mod input;
mod lists;
mod policy;
mod problem;
mod rules;
mod users;
mod wanted;
mod watch;

use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::ConnectInfo;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{BoxError, Router};
use http::header::CONTENT_TYPE;
use http::{Request, StatusCode};
use serde::Serialize;
use tower::ServiceExt;

use self::charges::Charges;
use self::problem::Problem;
use super::Gateway;
use super::access::Access;
use super::listen::{TOO_MANY_HEADERS, has_too_many_headers};

/// What the API says of itself.
pub const OPENAPI: &str = include_str!("openapi.json");

/// What all handlers work with.
#[derive(Debug)]
struct Api {
    gateway: Arc<Gateway>,
    access: Arc<Access>,
    charges: Charges,
    streams: Arc<tokio::sync::Semaphore>,
}

type Shared = Arc<Api>;

/// Everything that `--admin` serves. Whoever serves it puts the peer's address into each request, as
/// the extension `ConnectInfo<SocketAddr>`.
pub fn router(gateway: Arc<Gateway>, access: Arc<Access>) -> Router {
    let charges = Charges::new(gateway.registry.clone());
    let streams = Arc::new(tokio::sync::Semaphore::new(watch::MAX_STREAMS));
    let api = Arc::new(Api { gateway, access, charges, streams });
    Router::new()
        .merge(checks())
        .merge(changes())
        .merge(looks())
        .fallback(async || Problem::not_found("there is nothing here; see /openapi.json"))
        .method_not_allowed_fallback(async || {
            let detail = "this path has other methods; see /openapi.json";
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, detail)
        })
        .layer(from_fn_with_state(api.clone(), access::guard))
        .with_state(api)
}

/// Answers one request of `peer`.
pub async fn answer<B>(router: Router, mut request: Request<B>, peer: SocketAddr) -> Response
where
    B: axum::body::HttpBody<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    if has_too_many_headers(&request) {
        let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
        return Problem::new(status, TOO_MANY_HEADERS).into_response();
    }
    request.extensions_mut().insert(ConnectInfo(peer));
    match router.oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

fn checks() -> Router<Shared> {
    Router::new()
        .route("/api/v1/rate-limit/check", post(check::check))
        .route("/api/v1/rate-limit/check/batch", post(check::batch))
        .route("/api/v1/rate-limit/refund", post(check::refund))
        .route("/api/v1/rate-limit/settle", post(check::settle))
        .route("/internal/rate_limit/check", post(check::alias))
}

fn changes() -> Router<Shared> {
    Router::new()
        .route("/api/v1/rules", get(rules::list).post(rules::add))
        .route(
            "/api/v1/rules/{name}",
            get(rules::show).put(rules::replace).patch(rules::patch).delete(rules::remove),
        )
        .route("/api/v1/policy", get(policy::show).put(policy::publish))
        .route("/api/v1/policy/history", get(policy::history))
        .route("/api/v1/policy/rollback", post(policy::rollback))
        .route("/api/v1/users/{identity}/limits", get(users::limits))
        .route("/api/v1/users/{identity}/tier", put(users::tier))
        .route(
            "/api/v1/users/{identity}/override",
            post(users::set_override).delete(users::clear_override),
        )
        .route("/api/v1/users/{identity}/reset", post(users::reset))
        .route("/api/v1/blocks", get(lists::blocks).post(lists::block).delete(lists::unblock))
        .route(
            "/api/v1/exemptions",
            get(lists::exemptions).post(lists::exempt).delete(lists::unexempt),
        )
        .route("/api/v1/mode", post(policy::mode))
}

fn looks() -> Router<Shared> {
    Router::new()
        .route("/api/v1/rules/{name}/usage", get(watch::usage))
        .route("/api/v1/stats", get(watch::stats))
        .route("/api/v1/stats/stream", get(watch::stream))
        .route("/api/v1/events", get(watch::events))
        .route("/api/v1/top", get(watch::top))
        .route("/api/v1/gateways", get(watch::gateways))
        .route("/api/v1/openapi.json", get(openapi))
        .route("/openapi.json", get(openapi))
        .route("/metrics", get(watch::metrics))
        .route("/health", get(watch::health))
        .route("/ready", get(watch::ready))
}

async fn openapi() -> Response {
    ([(CONTENT_TYPE, "application/json")], OPENAPI).into_response()
}

/// An answer of JSON.
fn json(status: StatusCode, body: &impl Serialize) -> Response {
    match serde_json::to_string(body) {
        Ok(text) => (status, [(CONTENT_TYPE, "application/json")], text).into_response(),
        Err(error) => {
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response()
        }
    }
}
