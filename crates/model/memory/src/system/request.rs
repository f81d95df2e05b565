//! A core's request beyond its private caches: the shared level, its directory, and the other cores of the domain.
//! `home` continues to other domains and memory.
//!
//! Source: a directory protocol with the states M, E, S and I as in Nagarajan et al., A Primer on Memory Consistency
//! and Cache Coherence, 2nd edition, section 8.2. Transactions are atomic, so there are no transient states.

use super::MemorySystem;
use super::access::{Access, LineResult};
use super::domain::{Directory, Shared};
use super::path::waits_until;
use super::private::Unit;
use super::probe::{Probe, bits};
use crate::cache::{Flags, Kind, Line, Origin, Requester, Slot};
use crate::coherence::Holders;
use crate::interconnect::MAX_SKEW;
use crate::port::Source;
use crate::prefetch::Event;

/// A request in progress.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub core: usize,
    pub domain: usize,
    pub line: Line,
    pub kind: Kind,
    /// Address of the instruction.
    pub instruction: u64,
}

/// Progress of a request beyond the private caches.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    /// Current time at the shared level, ps.
    pub at: u64,
    /// Until this time, the request only waited for lines or resources promised to earlier requests, ps; 0 if it did
    /// not wait.
    pub waited_until: u64,
    /// The source of the data.
    pub source: Source,
    /// The permissions granted so far.
    pub flags: Flags,
}

impl Request {
    /// Returns whether the requester may get write permission without asking for it when no other cache holds the line.
    fn may_own(self) -> bool {
        self.kind != Kind::Fetch
    }

    fn origin(self) -> Origin {
        Origin::new(self.kind, self.instruction)
    }
}

impl MemorySystem {
    /// Fetches a line, or write permission for a line that `core` holds, from beyond its private caches.
    pub(super) fn request(&mut self, core: usize, access: Access, at: u64) -> LineResult {
        let domain = self.cores[core].domain;
        let Access { line, kind, instruction, .. } = access;
        let request = Request { core, domain, line, kind, instruction };
        let clock = self.cores[core].clock;
        let start = self.path.time(clock, at);
        let slot = self.domains[domain].shared.as_ref().and_then(|shared| shared.tags.find(line));
        let event = self.prefetcher_event(request, slot);
        let arrived = self.path.reach_shared(&mut self.domains[domain], core, line, start);
        let progress = match self.domains[domain].directory {
            Directory::InTags => self.request_inclusive(request, slot, arrived),
            Directory::Separate(_) => self.request_separate(request, slot, arrived),
        };
        let end = self.path.return_line(&self.domains[domain], core, progress.at);
        if let Some(event) = event {
            self.prefetch_shared(request, arrived, event);
        }
        let ready = self.path.cycles_after(clock, at, start, end);
        // A calendar moves a request older than its window to the start of the window; until then, the request only
        // waits.
        let oldest_ps = self.path.latest_end_ps.saturating_sub(MAX_SKEW.ps());
        self.path.latest_end_ps = self.path.latest_end_ps.max(end);
        let until = progress.waited_until.max(waits_until(start, oldest_ps)).min(end);
        let waited_until = self.path.cycles_after(clock, at, start, until);
        LineResult { ready, waited_until, source: progress.source, flags: progress.flags, missed: true }
    }

