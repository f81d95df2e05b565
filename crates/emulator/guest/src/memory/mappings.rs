//! The ordered map of a guest's mappings: address range, permissions and backing file. It is bookkeeping only; changing
//! it does not change host memory. Source: proc_pid_maps(5).

use longma_loongarch::Access;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The permissions of a mapping, as the guest requested them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Protection {
    /// PROT_READ.
    pub read: bool,
    /// PROT_WRITE.
    pub write: bool,
    /// PROT_EXEC.
    pub execute: bool,
}

impl Protection {
    /// Converts PROT_ bits. Bits other than read, write and execute are ignored.
    pub fn from_bits(bits: i32) -> Self {
        Self {
            read: bits & libc::PROT_READ != 0,
            write: bits & libc::PROT_WRITE != 0,
            execute: bits & libc::PROT_EXEC != 0,
        }
    }

    /// Whether loads are permitted. On LoongArch, any permission implies reading.
    pub fn readable(self) -> bool {
        self.read || self.write || self.execute
    }

    /// Whether the guest may make this type of access.
    pub(super) fn permits(self, access: Access) -> bool {
        match access {
            Access::Read => self.readable(),
            Access::Write => self.write,
            Access::Execute => self.execute,
        }
    }

    /// The PROT_ bits of the host mapping. Guest code is data to the host, and device registers have no host memory.
    pub(super) fn host_bits(self, origin: &Origin) -> i32 {
        let write = if self.write { libc::PROT_WRITE } else { 0 };
        let registers = matches!(origin.window, Some(Window::Registers(_)));
        if self.readable() && !registers { libc::PROT_READ | write } else { libc::PROT_NONE }
    }
}

/// A device mapping. The owner of the devices numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// Device registers. Accesses never reach memory.
    Registers(u16),
    /// Memory of the device, such as an in-core store.
    Memory(u16),
}

/// The file or the purpose of a mapping.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The path of the file in the guest, or `[stack]`, `[heap]`, `[vdso]`; empty for anonymous memory.
    pub name: String,
    /// Device number; 0 without a file.
    pub device: u64,
    /// Inode number; 0 without a file.
    pub inode: u64,
    /// Whether the mapping has a file (`name` may still be empty).
    pub is_file: bool,
    /// The device, if it is a device mapping.
    pub window: Option<Window>,
}

/// One mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The permissions.
    pub protection: Protection,
    /// MAP_SHARED.
    pub shared: bool,
    /// The file or the purpose.
    pub origin: Arc<Origin>,
    /// The file offset of the first byte; 0 without a file.
    pub offset: u64,
    /// A forked child reads zeros here (MADV_WIPEONFORK).
    pub wipe_on_fork: bool,
    /// A forked child does not inherit this mapping (MADV_DONTFORK).
    pub dont_fork: bool,
    /// Properties set by mmap, madvise and mseal.
    pub marks: Marks,
}

/// Properties of a mapping beyond its permissions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// Every access faults, regardless of the permissions (MADV_GUARD_INSTALL).
    pub is_guard: bool,
    /// Its permissions and its address cannot be changed (mseal).
    pub is_sealed: bool,
    /// An access below it extends it downwards (MAP_GROWSDOWN).
    pub grows_down: bool,
}

impl Marks {
    /// The marks as bits: guard 1, sealed 2, growing 4.
    pub fn bits(self) -> u8 {
        u8::from(self.is_guard) | u8::from(self.is_sealed) << 1 | u8::from(self.grows_down) << 2
    }

    /// The marks for these bits.
    pub fn from_bits(bits: u8) -> Self {
        Self { is_guard: bits & 1 != 0, is_sealed: bits & 2 != 0, grows_down: bits & 4 != 0 }
    }
}

impl Mapping {
    /// The PROT_ bits of the host mapping.
    pub(super) fn host_bits(&self) -> i32 {
        if self.marks.is_guard { libc::PROT_NONE } else { self.protection.host_bits(&self.origin) }
    }

    /// The mapping without its guard.
    pub(super) fn without_guard(&self) -> Self {
        Self { marks: Marks { is_guard: false, ..self.marks }, ..self.clone() }
    }

    fn advanced(&self, by: u64) -> Self {
        let offset = if self.origin.is_file || self.shared { self.offset.wrapping_add(by) } else { 0 };
        Self { offset, ..self.clone() }
    }

    /// Whether it is a System V segment. The first segment has the id 0.
    pub fn is_segment(&self) -> bool {
        self.shared && !self.origin.is_file && self.origin.name.starts_with("/SYSV")
    }

