//! Evictions: where an evicted line goes, and which directories are updated.
//!
//! Source: Hennessy and Patterson, appendix B; inclusion after Baer and Wang, ISCA 1988.

use super::MemorySystem;
use super::domain::{Directory, Shared};
use crate::cache::{Evicted, Flags, Line, Origin, Requester};
use longma_topology::parts::Inclusion;

impl MemorySystem {
    /// Handles the eviction of a line from a first-level cache of `core` at `at` (core cycles).
    pub(super) fn evicted_from_level1(&mut self, core: usize, line: Line, mut flags: Flags, at: u64) {
        let dirty = flags.has(Flags::DIRTY);
        let private = &mut self.cores[core];
        if dirty {
            private.data.counters.write_backs += 1;
        }
        let fetch = private.fetch.as_ref().is_some_and(|l1| l1.tags.find(line).is_some());
        if !dirty && (fetch || private.data.tags.find(line).is_some()) {
            // The other first-level cache still holds the line.
            return;
        }
        let Some(l2) = &mut private.second else { return self.evicted_from_core(core, line, flags, at) };
        if dirty && l2.write_through {
            l2.counters.write_throughs += 1;
            self.write_beyond_private(core, line, (1 << self.line_bits, false), at);
            flags = flags.without(Flags::DIRTY);
        }
        let Some(l2) = &mut self.cores[core].second else { return };
        if let Some(slot) = l2.tags.find(line) {
            l2.tags.add_flags(slot, flags.state());
            return;
        }
        // An inclusive second level was handled above. Other kinds take dirty lines, and clean ones if they are victim
        // caches.
        if !dirty && !l2.takes_victims() {
            return self.evicted_from_core(core, line, flags, at);
        }
        let Some((_, Some(evicted))) = l2.tags.insert(line, flags.state(), u64::MAX, Origin::WRITE_BACK)
        else {
            return;
        };
        l2.counters.evicted(evicted.flags);
        self.evicted_from_level2(core, evicted.line, evicted.flags.state(), at);
    }

    /// Handles the eviction of a line from the second-level cache of `core`.
    pub(super) fn evicted_from_level2(&mut self, core: usize, line: Line, mut flags: Flags, at: u64) {
        let private = &mut self.cores[core];
        let Some(l2) = &mut private.second else { return };
        if l2.inclusion == Inclusion::Inclusive {
            for l1 in private.fetch.iter_mut().chain([&mut private.data]) {
                if let Some(slot) = l1.tags.find(line) {
                    flags = flags.with(l1.remove(slot).state());
                    l1.counters.back_invalidations += 1;
                }
            }
        }
        let Some(l2) = &mut private.second else { return };
        l2.counters.write_backs += u64::from(flags.has(Flags::DIRTY));
        self.evicted_from_core(core, line, flags, at);
    }

    /// Handles a line that leaves a private cache of `core` for the shared level: dirty, or possibly the core's last
    /// copy.
    fn evicted_from_core(&mut self, core: usize, line: Line, flags: Flags, at: u64) {
        let (domain, bit) = (self.cores[core].domain, self.cores[core].bit);
        let dirty = flags.has(Flags::DIRTY);
        // A directory in the tags may keep naming the core: clean lines are evicted silently.
        if !dirty && matches!(self.domains[domain].directory, Directory::InTags) {
            return;
        }
        let at = self.path.time(self.cores[core].clock, at);
        match &mut self.domains[domain].directory {
            Directory::InTags => self.write_back_to_shared(core, line, at),
            Directory::Separate(table) => {
                let holders = table.get(line);
                let is_held = self.cores[core].has(line);
                let remaining = if is_held { holders } else { holders.without(bit) };
                table.set(line, remaining);
                self.move_to_shared(core, line, flags, remaining.mask() == 0, at);
            }
        }
    }

    /// Writes a dirty line back to an inclusive shared cache, which holds the line.
    fn write_back_to_shared(&mut self, core: usize, line: Line, at: u64) {
        let (domain, bit) = (self.cores[core].domain, self.cores[core].bit);
        let is_held = self.cores[core].has(line);
        let Some(shared) = &mut self.domains[domain].shared else { return };
        let Some(slot) = shared.tags.find(line) else { return };
        let flags = shared.tags.flags(slot).with(Flags::DIRTY);
        shared.tags.set_flags(slot, if is_held { flags } else { flags.without(Flags::OWNED) });
        if !is_held {
            let sharers = shared.tags.sharers(slot) & !(1 << bit);
            shared.tags.set_sharers(slot, sharers);
        }
        self.path.write_line_to_shared(shared, core, line, at);
    }

