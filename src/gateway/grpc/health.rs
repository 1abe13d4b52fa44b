//! `grpc.health.v1`: serving while the gateway is ready, and no longer once it is told to end.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, Stream};
use tokio::sync::watch;
use tokio::time::timeout;
use tonic::server::NamedService;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use super::{Gateway, check, envoy, envoy_server, own_server};

/// How often a watcher's gateway is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);

pub(super) fn server(
    gateway: Arc<Gateway>,
    closing: watch::Receiver<bool>,
) -> HealthServer<impl Health> {
    HealthServer::new(Service { gateway, closing })
}

#[derive(Clone)]
struct Service {
    gateway: Arc<Gateway>,
    closing: watch::Receiver<bool>,
}

impl Service {
    fn status(&self) -> ServingStatus {
        let serving = self.gateway.is_ready() && !*self.closing.borrow();
        if serving { ServingStatus::Serving } else { ServingStatus::NotServing }
    }
}

/// All of it together has no name.
fn is_ours(service: &str) -> bool {
    let ours = [
        "",
        own_server::RateLimiterServer::<check::Service>::NAME,
        envoy_server::RateLimitServiceServer::<envoy::Service>::NAME,
    ];
    ours.contains(&service)
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status as i32 }
}

#[tonic::async_trait]
impl Health for Service {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        if !is_ours(&request.get_ref().service) {
            return Err(Status::not_found("there is no such service"));
        }
        Ok(Response::new(response(self.status())))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    /// Ends when the gateway does.
    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let ours = is_ours(&request.get_ref().service);
        let next = move |(mut service, told): (Service, Option<ServingStatus>)| async move {
            loop {
                let ended = *service.closing.borrow();
                let status = if ours { service.status() } else { ServingStatus::ServiceUnknown };
                if Some(status) != told {
                    return Some((Ok(response(status)), (service, Some(status))));
                }
                if ended {
                    return None;
                }
                // Whoever would say so may be gone: then it has ended, too.
                if let Ok(Err(_)) = timeout(LOOK_EVERY, service.closing.changed()).await
                    && !*service.closing.borrow()
                {
                    return None;
                }
            }
        };
        Ok(Response::new(Box::pin(stream::unfold((self.clone(), None), next))))
    }
}
