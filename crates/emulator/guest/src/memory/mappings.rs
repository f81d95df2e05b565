//! The ordered map of a guest's mappings: what is where, with which permissions, from which file.
//! Not the memory itself: changing this map changes nothing on the host.
//! Source: proc_pid_maps(5).

use longma_loongarch::Access;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What a mapping permits, as the guest asked for it.
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
    /// From PROT_ bits; bits other than read, write and execute are dropped.
    pub fn from_bits(bits: i32) -> Self {
        Self {
            read: bits & libc::PROT_READ != 0,
            write: bits & libc::PROT_WRITE != 0,
            execute: bits & libc::PROT_EXEC != 0,
        }
    }

    /// Whether loads work: on LoongArch any permission implies reading.
    pub fn readable(self) -> bool {
        self.read || self.write || self.execute
    }

    /// Whether the guest may access what is mapped so.
    pub(super) fn permits(self, access: Access) -> bool {
        match access {
            Access::Read => self.readable(),
            Access::Write => self.write,
            Access::Execute => self.execute,
        }
    }

    /// The PROT_ bits of the host mapping: guest code is data to the host, and registers are nothing that the host has.
    pub(super) fn host_bits(self, origin: &Origin) -> i32 {
        let write = if self.write { libc::PROT_WRITE } else { 0 };
        let registers = matches!(origin.window, Some(Window::Registers(_)));
        if self.readable() && !registers { libc::PROT_READ | write } else { libc::PROT_NONE }
    }
}

/// What a mapping shows of a modelled device. Devices are numbered by whoever keeps them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// Registers: no access reaches memory.
    Registers(u16),
    /// Memory of the device's own, such as an in-core store.
    Memory(u16),
}

/// The file or the special purpose behind a mapping.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The file's path as the guest sees it, or `[stack]`, `[heap]`, `[vdso]`; empty for anonymous memory.
    pub name: String,
    /// Device number, 0 for no file.
    pub device: u64,
    /// Inode number, 0 for no file.
    pub inode: u64,
    /// Whether there is a file behind it (`name` may be empty all the same).
    pub is_file: bool,
    /// The device behind it, if there is one.
    pub window: Option<Window>,
}

/// One mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// What it permits.
    pub protection: Protection,
    /// MAP_SHARED.
    pub shared: bool,
    /// The file, or what it is for.
    pub origin: Arc<Origin>,
    /// The file offset of its first byte; 0 without a file.
    pub offset: u64,
    /// A forked child finds zeros there (MADV_WIPEONFORK).
    pub wiped_in_children: bool,
    /// A forked child has no such mapping (MADV_DONTFORK).
    pub left_out_of_children: bool,
}

impl Mapping {
    fn advanced(&self, by: u64) -> Self {
        let offset = if self.origin.is_file || self.shared { self.offset.wrapping_add(by) } else { 0 };
        Self { offset, ..self.clone() }
    }

    /// Whether it shows a System V segment, the first of which has the number 0.
    pub fn is_segment(&self) -> bool {
        self.shared && !self.origin.is_file && self.origin.name.starts_with("/SYSV")
    }

    /// Whether what is written to its file is run. What a private mapping shows of later writes to the file is not specified (mmap(2)).
    pub(super) fn is_run_from_file(&self) -> bool {
        self.shared && self.protection.execute && self.origin.is_file
    }

    /// What it shows, if others may show the same.
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

    /// What it shows, if a write to that can reach code through another mapping: what is written to is shared, and what is run may be.
    fn watched_object(&self) -> Option<Object> {
        if self.shared || self.protection.execute { self.object() } else { None }
    }
}

/// What several mappings may show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Object {
    /// A file, by device and inode.
    File(u64, u64),
    /// A System V segment, by its number.
    Segment(u64),
    /// Shared memory without a name, by where its origin is.
    Memory(usize),
    /// A modelled device's own memory.
    Device(u16),
}

/// What is no longer mapped, or otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Gone {
    /// Something could be run.
    pub executable: bool,
    /// Pages may be write-protected because of translated code.
    pub watched: bool,
}

