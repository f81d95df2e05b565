//! Fault injection: a device in memory that fails on request and records the images that a power cut would leave.
//!
//! Source: the faults stay within the contract of [`ZonedDevice`], except for the media faults (torn, lost and
//! misdirected writes, flipped bits).

use super::memory::MemoryDevice;
use super::power_cut::{Change, Cut, Recording};
use super::{Block, Condition, DeviceError, Geometry, Operation, Zone, ZoneNumber, ZonedDevice};
use longma_locks::IgnorePoison;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

/// A fault to inject. Changes are counted as by [`FaultyDevice::changes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The power fails after change `after`: the next change and all further operations fail.
    PowerCut {
        /// The number of changes that succeed.
        after: u64,
    },
    /// Every read that includes `block` fails.
    ReadError {
        /// The block.
        block: Block,
    },
    /// A transient error: the first read after `after` successful reads fails.
    TransientReadError {
        /// The number of reads that succeed first.
        after: u64,
    },
    /// The change after change `after` fails, if it is a write. The first half of its blocks is written nevertheless.
    WriteError {
        /// The number of changes before it.
        after: u64,
    },
    /// The change after change `after`, if it is a write, reports success but writes only its first `sectors` sectors
    /// of 512 bytes. The rest keeps its old contents. The write pointer of a sequential zone advances over the whole
    /// write.
    TornWrite {
        /// The number of changes before it.
        after: u64,
        /// The number of sectors written; 0 makes it a lost write.
        sectors: u64,
    },
    /// The change after change `after`, if it is a write, reports success but overwrites another block.
    MisdirectedWrite {
        /// The number of changes before it.
        after: u64,
        /// The block that is overwritten. Data that does not fit into its zone is dropped.
        to: Block,
    },
    /// The first flush after change `after` fails. A power cut then loses in-place writes since the previous flush,
    /// even if a later flush succeeds.
    FlushError {
        /// The number of changes before it.
        after: u64,
    },
    /// The zone wears out after change `after`.
    WornOut {
        /// The number of changes before it.
        after: u64,
        /// The zone.
        zone: ZoneNumber,
        /// [`Condition::ReadOnly`] or [`Condition::Offline`].
        condition: Condition,
    },
}

/// The state of a [`FaultyDevice`] other than its contents.
struct FaultState {
    changes: u64,
    reads: u64,
    off: bool,
    /// An image that a power cut at this moment would leave.
    cut: Cut,
    recording: Option<Recording>,
    faults: Vec<Fault>,
    /// The last two versions of each block.
    versions: Option<HashMap<u64, Versions>>,
}

/// The last two versions of a block.
struct Versions {
    newest: Arc<[u8]>,
    older: Option<Arc<[u8]>>,
}

/// The unit in which a write is torn, bytes.
const SECTOR_BYTES: usize = 512;

/// A device in memory that fails on request.
pub struct FaultyDevice {
    live: MemoryDevice,
    memory: Mutex<FaultState>,
}

impl FaultyDevice {
    /// Creates an empty device without faults.
    ///
    /// # Errors
    /// Those of [`Geometry::check`].
    pub fn new(geometry: Geometry) -> Result<Self, DeviceError> {
        MemoryDevice::new(geometry).map(Self::over)
    }

    /// Wraps a device. Its contents are treated as durable.
    pub fn over(device: MemoryDevice) -> Self {
        let cut = Cut::of(&device);
        let (recording, faults, versions) = (None, Vec::new(), None);
        let memory = FaultState { changes: 0, reads: 0, off: false, cut, recording, faults, versions };
        Self { live: device, memory: Mutex::new(memory) }
    }

    /// The number of changes so far: writes, appends, resets, finishes and flushes.
    pub fn changes(&self) -> u64 {
        self.memory().changes
    }

    /// Adds a fault.
    pub fn inject(&self, fault: Fault) {
        self.memory().faults.push(fault);
    }

    /// The faults that have not occurred yet.
    pub fn waiting(&self) -> Vec<Fault> {
        self.memory().faults.clone()
    }

    /// Removes all faults. After a power cut the power stays off.
    pub fn clear_faults(&self) {
        self.memory().faults.clear();
    }

    /// Inverts a bit of a block, like bit rot. `bit` counts from the least significant bit of the first byte.
    ///
    /// # Errors
    /// [`DeviceError::OutOfRange`].
    pub fn flip_bit(&self, block: Block, bit: u64) -> Result<(), DeviceError> {
        self.live.flip_bit(block, bit)?;
        self.memory().cut.flip_bit(block, bit)
    }

