//! What a translated unit is: its words, and what is known of each of them.
//! Not how it is made: that is `unit` and `lower`.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

use rustc_hash::FxHashMap;

use super::forms::Form;
use super::instruction::{Instruction, Op, decode};
use longma_translate::assembler::Assembler;
use longma_translate::front_end;

/// A product or a quotient whose registers have not been written yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Product {
    /// The multiplication or division.
    pub op: Op,
    /// Its operands, as LoongArch registers.
    pub operands: [u8; 2],
}

/// So many values wait at most.
pub const WAITING: usize = 4;

/// A value that has not been written yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// The LoongArch register that it is to be in.
    pub d: u8,
    /// What it is of what registers hold now.
    pub form: Form,
}

/// What registers are yet to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    /// What hi and lo are to be.
    pub product: Option<Product>,
    /// What general registers are to be.
    pub waiting: [Option<Waiting>; WAITING],
}

/// Where the code of one instruction begins.
pub type Position = front_end::Position<Pending>;
/// Why translated code comes out to the engine.
pub type Exit = front_end::Exit<Instruction>;
/// A translated unit.
pub type Unit = front_end::Unit<Instruction, Pending>;

/// The code that one address reaches.
pub(super) struct Reach {
    pub words: FxHashMap<u64, u32>,
    pub leaders: BTreeSet<u64>,
}

impl Reach {
    pub fn instruction(&self, pc: u64) -> Option<Instruction> {
        self.words.get(&pc).copied().and_then(decode)
    }
}

/// Where execution can go on behind the instruction at `pc`, as far as that is known, and whether that ends a block.
pub(super) fn successors(instruction: Instruction, pc: u64) -> Option<Vec<u64>> {
    let behind = pc.wrapping_add(8);
    Some(match instruction.op {
        Op::J => vec![instruction.jump_target(pc)],
        Op::Jal => vec![behind, instruction.jump_target(pc)],
        Op::Jr | Op::JrHb => vec![],
        Op::Jalr | Op::JalrHb => vec![behind],
        Op::Beq | Op::Blez | Op::Bgez | Op::Beql if instruction.rs() == 0 && instruction.rt() & !1 == 0 => {
            vec![instruction.branch_target(pc)]
        }
        Op::Bgezal if instruction.rs() == 0 => vec![behind, instruction.branch_target(pc)],
        _ if instruction.is_branch() => vec![behind, instruction.branch_target(pc)],
        Op::Syscall => vec![pc.wrapping_add(4)],
        Op::Break => vec![],
        _ => return None,
    })
}

/// Adds a word that comes out to the engine.
pub(super) fn exit(assembler: &mut Assembler, unit: &mut Unit, pc: u64, why: Exit) {
    unit.exit(assembler, pc, why);
}
