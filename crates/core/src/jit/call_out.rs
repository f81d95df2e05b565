//! Instructions that translated code leaves to the reference interpreter, one at a time.
//! Not a way out of a region: the code goes on behind the instruction.

use longma_loongarch::{Instruction, semantics::Semantics};

use crate::{cpu::Cpu, guest::Guest};

/// An instruction with its reference semantics; translated code holds its address.
pub(crate) struct CallOut {
    pub instruction: Instruction,
    pub semantics: Semantics<Guest>,
}

/// The instructions that a region leaves to the interpreter. Boxed: translated code holds their addresses while the list grows.
pub(crate) type CallOuts = Vec<Box<CallOut>>;

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
