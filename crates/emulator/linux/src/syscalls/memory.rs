//! System calls on memory. Source: mmap(2), mremap(2), madvise(2), membarrier(2), msync(2), mincore(2), mlock(2),
//! process_vm_readv(2).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use longma_guest::Errno;
use longma_guest::host::host_call;
use longma_guest::host::pinned_file::PinnedFile;
use longma_guest::{Backing, HOST_PAGE_BYTES, MapRequest, Origin, Placement, Protection};

use crate::arguments::{Arguments, EINVAL, OnWriteFault, Returned, Vectors, with_results};
use crate::open_files::status_of;
use crate::process::BARRIER_REGISTRATIONS;
use crate::root::name_at;
use crate::simulated::waits::{BlockingCondition, interruptible};
use crate::{DeviceFile, Process, Thread};

/// PROT_READ, WRITE, EXEC and SEM.
const KNOWN_PROTECTION: u64 = 0xf;
/// The mmap flags that are passed to the host. Others are handled here or have no meaning for a guest.
const HOST_FLAGS: i32 =
    libc::MAP_NORESERVE | libc::MAP_POPULATE | libc::MAP_NONBLOCK | libc::MAP_LOCKED | libc::MAP_SYNC;
const MAP_TYPE: i32 = 0xf;

pub(super) fn mmap(
    thread: &mut Thread,
    [address, length, protection, flags, descriptor, offset]: Arguments,
) -> Returned {
    let (flags, descriptor) = (flags as i32, descriptor as i32);
    let shared = match flags & MAP_TYPE {
        libc::MAP_PRIVATE => false,
        libc::MAP_SHARED => true,
        libc::MAP_SHARED_VALIDATE if flags & libc::MAP_ANONYMOUS == 0 => true,
        _ => return Err(EINVAL),
    };
    if !offset.is_multiple_of(thread.process.space.page_bytes()) || length == 0 {
        return Err(EINVAL);
    }
    if flags & libc::MAP_HUGETLB != 0 && flags & libc::MAP_ANONYMOUS != 0 {
        // As on a machine without reserved huge pages.
        return Err(Errno(libc::ENOMEM));
    }
    let placement = if flags & libc::MAP_FIXED_NOREPLACE != 0 {
        Placement::FixedNoReplace(address)
    } else if flags & libc::MAP_FIXED != 0 {
        Placement::Fixed(address)
    } else {
        Placement::Hint(address)
    };
    let mut pinned = None;
    let backing = if flags & libc::MAP_ANONYMOUS != 0 {
        let name = if shared { "/dev/zero (deleted)" } else { "" };
        Backing::Anonymous(Arc::new(Origin { name: name.into(), ..Origin::default() }))
    } else {
        offset.checked_add(length).ok_or(Errno(libc::EOVERFLOW))?;
        // Hold the file, so that the checks and the mapping use the same one.
        let file = pinned.insert(PinnedFile::of(descriptor)?);
        match DeviceFile::backing(&thread.process.config.devices, file, shared, offset, length)? {
            Some(device) => device,
            None => file_backing(&thread.process, file, offset)?,
        }
    };
    let mut host_flags = flags & HOST_FLAGS;
    if host_flags & libc::MAP_SYNC != 0 {
        host_flags |= libc::MAP_SHARED_VALIDATE;
    }
    thread.process.space.map(&MapRequest {
        placement,
        length,
        protection: Protection::from_bits(protection as i32),
        shared,
        backing,
        flags: host_flags,
        grows_down: flags & libc::MAP_GROWSDOWN != 0 && flags & libc::MAP_ANONYMOUS != 0 && !shared,
    })
}

fn file_backing(process: &Process, file: &PinnedFile, offset: u64) -> Result<Backing, Errno> {
    let descriptor = file.number();
    let status = status_of(descriptor).ok_or_else(std::io::Error::last_os_error)?;
    let name = process.root.guest_name(&name_at(descriptor).unwrap_or_default()).unwrap_or_default();
    // Devices have no end of file.
    let is_regular = status.st_mode & libc::S_IFMT == libc::S_IFREG;
    Ok(Backing::File {
        descriptor,
        offset,
        size: if is_regular { status.st_size as u64 } else { u64::MAX },
        origin: Arc::new(Origin {
            name: String::from_utf8_lossy(&name).into_owned(),
            device: status.st_dev,
            inode: status.st_ino,
            is_file: true,
            window: None,
        }),
    })
}

