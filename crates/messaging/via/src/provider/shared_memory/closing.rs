//! Descriptors that came from a peer: closed at once if they are memory files with little to free, and otherwise by a thread of its
//! user's own, which unmaps what is much too. And the sockets that they come over, which must not be closed with such descriptors on
//! their way.
//! Not for our own files.
//! Source: close(2); fuse_flush in fs/fuse/file.c: closing a file of a FUSE file system waits for the answer of its server, which may be
//! the peer, and cannot be interrupted; socket(7), SO_LINGER; unix(7), SCM_RIGHTS.

use super::ledger::{Account, Unclosed};
use super::letters::{Letter, Unread, receive, take_unread};
use super::mapping::is_small;
use super::process::user_behind;
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Bound;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::Duration;

/// A descriptor that a peer has given us. While it waits to be closed it is one of the connections of the peer's user, so that who
/// hands over what cannot be closed soon has no more connections, and no more descriptors are taken from him.
pub(super) struct Foreign {
    file: ManuallyDrop<OwnedFd>,
    account: Option<Arc<Account>>,
    /// A mapping here holds the file too: closing this is not the last.
    is_mapped: Cell<bool>,
}

impl Foreign {
    pub(super) fn new(file: OwnedFd, account: Option<&Arc<Account>>) -> Foreign {
        Foreign { file: ManuallyDrop::new(file), account: account.cloned(), is_mapped: Cell::new(false) }
    }

    /// The seals, if it is a memory file.
    pub(super) fn seals(&self) -> Option<i32> {
        // SAFETY: numbers only. Answered without asking the file's file system.
        let seals = unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_GET_SEALS) };
        (seals >= 0).then_some(seals)
    }

    /// It is mapped here, for longer than this is there.
    pub(super) fn note_mapped(&self) {
        self.is_mapped.set(true);
    }
}

impl AsFd for Foreign {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        // Who closes a memory file last frees its pages: a few at once, many elsewhere.
        let is_quick = self.is_mapped.get() || self.seals().is_some() && is_small(self.file.as_fd());
        // SAFETY: taken once, here.
        let file = unsafe { ManuallyDrop::take(&mut self.file) };
        if !is_quick {
            let uid = self.account.as_ref().map_or(u32::MAX, |account| account.uid);
            close_elsewhere(file, uid, self.account.take());
        }
    }
}

/// The most letters that are taken from a socket before it is closed; one with more is closed elsewhere.
const MOST_UNREAD: usize = 64;

/// A socket to a peer. Closing one closes what is on its way in letters that nobody has read, in the thread that closes it; a socket with
/// such letters is therefore closed elsewhere, as the one descriptor that it is: taken out, they could be thousands.
pub(super) struct Channel {
    socket: ManuallyDrop<OwnedFd>,
    account: Option<Arc<Account>>,
    /// The process that has it: what a child does to its copy (fork(2)), it does to the parent's.
    home: u32,
}

impl Channel {
    pub(super) fn new(socket: OwnedFd) -> Channel {
        Channel { socket: ManuallyDrop::new(socket), account: None, home: std::process::id() }
    }

    /// From now on what comes over it is on that account.
    pub(super) fn with_account(mut self, account: &Arc<Account>) -> Channel {
        self.account = Some(account.clone());
        self
    }

    /// The next letter, and the file that came with it.
    pub(super) fn receive(&self) -> io::Result<(Letter, Option<Foreign>)> {
        receive(&*self.socket, self.account.as_ref())
    }
}

impl AsRawFd for Channel {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if std::process::id() != self.home {
            return;
        }
        // Nothing comes any more, and the peer is told.
        // SAFETY: numbers only.
        unsafe { libc::shutdown(self.socket.as_raw_fd(), libc::SHUT_RDWR) };
        let unread = take_unread(self.socket.as_raw_fd(), MOST_UNREAD);
        let uid = user_behind(self);
        // SAFETY: taken once, here.
        let socket = unsafe { ManuallyDrop::take(&mut self.socket) };
        if let Unread::Files = unread {
            close_elsewhere(socket, uid, self.account.take());
        }
    }
}

