//! One memory channel: banks with row buffers, the data bus, refreshes and write batches.
//!
//! Source: JESD79-4, sections on bank activate, precharge, read and refresh; write batches after Stuecheli et al., The
//! Virtual Write Queue, ISCA 2010.

use super::refresh::Refreshes;
use super::timing::Timing;
use longma_sim::{Calendar, Duration, Resource, Time};

/// Bucket width of the calendars of banks and buses: a few row cycles. A calendar has 128 buckets, so cores may be 8 us
/// out of step.
const BUCKET: Duration = Duration::from_ps(1 << 16);

/// Writes sent in one batch, so that the bus seldom turns around. An estimate: half of a write queue of 32, the usual
/// distance between the high and the low watermark.
const WRITE_BATCH: u32 = 16;

/// Placeholder for an open row that matches no request.
const OTHER_ROW: u64 = u64::MAX;

/// The location of an access in a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) rank: u32,
    pub(super) bank: u32,
    pub(super) row: u64,
}

/// State of the bank's row buffer relative to an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RowState {
    /// The requested row is open.
    Hit,
    /// No row is open.
    Closed,
    /// Another row is open.
    Conflict,
}

#[derive(Clone, Debug)]
struct Bank {
    calendar: Calendar,
    /// The row opened by the last read.
    row: u64,
    /// The row opened by the last write. Writes are sent in batches, so their rows are tracked separately.
    write_row: u64,
    opened_at: u64,
    /// The number of refreshes before the row was opened. A refresh closes the rows.
    interval: u64,
    write_interval: u64,
}

/// Event counts of a channel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChannelCounts {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Accesses whose row was open.
    pub row_hits: u64,
    /// Accesses that found no row open.
    pub rows_closed: u64,
    /// Accesses that had to close another row first.
    pub row_conflicts: u64,
    /// Accesses that waited for a refresh.
    pub refresh_waits: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Channel {
    banks: Vec<Bank>,
    /// Reservations for column commands of each bank group, rank by rank.
    groups: Vec<Calendar>,
    /// Reservations for activates of each rank.
    activates: Vec<Calendar>,
    pub(super) bus: Resource,
    pub(super) counts: ChannelCounts,
    pending_writes: u32,
    /// Banks with a write in the current batch.
    written: Vec<u32>,
    /// For each rank, the refreshes of each set of its banks.
    refreshes: Vec<Refreshes>,
}

impl Channel {
    pub(super) fn new(timing: &Timing) -> Self {
        let bank = Bank {
            calendar: Calendar::new(BUCKET),
            row: OTHER_ROW,
            write_row: OTHER_ROW,
            opened_at: 0,
            interval: u64::MAX,
            write_interval: u64::MAX,
        };
        Self {
            banks: vec![bank; timing.banks as usize * timing.ranks as usize],
            groups: vec![Calendar::new(BUCKET); (timing.groups * timing.ranks) as usize],
            activates: vec![Calendar::new(BUCKET); timing.ranks as usize],
            bus: Resource::new(timing.channel_bytes_per_second, BUCKET),
            counts: ChannelCounts::default(),
            pending_writes: 0,
            written: Vec::with_capacity(WRITE_BATCH as usize),
            refreshes: Refreshes::of_channel(timing),
        }
    }

    /// Reads `bytes` and returns the time at which the last byte has crossed the bus.
    pub(super) fn read(&mut self, timing: &Timing, cell: Cell, bytes: u32, at: Time) -> Time {
        self.counts.reads += 1;
        let (start, interval) = self.after_refresh(timing, cell, at.ps());
        let burst = self.bus.service(bytes).ps();
        let bank = &mut self.banks[(cell.rank * timing.banks + cell.bank) as usize];
        let state = bank.row_state(timing, bank.row, bank.interval, cell.row, interval);
        let column = bank.column(timing, state, start, burst);
        (bank.row, bank.interval) = (cell.row, interval);
        self.count(state);
        let column = self.within_rank(timing, cell, state, column);
        self.refreshes[Refreshes::index(timing, cell)].record_access(column + burst);
        self.bus.acquire(Time::from_ps(column + timing.cl_ps), bytes)
    }

