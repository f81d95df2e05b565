//! The sorted runs of a map at one moment, and look-ups in them.

use crate::error::Result;
use crate::filter;
use crate::io::Io;
use crate::memtable::MemTable;
use crate::table::Table;
use longma_zoned_device::ZonedDevice;
use std::sync::Arc;

/// A table of a run. Keys below `low` no longer belong to it, because an incomplete merge has moved them.
#[derive(Clone, Debug)]
pub struct Piece {
    pub table: Arc<Table>,
    pub low: Box<[u8]>,
}

/// A sorted run: tables with ascending keys that do not overlap.
#[derive(Clone, Debug)]
pub struct Run {
    pub id: u64,
    /// The tier: a run of tier n + 1 was merged from runs of tier n.
    pub tier: u8,
    /// Whether a merge is still adding tables to it.
    pub is_open: bool,
    /// The run into which a merge is moving this one, or 0.
    pub merging_into: u64,
    /// The approximate number of its records whose key is also in an older run.
    pub shadowing: u64,
    pub pieces: Vec<Piece>,
}

impl Run {
    /// The piece that may hold `key`.
    pub fn piece(&self, key: &[u8]) -> Option<&Piece> {
        let after = self.pieces.partition_point(|piece| &*piece.table.first <= key);
        let piece = &self.pieces[after.checked_sub(1)?];
        (*key <= *piece.table.last && *key >= *piece.low).then_some(piece)
    }

    pub fn records(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.table.records).sum()
    }

    pub fn tombstones(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.table.tombstones).sum()
    }

    pub fn pages(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.table.all_pages()).sum()
    }

    /// Removes all keys up to `last`, which a merge has moved.
    pub fn cut(&mut self, last: &[u8]) {
        self.pieces.retain(|piece| &*piece.table.last > last);
        if let Some(piece) = self.pieces.first_mut()
            && &*piece.table.first <= last
        {
            let mut low = last.to_vec();
            low.push(0);
            piece.low = low.into();
        }
    }
}

/// The data structures that a look-up searches.
#[derive(Clone)]
pub struct Version {
    /// The write buffer.
    pub memory: Arc<MemTable>,
    /// The full write buffer that is being flushed, if any.
    pub frozen: Option<Arc<MemTable>>,
    /// The newest first.
    pub runs: Vec<Arc<Run>>,
}

impl Version {
    /// Calls `look` with the value of `key` as of batch `batch`, `None` if the map does not have it.
    pub fn get<D: ZonedDevice, R>(
        &self,
        io: &Io<D>,
        key: &[u8],
        batch: u64,
        look: impl Fn(Option<&[u8]>) -> R,
    ) -> Result<R> {
        for memory in std::iter::once(&self.memory).chain(&self.frozen) {
            if let Some(result) = memory.get(key, batch, &look) {
                return Ok(result);
            }
        }
        let hash = filter::hash(key);
        for piece in self.runs.iter().filter_map(|run| run.piece(key)) {
            let index = io.index(&piece.table)?;
            if !index.may_contain(hash) {
                continue;
            }
            let (page, pages) = index.pages_of(index.block_of(key));
            let block = io.block(&piece.table, page, pages)?;
            if let Ok(at) = block.find(key) {
                return Ok(look(block.value(at)));
            }
        }
        Ok(look(None))
    }
}

/// Whether a filter of one of `runs` passes `key`.
pub fn passes<D: ZonedDevice>(io: &Io<D>, runs: &[Arc<Run>], key: &[u8]) -> Result<bool> {
    let hash = filter::hash(key);
    for piece in runs.iter().filter_map(|run| run.piece(key)) {
        if io.index(&piece.table)?.may_contain(hash) {
            return Ok(true);
        }
    }
    Ok(false)
}
