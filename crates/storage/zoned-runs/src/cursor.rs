//! Cursors over the write buffer and over runs, in both directions, and their merge, which returns the newest version
//! of each key.

use crate::block::DataBlock;
use crate::error::Result;
use crate::io::Io;
use crate::memtable::{Content, MemTable};
use crate::table::{Table, TableIndex};
use crate::version::{Piece, Run, Version};
use longma_zoned_device::{AlignedBuffer, ZonedDevice};
use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;

/// Records copied from the write buffer at a time.
const CHUNK: usize = 128;
/// Pages that a merge reads at once. A scan reads as many at once after its first blocks.
const READ_PAGES: u32 = 32;

/// The start of a cursor: the smallest key that satisfies the bound, or the greatest for a descending cursor.
pub type Start<'a> = Bound<&'a [u8]>;

/// A cursor over the write buffer, with the state after a given batch.
struct MemoryCursor {
    memory: Arc<MemTable>,
    batch: u64,
    chunk: VecDeque<(Box<[u8]>, Content)>,
}

impl MemoryCursor {
    fn new(memory: Arc<MemTable>, batch: u64, ascending: bool, start: Start<'_>) -> Self {
        let mut cursor = Self { memory, batch, chunk: VecDeque::new() };
        cursor.fill(ascending, start);
        cursor
    }

    fn fill(&mut self, ascending: bool, start: Start<'_>) {
        let range = if ascending { (start, Bound::Unbounded) } else { (Bound::Unbounded, start) };
        self.chunk = self.memory.some(range, self.batch, CHUNK, ascending).into();
    }

    fn advance(&mut self, ascending: bool) {
        if let Some((key, _)) = self.chunk.pop_front()
            && self.chunk.is_empty()
        {
            self.fill(ascending, Bound::Excluded(&key));
        }
    }
}

/// A cursor over a run. It releases each table that it has passed.
struct RunCursor {
    pieces: VecDeque<Piece>,
    index: Option<Arc<TableIndex>>,
    number: usize,
    block: Option<Arc<DataBlock>>,
    at: usize,
    key: Vec<u8>,
    /// Pages read ahead, and the first of them.
    ahead: Option<(u32, AlignedBuffer)>,
    read_pages: u32,
}

impl RunCursor {
    fn new<D: ZonedDevice>(
        io: &Io<D>,
        run: &Run,
        ascending: bool,
        start: Start<'_>,
        read_pages: u32,
    ) -> Result<Self> {
        let mut cursor = Self {
            pieces: run.pieces.iter().cloned().collect(),
            index: None,
            number: 0,
            block: None,
            at: 0,
            key: Vec::new(),
            ahead: None,
            read_pages,
        };
        if ascending {
            cursor.seek(io, start)?;
        } else {
            cursor.seek_down(io, start)?;
        }
        Ok(cursor)
    }

    fn seek<D: ZonedDevice>(&mut self, io: &Io<D>, start: Start<'_>) -> Result<()> {
        let is_before = |piece: &Piece| match start {
            Bound::Unbounded => false,
            Bound::Included(key) => *piece.table.last < *key,
            Bound::Excluded(key) => *piece.table.last <= *key,
        };
        while self.pieces.front().is_some_and(is_before) {
            self.pieces.pop_front();
        }
        self.enter(io, start)
    }

    /// Moves to the first record of the first table that satisfies `start` and is not below the table's lower bound.
    fn enter<D: ZonedDevice>(&mut self, io: &Io<D>, start: Start<'_>) -> Result<()> {
        let Some(piece) = self.pieces.front().cloned() else {
            self.end();
            return Ok(());
        };
        let start = match start {
            Bound::Included(key) | Bound::Excluded(key) if *key >= *piece.low => start,
            _ => Bound::Included(&*piece.low),
        };
        let index = io.index(&piece.table)?;
        let key = match start {
            Bound::Included(key) | Bound::Excluded(key) => key,
            Bound::Unbounded => &[],
        };
        self.number = index.block_of(key);
        self.index = Some(index);
        self.load(io, &piece.table, true)?;
        let Some(block) = &self.block else { return Ok(()) };
        self.at = match (block.find(key), start) {
            (Ok(at), Bound::Excluded(_)) => at + 1,
            (Ok(at), _) | (Err(at), _) => at,
        };
        self.settle(io)
    }

