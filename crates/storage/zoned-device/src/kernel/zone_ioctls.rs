//! The ioctls for zoned block devices and the queue attributes in sysfs.
//!
//! Source: linux/blkzoned.h and linux/fs.h (ioctl numbers and structures); Documentation/ABI/stable/sysfs-block.

use crate::Condition;
use rustix::ioctl::{self, Getter, Ioctl, IoctlOutput, Opcode, Setter, opcode};
use std::ffi::c_void;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

/// The unit of zone addresses in the kernel, bytes.
pub const SECTOR_BYTES: u64 = 512;

/// `struct blk_zone`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct BlkZone {
    /// Sectors from the start of the device.
    pub start: u64,
    /// Sectors.
    pub len: u64,
    /// The write pointer, sectors from the start of the device.
    pub wp: u64,
    /// `enum blk_zone_type`.
    pub kind: u8,
    /// `enum blk_zone_cond`.
    pub cond: u8,
    non_seq: u8,
    reset: u8,
    reserved: [u8; 4],
    /// Sectors.
    pub capacity: u64,
    reserved_too: [u8; 24],
}

/// `struct blk_zone_range`.
#[repr(C)]
struct BlkZoneRange {
    sector: u64,
    sectors: u64,
}

/// The number of zones per report ioctl.
const REPORT_ZONES: usize = 256;

/// `struct blk_zone_report` with space for its zones.
#[repr(C)]
struct BlkZoneReport {
    sector: u64,
    zones: u32,
    flags: u32,
    reported: [BlkZone; REPORT_ZONES],
}

/// The ioctl number encodes only the size of the fixed part of `struct blk_zone_report`.
const REPORT_HEAD: Opcode = opcode::read_write::<[u64; 2]>(0x12, 130);
const RESET: Opcode = opcode::write::<BlkZoneRange>(0x12, 131);
const ZONE_SECTORS: Opcode = opcode::read::<u32>(0x12, 132);
const OPEN: Opcode = opcode::write::<BlkZoneRange>(0x12, 134);
const CLOSE: Opcode = opcode::write::<BlkZoneRange>(0x12, 135);
const FINISH: Opcode = opcode::write::<BlkZoneRange>(0x12, 136);
const DEVICE_BYTES: Opcode = opcode::read::<usize>(0x12, 114);
const PHYSICAL_BLOCK_BYTES: Opcode = opcode::none(0x12, 123);

/// A zone management command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    Reset,
    Open,
    Close,
    Finish,
}

/// BLKREPORTZONE.
struct Report<'a>(&'a mut BlkZoneReport);

// SAFETY: the opcode is that of BLKREPORTZONE, and the pointer refers to a report with space for as many zones as its
// `zones` field says.
unsafe impl Ioctl for Report<'_> {
    type Output = ();
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        REPORT_HEAD
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(self.0).cast()
    }

    // SAFETY: this function does not use the pointer, so it has no requirements.
    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> rustix::io::Result<()> {
        Ok(())
    }
}

/// Reports at most `count` zones, starting with the one at `sector`.
pub fn report(file: &File, sector: u64, count: usize) -> rustix::io::Result<Vec<BlkZone>> {
    let mut found = Vec::new();
    let mut sector = sector;
    while found.len() < count {
        let zones = (count - found.len()).min(REPORT_ZONES) as u32;
        let mut report =
            BlkZoneReport { sector, zones, flags: 0, reported: [BlkZone::default(); REPORT_ZONES] };
        // SAFETY: `Report` matches the kernel's definition of BLKREPORTZONE.
        unsafe { ioctl::ioctl(file.as_fd(), Report(&mut report))? };
        // Flag bit 0: the capacity field is valid. Otherwise the capacity of a zone is its length.
        let has_capacity = report.flags & 1 != 0;
        let reported = &report.reported[..(report.zones as usize).min(REPORT_ZONES)];
        let Some(last) = reported.last() else { break };
        sector = last.start + last.len;
        found.extend(
            reported.iter().map(|zone| BlkZone {
                capacity: if has_capacity { zone.capacity } else { zone.len },
                ..*zone
            }),
        );
    }
    Ok(found)
}

/// Runs a command on the zone at `sector`.
pub fn command(file: &File, command: Command, sector: u64, sectors: u64) -> rustix::io::Result<()> {
    let range = BlkZoneRange { sector, sectors };
    let file = file.as_fd();
    // SAFETY: each opcode takes a pointer to `struct blk_zone_range` (linux/blkzoned.h).
    unsafe {
        match command {
            Command::Reset => ioctl::ioctl(file, Setter::<RESET, _>::new(range)),
            Command::Open => ioctl::ioctl(file, Setter::<OPEN, _>::new(range)),
            Command::Close => ioctl::ioctl(file, Setter::<CLOSE, _>::new(range)),
            Command::Finish => ioctl::ioctl(file, Setter::<FINISH, _>::new(range)),
        }
    }
}

/// The distance between zone starts in sectors; 0 or an error if the device is not zoned.
pub fn zone_sectors(file: &File) -> rustix::io::Result<u32> {
    // SAFETY: BLKGETZONESZ writes a 32-bit integer.
    unsafe { ioctl::ioctl(file.as_fd(), Getter::<ZONE_SECTORS, u32>::new()) }
}

/// The size of the device, bytes.
pub fn device_bytes(file: &File) -> rustix::io::Result<u64> {
    // SAFETY: BLKGETSIZE64 writes a 64-bit integer, although its opcode is declared with `size_t`.
    unsafe { ioctl::ioctl(file.as_fd(), Getter::<DEVICE_BYTES, u64>::new()) }
}

/// The physical block size, bytes: the smallest write that a zoned device accepts.
pub fn physical_block_bytes(file: &File) -> rustix::io::Result<u32> {
    // SAFETY: BLKPBSZGET writes a 32-bit integer.
    unsafe { ioctl::ioctl(file.as_fd(), Getter::<PHYSICAL_BLOCK_BYTES, u32>::new()) }
}

/// Reads a numeric queue attribute. `None` if the kernel does not have it.
pub fn queue_attribute(file: &File, name: &str) -> Option<u64> {
    let device = file.metadata().ok()?.rdev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let text = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/queue/{name}")).ok()?;
    text.trim().parse().ok()
}

/// Converts `enum blk_zone_cond`. `None` for an unknown value.
pub fn condition(cond: u8) -> Option<Condition> {
    Some(match cond {
        0x0 => Condition::Conventional,
        0x1 => Condition::Empty,
        0x2 => Condition::ImplicitlyOpen,
        0x3 => Condition::ExplicitlyOpen,
        0x4 => Condition::Closed,
        0xd => Condition::ReadOnly,
        0xe => Condition::Full,
        0xf => Condition::Offline,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_are_as_long_as_the_kernels() {
        assert_eq!(size_of::<BlkZone>(), 64);
        assert_eq!(size_of::<BlkZoneRange>(), 16);
        assert_eq!(std::mem::offset_of!(BlkZoneReport, reported), 16);
        assert_eq!(std::mem::offset_of!(BlkZone, capacity), 32);
    }

    #[test]
    fn a_regular_file_is_not_a_zoned_device() {
        let file = tempfile::tempfile().unwrap();
        assert!(zone_sectors(&file).is_err() && report(&file, 0, 1).is_err());
        assert_eq!(queue_attribute(&file, "max_open_zones"), None);
    }
}
