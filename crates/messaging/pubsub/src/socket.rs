//! Unix sockets: calls with time limits, transfer of memory files, and single bytes that wake the peer.
//!
//! Source: unix(7), cmsg(3).

use crate::error::{Error, system};
use crate::wire::{Answer, HEADER_BYTES, header};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Mode;
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// The number of connections that wait to be accepted.
const BACKLOG: i32 = 32;

fn stream() -> Result<OwnedFd, Error> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(system("opening a socket"))
}

/// Listens at a path, with rights for this user alone.
pub(crate) fn listen(path: &Path) -> Result<OwnedFd, Error> {
    let socket = stream()?;
    // The socket's file gets this mode when it is bound.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(system("setting a socket's rights"))?;
    let address = SocketAddrUnix::new(path).map_err(system("the path of a topic's socket"))?;
    rustix::net::bind(&socket, &address).map_err(system("binding a topic's socket"))?;
    rustix::net::listen(&socket, BACKLOG).map_err(system("listening for subscribers"))?;
    Ok(socket)
}

/// Accepts a connection of this user, or of root. `Ok(None)` if no connection waits, or if it belongs to another user.
pub(crate) fn accept(listener: &OwnedFd) -> Result<Option<(OwnedFd, u32)>, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = match rustix::net::accept_with(listener, flags) {
        Ok(socket) => socket,
        Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => return Ok(None),
        Err(errno) => return Err(errno),
    };
    let peer = rustix::net::sockopt::socket_peercred(&socket)?;
    let (own, root) = (rustix::process::geteuid(), rustix::process::Uid::ROOT);
    let process = peer.pid.as_raw_nonzero().get().unsigned_abs();
    Ok([own, root].contains(&peer.uid).then_some((socket, process)))
}

/// Connects to a path. `Ok(None)` if no process listens there.
pub(crate) fn connect(path: &Path, deadline: Instant) -> Result<Option<OwnedFd>, Error> {
    let address = SocketAddrUnix::new(path).map_err(system("the path of a topic's socket"))?;
    let socket = stream()?;
    loop {
        match rustix::net::connect(&socket, &address) {
            Ok(()) => break,
            Err(Errno::NOENT | Errno::CONNREFUSED) => return Ok(None),
            // The backlog is full.
            Err(Errno::AGAIN) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(2)),
            Err(Errno::AGAIN) => return Err(Error::TimedOut),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(system("connecting to a publisher")(errno)),
        }
    }
    let peer =
        rustix::net::sockopt::socket_peercred(&socket).map_err(system("asking for a publisher's user"))?;
    if peer.uid != rustix::process::geteuid() && !peer.uid.is_root() {
        return Err(Error::Refused(format!("the publisher belongs to user {}", peer.uid.as_raw())));
    }
    Ok(Some(socket))
}

/// Sends a frame with files. The socket is new, so its buffer has space for the whole frame.
pub(crate) fn send(socket: &OwnedFd, frame: &[u8], files: &[BorrowedFd<'_>]) -> Result<(), Error> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(files));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let sent = rustix::net::sendmsg(socket, &[IoSlice::new(frame)], &mut ancillary, flags);
    match sent {
        Ok(sent) if sent == frame.len() => Ok(()),
        Ok(_) => Err(Error::Protocol("it does not read")),
        Err(errno) => Err(system("sending to a topic's socket")(errno)),
    }
}

/// Receives an answer and at most two files.
pub(crate) fn receive_answer(socket: &OwnedFd, deadline: Instant) -> Result<(Answer, Vec<OwnedFd>), Error> {
    let mut files = Vec::new();
    let mut frame = vec![0; HEADER_BYTES];
    receive_exactly(socket, &mut frame, &mut files, deadline)?;
    let mut start = [0; HEADER_BYTES];
    start.copy_from_slice(&frame);
    let (_, length) = header(start)?;
    frame.resize(HEADER_BYTES + length, 0);
    receive_exactly(socket, &mut frame[HEADER_BYTES..], &mut files, deadline)?;
    Ok((Answer::decode(&frame)?, files))
}

fn receive_exactly(
    socket: &OwnedFd,
    mut buffer: &mut [u8],
    files: &mut Vec<OwnedFd>,
    deadline: Instant,
) -> Result<(), Error> {
    while !buffer.is_empty() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut ancillary, flags);
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                files.extend(rights);
            }
        }
        if files.len() > 2 {
            return Err(Error::Protocol("it passed too many files"));
        }
        match received {
            Ok(message) if message.bytes == 0 => return Err(Error::Protocol("it closed the connection")),
            Ok(message) => buffer = &mut buffer[message.bytes..],
            Err(Errno::AGAIN) => {
                if !wait_readable(socket.as_fd(), Some(deadline))? {
                    return Err(Error::TimedOut);
                }
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(system("receiving from a topic's socket")(errno)),
        }
    }
    Ok(())
}

/// Waits until the socket is readable or its connection has ended. Returns false if the deadline passes first.
pub(crate) fn wait_readable(socket: BorrowedFd<'_>, deadline: Option<Instant>) -> Result<bool, Error> {
    loop {
        let mut fds = [PollFd::new(&socket, PollFlags::IN)];
        match poll(&mut fds, timespec(deadline).as_ref()) {
            Ok(0) if deadline.is_some_and(|deadline| Instant::now() < deadline) => {}
            Ok(count) => return Ok(count > 0),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(system("waiting for a topic's socket")(errno)),
        }
    }
}

/// The time until a deadline, at least zero.
pub(crate) fn timespec(deadline: Option<Instant>) -> Option<Timespec> {
    let left = deadline?.saturating_duration_since(Instant::now());
    let seconds = i64::try_from(left.as_secs()).unwrap_or(i64::MAX);
    Some(Timespec { tv_sec: seconds, tv_nsec: left.subsec_nanos().into() })
}

/// Sends a byte. Ignores a full buffer, whose contents wake the peer, and the end of the connection, which the owner of
/// the socket detects.
pub(crate) fn nudge(socket: BorrowedFd<'_>) {
    let _ = rustix::net::send(socket, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// Receives bytes sent by [`nudge`]. Returns their number, at most 256 per call, or `None` if the connection has ended.
pub(crate) fn take_nudges(socket: BorrowedFd<'_>) -> Option<usize> {
    let mut bytes = [0u8; 256];
    match rustix::net::recv(socket, &mut bytes, RecvFlags::DONTWAIT) {
        Ok((_, 0)) => None,
        Ok((_, count)) => Some(count),
        Err(Errno::AGAIN | Errno::INTR) => Some(0),
        Err(_) => None,
    }
}
