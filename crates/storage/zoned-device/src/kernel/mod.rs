//! Zoned block devices of Linux, such as `/dev/nvme0n2`, `/dev/nullb0` or an SMR disk. The conventional part may be
//! another block device or a file. The device itself enforces the zone rules; its errors are translated to
//! [`DeviceError`].
//!
//! Source: linux/blkzoned.h; the kernel's documentation of zoned block devices; open(2), O_DIRECT.

mod queue;
mod zone_ioctls;

use super::buffer::AlignedBuffer;
use super::memory::UNWRITTEN;
use super::zones::{Span, ZoneTable};
use super::{Block, Condition, DeviceError, Geometry, Operation, Read, Write, Zone, ZoneNumber, ZonedDevice};
use longma_locks::IgnorePoison;
use queue::{Bytes, Queue, Transfer};
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use zone_ioctls::{BlkZone, Command, SECTOR_BYTES};

/// The maximum length of a single write, bytes; longer writes are submitted in pieces, one after the other. The kernel
/// would split a longer write itself, and its pieces might be reordered.
const MAX_WRITE_BYTES: usize = 256 << 10;

/// A zoned block device.
pub struct KernelDevice {
    geometry: Geometry,
    sequential: Member,
    /// The conventional part, unless it is the first zones of the sequential device.
    conventional: Option<Member>,
    /// The zones of the sequential device that are unused because the conventional part is elsewhere.
    skipped_zones: u32,
    max_write_bytes: usize,
    /// One for each sequential zone.
    pointers: Vec<Pointer>,
    /// `None` where io_uring is not permitted.
    queue: Option<Mutex<Queue>>,
}

/// The write pointer of a sequential zone, blocks from its start.
struct Pointer {
    /// Held while the zone is changed.
    changing: Mutex<()>,
    /// Modified only while `changing` is held. Readers load it without a lock.
    at: AtomicU64,
}

/// One of the files that make up the device.
struct Member {
    file: File,
    path: PathBuf,
}

impl KernelDevice {
    /// Opens a zoned block device exclusively, for direct I/O. `conventional` is the conventional part, if it is not on
    /// the same device: a block device or an existing file, at least one zone long.
    ///
    /// # Errors
    /// [`DeviceError::NotUsable`] if it is not a zoned block device or its zone layout is not supported;
    /// [`DeviceError::Host`].
    pub fn open(path: &Path, conventional: Option<&Path>) -> Result<Self, DeviceError> {
        Self::open_for(path, conventional, true)
    }

    /// Opens a zoned block device for reading. The kernel rejects writes.
    ///
    /// # Errors
    /// Those of [`KernelDevice::open`].
    pub fn open_read_only(path: &Path, conventional: Option<&Path>) -> Result<Self, DeviceError> {
        Self::open_for(path, conventional, false)
    }

    fn open_for(path: &Path, conventional: Option<&Path>, writes: bool) -> Result<Self, DeviceError> {
        let sequential = Member::open(path, writes)?;
        let host = |errno: rustix::io::Errno| sequential.host(Operation::Examine, errno.into());
        let zone_sectors = match zone_ioctls::zone_sectors(&sequential.file) {
            Ok(0)
            | Err(rustix::io::Errno::NOTTY | rustix::io::Errno::INVAL | rustix::io::Errno::OPNOTSUPP) => {
                return Err(sequential.not_usable("is not a zoned block device"));
            }
            other => u64::from(other.map_err(host)?),
        };
        let block_bytes = zone_ioctls::physical_block_bytes(&sequential.file).map_err(host)?;
        let reported = zone_ioctls::report(&sequential.file, 0, usize::MAX).map_err(host)?;
        // Ignore a smaller last zone.
        let whole: Vec<_> = reported.into_iter().filter(|zone| zone.len == zone_sectors).collect();
        let own_conventional = whole.iter().take_while(|zone| is_conventional(zone)).count();
        let rest = &whole[own_conventional..];
        let Some(first) = rest.first() else {
            return Err(sequential.not_usable("has no sequential zones"));
        };
        if rest.iter().any(|zone| is_conventional(zone) || zone.capacity != first.capacity) {
            return Err(sequential.not_usable(
                "has conventional zones between sequential ones, or zones of different capacities",
            ));
        }
        let attribute = |name| zone_ioctls::queue_attribute(&sequential.file, name).unwrap_or(0);
        let block_sectors = u64::from(block_bytes) / SECTOR_BYTES;
        let conventional = conventional.map(|path| Member::open(path, writes)).transpose()?;
        let mut geometry = Geometry {
            block_bytes,
            zone_blocks: zone_sectors / block_sectors,
            zone_capacity_blocks: first.capacity / block_sectors,
            conventional_zones: own_conventional as u32,
            sequential_zones: rest.len() as u32,
            max_open_zones: attribute("max_open_zones") as u32,
            max_active_zones: attribute("max_active_zones") as u32,
        };
        let mut skipped_zones = 0;
        if let Some(member) = &conventional {
            skipped_zones = own_conventional as u32;
            geometry.conventional_zones = (member.bytes()? / (zone_sectors * SECTOR_BYTES)) as u32;
            if geometry.conventional_zones == 0 {
                return Err(member.not_usable("is shorter than one zone"));
            }
        }
        geometry.check()?;
        let pointer = |zone: &BlkZone| Pointer {
            changing: Mutex::default(),
            at: AtomicU64::new(write_pointer(zone, block_sectors)),
        };
        let pointers = rest.iter().map(pointer).collect();
        let longest = attribute("max_sectors_kb") as usize * 1024;
        let max_write_bytes = if longest == 0 { MAX_WRITE_BYTES } else { longest.min(MAX_WRITE_BYTES) };
        let max_write_bytes = (max_write_bytes / block_bytes as usize).max(1) * block_bytes as usize;
        let queue = Queue::new().ok().map(Mutex::new);
        Ok(Self { geometry, sequential, conventional, skipped_zones, max_write_bytes, pointers, queue })
    }

