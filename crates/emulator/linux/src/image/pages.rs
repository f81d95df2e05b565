//! Reads the contents of a process's memory sparsely and writes them back. Source: proc_pid_mem(5),
//! proc_pid_pagemap(5).

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use longma_guest::words::u64_at;
use longma_guest::{AddressSpace, GuestMemory, HOST_PAGE_BYTES, Mapping, PAGE_BYTES};

use super::ImageError;

/// The maximum size of a run in bytes.
pub const PAGE_RUN_BYTES: usize = 1 << 20;

/// Bit 63: in memory; bit 62: swapped out.
const POPULATED: u64 = 3 << 62;

/// Receives a run of contents: its guest address and its bytes.
type Receive<'a> = dyn FnMut(u64, &[u8]) -> io::Result<()> + 'a;

/// Passes all runs of nonzero memory to `receive` in address order. No thread may change the memory during the call.
///
/// # Errors
/// The memory cannot be read, or `receive` fails.
pub fn contents(space: &AddressSpace, receive: &mut Receive<'_>) -> Result<(), ImageError> {
    let failed = |error: io::Error| ImageError::host("read the guest's memory", error);
    let memory = File::open("/proc/self/mem").map_err(failed)?;
    let map = File::open("/proc/self/pagemap").map_err(failed)?;
    let mut buffer = vec![0; PAGE_RUN_BYTES];
    for (range, mapping) in space.mappings() {
        for chunk in chunks(range) {
            read_chunk(space.memory(), &memory, &map, &mapping, chunk, &mut buffer, receive)
                .map_err(|error| ImageError::host("save the guest's memory", error))?;
        }
    }
    Ok(())
}

/// Writes a run of contents back, regardless of the memory's protection.
///
/// # Errors
/// The memory is not mapped.
pub(super) fn write_contents(
    space: &AddressSpace,
    memory: &File,
    address: u64,
    bytes: &[u8],
) -> Result<(), ImageError> {
    let end = address.checked_add(bytes.len() as u64);
    let inside = end.is_some_and(|end| end <= space.memory().limit());
    if !inside || !is_mapped(space, address, bytes.len() as u64) {
        return Err(ImageError::Inconsistent("it has contents where nothing is mapped"));
    }
    let host_address = space.memory().base() as u64 + address;
    memory
        .write_all_at(bytes, host_address)
        .map_err(|error| ImageError::host("write the guest's memory", error))
}

fn chunks(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let step = PAGE_RUN_BYTES as u64;
    let end = range.end;
    range.step_by(PAGE_RUN_BYTES).map(move |start| start..(start + step).min(end))
}

/// Reads one chunk and passes on its nonzero runs.
fn read_chunk(
    guest: &GuestMemory,
    memory: &File,
    map: &File,
    mapping: &Mapping,
    chunk: Range<u64>,
    buffer: &mut [u8],
    receive: &mut Receive<'_>,
) -> io::Result<()> {
    let pages = ((chunk.end - chunk.start) / HOST_PAGE_BYTES) as usize;
    let host = guest.base() as u64 + chunk.start;
    let populated = if mapping.origin.is_file {
        // Pages of the file that have not been accessed are not in the page table.
        vec![true; pages]
    } else {
        let mut entries = vec![0; 8 * pages];
        map.read_exact_at(&mut entries, host / HOST_PAGE_BYTES * 8)?;
        entries.chunks_exact(8).map(|bytes| u64_at(bytes, 0) & POPULATED != 0).collect()
    };
    let mut run: Option<usize> = None;
    // An additional unpopulated page ends the last run.
    for (page, populated) in populated.into_iter().chain([false]).enumerate() {
        let at = page * HOST_PAGE_BYTES as usize;
        let filled = populated && {
            let bytes = &mut buffer[at..at + HOST_PAGE_BYTES as usize];
            // A page beyond the end of its file has no contents.
            memory.read_exact_at(bytes, host + at as u64).is_ok() && bytes.iter().any(|byte| *byte != 0)
        };
        match (filled, run) {
            (true, None) => run = Some(at),
            (false, Some(start)) => {
                receive(chunk.start + start as u64, &buffer[start..at])?;
                run = None;
            }
            _ => {}
        }
    }
    Ok(())
}

fn is_mapped(space: &AddressSpace, start: u64, length: u64) -> bool {
    let from = start / PAGE_BYTES * PAGE_BYTES;
    let end = start.checked_add(length).and_then(|end| end.checked_next_multiple_of(PAGE_BYTES));
    end.is_some_and(|end| space.host_range(from, end - from).is_ok())
}
