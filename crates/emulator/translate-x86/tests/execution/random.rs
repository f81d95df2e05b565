//! Random register contents.

use crate::host::{Registers, has_avx2};

/// A deterministic xorshift generator.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 20) % end
    }

    /// A number that is often near a boundary value.
    pub fn number(&mut self) -> u64 {
        let borders = [
            0,
            1,
            0x7f,
            0x80,
            0xff,
            0x7fff,
            0x8000,
            0x7fff_ffff,
            0x8000_0000,
            0xffff_ffff,
            i64::MAX as u64,
            1 << 63,
            u64::MAX,
        ];
        match self.below(4) {
            0 => borders[self.below(borders.len() as u64) as usize],
            1 => self.next() >> self.below(64),
            _ => self.next(),
        }
    }

    /// Random registers.
    pub fn registers(&mut self, doubles: bool) -> Registers {
        Registers {
            general: std::array::from_fn(|_| self.number()),
            flags: 0x202 | self.next() & 0x8d5,
            wide: u64::from(has_avx2()),
            vectors: std::array::from_fn(|_| self.vector(doubles)),
            uppers: if has_avx2() { std::array::from_fn(|_| self.vector(doubles)) } else { [0; 16] },
        }
    }

    pub fn vector(&mut self, doubles: bool) -> u128 {
        let floats =
            [0.0, -0.0, 1.0, -1.5, 2.5, 1e10, -3e9, 4e9, 1e19, -1e19, 0.1, f64::INFINITY, f64::NAN, 3.5, 0.5];
        match self.below(3) {
            0 => u128::from(self.next()) << 64 | u128::from(self.next()),
            1 => u128::from(self.number()) << 64 | u128::from(self.number()),
            _ if doubles => (0..2).fold(0, |sum, _| {
                sum << 64 | u128::from(floats[self.below(floats.len() as u64) as usize].to_bits())
            }),
            _ => (0..4).fold(0, |sum, _| {
                sum << 32 | u128::from((floats[self.below(floats.len() as u64) as usize] as f32).to_bits())
            }),
        }
    }
}
