//! Memory controllers: channels, ranks, banks with row buffers, refresh and data buses. An access reserves its bank
//! once, rather than command by command.
//!
//! Source: the JEDEC standards cited in `timing`; parameters from machine files.

mod channel;
pub mod overhead;
mod refresh;
mod timing;

pub use channel::ChannelCounts;
pub use timing::Timing;

use crate::build_error::{BuildError, host_of};
use crate::placement::Divider;
use channel::{Cell, Channel};
use longma_sim::{Duration, Resource, Statistics, StatisticsError, Time};
use longma_topology::Machine;

/// Maximum number of banks of one controller; bounds the memory that a model needs.
const MAX_BANKS: u64 = 1 << 16;

/// The memory controllers of a host, numbered node by node.
#[derive(Clone, Debug)]
pub struct Controllers {
    controllers: Vec<Controller>,
}

#[derive(Clone, Debug)]
struct Controller {
    node: usize,
    timing: Timing,
    channels: Vec<Channel>,
    map: AddressMap,
    mean_random_ps: u64,
}

impl Controllers {
    /// Creates the controllers of host number `host` of `machine`.
    ///
    /// # Errors
    /// If there is no such host, if it has no memory, or if it has too many banks.
    pub fn new(machine: &Machine, host: usize) -> Result<Self, BuildError> {
        let host = host_of(machine, host)?;
        let line = u32::try_from(machine.line_bytes()).unwrap_or(u32::MAX);
        let mut controllers = Vec::new();
        for (number, node) in host.nodes.iter().enumerate() {
            let core = node.cores.first().or(Some(&0)).and_then(|c| host.cores.get(*c));
            let clock = core.and_then(|c| machine.cores.get(&c.core)).map(|c| c.clock).unwrap_or_default();
            for name in &node.memories {
                let Some(memory) = machine.memories.get(name) else { continue };
                controllers.push(Controller::new(name, number, Timing::of(memory, clock))?);
            }
        }
        overhead::measure(&mut controllers, line);
        if controllers.is_empty() {
            return Err(BuildError::NoMemory { host: host.name.clone() });
        }
        Ok(Self { controllers })
    }

    /// Number of controllers.
    pub fn len(&self) -> usize {
        self.controllers.len()
    }

    /// Always false: a host without controllers cannot be built.
    pub fn is_empty(&self) -> bool {
        self.controllers.is_empty()
    }

    /// The NUMA node of `controller`.
    pub fn node_of(&self, controller: usize) -> usize {
        self.controllers[controller].node
    }

    /// The structure and timing of `controller`.
    pub fn timing(&self, controller: usize) -> &Timing {
        &self.controllers[controller].timing
    }

    /// Reads or writes `bytes` at `local_address` of a controller (see `AddressSpaces::controller_of`). The request
    /// reaches the controller at `at`. Returns the time at which the last byte of a read has crossed the data bus, or
    /// at which a write has entered the queue. Requests may be out of time order by the few microseconds that a
    /// `Calendar` covers.
    ///
    /// # Panics
    /// If there is no such controller.
    pub fn access(
        &mut self,
        controller: usize,
        local_address: u64,
        bytes: u32,
        write: bool,
        at: Time,
    ) -> Time {
        self.controllers[controller].access(local_address, bytes, write, at)
    }

    /// Mean time of a line read from a random address on an idle machine, from its arrival at the controller to its
    /// last byte on the bus, picoseconds. This is the controller's share of a pointer chase's latency; see
    /// [`overhead`].
    pub fn mean_random_ps(&self, controller: usize) -> u64 {
        self.controllers[controller].mean_random_ps
    }

    /// Load-to-use latency of a controller's memory on an idle machine as stated in the machine file, picoseconds.
    pub fn stated_ps(&self, controller: usize) -> Option<u64> {
        self.controllers[controller].timing.load_to_use_ps
    }

    /// Time that `bytes` occupy the data bus of one channel of a controller, picoseconds.
    pub fn burst_ps(&self, controller: usize, bytes: u32) -> u64 {
        overhead::burst_ps(&self.controllers[controller].timing, bytes).round() as u64
    }

    /// Event counts of a controller's channels, in order.
    pub fn counts(&self, controller: usize) -> impl Iterator<Item = &ChannelCounts> {
        self.controllers[controller].channels.iter().map(|c| &c.counts)
    }

    /// Bytes read and written by a controller.
    pub fn bytes(&self, controller: usize) -> u64 {
        self.controllers[controller].channels.iter().map(|c| c.bus.bytes()).sum()
    }

    /// The data buses of each controller.
    pub(crate) fn buses(&mut self) -> impl Iterator<Item = Vec<&mut Resource>> {
        self.controllers
            .iter_mut()
            .map(|controller| controller.channels.iter_mut().map(|channel| &mut channel.bus).collect())
    }

