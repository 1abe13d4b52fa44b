//! Between a client and a Redis: counts how often one waits for the other, and may put the clock
//! wrong.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) struct Proxy {
    pub(crate) port: u16,
    turns: Arc<AtomicU64>,
}

impl Proxy {
    /// Whoever asks for the time is told `ahead` seconds more.
    pub(crate) fn start(to: u16, ahead: u64) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let turns = Arc::new(AtomicU64::new(0));
        let counted = turns.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(("127.0.0.1", to)) else { continue };
                // Who spoke last: a round trip begins when that was the server.
                let last = Arc::new(AtomicU64::new(0));
                for (from, into, who) in [
                    (client.try_clone().unwrap(), server.try_clone().unwrap(), 1),
                    (server, client, 2),
                ] {
                    let (last, counted) = (last.clone(), counted.clone());
                    std::thread::spawn(move || relay(from, into, who, ahead, &last, &counted));
                }
            }
        });
        Proxy { port, turns }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    /// Round trips since the last time.
    pub(crate) fn round_trips(&self) -> u64 {
        self.turns.swap(0, Ordering::SeqCst)
    }
}

fn relay(
    mut from: TcpStream,
    mut into: TcpStream,
    who: u64,
    ahead: u64,
    last: &AtomicU64,
    turns: &AtomicU64,
) {
    let mut buffer = vec![0; 1 << 20];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        if last.swap(who, Ordering::SeqCst) != who && who == 1 {
            turns.fetch_add(1, Ordering::SeqCst);
        }
        if who == 2 && ahead > 0 {
            put_wrong(&mut buffer[..length], ahead);
        }
        if into.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    let _ = into.shutdown(Shutdown::Both);
}

/// Every answer to TIME: a list of two, the first of ten digits.
fn put_wrong(bytes: &mut [u8], ahead: u64) {
    const HEAD: &[u8] = b"*2\r\n$10\r\n";
    for at in 0..bytes.len().saturating_sub(HEAD.len() + 12) {
        let digits = at + HEAD.len()..at + HEAD.len() + 10;
        if bytes[at..].starts_with(HEAD) && bytes[digits.clone()].iter().all(u8::is_ascii_digit) {
            let seconds: u64 =
                std::str::from_utf8(&bytes[digits.clone()]).unwrap().parse().unwrap();
            bytes[digits].copy_from_slice((seconds + ahead).to_string().as_bytes());
        }
    }
}