/// What waits to be closed or unmapped, with what is counted until then: to drop it does both.
type Waiting = Box<dyn Send>;

/// The most threads that close at a time. Of more users at once some wait for others.
const MOST_THREADS: usize = 128;
/// How long a thread with nothing to close stays for more.
const REST: Duration = Duration::from_millis(200);
/// It only closes.
const STACK_BYTES: usize = 64 << 10;

/// What one user has had us take, and who closes it.
#[derive(Default)]
struct OfUser {
    waiting: VecDeque<Waiting>,
    thread: Option<Thread>,
}

/// The users for whom something is being closed: each has a thread of its own, so that what one of them has made slow to close keeps no
/// other's open, and counted.
struct Closing {
    users: BTreeMap<u32, OfUser>,
    threads: usize,
    /// The process whose threads they are.
    home: u32,
}

static CLOSING: Mutex<Closing> = Mutex::new(Closing { users: BTreeMap::new(), threads: 0, home: 0 });

fn closing() -> MutexGuard<'static, Closing> {
    let mut closing = CLOSING.lock().unwrap_or_else(PoisonError::into_inner);
    let home = std::process::id();
    if std::mem::replace(&mut closing.home, home) != home {
        // A child (fork(2)) has none of its parent's threads. Its copies of what the parent closes stay: it may take for ever.
        std::mem::forget(std::mem::take(&mut closing.users));
        closing.threads = 0;
    }
    closing
}

fn close_elsewhere(file: OwnedFd, uid: u32, account: Option<Arc<Account>>) {
    let unclosed: Option<Unclosed> = account.map(|account| account.unclosed());
    drop_elsewhere(Box::new((file, unclosed)), uid);
}

/// Has the thread of that user drop what takes long.
pub(super) fn drop_elsewhere(what: Box<dyn Send>, uid: u32) {
    let mut closing = closing();
    let has_room = closing.threads < MOST_THREADS;
    let user = closing.users.entry(uid).or_default();
    user.waiting.push_back(what);
    if let Some(thread) = &user.thread {
        return thread.unpark();
    }
    if has_room {
        let named = std::thread::Builder::new().name("via-closing".into()).stack_size(STACK_BYTES);
        // Where there is no thread now, there may be one for the next; until then what has come lies there, as it is and counted.
        user.thread = named.spawn(move || close_for(uid)).ok().map(|handle| handle.thread().clone());
        closing.threads += usize::from(closing.users[&uid].thread.is_some());
    }
}

impl Closing {
    /// A user for whom something waits, and who has no thread; those behind `uid` have their turn first.
    fn unserved(&self, uid: u32) -> Option<u32> {
        let behind = self.users.range((Bound::Excluded(uid), Bound::Unbounded));
        let all = behind.chain(self.users.range(..uid));
        all.filter(|(_, user)| user.thread.is_none()).map(|(uid, _)| *uid).next()
    }

    /// This thread is no longer `uid`'s, but `other`'s.
    fn serve(&mut self, uid: u32, other: u32) {
        match self.users.get_mut(&uid) {
            Some(user) if user.waiting.is_empty() => _ = self.users.remove(&uid),
            Some(user) => user.thread = None,
            None => {}
        }
        self.users.entry(other).or_default().thread = Some(std::thread::current());
    }
}

