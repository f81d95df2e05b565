//! Shared mappings: creates and seals memory files, and validates files from peers before mapping them.
//!
//! Source: memfd_create(2), fcntl(2) file sealing, mmap(2), setrlimit(2).

use super::deferred_close::PeerFile;
use super::layout::HALF_BYTES;
use super::settings::limit;
use crate::error::Error;
use crate::provider::Memory;
use longma_locks::IgnorePoison;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard};

/// A shared mapping, unmapped when dropped.
pub(super) struct Mapping {
    base: *mut u8,
    length: usize,
}

// SAFETY: a mapping belongs to the process; its contents are accessed only through atomics and validated copies.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(file: BorrowedFd<'_>, length: usize, write: bool) -> Result<Mapping, Error> {
        let protection = libc::PROT_READ | if write { libc::PROT_WRITE } else { 0 };
        // SAFETY: creates a mapping at an address chosen by the kernel; no existing memory is affected.
        let base = unsafe {
            libc::mmap(std::ptr::null_mut(), length, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        if base == libc::MAP_FAILED {
            return Err(Error::last_system("mapping shared memory"));
        }
        Ok(Mapping { base: base.cast(), length })
    }

    pub(super) fn base(&self) -> *mut u8 {
        self.base
    }

    pub(super) fn length(&self) -> usize {
        self.length
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is owned by `self`, and all users hold a reference to it.
        unsafe { libc::munmap(self.base.cast(), self.length) };
    }
}

/// With these seals the peer cannot shrink the file, which would cause SIGBUS here, and cannot remove the seals.
const FIXED_SIZE: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// With these seals, no new writable mapping can be created and no hole can be punched. An access to a page of the file
/// would wait while a hole is being punched.
const UNTOUCHED: i32 = FIXED_SIZE | libc::F_SEAL_FUTURE_WRITE;

/// Creates the zeroed, sealed file of our half, and the only writable mapping of it that can ever exist.
pub(super) fn create_half() -> Result<(OwnedFd, Mapping), Error> {
    create(HALF_BYTES, false)
}

/// Creates a zeroed memory file of `length` bytes and maps it. Without `peers_write`, no other writable mapping can be
/// created, not even by reopening the file.
pub(super) fn create(length: usize, peers_write: bool) -> Result<(OwnedFd, Mapping), Error> {
    create_sealed(length, if peers_write { FIXED_SIZE } else { UNTOUCHED })
}

/// Seals the file before any other process has it. Sealing takes the file's lock, which a process with write access can
/// hold as long as it likes. For the same reason, a peer's file is only queried for its seals, which takes no lock.
fn create_sealed(length: usize, seals: i32) -> Result<(OwnedFd, Mapping), Error> {
    // RLIMIT_FSIZE applies to memory files. Exceeding it would raise SIGXFSZ, which kills the process.
    if let Some(max_bytes) = limit(libc::RLIMIT_FSIZE as _).filter(|max_bytes| length as u64 > *max_bytes) {
        return Err(Error::Resource(format!(
            "a memory file of {length} bytes exceeds RLIMIT_FSIZE (ulimit -f), {max_bytes} bytes"
        )));
    }
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a constant; the call only creates a descriptor.
    let fd = unsafe { libc::memfd_create(c"longma-via".as_ptr(), flags) };
    if fd < 0 {
        return Err(Error::last_system("creating shared memory"));
    }
    // SAFETY: the descriptor was just opened and has no other owner.
    let file = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: the call takes only integers.
    if unsafe { libc::ftruncate(fd, length as libc::off_t) } < 0 {
        return Err(Error::last_system("sizing shared memory"));
    }
    let mapping = Mapping::new(file.as_fd(), length, true)?;
    // SAFETY: the call takes only integers.
    if unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, seals) } < 0 {
        return Err(Error::last_system("sealing shared memory"));
    }
    Ok((file, mapping))
}

/// Freeing a memory file larger than this takes too long for most threads, because a peer can pass hundreds of them at
/// a time.
const LARGE_BYTES: i64 = 64 << 10;

/// The maximum allocated size of a half: one page of 2 MiB, which the kernel uses where so configured (shmem_enabled).
const MAX_HALF_BYTES: i64 = 2 << 20;

/// Whether a memory file has few pages, including pages beyond its end.
pub(super) fn is_small(file: BorrowedFd<'_>) -> bool {
    has_at_most(file, LARGE_BYTES)
}

fn has_at_most(file: BorrowedFd<'_>, bytes: i64) -> bool {
    // SAFETY: all zeros is a valid `stat`.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: writes to the given structure.
    let known = unsafe { libc::fstat(file.as_raw_fd(), &raw mut stat) } == 0;
    known && stat.st_size <= bytes && stat.st_blocks <= bytes / 512
}

/// Whether the file has few pages and cannot grow.
pub(super) fn stays_small(file: &PeerFile) -> bool {
    file.seals().is_some_and(|seals| seals & libc::F_SEAL_GROW != 0) && is_small(file.as_fd())
}

/// Maps `length` bytes of a file received from a peer. The file must be a memory file with ordinary pages, at least
/// `length` bytes long, and sealed against shrinking.
///
/// # Errors
/// The reason, if it is not.
pub(super) fn map_foreign(file: &PeerFile, length: u64, write: bool) -> Result<Mapping, String> {
    require_seals(file, libc::F_SEAL_SHRINK, "changes of its size")?;
    let size = size_of_ordinary(file)?;
    if length == 0 || size < length {
        return Err(format!("it has {size} bytes instead of {length}"));
    }
    map_checked(file, length, write)
}

