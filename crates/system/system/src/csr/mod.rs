//! The contents of the control and status registers (CSRs). `core` implements the effects of a write on the rest of the
//! core. Source: LoongArch Reference Manual, volume 1, chapter 7.

pub mod table;

use std::cell::Cell;
use std::ops::RangeInclusive;

use table::{ROWS, Row, Width};

/// The end of the CSR numbers: no CSR has this number or a larger one.
const NUMBERS: usize = 0x184;

/// For each number, the index of its row in the table.
static INDEX: [Option<u8>; NUMBERS] = {
    let mut index = [None; NUMBERS];
    let mut row = 0;
    while row < ROWS.len() {
        index[ROWS[row].number as usize] = Some(row as u8);
        row += 1;
    }
    index
};

/// The row of a CSR; `None` if it does not exist.
pub fn row(number: u16) -> Option<&'static Row> {
    let row = (*INDEX.get(usize::from(number))?)?;
    Some(&ROWS[usize::from(row)])
}

/// The bits of a field.
pub fn field(value: u64, bits: RangeInclusive<u32>) -> u64 {
    value >> bits.start() & mask(bits.end() - bits.start() + 1)
}

/// `value` with a field replaced by `content`.
pub fn with_field(value: u64, bits: RangeInclusive<u32>, content: u64) -> u64 {
    let selected = mask(bits.end() - bits.start() + 1) << bits.start();
    value & !selected | content << bits.start() & selected
}

/// The bits that a CSR has.
pub fn fields(row: &Row) -> u64 {
    row.fields.iter().fold(0, |bits, (_, high, low)| bits | mask(u32::from(high - low) + 1) << low)
}

/// A mask of the lowest `width` bits, 1 to 64.
fn mask(width: u32) -> u64 {
    u64::MAX >> (64 - width)
}

/// The contents of the CSRs.
#[derive(Debug)]
pub struct Registers(Vec<Cell<u64>>);

impl Registers {
    /// Creates the registers with their values after reset.
    pub fn new() -> Self {
        let registers = Self(vec![Cell::new(0); NUMBERS]);
        for row in ROWS {
            registers.set(row.number, row.reset);
        }
        registers
    }

    /// The contents as the core uses them. `number` must be in the table.
    pub fn get(&self, number: u16) -> u64 {
        self.0[usize::from(number)].get()
    }

    /// Replaces the contents, including bits that software may not write.
    pub fn set(&self, number: u16, value: u64) {
        self.0[usize::from(number)].set(value);
    }

    /// Replaces a field.
    pub fn set_field(&self, number: u16, bits: RangeInclusive<u32>, content: u64) {
        self.set(number, with_field(self.get(number), bits, content));
    }

    /// A field.
    pub fn field(&self, number: u16, bits: RangeInclusive<u32>) -> u64 {
        field(self.get(number), bits)
    }

    /// The contents as software reads them.
    pub fn read(&self, row: &Row) -> u64 {
        let value = self.get(row.number);
        match (row.width, row.name) {
            (Width::Word, _) => value as i32 as u64,
            // The bits above VPPN are its sign extension.
            (Width::Long, "TLBEHI" | "TLBREHI") => sign_extend_address(value),
            (Width::Long, _) => value,
        }
    }

    /// Writes the bits in `mask`, except for those that software may not write.
    pub fn write(&self, row: &Row, value: u64, mask: u64) {
        let selected = mask & row.writable;
        self.set(row.number, self.get(row.number) & !selected | value & selected);
    }
}

impl Default for Registers {
    fn default() -> Self {
        Self::new()
    }
}

/// Sign-extends a 48-bit virtual address.
pub fn sign_extend_address(address: u64) -> u64 {
    ((address << 16) as i64 >> 16) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_its_fields_contain_all_writable_bits() {
        assert!(ROWS.windows(2).all(|pair| pair[0].number < pair[1].number));
        for row in ROWS {
            assert_eq!(row.writable & !fields(row), 0, "{}", row.name);
            assert_eq!(row.reset & !fields(row), 0, "{}", row.name);
            if row.width == Width::Word {
                assert_eq!((row.writable | row.reset) >> 32, 0, "{}", row.name);
            }
        }
    }

    #[test]
    fn a_register_that_does_not_exist_has_no_row() {
        assert!(row(0x9).is_none());
        assert!(row(0x3fff).is_none());
        assert_eq!(row(0x180).map(|row| row.name), Some("DMW0"));
    }
}
