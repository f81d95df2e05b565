//! Interprets blocks of x86-64 code on the registers of a LoongArch core. The interpreter covers the general-purpose
//! and SSE2 instructions that compilers use most. It executes an instruction completely or refuses it, for example
//! because an access faults. The caller translates refused instructions. Source: Intel SDM, volume 2.

mod conditions;
mod decode;
mod flow;
mod integer;
mod operands;
pub mod registers;
mod shifts;
mod vector;

use longma_loongarch::State;

pub use decode::{Block, decode_block};
pub use flow::is_canonical;

/// Guest memory. An access that fails has no effect.
pub trait Memory {
    /// Loads 1, 2, 4 or 8 bytes, zero-extended.
    fn load(&self, address: u64, bytes: u8) -> Option<u64>;

    /// Stores the low 1, 2, 4 or 8 bytes. Returns false if they are not writable.
    fn store(&self, address: u64, bytes: u8, value: u64) -> bool;

    /// Loads 16 bytes.
    fn load_wide(&self, address: u64) -> Option<[u64; 2]>;

    /// Stores 16 bytes. Returns false if they are not writable.
    fn store_wide(&self, address: u64, value: [u64; 2]) -> bool;

    /// Whether a store may have changed code.
    fn code_has_changed(&self) -> bool;
}

/// Where execution continues after a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Continuation {
    /// At an address.
    Next(u64),
    /// At the target of an indirect jump or a return.
    Indirect(u64),
    /// At the instruction at this address, which the interpreter cannot execute.
    Refused(u64),
}

/// An operation of the interpreter. The comments name the instructions that are not obvious.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Nothing,
    Move,
    /// MOVZX and MOVSX, also between sizes.
    ZeroExtend,
    SignExtend,
    LoadAddress,
    Push,
    Pop,
    Leave,
    Add,
    AddCarry,
    Subtract,
    SubtractBorrow,
    Compare,
    And,
    Test,
    Or,
    Xor,
    Not,
    Negate,
    Increment,
    Decrement,
    ShiftLeft,
    ShiftRight,
    ShiftRightSigned,
    RotateLeft,
    RotateRight,
    /// IMUL with two or three operands.
    Multiply,
    /// MUL and IMUL with one operand.
    MultiplyWide,
    MultiplyWideSigned,
    Divide,
    DivideSigned,
    /// CBW, CWDE and CDQE.
    ExtendAccumulator,
    /// CWD, CDQ and CQO.
    SpreadSign,
    TestBit,
    ScanForward,
    ScanReverse,
    SwapBytes,
    Exchange,
    SetIf,
    MoveIf,
    JumpIf,
    Jump,
    JumpIndirect,
    Call,
    CallIndirect,
    Return,
    Vector(VectorOperation),
}

/// An operation on XMM registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VectorOperation {
    /// A move of 16 bytes; `step.size` is 16 if memory must be aligned, otherwise 1.
    Move,
    /// MOVD, MOVQ, and MOVSS and MOVSD from memory: the upper bytes become 0.
    MoveScalar,
    /// MOVSS and MOVSD between registers: the upper bytes stay.
    MergeScalar,
    /// A general register to an XMM register, and back.
    FromGeneral,
    ToGeneral,
    /// MOVLPS and MOVHPS, and MOVHLPS and MOVLHPS.
    LoadHalf,
    StoreHigh,
    CopyHalf,
    And,
    AndNot,
    Or,
    Xor,
    /// PADDB to PADDQ; `step.size` is the size of a lane.
    Add,
    Subtract,
    CompareEqual,
    MinimumUnsignedBytes,
    UnpackLow,
    UnpackHigh,
    MoveMask,
    Shuffle,
    ShiftLeftBytes,
    ShiftRightBytes,
}

/// Where the operands are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Both are registers, or there is only a register.
    Registers,
    /// A register and an immediate.
    Immediate,
    /// A register and a source in memory.
    FromMemory,
    /// A destination in memory and a register.
    ToMemory,
    /// A destination in memory and an immediate.
    ImmediateToMemory,
}

/// An instruction in the form that [`interpret`] executes.
#[derive(Clone, Copy, Debug)]
pub struct DecodedInstruction {
    operation: Operation,
    form: Form,
    /// The operands' size in bytes.
    size: u8,
    /// The source's size in bytes, if it differs.
    from_size: u8,
    /// The LoongArch register of the destination; see [`operands::HIGH`].
    to: u8,
    from: u8,
    /// The LoongArch registers of the address. Absent parts are r0.
    base: u8,
    index: u8,
    scale: u8,
    segment: u8,
    /// The condition code, as in the encodings of Jcc.
    condition: u8,
    /// The instruction's length in bytes.
    length: u8,
    displacement: u64,
    immediate: u64,
    pc: u64,
}

