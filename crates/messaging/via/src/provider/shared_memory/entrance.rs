//! Where peers come in: every socket that connects is heard as its letters come, all at a time, and who has said everything is a request.
//! Not waiting for anybody: who is silent holds up nobody, and goes after a while.
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

/// How long a peer may take until it has said what it wants.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);
/// How many sockets may be about to say what they want, in all and of one user.
const MOST_SILENT: usize = 1024;
const MOST_SILENT_OF_USER: usize = 64;
/// How many requests of one user may wait for the program.
const MOST_READY_OF_USER: usize = 64;
/// Sockets taken in at one look.
const MOST_AT_A_LOOK: usize = 64;
/// Letters taken at one look, from all and from one. A letter costs some ten system calls, and whoever looks may have others to serve.
const LETTERS_A_LOOK: usize = 128;
const LETTERS_OF_ONE: usize = 16;
/// Of those who are let go, as many as that cost at most: what they have shown is unmapped, and what they have said is thrown away.
const LETTERS_OF_ONE_WHO_GOES: usize = 16;
/// How long to leave new sockets where they are when there is no descriptor for them.
const PAUSE: Duration = Duration::from_millis(10);

/// A socket whose owner has not said everything yet.
struct Entrant {
    contact: Arc<Contact>,
    until: Instant,
    asked: Option<Asked>,
    letters: usize,
}

/// What the first letter says.
pub(super) struct Asked {
    pub(super) remote: Address,
    pub(super) attributes: ViAttributes,
    pub(super) barrier: bool,
    /// The peer's half of what both will share, and the room for ours.
    pub(super) theirs: Half,
    pub(super) room: Charge,
}

/// Somebody who wants to be connected, and has said everything.
pub(super) struct Wish {
    pub(super) contact: Arc<Contact>,
    pub(super) asked: Asked,
}

#[derive(Default)]
struct Room {
    /// In the order in which they came.
    entrants: VecDeque<Entrant>,
    ready: VecDeque<Wish>,
    /// There was no descriptor for a new socket: until when none is taken in.
    full_until: Option<Instant>,
}

/// A name that peers come to.
pub(super) struct Listener {
    socket: OwnedFd,
    place: Place,
    settings: Arc<Settings>,
    ledger: Arc<Ledger>,
    room: Mutex<Room>,
}

enum Step {
    /// It has not said everything.
    More,
    /// Nor has everything been heard that it has said.
    Busy,
    /// It has.
    Whole,
    /// It said something else, or went.
    Gone,
    /// It cannot be let in.
    Refused(String),
}

impl Entrant {
    /// Takes the letters that have come, as far as the look's allowance goes.
    fn step(&mut self, allowance: &mut usize) -> Step {
        let mut left = LETTERS_OF_ONE;
        loop {
            // Everything that may be said at the beginning, and no more.
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

    /// The next who has said everything; waits for one until the deadline.
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
            // Though more has come: somebody may always have something to say. The next call hears it.
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return None;
            }
        }
    }

    /// Hears those who are there, from where the last look ended, and throws out who has been silent for too long.
    fn look(&self, room: &mut Room, allowance: &mut usize) {
        let now = Instant::now();
        for _ in 0..room.entrants.len() {
            if *allowance == 0 {
                return;
            }
            let Some(mut entrant) = room.entrants.pop_front() else { break };
            // Whatever came is heard first, however long ago.
            match entrant.step(allowance) {
                Step::More if now >= entrant.until => {
                    *allowance = allowance.saturating_sub(LETTERS_OF_ONE_WHO_GOES);
                    entrant.refuse("nothing was said for too long", false);
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

    /// Takes new sockets in, and hears them.
    fn take_in(&self, room: &mut Room, allowance: &mut usize) {
        let now = Instant::now();
        if room.full_until.is_some_and(|until| now < until) {
            return;
        }
        room.full_until = None;
        for _ in 0..MOST_AT_A_LOOK {
            // What has come before is heard before others come in.
            if *allowance == 0 {
                return;
            }
            match self.next_socket() {
                Ok(socket) => self.enter(room, socket, allowance),
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                    io::ErrorKind::WouldBlock => return,
                    // No descriptor or no memory for it: it waits where it is, and so do we.
                    _ => return room.full_until = Some(now + PAUSE),
                },
            }
        }
    }

    fn next_socket(&self) -> io::Result<Channel> {
        let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let (no_address, no_length) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: no address is asked for.
        let fd = unsafe { libc::accept4(self.socket.as_raw_fd(), no_address, no_length, flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just opened, and nobody else has it.
        Ok(Channel::new(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// A socket has connected.
    fn enter(&self, room: &mut Room, socket: Channel, allowance: &mut usize) {
        let mut socket = socket;
        // Of a user who has as much as is allowed, the one goes that has been silent the longest.
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
                    entrant.refuse("others came before, and are still being heard", true);
                }
            }
            step => self.leave(room, entrant, step),
        }
    }

    /// Makes room: of the entrants that `which` says, the one that came first is heard once more and goes, unless there is more to hear.
    /// `false`: there is none.
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
                entrant.refuse("others came, and not everything had been said", true);
            }
            step => self.leave(room, entrant, step),
        }
        true
    }

    /// An entrant is one no longer.
    fn leave(&self, room: &mut Room, entrant: Entrant, step: Step) {
        let uid = entrant.contact.process.uid;
        match step {
            Step::Refused(reason) => entrant.refuse(&reason, false),
            Step::Whole => {
                if room.ready.iter().filter(|wish| wish.contact.process.uid == uid).count()
                    >= MOST_READY_OF_USER
                {
                    let reason = format!("{MOST_READY_OF_USER} requests of user {uid} wait already");
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
        // Nobody comes any more. Who has come is let go one by one, with whatever is on its way to us.
        // SAFETY: numbers only.
        unsafe { libc::shutdown(self.socket.as_raw_fd(), libc::SHUT_RDWR) };
        while self.next_socket().is_ok() {}
    }
}

/// Has the kernel make its table of this process's descriptors large enough for so many connections, now: when it grows later, under a
/// descriptor that a peer brings, that waits for all cores (expand_files in fs/file.c), and everybody waits for us.
fn make_room(socket: &OwnedFd, connections: u32) {
    /// Eight bytes each.
    const MOST: u32 = 1 << 16;
    let mut room = connections.saturating_mul(2).saturating_add(256).min(MOST) as i32;
    while room > 64 {
        // SAFETY: numbers only.
        let fd = unsafe { libc::fcntl(socket.as_raw_fd(), libc::F_DUPFD_CLOEXEC, room - 1) };
        if fd >= 0 {
            // SAFETY: just opened, and nobody else has it.
            return drop(unsafe { OwnedFd::from_raw_fd(fd) });
        }
        // More than may be open.
        room /= 2;
    }
}

/// Waits until one of `sockets` is readable. `false`: the deadline passed.
pub(super) fn readable(sockets: &[RawFd], deadline: Option<Instant>) -> bool {
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
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return false;
        }
        if count < 0 && io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            // More sockets than may be waited for at once, since the limit was lowered, or no memory: look, now and then.
            std::thread::sleep(PAUSE);
            return true;
        }
    }
}
