//! Cryptography of translated code: AES, carry-less multiplication, SHA-1 and SHA-256. Each instruction has the
//! semantics of one instruction of x86-64 or AArch64. Source: FIPS 197 (AES); FIPS 180-4 (SHA); Intel SDM, volume 2
//! (AESENC, PCLMULQDQ, SHA1RNDS4, SHA256RNDS2 and relatives); Arm Architecture Reference Manual (Arm DDI 0487), section
//! C7.2 (AESE, SHA1C, SHA256H and relatives).

use super::Semantics;
use super::private::permit;
use crate::{Environment, Instruction, Op, State, Trap};

/// Four words, the lowest first.
type Words = [u32; 4];
/// The bytes of a vector, the lowest first.
type Bytes = [u8; 16];

/// The semantics of `op`; `None` if another file defines it.
pub(super) fn lookup<E: Environment>(op: Op) -> Option<Semantics<E>> {
    Some(match op {
        Op::Vaesenc => |s, i, e| run(s, i, e, |[_, j, k]| mix(substitute(j, false), false) ^ k),
        Op::Vaesenclast => |s, i, e| run(s, i, e, |[_, j, k]| substitute(j, false) ^ k),
        Op::Vaesdec => |s, i, e| run(s, i, e, |[_, j, k]| mix(substitute(j, true), true) ^ k),
        Op::Vaesdeclast => |s, i, e| run(s, i, e, |[_, j, k]| substitute(j, true) ^ k),
        Op::Vaesmc => |s, i, e| run(s, i, e, |[_, j, _]| mix(j, false)),
        Op::Vaesimc => |s, i, e| run(s, i, e, |[_, j, _]| mix(j, true)),
        Op::Vaese => |s, i, e| run(s, i, e, |[d, j, _]| substitute(d ^ j, false)),
        Op::Vaesd => |s, i, e| run(s, i, e, |[d, j, _]| substitute(d ^ j, true)),
        Op::Vaeskeygen => |s, i, e| {
            let constant = i.imm as u32;
            run(s, i, e, |[_, j, _]| round_key_words(j, constant))
        },
        Op::Vclmul => |s, i, e| {
            let choice = i.imm;
            run(s, i, e, |[_, j, k]| carry_less_product(half(j, choice & 1), half(k, choice >> 1)))
        },
        Op::Vsha1c => |s, i, e| run_words(s, i, e, |[d, j, k]| sha1_rounds(d, j[0], k, choose)),
        Op::Vsha1p => |s, i, e| run_words(s, i, e, |[d, j, k]| sha1_rounds(d, j[0], k, parity)),
        Op::Vsha1m => |s, i, e| run_words(s, i, e, |[d, j, k]| sha1_rounds(d, j[0], k, majority)),
        Op::Vsha1su0 => |s, i, e| {
            run_words(s, i, e, |[d, j, k]| {
                [d[2] ^ d[0] ^ k[0], d[3] ^ d[1] ^ k[1], j[0] ^ d[2] ^ k[2], j[1] ^ d[3] ^ k[3]]
            })
        },
        Op::Vsha1su1 => |s, i, e| {
            run_words(s, i, e, |[d, j, _]| {
                let mixed = [d[0] ^ j[1], d[1] ^ j[2], d[2] ^ j[3], d[3]];
                let rotated = mixed.map(|word| word.rotate_left(1));
                [rotated[0], rotated[1], rotated[2], rotated[3] ^ mixed[0].rotate_left(2)]
            })
        },
        Op::Vsha1rnds4 => |s, i, e| {
            let stage = i.imm as usize;
            run_words(s, i, e, |[d, j, _]| sha1_stage(d, j, stage))
        },
        Op::Vsha1nexte => |s, i, e| {
            run_words(s, i, e, |[d, j, _]| [j[0], j[1], j[2], j[3].wrapping_add(d[3].rotate_left(30))])
        },
        Op::Vsha1msg1 => {
            |s, i, e| run_words(s, i, e, |[d, j, _]| [d[0] ^ j[2], d[1] ^ j[3], d[2] ^ d[0], d[3] ^ d[1]])
        }
        Op::Vsha1msg2 => |s, i, e| {
            run_words(s, i, e, |[d, j, _]| {
                let high = |at: usize| (d[at] ^ j[at - 1]).rotate_left(1);
                [(d[0] ^ high(3)).rotate_left(1), high(1), high(2), high(3)]
            })
        },
        Op::Vsha256h => |s, i, e| run_words(s, i, e, |[d, j, k]| sha256_rounds(d, j, &k).0),
        Op::Vsha256h2 => |s, i, e| run_words(s, i, e, |[d, j, k]| sha256_rounds(j, d, &k).1),
        Op::Vsha256rnds2 => |s, i, e| {
            run_words(s, i, e, |[d, j, k]| {
                // The state is in descending order: C D G H, and A B E F.
                let ([a, b, ..], [e, f, ..]) =
                    sha256_rounds([j[3], j[2], d[3], d[2]], [j[1], j[0], d[1], d[0]], &k[..2]);
                [f, e, b, a]
            })
        },
        Op::Vsha256su0 => |s, i, e| {
            run_words(s, i, e, |[d, j, _]| {
                let next = [d[1], d[2], d[3], j[0]];
                std::array::from_fn(|at| d[at].wrapping_add(small_sigma_0(next[at])))
            })
        },
        Op::Vsha256su1 => |s, i, e| {
            run_words(s, i, e, |[d, j, k]| {
                let added = [j[1], j[2], j[3], k[0]];
                sha256_schedule(std::array::from_fn(|at| d[at].wrapping_add(added[at])), k)
            })
        },
        Op::Vsha256msg2 => |s, i, e| run_words(s, i, e, |[d, j, _]| sha256_schedule(d, j)),
        _ => return None,
    })
}

