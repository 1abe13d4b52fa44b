//! A line to a server that can be cut: what is sent is swallowed, and nobody is told.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

pub(crate) struct Line {
    pub(crate) port: u16,
    is_cut: Arc<AtomicBool>,
}

impl Line {
    pub(crate) async fn to(port: u16) -> Line {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let line = Line { port: listener.local_addr().unwrap().port(), is_cut: Arc::default() };
        let is_cut = line.is_cut.clone();
        tokio::spawn(async move {
            while let Ok((here, _)) = listener.accept().await {
                let is_cut = is_cut.clone();
                tokio::spawn(async move {
                    // A line that is cut also takes new connections nowhere.
                    let Ok(there) = TcpStream::connect(("127.0.0.1", port)).await else { return };
                    let ((here_in, here_out), (there_in, there_out)) =
                        (here.into_split(), there.into_split());
                    let forth = carry(here_in, there_out, is_cut.clone());
                    tokio::join!(forth, carry(there_in, here_out, is_cut));
                });
            }
        });
        line
    }

    pub(crate) fn cut(&self) {
        self.is_cut.store(true, Ordering::Relaxed);
    }

    /// Connections from before stay dead: their bytes are gone.
    pub(crate) fn mend(&self) {
        self.is_cut.store(false, Ordering::Relaxed);
    }
}

async fn carry(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    is_cut: Arc<AtomicBool>,
) {
    let (mut buffer, mut was_cut) = ([0; 16 * 1024], false);
    while let Ok(n) = from.read(&mut buffer).await {
        was_cut |= is_cut.load(Ordering::Relaxed);
        if n == 0 || !was_cut && to.write_all(&buffer[..n]).await.is_err() {
            return;
        }
    }
}
