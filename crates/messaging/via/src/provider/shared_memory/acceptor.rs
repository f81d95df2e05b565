//! Accepts connections. The control messages of all connecting sockets are received as they arrive, without waiting for
//! any single peer; a peer whose handshake is complete becomes a request. Silent peers are dropped after a timeout.
//!
//! Source: unix(7); accept(2).

use super::control_message::{self, ControlMessage};
use super::deferred_close::{PeerFile, PeerSocket};
use super::layout::EXPORTS;
use super::peer_connection::{Half, PeerConnection, RefusedConnection, refuse};
use super::process::peer_uid;
use super::quota::{Charge, Quotas};
use super::server_names::ServerAddress;
use super::settings::Settings;
use crate::address::Address;
use crate::attributes::ViAttributes;
use crate::error::Error;
use longma_locks::IgnorePoison;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// The time that a peer has to complete its handshake.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(1);
/// The maximum number of sockets in the handshake, in total and per user.
const MAX_HANDSHAKES: usize = 1024;
const MAX_HANDSHAKES_PER_USER: usize = 64;
/// The maximum number of complete requests of one user that wait for the program.
const MAX_READY_PER_USER: usize = 64;
/// The maximum number of sockets accepted per call.
const MAX_ACCEPTS_PER_CALL: usize = 64;
/// The maximum number of control messages received per call, in total and from one peer. A message costs about ten
/// system calls, and the calling thread may have other peers to serve.
const MAX_MESSAGES_PER_CALL: usize = 128;
const MAX_MESSAGES_PER_PEER: usize = 16;
/// The allowance, in messages, charged for dropping a peer: its regions are unmapped and its messages discarded.
const DROP_COST: usize = 16;
/// The pause before accepting again after the process ran out of descriptors.
const PAUSE: Duration = Duration::from_millis(10);

/// A socket whose handshake is not complete.
struct Handshake {
    peer_connection: Arc<PeerConnection>,
    deadline: Instant,
    hello: Option<Hello>,
    messages: usize,
}

/// The contents of the first control message.
pub(super) struct Hello {
    pub(super) remote: Address,
    pub(super) attributes: ViAttributes,
    pub(super) barrier: bool,
    /// The peer's half, and the charge for mapping ours.
    pub(super) theirs: Half,
    pub(super) own_half_charge: Charge,
}

/// A complete connection request.
pub(super) struct IncomingRequest {
    pub(super) peer_connection: Arc<PeerConnection>,
    pub(super) hello: Hello,
}

#[derive(Default)]
struct AcceptorState {
    /// In order of arrival.
    handshakes: VecDeque<Handshake>,
    ready: VecDeque<IncomingRequest>,
    /// The time until which no sockets are accepted, because the process ran out of descriptors.
    full_until: Option<Instant>,
}

/// A listening address.
pub(super) struct Listener {
    socket: OwnedFd,
    address: ServerAddress,
    settings: Arc<Settings>,
    quota: Arc<Quotas>,
    state: Mutex<AcceptorState>,
    is_closed: AtomicBool,
}

enum HandshakeStep {
    /// The handshake is not complete.
    More,
    /// There are further messages to receive.
    Busy,
    /// The handshake is complete.
    Whole,
    /// The peer sent an unexpected message or disconnected.
    Gone,
    /// The peer is refused.
    Refused(String),
}

