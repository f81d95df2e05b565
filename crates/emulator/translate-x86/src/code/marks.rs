//! Markers for the simulator in x86-64 programs: NOPs with a displacement that assemblers do not use for padding. They
//! become LoongArch markers, which `longma-core` defines. Source: `guests/include/longma.h`; Intel SDM, volume 2, NOP
//! (0F 1F /0).

use iced_x86::{Instruction, Mnemonic, OpKind, Register};
use longma_loongarch::Op as La;

use super::lower::Lowering;
use super::operands::Extension;
use longma_translate::front_end::{EVENT_MARK, MARK_NUMBER, MARKS};

/// The immediate of the equivalent LoongArch marker, if the instruction is a marker: `nopl 0x4c1(%rax)` and following.
fn mark(i: &Instruction) -> Option<i32> {
    let is_nop = i.mnemonic() == Mnemonic::Nop && i.op_count() == 1 && i.op0_kind() == OpKind::Memory;
    let is_plain = i.memory_base() == Register::RAX && i.memory_index() == Register::None;
    let immediate = i32::try_from(i.memory_displacement64()).ok()?;
    (is_nop && is_plain && MARKS.contains(&immediate)).then_some(immediate)
}

/// Whether the instruction is the event marker, whose number is in RDI.
pub(super) fn has_number(i: &Instruction) -> bool {
    mark(i) == Some(EVENT_MARK)
}

impl Lowering<'_> {
    /// Translates a NOP, which may be a marker.
    pub(super) fn mark(&mut self, i: &Instruction) {
        let Some(immediate) = mark(i) else { return };
        if immediate == EVENT_MARK {
            let number = self.read_register(Register::RDI, Extension::Any);
            self.assembler.copy(MARK_NUMBER, number);
        }
        self.assembler.immediate(La::Andi, 0, 0, immediate);
    }
}
