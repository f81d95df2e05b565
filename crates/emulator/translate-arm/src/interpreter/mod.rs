//! Interprets cold blocks: most code of a program runs only a few times, so that translating it costs more than it
//! saves. The interpreter covers integer instructions, branches, and loads and stores. It executes an instruction
//! completely or refuses it, for example because an access faults. The engine translates refused instructions. Source:
//! Arm Architecture Reference Manual (Arm DDI 0487), chapters C4 and C6.

mod arithmetic;
mod bits;
mod decode;
mod memory;
mod registers;

use longma_loongarch::State;
use longma_translate::front_end::{DataMemory, Interpreted};

pub(crate) use decode::decode_block;

/// A group of instructions that the interpreter executes in the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Group {
    Nothing,
    /// ADR, ADRP, MOVN and MOVZ: the register becomes `step.value`.
    Constant,
    MoveKeep,
    AddImmediate,
    LogicImmediate,
    BitField,
    Extract,
    AddShifted,
    AddExtended,
    AddCarry,
    LogicShifted,
    CompareIf,
    Select,
    /// Variable shifts and divisions.
    TwoSources,
    /// RBIT, REV, CLZ and CLS.
    OneSource,
    /// MADD, MSUB and their long forms.
    MultiplyAdd,
    MultiplyHigh,
    ThreadPointer,
    /// A load or store with an immediate offset or without.
    Immediate,
    PostIndexed,
    PreIndexed,
    RegisterOffset,
    Literal,
    Pair,
    PairPostIndexed,
    PairPreIndexed,
    /// MOVI and MVNI without merging: the vector becomes `step.value` twice.
    VectorConstant,
    /// ORR of a vector with itself.
    VectorMove,
    BranchIf,
    /// CBZ and CBNZ.
    BranchIfZero,
    /// TBZ and TBNZ.
    BranchIfBit,
    Branch,
    BranchLink,
    BranchRegister,
    BranchLinkRegister,
}

/// An instruction in the form that [`interpret`] executes.
#[derive(Clone, Copy, Debug)]
pub struct DecodedInstruction {
    group: Group,
    word: u32,
    /// A constant that depends on the group: the immediate, or the target of a branch.
    value: u64,
    pc: u64,
}

impl DecodedInstruction {
    /// `width` bits from bit `at` on.
    fn bits(&self, at: u32, width: u32) -> u32 {
        self.word >> at & ((1 << width) - 1)
    }

    fn bit(&self, at: u32) -> bool {
        self.bits(at, 1) != 0
    }

    /// The register number from bit `at` on.
    fn register(&self, at: u32) -> u8 {
        self.bits(at, 5) as u8
    }

    /// Whether the operation has 64 bits.
    fn is_wide(&self) -> bool {
        self.bit(31)
    }

    /// Whether the instruction ends a block.
    fn is_branch(&self) -> bool {
        use Group::*;
        matches!(
            self.group,
            BranchIf | BranchIfZero | BranchIfBit | Branch | BranchLink | BranchRegister | BranchLinkRegister
        )
    }
}

/// Where execution continues after an instruction. Functions return `None` if they did not execute the instruction.
enum Flow {
    Next,
    To(u64),
    /// An indirect branch or a return.
    Indirect(u64),
}

/// The registers and memory of the thread.
struct Machine<'a, M> {
    state: &'a mut State,
    memory: &'a M,
}

/// Executes the instructions of a block.
pub(crate) fn interpret<M: DataMemory>(
    steps: &[DecodedInstruction],
    state: &mut State,
    memory: &M,
) -> Interpreted {
    let mut machine = Machine { state, memory };
    for step in steps {
        match machine.execute(step) {
            Some(Flow::Next) => {}
            Some(Flow::To(pc)) => return Interpreted::Next(pc),
            Some(Flow::Indirect(pc)) => return Interpreted::Indirect(pc),
            None => return Interpreted::Refused(step.pc),
        }
    }
    steps.last().map_or(Interpreted::Next(0), |last| Interpreted::Next(last.pc.wrapping_add(4)))
}

impl<M: DataMemory> Machine<'_, M> {
    /// Executes an instruction, or changes nothing and returns `None`.
    fn execute(&mut self, step: &DecodedInstruction) -> Option<Flow> {
        use Group::*;
        match step.group {
            Nothing => {}
            Constant => self.set_x(step.register(0), step.value),
            MoveKeep => self.move_keep(step),
            AddImmediate => self.add_immediate(step),
            LogicImmediate => self.logic(step, step.value),
            BitField => self.bit_field(step),
            Extract => self.extract(step),
            AddShifted => self.add_shifted(step),
            AddExtended => self.add_extended(step),
            AddCarry => self.add_carry(step),
            LogicShifted => self.logic_shifted(step),
            CompareIf => self.compare_if(step),
            Select => self.select(step),
            TwoSources => self.two_sources(step),
            OneSource => self.one_source(step),
            MultiplyAdd => self.multiply_add(step),
            MultiplyHigh => self.multiply_high(step),
            ThreadPointer => {
                let pointer = self.state.lbt.scratch[usize::from(crate::registers::THREAD_POINTER)];
                self.set_x(step.register(0), pointer);
            }
            Immediate | PostIndexed | PreIndexed | RegisterOffset | Literal => self.access(step)?,
            Pair | PairPostIndexed | PairPreIndexed => self.access_pair(step)?,
            VectorConstant => {
                let high = if step.bit(30) { step.value } else { 0 };
                self.set_vector(step.register(0), [step.value, high]);
            }
            VectorMove => {
                let [low, high] = self.vector(step.register(5));
                self.set_vector(step.register(0), [low, if step.bit(30) { high } else { 0 }]);
            }
            BranchIf => return Some(self.branch_if(step, self.holds(step.bits(0, 4) as u8))),
            BranchIfZero => {
                let is_zero = self.operand(step.register(0), step.is_wide()) == 0;
                return Some(self.branch_if(step, is_zero != step.bit(24)));
            }
            BranchIfBit => {
                let number = step.bits(31, 1) << 5 | step.bits(19, 5);
                let is_set = self.x(step.register(0)) >> number & 1 != 0;
                return Some(self.branch_if(step, is_set == step.bit(24)));
            }
            Branch => return Some(Flow::To(step.value)),
            BranchLink => {
                self.set_x(30, step.pc.wrapping_add(4));
                return Some(Flow::To(step.value));
            }
            BranchRegister => return Some(Flow::Indirect(self.x(step.register(5)))),
            BranchLinkRegister => {
                let target = self.x(step.register(5));
                self.set_x(30, step.pc.wrapping_add(4));
                return Some(Flow::Indirect(target));
            }
        }
        Some(Flow::Next)
    }

    fn branch_if(&self, step: &DecodedInstruction, is_taken: bool) -> Flow {
        Flow::To(if is_taken { step.value } else { step.pc.wrapping_add(4) })
    }
}
