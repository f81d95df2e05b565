//! The data structure of a register map, and the decoding of accesses.

/// How software can access a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Readable; writes are ignored.
    ReadOnly,
    /// Readable and writable.
    ReadWrite,
    /// Writable; reads return 0. Bits outside the access are written as 0.
    WriteOnly,
    /// Readable; writing ones clears bits.
    WriteOneToClear,
    /// Readable, and a read clears it; writes are ignored.
    ReadToClear,
}

impl Access {
    /// The usual abbreviation in data sheets.
    pub const fn short(self) -> &'static str {
        match self {
            Self::ReadOnly => "ro",
            Self::ReadWrite => "rw",
            Self::WriteOnly => "wo",
            Self::WriteOneToClear => "w1c",
            Self::ReadToClear => "rc",
        }
    }
}

/// A bit field of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Name, in capitals.
    pub name: &'static str,
    /// Lowest bit.
    pub low: u32,
    /// Width in bits, 1 to 64.
    pub bits: u32,
    /// Description: one or two sentences without the final full stop.
    pub about: &'static str,
}

impl Field {
    /// Creates a field of `bits` bits from `low` on.
    pub const fn new(name: &'static str, low: u32, bits: u32, about: &'static str) -> Self {
        assert!(bits > 0 && low + bits <= 64, "a field lies inside its register");
        Self { name, low, bits, about }
    }

    /// Creates a field of one bit.
    pub const fn bit(name: &'static str, low: u32, about: &'static str) -> Self {
        Self::new(name, low, 1, about)
    }

    /// The mask of its bits.
    pub const fn mask(&self) -> u64 {
        (u64::MAX >> (64 - self.bits)) << self.low
    }

    /// Extracts the field from a register's `value`.
    pub const fn of(&self, value: u64) -> u64 {
        (value & self.mask()) >> self.low
    }

    /// Extracts the field from a register's `value` as a two's complement number.
    pub const fn signed_of(&self, value: u64) -> i64 {
        ((value << (64 - self.low - self.bits)) as i64) >> (64 - self.bits)
    }

    /// Returns whether any of its bits is set in a register's `value`.
    pub const fn is_set(&self, value: u64) -> bool {
        value & self.mask() != 0
    }

    /// A register value with this field set to `to`, truncated to its width, and zeros elsewhere.
    pub const fn with(&self, to: u64) -> u64 {
        (to << self.low) & self.mask()
    }
}

/// A register.
#[derive(Clone, Copy, Debug)]
pub struct Register {
    /// Name, in capitals.
    pub name: &'static str,
    /// Offset from the start of its block, bytes.
    pub offset: u32,
    /// Width: 4 or 8 bytes.
    pub width: u32,
    /// How software can access it.
    pub access: Access,
    /// Its value after reset.
    pub reset: u64,
    /// Its fields; empty if it holds a single number.
    pub fields: &'static [Field],
    /// Description, in sentences.
    pub about: &'static str,
}

/// A group of registers, possibly repeated.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// Prefix of C names, in capitals; empty for none.
    pub prefix: &'static str,
    /// Title in the book.
    pub title: &'static str,
    /// Offset of the first copy in the device, bytes.
    pub base: u32,
    /// Distance between two copies, bytes.
    pub stride: u32,
    /// Number of copies.
    pub count: u32,
    /// The registers, ordered by offset.
    pub registers: &'static [Register],
}

/// All registers of a device.
#[derive(Clone, Copy, Debug)]
pub struct RegisterMap {
    /// Name of the device, in capitals; the prefix of its C names.
    pub name: &'static str,
    /// Title in the book.
    pub title: &'static str,
    /// Size of its address window, bytes.
    pub bytes: u32,
    /// The blocks, ordered by base.
    pub blocks: &'static [Block],
}

/// The part of a register that an access covers.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    /// Index of the block.
    pub block: usize,
    /// Index of the copy.
    pub copy: usize,
    /// Index of the register in the block.
    pub register: usize,
    /// The register.
    pub is: &'static Register,
    /// Lowest bit of the access in the register.
    shift: u32,
    /// Mask of the access in the register.
    mask: u64,
}