    fn request_inclusive(&mut self, request: Request, slot: Option<Slot>, at: u64) -> Progress {
        let Request { core, domain, line, kind, .. } = request;
        let line_bits = self.line_bits;
        // Only domains with an inclusive shared cache keep their directory in its tags.
        let Some(shared) = &mut self.domains[domain].shared else { return self.fetch_line(request, at) };
        shared.counters.access(kind);
        if let Some(slot) = slot {
            let usable_at = shared.use_line(slot, request, at, line_bits);
            let progress = self.hit_inclusive(request, slot, usable_at);
            return Progress {
                waited_until: progress.waited_until.max(waits_until(at, usable_at)),
                ..progress
            };
        }
        shared.counters.miss(kind);
        let start = shared.wait_for_register(line, at, self.path.timing);
        let mut progress = self.fetch_line(request, start);
        let owned = Flags::OWNED.when(progress.flags.has(Flags::WRITABLE) && request.may_own());
        let fill_flags = progress.flags.state().with(owned);
        let Some(shared) = &mut self.domains[domain].shared else { return progress };
        shared.hold_register(line, at, start, &mut progress, self.path.timing);
        let ways = shared.allowed_ways(Requester::Core(core), line);
        self.insert_shared(domain, (line, request.origin()), fill_flags, ways, progress.at);
        let bit = self.cores[core].bit;
        if let Some(shared) = &mut self.domains[domain].shared {
            shared.in_flight.record(line, at, progress.at);
            if let Some(slot) = shared.tags.find(line) {
                shared.tags.set_sharers(slot, 1 << bit);
            }
        }
        // The shared level stays responsible for the write-back of dirty data; the core only gets write permission.
        Progress { flags: Flags::WRITABLE.when(owned != Flags::NONE), ..progress }
    }

    fn hit_inclusive(&mut self, request: Request, slot: Slot, at: u64) -> Progress {
        let Request { core, domain, line, kind, .. } = request;
        let Some(shared) = &self.domains[domain].shared else { return self.fetch_line(request, at) };
        let own_bit = 1u64 << self.cores[core].bit;
        let mut source = level_source(shared);
        let (mut sharers, owner) = shared.holders(slot);
        let mut flags = shared.tags.flags(slot).without(Flags::OWNED);
        let (mut at, mut waited_until) = (at, 0);
        let other_sharers = sharers & !own_bit;
        let from_owner = !kind.writes() && owner.is_some_and(|o| 1 << o != own_bit);
        if kind.writes() || from_owner {
            let probe = if kind.writes() { Probe::Invalidate } else { Probe::Share };
            let (answered, dirty, kept) = self.probe_others(request, other_sharers, probe, at);
            (at, waited_until) = answered;
            if dirty {
                flags = flags.with(Flags::DIRTY);
                source = Source::Peer;
            }
            sharers = sharers & own_bit | kept;
        }
        if kind.writes() && !flags.has(Flags::WRITABLE) {
            let (answered, until) = self.invalidate_other_domains(request, at);
            (at, waited_until) = (answered, waited_until.max(until));
            flags = flags.with(Flags::WRITABLE);
        }
        // A reader of another core's line gets it shared, even if that core has evicted it silently. Otherwise, two
        // cores that read the same lines in turn would repeatedly take them from each other.
        let is_exclusive =
            sharers & !own_bit == 0 && !from_owner && flags.has(Flags::WRITABLE) && request.may_own();
        // No data is lost if a core fetches instructions from a line that it has modified: the dirty copy has already
        // been written back.
        let rights = Flags::WRITABLE.when(is_exclusive);
        let Some(shared) = &mut self.domains[domain].shared else {
            return Progress { at, waited_until, source, flags };
        };
        shared.tags.set_flags(slot, flags.with(Flags::OWNED.when(is_exclusive)));
        shared.tags.set_sharers(slot, sharers | own_bit);
        debug_assert_eq!(shared.tags.find(line), Some(slot), "a probe moves no line of the shared cache");
        Progress { at, waited_until, source, flags: rights }
    }

    /// Probes the cores in `mask` of a request's domain. Returns the time of the last answer and the time before which
    /// the request only waited, whether a core held the line dirty, and the mask of cores that keep a copy.
    fn probe_others(
        &mut self,
        request: Request,
        mask: u64,
        probe: Probe,
        at: u64,
    ) -> ((u64, u64), bool, u64) {
        let Request { domain, line, .. } = request;
        let (mut end, mut waited_until, mut dirty, mut kept) = (at, 0, false, 0);
        for bit in bits(mask) {
            let core = self.domains[domain].cores[bit];
            let received_ps = self.prepare_transfer(core, request, probe, at);
            let probe_result = self.probe_core(core, line, probe);
            let was_dirty = probe_result.is_some_and(|f| f.has(Flags::DIRTY));
            dirty |= was_dirty;
            kept |= u64::from(probe_result.is_some() && probe == Probe::Share) << bit;
            self.messages.transfers += u64::from(was_dirty);
            let endpoint = self.domains[domain].endpoint_for(request.core);
            let look = (self.cores[core].probe_ps, received_ps);
            let (answered, until) = self.path.probe(endpoint, core, look, was_dirty, at);
            (end, waited_until) = (end.max(answered), waited_until.max(until));
        }
        ((end, waited_until), dirty, kept)
    }