    /// Whether several reads or writes are performed concurrently.
    pub const fn uses_io_uring(&self) -> bool {
        self.queue.is_some()
    }

    /// The file that contains a zone, and the byte offset of a block in it.
    fn locate(&self, zone: ZoneNumber, offset: u64) -> (&Member, u64) {
        let block_bytes = u64::from(self.geometry.block_bytes);
        let byte = |zone: u32| (u64::from(zone) * self.geometry.zone_blocks + offset) * block_bytes;
        match &self.conventional {
            Some(member) if self.geometry.is_conventional(zone) => (member, byte(zone.0)),
            Some(_) => {
                let on_device = zone.0 - self.geometry.conventional_zones + self.skipped_zones;
                (&self.sequential, byte(on_device))
            }
            None => (&self.sequential, byte(zone.0)),
        }
    }

    fn pointer(&self, zone: ZoneNumber) -> &Pointer {
        &self.pointers[(zone.0 - self.geometry.conventional_zones) as usize]
    }

    fn check_sequential(&self, zone: ZoneNumber, operation: Operation) -> Result<(), DeviceError> {
        let zones = self.geometry.zones();
        match zone {
            _ if zone.0 >= zones => Err(DeviceError::NoSuchZone { zone, zones }),
            _ if self.geometry.is_conventional(zone) => Err(DeviceError::NotSequential { zone, operation }),
            _ => Ok(()),
        }
    }

    fn report(&self, zone: ZoneNumber) -> Result<Zone, DeviceError> {
        let (member, byte) = self.locate(zone, 0);
        let reported = zone_ioctls::report(&member.file, byte / SECTOR_BYTES, 1);
        let reported = reported.map_err(|errno| member.host(Operation::Report, errno.into()))?;
        let first = reported.first().ok_or_else(|| member.not_usable("reports fewer zones than before"))?;
        self.zone_of(zone, first)
    }

    fn zone_of(&self, number: ZoneNumber, reported: &BlkZone) -> Result<Zone, DeviceError> {
        let unknown = || {
            self.sequential
                .not_usable(&format!("reports the unknown condition {:#x} of {number}", reported.cond))
        };
        Ok(Zone {
            number,
            start: self.geometry.start(number),
            capacity_blocks: self.geometry.capacity_blocks(number),
            condition: zone_ioctls::condition(reported.cond).ok_or_else(unknown)?,
            write_pointer: write_pointer(reported, u64::from(self.geometry.block_bytes) / SECTOR_BYTES),
            resets: None,
        })
    }

    fn conventional_zone(&self, number: ZoneNumber) -> Zone {
        let (start, capacity_blocks) = (self.geometry.start(number), self.geometry.zone_blocks);
        Zone {
            number,
            start,
            capacity_blocks,
            condition: Condition::Conventional,
            write_pointer: 0,
            resets: None,
        }
    }

