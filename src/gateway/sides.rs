//! What is reached besides the proxy, each on an address of its own: the check and admin API over
//! HTTP, and gRPC.

use std::io;
use std::net::TcpListener as StdListener;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::access::Access;
use super::listen::Door;
use super::{Gateway, api, grpc};

/// Operators, dashboards, and services that ask for checks: far fewer than clients.
const MAX_CONNECTIONS: usize = 1_000;
/// What is on its way there ends within the deadline of a store; only a stream of statistics lasts,
/// and that ends by itself when the gateway drains.
const DRAIN: Duration = Duration::from_secs(5);

/// The running interfaces; dropped, they end.
#[derive(Debug)]
pub struct Sides {
    stop: watch::Sender<bool>,
    stop_grpc: watch::Sender<bool>,
    serving: JoinSet<()>,
}

impl Sides {
    pub fn start(
        gateway: &Arc<Gateway>,
        access: &Arc<Access>,
        admin: StdListener,
        grpc: Option<StdListener>,
    ) -> io::Result<Sides> {
        let (stop, closing) = watch::channel(false);
        let (stop_grpc, closing_grpc) = watch::channel(false);
        let mut serving = JoinSet::new();
        serving.spawn(serve_admin(
            api::router(gateway.clone(), access.clone()),
            TcpListener::from_std(admin)?,
            closing,
        ));
        if let Some(grpc) = grpc {
            let listener = TcpListener::from_std(grpc)?;
            let (gateway, access) = (gateway.clone(), access.clone());
            let mut closing = closing_grpc;
            serving.spawn(async move {
                let stopped = async {
                    let _ = closing.wait_for(|closing| *closing).await;
                };
                // Errors are those of single connections: there is nobody left to tell.
                let _ = grpc::serve(gateway, listener, access, stopped).await;
            });
        }
        Ok(Sides { stop, stop_grpc, serving })
    }

    /// No further decisions over gRPC; who looks is answered until [`Sides::stop`]: while clients
    /// finish, probes must hear that this gateway is not ready, and dashboards see it end.
    pub fn drain(&self) {
        self.stop_grpc.send_replace(true);
    }

    /// Nothing new; what is on its way may end.
    pub async fn stop(mut self) {
        self.stop_grpc.send_replace(true);
        self.stop.send_replace(true);
        while self.serving.join_next().await.is_some() {}
    }
}

async fn serve_admin(router: axum::Router, listener: TcpListener, closing: watch::Receiver<bool>) {
    let door = Door::new(MAX_CONNECTIONS, closing);
    let answer =
        move |request, peer: super::proxy::Peer| api::answer(router.clone(), request, peer.address);
    door.clone().serve(listener, answer).await;
    // Whoever is left is cut off.
    door.drained(MAX_CONNECTIONS, DRAIN).await;
}
