//! Tracks exported regions that peers have not received yet. The kernel holds a descriptor for each of them and counts
//! it against our user.
//!
//! Source: unix(7), SCM_RIGHTS, ETOOMANYREFS: a user with as many descriptors in flight as RLIMIT_NOFILE cannot send
//! any more, not even those needed for answers. SIOCOUTQ (unix_ioctl in net/unix/af_unix.c): the number of bytes sent
//! and not received.

use super::peer_connection::PeerConnection;
use super::settings::limit;
use longma_locks::IgnorePoison;
use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

/// Checking what was received costs a system call per connection. These limits bound that cost.
const MAX_PER_USER: u64 = 2048;
const MAX_TOTAL: u64 = 4096;
/// The minimum time between checks.
const PAUSE: Duration = Duration::from_millis(10);

#[derive(Default)]
struct UserExports {
    count: u32,
    /// Peers that have not received everything, once each.
    contacts: Vec<Weak<PeerConnection>>,
}

#[derive(Default)]
struct UnreadState {
    all: u32,
    users: BTreeMap<u32, UserExports>,
    /// The time of the last check.
    looked: Option<Instant>,
}

/// The exports that peers of a NIC have not received.
pub(super) struct Unread {
    most_of_user: u32,
    most_of_all: u32,
    books: Mutex<UnreadState>,
}

impl Unread {
    /// Of the descriptors that this process's user may have in flight, a quarter is available per user and three
    /// eighths in total. About as many are left for answers, one per connection (`Limits`).
    pub(super) fn new() -> Unread {
        let files = limit(libc::RLIMIT_NOFILE as _).unwrap_or(u64::MAX);
        let (most_of_user, most_of_all) = ((files / 4).min(MAX_PER_USER), (files / 8 * 3).min(MAX_TOTAL));
        Unread { most_of_user: most_of_user as u32, most_of_all: most_of_all as u32, books: Mutex::default() }
    }

    fn books(&self) -> MutexGuard<'_, UnreadState> {
        self.books.lock().ignore_poison()
    }

    /// Counts a region that is about to be exported.
    ///
    /// # Errors
    /// The reason, if too many exports are unreceived.
    pub(super) fn count(&self, peer_connection: &Arc<PeerConnection>) -> Result<(), String> {
        let uid = peer_connection.process.uid;
        let mut books = self.books();
        let is_full = |books: &UnreadState| {
            let of_user = books.users.get(&uid).map_or(0, |user| user.count);
            of_user >= self.most_of_user || books.all >= self.most_of_all
        };
        // Dropped after the lock is released, because dropping the last reference to a peer can be expensive.
        let mut looked_at = Vec::new();
        if is_full(&books) && books.looked.is_none_or(|looked| looked.elapsed() >= PAUSE) {
            books.looked = Some(Instant::now());
            books.look(&mut looked_at);
        }
        let full = is_full(&books);
        if !full {
            books.all += 1;
            let user = books.users.entry(uid).or_default();
            user.count += 1;
            // Modified only under the lock.
            if peer_connection.unread.fetch_add(1, Ordering::Relaxed) == 0 {
                user.contacts.push(Arc::downgrade(peer_connection));
            }
        }
        drop(books);
        drop(looked_at);
        match full {
            true => Err(format!(
                "a region was not exported: peers of user {uid}, or all peers together, have too many unread exports"
            )),
            false => Ok(()),
        }
    }

    /// Called when a peer is dropped: the kernel discards its unreceived messages.
    pub(super) fn forget(&self, peer_connection: &PeerConnection) {
        if peer_connection.unread.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut books = self.books();
        let count = peer_connection.unread.swap(0, Ordering::Relaxed);
        books.all -= count;
        if let Some(user) = books.users.get_mut(&peer_connection.process.uid) {
            user.count -= count;
            user.contacts.retain(|other| !std::ptr::eq(other.as_ptr(), peer_connection));
        }
        books.users.retain(|_, user| user.count > 0);
    }
}

impl UnreadState {
    /// Checks which peers have received everything. The peers checked are returned in `looked_at`, to be dropped later.
    fn look(&mut self, looked_at: &mut Vec<Arc<PeerConnection>>) {
        for user in self.users.values_mut() {
            user.contacts.retain(|peer_connection| {
                // A peer that is being dropped updates the counters itself.
                let Some(peer_connection) = peer_connection.upgrade() else { return false };
                let has_heard = has_received_everything(&peer_connection);
                if has_heard {
                    let count = peer_connection.unread.swap(0, Ordering::Relaxed);
                    user.count -= count;
                    self.all -= count;
                }
                looked_at.push(peer_connection);
                !has_heard
            });
        }
        self.users.retain(|_, user| user.count > 0);
    }
}

fn has_received_everything(peer_connection: &PeerConnection) -> bool {
    let mut bytes = 0i32;
    // SAFETY: writes an integer to the given location.
    let outcome = unsafe { libc::ioctl(peer_connection.socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    outcome == 0 && bytes == 0
}
