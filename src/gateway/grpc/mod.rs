//! The limiter over gRPC: checks in our own words, and in those of Envoy; health and reflection.

mod check;
mod describe;
mod domains;
mod envoy;
mod health;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Status};

use self::messages::envoy::service::ratelimit::v3::rate_limit_service_server as envoy_server;
use self::messages::rlctl::v1::rate_limiter_server as own_server;
use super::Gateway;
use super::access::{Access, Denied, Role};
use crate::engine::clock::Micros;
use crate::engine::store::StoreError;

/// What travels, as generated from `proto/`.
pub mod messages {
    include!(concat!(env!("OUT_DIR"), "/messages.rs"));
}

const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// A check is a few hundred bytes; Envoy's, with long header values, a few thousand.
const MAX_MESSAGE_BYTES: usize = 64 * 1024;
const MAX_HEADER_BYTES: u32 = 16 * 1024;
/// Requests at once on one connection.
const MAX_STREAMS: u32 = 1_000;
/// Far above the deadline of any store.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// A peer that is silent is asked whether it is there, and let go when it does not answer.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Clients come back, perhaps to another gateway that was started since.
const MAX_CONNECTION_AGE: Duration = Duration::from_secs(30 * 60);
const MAX_CONNECTION_AGE_GRACE: Duration = Duration::from_secs(30);
/// For what is on its way when the gateway is told to end.
const DRAIN: Duration = Duration::from_secs(5);

/// Who asks, if they may: by the metadata of a request (`authorization`) or where it comes from.
/// Checks are open to every known caller; how many there are is a matter of `max_checks`.
fn admit<T>(access: &Access, request: &Request<T>, role: Role) -> Result<Arc<str>, Status> {
    let peer = request.remote_addr().map(|peer| peer.ip());
    let authorization = request.metadata().get("authorization").map(|value| value.as_bytes());
    let caller = access.caller(peer, authorization).map_err(|denied| match denied {
        Denied::NoToken | Denied::WrongToken => Status::unauthenticated(denied.to_string()),
        Denied::NotLocal => Status::permission_denied(denied.to_string()),
    })?;
    if caller.role < role {
        return Err(Status::permission_denied(format!(
            "the token of {} may only read",
            caller.name
        )));
    }
    if role == Role::Write {
        access.count(&caller, role, Micros::now()).map_err(|wait| {
            let told = format!("{} has asked too often; try again in {wait}", caller.name);
            Status::resource_exhausted(told)
        })?;
    }
    Ok(caller.name)
}

/// What only this interface sees.
#[derive(Debug, Default)]
pub struct Counts {
    unknown_domains: AtomicU64,
}

impl Counts {
    /// How often Envoy asked for a domain that the policy does not have, and so for no rule.
    pub fn unknown_domains(&self) -> u64 {
        self.unknown_domains.load(Ordering::Relaxed)
    }

    fn unknown_domain(&self) {
        self.unknown_domains.fetch_add(1, Ordering::Relaxed);
    }
}

/// Serves until `shutdown`, and what is on its way a little longer. HTTP/2 without TLS.
pub async fn serve(
    gateway: Arc<Gateway>,
    listener: TcpListener,
    access: Arc<Access>,
    shutdown: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    let (close, closing) = watch::channel(false);
    let own = check::Service { gateway: gateway.clone(), access: access.clone() };
    let own = own_server::RateLimiterServer::new(own).max_decoding_message_size(MAX_MESSAGE_BYTES);
    let envoy = envoy::Service::new(gateway.clone(), access);
    let envoy = envoy_server::RateLimitServiceServer::new(envoy)
        .max_decoding_message_size(MAX_MESSAGE_BYTES);
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let routes = Server::builder()
        .timeout(REQUEST_TIMEOUT)
        .max_concurrent_streams(MAX_STREAMS)
        .http2_max_header_list_size(MAX_HEADER_BYTES)
        .http2_keepalive_interval(Some(KEEPALIVE_EVERY))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .max_connection_age(MAX_CONNECTION_AGE)
        .max_connection_age_grace(MAX_CONNECTION_AGE_GRACE)
        .add_service(own)
        .add_service(envoy)
        .add_service(health::server(gateway, closing.clone()))
        .add_service(reflection().build_v1().expect("the descriptors are our own"))
        .add_service(reflection().build_v1alpha().expect("the descriptors are our own"));
    let told = async move {
        shutdown.await;
        close.send_replace(true);
    };
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let mut drained = closing;
    tokio::select! {
        ended = routes.serve_with_incoming_shutdown(incoming, told) => ended,
        () = async { if drained.wait_for(|closing| *closing).await.is_ok() {
            tokio::time::sleep(DRAIN).await;
        }} => Ok(()),
    }
}

/// Why nothing can be decided; the text of a store's error has no secrets.
fn unanswered(error: &StoreError) -> Status {
    match error {
        StoreError::OtherCost => Status::failed_precondition(error.to_string()),
        _ => Status::unavailable(error.to_string()),
    }
}

fn overloaded() -> Status {
    Status::unavailable("this gateway is asked too much at once; see max_checks")
}

fn no_policy() -> Status {
    Status::unavailable("there is no policy yet")
}

fn duration(micros: Micros) -> prost_types::Duration {
    let (seconds, rest) = (micros.0 / Micros::SECOND.0, micros.0 % Micros::SECOND.0);
    prost_types::Duration { seconds: seconds as i64, nanos: (rest * 1_000) as i32 }
}
