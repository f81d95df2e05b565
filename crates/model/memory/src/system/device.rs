//! Device accesses to physical memory (DMA), kept coherent with the caches.
//!
//! Source: direct cache access after Huggahalli, Iyer and Tetrick, ISCA 2005, and Intel's Data Direct I/O brief (writes
//! hit or allocate in a few ways, reads never allocate); writes to locked lines after the Loongson 3A5000 manual.

use super::MemorySystem;
use super::domain::Directory;
use super::path::REQUEST_BYTES;
use super::probe::{Probe, bits};
use crate::cache::{Flags, Kind, Line, Origin, Requester, Slot};
use crate::coherence::Holders;
use crate::interconnect::Endpoint;
use longma_sim::Time;

/// Destination of a device's write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocate {
    /// To memory. Cached copies are invalidated, except that a locked line is updated as well.
    No,
    /// To the shared cache: the line is updated if present, and otherwise allocated in one of the first `ways` ways
    /// that devices may fill.
    Shared {
        /// Number of ways of a set in which new lines may be allocated.
        ways: u32,
    },
    /// To the shared cache if it hits a locked line, otherwise to memory.
    LockedOnly,
}

/// The part of a device's access that is in one line.
#[derive(Clone, Copy, Debug)]
struct LinePart {
    line: Line,
    bytes: u32,
    /// Whether it covers the whole line.
    whole: bool,
}

/// A device's write to a part of a line, through the shared cache of a domain.
#[derive(Clone, Copy, Debug)]
struct DeviceWrite {
    from: Endpoint,
    domain: usize,
    part: LinePart,
    at: u64,
}

impl MemorySystem {
    /// Writes `bytes` from physical `address` on for a device behind `from`. Returns the time at which the last byte is
    /// visible to cores.
    pub fn device_write(
        &mut self,
        from: Endpoint,
        address: u64,
        bytes: u64,
        allocate: Allocate,
        at: Time,
    ) -> Time {
        let at_ps = self.to_core_time(at);
        let mut end = at_ps;
        for part in line_parts(self.line_bits, address, bytes) {
            end = end.max(self.device_write_part(from, part, allocate, at_ps));
        }
        self.to_interface_time(end)
    }

    /// Reads `bytes` from physical `address` on for a device behind `to`. Returns the time at which the last byte
    /// arrives. A read does not move or allocate lines.
    pub fn device_read(&mut self, to: Endpoint, address: u64, bytes: u64, at: Time) -> Time {
        let at_ps = self.to_core_time(at);
        let mut end = at_ps;
        for part in line_parts(self.line_bits, address, bytes) {
            end = end.max(self.device_read_part(to, part, at_ps));
        }
        self.to_interface_time(end)
    }

    /// The domain whose shared cache a device's accesses go through.
    fn domain_of(&self, endpoint: Endpoint) -> usize {
        let found = match endpoint {
            Endpoint::Core(core) => self.cores.get(core).map(|c| c.domain),
            Endpoint::Cache(cache) => {
                let is = |d: &super::Domain| d.shared.as_ref().is_some_and(|s| s.instance == cache);
                self.domains.iter().position(is)
            }
            Endpoint::Port { chip, .. } => self.domains.iter().position(|d| d.chip == chip),
            Endpoint::Controller(_) => None,
        };
        found.unwrap_or(0)
    }

    fn device_write_part(&mut self, from: Endpoint, part: LinePart, allocate: Allocate, at: u64) -> u64 {
        let domain = self.domain_of(from);
        let line = part.line;
        let write = DeviceWrite { from, domain, part, at };
        self.prefetch_host_beyond_cores(domain, line, 1);
        let mut dirty = self.invalidate_all_except(domain, line, at);
        let slot = self.domains[domain].shared.as_ref().and_then(|s| s.tags.find(line));
        let sharers = self.domains[domain].sharers(line, slot);
        for bit in bits(sharers) {
            let core = self.domains[domain].cores[bit];
            let probe_result = self.probe_core(core, line, Probe::Invalidate);
            dirty |= probe_result.is_some_and(|f| f.has(Flags::DIRTY));
        }
        if let Directory::Separate(table) = &mut self.domains[domain].directory {
            table.set(line, Holders::default());
        }
        let (locked, old) = match (&mut self.domains[domain].shared, slot) {
            (Some(shared), Some(slot)) => {
                shared.counters.access(Kind::Device);
                let flags = shared.tags.flags(slot).without(Flags::OWNED);
                shared.tags.set_sharers(slot, 0);
                shared.tags.set_flags(slot, flags.with(Flags::DIRTY.when(dirty)));
                (flags.has(Flags::LOCKED), Some(slot))
            }
            (Some(shared), None) => {
                shared.counters.access(Kind::Device);
                shared.counters.miss(Kind::Device);
                (false, None)
            }
            (None, _) => (false, None),
        };
        match (allocate, old) {
            (Allocate::Shared { .. }, Some(slot)) => self.device_update(write, slot),
            (Allocate::LockedOnly, Some(slot)) if locked => self.device_update(write, slot),
            (Allocate::Shared { ways }, None) => match self.device_ways(domain, line, ways) {
                0 => self.device_to_memory(write, dirty),
                ways => self.device_fill(write, dirty, ways),
            },
            (_, slot) => {
                if let Some(slot) = slot {
                    dirty |= self.device_drop(domain, slot, line, locked);
                }
                self.device_to_memory(write, dirty)
            }
        }
    }

