//! Test operands for each instruction: edge values of its types and random values. Source: IEEE 754-2008 for edge
//! values; the instruction table for the operands.

use longma_loongarch::{Instruction, Op, Operand, RegisterKind};

/// A pseudorandom generator (xorshift64*). The seed makes failures reproducible.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// An integer: an edge value, or random with a random length.
    pub fn integer(&mut self) -> u64 {
        if self.below(3) == 0 {
            return self.pick(&INTEGERS);
        }
        let value = self.next() >> self.below(64);
        if self.below(2) == 0 { value } else { value.wrapping_neg() }
    }

    /// A single-precision number: an edge value, random near 1, or any pattern. The upper half is random.
    pub fn single(&mut self) -> u64 {
        let low = match self.below(4) {
            0 => self.pick(&SINGLES),
            1 => 0x3f00_0000 + self.below(0x0180_0000) as u32,
            2 => (self.next() as u32) & 0x83ff_ffff | (0x78 + self.below(16) as u32) << 23,
            _ => self.next() as u32,
        };
        self.next() << 32 | u64::from(low)
    }

    /// A double-precision number: an edge value, random near 1, or any pattern.
    pub fn double(&mut self) -> u64 {
        match self.below(4) {
            0 => self.pick(&DOUBLES),
            1 => 0x3fe0_0000_0000_0000 + self.below(0x0030_0000_0000_0000),
            2 => self.next() & 0x807f_ffff_ffff_ffff | (0x3f8 + self.below(16)) << 52,
            _ => self.next(),
        }
    }
}

pub const INTEGERS: [u64; 20] = [
    0,
    1,
    2,
    u64::MAX,
    u64::MAX - 1,
    0x7f,
    0x80,
    0x7fff,
    0x8000,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    0xffff_ffff_7fff_ffff,
    0xffff_ffff_8000_0000,
    i64::MAX as u64,
    i64::MIN as u64,
    0x0123_4567_89ab_cdef,
    0xfedc_ba98_7654_3210,
    0x5555_5555_aaaa_aaaa,
];

pub const SINGLES: [u32; 32] = [
    0x0000_0000, // 0
    0x8000_0000,
    0x3f80_0000, // 1
    0xbf80_0000,
    0x3f00_0000, // 1/2
    0x3fc0_0000, // 1.5
    0x4020_0000, // 2.5
    0xc020_0000,
    0x3f7f_ffff, // 1 less an ulp
    0x3f80_0001, // 1 and an ulp
    0x0000_0001, // the smallest subnormal
    0x8000_0001,
    0x007f_ffff, // the largest subnormal
    0x807f_ffff,
    0x0080_0000, // the smallest normal
    0x8080_0000,
    0x0080_0001,
    0x7f7f_ffff, // the largest number
    0xff7f_ffff,
    0x7f80_0000, // infinity
    0xff80_0000,
    0x7fc0_0000, // quiet NaNs
    0xffc1_2345,
    0x7f80_0001, // signaling NaNs
    0xffa0_0000,
    0x4b00_0001, // 2^23 + 1
    0x4f00_0000, // 2^31
    0xcf00_0000,
    0x4eff_ffff,
    0x5f00_0000, // 2^63
    0xdf00_0000,
    0x3eaa_aaab, // 1/3
];

pub const DOUBLES: [u64; 36] = [
    0x0000_0000_0000_0000, // 0
    0x8000_0000_0000_0000,
    0x3ff0_0000_0000_0000, // 1
    0xbff0_0000_0000_0000,
    0x3fe0_0000_0000_0000, // 1/2
    0x3ff8_0000_0000_0000, // 1.5
    0x4004_0000_0000_0000, // 2.5
    0xc004_0000_0000_0000,
    0x3fef_ffff_ffff_ffff, // 1 less an ulp
    0x3ff0_0000_0000_0001, // 1 and an ulp
    0x0000_0000_0000_0001, // the smallest subnormal
    0x8000_0000_0000_0001,
    0x000f_ffff_ffff_ffff, // the largest subnormal
    0x800f_ffff_ffff_ffff,
    0x0010_0000_0000_0000, // the smallest normal
    0x8010_0000_0000_0000,
    0x0010_0000_0000_0001,
    0x7fef_ffff_ffff_ffff, // the largest number
    0xffef_ffff_ffff_ffff,
    0x7ff0_0000_0000_0000, // infinity
    0xfff0_0000_0000_0000,
    0x7ff8_0000_0000_0000, // quiet NaNs
    0xfff8_1234_5678_9abc,
    0x7ff0_0000_0000_0001, // signaling NaNs
    0xfff4_0000_0000_0000,
    0x4330_0000_0000_0001, // 2^52 + 1
    0x41e0_0000_0000_0000, // 2^31
    0xc1e0_0000_0020_0000, // -2^31 - 1
    0x41df_ffff_ffe0_0000, // 2^31 - 1/2
    0x43e0_0000_0000_0000, // 2^63
    0xc3e0_0000_0000_0000,
    0x3fd5_5555_5555_5555, // 1/3
    0x380f_ffff_ffff_ffff, // single's smallest normal, less an ulp of double
    0x3690_0000_0000_0000, // half of single's smallest subnormal
    0x47ef_ffff_f000_0000, // halfway from single's largest number
    0x3ff0_0000_1000_0000, // halfway between singles
];

/// `op` with random registers from those available to a case, and random immediates.
pub fn random_instruction(op: Op, random: &mut Random) -> Instruction {
    let mut i = Instruction::new(op);
    let mut immediates = Vec::new();
    for operand in op.row().operands {
        match operand {
            Operand::Register(kind, position) => {
                let number = match kind {
                    // Sometimes r0.
                    RegisterKind::General => random.below(13) as u8 + 3,
                    _ => random.below(8) as u8,
                };
                let number = if *kind == RegisterKind::General && number == 3 { 0 } else { number };
                match position {
                    0 => i.d = number,
                    5 => i.j = number,
                    10 => i.k = number,
                    _ => i.a = number,
                }
            }
            Operand::Immediate(immediate) => {
                let width = u32::from(immediate.width());
                let all = (1u64 << width) - 1;
                let field = match random.below(4) {
                    0 => random.pick(&[0, 1, all, all >> 1, (all >> 1) + 1]) & all,
                    _ => random.next() & all,
                } as u32;
                let value = if immediate.signed {
                    (field << (32 - width)) as i32 >> (32 - width)
                } else {
                    field as i32
                };
                immediates.push((value << immediate.scale) + i32::from(immediate.plus));
            }
        }
    }
    i.imm = immediates.first().copied().unwrap_or(0);
    i.imm2 = immediates.get(1).copied().unwrap_or(0);
    i
}
