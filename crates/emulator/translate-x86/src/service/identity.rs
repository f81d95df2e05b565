//! CPUID. Source: Intel SDM, volume 2 (CPUID); System V ABI, AMD64 supplement, section 3.1.1 (micro-architecture
//! levels).

use super::Machine;
use super::area::{AREA_BYTES, COMPONENTS, UPPERS_AT};
use crate::features::{has_avx, has_sse4};
use crate::registers::*;

/// CPUID.1:EDX: FPU, TSC, CX8, CMOV, CLFSH, MMX, FXSR, SSE, SSE2.
const FEATURES_D: u32 = 1 | 1 << 4 | 1 << 8 | 1 << 15 | 1 << 19 | 1 << 23 | 1 << 24 | 1 << 25 | 1 << 26;
/// CPUID.1:ECX of x86-64-v2: SSE3, SSSE3, CMPXCHG16B, SSE4.1, SSE4.2, POPCNT.
const SSE4_C: u32 = 1 | 1 << 9 | 1 << 13 | 1 << 19 | 1 << 20 | 1 << 23;
/// CPUID.1:ECX: SSE3, PCLMULQDQ, SSSE3, FMA, CMPXCHG16B, SSE4.1, SSE4.2, MOVBE, POPCNT, AES, XSAVE, OSXSAVE, AVX,
/// F16C, RDRAND.
const FEATURES_C: u32 = 1
    | 1 << 1
    | 1 << 9
    | 1 << 12
    | 1 << 13
    | 1 << 19
    | 1 << 20
    | 1 << 22
    | 1 << 23
    | 1 << 25
    | 1 << 26
    | 1 << 27
    | 1 << 28
    | 1 << 29
    | 1 << 30;
/// CPUID.7:EBX: FSGSBASE, BMI1, AVX2, BMI2, RDSEED, ADX, CLFLUSHOPT, CLWB, SHA.
const FEATURES_7: u32 = 1 | 1 << 3 | 1 << 5 | 1 << 8 | 1 << 18 | 1 << 19 | 1 << 23 | 1 << 24 | 1 << 29;
/// CPUID.0xd.1:EAX: XSAVEOPT, XSAVEC, XGETBV with ECX = 1.
const SAVES: u32 = 1 | 1 << 1 | 1 << 2;
/// CPUID.0x80000001:ECX: LAHF in long mode; LZCNT.
const LAHF: u32 = 1;
const LZCNT: u32 = 1 << 5;

impl Machine<'_> {
    /// Executes CPUID.
    pub(super) fn identify(&mut self) {
        let (leaf, part) = (self.state.r(RAX) as u32, self.state.r(RCX) as u32);
        let text = |text: &[u8]| u32::from_le_bytes(std::array::from_fn(|at| text[at]));
        let name = b"LoongArch, which executes x86-64 code\0\0\0\0\0\0\0\0\0\0\0";
        let avx = has_avx();
        let if_avx = |value: u32| if avx { value } else { 0 };
        let features_c = if_avx(FEATURES_C) | if has_sse4() { SSE4_C } else { 0 };
        let [a, b, c, d] = match leaf {
            0 => [if avx { 0xd } else { 1 }, text(b"Genu"), text(b"ntel"), text(b"ineI")],
            1 => [0x0006_0f01, 1 << 16 | 8 << 8, features_c, FEATURES_D],
            7 if part == 0 => [0, if_avx(FEATURES_7), 0, 0],
            0xd if avx => Self::saved(part),
            0x8000_0000 => [0x8000_0008, 0, 0, 0],
            // SYSCALL, NX, RDTSCP, long mode.
            0x8000_0001 => [0, 0, LAHF | if_avx(LZCNT), 1 << 11 | 1 << 20 | 1 << 27 | 1 << 29],
            0x8000_0002..=0x8000_0004 => {
                let at = 16 * (leaf - 0x8000_0002) as usize;
                std::array::from_fn(|word| text(&name[at + 4 * word..]))
            }
            // Invariant TSC.
            0x8000_0007 => [0, 0, 0, 1 << 8],
            0x8000_0008 => [48 << 8 | 48, 0, 0, 0],
            _ => [0; 4],
        };
        for (register, value) in [(RAX, a), (RBX, b), (RCX, c), (RDX, d)] {
            self.state.set_r(register, value.into());
        }
    }

    /// The leaf of the XSAVE area: its size and the offset of the YMM upper halves.
    fn saved(part: u32) -> [u32; 4] {
        let bytes = AREA_BYTES as u32;
        match part {
            0 => [COMPONENTS as u32, bytes, bytes, 0],
            1 => [SAVES, bytes, 0, 0],
            2 => [bytes - UPPERS_AT as u32, UPPERS_AT as u32, 0, 0],
            _ => [0; 4],
        }
    }
}
