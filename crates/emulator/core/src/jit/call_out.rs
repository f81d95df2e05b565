//! Instructions that translated code leaves to the reference interpreter, one at a time.
//! Not a way out of a region: the code goes on behind the instruction.

use longma_loongarch::Instruction;
use longma_loongarch::semantics::{Semantics, semantics_of};

use crate::{cpu::Cpu, guest::Guest};

/// An instruction with its reference semantics; translated code holds its address.
pub(crate) struct CallOut {
    pub instruction: Instruction,
    pub semantics: Semantics<Guest>,
}

/// An instruction that a region leaves to the interpreter, and where the region's code has its address.
pub(crate) struct PlacedCallOut {
    /// Boxed: translated code holds the address while the list grows.
    pub call_out: Box<CallOut>,
    /// The position of the 64 bits of the address.
    pub site: usize,
}

/// All of a region.
pub(crate) type CallOuts = Vec<PlacedCallOut>;

impl CallOut {
    pub fn new(instruction: Instruction) -> Box<Self> {
        Box::new(Self { instruction, semantics: semantics_of(instruction.op) })
    }
}

/// Executes one instruction at `cpu.state.pc`; nonzero if it trapped. Called by translated code with every register in memory.
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
