//! Standard test vectors, computed as programs for x86-64 and AArch64 compute them.

use longma_loongarch::{Class, Op};

use super::result;

/// The padded message `abc`, as words in the order of the standard.
const ABC: [u32; 16] = [0x6162_6380, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 24];

fn join(words: [u32; 4]) -> u128 {
    words.into_iter().rev().fold(0, |joined, word| joined << 32 | u128::from(word))
}

fn split(value: u128) -> [u32; 4] {
    std::array::from_fn(|at| (value >> (32 * at)) as u32)
}

fn reversed(value: u128) -> u128 {
    let mut words = split(value);
    words.reverse();
    join(words)
}

fn sum(a: u128, b: u128) -> u128 {
    let (a, b) = (split(a), split(b));
    join(std::array::from_fn(|at| a[at].wrapping_add(b[at])))
}

/// Words `4 * at` and following of [`ABC`].
fn message(at: usize) -> u128 {
    join(std::array::from_fn(|word| ABC[4 * at + word]))
}

/// The first 32 bits of the fractional parts of roots of the first primes, which are SHA-256's constants.
fn sha256_constants() -> [u32; 64] {
    let primes = (2u64..).filter(|n| (2..*n).take_while(|d| d * d <= *n).all(|d| n % d != 0));
    let mut constants = [0; 64];
    for (constant, prime) in constants.iter_mut().zip(primes) {
        // The integer cube root of the prime times 2^96.
        let target = u128::from(prime) << 96;
        let mut root = 0u128;
        for bit in (0..=35).rev() {
            let next = root | 1 << bit;
            if next.pow(3) <= target {
                root = next;
            }
        }
        *constant = root as u32;
    }
    constants
}

const SHA256_ABC: [u32; 8] =
    [0xba78_16bf, 0x8f01_cfea, 0x4141_40de, 0x5dae_2223, 0xb003_61a3, 0x9617_7a9c, 0xb410_ff61, 0xf200_15ad];
const SHA256_START: [u32; 8] =
    [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19];
const SHA1_ABC: [u32; 5] = [0xa999_3e36, 0x4706_816a, 0xba3e_2571, 0x7850_c26c, 0x9cd0_d89d];
const SHA1_START: [u32; 5] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476, 0xc3d2_e1f0];
const SHA1_CONSTANTS: [u32; 4] = [0x5a82_7999, 0x6ed9_eba1, 0x8f1b_bcdc, 0xca62_c1d6];

/// SHA-256 as AArch64 computes it.
fn sha256_of_arm() -> [u32; 8] {
    let constants = sha256_constants();
    let halves = [0, 4].map(|at| join(std::array::from_fn(|word| SHA256_START[at + word])));
    let [mut abcd, mut efgh] = halves;
    let mut w: Vec<u128> = (0..4).map(message).collect();
    for at in 0..16 {
        let added = sum(w[at], join(std::array::from_fn(|word| constants[4 * at + word])));
        let before = abcd;
        abcd = result(Op::Vsha256h, [abcd, efgh, added], 0);
        efgh = result(Op::Vsha256h2, [efgh, before, added], 0);
        let partial = result(Op::Vsha256su0, [w[at], w[at + 1], 0], 0);
        w.push(result(Op::Vsha256su1, [partial, w[at + 2], w[at + 3]], 0));
    }
    let (abcd, efgh) = (split(sum(abcd, halves[0])), split(sum(efgh, halves[1])));
    std::array::from_fn(|at| if at < 4 { abcd[at] } else { efgh[at - 4] })
}

/// SHA-256 as x86-64 computes it.
fn sha256_of_x86() -> [u32; 8] {
    let constants = sha256_constants();
    let [a, b, c, d, e, f, g, h] = SHA256_START;
    let start = [join([f, e, b, a]), join([h, g, d, c])];
    let [mut abef, mut cdgh] = start;
    let mut w: Vec<u128> = (0..4).map(message).collect();
    for at in 0..16 {
        let added = sum(w[at], join(std::array::from_fn(|word| constants[4 * at + word])));
        for pair in [added, added >> 64] {
            (abef, cdgh) = (result(Op::Vsha256rnds2, [cdgh, abef, pair], 0), abef);
        }
        let partial = result(Op::Vsha256su0, [w[at], w[at + 1], 0], 0);
        let shifted = w[at + 2] >> 32 | w[at + 3] << 96;
        w.push(result(Op::Vsha256msg2, [sum(partial, shifted), w[at + 3], 0], 0));
    }
    let ([f, e, b, a], [h, g, d, c]) = (split(sum(abef, start[0])), split(sum(cdgh, start[1])));
    [a, b, c, d, e, f, g, h]
}

/// SHA-1 as AArch64 computes it.
fn sha1_of_arm() -> [u32; 5] {
    let [a, b, c, d, e] = SHA1_START;
    let start = join([a, b, c, d]);
    let (mut state, mut e_now) = (start, e);
    let mut w: Vec<u128> = (0..4).map(message).collect();
    for at in 0..20 {
        let stage = at / 5;
        let added = sum(w[at], join([SHA1_CONSTANTS[stage]; 4]));
        let op = [Op::Vsha1c, Op::Vsha1p, Op::Vsha1m, Op::Vsha1p][stage];
        let next = split(state)[0].rotate_left(30);
        (state, e_now) = (result(op, [state, e_now.into(), added], 0), next);
        let partial = result(Op::Vsha1su0, [w[at], w[at + 1], w[at + 2]], 0);
        w.push(result(Op::Vsha1su1, [partial, w[at + 3], 0], 0));
    }
    let [a, b, c, d] = split(sum(state, start));
    [a, b, c, d, e.wrapping_add(e_now)]
}

