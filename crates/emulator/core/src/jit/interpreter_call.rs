//! Instructions that translated code executes by calling the interpreter, after which it continues.

use longma_loongarch::Instruction;
use longma_loongarch::semantics::{Semantics, semantics_of};

use crate::{cpu::Cpu, guest::Guest};

/// An instruction and its reference semantics. Translated code contains the address of this value.
pub(crate) struct InterpreterCall {
    pub instruction: Instruction,
    pub semantics: Semantics<Guest>,
}

/// An interpreter call in a region.
pub(crate) struct PlacedInterpreterCall {
    /// Boxed, because translated code contains its address while the list grows.
    pub interpreter_call: Box<InterpreterCall>,
    /// The position of the 64-bit address in the code.
    pub site: usize,
}

/// The interpreter calls of a region.
pub(crate) type InterpreterCalls = Vec<PlacedInterpreterCall>;

impl InterpreterCall {
    pub fn new(instruction: Instruction) -> Box<Self> {
        Box::new(Self { instruction, semantics: semantics_of(instruction.op) })
    }
}

/// Executes one instruction at `cpu.state.pc`. Returns nonzero if it trapped. Translated code calls it after spilling
/// all registers.
pub(crate) extern "sysv64" fn execute_interpreter_call(
    cpu: &mut Cpu,
    interpreter_call: &InterpreterCall,
) -> u32 {
    cpu.collect_exceptions();
    let result = (interpreter_call.semantics)(&mut cpu.state, &interpreter_call.instruction, &cpu.guest);
    match result {
        Ok(()) => 0,
        Err(trap) => {
            cpu.trap = Some(trap);
            1
        }
    }
}
