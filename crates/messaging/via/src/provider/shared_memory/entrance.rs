//! Accepts connections. The control messages of all connecting sockets are received as they arrive, without waiting for
//! any single peer; a peer whose handshake is complete becomes a request. Silent peers are dropped after a timeout.
//!
//! Source: unix(7); accept(2).

use super::closing::{Channel, Foreign};
use super::contact::{Contact, Denied, Half, refuse};
use super::layout::EXPORTS;
use super::ledger::{Charge, Ledger};
use super::letters::{self, Letter};
use super::names::Place;
use super::process::user_behind;
use super::settings::Settings;
use crate::address::Address;
use crate::attributes::ViAttributes;
use crate::error::Error;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The time that a peer has to complete its handshake.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);
/// The maximum number of sockets in the handshake, in total and per user.
const MOST_SILENT: usize = 1024;
const MOST_SILENT_OF_USER: usize = 64;
/// The maximum number of complete requests of one user that wait for the program.
const MOST_READY_OF_USER: usize = 64;
/// The maximum number of sockets accepted per call.
const MOST_AT_A_LOOK: usize = 64;
/// The maximum number of control messages received per call, in total and from one peer. A message costs about ten
/// system calls, and the calling thread may have other peers to serve.
const LETTERS_A_LOOK: usize = 128;
const LETTERS_OF_ONE: usize = 16;
/// The allowance, in messages, charged for dropping a peer: its regions are unmapped and its messages discarded.
const LETTERS_OF_ONE_WHO_GOES: usize = 16;
/// The pause before accepting again after the process ran out of descriptors.
const PAUSE: Duration = Duration::from_millis(10);

/// A socket whose handshake is not complete.
struct Entrant {
    contact: Arc<Contact>,
    until: Instant,
    asked: Option<Asked>,
    letters: usize,
}

/// The contents of the first control message.
pub(super) struct Asked {
    pub(super) remote: Address,
    pub(super) attributes: ViAttributes,
    pub(super) barrier: bool,
    /// The peer's half, and the charge for mapping ours.
    pub(super) theirs: Half,
    pub(super) room: Charge,
}

/// A complete connection request.
pub(super) struct Wish {
    pub(super) contact: Arc<Contact>,
    pub(super) asked: Asked,
}

#[derive(Default)]
struct Room {
    /// In order of arrival.
    entrants: VecDeque<Entrant>,
    ready: VecDeque<Wish>,
    /// Until when no sockets are accepted, because the process ran out of descriptors.
    full_until: Option<Instant>,
}

/// A listening address.
pub(super) struct Listener {
    socket: OwnedFd,
    place: Place,
    settings: Arc<Settings>,
    ledger: Arc<Ledger>,
    room: Mutex<Room>,
}

