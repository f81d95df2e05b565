//! The memory of one host put together: private caches, shared caches, coherence, and the way to memory.
//! Not what programs do with it: cores and devices ask, through ports.
//! Source: each part's own file.

mod access;
mod build;
mod core_port;
mod device;
mod domain;
mod evict;
mod home;
mod invariants;
mod path;
mod private;
mod probe;
mod report;
mod request;
#[cfg(test)]
mod tests;

pub use core_port::CorePort;
pub use device::Allocate;
pub use path::Detail;
pub use report::Traffic;

use crate::cache::{LockWindow, Requester};
use crate::coherence::LineTable;
use crate::interconnect::Interconnect;
use crate::placement::{AddressSpaces, SpaceId};
use domain::Domain;
use path::Path;
use private::Private;
use report::Messages;

/// The memory of one host.
///
/// An access runs through caches, interconnect and memory at once and leaves them as they are after it; its time is added up on
/// the way from the parts' calendars, so that accesses of cores that run one after another still contend.
#[derive(Debug)]
pub struct MemorySystem {
    /// Base-two logarithm of a line's length.
    line_bits: u32,
    cores: Vec<Private>,
    domains: Vec<Domain>,
    /// Which domains have a line; only where there are several.
    home: Option<LineTable>,
    path: Path,
    messages: Messages,
}

/// A lock window that cannot be set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LockError {
    /// The shared cache of that core has no line lock.
    #[error("the shared cache of core {core} has no line lock: give it a `lock` in the machine file")]
    NoLock {
        /// The core.
        core: usize,
    },
    /// There is no such window.
    #[error("there is no lock window {window}: the cache has {windows}, numbered from 0")]
    NoWindow {
        /// The window asked for.
        window: usize,
        /// Windows there are.
        windows: usize,
    },
}

impl MemorySystem {
    /// Cores of the host.
    pub fn cores(&self) -> usize {
        self.cores.len()
    }

    /// Length of a line, bytes.
    pub fn line_bytes(&self) -> u64 {
        1 << self.line_bits
    }

    /// The way into memory of `core`.
    ///
    /// # Panics
    /// If the host has no such core.
    #[inline]
    pub fn port(&mut self, core: usize) -> CorePort<'_> {
        assert!(core < self.cores.len(), "core {core} of {} cores", self.cores.len());
        CorePort::new(self, core)
    }

    /// The address spaces: page tables and placement policies. Unmapping pages is [`MemorySystem::unmap`]'s.
    pub fn spaces(&mut self) -> &mut AddressSpaces {
        &mut self.path.spaces
    }

    /// The interconnect: where devices' ports are.
    pub fn interconnect(&self) -> &Interconnect {
        &self.path.interconnect
    }

    /// Gives back the frames of `pages` virtual pages of `space` from `first` on; every core forgets their translations. Lines stay
    /// in the caches until something else needs their place.
    pub fn unmap(&mut self, space: SpaceId, first: u64, pages: u64) {
        self.path.spaces.unmap(space, first, pages);
        for core in &mut self.cores {
            core.forget_translations();
            (first..first.saturating_add(pages)).for_each(|page| core.tlbs.invalidate(space, page));
        }
    }

    /// Opens (or closes, with `None`) a lock window of the last-level cache that `core` uses. Lines of an open window are locked as
    /// they are accessed; closing a window unlocks its lines.
    ///
    /// # Errors
    /// If that cache has no line lock, or no such window.
    pub fn set_lock_window(
        &mut self,
        core: usize,
        window: usize,
        to: Option<LockWindow>,
    ) -> Result<(), LockError> {
        let domain = self.cores.get(core).map(|c| c.domain).ok_or(LockError::NoLock { core })?;
        let shared = self.domains[domain].shared.as_mut().ok_or(LockError::NoLock { core })?;
        let lock = shared.lock.as_mut().ok_or(LockError::NoLock { core })?;
        let windows = lock.windows();
        if window >= windows {
            return Err(LockError::NoWindow { window, windows });
        }
        lock.set(window, to);
        shared.unlock_outside(self.line_bits);
        Ok(())
    }

    /// Says which ways of every shared cache `requester` may fill: bit n is way n. A mask that leaves no way of a cache means all.
    pub fn set_ways(&mut self, requester: Requester, ways: u64) {
        for shared in self.domains.iter_mut().filter_map(|d| d.shared.as_mut()) {
            let mask = if ways & shared.tags.all_ways() == 0 { u64::MAX } else { ways };
            shared.partition.set(requester, mask);
        }
    }
}