impl Handshake {
    /// Receives the messages that have arrived, within the allowance.
    fn step(&mut self, allowance: &mut usize) -> HandshakeStep {
        let mut left = MAX_MESSAGES_PER_PEER;
        loop {
            // The limit is the maximum length of a valid handshake.
            if self.messages > EXPORTS + 2 {
                return HandshakeStep::Gone;
            }
            if left == 0 || *allowance == 0 {
                return HandshakeStep::Busy;
            }
            (left, *allowance) = (left - 1, *allowance - 1);
            match self.peer_connection.socket.receive() {
                Ok((message, file)) => {
                    self.messages += 1;
                    match self.handle(message, file) {
                        HandshakeStep::More => {}
                        step => return step,
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return HandshakeStep::More,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return HandshakeStep::Gone,
            }
        }
    }

    fn handle(&mut self, message: ControlMessage, file: Option<PeerFile>) -> HandshakeStep {
        let result = match (message, &self.hello) {
            (ControlMessage::Hello { local, attributes, barrier }, None) => {
                let Some(file) = file else { return HandshakeStep::Gone };
                let halves = self.peer_connection.charge_half().and_then(|own_half_charge| {
                    let charge = self.peer_connection.charge_half()?;
                    Ok((self.peer_connection.take_half(&file, charge)?, own_half_charge))
                });
                match halves {
                    Ok((theirs, own_half_charge)) => {
                        self.hello =
                            Some(Hello { remote: local, attributes, barrier, theirs, own_half_charge });
                        Ok(())
                    }
                    Err(reason) => return HandshakeStep::Refused(reason),
                }
            }
            (ControlMessage::VersionMismatch { version }, None) => {
                return HandshakeStep::Refused(control_message::not_understood(version));
            }
            (ControlMessage::Export(export), Some(_)) => self.peer_connection.handle_export(export, file),
            (ControlMessage::Lend { export, file }, Some(_)) => {
                self.peer_connection.handle_lend(export, file)
            }
            (ControlMessage::ExportsDone, Some(_)) => return HandshakeStep::Whole,
            _ => return HandshakeStep::Gone,
        };
        if result.is_ok() { HandshakeStep::More } else { HandshakeStep::Gone }
    }

    fn refuse(self, reason: &str, again: bool) {
        self.peer_connection.account.note(false, reason);
        refuse(&self.peer_connection.socket, reason, again);
    }
}

impl Listener {
    pub(super) fn bind(
        discriminator: &[u8],
        settings: &Arc<Settings>,
        quota: &Arc<Quotas>,
    ) -> Result<Listener, Error> {
        let address = ServerAddress::own(settings, discriminator)?;
        let socket = address.listen(discriminator)?;
        make_room(&socket, settings.limits.nic_connections);
        let (settings, quota) = (settings.clone(), quota.clone());
        Ok(Listener {
            socket,
            address,
            settings,
            quota,
            state: Mutex::default(),
            is_closed: AtomicBool::new(false),
        })
    }

    fn state(&self) -> MutexGuard<'_, AcceptorState> {
        self.state.lock().ignore_poison()
    }

    /// Stops listening. Waits in other threads end.
    pub(super) fn close(&self) {
        if self.is_closed.swap(true, Ordering::AcqRel) {
            return;
        }
        self.address.remove();
        // Accept no more connections, and drop pending ones individually, including the descriptors in their messages.
        // SAFETY: the call takes only integers.
        unsafe { libc::shutdown(self.socket.as_raw_fd(), libc::SHUT_RDWR) };
        while self.next_socket().is_ok() {}
        let AcceptorState { handshakes, ready, .. } = std::mem::take(&mut *self.state());
        let contacts = handshakes.into_iter().map(|handshake| handshake.peer_connection);
        for peer_connection in contacts.chain(ready.into_iter().map(|pending| pending.peer_connection)) {
            refuse(&peer_connection.socket, "the server no longer listens", false);
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Returns the next complete request, waiting until the deadline if there is none. `None` after the deadline, and
    /// when the listener is closed.
    pub(super) fn wait(&self, deadline: Option<Instant>) -> Option<IncomingRequest> {
        loop {
            let (sockets, next) = {
                let mut state = self.state();
                if self.is_closed() {
                    return None;
                }
                let mut allowance = MAX_MESSAGES_PER_CALL;
                self.advance_handshakes(&mut state, &mut allowance);
                self.accept_pending(&mut state, &mut allowance);
                while let Some(pending) = state.ready.pop_front() {
                    // A client that has given up in the meantime is no longer connected.
                    if !has_hung_up(&pending.peer_connection) {
                        return Some(pending);
                    }
                }
                let mut sockets: Vec<RawFd> = state
                    .handshakes
                    .iter()
                    .map(|handshake| handshake.peer_connection.socket.as_raw_fd())
                    .collect();
                if state.full_until.is_none() {
                    sockets.push(self.socket.as_raw_fd());
                }
                let expiry = state.handshakes.iter().map(|handshake| handshake.deadline).min();
                (sockets, [expiry, state.full_until].into_iter().flatten().min())
            };
            let wake_at = [deadline, next].into_iter().flatten().min();
            readable(&sockets, wake_at);
            // Stop although there may be more to receive, because peers could send indefinitely. The next call
            // continues.
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return None;
            }
        }
    }

    /// Receives from the sockets in the handshake, starting where the last call ended, and drops those that were silent
    /// too long.
    fn advance_handshakes(&self, state: &mut AcceptorState, allowance: &mut usize) {
        let now = Instant::now();
        for _ in 0..state.handshakes.len() {
            if *allowance == 0 {
                return;
            }
            let Some(mut handshake) = state.handshakes.pop_front() else { break };
            // Messages that have arrived are received before the timeout is checked.
            match handshake.step(allowance) {
                HandshakeStep::More if now >= handshake.deadline => {
                    *allowance = allowance.saturating_sub(DROP_COST);
                    handshake.refuse("the handshake timed out", false);
                }
                HandshakeStep::More | HandshakeStep::Busy => state.handshakes.push_back(handshake),
                step => {
                    if matches!(step, HandshakeStep::Gone) {
                        *allowance = allowance.saturating_sub(DROP_COST);
                    }
                    self.leave(state, handshake, step);
                }
            }
        }
    }

    /// Accepts new sockets and receives their messages.
    fn accept_pending(&self, state: &mut AcceptorState, allowance: &mut usize) {
        let now = Instant::now();
        if state.full_until.is_some_and(|deadline| now < deadline) {
            return;
        }
        state.full_until = None;
        for _ in 0..MAX_ACCEPTS_PER_CALL {
            // Receive from the existing sockets before accepting more.
            if *allowance == 0 {
                return;
            }
            match self.next_socket() {
                Ok(socket) => self.enter(state, socket, allowance),
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                    io::ErrorKind::WouldBlock => return,
                    // Out of descriptors or memory: leave the socket in the backlog for now.
                    _ => return state.full_until = Some(now + PAUSE),
                },
            }
        }
    }

    fn next_socket(&self) -> io::Result<PeerSocket> {
        let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let (no_address, no_length) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: no peer address is requested.
        let fd = unsafe { libc::accept4(self.socket.as_raw_fd(), no_address, no_length, flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just opened and has no other owner.
        Ok(PeerSocket::new(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Handles a newly accepted socket.
    fn enter(&self, state: &mut AcceptorState, socket: PeerSocket, allowance: &mut usize) {
        let mut socket = socket;
        // If the user has reached a limit, drop the user's socket that has been silent the longest.
        let peer_connection = loop {
            match PeerConnection::new(socket, &self.settings, &self.settings.clients, &self.quota) {
                Ok(peer_connection) => break Arc::new(peer_connection),
                Err(RefusedConnection { socket: refused, reason, again }) => {
                    let uid = peer_uid(&refused);
                    let of_user = |handshake: &Handshake| handshake.peer_connection.process.uid == uid;
                    if again || !self.evict(state, of_user, allowance) {
                        self.quota.note(uid, false, &reason);
                        return refuse(&refused, &reason, again);
                    }
                    socket = refused;
                }
            }
        };
        let deadline = Instant::now() + HANDSHAKE_TIMEOUT;
        let mut handshake = Handshake { peer_connection, deadline, hello: None, messages: 0 };
        match handshake.step(allowance) {
            HandshakeStep::More | HandshakeStep::Busy => {
                let uid = handshake.peer_connection.process.uid;
                let of_user = |other: &Handshake| other.peer_connection.process.uid == uid;
                let has_space = if state.handshakes.iter().filter(|other| of_user(other)).count()
                    >= MAX_HANDSHAKES_PER_USER
                {
                    self.evict(state, of_user, allowance)
                } else {
                    state.handshakes.len() < MAX_HANDSHAKES || self.evict(state, |_| true, allowance)
                };
                if has_space {
                    state.handshakes.push_back(handshake);
                } else {
                    handshake.refuse("too many handshakes are in progress", true);
                }
            }
            step => self.leave(state, handshake, step),
        }
    }

    /// Drops the oldest of the sockets selected by `which`, after receiving its pending messages once more. A socket
    /// with more data to receive remains in the list. Returns `false` if none is selected.
    fn evict(
        &self,
        state: &mut AcceptorState,
        which: impl Fn(&Handshake) -> bool,
        allowance: &mut usize,
    ) -> bool {
        let oldest = (0..state.handshakes.len())
            .filter(|index| which(&state.handshakes[*index]))
            .min_by_key(|index| state.handshakes[*index].deadline);
        let Some(mut handshake) = oldest.and_then(|index| state.handshakes.remove(index)) else {
            return false;
        };
        match handshake.step(allowance) {
            HandshakeStep::Busy => {
                state.handshakes.push_back(handshake);
                return false;
            }
            HandshakeStep::More => {
                *allowance = allowance.saturating_sub(DROP_COST);
                handshake
                    .refuse("the handshake was incomplete, and its place was needed for another one", true);
            }
            step => self.leave(state, handshake, step),
        }
        true
    }

    /// Ends the handshake of a socket.
    fn leave(&self, state: &mut AcceptorState, handshake: Handshake, step: HandshakeStep) {
        let uid = handshake.peer_connection.process.uid;
        match step {
            HandshakeStep::Refused(reason) => handshake.refuse(&reason, false),
            HandshakeStep::Whole => {
                if state.ready.iter().filter(|pending| pending.peer_connection.process.uid == uid).count()
                    >= MAX_READY_PER_USER
                {
                    let reason = format!("{MAX_READY_PER_USER} requests of user {uid} are already waiting");
                    return refuse(&handshake.peer_connection.socket, &reason, true);
                }
                if let Handshake { peer_connection, hello: Some(hello), .. } = handshake {
                    state.ready.push_back(IncomingRequest { peer_connection, hello });
                }
            }
            HandshakeStep::More | HandshakeStep::Busy | HandshakeStep::Gone => {}
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.close();
    }
}

/// Whether the peer has closed its socket or exited.
fn has_hung_up(peer_connection: &PeerConnection) -> bool {
    let mut poll =
        libc::pollfd { fd: peer_connection.socket.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 };
    // SAFETY: a single local structure; does not wait.
    let has_closed = unsafe { libc::poll(&raw mut poll, 1, 0) == 1 };
    has_closed || peer_connection.process.has_ended()
}

/// Makes the kernel enlarge this process's descriptor table for the given number of connections now. If the table had
/// to grow when a peer's descriptor arrives, the call would wait for all cores (expand_files in fs/file.c) and delay
/// all other peers.
fn make_room(socket: &OwnedFd, connections: u32) {
    /// The table takes eight bytes per descriptor.
    const MAX_TABLE_SIZE: u32 = 1 << 16;
    let mut size = connections.saturating_mul(2).saturating_add(256).min(MAX_TABLE_SIZE) as i32;
    while size > 64 {
        // SAFETY: the call takes only integers.
        let fd = unsafe { libc::fcntl(socket.as_raw_fd(), libc::F_DUPFD_CLOEXEC, size - 1) };
        if fd >= 0 {
            // SAFETY: the descriptor was just opened and has no other owner.
            return drop(unsafe { OwnedFd::from_raw_fd(fd) });
        }
        // The number exceeds the limit on open files.
        size /= 2;
    }
}

/// Waits until one of `sockets` is readable. Returns `false` if the deadline passes first.
pub(super) fn readable(sockets: &[RawFd], deadline: Option<Instant>) -> bool {
    let mut polls: Vec<_> =
        sockets.iter().map(|fd| libc::pollfd { fd: *fd, events: libc::POLLIN, revents: 0 }).collect();
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        // Round up to the next millisecond, so that the wait never ends before the deadline.
        let timeout =
            left.map_or(-1, |left| i32::try_from(left.as_micros().div_ceil(1000)).unwrap_or(i32::MAX));
        // SAFETY: the array is local and has the given length.
        let count = unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, timeout) };
        if count > 0 {
            return true;
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return false;
        }
        if count < 0 && io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            // The limit on open files was lowered below the number of sockets, or memory is exhausted: poll at
            // intervals instead.
            std::thread::sleep(PAUSE);
            return true;
        }
    }
}
