//! Accesses to parts of 64-bit registers.

/// An access of 1, 2, 4 or 8 bytes inside an aligned doubleword.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lane {
    /// The address of the doubleword, relative to the device.
    pub register: u64,
    shift: u32,
    bytes: usize,
}

impl Lane {
    /// The access at `offset`, rounded down to a multiple of `bytes`.
    pub fn new(offset: u64, bytes: usize) -> Self {
        let bytes = bytes.clamp(1, 8).next_power_of_two();
        let offset = offset & !(bytes as u64 - 1);
        Self { register: offset & !7, shift: (offset & 7) as u32 * 8, bytes }
    }

    /// The mask of the accessed bits of the register.
    pub fn mask(self) -> u64 {
        (u64::MAX >> (64 - 8 * self.bytes as u32)) << self.shift
    }

    /// The accessed part of a register, in the low bits.
    pub fn extract(self, register: u64) -> u64 {
        (register & self.mask()) >> self.shift
    }

    /// `value` shifted to the accessed part; the other bits are 0.
    pub fn place(self, value: u64) -> u64 {
        value << self.shift & self.mask()
    }

    /// `register` with the accessed part replaced by `value`.
    pub fn replace(self, register: u64, value: u64) -> u64 {
        register & !self.mask() | self.place(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_accessed_part_is_extracted_and_replaced() {
        let lane = Lane::new(0x1046, 2);
        assert_eq!(lane.register, 0x1040);
        assert_eq!(lane.extract(0x1122_3344_5566_7788), 0x1122);
        assert_eq!(lane.replace(0, 0xf_abcd), 0xabcd_0000_0000_0000);
        assert_eq!(Lane::new(0x1047, 8), Lane::new(0x1040, 8));
    }
}