    fn request_separate(&mut self, request: Request, slot: Option<Slot>, at: u64) -> Progress {
        let Request { core, domain, line, kind, .. } = request;
        let own_bit = 1u64 << self.cores[core].bit;
        let Directory::Separate(table) = &self.domains[domain].directory else {
            return self.fetch_line(request, at);
        };
        let holders = table.get(line);
        let requested_at = at;
        let mut at = at;
        let line_bits = self.line_bits;
        let part = &mut self.domains[domain];
        let snooped = if part.snoops { part.cores.len() as u64 - 1 } else { 0 };
        self.messages.snoops += snooped;
        if let Some(shared) = &mut part.shared {
            shared.counters.access(kind);
            match slot {
                Some(slot) => at = shared.use_line(slot, request, at, line_bits),
                None => shared.counters.miss(kind),
            }
        }
        let progress = if holders.mask() & !own_bit != 0 {
            self.request_from_peers(request, holders, slot, at)
        } else if let Some(slot) = slot {
            self.hit_separate(request, slot, at)
        } else if holders.mask() == own_bit {
            // The core's other first-level cache holds the line: only permissions are requested.
            let is_exclusive = holders.owner().is_some() && request.may_own();
            let source = self.domains[domain].shared.as_ref().map_or(Source::Level2, level_source);
            Progress { at, waited_until: 0, source, flags: Flags::WRITABLE.when(is_exclusive) }
        } else {
            self.miss_separate(request, at)
        };
        let progress =
            Progress { waited_until: progress.waited_until.max(waits_until(requested_at, at)), ..progress };
        let progress = self.rights_separate(request, progress);
        let other_holders = holders.mask() & !own_bit;
        let remaining_holders = if kind.writes() { 0 } else { other_holders };
        let is_exclusive = progress.flags.has(Flags::WRITABLE);
        if let Directory::Separate(table) = &mut self.domains[domain].directory {
            table.set(line, Holders::new(remaining_holders | own_bit, is_exclusive));
        }
        progress
    }

    /// Handles a line that other cores of the domain hold.
    fn request_from_peers(
        &mut self,
        request: Request,
        holders: Holders,
        slot: Option<Slot>,
        at: u64,
    ) -> Progress {
        let Request { core, domain, kind, .. } = request;
        let other_holders = holders.mask() & !(1u64 << self.cores[core].bit);
        let probed = match (kind.writes(), holders.owner()) {
            (true, _) => other_holders,
            (false, Some(owner)) => 1 << owner,
            // Several cores hold the line clean: if the shared cache does not have it, the lowest-numbered core
            // supplies it.
            (false, None) if slot.is_none() => other_holders & other_holders.wrapping_neg(),
            (false, None) => 0,
        };
        let probe = if kind.writes() { Probe::Invalidate } else { Probe::Share };
        let ((at, waited_until), mut dirty, _) = self.probe_others(request, probed, probe, at);
        let source = match (&self.domains[domain].shared, slot) {
            (Some(shared), Some(_)) if !dirty => level_source(shared),
            _ => Source::Peer,
        };
        if kind.writes() {
            if let (Some(slot), Some(shared)) = (slot, &mut self.domains[domain].shared) {
                // The writer's copy supersedes this one.
                dirty |= shared.tags.remove(slot).has(Flags::DIRTY);
            }
            let flags = Flags::DIRTY.when(dirty);
            return Progress { at, waited_until, source, flags };
        }
        if dirty {
            self.keep_dirty(request, slot, at);
        }
        Progress { at, waited_until, source, flags: Flags::NONE }
    }

