//! Closes file descriptors received from peers. Memory files with few pages are closed immediately; everything else is
//! closed or unmapped by a separate thread for each peer user. Control sockets are handled in the same way, because
//! closing a socket closes the descriptors in its unread messages.
//!
//! Source: close(2); fuse_flush in fs/fuse/file.c (closing a file on FUSE waits uninterruptibly for its server, which
//! may be the peer); socket(7), SO_LINGER; unix(7), SCM_RIGHTS.

use super::control_message::{ControlMessage, Unread, receive, take_unread};
use super::mapping::is_small;
use super::process::peer_uid;
use super::quota::{Account, UnclosedFile};
use longma_locks::IgnorePoison;
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Bound;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::Thread;
use std::time::Duration;

/// A descriptor received from a peer. While a descriptor waits to be closed, it is counted as a connection of the
/// peer's user. A user whose descriptors cannot be closed soon therefore runs out of connections, and no more
/// descriptors are accepted from that user.
pub(super) struct PeerFile {
    file: ManuallyDrop<OwnedFd>,
    account: Option<Arc<Account>>,
    /// Whether a mapping in this process also holds the file, so that closing this descriptor does not free it.
    is_mapped: Cell<bool>,
}

impl PeerFile {
    pub(super) fn new(file: OwnedFd, account: Option<&Arc<Account>>) -> PeerFile {
        PeerFile { file: ManuallyDrop::new(file), account: account.cloned(), is_mapped: Cell::new(false) }
    }

    /// The seals, if the file is a memory file.
    pub(super) fn seals(&self) -> Option<i32> {
        // SAFETY: the call takes only integers. The kernel answers it without involving the file system of the file.
        let seals = unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_GET_SEALS) };
        (seals >= 0).then_some(seals)
    }

    /// Records that the file is mapped for longer than this descriptor lives.
    pub(super) fn note_mapped(&self) {
        self.is_mapped.set(true);
    }
}

impl AsFd for PeerFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for PeerFile {
    fn drop(&mut self) {
        // Closing the last reference to a memory file frees its pages. Close it here only if there are few.
        let is_quick = self.is_mapped.get() || self.seals().is_some() && is_small(self.file.as_fd());
        // SAFETY: `drop` takes the value once.
        let file = unsafe { ManuallyDrop::take(&mut self.file) };
        if !is_quick {
            let uid = self.account.as_ref().map_or(u32::MAX, |account| account.uid);
            defer_close(file, uid, self.account.take());
        }
    }
}

/// The maximum number of unread messages removed from a socket before it is closed. A socket with more is closed by the
/// thread.
const MAX_UNREAD: usize = 64;

/// A socket to a peer. Closing a socket closes the descriptors in its unread messages, in the calling thread. So a
/// socket with such messages is passed to the thread as a whole; receiving the descriptors first could yield thousands
/// of them.
pub(super) struct PeerSocket {
    socket: ManuallyDrop<OwnedFd>,
    account: Option<Arc<Account>>,
    /// The process that owns the socket. Changes that a forked child makes to its copy also affect the parent.
    creator_pid: u32,
}

impl PeerSocket {
    pub(super) fn new(socket: OwnedFd) -> PeerSocket {
        PeerSocket { socket: ManuallyDrop::new(socket), account: None, creator_pid: std::process::id() }
    }

    /// Charges the descriptors received from this socket to an account.
    pub(super) fn with_account(mut self, account: &Arc<Account>) -> PeerSocket {
        self.account = Some(account.clone());
        self
    }

    /// Receives the next control message and the file attached to it.
    pub(super) fn receive(&self) -> io::Result<(ControlMessage, Option<PeerFile>)> {
        receive(&*self.socket, self.account.as_ref())
    }
}

