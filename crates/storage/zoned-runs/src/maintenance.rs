//! Flushes of the write buffer and merges of runs. Both advance in slices, in proportion to the changes: for each
//! changed byte, two bytes are flushed and one and a half are merged in each tier, so that each flush and merge is
//! complete before the next one is due.
//!
//! Source: O'Neil et al., "The Log-Structured Merge-Tree", 1996, section 2 (merges paced by the inserts).

use crate::build::RunWriter;
use crate::cursor::MergeCursor;
use crate::error::Result;
use crate::io::Traffic;
use crate::jobs::MergeJob;
use crate::shared::Shared;
use crate::table::Table;
use crate::version::{Piece, Run, passes};
use crate::writer::Writer;
use longma_zoned_device::ZonedDevice;
use std::ops::Bound;
use std::sync::Arc;

/// Runs of a tier that are merged into one of the next.
const RUNS_OF_A_TIER: usize = 4;
/// Bytes of changes after which a slice of flushing and merging is done.
const SLICE_BYTES: u64 = 16 << 10;
/// Bytes of merged tables after which a merge commits them and frees the merged parts of its inputs. Less for a small
/// write buffer.
const COMMIT_BYTES: u64 = 16 << 20;
/// Minimum size that is charged for a batch, because it takes at least a page of the log.
const MIN_BATCH_BYTES: u64 = 512;
/// One key out of this number is looked up in older runs, to estimate how many records a run makes obsolete.
const SAMPLED: u64 = 64;
/// All runs are merged when this percentage of the records is obsolete.
const MAX_OBSOLETE_PERCENT: u64 = 25;
/// [`MAX_OBSOLETE_PERCENT`] while few zones are free.
const OBSOLETE_PERCENT_IF_SHORT: u64 = 10;
/// [`MAX_OBSOLETE_PERCENT`] while too few zones are free for puts.
const OBSOLETE_PERCENT_IF_FULL: u64 = 2;
/// Bytes that a change flushes and merges if the device is full.
const RECLAIM_BYTES: u64 = 4 << 20;

fn pieces(tables: impl IntoIterator<Item = Arc<Table>>) -> Vec<Piece> {
    tables.into_iter().map(|table| Piece { table, low: Box::default() }).collect()
}

impl Writer {
    /// Does the work that is due for `bytes` bytes of changes.
    pub fn maintain<D: ZonedDevice>(&mut self, shared: &Shared<D>, bytes: u64) -> Result<()> {
        self.credit += bytes.max(MIN_BATCH_BYTES);
        let memory = Arc::clone(&shared.version().memory);
        let sizes = shared.sizes();
        let limit = sizes.flush_bytes();
        let is_full = memory.memory() >= shared.options.write_buffer_bytes / 2
            || memory.payload() >= limit
            || self.log.bytes >= sizes.log_bytes();
        drop(memory);
        if is_full {
            if self.flush.is_some() {
                self.counts.waits += 1;
                self.finish_flush(shared)?;
            }
            self.freeze(shared);
        }
        if self.credit < SLICE_BYTES {
            return Ok(());
        }
        let credit = std::mem::take(&mut self.credit);
        let mut done = self.step_flush(shared, 2 * credit)?;
        let is_short = self.zones.free() < shared.sizes().reserve_zones() + self.zones.usable() / 16;
        let urgency = if is_short { 4 } else { 1 };
        self.plan(shared, if is_short { OBSOLETE_PERCENT_IF_SHORT } else { MAX_OBSOLETE_PERCENT })?;
        for number in (0..self.merges.len()).rev() {
            let runs =
                shared.version().runs.iter().filter(|run| run.tier + 1 == self.merges[number].tier).count();
            let late = (runs / (2 * RUNS_OF_A_TIER)).max(1) as u64;
            let pace = if self.merges[number].is_full { 6 } else { 3 };
            done += self.step_merge(shared, number, credit * pace * late * urgency / 2)?;
        }
        if !self.dead.is_empty() {
            self.release(shared)?;
        }
        self.counts.longest_slice_bytes = self.counts.longest_slice_bytes.max(done);
        Ok(())
    }

