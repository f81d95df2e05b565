//! TCP connections between the guest and the outside. When the guest opens a connection, the host first connects to the
//! destination. Until it has done so, the guest's first segment waits. If the destination refuses the host, the interface
//! answers the segment with a reset, because no socket listens.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddrV4, TcpListener, TcpStream};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use smoltcp::iface::{Interface, SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::time::Duration;

use super::wire::Wire;
use super::{Forward, GATEWAY, GUEST, Routes};
use crate::net::NetworkError;

/// The maximum number of connections. More are refused.
const MAX_CONNECTIONS: usize = 256;
/// The size in bytes of the buffer for each direction of a connection.
const BUFFER_BYTES: usize = 1 << 16;
/// The time within which the guest must acknowledge data, by the machine's clock.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Source ports of forwarded connections.
const FIRST_PORT: u16 = 49152;

/// A connection that waits until the host is connected to its destination.
#[derive(Debug)]
struct Pending {
    port: u16,
    to: SocketAddrV4,
    /// The frame of the guest's first segment.
    frame: Vec<u8>,
    stream: TcpStream,
}

/// A connection.
#[derive(Debug)]
struct Connection {
    port: u16,
    to: SocketAddrV4,
    socket: SocketHandle,
    stream: TcpStream,
    /// Whether the outside has closed its direction.
    is_received: bool,
    /// Whether the guest has closed its direction.
    is_sent: bool,
}

/// All connections, and the ports that are forwarded.
#[derive(Debug)]
pub struct Connections {
    pending: Vec<Pending>,
    open: Vec<Connection>,
    forwards: Vec<(TcpListener, u16)>,
    next_port: u16,
}

impl Connections {
    /// Listens at the ports to forward.
    pub fn new(forwards: &[Forward]) -> Result<Self, NetworkError> {
        let listening = forwards.iter().map(|forward| {
            listen(forward).map_err(|error| NetworkError::Forward(forward.host.to_string(), error))
        });
        let forwards = listening.collect::<Result<_, _>>()?;
        Ok(Self { pending: Vec::new(), open: Vec::new(), forwards, next_port: FIRST_PORT })
    }

    /// Opens a connection from `port` of the guest; `frame` contains its first segment. Returns false if the connection
    /// is refused.
    pub fn open(&mut self, port: u16, to: SocketAddrV4, frame: &[u8], routes: &Routes) -> bool {
        let is_pending = self.pending.iter().any(|other| (other.port, other.to) == (port, to));
        let is_open = self.open.iter().any(|other| (other.port, other.to) == (port, to));
        if is_pending || is_open {
            // A repeated segment; the socket handles it if the connection is open.
            return is_pending;
        }
        if self.pending.len() + self.open.len() >= MAX_CONNECTIONS {
            return false;
        }
        let begun = routes.outside(to).and_then(|outside| connect(outside).ok());
        let Some(stream) = begun else { return false };
        self.pending.push(Pending { port, to, frame: frame.to_vec(), stream });
        true
    }

    /// Moves data between sockets of the guest and of the host.
    pub fn advance(&mut self, interface: &mut Interface, sockets: &mut SocketSet<'static>, wire: &mut Wire) {
        self.accept(interface, sockets);
        for pending in std::mem::take(&mut self.pending) {
            match is_connected(&pending.stream) {
                None => self.pending.push(pending),
                Some(is_accepted) => {
                    let Pending { port, to, frame, stream } = pending;
                    let mut socket = new_socket();
                    if is_accepted && socket.listen((*to.ip(), to.port())).is_ok() {
                        let socket = sockets.add(socket);
                        self.open.push(Connection::new(port, to, socket, stream));
                    }
                    wire.receive(frame);
                }
            }
        }
        self.open.retain_mut(|connection| {
            let socket = sockets.get_mut::<Socket<'_>>(connection.socket);
            let is_alive = connection.advance(socket);
            if !is_alive {
                sockets.remove(connection.socket);
            }
            is_alive
        });
    }

    /// Accepts connections at the forwarded ports, and connects to the guest.
    fn accept(&mut self, interface: &mut Interface, sockets: &mut SocketSet<'static>) {
        for (listener, guest_port) in &self.forwards {
            while self.pending.len() + self.open.len() < MAX_CONNECTIONS {
                let Ok((stream, _)) = listener.accept() else { break };
                let port = self.next_port;
                self.next_port = port.checked_add(1).unwrap_or(FIRST_PORT);
                let mut socket = new_socket();
                let guest = (GUEST, *guest_port);
                let is_ready = stream.set_nonblocking(true).is_ok()
                    && socket.connect(interface.context(), guest, (GATEWAY, port)).is_ok();
                if is_ready {
                    let socket = sockets.add(socket);
                    let to = SocketAddrV4::new(GATEWAY, port);
                    self.open.push(Connection::new(*guest_port, to, socket, stream));
                }
            }
        }
    }

