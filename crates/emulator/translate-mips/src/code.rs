//! A translated unit, the deferred values at each position, and the control flow of instructions.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

use rustc_hash::FxHashMap;

use super::deferred_expressions::DeferredExpr;
use super::instruction::{Instruction, Op, decode};
use longma_translate::assembler::Assembler;
use longma_translate::front_end;

/// A product or quotient that has not been written to hi and lo yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Product {
    /// The multiplication or division.
    pub op: Op,
    /// Its operands, as LoongArch registers.
    pub operands: [u8; 2],
}

/// Maximum number of deferred values.
pub const MAX_DEFERRED: usize = 4;

/// A deferred value: an instruction's result that has not been computed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeferredValue {
    /// The destination, a LoongArch register.
    pub d: u8,
    /// The expression of other registers that computes the value.
    pub form: DeferredExpr,
}

/// Deferred values at a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    /// The deferred value of hi and lo.
    pub product: Option<Product>,
    /// The deferred values of general-purpose registers.
    pub deferred_values: [Option<DeferredValue>; MAX_DEFERRED],
}

/// The start of an instruction's code, with its deferred values.
pub type Position = front_end::Position<Pending>;
/// Why translated code exits to the engine.
pub type Exit = front_end::Exit<Instruction>;
/// A translated unit.
pub type Unit = front_end::Unit<Instruction, Pending>;

/// The code that is reachable from an address.
pub(super) struct ReachableCode {
    pub words: FxHashMap<u64, u32>,
    pub leaders: BTreeSet<u64>,
}

impl ReachableCode {
    pub fn instruction(&self, pc: u64) -> Option<Instruction> {
        self.words.get(&pc).copied().and_then(decode)
    }
}

/// If the instruction at `pc` ends a block: the known addresses where execution can continue after it.
pub(super) fn successors(instruction: Instruction, pc: u64) -> Option<Vec<u64>> {
    let after_slot = pc.wrapping_add(8);
    Some(match instruction.op {
        Op::J => vec![instruction.jump_target(pc)],
        Op::Jal => vec![after_slot, instruction.jump_target(pc)],
        Op::Jr | Op::JrHb => vec![],
        Op::Jalr | Op::JalrHb => vec![after_slot],
        Op::Beq | Op::Blez | Op::Bgez | Op::Beql if instruction.rs() == 0 && instruction.rt() & !1 == 0 => {
            vec![instruction.branch_target(pc)]
        }
        Op::Bgezal if instruction.rs() == 0 => vec![after_slot, instruction.branch_target(pc)],
        _ if instruction.is_branch() => vec![after_slot, instruction.branch_target(pc)],
        Op::Syscall => vec![pc.wrapping_add(4)],
        Op::Break => vec![],
        _ => return None,
    })
}

/// Emits an exit to the engine.
pub(super) fn exit(assembler: &mut Assembler, unit: &mut Unit, pc: u64, reason: Exit) {
    unit.exit(assembler, pc, reason);
}