    /// Handles the downgrade of a core's dirty line: the shared cache takes over the write-back, or the line is written
    /// to memory.
    fn keep_dirty(&mut self, request: Request, slot: Option<Slot>, at: u64) {
        let Request { core, domain, line, .. } = request;
        let dirty = Flags::WRITABLE.with(Flags::DIRTY);
        match (&mut self.domains[domain].shared, slot) {
            (Some(shared), Some(slot)) => shared.tags.add_flags(slot, dirty),
            (Some(shared), None) => {
                let ways = shared.allowed_ways(Requester::Core(core), line);
                self.insert_shared(domain, (line, Origin::WRITE_BACK), dirty, ways, at);
            }
            (None, _) => self.write_to_memory(domain, line, at),
        }
    }

    /// Handles a line that only the shared cache holds, or only it and the requester.
    fn hit_separate(&mut self, request: Request, slot: Slot, at: u64) -> Progress {
        let Request { domain, kind, .. } = request;
        let Some(shared) = &mut self.domains[domain].shared else { return self.fetch_line(request, at) };
        let source = level_source(shared);
        let mut flags = shared.tags.flags(slot).state();
        let moves = shared.takes_victims() && kind != Kind::Fetch;
        if moves && !shared.tags.flags(slot).has(Flags::LOCKED) {
            shared.tags.remove(slot);
        } else {
            flags = flags.without(Flags::DIRTY);
        }
        if !request.may_own() {
            flags = Flags::NONE;
        }
        Progress { at, waited_until: 0, source, flags }
    }

    fn miss_separate(&mut self, request: Request, at: u64) -> Progress {
        let Request { core, domain, line, .. } = request;
        let timing = self.path.timing;
        let start = match &self.domains[domain].shared {
            Some(shared) => shared.wait_for_register(line, at, timing),
            None => at,
        };
        let mut progress = self.fetch_line(request, start);
        if !request.may_own() {
            progress.flags = Flags::NONE;
        }
        let Some(shared) = &mut self.domains[domain].shared else { return progress };
        shared.hold_register(line, at, start, &mut progress, timing);
        if !shared.takes_victims() {
            let ways = shared.allowed_ways(Requester::Core(core), line);
            shared.in_flight.record(line, at, progress.at);
            self.insert_shared(domain, (line, request.origin()), progress.flags.state(), ways, progress.at);
        }
        progress
    }

    /// For a write, invalidates the line in all other domains.
    fn rights_separate(&mut self, request: Request, progress: Progress) -> Progress {
        if !request.kind.writes() {
            return progress;
        }
        let (at, until) = self.invalidate_other_domains(request, progress.at);
        Progress {
            at,
            waited_until: progress.waited_until.max(until),
            flags: progress.flags.with(Flags::WRITABLE),
            ..progress
        }
    }

    /// The event that the prefetcher of the shared cache observes for a request; `None` if it does not observe the
    /// request. Prefetches by the private caches train it too, so that streams do not end when the private caches take
    /// them over.
    fn prefetcher_event(&self, request: Request, slot: Option<Slot>) -> Option<Event> {
        let shared = self.domains[request.domain].shared.as_ref()?;
        let prefetcher = shared.prefetcher.as_ref()?;
        match slot {
            None => Some(Event::Miss),
            Some(slot) if shared.tags.flags(slot).has(Flags::PREFETCHED) => Some(Event::FirstUse),
            Some(_) => prefetcher.sees_hits().then_some(Event::Hit),
        }
    }

