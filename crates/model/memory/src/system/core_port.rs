//! One core's port into the memory system: the fast path for repeated hits, and address translation.

use super::MemorySystem;
use super::access::{Access, LineResult};
use super::private::{Private, Unit};
use crate::cache::{Flags, Kind, Line, Origin};
use crate::placement::SpaceId;
use crate::port::{Answer, MemoryPort, Source};
use crate::translation::{Arrival, Found, Side, Translation};
use longma_sim::Cycle;

/// One core's port into a [`MemorySystem`].
#[derive(Debug)]
pub struct CorePort<'a> {
    system: &'a mut MemorySystem,
    core: usize,
}

/// The page that one side translated last. Another TLB lookup of the same page would hit and change nothing, except for
/// the order of use in a TLB shared by both sides, where a run of uses by one side counts as one.
#[derive(Clone, Copy, Debug)]
pub(super) struct LastPage {
    /// Virtual page number; all ones if there is none.
    pub number: u64,
    /// Physical address of the page.
    pub physical: u64,
    /// When the first-level TLB got the translation.
    pub arrival: Arrival,
}

impl LastPage {
    pub const NONE: Self =
        Self { number: u64::MAX, physical: 0, arrival: Arrival { requested_at: 0, available_at: 0 } };
}

/// An access of a core to virtual memory.
#[derive(Clone, Copy, Debug)]
struct VirtualAccess {
    kind: Kind,
    address: u64,
    bytes: u32,
    /// Address of the instruction.
    instruction: u64,
    at: Cycle,
}

impl VirtualAccess {
    /// The first-level cache that serves the access.
    #[inline(always)]
    fn unit(&self) -> Unit {
        if self.kind == Kind::Fetch { Unit::Fetch } else { Unit::Data }
    }

    /// The side of the TLB that translates the address.
    #[inline(always)]
    fn side(&self) -> Side {
        if self.kind == Kind::Fetch { Side::Instruction } else { Side::Data }
    }

    /// Whether all bytes are in one line.
    #[inline(always)]
    fn is_in_one_line(&self, line_bits: u32) -> bool {
        (self.address & ((1 << line_bits) - 1)) + u64::from(self.bytes) <= 1 << line_bits
    }
}

impl<'a> CorePort<'a> {
    pub(super) fn new(system: &'a mut MemorySystem, core: usize) -> Self {
        Self { system, core }
    }

    /// Switches the core to the address space `space`. The TLBs keep the entries of both address spaces.
    pub fn set_space(&mut self, space: SpaceId) {
        let core = &mut self.system.cores[self.core];
        if core.space != space {
            core.space = space;
            core.forget_translations();
        }
    }

    /// Answers a hit on the most recently used line of a set, if the filter holds it. Returns the time at which the
    /// data can be used.
    // Always inlined, and the result is one word: returning an `Answer` through memory would cost the host as much as
    // the rest.
    #[inline(always)]
    fn filter_hit(&mut self, access: &VirtualAccess) -> Option<Cycle> {
        let &VirtualAccess { kind, address, at, .. } = access;
        let unit = access.unit();
        let core = &mut self.system.cores[self.core];
        let (line, page) = (address >> core.line_bits, address >> core.page_bits);
        let l1 = match unit {
            Unit::Fetch => core.fetch.as_mut()?,
            Unit::Data => &mut core.data,
        };
        let entry = l1.filter.lookup(line)?;
        let inside = access.is_in_one_line(core.line_bits);
        let writable = kind != Kind::Store || entry.writable;
        if entry.key != line || !inside || !writable {
            return None;
        }
        if core.last_page[unit as usize].number != page {
            let (hit_level, arrival) = core.tlbs.lookup_fast(access.side(), core.space, page)?;
            core.last_page[unit as usize] =
                LastPage { number: page, physical: hit_level.0 << core.page_bits, arrival };
        }
        if at.0 < core.last_page[unit as usize].arrival.available_at {
            return None;
        }
        let ready = entry.ready.max(at.0 + l1.latency);
        l1.counters.access(kind);
        Some(Cycle(ready))
    }

    /// Answers an access.
    #[inline(always)]
    fn answer(&mut self, access: VirtualAccess) -> Answer {
        match self.filter_hit(&access) {
            Some(ready) => Answer { ready, source: Source::Level1, translation_cycles: 0 },
            None => {
                // Only this copy is in memory; the fast path keeps the access in registers.
                let missed = access;
                self.hit(&missed)
            }
        }
    }