    /// Invalidates a line in every domain but one. Returns true if a dirty copy would be lost.
    fn invalidate_all_except(&mut self, domain: usize, line: Line, at: u64) -> bool {
        let Some(home) = &self.home else { return false };
        let holders = home.get(line);
        let mut dirty = false;
        for other in bits(holders.mask() & !(1 << domain)) {
            let probe_result = self.probe_domain(other, line, Probe::Invalidate);
            if probe_result.is_some_and(|f| f.has(Flags::DIRTY)) {
                dirty = true;
                self.write_to_memory(other, line, at);
            }
        }
        if let Some(home) = &mut self.home {
            let own_bit = holders.mask() & 1 << domain;
            home.set(line, Holders::new(own_bit, own_bit != 0));
        }
        // With a home directory, the loop above has written dirty copies to memory.
        dirty && self.home.is_none()
    }

    /// The ways of the set of `line` that a device may fill: the first `limit` of its partition, except locked ones.
    fn device_ways(&self, domain: usize, line: Line, limit: u32) -> u64 {
        let Some(shared) = &self.domains[domain].shared else { return 0 };
        let allowed = shared.partition.ways(Requester::Device) & shared.tags.all_ways();
        let first = bits(allowed).take(limit as usize).fold(0, |mask, way| mask | 1 << way);
        first & !shared.tags.locked_ways(line)
    }

    /// Writes to a line of the shared cache.
    fn device_update(&mut self, write: DeviceWrite, slot: Slot) -> u64 {
        let DeviceWrite { from, domain, part, at } = write;
        if let Some(home) = &mut self.home {
            home.set(part.line, Holders::new(1 << domain, true));
        }
        let Some(shared) = &mut self.domains[domain].shared else { return at };
        shared.tags.touch(slot, Origin::DEVICE);
        shared.tags.add_flags(slot, Flags::WRITABLE.with(Flags::DIRTY).with(Flags::DEVICE));
        self.path.device_to_shared(from, shared, part.line, part.bytes, at)
    }

    /// Allocates a line of the shared cache for a device's write. The bytes that the device does not write are read
    /// from memory; the write does not wait for them.
    fn device_fill(&mut self, write: DeviceWrite, dirty: bool, ways: u64) -> u64 {
        let DeviceWrite { from, domain, part: LinePart { line, bytes, whole }, at } = write;
        if !whole && !dirty {
            self.messages.memory_reads += 1;
            let to = self.domains[domain].endpoint();
            let line_bytes = 1 << self.line_bits;
            let node = self.domains[domain].node;
            self.path.device_read_memory(to, node, line, line_bytes, at);
        }
        if let Some(home) = &mut self.home {
            home.set(line, Holders::new(1 << domain, true));
        }
        let flags = Flags::WRITABLE.with(Flags::DIRTY).with(Flags::DEVICE);
        self.insert_shared(domain, (line, Origin::DEVICE), flags, ways, at);
        let Some(shared) = &mut self.domains[domain].shared else { return at };
        shared.counters.device_fills += 1;
        self.path.device_to_shared(from, shared, line, bytes, at)
    }

    /// Removes a line of the shared cache that a device writes in memory, unless it is locked. Returns true if a dirty
    /// line was removed.
    fn device_drop(&mut self, domain: usize, slot: Slot, line: Line, locked: bool) -> bool {
        let Some(shared) = &mut self.domains[domain].shared else { return false };
        shared.counters.invalidations += u64::from(!locked);
        if locked {
            return false;
        }
        let dirty = shared.remove(slot).has(Flags::DIRTY);
        self.evicted_from_domain(domain, line);
        dirty
    }

