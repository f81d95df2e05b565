//! How two processes find each other by name and agree: abstract Unix sockets, the segment, the first letters.
//! Not trusting: until a letter is parsed and a segment is checked, a connection is only a socket with a time limit.
//! Source: unix(7), abstract sockets: they vanish with their process, so that nothing is left behind by one that is killed.

use super::SharedMemory;
use super::barrier;
use super::layout::SEGMENT_BYTES;
use super::letters::{Letter, Probe, receive, send};
use super::link::SharedLink;
use super::mapping::{self, Mapping, map_foreign};
use super::peer::{Meeting, Peer, own_probe};
use crate::connection::Address;
use crate::error::Error;
use crate::provider::{Ask, Established, Incoming, Link};
use crate::vi::ViAttributes;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a peer may take over a letter once it has begun to talk.
const PATIENCE: Duration = Duration::from_secs(1);
/// How many sockets may be waiting to say what they want.
const MOST_SILENT: usize = 64;

/// Somebody to be connected to, until it has been.
pub(super) struct Listener {
    socket: OwnedFd,
    /// Connected, but no hello yet; and until when.
    silent: Mutex<Vec<(OwnedFd, Instant)>>,
}

/// The socket address of a discriminator: in the abstract name space, and printable.
fn socket_address(discriminator: &[u8]) -> Result<(libc::sockaddr_un, libc::socklen_t), Error> {
    // SAFETY: plain old data, for which zeroes are a value.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let hex = discriminator
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .map(|digit| b"0123456789abcdef"[digit as usize]);
    let name: Vec<u8> = b"\0longma-via/".iter().copied().chain(hex).collect();
    if name.len() > address.sun_path.len() {
        return Err(Error::InvalidParameter(format!(
            "a discriminator of {} bytes is too long",
            discriminator.len()
        )));
    }
    for (place, byte) in address.sun_path.iter_mut().zip(&name) {
        *place = *byte as libc::c_char;
    }
    Ok((address, (size_of::<libc::sa_family_t>() + name.len()) as libc::socklen_t))
}

fn socket() -> Result<OwnedFd, Error> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: numbers only.
    let fd = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
    if fd < 0 {
        return Err(Error::last_system("making a socket"));
    }
    // SAFETY: just opened, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Waits until one of `sockets` is readable. `false`: the deadline passed.
fn readable(sockets: &[RawFd], deadline: Option<Instant>) -> bool {
    let mut polls: Vec<_> =
        sockets.iter().map(|fd| libc::pollfd { fd: *fd, events: libc::POLLIN, revents: 0 }).collect();
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        // Up to the next millisecond, so that the wait never ends before the deadline.
        let timeout =
            left.map_or(-1, |left| i32::try_from(left.as_micros().div_ceil(1000)).unwrap_or(i32::MAX));
        // SAFETY: the array is ours and as long as said.
        let count = unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, timeout) };
        if count > 0 {
            return true;
        }
        if count == 0 && deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return false;
        }
    }
}

/// The next letter, waited for until the deadline.
fn await_letter(socket: &OwnedFd, deadline: Option<Instant>) -> Result<(Letter, Option<OwnedFd>), Error> {
    loop {
        match receive(socket) {
            Ok(received) => return Ok(received),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if !readable(&[socket.as_raw_fd()], deadline) {
                    return Err(Error::Timeout);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::system("hearing from the peer", error)),
        }
    }
}