    /// Translates a system error for a zone.
    fn explain(&self, operation: Operation, span: Span, error: io::Error) -> DeviceError {
        let zone = span.zone;
        let (member, _) = self.locate(zone, 0);
        let block = Block(self.geometry.start(zone).0 + span.offset);
        match error.raw_os_error() {
            Some(libc::ETOOMANYREFS) => {
                return DeviceError::TooManyOpen { zone, limit: self.geometry.max_open_zones };
            }
            Some(libc::EOVERFLOW) => {
                return DeviceError::TooManyActive { zone, limit: self.geometry.max_active_zones };
            }
            Some(libc::EIO | libc::EREMOTEIO | libc::ENODATA) => {}
            _ => return member.host(operation, error),
        }
        let media = DeviceError::Media { operation, block, count: span.count };
        if self.geometry.is_conventional(zone) {
            return media;
        }
        let Ok(Zone { condition, write_pointer, capacity_blocks, .. }) = self.report(zone) else {
            return media;
        };
        match (operation, condition) {
            (Operation::Read, Condition::Offline) => DeviceError::Unusable { zone, condition, operation },
            (Operation::Read, _) => media,
            (_, Condition::ReadOnly | Condition::Offline) => {
                DeviceError::Unusable { zone, condition, operation }
            }
            (Operation::Close, Condition::Empty | Condition::Full) => {
                DeviceError::NotOpen { zone, condition }
            }
            (Operation::Write | Operation::Open, Condition::Full) => DeviceError::ZoneFull { zone },
            (Operation::Write, _) if span.offset != write_pointer => {
                DeviceError::NotAtWritePointer { zone, write_pointer, offset: span.offset }
            }
            (Operation::Write, _) if span.offset + span.count > capacity_blocks => {
                DeviceError::BeyondCapacity { zone, offset: span.offset, count: span.count, capacity_blocks }
            }
            _ => media,
        }
    }

    /// Writes to a sequential zone whose lock the caller holds.
    fn write_held(&self, span: Span, data: &[u8]) -> Result<(), DeviceError> {
        let pointer = &self.pointer(span.zone).at;
        let (member, byte) = self.locate(span.zone, span.offset);
        let capacity_blocks = self.geometry.zone_capacity_blocks;
        let Span { zone, offset, count } = span;
        // Reject the whole write here; the kernel would perform its first pieces.
        if offset == pointer.load(Ordering::Relaxed)
            && offset < capacity_blocks
            && offset + count > capacity_blocks
        {
            return Err(DeviceError::BeyondCapacity { zone, offset, count, capacity_blocks });
        }
        let written = aligned(data, |data| {
            let mut at = byte;
            data.chunks(self.max_write_bytes).try_for_each(|piece| {
                member.file.write_all_at(piece, at)?;
                at += piece.len() as u64;
                Ok(())
            })
        });
        match written {
            Ok(()) => {
                pointer.store(offset + count, Ordering::Release);
                Ok(())
            }
            Err(error) => {
                if let Ok(zone) = self.report(zone) {
                    pointer.store(zone.write_pointer, Ordering::Release);
                }
                Err(self.explain(Operation::Write, span, error))
            }
        }
    }

    fn command(&self, zone: ZoneNumber, operation: Operation, command: Command) -> Result<(), DeviceError> {
        self.check_sequential(zone, operation)?;
        let pointer = self.pointer(zone);
        let _changing = pointer.hold();
        let (member, byte) = self.locate(zone, 0);
        let sectors = self.geometry.zone_blocks * u64::from(self.geometry.block_bytes) / SECTOR_BYTES;
        match zone_ioctls::command(&member.file, command, byte / SECTOR_BYTES, sectors) {
            Ok(()) => {
                match command {
                    Command::Reset => pointer.at.store(0, Ordering::Release),
                    Command::Finish => {
                        pointer.at.store(self.geometry.zone_capacity_blocks, Ordering::Release)
                    }
                    Command::Open | Command::Close => {}
                }
                Ok(())
            }
            Err(errno) => Err(self.explain(operation, Span { zone, offset: 0, count: 0 }, errno.into())),
        }
    }

    /// The number of blocks of a read that are below the write pointer.
    fn written_blocks(&self, span: Span) -> u64 {
        if self.geometry.is_conventional(span.zone) {
            return span.count;
        }
        self.pointer(span.zone).at.load(Ordering::Acquire).saturating_sub(span.offset).min(span.count)
    }
}

impl ZonedDevice for KernelDevice {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn zone(&self, zone: ZoneNumber) -> Result<Zone, DeviceError> {
        match self.check_sequential(zone, Operation::Report) {
            Err(DeviceError::NotSequential { .. }) => Ok(self.conventional_zone(zone)),
            Err(other) => Err(other),
            Ok(()) => self.report(zone),
        }
    }

