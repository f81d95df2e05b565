//! The ordered map of a guest's mappings: what is where, with which permissions, from which file.
//! Not the memory itself: changing this map changes nothing on the host.
//! Source: proc_pid_maps(5).

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

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
}

impl Mapping {
    fn advanced(&self, by: u64) -> Self {
        let offset = if self.origin.is_file { self.offset.wrapping_add(by) } else { 0 };
        Self { offset, ..self.clone() }
    }
}

/// All mappings of a guest, in order and without overlap.
#[derive(Debug, Default)]
pub(super) struct Mappings {
    /// Start -> (end, mapping).
    map: BTreeMap<u64, (u64, Mapping)>,
    /// How often windows of devices have come or gone.
    window_changes: u64,
}

impl Mappings {
    /// The mapping that holds `address`.
    pub fn at(&self, address: u64) -> Option<(Range<u64>, &Mapping)> {
        let (&start, (end, mapping)) = self.map.range(..=address).next_back()?;
        (address < *end).then_some((start..*end, mapping))
    }

    /// How often windows of devices have come or gone.
    pub fn window_changes(&self) -> u64 {
        self.window_changes
    }

    /// All mappings in order.
    pub fn iter(&self) -> impl Iterator<Item = (Range<u64>, &Mapping)> {
        self.map.iter().map(|(&start, (end, mapping))| (start..*end, mapping))
    }

    /// The pieces of mappings inside `range`, in order, cut to it.
    pub fn within(&self, range: Range<u64>) -> Vec<(Range<u64>, Mapping)> {
        let first = self.at(range.start).map_or(range.start, |(found, _)| found.start);
        self.map
            .range(first..range.end)
            .filter(|(_, (end, _))| *end > range.start)
            .map(|(&start, (end, mapping))| {
                let cut = start.max(range.start)..(*end).min(range.end);
                let advanced = mapping.advanced(cut.start - start);
                (cut, advanced)
            })
            .collect()
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

    /// Takes everything in `range` out, cutting mappings that stick out of it; true if something executable went.
    pub fn remove(&mut self, range: Range<u64>) -> bool {
        let pieces = self.within(range.clone());
        let Some((first, _)) = pieces.first() else { return false };
        let executable = pieces.iter().any(|(_, mapping)| mapping.protection.execute);
        self.window_changes += u64::from(pieces.iter().any(|(_, mapping)| mapping.origin.window.is_some()));
        if let Some((found, mapping)) = self.at(first.start) {
            let mapping = mapping.clone();
            self.map.remove(&found.start);
            if found.start < range.start {
                self.map.insert(found.start, (range.start, mapping.clone()));
            }
            if found.end > range.end {
                self.map.insert(range.end, (found.end, mapping.advanced(range.end - found.start)));
            }
        }
        for (piece, _) in &pieces[1..] {
            let Some((end, mapping)) = self.map.remove(&piece.start) else { continue };
            if end > range.end {
                self.map.insert(range.end, (end, mapping.advanced(range.end - piece.start)));
            }
        }
        executable
    }

    /// Puts `mapping` at `range`, in place of what is there, and joins it with equal neighbours; true if something executable went.
    pub fn insert(&mut self, mut range: Range<u64>, mut mapping: Mapping) -> bool {
        let executable = self.remove(range.clone());
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
            self.map.remove(&before.start);
        }
        if let Some((after, found)) = self.at(range.end)
            && joins(&mapping, found, after.start - range.start)
        {
            range.end = after.end;
            self.map.remove(&after.start);
        }
        self.map.insert(range.start, (range.end, mapping));
        executable
    }

    /// The highest free range of `length` bytes inside `within`; both are multiples of the page.
    pub fn find_free_below(&self, length: u64, within: Range<u64>) -> Option<u64> {
        let mut top = within.end;
        for (&start, (end, _)) in self.map.range(..within.end).rev() {
            if *end < top && top - *end >= length {
                break;
            }
            top = top.min(start);
            if top < within.start {
                return None;
            }
        }
        let start = top.checked_sub(length)?;
        (start >= within.start).then_some(start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn mapping(write: bool, file: bool, offset: u64) -> Mapping {
        let origin = Origin { is_file: file, ..Origin::default() };
        let protection = Protection { read: true, write, execute: false };
        Mapping { protection, shared: false, origin: Arc::new(origin), offset }
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
                    let highest = (0..=96 - wanted).rev().find(|&at| free(at));
                    prop_assert_eq!(map.find_free_below(wanted, 0..96), highest);
                }
            }
        }
    }
}
