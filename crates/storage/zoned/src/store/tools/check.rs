//! Offline check: reads every node and every large value, and compares the blocks in use with the space table. Changes
//! that are only in the journal are counted but not applied.

use crate::device::ZonedDevice;
use crate::error::{Error, Result};
use crate::node::{InnerRecord, Page, Pointer, Value};
use crate::states::NodeStates;
use crate::store::Store;
use crate::store::io::Io;
use crate::store::journal::replay::replay;
use crate::store::open::empty_space;
use crate::store::space::allocation::Space;
use crate::store::superblock::{SpaceTable, Superblock, ZoneEntry};
use serde::Serialize;

/// A problem found by a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The block concerned, if there is a single one.
    pub block: Option<u64>,
    /// A description of the problem.
    pub what: String,
}

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CheckReport {
    /// Keys in the last checkpoint.
    pub keys: u64,
    /// Leaves.
    pub leaves: u64,
    /// Logs of leaves.
    pub logs: u64,
    /// Heads and interior nodes.
    pub inner_nodes: u64,
    /// Leaves and interior nodes by state. Nodes in sequential zones are counted as steady.
    pub states: NodeStates,
    /// Large values.
    pub extents: u64,
    /// Batches in the journal since the last checkpoint.
    pub journal_batches: u64,
    /// Changes in these batches.
    pub journal_changes: u64,
    /// The problems found. Empty if the map is consistent.
    pub problems: Vec<Problem>,
}

/// The range of keys that the subtree of a node may contain: from `low` (inclusive) to `high` (exclusive).
#[derive(Clone, Copy)]
pub(crate) struct Bounds<'a> {
    pub low: &'a [u8],
    pub high: Option<&'a [u8]>,
}

impl Bounds<'_> {
    pub fn hold(&self, key: &[u8]) -> bool {
        key >= self.low && self.high.is_none_or(|high| key < high)
    }
}

struct Checker<'a, D> {
    io: &'a Io<D>,
    space: Space,
    report: CheckReport,
}

impl<D: ZonedDevice> Store<D> {
    /// Checks the map on a device without writing to it. The map must not be open.
    ///
    /// # Errors
    /// [`Error::NotFormatted`], [`Error::Unsuitable`]; [`Error::Device`] if the device does not respond. Problems of
    /// the map itself are in the report.
    pub fn check(device: D) -> Result<CheckReport> {
        let superblock = Superblock::read(&device)?;
        let io = Io::new(device, superblock.node_bytes as usize);
        run(&io, &superblock)
    }

    /// Writes a checkpoint and then checks it like [`Store::check`]. Writers wait until the check is done.
    ///
    /// # Errors
    /// Those of [`Store::checkpoint`].
    pub fn check_now(&self) -> Result<CheckReport> {
        let mut writer = self.writer.lock();
        writer.checkpoint_now(&self.shared)?;
        run(&self.shared.io, &writer.superblock)
    }
}

fn run<D: ZonedDevice>(io: &Io<D>, superblock: &Superblock) -> Result<CheckReport> {
    let mut checker = Checker { io, space: empty_space(io)?, report: CheckReport::default() };
    if superblock.root != 0 {
        let (root, checksum) = (superblock.root, superblock.root_checksum);
        checker.inner((root, checksum), None, Bounds { low: &[], high: None });
    }
    if checker.report.keys != superblock.len {
        let (keys, len) = (checker.report.keys, superblock.len);
        checker.report_problem(None, format!("the tree has {keys} keys, but the superblock records {len}"));
    }
    checker.table(superblock);
    checker.journal(superblock)?;
    Ok(checker.report)
}

