//! Where HTTP goes, and how to get there.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;

use super::template::Parts;

/// The way to a server.
#[derive(Clone, Debug)]
pub enum Way {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// A server and what it is asked.
#[derive(Clone, Debug)]
pub struct Target {
    pub way: Way,
    pub parts: Parts,
    /// The name its certificate must have, and whom to believe.
    pub tls: Option<(ServerName<'static>, Arc<rustls::ClientConfig>)>,
    /// Connections of all workers together.
    pub connections: usize,
    /// Requests under way on one connection.
    pub pipeline: usize,
    /// How long an answer may take.
    pub patience: Duration,
}
