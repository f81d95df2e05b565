//! Accesses through a core's private caches: hits, misses, fills and prefetches. `request` continues beyond the last
//! private cache.
//!
//! Source: Hennessy and Patterson, appendix B; victim and exclusive levels after Jouppi and Wilton, ISCA 1994.

use super::MemorySystem;
use super::private::Unit;
use crate::cache::{Flags, Kind, Line, Origin, Slot};
use crate::port::Source;
use crate::prefetch::{Event, Prefetcher};

/// An access to one line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    pub line: Line,
    /// The virtual line number; all ones for accesses by hardware.
    pub virtual_line: u64,
    pub kind: Kind,
    /// Address of the instruction.
    pub instruction: u64,
    /// For a further line of an access to several lines: whether an earlier line missed in the first level.
    pub earlier_missed: Option<bool>,
}

impl Access {
    fn origin(&self) -> Origin {
        Origin::new(self.kind, self.instruction)
    }
}

/// Bytes of a store that is written through: a register.
const WORD_BYTES: u32 = 8;

/// The virtual line of hardware accesses, such as prefetches.
const BY_HARDWARE: u64 = u64::MAX;

/// The result of fetching a line for a core: when it is available (core cycles), its source, and its state.
#[derive(Clone, Copy, Debug)]
pub(super) struct LineResult {
    pub ready: u64,
    /// Until this cycle, the request only waited for a line or resource reserved by earlier requests.
    pub waited_until: u64,
    pub source: Source,
    pub flags: Flags,
    /// Whether the access missed in the first level.
    pub missed: bool,
}

impl LineResult {
    /// A line in the first-level cache, available at `ready`.
    fn in_level1(ready: u64, at: u64) -> Self {
        Self { ready, waited_until: at, source: Source::Level1, flags: Flags::NONE, missed: false }
    }

    /// Delays the line by `later` cycles because its miss register was not free for long enough. The register is held
    /// from `start`.
    fn delay(&mut self, start: u64, later: u64) {
        self.ready += later;
        self.waited_until = self.waited_until.max(start) + later;
    }
}

impl MemorySystem {
    /// Accesses a line through the first-level cache. Returns the time at which it is available, and its source.
    pub(super) fn access(&mut self, core: usize, unit: Unit, access: Access, at: u64) -> LineResult {
        let l1 = self.cores[core].level1(unit);
        if access.earlier_missed.is_none() {
            l1.counters.access(access.kind);
        }
        match l1.tags.find(access.line) {
            Some(slot) => self.hit(core, unit, access, slot, at),
            None => match self.waits_with_others(core, unit, access, at) {
                Some(ready) => LineResult::in_level1(ready, at),
                None => self.miss(core, unit, access, at),
            },
        }
    }

    /// Handles a store to a line that is in flight for older stores of the core but already promised to another core.
    /// Returns the time at which the store completes, together with those stores.
    fn waits_with_others(&mut self, core: usize, unit: Unit, access: Access, at: u64) -> Option<u64> {
        let stores = unit == Unit::Data && access.kind.writes() && self.path.timing;
        if stores { self.cores[core].store_before_transfer(access.line, at) } else { None }
    }

