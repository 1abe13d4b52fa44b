//! A connection that goes on in another protocol (a WebSocket): once both sides have agreed, bytes
//! are carried to and fro until one of them is done.

use std::time::Duration;

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

/// A tunnel in which nothing moves for this long is closed; clients that idle send pings.
const IDLE_FOR: Duration = Duration::from_secs(600);

/// Carries bytes between the two, in a task of its own, until one ends or both fall silent. It
/// keeps the places that its request had for so long.
pub(super) fn tunnel(client: OnUpgrade, upstream: OnUpgrade, places: impl Send + 'static) {
    tokio::spawn(async move {
        let _places = places;
        let (Ok(client), Ok(upstream)) = tokio::join!(client, upstream) else { return };
        let (client_reads, client_writes) = tokio::io::split(TokioIo::new(client));
        let (upstream_reads, upstream_writes) = tokio::io::split(TokioIo::new(upstream));
        // When one direction ends in silence the other ends with it; a half that is closed in
        // good order lets the other one finish.
        tokio::join!(carry(client_reads, upstream_writes), carry(upstream_reads, client_writes),);
    });
}

async fn carry(
    mut from: impl tokio::io::AsyncRead + Unpin,
    mut to: impl tokio::io::AsyncWrite + Unpin,
) {
    let mut buffer = vec![0; 16 << 10];
    loop {
        let read = match timeout(IDLE_FOR, from.read(&mut buffer)).await {
            Ok(Ok(read)) if read > 0 => read,
            _ => break,
        };
        match timeout(IDLE_FOR, to.write_all(&buffer[..read])).await {
            Ok(Ok(())) => {}
            _ => break,
        }
    }
    // The other side may be gone already.
    let _ = to.shutdown().await;
}
