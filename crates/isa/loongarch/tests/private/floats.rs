//! The floating-point rules of x86-64, compared with the host's instructions.

use std::arch::asm;

use longma_loongarch::{Fcsr, Instruction, Op, State, semantics::execute};
use longma_random::SplitMix64;

use super::Code;

/// MXCSR's bits: subnormal operands are zeros, tiny results are zeros, and all exceptions masked.
const DAZ: u32 = 1 << 6;
const FTZ: u32 = 1 << 15;
const MASKED: u32 = 0x1f80;

/// Runs a host instruction on `$a` and `$b` with MXCSR `$control`. Returns the result and the exceptions.
macro_rules! on_host {
    ($name:literal, $a:expr, $b:expr, $control:expr) => {{
        let (mut a, mut control): (f64, u32) = (f64::from_bits($a), $control);
        let usual: u32 = MASKED;
        // SAFETY: the instructions change only the declared operands and MXCSR, which is restored.
        unsafe {
            asm!("ldmxcsr [{control}]", concat!($name, " {a}, {b}"), "stmxcsr [{control}]", "ldmxcsr [{usual}]",
                control = in(reg) &raw mut control, usual = in(reg) &raw const usual,
                a = inout(xmm_reg) a, b = in(xmm_reg) f64::from_bits($b), options(nostack));
        }
        (a.to_bits(), control & 0x3f)
    }};
}

/// Converts `$a` to an integer of the host.
macro_rules! integer_on_host {
    ($name:literal, $a:expr, $control:expr) => {{
        let (integer, mut control): (u64, u32);
        control = $control;
        let usual: u32 = MASKED;
        // SAFETY: the instructions change only the declared operands and MXCSR, which is restored.
        unsafe {
            asm!("ldmxcsr [{control}]", concat!($name, ", {a}"), "stmxcsr [{control}]", "ldmxcsr [{usual}]",
                control = in(reg) &raw mut control, usual = in(reg) &raw const usual,
                integer = out(reg) integer, a = in(xmm_reg) f64::from_bits($a), options(nostack));
        }
        (integer, control & 0x3f)
    }};
}

/// `a * b + c` of the host.
macro_rules! fused_on_host {
    ($name:literal, $a:expr, $b:expr, $c:expr, $control:expr) => {{
        let (mut a, mut control): (f64, u32) = (f64::from_bits($a), $control);
        let usual: u32 = MASKED;
        // SAFETY: the instructions change only the declared operands and MXCSR, which is restored.
        unsafe {
            asm!("ldmxcsr [{control}]", concat!($name, " {a}, {b}, {c}"), "stmxcsr [{control}]", "ldmxcsr [{usual}]",
                control = in(reg) &raw mut control, usual = in(reg) &raw const usual,
                a = inout(xmm_reg) a, b = in(xmm_reg) f64::from_bits($b), c = in(xmm_reg) f64::from_bits($c),
                options(nostack));
        }
        (a.to_bits(), control & 0x3f)
    }};
}

/// The host's instruction for `op`, on the values of `j` and `k`; `None` if it has none.
fn host(op: Op, [j, k, a]: [u64; 3], control: u32) -> Option<(u64, u32)> {
    Some(match op {
        Op::FaddS => on_host!("addss", j, k, control),
        Op::FaddD => on_host!("addsd", j, k, control),
        Op::FsubS => on_host!("subss", j, k, control),
        Op::FsubD => on_host!("subsd", j, k, control),
        Op::FmulS => on_host!("mulss", j, k, control),
        Op::FmulD => on_host!("mulsd", j, k, control),
        Op::FdivS => on_host!("divss", j, k, control),
        Op::FdivD => on_host!("divsd", j, k, control),
        Op::FsqrtS => on_host!("sqrtss", 0, j, control),
        Op::FsqrtD => on_host!("sqrtsd", 0, j, control),
        Op::FcvtSD => on_host!("cvtsd2ss", 0, j, control),
        Op::FcvtDS => on_host!("cvtss2sd", 0, j, control),
        Op::VfcmpCltS => on_host!("cmpltss", j, k, control | 1),
        Op::VfcmpSltD => on_host!("cmpltsd", j, k, control),
        Op::VfcmpCeqS => on_host!("cmpeqss", j, k, control),
        Op::VfcmpCeqD => on_host!("cmpeqsd", j, k, control),
        Op::FtintWS => integer_on_host!("cvtss2si {integer:e}", j, control),
        Op::FtintLS => integer_on_host!("cvtss2si {integer}", j, control),
        Op::FtintWD => integer_on_host!("cvtsd2si {integer:e}", j, control),
        Op::FtintrzWS => integer_on_host!("cvttss2si {integer:e}", j, control),
        Op::FtintrzWD => integer_on_host!("cvttsd2si {integer:e}", j, control),
        Op::FtintrzLD => integer_on_host!("cvttsd2si {integer}", j, control),
        Op::FmaddS => fused_on_host!("vfmadd213ss", k, j, a, control),
        Op::FmaddD => fused_on_host!("vfmadd213sd", k, j, a, control),
        Op::FmsubS => fused_on_host!("vfmsub213ss", k, j, a, control),
        Op::FmsubD => fused_on_host!("vfmsub213sd", k, j, a, control),
        _ => return None,
    })
}

