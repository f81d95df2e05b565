//! Limits that a program has set but the host must not enforce. prlimit64 defines their initial values. Source:
//! getrlimit(2).

use std::collections::BTreeMap;
use std::sync::PoisonError;

use longma_guest::host::locks::{Mutex, MutexGuard};
use longma_guest::host::resources;

/// Limits that the guest has set but the host must not enforce, because the emulator's address space is far larger.
#[derive(Debug, Default)]
pub(crate) struct Limits(Mutex<BTreeMap<u32, (u64, u64)>>);

impl Limits {
    /// The limits that the previous program had set.
    pub(crate) fn inherited(limits: &[KeptLimit]) -> Self {
        let limits = limits.iter().map(|&KeptLimit { resource, soft, hard }| (resource, (soft, hard)));
        Self(Mutex::new(limits.collect()))
    }

    /// The limits (soft and hard) by resource.
    pub(crate) fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, (u64, u64)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All limits that have been set.
    pub(crate) fn all(&self) -> Vec<KeptLimit> {
        self.lock().iter().map(|(&resource, &(soft, hard))| KeptLimit { resource, soft, hard }).collect()
    }
}

/// The soft limit of a resource; infinity if it is not set.
pub(crate) fn soft_of(limits: &BTreeMap<u32, (u64, u64)>, resource: u32) -> u64 {
    limits.get(&resource).map_or(libc::RLIM_INFINITY, |(soft, _)| *soft)
}

/// A limit that a program has set and the host does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptLimit {
    /// RLIMIT_AS and others.
    pub resource: u32,
    /// The soft limit.
    pub soft: u64,
    /// The hard limit.
    pub hard: u64,
}

/// Whether a limit is only stored and reported back. Other limits are also set on the host.
pub(crate) fn is_never_the_hosts(resource: u32) -> bool {
    matches!(resource, resources::AS | resources::DATA | resources::STACK)
}