/// Writes the result of `of` for `d`, `j` and `k` to `d`.
fn run<E: Environment>(
    state: &mut State,
    i: &Instruction,
    environment: &E,
    of: impl Fn([u128; 3]) -> u128,
) -> Result<(), Trap> {
    permit(environment)?;
    let result = of([i.d, i.j, i.k].map(|number| {
        let [low, high, ..] = state.v[usize::from(number)].0;
        u128::from(high) << 64 | u128::from(low)
    }));
    state.v[usize::from(i.d)].0[..2].copy_from_slice(&[result as u64, (result >> 64) as u64]);
    Ok(())
}

/// As [`run`], in words.
fn run_words<E: Environment>(
    state: &mut State,
    i: &Instruction,
    environment: &E,
    of: impl Fn([Words; 3]) -> Words,
) -> Result<(), Trap> {
    run(state, i, environment, |operands| join(of(operands.map(split))))
}

fn split(value: u128) -> Words {
    std::array::from_fn(|at| (value >> (32 * at)) as u32)
}

fn join(words: Words) -> u128 {
    words.into_iter().rev().fold(0, |joined, word| joined << 32 | u128::from(word))
}

fn half(value: u128, number: i32) -> u64 {
    (value >> (64 * number)) as u64
}

/// The product of polynomials over GF(2).
fn carry_less_product(a: u64, b: u64) -> u128 {
    (0..64).filter(|bit| b >> bit & 1 != 0).fold(0, |sum, bit| sum ^ u128::from(a) << bit)
}

/// AES's substitution table and its inverse: the multiplicative inverse in GF(2^8), then an affine transformation.
static SUBSTITUTION: [[u8; 256]; 2] = {
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
};

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

/// SubBytes and ShiftRows, or their inverses. Row `r` of the state is shifted by `r` columns.
fn substitute(state: u128, is_inverse: bool) -> u128 {
    let bytes = state.to_le_bytes();
    let table = &SUBSTITUTION[usize::from(is_inverse)];
    u128::from_le_bytes(std::array::from_fn(|at| {
        let (column, row) = (at / 4, at % 4);
        let from = if is_inverse { column + 4 - row } else { column + row };
        table[usize::from(bytes[4 * (from % 4) + row])]
    }))
}