impl Gone {
    /// What goes with one mapping.
    pub fn with(mapping: &Mapping) -> Self {
        let executable = mapping.protection.execute;
        Self { executable, watched: executable || mapping.shared }
    }

    /// What goes with one or the other.
    pub fn and(self, other: Self) -> Self {
        Self { executable: self.executable | other.executable, watched: self.watched | other.watched }
    }
}

/// All mappings of a guest, in order and without overlap.
#[derive(Debug, Default)]
pub(super) struct Mappings {
    /// Start -> (end, mapping).
    map: BTreeMap<u64, (u64, Mapping)>,
    /// The mappings that show something that others may show.
    views: BTreeMap<Object, Views>,
    run_elsewhere: Arc<AtomicUsize>,
    run_from_files: Arc<AtomicUsize>,
    gaps: Gaps,
    /// How often windows of devices have come or gone.
    window_changes: u64,
}

/// Mappings that show one object.
#[derive(Debug, Default)]
struct Views {
    /// Where they begin.
    starts: BTreeSet<u64>,
    /// How many can be run.
    run: usize,
    /// Through how many the object can be written to.
    written: usize,
}

impl Views {
    /// Whether code can be changed through another mapping than the one that it runs from, or through that one.
    fn are_run_and_written(&self) -> bool {
        self.run > 0 && self.written > 0
    }
}

