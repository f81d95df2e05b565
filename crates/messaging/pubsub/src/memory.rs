//! Memory files: created and sealed by the publisher, checked by the subscriber before it maps them.
//!
//! Source: memfd_create(2), fcntl(2) file sealing, mmap(2).

use crate::error::{Error, system};
use rustix::fs::{FileType, MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::ffi::c_void;
use std::os::fd::{AsFd, OwnedFd};

/// A shared mapping of a whole memory file, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: *mut u8,
    length: usize,
}

// SAFETY: a mapping belongs to the process. Its contents are accessed through atomics, by the publisher's exclusive
// loan, or by copies that tolerate changes.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// Fixes the size, so that an access cannot raise SIGBUS.
const FIXED_SIZE: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);
/// Lets only the creator write, so no other process can punch holes.
const READ_ONLY: SealFlags = FIXED_SIZE.union(SealFlags::FUTURE_WRITE);
/// The file system of memory files with ordinary pages.
const TMPFS: i64 = 0x0102_1994;

/// The other process's access to a memory file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Read-only access.
    Read,
    /// Read and write access.
    Write,
}

/// Creates a zeroed memory file of `length` bytes, seals it, and maps it for writing.
pub(crate) fn create(length: usize, others: Access) -> Result<(OwnedFd, Mapping), Error> {
    // A file beyond RLIMIT_FSIZE would raise SIGXFSZ, which kills the process.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    if let Some(max) = limit.filter(|max| length as u64 > *max) {
        let name = "the memory of the topic, bytes, under RLIMIT_FSIZE (ulimit -f),";
        return Err(Error::InvalidOption { name, value: length as u64, min: 1, max });
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create(c"longma-topic", flags).map_err(system("creating shared memory"))?;
    rustix::fs::ftruncate(&file, length as u64).map_err(system("sizing shared memory"))?;
    let mapping = Mapping::new(&file, length, Access::Write)?;
    let seals = if others == Access::Read { READ_ONLY } else { FIXED_SIZE };
    rustix::fs::fcntl_add_seals(&file, seals).map_err(system("sealing shared memory"))?;
    Ok((file, mapping))
}

/// Maps `length` bytes of a memory file that another process has created, if it can neither be shrunk nor, with
/// [`Access::Read`], be written by a third process.
pub(crate) fn map_foreign(file: OwnedFd, length: usize, access: Access) -> Result<Mapping, Error> {
    match check_foreign(&file, length, access) {
        Ok(()) => Mapping::new(&file, length, access),
        Err(error) => {
            // Closing a file that is not a memory file may block for any time (FUSE, a lingering socket). If no thread
            // can be created, the file is closed on this thread.
            let _ = std::thread::Builder::new().name("topic-close".into()).spawn(move || drop(file));
            Err(error)
        }
    }
}

fn check_foreign(file: &OwnedFd, length: usize, access: Access) -> Result<(), Error> {
    let needed = if access == Access::Read { READ_ONLY } else { FIXED_SIZE };
    // Check the seals first: any other call could block if the file is on a file system that the peer serves.
    let seals = rustix::fs::fcntl_get_seals(file)
        .map_err(|_| Error::Protocol("it passed a file that is not a memory file"))?;
    if !seals.contains(needed) {
        return Err(Error::Protocol("it passed a memory file that is not sealed"));
    }
    let stat = rustix::fs::fstat(file).map_err(system("reading the size of shared memory"))?;
    let system_type = rustix::fs::fstatfs(file).map_err(system("reading the kind of shared memory"))?.f_type;
    // Huge pages can run out after mapping.
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || system_type as i64 != TMPFS {
        return Err(Error::Protocol("it passed a memory file without ordinary pages"));
    }
    if stat.st_size as u64 != length as u64 {
        return Err(Error::Protocol("it passed a memory file of another size than announced"));
    }
    Ok(())
}

impl Mapping {
    fn new(file: impl AsFd, length: usize, access: Access) -> Result<Self, Error> {
        let protection =
            if access == Access::Write { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, file, 0) };
        let base = base.map_err(system("mapping shared memory"))?;
        Ok(Self { base: base.cast(), length })
    }

    /// The address of byte `offset`.
    ///
    /// # Panics
    /// If `offset + bytes` is beyond the mapping.
    pub(crate) fn at(&self, offset: usize, bytes: usize) -> *mut u8 {
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= self.length), "outside of shared memory");
        // SAFETY: inside of the mapping.
        unsafe { self.base.add(offset) }
    }

    /// A structure of atomics at this offset.
    ///
    /// # Safety
    /// `T` must consist of atomics and padding, and not require more alignment than `offset` has.
    pub(crate) unsafe fn atomics<T>(&self, offset: usize) -> &T {
        // SAFETY: `at` checks the bounds; the mapping is at least page-aligned and lives as long as the reference.
        unsafe { &*self.at(offset, size_of::<T>()).cast::<T>() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and nothing borrowed from it remains.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.length) };
    }
}

type Copy = unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> *mut c_void;

/// Loaded with a volatile read for every copy, so that the compiler cannot replace the call with its own accesses, which it
/// may split, repeat or invent.
static COPY: Copy = libc::memcpy;

/// Copies bytes that another process may change at the same time. The result is then a mixture.
///
/// # Safety
/// `from` must be mapped and readable, `to` writable and not shared, for `length` bytes.
pub(crate) unsafe fn copy_shared(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: `COPY` is a static of this module, and the caller guarantees the requirements of memcpy.
    unsafe { (&raw const COPY).read_volatile()(to.cast(), from.cast(), length) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::memfd_create;

    #[test]
    fn the_file_of_a_topic_can_be_mapped_for_reading_alone() {
        let (file, own) = create(8192, Access::Read).unwrap();
        // SAFETY: this test is the only user.
        unsafe { own.at(100, 1).write(7) };
        assert!(Mapping::new(&file, 8192, Access::Write).is_err());
        let mapping = map_foreign(file, 8192, Access::Read).unwrap();
        // SAFETY: as above.
        assert_eq!(unsafe { mapping.at(100, 1).read() }, 7);
    }

    #[test]
    fn files_that_could_change_their_size_or_are_no_memory_files_are_refused() {
        let unsealed = memfd_create(c"x", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&unsealed, 4096).unwrap();
        let (null, root) = (std::fs::File::open("/dev/null").unwrap(), std::fs::File::open("/").unwrap());
        let (small, _mapping) = create(4096, Access::Read).unwrap();
        let (writable, _other) = create(8192, Access::Write).unwrap();
        for file in [unsealed, null.into(), root.into(), small, writable] {
            assert!(matches!(map_foreign(file, 8192, Access::Read), Err(Error::Protocol(_))));
        }
    }
}
