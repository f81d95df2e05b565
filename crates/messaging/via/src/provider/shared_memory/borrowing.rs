//! The thread that takes over the files of regions that peers lend.
//! Not needed for a message to arrive: until a region is borrowed, what lies in it comes in parts.
//! Source: pidfd_getfd(2), which waits while the process executes a program (exec_update_lock), and that may wait for whatever the process
//! has to close then: a peer could hold up whoever asks, and holds up only this.

use super::contact::Contact;
use super::letters::Showing;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Regions that may wait to be borrowed; the others are not.
const MOST_WAITING: usize = 4096;

type Lent = (Weak<Contact>, Showing, u32);

/// Has the thread borrow a region, if there is a thread and it is not far behind.
pub(super) fn ask(contact: &Arc<Contact>, showing: Showing, number: u32) {
    /// With the process that has the thread: a child (fork(2)) has only its parent's end of the channel.
    static TO_THREAD: Mutex<Option<(u32, SyncSender<Lent>)>> = Mutex::new(None);
    let mut thread = TO_THREAD.lock().unwrap_or_else(PoisonError::into_inner);
    let home = std::process::id();
    if thread.as_ref().is_none_or(|(of, _)| *of != home) {
        let (sender, lent) = sync_channel::<Lent>(MOST_WAITING);
        let named = std::thread::Builder::new().name("via-borrowing".into());
        let borrow = move || {
            for (contact, showing, number) in lent {
                if let Some(contact) = contact.upgrade() {
                    contact.borrow(showing, number);
                }
            }
        };
        if named.spawn(borrow).is_ok() {
            // The parent's, if there is one, is not dropped, with what waits in it.
            std::mem::forget(thread.replace((home, sender)));
        }
    }
    if let Some((_, thread)) = thread.as_ref().filter(|(of, _)| *of == home) {
        let _ = thread.try_send((Arc::downgrade(contact), showing, number));
    }
}
