//! Limits that a program has set and the host must not enforce.
//! Not what they are while it has not set them: prlimit64 says that.
//! Source: getrlimit(2).

use std::collections::BTreeMap;
use std::sync::PoisonError;

use longma_guest::host::locks::{Mutex, MutexGuard};
use longma_guest::host::resources;

/// Limits the guest has set that the host must not enforce: the emulator's own address space is far beyond them.
#[derive(Debug, Default)]
pub(crate) struct Limits(Mutex<BTreeMap<u32, (u64, u64)>>);

impl Limits {
    /// Those that the program before has set.
    pub(crate) fn inherited(limits: &[KeptLimit]) -> Self {
        let limits = limits.iter().map(|&KeptLimit { resource, soft, hard }| (resource, (soft, hard)));
        Self(Mutex::new(limits.collect()))
    }

    /// Those that have been set, soft and hard, by resource.
    pub(crate) fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, (u64, u64)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All that have been set.
    pub(crate) fn all(&self) -> Vec<KeptLimit> {
        self.lock().iter().map(|(&resource, &(soft, hard))| KeptLimit { resource, soft, hard }).collect()
    }
}

/// The soft limit of a resource; none if nobody has set one.
pub(crate) fn soft_of(limits: &BTreeMap<u32, (u64, u64)>, resource: u32) -> u64 {
    limits.get(&resource).map_or(libc::RLIM_INFINITY, |(soft, _)| *soft)
}

/// A limit that a program has set and the host does not know of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptLimit {
    /// RLIMIT_AS and its like.
    pub resource: u32,
    /// The soft limit.
    pub soft: u64,
    /// The hard limit.
    pub hard: u64,
}

/// Whether a limit that the guest has set is only told it again: the others are set on the host as well.
pub(crate) fn is_never_the_hosts(resource: u32) -> bool {
    matches!(resource, resources::AS | resources::DATA | resources::STACK)
}