    /// Resets the statistics but not the state, for the start of a region of interest.
    pub fn clear_statistics(&mut self) {
        for channel in self.controllers.iter_mut().flat_map(|c| &mut c.channels) {
            channel.bus.clear_statistics();
            channel.counts = ChannelCounts::default();
        }
    }

    /// Adds the statistics of every channel under `name`, as `NAME.controller0.channel0...`.
    ///
    /// # Errors
    /// If a name is malformed or already in use.
    pub fn report(
        &self,
        statistics: &mut Statistics,
        name: &str,
        elapsed: Duration,
    ) -> Result<(), StatisticsError> {
        for (index, controller) in self.controllers.iter().enumerate() {
            for (number, channel) in controller.channels.iter().enumerate() {
                let name = format!("{name}.controller{index}.channel{number}");
                channel.bus.report(statistics, &format!("{name}.bus"), elapsed)?;
                let ChannelCounts { reads, writes, row_hits, rows_closed, row_conflicts, refresh_waits } =
                    channel.counts;
                let counts = [
                    ("reads", reads, "reads from memory"),
                    ("writes", writes, "writes to memory"),
                    ("row_hits", row_hits, "accesses whose row was open"),
                    ("rows_closed", rows_closed, "accesses that found no row open"),
                    ("row_conflicts", row_conflicts, "accesses that had to close another row"),
                    ("refresh_waits", refresh_waits, "accesses that waited for a refresh"),
                ];
                for (key, value, description) in counts {
                    statistics.count(&format!("{name}.{key}"), value, "accesses", description)?;
                }
            }
        }
        Ok(())
    }
}

impl Controller {
    fn new(name: &str, node: usize, timing: Timing) -> Result<Self, BuildError> {
        let banks = [timing.channels, timing.ranks, timing.banks];
        let banks = banks.iter().try_fold(1u64, |all, n| all.checked_mul(u64::from(*n)));
        if banks.is_none_or(|b| b > MAX_BANKS) {
            return Err(BuildError::Impossible {
                what: format!("memory `{name}` has more than {MAX_BANKS} banks in all"),
                help: "give it fewer `channels`, `ranks` or `banks`".into(),
            });
        }
        let map = AddressMap::new(&timing);
        let channels = (0..timing.channels).map(|_| Channel::new(&timing)).collect();
        Ok(Self { node, timing, channels, map, mean_random_ps: 0 })
    }

    /// See [`Controllers::access`].
    fn access(&mut self, local_address: u64, bytes: u32, write: bool, at: Time) -> Time {
        let Self { timing, channels, map, .. } = self;
        let (mut address, mut left, mut end) = (local_address, bytes, at);
        // Usually one iteration: a line is in one channel.
        while left > 0 {
            let chunk = u64::from(left).min(map.left_in_channel(address)) as u32;
            let (channel, cell) = map.cell(address);
            let channel = &mut channels[channel];
            let completed = match write {
                true => channel.write(timing, cell, chunk, at),
                false => channel.read(timing, cell, chunk, at),
            };
            end = end.max(completed);
            address += u64::from(chunk);
            left -= chunk;
        }
        end
    }
}

/// Maps a controller's address to channel, rank, bank and row. From the lowest bits up: offset in the interleave unit,
/// channel, rest of the column, bank, rank, row. A stream therefore stays in open rows, and adjacent rows are in
/// different banks.
#[derive(Clone, Debug)]
struct AddressMap {
    interleave: Divider,
    interleave_bytes: u64,
    channels: Divider,
    row: Divider,
    banks: Divider,
    ranks: Divider,
    /// Mask of the row bits that are XORed into the bank number, so that addresses a power of two apart are in
    /// different banks (Zhang, Zhu and Zhang, A permutation-based page interleaving scheme, MICRO 2000). 0 if the
    /// number of banks is not a power of two.
    mix: u64,
}

impl AddressMap {
    fn new(timing: &Timing) -> Self {
        Self {
            interleave: Divider::by(timing.interleave_bytes),
            interleave_bytes: timing.interleave_bytes,
            channels: Divider::by(timing.channels.into()),
            row: Divider::by(timing.row_bytes),
            banks: Divider::by(timing.banks.into()),
            ranks: Divider::by(timing.ranks.into()),
            mix: if timing.banks.is_power_of_two() { u64::from(timing.banks) - 1 } else { 0 },
        }
    }

    /// Number of bytes from `address` on that are in the same channel.
    #[inline]
    fn left_in_channel(&self, address: u64) -> u64 {
        self.interleave_bytes - self.interleave.split(address).1
    }

    #[inline]
    fn cell(&self, address: u64) -> (usize, Cell) {
        let (piece, offset) = self.interleave.split(address);
        let (piece, channel) = self.channels.split(piece);
        let (rest, _column) = self.row.split(piece * self.interleave_bytes + offset);
        let (rest, bank) = self.banks.split(rest);
        let (row, rank) = self.ranks.split(rest);
        let bank = bank ^ (row & self.mix);
        (channel as usize, Cell { rank: rank as u32, bank: bank as u32, row })
    }
}
