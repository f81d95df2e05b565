//! Which rows a bank had open when: requests come out of time order, so the row that was asked for last is not always the one before.
//! Not how long opening takes: see `channel`.
//! Source: first-ready, first-come first-served scheduling after Rixner et al., Memory Access Scheduling, ISCA 2000.

/// Slots remembered: as many as a `Calendar` has buckets.
const SLOTS: usize = 128;
/// Rows remembered of a slot.
const ROWS: usize = 4;
/// No row.
const NONE: u32 = u32::MAX;

/// How an access finds its bank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowState {
    /// Its row is open.
    Hit,
    /// No row is open.
    Closed,
    /// Another row is open.
    Conflict,
}

/// The rows asked for in one piece of time.
#[derive(Clone, Copy, Debug)]
struct Slot {
    number: u64,
    /// The newest last; [`NONE`] in front where there are fewer, and behind rows that were closed.
    rows: [u32; ROWS],
}

/// The rows of one bank over time, in slots of 2^shift ps. Requests of one slot are in the controller's queue together, so those to one row are
/// served together and open it once.
#[derive(Clone, Debug)]
pub(super) struct Rows {
    slots: Box<[Slot; SLOTS]>,
    shift: u32,
    /// The newest slot with a row.
    newest: u64,
}

impl Rows {
    pub fn new(shift: u32) -> Self {
        let empty = Slot { number: u64::MAX, rows: [NONE; ROWS] };
        Self { slots: Box::new([empty; SLOTS]), shift, newest: 0 }
    }

    /// An access to `row` at `at` finds the bank so; rows opened before `since` are closed.
    pub fn access(&mut self, row: u64, at: u64, since: u64) -> RowState {
        let (number, row) = (at >> self.shift, row as u32 & !(1 << 31));
        let before = self.before(number);
        let slot = &mut self.slots[number as usize % SLOTS];
        if slot.number == number {
            let open = slot.rows.contains(&row);
            if !open {
                slot.push(row);
            }
            return if open { RowState::Hit } else { RowState::Conflict };
        }
        if slot.number == u64::MAX || slot.number < number {
            *slot = Slot { number, rows: [NONE; ROWS] };
            slot.push(row);
        }
        self.newest = self.newest.max(number);
        match before {
            None => RowState::Closed,
            Some(before) if (before.number + 1) << self.shift <= since => RowState::Closed,
            Some(before) if before.rows[ROWS - 1] == row => RowState::Hit,
            Some(_) => RowState::Conflict,
        }
    }

    /// Whatever is open at `at` is left for another row.
    pub fn leave(&mut self, at: u64) {
        let number = at >> self.shift;
        let slot = &mut self.slots[number as usize % SLOTS];
        if slot.number == number {
            slot.push(NONE);
        } else if slot.number == u64::MAX || slot.number < number {
            *slot = Slot { number, rows: [NONE; ROWS] };
            self.newest = self.newest.max(number);
        }
    }

    /// The last slot before `number` that has a row.
    fn before(&self, number: u64) -> Option<Slot> {
        let at = |number: u64| {
            let slot = self.slots[number as usize % SLOTS];
            (slot.number == number).then_some(slot)
        };
        if self.newest < number {
            return at(self.newest);
        }
        (number.saturating_sub(SLOTS as u64 - 1)..number).rev().find_map(at)
    }
}

impl Slot {
    fn push(&mut self, row: u32) {
        self.rows.rotate_left(1);
        self.rows[ROWS - 1] = row;
    }
}
