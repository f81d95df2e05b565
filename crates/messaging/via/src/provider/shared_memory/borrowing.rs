//! The thread that duplicates the files of regions that peers lend. Until a region is borrowed, messages from it arrive
//! in parts.
//!
//! Source: pidfd_getfd(2). The call waits while the peer is executing a program (exec_update_lock), which the peer can
//! prolong by leaving the process many files to close. Therefore only this thread makes the call.

use super::control_message::RegionExport;
use super::peer_connection::PeerConnection;
use longma_locks::IgnorePoison;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, Weak};

/// The maximum number of regions waiting to be borrowed. Further ones are not borrowed.
const MAX_WAITING: usize = 4096;

type BorrowableRegion = (Weak<PeerConnection>, RegionExport, u32);

/// Queues a region for the thread, if the thread exists and its queue is not full.
pub(super) fn ask(peer_connection: &Arc<PeerConnection>, export: RegionExport, number: u32) {
    /// The channel and the process that owns the thread. A forked child has only the parent's sender.
    static TO_THREAD: Mutex<Option<(u32, SyncSender<BorrowableRegion>)>> = Mutex::new(None);
    let mut thread = TO_THREAD.lock().ignore_poison();
    let creator_pid = std::process::id();
    if thread.as_ref().is_none_or(|(of, _)| *of != creator_pid) {
        let (sender, lent) = sync_channel::<BorrowableRegion>(MAX_WAITING);
        let named = std::thread::Builder::new().name("via-borrowing".into());
        let borrow = move || {
            for (peer_connection, export, number) in lent {
                if let Some(peer_connection) = peer_connection.upgrade() {
                    peer_connection.borrow(export, number);
                }
            }
        };
        if named.spawn(borrow).is_ok() {
            // In a forked child, leak the parent's sender together with its queue.
            std::mem::forget(thread.replace((creator_pid, sender)));
        }
    }
    if let Some((_, thread)) = thread.as_ref().filter(|(of, _)| *of == creator_pid) {
        let _ = thread.try_send((Arc::downgrade(peer_connection), export, number));
    }
}
