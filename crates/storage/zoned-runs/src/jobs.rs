//! The flush and the merges in progress.

use crate::build::RunWriter;
use crate::cursor::MergeCursor;
use crate::io::Traffic;
use crate::memtable::MemTable;
use std::sync::Arc;

/// A write buffer that is being written to a run.
pub struct FlushJob {
    pub memory: Arc<MemTable>,
    pub after: Option<Box<[u8]>>,
    pub writer: RunWriter,
    /// The first batch that the buffer does not hold.
    pub next_batch: u64,
    pub records: u64,
    pub sample: Vec<Box<[u8]>>,
}

impl FlushJob {
    pub const fn new(memory: Arc<MemTable>, next_batch: u64) -> Self {
        let writer = RunWriter::new(Traffic::Flush, 0);
        Self { memory, after: None, writer, next_batch, records: 0, sample: Vec::new() }
    }
}

/// A merge of several runs into one.
pub struct MergeJob {
    pub output: u64,
    pub tier: u8,
    pub cursor: MergeCursor,
    pub writer: RunWriter,
    /// Whether there is no older run, so that the output needs no deletions.
    pub drops_deletions: bool,
    pub records: u64,
    pub sample: Vec<Box<[u8]>>,
    pub is_full: bool,
}
