//! Maps a parsed ELF image into a guest address space. Source: Linux fs/binfmt_elf.c (behaviour), elf(5).

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use crate::Errno;
use crate::{AddressSpace, Backing, MapRequest, Origin, Placement, Protection};

use super::{Image, Segment};

/// The addresses of a loaded image.
#[derive(Clone, Copy, Debug)]
pub struct Loaded {
    /// The load bias: guest address minus the address in the file.
    pub bias: u64,
    /// The entry point.
    pub entry: u64,
    /// The address of the program headers; 0 if no segment contains them.
    pub headers: u64,
    /// The first address after the last segment.
    pub end: u64,
}

/// Maps `image` from `file`, which the guest knows as `name`. A relocatable image is loaded at `preferred` if that
/// range is free, and at any free range otherwise.
///
/// # Errors
/// The file cannot be read, or the address space has no space for it.
pub fn load(
    space: &AddressSpace,
    image: &Image,
    file: &File,
    name: &str,
    preferred: Option<u64>,
) -> Result<Loaded, Errno> {
    let metadata = file.metadata()?;
    let origin = Arc::new(Origin {
        name: name.to_owned(),
        device: metadata.dev(),
        inode: metadata.ino(),
        is_file: true,
        window: None,
    });
    let span = image.span();
    let bias = if image.relocatable {
        reserve(space, span.end - span.start, image.alignment, preferred)?.wrapping_sub(span.start)
    } else {
        let request = MapRequest::anonymous(
            Placement::FixedNoReplace(span.start),
            span.end - span.start,
            Protection::default(),
        );
        // Reserve the whole span so that two images cannot interleave. The gaps between segments are unmapped below.
        space.map(&request)?;
        0
    };
    // Each segment replaces a part of the reservation.
    let mut next = span.start.wrapping_add(bias);
    for segment in &image.segments {
        let start = space.page_down(segment.address.wrapping_add(bias));
        if start > next {
            space.unmap(next, start - next)?;
        }
        map_segment(space, segment, bias, file, metadata.size(), &origin)?;
        let end = segment.address.wrapping_add(bias) + segment.memory_bytes;
        next = space.page_up(end).unwrap_or(end);
    }
    let headers = if image.headers_address == 0 { 0 } else { image.headers_address.wrapping_add(bias) };
    Ok(Loaded { bias, entry: image.entry.wrapping_add(bias), headers, end: next })
}

/// Finds a free range of `length` bytes with the given alignment and maps it without permissions.
fn reserve(space: &AddressSpace, length: u64, alignment: u64, preferred: Option<u64>) -> Result<u64, Errno> {
    let no_access = Protection::default();
    if let Some(wanted) = preferred {
        let wanted = wanted & !(alignment - 1);
        if let Ok(start) =
            space.map(&MapRequest::anonymous(Placement::FixedNoReplace(wanted), length, no_access))
        {
            return Ok(start);
        }
    }
    let padded_length = length.checked_add(alignment - space.page_bytes()).ok_or(Errno(libc::ENOMEM))?;
    let mapped = space.map(&MapRequest::anonymous(Placement::Hint(0), padded_length, no_access))?;
    let start = mapped.next_multiple_of(alignment);
    if start > mapped {
        space.unmap(mapped, start - mapped)?;
    }
    let (end, used) = (mapped + padded_length, start + length);
    if end > used {
        space.unmap(used, end - used)?;
    }
    Ok(start)
}

fn map_segment(
    space: &AddressSpace,
    segment: &Segment,
    bias: u64,
    file: &File,
    size: u64,
    origin: &Arc<Origin>,
) -> Result<(), Errno> {
    let address = segment.address.wrapping_add(bias);
    let start = space.page_down(address);
    let file_end = address + segment.file_bytes;
    let end = space.page_up(address + segment.memory_bytes).ok_or(Errno(libc::ENOMEM))?;
    let mut zero_from = start;
    if segment.file_bytes > 0 {
        zero_from = space.page_up(file_end).ok_or(Errno(libc::ENOMEM))?;
        let request = MapRequest {
            placement: Placement::Fixed(start),
            length: file_end - start,
            protection: segment.protection,
            shared: false,
            backing: Backing::File {
                descriptor: file.as_raw_fd(),
                offset: segment.offset - (address - start),
                size,
                origin: origin.clone(),
            },
            flags: 0,
            grows_down: false,
        };
        space.map(&request)?;
        if segment.memory_bytes > segment.file_bytes && segment.protection.write {
            // The last page with file contents may hold later bytes of the file. Clear them: memory after `file_bytes`
            // reads as zero.
            let rest = zero_from.min(end) - file_end;
            space.memory().fill(file_end, rest, 0)?;
        }
    }
    if zero_from < end {
        space.map(&MapRequest::anonymous(
            Placement::Fixed(zero_from),
            end - zero_from,
            segment.protection,
        ))?;
    }
    Ok(())
}
