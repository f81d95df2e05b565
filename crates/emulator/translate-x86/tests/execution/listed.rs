//! The list of all instructions that iced-x86 knows for the features that CPUID announces, and whether they are
//! executed.
//! `LONGMA_UPDATE=1` updates `announced.txt`.

use std::collections::BTreeMap;
use std::path::Path;

use iced_x86::{Code, CpuidFeature, Decoder, Encoder, FlowControl, OpCodeOperandKind, OpKind, Register};

use crate::host::has_avx2;
use crate::instructions::{FEATURES, instruction, is_compared, is_not_comparable};
use crate::machine::{DATA_BYTES, MIDDLE, SOURCE, translated};
use crate::random::Random;

/// Announced features that are not in [`FEATURES`], because their instructions are not compared one by one.
const OTHERS: &[CpuidFeature] = &[
    CpuidFeature::FPU,
    CpuidFeature::FPU287,
    CpuidFeature::FPU387,
    CpuidFeature::FXSR,
    CpuidFeature::TSC,
    CpuidFeature::RDTSCP,
    CpuidFeature::SYSCALL,
    CpuidFeature::XSAVE,
    CpuidFeature::XSAVEC,
    CpuidFeature::XSAVEOPT,
    CpuidFeature::CPUID,
    CpuidFeature::PAUSE,
    CpuidFeature::MULTIBYTENOP,
];

/// How an instruction is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Handling {
    /// Executed, and compared with the host's processor by `instructions.rs`.
    Compared,
    /// Executed; other tests cover it.
    Executed,
    /// A branch, a string or stack instruction, or one with other operands; whole programs cover it.
    Elsewhere,
    /// Privileged, or always an exception.
    Exception,
    /// Not supported: SIGILL.
    Refused,
}

/// The handling of an instruction with random operands; `None` if there is none with such operands.
fn handling(code: Code, random: &mut Random) -> Option<Handling> {
    let mut i = with_stack_operands(code).or_else(|| instruction(code, random, 0))?;
    if i.has_lock_prefix() {
        i.set_has_lock_prefix(false);
    }
    if i.flow_control() != FlowControl::Next || i.is_stack_instruction() {
        return Some(Handling::Elsewhere);
    }
    let mut encoder = Encoder::new(64);
    encoder.encode(&i, SOURCE).ok()?;
    let bytes = encoder.take_buffer();
    let i = Decoder::with_ip(64, &bytes, SOURCE, 0).decode();
    if i.code() != code {
        return None;
    }
    let mut data = vec![0u8; DATA_BYTES * 8];
    let data_at = data.as_ptr() as u64;
    let mut registers = random.registers(false);
    registers.general[7] = (data_at + MIDDLE).next_multiple_of(64);
    registers.general[4] = registers.general[7];
    let outcome = translated(&bytes, &mut registers, data_at, &mut data, None);
    let is_refused = outcome.is_err_and(|why| why.contains("IllegalInstruction"));
    Some(match is_refused {
        true => Handling::Refused,
        false if i.is_privileged() => Handling::Exception,
        false if is_compared(code) && !is_not_comparable(&i) => Handling::Compared,
        false => Handling::Executed,
    })
}

/// An instruction whose operands are registers of the x87 stack.
fn with_stack_operands(code: Code) -> Option<iced_x86::Instruction> {
    use OpCodeOperandKind::{st0, sti_opcode};
    let op_code = code.op_code();
    let mut i = iced_x86::Instruction::new();
    i.set_code(code);
    for operand in 0..op_code.op_count() {
        let register = match op_code.op_kind(operand) {
            st0 => Register::ST0,
            sti_opcode => Register::ST2,
            _ => return None,
        };
        i.set_op_kind(operand, OpKind::Register);
        i.set_op_register(operand, register);
    }
    (op_code.op_count() > 0).then_some(i)
}

/// One line for each mnemonic: its name, and the ways in which its encodings are handled.
fn list() -> String {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut by_name: BTreeMap<String, Vec<Handling>> = BTreeMap::new();
    let is_announced = |code: &Code| {
        let features = code.cpuid_features();
        code.op_code().mode64()
            && code.op_code().is_instruction()
            && features.iter().all(|known| FEATURES.contains(known) || OTHERS.contains(known))
    };
    longma_translate_x86::features::announce(longma_translate_x86::features::Features::Avx2);
    for code in Code::values().filter(is_announced) {
        let handlings = by_name.entry(format!("{:?}", code.mnemonic()).to_lowercase()).or_default();
        handlings.push(handling(code, &mut random).unwrap_or(Handling::Elsewhere));
    }
    let line = |(name, mut handlings): (String, Vec<Handling>)| {
        handlings.sort_unstable();
        handlings.dedup();
        let handlings: Vec<String> = handlings.iter().map(|handling| format!("{handling:?}")).collect();
        format!("{name} {}\n", handlings.join(" "))
    };
    by_name.into_iter().map(line).collect()
}

#[test]
fn every_announced_instruction_is_executed_or_listed_as_refused() {
    let is_complete = has_avx2() && is_x86_feature_detected!("sha") && is_x86_feature_detected!("adx");
    if !is_complete {
        return;
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/execution/announced.txt");
    let now = list();
    if std::env::var_os("LONGMA_UPDATE").is_some() {
        std::fs::write(&path, &now).unwrap();
    }
    let recorded = std::fs::read_to_string(&path).unwrap_or_default();
    let changed: Vec<&str> = now.lines().filter(|line| !recorded.lines().any(|old| old == *line)).collect();
    assert!(now == recorded, "LONGMA_UPDATE=1 updates the list; changed: {changed:?}");
}