/// MixColumns or its inverse.
fn mix(state: u128, is_inverse: bool) -> u128 {
    let factors: [u8; 4] = if is_inverse { [14, 11, 13, 9] } else { [2, 3, 1, 1] };
    let bytes: Bytes = state.to_le_bytes();
    u128::from_le_bytes(std::array::from_fn(|at| {
        let column = at & !3;
        (0..4).fold(0, |sum, row| sum ^ product(bytes[column + (at + row) % 4], factors[row]))
    }))
}

/// AESKEYGENASSIST: the substituted odd words of a round key, and the same rotated and combined with `constant`.
fn round_key_words(key: u128, constant: u32) -> u128 {
    let substituted = |word: u32| {
        let bytes = word.to_le_bytes();
        u32::from_le_bytes(bytes.map(|byte| SUBSTITUTION[0][usize::from(byte)]))
    };
    let [_, first, _, third] = split(key);
    let (first, third) = (substituted(first), substituted(third));
    join([first, first.rotate_right(8) ^ constant, third, third.rotate_right(8) ^ constant])
}

fn choose(x: u32, y: u32, z: u32) -> u32 {
    x & y ^ !x & z
}

fn parity(x: u32, y: u32, z: u32) -> u32 {
    x ^ y ^ z
}

fn majority(x: u32, y: u32, z: u32) -> u32 {
    x & y ^ x & z ^ y & z
}

/// Four rounds of SHA-1 on the state A B C D, and E. `added` are the words of the schedule plus the constants.
fn sha1_rounds(mut state: Words, mut e: u32, added: Words, of: fn(u32, u32, u32) -> u32) -> Words {
    for word in added {
        let [a, b, c, d] = state;
        let next = [e, a.rotate_left(5), of(b, c, d), word].into_iter().fold(0, u32::wrapping_add);
        (state, e) = ([next, a, b.rotate_left(30), c], d);
    }
    state
}

/// SHA1RNDS4: four rounds of a stage. The words are in descending order, and the highest of `added` contains E.
fn sha1_stage([d, c, b, a]: Words, added: Words, stage: usize) -> Words {
    const CONSTANTS: Words = [0x5a82_7999, 0x6ed9_eba1, 0x8f1b_bcdc, 0xca62_c1d6];
    let of = [choose, parity, majority, parity][stage];
    let mut added = added.map(|word| word.wrapping_add(CONSTANTS[stage]));
    added.reverse();
    let mut state = sha1_rounds([a, b, c, d], 0, added, of);
    state.reverse();
    state
}

/// A round of SHA-256 for each of `added`, on the state A B C D and E F G H. `added` are the words of the schedule plus
/// the constants.
fn sha256_rounds(mut first: Words, mut second: Words, added: &[u32]) -> (Words, Words) {
    for word in added {
        let ([a, b, c, d], [e, f, g, h]) = (first, second);
        let sum_0 = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
        let sum_1 = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
        let t1 = [h, sum_1, choose(e, f, g), *word].into_iter().fold(0, u32::wrapping_add);
        let t2 = sum_0.wrapping_add(majority(a, b, c));
        (first, second) = ([t1.wrapping_add(t2), a, b, c], [d.wrapping_add(t1), e, f, g]);
    }
    (first, second)
}

fn small_sigma_0(word: u32) -> u32 {
    word.rotate_right(7) ^ word.rotate_right(18) ^ word >> 3
}

fn small_sigma_1(word: u32) -> u32 {
    word.rotate_right(17) ^ word.rotate_right(19) ^ word >> 10
}

/// Four words of SHA-256's schedule from their partial sums. The last two words of `previous` precede them.
fn sha256_schedule(sums: Words, previous: Words) -> Words {
    let word = |at: usize, two_before| small_sigma_1(two_before).wrapping_add(sums[at]);
    let (first, second) = (word(0, previous[2]), word(1, previous[3]));
    [first, second, word(2, first), word(3, second)]
}