    fn hit(&mut self, core: usize, unit: Unit, access: Access, slot: Slot, at: u64) -> LineResult {
        let Access { line, kind, .. } = access;
        let l1 = self.cores[core].level1(unit);
        l1.tags.touch(slot, access.origin());
        if !l1.tags.flags(slot).has(Flags::WRITABLE)
            && let Some(ready) = self.waits_with_others(core, unit, access, at)
        {
            return LineResult::in_level1(ready, at);
        }
        let l1 = self.cores[core].level1(unit);
        let arrives = l1.ready[l1.tags.number(slot)];
        let (hit, mut source) = (at + l1.latency, Source::Level1);
        let writable_at = l1.writable_at[l1.tags.number(slot)];
        let mut ready = hit.max(if kind.writes() { arrives.max(writable_at) } else { arrives });
        l1.counters.merged += u64::from(arrives > hit);
        let mut flags = l1.tags.flags(slot);
        let first_use = flags.has(Flags::PREFETCHED) && kind != Kind::Prefetch;
        if first_use {
            flags = flags.without(Flags::PREFETCHED);
            l1.counters.used_prefetch(arrives > hit);
        }
        if kind.writes() && !flags.has(Flags::WRITABLE) {
            l1.counters.upgrades += 1;
            let response = self.request(core, access, hit);
            (ready, source) = (ready.max(response.ready), response.source);
            self.allow_writing(core, line);
            // Another core can get the line from here only after the write permission has arrived. The core's own loads
            // read the present copy without waiting.
            let l1 = self.cores[core].level1(unit);
            let number = l1.tags.number(slot);
            l1.writable_at[number] = ready;
        }
        if kind.writes() && !flags.has(Flags::DIRTY) {
            self.drop_instructions(core, line);
        }
        (flags, ready) = self.after_write(core, line, kind, (flags, ready));
        let l1 = self.cores[core].level1(unit);
        l1.tags.set_flags(slot, flags);
        let number = l1.tags.number(slot);
        if access.virtual_line == BY_HARDWARE {
            l1.filter.invalidate_set(slot.set());
        } else {
            let is_writable = flags.has(Flags::DIRTY) && l1.writable_at[number] <= at;
            l1.filter.record(access.virtual_line, slot.set(), number, arrives, is_writable);
        }
        if first_use {
            self.prefetch_level1(core, unit, access, at, Event::FirstUse);
        }
        // If the line arrives later than the hit latency, the access has only waited until then.
        let waited_until = if ready > hit { ready } else { at };
        LineResult { ready, waited_until, source, flags, missed: false }
    }

    /// Returns the flags of a first-level line after an access of `kind`, and when the access is complete. `ready` is
    /// the time at which the line arrives. A write-through cache passes the store to the levels below.
    fn after_write(
        &mut self,
        core: usize,
        line: Line,
        kind: Kind,
        (flags, ready): (Flags, u64),
    ) -> (Flags, u64) {
        if !kind.writes() {
            return (flags, ready);
        }
        let flags = flags.with(Flags::WRITABLE);
        if !self.cores[core].data.write_through {
            return (flags.with(Flags::DIRTY), ready);
        }
        self.cores[core].data.counters.write_throughs += 1;
        (flags, self.write_below(core, line, ready))
    }

    /// Invalidates the line in the instruction cache because a store makes it dirty on the data side.
    fn drop_instructions(&mut self, core: usize, line: Line) {
        if let Some(fetch) = &mut self.cores[core].fetch
            && let Some(slot) = fetch.tags.find(line)
        {
            fetch.remove(slot);
            fetch.counters.invalidations += 1;
        }
    }

    /// Writes a store of the first level through to the nearest level below that holds the line, or to memory. Returns
    /// the time at which that level has accepted the store.
    fn write_below(&mut self, core: usize, line: Line, at: u64) -> u64 {
        let dirty = Flags::WRITABLE.with(Flags::DIRTY);
        let mut taken = at;
        if let Some(l2) = &mut self.cores[core].second
            && let Some(slot) = l2.tags.find(line)
        {
            taken += l2.banks.as_mut().map_or(0, |banks| banks.take_word(line, at));
            if !l2.write_through {
                l2.tags.add_flags(slot, dirty);
                return taken;
            }
            l2.counters.write_throughs += 1;
        }
        self.write_beyond_private(core, line, (WORD_BYTES, true), taken)
    }

    /// Writes `bytes` of a line that stays in a private cache of `core`: to the shared cache if that holds the line,
    /// otherwise to memory. With `of_store`, the bytes are those of a store that is being performed. Returns the core
    /// cycle at which the bytes have been accepted.
    pub(super) fn write_beyond_private(
        &mut self,
        core: usize,
        line: Line,
        (bytes, of_store): (u32, bool),
        at: u64,
    ) -> u64 {
        let (clock, domain) = (self.cores[core].clock, self.cores[core].domain);
        let start = self.path.time(clock, at);
        let part = &mut self.domains[domain];
        let from = part.endpoint_for(core);
        let end = if let Some(shared) = &mut part.shared
            && let Some(slot) = shared.tags.find(line)
        {
            shared.tags.add_flags(slot, Flags::WRITABLE.with(Flags::DIRTY));
            self.path.write_to_shared(shared, core, line, bytes, start)
        } else {
            self.messages.write(line, of_store);
            self.path.write_memory_bytes(from, line, bytes, start)
        };
        self.path.cycles_after(clock, at, start, end)
    }

