//! Instructions that translated code executes by calling the interpreter, after which it continues.

use longma_loongarch::Instruction;
use longma_loongarch::semantics::{Semantics, semantics_of};

use crate::{cpu::Cpu, guest::Guest};

/// An instruction and its reference semantics. Translated code contains the address of this value.
pub(crate) struct CallOut {
    pub instruction: Instruction,
    pub semantics: Semantics<Guest>,
}

/// An interpreter call in a region.
pub(crate) struct PlacedCallOut {
    /// Boxed, because translated code contains its address while the list grows.
    pub call_out: Box<CallOut>,
    /// The position of the 64-bit address in the code.
    pub site: usize,
}

/// The interpreter calls of a region.
pub(crate) type CallOuts = Vec<PlacedCallOut>;

impl CallOut {
    pub fn new(instruction: Instruction) -> Box<Self> {
        Box::new(Self { instruction, semantics: semantics_of(instruction.op) })
    }
}

/// Executes one instruction at `cpu.state.pc`. Returns nonzero if it trapped. Translated code calls it after spilling
/// all registers.
pub(crate) extern "sysv64" fn execute_call_out(cpu: &mut Cpu, call_out: &CallOut) -> u32 {
    cpu.collect_exceptions();
    let result = (call_out.semantics)(&mut cpu.state, &call_out.instruction, &cpu.guest);
    match result {
        Ok(()) => 0,
        Err(trap) => {
            cpu.trap = Some(trap);
            1
        }
    }
}
