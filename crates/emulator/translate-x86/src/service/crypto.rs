//! AES, carry-less multiplication and SHA, which the engine executes. Source: Intel SDM, volume 2 (AESENC, PCLMULQDQ,
//! SHA1RNDS4, SHA256RNDS2 and relatives); FIPS 197 (AES); FIPS 180-4 (SHA).

use iced_x86::Mnemonic;

use super::vectors::{Wide, lane, put_lane};
use super::{Done, Machine};
use crate::code::{first, last, old};

type Block = [u8; 16];

/// AES's substitution table and its inverse: the multiplicative inverse in GF(2^8), then an affine transformation.
static SUBSTITUTION: [[u8; 256]; 2] = substitution();

const fn substitution() -> [[u8; 256]; 2] {
    let mut tables = [[0; 256]; 2];
    let mut x = 0;
    while x < 256 {
        let inverse = inverse(x as u8);
        let value = inverse
            ^ inverse.rotate_left(1)
            ^ inverse.rotate_left(2)
            ^ inverse.rotate_left(3)
            ^ inverse.rotate_left(4)
            ^ 0x63;
        tables[0][x] = value;
        tables[1][value as usize] = x as u8;
        x += 1;
    }
    tables
}

/// The inverse of a number in GF(2^8), which is its 254th power, or zero.
const fn inverse(x: u8) -> u8 {
    let (mut power, mut result, mut bit) = (x, 1, 1);
    while bit < 8 {
        power = product(power, power);
        result = product(result, power);
        bit += 1;
    }
    result
}

/// The product of two numbers in GF(2^8) modulo x^8 + x^4 + x^3 + x + 1.
const fn product(mut a: u8, mut b: u8) -> u8 {
    let mut sum = 0;
    while b != 0 {
        if b & 1 != 0 {
            sum ^= a;
        }
        a = (a << 1) ^ if a & 0x80 != 0 { 0x1b } else { 0 };
        b >>= 1;
    }
    sum
}

/// SubBytes and ShiftRows, or their inverses.
fn substitute_and_shift(state: &Block, is_inverse: bool) -> Block {
    let table = &SUBSTITUTION[usize::from(is_inverse)];
    std::array::from_fn(|at| {
        let (column, row) = (at / 4, at % 4);
        let from = if is_inverse { column + 4 - row } else { column + row };
        table[usize::from(state[4 * (from % 4) + row])]
    })
}

/// MixColumns or its inverse. A column is a word.
fn mix(state: &Block, is_inverse: bool) -> Block {
    let double = |x: u32| (x & 0x7f7f_7f7f) << 1 ^ ((x >> 7 & 0x0101_0101) * 0x1b);
    let mut out = [0; 16];
    for (to, from) in out.chunks_exact_mut(4).zip(state.chunks_exact(4)) {
        let mut x = u32::from_le_bytes(std::array::from_fn(|at| from[at]));
        if is_inverse {
            x ^= double(double(x ^ x.rotate_right(16)));
        }
        let turned = x.rotate_right(8);
        let mixed = double(x ^ turned) ^ turned ^ x.rotate_right(16) ^ x.rotate_right(24);
        to.copy_from_slice(&mixed.to_le_bytes());
    }
    out
}

fn xor(a: &Block, b: &Block) -> Block {
    std::array::from_fn(|at| a[at] ^ b[at])
}

/// The product of polynomials over GF(2).
fn carry_less_product(a: u64, b: u64) -> u128 {
    (0..64).filter(|bit| b >> bit & 1 != 0).fold(0, |sum, bit| sum ^ u128::from(a) << bit)
}

fn low(value: &Wide) -> Block {
    std::array::from_fn(|at| value[at])
}

fn words(value: &Wide) -> [u32; 4] {
    std::array::from_fn(|at| lane(value, at, 4) as u32)
}

fn choose(e: u32, f: u32, g: u32) -> u32 {
    e & f ^ !e & g
}

fn majority(a: u32, b: u32, c: u32) -> u32 {
    a & b ^ a & c ^ b & c
}

