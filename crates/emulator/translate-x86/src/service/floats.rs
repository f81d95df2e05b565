//! MXCSR, which is stored in FCSR and its private bits. Source: Intel SDM, volume 1, section 10.2.3; LoongArch Reference
//! Manual, volume 1, section 3.1.2.3 (FCSR).

use longma_loongarch::{Fcsr, State};

use crate::registers::{SSE_CONTROL, ZERO_SUBNORMALS};

/// The bits of MXCSR that have no counterpart in FCSR: DAZ, the mask of denormal exceptions, FTZ. The mask is stored inverted.
const KEPT: u32 = DAZ | SUBNORMAL_MASK | FTZ;
const DAZ: u32 = 1 << ZERO_SUBNORMALS;
const FTZ: u32 = 1 << 15;
const UNDERFLOW_MASK: u32 = 1 << 11;
const SUBNORMAL_MASK: u32 = 1 << 8;

/// The positions of flags in MXCSR and FCSR: invalid, divide by zero, overflow, underflow, inexact.
const FLAGS: [(u32, u32); 5] = [(0, 4), (2, 3), (3, 2), (4, 1), (5, 0)];
/// MXCSR's flag of subnormal operands.
const SUBNORMAL: u32 = 1 << 1;

/// FCSR's private rules that every x86-64 program follows.
pub(crate) const INITIAL_FCSR: u32 = Fcsr::SSE_RULES;

/// Reads MXCSR.
pub(crate) fn control(state: &State) -> u32 {
    let fcsr = state.fcsr.0;
    let mut mxcsr_value = (state.lbt.scratch[usize::from(SSE_CONTROL)] as u32 & KEPT) ^ SUBNORMAL_MASK;
    for (mxcsr, bit) in FLAGS {
        mxcsr_value |= (fcsr >> (16 + bit) & 1) << mxcsr;
        mxcsr_value |= (!fcsr >> bit & 1) << (7 + mxcsr);
    }
    if fcsr & Fcsr::SUBNORMAL != 0 {
        mxcsr_value |= SUBNORMAL;
    }
    mxcsr_value | [0, 3, 2, 1][(fcsr >> 8 & 3) as usize] << 13
}

/// Writes MXCSR.
pub(crate) fn set_control(state: &mut State, value: u32) {
    let mut fcsr = [0, 3, 2, 1][(value >> 13 & 3) as usize] << 8 | INITIAL_FCSR;
    // Tiny results are flushed only if underflow is masked.
    let flushes = value & (FTZ | UNDERFLOW_MASK) == FTZ | UNDERFLOW_MASK;
    let rules = [
        (value & SUBNORMAL != 0, Fcsr::SUBNORMAL),
        (value & DAZ != 0, Fcsr::FLUSH_OPERANDS),
        (flushes, Fcsr::FLUSH_RESULTS),
    ];
    fcsr |= rules.iter().filter(|(holds, _)| *holds).map(|(_, bit)| bit).sum::<u32>();
    for (mxcsr, bit) in FLAGS {
        fcsr |= (value >> mxcsr & 1) << (16 + bit);
        fcsr |= (!value >> (7 + mxcsr) & 1) << bit;
    }
    state.fcsr = Fcsr(fcsr);
    state.lbt.scratch[usize::from(SSE_CONTROL)] = u64::from((value ^ SUBNORMAL_MASK) & KEPT);
}

/// Whether subnormal operands count as zeros.
pub(crate) fn zeroes_subnormals(state: &State) -> bool {
    state.fcsr.0 & Fcsr::FLUSH_OPERANDS != 0
}