    /// The events to wait for.
    pub fn wanted<'a>(&'a self, sockets: &'a SocketSet<'static>) -> impl Iterator<Item = PollFd<'a>> {
        let listeners = self.forwards.iter().map(|(listener, _)| PollFd::new(listener, PollFlags::IN));
        let pending = self.pending.iter().map(|pending| PollFd::new(&pending.stream, PollFlags::OUT));
        let open = self.open.iter().filter_map(|connection| {
            let socket = sockets.get::<Socket<'_>>(connection.socket);
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, socket.can_send() && !connection.is_received);
            flags.set(PollFlags::OUT, socket.can_recv());
            // A closed socket is always ready, so poll only sockets that can transfer data.
            (!flags.is_empty()).then(|| PollFd::new(&connection.stream, flags))
        });
        listeners.chain(pending).chain(open)
    }
}

impl Connection {
    fn new(port: u16, to: SocketAddrV4, socket: SocketHandle, stream: TcpStream) -> Self {
        // Small writes of either side are not delayed.
        let _ = stream.set_nodelay(true);
        Self { port, to, socket, stream, is_received: false, is_sent: false }
    }

    /// Moves data in both directions. Returns whether the connection continues.
    fn advance(&mut self, socket: &mut Socket<'_>) -> bool {
        if self.send(socket).and_then(|()| self.receive(socket)).is_err() {
            socket.abort();
        }
        match socket.state() {
            // The socket must still send a reset.
            State::Closed => socket.remote_endpoint().is_some(),
            State::TimeWait => false,
            _ => true,
        }
    }

    /// Forwards the guest's data to the host's socket.
    fn send(&mut self, socket: &mut Socket<'_>) -> io::Result<()> {
        while socket.can_recv() {
            let stream = &mut self.stream;
            let sent = socket.recv(|data| match stream.write(data) {
                Ok(bytes) => (bytes, Ok(bytes)),
                Err(error) => (0, Err(error)),
            });
            match sent {
                Ok(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Ok(sent) => {
                    sent?;
                }
                Err(_) => return Ok(()),
            }
        }
        let has_ended = matches!(socket.state(), State::CloseWait | State::LastAck | State::Closing);
        if has_ended && !self.is_sent {
            self.is_sent = true;
            // The host's peer may have closed the connection already.
            let _ = self.stream.shutdown(Shutdown::Write);
        }
        Ok(())
    }

    /// Receives as much as fits into the guest's window.
    fn receive(&mut self, socket: &mut Socket<'_>) -> io::Result<()> {
        while socket.can_send() && !self.is_received {
            let stream = &mut self.stream;
            let received = socket.send(|room| match stream.read(room) {
                Ok(bytes) => (bytes, Ok(bytes)),
                Err(error) => (0, Err(error)),
            });
            match received {
                Ok(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Ok(received) => {
                    if received? == 0 {
                        self.is_received = true;
                        socket.close();
                    }
                }
                Err(_) => return Ok(()),
            }
        }
        Ok(())
    }
}

fn listen(forward: &Forward) -> io::Result<(TcpListener, u16)> {
    let listener = TcpListener::bind(forward.host)?;
    listener.set_nonblocking(true)?;
    Ok((listener, forward.port))
}

fn new_socket() -> Socket<'static> {
    let buffer = || SocketBuffer::new(vec![0; BUFFER_BYTES]);
    let mut socket = Socket::new(buffer(), buffer());
    socket.set_nagle_enabled(false);
    socket.set_ack_delay(None);
    socket.set_timeout(Some(TIMEOUT));
    socket
}

/// Begins a connection.
fn connect(to: SocketAddrV4) -> io::Result<TcpStream> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &to) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(socket.into()),
        Err(error) => Err(error.into()),
    }
}

/// Whether a connection attempt was accepted; `None` if that is not known yet.
fn is_connected(stream: &TcpStream) -> Option<bool> {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    match poll(&mut [PollFd::new(stream, PollFlags::OUT)], Some(&now)) {
        Ok(0) => None,
        _ => Some(matches!(sockopt::socket_error(stream), Ok(Ok(())))),
    }
}