/// Closes what that user has had us take, then, or between, what is another's and has no thread; and ends. Whatever it closes is that of
/// the user whose thread it is meanwhile: it may take for ever.
fn close_for(mut uid: u32) {
    let (mut has_closed, mut has_rested) = (false, false);
    loop {
        let mut all = closing();
        let is_over = has_rested && all.users.get(&uid).is_none_or(|user| user.waiting.is_empty());
        if has_closed || is_over {
            match all.unserved(uid) {
                Some(other) => {
                    all.serve(uid, other);
                    uid = other;
                }
                None if is_over => {
                    all.users.remove(&uid);
                    all.threads -= 1;
                    return;
                }
                None => {}
            }
        }
        let next = all.users.get_mut(&uid).and_then(|user| user.waiting.pop_front());
        drop(all);
        (has_closed, has_rested) = (next.is_some(), next.is_none());
        match next {
            Some(waiting) => drop::<Waiting>(waiting),
            None => std::thread::park_timeout(REST),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::hostile::attacker::lingering;
    use super::super::ledger::Ledger;
    use super::super::settings::Limits;
    use super::*;
    use std::io::{ErrorKind, Write};
    use std::time::Instant;

    /// A pipe whose reading end that user has had us take, and that is to be closed.
    fn taken_from(account: &Arc<Account>) -> io::PipeWriter {
        let (reader, writer) = io::pipe().unwrap();
        drop(Foreign::new(reader.into(), Some(account)));
        writer
    }

    fn is_closed(mut writer: &io::PipeWriter) -> bool {
        writer.write(b"?").is_err_and(|error| error.kind() == ErrorKind::BrokenPipe)
    }

    #[test]
    fn what_one_user_makes_slow_to_close_keeps_nothing_of_anothers_open() {
        let ledger = Ledger::new(Limits { user_connections: 10, nic_connections: 1000, ..Limits::default() });
        let slow = ledger.open(70_001).unwrap();
        drop(Foreign::new(lingering(60).unwrap(), Some(&slow)));
        let behind = taken_from(&slow);
        let others: Vec<_> = (0..300).map(|user| ledger.open(71_000 + user).unwrap()).collect();
        let pipes: Vec<_> = others.iter().flat_map(|account| [(); 2].map(|()| taken_from(account))).collect();
        let end = Instant::now() + Duration::from_secs(25);
        while !pipes.iter().all(is_closed) {
            assert!(Instant::now() < end, "an honest user's descriptors stay open behind another's");
            std::thread::sleep(Duration::from_millis(5));
        }
        // And are counted no more. The slow one's own wait for each other.
        assert!(!is_closed(&behind));
        drop(others);
        assert!((0..300).all(|user| (0..10).all(|_| ledger.open(71_000 + user).is_ok())));
    }

    #[test]
    fn a_thread_that_is_about_to_close_something_slow_does_not_take_over_another_user() {
        let (slow, other) = (72_000, 72_001);
        let (reader, writer) = io::pipe().unwrap();
        let waits = |what: Waiting| OfUser { waiting: VecDeque::from([what]), thread: None };
        let mut all = closing();
        all.users.insert(slow, waits(Box::new(lingering(60).unwrap())));
        all.users.insert(other, waits(Box::new(reader)));
        all.threads += 1;
        drop(all);
        std::thread::spawn(move || close_for(slow));
        while closing().users.get(&slow).is_some_and(|user| !user.waiting.is_empty()) {
            std::thread::yield_now();
        }
        // What comes next for the other user finds that nobody serves him.
        let (reader, second) = io::pipe().unwrap();
        drop_elsewhere(Box::new(reader), other);
        let end = Instant::now() + Duration::from_secs(25);
        while !is_closed(&writer) || !is_closed(&second) {
            assert!(Instant::now() < end, "an honest user's descriptors stay open behind another's");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// A child (fork(2)) has its parent's books on closing, and none of its threads.
    #[test]
    fn what_a_child_is_given_is_closed_there_though_its_parent_has_a_thread_for_the_same_user() {
        let ledger = Ledger::new(Limits::default());
        let account = ledger.open(73_000).unwrap();
        // It has a thread from now on, for `REST`.
        drop(taken_from(&account));
        // No thread of another test has the lock, which the child would wait for.
        let held = closing();
        // SAFETY: the child closes what is its own and leaves without running anything else's end.
        let child = unsafe { libc::fork() };
        drop(held);
        if child == 0 {
            let writer = taken_from(&account);
            let end = Instant::now() + Duration::from_secs(10);
            while !is_closed(&writer) && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(5));
            }
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!is_closed(&writer))) };
        }
        let mut status = 0;
        // SAFETY: writes to the number given.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "what the child was given stays open");
    }
}
