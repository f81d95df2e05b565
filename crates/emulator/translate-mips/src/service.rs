//! Instructions that the engine executes because they are rare and their generated code would be long. Source: MIPS64
//! Architecture for Programmers, volume II-A; volume I-A, section 6.5 (FCSR).

use longma_loongarch::{Fcsr, State, Trap};

use super::code::{Pending, Product};
use super::instruction::{Instruction, Op};
use super::registers::{HIGH, LOW, general};
use longma_translate::front_end::ServiceResult;

/// The `break` code of an integer overflow.
pub(super) const OVERFLOW: u32 = 6;

impl Pending {
    /// Writes hi and lo and all deferred values.
    pub fn settle(self, state: &mut State) {
        if let Some(Product { op, operands }) = self.product {
            let [s, t] = operands.map(|register| state.x[usize::from(register)]);
            let (low, high) = product(op, s, t);
            state.lbt.scratch[usize::from(LOW)] = low;
            state.lbt.scratch[usize::from(HIGH)] = high;
        }
        // Evaluate all values before writing any register.
        let values = self
            .deferred_values
            .map(|value| value.map(|deferred| (deferred.d, deferred.form.evaluate(state))));
        for (register, value) in values.into_iter().flatten() {
            state.x[usize::from(register)] = value;
        }
    }
}

fn extend(word: u64) -> u64 {
    word as i32 as i64 as u64
}

/// Returns lo and hi. A division by zero, undefined in the manual, gives the LoongArch result.
fn product(op: Op, s: u64, t: u64) -> (u64, u64) {
    let wide = |value: i128| (value as u64, (value >> 64) as u64);
    let words = |value: i128| (extend(value as u64), extend((value >> 32) as u64));
    let (s32, t32) = (s as i32, t as i32);
    match op {
        Op::Mult => words(i128::from(s32) * i128::from(t32)),
        Op::Multu => words(i128::from(s as u32) * i128::from(t as u32)),
        Op::Dmult => wide(i128::from(s as i64) * i128::from(t as i64)),
        Op::Dmultu => wide((u128::from(s) * u128::from(t)) as i128),
        Op::Div if t32 == 0 => (0, 0),
        Op::Div => (s32.wrapping_div(t32) as i64 as u64, s32.wrapping_rem(t32) as i64 as u64),
        Op::Divu if t32 == 0 => (0, 0),
        Op::Divu => (extend((s as u32 / t as u32).into()), extend((s as u32 % t as u32).into())),
        _ if t == 0 => (0, 0),
        Op::Ddiv => ((s as i64).wrapping_div(t as i64) as u64, (s as i64).wrapping_rem(t as i64) as u64),
        _ => (s / t, s % t),
    }
}

/// Executes `instruction` on `state`. The caller sets the program counter.
pub fn serve(instruction: Instruction, state: &mut State) -> ServiceResult {
    let r = |state: &State, number: u8| state.x[usize::from(general(number))];
    let (s, t) = (r(state, instruction.rs()), r(state, instruction.rt()));
    let imm = i64::from(instruction.imm());
    let word = |value: Option<i32>| value.map(|value| i64::from(value) as u64);
    let double = |value: Option<i64>| value.map(|value| value as u64);
    let result = match instruction.op {
        Op::Add => word((s as i32).checked_add(t as i32)),
        Op::Sub => word((s as i32).checked_sub(t as i32)),
        Op::Addi => word((s as i32).checked_add(imm as i32)),
        Op::Dadd => double((s as i64).checked_add(t as i64)),
        Op::Dsub => double((s as i64).checked_sub(t as i64)),
        Op::Daddi => double((s as i64).checked_add(imm)),
        Op::Cfc1 => Some(read_control(state, instruction.rd())),
        Op::Rdhwr => Some(match instruction.rd() {
            1 => 4096,
            3 => 1,
            _ => 0,
        }),
        Op::Ctc1 => {
            write_control(state, instruction.rd(), t as u32);
            return ServiceResult::Done;
        }
        Op::Synci => return ServiceResult::Changed(s.wrapping_add_signed(imm)),
        _ => {
            accumulate(instruction.op, state, s, t);
            return ServiceResult::Done;
        }
    };
    let Some(value) = result else { return ServiceResult::Trap(Trap::Break(OVERFLOW)) };
    let register = general(instruction.destination());
    if register != 0 {
        state.x[usize::from(register)] = value;
    }
    ServiceResult::Done
}

fn accumulate(op: Op, state: &mut State, s: u64, t: u64) {
    let scratch = &mut state.lbt.scratch;
    let sum = (scratch[usize::from(HIGH)] << 32 | scratch[usize::from(LOW)] & 0xffff_ffff) as i64;
    let signed = i64::from(s as i32).wrapping_mul(i64::from(t as i32));
    let unsigned = u64::from(s as u32).wrapping_mul(u64::from(t as u32)) as i64;
    let sum = match op {
        Op::Madd => sum.wrapping_add(signed),
        Op::Maddu => sum.wrapping_add(unsigned),
        Op::Msub => sum.wrapping_sub(signed),
        _ => sum.wrapping_sub(unsigned),
    } as u64;
    scratch[usize::from(LOW)] = extend(sum);
    scratch[usize::from(HIGH)] = extend(sum >> 32);
}

/// FCSR in the MIPS layout: rounding mode in bits 1..0, flags from 2, enables from 7, causes from 12, conditions in 23
/// and from 25 on.
pub fn control(state: &State) -> u32 {
    let fcsr = state.fcsr.0;
    let conditions: u32 = (0..8).map(|i| u32::from(state.fcc[i]) << if i == 0 { 23 } else { 24 + i }).sum();
    fcsr >> 8 & 3 | (fcsr >> 16 & 31) << 2 | (fcsr & 31) << 7 | (fcsr >> 24 & 31) << 12 | conditions
}

/// FIR: doubles, singles, words and longs, 64-bit registers.
pub(super) const IMPLEMENTATION: u32 = 0x0073_0000;

fn read_control(state: &State, number: u8) -> u64 {
    let all = control(state);
    let conditions = all >> 23 & 1 | (all >> 25 & 127) << 1;
    extend(u64::from(match number {
        0 => IMPLEMENTATION,
        25 => conditions,
        26 => all & 0x0003_f07c,
        28 => all & 0xf83 | all >> 22 & 4,
        _ => all,
    }))
}

/// Sets FCSR from the MIPS layout.
pub fn set_control(state: &mut State, value: u32) {
    state.fcsr =
        Fcsr((value & 3) << 8 | (value >> 2 & 31) << 16 | value >> 7 & 31 | (value >> 12 & 31) << 24);
    for i in 0..8 {
        state.fcc[i] = (value >> if i == 0 { 23 } else { 24 + i } & 1) as u8;
    }
}

fn write_control(state: &mut State, number: u8, value: u32) {
    let all = control(state);
    let merged = match number {
        25 => all & !0xfe80_0000 | (value & 1) << 23 | (value >> 1 & 127) << 25,
        26 => all & !0x0003_f07c | value & 0x0003_f07c,
        28 => all & !0xf83 | value & 0xf83,
        _ => value,
    };
    set_control(state, merged);
}