    /// Answers an access that missed in the filter: first tries a plain hit, then takes the general path.
    #[inline(never)]
    fn hit(&mut self, access: &VirtualAccess) -> Answer {
        if !self.system.stores.is_empty()
            && access.unit() == Unit::Data
            && let Some(answer) = self.in_store(access.address, access.at)
        {
            return answer;
        }
        match self.system.cores[self.core].plain_hit(access) {
            Some(answer) => answer,
            None => self.access_lines(access),
        }
    }

    /// Returns the cost of the TLB refill exceptions for an access that is not on the last page of its side.
    #[inline(never)]
    fn refill_pages(&mut self, side: Side, address: u64, bytes: u32) -> u32 {
        if side == Side::Data && self.in_store(address, Cycle(0)).is_some() {
            return 0;
        }
        let page_bits = self.system.cores[self.core].page_bits;
        let last = address.saturating_add(u64::from(bytes.max(1)) - 1);
        let pages = address >> page_bits..=last >> page_bits;
        pages.map(|page| self.system.refill_by_exception(self.core, side, page)).fold(0, u32::saturating_add)
    }

    /// Answers an access to an in-core store.
    fn in_store(&self, address: u64, at: Cycle) -> Option<Answer> {
        let found = self.system.stores.iter().find(|store| store.range.contains(&address))?;
        let latency = found.latency_cycles.get(self.core).copied().unwrap_or_default();
        Some(Answer { ready: at + latency, source: Source::Level1, translation_cycles: 0 })
    }

    /// The general path for any access. Lines of a longer access follow one another, one lookup of the first-level
    /// cache per cycle.
    #[inline(never)]
    fn access_lines(&mut self, access: &VirtualAccess) -> Answer {
        let &VirtualAccess { address, bytes, at, .. } = access;
        let line_bits = self.system.line_bits;
        let last = address.saturating_add(u64::from(bytes.max(1)) - 1);
        let (mut answer, mut missed) = self.one_line(access, None);
        if address >> line_bits != last >> line_bits {
            self.system.cores[self.core].level1(access.unit()).counters.line_crossings += 1;
        }
        for (later, line) in (1..).zip((address >> line_bits) + 1..=last >> line_bits) {
            let rest = VirtualAccess { address: line << line_bits, at: at + later, ..*access };
            let (more, more_missed) = self.one_line(&rest, Some(missed));
            missed |= more_missed;
            answer.ready = answer.ready.max(more.ready);
            answer.source = answer.source.farther(more.source);
            answer.translation_cycles = answer.translation_cycles.max(more.translation_cycles);
        }
        answer
    }

    /// Accesses the line that contains the first byte. `earlier_missed` is as in [`Access`]. Also returns whether the
    /// line missed in the first level.
    fn one_line(&mut self, access: &VirtualAccess, earlier_missed: Option<bool>) -> (Answer, bool) {
        let &VirtualAccess { kind, address, instruction, at, .. } = access;
        let unit = access.unit();
        let (physical, translation_cycles) = self.system.translate(self.core, unit, address, at.0);
        let line_bits = self.system.line_bits;
        let (line, virtual_line) = (Line(physical >> line_bits), address >> line_bits);
        let of_line = Access { line, virtual_line, kind, instruction, earlier_missed };
        let start = at.0 + u64::from(translation_cycles);
        let LineResult { ready, source, missed, .. } = self.system.access(self.core, unit, of_line, start);
        (Answer { ready: Cycle(ready), source, translation_cycles }, missed)
    }
}