pub(super) fn munmap(thread: &mut Thread, [address, length, ..]: Arguments) -> Returned {
    thread.process.space.unmap(address, length).map(|()| 0)
}

pub(super) fn mprotect(thread: &mut Thread, [address, length, protection, ..]: Arguments) -> Returned {
    if protection & !KNOWN_PROTECTION != 0 {
        return Err(EINVAL);
    }
    thread.process.space.protect(address, length, Protection::from_bits(protection as i32)).map(|()| 0)
}

pub(super) fn mremap(thread: &mut Thread, [address, old, new, flags, target, _]: Arguments) -> Returned {
    thread.process.space.remap(address, old, new, flags as i32, target)
}

pub(super) fn brk(thread: &mut Thread, [address, ..]: Arguments) -> Returned {
    Ok(thread.process.space.set_break(address))
}

pub(super) fn madvise(thread: &mut Thread, [address, length, advice, ..]: Arguments) -> Returned {
    let advice = advice as i32;
    match advice {
        libc::MADV_HWPOISON | libc::MADV_SOFT_OFFLINE => Err(Errno(libc::EPERM)),
        102 | 103 => thread.process.space.set_guards(address, length, advice == 102).map(|()| 0),
        0..=23 | 25 => thread.process.space.advise(address, length, advice),
        _ => Err(EINVAL),
    }
}

pub(super) fn mseal(thread: &mut Thread, [address, length, flags, ..]: Arguments) -> Returned {
    if flags == 0 { thread.process.space.seal(address, length).map(|()| 0) } else { Err(EINVAL) }
}

/// The emulator is registered for its own barriers, which the program does not see.
pub(super) fn membarrier(thread: &mut Thread, [command, flags, cpu, ..]: Arguments) -> Returned {
    let known = &thread.process.barriers;
    let registered = known.load(Ordering::Relaxed);
    let command = command as u32;
    let needs = match (command, flags as u32) {
        (8, 0) => 16,
        (32, 0) => 64,
        (128, 0 | 1) => 256,
        // MEMBARRIER_CMD_GET_REGISTRATIONS. Each private registration implies the plain one.
        (512, 0) => return Ok(u64::from(registered | if registered & (64 | 256) != 0 { 16 } else { 0 })),
        _ => 0,
    };
    if registered & needs != needs {
        return Err(Errno(libc::EPERM));
    }
    let arguments = [command.into(), flags, cpu, 0, 0, 0];
    // SAFETY: the call takes no pointers.
    let done = unsafe { host_call(libc::SYS_membarrier, arguments) }?;
    if flags as u32 == 0 {
        known.fetch_or(command & BARRIER_REGISTRATIONS, Ordering::Relaxed);
    }
    Ok(done)
}

pub(super) fn msync(thread: &mut Thread, [address, length, flags, ..]: Arguments) -> Returned {
    let (pointer, bytes) = thread.process.space.host_range(address, length)?;
    // SAFETY: whole pages of guest mappings.
    unsafe { host_call(libc::SYS_msync, [pointer as u64, bytes as u64, flags, 0, 0, 0]) }
}

pub(super) fn mlock(thread: &mut Thread, [address, length, ..]: Arguments) -> Returned {
    lock(thread, address, length, |pointer, bytes| (libc::SYS_mlock, [pointer, bytes, 0, 0, 0, 0]))
}

pub(super) fn mlock2(thread: &mut Thread, [address, length, flags, ..]: Arguments) -> Returned {
    lock(thread, address, length, |pointer, bytes| (libc::SYS_mlock2, [pointer, bytes, flags, 0, 0, 0]))
}

pub(super) fn munlock(thread: &mut Thread, [address, length, ..]: Arguments) -> Returned {
    lock(thread, address, length, |pointer, bytes| (libc::SYS_munlock, [pointer, bytes, 0, 0, 0, 0]))
}

fn lock(
    thread: &Thread,
    address: u64,
    length: u64,
    call: impl FnOnce(u64, u64) -> (i64, [u64; 6]),
) -> Returned {
    let start = thread.process.space.page_down(address);
    let length = length.checked_add(address - start).ok_or(EINVAL)?;
    let (pointer, bytes) = thread.process.space.host_range(start, length)?;
    thread.process.space.check_mapping_budget_for_split()?;
    let (number, arguments) = call(pointer as u64, bytes as u64);
    // SAFETY: whole pages of guest mappings.
    unsafe { host_call(number, arguments) }
}