    /// Whether it executes code from a file's own pages. A private mapping is excluded: whether it shows later writes
    /// to the file is unspecified (mmap(2)).
    pub(super) fn executes_file_pages(&self) -> bool {
        self.shared && self.protection.execute && self.origin.is_file
    }

    /// The object that it shows, if other mappings may show the same object.
    fn object(&self) -> Option<Object> {
        let origin = &self.origin;
        match origin.window {
            Some(Window::Memory(number)) => Some(Object::Device(number)),
            Some(Window::Registers(_)) => None,
            None if origin.is_file => Some(Object::File(origin.device, origin.inode)),
            None if !self.shared => None,
            None if self.is_segment() => Some(Object::Segment(origin.inode)),
            None => Some(Object::Memory(Arc::as_ptr(origin) as usize)),
        }
    }

    /// The object that it shows, if the mapping is shared or executable. A write through a shared mapping changes code
    /// in every executable mapping of the same object, even a private one.
    fn watched_object(&self) -> Option<Object> {
        if self.shared || self.protection.execute { self.object() } else { None }
    }
}

/// An object that several mappings may show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Object {
    /// A file, by device and inode.
    File(u64, u64),
    /// A System V segment, by its id.
    Segment(u64),
    /// Unnamed shared memory, by the address of its origin.
    Memory(usize),
    /// The memory of a modelled device.
    Device(u16),
}

/// Properties of mappings that were removed or changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RemovedProperties {
    /// A mapping was executable.
    pub executable: bool,
    /// Pages may be write-protected because of translated code.
    pub watched: bool,
}

impl RemovedProperties {
    /// The properties of one mapping.
    pub fn of(mapping: &Mapping) -> Self {
        let executable = mapping.protection.execute;
        Self { executable, watched: executable || mapping.shared }
    }

    /// The union of both.
    pub fn union(self, other: Self) -> Self {
        Self { executable: self.executable | other.executable, watched: self.watched | other.watched }
    }
}

/// All mappings of a guest, ordered and without overlap.
#[derive(Debug, Default)]
pub(super) struct Mappings {
    /// Start address to end address and mapping.
    map: BTreeMap<u64, (u64, Mapping)>,
    /// The mappings of each object that several mappings may show.
    views: BTreeMap<Object, Views>,
    writable_code_objects: Arc<AtomicUsize>,
    file_code_mappings: Arc<AtomicUsize>,
    gaps: Gaps,
    /// The number of changes to device windows.
    window_changes: u64,
}

/// The mappings of one object.
#[derive(Debug, Default)]
struct Views {
    /// Their start addresses.
    starts: BTreeSet<u64>,
    /// The number of executable ones.
    executable: usize,
    /// The number of writable ones.
    writable: usize,
}

impl Views {
    /// Whether code of the object can be changed through a mapping.
    fn is_writable_code(&self) -> bool {
        self.executable > 0 && self.writable > 0
    }
}

/// The start addresses of all unmapped gaps, grouped by the base-2 logarithm of their length.
#[derive(Debug)]
struct Gaps([BTreeSet<u64>; u64::BITS as usize]);

impl Default for Gaps {
    fn default() -> Self {
        let mut gaps = Self([const { BTreeSet::new() }; u64::BITS as usize]);
        gaps.add(0..u64::MAX);
        gaps
    }
}

impl Gaps {
    fn add(&mut self, gap: Range<u64>) {
        if gap.start < gap.end {
            self.0[(gap.end - gap.start).ilog2() as usize].insert(gap.start);
        }
    }

    fn take(&mut self, gap: Range<u64>) {
        if gap.start < gap.end {
            self.0[(gap.end - gap.start).ilog2() as usize].remove(&gap.start);
        }
    }
}

impl Mappings {
    /// The gap between the last mapping before `start` and the first one at or after `end`.
    fn between(&self, start: u64, end: u64) -> Range<u64> {
        let gap_start = self.map.range(..start).next_back().map_or(0, |(_, (end, _))| *end);
        gap_start..self.map.range(end..).next().map_or(u64::MAX, |(&start, _)| start)
    }

    /// Adds a mapping in an unmapped range.
    fn put(&mut self, range: Range<u64>, mapping: Mapping) {
        let gap = self.between(range.start, range.end);
        self.gaps.take(gap.clone());
        self.gaps.add(gap.start..range.start);
        self.gaps.add(range.end..gap.end);
        if let Some(object) = mapping.watched_object() {
            let views = self.views.entry(object).or_default();
            let was_writable_code = views.is_writable_code();
            views.starts.insert(range.start);
            views.executable += usize::from(mapping.protection.execute);
            views.writable += usize::from(mapping.shared && mapping.protection.write);
            self.writable_code_objects
                .fetch_add(usize::from(!was_writable_code && views.is_writable_code()), Ordering::AcqRel);
        }
        self.file_code_mappings.fetch_add(usize::from(mapping.executes_file_pages()), Ordering::AcqRel);
        self.map.insert(range.start, (range.end, mapping));
    }

