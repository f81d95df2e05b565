//! The host reservation that contains all guest addresses, and accessors that return an error for any invalid guest
//! address. Mappings are managed by `AddressSpace`. Source: mmap(2); LoongArch Reference Manual volume 1, section 2.1.4
//! (memory accesses).

use std::io;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use longma_loongarch::{Access, Fault, FaultCause, Scalar};

use super::access::{self, Refused};
use super::bitmap::PageBitmap;
use super::mappings::{Mappings, Protection, Window};
use super::own_code::OwnCode;
use super::shared_code::SharedCodePages;
use super::writes::WriteLog;
use super::{HOST_PAGE_BYTES, PAGE_BYTES};
use crate::host::attention::suppress_own_attention;
use crate::host::locks::{RwLock, SpinLock};
use crate::host::schedule_fuzz::perturb;

/// Unmapped bytes around the reservation, so that an address plus an instruction's offset stays inside.
const GUARD_BYTES: usize = 1 << 20;

/// Sizes to try in this order, since the host may limit the address space of a process.
const LIMITS: [u64; 5] = [1 << 46, 1 << 45, 1 << 43, 1 << 41, 1 << 39];

/// Guest addresses equal host addresses if the host allows it, because translated code then needs no base register.
/// Nothing is mapped below this address (the kernel's mmap_min_addr is at most this).
const LOWEST: usize = 64 << 10;

/// The maximum number of retries of one access after a page was fixed up. Another thread cannot undo the fix-up this
/// often by chance.
const MAX_RETRIES: usize = 1000;

/// Number of retries before the thread yields to the other thread.
const RETRIES_WITHOUT_YIELD: usize = 8;

fn yield_after(tries: usize) {
    if tries > RETRIES_WITHOUT_YIELD {
        std::thread::yield_now();
    }
}

/// A power of two. Pages that share a counter only cause extra work.
pub(super) const WATCHES: usize = 64;

/// Guest memory. Clones share it.
#[derive(Clone)]
pub struct GuestMemory(pub(super) Arc<Reservation>);

/// The shared state of the clones of a [`GuestMemory`].
pub(super) struct Reservation {
    start: *mut libc::c_void,
    length: usize,
    pub base: *mut u8,
    pub limit: u64,
    pub map: RwLock<Mappings>,
    /// The number of objects that are writable through one mapping and executable through another, see
    /// [`Mappings::writable_code_objects`].
    pub writable_code_objects: Arc<AtomicUsize>,
    /// The number of mappings that execute code from a file's own pages, see [`Mappings::file_code_mappings`].
    pub file_code_mappings: Arc<AtomicUsize>,
    /// The guest page size in bytes.
    pub page_bytes: AtomicU64,
    /// Host pages from which the guest may execute.
    pub executable: PageBitmap,
    /// Host pages that the guest may write to but that are write-protected on the host, because code has been read from
    /// the memory they show.
    pub code: PageBitmap,
    /// How often code was about to be read from a page, by page number modulo the length. Changed under `code_lock`.
    pub watches: [AtomicU64; WATCHES],
    /// Held while a page's bit in `code` and its host protection change together. It is never held during guest memory
    /// accesses, so a fault handler may take it.
    pub code_lock: SpinLock,
    /// Tracks writes of a process that borrows its parent's memory.
    pub writes: WriteLog,
    /// Code pages that other processes can change.
    pub shared_code: SharedCodePages,
    /// Code of the translator, which is outside guest memory.
    pub own_code: OnceLock<OwnCode>,
    /// Called with address ranges whose code may have changed.
    pub code_changed: OnceLock<Box<dyn Fn(Range<u64>) + Send + Sync>>,
}

// SAFETY: the pointers refer to a mapping that the reservation owns; all mutable state is atomic or locked.
unsafe impl Send for Reservation {}
// SAFETY: as above; guest memory is accessed only through the access routines.
unsafe impl Sync for Reservation {}

