//! The devices' access to the machine: guest memory through the modelled caches, in-core stores, interrupts and cache
//! locks.

use std::{ops::Range, sync::Arc};

use longma_devices::{Bus, BusFault, Placement, Region};
use longma_guest::{GuestMemory, HOST_PAGE_BYTES};
use longma_loongarch::{Access, Fault, FaultCause};
use longma_memory::{Allocate, LockWindow, MemorySystem, interconnect::Endpoint, placement::SpaceId};
use longma_sim::{Duration, Time};

use super::activity::ActivityRecorder;
use super::line::Line;

/// The largest lock window that is translated page by page.
const MAX_WINDOW_BYTES: u64 = 64 << 20;
/// The program's address space.
const SPACE: SpaceId = SpaceId(0);

/// The location of a device.
#[derive(Clone, Debug)]
pub(super) struct DeviceLocation {
    /// Its location in the interconnect.
    pub place: Endpoint,
    /// The nearest NUMA node.
    pub node: usize,
    /// The number of shared-cache ways that its writes may fill; `None` if writes bypass the cache.
    pub ways: Option<u32>,
    /// A core of the shared cache whose lines it can lock.
    pub core: usize,
    /// For a copy engine, the target of writes to each NUMA node on another chip: that chip's shared cache. Other
    /// devices always write through the shared cache of their own chip.
    pub far: Arc<[Option<Endpoint>]>,
}

/// An address range where the program has mapped an in-core store.
#[derive(Clone, Debug)]
pub(super) struct StoreRange {
    pub range: Range<u64>,
    pub core: usize,
    /// The load-to-use latency from its own core.
    pub latency: Duration,
}

/// The load-to-use latency of a store from each core, in cycles of that core. From another core, it includes a round
/// trip over the interconnect.
pub(super) fn store_latencies(store: &StoreRange, memory: &mut MemorySystem) -> Vec<u64> {
    let core_endpoint = Endpoint::Core(store.core);
    (0..memory.cores())
        .map(|core| {
            let delay =
                if core == store.core { 0 } else { memory.idle_ps(Endpoint::Core(core), core_endpoint, 0) };
            memory.cycles_of(core, Duration::from_ps(2 * delay + store.latency.ps()))
        })
        .collect()
}

/// The bus of one device.
pub(super) struct MachineBus<'a> {
    pub memory: &'a mut MemorySystem,
    pub guest: Option<&'a GuestMemory>,
    pub stores: &'a [StoreRange],
    pub location: &'a DeviceLocation,
    pub lines: &'a mut [Line],
    /// The device's number and the recorder of its accesses, if a trace is written.
    pub activity: Option<(usize, &'a mut ActivityRecorder)>,
}

impl MachineBus<'_> {
    fn store_at(&self, address: u64) -> Option<&StoreRange> {
        self.stores.iter().find(|store| store.range.contains(&address))
    }

    fn guest(&self, address: u64) -> Result<&GuestMemory, BusFault> {
        self.guest.ok_or(BusFault::Unmapped { address })
    }

    /// Calls `access` for each page of `bytes` bytes from `address` on, with its physical address. Returns the time at
    /// which the last one completes.
    fn by_page(
        &mut self,
        address: u64,
        bytes: u64,
        at: Time,
        access: impl Fn(&mut MemorySystem, Endpoint, u64, u64, Time) -> Time,
    ) -> Time {
        let page_bytes = self.memory.spaces().page_bytes();
        let (mut next, end, mut completed) = (address, address + bytes, at);
        while next < end {
            let until = (next / page_bytes + 1).saturating_mul(page_bytes).min(end);
            let page = self.memory.translate_for_device(SPACE, next / page_bytes, self.location.node);
            let physical = page.0 * page_bytes + next % page_bytes;
            completed = completed.max(access(self.memory, self.location.place, physical, until - next, at));
            next = until;
        }
        completed
    }

    /// The completion time of a transfer of `bytes` bytes to or from a store that starts at `at`.
    fn cross(&mut self, store: &StoreRange, bytes: usize, at: Time, to_store: bool) -> Time {
        let (core_endpoint, place) = (Endpoint::Core(store.core), self.location.place);
        let at = at.checked_add(store.latency).unwrap_or(at);
        match (core_endpoint == place, to_store) {
            (true, _) => at,
            (false, true) => self.memory.cross(place, core_endpoint, bytes as u32, at),
            (false, false) => {
                let request_arrival = self.memory.cross(place, core_endpoint, 0, at);
                self.memory.cross(core_endpoint, place, bytes as u32, request_arrival)
            }
        }
    }
}

/// Whether an access crosses host pages, so that it could succeed in part.
fn crosses_pages(address: u64, bytes: usize) -> bool {
    address / HOST_PAGE_BYTES != address.saturating_add(bytes.max(1) as u64 - 1) / HOST_PAGE_BYTES
}

fn fault_of(fault: Fault) -> BusFault {
    let address = fault.address;
    match (fault.cause, fault.access) {
        (FaultCause::Forbidden, Access::Write) => BusFault::Denied { address },
        _ => BusFault::Unmapped { address },
    }
}