    /// Removes the mapping that starts at `start`.
    fn take(&mut self, start: u64) -> Option<(u64, Mapping)> {
        let (end, mapping) = self.map.remove(&start)?;
        self.file_code_mappings.fetch_sub(usize::from(mapping.executes_file_pages()), Ordering::AcqRel);
        let gap = self.between(start, end);
        self.gaps.take(gap.start..start);
        self.gaps.take(end..gap.end);
        self.gaps.add(gap);
        if let Some(object) = mapping.watched_object()
            && let Some(views) = self.views.get_mut(&object)
        {
            let was_writable_code = views.is_writable_code();
            views.starts.remove(&start);
            views.executable -= usize::from(mapping.protection.execute);
            views.writable -= usize::from(mapping.shared && mapping.protection.write);
            self.writable_code_objects
                .fetch_sub(usize::from(was_writable_code && !views.is_writable_code()), Ordering::AcqRel);
            if views.starts.is_empty() {
                self.views.remove(&object);
            }
        }
        Some((end, mapping))
    }

    /// The mapping that contains `address`.
    pub fn at(&self, address: u64) -> Option<(Range<u64>, &Mapping)> {
        let (&start, (end, mapping)) = self.map.range(..=address).next_back()?;
        (address < *end).then_some((start..*end, mapping))
    }

    /// The mapping that contains `address`, or else the next one above it.
    pub fn next_from(&self, address: u64) -> Option<(Range<u64>, &Mapping)> {
        let next = || self.map.range(address..).next().map(|(&start, (end, mapping))| (start..*end, mapping));
        self.at(address).or_else(next)
    }

    /// The number of mappings and gaps, which equals the number of host mappings if none was split or merged.
    pub fn pieces(&self) -> usize {
        self.map.len() + self.gaps.0.iter().map(BTreeSet::len).sum::<usize>()
    }

    /// Whether an end of `range` is inside a mapping.
    pub fn would_split(&self, range: &Range<u64>) -> bool {
        [range.start, range.end].iter().any(|&at| self.at(at).is_some_and(|(found, _)| found.start < at))
    }

    /// Whether `range` is inside a mapping that extends beyond both of its ends.
    pub fn is_inside_one(&self, range: &Range<u64>) -> bool {
        self.at(range.start).is_some_and(|(found, _)| found.start < range.start && range.end < found.end)
    }

    /// The end of the mapping that contains `address`, together with those after it that differ only in being guard
    /// regions. The program sees them as one mapping.
    pub fn end_with_guards(&self, address: u64) -> Option<u64> {
        let (mut run, first) = self.at(address)?;
        let first = first.without_guard();
        while let Some((next, mapping)) = self.at(run.end) {
            if mapping.without_guard() != first.advanced(next.start - run.start) {
                break;
            }
            run.end = next.end;
        }
        Some(run.end)
    }

    /// The number of changes to device windows.
    pub fn window_changes(&self) -> u64 {
        self.window_changes
    }

    /// All mappings in address order.
    pub fn iter(&self) -> impl Iterator<Item = (Range<u64>, &Mapping)> {
        self.map.iter().map(|(&start, (end, mapping))| (start..*end, mapping))
    }

    /// The mappings that overlap `range`, in address order.
    pub fn overlapping(&self, range: Range<u64>) -> impl Iterator<Item = (Range<u64>, &Mapping)> {
        let first = self.at(range.start).map_or(range.start, |(overlapping, _)| overlapping.start);
        let overlapping = self.map.range(first..range.end.max(first));
        overlapping
            .map(|(&start, (end, mapping))| (start..*end, mapping))
            .filter(move |(overlapping, _)| overlapping.end > range.start)
    }

    /// The parts of mappings inside `range`, in address order.
    pub fn within(&self, range: Range<u64>) -> Vec<(Range<u64>, Mapping)> {
        let pieces = self.overlapping(range.clone()).map(|(found, mapping)| {
            let cut = found.start.max(range.start)..found.end.min(range.end);
            let advanced = mapping.advanced(cut.start - found.start);
            (cut, advanced)
        });
        pieces.collect()
    }

