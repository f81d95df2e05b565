//! Checks the coherence invariants over every line of the system. Slow; for tests and debugging. `coherence::Violation`
//! lists the invariants.

use super::MemorySystem;
use super::domain::{Directory, Domain};
use super::private::Private;
use super::report::unused_prefetches;
use crate::cache::{Counters, Flags, Line, Tags};
use crate::coherence::Violation;
use crate::prefetch::Prefetcher;
use longma_topology::parts::Inclusion;
use std::collections::BTreeMap;

/// The state of each line in all caches of one core together.
type Copies = BTreeMap<Line, Flags>;

fn add(copies: &mut Copies, tags: &Tags) {
    for (line, slot) in tags.lines() {
        let flags = tags.flags(slot).state();
        copies.entry(line).and_modify(|f| *f = f.with(flags)).or_insert(flags);
    }
}

impl Private {
    fn copies(&self) -> Copies {
        let mut copies = Copies::new();
        add(&mut copies, &self.data.tags);
        self.fetch.iter().for_each(|l1| add(&mut copies, &l1.tags));
        self.second.iter().for_each(|l2| add(&mut copies, &l2.tags));
        copies
    }
}

impl MemorySystem {
    /// Checks that every coherence invariant holds.
    ///
    /// # Errors
    /// The first violation found.
    pub fn check(&self) -> Result<(), Violation> {
        let copies: Vec<Copies> = self.cores.iter().map(Private::copies).collect();
        self.check_writers(&copies)?;
        self.check_prefetches()?;
        for core in 0..self.cores.len() {
            self.check_private(core)?;
        }
        let domains: Vec<Copies> =
            self.domains.iter().map(|d| self.check_domain(d, &copies)).collect::<Result<_, _>>()?;
        self.check_home(&domains)
    }

    fn address(&self, line: Line) -> u64 {
        line.0 << self.line_bits
    }

    fn check_prefetches(&self) -> Result<(), Violation> {
        let check = |cache: String, counters: &Counters, prefetcher: &Option<Prefetcher>, tags: &Tags| {
            let fetched = counters.prefetched + counters.earlier_prefetches;
            let unused = unused_prefetches(prefetcher, tags);
            let accounted = counters.useful_prefetches + counters.useless_prefetches + unused;
            let adds_up = fetched == accounted && counters.late_prefetches <= counters.useful_prefetches;
            if adds_up { Ok(()) } else { Err(Violation::Prefetches { cache, fetched, accounted }) }
        };
        for (number, core) in self.cores.iter().enumerate() {
            for l1 in core.fetch.iter().chain([&core.data]) {
                check(format!("core{number}.l1"), &l1.counters, &l1.prefetcher, &l1.tags)?;
            }
            if let Some(l2) = &core.second {
                check(format!("core{number}.l2"), &l2.counters, &l2.prefetcher, &l2.tags)?;
            }
        }
        for shared in self.domains.iter().filter_map(|domain| domain.shared.as_ref()) {
            let name = format!("cache {}", shared.instance);
            check(name, &shared.counters, &shared.prefetcher, &shared.tags)?;
        }
        Ok(())
    }

    fn check_writers(&self, copies: &[Copies]) -> Result<(), Violation> {
        let mut lines_seen: BTreeMap<Line, (usize, Flags)> = BTreeMap::new();
        for (core, copies) in copies.iter().enumerate() {
            for (line, flags) in copies {
                let address = self.address(*line);
                if flags.has(Flags::DIRTY) && !flags.has(Flags::WRITABLE) {
                    return Err(Violation::DirtyAndShared { line: address, cache: format!("core {core}") });
                }
                let (other, before) = *lines_seen.entry(*line).or_insert((core, *flags));
                if other != core && (before.with(*flags)).has(Flags::WRITABLE) {
                    let (writer, other) =
                        if flags.has(Flags::WRITABLE) { (core, other) } else { (other, core) };
                    return Err(Violation::TwoHolders { line: address, writer, other });
                }
            }
        }
        Ok(())
    }

    fn check_private(&self, core: usize) -> Result<(), Violation> {
        let private = &self.cores[core];
        for l1 in private.fetch.iter().chain([&private.data]) {
            let claimed: Vec<_> = l1.filter.claims().collect();
            let copies: BTreeMap<usize, Flags> =
                l1.tags.lines().map(|(_, slot)| (l1.tags.number(slot), l1.tags.flags(slot))).collect();
            let good = |(slot, writable): &(usize, bool)| {
                copies.get(slot).is_some_and(|f| !writable || f.has(Flags::WRITABLE.with(Flags::DIRTY)))
            };
            if !claimed.iter().all(good) {
                return Err(Violation::Filter { core });
            }
        }
        if let Some(fetch) = &private.fetch {
            for (line, slot) in fetch.tags.lines() {
                let data = private.data.tags.find(line).map(|s| private.data.tags.flags(s));
                if fetch.tags.flags(slot).has(Flags::DIRTY) || data.is_some_and(|f| f.has(Flags::DIRTY)) {
                    let cache = format!("core{core}.l1i");
                    return Err(Violation::DirtyAndShared { line: self.address(line), cache });
                }
            }
        }
        let Some(l2) = &private.second else { return Ok(()) };
        let above = private.fetch.iter().chain([&private.data]).flat_map(|l1| l1.tags.lines());
        for (line, _) in above.filter(|_| l2.inclusion == Inclusion::Inclusive) {
            if l2.tags.find(line).is_none() {
                let (above, below) = (format!("core{core}.l1"), format!("core{core}.l2"));
                return Err(Violation::Inclusion { line: self.address(line), above, below, has: "lacks" });
            }
        }
        for (line, _) in private.data.tags.lines().filter(|_| l2.takes_victims()) {
            if l2.tags.find(line).is_some() {
                let (above, below) = (format!("core{core}.l1d"), format!("core{core}.l2"));
                return Err(Violation::Inclusion { line: self.address(line), above, below, has: "has" });
            }
        }
        Ok(())
    }

