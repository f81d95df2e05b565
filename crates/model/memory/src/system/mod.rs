//! The memory system of one host: private caches, shared caches, coherence, interconnect and memory. Cores and devices
//! access it through ports.

mod access;
mod build;
mod contention;
mod core_port;
mod device;
mod domain;
mod evict;
mod home;
mod host_prefetch;
mod invariants;
mod path;
mod private;
mod probe;
mod promised;
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
use crate::interconnect::{Endpoint, Interconnect};
use crate::placement::{AddressSpaces, PhysicalPage, SpaceId};
use crate::translation::Tlbs;
use contention::Contention;
use domain::Domain;
use longma_sim::{Duration, Time};
use path::Path;
use private::Private;
use report::Messages;
use std::ops::Range;

/// The memory system of one host.
///
/// Each access is processed as a whole: it updates caches, interconnect and memory at once. Its duration is the sum of
/// the delays on its path. Each resource keeps a calendar of reservations, so accesses contend even though cores are
/// simulated one after another.
#[derive(Debug)]
pub struct MemorySystem {
    /// Base-2 logarithm of the line length.
    line_bits: u32,
    cores: Vec<Private>,
    domains: Vec<Domain>,
    /// The domains that hold each line; only if there are several domains.
    home: Option<LineTable>,
    path: Path,
    messages: Messages,
    contention: Contention,
    /// How far the cores' clocks are ahead of the times that other components use, ps.
    lead_ps: u64,
    /// Virtual address ranges of in-core stores.
    stores: Vec<StoreWindow>,
    /// Whether any cache has a plug-in.
    has_plugins: bool,
}

/// A range of virtual addresses that maps to an in-core store (scratchpad).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreWindow {
    /// The address range.
    pub range: Range<u64>,
    /// Load-to-use latency for each core, in cycles of its own clock.
    pub latency_cycles: Vec<u64>,
}

/// A lock window that cannot be set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LockError {
    /// The core's shared cache has no line lock.
    #[error("the shared cache of core {core} has no line lock: give it a `lock` in the machine file")]
    NoLock {
        /// The core.
        core: usize,
    },
    /// The window number is out of range.
    #[error("there is no lock window {window}: the cache has {windows}, numbered from 0")]
    NoWindow {
        /// The requested window.
        window: usize,
        /// Number of windows.
        windows: usize,
    },
}

impl MemorySystem {
    /// Number of cores of the host.
    pub fn cores(&self) -> usize {
        self.cores.len()
    }

    /// Line length, bytes.
    pub fn line_bytes(&self) -> u64 {
        1 << self.line_bits
    }

    /// The memory port of `core`.
    ///
    /// # Panics
    /// If the host has no such core.
    #[inline]
    pub fn port(&mut self, core: usize) -> CorePort<'_> {
        assert!(core < self.cores.len(), "core {core} of {} cores", self.cores.len());
        CorePort::new(self, core)
    }

    /// The address spaces: page tables and placement policies. To unmap pages, call [`MemorySystem::unmap`] instead.
    pub fn spaces(&mut self) -> &mut AddressSpaces {
        &mut self.path.spaces
    }

    /// Makes all addresses of cores physical, and removes the TLBs: the caller translates addresses itself and executes
    /// the code that refills its TLBs. Addresses must be on a node of the host.
    pub fn use_physical_addresses(&mut self) {
        self.path.spaces.use_physical_addresses();
        for core in &mut self.cores {
            core.tlbs = Tlbs::none();
            core.refills_by_exception = false;
            core.forget_translations();
        }
    }

    /// The interconnect, to look up the ports of devices.
    pub fn interconnect(&self) -> &Interconnect {
        &self.path.interconnect
    }

    /// Frees the frames of `pages` virtual pages of `space` from `first` on and invalidates their translations on every
    /// core. Their lines stay in the caches until they are evicted.
    pub fn unmap(&mut self, space: SpaceId, first: u64, pages: u64) {
        self.path.spaces.unmap(space, first, pages);
        for core in &mut self.cores {
            core.forget_translations();
            (first..first.saturating_add(pages)).for_each(|page| core.tlbs.invalidate(space, page));
        }
    }

    /// Empties `space` for another program: frees all frames and flushes the TLBs of every core. Lines stay in the caches
    /// until they are evicted.
    pub fn clear_space(&mut self, space: SpaceId) {
        self.path.spaces.clear(space);
        for core in &mut self.cores {
            core.forget_translations();
            core.tlbs.flush();
        }
    }

    /// Opens a lock window of the last-level cache that `core` uses, or closes it with `None`. Lines in an open window
    /// are locked when they are accessed; closing a window unlocks its lines.
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

    /// Like [`MemorySystem::set_lock_window`], for a window that consists of several physical ranges, as a virtually
    /// contiguous range does; no range closes the window. On a real machine, the kernel would give the program
    /// contiguous memory.
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

    /// Sends `bytes` from one endpoint to another at `at`, bypassing caches and memory: traffic between devices and
    /// in-core stores. Returns the time at which the last byte arrives.
    ///
    /// # Panics
    /// If the host has no such endpoints.
    pub fn cross(&mut self, from: Endpoint, to: Endpoint, bytes: u32, at: Time) -> Time {
        let at = Time::from_ps(self.to_core_time(at));
        let end = self.path.interconnect.cross(from, to, bytes, at);
        self.to_interface_time(end.ps())
    }

    /// Sets how far the cores' clocks are ahead of every [`Time`] that this interface takes and returns. The lead grows
    /// when cores replay instructions while no time passes for the other components.
    pub fn set_lead(&mut self, lead: Duration) {
        self.lead_ps = lead.ps();
    }

    /// Converts a time of the interface to the cores' time, ps.
    fn to_core_time(&self, at: Time) -> u64 {
        at.ps().saturating_add(self.lead_ps)
    }

    /// Converts the cores' time to a time of the interface.
    fn to_interface_time(&self, ps: u64) -> Time {
        Time::from_ps(ps.saturating_sub(self.lead_ps))
    }

    /// Time that [`MemorySystem::cross`] takes without contention, picoseconds.
    ///
    /// # Panics
    /// If the host has no such endpoints.
    pub fn idle_ps(&mut self, from: Endpoint, to: Endpoint, bytes: u32) -> u64 {
        self.path.interconnect.idle_ps(from, to, bytes)
    }

    /// Converts a duration to cycles of `core`.
    ///
    /// # Panics
    /// If the host has no such core.
    pub fn cycles_of(&self, core: usize, duration: Duration) -> u64 {
        path::cycles_in(self.cores[core].clock, duration.ps())
    }

    /// Translates a virtual page for a device near NUMA node `node`. The first touch of a page allocates a frame.
    ///
    /// # Panics
    /// If the host has no such node.
    pub fn translate_for_device(&mut self, space: SpaceId, page: u64, node: usize) -> PhysicalPage {
        self.path.spaces.translate(space, page, node)
    }

    /// Replaces the address ranges of in-core stores. Accesses in them bypass TLBs and caches.
    pub fn set_stores(&mut self, stores: Vec<StoreWindow>) {
        self.stores = stores;
        self.cores.iter_mut().for_each(Private::forget_translations);
    }

    /// Sets the ways of every shared cache that `requester` may fill: bit n is way n. A mask without any way of a cache
    /// means all its ways.
    pub fn set_ways(&mut self, requester: Requester, ways: u64) {
        for shared in self.domains.iter_mut().filter_map(|d| d.shared.as_mut()) {
            let mask = if ways & shared.tags.all_ways() == 0 { u64::MAX } else { ways };
            shared.partition.set(requester, mask);
        }
    }
}