    fn prefetch_shared(&mut self, request: Request, at: u64, event: Event) {
        let Request { core, domain, line, .. } = request;
        let Some(shared) = &mut self.domains[domain].shared else { return };
        let Some(prefetcher) = &mut shared.prefetcher else { return };
        let prediction = prefetcher.observe(line, 0, event);
        let unit = if request.kind == Kind::Fetch { Unit::Fetch } else { Unit::Data };
        for (index, line) in (0..).zip(prediction.lines()) {
            let next = self.is_next_in_memory(core, unit, request.line, *line);
            let part = &mut self.domains[domain];
            let Some(shared) = &mut part.shared else { return };
            if !next {
                shared.prefetcher.iter_mut().for_each(|prefetcher| prefetcher.truncated(*line));
                shared.counters.dropped_prefetches += prediction.lines().len() as u64 - index;
                break;
            }
            let is_cached = shared.tags.find(*line).is_some();
            let above = matches!(&part.directory, Directory::Separate(t) if t.get(*line).mask() != 0);
            if is_cached || above {
                continue;
            }
            if shared.wait_for_register(*line, at, self.path.timing) > at {
                shared.counters.dropped_prefetches += 1;
                continue;
            }
            let prefetch = Request { line: *line, kind: Kind::Prefetch, ..request };
            let mut response = self.fetch_line(prefetch, at);
            let Some(shared) = &mut self.domains[domain].shared else { return };
            shared.hold_register(*line, at, at, &mut response, self.path.timing);
            shared.counters.prefetched += 1;
            shared.in_flight.record(*line, at, response.at);
            let ways = shared.allowed_ways(Requester::Core(core), *line);
            self.insert_shared(
                domain,
                (*line, prefetch.origin()),
                response.flags.state().with(Flags::PREFETCHED),
                ways,
                response.at,
            );
        }
    }
}

/// The source that corresponds to the level of a shared cache.
fn level_source(shared: &Shared) -> Source {
    if shared.level == 2 { Source::Level2 } else { Source::Level3 }
}

impl Shared {
    /// Records a use of the line in `slot` by a core. Returns the time at which its data is available.
    fn use_line(&mut self, slot: Slot, request: Request, at: u64, line_bits: u32) -> u64 {
        let line = request.line;
        self.tags.touch(slot, request.origin());
        self.lock_if_inside(slot, line, line_bits);
        let flags = self.tags.flags(slot);
        self.tags.set_flags(slot, flags.without(Flags::PREFETCHED.with(Flags::DEVICE)));
        let arrives = self.in_flight.ready(line);
        if flags.has(Flags::PREFETCHED) {
            self.counters.used_prefetch(arrives > at);
        }
        self.counters.merged += u64::from(arrives > at);
        at.max(arrives)
    }

    fn wait_for_register(&self, line: Line, at: u64, timing: bool) -> u64 {
        let bank = self.tags.index().bank(line);
        match &self.banks[bank].registers {
            Some(registers) if timing => registers.start(at),
            _ => at,
        }
    }

    /// Holds a miss register of the line's bank from `start` on for a miss that arrived at `at`. Delays the request if
    /// no register is free for the whole time.
    fn hold_register(&mut self, line: Line, at: u64, start: u64, progress: &mut Progress, timing: bool) {
        let bank = self.tags.index().bank(line);
        let Some(registers) = self.banks[bank].registers.as_mut().filter(|_| timing) else { return };
        let waited_until = progress.waited_until.max(start);
        let later = registers.hold(start, waited_until, progress.at);
        progress.at += later;
        progress.waited_until = waits_until(at, waited_until + later);
    }

    /// Locks the line in `slot` if it is in an open lock window and its set has enough unlocked ways.
    pub(super) fn lock_if_inside(&mut self, slot: Slot, line: Line, line_bits: u32) {
        let Some(lock) = &self.lock else { return };
        if !lock.in_use() || !lock.contains(line.0 << line_bits) || self.tags.flags(slot).has(Flags::LOCKED) {
            return;
        }
        if lock.can_lock(self.tags.all_ways(), self.tags.locked_ways(line)) {
            self.tags.add_flags(slot, Flags::LOCKED);
            self.counters.locked += 1;
        } else {
            self.counters.lock_refusals += 1;
        }
    }

    /// Unlocks every line that is in no open window.
    pub(super) fn unlock_outside(&mut self, line_bits: u32) {
        let Some(lock) = &self.lock else { return };
        let outside = |line: Line| !lock.contains(line.0 << line_bits);
        let slots: Vec<_> =
            self.tags.lines().filter(|(line, _)| outside(*line)).map(|(_, slot)| slot).collect();
        for slot in slots {
            let flags = self.tags.flags(slot);
            self.tags.set_flags(slot, flags.without(Flags::LOCKED));
        }
    }
}