/// Maps the peer's half for reading. It must be sealed against everything except stores through existing mappings.
///
/// # Errors
/// The reason, if it is not.
pub(super) fn map_half(file: &PeerFile) -> Result<Mapping, String> {
    require_seals(file, UNTOUCHED, "changes of its size, other writers and holes")?;
    let size = size_of_ordinary(file)?;
    if size != HALF_BYTES as u64 {
        return Err(format!("it has {size} bytes instead of {HALF_BYTES}"));
    }
    if !has_at_most(file.as_fd(), MAX_HALF_BYTES) {
        return Err("it has pages beyond its end".into());
    }
    map_checked(file, size, false)
}

/// Checks the seals of a file. Must precede every other call: a file that is not a memory file may be on a file system
/// that the peer controls, and there any call but this one could be delayed.
fn require_seals(file: &PeerFile, needed: i32, against: &str) -> Result<(), String> {
    let seals = file.seals().ok_or("it is not a memory file")?;
    if seals & needed == needed {
        return Ok(());
    }
    Err(format!(
        "its creator has not sealed it against {against} (its seals are {seals:#x}, and {needed:#x} are needed)"
    ))
}

/// The size of a memory file, which must have ordinary pages.
fn size_of_ordinary(file: &PeerFile) -> Result<u64, String> {
    let fd = file.as_fd().as_raw_fd();
    // SAFETY: all zeros is a valid `stat`.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: writes to the given structure.
    if unsafe { libc::fstat(fd, &raw mut stat) } < 0 {
        return Err(format!("its size is unknown: {}", io::Error::last_os_error()));
    }
    // SAFETY: as above.
    let mut system: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: writes to the given structure.
    if unsafe { libc::fstatfs(fd, &raw mut system) } < 0 || system.f_type as i64 != libc::TMPFS_MAGIC {
        // Huge pages can run out after mapping. Ordinary memory files are on the kernel's internal tmpfs, which has no
        // size limit; files of other tmpfs mounts cannot be sealed.
        return Err("it does not consist of ordinary pages".into());
    }
    Ok(u64::try_from(stat.st_size).unwrap_or(0))
}

fn map_checked(file: &PeerFile, length: u64, write: bool) -> Result<Mapping, String> {
    let length = usize::try_from(length).map_err(|_| "it is longer than an address space")?;
    let mapping = Mapping::new(file.as_fd(), length, write).map_err(|error| error.to_string())?;
    file.note_mapped();
    Ok(mapping)
}

/// Registered memory that peers can map: our mapping, and a memory file once the memory is shared.
pub(super) struct SharedPages {
    mapping: Mapping,
    sharing: Mutex<Sharing>,
}

#[derive(Default)]
struct Sharing {
    /// The file, unless it was closed, and whether peers may map it for writing, for reading, or (`None`) not at all.
    file: Option<(Option<OwnedFd>, Option<bool>)>,
    /// Whether the program may have stored something.
    in_use: bool,
}

impl SharedPages {
    pub(super) fn new(length: usize) -> Result<SharedPages, Error> {
        let length = length.checked_next_multiple_of(4096).ok_or_else(|| Error::Resource("memory".into()))?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: creates an anonymous mapping at an address chosen by the kernel; no existing memory is affected.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(Error::last_system("mapping memory"));
        }
        Ok(SharedPages { mapping: Mapping { base: base.cast(), length }, sharing: Mutex::default() })
    }

    /// Changes whether peers can map the pages: for writing, for reading, or (`None`) not at all. If this changes the
    /// current mode, or with `anew`, the memory gets a new file, and existing mappings of peers no longer refer to it.
    /// The contents are preserved; they must not be modified during the call. On an error nothing changes.
    pub(super) fn share(&self, peers_write: Option<bool>, anew: bool) -> Result<(), Error> {
        let mut sharing = self.sharing();
        let in_use = std::mem::replace(&mut sharing.in_use, true);
        if !anew && sharing.file.as_ref().is_some_and(|(_, write)| *write == peers_write) {
            return Ok(());
        }
        let length = self.mapping.length;
        let (fd, fresh) = create(length, peers_write.unwrap_or(false))?;
        if in_use {
            // SAFETY: both mappings have `length` bytes and do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(self.mapping.base, fresh.base, length) };
        }
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: moves the new mapping over ours, which has the same length and is accessed only by address.
        let moved = unsafe { libc::mremap(fresh.base.cast(), length, length, flags, self.mapping.base) };
        if moved == libc::MAP_FAILED {
            return Err(Error::last_system("sharing memory"));
        }
        std::mem::forget(fresh);
        sharing.file = Some((Some(fd), peers_write));
        Ok(())
    }

    /// A duplicate of the file, if peers may map it.
    pub(super) fn file(&self) -> Option<OwnedFd> {
        match &self.sharing().file {
            Some((Some(fd), Some(_))) => fd.try_clone().ok(),
            _ => None,
        }
    }

    /// The descriptor number of the file, for peers that may duplicate this process's descriptors.
    pub(super) fn file_number(&self) -> Option<u32> {
        match &self.sharing().file {
            Some((Some(fd), _)) => u32::try_from(fd.as_raw_fd()).ok(),
            _ => None,
        }
    }

    /// Closes the file, because the pages are not lent.
    pub(super) fn close_file(&self) {
        if let Some((fd, _)) = &mut self.sharing().file {
            *fd = None;
        }
    }

    fn sharing(&self) -> MutexGuard<'_, Sharing> {
        self.sharing.lock().ignore_poison()
    }
}

impl Memory for SharedPages {
    fn base(&self) -> *mut u8 {
        self.mapping.base
    }

    fn length(&self) -> usize {
        self.mapping.length
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