impl<D: ZonedDevice> Checker<'_, D> {
    fn report_problem(&mut self, block: impl Into<Option<u64>>, what: impl Into<String>) {
        self.report.problems.push(Problem { block: block.into(), what: what.into() });
    }

    /// Marks a node as in use. Reports a problem and returns false if the block is not a valid place for a node or is
    /// already in use.
    fn claim(&mut self, block: u64) -> bool {
        let free = self.space.claim_node(block);
        if !free {
            self.report_problem(block, "a node is at an invalid address, or at that of another node");
        }
        free
    }

    /// Unwraps a result, or records its error as a problem.
    fn ok_or_report<T>(&mut self, block: u64, result: Result<T>) -> Option<T> {
        result
            .map_err(|error| match error {
                Error::Damaged { what, .. } => self.report_problem(block, what),
                error => self.report_problem(block, error.to_string()),
            })
            .ok()
    }

    fn inner(&mut self, (block, checksum): (u64, u32), level: Option<u16>, bounds: Bounds<'_>) {
        if !self.claim(block) {
            return;
        }
        let read = self.io.read_inner(block, checksum);
        let Some(InnerRecord { level: own, entries }) = self.ok_or_report(block, read) else { return };
        self.report.inner_nodes += 1;
        // Odd levels are heads, which have no states.
        if own.is_multiple_of(2) {
            *match self.space.zone_index(block) {
                Some(_) => &mut self.report.states.steady_cold,
                None => &mut self.report.states.change_interiors,
            } += 1;
        } else {
            self.report.states.heads += 1;
        }
        if level.is_some_and(|level| level != own) {
            self.report_problem(block, format!("its level is {own}, which does not match its parent"));
            return;
        }
        for (index, (key, pointer)) in entries.iter().enumerate() {
            let low = if index == 0 { bounds.low } else { &key[..] };
            let high = entries.get(index + 1).map(|next| &next.0[..]).or(bounds.high);
            if !bounds.hold(low) || high.is_some_and(|high| high <= low) {
                self.report_problem(block, format!("its entry {} is out of its bounds", index + 1));
            }
            let below = Bounds { low, high };
            match own {
                1 => self.leaf(*pointer, below),
                _ => self.inner((pointer.home, pointer.checksum), Some(own - 1), below),
            }
        }
    }

    fn leaf(&mut self, Pointer { home: block, log, checksum }: Pointer, bounds: Bounds<'_>) {
        let is_free = self.claim(block);
        let (mut logged, mut leaf_checksum) = (None, checksum);
        if let Some(at) = log {
            let read = self.io.read_log(at, checksum);
            let Some((log, base)) = self.claim(at).then(|| self.ok_or_report(at, read)).flatten() else {
                return;
            };
            self.report.logs += 1;
            (logged, leaf_checksum) = (Some((at, log)), base);
        }
        if !is_free {
            return;
        }
        let read = self.io.read_page(block, leaf_checksum);
        let Some(mut leaf) = self.ok_or_report(block, read) else { return };
        self.report.leaves += 1;
        let mut deleted = false;
        if let Some((at, log)) = logged {
            if (0..log.count()).any(|index| leaf.find(log.key(index)).is_err()) {
                self.report_problem(at, "a log has a record that is missing in its leaf");
            }
            deleted = (0..log.count()).any(|index| log.value(index) == Value::Deleted);
            let merged = crate::store::tree::leaf::merged(&leaf, &log, false);
            let Some(whole) = self.ok_or_report(at, merged) else { return };
            leaf = whole;
        }
        *match (self.space.zone_index(block), deleted) {
            (None, _) => &mut self.report.states.change_leaves,
            (Some(_), false) => &mut self.report.states.steady_hot,
            (Some(_), true) => &mut self.report.states.after_leaves,
        } += 1;
        self.records(block, &leaf, bounds);
    }

    fn records(&mut self, block: u64, leaf: &Page, bounds: Bounds<'_>) {
        self.report.keys += leaf.count() as u64;
        for index in 0..leaf.count() {
            let key = leaf.key(index);
            if !bounds.hold(key) {
                self.report_problem(block, format!("its record {} is out of its bounds", index + 1));
            }
            match leaf.value(index) {
                Value::Inline(_) => {}
                Value::Deleted => self.report_problem(
                    block,
                    format!("its record {} is a deletion, which is valid only in a log", index + 1),
                ),
                Value::Extent(extent) => {
                    let read = self.io.read_extent(key, extent);
                    if self.ok_or_report(extent.block, read).is_some() {
                        self.report.extents += 1;
                    }
                    let blocks = self.io.extent_blocks(key, extent.bytes);
                    if !self.space.claim_extent(extent.block, blocks) {
                        self.report_problem(extent.block, "a large value is at an invalid address");
                    }
                }
            }
        }
    }

    /// Compares the blocks in use with the space table.
    fn table(&mut self, superblock: &Superblock) {
        let read = SpaceTable::read(self.io, superblock);
        let Some(table) = self.ok_or_report(0, read) else { return };
        let mut problems = Vec::new();
        for (zone, &ZoneEntry { nodes, extents, .. }) in self.space.zones.iter().zip(&table.zones) {
            if (zone.live_nodes, zone.live_extents) != (nodes.into(), extents.into()) {
                problems.push(format!(
                    "{}: {} blocks of nodes and {} of large values are in use, but the space table records {nodes} and {extents}",
                    zone.number, zone.live_nodes, zone.live_extents
                ));
            }
        }
        let bits = self.space.slot_bits();
        let says = |word: usize| table.slots.get(word).copied().unwrap_or(0);
        let count = |bits: u64| u64::from(bits.count_ones());
        let lost: u64 = (0..bits.len()).map(|word| count(says(word) & !bits[word])).sum();
        let unknown: u64 = (0..bits.len()).map(|word| count(bits[word] & !says(word))).sum();
        if lost + unknown > 0 {
            problems.push(format!(
                "{unknown} conventional slots in use are free in the space table, and {lost} free ones are in use there"
            ));
        }
        for what in problems {
            self.report_problem(None, what);
        }
    }

    fn journal(&mut self, superblock: &Superblock) -> Result<()> {
        let mut replay = replay(self.io, &self.space, superblock)?;
        let (_, unreadable) = replay.settle(self.io, &self.space);
        self.report.journal_batches = replay.records.len() as u64;
        self.report.journal_changes = replay.records.iter().map(|record| record.batch.len() as u64).sum();
        if let Some(Error::Damaged { block, what }) = replay.newer_checkpoint(superblock) {
            self.report_problem(block.0, what);
        }
        for lost in &replay.lost {
            self.report_problem(
                lost.block,
                format!("the journal is damaged, which loses {lost}: {}", lost.what),
            );
        }
        for (key, extent) in unreadable {
            let read = self.io.read_extent(&key, extent);
            self.ok_or_report(extent.block, read);
        }
        Ok(())
    }
}
