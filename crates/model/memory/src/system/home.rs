//! Coherence between domains: the home directory of the lines that each domain holds, and reads from memory.
//!
//! Source: AMD's probe filter (Conway et al., Cache hierarchy and memory subsystem of the AMD Opteron processor, IEEE
//! Micro 30(2), 2010) is such a directory at the memory's home node; the Loongson 3A5000 has one between chips.

use super::MemorySystem;
use super::probe::{Probe, bits};
use super::request::{Progress, Request};
use crate::cache::Flags;
use crate::coherence::Holders;
use crate::port::Source;

impl MemorySystem {
    /// Fetches a line that the domain of the request does not hold. The domain receives write permission if no other
    /// domain keeps a copy.
    pub(super) fn fetch_line(&mut self, request: Request, at: u64) -> Progress {
        let Request { domain, line, kind, .. } = request;
        let Some(home) = &self.home else { return self.read_line(request, at, Flags::WRITABLE) };
        self.messages.home_lookups += 1;
        let holders = home.get(line);
        let other_holders = holders.mask() & !(1 << domain);
        let is_only_holder = kind.writes() || other_holders == 0;
        let rights = Flags::WRITABLE.when(is_only_holder);
        let owner = holders.owner().filter(|owner| *owner != domain);
        let probe = if kind.writes() { Probe::Invalidate } else { Probe::Share };
        let mut supplied = None;
        let (mut acknowledged, mut waited_until) = (at, 0);
        for other in bits(if kind.writes() { other_holders } else { owner.map_or(0, |o| 1 << o) }) {
            let received_ps = self.prepare_transfers(other, request, probe, at);
            let probe_result = self.probe_domain(other, line, probe);
            let dirty = probe_result.is_some_and(|f| f.has(Flags::DIRTY));
            let (end, until) = self.probe_from_home(request, other, (dirty, received_ps), at);
            (acknowledged, waited_until) = (acknowledged.max(end), waited_until.max(until));
            if Some(other) == owner && probe_result.is_some() {
                supplied = Some((end, dirty));
            }
        }
        if let Some(home) = &mut self.home {
            let remaining_holders = if kind.writes() { 0 } else { other_holders };
            home.set(line, Holders::new(remaining_holders | 1 << domain, is_only_holder));
        }
        match (supplied, owner) {
            (Some((_, dirty)), Some(owner)) => {
                self.messages.transfers += 1;
                if dirty {
                    self.write_to_memory(owner, line, at);
                }
                let is_same_node = self.domains[owner].node == self.domains[domain].node;
                let source = if is_same_node { Source::Peer } else { Source::Remote };
                Progress { at: acknowledged, waited_until, source, flags: rights }
            }
            _ => {
                let progress = self.read_line(request, at, rights);
                Progress { at: progress.at.max(acknowledged), waited_until, ..progress }
            }
        }
    }

    /// Invalidates a line in every domain except the requester's, which already holds it. Returns the time at which all
    /// have acknowledged, and the time before which the request only waited (see `Progress`).
    pub(super) fn invalidate_other_domains(&mut self, request: Request, at: u64) -> (u64, u64) {
        let Request { domain, line, .. } = request;
        let Some(home) = &self.home else { return (at, 0) };
        let holders = home.get(line);
        if holders.owner() == Some(domain) {
            return (at, 0);
        }
        self.messages.home_lookups += 1;
        let (mut end, mut waited_until) =
            (self.path.query_home(&self.domains[domain], request.core, line, at), 0);
        for other in bits(holders.mask() & !(1 << domain)) {
            let received_ps = self.prepare_transfers(other, request, Probe::Invalidate, at);
            self.probe_domain(other, line, Probe::Invalidate);
            let (answered, until) = self.probe_from_home(request, other, (false, received_ps), at);
            (end, waited_until) = (end.max(answered), waited_until.max(until));
        }
        if let Some(home) = &mut self.home {
            home.set(line, Holders::new(1 << domain, true));
        }
        (end, waited_until)
    }

    /// Sends a probe from the requester through the home node to another domain, and its response back. See
    /// [`Path::probe_remote`](super::path::Path::probe_remote).
    fn probe_from_home(
        &mut self,
        request: Request,
        other: usize,
        (data, received_ps): (bool, u64),
        at: u64,
    ) -> (u64, u64) {
        let (from, to) = (&self.domains[request.domain], &self.domains[other]);
        self.path.probe_remote((from, to), request.core, request.line, (data, received_ps), at)
    }

    /// Like [`prepare_transfer`](Self::prepare_transfer), for every core of `domain` that may hold the line.
    fn prepare_transfers(&mut self, domain: usize, request: Request, probe: Probe, at: u64) -> u64 {
        let slot = self.domains[domain].shared.as_ref().and_then(|s| s.tags.find(request.line));
        let sharers = self.domains[domain].sharers(request.line, slot);
        let mut received_ps = 0;
        for bit in bits(sharers) {
            let core = self.domains[domain].cores[bit];
            received_ps = received_ps.max(self.prepare_transfer(core, request, probe, at));
        }
        received_ps
    }

    fn read_line(&mut self, request: Request, at: u64, flags: Flags) -> Progress {
        let Request { core, domain, line, .. } = request;
        self.messages.memory_reads += 1;
        let node = self.cores[core].node;
        let from = self.domains[domain].endpoint_for(core);
        let (at, memory_node) = self.path.read_memory(from, node, line, at);
        let source = if memory_node == node { Source::LocalMemory } else { Source::Remote };
        Progress { at, waited_until: 0, source, flags }
    }
}