    fn zones(&self) -> Result<Vec<Zone>, DeviceError> {
        let first = ZoneNumber(self.geometry.conventional_zones);
        let (member, byte) = self.locate(first, 0);
        let count = self.geometry.sequential_zones as usize;
        let reported = zone_ioctls::report(&member.file, byte / SECTOR_BYTES, count);
        let reported = reported.map_err(|errno| member.host(Operation::Report, errno.into()))?;
        let conventional = (0..first.0).map(|number| Ok(self.conventional_zone(ZoneNumber(number))));
        let sequential =
            reported.iter().zip(first.0..).map(|(zone, number)| self.zone_of(ZoneNumber(number), zone));
        conventional.chain(sequential).collect()
    }

    fn read(&self, block: Block, buffer: &mut [u8]) -> Result<(), DeviceError> {
        let span = ZoneTable::span(&self.geometry, Operation::Read, block, buffer.len())?;
        let written = self.written_blocks(span) as usize * self.geometry.block_bytes as usize;
        let (known, rest) = buffer.split_at_mut(written);
        rest.fill(UNWRITTEN);
        if known.is_empty() {
            return Ok(());
        }
        let (member, byte) = self.locate(span.zone, span.offset);
        let read = if AlignedBuffer::is_aligned(known) {
            member.file.read_exact_at(known, byte)
        } else {
            let mut copy = AlignedBuffer::new(known.len());
            member.file.read_exact_at(&mut copy, byte).map(|()| known.copy_from_slice(&copy))
        };
        read.map_err(|error| self.explain(Operation::Read, span, error))
    }

    fn write(&self, block: Block, data: &[u8]) -> Result<(), DeviceError> {
        let span = ZoneTable::span(&self.geometry, Operation::Write, block, data.len())?;
        if !self.geometry.is_conventional(span.zone) {
            let _changing = self.pointer(span.zone).hold();
            return self.write_held(span, data);
        }
        let (member, byte) = self.locate(span.zone, span.offset);
        aligned(data, |data| member.file.write_all_at(data, byte))
            .map_err(|error| self.explain(Operation::Write, span, error))
    }

    fn append(&self, zone: ZoneNumber, data: &[u8]) -> Result<Block, DeviceError> {
        self.check_sequential(zone, Operation::Write)?;
        let _changing = self.pointer(zone).hold();
        let offset = self.pointer(zone).at.load(Ordering::Relaxed);
        if offset >= self.geometry.zone_blocks {
            return Err(DeviceError::ZoneFull { zone });
        }
        let block = Block(self.geometry.start(zone).0 + offset);
        let span =
            ZoneTable::span(&self.geometry, Operation::Write, block, data.len()).map_err(
                |error| match error {
                    DeviceError::AcrossZones { count, .. } | DeviceError::OutOfRange { count, .. } => {
                        let capacity_blocks = self.geometry.zone_capacity_blocks;
                        DeviceError::BeyondCapacity { zone, offset, count, capacity_blocks }
                    }
                    other => other,
                },
            )?;
        self.write_held(span, data)?;
        Ok(block)
    }

    fn reset(&self, zone: ZoneNumber) -> Result<(), DeviceError> {
        self.command(zone, Operation::Reset, Command::Reset)
    }

    fn finish(&self, zone: ZoneNumber) -> Result<(), DeviceError> {
        self.command(zone, Operation::Finish, Command::Finish)
    }

    fn open(&self, zone: ZoneNumber) -> Result<(), DeviceError> {
        self.command(zone, Operation::Open, Command::Open)
    }

    fn close(&self, zone: ZoneNumber) -> Result<(), DeviceError> {
        self.command(zone, Operation::Close, Command::Close)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        let sync =
            |member: &Member| member.file.sync_data().map_err(|error| member.host(Operation::Flush, error));
        self.conventional.as_ref().map_or(Ok(()), sync)?;
        sync(&self.sequential)
    }

