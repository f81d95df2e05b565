//! The timing of messages between caches and to memory.
//!
//! Source: latencies in machine files are load-to-use latencies on an idle machine, all levels included (Hennessy and
//! Patterson, section 2.2). A fixed remainder covers latency that the modelled components do not account for.

use super::domain::{Domain, Shared};
use crate::cache::Line;
use crate::dram::Controllers;
use crate::interconnect::{Endpoint, Interconnect};
use crate::placement::AddressSpaces;
use longma_sim::{Clock, Time};
use longma_topology::units::Frequency;

/// Level of detail of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Hits and misses only: caches and coherence without times.
    Counts,
    /// Times as well.
    Timing,
}

/// Bytes of a request, a probe or a response without data: a HyperTransport command packet with address (HyperTransport
/// I/O Link Specification 3.10, section 3.2).
pub(super) const REQUEST_BYTES: u32 = 8;

/// The fixed parts of the time between a core and its shared cache, picoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FixedLatencies {
    /// Before the request leaves the core: lookups in the private caches.
    pub before_ps: u64,
    /// After the line has returned.
    pub after_ps: u64,
}

/// Converts a duration of `ps` picoseconds to cycles of `clock`.
#[inline]
pub(super) fn cycles_in(clock: Clock, ps: u64) -> u64 {
    Frequency::new(clock.hz()).cycles_in_ps(ps)
}

/// Returns `free_at` if a request at `at` has to wait until then, otherwise 0.
#[inline]
pub(super) fn waits_until(at: u64, free_at: u64) -> u64 {
    if free_at > at { free_at } else { 0 }
}

/// The path between the caches of a host and its memory.
#[derive(Debug)]
pub(super) struct Path {
    pub timing: bool,
    pub line_bits: u32,
    pub interconnect: Interconnect,
    pub controllers: Controllers,
    pub spaces: AddressSpaces,
    /// One entry per core.
    pub fixed_latencies: Vec<FixedLatencies>,
    /// Fixed part of a memory read by a core of a node: row = node, column = controller. Picoseconds; negative if the
    /// modelled components overlap on real hardware.
    pub memory_ps: Vec<Vec<i64>>,
    /// Fixed part of one crossing between two nodes, in addition to the interconnect. Picoseconds.
    pub hop_ps: Vec<Vec<u64>>,
    /// The latest end of all requests of cores so far, ps.
    pub latest_end_ps: u64,
}

impl Path {
    fn line_bytes(&self) -> u32 {
        1 << self.line_bits
    }

    /// The start of `cycle` of `clock`, ps; 0 without timing.
    #[inline]
    pub fn time(&self, clock: Clock, cycle: u64) -> u64 {
        if !self.timing {
            return 0;
        }
        clock.start_of(cycle).map_or(u64::MAX / 2, Time::ps)
    }

    /// Converts `end`, the time at which a request ends, to a cycle of `clock`. The request began at cycle `at`, which
    /// is the time `start`.
    #[inline]
    pub fn cycles_after(&self, clock: Clock, at: u64, start: u64, end: u64) -> u64 {
        if !self.timing {
            return at;
        }
        at + cycles_in(clock, end.saturating_sub(start))
    }

    #[inline]
    fn cross(&mut self, from: Endpoint, to: Endpoint, bytes: u32, at: u64) -> u64 {
        self.interconnect.cross(from, to, bytes, Time::from_ps(at)).ps()
    }

    /// Transfers `bytes` through a bank. Returns the time at which the last byte has passed. The bank is charged only
    /// for the transfer of these bytes.
    #[inline]
    fn through_bank(shared: &mut Shared, line: Line, bytes: u32, at: u64) -> u64 {
        let bank = shared.tags.index().bank(line);
        shared.banks[bank].port.acquire(Time::from_ps(at), bytes).ps()
    }

    /// Sends a request of `core` to its shared level. Returns the time at which the bank has looked up the line.
    #[inline]
    pub fn reach_shared(&mut self, domain: &mut Domain, core: usize, line: Line, at: u64) -> u64 {
        if !self.timing {
            return 0;
        }
        let at = at + self.fixed_latencies[core].before_ps;
        let Some(shared) = &mut domain.shared else { return at };
        let at = self.cross(Endpoint::Core(core), Endpoint::Cache(shared.instance), REQUEST_BYTES, at);
        let bytes = self.line_bytes();
        Self::through_bank(shared, line, bytes, at)
    }