impl Reservation {
    pub fn watches_of(&self, page: u64) -> &AtomicU64 {
        &self.watches[page as usize % WATCHES]
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: the reservation owns the mapping, and no clone is left.
        unsafe { libc::munmap(self.start, self.length) };
    }
}

impl std::fmt::Debug for GuestMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GuestMemory").field("base", &self.0.base).field("limit", &self.0.limit).finish()
    }
}

/// Maximum number of retries of a fetch that the map permits but the host refuses.
const MAX_FETCH_RETRIES: u32 = 100_000;

impl GuestMemory {
    /// Reserves a guest address space without any mappings.
    ///
    /// # Errors
    /// The host refuses even 512 GiB of addresses (usually because of a limit on virtual memory, `ulimit -v`).
    pub fn reserve() -> io::Result<Self> {
        super::install_recovery();
        let mut error = io::Error::from_raw_os_error(libc::ENOMEM);
        let places =
            LIMITS.iter().map(|&limit| (limit, true)).chain(LIMITS.iter().map(|&limit| (limit, false)));
        for (limit, identical) in places {
            // With identical addresses, the reservation starts at `LOWEST`: all lower addresses are below any host
            // mapping, and there is no room for a guard area below address 0.
            let (preferred, length, flags) = if identical {
                (LOWEST, limit as usize + GUARD_BYTES - LOWEST, libc::MAP_FIXED_NOREPLACE)
            } else {
                (0, limit as usize + 2 * GUARD_BYTES, 0)
            };
            // SAFETY: a new mapping that replaces no existing one.
            let start = unsafe {
                libc::mmap(
                    ptr::without_provenance_mut(preferred),
                    length,
                    libc::PROT_NONE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | flags,
                    -1,
                    0,
                )
            };
            if start == libc::MAP_FAILED {
                error = io::Error::last_os_error();
                continue;
            }
            if identical && start.addr() != preferred {
                // SAFETY: the mapping was made above; a kernel without MAP_FIXED_NOREPLACE treats the address as a
                // hint.
                unsafe { libc::munmap(start, length) };
                continue;
            }
            let base = if identical { ptr::null_mut() } else { start.cast::<u8>().wrapping_add(GUARD_BYTES) };
            let map = Mappings::default();
            return Ok(Self(Arc::new(Reservation {
                start,
                length,
                base,
                limit,
                writable_code_objects: map.writable_code_objects(),
                file_code_mappings: map.file_code_mappings(),
                map: RwLock::new(map),
                page_bytes: AtomicU64::new(PAGE_BYTES),
                executable: PageBitmap::new(limit / HOST_PAGE_BYTES)?,
                code: PageBitmap::new(limit / HOST_PAGE_BYTES)?,
                watches: [const { AtomicU64::new(0) }; WATCHES],
                code_lock: SpinLock::default(),
                writes: WriteLog::default(),
                shared_code: SharedCodePages::default(),
                own_code: OnceLock::new(),
                code_changed: OnceLock::new(),
            })));
        }
        Err(error)
    }

    /// The host address of guest address 0.
    pub fn base(&self) -> *mut u8 {
        self.0.base
    }

    /// The guest page size: [`PAGE_BYTES`](super::PAGE_BYTES), or the host's page size if the guest architecture uses
    /// it.
    pub fn page_bytes(&self) -> u64 {
        self.0.page_bytes.load(Ordering::Relaxed)
    }

    /// Sets the guest page size to the host's. Call it before anything is mapped.
    pub fn use_host_page_size(&self) {
        self.0.page_bytes.store(HOST_PAGE_BYTES, Ordering::Relaxed);
    }

    /// The first guest address out of range.
    pub fn limit(&self) -> u64 {
        self.0.limit
    }

    /// Converts a host address into a guest address, if it is in range.
    pub fn guest_address(&self, host: usize) -> Option<u64> {
        let address = (host as u64).checked_sub(self.0.base as u64)?;
        (address < self.0.limit).then_some(address)
    }