    /// The properties of all mappings in `range`.
    pub fn properties_in(&self, range: Range<u64>) -> RemovedProperties {
        self.overlapping(range).fold(RemovedProperties::default(), |removed, (_, mapping)| {
            removed.union(RemovedProperties::of(mapping))
        })
    }

    /// The number of objects that are both writable and executable, through one or several mappings. It is 0 unless the
    /// guest can write to shared code.
    pub fn writable_code_objects(&self) -> Arc<AtomicUsize> {
        self.writable_code_objects.clone()
    }

    /// Whether a write through `mapping` may change code, in it or in another mapping.
    pub fn may_change_code(&self, mapping: &Mapping) -> bool {
        let views = mapping.watched_object().and_then(|object| self.views.get(&object));
        mapping.shared && mapping.protection.write && views.is_some_and(|views| views.executable > 0)
    }

    /// Whether every byte of `range` is mapped.
    pub fn covers(&self, range: Range<u64>) -> bool {
        let mut at = range.start;
        while at < range.end {
            match self.at(at) {
                Some((found, _)) => at = found.end,
                None => return false,
            }
        }
        true
    }

    /// Whether no byte of `range` is mapped.
    pub fn is_free(&self, range: Range<u64>) -> bool {
        self.at(range.start).is_none() && self.map.range(range).next().is_none()
    }

    /// The other address ranges that show the bytes of `range`, which is inside one mapping. Considers shared and
    /// executable mappings.
    pub fn other_views(&self, range: &Range<u64>) -> Vec<(Range<u64>, &Mapping)> {
        let Some((containing, mapping)) = self.at(range.start) else { return Vec::new() };
        let Some(views) = mapping.object().and_then(|object| self.views.get(&object)) else {
            return Vec::new();
        };
        let first = mapping.offset.wrapping_add(range.start - containing.start);
        let last = first.saturating_add(range.end - range.start);
        let seen_at = |start: &u64| {
            let (end, view) = self.map.get(start)?;
            let (from, to) = (first.max(view.offset), last.min(view.offset.saturating_add(end - start)));
            let is_other = *start != containing.start;
            (is_other && from < to).then(|| (start + from - view.offset..start + to - view.offset, view))
        };
        views.starts.iter().filter_map(seen_at).collect()
    }

    /// The executable address ranges that show the bytes of `range`, which is inside one mapping.
    pub fn views_of_code(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let own = self.at(range.start).filter(|(_, mapping)| mapping.protection.execute);
        let own = own.map(|_| range.clone());
        let others = self.other_views(range).into_iter();
        let others = others.filter(|(_, view)| view.protection.execute).map(|(range, _)| range);
        own.into_iter().chain(others).collect()
    }

    /// The mappings of a file that satisfy `predicate`. Considers shared and executable mappings.
    pub fn views_of_file(
        &self,
        device: u64,
        inode: u64,
        predicate: impl Fn(&Mapping) -> bool,
    ) -> Vec<Range<u64>> {
        let Some(views) = self.views.get(&Object::File(device, inode)) else { return Vec::new() };
        let views = views.starts.iter().filter_map(|start| Some((*start, self.map.get(start)?)));
        let matching = views.filter(|(_, (_, mapping))| predicate(mapping));
        matching.map(|(start, (end, _))| start..*end).collect()
    }

    /// The number of mappings that execute code from a file's own pages.
    pub fn file_code_mappings(&self) -> Arc<AtomicUsize> {
        self.file_code_mappings.clone()
    }

    /// Removes everything in `range`, splitting mappings that extend beyond it.
    pub fn remove(&mut self, range: Range<u64>) -> RemovedProperties {
        let pieces = self.within(range.clone());
        let Some((first, _)) = pieces.first() else { return RemovedProperties::default() };
        let removed = pieces.iter().fold(RemovedProperties::default(), |removed, (_, mapping)| {
            removed.union(RemovedProperties::of(mapping))
        });
        self.window_changes += u64::from(pieces.iter().any(|(_, mapping)| mapping.origin.window.is_some()));
        if let Some((first_range, mapping)) = self.at(first.start) {
            let mapping = mapping.clone();
            self.take(first_range.start);
            if first_range.start < range.start {
                self.put(first_range.start..range.start, mapping.clone());
            }
            if first_range.end > range.end {
                self.put(range.end..first_range.end, mapping.advanced(range.end - first_range.start));
            }
        }
        for (piece, _) in &pieces[1..] {
            let Some((end, mapping)) = self.take(piece.start) else { continue };
            if end > range.end {
                self.put(range.end..end, mapping.advanced(range.end - piece.start));
            }
        }
        removed
    }

