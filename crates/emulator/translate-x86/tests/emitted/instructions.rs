//! Snapshots of each x86-64 instruction alone.

use std::collections::{BTreeMap, BTreeSet};

use iced_x86::{Code, CpuidFeature, FlowControl, Instruction, Mnemonic};
use longma_translate_conformance::emitted::{OUTSIDE, SOURCE, Source, single, with_and_without_flags};
use longma_translate_x86::X86_64;

use crate::operands::{Form, encoded};

const HEAD: &str = "\
# The LoongArch code of single instructions, with the number of LoongArch instructions. tests/emitted/main.rs describes how to update this file.
# The first version has no live flags; a second one, if different, has all flags live. \"later\" marks code at the end of the block.
# rax s0, rcx s1, rdx s2, rbx s3, rsp sp, rbp s5, rsi s6, rdi s7, r8 a2 to r11 a5, r12 t5 to r15 t8; xmm0 vr16 and so on.
# CF a6, not ZF a7, SF t0, OF t1, PF t2, AF t3. `engine`: the engine executes it.

";

/// `add r15d, r15d; ret`, which makes all previous flags dead.
const NO_FLAGS: &[u8] = &[0x45, 0x01, 0xff, 0xc3];

/// The text of each group of instructions.
pub fn texts() -> BTreeMap<&'static str, String> {
    let mut texts: BTreeMap<&'static str, String> = BTreeMap::new();
    // Many instructions have several encodings.
    let mut forms_seen = BTreeSet::new();
    for code in Code::values() {
        let Some(group) = group(code) else { continue };
        for form in [Form::Register, Form::Memory, Form::Locked, Form::Repeated] {
            let Some((instruction, bytes)) = encoded(code, form) else { continue };
            let text = shown(&instruction, bytes);
            if !instruction.is_privileged() && forms_seen.insert(text.clone()) {
                texts.entry(group).or_insert_with(|| HEAD.into()).push_str(&text);
            }
        }
    }
    texts
}

/// The text of an instruction followed by a jump to [`OUTSIDE`].
fn shown(instruction: &Instruction, mut code: Vec<u8>) -> String {
    let next = SOURCE + code.len() as u64 + 5;
    code.push(0xe9);
    code.extend(((OUTSIDE - next) as u32).to_le_bytes());
    // LOCK does not change how flags are computed.
    if instruction.rflags_modified() != 0 && !instruction.has_lock_prefix() {
        with_and_without_flags::<X86_64>(&code, NO_FLAGS)
    } else {
        single::<X86_64>(&Source { code: &code, outside: NO_FLAGS }).shown()
    }
}

/// The snapshot file of an instruction.
fn group(code: Code) -> Option<&'static str> {
    use CpuidFeature::*;
    let op_code = code.op_code();
    if !op_code.mode64() {
        return None;
    }
    let features = code.cpuid_features();
    let mut groups = features.iter().map(|feature| match feature {
        INTEL8086 | INTEL186 | INTEL286 | INTEL386 | INTEL486 | X64 | CMOV | POPCNT | CX8 | CMPXCHG16B => {
            Some(kind(code))
        }
        FPU | FPU287 | FPU387 => Some("x87"),
        SSE => Some("sse"),
        SSE2 => Some("sse2"),
        SSE3 | SSSE3 | SSE4_1 | SSE4_2 => Some("sse3_and_4"),
        AVX | F16C => Some("avx"),
        AVX2 => Some("avx2"),
        FMA => Some("fma"),
        BMI1 | BMI2 | LZCNT | MOVBE => Some("bmi"),
        AES | PCLMULQDQ | SHA => Some("crypto"),
        _ => None,
    });
    let first = groups.next()??;
    groups.all(|group| group.is_some()).then_some(first)
}

/// The group of an integer instruction.
fn kind(code: Code) -> &'static str {
    use Mnemonic::*;
    match code.mnemonic() {
        Add | Adc | Sub | Sbb | Cmp | Neg | Inc | Dec | Xadd | Cmpxchg | Cmpxchg8b | Cmpxchg16b => "sums",
        Mul | Imul | Div | Idiv => "products",
        And | Or | Xor | Not | Test => "logic",
        Shl | Sal | Shr | Sar | Rol | Ror | Rcl | Rcr | Shld | Shrd => "shifts",
        Bt | Bts | Btr | Btc | Bsf | Bsr | Popcnt | Bswap => "bits",
        mnemonic => {
            let name = format!("{mnemonic:?}");
            if name.starts_with("Set") || name.starts_with("Cmov") {
                "conditions"
            } else if code.flow_control() != FlowControl::Next {
                "jumps"
            } else {
                "moves"
            }
        }
    }
}
