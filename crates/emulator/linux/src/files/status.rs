//! System calls that return file metadata: stat and related calls. The structures of statx and statfs are equal on host
//! and guest. Source: stat(2), statx(2); Linux include/uapi/asm-generic/stat.h.

use longma_guest::Errno;
use longma_guest::host::host_call;

use super::{Follow, ResolvedPath};
use crate::Thread;
use crate::arguments::{Arguments, Returned, with_results};

/// Encodes asm-generic's `struct stat` of 64-bit machines, which differs from x86-64's.
fn guest_bytes(status: &libc::stat) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(128);
    bytes.extend(status.st_dev.to_le_bytes());
    bytes.extend(status.st_ino.to_le_bytes());
    bytes.extend(status.st_mode.to_le_bytes());
    bytes.extend((status.st_nlink as u32).to_le_bytes());
    bytes.extend(status.st_uid.to_le_bytes());
    bytes.extend(status.st_gid.to_le_bytes());
    bytes.extend(status.st_rdev.to_le_bytes());
    bytes.extend([0; 8]);
    bytes.extend(status.st_size.to_le_bytes());
    bytes.extend((status.st_blksize as i32).to_le_bytes());
    bytes.extend([0; 4]);
    let (accessed, modified) =
        ([status.st_atime, status.st_atime_nsec], [status.st_mtime, status.st_mtime_nsec]);
    let changed = [status.st_ctime, status.st_ctime_nsec];
    bytes.extend(status.st_blocks.to_le_bytes());
    [accessed, modified, changed].iter().flatten().for_each(|number| bytes.extend(number.to_le_bytes()));
    bytes.extend([0; 8]);
    bytes
}

fn status_at(directory: u64, path: u64, flags: u64) -> Result<libc::stat, Errno> {
    // SAFETY: `libc::stat` is plain data.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    let arguments = [directory, path, (&raw mut status) as u64, flags, 0, 0];
    // SAFETY: the caller's path and the structure are live.
    unsafe { host_call(libc::SYS_newfstatat, arguments) }?;
    Ok(status)
}

pub(crate) fn newfstatat(thread: &mut Thread, [directory, path, result, flags, ..]: Arguments) -> Returned {
    let resolved = ResolvedPath::find(thread, directory, path, Follow::by_flags(flags))?;
    let status = status_at(resolved.directory(), resolved.path(), flags)?;
    thread.process.memory().write(result, &guest_bytes(&status))?;
    Ok(0)
}

pub(crate) fn fstat(thread: &mut Thread, [descriptor, result, ..]: Arguments) -> Returned {
    if (descriptor as i32) < 0 {
        return Err(Errno(libc::EBADF));
    }
    let status = status_at(descriptor, c"".as_ptr() as u64, libc::AT_EMPTY_PATH as u64)?;
    thread.process.memory().write(result, &guest_bytes(&status))?;
    Ok(0)
}

pub(crate) fn statx(thread: &mut Thread, [directory, path, flags, mask, result, _]: Arguments) -> Returned {
    let resolved = ResolvedPath::find_optional(thread, directory, path, Follow::by_flags(flags))?;
    with_results(thread.process.memory(), |results| {
        let result = results.structure(result, 256)?;
        // SAFETY: the path is live, and the result is in the reservation or `results`.
        unsafe { host_call(libc::SYS_statx, [resolved.directory(), resolved.path(), flags, mask, result, 0]) }
    })
}

pub(crate) fn statfs(thread: &mut Thread, [path, result, ..]: Arguments) -> Returned {
    let resolved = ResolvedPath::find(thread, libc::AT_FDCWD as u64, path, Follow::Yes)?.joined()?;
    with_results(thread.process.memory(), |results| {
        let result = results.structure(result, 120)?;
        // SAFETY: the path is live, and the result is in the reservation or `results`.
        unsafe { host_call(libc::SYS_statfs, [resolved.path(), result, 0, 0, 0, 0]) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guests_stat_structure_has_the_size_and_the_fields_of_asm_generic() {
        // SAFETY: `libc::stat` is plain data.
        let mut status: libc::stat = unsafe { std::mem::zeroed() };
        (status.st_size, status.st_mode, status.st_nlink, status.st_blocks) = (0x1234, 0o100644, 3, 9);
        let bytes = guest_bytes(&status);
        assert_eq!(bytes.len(), 128);
        assert_eq!(bytes[16..24], [0xa4, 0x81, 0, 0, 3, 0, 0, 0]);
        assert_eq!(bytes[48..50], [0x34, 0x12]);
        assert_eq!(bytes[64], 9);
    }
}
