//! What a translated unit is: its words, and what is known of each of them.
//! Not how it is made: that is `unit` and `lower`.
//! Source: our own.

use std::collections::BTreeSet;

use longma_loongarch as la;
use rustc_hash::FxHashMap;

use super::instruction::{Instruction, Op, decode};
use crate::assembler::Assembler;

/// `break` codes that only translated code has.
pub const EXIT: i32 = 0x7001;
/// The engine executes one source instruction.
pub const SERVICE: i32 = 0x7002;
/// The source address holds no instruction.
pub const ILLEGAL: i32 = 0x7003;

/// A product or a quotient whose registers have not been written yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    /// The multiplication or division.
    pub op: Op,
    /// Its operands, as LoongArch registers.
    pub operands: [u8; 2],
}

/// Where the code of one source instruction begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The index of the first word.
    pub offset: u32,
    /// Where the program goes on if it is interrupted there: the instruction's address, or that of the branch whose slot it stands in.
    pub pc: u64,
    /// Before the word, every register is as it is before the instruction at `pc`.
    pub is_boundary: bool,
    /// It stands for an instruction of its own.
    pub counts: bool,
    /// What hi and lo are yet to be.
    pub pending: Option<Pending>,
}

/// Why translated code comes out to the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// To go on at a source address that has no code yet.
    To(u64),
    /// To have one instruction executed.
    Service(Instruction),
    /// There is no instruction.
    Illegal,
}

/// A translated unit.
#[derive(Debug, Default)]
pub struct Unit {
    /// The LoongArch code, for any address.
    pub words: Vec<u32>,
    /// The source addresses that can be jumped to, and the index of the word.
    pub entries: Vec<(u64, u32)>,
    /// By `offset`.
    pub positions: Vec<Position>,
    /// Words that come out to the engine.
    pub exits: Vec<(u32, Exit)>,
    /// Calls of addresses in registers: the word, and the source register.
    pub calls: Vec<(u32, u8)>,
    /// The source instructions that were read: first address and number.
    pub sources: Vec<(u64, u32)>,
}

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
    let offset = assembler.words.len() as u32;
    unit.positions.push(Position {
        offset,
        pc,
        is_boundary: matches!(why, Exit::To(_)),
        counts: false,
        pending: None,
    });
    unit.exits.push((offset, why));
    let code = match why {
        Exit::To(_) => EXIT,
        Exit::Service(_) => SERVICE,
        Exit::Illegal => ILLEGAL,
    };
    assembler.push(la::Instruction { imm: code, ..la::Instruction::new(la::Op::Break) });
}
