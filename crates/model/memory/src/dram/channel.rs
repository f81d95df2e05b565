//! One memory channel: its banks with their open rows, its data bus, its refreshes.
//! Not which address lies where: see `mod`.
//! Source: JESD79-4, sections on bank activate, precharge, read and refresh; batches of writes as in Stuecheli et al., The Virtual
//! Write Queue, ISCA 2010.

use super::timing::Timing;
use longma_sim::{Calendar, Duration, Resource, Time};

/// How wide the buckets of banks and buses are: a few row cycles. Cores may be simulated 128 of them (8 us) out of step.
const BUCKET: Duration = Duration::from_ps(1 << 16);

/// Writes that are sent together, so that the bus turns around seldom. An estimate: half of a write queue of 32, between the
/// usual high and low watermarks.
const WRITE_BATCH: u32 = 16;

/// No row: the last access left another one open.
const OTHER_ROW: u64 = u64::MAX;

/// Where in a channel an access goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) rank: u32,
    pub(super) bank: u32,
    pub(super) row: u64,
}

/// How an access finds its bank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RowState {
    /// Its row is open.
    Hit,
    /// No row is open.
    Closed,
    /// Another row is open.
    Conflict,
}

#[derive(Clone, Debug)]
struct Bank {
    calendar: Calendar,
    /// The row that reads left open.
    row: u64,
    /// The row that writes go to while they are sent in a batch.
    write_row: u64,
    opened_at: u64,
    /// Which interval between refreshes the rows were opened in: a refresh closes all.
    interval: u64,
    write_interval: u64,
}

/// What a channel did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChannelCounts {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Reads and writes whose row was open.
    pub row_hits: u64,
    /// Reads and writes that found no row open.
    pub rows_closed: u64,
    /// Reads and writes that had to close another row.
    pub row_conflicts: u64,
    /// Reads and writes that waited for a refresh.
    pub refresh_waits: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Channel {
    banks: Vec<Bank>,
    /// When column commands go to each group of banks, rank by rank.
    groups: Vec<Calendar>,
    /// When each rank opens rows.
    openings: Vec<Calendar>,
    pub(super) bus: Resource,
    pub(super) counts: ChannelCounts,
    pending_writes: u32,
    /// Banks that the batch of writes touched.
    written: Vec<u32>,
    /// How far each rank's refreshes are ahead of those of the host's first rank, picoseconds.
    refresh_ahead_ps: Vec<u64>,
}

/// Which ranks a channel has among those of the host: their refreshes are spread evenly.
#[derive(Clone, Copy, Debug)]
pub(super) struct RefreshTurn {
    pub(super) first_rank: u64,
    pub(super) ranks_of_host: u64,
}

impl Channel {
    pub(super) fn new(timing: &Timing, turn: RefreshTurn) -> Self {
        let ahead =
            |rank: u32| (turn.first_rank + u64::from(rank)) * timing.trefi_ps / turn.ranks_of_host.max(1);
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
            openings: vec![Calendar::new(BUCKET); timing.ranks as usize],
            bus: Resource::new(timing.channel_bytes_per_second, BUCKET),
            counts: ChannelCounts::default(),
            pending_writes: 0,
            written: Vec::with_capacity(WRITE_BATCH as usize),
            refresh_ahead_ps: (0..timing.ranks).map(ahead).collect(),
        }
    }

    /// Reads `bytes` and says when the last of them is over the bus.
    pub(super) fn read(&mut self, timing: &Timing, cell: Cell, bytes: u32, at: Time) -> Time {
        self.counts.reads += 1;
        let (start, interval) = self.after_refresh(timing, cell.rank, at.ps());
        let burst = self.bus.service(bytes).ps();
        let bank = &mut self.banks[(cell.rank * timing.banks + cell.bank) as usize];
        let state = bank.row_state(timing, bank.row, bank.interval, cell.row, interval);
        let column = bank.column(timing, state, start, burst);
        (bank.row, bank.interval) = (cell.row, interval);
        self.count(state);
        let column = self.within_rank(timing, cell, state, column);
        self.bus.acquire(Time::from_ps(column + timing.cl_ps), bytes)
    }

    /// Takes a write and says when the controller had room for it. Bus and bank are taken at once, but nobody waits for them
    /// until the controller's queue is full.
    pub(super) fn write(&mut self, timing: &Timing, cell: Cell, bytes: u32, at: Time) -> Time {
        self.counts.writes += 1;
        let (start, interval) = self.after_refresh(timing, cell.rank, at.ps());
        let burst = self.bus.service(bytes).ps();
        let index = cell.rank * timing.banks + cell.bank;
        let bank = &mut self.banks[index as usize];
        let state = bank.row_state(timing, bank.write_row, bank.write_interval, cell.row, interval);
        let column = bank.column(timing, state, start, burst);
        (bank.write_row, bank.write_interval) = (cell.row, interval);
        self.count(state);
        let column = self.within_rank(timing, cell, state, column);
        let end = self.bus.acquire(Time::from_ps(column), bytes);
        self.note_write(timing, index, at);
        let room = burst.saturating_mul(timing.queue_entries.into()) + timing.trp_ps + timing.trcd_ps;
        Time::from_ps(end.ps().saturating_sub(room).max(at.ps()))
    }

    /// When a column command of `column` goes out beside those of the other banks: commands to one group keep a distance, and a rank
    /// opens so many rows in a time.
    fn within_rank(&mut self, timing: &Timing, cell: Cell, state: RowState, mut column: u64) -> u64 {
        if state != RowState::Hit && timing.tfaw_ps > 0 {
            let each = Duration::from_ps(timing.tfaw_ps / 4);
            let opened = Time::from_ps(column.saturating_sub(timing.trcd_ps));
            let end = self.openings[cell.rank as usize].take(opened, each).end.ps();
            column = column.max(end - each.ps() + timing.trcd_ps);
        }
        if timing.tccd_l_ps > 0 {
            // Neighbouring banks are in different groups.
            let group = &mut self.groups[(cell.rank * timing.groups + cell.bank % timing.groups) as usize];
            let end = group.take(Time::from_ps(column), Duration::from_ps(timing.tccd_l_ps)).end.ps();
            column = column.max(end - timing.tccd_l_ps);
        }
        column
    }

    /// Counts a write into the batch; at its end the bus turns around, and the rows of the banks are closed, which takes a while.
    fn note_write(&mut self, timing: &Timing, bank: u32, at: Time) {
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

    /// When an access of `at` may begin, and in which interval between refreshes that is. The refresh is at the interval's end.
    fn after_refresh(&mut self, timing: &Timing, rank: u32, at: u64) -> (u64, u64) {
        let shifted = at + self.refresh_ahead_ps[rank as usize];
        let (interval, phase) = (shifted / timing.trefi_ps, shifted % timing.trefi_ps);
        if phase < timing.trefi_ps - timing.trfc_ps {
            return (at, interval);
        }
        self.counts.refresh_waits += 1;
        (at + (timing.trefi_ps - phase), interval + 1)
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

    /// Takes the bank's time and says when the column command goes out.
    fn column(&mut self, timing: &Timing, state: RowState, start: u64, burst: u64) -> u64 {
        if !timing.open_rows {
            let cycle = timing.tras_ps.max(timing.trcd_ps + burst) + timing.trp_ps;
            return self.take(start, cycle) - cycle + timing.trcd_ps;
        }
        let (start, opening) = match state {
            RowState::Hit => return self.take(start, burst) - burst,
            RowState::Closed => (start, timing.trcd_ps),
            // A row stays open for tRAS at least. A request of an earlier time than its opening does not wait for it.
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