    /// Starts recording the previous version of each written block, for [`FaultyDevice::revert_block`].
    pub fn track_versions(&self) {
        self.memory().versions.get_or_insert_default();
    }

    /// Reverts a block to its previous version, like a drive that loses an entry of its mapping table. Returns false if
    /// the block has not been written twice since [`FaultyDevice::track_versions`].
    pub fn revert_block(&self, block: Block) -> bool {
        let mut memory = self.memory();
        let versions = memory.versions.as_mut().and_then(|versions| versions.get_mut(&block.0));
        let Some(older) = versions.and_then(|versions| versions.older.take()) else { return false };
        self.overwrite(&mut memory, block, &older);
        true
    }

    /// The blocks that [`FaultyDevice::revert_block`] can revert, in order.
    pub fn revertible_blocks(&self) -> Vec<Block> {
        let memory = self.memory();
        let versions = memory.versions.iter().flatten();
        let older = versions.filter(|(_, versions)| versions.older.is_some()).map(|(block, _)| Block(*block));
        let mut blocks: Vec<_> = older.collect();
        blocks.sort_unstable();
        blocks
    }

    /// Overwrites the medium without applying the zone rules.
    fn overwrite(&self, memory: &mut FaultState, block: Block, data: &[u8]) {
        let geometry = self.geometry();
        let zone = geometry.zone_of(block);
        let block_bytes = geometry.block_bytes as usize;
        let offset = block.0 - geometry.start(zone).0;
        let fits = (geometry.zone_blocks - offset) as usize * block_bytes;
        let data = &data[..data.len().min(fits)];
        self.live.store(zone, offset as usize * block_bytes, data);
        memory.cut.overwrite(block, data);
    }

    /// An image that a power cut at this moment would leave.
    pub fn cut(&self) -> Cut {
        self.memory().cut.clone()
    }

    /// Starts recording all changes, for [`FaultyDevice::recording`].
    pub fn record(&self) {
        let mut memory = self.memory();
        memory.recording = Some(Recording::beginning_with(memory.cut.clone(), memory.changes));
    }

    /// Ends the recording and returns the changes since [`FaultyDevice::record`]. `None` if no recording was running.
    pub fn recording(&self) -> Option<Recording> {
        self.memory().recording.take()
    }

    fn memory(&self) -> MutexGuard<'_, FaultState> {
        self.memory.lock().ignore_poison()
    }

    /// Locks the state for a change, after triggering the faults that are due.
    fn about_to_change(&self) -> Result<MutexGuard<'_, FaultState>, DeviceError> {
        let mut memory = self.memory();
        let changes = memory.changes;
        let faults = memory.faults.clone();
        for fault in &faults {
            match *fault {
                Fault::PowerCut { after } if after <= changes => memory.off = true,
                Fault::WornOut { after, zone, condition } if after <= changes => {
                    self.live.wear_out(zone, condition)?;
                    memory.cut.wear_out(zone, condition)?;
                }
                _ => {}
            }
        }
        memory.faults.retain(|fault| !matches!(fault, Fault::WornOut { after, .. } if *after <= changes));
        if memory.off { Err(DeviceError::PowerCut) } else { Ok(memory) }
    }

    fn write_through(&self, memory: &mut FaultState, block: Block, data: &[u8]) -> Result<(), DeviceError> {
        let changes = memory.changes;
        let is_due = |fault: &Fault| match fault {
            Fault::WriteError { after }
            | Fault::TornWrite { after, .. }
            | Fault::MisdirectedWrite { after, .. } => *after <= changes,
            _ => false,
        };
        let due = memory.faults.iter().position(is_due).map(|index| memory.faults.remove(index));
        match due {
            Some(Fault::TornWrite { sectors, .. }) => {
                let bytes = usize::try_from(sectors).unwrap_or(usize::MAX).saturating_mul(SECTOR_BYTES);
                self.write_front(memory, block, data, bytes)
            }
            Some(Fault::MisdirectedWrite { to, .. }) => {
                self.write_front(memory, block, data, 0)?;
                self.overwrite(memory, to, data);
                Ok(())
            }
            Some(_) => self.fail_to_write(memory, block, data),
            None => {
                self.live.write(block, data)?;
                memory.note_versions(block, data, self.geometry().block_bytes);
                memory.note(Change::write(block, data));
                Ok(())
            }
        }
    }

    /// Writes only the first `bytes` bytes of `data`. The rest keeps its old contents.
    fn write_front(
        &self,
        memory: &mut FaultState,
        block: Block,
        data: &[u8],
        bytes: usize,
    ) -> Result<(), DeviceError> {
        let mut current = vec![0; data.len()];
        self.live.read(block, &mut current)?;
        let front = bytes.min(data.len());
        current[..front].copy_from_slice(&data[..front]);
        self.live.write(block, &current)?;
        memory.note(Change::write(block, &current));
        Ok(())
    }

    fn fail_to_write(&self, memory: &mut FaultState, block: Block, data: &[u8]) -> Result<(), DeviceError> {
        let block_bytes = self.geometry().block_bytes as usize;
        let half = &data[..data.len() / block_bytes / 2 * block_bytes];
        if !half.is_empty() {
            self.live.write(block, half)?;
        }
        memory.note(Change::write(block, half));
        let count = (data.len() / block_bytes) as u64;
        Err(DeviceError::Media { operation: Operation::Write, block, count })
    }
}

