//! The tests that every front end must pass.

use longma_translate_conformance::changes::{BASE, PAGE, ProgramStep, StepEncoding};
use longma_translate_conformance::{bytes, changes, debug_mode, hotness, whole_units};
use longma_translate_mips::Mips64;

/// The encoding of changing programs.
struct MipsSteps;

impl StepEncoding for MipsSteps {
    type FrontEnd = Mips64;
    const SUM: usize = 4;
    const COUNT: usize = 3;
    const STACK: (usize, Option<usize>) = (29, Some(31));

    fn encode(step: ProgramStep, at: u64, to: &dyn Fn(usize) -> u64) -> Vec<u8> {
        // Relative to the delay slot of the second instruction.
        let by = |to: u64| (to.wrapping_sub(at + 8) / 4) as u32 & 0xffff;
        bytes(&match step {
            // daddiu sp, sp, -16; sd ra, 0(sp)
            ProgramStep::Begin => vec![0x67bd_fff0, 0xffbf_0000],
            ProgramStep::Add(value) => vec![0x6484_0000 | value],
            ProgramStep::Nothing => vec![0],
            ProgramStep::Count(value) => vec![0x2403_0000 | value],
            // andi t0, a0, bit; beqz t0; nop
            ProgramStep::Unless(bit, over) => vec![0x3088_0000 | 1 << bit, 0x1100_0000 | by(to(over)), 0],
            // addiu v1, v1, -1; bnez v1; nop
            ProgramStep::Down(again) => vec![0x2463_ffff, 0x1460_0000 | by(to(again)), 0],
            // jal; nop
            ProgramStep::Call(function) => vec![0x0c00_0000 | ((BASE + function * PAGE) / 4) as u32, 0],
            // ld ra, 0(sp); jr ra; daddiu sp, sp, 16 in the delay slot
            ProgramStep::Return => vec![0xdfbf_0000, 0x03e0_0008, 0x67bd_0010],
        })
    }
}

/// daddiu a0, a0, -1; bnez a0, -2; daddiu a1, a1, 2 in the delay slot; li a0, 7; jr ra; nop
const COUNTDOWN: [u32; 6] = [0x6484_ffff, 0x1480_fffe, 0x64a5_0002, 0x6404_0007, 0x03e0_0008, 0];

#[test]
fn stale_code_is_never_executed() {
    changes::stale_code_is_never_executed::<MipsSteps>();
}

#[test]
fn imported_units_run_while_their_source_is_unchanged() {
    changes::imported_units_run_while_their_source_is_unchanged::<MipsSteps>();
}

#[test]
fn programs_are_equivalent_without_optimizations() {
    whole_units::programs_are_equivalent_without_optimizations::<Mips64>("mips64el", None);
}

#[test]
fn in_debug_mode_a_unit_is_one_instruction_with_its_delay_slot() {
    debug_mode::a_unit_is_one_instruction_with_its_delay_slot::<Mips64>(
        bytes(&COUNTDOWN),
        &[(0, 1), (4, 2), (12, 1), (16, 2)],
    );
}

#[test]
fn a_breakpoint_exits_and_execution_continues_in_unlinked_code() {
    debug_mode::a_breakpoint_exits_and_execution_continues_in_unlinked_code::<Mips64>(bytes(&COUNTDOWN), 4);
}

#[test]
fn a_single_block_loop_exits_until_it_is_hot() {
    // daddiu a0, a0, -1; bnez a0, -2; daddiu a1, a1, 2 in the delay slot; jr ra; nop
    let code = bytes(&[0x6484_ffff, 0x1480_fffe, 0x64a5_0002, 0x03e0_0008, 0]);
    hotness::a_single_block_loop_exits_until_it_is_hot::<Mips64>(&code, hotness::BASE);
}