    /// Puts `mapping` at `range`, replacing existing mappings, and merges it with equal neighbours. Returns the
    /// properties of the replaced mappings.
    pub fn insert(&mut self, mut range: Range<u64>, mut mapping: Mapping) -> RemovedProperties {
        let removed = self.remove(range.clone());
        self.window_changes += u64::from(mapping.origin.window.is_some());
        let joins = |a: &Mapping, b: &Mapping, distance: u64| {
            // Only private anonymous memory and parts of one file merge: two shared anonymous mappings are different
            // objects.
            (a.origin.is_file || !a.shared) && a.advanced(distance) == *b
        };
        if let Some((before, found)) = range.start.checked_sub(1).and_then(|last| self.at(last))
            && joins(found, &mapping, range.start - before.start)
        {
            mapping = found.clone();
            range.start = before.start;
            self.take(before.start);
        }
        if let Some((after, found)) = self.at(range.end)
            && joins(&mapping, found, after.start - range.start)
        {
            range.end = after.end;
            self.take(after.start);
        }
        self.put(range, mapping);
        removed
    }

    /// The start of the highest free range of `length` bytes inside `within`. `length` is not 0, and all arguments are
    /// page-aligned. The cost is independent of the number of mappings, except for gaps that are slightly too short.
    pub fn find_free_below(&self, length: u64, within: Range<u64>) -> Option<u64> {
        let last = self.between(within.end, within.end).start.max(within.start);
        if within.end.saturating_sub(last) >= length {
            return Some(within.end - length);
        }
        if last == within.start {
            return None;
        }
        let mut highest = None;
        for starts in &self.gaps.0[length.ilog2() as usize..] {
            for &start in starts.range(..last).rev() {
                let end = self.between(start + 1, start + 1).end;
                if end <= within.start || highest.is_some_and(|highest| end <= highest) {
                    break;
                }
                if end - start.max(within.start) >= length {
                    highest = Some(end);
                    break;
                }
            }
        }
        highest.map(|end| end - length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn mapping(write: bool, file: bool, offset: u64) -> Mapping {
        let origin = Origin { is_file: file, ..Origin::default() };
        let protection = Protection { read: true, write, execute: false };
        Mapping {
            protection,
            shared: false,
            origin: Arc::new(origin),
            offset,
            wipe_on_fork: false,
            dont_fork: false,
            marks: Marks::default(),
        }
    }

    proptest! {
        /// The map behaves like an array with one entry for each page.
        #[test]
        fn inserting_and_removing_ranges_matches_an_array_of_pages(
            steps in prop::collection::vec((0u64..64, 1u64..16, any::<bool>(), any::<bool>(), any::<bool>()), 1..60),
        ) {
            let mut map = Mappings::default();
            let mut pages = vec![None; 96];
            for (start, length, insert, write, file) in steps {
                let range = start..start + length;
                let offset = if file { start } else { 0 };
                if insert { map.insert(range.clone(), mapping(write, file, offset)); } else { map.remove(range.clone()); }
                for page in range {
                    pages[page as usize] = insert.then(|| mapping(write, file, if file { page } else { 0 }));
                }
                for (page, expected) in pages.iter().enumerate() {
                    let page = page as u64;
                    let found = map.within(page..page + 1).pop().map(|(_, found)| found);
                    prop_assert_eq!(&found, expected);
                }
                let ranges: Vec<_> = map.iter().map(|(range, _)| range).collect();
                prop_assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start));
                for expected in 1..8 {
                    let free = |at: u64| (at..at + expected).all(|page| pages[page as usize].is_none());
                    for (from, to) in [(0, 96), (7, 90), (20, 40)] {
                        let highest = (from..=to - expected).rev().find(|&at| free(at));
                        prop_assert_eq!(map.find_free_below(expected, from..to), highest);
                    }
                }
            }
        }
    }

    #[test]
    fn free_space_is_found_quickly_among_very_many_mappings() {
        const MANY: u64 = 200_000;
        let mut map = Mappings::default();
        // No two mappings merge, and one page is free between neighbours.
        for n in 0..MANY {
            map.insert(3 * n..3 * n + 2, mapping(n % 2 == 0, false, 0));
        }
        for n in 0..MANY {
            // A linear search over all mappings would take hours here.
            assert_eq!(map.find_free_below(2, 0..3 * MANY), None);
            assert_eq!(map.find_free_below(2, 0..3 * MANY + 2), Some(3 * MANY));
            assert_eq!(map.find_free_below(1, 0..3 * n + 2), n.checked_sub(1).map(|n| 3 * n + 2));
        }
    }
}
