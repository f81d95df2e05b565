//! Shared mappings: memory files that we make and seal, and files of a peer that are checked before they are mapped.
//! Not their contents.
//! Source: memfd_create(2), fcntl(2) file sealing, mmap(2), setrlimit(2).

use super::closing::Foreign;
use super::layout::HALF_BYTES;
use super::settings::limit;
use crate::error::Error;
use crate::provider::Memory;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A shared mapping, unmapped when dropped.
pub(super) struct Mapping {
    base: *mut u8,
    length: usize,
}

// SAFETY: a mapping belongs to the whole process; what is in it is only reached through atomics and checked copies.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(file: BorrowedFd<'_>, length: usize, write: bool) -> Result<Mapping, Error> {
        let protection = libc::PROT_READ | if write { libc::PROT_WRITE } else { 0 };
        // SAFETY: a new mapping where the kernel likes; it touches no existing memory.
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
        // SAFETY: our own mapping; whoever used it held a reference to this.
        unsafe { libc::munmap(self.base.cast(), self.length) };
    }
}

/// The peer can neither shrink the file under us, which would be a bus error, nor take that promise back.
const FIXED_SIZE: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// What nobody can do any more: write to it but through mappings that there are, and make a hole in it, which would keep whoever reads it
/// from its pages meanwhile.
const UNTOUCHED: i32 = FIXED_SIZE | libc::F_SEAL_FUTURE_WRITE;

/// A new zeroed file for our half of a connection, sealed, and the only mapping of it that can ever be written to.
pub(super) fn create_half() -> Result<(OwnedFd, Mapping), Error> {
    create(HALF_BYTES, false)
}

/// A new zeroed memory file of `length` bytes and our mapping of it. With `peers_write` off nobody can map it for writing
/// from then on, not even by opening it again.
pub(super) fn create(length: usize, peers_write: bool) -> Result<(OwnedFd, Mapping), Error> {
    create_sealed(length, if peers_write { FIXED_SIZE } else { UNTOUCHED })
}

/// Sealed before anybody else has it: sealing takes the file's lock, which whoever can write to the file can hold for as long as he likes,
/// and nothing ends the wait for it. So a peer's file is only asked for its seals, which takes no lock.
fn create_sealed(length: usize, seals: i32) -> Result<(OwnedFd, Mapping), Error> {
    // A memory file is a file: beyond that limit the kernel sends SIGXFSZ, which ends the process.
    if let Some(most) = limit(libc::RLIMIT_FSIZE as _).filter(|most| length as u64 > *most) {
        return Err(Error::Resource(format!(
            "a memory file of {length} bytes, since RLIMIT_FSIZE (ulimit -f) is {most} bytes"
        )));
    }
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a constant; makes a new descriptor.
    let fd = unsafe { libc::memfd_create(c"longma-via".as_ptr(), flags) };
    if fd < 0 {
        return Err(Error::last_system("making shared memory"));
    }
    // SAFETY: just opened, and nobody else has it.
    let file = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: numbers only.
    if unsafe { libc::ftruncate(fd, length as libc::off_t) } < 0 {
        return Err(Error::last_system("sizing shared memory"));
    }
    let mapping = Mapping::new(file.as_fd(), length, true)?;
    // SAFETY: numbers only.
    if unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, seals) } < 0 {
        return Err(Error::last_system("sealing shared memory"));
    }
    Ok((file, mapping))
}

/// From here on freeing a memory file takes longer than whoever lets go of it may have: a peer can hand over hundreds at a time.
const LARGE_BYTES: i64 = 64 << 10;

/// What a half may have: as much as its bytes take in pages of 2 MiB, which the kernel gives where it is told to (shmem_enabled).
const MOST_HALF_BYTES: i64 = 2 << 20;

/// Whether a memory file's pages are few: those beyond its end counted in.
pub(super) fn is_small(file: BorrowedFd<'_>) -> bool {
    has_at_most(file, LARGE_BYTES)
}

fn has_at_most(file: BorrowedFd<'_>, bytes: i64) -> bool {
    // SAFETY: `stat` is plain old data, for which zeroes are a value.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: writes to the structure given.
    let known = unsafe { libc::fstat(file.as_raw_fd(), &raw mut stat) } == 0;
    known && stat.st_size <= bytes && stat.st_blocks <= bytes / 512
}

/// The same, and will stay so.
pub(super) fn stays_small(file: &Foreign) -> bool {
    file.seals().is_some_and(|seals| seals & libc::F_SEAL_GROW != 0) && is_small(file.as_fd())
}

/// Maps `length` bytes of a file that came from a peer, if it is an ordinary memory file at least that long that cannot shrink, or
/// says why not.
pub(super) fn map_foreign(file: &Foreign, length: u64, write: bool) -> Result<Mapping, String> {
    require_seals(file, libc::F_SEAL_SHRINK, "changes of its size")?;
    let size = size_of_ordinary(file)?;
    if length == 0 || size < length {
        return Err(format!("it has {size} bytes and should have {length}"));
    }
    map_checked(file, length, write)
}

