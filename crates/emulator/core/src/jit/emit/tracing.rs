//! Emits the trace records of blocks: the header, the addresses of memory accesses, and the completion at the end of
//! the block. `recorder.rs` completes the records of blocks that execution leaves early.

use std::mem::offset_of;

use iced_x86::{Code, MemoryOperand, Register};
use longma_loongarch::Instruction;
use longma_trace::{AddressForm, count_addresses, encode_head, has_address};

use super::{Emitter, Stub};
use crate::{
    cpu::{Cpu, ExitReason, InterruptedBlock},
    jit::{assembler::Condition, region::RegionBlock, registers::low16, trampolines::field},
};

/// Holds the address of the record.
const RECORD: Register = Register::RDX;

/// The record of the current block.
#[derive(Clone, Copy, Default)]
pub(super) struct OpenRecord {
    /// The number of addresses written so far.
    addresses: u16,
}

impl Emitter<'_> {
    /// Emits the start of a record at a block's entry. The code exits if the quantum has ended.
    pub(super) fn open_record(&mut self, block: &RegionBlock) {
        let Some(blocks) = self.tracing else { return };
        let number = blocks.intern(block.start, &block.instructions);
        let label = self.a.label();
        self.a.op2(Code::Mov_r64_rm64, RECORD, field(offset_of!(Cpu, trace_next)));
        self.a.op2(Code::Cmp_r64_rm64, RECORD, field(offset_of!(Cpu, trace_limit)));
        self.a.jump_if(Condition::AboveOrEqual, label);
        let left = InterruptedBlock::default();
        self.stubs.push(Stub::Leave { label, pc: block.start, reason: ExitReason::Attention, left });
        let addresses = count_addresses(&block.instructions);
        let head = encode_head(number, block.instructions.len() as u16, addresses);
        self.a.op2(Code::Mov_r64_imm64, Register::RAX, head as i64);
        self.a.op2(Code::Mov_rm64_r64, MemoryOperand::with_base(RECORD), Register::RAX);
        self.record = OpenRecord::default();
    }

    /// Emits code that records the address that `i` is about to access, if it accesses memory.
    pub(super) fn record_address(&mut self, i: &Instruction) {
        if self.tracing.is_none() || !has_address(i.op) {
            return;
        }
        let sum = Register::RAX;
        let mut address = self.read(i.j, sum);
        match AddressForm::of(i) {
            AddressForm::Displaced(0) => {}
            AddressForm::Displaced(bytes) => {
                let record_slot = MemoryOperand::with_base_displ_size(address, i64::from(bytes), 1);
                self.a.op2(Code::Lea_r64_m, sum, record_slot);
                address = sum;
            }
            AddressForm::Indexed => {
                let index = self.read(i.k, Register::RDX);
                self.a.op2(Code::Lea_r64_m, sum, MemoryOperand::with_base_index(address, index));
                address = sum;
            }
            AddressForm::Described => {
                self.copy(Register::RDX, i.k);
                self.a.op2(Code::Movsx_r64_rm16, Register::RDX, low16(Register::RDX));
                self.a.op2(Code::Lea_r64_m, sum, MemoryOperand::with_base_index(address, Register::RDX));
                address = sum;
            }
        }
        self.record.addresses += 1;
        self.a.op2(Code::Mov_r64_rm64, RECORD, field(offset_of!(Cpu, trace_next)));
        let slot = MemoryOperand::with_base_displ_size(RECORD, 8 * i64::from(self.record.addresses), 1);
        self.a.op2(Code::Mov_rm64_r64, slot, address);
    }

    /// Completes the record at the end of a block. Preserves the host's flags, which a branch may need.
    pub(super) fn close_record(&mut self) {
        if self.tracing.is_none() {
            return;
        }
        let words = 1 + i64::from(self.record.addresses);
        let next = field(offset_of!(Cpu, trace_next));
        self.a.op2(Code::Mov_r64_rm64, RECORD, next);
        let record_end = MemoryOperand::with_base_displ_size(RECORD, 8 * words, 1);
        self.a.op2(Code::Lea_r64_m, RECORD, record_end);
        self.a.op2(Code::Mov_rm64_r64, next, RECORD);
    }
}
