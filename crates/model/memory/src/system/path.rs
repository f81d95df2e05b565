//! The way between caches and to memory, and how long it takes.
//! Not what is on the way: the interconnect and the memory controllers are parts of their own.
//! Source: latencies of machine files are load to use on an idle machine, all levels included (Hennessy and Patterson, section 2.2);
//! what the modelled parts do not account for is a fixed remainder.

use super::domain::{Domain, Shared};
use crate::cache::Line;
use crate::dram::Controllers;
use crate::interconnect::{Interconnect, Place};
use crate::placement::AddressSpaces;
use longma_sim::{Clock, Time};
use longma_topology::units::Frequency;

/// How much of memory is modelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Hits and misses only: the same caches and coherence, no times.
    Counts,
    /// Times as well.
    Timing,
}

/// Bytes of a request, a probe or an answer without data: a HyperTransport command packet with its address (HyperTransport I/O Link
/// Specification 3.10, section 3.2).
pub(super) const REQUEST_BYTES: u32 = 8;

/// Fixed parts of one core's way to its shared cache, picoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Legs {
    /// Before the request leaves: looking into the private caches.
    pub before_ps: u64,
    /// After the line came back.
    pub after_ps: u64,
}

/// Cycles that a core with `clock` takes for what takes `ps` picoseconds.
#[inline]
pub(super) fn cycles_in(clock: Clock, ps: u64) -> u64 {
    Frequency::new(clock.hz()).cycles_in_ps(ps)
}

/// Until when something waits that comes at `at` for what is there at `there`; 0 if it need not.
#[inline]
pub(super) fn waited(at: u64, there: u64) -> u64 {
    if there > at { there } else { 0 }
}

/// Everything between the caches of a host and its memory.
#[derive(Debug)]
pub(super) struct Path {
    pub timing: bool,
    pub line_bits: u32,
    pub interconnect: Interconnect,
    pub controllers: Controllers,
    pub spaces: AddressSpaces,
    /// By core.
    pub legs: Vec<Legs>,
    /// The fixed part of a read of memory by a core of a node: row = node, column = controller. Picoseconds; negative where the
    /// modelled parts overlap more in truth.
    pub memory_ps: Vec<Vec<i64>>,
    /// The fixed part of one crossing between two nodes, beside the interconnect's. Picoseconds.
    pub hop_ps: Vec<Vec<u64>>,
    /// When the latest request of a core is over, ps.
    pub newest_ps: u64,
}

impl Path {
    fn line_bytes(&self) -> u32 {
        1 << self.line_bits
    }

    /// When `cycle` of `clock` is, ps; 0 if times are not wanted.
    #[inline]
    pub fn time(&self, clock: Clock, cycle: u64) -> u64 {
        if !self.timing {
            return 0;
        }
        clock.start_of(cycle).map_or(u64::MAX / 2, Time::ps)
    }

    /// The cycle at which something is over that began at cycle `at`, which is `start`, and ended at `end`.
    #[inline]
    pub fn cycles_after(&self, clock: Clock, at: u64, start: u64, end: u64) -> u64 {
        if !self.timing {
            return at;
        }
        at + cycles_in(clock, end.saturating_sub(start))
    }

    #[inline]
    fn cross(&mut self, from: Place, to: Place, bytes: u32, at: u64) -> u64 {
        self.interconnect.cross(from, to, bytes, Time::from_ps(at)).ps()
    }

    /// The time for which `bytes` alone take a bank's port.
    #[inline]
    fn through_bank(shared: &mut Shared, line: Line, bytes: u32, at: u64) -> u64 {
        let bank = shared.tags.index().bank(line);
        shared.banks[bank].port.acquire(Time::from_ps(at), bytes).ps()
    }

    /// A request of `core` reaches its shared level: when its bank has looked the line up.
    #[inline]
    pub fn reach_shared(&mut self, domain: &mut Domain, core: usize, line: Line, at: u64) -> u64 {
        if !self.timing {
            return 0;
        }
        let at = at + self.legs[core].before_ps;
        let Some(shared) = &mut domain.shared else { return at };
        let at = self.cross(Place::Core(core), Place::Cache(shared.instance), REQUEST_BYTES, at);
        let bytes = self.line_bytes();
        Self::through_bank(shared, line, bytes, at)
    }

    /// A line at the shared level of `core` returns to it.
    #[inline]
    pub fn return_line(&mut self, domain: &Domain, core: usize, at: u64) -> u64 {
        if !self.timing {
            return 0;
        }
        let at = match &domain.shared {
            Some(shared) => {
                let bytes = self.line_bytes();
                self.cross(Place::Cache(shared.instance), Place::Core(core), bytes, at)
            }
            None => at,
        };
        at + self.legs[core].after_ps
    }

    /// A core writes a line back to its shared cache; nobody waits.
    pub fn write_to_shared(&mut self, shared: &mut Shared, core: usize, line: Line, at: u64) {
        if self.timing {
            let bytes = self.line_bytes();
            let at = self.cross(Place::Core(core), Place::Cache(shared.instance), bytes, at);
            Self::through_bank(shared, line, bytes, at);
        }
    }

    /// A line is written to memory; nobody waits.
    pub fn write_memory(&mut self, from: Place, line: Line, at: u64) {
        if self.timing {
            let bytes = self.line_bytes();
            self.write_memory_bytes(from, line, bytes, at);
        }
    }

    /// Writes `bytes` of a line to memory: when they are in the controller's queue.
    pub fn write_memory_bytes(&mut self, from: Place, line: Line, bytes: u32, at: u64) -> u64 {
        if !self.timing {
            return 0;
        }
        let (controller, address) = self.spaces.controller_of(line.0 << self.line_bits);
        let at = self.cross(from, Place::Controller(controller), bytes, at);
        self.controllers.access(controller, address, bytes, true, Time::from_ps(at)).ps()
    }

