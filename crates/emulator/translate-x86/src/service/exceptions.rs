//! Instructions that always raise an exception: software interrupts and privileged instructions. Source: Intel SDM,
//! volume 2 (INT n, INT3, INT1), volume 3, sections 5.9 (privileged instructions), 6.15; Linux arch/x86/kernel/idt.c
//! (interrupts that programs may raise), traps.c.

use iced_x86::{FlowControl, Instruction, Mnemonic};
use longma_loongarch::{Access, Fault, FaultCause, State, Trap};

use crate::registers::STACK_POINTER;

/// The `break` codes of a breakpoint and of INT1.
const BREAKPOINT: u32 = 5;
const DEBUG: u32 = 1;

/// The trap after an instruction of a thread that single-steps.
pub(super) const STEPPED: Trap = Trap::Break(longma_translate::front_end::STEPPED);

/// The trap of a software interrupt, whose handler sees the program counter after the instruction. `None` for other
/// instructions.
pub(super) fn interrupt(instruction: &Instruction) -> Option<Trap> {
    match (instruction.mnemonic(), instruction.immediate8()) {
        (Mnemonic::Int3, _) | (Mnemonic::Int, 3) => Some(Trap::Break(BREAKPOINT)),
        (Mnemonic::Int1, _) => Some(Trap::Break(DEBUG)),
        // The overflow exception, which the 64-bit kernel reports as a general-protection fault.
        (Mnemonic::Int, 4) => Some(protection()),
        _ => None,
    }
}

/// A general-protection fault, represented as an access to a non-canonical address.
pub(crate) fn protection() -> Trap {
    Trap::Memory(Fault { address: 1 << 63, access: Access::Read, cause: FaultCause::Unmapped })
}

/// Restores the stack pointer after a fault of an indirect jump that had already changed it.
pub(crate) fn undo_jump(jump: &Instruction, state: &mut State) {
    let moved = match jump.flow_control() {
        FlowControl::IndirectCall => -8,
        FlowControl::Return if jump.op_count() == 1 => 8 + i64::from(jump.immediate16()),
        FlowControl::Return => 8,
        _ => 0,
    };
    state.set_r(STACK_POINTER, state.r(STACK_POINTER).wrapping_add_signed(-moved));
}

/// Whether an instruction is privileged, or an interrupt that programs may not raise. INT 80h, a 32-bit system call, is
/// not included.
pub(super) fn is_forbidden(instruction: &Instruction) -> bool {
    use Mnemonic::*;
    match instruction.mnemonic() {
        Int => instruction.immediate8() != 0x80,
        Hlt | Cli | Sti | In | Out | Insb | Insw | Insd | Outsb | Outsw | Outsd => true,
        Rdmsr | Wrmsr | Rdpmc | Swapgs | Clts | Lmsw | Lgdt | Lidt | Lldt | Ltr => true,
        Invd | Wbinvd | Invlpg | Sysretq | Sysexitq | Xsetbv => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions};

    fn decoded(bytes: &[u8]) -> Instruction {
        Decoder::new(64, bytes, DecoderOptions::NONE).decode()
    }

    #[test]
    fn only_permitted_software_interrupts_are_raised() {
        let break_of = |bytes: &[u8]| interrupt(&decoded(bytes));
        assert_eq!(break_of(&[0xcc]), Some(Trap::Break(BREAKPOINT)));
        assert_eq!(break_of(&[0xcd, 3]), Some(Trap::Break(BREAKPOINT)));
        assert_eq!(break_of(&[0xf1]), Some(Trap::Break(DEBUG)));
        assert_eq!(break_of(&[0xcd, 5]), None);
        assert!(is_forbidden(&decoded(&[0xcd, 5])) && !is_forbidden(&decoded(&[0xcd, 0x80])));
    }

    #[test]
    fn privileged_instructions_raise_a_protection_fault() {
        let forbidden: [&[u8]; 8] = [
            &[0x0f, 0x30],
            &[0x0f, 0x06],
            &[0x0f, 0x08],
            &[0x0f, 0x09],
            &[0x0f, 0x01, 0xf8],
            &[0xec],
            &[0xe7, 4],
            &[0x6c],
        ];
        assert!(forbidden.iter().all(|bytes| is_forbidden(&decoded(bytes))));
        assert!(!is_forbidden(&decoded(&[0x0f, 0x0b])));
    }
}
