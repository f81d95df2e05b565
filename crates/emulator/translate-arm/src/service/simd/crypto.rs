//! The cryptographic extension: AES, SHA-1 and SHA-256. Source: Arm Architecture Reference Manual (Arm DDI 0487),
//! section C7.2 (AESE, SHA1C, SHA256H and related instructions); FIPS 197; FIPS 180-4.

use longma_loongarch::State;

use super::super::vector::{bytes, put};
use crate::instruction::{Instruction, Op};

/// Executes an instruction. Returns false for instructions not handled here.
pub(super) fn serve(i: Instruction, state: &mut State) -> bool {
    use Op::*;
    let result = match i.op {
        Aese | Aesd | Aesmc | Aesimc => aes(i, bytes(state, i.rd()), bytes(state, i.rn())),
        _ => {
            let [d, n, m] = [i.rd(), i.rn(), i.rm()].map(|number| words(bytes(state, number)));
            let result = match i.op {
                Sha1c => sha1_rounds(d, n[0], m, |x, y, z| (y ^ z) & x ^ z),
                Sha1p => sha1_rounds(d, n[0], m, |x, y, z| x ^ y ^ z),
                Sha1m => sha1_rounds(d, n[0], m, majority),
                Sha1h => [n[0].rotate_left(30), 0, 0, 0],
                Sha1su0 => [d[2] ^ d[0] ^ m[0], d[3] ^ d[1] ^ m[1], n[0] ^ d[2] ^ m[2], n[1] ^ d[3] ^ m[3]],
                Sha1su1 => {
                    let t = [d[0] ^ n[1], d[1] ^ n[2], d[2] ^ n[3], d[3]];
                    let mut result = t.map(|word| word.rotate_left(1));
                    result[3] ^= t[0].rotate_left(2);
                    result
                }
                Sha256h => sha256_rounds(d, n, m).0,
                Sha256h2 => sha256_rounds(n, d, m).1,
                Sha256su0 => {
                    let next = [d[1], d[2], d[3], n[0]];
                    std::array::from_fn(|at| {
                        let word = next[at];
                        let mixed = word.rotate_right(7) ^ word.rotate_right(18) ^ word >> 3;
                        mixed.wrapping_add(d[at])
                    })
                }
                Sha256su1 => sha256_schedule(d, n, m),
                _ => return false,
            };
            put(state, i.rd(), from_words(result), true);
            return true;
        }
    };
    put(state, i.rd(), result, true);
    true
}

fn words(bytes: [u8; 16]) -> [u32; 4] {
    std::array::from_fn(|word| u32::from_le_bytes(std::array::from_fn(|byte| bytes[4 * word + byte])))
}

fn from_words(words: [u32; 4]) -> [u8; 16] {
    std::array::from_fn(|byte| words[byte / 4].to_le_bytes()[byte % 4])
}

fn majority(x: u32, y: u32, z: u32) -> u32 {
    x & y | (x | y) & z
}

fn sha1_rounds(mut x: [u32; 4], mut y: u32, words: [u32; 4], of: impl Fn(u32, u32, u32) -> u32) -> [u32; 4] {
    for word in words {
        y = y.wrapping_add(x[0].rotate_left(5)).wrapping_add(of(x[1], x[2], x[3])).wrapping_add(word);
        (x, y) = ([y, x[0], x[1].rotate_left(30), x[2]], x[3]);
    }
    x
}

fn sha256_rounds(mut x: [u32; 4], mut y: [u32; 4], words: [u32; 4]) -> ([u32; 4], [u32; 4]) {
    for word in words {
        let sum_of_y = y[0].rotate_right(6) ^ y[0].rotate_right(11) ^ y[0].rotate_right(25);
        let sum_of_x = x[0].rotate_right(2) ^ x[0].rotate_right(13) ^ x[0].rotate_right(22);
        let choice = (y[1] ^ y[2]) & y[0] ^ y[2];
        let first = y[3].wrapping_add(sum_of_y).wrapping_add(choice).wrapping_add(word);
        let second = sum_of_x.wrapping_add(majority(x[0], x[1], x[2]));
        (x, y) =
            ([first.wrapping_add(second), x[0], x[1], x[2]], [first.wrapping_add(x[3]), y[0], y[1], y[2]]);
    }
    (x, y)
}

fn sha256_schedule(d: [u32; 4], n: [u32; 4], m: [u32; 4]) -> [u32; 4] {
    let added = [n[1], n[2], n[3], m[0]];
    let mixed = |word: u32| word.rotate_right(17) ^ word.rotate_right(19) ^ word >> 10;
    let sum = |at: usize, word| mixed(word).wrapping_add(d[at]).wrapping_add(added[at]);
    let (first, second) = (sum(0, m[2]), sum(1, m[3]));
    [first, second, sum(2, first), sum(3, second)]
}

/// Multiplies in the field of AES.
const fn product(mut a: u8, mut b: u8) -> u8 {
    let mut sum = 0;
    while b != 0 {
        if b & 1 != 0 {
            sum ^= a;
        }
        a = a << 1 ^ if a >> 7 != 0 { 0x1b } else { 0 };
        b >>= 1;
    }
    sum
}

/// The substitution table and its inverse.
const SUBSTITUTIONS: [[u8; 256]; 2] = {
    let mut tables = [[0; 256]; 2];
    // 3 generates the field's nonzero elements, and 0xf6 is its inverse.
    let (mut element, mut inverse) = (1, 1);
    let mut count = 0;
    while count < 255 {
        let byte: u8 = inverse;
        let mixed = byte
            ^ byte.rotate_left(1)
            ^ byte.rotate_left(2)
            ^ byte.rotate_left(3)
            ^ byte.rotate_left(4)
            ^ 0x63;
        tables[0][element as usize] = mixed;
        tables[1][mixed as usize] = element;
        element = product(element, 3);
        inverse = product(inverse, 0xf6);
        count += 1;
    }
    tables[0][0] = 0x63;
    tables[1][0x63] = 0;
    tables
};

fn aes(i: Instruction, d: [u8; 16], n: [u8; 16]) -> [u8; 16] {
    let is_inverse = matches!(i.op, Op::Aesd | Op::Aesimc);
    if matches!(i.op, Op::Aesmc | Op::Aesimc) {
        let factors: [u8; 4] = if is_inverse { [14, 11, 13, 9] } else { [2, 3, 1, 1] };
        return std::array::from_fn(|byte| {
            let column = byte & !3;
            (0..4).fold(0, |sum, row| sum ^ product(n[column + (byte + row) % 4], factors[row]))
        });
    }
    // Row r of the state is shifted by r columns.
    let step = if is_inverse { 13 } else { 5 };
    std::array::from_fn(|byte| {
        let from = ((byte & !3) + step * (byte % 4)) % 16;
        SUBSTITUTIONS[usize::from(is_inverse)][usize::from(d[from] ^ n[from])]
    })
}
