//! Connects `longma-interpret-x86` to the engine.

use longma_interpret_x86::{Continuation, DecodedInstruction, Memory};
use longma_loongarch::State;
use longma_translate::front_end::{DataMemory, InterpretableBlock, Interpreted};

use crate::code::returned_flags::reads_returned_flags;

/// The engine's memory, for the interpreter.
struct MemoryView<'a, M>(&'a M);

impl<M: DataMemory> Memory for MemoryView<'_, M> {
    fn load(&self, address: u64, bytes: u8) -> Option<u64> {
        self.0.load(address, bytes)
    }

    fn store(&self, address: u64, bytes: u8, value: u64) -> bool {
        self.0.store(address, bytes, value)
    }

    fn load_wide(&self, address: u64) -> Option<[u64; 2]> {
        self.0.load_wide(address)
    }

    fn store_wide(&self, address: u64, value: [u64; 2]) -> bool {
        self.0.store_wide(address, value)
    }

    fn code_has_changed(&self) -> bool {
        self.0.code_has_changed()
    }
}

/// Decodes the block at `pc`.
pub(crate) fn decode_block(
    pc: u64,
    fetch: &dyn Fn(u64) -> Option<u32>,
) -> InterpretableBlock<DecodedInstruction> {
    let block = longma_interpret_x86::decode_block(pc, fetch);
    let call = block.call;
    InterpretableBlock {
        steps: block.steps,
        bytes: block.bytes,
        called: call.filter(|call| call.is_call_near()).map(|call| call.near_branch_target()),
        return_address: call.map(|call| call.next_ip()),
        reads_flags_after_call: call.is_some_and(|call| reads_returned_flags(&call, fetch)),
    }
}

/// Executes a block.
pub(crate) fn interpret<M: DataMemory>(
    steps: &[DecodedInstruction],
    state: &mut State,
    memory: &M,
) -> Interpreted {
    match longma_interpret_x86::interpret(steps, state, &MemoryView(memory)) {
        Continuation::Next(pc) => Interpreted::Next(pc),
        Continuation::Indirect(pc) => Interpreted::Indirect(pc),
        Continuation::Refused(pc) => Interpreted::Refused(pc),
    }
}
