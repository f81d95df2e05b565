//! Nodes on their way to the device: those that lie behind each other are written at once.
//! Not the choice of their places: see `space`.
//! Source: our own.

use super::io::{Io, Traffic};
use crate::device::{AlignedBuffer, Block, ZoneNumber, ZonedDevice};
use crate::error::Result;

/// How much is written at once, bytes: of a ZN540 a write of 64 KiB takes three times as long as one of 4 KiB, and more gains nothing; a
/// file gains by fewer calls.
const RUN_BYTES: usize = 256 << 10;

/// Nodes that lie behind each other in one zone.
struct Run {
    block: u64,
    bytes: usize,
    buffer: AlignedBuffer,
}

/// Nodes that have a place and are not written yet.
#[derive(Default)]
pub(super) struct Output {
    runs: Vec<Run>,
}

impl Output {
    /// Adds a node: `fill` writes its bytes.
    pub fn add<D: ZonedDevice>(
        &mut self,
        io: &Io<D>,
        traffic: Traffic,
        block: u64,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<()> {
        let zone = |block: u64| io.geometry.zone_of(Block(block));
        let follows = |run: &Run| {
            let end = run.block + run.bytes as u64 / u64::from(io.geometry.block_bytes);
            end == block && zone(run.block) == zone(block)
        };
        let index = match self.runs.iter().position(follows) {
            Some(index) if self.runs[index].bytes + io.node_bytes <= RUN_BYTES.max(io.node_bytes) => index,
            full => {
                // Written in order: the new run may be behind the full one in a sequential zone.
                if let Some(index) = full {
                    self.write(io, index)?;
                }
                let buffer = AlignedBuffer::new(RUN_BYTES.max(io.node_bytes));
                self.runs.push(Run { block, bytes: 0, buffer });
                self.runs.len() - 1
            }
        };
        let run = &mut self.runs[index];
        fill(&mut run.buffer[run.bytes..run.bytes + io.node_bytes]);
        run.bytes += io.node_bytes;
        io.count_written(traffic, block, io.node_bytes);
        Ok(())
    }

    fn write<D: ZonedDevice>(&mut self, io: &Io<D>, index: usize) -> Result<()> {
        let run = self.runs.swap_remove(index);
        Ok(io.device.write(Block(run.block), &run.buffer[..run.bytes])?)
    }

    /// Writes everything.
    pub fn write_all<D: ZonedDevice>(&mut self, io: &Io<D>) -> Result<()> {
        self.runs.sort_by_key(|run| run.block);
        for run in self.runs.drain(..) {
            io.device.write(Block(run.block), &run.buffer[..run.bytes])?;
        }
        Ok(())
    }

    /// Writes everything, and makes a zone full of which too little is left.
    pub fn finish<D: ZonedDevice>(&mut self, io: &Io<D>, zone: ZoneNumber) -> Result<()> {
        self.write_all(io)?;
        Ok(io.device.finish(zone)?)
    }
}
