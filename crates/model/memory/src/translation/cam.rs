//! The CAM table of a core: a content-addressable memory that software writes by index and searches by key.
//!
//! Source: Su et al., Optimization of memory and network subsystems in multi-core processors for cloud computing, 2012;
//! LoongISA's lookup instructions search and write by index in the same way.

use longma_topology::parts::Cam as CamPart;
use longma_topology::units::{Frequency, Latency};

/// An entry of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CamEntry {
    /// The key. A search compares its key with this one.
    pub key: u64,
    /// Key bits that are compared.
    pub mask: u64,
    /// The value that a search returns.
    pub value: u64,
    /// Address space of the entry.
    pub tag: u32,
}

/// The result of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CamHit {
    /// Index of the entry; the lowest if several match.
    pub index: u32,
    /// Value of the entry.
    pub value: u64,
}

/// An invalid entry or index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CamError {
    /// The index is out of range.
    #[error("the CAM has no entry {index}: it has entries 0 to {last}")]
    NoEntry {
        /// The requested index.
        index: u32,
        /// Index of the last entry.
        last: u32,
    },
    /// A value does not fit into its field.
    #[error("{field} {given:#x} does not fit into the CAM's {bits} bits")]
    TooWide {
        /// Name of the field.
        field: &'static str,
        /// The value.
        given: u64,
        /// Width of the field.
        bits: u32,
    },
}

/// The CAM table of one core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cam {
    entries: Vec<Option<CamEntry>>,
    key_bits: u32,
    value_bits: u32,
    tag_bits: u32,
    search_ps: u64,
    write_ps: u64,
}

impl Cam {
    /// Creates an empty table described by `part`, in a core with `clock`. Keys and values have at most 64 bits, tags
    /// 32.
    pub fn new(part: &CamPart, clock: Frequency) -> Self {
        let bits = |width: longma_topology::units::Width, max: u32| width.bits().min(max.into()) as u32;
        let ps = |latency: Latency| latency.ps(clock);
        Self {
            entries: vec![None; part.entries.max(1) as usize],
            key_bits: bits(part.key, 64),
            value_bits: bits(part.value, 64),
            tag_bits: bits(part.tag, 32),
            search_ps: ps(part.search),
            write_ps: ps(part.write),
        }
    }

    /// Writes entry `index`.
    ///
    /// # Errors
    /// If there is no such entry, or if a field is too wide.
    pub fn write(&mut self, index: u32, entry: CamEntry) -> Result<(), CamError> {
        let fields = [
            ("key", entry.key, self.key_bits),
            ("mask", entry.mask, self.key_bits),
            ("value", entry.value, self.value_bits),
            ("tag", entry.tag.into(), self.tag_bits),
        ];
        let wide = |field: &&(&str, u64, u32)| field.2 < 64 && field.1 >> field.2 != 0;
        if let Some(&(field, value, bits)) = fields.iter().find(wide) {
            return Err(CamError::TooWide { field, given: value, bits });
        }
        *self.entry_mut(index)? = Some(entry);
        Ok(())
    }

    /// Clears entry `index`.
    ///
    /// # Errors
    /// If there is no such entry.
    pub fn clear(&mut self, index: u32) -> Result<(), CamError> {
        *self.entry_mut(index)? = None;
        Ok(())
    }

    /// Finds the first entry of address space `tag` that matches `key` in all bits of its mask.
    pub fn search(&self, key: u64, tag: u32) -> Option<CamHit> {
        let hit = |e: &CamEntry| e.tag == tag && (e.key ^ key) & e.mask == 0;
        let index = self.entries.iter().position(|e| e.as_ref().is_some_and(hit))?;
        let value = self.entries[index].map(|e| e.value)?;
        Some(CamHit { index: index as u32, value })
    }

    /// All entries, to save and restore them when a process moves to another core.
    pub fn entries(&self) -> &[Option<CamEntry>] {
        &self.entries
    }

    /// Latency of a search, picoseconds. One search can begin each cycle.
    pub const fn search_ps(&self) -> u64 {
        self.search_ps
    }

    /// Latency of a write, picoseconds.
    pub const fn write_ps(&self) -> u64 {
        self.write_ps
    }

    fn entry_mut(&mut self, index: u32) -> Result<&mut Option<CamEntry>, CamError> {
        let last = self.entries.len() as u32 - 1;
        self.entries.get_mut(index as usize).ok_or(CamError::NoEntry { index, last })
    }
}
