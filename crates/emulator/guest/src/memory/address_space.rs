//! The guest's address space: mmap, munmap, mprotect, mremap, brk and related operations on the reservation. Source:
//! mmap(2), mremap(2), mprotect(2), madvise(2), brk(2); LoongArch kernel with 16 KiB pages.

use std::ops::Range;
use std::sync::Arc;

use super::HOST_PAGE_BYTES;
use super::engine_ranges::EngineRange;
use super::guest_memory::GuestMemory;
use super::mapping_budget::MappingBudget;
use super::mappings::{Mapping, Mappings, Marks, Origin, Protection, RemovedProperties};
use super::quota::Quota;
use super::request::{Backing, MapRequest, Placement};
use crate::Errno;
use crate::host::locks::{Mutex, RwLockReadGuard, RwLockWriteGuard, SpinGuard};
use crate::host::schedule_fuzz::perturb;

/// The lowest address of a mapping (the default of vm.mmap_min_addr).
const LOWEST: u64 = 1 << 16;

/// The guest's address space.
#[derive(Debug)]
pub struct AddressSpace {
    memory: GuestMemory,
    /// Mappings without a requested address are placed below this address.
    top: u64,
    heap: Mutex<Heap>,
    /// Ranges reserved for the translator, see [`AddressSpace::reserve_for_engine`].
    pub(super) engine_ranges: Vec<EngineRange>,
    pub(super) mapping_budget: MappingBudget,
    pub(super) quota: Quota,
}

/// The program break.
#[derive(Clone, Copy, Debug, Default)]
struct Heap {
    start: u64,
    end: u64,
}

const POISON: &str = "the map's lock is never poisoned: nothing panics under it";

pub(super) fn errno() -> Errno {
    std::io::Error::last_os_error().into()
}

/// The executable views of the memory that a new writable shared mapping at `range` shows. The new mapping is not
/// write-protected yet, so the caller must invalidate translations of these views. All mappings are protected again
/// when the code is next read.
pub(super) fn writable_views(map: &Mappings, range: &Range<u64>, mapping: &Mapping) -> Vec<Range<u64>> {
    if !mapping.shared || !mapping.protection.write {
        return Vec::new();
    }
    let views = map.other_views(range).into_iter();
    views.filter(|(_, view)| view.protection.execute).map(|(range, _)| range).collect()
}

impl AddressSpace {
    /// Creates an empty address space over `memory`.
    pub fn new(memory: GuestMemory) -> Self {
        let top = memory.limit() - memory.page_bytes();
        Self {
            memory,
            top,
            heap: Mutex::default(),
            engine_ranges: Vec::new(),
            mapping_budget: MappingBudget::default(),
            quota: Quota::default(),
        }
    }

    /// The guest page size in bytes.
    pub fn page_bytes(&self) -> u64 {
        self.memory.page_bytes()
    }

    /// Rounds up to a multiple of the guest page size; `None` on overflow.
    pub fn page_up(&self, value: u64) -> Option<u64> {
        value.checked_add(self.page_bytes() - 1).map(|value| self.page_down(value))
    }

    /// Rounds down to a multiple of the guest page size.
    pub fn page_down(&self, value: u64) -> u64 {
        value & !(self.page_bytes() - 1)
    }

    /// The underlying guest memory.
    pub fn memory(&self) -> &GuestMemory {
        &self.memory
    }

    /// Sets the address below which mappings without a requested address are placed.
    pub fn set_top(&mut self, top: u64) {
        self.top = self.page_down(top);
    }

    /// Sets the start of the heap; the heap is empty.
    pub fn set_heap_start(&mut self, address: u64) {
        let start = self.page_up(address).unwrap_or(address);
        *self.heap.get_mut().expect(POISON) = Heap { start, end: start };
    }

    /// The address below which mappings without a requested address are placed.
    pub fn top(&self) -> u64 {
        self.top
    }

    /// The start and the end of the heap.
    pub fn heap(&self) -> (u64, u64) {
        let heap = self.heap.lock().expect(POISON);
        (heap.start, heap.end)
    }

    /// Sets the start and the end of the heap. The caller maps its memory separately.
    pub fn restore_heap(&mut self, (start, end): (u64, u64)) {
        *self.heap.get_mut().expect(POISON) = Heap { start, end };
    }