pub(super) fn mlockall(_: &mut Thread, [flags, ..]: Arguments) -> Returned {
    // The host's call would lock the emulator's memory and the whole reservation. The guest cannot observe that its
    // pages are not locked.
    const ONFAULT: u64 = libc::MCL_ONFAULT as u64;
    if flags == 0 || flags == ONFAULT || flags & !7 != 0 { Err(EINVAL) } else { Ok(0) }
}

pub(super) fn munlockall(_: &mut Thread, _: Arguments) -> Returned {
    Ok(0)
}

pub(super) fn mincore(thread: &mut Thread, [address, length, vector, ..]: Arguments) -> Returned {
    let page_bytes = thread.process.space.page_bytes();
    let host_pages = (page_bytes / HOST_PAGE_BYTES) as usize;
    // Process the range in pieces, so that the buffer stays small.
    const PIECE_PAGES: usize = 1024;
    let (pointer, bytes) = thread.process.space.host_range(address, length)?;
    let pages = bytes / page_bytes as usize;
    let mut resident = vec![0u8; PIECE_PAGES * host_pages];
    for first in (0..pages).step_by(PIECE_PAGES) {
        let count = PIECE_PAGES.min(pages - first);
        let start = pointer as u64 + first as u64 * page_bytes;
        let arguments = [start, count as u64 * page_bytes, resident.as_mut_ptr() as u64, 0, 0, 0];
        // SAFETY: the buffer has a byte for each host page.
        unsafe { host_call(libc::SYS_mincore, arguments) }?;
        let pages: Vec<u8> = resident[..count * host_pages]
            .chunks(host_pages)
            .map(|pages| u8::from(pages.iter().any(|page| page & 1 != 0)))
            .collect();
        thread.process.memory().write(vector.wrapping_add(first as u64), &pages)?;
    }
    Ok(0)
}

/// process_vm_readv (`local_written`) and process_vm_writev.
pub(super) fn process_vm(
    thread: &Thread,
    number: i64,
    local_written: bool,
    [process, local, local_count, remote, remote_count, flags]: Arguments,
) -> Returned {
    // For another process, the addresses are host addresses in its emulator.
    if process as u32 != std::process::id() {
        // SAFETY: signal 0 only checks whether the process exists.
        unsafe { host_call(libc::SYS_kill, [process, 0, 0, 0, 0, 0]) }?;
        return Err(Errno(libc::EPERM));
    }
    let memory = thread.process.memory();
    with_results(memory, |results| {
        let mut vectors = |address, count, written: bool| match written {
            true => results.vectors(OnWriteFault::Remains, address, count),
            false => Vectors::new(memory, address, count),
        };
        let local = vectors(local, local_count, local_written)?;
        let remote = vectors(remote, remote_count, !local_written)?;
        let arguments =
            [process, local.address(), local.len() as u64, remote.address(), remote.len() as u64, flags];
        // SAFETY: both arrays are live, and their buffers are in the reservation or `results`.
        unsafe { host_call(number, arguments) }
    })
}

/// The descriptor determines the direction: into the write end of a pipe, or out of the read end.
pub(super) fn vmsplice(thread: &mut Thread, arguments: Arguments) -> Returned {
    let [descriptor, vectors, count, flags, ..] = arguments;
    // SAFETY: F_GETFL takes no pointers.
    let mode = unsafe { host_call(libc::SYS_fcntl, [descriptor, libc::F_GETFL as u64, 0, 0, 0, 0]) }?;
    let is_read = mode as i32 & libc::O_ACCMODE == libc::O_RDONLY;
    let memory = thread.process.memory();
    with_results(memory, |results| {
        let vectors = match is_read {
            true => results.vectors(OnWriteFault::Remains, vectors, count),
            false => Vectors::new(memory, vectors, count),
        }?;
        let arguments = [descriptor, vectors.address(), vectors.len() as u64, flags, 0, 0];
        // SAFETY: the array is live, and its buffers are in the reservation.
        unsafe { interruptible(libc::SYS_vmsplice, BlockingCondition::Unknown, arguments) }
    })
}
