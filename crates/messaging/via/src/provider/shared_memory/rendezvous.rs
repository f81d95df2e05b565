//! How two processes agree on a connection: asking, answering, and showing each other their regions.
//! Not trusting: until a letter is parsed and a half is checked, a connection is only a socket with a time limit.
//! Source: unix(7).

use super::SharedMemory;
use super::barrier;
use super::closing::{Channel, Foreign};
use super::contact::{Contact, Half};
use super::entrance::{Asked, Listener, PATIENCE, Wish, readable};
use super::layout::EXPORTS;
use super::letters::{Letter, send};
use super::link::SharedLink;
use super::mapping;
use super::names::{Place, socket};
use super::peer::{Meeting, Peer};
use crate::address::{Address, Credentials};
use crate::attributes::ViAttributes;
use crate::error::Error;
use crate::provider::{Ask, Established, Incoming, Link};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long to wait before asking again where there is no room at the moment.
const PAUSE: Duration = Duration::from_millis(2);
/// The most letters that a server may send while it answers: its regions, what became of ours, and a few more.
const MOST_LETTERS: usize = 2 * EXPORTS + 8;

/// A peer that asks.
pub(super) struct SharedIncoming {
    nic: Arc<SharedMemory>,
    wish: Wish,
}

pub(super) fn wait(
    nic: &Arc<SharedMemory>,
    listener: &Listener,
    deadline: Option<Instant>,
) -> Result<Box<dyn Incoming>, Error> {
    let wish = listener.wait(deadline).ok_or(Error::Timeout)?;
    Ok(Box::new(SharedIncoming { nic: nic.clone(), wish }))
}

fn show_regions(nic: &SharedMemory, peer: &Peer) -> io::Result<()> {
    nic.regions().values().for_each(|region| peer.show(region));
    send(peer.contact.socket.as_raw_fd(), &Letter::Shown, None)
}

/// What it means that a letter could not be sent. Where that is not the peer's doing, it is told why.
fn not_said(error: io::Error, tell: impl FnOnce(&str)) -> Error {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, WouldBlock};
    if [BrokenPipe, ConnectionReset, WouldBlock].contains(&error.kind()) {
        return Error::NotReachable("the peer no longer waits for the answer".into());
    }
    tell(&error.to_string());
    Error::system("answering the peer", error)
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

impl Incoming for SharedIncoming {
    fn remote(&self) -> &Address {
        &self.wish.asked.remote
    }

    fn remote_attributes(&self) -> &ViAttributes {
        &self.wish.asked.attributes
    }

    fn credentials(&self) -> Option<Credentials> {
        Some(self.wish.contact.process.credentials())
    }

    fn accept(self: Box<Self>, vi: u32, attributes: &ViAttributes, tag: u32) -> Result<Box<dyn Link>, Error> {
        let SharedIncoming { nic, wish: Wish { contact, asked: Asked { barrier, theirs, room, .. } } } =
            *self;
        let (file, mapping) = mapping::create_half()
            .inspect_err(|error| super::contact::refuse(&contact.socket, &error.to_string(), true))?;
        let ours = Half::new(mapping, room);
        let peer = Arc::new(Peer::new(Meeting {
            vi,
            tag,
            attributes: *attributes,
            contact,
            ours,
            theirs: Some(theirs),
        }));
        // Watched before it is told, so that what cannot be watched is not connected.
        let link = join(&nic, peer.clone(), attributes, barrier)
            .inspect_err(|error| super::contact::refuse(&peer.contact.socket, &error.to_string(), true))?;
        let answer = Letter::Accept { attributes: *attributes, barrier: barrier::is_available() };
        let socket = &peer.contact.socket;
        if let Err(error) = send(socket.as_raw_fd(), &answer, Some(file.as_raw_fd())) {
            return Err(not_said(error, |why| super::contact::refuse(socket, why, true)));
        }
        show_regions(&nic, &peer).map_err(|error| not_said(error, |_| ()))?;
        Ok(Box::new(link))
    }

    fn reject(self: Box<Self>) {
        super::contact::refuse(&self.wish.contact.socket, "", false);
    }
}

