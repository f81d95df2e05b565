//! The CAM table of a core: software writes entries and searches them by key.
//! Not a TLB: nothing fills it but software, and software says which entry it replaces.
//! Source: Su et al., Optimization of memory and network subsystems in multi-core processors for cloud computing, 2012;
//! LoongISA's look-up instructions search and write by index in the same way.

use longma_topology::parts::Cam as CamPart;
use longma_topology::units::{Frequency, Latency};

/// An entry of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CamEntry {
    /// What a search is compared with.
    pub key: u64,
    /// Ones where the key's bits count.
    pub mask: u64,
    /// What a search brings.
    pub value: u64,
    /// The address space that the entry belongs to.
    pub tag: u32,
}

/// What a search found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CamHit {
    /// The entry's number; the lowest if several match.
    pub index: u32,
    /// Its value.
    pub value: u64,
}

/// A wrong entry or number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CamError {
    /// There is no such entry.
    #[error("the CAM has no entry {index}: it has entries 0 to {last}")]
    NoEntry {
        /// The number asked for.
        index: u32,
        /// The last entry's number.
        last: u32,
    },
    /// A field is wider than the table.
    #[error("{field} {given:#x} does not fit into the CAM's {bits} bits")]
    TooWide {
        /// Which field.
        field: &'static str,
        /// What was given.
        given: u64,
        /// The field's width.
        bits: u32,
    },
}

/// One core's table.
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
    /// An empty table as `part` says, in a core of `clock`. Keys and values have at most 64 bits, tags 32.
    pub fn new(part: &CamPart, clock: Frequency) -> Self {
        let bits = |width: longma_topology::units::Width, most: u32| width.bits().min(most.into()) as u32;
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

    /// Writes entry `index`, over whatever is there.
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
        if let Some(&(field, given, bits)) = fields.iter().find(wide) {
            return Err(CamError::TooWide { field, given, bits });
        }
        *self.entry_mut(index)? = Some(entry);
        Ok(())
    }

    /// Empties entry `index`.
    ///
    /// # Errors
    /// If there is no such entry.
    pub fn clear(&mut self, index: u32) -> Result<(), CamError> {
        *self.entry_mut(index)? = None;
        Ok(())
    }

    /// The first entry of address space `tag` whose key is `key` wherever its mask has ones.
    pub fn search(&self, key: u64, tag: u32) -> Option<CamHit> {
        let hit = |e: &CamEntry| e.tag == tag && (e.key ^ key) & e.mask == 0;
        let index = self.entries.iter().position(|e| e.as_ref().is_some_and(hit))?;
        let value = self.entries[index].map(|e| e.value)?;
        Some(CamHit { index: index as u32, value })
    }

    /// Every entry, as when a process moves to another core.
    pub fn entries(&self) -> &[Option<CamEntry>] {
        &self.entries
    }

    /// How long a search takes, picoseconds; one can begin each cycle.
    pub const fn search_ps(&self) -> u64 {
        self.search_ps
    }

    /// How long writing an entry takes, picoseconds.
    pub const fn write_ps(&self) -> u64 {
        self.write_ps
    }

    fn entry_mut(&mut self, index: u32) -> Result<&mut Option<CamEntry>, CamError> {
        let last = self.entries.len() as u32 - 1;
        self.entries.get_mut(index as usize).ok_or(CamError::NoEntry { index, last })
    }
}
