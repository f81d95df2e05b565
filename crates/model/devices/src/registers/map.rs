//! The form of a register map, and which register an access meets.
//! Not the printing of it: see `print`.

/// What software can do with a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read; writes are ignored.
    ReadOnly,
    /// Read and write.
    ReadWrite,
    /// Write; reads give 0. Bits that an access does not cover are written as 0.
    WriteOnly,
    /// Read; ones that are written clear their bits.
    WriteOneToClear,
    /// Read, which clears it; writes are ignored.
    ReadToClear,
}

impl Access {
    /// As data sheets abbreviate it.
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

/// Some bits of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name in capitals.
    pub name: &'static str,
    /// Its lowest bit.
    pub low: u32,
    /// How many bits it has, 1 to 64.
    pub bits: u32,
    /// What it means, a sentence or two without the final point.
    pub about: &'static str,
}

impl Field {
    /// `bits` bits from `low` on.
    pub const fn new(name: &'static str, low: u32, bits: u32, about: &'static str) -> Self {
        assert!(bits > 0 && low + bits <= 64, "a field lies inside its register");
        Self { name, low, bits, about }
    }

    /// One bit.
    pub const fn bit(name: &'static str, low: u32, about: &'static str) -> Self {
        Self::new(name, low, 1, about)
    }

    /// Ones at its bits.
    pub const fn mask(&self) -> u64 {
        (u64::MAX >> (64 - self.bits)) << self.low
    }

    /// Its value in a register's `value`.
    pub const fn of(&self, value: u64) -> u64 {
        (value & self.mask()) >> self.low
    }

    /// Its value in a register's `value`, taken as a two's complement number.
    pub const fn signed_of(&self, value: u64) -> i64 {
        ((value << (64 - self.low - self.bits)) as i64) >> (64 - self.bits)
    }

    /// Whether any of its bits is set in a register's `value`.
    pub const fn is_set(&self, value: u64) -> bool {
        value & self.mask() != 0
    }

    /// A register's value with this field set to `to` (what does not fit is cut off) and zeros elsewhere.
    pub const fn with(&self, to: u64) -> u64 {
        (to << self.low) & self.mask()
    }
}

/// One register.
#[derive(Clone, Copy, Debug)]
pub struct Register {
    /// Its name in capitals.
    pub name: &'static str,
    /// From its block's start, bytes.
    pub offset: u32,
    /// 4 or 8 bytes.
    pub width: u32,
    /// What software can do with it.
    pub access: Access,
    /// Its value after reset.
    pub reset: u64,
    /// Its fields; empty if it is one number.
    pub fields: &'static [Field],
    /// What it is, in sentences.
    pub about: &'static str,
}

/// Registers that stand together, perhaps several times.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// What it is called in C names, in capitals; empty for none.
    pub prefix: &'static str,
    /// What it is, for the book.
    pub title: &'static str,
    /// The first copy's offset in the device, bytes.
    pub base: u32,
    /// From one copy to the next, bytes.
    pub stride: u32,
    /// Copies.
    pub count: u32,
    /// The registers, by offset.
    pub registers: &'static [Register],
}

/// All registers of a device.
#[derive(Clone, Copy, Debug)]
pub struct RegisterMap {
    /// The device's name: prefix of its C names, in capitals.
    pub name: &'static str,
    /// What it is called in the book.
    pub title: &'static str,
    /// Size of its window of addresses, bytes.
    pub bytes: u32,
    /// The blocks, by base.
    pub blocks: &'static [Block],
}

/// The part of a register that an access meets.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    /// Which block.
    pub block: usize,
    /// Which copy of it.
    pub copy: usize,
    /// Which register of the block.
    pub register: usize,
    /// The register.
    pub is: &'static Register,
    /// The access's lowest bit in it.
    shift: u32,
    /// Ones where the access lies in the register.
    mask: u64,
}

impl RegisterMap {
    /// What an access of `width` bytes at `offset` meets. `None` if there is no register, if the access is not naturally aligned,
    /// or if it goes beyond the register.
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
        let found = &is.registers[register];
        let into = inside - found.offset;
        if into + width > found.width {
            return None;
        }
        let shift = into * 8;
        let mask = (u64::MAX >> (64 - width * 8)) << shift;
        Some(Slot { block, copy: copy as usize, register, is: found, shift, mask })
    }
}

impl Slot {
    /// What a read gives of the register's `value`.
    pub const fn part(&self, value: u64) -> u64 {
        match self.is.access {
            Access::WriteOnly => 0,
            _ => (value & self.mask) >> self.shift,
        }
    }

    /// The register's new value when `written` is written over `old`; `None` if the write changes nothing. For a write-only
    /// register, what is written with zeros around it.
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

    fn met(offset: u64, width: u32) -> Option<(usize, usize, usize)> {
        MAP.find(offset, width).map(|s| (s.block, s.copy, s.register))
    }

    #[test]
    fn an_access_meets_the_register_it_lies_in() {
        assert_eq!(met(0x10, 8), Some((0, 0, 0)));
        assert_eq!(met(0x14, 4), Some((0, 0, 0)));
        assert_eq!(met(0x40, 4), Some((0, 1, 1)));
        assert_eq!(met(0x90, 1), Some((1, 0, 1)));
    }

    #[test]
    fn an_access_beside_across_or_askew_of_registers_meets_none() {
        for (offset, width) in [(0, 4), (0x18, 8), (0x20, 8), (0x12, 4), (0x10, 3), (0x50, 8), (u64::MAX, 8)]
        {
            assert_eq!(met(offset, width), None, "{offset:#x} {width}");
        }
    }

    #[test]
    fn a_narrow_write_keeps_the_rest_and_a_narrow_clear_clears_only_its_own() {
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