    fn device_to_memory(&mut self, write: DeviceWrite, dirty: bool) -> u64 {
        let DeviceWrite { from, domain, part: LinePart { line, bytes, whole }, at } = write;
        if dirty && !whole {
            // Keep the bytes that the device does not write.
            self.write_to_memory(domain, line, at);
        }
        let is_cached = self.domains[domain].shared.as_ref().is_some_and(|s| s.tags.find(line).is_some());
        if !is_cached {
            self.evicted_from_domain(domain, line);
        }
        self.messages.write(line, true);
        self.path.write_memory_bytes(from, line, bytes, at)
    }

    fn device_read_part(&mut self, to: Endpoint, part: LinePart, at: u64) -> u64 {
        let LinePart { line, bytes, .. } = part;
        let domain = self.domain_of(to);
        let owner = self.home.as_ref().and_then(|home| home.get(line).owner());
        let elsewhere = owner.filter(|owner| *owner != domain);
        if let Some(owner) = elsewhere {
            let probe_result = self.probe_domain(owner, line, Probe::Share);
            if probe_result.is_some_and(|f| f.has(Flags::DIRTY)) {
                self.write_to_memory(owner, line, at);
            }
            if let Some(home) = &mut self.home {
                home.set(line, Holders::new(home.get(line).mask(), false));
            }
        }
        self.clean_cores(domain, line, at);
        let (node, lookup_ps) =
            (self.domains[domain].node, self.path.fixed_latencies[self.domains[domain].cores[0]].after_ps);
        let Some(shared) = &mut self.domains[domain].shared else {
            self.messages.memory_reads += 1;
            return self.path.device_read_memory(to, node, line, bytes, at);
        };
        shared.counters.access(Kind::Device);
        let Some(slot) = shared.tags.find(line) else {
            shared.counters.miss(Kind::Device);
            self.messages.memory_reads += 1;
            return self.path.device_read_memory(to, node, line, bytes, at);
        };
        shared.tags.touch(slot, Origin::DEVICE);
        let instance = shared.instance;
        let at = self.path.device_to_shared(to, shared, line, REQUEST_BYTES, at);
        self.path.send(Endpoint::Cache(instance), to, bytes, at) + lookup_ps
    }

    /// Writes a dirty copy of a core in `domain` back to the shared cache or to memory. The core keeps a clean copy.
    fn clean_cores(&mut self, domain: usize, line: Line, at: u64) {
        let slot = self.domains[domain].shared.as_ref().and_then(|s| s.tags.find(line));
        let sharers = self.domains[domain].sharers(line, slot);
        let owner = match (&self.domains[domain].directory, &self.domains[domain].shared, slot) {
            (Directory::Separate(table), ..) => table.get(line).owner(),
            (Directory::InTags, Some(shared), Some(slot)) => shared.holders(slot).1,
            _ => None,
        };
        let Some(owner) = owner else { return };
        let core = self.domains[domain].cores[owner];
        let probe_result = self.probe_core(core, line, Probe::Share);
        let dirty = probe_result.is_some_and(|f| f.has(Flags::DIRTY));
        let part = &mut self.domains[domain];
        if let Directory::Separate(table) = &mut part.directory {
            table.set(line, Holders::new(sharers, false));
        }
        match (&mut part.shared, slot) {
            (Some(shared), Some(slot)) => {
                let flags = shared.tags.flags(slot).without(Flags::OWNED);
                shared.tags.set_flags(slot, flags.with(Flags::DIRTY.when(dirty)));
            }
            _ if dirty => self.write_to_memory(domain, line, at),
            _ => {}
        }
    }
}

/// Splits the range of `bytes` from `address` on at line boundaries.
fn line_parts(line_bits: u32, address: u64, bytes: u64) -> impl Iterator<Item = LinePart> {
    let length = 1u64 << line_bits;
    let end = address.saturating_add(bytes);
    let mut next = address;
    std::iter::from_fn(move || {
        if next >= end {
            return None;
        }
        let until = ((next / length + 1).saturating_mul(length)).min(end);
        let part_bytes = until - next;
        let part =
            LinePart { line: Line(next >> line_bits), bytes: part_bytes as u32, whole: part_bytes == length };
        next = until;
        Some(part)
    })
}
