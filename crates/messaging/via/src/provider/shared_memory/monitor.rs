//! The provider's thread. It detects peers that exit, receives their control messages, and makes the engine store data
//! that no program polls for. It sleeps until one of these events occurs.
//!
//! Source: epoll(7), pidfd_open(2).

use super::control_message::ControlMessage;
use super::peer::Peer;
use crate::error::Error;
use crate::provider::{EndReason, Poller};
use longma_locks::IgnorePoison;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// The token of the event descriptor that ends the thread.
const END: u64 = u64::MAX;
/// The events of a peer's socket, which are delivered once.
const PEER_EVENTS: i32 = libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLONESHOT;
/// The number of messages received from one peer per turn.
const MESSAGES_PER_TURN: usize = 4;
/// The number of turns between checks for new events.
const TURNS_PER_CHECK: usize = 8;
/// The maximum number of events per check. It bounds the delay of new events while many peers send messages.
const MAX_EVENTS: usize = 512;

/// The result of a peer's turn.
#[derive(PartialEq, Eq)]
enum TurnResult {
    /// No more messages are pending.
    Done,
    /// More messages may be pending.
    More,
    /// The connection is lost.
    Gone(EndReason),
}

/// The connections of one process with pending messages.
#[derive(Default)]
struct ProcessQueue {
    /// Connections that have not had a turn since their event.
    fresh: VecDeque<Weak<Peer>>,
    behind: VecDeque<Weak<Peer>>,
    turns: usize,
}

impl ProcessQueue {
    /// Selects the next connection. Three of four calls prefer a connection that has had no turn yet, because its first
    /// turn may be all it needs.
    fn next(&mut self) -> Option<Weak<Peer>> {
        self.turns = self.turns.wrapping_add(1);
        let (first, second) = match self.turns % 4 {
            0 => (&mut self.behind, &mut self.fresh),
            _ => (&mut self.fresh, &mut self.behind),
        };
        first.pop_front().or_else(|| second.pop_front())
    }
}

/// Round-robin scheduling by process, independent of the number of connections of each process.
#[derive(Default)]
struct TurnScheduler {
    queues: BTreeMap<(u32, i32), ProcessQueue>,
    /// Each process once.
    order: VecDeque<(u32, i32)>,
}

impl TurnScheduler {
    fn of(&mut self, peer: &Peer) -> &mut ProcessQueue {
        let process = peer.peer_connection.process.key();
        let TurnScheduler { queues, order } = self;
        queues.entry(process).or_insert_with(|| {
            order.push_back(process);
            ProcessQueue::default()
        })
    }

