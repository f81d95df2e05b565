//! Connection setup between two processes: request, answer, and the exchange of exported regions. Until a message is
//! parsed and a half is validated, a connection is only a socket with a time limit.
//!
//! Source: unix(7).

use super::SharedMemory;
use super::acceptor::{HANDSHAKE_TIMEOUT, Hello, IncomingRequest, Listener, readable};
use super::barrier;
use super::control_message::{ControlMessage, send};
use super::deferred_close::{PeerFile, PeerSocket};
use super::layout::EXPORTS;
use super::link::SharedLink;
use super::mapping;
use super::peer::{Peer, PeerParts};
use super::peer_connection::{Half, PeerConnection};
use super::server_names::{ServerAddress, socket};
use crate::address::{Address, Credentials};
use crate::attributes::ViAttributes;
use crate::error::Error;
use crate::provider::{Established, Incoming, Link, OutgoingRequest};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The pause before retrying when the other side has no free resources.
const PAUSE: Duration = Duration::from_millis(2);
/// The maximum number of messages that a server may send while answering: its regions, the results for ours, and a few
/// more.
const MAX_MESSAGES: usize = 2 * EXPORTS + 8;

/// An incoming request.
pub(super) struct SharedIncoming {
    nic: Arc<SharedMemory>,
    /// Taken when the request is accepted.
    pending: Option<IncomingRequest>,
    /// The process that received it.
    creator_pid: u32,
}

impl SharedIncoming {
    fn pending(&self) -> &IncomingRequest {
        self.pending.as_ref().expect("only accepting takes the request, and consumes it")
    }
}

impl Drop for SharedIncoming {
    fn drop(&mut self) {
        // A forked child must not answer in its parent's name.
        if let Some(pending) = &self.pending
            && std::process::id() == self.creator_pid
        {
            super::peer_connection::refuse(&pending.peer_connection.socket, "", false);
        }
    }
}

pub(super) fn wait(
    nic: &Arc<SharedMemory>,
    listener: &Listener,
    local: &Address,
    deadline: Option<Instant>,
) -> Result<Box<dyn Incoming>, Error> {
    let Some(pending) = listener.wait(deadline) else {
        return Err(if listener.is_closed() { Error::not_listening(local) } else { Error::Timeout });
    };
    Ok(Box::new(SharedIncoming { nic: nic.clone(), pending: Some(pending), creator_pid: std::process::id() }))
}

fn show_regions(nic: &SharedMemory, peer: &Peer) -> io::Result<()> {
    nic.regions().values().for_each(|region| peer.offer(region));
    send(peer.peer_connection.socket.as_raw_fd(), &ControlMessage::ExportsDone, None)
}

/// Refuses the connection because of an error on this side.
fn refuse_for(error: &Error, socket: &PeerSocket) {
    super::peer_connection::refuse(socket, &error.to_string(), error.is_shortage());
}

/// Converts an error of sending the answer. If it is not the peer's fault, `report` reports it to the peer.
fn send_error(error: io::Error, report: impl FnOnce(&Error)) -> Error {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, WouldBlock};
    if [BrokenPipe, ConnectionReset, WouldBlock].contains(&error.kind()) {
        return Error::NotReachable("the peer no longer waits for the answer".into());
    }
    let error = Error::system("answering the peer", error);
    report(&error);
    error
}

/// The steps that both sides take after agreeing.
fn join(
    nic: &Arc<SharedMemory>,
    peer: Arc<Peer>,
    attributes: &ViAttributes,
    barrier: bool,
) -> Result<SharedLink, Error> {
    nic.watch(&peer)?;
    Ok(SharedLink::new(nic.clone(), peer, attributes.reliability, !(barrier && barrier::is_available())))
}

impl Incoming for SharedIncoming {
    fn remote(&self) -> &Address {
        &self.pending().hello.remote
    }

    fn remote_attributes(&self) -> &ViAttributes {
        &self.pending().hello.attributes
    }

    fn credentials(&self) -> Option<Credentials> {
        Some(self.pending().peer_connection.process.credentials())
    }