    /// Queues a write and returns the time at which the controller has room for it. The write reserves bus and bank
    /// time at once, but the requester waits only if the controller's queue is full.
    pub(super) fn write(&mut self, timing: &Timing, cell: Cell, bytes: u32, at: Time) -> Time {
        self.counts.writes += 1;
        let (start, interval) = self.after_refresh(timing, cell, at.ps());
        let burst = self.bus.service(bytes).ps();
        let index = cell.rank * timing.banks + cell.bank;
        let bank = &mut self.banks[index as usize];
        let state = bank.row_state(timing, bank.write_row, bank.write_interval, cell.row, interval);
        let column = bank.column(timing, state, start, burst);
        (bank.write_row, bank.write_interval) = (cell.row, interval);
        self.count(state);
        let column = self.within_rank(timing, cell, state, column);
        self.refreshes[Refreshes::index(timing, cell)].record_access(column + burst);
        let end = self.bus.acquire(Time::from_ps(column), bytes);
        self.record_write(timing, index, at);
        let max_wait_ps = burst.saturating_mul(timing.queue_entries.into()) + timing.trp_ps + timing.trcd_ps;
        Time::from_ps(end.ps().saturating_sub(max_wait_ps).max(at.ps()))
    }

    /// Returns the earliest time from `column` on at which the rank accepts a column command. Commands to one bank
    /// group are at least tCCD_L apart, and a rank activates at most four rows in tFAW.
    fn within_rank(&mut self, timing: &Timing, cell: Cell, state: RowState, mut column: u64) -> u64 {
        if state != RowState::Hit && timing.tfaw_ps > 0 {
            let each = Duration::from_ps(timing.tfaw_ps / 4);
            let opened = Time::from_ps(column.saturating_sub(timing.trcd_ps));
            let end = self.activates[cell.rank as usize].take(opened, each).end.ps();
            column = column.max(end - each.ps() + timing.trcd_ps);
        }
        if timing.tccd_l_ps > 0 {
            // Adjacent banks are in different groups.
            let group = &mut self.groups[(cell.rank * timing.groups + cell.bank % timing.groups) as usize];
            let end = group.take(Time::from_ps(column), Duration::from_ps(timing.tccd_l_ps)).end.ps();
            column = column.max(end - timing.tccd_l_ps);
        }
        column
    }

    /// Adds a write to the batch. The last write of a batch closes the rows of the written banks and turns the bus
    /// around.
    fn record_write(&mut self, timing: &Timing, bank: u32, at: Time) {
        self.pending_writes += 1;
        self.written.push(bank);
        if self.pending_writes < WRITE_BATCH {
            return;
        }
        self.pending_writes = 0;
        self.written.sort_unstable();
        self.written.dedup();
        for bank in self.written.drain(..) {
            let bank = &mut self.banks[bank as usize];
            (bank.row, bank.write_row) = (OTHER_ROW, OTHER_ROW);
            if timing.open_rows {
                bank.take(at.ps(), timing.twr_ps + timing.trp_ps);
            }
        }
        self.bus.serve(at, 0, Duration::from_ps(timing.turnaround_ps));
    }

    /// Returns the time at which an access at `at` can begin, and the number of refreshes of its bank before it.
    #[inline]
    fn after_refresh(&mut self, timing: &Timing, cell: Cell, at: u64) -> (u64, u64) {
        let (start, interval) = self.refreshes[Refreshes::index(timing, cell)].before(timing, at);
        self.counts.refresh_waits += u64::from(start > at);
        (start, interval)
    }

    fn count(&mut self, state: RowState) {
        match state {
            RowState::Hit => self.counts.row_hits += 1,
            RowState::Closed => self.counts.rows_closed += 1,
            RowState::Conflict => self.counts.row_conflicts += 1,
        }
    }
}

impl Bank {
    fn row_state(&self, timing: &Timing, open: u64, opened_in: u64, row: u64, interval: u64) -> RowState {
        if !timing.open_rows || opened_in != interval {
            RowState::Closed
        } else if open == row {
            RowState::Hit
        } else {
            RowState::Conflict
        }
    }

    /// Reserves bank time for an access and returns the time at which its column command is sent.
    fn column(&mut self, timing: &Timing, state: RowState, start: u64, burst: u64) -> u64 {
        if !timing.open_rows {
            let cycle = timing.tras_ps.max(timing.trcd_ps + burst) + timing.trp_ps;
            return self.take(start, cycle) - cycle + timing.trcd_ps;
        }
        let (start, opening) = match state {
            RowState::Hit => return self.take(start, burst) - burst,
            RowState::Closed => (start, timing.trcd_ps),
            // A row stays open for at least tRAS. A request that is issued after the activate, but at an earlier
            // simulated time, does not wait for tRAS.
            RowState::Conflict if start >= self.opened_at => {
                (start.max(self.opened_at + timing.tras_ps), timing.trp_ps + timing.trcd_ps)
            }
            RowState::Conflict => (start, timing.trp_ps + timing.trcd_ps),
        };
        let column = self.take(start, opening + burst) - burst;
        self.opened_at = column - timing.trcd_ps;
        column
    }

    fn take(&mut self, at: u64, work: u64) -> u64 {
        self.calendar.take(Time::from_ps(at), Duration::from_ps(work)).end.ps()
    }
}