enum Step {
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

impl Entrant {
    /// Receives the messages that have arrived, within the allowance.
    fn step(&mut self, allowance: &mut usize) -> Step {
        let mut left = LETTERS_OF_ONE;
        loop {
            // The limit is the maximum length of a valid handshake.
            if self.letters > EXPORTS + 2 {
                return Step::Gone;
            }
            if left == 0 || *allowance == 0 {
                return Step::Busy;
            }
            (left, *allowance) = (left - 1, *allowance - 1);
            match self.contact.socket.receive() {
                Ok((letter, file)) => {
                    self.letters += 1;
                    match self.hear(letter, file) {
                        Step::More => {}
                        step => return step,
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Step::More,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Step::Gone,
            }
        }
    }

    fn hear(&mut self, letter: Letter, file: Option<Foreign>) -> Step {
        let heard = match (letter, &self.asked) {
            (Letter::Hello { local, attributes, barrier }, None) => {
                let Some(file) = file else { return Step::Gone };
                let halves = self.contact.charge_half().and_then(|room| {
                    let charge = self.contact.charge_half()?;
                    Ok((self.contact.take_half(&file, charge)?, room))
                });
                match halves {
                    Ok((theirs, room)) => {
                        self.asked = Some(Asked { remote: local, attributes, barrier, theirs, room });
                        Ok(())
                    }
                    Err(reason) => return Step::Refused(reason),
                }
            }
            (Letter::Stranger { version }, None) => return Step::Refused(letters::not_understood(version)),
            (Letter::Show(showing), Some(_)) => self.contact.hear_show(showing, file),
            (Letter::Lend { showing, file }, Some(_)) => self.contact.hear_lend(showing, file),
            (Letter::Shown, Some(_)) => return Step::Whole,
            _ => return Step::Gone,
        };
        if heard.is_ok() { Step::More } else { Step::Gone }
    }

    fn refuse(self, reason: &str, again: bool) {
        self.contact.account.note(false, reason);
        refuse(&self.contact.socket, reason, again);
    }
}

impl Listener {
    pub(super) fn bind(
        discriminator: &[u8],
        settings: &Arc<Settings>,
        ledger: &Arc<Ledger>,
    ) -> Result<Listener, Error> {
        let place = Place::own(settings, discriminator)?;
        let socket = place.listen(discriminator)?;
        make_room(&socket, settings.limits.nic_connections);
        let (settings, ledger) = (settings.clone(), ledger.clone());
        Ok(Listener { socket, place, settings, ledger, room: Mutex::default() })
    }

    fn room(&self) -> MutexGuard<'_, Room> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the next complete request, waiting until the deadline if there is none.
    pub(super) fn wait(&self, deadline: Option<Instant>) -> Option<Wish> {
        loop {
            let (sockets, next) = {
                let mut room = self.room();
                let mut allowance = LETTERS_A_LOOK;
                self.look(&mut room, &mut allowance);
                self.take_in(&mut room, &mut allowance);
                if let Some(wish) = room.ready.pop_front() {
                    return Some(wish);
                }
                let mut sockets: Vec<RawFd> =
                    room.entrants.iter().map(|entrant| entrant.contact.socket.as_raw_fd()).collect();
                if room.full_until.is_none() {
                    sockets.push(self.socket.as_raw_fd());
                }
                let expiry = room.entrants.iter().map(|entrant| entrant.until).min();
                (sockets, [expiry, room.full_until].into_iter().flatten().min())
            };
            let until = [deadline, next].into_iter().flatten().min();
            readable(&sockets, until);
            // Stop although there may be more to receive, because peers could send without end. The next call
            // continues.
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return None;
            }
        }
    }

    /// Receives from the sockets in the handshake, starting where the last call ended, and drops those that were silent
    /// too long.
    fn look(&self, room: &mut Room, allowance: &mut usize) {
        let now = Instant::now();
        for _ in 0..room.entrants.len() {
            if *allowance == 0 {
                return;
            }
            let Some(mut entrant) = room.entrants.pop_front() else { break };
            // Messages that have arrived are received before the timeout is checked.
            match entrant.step(allowance) {
                Step::More if now >= entrant.until => {
                    *allowance = allowance.saturating_sub(LETTERS_OF_ONE_WHO_GOES);
                    entrant.refuse("the handshake timed out", false);
                }
                Step::More | Step::Busy => room.entrants.push_back(entrant),
                step => {
                    if matches!(step, Step::Gone) {
                        *allowance = allowance.saturating_sub(LETTERS_OF_ONE_WHO_GOES);
                    }
                    self.leave(room, entrant, step);
                }
            }
        }
    }

    /// Accepts new sockets and receives their messages.
    fn take_in(&self, room: &mut Room, allowance: &mut usize) {
        let now = Instant::now();
        if room.full_until.is_some_and(|until| now < until) {
            return;
        }
        room.full_until = None;
        for _ in 0..MOST_AT_A_LOOK {
            // Receive from the existing sockets before accepting more.
            if *allowance == 0 {
                return;
            }
            match self.next_socket() {
                Ok(socket) => self.enter(room, socket, allowance),
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                    io::ErrorKind::WouldBlock => return,
                    // Out of descriptors or memory: leave the socket in the backlog for now.
                    _ => return room.full_until = Some(now + PAUSE),
                },
            }
        }
    }

