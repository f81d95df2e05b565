//! The names of Unix sockets that a confined guest has bound. Source: unix(7).

use longma_locks::IgnorePoison;
use std::collections::HashMap;

use longma_guest::host::locks::{Mutex, MutexGuard};

/// The guest's names of the sockets that it has bound, by host name.
#[derive(Debug, Default)]
pub(crate) struct SocketNames(Mutex<HashMap<Vec<u8>, Vec<u8>>>);

impl SocketNames {
    /// Locks the names.
    pub(crate) fn lock(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Vec<u8>>> {
        self.0.lock().ignore_poison()
    }
}