impl Listener {
    pub(super) fn bind(discriminator: &[u8]) -> Result<Listener, Error> {
        let (address, length) = socket_address(discriminator)?;
        let socket = socket()?;
        // SAFETY: the structure is filled and `length` is not more than its size.
        if unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) } < 0 {
            let error = io::Error::last_os_error();
            if error.kind() == io::ErrorKind::AddrInUse {
                let name = Address::local(discriminator);
                return Err(Error::InvalidParameter(format!(
                    "another process, or another NIC, already waits at {name}"
                )));
            }
            return Err(Error::system("binding a socket", error));
        }
        // SAFETY: numbers only.
        if unsafe { libc::listen(socket.as_raw_fd(), 64) } < 0 {
            return Err(Error::last_system("listening"));
        }
        Ok(Listener { socket, silent: Mutex::default() })
    }

    fn silent(&self) -> std::sync::MutexGuard<'_, Vec<(OwnedFd, Instant)>> {
        self.silent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes new sockets in, throws late ones out, and gives the first hello.
    fn look(&self) -> Option<(OwnedFd, Letter, OwnedFd)> {
        let mut silent = self.silent();
        let now = Instant::now();
        while silent.len() < MOST_SILENT {
            let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
            let (no_address, no_length) = (std::ptr::null_mut(), std::ptr::null_mut());
            // SAFETY: no address is asked for.
            let fd = unsafe { libc::accept4(self.socket.as_raw_fd(), no_address, no_length, flags) };
            if fd < 0 {
                break;
            }
            // SAFETY: just opened, and nobody else has it.
            silent.push((unsafe { OwnedFd::from_raw_fd(fd) }, now + PATIENCE));
        }
        silent.retain(|(_, until)| now < *until);
        let mut index = 0;
        while index < silent.len() {
            match receive(&silent[index].0) {
                Ok((letter @ Letter::Hello { .. }, Some(file))) => {
                    return Some((silent.remove(index).0, letter, file));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => index += 1,
                _ => drop(silent.remove(index)),
            }
        }
        None
    }

    fn wait(&self, deadline: Option<Instant>) -> Option<(OwnedFd, Letter, OwnedFd)> {
        loop {
            if let Some(found) = self.look() {
                return Some(found);
            }
            let (sockets, next) = {
                let silent = self.silent();
                let mut sockets: Vec<RawFd> = silent.iter().map(|(socket, _)| socket.as_raw_fd()).collect();
                if sockets.len() < MOST_SILENT {
                    sockets.push(self.socket.as_raw_fd());
                }
                (sockets, silent.iter().map(|(_, until)| *until).min())
            };
            let until = [deadline, next].into_iter().flatten().min();
            if !readable(&sockets, until) && deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return None;
            }
        }
    }
}

/// A peer that asks.
pub(super) struct SharedIncoming {
    nic: Arc<SharedMemory>,
    socket: OwnedFd,
    remote: Address,
    attributes: ViAttributes,
    barrier: bool,
    probe: Probe,
    segment: Mapping,
}

pub(super) fn wait(
    nic: &Arc<SharedMemory>,
    listener: &Listener,
    deadline: Option<Instant>,
) -> Result<Box<dyn Incoming>, Error> {
    loop {
        let Some((socket, letter, file)) = listener.wait(deadline) else { return Err(Error::Timeout) };
        let Letter::Hello { local: remote, attributes, barrier, probe } = letter else { continue };
        // A segment that is not what it should be is the peer's misfortune: its socket closes.
        let Ok(segment) = map_foreign(&file, SEGMENT_BYTES, true) else { continue };
        let nic = nic.clone();
        return Ok(Box::new(SharedIncoming { nic, socket, remote, attributes, barrier, probe, segment }));
    }
}

/// Learns what the peer shows at the beginning.
fn take_regions(peer: &Peer, deadline: Option<Instant>) -> Result<(), Error> {
    loop {
        match await_letter(&peer.socket, deadline)? {
            (Letter::Shown, _) => break,
            (letter @ Letter::Show(showing), file) => {
                if peer.map(showing, file).is_none() {
                    return Err(unexpected(&letter));
                }
            }
            (letter, _) => return Err(unexpected(&letter)),
        }
    }
    Ok(())
}

fn show_regions(nic: &SharedMemory, peer: &Peer) -> Result<(), Error> {
    nic.regions().values().for_each(|region| peer.show(region));
    send(peer.socket.as_raw_fd(), &Letter::Shown, None)
        .map_err(|error| Error::system("answering the peer", error))
}

fn unexpected(letter: &Letter) -> Error {
    let text = format!("the peer sent {letter:?} out of turn");
    Error::system("connecting", io::Error::new(io::ErrorKind::InvalidData, text))
}