/// Checks all pages of an access before performing it.
fn try_pages(guest: &GuestMemory, address: u64, bytes: usize, writes: bool) -> Result<(), Fault> {
    let last = address.saturating_add(bytes.max(1) as u64 - 1);
    let mut at = address;
    while at <= last {
        let byte: u8 = guest.load(at)?;
        if writes {
            guest.store(at, byte)?;
        }
        at = (at / HOST_PAGE_BYTES + 1) * HOST_PAGE_BYTES;
    }
    Ok(())
}

impl Bus for MachineBus<'_> {
    fn region(&self, address: u64) -> Option<Region> {
        if self.store_at(address).is_some() {
            return Some(Region::InCoreStore);
        }
        let is_mapped = self.guest.is_some_and(|guest| guest.load::<u8>(address).is_ok());
        is_mapped.then_some(Region::Memory)
    }

    fn read(&mut self, address: u64, into: &mut [u8], at: Time) -> Result<Time, BusFault> {
        let guest = self.guest(address)?;
        if crosses_pages(address, into.len()) {
            try_pages(guest, address, into.len(), false).map_err(fault_of)?;
        }
        guest.read(address, into).map_err(fault_of)?;
        let end = match self.store_at(address).cloned() {
            Some(store) => self.cross(&store, into.len(), at, false),
            None => self.by_page(address, into.len() as u64, at, |memory, place, physical, bytes, at| {
                memory.device_read(place, physical, bytes, at)
            }),
        };
        if let Some((part, activity)) = &mut self.activity {
            activity.dma(*part, into.len(), false, at, end);
        }
        Ok(end)
    }

    fn write(
        &mut self,
        address: u64,
        bytes: &[u8],
        placement: Placement,
        at: Time,
    ) -> Result<Time, BusFault> {
        let guest = self.guest(address)?;
        if crosses_pages(address, bytes.len()) {
            try_pages(guest, address, bytes.len(), true).map_err(fault_of)?;
        }
        guest.write(address, bytes).map_err(fault_of)?;
        let allocate = match (placement, self.location.ways) {
            (Placement::SharedCache { ways }, Some(available)) => {
                Allocate::Shared { ways: ways.map_or(available, |ways| ways.min(available)) }
            }
            (Placement::LockedLines, _) => Allocate::LockedOnly,
            (Placement::Memory, _) | (Placement::SharedCache { .. }, None) => Allocate::No,
        };
        let end = match self.store_at(address).cloned() {
            Some(store) => self.cross(&store, bytes.len(), at, true),
            None => {
                let far = self.location.far.clone();
                self.by_page(address, bytes.len() as u64, at, |memory, place, physical, bytes, at| {
                    let home = memory.spaces().node_of(physical);
                    match far.get(home).copied().flatten() {
                        None => memory.device_write(place, physical, bytes, allocate, at),
                        // The data cross the link and are written on the other chip; then the response returns.
                        Some(far) => {
                            let arrival = memory.cross(place, far, bytes as u32, at);
                            let completed = memory.device_write(far, physical, bytes, allocate, arrival);
                            memory.cross(far, place, 0, completed)
                        }
                    }
                })
            }
        };
        if let Some((part, activity)) = &mut self.activity {
            activity.dma(*part, bytes.len(), true, at, end);
        }
        Ok(end)
    }

    fn interrupt(&mut self, line: u32, asserted: bool, at: Time) {
        if let Some((part, activity)) = &mut self.activity
            && asserted
        {
            activity.asserted(*part, at);
        }
        // Lines beyond those of the device are ignored.
        if let Some(line) = self.lines.get_mut(line as usize) {
            line.set(asserted, at);
        }
    }

    fn lock_window(&mut self, window: u32, to: Option<(u64, u64)>) {
        let pieces = to.map_or_else(Vec::new, |(base, mask)| self.pieces(base, mask));
        // The registers have no more windows than the cache.
        let _ = self.memory.set_lock_pieces(self.location.core, window as usize, pieces);
    }
}

impl MachineBus<'_> {
    /// The physical ranges of a window of virtual addresses. The mask must be ones followed by zeros; otherwise the
    /// result is empty.
    fn pieces(&mut self, base: u64, mask: u64) -> Vec<LockWindow> {
        const ADDRESS_BITS: u64 = (1 << 48) - 1;
        let size = (!mask & ADDRESS_BITS) + 1;
        if !size.is_power_of_two() || size > MAX_WINDOW_BYTES {
            return Vec::new();
        }
        let start = base & mask;
        let page_bytes = self.memory.spaces().page_bytes();
        let piece = size.min(page_bytes);
        let Some(guest) = self.guest else { return Vec::new() };
        let mapped = |address: &u64| guest.load::<u8>(*address).is_ok();
        let pages: Vec<u64> = (start..start + size).step_by(piece as usize).filter(mapped).collect();
        pages
            .into_iter()
            .map(|address| {
                let page = self.memory.translate_for_device(SPACE, address / page_bytes, self.location.node);
                LockWindow { base: page.0 * page_bytes + address % page_bytes, mask: !(piece - 1) }
            })
            .collect()
    }
}