impl MemoryPort for CorePort<'_> {
    #[inline]
    fn fetch(&mut self, address: u64, at: Cycle) -> Answer {
        self.answer(VirtualAccess { kind: Kind::Fetch, address, bytes: 1, instruction: address, at })
    }

    #[inline]
    fn load(&mut self, address: u64, bytes: u32, instruction: u64, at: Cycle) -> Answer {
        self.answer(VirtualAccess { kind: Kind::Load, address, bytes, instruction, at })
    }

    #[inline]
    fn store(&mut self, address: u64, bytes: u32, instruction: u64, at: Cycle) -> Answer {
        self.answer(VirtualAccess { kind: Kind::Store, address, bytes, instruction, at })
    }

    fn is_in_core(&self, address: u64) -> bool {
        self.in_store(address, Cycle(0)).is_some()
    }

    #[inline(always)]
    fn refill(&mut self, side: Side, address: u64, bytes: u32) -> u32 {
        let core = &self.system.cores[self.core];
        if !core.refills_by_exception {
            return 0;
        }
        let last = address.saturating_add(u64::from(bytes.max(1)) - 1);
        let (page, last_page) = (address >> core.page_bits, core.last_page[side as usize].number);
        if page == last >> core.page_bits
            && (page == last_page || core.tlbs.filter_has(side, core.space, page))
        {
            return 0;
        }
        self.refill_pages(side, address, bytes)
    }

    fn prefetch(&mut self, address: u64, instruction: u64, at: Cycle) {
        if self.in_store(address, at).is_some() {
            return;
        }
        let core = &self.system.cores[self.core];
        // A prefetch raises no exception: without a translation, it has no effect (LoongArch Reference Manual, volume
        // 1, PRELD).
        if core.refills_by_exception && !core.tlbs.has(Side::Data, core.space, address >> core.page_bits) {
            return;
        }
        self.access_lines(&VirtualAccess { kind: Kind::Prefetch, address, bytes: 1, instruction, at });
    }

    fn wants_announcements(&mut self) -> bool {
        self.system.cores[self.core].misses_often()
    }

    #[inline]
    fn announce(&mut self, address: u64) {
        self.system.announce(self.core, address);
    }
}

impl Private {
    /// Answers a first-level hit that does not change the line's state. `None` means that the general path must handle
    /// the access; only the translation has been done.
    fn plain_hit(&mut self, access: &VirtualAccess) -> Option<Answer> {
        let &VirtualAccess { kind, address, instruction, at, .. } = access;
        let unit = access.unit();
        let number = address >> self.page_bits;
        if !access.is_in_one_line(self.line_bits) {
            return None;
        }
        if self.last_page[unit as usize].number != number {
            let (hit_level, arrival) = self.tlbs.lookup_fast(access.side(), self.space, number)?;
            self.last_page[unit as usize] =
                LastPage { number, physical: hit_level.0 << self.page_bits, arrival };
        }
        if at.0 < self.last_page[unit as usize].arrival.available_at {
            return None;
        }
        let physical = self.last_page[unit as usize].physical | address & ((1 << self.page_bits) - 1);
        let (line, virtual_line) = (Line(physical >> self.line_bits), address >> self.line_bits);
        let l1 = self.level1(unit);
        let slot = l1.tags.find(line)?;
        let flags = l1.tags.flags(slot);
        let changes = kind == Kind::Store && (l1.write_through || !flags.has(Flags::DIRTY));
        if changes || flags.has(Flags::PREFETCHED) {
            return None;
        }
        l1.counters.access(kind);
        l1.tags.touch(slot, Origin::new(kind, instruction));
        let slot_number = l1.tags.number(slot);
        let (arrives, hit) = (l1.ready[slot_number], at.0 + l1.latency);
        l1.counters.merged += u64::from(arrives > hit);
        let writable_at = l1.writable_at[slot_number];
        let awaited = if kind == Kind::Store { arrives.max(writable_at) } else { arrives };
        // Compare with `at`, not with the end of this access: another access may use the line in between.
        let is_writable = flags.has(Flags::DIRTY) && writable_at <= at.0;
        l1.filter.record(virtual_line, slot.set(), slot_number, arrives, is_writable);
        Some(Answer { ready: Cycle(hit.max(awaited)), source: Source::Level1, translation_cycles: 0 })
    }

    /// Returns whether more than one in 32 loads and stores since the last call missed in the private caches.
    fn misses_often(&mut self) -> bool {
        let sum = |counts: &[u64; 5]| counts[Kind::Load as usize] + counts[Kind::Store as usize];
        let last = self.second.as_ref().map_or(&self.data.counters, |l2| &l2.counters);
        let now = [sum(&self.data.counters.accesses), sum(&last.misses)];
        // The counters are lower than before if a region of interest has begun.
        let [accesses, misses] = std::array::from_fn(|i| now[i].saturating_sub(self.counted[i]));
        self.counted = now;
        misses * 32 > accesses
    }
}