    fn next_socket(&self) -> io::Result<Channel> {
        let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let (no_address, no_length) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: no peer address is requested.
        let fd = unsafe { libc::accept4(self.socket.as_raw_fd(), no_address, no_length, flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just opened and has no other owner.
        Ok(Channel::new(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Handles a newly accepted socket.
    fn enter(&self, room: &mut Room, socket: Channel, allowance: &mut usize) {
        let mut socket = socket;
        // If the user has reached a limit, drop the user's socket that has been silent the longest.
        let contact = loop {
            match Contact::new(socket, &self.settings, &self.settings.clients, &self.ledger) {
                Ok(contact) => break Arc::new(contact),
                Err(Denied { socket: refused, reason, again }) => {
                    let uid = user_behind(&refused);
                    let of_user = |entrant: &Entrant| entrant.contact.process.uid == uid;
                    if again || !self.evict(room, of_user, allowance) {
                        self.ledger.note(uid, false, &reason);
                        return refuse(&refused, &reason, again);
                    }
                    socket = refused;
                }
            }
        };
        let until = Instant::now() + PATIENCE;
        let mut entrant = Entrant { contact, until, asked: None, letters: 0 };
        match entrant.step(allowance) {
            Step::More | Step::Busy => {
                let uid = entrant.contact.process.uid;
                let of_user = |other: &Entrant| other.contact.process.uid == uid;
                let has_room =
                    if room.entrants.iter().filter(|other| of_user(other)).count() >= MOST_SILENT_OF_USER {
                        self.evict(room, of_user, allowance)
                    } else {
                        room.entrants.len() < MOST_SILENT || self.evict(room, |_| true, allowance)
                    };
                if has_room {
                    room.entrants.push_back(entrant);
                } else {
                    entrant.refuse("too many handshakes are in progress", true);
                }
            }
            step => self.leave(room, entrant, step),
        }
    }

    /// Drops the oldest of the sockets selected by `which`, after receiving its pending messages once more. A socket
    /// that still has more to receive is kept. Returns `false` if none is selected.
    fn evict(&self, room: &mut Room, which: impl Fn(&Entrant) -> bool, allowance: &mut usize) -> bool {
        let oldest = (0..room.entrants.len())
            .filter(|index| which(&room.entrants[*index]))
            .min_by_key(|index| room.entrants[*index].until);
        let Some(mut entrant) = oldest.and_then(|index| room.entrants.remove(index)) else { return false };
        match entrant.step(allowance) {
            Step::Busy => {
                room.entrants.push_back(entrant);
                return false;
            }
            Step::More => {
                *allowance = allowance.saturating_sub(LETTERS_OF_ONE_WHO_GOES);
                entrant.refuse("the handshake was incomplete, and its place was needed for another one", true);
            }
            step => self.leave(room, entrant, step),
        }
        true
    }

    /// Ends the handshake of a socket.
    fn leave(&self, room: &mut Room, entrant: Entrant, step: Step) {
        let uid = entrant.contact.process.uid;
        match step {
            Step::Refused(reason) => entrant.refuse(&reason, false),
            Step::Whole => {
                if room.ready.iter().filter(|wish| wish.contact.process.uid == uid).count()
                    >= MOST_READY_OF_USER
                {
                    let reason = format!("{MOST_READY_OF_USER} requests of user {uid} are already waiting");
                    return refuse(&entrant.contact.socket, &reason, true);
                }
                if let Entrant { contact, asked: Some(asked), .. } = entrant {
                    room.ready.push_back(Wish { contact, asked });
                }
            }
            Step::More | Step::Busy | Step::Gone => {}
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.place.remove();
        // Accept no more connections, and drop pending ones individually, including the descriptors in their messages.
        // SAFETY: the call takes only integers.
        unsafe { libc::shutdown(self.socket.as_raw_fd(), libc::SHUT_RDWR) };
        while self.next_socket().is_ok() {}
    }
}

/// Makes the kernel enlarge this process's descriptor table for the given number of connections now. If the table had
/// to grow when a peer's descriptor arrives, the call would wait for all cores (expand_files in fs/file.c) and delay
/// all other peers.
fn make_room(socket: &OwnedFd, connections: u32) {
    /// The table takes eight bytes per descriptor.
    const MOST: u32 = 1 << 16;
    let mut room = connections.saturating_mul(2).saturating_add(256).min(MOST) as i32;
    while room > 64 {
        // SAFETY: the call takes only integers.
        let fd = unsafe { libc::fcntl(socket.as_raw_fd(), libc::F_DUPFD_CLOEXEC, room - 1) };
        if fd >= 0 {
            // SAFETY: the descriptor was just opened and has no other owner.
            return drop(unsafe { OwnedFd::from_raw_fd(fd) });
        }
        // The number exceeds the limit on open files.
        room /= 2;
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