const TESTED: [Op; 26] = [
    Op::FtintWS,
    Op::FtintLS,
    Op::FtintWD,
    Op::FtintrzWS,
    Op::FtintrzWD,
    Op::FtintrzLD,
    Op::FaddS,
    Op::FaddD,
    Op::FsubS,
    Op::FsubD,
    Op::FmulS,
    Op::FmulD,
    Op::FdivS,
    Op::FdivD,
    Op::FsqrtS,
    Op::FsqrtD,
    Op::FcvtSD,
    Op::FcvtDS,
    Op::VfcmpCltS,
    Op::VfcmpSltD,
    Op::VfcmpCeqS,
    Op::VfcmpCeqD,
    Op::FmaddS,
    Op::FmaddD,
    Op::FmsubS,
    Op::FmsubD,
];

/// FCSR for MXCSR `control`.
fn fcsr(control: u32) -> Fcsr {
    let mut fcsr = Fcsr::SSE_RULES | [0, 3, 2, 1][(control >> 13 & 3) as usize] << 8;
    if control & DAZ != 0 {
        fcsr |= Fcsr::FLUSH_OPERANDS;
    }
    if control & FTZ != 0 {
        fcsr |= Fcsr::FLUSH_RESULTS;
    }
    Fcsr(fcsr)
}

/// MXCSR's exceptions in FCSR.
fn exceptions(fcsr: Fcsr) -> u32 {
    let flags = [(20, 0), (21, 1), (19, 2), (18, 3), (17, 4), (16, 5)];
    flags.into_iter().map(|(from, to)| (fcsr.0 >> from & 1) << to).sum()
}

fn single(random: &mut SplitMix64) -> u64 {
    let special = [0, 1, 0x0040_0000, 0x0080_0000, 0x0080_0001, 0x3f7f_ffff, 0x3f80_0000, 0x7f80_0000];
    let nans = [0x7fc0_0001, 0x7fc0_0002, 0x7f80_0003];
    let sign = random.next_u64() & 1 << 31;
    sign | match random.next_u64() % 8 {
        0 => nans[random.next_u64() as usize % 3],
        1..4 => special[random.next_u64() as usize % 8],
        4 => random.next_u64() & 0x007f_ffff,
        // Near the least normal number and its root.
        5 => 0x2000_0000 | random.next_u64() & 0x00ff_ffff,
        6 => random.next_u64() & 0x01ff_ffff,
        _ => random.next_u64() & 0x7fff_ffff,
    }
}

fn double(random: &mut SplitMix64) -> u64 {
    let special = [0, 1, 1 << 51, 1 << 52, 0x3fef_ffff_ffff_ffff, 0x3ff0 << 48, 0x7ff0 << 48, 0x37f0 << 48];
    let nans = [0x7ff8_0000_0000_0001, 0x7ff8_0000_0000_0002, 0x7ff0_0000_0000_0003];
    let sign = random.next_u64() & 1 << 63;
    sign | match random.next_u64() % 8 {
        0 => nans[random.next_u64() as usize % 3],
        1..4 => special[random.next_u64() as usize % 8],
        4 => random.next_u64() & ((1 << 52) - 1),
        5 => 0x2000 << 48 | random.next_u64() & ((1 << 53) - 1),
        // Tiny in single precision.
        6 => 0x37f0 << 48 | random.next_u64() & ((1 << 54) - 1),
        _ => random.next_u64() & !(1 << 63),
    }
}

#[test]
fn operations_follow_the_hosts_rules_for_subnormals_and_nans() {
    if !is_x86_feature_detected!("fma") {
        return;
    }
    let mut random = SplitMix64::new(11);
    for op in TESTED {
        let name = op.mnemonic();
        let takes_double = name.ends_with(".d") && op != Op::FcvtDS || op == Op::FcvtSD;
        let gives_single = name.starts_with("fcvt.s")
            || name.contains(".w.")
            || name.ends_with(".s") && op != Op::FcvtDS && op != Op::FtintLS;
        for round in 0..20_000u32 {
            let operands: [u64; 3] =
                std::array::from_fn(|_| if takes_double { double(&mut random) } else { single(&mut random) });
            let control = MASKED
                | (round & 3) << 13
                | if round & 4 != 0 { DAZ } else { 0 }
                | if round & 8 != 0 { FTZ } else { 0 };
            let Some((expected, raised)) = host(op, operands, control) else { panic!("{name}") };
            let mut state = State { fcsr: fcsr(control), ..State::default() };
            for (number, value) in (5..).zip(operands) {
                state.v[number].0[0] = value;
            }
            let instruction = Instruction { d: 4, j: 5, k: 6, a: 7, ..Instruction::new(op) };
            execute(&mut state, &instruction, &Code { is_translated: true }).expect("nothing traps");
            let mask = if gives_single { u64::from(u32::MAX) } else { u64::MAX };
            let context = format!("{name} {operands:x?} with {control:x}");
            let (actual, natives) = (exceptions(state.fcsr), raised);
            if op != Op::VfcmpCltS {
                assert_eq!(actual, natives, "{context}: exceptions");
            }
            assert_eq!(state.v[4].0[0] & mask, expected & mask, "{context}");
        }
    }
}
