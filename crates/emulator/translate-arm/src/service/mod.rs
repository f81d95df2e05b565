//! Instructions that the engine executes because they are rare and their generated code would be long. Source: Arm
//! Architecture Reference Manual (Arm DDI 0487), sections C5.2 (FPCR, FPSR) and C7.2.

use longma_loongarch::{State, Trap};

use crate::code::operands::NONE;
use crate::instruction::{Instruction, Op};
use crate::registers::{FPCR, read, write};
mod environment;
pub mod frame;
mod simd;
mod vector;
use environment::{DEFAULT_NAN, FLUSH, FLUSH_HALF};
pub(crate) use environment::{control, set_control, set_status, status};
use longma_translate::front_end::{ServiceResult, UserMemory};

/// Executes `instruction` on `state`. The caller sets the program counter.
pub fn serve(i: Instruction, state: &mut State, memory: &dyn UserMemory) -> ServiceResult {
    let x = |state: &State, number| if number == NONE { 0 } else { read(state, number, memory) };
    match i.op {
        Op::IcIvau => return ServiceResult::Changed(x(state, i.rd())),
        Op::Mrs => {
            let is_control = i.system_register() == FPCR;
            let value = if is_control { control(state, memory) } else { status(state, memory) };
            if i.rd() != NONE {
                write(state, i.rd(), value.into(), memory);
            }
        }
        Op::Msr => {
            let value = x(state, i.rd()) as u32;
            if i.system_register() == FPCR {
                set_control(state, value, memory);
                if value & (FLUSH | FLUSH_HALF | DEFAULT_NAN) != 0 {
                    return ServiceResult::ExactFloats { next_pc: None };
                }
            } else {
                set_status(state, value, memory);
            }
        }
        _ => {
            if let Some(served) = vector::serve(i, state, memory) {
                return served;
            }
            if !simd::serve(i, state, memory) {
                return ServiceResult::Trap(Trap::IllegalInstruction);
            }
        }
    }
    ServiceResult::Done
}