    /// Records in the second-level cache that the core has write permission for `line`, for when the first-level copy
    /// is evicted.
    fn allow_writing(&mut self, core: usize, line: Line) {
        if let Some(l2) = &mut self.cores[core].second
            && let Some(slot) = l2.tags.find(line)
        {
            l2.tags.add_flags(slot, Flags::WRITABLE);
        }
    }

    fn miss(&mut self, core: usize, unit: Unit, access: Access, at: u64) -> LineResult {
        let Access { line, kind, .. } = access;
        let private = &self.cores[core];
        // Both sets are needed shortly. The host fetches them while the first level is processed.
        self.domains[private.domain].shared.iter().for_each(|shared| shared.tags.prefetch_host(line));
        private.second.iter().for_each(|l2| l2.tags.prefetch_host(line));
        let l1 = self.cores[core].level1(unit);
        if access.earlier_missed != Some(true) {
            l1.counters.miss(kind);
        }
        let start = if self.path.timing { l1.registers.start(at) } else { at };
        let mut response = self.second_level(core, unit, access, start);
        response.ready = self.cores[core].level1(unit).arrives(response.ready);
        let (flags, ready) = self.after_write(core, line, kind, (response.flags, response.ready));
        response.ready = ready;
        if self.path.timing {
            let l1 = self.cores[core].level1(unit);
            let later = l1.registers.hold(start, response.waited_until, response.ready);
            l1.counters.waited_for_register(start - at + later);
            response.delay(start, later);
        }
        self.fill(core, unit, access, flags, response.ready);
        if kind != Kind::Prefetch {
            self.prefetch_level1(core, unit, access, at, Event::Miss);
        }
        response.missed = true;
        response
    }

    /// Inserts a line into a first-level cache. A separate instruction cache never holds writable lines.
    fn fill(&mut self, core: usize, unit: Unit, access: Access, flags: Flags, ready: u64) {
        let separate = unit == Unit::Fetch && self.cores[core].fetch.is_some();
        let flags = if separate { flags.without(Flags::WRITABLE.with(Flags::DIRTY)) } else { flags };
        if flags.has(Flags::DIRTY) || access.kind.writes() {
            self.drop_instructions(core, access.line);
        }
        let l1 = self.cores[core].level1(unit);
        let inserted = l1.tags.insert(access.line, flags, u64::MAX, access.origin());
        let Some((slot, evicted)) = inserted else { return };
        let number = l1.tags.number(slot);
        (l1.ready[number], l1.writable_at[number]) = (ready, ready);
        if access.virtual_line == BY_HARDWARE {
            l1.filter.invalidate_set(slot.set());
        } else {
            l1.filter.record(access.virtual_line, slot.set(), number, ready, flags.has(Flags::DIRTY));
        }
        if let Some(evicted) = evicted {
            l1.counters.evicted(evicted.flags);
            self.evicted_from_level1(core, evicted.line, evicted.flags.state(), ready);
        }
    }

    /// Fetches a line for the first-level cache from the second level or beyond.
    fn second_level(&mut self, core: usize, unit: Unit, access: Access, at: u64) -> LineResult {
        let Access { line, kind, .. } = access;
        if unit == Unit::Fetch {
            self.flush_data(core, line, at);
        }
        let Some(l2) = &mut self.cores[core].second else { return self.request(core, access, at) };
        l2.counters.access(kind);
        if let Some(slot) = l2.tags.find(line) {
            return self.hit_level2(core, unit, access, slot, at);
        }
        l2.counters.miss(kind);
        let start = if self.path.timing { l2.registers.start(at) } else { at };
        let mut response = self.request(core, access, start);
        let timing = self.path.timing;
        let Some(l2) = &mut self.cores[core].second else { return response };
        if timing {
            let later = l2.registers.hold(start, response.waited_until, response.ready);
            l2.counters.waited_for_register(start - at + later);
            response.delay(start, later);
        }
        let mut flags = response.flags;
        if !l2.takes_victims() {
            self.fill_level2(core, access, flags, at, response.ready);
            // The second level remains responsible for the write-back; the first level only gets the write permission.
            flags = flags.without(Flags::DIRTY);
        }
        // Prefetches of the first level train the second-level prefetcher too, so that a stream does not end when the
        // first level takes it over (Intel 248966, streamer).
        self.prefetch_level2(core, unit, access, at, Event::Miss);
        LineResult { flags, ..response }
    }