/// SHA-1 as x86-64 computes it, with words in descending order.
fn sha1_of_x86() -> [u32; 5] {
    let [a, b, c, d, e] = SHA1_START;
    let start = join([d, c, b, a]);
    let (mut state, mut before) = (start, None);
    let mut w: Vec<u128> = (0..4).map(|at| reversed(message(at))).collect();
    for at in 0..20 {
        let added = match before {
            None => sum(w[at], u128::from(e) << 96),
            Some(before) => result(Op::Vsha1nexte, [before, w[at], 0], 0),
        };
        before = Some(state);
        state = result(Op::Vsha1rnds4, [state, added, 0], at as i32 / 5);
        let partial = result(Op::Vsha1msg1, [w[at], w[at + 1], 0], 0);
        w.push(result(Op::Vsha1msg2, [partial ^ w[at + 2], w[at + 3], 0], 0));
    }
    let last = result(Op::Vsha1nexte, [before.expect("20 rounds"), u128::from(e) << 96, 0], 0);
    let [d, c, b, a] = split(sum(state, start));
    [a, b, c, d, split(last)[3]]
}

/// A number whose bytes are in the order of the text.
fn bytes(text: u128) -> u128 {
    text.swap_bytes()
}

/// FIPS 197, appendix B: encryption with a key of 128 bits, by both architectures' instructions, and back.
fn aes() {
    let plain = bytes(0x3243_f6a8_885a_308d_3131_98a2_e037_0734);
    let cipher = bytes(0x3925_841d_02dc_09fb_dc11_8597_196a_0b32);
    let mut keys = vec![bytes(0x2b7e_1516_28ae_d2a6_abf7_1588_09cf_4f3c)];
    for constant in [1, 2, 4, 8, 16, 32, 64, 128, 0x1b, 0x36] {
        let key = keys[keys.len() - 1];
        let word = split(result(Op::Vaeskeygen, [0, key, 0], constant))[3];
        let spread = key ^ key << 32 ^ key << 64 ^ key << 96;
        keys.push(spread ^ join([word; 4]));
    }
    assert_eq!(keys[10], bytes(0xd014_f9a8_c9ee_2589_e13f_0cc8_b663_0ca6), "FIPS 197, appendix A.1");

    let (first, last) = (keys[0], keys[10]);
    let encrypted =
        keys[1..10].iter().fold(plain ^ first, |state, key| result(Op::Vaesenc, [0, state, *key], 0));
    assert_eq!(result(Op::Vaesenclast, [0, encrypted, last], 0), cipher);
    let inverse: Vec<u128> =
        keys[1..10].iter().rev().map(|key| result(Op::Vaesimc, [0, *key, 0], 0)).collect();
    let decrypted = inverse.iter().fold(cipher ^ last, |state, key| result(Op::Vaesdec, [0, state, *key], 0));
    assert_eq!(result(Op::Vaesdeclast, [0, decrypted, first], 0), plain);

    let encrypted = keys[..9]
        .iter()
        .fold(plain, |state, key| result(Op::Vaesmc, [0, result(Op::Vaese, [state, *key, 0], 0), 0], 0));
    assert_eq!(result(Op::Vaese, [encrypted, keys[9], 0], 0) ^ last, cipher);
    let all: Vec<u128> = std::iter::once(last).chain(inverse).collect();
    let decrypted = all[..9]
        .iter()
        .fold(cipher, |state, key| result(Op::Vaesimc, [0, result(Op::Vaesd, [state, *key, 0], 0), 0], 0));
    assert_eq!(result(Op::Vaesd, [decrypted, all[9], 0], 0) ^ first, plain);
}

/// Products of polynomials: by one, by x, and the largest square.
fn products() {
    let (a, b) = (0x1234_5678_9abc_def0_0fed_cba9_8765_4321, 0x8000_0000_0000_0001_0000_0000_0000_0002);
    let high = a >> 64;
    assert_eq!(result(Op::Vclmul, [0, a, b], 0), u128::from(a as u64) << 1);
    assert_eq!(result(Op::Vclmul, [0, a, b], 1), high << 1);
    assert_eq!(result(Op::Vclmul, [0, a, b], 2), u128::from(a as u64) << 63 ^ u128::from(a as u64));
    assert_eq!(result(Op::Vclmul, [0, a, b], 3), high << 63 ^ high);
    assert_eq!(result(Op::Vclmul, [0, u64::MAX.into(), u64::MAX.into()], 0), u128::MAX / 3);
}

/// Computes all vectors, and returns the instructions that take part.
pub fn tested() -> Vec<Op> {
    assert_eq!(sha256_of_arm(), SHA256_ABC);
    assert_eq!(sha256_of_x86(), SHA256_ABC);
    assert_eq!(sha1_of_arm(), SHA1_ABC);
    assert_eq!(sha1_of_x86(), SHA1_ABC);
    aes();
    products();
    super::all().filter(|op| op.row().class == Class::VectorIntMul).collect()
}