    /// Continues the flush by about `budget` bytes. Returns the number of bytes flushed.
    fn step_flush<D: ZonedDevice>(&mut self, shared: &Shared<D>, budget: u64) -> Result<u64> {
        let Some(job) = &mut self.flush else { return Ok(0) };
        let mut done = 0;
        while done < budget {
            let start = job.after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            let some = job.memory.some((start, Bound::Unbounded), u64::MAX, 64, true);
            let Some((last, _)) = some.last() else {
                self.complete_flush(shared)?;
                return Ok(done);
            };
            job.after = Some(last.clone());
            for (key, content) in &some {
                if job.records.is_multiple_of(SAMPLED) {
                    job.sample.push(key.clone());
                }
                job.records += 1;
                done += (key.len() + content.as_ref().map_or(0, |value| value.len())) as u64;
                let record = (&**key, content.as_deref());
                job.writer.add(&shared.io, &mut self.zones, &mut self.next_table, record)?;
            }
        }
        Ok(done)
    }

    /// Completes the flush that is running.
    pub fn finish_flush<D: ZonedDevice>(&mut self, shared: &Shared<D>) -> Result<()> {
        while self.flush.is_some() {
            self.step_flush(shared, u64::MAX)?;
        }
        Ok(())
    }

    fn complete_flush<D: ZonedDevice>(&mut self, shared: &Shared<D>) -> Result<()> {
        let Some(mut job) = self.flush.take() else { return Ok(()) };
        job.writer.end_table(&shared.io, &mut self.zones)?;
        let id = self.next_run;
        self.next_run += 1;
        let pieces = pieces(job.writer.tables.drain(..));
        let runs = shared.version().runs.clone();
        let shadowing = estimate_shadowing(shared, &runs, &job.sample)?;
        Self::install(shared, |version| {
            version.frozen = None;
            if !pieces.is_empty() {
                let run = Run { id, tier: 0, is_open: false, merging_into: 0, shadowing, pieces };
                version.runs.insert(0, Arc::new(run));
            }
        });
        self.first_unflushed = job.next_batch;
        self.counts.flushes += 1;
        self.commit(shared)
    }

    /// Starts the merges that are due. `max_obsolete` is the share of obsolete records, in percent, at which all runs are
    /// merged.
    fn plan<D: ZonedDevice>(&mut self, shared: &Shared<D>, max_obsolete: u64) -> Result<()> {
        let version = shared.version();
        let free = |run: &Arc<Run>| !run.is_open && run.merging_into == 0;
        let records: u64 = version.runs.iter().map(|run| run.records()).sum();
        let obsolete = obsolete_records(&version.runs);
        let is_short = max_obsolete < MAX_OBSOLETE_PERCENT;
        let large = version.runs.iter().map(|run| run.pages()).sum::<u64>() * shared.io.page_bytes as u64;
        if obsolete * 100 > records * max_obsolete && (is_short || large > 4 * shared.sizes().flush_bytes()) {
            self.wants_full_merge = true;
        }
        if self.wants_full_merge && self.merges.is_empty() {
            self.wants_full_merge = false;
            let first = version.runs.iter().position(free).unwrap_or(version.runs.len());
            let tier = version.runs.last().map_or(0, |run| run.tier);
            return self.start_merge(shared, first, version.runs.len(), tier, true);
        }
        if self.wants_full_merge || self.merges.len() >= self.max_merges() {
            return Ok(());
        }
        let top = version.runs.iter().map(|run| run.tier).max().unwrap_or(0);
        for tier in 0..=top {
            let due: Vec<usize> = (0..version.runs.len())
                .filter(|&at| version.runs[at].tier == tier && free(&version.runs[at]))
                .collect();
            let is_merging = self.merges.iter().any(|job| job.tier == tier + 1);
            if let (Some(&first), Some(&last), false) = (due.first(), due.last(), is_merging)
                && due.len() >= RUNS_OF_A_TIER
                && last - first + 1 == due.len()
            {
                return self.start_merge(shared, first, last + 1, tier + 1, false);
            }
        }
        Ok(())
    }

    /// The number of concurrent merges: each needs an active zone, and so do the log and a flush.
    fn max_merges(&self) -> usize {
        let geometry = &self.zones.geometry;
        let limits = [geometry.max_open_zones, geometry.max_active_zones];
        let limit = limits.into_iter().filter(|&limit| limit > 0).min().unwrap_or(8);
        (limit as usize).saturating_sub(3).clamp(1, 5)
    }

