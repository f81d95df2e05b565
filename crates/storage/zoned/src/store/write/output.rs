//! The write buffer of a checkpoint: adjacent nodes are combined into one write.

use crate::device::{AlignedBuffer, Block, ZoneNumber, ZonedDevice};
use crate::error::Result;
use crate::node::checksum;
use crate::store::io::{Io, Traffic};

/// The maximum length of a write, bytes. On a ZN540 a write of 64 KiB takes three times as long as one of 4 KiB, and
/// longer writes gain nothing; a file benefits from fewer calls.
const MAX_RUN_BYTES: usize = 256 << 10;

/// The initial capacity of a run, nodes. Many runs stay at one node because the next slot is in use.
const INITIAL_NODES: usize = 2;

/// The number of runs at which all are written out.
const MAX_RUNS: usize = 64;

/// Adjacent nodes in one zone.
struct Run {
    block: u64,
    bytes: usize,
    buffer: AlignedBuffer,
}

/// Nodes that have an address but are not written yet.
#[derive(Default)]
pub(crate) struct Output {
    runs: Vec<Run>,
    /// Buffers of [`MAX_RUN_BYTES`] for reuse. A new buffer costs as much as filling it.
    spare: Vec<AlignedBuffer>,
}

impl Output {
    /// Adds a node, encoded by `fill`, and returns its checksum.
    pub fn add<D: ZonedDevice>(
        &mut self,
        io: &Io<D>,
        traffic: Traffic,
        block: u64,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<u32> {
        let zone = |block: u64| io.geometry.zone_of(Block(block));
        let follows = |run: &Run| {
            let end = run.block + run.bytes as u64 / u64::from(io.geometry.block_bytes);
            end == block && zone(run.block) == zone(block)
        };
        let longest = MAX_RUN_BYTES.max(io.node_bytes);
        let index = match self.runs.iter().position(follows) {
            Some(index) if self.runs[index].bytes + io.node_bytes <= longest => index,
            full => {
                // Write the full run first: the new run may follow it in a sequential zone, which must be written in
                // order.
                if let Some(index) = full {
                    self.write(io, index)?;
                }
                if self.runs.len() == MAX_RUNS {
                    self.write_all(io)?;
                }
                let buffer = AlignedBuffer::new((INITIAL_NODES * io.node_bytes).min(longest));
                self.runs.push(Run { block, bytes: 0, buffer });
                self.runs.len() - 1
            }
        };
        self.make_long_enough(index, longest, io.node_bytes);
        let run = &mut self.runs[index];
        let node = &mut run.buffer[run.bytes..run.bytes + io.node_bytes];
        fill(node);
        let checksum = checksum(node);
        run.bytes += io.node_bytes;
        io.count_written(traffic, block, io.node_bytes);
        Ok(checksum)
    }

    fn make_long_enough(&mut self, index: usize, longest: usize, node_bytes: usize) {
        let run = &mut self.runs[index];
        if run.bytes + node_bytes > run.buffer.len() {
            let mut buffer = self.spare.pop().unwrap_or_else(|| AlignedBuffer::new(longest));
            buffer[..run.bytes].copy_from_slice(&run.buffer[..run.bytes]);
            run.buffer = buffer;
        }
    }

    fn write<D: ZonedDevice>(&mut self, io: &Io<D>, index: usize) -> Result<()> {
        let run = self.runs.remove(index);
        self.write_run(io, run)
    }

    fn write_run<D: ZonedDevice>(&mut self, io: &Io<D>, run: Run) -> Result<()> {
        io.device.write(Block(run.block), &run.buffer[..run.bytes])?;
        if run.buffer.len() >= MAX_RUN_BYTES && self.spare.len() < 4 {
            self.spare.push(run.buffer);
        }
        Ok(())
    }

    /// Writes all runs in the order in which they were added. Each stream then has at most one partly written zone at
    /// any time, which matters because the number of active zones is limited.
    pub fn write_all<D: ZonedDevice>(&mut self, io: &Io<D>) -> Result<()> {
        for run in std::mem::take(&mut self.runs) {
            self.write_run(io, run)?;
        }
        Ok(())
    }

    /// Writes all runs, then finishes a zone whose remaining space is too small.
    pub fn finish<D: ZonedDevice>(&mut self, io: &Io<D>, zone: ZoneNumber) -> Result<()> {
        self.write_all(io)?;
        Ok(io.device.finish(zone)?)
    }
}
