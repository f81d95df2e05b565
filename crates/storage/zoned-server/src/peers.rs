//! The connected clients, as the accepting thread sees them.

use longma_locks::IgnorePoison;
use std::collections::BTreeMap;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// The time limit for clients to read their last replies when the server ends.
const LAST_REPLIES_TIMEOUT: Duration = Duration::from_secs(5);
/// The time limit for the end of an evicted client's thread.
const EVICTION_TIMEOUT: Duration = Duration::from_millis(100);

/// A connected client, as the accepting thread sees it.
pub(crate) struct Peer {
    pub id: u64,
    pub socket: Arc<TcpStream>,
    /// Whether it has authenticated, or need not.
    pub is_admitted: AtomicBool,
}

/// The connected clients.
#[derive(Default)]
pub(crate) struct Peers {
    peers: Mutex<BTreeMap<u64, Arc<Peer>>>,
    is_gone: Condvar,
}

impl Peers {
    /// Adds a client.
    pub fn insert(&self, peer: &Arc<Peer>) {
        self.peers.lock().ignore_poison().insert(peer.id, Arc::clone(peer));
    }

    /// Removes a client whose thread ends.
    pub fn remove(&self, id: u64) {
        self.peers.lock().ignore_poison().remove(&id);
        self.is_gone.notify_all();
    }

    /// The number of clients.
    pub fn len(&self) -> usize {
        self.peers.lock().ignore_poison().len()
    }

    /// Ends the connection of the client that has been connected longest without authenticating, so that clients
    /// without the password cannot use up the limit.
    pub fn evict_unauthenticated(&self) {
        let mut peers = self.peers.lock().ignore_poison();
        let before = peers.len();
        if let Some(stranger) = peers.values().find(|peer| !peer.is_admitted.load(Ordering::Relaxed)) {
            let _ = stranger.socket.shutdown(Shutdown::Both);
            let deadline = Instant::now() + EVICTION_TIMEOUT;
            while peers.len() == before {
                let Some(left) = deadline.checked_duration_since(Instant::now()) else { return };
                peers = self.is_gone.wait_timeout(peers, left).ignore_poison().0;
            }
        }
    }

    /// Ends all connections: first those that have read their replies, the others after a delay.
    pub fn end(&self) {
        let mut peers = self.peers.lock().ignore_poison();
        peers.values().for_each(|peer| _ = peer.socket.shutdown(Shutdown::Read));
        let deadline = Instant::now() + LAST_REPLIES_TIMEOUT;
        while !peers.is_empty() {
            match deadline.checked_duration_since(Instant::now()) {
                Some(left) => peers = self.is_gone.wait_timeout(peers, left).ignore_poison().0,
                None => {
                    peers.values().for_each(|peer| _ = peer.socket.shutdown(Shutdown::Both));
                    peers = self.is_gone.wait(peers).ignore_poison();
                }
            }
        }
    }
}
