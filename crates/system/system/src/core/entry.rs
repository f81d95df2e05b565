//! Entry to and return from exceptions and interrupts. Source: LoongArch Reference Manual, volume 1, section 6.2
//! (exceptions).

use longma_loongarch::{Extension, Instruction, Reservation, State, Trap};

use super::Core;
use crate::csr::{field, table as csr, with_field};
use crate::exception::Exception;

/// The registers that an exception sets besides its code.
#[derive(Clone, Copy, Debug, Default)]
pub struct Record {
    /// The address to record in BADV or TLBRBADV.
    pub address: u64,
    /// The word to record in BADI; `None` for interrupts and refused fetches.
    pub word: Option<u32>,
}

impl Core {
    /// Enters the handler of an exception that the instruction at `state.pc` raises, or of an interrupt before that
    /// instruction.
    pub(crate) fn enter(&self, state: &mut State, exception: Exception, record: Record) {
        self.last_exception.set(Some(exception));
        let registers = &self.registers;
        let mode = registers.get(csr::CRMD);
        let (level_and_interrupts, watch) = (field(mode, 0..=2), field(mode, 9..=9));
        let mut new_mode = with_field(with_field(mode, 0..=2, 0), 9..=9, 0);
        if let Some(word) = record.word {
            registers.set(csr::BADI, u64::from(word));
        }
        if exception == Exception::TlbRefill {
            registers.set(csr::TLBRPRMD, level_and_interrupts | watch << 4);
            registers.set(csr::TLBRERA, state.pc & !3 | 1);
            registers.set(csr::TLBRBADV, record.address);
            registers.set_field(csr::TLBREHI, 13..=47, field(record.address, 13..=47));
            new_mode = with_field(new_mode, 3..=4, 0b01);
            state.pc = registers.get(csr::TLBRENTRY);
        } else {
            let (code, subcode) = exception.code();
            registers.set_field(csr::ESTAT, 16..=30, code | subcode << 6);
            registers.set(csr::PRMD, level_and_interrupts | watch << 3);
            registers.set(csr::ERA, state.pc);
            if exception.has_bad_address() {
                registers.set(csr::BADV, record.address);
            }
            if exception.is_about_page() {
                registers.set_field(csr::TLBEHI, 13..=47, field(record.address, 13..=47));
            }
            let spacing = registers.field(csr::ECFG, 16..=18);
            let offset = if spacing == 0 { 0 } else { exception.vector() << (spacing + 2) };
            state.pc = registers.get(csr::EENTRY) | offset;
        }
        registers.set(csr::CRMD, new_mode);
        self.update_mode();
    }

    /// ERTN: returns from an exception.
    pub(super) fn leave(&self, state: &mut State) {
        let registers = &self.registers;
        // KLO preserves the reservation across one ERTN.
        if registers.field(csr::LLBCTL, 2..=2) == 0 {
            state.reservation = Reservation::default();
        }
        registers.set_field(csr::LLBCTL, 2..=2, 0);
        let mode = registers.get(csr::CRMD);
        let new_mode = if registers.field(csr::TLBRERA, 0..=0) == 1 {
            let saved = registers.get(csr::TLBRPRMD);
            registers.set_field(csr::TLBRERA, 0..=0, 0);
            state.pc = registers.get(csr::TLBRERA) & !3;
            with_field(restored(mode, saved, field(saved, 4..=4)), 3..=4, 0b10)
        } else {
            let saved = registers.get(csr::PRMD);
            state.pc = registers.get(csr::ERA);
            restored(mode, saved, field(saved, 3..=3))
        };
        registers.set(csr::CRMD, new_mode);
        self.update_mode();
    }

    /// The exception that a trap raises, and the registers that it sets. `word` is the trapping instruction.
    pub(crate) fn exception_of_trap(
        &self,
        state: &State,
        instruction: &Instruction,
        word: u32,
        trap: Trap,
    ) -> (Exception, Record) {
        let is_vector = matches!(instruction.op.row().extension, Extension::Lsx | Extension::Lasx);
        let (exception, address) = match trap {
            Trap::Syscall(_) => (Exception::Syscall, 0),
            Trap::Break(_) => (Exception::Break, 0),
            Trap::IllegalInstruction => (Exception::IllegalInstruction, 0),
            Trap::PrivilegedInstruction => (Exception::PrivilegedInstruction, 0),
            Trap::Memory(fault) => (self.exception_of(fault), fault.address),
            // The address that the check refused is in rj.
            Trap::BoundCheck => (Exception::BoundCheck, state.r(instruction.j)),
            Trap::FloatingPoint if is_vector => (Exception::VectorFloatingPoint, 0),
            Trap::FloatingPoint => (Exception::FloatingPoint, 0),
        };
        (exception, Record { address, word: Some(word) })
    }
}

/// CRMD with the saved privilege level and interrupt enable, and the watchpoint enable `watch`.
fn restored(mode: u64, saved: u64, watch: u64) -> u64 {
    with_field(with_field(mode, 0..=2, field(saved, 0..=2)), 9..=9, watch)
}