    /// Checks the directory and the shared cache of a domain. Returns the state of each line in the domain as a whole.
    fn check_domain(&self, domain: &Domain, copies: &[Copies]) -> Result<Copies, Violation> {
        let name = format!("domain of core {}", domain.cores[0]);
        let mut held: BTreeMap<Line, (u64, Flags)> = BTreeMap::new();
        for (bit, core) in domain.cores.iter().enumerate() {
            for (line, flags) in &copies[*core] {
                let entry = held.entry(*line).or_default();
                *entry = (entry.0 | 1 << bit, entry.1.with(*flags));
            }
        }
        for (line, (holders, flags)) in &held {
            let slot = domain.shared.as_ref().and_then(|s| s.tags.find(*line));
            let address = self.address(*line);
            let (says, owner) = match (&domain.directory, &domain.shared, slot) {
                (Directory::Separate(table), ..) => (table.get(*line).mask(), table.get(*line).owner()),
                (Directory::InTags, Some(shared), Some(slot)) => shared.holders(slot),
                _ => {
                    let (above, below) = (name.clone(), "its inclusive shared cache".into());
                    return Err(Violation::Inclusion { line: address, above, below, has: "lacks" });
                }
            };
            let exact = matches!(domain.directory, Directory::Separate(_));
            if holders & !says != 0 || (exact && says != *holders) {
                return Err(Violation::Directory { line: address, directory: name, says, holders: *holders });
            }
            if flags.has(Flags::WRITABLE) && owner.map(|o| 1u64 << o) != Some(*holders) {
                let holder = format!("a core of the {name}");
                return Err(Violation::Owner { line: address, holder, directory: name });
            }
        }
        if let Directory::Separate(table) = &domain.directory
            && let Some((line, holders)) =
                table.iter().filter(|(line, _)| !held.contains_key(line)).min_by_key(|e| e.0)
        {
            let (line, says) = (self.address(line), holders.mask());
            return Err(Violation::Directory { line, directory: name, says, holders: 0 });
        }
        let mut all_copies: Copies = held.into_iter().map(|(line, (_, flags))| (line, flags)).collect();
        if let Some(shared) = &domain.shared {
            add(&mut all_copies, &shared.tags);
            self.check_locks(shared)?;
        }
        Ok(all_copies)
    }

    fn check_locks(&self, shared: &super::domain::Shared) -> Result<(), Violation> {
        let Some(lock) = &shared.lock else { return Ok(()) };
        for (line, slot) in shared.tags.lines() {
            let locked = shared.tags.locked_ways(line);
            let own =
                if shared.tags.flags(slot).has(Flags::LOCKED) { locked & locked.wrapping_sub(1) } else { 0 };
            // Without this locked line, the set must have had room for it.
            if shared.tags.flags(slot).has(Flags::LOCKED) && !lock.can_lock(shared.tags.all_ways(), own) {
                let (line, cache) = (self.address(line), format!("cache {}", shared.instance));
                return Err(Violation::Locked { line, cache, locked: locked.count_ones() });
            }
        }
        Ok(())
    }

    fn check_home(&self, domains: &[Copies]) -> Result<(), Violation> {
        let Some(home) = &self.home else { return Ok(()) };
        let mut held: BTreeMap<Line, u64> = BTreeMap::new();
        for (domain, copies) in domains.iter().enumerate() {
            for (line, flags) in copies {
                *held.entry(*line).or_default() |= 1 << domain;
                if flags.has(Flags::WRITABLE) && home.get(*line).owner() != Some(domain) {
                    let (holder, directory) = (format!("domain {domain}"), "the home node".into());
                    return Err(Violation::Owner { line: self.address(*line), holder, directory });
                }
            }
        }
        let recorded: BTreeMap<Line, u64> =
            home.iter().map(|(line, holders)| (line, holders.mask())).collect();
        for line in held.keys().chain(recorded.keys()) {
            let (says, is) = (recorded.get(line).copied().unwrap_or(0), held.get(line).copied().unwrap_or(0));
            if says != is {
                let (line, directory) = (self.address(*line), "the home node".into());
                return Err(Violation::Directory { line, directory, says, holders: is });
            }
        }
        Ok(())
    }
}