    fn accept(
        mut self: Box<Self>,
        vi: u32,
        attributes: &ViAttributes,
        tag: u32,
    ) -> Result<Box<dyn Link>, Error> {
        let nic = self.nic.clone();
        let Some(IncomingRequest { peer_connection, hello: Hello { barrier, theirs, own_half_charge, .. } }) =
            self.pending.take()
        else {
            return Err(Error::NoMatch("the request has already been answered".into()));
        };
        let (file, mapping) =
            mapping::create_half().inspect_err(|error| refuse_for(error, &peer_connection.socket))?;
        let ours = Half::new(mapping, own_half_charge);
        let peer = Arc::new(Peer::new(PeerParts {
            vi,
            tag,
            attributes: *attributes,
            peer_connection,
            ours,
            theirs: Some(theirs),
        }));
        // Watch the peer before answering, so that a peer that cannot be watched is not connected.
        let link = join(&nic, peer.clone(), attributes, barrier)
            .inspect_err(|error| refuse_for(error, &peer.peer_connection.socket))?;
        let answer = ControlMessage::Accept { attributes: *attributes, barrier: barrier::is_available() };
        let socket = &peer.peer_connection.socket;
        if let Err(error) = send(socket.as_raw_fd(), &answer, Some(file.as_raw_fd())) {
            return Err(send_error(error, |why| refuse_for(why, socket)));
        }
        show_regions(&nic, &peer).map_err(|error| send_error(error, |_| ()))?;
        Ok(Box::new(link))
    }

    // Dropping it rejects it.
    fn reject(self: Box<Self>) {}
}

/// Connects a socket to the server at `remote`.
pub(super) fn connect_socket(
    place: &ServerAddress,
    remote: &Address,
    deadline: Option<Instant>,
) -> Result<OwnedFd, Error> {
    loop {
        let socket = socket()?;
        let Err(error) = place.connect(socket.as_raw_fd()) else { return Ok(socket) };
        match error.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => {
                return Err(Error::NoMatch(remote.to_string()));
            }
            // The backlog is full: retry shortly.
            io::ErrorKind::WouldBlock => pause(deadline)?,
            io::ErrorKind::Interrupted => {}
            _ => return Err(Error::system("connecting", error)),
        }
    }
}

fn pause(deadline: Option<Instant>) -> Result<(), Error> {
    if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
        return Err(Error::Timeout);
    }
    std::thread::sleep(PAUSE);
    Ok(())
}

/// The answer to a request.
enum Answer {
    /// With the peer's half, if it was attached.
    Accepted {
        attributes: ViAttributes,
        barrier: bool,
        file: Option<PeerFile>,
    },
    Refused {
        reason: String,
        again: bool,
    },
}

/// Receives the messages of the server's answer, with a limit on their number and a deadline.
struct AnswerReader<'a> {
    peer_connection: &'a PeerConnection,
    deadline: Option<Instant>,
    left: usize,
}