/// What both sides do once they have agreed.
fn join(
    nic: &Arc<SharedMemory>,
    peer: Arc<Peer>,
    attributes: &ViAttributes,
    barrier: bool,
) -> Result<SharedLink, Error> {
    nic.watch(&peer)?;
    Ok(SharedLink::new(nic.clone(), peer, attributes.reliability, !(barrier && barrier::is_available())))
}

fn note_whether_fetching_works(peer: &Peer, probe: Probe) {
    let works = peer.process.can_be_read(probe);
    peer.ours().presence.fetches.store(u32::from(works), Ordering::Release);
}

impl Incoming for SharedIncoming {
    fn remote(&self) -> &Address {
        &self.remote
    }

    fn remote_attributes(&self) -> &ViAttributes {
        &self.attributes
    }

    fn accept(self: Box<Self>, vi: u32, attributes: &ViAttributes, tag: u32) -> Result<Box<dyn Link>, Error> {
        let SharedIncoming { nic, socket, barrier, probe, segment, .. } = *self;
        let peer =
            Arc::new(Peer::new(Meeting { vi, tag, attributes: *attributes, socket, segment, first: false }));
        take_regions(&peer, Some(Instant::now() + PATIENCE))?;
        note_whether_fetching_works(&peer, probe);
        let answer =
            Letter::Accept { attributes: *attributes, barrier: barrier::is_available(), probe: own_probe() };
        send(peer.socket.as_raw_fd(), &answer, None)
            .map_err(|_| Error::NotReachable("the peer no longer waits for the answer".into()))?;
        show_regions(&nic, &peer)?;
        Ok(Box::new(join(&nic, peer, attributes, barrier)?))
    }

    fn reject(self: Box<Self>) {
        let _ = send(self.socket.as_raw_fd(), &Letter::Reject, None);
    }
}

/// Connects a socket to whoever listens at `remote`.
pub(super) fn reach(remote: &Address, deadline: Option<Instant>) -> Result<OwnedFd, Error> {
    let (address, length) = socket_address(&remote.discriminator)?;
    loop {
        let socket = socket()?;
        // SAFETY: the structure is filled and `length` is not more than its size.
        if unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), length) } == 0 {
            return Ok(socket);
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => {
                return Err(Error::NoMatch(remote.to_string()));
            }
            // Its queue is full: a moment's patience.
            io::ErrorKind::WouldBlock if deadline.is_none_or(|deadline| Instant::now() < deadline) => {
                std::thread::sleep(Duration::from_millis(1));
            }
            io::ErrorKind::WouldBlock => return Err(Error::Timeout),
            io::ErrorKind::Interrupted => {}
            _ => return Err(Error::system("connecting", error)),
        }
    }
}

pub(super) fn request(
    nic: &Arc<SharedMemory>,
    ask: &Ask<'_>,
    deadline: Option<Instant>,
) -> Result<Established, Error> {
    let socket = reach(ask.remote, deadline)?;
    let (file, segment) = mapping::create(SEGMENT_BYTES, true)?;
    let hello = Letter::Hello {
        local: ask.local.clone(),
        attributes: *ask.attributes,
        barrier: barrier::is_available(),
        probe: own_probe(),
    };
    send(socket.as_raw_fd(), &hello, Some(file.as_raw_fd())).map_err(|_| Error::Rejected)?;
    drop(file);
    let meeting =
        Meeting { vi: ask.vi, tag: ask.tag, attributes: *ask.attributes, socket, segment, first: true };
    let peer = Arc::new(Peer::new(meeting));
    show_regions(nic, &peer).map_err(|_| Error::Rejected)?;
    let (remote_attributes, barrier, probe) = match await_letter(&peer.socket, deadline) {
        Ok((Letter::Accept { attributes, barrier, probe }, _)) => (attributes, barrier, probe),
        // A peer that closes without an answer refuses as well.
        Ok((Letter::Reject, _)) | Err(Error::System { .. }) => return Err(Error::Rejected),
        Ok((letter, _)) => return Err(unexpected(&letter)),
        Err(error) => return Err(error),
    };
    take_regions(&peer, Some(Instant::now() + PATIENCE))?;
    note_whether_fetching_works(&peer, probe);
    let link = Box::new(join(nic, peer, ask.attributes, barrier)?);
    Ok(Established { link, remote_attributes })
}