impl Machine<'_> {
    /// Executes an instruction of AES, PCLMULQDQ or SHA. `None` for others.
    pub(super) fn cryptography(&mut self) -> Option<Done> {
        use Mnemonic::*;
        Some(match old(&self.instruction) {
            Aesenc | Aesenclast | Aesdec | Aesdeclast | Aesimc | Aeskeygenassist => self.cipher(),
            Pclmulqdq => self.multiply_without_carries(),
            Sha1rnds4 | Sha1nexte | Sha1msg1 | Sha1msg2 | Sha256rnds2 | Sha256msg1 | Sha256msg2 => {
                self.hash()
            }
            _ => return None,
        })
    }

    /// Writes the low half of a vector register.
    fn put_block(&mut self, block: Block) -> Done {
        let mut out = [0; 32];
        out[..16].copy_from_slice(&block);
        self.vector_out(self.instruction.op0_register(), &out);
        Ok(())
    }

    fn cipher(&mut self) -> Done {
        use Mnemonic::*;
        let i = self.instruction;
        if i.op0_register().is_ymm() {
            return Err(longma_loongarch::Trap::IllegalInstruction);
        }
        let source = low(&self.vector_in(last(&i))?);
        let name = old(&i);
        let result = match name {
            Aesimc => mix(&source, true),
            Aeskeygenassist => {
                let word = |at: usize| {
                    let bytes: [u8; 4] =
                        std::array::from_fn(|n| SUBSTITUTION[0][usize::from(source[at + n])]);
                    u32::from_le_bytes(bytes)
                };
                let (one, three, constant) = (word(4), word(12), u32::from(i.immediate8()));
                let all = [one, one.rotate_right(8) ^ constant, three, three.rotate_right(8) ^ constant];
                std::array::from_fn(|at| all[at / 4].to_le_bytes()[at % 4])
            }
            _ => {
                let state = low(&self.vector_in(first(&i))?);
                let is_inverse = matches!(name, Aesdec | Aesdeclast);
                let shifted = substitute_and_shift(&state, is_inverse);
                let is_last = matches!(name, Aesenclast | Aesdeclast);
                xor(&if is_last { shifted } else { mix(&shifted, is_inverse) }, &source)
            }
        };
        self.put_block(result)
    }

    fn multiply_without_carries(&mut self) -> Done {
        let i = self.instruction;
        if i.op0_register().is_ymm() {
            return Err(longma_loongarch::Trap::IllegalInstruction);
        }
        let (a, b) = (self.vector_in(first(&i))?, self.vector_in(last(&i))?);
        let half = |value: &Wide, bit: u8| lane(value, usize::from(i.immediate8() >> bit & 1), 8);
        self.put_block(carry_less_product(half(&a, 0), half(&b, 4)).to_le_bytes())
    }

    fn hash(&mut self) -> Done {
        use Mnemonic::*;
        let i = self.instruction;
        let (a, b) = (words(&self.vector_in(0)?), words(&self.vector_in(1)?));
        let result = match i.mnemonic() {
            Sha1rnds4 => sha1_rounds(a, b, i.immediate8() & 3),
            Sha1nexte => [b[0], b[1], b[2], b[3].wrapping_add(a[3].rotate_left(30))],
            Sha1msg1 => [a[0] ^ b[2], a[1] ^ b[3], a[2] ^ a[0], a[3] ^ a[1]],
            Sha1msg2 => {
                let high: [u32; 3] = std::array::from_fn(|n| (a[3 - n] ^ b[2 - n]).rotate_left(1));
                [(a[0] ^ high[0]).rotate_left(1), high[2], high[1], high[0]]
            }
            Sha256rnds2 => sha256_rounds(a, b, words(&self.whole_of(0))),
            Sha256msg1 => {
                let next = [a[1], a[2], a[3], b[0]];
                std::array::from_fn(|at| {
                    let x = next[at];
                    a[at].wrapping_add(x.rotate_right(7) ^ x.rotate_right(18) ^ x >> 3)
                })
            }
            _ => {
                let small = |x: u32| x.rotate_right(17) ^ x.rotate_right(19) ^ x >> 10;
                let w16 = a[0].wrapping_add(small(b[2]));
                let w17 = a[1].wrapping_add(small(b[3]));
                [w16, w17, a[2].wrapping_add(small(w16)), a[3].wrapping_add(small(w17))]
            }
        };
        let mut out = [0; 32];
        (0..).zip(result).for_each(|(at, word)| put_lane(&mut out, at, 4, word.into()));
        self.put_block(low(&out))
    }
}

/// Four rounds of SHA-1. Words are in descending order: A is the highest.
fn sha1_rounds(state: [u32; 4], added: [u32; 4], function: u8) -> [u32; 4] {
    const CONSTANTS: [u32; 4] = [0x5a82_7999, 0x6ed9_eba1, 0x8f1b_bcdc, 0xca62_c1d6];
    let [mut d, mut c, mut b, mut a] = state;
    let mut e = 0;
    for w in added.into_iter().rev() {
        let mixed = match function {
            0 => choose(b, c, d),
            2 => majority(b, c, d),
            _ => b ^ c ^ d,
        };
        let sum = [mixed, a.rotate_left(5), w, e, CONSTANTS[usize::from(function)]];
        let next = sum.into_iter().fold(0u32, u32::wrapping_add);
        (e, d, c, b, a) = (d, c, b.rotate_left(30), a, next);
    }
    [d, c, b, a]
}

/// Two rounds of SHA-256: `cdgh` and `abef` are the state, with the first letter in the highest word.
fn sha256_rounds(cdgh: [u32; 4], abef: [u32; 4], added: [u32; 4]) -> [u32; 4] {
    let [mut f, mut e, mut b, mut a] = abef;
    let [mut h, mut g, mut d, mut c] = cdgh;
    for w in &added[..2] {
        let one = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
        let zero = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
        let t = [choose(e, f, g), one, *w, h].into_iter().fold(0u32, u32::wrapping_add);
        let next = t.wrapping_add(majority(a, b, c)).wrapping_add(zero);
        (h, g, f, e, d, c, b, a) = (g, f, e, d.wrapping_add(t), c, b, a, next);
    }
    [f, e, b, a]
}