    fn hit_level2(&mut self, core: usize, unit: Unit, access: Access, slot: Slot, at: u64) -> LineResult {
        let Access { line, kind, .. } = access;
        let Some(l2) = &mut self.cores[core].second else { return self.request(core, access, at) };
        l2.tags.touch(slot, access.origin());
        let mut flags = l2.tags.flags(slot);
        let (mut ready, mut waited_until) = (at + l2.latency, at);
        let mut source = Source::Level2;
        let mut event = l2.prefetcher.as_ref().is_some_and(Prefetcher::sees_hits).then_some(Event::Hit);
        if flags.has(Flags::PREFETCHED) {
            event = Some(Event::FirstUse);
            flags = flags.without(Flags::PREFETCHED);
            let is_late = self.path.timing && l2.in_flight.ready(line) > ready;
            l2.counters.used_prefetch(is_late);
        }
        if self.path.timing && l2.prefetcher.is_some() {
            let arrives = l2.in_flight.ready(line);
            l2.counters.merged += u64::from(arrives > ready);
            if arrives > ready {
                (ready, waited_until) = (arrives, arrives);
            }
        }
        if let Some(banks) = &mut l2.banks {
            let wait = banks.take_line(line, at);
            if wait > 0 {
                (ready, waited_until) = (ready.max(at + wait + l2.latency), waited_until.max(at + wait));
            }
        }
        let moves = l2.takes_victims() && !(unit == Unit::Fetch && flags.has(Flags::DIRTY));
        if kind.writes() && !flags.has(Flags::WRITABLE) {
            l2.counters.upgrades += 1;
            let response = self.request(core, access, ready);
            if response.waited_until > ready {
                waited_until = response.waited_until;
            }
            (ready, source) = (ready.max(response.ready), response.source);
            flags = flags.with(Flags::WRITABLE);
        }
        let Some(l2) = &mut self.cores[core].second else {
            return LineResult { ready, waited_until, source, flags, missed: true };
        };
        let mut given = flags.state();
        if moves {
            l2.tags.remove(slot);
        } else {
            l2.tags.set_flags(slot, flags);
            given = given.without(Flags::DIRTY);
        }
        if let Some(event) = event {
            self.prefetch_level2(core, unit, access, at, event);
        }
        LineResult { ready, waited_until, source, flags: given, missed: true }
    }

    /// Inserts a line requested at `at` into a second-level cache that also holds the lines of the first level.
    fn fill_level2(&mut self, core: usize, access: Access, flags: Flags, at: u64, ready: u64) {
        let line = access.line;
        let Some(l2) = &mut self.cores[core].second else { return };
        if let Some(slot) = l2.tags.find(line) {
            l2.tags.add_flags(slot, flags.state());
            return;
        }
        if l2.prefetcher.is_some() {
            l2.in_flight.record(line, at, ready);
        }
        if let Some((_, Some(evicted))) = l2.tags.insert(line, flags, u64::MAX, access.origin()) {
            l2.counters.evicted(evicted.flags);
            self.evicted_from_level2(core, evicted.line, evicted.flags.state(), ready);
        }
    }

    /// Writes a dirty data-cache copy back before instructions are fetched from the line.
    fn flush_data(&mut self, core: usize, line: Line, at: u64) {
        let private = &mut self.cores[core];
        if private.fetch.is_some()
            && let Some(slot) = private.data.tags.find(line)
        {
            let flags = private.data.remove(slot).state();
            self.evicted_from_level1(core, line, flags, at);
        }
    }