    /// Starts to merge the runs at these positions.
    fn start_merge<D: ZonedDevice>(
        &mut self,
        shared: &Shared<D>,
        from: usize,
        to: usize,
        tier: u8,
        is_full: bool,
    ) -> Result<()> {
        if from >= to {
            return Ok(());
        }
        let output = self.next_run;
        self.next_run += 1;
        Self::install(shared, |version| {
            for run in &mut version.runs[from..to] {
                *run = Arc::new(Run { merging_into: output, ..Run::clone(run) });
            }
            let run =
                Run { id: output, tier, is_open: true, merging_into: 0, shadowing: 0, pieces: Vec::new() };
            version.runs.insert(to, Arc::new(run));
        });
        self.resume_merge(shared, output, is_full)
    }

    /// Continues the merge into run `output`, whose inputs are those marked with it.
    pub fn resume_merge<D: ZonedDevice>(
        &mut self,
        shared: &Shared<D>,
        output: u64,
        is_full: bool,
    ) -> Result<()> {
        let runs = shared.version().runs.clone();
        let Some(at) = runs.iter().position(|run| run.id == output) else { return Ok(()) };
        let inputs: Vec<Arc<Run>> = runs.iter().filter(|run| run.merging_into == output).cloned().collect();
        let tier = runs[at].tier;
        self.merges.push(MergeJob {
            output,
            tier,
            cursor: MergeCursor::of_runs(&shared.io, &inputs)?,
            writer: RunWriter::new(Traffic::Merge, tier),
            drops_deletions: at + 1 == runs.len(),
            records: 0,
            sample: Vec::new(),
            is_full,
        });
        Ok(())
    }

    /// Continues a merge by about `budget` bytes. Returns the number of bytes merged.
    fn step_merge<D: ZonedDevice>(&mut self, shared: &Shared<D>, number: usize, budget: u64) -> Result<u64> {
        let mut done = 0;
        while done < budget {
            let job = &mut self.merges[number];
            let Some((key, value)) = job.cursor.current() else {
                self.complete_merge(shared, number)?;
                return Ok(done);
            };
            done += (key.len() + value.map_or(0, <[u8]>::len) + 8) as u64;
            if value.is_some() || !job.drops_deletions {
                if job.records.is_multiple_of(SAMPLED) && !job.drops_deletions {
                    job.sample.push(key.into());
                }
                job.records += 1;
                job.writer.add(&shared.io, &mut self.zones, &mut self.next_table, (key, value))?;
            }
            job.cursor.advance(&shared.io)?;
            if !job.writer.tables.is_empty() && self.is_commit_due(shared, number) {
                let job = &mut self.merges[number];
                let (output, tables) = (job.output, std::mem::take(&mut job.writer.tables));
                self.move_tables(shared, output, tables);
                self.commit(shared)?;
                return Ok(done);
            }
        }
        Ok(done)
    }

    /// Whether a merge has enough complete tables for a commit, or space is short.
    fn is_commit_due<D: ZonedDevice>(&self, shared: &Shared<D>, number: usize) -> bool {
        let pages: u64 = self.merges[number].writer.tables.iter().map(|table| table.all_pages()).sum();
        pages * shared.io.page_bytes as u64 >= COMMIT_BYTES.min(shared.sizes().flush_bytes())
            || self.zones.free() < shared.sizes().reserve_zones()
    }

    /// Adds merged tables to the output run, and takes their keys from the inputs.
    fn move_tables<D: ZonedDevice>(&mut self, shared: &Shared<D>, output: u64, tables: Vec<Arc<Table>>) {
        let Some(last) = tables.last().map(|table| table.last.clone()) else { return };
        let mut gone = Vec::new();
        Self::install(shared, |version| {
            for run in &mut version.runs {
                if run.id == output {
                    let mut changed = Run::clone(run);
                    changed.pieces.extend(pieces(tables));
                    *run = Arc::new(changed);
                    break;
                }
                if run.merging_into == output {
                    let mut changed = Run::clone(run);
                    changed.cut(&last);
                    let kept = changed.pieces.len();
                    let removed = run.pieces.len() - kept;
                    gone.extend(run.pieces[..removed].iter().map(|piece| Arc::clone(&piece.table)));
                    *run = Arc::new(changed);
                }
            }
        });
        self.retired.append(&mut gone);
    }

