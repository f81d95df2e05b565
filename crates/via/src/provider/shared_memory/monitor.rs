//! The provider's thread: notices peers that end, takes their letters, and has the engine place data that nobody polls for.
//! Not on the data path; it sleeps until something happens.
//! Source: epoll(7), pidfd_open(2).

use super::letters::Letter;
use super::peer::Peer;
use crate::error::Error;
use crate::provider::Attention;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The token of the descriptor that wakes the thread to end.
const END: u64 = u64::MAX;
/// Letters of one peer that are taken before the others have their turn.
const LETTERS_A_TURN: usize = 32;

pub(super) struct Monitor {
    epoll: OwnedFd,
    event: OwnedFd,
    ending: AtomicBool,
    peers: Mutex<BTreeMap<u64, Weak<Peer>>>,
}

/// Keeps the thread running; it ends soon after this is dropped.
pub(super) struct MonitorHandle(Arc<Monitor>);

impl std::ops::Deref for MonitorHandle {
    type Target = Monitor;
    fn deref(&self) -> &Monitor {
        &self.0
    }
}

impl Drop for MonitorHandle {
    fn drop(&mut self) {
        self.0.ending.store(true, Ordering::Release);
        let one = 1u64.to_ne_bytes();
        // SAFETY: eight bytes of our own, to a descriptor of our own.
        unsafe { libc::write(self.0.event.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }
}

fn owned(fd: RawFd, what: &'static str) -> Result<OwnedFd, Error> {
    if fd < 0 {
        return Err(Error::last_system(what));
    }
    // SAFETY: the caller has just opened it, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

impl Monitor {
    pub(super) fn start(attention: Weak<dyn Attention>) -> Result<MonitorHandle, Error> {
        // SAFETY: numbers only.
        let epoll = owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }, "making an epoll descriptor")?;
        // SAFETY: numbers only.
        let event = owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) }, "making an event descriptor")?;
        let ending = AtomicBool::new(false);
        let monitor = Arc::new(Monitor { epoll, event, ending, peers: Mutex::default() });
        monitor.watch(monitor.event.as_raw_fd(), END, libc::EPOLLIN)?;
        let ours = monitor.clone();
        std::thread::Builder::new()
            .name("via-monitor".into())
            .spawn(move || ours.run(&attention))
            .map_err(|source| Error::system("starting the monitor thread", source))?;
        Ok(MonitorHandle(monitor))
    }

    fn peers(&self) -> MutexGuard<'_, BTreeMap<u64, Weak<Peer>>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch(&self, fd: RawFd, token: u64, events: i32) -> Result<(), Error> {
        let mut event = libc::epoll_event { events: events as u32, u64: token };
        // SAFETY: reads the structure given.
        if unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) } < 0 {
            return Err(Error::last_system("watching a peer"));
        }
        Ok(())
    }

    fn unwatch(&self, fd: RawFd) {
        // SAFETY: numbers only.
        unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()) };
    }

    pub(super) fn add(&self, peer: &Arc<Peer>) -> Result<(), Error> {
        let token = Arc::as_ptr(peer) as u64;
        self.peers().insert(token, Arc::downgrade(peer));
        let events = libc::EPOLLIN | libc::EPOLLRDHUP;
        let watched = self.watch(peer.contact.socket.as_raw_fd(), token, events).and_then(|()| {
            match &peer.contact.process.file {
                Some(file) => self.watch(file.as_raw_fd(), token, libc::EPOLLIN),
                None => Ok(()),
            }
        });
        if watched.is_err() {
            self.remove(peer);
        }
        watched
    }

    pub(super) fn remove(&self, peer: &Arc<Peer>) {
        self.unwatch(peer.contact.socket.as_raw_fd());
        if let Some(file) = &peer.contact.process.file {
            self.unwatch(file.as_raw_fd());
        }
        self.peers().remove(&(Arc::as_ptr(peer) as u64));
    }

    /// All connected peers.
    pub(super) fn each(&self, mut act: impl FnMut(&Peer)) {
        let peers: Vec<_> = self.peers().values().filter_map(Weak::upgrade).collect();
        peers.iter().for_each(|peer| act(peer));
    }

    fn run(&self, attention: &Weak<dyn Attention>) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 32];
        while !self.ending.load(Ordering::Acquire) {
            // SAFETY: the array is as long as said.
            let count = unsafe {
                libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), events.len() as i32, -1)
            };
            for event in &events[..usize::try_from(count).unwrap_or(0)] {
                let peer = self.peers().get(&{ event.u64 }).and_then(Weak::upgrade);
                if let Some(peer) = peer {
                    self.attend(&peer, attention);
                }
            }
        }
    }

    /// Something happened to a peer: takes some of its letters, and sees whether it is still there. What is left of the letters brings the
    /// thread back here.
    fn attend(&self, peer: &Arc<Peer>, attention: &Weak<dyn Attention>) {
        let mut look = false;
        let mut gone = false;
        for _ in 0..LETTERS_A_TURN {
            match peer.contact.socket.receive() {
                Ok((Letter::Nudge, _)) => look = true,
                Ok((letter, file)) => gone = peer.hear(letter, file).is_err(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => gone = true,
            }
            if gone {
                break;
            }
        }
        // For a parked VI letters mean news, whatever they say: the one that says so may have had no room behind them.
        look |= peer.is_parked();
        // Whoever else may still send letters in its name.
        gone |= peer.contact.process.has_ended();
        if gone {
            peer.lost.store(true, Ordering::Release);
            self.remove(peer);
        }
        if (gone || look)
            && let Some(attention) = attention.upgrade()
        {
            attention.look(peer.vi);
        }
        if gone {
            peer.wake_ourselves();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::closing::Channel;
    use super::super::contact::{Contact, Half};
    use super::super::ledger::Ledger;
    use super::super::letters::send;
    use super::super::mapping::create_half;
    use super::super::peer::Meeting;
    use super::super::settings::{Allow, Settings};
    use super::*;
    use crate::attributes::ViAttributes;
    use crate::protection::ProtectionTag;

    struct Nobody;

    impl Attention for Nobody {
        fn look(&self, _vi: u32) {}
    }

    #[test]
    fn a_turn_with_a_peer_ends_while_it_goes_on_sending_letters() {
        let mut ends: [RawFd; 2] = [0; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: writes two descriptors to the array.
        assert_eq!(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) }, 0);
        let [ours, theirs] = ends.map(|fd| owned(fd, "a pair").unwrap());
        let settings = Settings::default();
        let ledger = Ledger::new(settings.limits);
        let contact = Contact::new(Channel::new(ours), &settings, &Allow::Everyone, &ledger);
        let contact = Arc::new(contact.map_err(|denied| denied.reason).unwrap());
        let half = || Half::new(create_half().unwrap().1, contact.charge_half().unwrap());
        let halves = (half(), Some(half()));
        let attributes = ViAttributes::new(ProtectionTag::default());
        let peer = Arc::new(Peer::new(Meeting {
            vi: 0,
            tag: 0,
            attributes,
            contact,
            ours: halves.0,
            theirs: halves.1,
        }));
        let sent = (0..LETTERS_A_TURN + 5)
            .filter(|_| send(theirs.as_raw_fd(), &Letter::Nudge, None).is_ok())
            .count();
        assert_eq!(sent, LETTERS_A_TURN + 5);
        let attention: Arc<dyn Attention> = Arc::new(Nobody);
        let monitor = Monitor::start(Arc::downgrade(&attention)).unwrap();
        monitor.attend(&peer, &Arc::downgrade(&attention));
        assert!(!peer.lost.load(Ordering::Acquire));
        let left = std::iter::from_fn(|| peer.contact.socket.receive().ok()).count();
        assert_eq!(left, 5);
    }
}
