//! Resource limits that a program has set and the emulator stores. Memory limits are not passed to the host, because
//! the emulator needs far more address space than the guest. With `fixed_identity`, the other limits are stored too, so
//! that they have the same initial values on all hosts. `syscalls::system` defines the initial values. Source:
//! getrlimit(2).

use longma_locks::IgnorePoison;
use std::collections::BTreeMap;

use longma_guest::host::locks::{Mutex, MutexGuard};
use longma_guest::host::resources;

/// Stored soft and hard limits by resource.
#[derive(Debug, Default)]
pub(crate) struct Limits(Mutex<BTreeMap<u32, (u64, u64)>>);

impl Limits {
    /// Creates the limits from those of the previous program.
    pub(crate) fn inherited(limits: &[StoredLimit]) -> Self {
        let limits = limits.iter().map(|&StoredLimit { resource, soft, hard }| (resource, (soft, hard)));
        Self(Mutex::new(limits.collect()))
    }

    /// The limits (soft and hard) by resource.
    pub(crate) fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, (u64, u64)>> {
        self.0.lock().ignore_poison()
    }

    /// All stored limits.
    pub(crate) fn all(&self) -> Vec<StoredLimit> {
        self.lock().iter().map(|(&resource, &(soft, hard))| StoredLimit { resource, soft, hard }).collect()
    }
}

/// The soft limit of a resource; infinity if none is stored.
pub(crate) fn soft_of(limits: &BTreeMap<u32, (u64, u64)>, resource: u32) -> u64 {
    limits.get(&resource).map_or(libc::RLIM_INFINITY, |(soft, _)| *soft)
}

/// A limit that a program has set and the emulator stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredLimit {
    /// The resource: RLIMIT_AS or another.
    pub resource: u32,
    /// The soft limit, in the unit of the resource.
    pub soft: u64,
    /// The hard limit, in the unit of the resource.
    pub hard: u64,
}

/// Whether this limit is only stored, not set on the host.
pub(crate) fn is_emulated_only(resource: u32) -> bool {
    matches!(resource, resources::AS | resources::DATA | resources::STACK)
}
