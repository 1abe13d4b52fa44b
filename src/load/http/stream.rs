//! A connection that never waits: TCP or a unix socket, with TLS on it or not.

use std::io::{self, Read, Write};
use std::net::Shutdown;

use mio::event::Source;
use mio::net::{TcpStream, UnixStream};
use mio::{Interest, Registry, Token};
use rustls::ClientConnection;

use super::target::{Target, Way};

#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

#[derive(Debug)]
pub(super) struct Stream {
    socket: Socket,
    tls: Option<Box<ClientConnection>>,
}

impl Stream {
    /// Begins to connect.
    pub(super) fn open(target: &Target, registry: &Registry, token: Token) -> io::Result<Stream> {
        let mut socket = match &target.way {
            Way::Tcp(address) => {
                let stream = TcpStream::connect(*address)?;
                stream.set_nodelay(true)?;
                Socket::Tcp(stream)
            }
            Way::Unix(path) => Socket::Unix(UnixStream::connect(path)?),
        };
        let both = Interest::READABLE | Interest::WRITABLE;
        match &mut socket {
            Socket::Tcp(stream) => stream.register(registry, token, both)?,
            Socket::Unix(stream) => stream.register(registry, token, both)?,
        }
        let tls = match &target.tls {
            None => None,
            Some((name, config)) => {
                let tls = ClientConnection::new(config.clone(), name.clone());
                Some(Box::new(tls.map_err(io::Error::other)?))
            }
        };
        Ok(Stream { socket, tls })
    }

    /// Whether it is connected and can be written to; goes on with a handshake.
    pub(super) fn is_ready(&mut self) -> io::Result<bool> {
        let error = match &self.socket {
            Socket::Tcp(stream) => stream.take_error()?,
            Socket::Unix(stream) => stream.take_error()?,
        };
        if let Some(error) = error {
            return Err(error);
        }
        if let Socket::Tcp(stream) = &self.socket
            && let Err(error) = stream.peer_addr()
        {
            // It is still on its way.
            return if error.kind() == io::ErrorKind::NotConnected {
                Ok(false)
            } else {
                Err(error)
            };
        }
        let Some(tls) = &mut self.tls else { return Ok(true) };
        while tls.is_handshaking() {
            let moved = if tls.wants_write() {
                tls.write_tls(&mut self.socket)
            } else {
                read_tls(tls, &mut self.socket)
            };
            match moved {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Whether a read that does not fill its buffer has read everything.
    pub(super) fn short_read_is_all(&self) -> bool {
        self.tls.is_none()
    }

    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return self.socket.read(buffer) };
        loop {
            match tls.reader().read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
            if read_tls(tls, &mut self.socket)? == 0 {
                return Ok(0);
            }
        }
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return self.socket.write(bytes) };
        // What was taken before goes first; only then more is taken.
        while tls.wants_write() {
            tls.write_tls(&mut self.socket)?;
        }
        let taken = tls.writer().write(bytes)?;
        while tls.wants_write() {
            match tls.write_tls(&mut self.socket) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(taken)
    }

    /// Sends what TLS still holds.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        let Some(tls) = &mut self.tls else { return Ok(()) };
        while tls.wants_write() {
            match tls.write_tls(&mut self.socket) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                written => written.map(drop)?,
            }
        }
        Ok(())
    }

    pub(super) fn close(&mut self, registry: &Registry) {
        // It may be closed already.
        match &mut self.socket {
            Socket::Tcp(stream) => {
                let _ = (stream.shutdown(Shutdown::Both), stream.deregister(registry));
            }
            Socket::Unix(stream) => {
                let _ = (stream.shutdown(Shutdown::Both), stream.deregister(registry));
            }
        }
    }
}

fn read_tls(tls: &mut ClientConnection, socket: &mut Socket) -> io::Result<usize> {
    let read = tls.read_tls(socket)?;
    tls.process_new_packets().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    Ok(read)
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.read(buffer),
            Socket::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.write(bytes),
            Socket::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