/// Maps the peer's half of a connection for reading, if nobody can do anything to it but store to it, or says why not.
pub(super) fn map_half(file: &Foreign) -> Result<Mapping, String> {
    require_seals(file, UNTOUCHED, "changes of its size, other writers and holes")?;
    let size = size_of_ordinary(file)?;
    if size != HALF_BYTES as u64 {
        return Err(format!("it has {size} bytes and should have {HALF_BYTES}"));
    }
    if !has_at_most(file.as_fd(), MOST_HALF_BYTES) {
        return Err("it has pages beyond its end".into());
    }
    map_checked(file, size, false)
}

/// Asked first: other files may belong to the peer's own file system, which need not answer.
fn require_seals(file: &Foreign, needed: i32, against: &str) -> Result<(), String> {
    let seals = file.seals().ok_or("it is not a memory file")?;
    if seals & needed == needed {
        return Ok(());
    }
    Err(format!(
        "whoever made it has not sealed it against {against} (its seals are {seals:#x}, and {needed:#x} are needed)"
    ))
}

/// The size of a memory file, if it has ordinary pages.
fn size_of_ordinary(file: &Foreign) -> Result<u64, String> {
    let fd = file.as_fd().as_raw_fd();
    // SAFETY: `stat` is plain old data, for which zeroes are a value.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: writes to the structure given.
    if unsafe { libc::fstat(fd, &raw mut stat) } < 0 {
        return Err(format!("its size is unknown: {}", io::Error::last_os_error()));
    }
    // SAFETY: as above.
    let mut system: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: writes to the structure given.
    if unsafe { libc::fstatfs(fd, &raw mut system) } < 0 || system.f_type as i64 != libc::TMPFS_MAGIC {
        // Huge pages can run out after mapping; ordinary ones come from the kernel's own tmpfs, which has no limit: a file of
        // another one cannot be sealed.
        return Err("it is not of ordinary pages".into());
    }
    Ok(u64::try_from(stat.st_size).unwrap_or(0))
}

fn map_checked(file: &Foreign, length: u64, write: bool) -> Result<Mapping, String> {
    let length = usize::try_from(length).map_err(|_| "it is longer than an address space")?;
    let mapping = Mapping::new(file.as_fd(), length, write).map_err(|error| error.to_string())?;
    file.note_mapped();
    Ok(mapping)
}

/// Registered memory that peers can map: a memory file and our mapping of it.
pub(super) struct SharedPages {
    mapping: Mapping,
    sharing: Mutex<Sharing>,
}

#[derive(Default)]
struct Sharing {
    /// The file, unless it was closed; and whether peers may map it for writing, for reading, or (`None`) not at all.
    file: Option<(Option<OwnedFd>, Option<bool>)>,
    /// The program has had the chance to store something.
    in_use: bool,
}

impl SharedPages {
    pub(super) fn new(length: usize) -> Result<SharedPages, Error> {
        let length = length.checked_next_multiple_of(4096).ok_or_else(|| Error::Resource("memory".into()))?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new anonymous mapping where the kernel likes; it touches no existing memory.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(Error::last_system("mapping memory"));
        }
        Ok(SharedPages { mapping: Mapping { base: base.cast(), length }, sharing: Mutex::default() })
    }

    /// Makes the pages such that peers can map them, for writing or only for reading, or (`None`) not at all. If that is another thing
    /// than before, or with `anew`, what peers have mapped is theirs to keep, but is no longer this memory. Contents stay; nobody may
    /// store to them meanwhile. On an error all is as it was.
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
        // SAFETY: moves the fresh mapping onto ours, which is as long, and whose pages nobody refers to but by address.
        let moved = unsafe { libc::mremap(fresh.base.cast(), length, length, flags, self.mapping.base) };
        if moved == libc::MAP_FAILED {
            return Err(Error::last_system("sharing memory"));
        }
        std::mem::forget(fresh);
        sharing.file = Some((Some(fd), peers_write));
        Ok(())
    }

    /// The file, for a peer that may map it.
    pub(super) fn file(&self) -> Option<OwnedFd> {
        match &self.sharing().file {
            Some((Some(fd), Some(_))) => fd.try_clone().ok(),
            _ => None,
        }
    }

    /// The number of the file's descriptor, for a peer that can get at this process's descriptors anyway.
    pub(super) fn file_number(&self) -> Option<u32> {
        match &self.sharing().file {
            Some((Some(fd), _)) => u32::try_from(fd.as_raw_fd()).ok(),
            _ => None,
        }
    }

    /// Closes the file: the pages are lent to nobody.
    pub(super) fn close_file(&self) {
        if let Some((fd, _)) = &mut self.sharing().file {
            *fd = None;
        }
    }

    fn sharing(&self) -> MutexGuard<'_, Sharing> {
        self.sharing.lock().unwrap_or_else(PoisonError::into_inner)
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