/// Connects a socket to whoever listens at `remote`.
pub(super) fn reach(place: &Place, remote: &Address, deadline: Option<Instant>) -> Result<OwnedFd, Error> {
    loop {
        let socket = socket()?;
        let Err(error) = place.connect(socket.as_raw_fd()) else { return Ok(socket) };
        match error.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => {
                return Err(Error::NoMatch(remote.to_string()));
            }
            // Its queue is full: a moment's patience.
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

/// What the answer to a question is, as far as it is one.
enum Answer {
    /// With the peer's half, if it has sent one.
    Accepted {
        attributes: ViAttributes,
        barrier: bool,
        file: Option<Foreign>,
    },
    Refused {
        reason: String,
        again: bool,
    },
}

/// The other end's letters while it answers: so many at most, and until a time.
struct Hearing<'a> {
    contact: &'a Contact,
    deadline: Option<Instant>,
    left: usize,
}

impl Hearing<'_> {
    fn next(&mut self) -> Result<(Letter, Option<Foreign>), Error> {
        self.left = self.left.checked_sub(1).ok_or_else(|| broken("the peer does not come to an end"))?;
        // Who closes a socket with letters unread leaves an error before its own last letter.
        let mut was_reset = false;
        loop {
            match self.contact.socket.receive() {
                Ok(received) => return Ok(received),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if !readable(&[self.contact.socket.as_raw_fd()], self.deadline) {
                        return Err(Error::Timeout);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset && !was_reset => {
                    was_reset = true
                }
                Err(error) => return Err(Error::system("hearing from the peer", error)),
            }
        }
    }

    /// Whether the other end agrees.
    fn answer(&mut self, peer: &Peer) -> Result<Answer, Error> {
        loop {
            match self.next() {
                Ok((Letter::Accept { attributes, barrier }, file)) => {
                    return Ok(Answer::Accepted { attributes, barrier, file });
                }
                Ok((Letter::Reject { reason, again }, _)) => return Ok(Answer::Refused { reason, again }),
                // What it says of regions may come before.
                Ok((letter, file)) => hear(peer, letter, file)?,
                // A peer that closes without an answer refuses as well.
                Err(Error::System { source, .. }) if source.kind() != io::ErrorKind::InvalidData => {
                    return Ok(Answer::Refused { reason: String::new(), again: false });
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Learns what the other end shows at the beginning.
    fn regions(&mut self, peer: &Peer) -> Result<(), Error> {
        loop {
            match self.next()? {
                (Letter::Shown, _) => return Ok(()),
                (letter, file) => hear(peer, letter, file)?,
            }
        }
    }
}

fn broken(text: &str) -> Error {
    Error::system("connecting", io::Error::new(io::ErrorKind::InvalidData, text))
}

fn hear(peer: &Peer, letter: Letter, file: Option<Foreign>) -> Result<(), Error> {
    let text = format!("the peer sent {letter:?} out of turn");
    peer.hear(letter, file).map_err(|_| broken(&text))
}

pub(super) fn request(
    nic: &Arc<SharedMemory>,
    ask: &Ask<'_>,
    deadline: Option<Instant>,
) -> Result<Established, Error> {
    let place = Place::others(nic.settings(), &ask.remote.discriminator)?;
    loop {
        match request_once(nic, ask, &place, deadline)? {
            Ok(established) => return Ok(established),
            Err((_, true)) => pause(deadline)?,
            Err((reason, false)) if reason.is_empty() => return Err(Error::Rejected),
            Err((reason, false)) => return Err(Error::Refused(reason)),
        }
    }
}

/// Asks once. The inner error is why the other end refused, and whether to ask again.
fn request_once(
    nic: &Arc<SharedMemory>,
    ask: &Ask<'_>,
    place: &Place,
    deadline: Option<Instant>,
) -> Result<Result<Established, (String, bool)>, Error> {
    let socket = Channel::new(reach(place, ask.remote, deadline)?);
    let contact =
        Contact::new(socket, nic.settings(), &nic.settings().servers, nic.ledger()).map_err(|denied| {
            Error::Refused(format!("by this side: {} is served by: {}", ask.remote, denied.reason))
        })?;
    let contact = Arc::new(contact);
    let [charge, their_charge] = [(); 2].map(|()| contact.charge_half().map_err(Error::Resource));
    let (charge, their_charge) = (charge?, their_charge?);
    let (file, mapping) = mapping::create_half()?;
    let ours = Half::new(mapping, charge);
    let hello = Letter::Hello {
        local: ask.local.clone(),
        attributes: *ask.attributes,
        barrier: barrier::is_available(),
    };
    match send(contact.socket.as_raw_fd(), &hello, Some(file.as_raw_fd())) {
        // Too many descriptors of this user's are on their way.
        Err(error) if error.raw_os_error() == Some(libc::ETOOMANYREFS) => {
            return Err(Error::system("asking for a connection", error));
        }
        // Should it fail otherwise, an answer may be there nevertheless.
        _ => drop(file),
    }
    let attributes = *ask.attributes;
    let meeting =
        Meeting { vi: ask.vi, tag: ask.tag, attributes, contact: contact.clone(), ours, theirs: None };
    let mut peer = Peer::new(meeting);
    let _ = show_regions(nic, &peer);
    let mut hearing = Hearing { contact: &contact, deadline, left: MOST_LETTERS };
    let (remote_attributes, barrier, file) = match hearing.answer(&peer)? {
        Answer::Accepted { attributes, barrier, file } => (attributes, barrier, file),
        Answer::Refused { reason, again } => return Ok(Err((reason, again))),
    };
    let file = file.ok_or_else(|| broken("the peer agreed, and sent no half of what both share"))?;
    peer.meet(contact.take_half(&file, their_charge).map_err(|why| broken(&why))?);
    drop(file);
    hearing.deadline = Some(Instant::now() + PATIENCE);
    hearing.regions(&peer)?;
    let link = Box::new(join(nic, Arc::new(peer), ask.attributes, barrier)?);
    Ok(Ok(Established { link, remote_attributes }))
}