impl AsRawFd for PeerSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl Drop for PeerSocket {
    fn drop(&mut self) {
        if std::process::id() != self.creator_pid {
            return;
        }
        // Stop receiving, and notify the peer. SAFETY: the call takes only integers.
        unsafe { libc::shutdown(self.socket.as_raw_fd(), libc::SHUT_RDWR) };
        let unread = take_unread(self.socket.as_raw_fd(), MAX_UNREAD);
        let uid = peer_uid(self);
        // SAFETY: `drop` takes the value once.
        let socket = unsafe { ManuallyDrop::take(&mut self.socket) };
        if let Unread::Files = unread {
            defer_close(socket, uid, self.account.take());
        }
    }
}

/// An object to be closed or unmapped, together with its charges. Dropping it does both.
type Waiting = Box<dyn Send>;

/// The maximum number of closing threads. If more users need one, some of them wait.
const MAX_THREADS: usize = 128;
/// How long an idle thread waits for more work.
const IDLE_TIMEOUT: Duration = Duration::from_millis(200);
/// The stack size of a closing thread, which only closes.
const STACK_BYTES: usize = 64 << 10;

/// The objects of one user to be dropped, and the thread that drops them.
#[derive(Default)]
struct UserQueue {
    waiting: VecDeque<Waiting>,
    thread: Option<Thread>,
}

/// The users with objects to be dropped. Each has its own thread, so that slow closing caused by one user does not
/// delay closing, and thus the accounting, of another.
struct UserCloser {
    users: BTreeMap<u32, UserQueue>,
    threads: usize,
    /// The process that owns the threads.
    creator_pid: u32,
}

static CLOSING: Mutex<UserCloser> =
    Mutex::new(UserCloser { users: BTreeMap::new(), threads: 0, creator_pid: 0 });

fn lock_closing() -> MutexGuard<'static, UserCloser> {
    let mut closing = CLOSING.lock().ignore_poison();
    let creator_pid = std::process::id();
    if std::mem::replace(&mut closing.creator_pid, creator_pid) != creator_pid {
        // A forked child does not have its parent's threads. Leak the copies of the parent's objects: closing them
        // might block indefinitely.
        std::mem::forget(std::mem::take(&mut closing.users));
        closing.threads = 0;
    }
    closing
}

fn defer_close(file: OwnedFd, uid: u32, account: Option<Arc<Account>>) {
    let unclosed_file: Option<UnclosedFile> = account.map(|account| account.unclosed_file());
    defer_drop(Box::new((file, unclosed_file)), uid);
}

/// Queues an object for the closing thread of its user.
pub(super) fn defer_drop(what: Box<dyn Send>, uid: u32) {
    let mut closing = lock_closing();
    let has_space = closing.threads < MAX_THREADS;
    let user = closing.users.entry(uid).or_default();
    user.waiting.push_back(what);
    if let Some(thread) = &user.thread {
        return thread.unpark();
    }
    if has_space {
        let named = std::thread::Builder::new().name("via-closing".into()).stack_size(STACK_BYTES);
        // If no thread can be started, the object stays queued and charged until a later call starts one.
        user.thread = named.spawn(move || closing_thread(uid)).ok().map(|handle| handle.thread().clone());
        closing.threads += usize::from(closing.users[&uid].thread.is_some());
    }
}

impl UserCloser {
    /// A user with queued objects and no thread, starting the search after `uid`.
    fn unserved(&self, uid: u32) -> Option<u32> {
        let behind = self.users.range((Bound::Excluded(uid), Bound::Unbounded));
        let all = behind.chain(self.users.range(..uid));
        all.filter(|(_, user)| user.thread.is_none()).map(|(uid, _)| *uid).next()
    }

    /// Reassigns the current thread from `uid` to `other`.
    fn serve(&mut self, uid: u32, other: u32) {
        match self.users.get_mut(&uid) {
            Some(user) if user.waiting.is_empty() => _ = self.users.remove(&uid),
            Some(user) => user.thread = None,
            None => {}
        }
        self.users.entry(other).or_default().thread = Some(std::thread::current());
    }
}

