//! Probes: they invalidate or downgrade lines in other cores' caches. The directories determine which cores to probe.
//!
//! Source: MESI, Papamarcos and Patel, ISCA 1984.

use super::MemorySystem;
use super::domain::Directory;
use super::private::{Level1, Private};
use super::request::Request;
use crate::cache::{Counters, Flags, Line};
use crate::coherence::Holders;

/// The kind of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Probe {
    /// Another core or a device reads the line: the copy becomes clean and shared.
    Share,
    /// Another core or a device writes the line: the copy is invalidated.
    Invalidate,
    /// An inclusive cache below evicted the line.
    BackInvalidate,
}

/// The state of the line before the probe, if it was present.
pub(super) type Found = Option<Flags>;

/// Iterates over the indices of the set bits, lowest first.
pub(super) fn bits(mut mask: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = mask.trailing_zeros() as usize;
        mask &= mask.wrapping_sub(1);
        (bit < 64).then_some(bit)
    })
}

fn count(counters: &mut Counters, probe: Probe) {
    match probe {
        Probe::Share => counters.downgrades += 1,
        Probe::Invalidate => counters.invalidations += 1,
        Probe::BackInvalidate => counters.back_invalidations += 1,
    }
}

fn probe_level1(l1: &mut Level1, line: Line, probe: Probe) -> Found {
    let slot = l1.tags.find(line)?;
    let flags = l1.tags.flags(slot);
    count(&mut l1.counters, probe);
    if probe == Probe::Share {
        l1.filter.invalidate_set(slot.set());
        l1.tags.set_flags(slot, flags.without(Flags::WRITABLE.with(Flags::DIRTY)));
    } else {
        l1.remove(slot);
    }
    Some(flags.state())
}

impl Private {
    fn probe(&mut self, line: Line, probe: Probe) -> Found {
        let mut probe_result = None;
        let mut add = |part: Found| {
            if let Some(flags) = part {
                probe_result = Some(probe_result.unwrap_or(Flags::NONE).with(flags));
            }
        };
        add(probe_level1(&mut self.data, line, probe));
        if let Some(fetch) = &mut self.fetch {
            add(probe_level1(fetch, line, probe));
        }
        if let Some(l2) = &mut self.second
            && let Some(slot) = l2.tags.find(line)
        {
            let flags = l2.tags.flags(slot);
            count(&mut l2.counters, probe);
            add(Some(flags.state()));
            if probe == Probe::Share {
                l2.tags.set_flags(slot, flags.without(Flags::WRITABLE.with(Flags::DIRTY)));
            } else {
                l2.remove(slot);
            }
        }
        probe_result
    }
}

impl MemorySystem {
    /// Prepares the probe of `core` for another core's request that arrived at `at`. Records the transfer if the line
    /// moves, and returns the time at which `core` itself has received the line, ps: a core that waits to write a line
    /// does not give the line up before it has received it.
    pub(super) fn prepare_transfer(&mut self, core: usize, request: Request, probe: Probe, at: u64) -> u64 {
        if !self.path.timing {
            return 0;
        }
        let private = &mut self.cores[core];
        // A read of a line that has not been modified does not move it.
        let takes = probe != Probe::Share;
        let in_second =
            private.second.as_ref().and_then(|l2| Some(l2.tags.flags(l2.tags.find(request.line)?)));
        if in_second.is_some_and(|flags| takes || flags.has(Flags::DIRTY)) {
            self.contention.record_exchange(core, request.core, at);
        }
        let Some(slot) = private.data.tags.find(request.line) else { return 0 };
        let flags = private.data.tags.flags(slot);
        let ready = private.data.writable_at[private.data.tags.number(slot)];
        if takes || flags.has(Flags::DIRTY) {
            self.contention.record_exchange(core, request.core, at);
            self.contention.record(request.line, core, request.core, at);
        }
        if !flags.has(Flags::WRITABLE) {
            return 0;
        }
        let received_ps = self.path.time(private.clock, ready);
        if received_ps > at {
            private.promised.record(request.line, ready);
        }
        received_ps
    }

    /// Probes the private caches of `core`.
    pub(super) fn probe_core(&mut self, core: usize, line: Line, probe: Probe) -> Found {
        self.messages.probes += 1;
        self.messages.invalidations += u64::from(probe == Probe::Invalidate);
        self.cores[core].probe(line, probe)
    }

    /// Invalidates a line in `core` because the inclusive cache below evicted it. Returns its flags, dirty if it must
    /// be written back.
    pub(super) fn back_invalidate(&mut self, core: usize, line: Line) -> Flags {
        self.messages.back_invalidations += 1;
        self.cores[core].probe(line, Probe::BackInvalidate).unwrap_or(Flags::NONE)
    }

    /// Probes every core of `domain` that may hold the line, and its shared cache. Afterwards the domain holds the line
    /// clean and shared, or not at all.
    pub(super) fn probe_domain(&mut self, domain: usize, line: Line, probe: Probe) -> Found {
        let slot = self.domains[domain].shared.as_ref().and_then(|s| s.tags.find(line));
        let sharers = self.domains[domain].sharers(line, slot);
        let mut probe_result = None;
        for bit in bits(sharers) {
            let core = self.domains[domain].cores[bit];
            if let Some(flags) = self.probe_core(core, line, probe) {
                probe_result = Some(probe_result.unwrap_or(Flags::NONE).with(flags));
            }
        }
        let part = &mut self.domains[domain];
        if let Directory::Separate(table) = &mut part.directory {
            let remaining_sharers = if probe == Probe::Share { sharers } else { 0 };
            table.set(line, Holders::new(remaining_sharers, false));
        }
        if let (Some(shared), Some(slot)) = (&mut part.shared, slot) {
            let flags = shared.tags.flags(slot);
            probe_result = Some(probe_result.unwrap_or(Flags::NONE).with(flags.state()));
            if probe == Probe::Share {
                let rights = Flags::WRITABLE.with(Flags::DIRTY).with(Flags::OWNED);
                shared.tags.set_flags(slot, flags.without(rights));
                shared.counters.downgrades += 1;
            } else {
                shared.remove(slot);
                shared.counters.invalidations += 1;
            }
        }
        probe_result
    }
}
