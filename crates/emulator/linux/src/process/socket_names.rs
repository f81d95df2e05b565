//! The names of Unix sockets that a confined guest has bound.
//! Not their addresses on the way to the host: those are `network`'s.
//! Source: unix(7).

use std::collections::HashMap;
use std::sync::PoisonError;

use longma_guest::host::locks::{Mutex, MutexGuard};

/// What a confined guest calls the sockets that it bound, by what the host calls them.
#[derive(Debug, Default)]
pub(crate) struct SocketNames(Mutex<HashMap<Vec<u8>, Vec<u8>>>);

impl SocketNames {
    /// Keeps other threads out.
    pub(crate) fn lock(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
