//! The tests that every front end must pass.

use longma_translate_conformance::changes::{BASE, PAGE, ProgramStep, StepEncoding};
use longma_translate_conformance::{changes, debug_mode, hotness, whole_units};
use longma_translate_x86::X86_64;

/// The encoding of changing programs.
struct X86Steps;

impl StepEncoding for X86Steps {
    type FrontEnd = X86_64;
    const SUM: usize = 0;
    const COUNT: usize = 2;
    const STACK: (usize, Option<usize>) = (7, None);

    fn encode(step: ProgramStep, at: u64, to: &dyn Fn(usize) -> u64) -> Vec<u8> {
        let with = |code: &[u8], number: u32| [code, &number.to_le_bytes()].concat();
        match step {
            ProgramStep::Begin => vec![0x90],
            ProgramStep::Add(value) => with(&[0x48, 0x05], value),
            ProgramStep::Nothing => vec![0x66, 0x0f, 0x1f, 0x44, 0, 0],
            ProgramStep::Count(value) => with(&[0xb9], value),
            ProgramStep::Unless(bit, over) => {
                vec![0x48, 0x0f, 0xba, 0xe0, bit as u8, 0x73, to(over).wrapping_sub(at + 7) as u8]
            }
            ProgramStep::Down(again) => vec![0x83, 0xe9, 1, 0x75, to(again).wrapping_sub(at + 5) as u8],
            ProgramStep::Call(function) => {
                with(&[0xe8], (BASE + function * PAGE).wrapping_sub(at + 5) as u32)
            }
            ProgramStep::Return => vec![0xc3],
        }
    }
}

/// sub eax, 1; jnz -3; ret
const COUNTDOWN: [u8; 6] = [0x83, 0xe8, 1, 0x75, 0xfb, 0xc3];

/// mov ecx, 5; again: sub eax, 1; jnz again; ret
fn program() -> hotness::Program {
    let code = vec![0xb9, 5, 0, 0, 0, 0x83, 0xe8, 1, 0x75, 0xfb, 0xc3];
    hotness::Program { code, again: hotness::BASE + 5, after_loop: hotness::BASE + 10 }
}

#[test]
fn stale_code_is_never_executed() {
    changes::stale_code_is_never_executed::<X86Steps>();
}

#[test]
fn imported_units_run_while_their_source_is_unchanged() {
    changes::imported_units_run_while_their_source_is_unchanged::<X86Steps>();
}

#[test]
fn programs_are_equivalent_without_optimizations() {
    whole_units::programs_are_equivalent_without_optimizations::<X86_64>("x86_64", None);
}

#[test]
fn in_debug_mode_a_unit_is_one_instruction() {
    debug_mode::a_unit_is_one_instruction_with_its_delay_slot::<X86_64>(
        COUNTDOWN.to_vec(),
        &[(0, 1), (3, 1), (5, 1)],
    );
}

#[test]
fn a_breakpoint_exits_and_execution_continues_in_unlinked_code() {
    debug_mode::a_breakpoint_exits_and_execution_continues_in_unlinked_code::<X86_64>(COUNTDOWN.to_vec(), 3);
}

#[test]
fn a_single_block_loop_exits_until_it_is_hot() {
    hotness::a_single_block_loop_exits_until_it_is_hot::<X86_64>(&program().code, program().again);
}

#[test]
fn hot_code_is_translated_with_the_executed_code_of_its_function() {
    hotness::hot_code_is_translated_with_the_executed_code_of_its_function::<X86_64>(&program());
}

#[test]
fn debug_mode_disables_two_stage_translation() {
    hotness::debug_mode_disables_two_stage_translation::<X86_64>(&program());
}