    fn read_many(&self, reads: &mut [Read<'_>]) -> Result<(), DeviceError> {
        let Some(queue) = self.queue.as_ref().filter(|_| reads.len() > 1) else {
            return reads.iter_mut().try_for_each(|read| self.read(read.block, read.buffer));
        };
        let block_bytes = self.geometry.block_bytes as usize;
        let (mut spans, mut transfers) = (Vec::new(), Vec::new());
        for read in reads {
            let span = ZoneTable::span(&self.geometry, Operation::Read, read.block, read.buffer.len())?;
            let written = self.written_blocks(span) as usize * block_bytes;
            if written < read.buffer.len() || !AlignedBuffer::is_aligned(read.buffer) {
                self.read(read.block, read.buffer)?;
                continue;
            }
            let (member, at) = self.locate(span.zone, span.offset);
            spans.push(span);
            transfers.push(Transfer { file: member.file.as_raw_fd(), at, bytes: Bytes::Read(read.buffer) });
        }
        let done = queue.lock().ignore_poison().run(&mut transfers);
        done.map_err(|(index, error)| self.explain(Operation::Read, spans[index], error))
    }

    fn write_many(&self, writes: &[Write<'_>]) -> Result<(), DeviceError> {
        let Some(queue) = self.queue.as_ref().filter(|_| writes.len() > 1) else {
            return writes.iter().try_for_each(|write| self.write(write.block, write.data));
        };
        // Writes to different blocks of conventional zones may run in any order. Submit the leading writes of this kind
        // together, then the next write alone.
        let mut rest = writes;
        while !rest.is_empty() {
            let (mut spans, mut transfers, mut blocks) = (Vec::new(), Vec::new(), BTreeSet::new());
            for write in rest {
                let span = ZoneTable::span(&self.geometry, Operation::Write, write.block, write.data.len())?;
                let conventional = self.geometry.is_conventional(span.zone);
                let apart = (0..span.count).all(|offset| blocks.insert(write.block.0 + offset));
                if !conventional || !apart || !AlignedBuffer::is_aligned(write.data) {
                    break;
                }
                let (member, at) = self.locate(span.zone, span.offset);
                transfers.push(Transfer {
                    file: member.file.as_raw_fd(),
                    at,
                    bytes: Bytes::Write(write.data),
                });
                spans.push(span);
            }
            let done = queue.lock().ignore_poison().run(&mut transfers);
            done.map_err(|(index, error)| self.explain(Operation::Write, spans[index], error))?;
            rest = &rest[spans.len()..];
            if let Some((write, after)) = rest.split_first() {
                self.write(write.block, write.data)?;
                rest = after;
            }
        }
        Ok(())
    }

    fn name(&self) -> String {
        self.sequential.path.display().to_string()
    }
}

impl Pointer {
    fn hold(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().ignore_poison()
    }
}

impl Member {
    fn open(path: &Path, writes: bool) -> Result<Self, DeviceError> {
        let host = |source| DeviceError::Host {
            name: path.display().to_string(),
            operation: Operation::Examine,
            source,
        };
        let kind = std::fs::metadata(path).map_err(host)?.file_type();
        if !kind.is_block_device() && !kind.is_file() {
            let what = "is neither a block device nor a file".into();
            return Err(DeviceError::NotUsable { name: path.display().to_string(), what });
        }
        // On a block device O_EXCL fails if the device is mounted or opened with O_EXCL elsewhere.
        let exclusive = if kind.is_block_device() { libc::O_EXCL } else { 0 };
        let open = |flags| OpenOptions::new().read(true).write(writes).custom_flags(flags).open(path);
        let file = match open(libc::O_DIRECT | exclusive) {
            // Some file systems do not support direct I/O; zoned devices always do.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) && kind.is_file() => open(0),
            other => other,
        };
        Ok(Self { file: file.map_err(host)?, path: path.into() })
    }

    fn bytes(&self) -> Result<u64, DeviceError> {
        let data = self.file.metadata().map_err(|error| self.host(Operation::Examine, error))?;
        if data.is_file() {
            return Ok(data.len());
        }
        zone_ioctls::device_bytes(&self.file).map_err(|errno| self.host(Operation::Examine, errno.into()))
    }

    fn host(&self, operation: Operation, source: io::Error) -> DeviceError {
        DeviceError::Host { name: self.path.display().to_string(), operation, source }
    }

    fn not_usable(&self, what: &str) -> DeviceError {
        DeviceError::NotUsable { name: self.path.display().to_string(), what: what.into() }
    }
}

/// Calls `write` with the data in an aligned buffer, as direct I/O requires.
fn aligned(data: &[u8], write: impl FnOnce(&[u8]) -> io::Result<()>) -> io::Result<()> {
    if AlignedBuffer::is_aligned(data) {
        return write(data);
    }
    let mut copy = AlignedBuffer::new(data.len());
    copy.copy_from_slice(data);
    write(&copy)
}

fn is_conventional(zone: &BlkZone) -> bool {
    zone.kind == 1
}

/// The write pointer in blocks from the start of the zone. The kernel reports the write pointer of a full zone at the
/// end of the zone.
fn write_pointer(zone: &BlkZone, block_sectors: u64) -> u64 {
    match zone_ioctls::condition(zone.cond) {
        Some(Condition::Conventional | Condition::Empty) => 0,
        _ => zone.wp.saturating_sub(zone.start).min(zone.capacity) / block_sectors,
    }
}
