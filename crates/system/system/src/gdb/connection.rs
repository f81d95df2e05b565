//! Sockets that a debugger connects to.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// A socket that waits for a debugger.
pub enum Listener {
    /// On a network interface.
    Tcp(TcpListener),
    /// In the file system; the file is removed at the end.
    Unix(UnixListener, PathBuf),
}

impl Listener {
    /// See [`super::Debugger::listen`].
    pub fn new(place: &str) -> io::Result<Self> {
        if place.contains('/') {
            return Ok(Self::Unix(UnixListener::bind(place)?, place.into()));
        }
        let address = match place.parse() {
            Ok(port) => SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
            Err(_) => place.parse().map_err(|_| {
                let advice =
                    "give a port, an address as in 127.0.0.1:1234, or the path of a socket, with a slash";
                io::Error::new(io::ErrorKind::InvalidInput, advice)
            })?,
        };
        Ok(Self::Tcp(TcpListener::bind(address)?))
    }

    /// Where a debugger connects to.
    pub fn place(&self) -> String {
        match self {
            Self::Tcp(listener) => {
                listener.local_addr().map_or_else(|error| error.to_string(), |at| at.to_string())
            }
            Self::Unix(_, path) => path.display().to_string(),
        }
    }

    /// Accepts a connection that a debugger makes within `wait`.
    pub fn accept(&self, wait: Duration) -> Option<Connection> {
        let descriptor = match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener, _) => listener.as_fd(),
        };
        if !is_ready(descriptor, wait) {
            return None;
        }
        let stream: Box<dyn Stream> = match self {
            Self::Tcp(listener) => {
                let stream = listener.accept().ok()?.0;
                stream.set_nodelay(true).ok()?;
                stream.set_nonblocking(false).ok()?;
                Box::new(stream)
            }
            Self::Unix(listener, _) => Box::new(listener.accept().ok()?.0),
        };
        Some(Connection { stream, input: Vec::new(), taken: 0, output: Vec::new() })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            // A file that another process has removed needs no removal.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A stream socket.
trait Stream: Read + Write + AsFd {}

impl Stream for TcpStream {}
impl Stream for UnixStream {}

/// A connection to a debugger.
pub struct Connection {
    stream: Box<dyn Stream>,
    /// Received bytes, of which `taken` have been used.
    input: Vec<u8>,
    taken: usize,
    output: Vec<u8>,
}

impl Connection {
    /// The next byte from the debugger; `None` if none arrives within `wait`.
    ///
    /// # Errors
    /// The debugger has disconnected.
    pub fn receive(&mut self, wait: Duration) -> io::Result<Option<u8>> {
        if self.taken == self.input.len() {
            if !is_ready(self.stream.as_fd(), wait) {
                return Ok(None);
            }
            self.input.resize(4096, 0);
            let count = self.stream.read(&mut self.input);
            self.input.truncate(*count.as_ref().unwrap_or(&0));
            self.taken = 0;
            if count? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        self.taken += 1;
        Ok(Some(self.input[self.taken - 1]))
    }
}

impl gdbstub::conn::Connection for Connection {
    type Error = io::Error;

    fn write(&mut self, byte: u8) -> io::Result<()> {
        self.output.push(byte);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        let output = std::mem::take(&mut self.output);
        self.stream.write_all(&output)
    }
}

/// Whether a descriptor becomes readable within `wait`.
fn is_ready(descriptor: BorrowedFd<'_>, wait: Duration) -> bool {
    let limit = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
    let mut wanted = [PollFd::new(&descriptor, PollFlags::IN)];
    poll(&mut wanted, Some(&limit)).is_ok_and(|count| count > 0)
}