impl MemorySystem {
    /// Prefetches the host data that an access to `address` by `core` will need beyond the private caches.
    #[inline]
    fn announce(&mut self, core: usize, address: u64) {
        let private = &self.cores[core];
        let virtual_line = address >> private.line_bits;
        if private.data.filter.lookup(virtual_line).is_some_and(|entry| entry.key == virtual_line) {
            return;
        }
        let page_bits = private.page_bits;
        let Some(page) = self.path.spaces.lookup(private.space, address >> page_bits) else { return };
        let physical = page.0 << page_bits | address & ((1 << page_bits) - 1);
        let line = Line(physical >> private.line_bits);
        self.domains[private.domain].shared.iter().for_each(|shared| shared.tags.prefetch_host(line));
    }

    /// Translates a virtual address. Returns the physical address and the cycles beyond a first-level TLB hit.
    fn translate(&mut self, core: usize, unit: Unit, address: u64, at: u64) -> (u64, u32) {
        let private = &mut self.cores[core];
        let number = address >> private.page_bits;
        let offset = address & ((1 << private.page_bits) - 1);
        let last = private.last_page[unit as usize];
        let wait = |arrival: Arrival| u32::try_from(arrival.wait(at)).unwrap_or(u32::MAX);
        if last.number == number {
            return (last.physical | offset, wait(last.arrival));
        }
        let (space, node, page_bits) = (private.space, private.node, private.page_bits);
        let side = if unit == Unit::Fetch { Side::Instruction } else { Side::Data };
        let spaces = &mut self.path.spaces;
        let resolve = || spaces.translate(space, number, node);
        let translation = private.tlbs.translate(side, space, number, resolve);
        let physical = translation.page.0 << page_bits;
        let mut arrival = translation.arrival;
        if self.path.timing && translation.found != Found::FirstLevel {
            let available_at = match translation.found {
                Found::Walk | Found::Missed => self.refill(core, number, at, &translation),
                _ => at + u64::from(translation.extra_cycles),
            };
            arrival = Arrival { requested_at: at, available_at };
            self.cores[core].tlbs.set_arrival(side, space, number, arrival);
        } else if translation.found == Found::Walk {
            self.walk(core, space, number, at);
        }
        self.cores[core].last_page[unit as usize] = LastPage { number, physical, arrival };
        let first_level = if self.path.timing { translation.extra_cycles } else { 0 };
        (physical | offset, wait(arrival).max(first_level))
    }

    /// Refills a translation that no TLB holds, for an access at `at`, and returns the time at which it is available.
    /// The number of page walkers limits concurrent refills.
    fn refill(&mut self, core: usize, page: u64, at: u64, translation: &Translation) -> u64 {
        let private = &mut self.cores[core];
        let (space, start) = (private.space, private.walkers.start(at));
        let extra = u64::from(translation.extra_cycles);
        let (mut waited_until, mut end) = (start, start + extra);
        if translation.found == Found::Walk
            && let Some(entry) = self.walk(core, space, page, end)
        {
            (waited_until, end) = (entry.waited_until.saturating_sub(extra), entry.ready);
        }
        end + self.cores[core].walkers.hold(start, waited_until, end)
    }

    /// Inserts a translation that no TLB of `core` holds, as the exception handler does. Returns the cycles that the
    /// exception adds to a lone access.
    fn refill_by_exception(&mut self, core: usize, side: Side, page: u64) -> u32 {
        let Private { space, node, .. } = self.cores[core];
        if self.cores[core].tlbs.has(side, space, page) {
            return 0;
        }
        let spaces = &mut self.path.spaces;
        let resolve = || spaces.translate(space, page, node);
        self.cores[core].tlbs.translate(side, space, page, resolve).extra_cycles
    }

    /// Loads the last-level page table entry through the data cache, as a hardware walker does. `None` if the page is
    /// not mapped.
    fn walk(&mut self, core: usize, space: SpaceId, page: u64, at: u64) -> Option<LineResult> {
        let entry = self.path.spaces.entry_address(space, page)?;
        let line = Line(entry >> self.line_bits);
        let access =
            Access { line, virtual_line: u64::MAX, kind: Kind::Load, instruction: 0, earlier_missed: None };
        Some(self.access(core, Unit::Data, access, at))
    }
}

impl Source {
    /// The more distant of two sources.
    fn farther(self, other: Self) -> Self {
        if self as u8 >= other as u8 { self } else { other }
    }
}