    /// The host pointer to `length` bytes at `address`, if they are in range. They need not be mapped.
    pub fn pointer(&self, address: u64, length: u64) -> Option<*mut u8> {
        let fits = length <= self.0.limit && address <= self.0.limit - length;
        fits.then(|| self.0.base.wrapping_add(address as usize))
    }

    pub(super) fn pointer_for(&self, address: u64, length: u64, access: Access) -> Result<*mut u8, Fault> {
        self.pointer(address, length).ok_or(Fault { address, access, cause: FaultCause::Unmapped })
    }

    /// The host pointer to a buffer that the host kernel will write to. Makes pages writable that are write-protected
    /// because of translated code. Another thread may protect them again before the kernel writes; the call then fails
    /// with EFAULT and should be retried.
    ///
    /// # Errors
    /// The range is outside the address space.
    pub fn pointer_for_writing(&self, address: u64, length: u64) -> Result<*mut u8, Fault> {
        let pointer = self.pointer_for(address, length, Access::Write)?;
        self.record_writes(address..address + length);
        if !self.0.code.is_empty() && length > 0 {
            suppress_own_attention(|| self.release_code(address..address + length));
        }
        Ok(pointer)
    }

    /// Whether a page of the `length` bytes at `address` is write-protected because of translated code, so that the
    /// kernel cannot write to it.
    pub fn holds_watched_code(&self, address: u64, length: u64) -> bool {
        // The maximum size of a single read or write in Linux.
        let end = address.saturating_add(length.min(0x7fff_f000)).div_ceil(HOST_PAGE_BYTES);
        self.0.code.first_in(address / HOST_PAGE_BYTES..end).is_some()
    }

    /// Whether a page of `range` is or may become write-protected because of translated code, since it or another view
    /// of the same memory is executable.
    pub fn may_be_watched(&self, range: Range<u64>) -> bool {
        let pages = range.start / HOST_PAGE_BYTES..range.end.div_ceil(HOST_PAGE_BYTES);
        if self.0.executable.first_in(pages).is_some() {
            return true;
        }
        // Avoids the lock in programs without such mappings.
        if self.0.writable_code_objects.load(Ordering::Acquire) == 0 {
            return false;
        }
        let map = self.0.map.read().expect("the map's lock is never poisoned: nothing panics under it");
        map.overlapping(range).any(|(_, mapping)| map.may_change_code(mapping))
    }

    /// Whether the guest may write to every byte, as the host sees it: the pages beyond the end of a file are not
    /// writable. Pages that are write-protected because of translated code count as writable and stay protected.
    pub fn can_write(&self, address: u64, length: u64) -> bool {
        self.writable(address, length) == length
    }

    /// The number of bytes before the first one that the guest may not write to, see [`Self::can_write`].
    pub fn writable(&self, address: u64, length: u64) -> u64 {
        let end = address.saturating_add(length).min(self.0.limit);
        if address >= end {
            return 0;
        }
        let touches = |at: u64| {
            let pointer = self.0.base.wrapping_add(at as usize);
            // SAFETY: one byte inside the reservation, whose value does not change.
            unsafe { access::compare_exchange::<1>(pointer, 0, 0) }.is_ok()
        };
        let pages = address / HOST_PAGE_BYTES..end.div_ceil(HOST_PAGE_BYTES);
        let first_refused = pages.map(|page| address.max(page * HOST_PAGE_BYTES)).find(|&at| {
            // The page may become protected between the two checks.
            !(self.is_code_protected(at) || touches(at) || self.is_code_protected(at))
        });
        first_refused.unwrap_or(end) - address
    }

    /// Loads an integer.
    ///
    /// # Errors
    /// The address is not mapped or not readable.
    pub fn load<T: Scalar>(&self, address: u64) -> Result<T, Fault> {
        let pointer = self.pointer_for(address, T::BYTES as u64, Access::Read)?;
        let value = self.retry(address, T::BYTES as u64, Access::Read, || {
            // SAFETY: `pointer` is in the reservation for the size of T.
            unsafe {
                match T::BYTES {
                    1 => access::load::<1>(pointer),
                    2 => access::load::<2>(pointer),
                    4 => access::load::<4>(pointer),
                    8 => access::load::<8>(pointer),
                    _ => access::load::<16>(pointer),
                }
            }
        })?;
        Ok(narrow(value))
    }

