//! Starts a Linux kernel without firmware. Source: Linux, Documentation/arch/loongarch/booting.rst.

mod device_tree;
mod efi;
mod image;

pub use image::{Image, ImageError};

use crate::machine::Machine;
use crate::memory::MemoryError;
use efi::{Kind, Range, Tables};

/// The address of the boot information, below the kernel, which starts at 2 MiB or above.
const INFORMATION: u64 = 0x10_0000;
const INFORMATION_END: u64 = 0x20_0000;
const COMMAND_LINE: u64 = INFORMATION;
const TABLES: u64 = INFORMATION + 0x1_0000;
const DEVICE_TREE: u64 = INFORMATION + 0x2_0000;

/// The maximum length of the command line that the kernel reads, including its terminating zero.
const COMMAND_LINE_BYTES: usize = 4096;

/// The alignment of the initial RAM disk.
const ALIGNMENT: u64 = 0x1_0000;

/// A kernel cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// The kernel file is not bootable.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The command line is too long or contains a zero byte.
    #[error("the command line has {0} bytes; the kernel reads up to {limit} bytes, none of which may be 0", limit = COMMAND_LINE_BYTES - 1)]
    CommandLine(usize),
    /// A part of the kernel or the RAM disk does not fit in memory.
    #[error("kernel and RAM disk do not fit: {0}; give the machine more memory")]
    Memory(#[from] MemoryError),
    /// The kernel overlaps the boot information.
    #[error(
        "the kernel is loaded at {0:#x}, where the boot information is; it must start at {INFORMATION_END:#x} or above"
    )]
    Overlap(u64),
    /// The device tree cannot be built.
    #[error("device tree: {0}")]
    DeviceTree(#[from] vm_fdt::Error),
}

/// The software to boot.
#[derive(Clone, Copy, Debug)]
pub struct Kernel<'a> {
    /// The contents of the kernel file.
    pub image: &'a [u8],
    /// The contents of the initial RAM disk.
    pub initrd: Option<&'a [u8]>,
    /// The command line.
    pub command_line: &'a str,
}

/// Loads a kernel and sets the registers that its entry point expects. The machine must not have run yet.
///
/// # Errors
/// The kernel is not valid or does not fit.
pub fn load(machine: &mut Machine, kernel: &Kernel) -> Result<(), BootError> {
    let image = Image::parse(kernel.image)?;
    let line = kernel.command_line.as_bytes();
    if line.len() >= COMMAND_LINE_BYTES || line.contains(&0) {
        return Err(BootError::CommandLine(line.len()));
    }
    for (start, bytes) in &image.parts {
        if *start < INFORMATION_END && start + bytes.len() as u64 > INFORMATION {
            return Err(BootError::Overlap(*start));
        }
        machine.memory().write(*start, bytes)?;
    }
    let initrd = kernel.initrd.map(|bytes| place_initrd(machine, &image, bytes)).transpose()?;
    let memory = machine.memory();
    let tree = device_tree::build(machine.cores(), memory.ranges(), initrd)?;
    let tables = Tables::new(TABLES, &memory_map(memory.ranges()), DEVICE_TREE);
    memory.write(COMMAND_LINE, &[line, &[0]].concat())?;
    memory.write(tables.system_table, &tables.bytes)?;
    memory.write(DEVICE_TREE, &tree)?;

    let state = machine.state_mut();
    state.pc = image.entry;
    // a0: booted by EFI; a1: the command line; a2: the system table.
    state.set_r(4, 1);
    state.set_r(5, COMMAND_LINE);
    state.set_r(6, tables.system_table);
    Ok(())
}

/// Copies the RAM disk after the kernel, or to high memory if it does not fit there. Returns its start and end.
fn place_initrd(machine: &Machine, image: &Image, bytes: &[u8]) -> Result<(u64, u64), BootError> {
    let memory = machine.memory();
    let mut refusal = None;
    for (start, length) in memory.ranges() {
        let place = image.end.max(*start).next_multiple_of(ALIGNMENT);
        if place + bytes.len() as u64 > start + length {
            refusal = Some(MemoryError::Range { address: place, bytes: bytes.len() as u64 });
            continue;
        }
        memory.write(place, bytes)?;
        return Ok((place, place + bytes.len() as u64));
    }
    Err(refusal.unwrap_or(MemoryError::Size(0)).into())
}

/// The memory map: all memory is free except for the boot information.
fn memory_map(ranges: &[(u64, u64)]) -> Vec<Range> {
    let mut map = Vec::new();
    for (start, length) in ranges {
        let end = start + length;
        if *start == 0 {
            map.push(Range { start: 0, end: INFORMATION, kind: Kind::Free });
            map.push(Range { start: INFORMATION, end: INFORMATION_END, kind: Kind::Reserved });
            map.push(Range { start: INFORMATION_END, end, kind: Kind::Free });
        } else {
            map.push(Range { start: *start, end, kind: Kind::Free });
        }
    }
    map
}