/// The closing thread: drops the objects of its user and, in between or afterwards, those of users without a thread.
/// While it drops an object it is assigned to the owner of that object, because the drop may block indefinitely.
fn closing_thread(mut uid: u32) {
    let (mut has_closed, mut has_rested) = (false, false);
    loop {
        let mut all = lock_closing();
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
            None => std::thread::park_timeout(IDLE_TIMEOUT),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::hostile::attacker::lingering;
    use super::super::quota::Quotas;
    use super::super::settings::Limits;
    use super::*;
    use std::io::{ErrorKind, Write};
    use std::time::Instant;

    /// The writing end of a pipe whose reading end was received from the user and is to be closed.
    fn taken_from(account: &Arc<Account>) -> io::PipeWriter {
        let (reader, writer) = io::pipe().unwrap();
        drop(PeerFile::new(reader.into(), Some(account)));
        writer
    }

    fn is_closed(mut writer: &io::PipeWriter) -> bool {
        writer.write(b"?").is_err_and(|error| error.kind() == ErrorKind::BrokenPipe)
    }

    #[test]
    fn slow_closes_of_one_user_do_not_delay_those_of_another() {
        let quota = Quotas::new(Limits { user_connections: 10, nic_connections: 1000, ..Limits::default() });
        let slow = quota.open(70_001).unwrap();
        drop(PeerFile::new(lingering(60).unwrap(), Some(&slow)));
        let behind = taken_from(&slow);
        let others: Vec<_> = (0..300).map(|user| quota.open(71_000 + user).unwrap()).collect();
        let pipes: Vec<_> = others.iter().flat_map(|account| [(); 2].map(|()| taken_from(account))).collect();
        let end = Instant::now() + Duration::from_secs(25);
        while !pipes.iter().all(is_closed) {
            assert!(Instant::now() < end, "an honest user's descriptors stay open behind another's");
            std::thread::sleep(Duration::from_millis(5));
        }
        // The descriptors of the other users are no longer counted. The rest of the slow user's objects is still
        // waiting.
        assert!(!is_closed(&behind));
        drop(others);
        assert!((0..300).all(|user| (0..10).all(|_| quota.open(71_000 + user).is_ok())));
    }

    #[test]
    fn a_thread_that_is_about_to_close_something_slow_does_not_take_over_another_user() {
        let (slow, other) = (72_000, 72_001);
        let (reader, writer) = io::pipe().unwrap();
        let waits = |what: Waiting| UserQueue { waiting: VecDeque::from([what]), thread: None };
        let mut all = lock_closing();
        all.users.insert(slow, waits(Box::new(lingering(60).unwrap())));
        all.users.insert(other, waits(Box::new(reader)));
        all.threads += 1;
        drop(all);
        std::thread::spawn(move || closing_thread(slow));
        while lock_closing().users.get(&slow).is_some_and(|user| !user.waiting.is_empty()) {
            std::thread::yield_now();
        }
        // The next object of the other user finds no thread assigned to that user.
        let (reader, second) = io::pipe().unwrap();
        defer_drop(Box::new(reader), other);
        let end = Instant::now() + Duration::from_secs(25);
        while !is_closed(&writer) || !is_closed(&second) {
            assert!(Instant::now() < end, "an honest user's descriptors stay open behind another's");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// A forked child inherits its parent's closing state, but not its threads.
    #[test]
    fn a_forked_child_closes_descriptors_itself_despite_the_parents_closing_thread() {
        let quota = Quotas::new(Limits::default());
        let account = quota.open(73_000).unwrap();
        // This starts a thread that lives for `IDLE_TIMEOUT`.
        drop(taken_from(&account));
        // No thread of another test holds the lock at the fork, or the child would wait for it forever.
        let held = lock_closing();
        // SAFETY: the child closes only its own objects and exits without running destructors.
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
        // SAFETY: writes to the given integer.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "what the child was given stays open");
    }
}