    /// Reads a line from memory for a core of `node`: when it is back at `from`, and whose memory it was.
    pub fn read_memory(&mut self, from: Place, node: usize, line: Line, at: u64) -> (u64, usize) {
        let physical = line.0 << self.line_bits;
        if !self.timing {
            return (0, self.spaces.node_of(physical));
        }
        let (controller, address) = self.spaces.controller_of(physical);
        let bytes = self.line_bytes();
        let start = self.cross(from, Place::Controller(controller), REQUEST_BYTES, at);
        let back = self.read_controller((controller, address), (node, from), bytes, start);
        (back, self.controllers.node_of(controller))
    }

    /// A probe of `core` and its answer, seen from `place`; the look takes `look_ps` and does not begin before `held_ps`, when the core
    /// itself has the line; the answer brings the line if `data`. Gives when the answer is there, and until when the probe waited.
    pub fn probe(
        &mut self,
        place: Place,
        core: usize,
        (look_ps, held_ps): (u64, u64),
        data: bool,
        at: u64,
    ) -> (u64, u64) {
        if !self.timing {
            return (0, 0);
        }
        let there = self.cross(place, Place::Core(core), REQUEST_BYTES, at);
        let bytes = if data { self.line_bytes() } else { REQUEST_BYTES };
        let end = self.cross(Place::Core(core), place, bytes, there.max(held_ps) + look_ps);
        (end, waited(there, held_ps))
    }

    /// A probe from one domain, by the line's home, to another, and its answer. The look there does not begin before `held_ps`. Gives when the
    /// answer is there, and until when the probe waited.
    pub fn probe_remote(
        &mut self,
        (from, to): (&Domain, &Domain),
        core: usize,
        line: Line,
        (data, held_ps): (bool, u64),
        at: u64,
    ) -> (u64, u64) {
        if !self.timing {
            return (0, 0);
        }
        let (controller, _) = self.spaces.controller_of(line.0 << self.line_bits);
        let home = self.controllers.node_of(controller);
        let (here, there) = (from.place_for(core), to.place());
        let hops =
            self.hop_ps[from.node][home] + self.hop_ps[home][to.node] + self.hop_ps[to.node][from.node];
        let at = self.cross(here, Place::Controller(controller), REQUEST_BYTES, at);
        let at = self.cross(Place::Controller(controller), there, REQUEST_BYTES, at);
        let bytes = if data { self.line_bytes() } else { REQUEST_BYTES };
        (self.cross(there, here, bytes, at.max(held_ps) + to.look_ps) + hops, waited(at, held_ps))
    }

    /// A question to the line's home node and its answer.
    pub fn ask_home(&mut self, from: &Domain, core: usize, line: Line, at: u64) -> u64 {
        if !self.timing {
            return 0;
        }
        let (controller, _) = self.spaces.controller_of(line.0 << self.line_bits);
        let home = self.controllers.node_of(controller);
        let place = from.place_for(core);
        let at = self.cross(place, Place::Controller(controller), REQUEST_BYTES, at);
        let at = self.cross(Place::Controller(controller), place, REQUEST_BYTES, at);
        at + self.hop_ps[from.node][home] + self.hop_ps[home][from.node]
    }

    /// A device at `from` reaches a shared cache with `bytes` and is through its bank.
    pub fn device_to_shared(
        &mut self,
        from: Place,
        shared: &mut Shared,
        line: Line,
        bytes: u32,
        at: u64,
    ) -> u64 {
        if !self.timing {
            return 0;
        }
        let at = self.cross(from, Place::Cache(shared.instance), bytes, at);
        Self::through_bank(shared, line, bytes, at)
    }

    /// `bytes` go from one place to another.
    pub fn send(&mut self, from: Place, to: Place, bytes: u32, at: u64) -> u64 {
        if !self.timing {
            return 0;
        }
        self.cross(from, to, bytes, at)
    }

    /// A device at `to` reads `bytes` of a line from memory, by way of `node`: what is fixed of a core's read there is the memory's, and so
    /// a device's, too.
    pub fn device_read_memory(&mut self, to: Place, node: usize, line: Line, bytes: u32, at: u64) -> u64 {
        if !self.timing {
            return 0;
        }
        let (controller, address) = self.spaces.controller_of(line.0 << self.line_bits);
        let start = self.cross(to, Place::Controller(controller), REQUEST_BYTES, at);
        self.read_controller((controller, address), (node, to), bytes, start)
    }

    /// A read of a controller that a request reached at `start`: when its bytes are at `to`.
    fn read_controller(
        &mut self,
        (controller, address): (usize, u64),
        (node, to): (usize, Place),
        bytes: u32,
        start: u64,
    ) -> u64 {
        let read = self.controllers.access(controller, address, bytes, false, Time::from_ps(start)).ps();
        let fixed = self.memory_ps[node][controller];
        // The way back may begin before the last word is read; what is fixed comes at its end.
        let begin = read.saturating_add_signed(fixed.min(0)).max(start);
        self.cross(Place::Controller(controller), to, bytes, begin) + fixed.max(0) as u64
    }
}

impl Domain {
    /// Where the domain as a whole is reached: at its shared cache, or at its first core.
    pub fn place(&self) -> Place {
        self.place_for(self.cores[0])
    }

    /// Where requests of `core` leave the domain.
    pub fn place_for(&self, core: usize) -> Place {
        self.shared.as_ref().map_or(Place::Core(core), |shared| Place::Cache(shared.instance))
    }
}