    /// Loads the following block, or enters the following table, if the position is beyond the block.
    fn settle<D: ZonedDevice>(&mut self, io: &Io<D>) -> Result<()> {
        while let (Some(block), Some(index)) = (&self.block, &self.index) {
            if self.at < block.len() {
                block.key_to(self.at, &mut self.key);
                return Ok(());
            }
            if self.number + 1 < index.len() {
                self.number += 1;
                self.at = 0;
                let Some(table) = self.pieces.front().map(|piece| Arc::clone(&piece.table)) else { break };
                self.load(io, &table, true)?;
                continue;
            }
            self.pieces.pop_front();
            self.ahead = None;
            return self.enter(io, Bound::Unbounded);
        }
        Ok(())
    }

    fn seek_down<D: ZonedDevice>(&mut self, io: &Io<D>, start: Start<'_>) -> Result<()> {
        let is_after = |piece: &Piece| match start {
            Bound::Unbounded => false,
            Bound::Included(key) => *piece.table.first > *key || *piece.low > *key,
            Bound::Excluded(key) => *piece.table.first >= *key || *piece.low >= *key,
        };
        while self.pieces.back().is_some_and(is_after) {
            self.pieces.pop_back();
        }
        self.enter_down(io, start)
    }

    fn enter_down<D: ZonedDevice>(&mut self, io: &Io<D>, start: Start<'_>) -> Result<()> {
        let Some(piece) = self.pieces.back().cloned() else {
            self.end();
            return Ok(());
        };
        let index = io.index(&piece.table)?;
        self.number = match start {
            Bound::Included(key) | Bound::Excluded(key) => index.block_of(key),
            Bound::Unbounded => index.len() - 1,
        };
        self.index = Some(index);
        self.load(io, &piece.table, false)?;
        let Some(block) = &self.block else { return Ok(()) };
        // The number of the block's records up to the bound. 0 means a position before the block.
        let after = match start {
            Bound::Unbounded => block.len(),
            Bound::Included(key) => block.find(key).map_or_else(|at| at, |at| at + 1),
            Bound::Excluded(key) => block.find(key).unwrap_or_else(|at| at),
        };
        self.settle_down(io, after)
    }

    /// Moves to the record before `after`. If the block has none, moves to the last record of the preceding block or
    /// table.
    fn settle_down<D: ZonedDevice>(&mut self, io: &Io<D>, mut after: usize) -> Result<()> {
        while let (Some(block), Some(piece)) = (self.block.clone(), self.pieces.back().cloned()) {
            if after > 0 {
                self.at = after - 1;
                block.key_to(self.at, &mut self.key);
                if *self.key >= *piece.low {
                    return Ok(());
                }
            } else if self.number > 0 {
                self.number -= 1;
                self.load(io, &piece.table, false)?;
                after = self.block.as_ref().map_or(0, |block| block.len());
                continue;
            }
            self.pieces.pop_back();
            self.ahead = None;
            return self.enter_down(io, Bound::Unbounded);
        }
        Ok(())
    }

    fn end(&mut self) {
        (self.block, self.index) = (None, None);
    }

    /// Loads block `number` from the cache, from the pages read ahead, or from the device, reading further pages ahead.
    fn load<D: ZonedDevice>(&mut self, io: &Io<D>, table: &Table, ascending: bool) -> Result<()> {
        let Some(index) = &self.index else { return Ok(()) };
        let (page, pages) = index.pages_of(self.number);
        let is_ahead = self.ahead.as_ref().is_some_and(|(first, buffer)| {
            page >= *first && (page - first + pages) as usize * io.page_bytes <= buffer.len()
        });
        if !is_ahead {
            if self.read_pages == 1 {
                self.read_pages = 4;
                self.block = Some(io.block(table, page, pages)?);
                return Ok(());
            }
            let (first, end) = if ascending {
                (page, (page + self.read_pages.max(pages)).min(table.pages))
            } else {
                let end = page + pages;
                (end.saturating_sub(self.read_pages.max(pages)), end)
            };
            self.read_pages = (2 * self.read_pages).min(READ_PAGES);
            let buffer = io.read(io.address(table, first).block, (end - first) as usize)?;
            self.ahead = Some((first, buffer));
        }
        let Some((first, buffer)) = &self.ahead else { return Ok(()) };
        let start = (page - first) as usize * io.page_bytes;
        let bytes = &buffer[start..start + pages as usize * io.page_bytes];
        self.block = Some(Arc::new(io.decode(&io.address(table, page), bytes)?));
        Ok(())
    }
}

