//! The host's instructions as an oracle.

use std::arch::x86_64::*;

use longma_loongarch::Op;
use longma_random::SplitMix64;

use super::result;

/// Whether the host has the instructions.
pub fn can_compare() -> bool {
    is_x86_feature_detected!("aes")
        && is_x86_feature_detected!("pclmulqdq")
        && is_x86_feature_detected!("sha")
        && is_x86_feature_detected!("sse4.1")
}

fn vector(value: u128) -> __m128i {
    // SAFETY: both types have 16 bytes, and every bit pattern is valid.
    unsafe { std::mem::transmute(value) }
}

fn number(vector: __m128i) -> u128 {
    // SAFETY: both types have 16 bytes, and every bit pattern is valid.
    unsafe { std::mem::transmute(vector) }
}

/// The result of the host's instruction; `None` if it has no equivalent.
#[target_feature(enable = "aes,pclmulqdq,sha,sse4.1")]
fn on_host(op: Op, [d, j, k]: [u128; 3], imm: i32) -> Option<u128> {
    let zero = vector(0);
    let xored = vector(d ^ j);
    let (d, j, k) = (vector(d), vector(j), vector(k));
    Some(number(match (op, imm) {
        (Op::Vaesenc, _) => _mm_aesenc_si128(j, k),
        (Op::Vaesenclast, _) => _mm_aesenclast_si128(j, k),
        (Op::Vaesdec, _) => _mm_aesdec_si128(j, k),
        (Op::Vaesdeclast, _) => _mm_aesdeclast_si128(j, k),
        (Op::Vaesmc, _) => _mm_aesenc_si128(_mm_aesdeclast_si128(j, zero), zero),
        (Op::Vaesimc, _) => _mm_aesimc_si128(j),
        (Op::Vaese, _) => _mm_aesenclast_si128(xored, zero),
        (Op::Vaesd, _) => _mm_aesdeclast_si128(xored, zero),
        (Op::Vaeskeygen, 0) => _mm_aeskeygenassist_si128::<0>(j),
        (Op::Vaeskeygen, 1) => _mm_aeskeygenassist_si128::<0x36>(j),
        (Op::Vaeskeygen, 2) => _mm_aeskeygenassist_si128::<0xff>(j),
        (Op::Vaeskeygen, _) => _mm_aeskeygenassist_si128::<1>(j),
        (Op::Vclmul, 0) => _mm_clmulepi64_si128::<0>(j, k),
        (Op::Vclmul, 1) => _mm_clmulepi64_si128::<1>(j, k),
        (Op::Vclmul, 2) => _mm_clmulepi64_si128::<0x10>(j, k),
        (Op::Vclmul, _) => _mm_clmulepi64_si128::<0x11>(j, k),
        (Op::Vsha1rnds4, 0) => _mm_sha1rnds4_epu32::<0>(d, j),
        (Op::Vsha1rnds4, 1) => _mm_sha1rnds4_epu32::<1>(d, j),
        (Op::Vsha1rnds4, 2) => _mm_sha1rnds4_epu32::<2>(d, j),
        (Op::Vsha1rnds4, _) => _mm_sha1rnds4_epu32::<3>(d, j),
        (Op::Vsha1nexte, _) => _mm_sha1nexte_epu32(d, j),
        (Op::Vsha1msg1, _) => _mm_sha1msg1_epu32(d, j),
        (Op::Vsha1msg2, _) => _mm_sha1msg2_epu32(d, j),
        (Op::Vsha256rnds2, _) => _mm_sha256rnds2_epu32(d, j, k),
        (Op::Vsha256su0, _) => _mm_sha256msg1_epu32(d, j),
        (Op::Vsha256msg2, _) => _mm_sha256msg2_epu32(d, j),
        _ => return None,
    }))
}

/// The immediates that `on_host` distinguishes, as the instruction has them.
fn immediate(op: Op, choice: i32) -> i32 {
    if op == Op::Vaeskeygen { [0, 0x36, 0xff, 1][choice as usize] } else { choice }
}

/// Compares all instructions, and returns those that the host has.
pub fn tested() -> Vec<Op> {
    if !can_compare() {
        return Vec::new();
    }
    let mut random = SplitMix64::new(7);
    let mut any = || u128::from(random.next_u64()) << 64 | u128::from(random.next_u64());
    let mut tested = Vec::new();
    for op in super::all() {
        for round in 0..400 {
            let operands = match round {
                0 => [0; 3],
                1 => [u128::MAX; 3],
                _ => [any(), any(), any()],
            };
            let choice = round % 4;
            // SAFETY: the host has these extensions.
            let Some(expected) = (unsafe { on_host(op, operands, choice) }) else { break };
            let name = op.mnemonic();
            assert_eq!(
                result(op, operands, immediate(op, choice)),
                expected,
                "{name} {operands:x?} {choice}"
            );
            tested.push(op);
        }
    }
    tested.dedup();
    tested
}
