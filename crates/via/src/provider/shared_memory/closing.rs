//! Descriptors that came from a peer: closed at once if they are memory files with little to free, and otherwise by a thread of its own. And the sockets that
//! they come over, which must not be closed with such descriptors on their way.
//! Not for our own files.
//! Source: close(2); fuse_flush in fs/fuse/file.c: closing a file of a FUSE file system waits for the answer of its server, which may be
//! the peer, and cannot be interrupted; socket(7), SO_LINGER; unix(7), SCM_RIGHTS.

use super::ledger::{Account, Unclosed};
use super::letters::{Letter, Unread, receive, take_unread};
use super::mapping::is_small;
use std::cell::Cell;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

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
            close_elsewhere(file, self.account.take());
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
        // SAFETY: taken once, here.
        let socket = unsafe { ManuallyDrop::take(&mut self.socket) };
        if let Unread::Files = unread {
            close_elsewhere(socket, self.account.take());
        }
    }
}

type Waiting = (OwnedFd, Option<Unclosed>);

/// The way to the thread that closes, and whether there is one.
struct Closing {
    to_thread: Sender<Waiting>,
    waiting: Arc<Mutex<Receiver<Waiting>>>,
    is_running: bool,
}

fn close_elsewhere(file: OwnedFd, account: Option<Arc<Account>>) {
    static CLOSING: LazyLock<Mutex<Closing>> = LazyLock::new(|| {
        let (to_thread, waiting) = channel();
        Mutex::new(Closing { to_thread, waiting: Arc::new(Mutex::new(waiting)), is_running: false })
    });
    let unclosed = account.map(|account| account.unclosed());
    let mut closing = CLOSING.lock().unwrap_or_else(PoisonError::into_inner);
    if !closing.is_running {
        let waiting = closing.waiting.clone();
        let close = move || {
            let waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
            waiting.iter().for_each(drop::<Waiting>);
        };
        // Where there is no thread now, there may be one for the next; until then what is sent lies there, open and counted.
        closing.is_running = std::thread::Builder::new().name("via-closing".into()).spawn(close).is_ok();
    }
    // Never refused, as the other end is in the same place.
    let _ = closing.to_thread.send((file, unclosed));
}