impl FaultState {
    fn note_versions(&mut self, block: Block, data: &[u8], block_bytes: u32) {
        let Some(versions) = &mut self.versions else { return };
        for (number, content) in (block.0..).zip(data.chunks(block_bytes as usize)) {
            let newest: Arc<[u8]> = content.into();
            let older = versions.remove(&number).map(|before| before.newest);
            versions.insert(number, Versions { newest, older });
        }
    }

    fn note(&mut self, change: Change) {
        self.changes += 1;
        if let Some(recording) = &mut self.recording {
            recording.push(change.clone());
        }
        self.cut.change(change);
    }
}

impl ZonedDevice for FaultyDevice {
    fn geometry(&self) -> Geometry {
        self.live.geometry()
    }

    fn zone(&self, zone: ZoneNumber) -> Result<Zone, DeviceError> {
        if self.memory().off { Err(DeviceError::PowerCut) } else { self.live.zone(zone) }
    }

    fn read(&self, block: Block, buffer: &mut [u8]) -> Result<(), DeviceError> {
        let mut memory = self.memory();
        if memory.off {
            return Err(DeviceError::PowerCut);
        }
        let count = buffer.len() as u64 / u64::from(self.geometry().block_bytes);
        let reads = memory.reads;
        memory.reads += 1;
        let passing = |fault: &Fault| matches!(fault, Fault::TransientReadError { after } if *after <= reads);
        let passing = memory.faults.iter().position(passing).map(|index| memory.faults.remove(index));
        let touched = |fault: &Fault| match fault {
            Fault::ReadError { block: bad } => (block.0..block.0 + count).contains(&bad.0),
            _ => false,
        };
        if passing.is_some() || memory.faults.iter().any(touched) {
            return Err(DeviceError::Media { operation: Operation::Read, block, count });
        }
        drop(memory);
        self.live.read(block, buffer)
    }

    fn write(&self, block: Block, data: &[u8]) -> Result<(), DeviceError> {
        let mut memory = self.about_to_change()?;
        self.write_through(&mut memory, block, data)
    }

    fn append(&self, zone: ZoneNumber, data: &[u8]) -> Result<Block, DeviceError> {
        let mut memory = self.about_to_change()?;
        let block = self.live.table().append_at(zone)?;
        self.write_through(&mut memory, block, data)?;
        Ok(block)
    }

    fn reset(&self, zone: ZoneNumber) -> Result<(), DeviceError> {
        let mut memory = self.about_to_change()?;
        self.live.reset(zone)?;
        memory.note(Change::Reset(zone));
        Ok(())
    }

    fn finish(&self, zone: ZoneNumber) -> Result<(), DeviceError> {
        let mut memory = self.about_to_change()?;
        self.live.finish(zone)?;
        memory.note(Change::Finish(zone));
        Ok(())
    }

    fn open(&self, zone: ZoneNumber) -> Result<(), DeviceError> {
        let _memory = self.about_to_change()?;
        self.live.open(zone)
    }

    fn close(&self, zone: ZoneNumber) -> Result<(), DeviceError> {
        let _memory = self.about_to_change()?;
        self.live.close(zone)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        let mut memory = self.about_to_change()?;
        let due = |fault: &Fault| matches!(fault, Fault::FlushError { after } if *after <= memory.changes);
        if let Some(index) = memory.faults.iter().position(due) {
            memory.faults.remove(index);
            memory.note(Change::FailedFlush);
            let source = std::io::Error::other("injected");
            return Err(DeviceError::Host { name: self.name(), operation: Operation::Flush, source });
        }
        memory.note(Change::Flush);
        Ok(())
    }

    fn name(&self) -> String {
        "faulty memory".into()
    }
}