impl DecodedInstruction {
    /// The address of the instruction that follows.
    fn next(&self) -> u64 {
        self.pc.wrapping_add(u64::from(self.length))
    }

    /// Whether the instruction ends a block.
    fn is_jump(&self) -> bool {
        use Operation::*;
        matches!(self.operation, JumpIf | Jump | JumpIndirect | Call | CallIndirect | Return)
    }

    /// Whether the instruction stores, other than a call.
    fn stores(&self) -> bool {
        matches!(self.form, Form::ToMemory | Form::ImmediateToMemory) || self.operation == Operation::Push
    }

    fn address(&self, x: &[u64; 32]) -> u64 {
        let register = |number: u8| x[usize::from(number & 31)];
        register(self.base)
            .wrapping_add(register(self.index) << self.scale)
            .wrapping_add(register(self.segment))
            .wrapping_add(self.displacement)
    }
}

/// Where execution continues after an instruction. Functions return `None` if they did not execute the instruction.
enum Flow {
    Next,
    To(u64),
    /// An indirect jump or a return.
    Indirect(u64),
}

/// The registers and memory of the thread.
struct Machine<'a, M> {
    state: &'a mut State,
    memory: &'a M,
}

/// Executes the instructions of a block.
pub fn interpret<M: Memory>(steps: &[DecodedInstruction], state: &mut State, memory: &M) -> Continuation {
    let mut machine = Machine { state, memory };
    for step in steps {
        match machine.execute(step) {
            Some(Flow::Next) => {}
            Some(Flow::To(pc)) => return Continuation::Next(pc),
            Some(Flow::Indirect(pc)) => return Continuation::Indirect(pc),
            None => return Continuation::Refused(step.pc),
        }
        // A thread's own stores to code take effect at its next instruction.
        if step.stores() && memory.code_has_changed() {
            return Continuation::Next(step.next());
        }
    }
    steps.last().map_or(Continuation::Next(0), |last| Continuation::Next(last.next()))
}

impl<M: Memory> Machine<'_, M> {
    /// Executes an instruction, or changes nothing and returns `None`.
    fn execute(&mut self, step: &DecodedInstruction) -> Option<Flow> {
        use Operation::*;
        match step.operation {
            Nothing => {}
            Move => {
                let value = self.source(step)?;
                self.put(step, value)?;
            }
            ZeroExtend | SignExtend => self.extend(step)?,
            LoadAddress => {
                let address = step.address(&self.state.x);
                self.set_register(step.to, step.size, address);
            }
            Push => self.push_operand(step)?,
            Pop => self.pop_operand(step)?,
            Leave => self.leave()?,
            Add | AddCarry | Subtract | SubtractBorrow | Compare => self.add_or_subtract(step)?,
            And | Test | Or | Xor => self.logic(step)?,
            Not | Negate | Increment | Decrement => self.unary(step)?,
            ShiftLeft | ShiftRight | ShiftRightSigned | RotateLeft | RotateRight => self.shift(step)?,
            Multiply => self.multiply(step)?,
            MultiplyWide | MultiplyWideSigned => self.multiply_wide(step)?,
            Divide | DivideSigned => self.divide(step)?,
            ExtendAccumulator | SpreadSign => self.extend_accumulator(step),
            TestBit => self.test_bit(step)?,
            ScanForward | ScanReverse => self.scan(step)?,
            SwapBytes => {
                let value = self.register(step.to, step.size);
                let swapped =
                    if step.size == 8 { value.swap_bytes() } else { (value as u32).swap_bytes().into() };
                self.set_register(step.to, step.size, swapped);
            }
            Exchange => {
                let (to, from) = (self.register(step.to, step.size), self.register(step.from, step.size));
                self.set_register(step.to, step.size, from);
                self.set_register(step.from, step.size, to);
            }
            SetIf => {
                let value = self.holds(step.condition).into();
                self.put(step, value)?;
            }
            MoveIf => {
                let value = self.source(step)?;
                // Even if the condition is false, CMOVcc clears the upper half of a 32-bit destination.
                let old = self.register(step.to, step.size);
                let value = if self.holds(step.condition) { value } else { old };
                self.set_register(step.to, step.size, value);
            }
            JumpIf | Jump | JumpIndirect | Call | CallIndirect | Return => return self.jump(step),
            Vector(operation) => self.vector(step, operation)?,
        }
        Some(Flow::Next)
    }
}