    fn complete_merge<D: ZonedDevice>(&mut self, shared: &Shared<D>, number: usize) -> Result<()> {
        let mut job = self.merges.remove(number);
        job.writer.end_table(&shared.io, &mut self.zones)?;
        let tables = std::mem::take(&mut job.writer.tables);
        self.move_tables(shared, job.output, tables);
        let runs = shared.version().runs.clone();
        let older = runs.iter().position(|run| run.id == job.output).map_or(&[][..], |at| &runs[at + 1..]);
        let shadowing = estimate_shadowing(shared, older, &job.sample)?;
        let mut gone = Vec::new();
        Self::install(shared, |version| {
            version.runs.retain(|run| {
                let is_input = run.merging_into == job.output;
                if is_input {
                    gone.extend(run.pieces.iter().map(|piece| Arc::clone(&piece.table)));
                }
                !is_input
            });
            if let Some(run) = version.runs.iter_mut().find(|run| run.id == job.output) {
                *run = Arc::new(Run { is_open: false, shadowing, ..Run::clone(run) });
            }
            version.runs.retain(|run| run.is_open || !run.pieces.is_empty());
        });
        drop(runs);
        drop(job.cursor);
        self.retired.append(&mut gone);
        self.counts.merges += 1;
        self.counts.full_merges += u64::from(job.is_full);
        self.commit(shared)
    }

    /// Completes the running merges, and then merges all runs into one.
    pub fn merge_all<D: ZonedDevice>(&mut self, shared: &Shared<D>) -> Result<()> {
        self.check_running(shared)?;
        let done = self.flush_everything(shared).and_then(|()| {
            self.finish_merges(shared)?;
            let version = shared.version();
            let is_clean = version.runs.len() < 2 && version.runs.iter().all(|run| run.tombstones() == 0);
            if is_clean {
                return Ok(());
            }
            let tier = version.runs.last().map_or(0, |run| run.tier);
            self.start_merge(shared, 0, version.runs.len(), tier, true)?;
            drop(version);
            self.finish_merges(shared)
        });
        self.stop_on_error(done)
    }

    fn finish_merges<D: ZonedDevice>(&mut self, shared: &Shared<D>) -> Result<()> {
        while let Some(last) = self.merges.len().checked_sub(1) {
            self.step_merge(shared, last, u64::MAX)?;
        }
        Ok(())
    }

    /// Checks that the device has room for changes other than deletions. If it does not, but merges can free space,
    /// does a part of that work.
    pub fn check_room<D: ZonedDevice>(&mut self, shared: &Shared<D>) -> Result<()> {
        if self.zones.free() >= shared.sizes().reserve_zones() {
            return Ok(());
        }
        let made = self.make_room(shared);
        let is_merging = self.stop_on_error(made)?;
        if self.zones.free() >= shared.sizes().reserve_zones() {
            Ok(())
        } else {
            Err(self.full(shared, is_merging))
        }
    }

    /// Does a part of the work that frees space. Returns whether work remains.
    pub fn make_room<D: ZonedDevice>(&mut self, shared: &Shared<D>) -> Result<bool> {
        self.release(shared)?;
        let version = shared.version();
        let obsolete = obsolete_records(&version.runs) + self.deletions;
        let records: u64 = version.runs.iter().map(|run| run.records()).sum();
        drop(version);
        if self.merges.is_empty() && obsolete * 32 < records {
            return Ok(false);
        }
        if self.flush.is_none() && self.merges.is_empty() && self.deletions * 64 > records {
            self.freeze(shared);
        }
        let mut done = 0;
        while done < RECLAIM_BYTES && self.zones.free() < shared.sizes().reserve_zones() {
            let before = done;
            done += self.step_flush(shared, RECLAIM_BYTES - done)?;
            self.plan(shared, OBSOLETE_PERCENT_IF_FULL)?;
            if let Some(last) = self.merges.len().checked_sub(1) {
                done += self.step_merge(shared, last, (RECLAIM_BYTES - done.min(RECLAIM_BYTES)).max(1))?;
            }
            if done == before && self.flush.is_none() && self.merges.is_empty() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The approximate number of records of `runs` that are deletions, or that newer records replace or delete.
fn obsolete_records(runs: &[Arc<Run>]) -> u64 {
    runs.iter().map(|run| run.shadowing + run.tombstones()).sum()
}

/// The approximate number of records that a run with these sampled keys makes obsolete in `older` runs.
fn estimate_shadowing<D: ZonedDevice>(
    shared: &Shared<D>,
    older: &[Arc<Run>],
    sample: &[Box<[u8]>],
) -> Result<u64> {
    let mut found = 0;
    for key in sample {
        found += u64::from(passes(&shared.io, older, key)?);
    }
    // Each run's filter passes about one of a hundred absent keys.
    let by_chance = sample.len() as u64 * older.len() as u64 / 100;
    Ok(found.saturating_sub(by_chance) * SAMPLED)
}