    /// Stores an integer. On error nothing is stored.
    ///
    /// # Errors
    /// The address is not mapped or not writable.
    pub fn store<T: Scalar>(&self, address: u64, value: T) -> Result<(), Fault> {
        let pointer = self.pointer_for(address, T::BYTES as u64, Access::Write)?;
        let value = widen(value);
        self.retry(address, T::BYTES as u64, Access::Write, || {
            // SAFETY: `pointer` is in the reservation for the size of T.
            unsafe {
                match T::BYTES {
                    1 => access::store::<1>(pointer, value),
                    2 => access::store::<2>(pointer, value),
                    4 => access::store::<4>(pointer, value),
                    8 => access::store::<8>(pointer, value),
                    _ => access::store::<16>(pointer, value),
                }
            }
        })
    }

    /// Atomically replaces `expected` with `new` and returns the old value. Sequentially consistent.
    ///
    /// # Errors
    /// The address is misaligned, not mapped or not writable.
    pub fn compare_exchange<T: Scalar>(&self, address: u64, expected: T, new: T) -> Result<T, Fault> {
        if !address.is_multiple_of(T::BYTES as u64) {
            return Err(Fault { address, access: Access::Write, cause: FaultCause::Misaligned });
        }
        let pointer = self.pointer_for(address, T::BYTES as u64, Access::Write)?;
        let (expected, new) = (widen(expected), widen(new));
        let old = self.retry(address, T::BYTES as u64, Access::Write, || {
            // SAFETY: `pointer` is in the reservation for the size of T, and aligned (the base is page-aligned).
            unsafe {
                match T::BYTES {
                    1 => access::compare_exchange::<1>(pointer, expected, new),
                    2 => access::compare_exchange::<2>(pointer, expected, new),
                    4 => access::compare_exchange::<4>(pointer, expected, new),
                    8 => access::compare_exchange::<8>(pointer, expected, new),
                    _ => access::compare_exchange::<16>(pointer, expected, new),
                }
            }
        })?;
        Ok(narrow(old))
    }