    pub(super) fn read(&self) -> RwLockReadGuard<'_, Mappings> {
        self.memory.0.map.read().expect(POISON)
    }

    pub(super) fn write(&self) -> RwLockWriteGuard<'_, Mappings> {
        self.memory.0.map.write().expect(POISON)
    }

    /// The mapping that contains `address`, and its range.
    pub fn mapping(&self, address: u64) -> Option<(Range<u64>, Mapping)> {
        self.read().at(address).map(|(range, mapping)| (range, mapping.clone()))
    }

    /// Whether `range` is completely unmapped.
    pub fn is_free(&self, range: Range<u64>) -> bool {
        self.read().is_free(range)
    }

    /// All mappings in address order.
    pub fn mappings(&self) -> Vec<(Range<u64>, Mapping)> {
        self.read().iter().map(|(range, mapping)| (range, mapping.clone())).collect()
    }

    /// Rounds `start..start + length` to whole pages and checks that it is inside the address space and outside the
    /// translator's ranges. `outside` is the error for a range that fails these checks.
    fn range(&self, start: u64, length: u64, outside: i32) -> Result<Range<u64>, Errno> {
        if !start.is_multiple_of(self.page_bytes()) {
            return Err(Errno(libc::EINVAL));
        }
        let length = self.page_up(length).ok_or(Errno(outside))?;
        let end = start.checked_add(length).filter(|&end| end <= self.memory.limit());
        let range = start..end.ok_or(Errno(outside))?;
        if self.overlaps_engine_range(&range) { Err(Errno(outside)) } else { Ok(range) }
    }

    pub(super) fn host(&self, address: u64) -> *mut libc::c_void {
        self.memory.base().wrapping_add(address as usize).cast()
    }

    fn place(&self, map: &Mappings, placement: Placement, length: u64) -> Result<Range<u64>, Errno> {
        let length = self.page_up(length).filter(|&length| length > 0).ok_or(Errno(libc::ENOMEM))?;
        match placement {
            Placement::Hint(hint) => {
                let start = self.page_down(hint);
                let range = start..start.saturating_add(length);
                if start >= LOWEST && range.end <= self.top && map.is_free(range.clone()) {
                    return Ok(range);
                }
                let start = map.find_free_below(length, LOWEST..self.top).ok_or(Errno(libc::ENOMEM))?;
                Ok(start..start + length)
            }
            Placement::Fixed(start) | Placement::FixedNoReplace(start) => {
                let range = self.range(start, length, libc::ENOMEM)?;
                if start < LOWEST {
                    return Err(Errno(libc::EPERM));
                }
                if matches!(placement, Placement::FixedNoReplace(_)) && !map.is_free(range.clone()) {
                    return Err(Errno(libc::EEXIST));
                }
                Ok(range)
            }
        }
    }

    /// Maps private zeroed memory at `address`, replacing existing mappings. For callers that do not load an ELF file.
    ///
    /// # Errors
    /// The address or the length is not a multiple of [`Self::page_bytes`], the range is outside the address space, or
    /// the host has no memory.
    pub fn map_zeros(&self, address: u64, length: u64, protection: Protection) -> Result<(), Errno> {
        self.map(&MapRequest::anonymous(Placement::Fixed(address), length, protection)).map(drop)
    }

    /// Creates a mapping and returns its address.
    ///
    /// # Errors
    /// As mmap(2). ENOMEM also if the limits of the guest or the mappings of the emulator would be exceeded.
    pub fn map(&self, request: &MapRequest) -> Result<u64, Errno> {
        if request.length == 0 {
            return Err(Errno(libc::EINVAL));
        }
        let mut map = self.write();
        let range = self.place(&map, request.placement, request.length)?;
        map.check_seals(&range)?;
        self.check_mapping_budget(&map)?;
        let length = (range.end - range.start) as usize;
        self.check_quota(&map, range.clone(), length as u64, !request.shared && request.protection.write)?;
        let sharing = if request.shared { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
        let (kind, descriptor, offset) = match &request.backing {
            Backing::Anonymous(_)
            | Backing::Saved { .. }
            | Backing::Segment { .. }
            | Backing::Registers(_) => (libc::MAP_ANONYMOUS, -1, 0),
            Backing::File { descriptor, offset, .. } => (0, *descriptor, *offset),
        };
        self.invalidate_code(&map, &range);
        let code_guard = self.lock_code_pages();
        // SAFETY: the range is inside the reservation, which contains only guest memory.
        let mapped = unsafe {
            libc::mmap(
                self.host(range.start),
                length,
                request.protection.host_bits(request.backing.origin()),
                sharing | kind | libc::MAP_FIXED | request.flags,
                descriptor,
                offset as i64,
            )
        };
        if mapped == libc::MAP_FAILED {
            let error = errno();
            self.reserve_again(&mut map, range);
            return Err(error);
        }
        if let Backing::Segment { id, read_only, .. } = request.backing
            && let Err(error) = self.attach(&range, id, read_only)
        {
            self.release(&range)?;
            let removed = map.remove(range.clone());
            self.set_executable(&range, removed, Protection::default());
            return Err(error);
        }
        self.advise_huge_pages(&range, request);
        let (origin, offset) = match &request.backing {
            Backing::Anonymous(origin) | Backing::Registers(origin) | Backing::Segment { origin, .. } => {
                (origin.clone(), 0)
            }
            Backing::Saved { origin, offset } => (origin.clone(), *offset),
            Backing::File { offset, size, origin, .. } => {
                if !request.shared {
                    self.map_file_tail(&range, *offset, *size, request.protection.host_bits(origin));
                }
                (origin.clone(), *offset)
            }
        };
        let mapping = Mapping {
            protection: request.protection,
            shared: request.shared,
            origin,
            offset,
            wipe_on_fork: false,
            dont_fork: false,
            marks: Marks { grows_down: request.grows_down, ..Marks::default() },
        };
        let shows = mapping.clone();
        let removed = map.insert(range.clone(), mapping);
        self.set_executable(&range, removed, request.protection);
        drop(code_guard);
        self.notify_all(writable_views(&map, &range, &shows));
        Ok(range.start)
    }

    /// Attaches a System V segment at the start of a new mapping. The rest of its last guest page stays anonymous.
    fn attach(&self, range: &Range<u64>, id: u64, read_only: bool) -> Result<(), Errno> {
        let flags = libc::SHM_REMAP | if read_only { libc::SHM_RDONLY } else { 0 };
        // SAFETY: the range is inside the reservation and as long as the segment.
        let attached = unsafe { libc::shmat(id as i32, self.host(range.start), flags) };
        if attached.addr() == usize::MAX { Err(errno()) } else { Ok(()) }
    }

    /// Advises the host to use huge pages for large memory that the program is about to use, because guest accesses
    /// walk the host's page tables. MAP_NORESERVE memory is left alone.
    fn advise_huge_pages(&self, range: &Range<u64>, request: &MapRequest) {
        const ENOUGH_BYTES: u64 = 4 << 20;
        let anonymous = matches!(request.backing, Backing::Anonymous(_)) && !request.shared;
        let used = request.protection.write && request.flags & libc::MAP_NORESERVE == 0;
        if anonymous && used && range.end - range.start >= ENOUGH_BYTES {
            // SAFETY: the mapping was made above; the advice does not change its contents.
            unsafe {
                libc::madvise(self.host(range.start), (range.end - range.start) as usize, libc::MADV_HUGEPAGE)
            };
        }
    }

    /// With 16 KiB guest pages, the rest of the last page of a file reads as zero. The host faults beyond the last 4
    /// KiB page, so the tail becomes anonymous memory.
    fn map_file_tail(&self, range: &Range<u64>, offset: u64, size: u64, host_bits: i32) {
        let host_end = |page: u64| size.div_ceil(page).checked_mul(page)?.checked_sub(offset);
        let (Some(from), Some(to)) = (host_end(HOST_PAGE_BYTES), host_end(self.page_bytes())) else { return };
        let (from, to) = (range.start.saturating_add(from), range.start.saturating_add(to).min(range.end));
        if size <= offset || from >= to {
            return;
        }
        // SAFETY: inside the mapping made above. On failure the tail faults, as it does on other hosts.
        unsafe {
            libc::mmap(
                self.host(from),
                (to - from) as usize,
                host_bits,
                libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
        }
    }

    /// A failed MAP_FIXED may have unmapped the range. Reserves it again, so that no host mapping can be placed there.
    fn reserve_again(&self, map: &mut Mappings, range: Range<u64>) {
        // SAFETY: MAP_FIXED_NOREPLACE does not affect existing mappings.
        let filled = unsafe {
            libc::mmap(
                self.host(range.start),
                (range.end - range.start) as usize,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE,
                -1,
                0,
            )
        };
        if filled != libc::MAP_FAILED {
            let removed = map.remove(range.clone());
            self.set_executable(&range, removed, Protection::default());
        }
    }

    /// Unmaps a range but keeps it reserved.
    fn release(&self, range: &Range<u64>) -> Result<(), Errno> {
        // SAFETY: inside the reservation.
        let mapped = unsafe {
            libc::mmap(
                self.host(range.start),
                (range.end - range.start) as usize,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED,
                -1,
                0,
            )
        };
        if mapped == libc::MAP_FAILED { Err(errno()) } else { Ok(()) }
    }

    /// Prevents fault handlers from making code pages writable while mappings change. The caller holds the guard until
    /// the page bitmaps are consistent again. Until then no thread can write-protect pages, since that needs the
    /// map's lock, which the caller holds.
    pub(super) fn lock_code_pages(&self) -> Option<SpinGuard<'_>> {
        (!self.memory.0.code.is_empty()).then(|| self.memory.0.code_lock.lock())
    }

    /// Updates the page bitmaps: whether the range is executable, and that none of its pages is write-protected. `was`
    /// describes the former mappings; a range that contained no code is skipped.
    pub(super) fn set_executable(&self, range: &Range<u64>, was: RemovedProperties, protection: Protection) {
        let pages = range.start / HOST_PAGE_BYTES..range.end / HOST_PAGE_BYTES;
        if was.watched {
            self.memory.0.code.remove_range(pages.clone());
        }
        if protection.execute {
            self.memory.0.executable.insert_range(pages);
        } else if was.executable {
            self.memory.0.executable.remove_range(pages);
        }
    }

    pub(super) fn notify_all(&self, ranges: Vec<Range<u64>>) {
        ranges.into_iter().for_each(|range| self.memory.notify_code_changed(range));
    }

    /// Invalidates translations from `range` on all cores before the range is unmapped, changed or replaced. The caller
    /// holds the map's write lock until the change is complete. Since [`Self::protect_code`] needs that lock, no core
    /// translates the old code in between, and a core that sees the change finds no old translation.
    pub(super) fn invalidate_code(&self, map: &RwLockWriteGuard<'_, Mappings>, range: &Range<u64>) {
        if map.properties_in(range.clone()).executable {
            perturb();
            self.memory.notify_code_changed(range.clone());
            perturb();
        }
    }

    /// Unmaps a range, which may contain unmapped pages.
    ///
    /// # Errors
    /// EINVAL for an invalid range; ENOMEM if a mapping cannot be split.
    pub fn unmap(&self, start: u64, length: u64) -> Result<(), Errno> {
        let range = self.range(start, length, libc::EINVAL)?;
        if range.is_empty() {
            return Err(Errno(libc::EINVAL));
        }
        let mut map = self.write();
        if map.is_free(range.clone()) {
            return Ok(());
        }
        map.check_seals(&range)?;
        // As on Linux, the limit does not prevent a program from unmapping whole mappings and the ends of others.
        if map.is_inside_one(&range) {
            self.check_mapping_budget(&map)?;
        }
        self.invalidate_code(&map, &range);
        let _code_guard = self.lock_code_pages();
        self.release(&range)?;
        let removed = map.remove(range.clone());
        self.set_executable(&range, removed, Protection::default());
        Ok(())
    }

    /// Changes the protection of a range.
    ///
    /// # Errors
    /// As mprotect(2): ENOMEM if the range contains an unmapped page (the pages before it have been changed).
    pub fn protect(&self, start: u64, length: u64, protection: Protection) -> Result<(), Errno> {
        let range = self.range(start, length, libc::ENOMEM)?;
        if range.is_empty() {
            return Ok(());
        }
        let mut map = self.write();
        map.check_seals(&range)?;
        if map.would_split(&range) {
            self.check_mapping_budget(&map)?;
        }
        let mut at = range.start;
        let (mut views, mut result) = (Vec::new(), Ok(()));
        self.invalidate_code(&map, &range);
        let code_guard = self.lock_code_pages();
        for (piece, mapping) in map.within(range.clone()) {
            // Linux changes the pages before the first gap.
            if piece.start != at {
                break;
            }
            let shows = Mapping { protection, ..mapping };
            result = self.protect_host(&piece, &shows);
            if result.is_err() {
                break;
            }
            let was = map.insert(piece.clone(), shows.clone());
            self.set_executable(&piece, was, protection);
            views.extend(writable_views(&map, &piece, &shows));
            at = piece.end;
        }
        drop(code_guard);
        self.notify_all(views);
        drop(map);
        result?;
        if at == range.end { Ok(()) } else { Err(Errno(libc::ENOMEM)) }
    }

    /// Gives the host memory of a piece the permissions of `mapping`.
    pub(super) fn protect_host(&self, piece: &Range<u64>, mapping: &Mapping) -> Result<(), Errno> {
        let length = (piece.end - piece.start) as usize;
        // SAFETY: inside a guest mapping.
        let changed = unsafe { libc::mprotect(self.host(piece.start), length, mapping.host_bits()) };
        if changed == 0 { Ok(()) } else { Err(errno()) }
    }

    /// Moves, grows or shrinks a mapping (mremap).
    ///
    /// # Errors
    /// As mremap(2): EINVAL, EFAULT or ENOMEM.
    pub fn remap(&self, start: u64, old: u64, new: u64, flags: i32, target: u64) -> Result<u64, Errno> {
        const MAY_MOVE: i32 = libc::MREMAP_MAYMOVE;
        const FIXED: i32 = libc::MREMAP_FIXED;
        const KEEP: i32 = libc::MREMAP_DONTUNMAP;
        let (may_move, fixed, keep) = (flags & MAY_MOVE != 0, flags & FIXED != 0, flags & KEEP != 0);
        let old_range = self.range(start, old, libc::EINVAL)?;
        let new_length = self.page_up(new).filter(|&new| new > 0).ok_or(Errno(libc::EINVAL))?;
        let old_length = old_range.end - old_range.start;
        let contradictory = (fixed || keep) && !may_move || keep && old_length != new_length;
        if flags & !(MAY_MOVE | FIXED | KEEP) != 0 || contradictory {
            return Err(Errno(libc::EINVAL));
        }
        let mut map = self.write();
        let mapping = map.at(start).map(|(_, found)| found.without_guard()).ok_or(Errno(libc::EFAULT))?;
        if map.end_with_guards(start).is_none_or(|end| end < old_range.end) {
            return Err(Errno(libc::EFAULT));
        }
        map.check_seals(&(start..old_range.end.max(start + 1)))?;
        if old_length == 0 && !(mapping.shared && may_move) {
            return Err(Errno(libc::EINVAL));
        }
        let first_page = map.within(start..start + self.page_bytes()).pop();
        let piece = first_page.map_or(mapping, |(_, piece)| piece.without_guard());
        if !fixed && !keep && old_length > 0 {
            if new_length <= old_length {
                drop(map);
                if new_length < old_length {
                    self.unmap(start + new_length, old_length - new_length)?;
                }
                return Ok(start);
            }
            let extra = old_range.end..old_range.end.saturating_add(new_length - old_length);
            let anonymous = !piece.origin.is_file && !piece.shared;
            if anonymous && extra.end <= self.top && map.is_free(extra.clone()) {
                drop(map);
                // Private anonymous memory grows by another mapping after it.
                let request = MapRequest {
                    placement: Placement::FixedNoReplace(extra.start),
                    length: extra.end - extra.start,
                    protection: piece.protection,
                    shared: false,
                    backing: Backing::Anonymous(piece.origin.clone()),
                    flags: 0,
                    grows_down: piece.marks.grows_down,
                };
                if self.map(&request).is_ok() {
                    return Ok(start);
                }
                map = self.write();
            }
        }
        if !may_move {
            return Err(Errno(libc::ENOMEM));
        }
        let placement = if fixed { Placement::Fixed(target) } else { Placement::Hint(0) };
        let place = self.place(&map, placement, new_length)?;
        if place.start < old_range.end && old_range.start < place.end {
            return Err(Errno(libc::EINVAL));
        }
        map.check_seals(&place)?;
        self.move_pages(&mut map, old_range, place.clone(), piece, keep)?;
        Ok(place.start)
    }

    fn move_pages(
        &self,
        map: &mut RwLockWriteGuard<'_, Mappings>,
        old: Range<u64>,
        new: Range<u64>,
        mapping: Mapping,
        keep_old: bool,
    ) -> Result<(), Errno> {
        self.check_mapping_budget(map)?;
        let (old_length, new_length) = (old.end - old.start, new.end - new.start);
        let moved = if keep_old { 0 } else { old_length };
        let added = new_length.saturating_sub(moved);
        self.check_quota(map, new.clone(), added, !mapping.shared && mapping.protection.write)?;
        // With length 0, mremap creates a second view of a shared mapping. Invalidate the code in it, because the new
        // view is not write-protected until the code is read again.
        let source = old.start..old.start + if old_length == 0 { new_length } else { old_length };
        self.invalidate_code(map, &source);
        self.invalidate_code(map, &new);
        let code_guard = self.lock_code_pages();
        // A page that is write-protected because of translated code splits a host mapping, and the host moves only one
        // mapping at a time. Restore the protection first.
        for (piece, mapping) in map.within(source) {
            // If the host refuses, the move reports the error.
            let _ = self.protect_host(&piece, &mapping);
            if old_length == 0 && mapping.protection.execute {
                let pages = piece.start / HOST_PAGE_BYTES..piece.end / HOST_PAGE_BYTES;
                self.memory.0.code.remove_range(pages);
            }
        }
        let flags =
            libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | if keep_old { libc::MREMAP_DONTUNMAP } else { 0 };
        let moved_length = old_length.min(new_length);
        let mut guards = map.within(old.start..old.start + moved_length);
        guards.retain(|(_, mapping)| mapping.marks.is_guard);
        if let Err(error) = self.move_on_host(old.start, new.start, moved_length, new_length, flags) {
            self.reserve_again(map, new);
            return Err(error);
        }
        let removed = RemovedProperties::of(&mapping);
        if !keep_old && old_length > 0 {
            self.release(&old)?;
            map.remove(old.clone());
        }
        let protection = mapping.protection;
        let left = if keep_old { protection } else { Protection::default() };
        self.set_executable(&old, removed, left);
        let shows = mapping.clone();
        let replaced = map.insert(new.clone(), mapping);
        self.set_executable(&new, replaced, protection);
        if !guards.is_empty() {
            self.move_guards(map, guards, &old, &new)?;
        }
        drop(code_guard);
        self.notify_all(writable_views(map, &new, &shows));
        Ok(())
    }

    /// Moves host memory from `old` to `new` and resizes it to `new_length` bytes. A guest mapping may consist of
    /// several host mappings, since the tail of a private file mapping is anonymous memory ([`Self::map_file_tail`]).
    /// The host moves one mapping at a time, so on EFAULT the range is split in half.
    fn move_on_host(
        &self,
        old: u64,
        new: u64,
        length: u64,
        new_length: u64,
        flags: i32,
    ) -> Result<(), Errno> {
        // SAFETY: both ranges are inside the reservation.
        let moved = unsafe {
            libc::mremap(self.host(old), length as usize, new_length as usize, flags, self.host(new))
        };
        if moved != libc::MAP_FAILED {
            return Ok(());
        }
        let error = errno();
        let half = (length / 2).next_multiple_of(HOST_PAGE_BYTES);
        if error != Errno(libc::EFAULT) || half >= length {
            return Err(error);
        }
        self.move_on_host(old, new, half, half, flags)?;
        let rest = self.move_on_host(old + half, new + half, length - half, new_length - half, flags);
        if rest.is_err() {
            // Undo the first half. If that fails too, reserve the range again so that no hole is left.
            let undone = self.move_on_host(new, old, half, half, flags & !libc::MREMAP_DONTUNMAP);
            if undone.is_err() {
                self.release(&(old..old + half))?;
            }
            self.release(&(new..new + half))?;
        }
        rest
    }

    /// Moves the program break and returns the new one, or the old one on failure.
    pub fn set_break(&self, new_break: u64) -> u64 {
        let mut heap = self.heap.lock().expect(POISON);
        if new_break < heap.start || new_break > self.top {
            return heap.end;
        }
        let pages = |address| self.page_up(address).unwrap_or(!(self.page_bytes() - 1));
        let (old_end, new_end) = (pages(heap.end), pages(new_break));
        let result = if new_end > old_end {
            let origin = Origin { name: "[heap]".into(), ..Origin::default() };
            self.map(&MapRequest {
                placement: Placement::FixedNoReplace(old_end),
                length: new_end - old_end,
                protection: Protection { read: true, write: true, execute: false },
                shared: false,
                backing: Backing::Anonymous(Arc::new(origin)),
                flags: 0,
                grows_down: false,
            })
            .is_ok()
        } else {
            new_end == old_end || self.unmap(new_end, old_end - new_end).is_ok()
        };
        if result {
            heap.end = new_break;
        }
        heap.end
    }

    /// Checks that a range is page-aligned and mapped. Returns its host address and length, for calls that the host can
    /// execute unchanged (madvise, msync, mlock).
    ///
    /// # Errors
    /// EINVAL if the start is not page-aligned; ENOMEM if a page is not mapped.
    pub fn host_range(&self, start: u64, length: u64) -> Result<(*mut libc::c_void, usize), Errno> {
        let range = self.range(start, length, libc::ENOMEM)?;
        if !self.read().covers(range.clone()) {
            return Err(Errno(libc::ENOMEM));
        }
        Ok((self.host(range.start), (range.end - range.start) as usize))
    }
}