enum Source {
    Memory(MemoryCursor),
    Run(Box<RunCursor>),
}

impl Source {
    fn key(&self) -> Option<&[u8]> {
        match self {
            Self::Memory(cursor) => cursor.chunk.front().map(|(key, _)| &**key),
            Self::Run(cursor) => cursor.block.as_ref().map(|_| &cursor.key[..]),
        }
    }

    fn value(&self) -> Option<&[u8]> {
        match self {
            Self::Memory(cursor) => cursor.chunk.front().and_then(|(_, content)| content.as_deref()),
            Self::Run(cursor) => cursor.block.as_ref().and_then(|block| block.value(cursor.at)),
        }
    }

    fn advance<D: ZonedDevice>(&mut self, io: &Io<D>, ascending: bool) -> Result<()> {
        match self {
            Self::Memory(cursor) => cursor.advance(ascending),
            Self::Run(cursor) if ascending => {
                cursor.at += 1;
                cursor.settle(io)?;
            }
            Self::Run(cursor) => {
                let after = cursor.at;
                cursor.settle_down(io, after)?;
            }
        }
        Ok(())
    }
}

/// The merge of several cursors.
pub struct MergeCursor {
    /// The newest first.
    sources: Vec<Source>,
    ascending: bool,
    /// The sources at the current key. The first source has the newest version of the key.
    current: Vec<usize>,
}

impl MergeCursor {
    /// Merges runs, the newest first, from their beginnings.
    pub fn of_runs<D: ZonedDevice>(io: &Io<D>, runs: &[Arc<Run>]) -> Result<Self> {
        let source = |run: &Arc<Run>| {
            RunCursor::new(io, run, true, Bound::Unbounded, READ_PAGES)
                .map(|cursor| Source::Run(Box::new(cursor)))
        };
        Ok(Self::new(runs.iter().map(source).collect::<Result<_>>()?, true))
    }

    /// Merges all records of a version as of batch `batch`.
    pub fn of_version<D: ZonedDevice>(
        io: &Io<D>,
        version: &Version,
        batch: u64,
        ascending: bool,
        start: Start<'_>,
    ) -> Result<Self> {
        let mut sources = Vec::new();
        for memory in std::iter::once(&version.memory).chain(&version.frozen) {
            sources.push(Source::Memory(MemoryCursor::new(Arc::clone(memory), batch, ascending, start)));
        }
        for run in &version.runs {
            sources.push(Source::Run(Box::new(RunCursor::new(io, run, ascending, start, 1)?)));
        }
        Ok(Self::new(sources, ascending))
    }

    fn new(sources: Vec<Source>, ascending: bool) -> Self {
        let mut cursor = Self { sources, ascending, current: Vec::new() };
        cursor.choose();
        cursor
    }

    fn choose(&mut self) {
        self.current.clear();
        let mut best: Option<&[u8]> = None;
        for (number, source) in self.sources.iter().enumerate() {
            let Some(key) = source.key() else { continue };
            let order = best.map_or(std::cmp::Ordering::Less, |best| key.cmp(best));
            let order = if best.is_some() && !self.ascending { order.reverse() } else { order };
            match order {
                std::cmp::Ordering::Less => {
                    best = Some(key);
                    self.current.clear();
                    self.current.push(number);
                }
                std::cmp::Ordering::Equal => self.current.push(number),
                std::cmp::Ordering::Greater => {}
            }
        }
    }

    /// The current key and its newest version: a value, or `None` for a deletion.
    pub fn current(&self) -> Option<(&[u8], Option<&[u8]>)> {
        let source = &self.sources[*self.current.first()?];
        source.key().map(|key| (key, source.value()))
    }

    /// Advances to the next key.
    pub fn advance<D: ZonedDevice>(&mut self, io: &Io<D>) -> Result<()> {
        for &number in &self.current {
            self.sources[number].advance(io, self.ascending)?;
        }
        self.choose();
        Ok(())
    }
}