    /// Moves a line evicted by a core into a shared cache that is not inclusive, or to memory, or drops it. `last`
    /// means that no other core of the domain holds it.
    fn move_to_shared(&mut self, core: usize, line: Line, flags: Flags, last: bool, at: u64) {
        let domain = self.cores[core].domain;
        let dirty = flags.has(Flags::DIRTY);
        let Some(shared) = &mut self.domains[domain].shared else {
            if dirty {
                self.write_to_memory(domain, line, at);
            }
            if last {
                self.evicted_from_domain(domain, line);
            }
            return;
        };
        if let Some(slot) = shared.tags.find(line) {
            shared.tags.add_flags(slot, flags.state());
            if dirty {
                self.path.write_line_to_shared(shared, core, line, at);
            }
        } else if dirty || (shared.takes_victims() && last) {
            let ways = shared.allowed_ways(Requester::Core(core), line);
            self.path.write_line_to_shared(shared, core, line, at);
            self.insert_shared(domain, (line, Origin::WRITE_BACK), flags.state(), ways, at);
        } else if last {
            self.evicted_from_domain(domain, line);
        }
    }

    /// Inserts a line into the shared cache of `domain`, which must have one, and handles the line evicted for it.
    pub(super) fn insert_shared(
        &mut self,
        domain: usize,
        (line, origin): (Line, Origin),
        flags: Flags,
        ways: u64,
        at: u64,
    ) {
        let line_bits = self.line_bits;
        let Some(shared) = &mut self.domains[domain].shared else { return };
        let Some((slot, evicted)) = shared.tags.insert(line, flags, ways, origin) else {
            // Every way is locked.
            shared.counters.removed(flags);
            return;
        };
        shared.lock_if_inside(slot, line, line_bits);
        if let Some(evicted) = evicted {
            self.evicted_from_shared(domain, evicted, at);
        }
    }

    /// Handles the eviction of a line from the shared cache of `domain`.
    fn evicted_from_shared(&mut self, domain: usize, evicted: Evicted, at: u64) {
        let Evicted { line, mut flags, sharers } = evicted;
        let Some(shared) = &mut self.domains[domain].shared else { return };
        shared.counters.evicted(flags);
        shared.counters.device_leaks += u64::from(flags.has(Flags::DEVICE));
        let last = match &self.domains[domain].directory {
            Directory::InTags => {
                for bit in super::probe::bits(sharers) {
                    let core = self.domains[domain].cores[bit];
                    flags = flags.with(self.back_invalidate(core, line));
                }
                true
            }
            Directory::Separate(table) => table.get(line).mask() == 0,
        };
        if flags.has(Flags::DIRTY) {
            if let Some(shared) = &mut self.domains[domain].shared {
                shared.counters.write_backs += 1;
            }
            self.write_to_memory(domain, line, at);
        }
        if last {
            self.evicted_from_domain(domain, line);
        }
    }

    /// Updates the home directory: no cache of `domain` holds the line any more.
    pub(super) fn evicted_from_domain(&mut self, domain: usize, line: Line) {
        if let Some(home) = &mut self.home {
            let holders = home.get(line).without(domain);
            home.set(line, holders);
        }
    }

    /// Writes a line back to memory. The requester does not wait.
    pub(super) fn write_to_memory(&mut self, domain: usize, line: Line, at: u64) {
        self.messages.write(line, false);
        let from = self.domains[domain].endpoint();
        self.path.write_memory(from, line, at);
    }
}

impl Shared {
    /// The ways that `requester` may fill in the set of `line`: the unlocked ways of its partition, or all unlocked
    /// ways if the partition has none.
    pub(super) fn allowed_ways(&self, requester: Requester, line: Line) -> u64 {
        let locks = self.lock.as_ref().is_some_and(|lock| lock.in_use());
        let unlocked = if locks { !self.tags.locked_ways(line) } else { u64::MAX };
        let ways = self.partition.ways(requester) & unlocked;
        if ways & self.tags.all_ways() == 0 { unlocked } else { ways }
    }
}
