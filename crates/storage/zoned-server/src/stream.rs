//! A client's non-blocking connection, plain or encrypted. [`Stream::wait`] waits for it.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A socket that never waits.
struct Socket(Arc<TcpStream>);

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let (count, _) = recv(&*self.0, buffer, RecvFlags::DONTWAIT)?;
        Ok(count)
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(send(&*self.0, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

enum Layer {
    Plain(Socket),
    Tls(Box<StreamOwned<ServerConnection, Socket>>),
}

/// A client's connection.
pub(crate) struct Stream {
    socket: Arc<TcpStream>,
    layer: Layer,
}

/// The readiness of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ready {
    pub read: bool,
    pub write: bool,
}

impl Stream {
    /// A connection that was accepted.
    pub fn new(socket: Arc<TcpStream>, tls: Option<&Arc<ServerConfig>>) -> Result<Self, rustls::Error> {
        let own = Socket(Arc::clone(&socket));
        let layer = match tls {
            None => Layer::Plain(own),
            Some(config) => {
                let connection = ServerConnection::new(Arc::clone(config))?;
                Layer::Tls(Box::new(StreamOwned::new(connection, own)))
            }
        };
        Ok(Self { socket, layer })
    }

    /// Reads the available bytes: 0 at the end, `None` if none are available.
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let read = match &mut self.layer {
            Layer::Plain(socket) => socket.read(buffer),
            Layer::Tls(stream) => stream.read(buffer),
        };
        match read {
            // The peer closed the connection without `close_notify`. This is safe, because requests carry their length,
            // so truncation is detected.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(Some(0)),
            read => unless_blocked(read),
        }
    }

    /// Writes as many bytes as the connection accepts without waiting.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = match &mut self.layer {
            Layer::Plain(socket) => socket.write(bytes),
            Layer::Tls(stream) => stream.write(bytes),
        };
        Ok(unless_blocked(written)?.unwrap_or(0))
    }

    /// Sends encrypted bytes that wait.
    pub fn flush(&mut self) -> io::Result<()> {
        if let Layer::Tls(stream) = &mut self.layer {
            unless_blocked(stream.flush())?;
        }
        Ok(())
    }

    /// Whether encrypted bytes wait to be sent.
    pub fn has_unsent(&self) -> bool {
        matches!(&self.layer, Layer::Tls(stream) if stream.conn.wants_write())
    }

    /// Whether the TLS handshake is in progress.
    pub fn is_handshaking(&self) -> bool {
        matches!(&self.layer, Layer::Tls(stream) if stream.conn.is_handshaking())
    }

    /// Whether decrypted bytes may wait, which [`Stream::wait`] does not report.
    pub fn may_have_buffered(&self) -> bool {
        matches!(self.layer, Layer::Tls(_))
    }

    /// Waits until the connection is ready for something in `interest`, or `deadline` has passed.
    pub fn wait(&self, interest: Ready, deadline: Option<Instant>) -> io::Result<Ready> {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, interest.read);
        flags.set(PollFlags::OUT, interest.write);
        let mut polled = [PollFd::new(&*self.socket, flags)];
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let limit = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut polled, limit.as_ref()) {
            Err(rustix::io::Errno::INTR) => return Ok(Ready::default()),
            polled => polled?,
        };
        let found = polled[0].revents();
        // After an error or the end, both read and write report it.
        let ended = found.intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL);
        Ok(Ready {
            read: interest.read && (ended || found.contains(PollFlags::IN)),
            write: interest.write && (ended || found.contains(PollFlags::OUT)),
        })
    }

    /// Ends the connection in such a way that the client receives the last replies. Closing a socket with unread
    /// requests would reset it.
    pub fn close(mut self) {
        const MAX_CLOSE_TIME: Duration = Duration::from_millis(100);
        const MAX_DISCARDED_BYTES: usize = 1 << 20;
        if let Layer::Tls(stream) = &mut self.layer {
            stream.conn.send_close_notify();
            let _ = stream.flush();
        }
        let _ = self.socket.shutdown(Shutdown::Write);
        let (deadline, mut buffer, mut bytes) = (Instant::now() + MAX_CLOSE_TIME, [0; 4096], 0);
        while bytes < MAX_DISCARDED_BYTES && Instant::now() < deadline {
            match self.wait(Ready { read: true, write: false }, Some(deadline)) {
                Ok(Ready { read: true, .. }) => {}
                _ => break,
            }
            match recv(&*self.socket, &mut buffer, RecvFlags::DONTWAIT) {
                Ok((count, _)) if count > 0 => bytes += count,
                _ => break,
            }
        }
    }
}

/// `None` for an operation that would have to wait.
fn unless_blocked<T>(done: io::Result<T>) -> io::Result<Option<T>> {
    match done {
        Ok(value) => Ok(Some(value)),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
