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

/// A check costs a system call per connection. These limits bound that cost.
const MAX_PER_USER: u64 = 2048;
const MAX_TOTAL: u64 = 4096;
/// The minimum time between checks.
const PAUSE: Duration = Duration::from_millis(10);

#[derive(Default)]
struct UserExports {
    count: u32,
    /// Peers with unreceived exports, once each.
    peers: Vec<Weak<PeerConnection>>,
}

#[derive(Default)]
struct UnreadState {
    all: u32,
    users: BTreeMap<u32, UserExports>,
    /// The time of the last check.
    checked_at: Option<Instant>,
}

/// The exports that peers of a NIC have not received.
pub(super) struct Unread {
    max_per_user: u32,
    max_total: u32,
    state: Mutex<UnreadState>,
}

impl Unread {
    /// Of the descriptors that this process's user may have in flight, a quarter is available per user and three
    /// eighths in total. About as many are left for answers, one per connection (`Limits`).
    pub(super) fn new() -> Unread {
        let files = limit(libc::RLIMIT_NOFILE as _).unwrap_or(u64::MAX);
        let (max_per_user, max_total) = ((files / 4).min(MAX_PER_USER), (files / 8 * 3).min(MAX_TOTAL));
        Unread { max_per_user: max_per_user as u32, max_total: max_total as u32, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, UnreadState> {
        self.state.lock().ignore_poison()
    }

    /// Counts a region that is about to be exported.
    ///
    /// # Errors
    /// The reason, if too many exports are unreceived.
    pub(super) fn count(&self, peer_connection: &Arc<PeerConnection>) -> Result<(), String> {
        let uid = peer_connection.process.uid;
        let mut state = self.state();
        let is_full = |state: &UnreadState| {
            let of_user = state.users.get(&uid).map_or(0, |user| user.count);
            of_user >= self.max_per_user || state.all >= self.max_total
        };
        // Dropped after the lock is released, because dropping the last reference to a peer can be expensive.
        let mut checked_peers = Vec::new();
        if is_full(&state) && state.checked_at.is_none_or(|checked_at| checked_at.elapsed() >= PAUSE) {
            state.checked_at = Some(Instant::now());
            state.check_peers(&mut checked_peers);
        }
        let full = is_full(&state);
        if !full {
            state.all += 1;
            let user = state.users.entry(uid).or_default();
            user.count += 1;
            // Modified only under the lock.
            if peer_connection.unread.fetch_add(1, Ordering::Relaxed) == 0 {
                user.peers.push(Arc::downgrade(peer_connection));
            }
        }
        drop(state);
        drop(checked_peers);
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
        let mut state = self.state();
        let count = peer_connection.unread.swap(0, Ordering::Relaxed);
        state.all -= count;
        if let Some(user) = state.users.get_mut(&peer_connection.process.uid) {
            user.count -= count;
            user.peers.retain(|other| !std::ptr::eq(other.as_ptr(), peer_connection));
        }
        state.users.retain(|_, user| user.count > 0);
    }
}

impl UnreadState {
    /// Checks which peers have received all exports. The peers checked are returned in `checked_peers`, to be dropped
    /// later.
    fn check_peers(&mut self, checked_peers: &mut Vec<Arc<PeerConnection>>) {
        for user in self.users.values_mut() {
            user.peers.retain(|peer_connection| {
                // A peer that is being dropped updates the counters itself.
                let Some(peer_connection) = peer_connection.upgrade() else { return false };
                let has_received = has_received_everything(&peer_connection);
                if has_received {
                    let count = peer_connection.unread.swap(0, Ordering::Relaxed);
                    user.count -= count;
                    self.all -= count;
                }
                checked_peers.push(peer_connection);
                !has_received
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