    /// Returns a line from the shared level to `core`.
    #[inline]
    pub fn return_line(&mut self, domain: &Domain, core: usize, at: u64) -> u64 {
        if !self.timing {
            return 0;
        }
        let at = match &domain.shared {
            Some(shared) => {
                let bytes = self.line_bytes();
                self.cross(Endpoint::Cache(shared.instance), Endpoint::Core(core), bytes, at)
            }
            None => at,
        };
        at + self.fixed_latencies[core].after_ps
    }

    /// Writes a line of a core back to its shared cache. The core does not wait.
    pub fn write_line_to_shared(&mut self, shared: &mut Shared, core: usize, line: Line, at: u64) {
        let bytes = self.line_bytes();
        self.write_to_shared(shared, core, line, bytes, at);
    }

    /// Writes `bytes` of a line of a core to its shared cache. Returns the time at which they arrive.
    pub fn write_to_shared(
        &mut self,
        shared: &mut Shared,
        core: usize,
        line: Line,
        bytes: u32,
        at: u64,
    ) -> u64 {
        if !self.timing {
            return 0;
        }
        let at = self.cross(Endpoint::Core(core), Endpoint::Cache(shared.instance), bytes, at);
        Self::through_bank(shared, line, bytes, at)
    }

    /// Writes a line to memory. The requester does not wait.
    pub fn write_memory(&mut self, from: Endpoint, line: Line, at: u64) {
        if self.timing {
            let bytes = self.line_bytes();
            self.write_memory_bytes(from, line, bytes, at);
        }
    }

    /// Writes `bytes` of a line to memory. Returns the time at which they are in the controller's queue.
    pub fn write_memory_bytes(&mut self, from: Endpoint, line: Line, bytes: u32, at: u64) -> u64 {
        if !self.timing {
            return 0;
        }
        let (controller, address) = self.spaces.controller_of(line.0 << self.line_bits);
        let at = self.cross(from, Endpoint::Controller(controller), bytes, at);
        self.controllers.access(controller, address, bytes, true, Time::from_ps(at)).ps()
    }

    /// Reads a line from memory for a core of `node`. Returns the time at which it is back at `from`, and the NUMA node
    /// of the memory.
    pub fn read_memory(&mut self, from: Endpoint, node: usize, line: Line, at: u64) -> (u64, usize) {
        let physical = line.0 << self.line_bits;
        if !self.timing {
            return (0, self.spaces.node_of(physical));
        }
        let (controller, address) = self.spaces.controller_of(physical);
        let bytes = self.line_bytes();
        let start = self.cross(from, Endpoint::Controller(controller), REQUEST_BYTES, at);
        let read_end = self.read_controller((controller, address), (node, from), bytes, start);
        (read_end, self.controllers.node_of(controller))
    }

    /// Sends a probe from `endpoint` to `core`, and its response back. The lookup takes `lookup_ps` and begins no
    /// earlier than `received_ps`, the time at which the core itself receives the line. The response carries the line
    /// if `data` is true. Returns the time at which the response arrives, and the time until which the probe waited for
    /// the line (0 if it did not).
    pub fn probe(
        &mut self,
        endpoint: Endpoint,
        core: usize,
        (lookup_ps, received_ps): (u64, u64),
        data: bool,
        at: u64,
    ) -> (u64, u64) {
        if !self.timing {
            return (0, 0);
        }
        let arrival = self.cross(endpoint, Endpoint::Core(core), REQUEST_BYTES, at);
        let bytes = if data { self.line_bytes() } else { REQUEST_BYTES };
        let end = self.cross(Endpoint::Core(core), endpoint, bytes, arrival.max(received_ps) + lookup_ps);
        (end, waits_until(arrival, received_ps))
    }