impl RegisterMap {
    /// Decodes an access of `width` bytes at `offset`. `None` if there is no register, if the access is not naturally
    /// aligned, or if it exceeds the register.
    pub fn find(&'static self, offset: u64, width: u32) -> Option<Slot> {
        let offset = u32::try_from(offset).ok().filter(|o| *o < self.bytes)?;
        if !matches!(width, 1 | 2 | 4 | 8) || offset % width != 0 {
            return None;
        }
        let (block, is) = self.blocks.iter().enumerate().rev().find(|(_, block)| block.base <= offset)?;
        let copy = (offset - is.base) / is.stride;
        let inside = (offset - is.base) % is.stride;
        if copy >= is.count {
            return None;
        }
        let register = is.registers.partition_point(|r| r.offset <= inside).checked_sub(1)?;
        let current = &is.registers[register];
        let into = inside - current.offset;
        if into + width > current.width {
            return None;
        }
        let shift = into * 8;
        let mask = (u64::MAX >> (64 - width * 8)) << shift;
        Some(Slot { block, copy: copy as usize, register, is: current, shift, mask })
    }
}

impl Slot {
    /// The result of a read, given the register's `value`.
    pub const fn part(&self, value: u64) -> u64 {
        match self.is.access {
            Access::WriteOnly => 0,
            _ => (value & self.mask) >> self.shift,
        }
    }

    /// The register's new value when `written` is written over `old`; `None` if the write has no effect. For a
    /// write-only register, the written bits with zeros elsewhere.
    pub const fn merge(&self, old: u64, written: u64) -> Option<u64> {
        let placed = (written << self.shift) & self.mask;
        match self.is.access {
            Access::ReadOnly | Access::ReadToClear => None,
            Access::ReadWrite => Some(old & !self.mask | placed),
            Access::WriteOnly => Some(placed),
            Access::WriteOneToClear => Some(old & !placed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static REGISTERS: [Register; 2] = [
        Register {
            name: "A",
            offset: 0,
            width: 8,
            access: Access::ReadWrite,
            reset: 0,
            fields: &[],
            about: "",
        },
        Register {
            name: "B",
            offset: 16,
            width: 4,
            access: Access::WriteOneToClear,
            reset: 0,
            fields: &[],
            about: "",
        },
    ];
    static BLOCKS: [Block; 2] = [
        Block { prefix: "X", title: "", base: 0x10, stride: 0x20, count: 2, registers: &REGISTERS },
        Block { prefix: "", title: "", base: 0x80, stride: 0x20, count: 1, registers: &REGISTERS },
    ];
    static MAP: RegisterMap = RegisterMap { name: "TEST", title: "", bytes: 0x100, blocks: &BLOCKS };

    fn location(offset: u64, width: u32) -> Option<(usize, usize, usize)> {
        MAP.find(offset, width).map(|s| (s.block, s.copy, s.register))
    }

    #[test]
    fn an_access_is_decoded_to_the_register_that_contains_it() {
        assert_eq!(location(0x10, 8), Some((0, 0, 0)));
        assert_eq!(location(0x14, 4), Some((0, 0, 0)));
        assert_eq!(location(0x40, 4), Some((0, 1, 1)));
        assert_eq!(location(0x90, 1), Some((1, 0, 1)));
    }

    #[test]
    fn an_access_outside_across_or_misaligned_is_not_decoded() {
        for (offset, width) in [(0, 4), (0x18, 8), (0x20, 8), (0x12, 4), (0x10, 3), (0x50, 8), (u64::MAX, 8)]
        {
            assert_eq!(location(offset, width), None, "{offset:#x} {width}");
        }
    }

    #[test]
    fn a_narrow_write_or_clear_affects_only_its_bytes() {
        let half = MAP.find(0x14, 4).unwrap();
        assert_eq!(half.merge(0x1111_1111_2222_2222, 0x3333_3333), Some(0x3333_3333_2222_2222));
        assert_eq!(half.part(0x1111_1111_2222_2222), 0x1111_1111);
        let clear = MAP.find(0x21, 1).unwrap();
        assert_eq!(clear.merge(0xffff, 0x0f), Some(0xf0ff));
    }

    #[test]
    fn a_signed_field_keeps_its_sign() {
        let field = Field::new("S", 32, 32, "");
        assert_eq!(field.signed_of(field.with(-5i64 as u64)), -5);
        assert_eq!(Field::new("ALL", 0, 64, "").signed_of(u64::MAX), -1);
    }
}