    /// Copies guest memory to `buffer`.
    ///
    /// # Errors
    /// A byte is not readable; `buffer` holds the bytes before it.
    pub fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), Fault> {
        let pointer = self.pointer_for(address, buffer.len() as u64, Access::Read)?;
        self.piecewise(address, buffer.len(), Access::Read, |copied| {
            let rest = &mut buffer[copied..];
            // SAFETY: `rest` is ordinary memory; the other pointer is in the reservation.
            unsafe { access::copy(rest.as_mut_ptr(), pointer.wrapping_add(copied), rest.len()) }
        })
    }

    /// Copies `bytes` to guest memory.
    ///
    /// # Errors
    /// A byte is not writable; the bytes before it have been written.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        let pointer = self.pointer_for(address, bytes.len() as u64, Access::Write)?;
        self.piecewise(address, bytes.len(), Access::Write, |copied| {
            let rest = &bytes[copied..];
            // SAFETY: `rest` is ordinary memory; the other pointer is in the reservation.
            unsafe { access::copy(pointer.wrapping_add(copied), rest.as_ptr(), rest.len()) }
        })
    }

    /// Sets `length` bytes to `value`.
    ///
    /// # Errors
    /// A byte is not writable; the bytes before it have been set.
    pub fn fill(&self, address: u64, length: u64, value: u8) -> Result<(), Fault> {
        let pointer = self.pointer_for(address, length, Access::Write)?;
        self.piecewise(address, length as usize, Access::Write, |filled| {
            // SAFETY: the bytes are in the reservation.
            unsafe { access::fill(pointer.wrapping_add(filled), value, length as usize - filled) }
        })
    }

    /// Reads a zero-terminated string, without the terminator. Returns `None` if there is no terminator within `max`
    /// bytes.
    ///
    /// # Errors
    /// A byte before the terminator is not readable.
    pub fn read_c_string(&self, address: u64, max: usize) -> Result<Option<Vec<u8>>, Fault> {
        let mut text = Vec::new();
        while text.len() < max {
            let at = address.wrapping_add(text.len() as u64);
            // Stop at the end of the host page, so that only pages of the string are accessed.
            let in_page = (HOST_PAGE_BYTES - at % HOST_PAGE_BYTES) as usize;
            let mut piece = [0u8; 256];
            let piece = &mut piece[..in_page.min(256).min(max - text.len())];
            self.read(at, piece)?;
            if let Some(end) = piece.iter().position(|&byte| byte == 0) {
                text.extend_from_slice(&piece[..end]);
                return Ok(Some(text));
            }
            text.extend_from_slice(piece);
        }
        Ok(None)
    }

    /// Fetches an instruction word.
    ///
    /// # Errors
    /// The address is not a multiple of four, not mapped or not executable.
    pub fn fetch(&self, address: u64) -> Result<u32, Fault> {
        let fault = |cause| Fault { address, access: Access::Execute, cause };
        if !address.is_multiple_of(4) {
            return Err(fault(FaultCause::Misaligned));
        }
        if let Some(word) = self.0.own_code.get().and_then(|code| code.word(address)) {
            return Ok(word.load(Ordering::Acquire));
        }
        // If the map permits a fetch that the host refused, another thread has just changed the mapping. Retry, as the
        // kernel does.
        for _ in 0..MAX_FETCH_RETRIES {
            let current_fault = if self.0.executable.contains(address / HOST_PAGE_BYTES) {
                match self.load(address) {
                    Ok(word) => return Ok(word),
                    Err(found) if found.cause == FaultCause::BeyondFile && self.is_of_file(address) => {
                        return Err(fault(found.cause));
                    }
                    Err(found) => fault(found.cause),
                }
            } else {
                self.explain(address, 4, Access::Execute)
            };
            if current_fault.cause != FaultCause::BeyondFile {
                return Err(current_fault);
            }
        }
        Err(fault(FaultCause::BeyondFile))
    }

    /// Fetches consecutive words like [`Self::fetch`]. No thread may change the code during the call.
    ///
    /// # Errors
    /// As for [`Self::fetch`], for any of the words.
    pub fn fetch_all(&self, address: u64, words: &mut [u32]) -> Result<(), Fault> {
        let mut page = None;
        for (at, word) in (address..).step_by(4).zip(words) {
            // Check each page once; a plain load suffices for its remaining words.
            let current = at / HOST_PAGE_BYTES;
            if page != Some(current) {
                page = Some(current).filter(|page| {
                    at.is_multiple_of(4) && self.0.executable.contains(*page) && !self.is_own_code(at)
                });
            }
            *word = match page.map(|_| self.load(at)) {
                Some(Ok(word)) => word,
                _ => self.fetch(at)?,
            };
        }
        Ok(())
    }

    fn is_own_code(&self, address: u64) -> bool {
        self.0.own_code.get().is_some_and(|code| code.word(address).is_some())
    }

    /// Determines from the guest's map why the host refused an access of `size` bytes.
    pub fn explain(&self, address: u64, size: u64, access: Access) -> Fault {
        let map = self.0.map.read().expect("the map's lock is never poisoned: nothing panics under it");
        let mut at = address;
        // An access may straddle two pages. Report the first byte that refuses the access.
        loop {
            let fault = |cause| Fault { address: at, access, cause };
            let Some((_, mapping)) = map.at(at).filter(|(_, mapping)| !mapping.marks.is_guard) else {
                return fault(FaultCause::Unmapped);
            };
            if !mapping.protection.permits(access) {
                return fault(FaultCause::Forbidden);
            }
            let next = (at & !(self.page_bytes() - 1)) + self.page_bytes();
            if next >= address.saturating_add(size) {
                return Fault { address, access, cause: FaultCause::BeyondFile };
            }
            at = next;
        }
    }

    /// The device window at `address`, the offset in the device, and the protection of the mapping.
    pub fn window_at(&self, address: u64) -> Option<(Window, u64, Protection)> {
        let map = self.0.map.read().expect("the map's lock is never poisoned: nothing panics under it");
        let (range, mapping) = map.at(address)?;
        Some((mapping.origin.window?, mapping.offset + (address - range.start), mapping.protection))
    }

    /// Whether `address` belongs to a mapping of a file or device, whose pages the kernel does not zero on first
    /// access.
    pub fn is_of_file(&self, address: u64) -> bool {
        let map = self.0.map.read().expect("the map's lock is never poisoned: nothing panics under it");
        map.at(address).is_some_and(|(_, mapping)| mapping.origin.is_file)
    }

    /// All device windows: address range, window, and offset in the device.
    pub fn windows(&self) -> Vec<(Range<u64>, Window, u64)> {
        let map = self.0.map.read().expect("the map's lock is never poisoned: nothing panics under it");
        map.iter().filter_map(|(range, found)| Some((range, found.origin.window?, found.offset))).collect()
    }

    /// A counter of changes to device windows. A caller that caches [`GuestMemory::windows`] reloads it when the
    /// counter changes.
    pub fn window_changes(&self) -> u64 {
        self.0.map.read().expect("the map's lock is never poisoned: nothing panics under it").window_changes()
    }

    /// Fixes up a page that refused a permitted access: a page write-protected because of translated code, or the tail
    /// of the last 16 KiB page of a file. On success the caller retries the access.
    ///
    /// # Errors
    /// The guest's map does not permit the access.
    fn fix_up(&self, address: u64, size: u64, access: Access) -> Result<(), Fault> {
        let Some(last) = address.checked_add(size.max(1) - 1).filter(|&last| last < self.0.limit) else {
            return Err(self.explain(address, size, access));
        };
        if access == Access::Write {
            let is_noted = self.record_writes(address..last + 1);
            if self.release_code(address..last + 1) || is_noted {
                return Ok(());
            }
        }
        let fault = self.explain(address, size, access);
        if fault.cause == FaultCause::Unmapped && self.grow_down(fault.address) {
            return Ok(());
        }
        if fault.cause == FaultCause::BeyondFile
            && (self.fix_up_file_tail(address, access) || self.fix_up_file_tail(last, access))
        {
            return Ok(());
        }
        // Return the fault determined above: another thread may have changed the map since.
        Err(fault)
    }

    /// On hardware with 16 KiB pages, the rest of the last page of a file reads as zero. The host, with 4 KiB pages,
    /// faults there.
    fn fix_up_file_tail(&self, address: u64, access: Access) -> bool {
        let map = self.0.map.write().expect("the map's lock is never poisoned: nothing panics under it");
        let permitting = map.at(address).filter(|(_, mapping)| mapping.protection.permits(access));
        // Another thread has just removed the permission. The retry reports the fault.
        let Some((_, mapping)) = permitting else { return true };
        if mapping.origin.window.is_some() {
            return false;
        }
        let host_page = address & !(HOST_PAGE_BYTES - 1);
        let readable = |at: u64| {
            let pointer = self.0.base.wrapping_add(at as usize);
            // SAFETY: `at` is a mapped guest address.
            unsafe { access::load::<1>(pointer) }.is_ok()
        };
        if readable(host_page) {
            // Another thread was changing the mapping, and has finished.
            return true;
        }
        if !mapping.origin.is_file || !readable(address & !(self.page_bytes() - 1)) {
            return false;
        }
        // SAFETY: one host page inside a guest mapping, and the map is locked.
        let mapped = unsafe {
            libc::mmap(
                self.0.base.wrapping_add(host_page as usize).cast(),
                HOST_PAGE_BYTES as usize,
                mapping.host_bits(),
                libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        mapped != libc::MAP_FAILED
    }

    /// Makes the code pages of `range` writable again after invalidating their translations. Returns whether any page
    /// was protected.
    pub(super) fn release_code(&self, range: Range<u64>) -> bool {
        let mut released = false;
        let (mut next, end) = (range.start / HOST_PAGE_BYTES, range.end.div_ceil(HOST_PAGE_BYTES));
        while let Some(page) = self.0.code.first_in(next..end) {
            released |= self.release_page(page);
            next = page + 1;
        }
        released
    }

    /// Invalidates the code first and then makes the page writable, so that a thread that can write to it finds no old
    /// translation. Repeats this if code was read again in between.
    fn release_page(&self, page: u64) -> bool {
        let start = page * HOST_PAGE_BYTES;
        let pointer = self.0.base.wrapping_add(start as usize);
        loop {
            let Some(watches) = self.watches_of_protected(page) else { return false };
            let map = self.0.map.read().expect("the map's lock is never poisoned: nothing panics under it");
            let views = map.views_of_code(&(start..start + HOST_PAGE_BYTES));
            drop(map);
            for view in views {
                perturb();
                self.notify_code_changed(view);
            }
            perturb();
            let code_guard = self.0.code_lock.lock();
            if self.0.watches_of(page).load(Ordering::Relaxed) != watches {
                continue;
            }
            if self.0.code.remove(page) {
                let read_write = libc::PROT_READ | libc::PROT_WRITE;
                // SAFETY: a host page inside the reservation that the guest may read and write, as its bit showed.
                unsafe { libc::mprotect(pointer.cast(), HOST_PAGE_BYTES as usize, read_write) };
            }
            drop(code_guard);
            perturb();
            return true;
        }
    }

    /// How often code was about to be read from `page`; `None` if the page is not write-protected.
    fn watches_of_protected(&self, page: u64) -> Option<u64> {
        let _code_guard = self.0.code_lock.lock();
        self.0.code.contains(page).then(|| self.0.watches_of(page).load(Ordering::Relaxed))
    }

    /// Whether the host page of `address` is write-protected because of translated code. Async-signal-safe.
    pub fn is_code_protected(&self, address: u64) -> bool {
        self.0.code.contains(address / HOST_PAGE_BYTES)
    }

    pub(super) fn notify_code_changed(&self, range: Range<u64>) {
        if let Some(callback) = self.0.code_changed.get() {
            callback(range);
        }
    }

    /// Repeats a copy until it is complete, fixing up pages where it faults.
    fn piecewise(
        &self,
        address: u64,
        length: usize,
        access: Access,
        mut copy: impl FnMut(usize) -> Result<(), Refused>,
    ) -> Result<(), Fault> {
        let (mut copied, mut tries) = (0, 0);
        while copied < length {
            let Err(Refused { remaining }) = copy(copied) else { return Ok(()) };
            let now = length - remaining.min(length - copied);
            tries = if now == copied { tries + 1 } else { 0 };
            copied = now;
            let at = address + copied as u64;
            self.fix_up(at, 1, access)?;
            if tries > MAX_RETRIES {
                return Err(self.explain(at, 1, access));
            }
            yield_after(tries);
        }
        Ok(())
    }

    pub(super) fn retry<V>(
        &self,
        address: u64,
        size: u64,
        access: Access,
        act: impl Fn() -> Result<V, Refused>,
    ) -> Result<V, Fault> {
        for tries in 0..MAX_RETRIES {
            if let Ok(value) = act() {
                return Ok(value);
            }
            self.fix_up(address, size, access)?;
            yield_after(tries);
        }
        Err(self.explain(address, size, access))
    }
}

fn narrow<T: Scalar>(value: u128) -> T {
    // SAFETY: T is one of the unsigned numbers of at most 16 bytes, and the host is little-endian.
    unsafe { std::mem::transmute_copy(&value) }
}

fn widen<T: Scalar>(value: T) -> u128 {
    let mut wide = 0u128;
    // SAFETY: T is one of the unsigned numbers of at most 16 bytes, and the host is little-endian.
    unsafe {
        ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), (&raw mut wide).cast::<u8>(), T::BYTES)
    };
    wide
}