impl AnswerReader<'_> {
    fn next(&mut self) -> Result<(ControlMessage, Option<PeerFile>), Error> {
        self.left = self
            .left
            .checked_sub(1)
            .ok_or_else(|| broken("the peer sent too many messages while answering"))?;
        // If a socket is closed with unread messages, ECONNRESET is reported before the peer's last message.
        let mut was_reset = false;
        loop {
            match self.peer_connection.socket.receive() {
                Ok(received) => return Ok(received),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if !readable(&[self.peer_connection.socket.as_raw_fd()], self.deadline) {
                        return Err(Error::Timeout);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset && !was_reset => {
                    was_reset = true
                }
                Err(error) => return Err(Error::system("receiving from the peer", error)),
            }
        }
    }

    /// Waits for the decision of the server.
    fn answer(&mut self, peer: &Peer) -> Result<Answer, Error> {
        loop {
            match self.next() {
                Ok((ControlMessage::Accept { attributes, barrier }, file)) => {
                    return Ok(Answer::Accepted { attributes, barrier, file });
                }
                Ok((ControlMessage::Reject { reason, again }, _)) => {
                    return Ok(Answer::Refused { reason, again });
                }
                // Messages about regions may arrive first.
                Ok((message, file)) => handle_message(peer, message, file)?,
                // The server has ended or closed its NIC: a server that refuses sends an answer.
                Err(Error::System { source, .. }) if source.kind() != io::ErrorKind::InvalidData => {
                    return Err(Error::NotReachable("the server ended before it answered".into()));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Receives the regions that the server exports at the beginning.
    fn regions(&mut self, peer: &Peer) -> Result<(), Error> {
        loop {
            match self.next()? {
                (ControlMessage::ExportsDone, _) => return Ok(()),
                (message, file) => handle_message(peer, message, file)?,
            }
        }
    }
}

fn broken(text: &str) -> Error {
    Error::system("connecting", io::Error::new(io::ErrorKind::InvalidData, text))
}

fn handle_message(peer: &Peer, message: ControlMessage, file: Option<PeerFile>) -> Result<(), Error> {
    let text = format!("the peer sent an unexpected {message:?}");
    peer.handle_message(message, file).map_err(|_| broken(&text))
}

pub(super) fn request(
    nic: &Arc<SharedMemory>,
    ask: &OutgoingRequest<'_>,
    deadline: Option<Instant>,
) -> Result<Established, Error> {
    let place = ServerAddress::others(nic.settings(), &ask.remote.discriminator)?;
    loop {
        match request_once(nic, ask, &place, deadline)? {
            Ok(established) => return Ok(established),
            Err((_, true)) => pause(deadline)?,
            Err((reason, false)) if reason.is_empty() => return Err(Error::Rejected),
            Err((reason, false)) => return Err(Error::Refused(reason)),
        }
    }
}

/// Makes one request. The inner error is the reason of the refusal, and whether to retry.
fn request_once(
    nic: &Arc<SharedMemory>,
    ask: &OutgoingRequest<'_>,
    place: &ServerAddress,
    deadline: Option<Instant>,
) -> Result<Result<Established, (String, bool)>, Error> {
    let socket = PeerSocket::new(connect_socket(place, ask.remote, deadline)?);
    let peer_connection = PeerConnection::new(socket, nic.settings(), &nic.settings().servers, nic.quota())
        .map_err(|denied| {
        Error::Refused(format!("by this side: {} is served by: {}", ask.remote, denied.reason))
    })?;
    let peer_connection = Arc::new(peer_connection);
    let [charge, their_charge] = [(); 2].map(|()| peer_connection.charge_half().map_err(Error::Resource));
    let (charge, their_charge) = (charge?, their_charge?);
    let (file, mapping) = mapping::create_half()?;
    let ours = Half::new(mapping, charge);
    let hello = ControlMessage::Hello {
        local: ask.local.clone(),
        attributes: *ask.attributes,
        barrier: barrier::is_available(),
    };
    match send(peer_connection.socket.as_raw_fd(), &hello, Some(file.as_raw_fd())) {
        // Too many descriptors of this user are in flight.
        Err(error) if error.raw_os_error() == Some(libc::ETOOMANYREFS) => {
            return Err(Error::system("requesting a connection", error));
        }
        // After other errors, there may still be an answer.
        _ => drop(file),
    }
    let attributes = *ask.attributes;
    let parts = PeerParts {
        vi: ask.vi,
        tag: ask.tag,
        attributes,
        peer_connection: peer_connection.clone(),
        ours,
        theirs: None,
    };
    let mut peer = Peer::new(parts);
    let _ = show_regions(nic, &peer);
    let mut reader = AnswerReader { peer_connection: &peer_connection, deadline, left: MAX_MESSAGES };
    let (remote_attributes, barrier, file) = match reader.answer(&peer)? {
        Answer::Accepted { attributes, barrier, file } => (attributes, barrier, file),
        Answer::Refused { reason, again } => return Ok(Err((reason, again))),
    };
    let file =
        file.ok_or_else(|| broken("the peer accepted but did not send its half of the shared memory"))?;
    peer.set_peer_half(peer_connection.take_half(&file, their_charge).map_err(|why| broken(&why))?);
    drop(file);
    let handshake = Instant::now() + HANDSHAKE_TIMEOUT;
    reader.deadline = Some(deadline.map_or(handshake, |deadline| deadline.min(handshake)));
    reader.regions(&peer)?;
    let link = Box::new(join(nic, Arc::new(peer), ask.attributes, barrier)?);
    Ok(Ok(Established { link, remote_attributes }))
}
