//! The memory of one host put together: private caches, shared caches, coherence, and the way to memory.
//! Not what programs do with it: cores and devices ask, through ports.
//! Source: each part's own file.

mod access;
mod ahead;
mod build;
mod contention;
mod core_port;
mod device;
mod domain;
mod evict;
mod given;
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
use crate::interconnect::{Interconnect, Place};
use crate::placement::{AddressSpaces, PhysicalPage, SpaceId};
use contention::Contention;
use domain::Domain;
use longma_sim::{Duration, Time};
use path::Path;
use private::Private;
use report::Messages;
use std::ops::Range;

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
    contention: Contention,
    /// How far cores' cycles are ahead of the times that others give, ps.
    lead_ps: u64,
    /// Where programs see in-core stores.
    stores: Vec<StoreWindow>,
}

/// Virtual addresses at which programs see an in-core store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreWindow {
    /// The addresses.
    pub range: Range<u64>,
    /// Load to use, cycles of each core's own clock.
    pub latency_cycles: Vec<u64>,
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
        self.set_lock_pieces(core, window, to.into_iter().collect())
    }

    /// As [`MemorySystem::set_lock_window`], of a window that is in several pieces, as a window of virtual addresses is in physical ones;
    /// without any it is closed. The kernel of a real machine would give the program memory in one piece.
    ///
    /// # Errors
    /// If that cache has no line lock, or no such window.
    pub fn set_lock_pieces(
        &mut self,
        core: usize,
        window: usize,
        to: Vec<LockWindow>,
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

    /// Sends `bytes` from one place to another at `at`, past caches and memory: what devices and in-core stores say to each other. Gives
    /// the time the last of them arrives.
    ///
    /// # Panics
    /// If the host has no such places.
    pub fn cross(&mut self, from: Place, to: Place, bytes: u32, at: Time) -> Time {
        let at = Time::from_ps(self.by_cores(at));
        let end = self.path.interconnect.cross(from, to, bytes, at);
        self.for_others(end.ps())
    }

    /// Cores' cycles are so far ahead of all [`Time`]s that are given here and come from here, from now on: what cores did was gone through
    /// once more, for as long as that takes, while for everybody else no time passed.
    pub fn set_lead(&mut self, lead: Duration) {
        self.lead_ps = lead.ps();
    }

    /// What time it is by the cores' cycles, ps.
    fn by_cores(&self, at: Time) -> u64 {
        at.ps().saturating_add(self.lead_ps)
    }

    /// What time it is for everybody else.
    fn for_others(&self, ps: u64) -> Time {
        Time::from_ps(ps.saturating_sub(self.lead_ps))
    }

    /// How long [`MemorySystem::cross`] takes when nobody else is there, picoseconds.
    ///
    /// # Panics
    /// If the host has no such places.
    pub fn idle_ps(&mut self, from: Place, to: Place, bytes: u32) -> u64 {
        self.path.interconnect.idle_ps(from, to, bytes)
    }

    /// How many cycles of core `core` something takes.
    ///
    /// # Panics
    /// If the host has no such core.
    pub fn cycles_of(&self, core: usize, duration: Duration) -> u64 {
        path::cycles_in(self.cores[core].clock, duration.ps())
    }

    /// The physical page of a virtual one, for a device near NUMA node `node`; a page that is touched for the first time gets one.
    ///
    /// # Panics
    /// If the host has no such node.
    pub fn translate_for_device(&mut self, space: SpaceId, page: u64, node: usize) -> PhysicalPage {
        self.path.spaces.translate(space, page, node)
    }

    /// Says where programs see in-core stores, in place of what was said before. Accesses there are answered by the store: no TLB, no
    /// cache.
    pub fn set_stores(&mut self, stores: Vec<StoreWindow>) {
        self.stores = stores;
        self.cores.iter_mut().for_each(Private::forget_translations);
    }

    /// Says which ways of every shared cache `requester` may fill: bit n is way n. A mask that leaves no way of a cache means all.
    pub fn set_ways(&mut self, requester: Requester, ways: u64) {
        for shared in self.domains.iter_mut().filter_map(|d| d.shared.as_mut()) {
            let mask = if ways & shared.tags.all_ways() == 0 { u64::MAX } else { ways };
            shared.partition.set(requester, mask);
        }
    }
}