    fn next(&mut self) -> Option<Weak<Peer>> {
        loop {
            let process = self.order.pop_front()?;
            match self.queues.get_mut(&process).and_then(ProcessQueue::next) {
                Some(peer) => {
                    self.order.push_back(process);
                    return Some(peer);
                }
                None => _ = self.queues.remove(&process),
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}

pub(super) struct Monitor {
    epoll: OwnedFd,
    event: OwnedFd,
    ending: AtomicBool,
    peers: Mutex<BTreeMap<u64, Weak<Peer>>>,
}

/// Keeps the thread running. The thread ends soon after this is dropped.
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
        // SAFETY: writes eight bytes of a local array to a descriptor owned by `self`.
        unsafe { libc::write(self.0.event.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }
}

/// The end reason for an error of a peer's socket: it was closed, or a message is malformed.
fn reason_of(error: &io::Error) -> EndReason {
    match error.kind() {
        io::ErrorKind::InvalidData => EndReason::ProtocolViolation,
        _ => EndReason::PeerExited,
    }
}

fn owned(fd: RawFd, what: &'static str) -> Result<OwnedFd, Error> {
    if fd < 0 {
        return Err(Error::last_system(what));
    }
    // SAFETY: the caller has just opened the descriptor, which has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

impl Monitor {
    pub(super) fn start(poller: Weak<dyn Poller>) -> Result<MonitorHandle, Error> {
        // SAFETY: the call takes only integers.
        let epoll =
            owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }, "creating an epoll descriptor")?;
        // SAFETY: the call takes only integers.
        let event = owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) }, "creating an event descriptor")?;
        let ending = AtomicBool::new(false);
        let monitor = Arc::new(Monitor { epoll, event, ending, peers: Mutex::default() });
        monitor.watch(monitor.event.as_raw_fd(), END, libc::EPOLLIN)?;
        let ours = monitor.clone();
        std::thread::Builder::new()
            .name("via-monitor".into())
            .spawn(move || ours.run(&poller))
            .map_err(|source| Error::system("starting the monitor thread", source))?;
        Ok(MonitorHandle(monitor))
    }

    fn peers(&self) -> MutexGuard<'_, BTreeMap<u64, Weak<Peer>>> {
        self.peers.lock().ignore_poison()
    }

    fn watch(&self, fd: RawFd, token: u64, events: i32) -> Result<(), Error> {
        let mut event = libc::epoll_event { events: events as u32, u64: token };
        // SAFETY: reads the given structure.
        if unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) } < 0 {
            return Err(Error::last_system("watching a peer"));
        }
        Ok(())
    }

    /// Rearms the event of a peer's socket.
    fn watch_again(&self, peer: &Arc<Peer>) {
        let mut event = libc::epoll_event { events: PEER_EVENTS as u32, u64: Arc::as_ptr(peer) as u64 };
        let (epoll, socket) = (self.epoll.as_raw_fd(), peer.peer_connection.socket.as_raw_fd());
        // SAFETY: reads the given structure. A socket that has been removed is not added again.
        unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_MOD, socket, &raw mut event) };
    }

    fn unwatch(&self, fd: RawFd) {
        // SAFETY: the call takes only integers.
        unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()) };
    }

    pub(super) fn add(&self, peer: &Arc<Peer>) -> Result<(), Error> {
        let token = Arc::as_ptr(peer) as u64;
        self.peers().insert(token, Arc::downgrade(peer));
        let watched =
            self.watch(peer.peer_connection.socket.as_raw_fd(), token, PEER_EVENTS).and_then(|()| {
                match &peer.peer_connection.process.file {
                    // Request one event only, because every turn checks the process.
                    Some(file) => self.watch(file.as_raw_fd(), token, libc::EPOLLIN | libc::EPOLLONESHOT),
                    None => Ok(()),
                }
            });
        if watched.is_err() {
            self.remove(peer);
        }
        watched
    }

    pub(super) fn remove(&self, peer: &Arc<Peer>) {
        self.unwatch(peer.peer_connection.socket.as_raw_fd());
        if let Some(file) = &peer.peer_connection.process.file {
            self.unwatch(file.as_raw_fd());
        }
        self.peers().remove(&(Arc::as_ptr(peer) as u64));
    }

    /// Calls `act` for every connected peer.
    pub(super) fn each(&self, mut act: impl FnMut(&Peer)) {
        let peers: Vec<_> = self.peers().values().filter_map(Weak::upgrade).collect();
        peers.iter().for_each(|peer| act(peer));
    }

    fn run(&self, poller: &Weak<dyn Poller>) {
        let mut turns = TurnScheduler::default();
        while !self.ending.load(Ordering::Acquire) {
            self.collect_events(&mut turns);
            for _ in 0..TURNS_PER_CHECK {
                let Some(peer) = turns.next() else { break };
                let Some(peer) = peer.upgrade() else { continue };
                match self.serve_peer(&peer, poller) {
                    TurnResult::Done => self.watch_again(&peer),
                    TurnResult::More => turns.of(&peer).behind.push_back(Arc::downgrade(&peer)),
                    TurnResult::Gone(_) => {}
                }
            }
        }
    }

    /// Collects the peers with events. Waits for an event if no peer has a pending turn. Each event is delivered once,
    /// until it is rearmed.
    fn collect_events(&self, turns: &mut TurnScheduler) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; MAX_EVENTS];
        let wait = if turns.is_empty() { -1 } else { 0 };
        // SAFETY: the array has the given length.
        let count = unsafe {
            libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), events.len() as i32, wait)
        };
        for event in &events[..usize::try_from(count).unwrap_or(0)] {
            let peer = self.peers().get(&{ event.u64 }).and_then(Weak::upgrade);
            if let Some(peer) = peer {
                turns.of(&peer).fresh.push_back(Arc::downgrade(&peer));
            }
        }
    }

    /// Performs a turn: receives some messages of a peer and checks whether it still exists.
    fn serve_peer(&self, peer: &Arc<Peer>, poller: &Weak<dyn Poller>) -> TurnResult {
        let mut look = false;
        let mut after = TurnResult::More;
        for _ in 0..MESSAGES_PER_TURN {
            match peer.peer_connection.socket.receive() {
                Ok((ControlMessage::Nudge, _)) => look = true,
                Ok((message, file)) => {
                    if peer.handle_message(message, file).is_err() {
                        after = TurnResult::Gone(EndReason::ProtocolViolation);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => after = TurnResult::Done,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => after = TurnResult::Gone(reason_of(&error)),
            }
            if after != TurnResult::More {
                break;
            }
        }
        peer.retry_revocations();
        // For a parked VI any message means an event: the socket may have had no space for the wakeup message itself.
        look |= peer.is_parked();
        // The peer's process may have ended although another process still sends messages over the socket.
        if peer.peer_connection.process.has_ended() {
            after = TurnResult::Gone(EndReason::PeerExited);
        }
        let mut has_ended = false;
        if let TurnResult::Gone(reason) = after {
            has_ended = true;
            peer.lose(reason);
            self.remove(peer);
        }
        if (has_ended || look)
            && let Some(poller) = poller.upgrade()
        {
            poller.poll(peer.vi);
        }
        if has_ended {
            peer.wake_ourselves();
        }
        after
    }
}

#[cfg(test)]
mod tests {
    use super::super::control_message::{receive, send};
    use super::super::deferred_close::PeerSocket;
    use super::super::mapping::{SharedPages, create_half};
    use super::super::peer::PeerParts;
    use super::super::peer_connection::{Half, PeerConnection};
    use super::super::quota::Quotas;
    use super::super::settings::{Allow, Settings};
    use super::*;
    use crate::attributes::ViAttributes;
    use crate::protection::{MemoryHandle, ProtectionTag};
    use crate::provider::RegionInfo;

    struct NoPoller;

    impl Poller for NoPoller {
        fn poll(&self, _vi: u32) {}
    }

    /// A connection without a link: our end, and the socket of the other end.
    fn connection() -> (Arc<Peer>, OwnedFd) {
        let mut ends: [RawFd; 2] = [0; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: writes two descriptors to the array.
        assert_eq!(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) }, 0);
        let [ours, theirs] = ends.map(|fd| owned(fd, "a pair").unwrap());
        let settings = Settings::default();
        let quota = Quotas::new(settings.limits);
        let peer_connection = PeerConnection::new(PeerSocket::new(ours), &settings, &Allow::Everyone, &quota);
        let peer_connection = Arc::new(peer_connection.map_err(|denied| denied.reason).unwrap());
        let half = || Half::new(create_half().unwrap().1, peer_connection.charge_half().unwrap());
        let halves = (half(), Some(half()));
        let attributes = ViAttributes::new(ProtectionTag::default());
        let peer = Arc::new(Peer::new(PeerParts {
            vi: 0,
            tag: 0,
            attributes,
            peer_connection,
            ours: halves.0,
            theirs: halves.1,
        }));
        (peer, theirs)
    }

    #[test]
    fn a_turn_ends_even_if_the_peer_keeps_sending_messages() {
        let (peer, theirs) = connection();
        let sent = (0..MESSAGES_PER_TURN + 5)
            .filter(|_| send(theirs.as_raw_fd(), &ControlMessage::Nudge, None).is_ok())
            .count();
        assert_eq!(sent, MESSAGES_PER_TURN + 5);
        let poller: Arc<dyn Poller> = Arc::new(NoPoller);
        let monitor = Monitor::start(Arc::downgrade(&poller)).unwrap();
        assert!(monitor.serve_peer(&peer, &Arc::downgrade(&poller)) == TurnResult::More);
        assert!(peer.loss().is_none());
        let left = std::iter::from_fn(|| peer.peer_connection.socket.receive().ok()).count();
        assert_eq!(left, 5);
    }

    #[test]
    fn a_revocation_that_finds_the_socket_full_is_sent_later() {
        let (peer, theirs) = connection();
        let pages = SharedPages::new(4096).unwrap();
        pages.share(Some(true), false).unwrap();
        let region = RegionInfo {
            handle: MemoryHandle(7),
            address: 0x1000,
            length: 4096,
            tag: 0,
            rdma_write: true,
            rdma_read: true,
            memory: Some(Arc::new(pages)),
        };
        let messages = || -> Vec<ControlMessage> {
            std::iter::from_fn(|| receive(&theirs, None).ok()).map(|(message, _)| message).collect()
        };
        let is_revocation = |message: &ControlMessage| *message == ControlMessage::Revoke { handle: 7 };
        peer.offer(&region);
        assert!(matches!(messages()[..], [ControlMessage::Export(_)]));
        while send(peer.peer_connection.socket.as_raw_fd(), &ControlMessage::Nudge, None).is_ok() {}
        peer.revoke(7);
        assert!(!messages().iter().any(is_revocation));
        // The peer is alive: it sends a message.
        send(theirs.as_raw_fd(), &ControlMessage::Nudge, None).unwrap();
        let poller: Arc<dyn Poller> = Arc::new(NoPoller);
        let monitor = Monitor::start(Arc::downgrade(&poller)).unwrap();
        monitor.serve_peer(&peer, &Arc::downgrade(&poller));
        assert!(messages().iter().any(is_revocation));
        monitor.serve_peer(&peer, &Arc::downgrade(&poller));
        assert!(messages().is_empty());
    }
}