    /// Sends a probe from one domain through the line's home node to another domain, and its response back. Like
    /// [`probe`](Self::probe) otherwise.
    pub fn probe_remote(
        &mut self,
        (from, to): (&Domain, &Domain),
        core: usize,
        line: Line,
        (data, received_ps): (bool, u64),
        at: u64,
    ) -> (u64, u64) {
        if !self.timing {
            return (0, 0);
        }
        let (controller, _) = self.spaces.controller_of(line.0 << self.line_bits);
        let home = self.controllers.node_of(controller);
        let (source, target) = (from.endpoint_for(core), to.endpoint());
        let hops =
            self.hop_ps[from.node][home] + self.hop_ps[home][to.node] + self.hop_ps[to.node][from.node];
        let at = self.cross(source, Endpoint::Controller(controller), REQUEST_BYTES, at);
        let at = self.cross(Endpoint::Controller(controller), target, REQUEST_BYTES, at);
        let bytes = if data { self.line_bytes() } else { REQUEST_BYTES };
        (
            self.cross(target, source, bytes, at.max(received_ps) + to.lookup_ps) + hops,
            waits_until(at, received_ps),
        )
    }

    /// Sends a request to the line's home node, and its response back. Returns the time at which the response arrives.
    pub fn query_home(&mut self, from: &Domain, core: usize, line: Line, at: u64) -> u64 {
        if !self.timing {
            return 0;
        }
        let (controller, _) = self.spaces.controller_of(line.0 << self.line_bits);
        let home = self.controllers.node_of(controller);
        let endpoint = from.endpoint_for(core);
        let at = self.cross(endpoint, Endpoint::Controller(controller), REQUEST_BYTES, at);
        let at = self.cross(Endpoint::Controller(controller), endpoint, REQUEST_BYTES, at);
        at + self.hop_ps[from.node][home] + self.hop_ps[home][from.node]
    }

    /// Sends `bytes` from a device at `from` to a shared cache and through its bank. Returns the time at which the last
    /// byte has passed.
    pub fn device_to_shared(
        &mut self,
        from: Endpoint,
        shared: &mut Shared,
        line: Line,
        bytes: u32,
        at: u64,
    ) -> u64 {
        if !self.timing {
            return 0;
        }
        let at = self.cross(from, Endpoint::Cache(shared.instance), bytes, at);
        Self::through_bank(shared, line, bytes, at)
    }

    /// Sends `bytes` from one endpoint to another. Returns the time at which they arrive.
    pub fn send(&mut self, from: Endpoint, to: Endpoint, bytes: u32, at: u64) -> u64 {
        if !self.timing {
            return 0;
        }
        self.cross(from, to, bytes, at)
    }

    /// Reads `bytes` of a line from memory for a device at `to`, through `node`. The fixed part of a core's read from
    /// `node` is a property of the memory, so it applies to devices too. Returns the time at which the bytes arrive.
    pub fn device_read_memory(&mut self, to: Endpoint, node: usize, line: Line, bytes: u32, at: u64) -> u64 {
        if !self.timing {
            return 0;
        }
        let (controller, address) = self.spaces.controller_of(line.0 << self.line_bits);
        let start = self.cross(to, Endpoint::Controller(controller), REQUEST_BYTES, at);
        self.read_controller((controller, address), (node, to), bytes, start)
    }

    /// Performs a read that reaches the controller at `start`. Returns the time at which the bytes arrive at `to`.
    fn read_controller(
        &mut self,
        (controller, address): (usize, u64),
        (node, to): (usize, Endpoint),
        bytes: u32,
        start: u64,
    ) -> u64 {
        let read = self.controllers.access(controller, address, bytes, false, Time::from_ps(start)).ps();
        let fixed = self.memory_ps[node][controller];
        // A negative fixed part means that the transfer back begins before the last word is read. A positive part is
        // added at the end.
        let begin = read.saturating_add_signed(fixed.min(0)).max(start);
        self.cross(Endpoint::Controller(controller), to, bytes, begin) + fixed.max(0) as u64
    }
}

impl Domain {
    /// The domain's endpoint in the interconnect: its shared cache, or its first core.
    pub fn endpoint(&self) -> Endpoint {
        self.endpoint_for(self.cores[0])
    }

    /// The endpoint at which requests of `core` leave the domain.
    pub fn endpoint_for(&self, core: usize) -> Endpoint {
        self.shared.as_ref().map_or(Endpoint::Core(core), |shared| Endpoint::Cache(shared.instance))
    }
}