    fn prefetch_level1(&mut self, core: usize, unit: Unit, access: Access, at: u64, event: Event) {
        let l1 = self.cores[core].level1(unit);
        let Some(prefetcher) = &mut l1.prefetcher else { return };
        let prediction = prefetcher.observe(access.line, access.instruction, event);
        for (index, line) in (0..).zip(prediction.lines()) {
            let next = self.is_next_in_memory(core, unit, access.line, *line);
            let l1 = self.cores[core].level1(unit);
            if !next {
                l1.prefetcher.iter_mut().for_each(|prefetcher| prefetcher.truncated(*line));
                l1.counters.dropped_prefetches += prediction.lines().len() as u64 - index;
                break;
            }
            // Demand misses have priority: without a free register, drop the prefetch.
            if l1.tags.find(*line).is_some() {
                continue;
            }
            if self.path.timing && l1.registers.start(at) > at {
                l1.counters.dropped_prefetches += 1;
                continue;
            }
            l1.counters.prefetched += 1;
            let access = Access { line: *line, virtual_line: BY_HARDWARE, kind: Kind::Prefetch, ..access };
            let mut response = self.second_level(core, unit, access, at);
            response.ready = self.cores[core].level1(unit).arrives(response.ready);
            if self.path.timing {
                response.ready +=
                    self.cores[core].level1(unit).registers.hold(at, response.waited_until, response.ready);
            }
            self.fill(core, unit, access, response.flags.with(Flags::PREFETCHED), response.ready);
        }
    }

    /// Returns whether `line` is on the page of `from`, which `core` has just accessed, or on the virtually adjacent
    /// page, provided that page is also adjacent in physical memory.
    pub(super) fn is_next_in_memory(&mut self, core: usize, unit: Unit, from: Line, line: Line) -> bool {
        let private = &self.cores[core];
        let page_of = |line: Line| line.0 >> (private.page_bits - self.line_bits);
        let (current, target) = (page_of(from), page_of(line));
        let last = private.last_page[unit as usize];
        let next = match target.wrapping_sub(current) as i64 {
            0 => return true,
            step @ (-1 | 1) if last.physical >> private.page_bits == current => {
                last.number.checked_add_signed(step)
            }
            _ => None,
        };
        let space = private.space;
        next.and_then(|next| self.path.spaces.lookup(space, next)).is_some_and(|page| page.0 == target)
    }

    fn prefetch_level2(&mut self, core: usize, unit: Unit, access: Access, at: u64, event: Event) {
        let Some(l2) = &mut self.cores[core].second else { return };
        let Some(prefetcher) = &mut l2.prefetcher else { return };
        let prediction = prefetcher.observe(access.line, access.instruction, event);
        if let Some(last) = prediction.lines().last() {
            let direction = (last.0.wrapping_sub(access.line.0) as i64).signum();
            self.prefetch_host_beyond_cores(self.cores[core].domain, *last, direction);
        }
        for (index, line) in (0..).zip(prediction.lines()) {
            let next = self.is_next_in_memory(core, unit, access.line, *line);
            let timing = self.path.timing;
            let has = self.cores[core].has(*line);
            let Some(l2) = &mut self.cores[core].second else { return };
            if !next {
                l2.prefetcher.iter_mut().for_each(|prefetcher| prefetcher.truncated(*line));
                l2.counters.dropped_prefetches += prediction.lines().len() as u64 - index;
                break;
            }
            if has {
                continue;
            }
            if timing && l2.registers.start(at) > at {
                l2.counters.dropped_prefetches += 1;
                continue;
            }
            l2.counters.prefetched += 1;
            let prefetch = Access { line: *line, kind: Kind::Prefetch, ..access };
            let mut response = self.request(core, prefetch, at);
            if let Some(l2) = &mut self.cores[core].second
                && timing
            {
                response.ready += l2.registers.hold(at, response.waited_until, response.ready);
            }
            self.fill_level2(core, prefetch, response.flags.with(Flags::PREFETCHED), at, response.ready);
        }
    }
}