/// Where nothing is mapped: the first addresses of all gaps, by the power of two that their length reaches.
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
    /// The addresses between what is mapped before `start` and what is mapped at or behind `end`.
    fn between(&self, start: u64, end: u64) -> Range<u64> {
        let before = self.map.range(..start).next_back().map_or(0, |(_, (end, _))| *end);
        before..self.map.range(end..).next().map_or(u64::MAX, |(&start, _)| start)
    }

    /// Puts a mapping where nothing is.
    fn put(&mut self, range: Range<u64>, mapping: Mapping) {
        let gap = self.between(range.start, range.end);
        self.gaps.take(gap.clone());
        self.gaps.add(gap.start..range.start);
        self.gaps.add(range.end..gap.end);
        if let Some(object) = mapping.watched_object() {
            let views = self.views.entry(object).or_default();
            let before = views.are_run_and_written();
            views.starts.insert(range.start);
            views.run += usize::from(mapping.protection.execute);
            views.written += usize::from(mapping.shared && mapping.protection.write);
            self.run_elsewhere
                .fetch_add(usize::from(!before && views.are_run_and_written()), Ordering::AcqRel);
        }
        self.run_from_files.fetch_add(usize::from(mapping.is_run_from_file()), Ordering::AcqRel);
        self.map.insert(range.start, (range.end, mapping));
    }

    /// Takes the mapping that begins at `start` out.
    fn take(&mut self, start: u64) -> Option<(u64, Mapping)> {
        let (end, mapping) = self.map.remove(&start)?;
        self.run_from_files.fetch_sub(usize::from(mapping.is_run_from_file()), Ordering::AcqRel);
        let gap = self.between(start, end);
        self.gaps.take(gap.start..start);
        self.gaps.take(end..gap.end);
        self.gaps.add(gap);
        if let Some(object) = mapping.watched_object()
            && let Some(views) = self.views.get_mut(&object)
        {
            let before = views.are_run_and_written();
            views.starts.remove(&start);
            views.run -= usize::from(mapping.protection.execute);
            views.written -= usize::from(mapping.shared && mapping.protection.write);
            self.run_elsewhere
                .fetch_sub(usize::from(before && !views.are_run_and_written()), Ordering::AcqRel);
            if views.starts.is_empty() {
                self.views.remove(&object);
            }
        }
        Some((end, mapping))
    }

    /// The mapping that holds `address`.
    pub fn at(&self, address: u64) -> Option<(Range<u64>, &Mapping)> {
        let (&start, (end, mapping)) = self.map.range(..=address).next_back()?;
        (address < *end).then_some((start..*end, mapping))
    }

    /// Mappings, and gaps between them: the host has as many of its own, if none was cut or joined.
    pub fn pieces(&self) -> usize {
        self.map.len() + self.gaps.0.iter().map(BTreeSet::len).sum::<usize>()
    }

    /// Whether a border of `range` is in the middle of a mapping.
    pub fn is_cut_by(&self, range: &Range<u64>) -> bool {
        [range.start, range.end].iter().any(|&at| self.at(at).is_some_and(|(found, _)| found.start < at))
    }

    /// How often windows of devices have come or gone.
    pub fn window_changes(&self) -> u64 {
        self.window_changes
    }

    /// All mappings in order.
    pub fn iter(&self) -> impl Iterator<Item = (Range<u64>, &Mapping)> {
        self.map.iter().map(|(&start, (end, mapping))| (start..*end, mapping))
    }

    /// The mappings that have something of `range`, in order.
    pub fn overlapping(&self, range: Range<u64>) -> impl Iterator<Item = (Range<u64>, &Mapping)> {
        let first = self.at(range.start).map_or(range.start, |(found, _)| found.start);
        let found = self.map.range(first..range.end.max(first));
        found
            .map(|(&start, (end, mapping))| (start..*end, mapping))
            .filter(move |(found, _)| found.end > range.start)
    }

    /// The pieces of mappings inside `range`, in order, cut to it.
    pub fn within(&self, range: Range<u64>) -> Vec<(Range<u64>, Mapping)> {
        let pieces = self.overlapping(range.clone()).map(|(found, mapping)| {
            let cut = found.start.max(range.start)..found.end.min(range.end);
            let advanced = mapping.advanced(cut.start - found.start);
            (cut, advanced)
        });
        pieces.collect()
    }

    /// What would go if all of `range` were unmapped.
    pub fn goes_with(&self, range: Range<u64>) -> Gone {
        self.overlapping(range).fold(Gone::default(), |gone, (_, mapping)| gone.and(Gone::with(mapping)))
    }

    /// How many objects can be changed through one mapping and run through another, or the same: 0 as long as nobody writes to code that
    /// is shared.
    pub fn run_elsewhere(&self) -> Arc<AtomicUsize> {
        self.run_elsewhere.clone()
    }

    /// Whether what is written through `mapping` may be run through another one, or through itself.
    pub fn is_run_elsewhere(&self, mapping: &Mapping) -> bool {
        let views = mapping.watched_object().and_then(|object| self.views.get(&object));
        mapping.shared && mapping.protection.write && views.is_some_and(|views| views.run > 0)
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

    /// Where else the bytes of `range` can be seen, which lies in one mapping: through shared mappings, and those that code runs from.
    pub fn other_views(&self, range: &Range<u64>) -> Vec<(Range<u64>, &Mapping)> {
        let Some((own, mapping)) = self.at(range.start) else { return Vec::new() };
        let Some(views) = mapping.object().and_then(|object| self.views.get(&object)) else {
            return Vec::new();
        };
        let first = mapping.offset.wrapping_add(range.start - own.start);
        let last = first.saturating_add(range.end - range.start);
        let seen_at = |start: &u64| {
            let (end, view) = self.map.get(start)?;
            let (from, to) = (first.max(view.offset), last.min(view.offset.saturating_add(end - start)));
            let is_other = *start != own.start;
            (is_other && from < to).then(|| (start + from - view.offset..start + to - view.offset, view))
        };
        views.starts.iter().filter_map(seen_at).collect()
    }

    /// Every range of addresses that code runs from and that shows the bytes of `range`, which lies in one mapping.
    pub fn views_of_code(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let own = self.at(range.start).filter(|(_, mapping)| mapping.protection.execute);
        let own = own.map(|_| range.clone());
        let others = self.other_views(range).into_iter();
        let others = others.filter(|(_, view)| view.protection.execute).map(|(range, _)| range);
        own.into_iter().chain(others).collect()
    }

    /// Where the mappings of a file are that `which` says, among those that are shared or that code runs from.
    pub fn views_of_file(
        &self,
        device: u64,
        inode: u64,
        which: impl Fn(&Mapping) -> bool,
    ) -> Vec<Range<u64>> {
        let Some(views) = self.views.get(&Object::File(device, inode)) else { return Vec::new() };
        let views = views.starts.iter().filter_map(|start| Some((*start, self.map.get(start)?)));
        let wanted = views.filter(|(_, (_, mapping))| which(mapping));
        wanted.map(|(start, (end, _))| start..*end).collect()
    }

    /// In how many mappings code runs from a file's own memory.
    pub fn run_from_files(&self) -> Arc<AtomicUsize> {
        self.run_from_files.clone()
    }

    /// Takes everything in `range` out, cutting mappings that stick out of it.
    pub fn remove(&mut self, range: Range<u64>) -> Gone {
        let pieces = self.within(range.clone());
        let Some((first, _)) = pieces.first() else { return Gone::default() };
        let gone = pieces.iter().fold(Gone::default(), |gone, (_, mapping)| gone.and(Gone::with(mapping)));
        self.window_changes += u64::from(pieces.iter().any(|(_, mapping)| mapping.origin.window.is_some()));
        if let Some((found, mapping)) = self.at(first.start) {
            let mapping = mapping.clone();
            self.take(found.start);
            if found.start < range.start {
                self.put(found.start..range.start, mapping.clone());
            }
            if found.end > range.end {
                self.put(range.end..found.end, mapping.advanced(range.end - found.start));
            }
        }
        for (piece, _) in &pieces[1..] {
            let Some((end, mapping)) = self.take(piece.start) else { continue };
            if end > range.end {
                self.put(range.end..end, mapping.advanced(range.end - piece.start));
            }
        }
        gone
    }

    /// Puts `mapping` at `range`, in place of what is there, which it gives, and joins it with equal neighbours.
    pub fn insert(&mut self, mut range: Range<u64>, mut mapping: Mapping) -> Gone {
        let gone = self.remove(range.clone());
        self.window_changes += u64::from(mapping.origin.window.is_some());
        let joins = |a: &Mapping, b: &Mapping, distance: u64| {
            // Only private anonymous memory and pieces of one file join: two shared anonymous mappings are two objects.
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
        gone
    }

    /// The highest free range of `length` bytes, which is not 0, inside `within`; both are multiples of the page. Takes no longer
    /// with many mappings, but for gaps that are a little too short.
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
            wiped_in_children: false,
            left_out_of_children: false,
        }
    }

    proptest! {
        /// The map agrees with an array that has one entry a page.
        #[test]
        fn inserting_and_removing_ranges_is_what_an_array_of_pages_does(
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
                for (page, wanted) in pages.iter().enumerate() {
                    let page = page as u64;
                    let found = map.within(page..page + 1).pop().map(|(_, found)| found);
                    prop_assert_eq!(&found, wanted);
                }
                let ranges: Vec<_> = map.iter().map(|(range, _)| range).collect();
                prop_assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start));
                for wanted in 1..8 {
                    let free = |at: u64| (at..at + wanted).all(|page| pages[page as usize].is_none());
                    for (from, to) in [(0, 96), (7, 90), (20, 40)] {
                        let highest = (from..=to - wanted).rev().find(|&at| free(at));
                        prop_assert_eq!(map.find_free_below(wanted, from..to), highest);
                    }
                }
            }
        }
    }

    #[test]
    fn a_place_is_found_at_once_among_very_many_mappings() {
        const MANY: u64 = 200_000;
        let mut map = Mappings::default();
        // No two join, and between each two a page is free.
        for n in 0..MANY {
            map.insert(3 * n..3 * n + 2, mapping(n % 2 == 0, false, 0));
        }
        for n in 0..MANY {
            // By a look at every mapping this would take hours.
            assert_eq!(map.find_free_below(2, 0..3 * MANY), None);
            assert_eq!(map.find_free_below(2, 0..3 * MANY + 2), Some(3 * MANY));
            assert_eq!(map.find_free_below(1, 0..3 * n + 2), n.checked_sub(1).map(|n| 3 * n + 2));
        }
    }
}
