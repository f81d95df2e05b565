//! The tests that every front end must pass.

use longma_translate_arm::Aarch64;
use longma_translate_arm::registers::SLOTS;
use longma_translate_conformance::changes::{BASE, PAGE, ProgramStep, StepEncoding};
use longma_translate_conformance::{bytes, changes, debug_mode, hotness, whole_units};

/// The encoding of changing programs.
struct ArmSteps;

impl StepEncoding for ArmSteps {
    type FrontEnd = Aarch64;
    const SUM: usize = 0;
    const COUNT: usize = 2;
    const STACK: (usize, Option<usize>) = (31, Some(30));

    fn encode(step: ProgramStep, at: u64, to: &dyn Fn(usize) -> u64) -> Vec<u8> {
        let by = |to: u64| (to.wrapping_sub(at) / 4) as u32;
        bytes(&match step {
            // str x30, [sp, -16]!
            ProgramStep::Begin => vec![0xf81f_0ffe],
            ProgramStep::Add(value) => vec![0x9100_0000 | value << 10],
            ProgramStep::Nothing => vec![0xd503_201f],
            ProgramStep::Count(value) => vec![0xd280_0002 | value << 5],
            // tbz x0, bit
            ProgramStep::Unless(bit, over) => vec![0x3600_0000 | bit << 19 | (by(to(over)) & 0x3fff) << 5],
            // subs x2, x2, 1; b.ne, relative to the second instruction
            ProgramStep::Down(again) => vec![0xf100_0442, 0x5400_0001 | (by(to(again) - 4) & 0x7_ffff) << 5],
            ProgramStep::Call(function) => vec![0x9400_0000 | by(BASE + function * PAGE) & 0x3ff_ffff],
            // ldr x30, [sp], 16; ret
            ProgramStep::Return => vec![0xf841_07fe, 0xd65f_03c0],
        })
    }
}

/// subs x0, x0, 1; b.ne -4; ret
const COUNTDOWN: [u32; 3] = [0xf100_0400, 0x54ff_ffe1, 0xd65f_03c0];

/// mov w1, 5; again: subs x0, x0, 1; b.ne again; ret
fn program() -> hotness::Program {
    let code = bytes(&[0x5280_00a1, 0xf100_0400, 0x54ff_ffe1, 0xd65f_03c0]);
    hotness::Program { code, again: hotness::BASE + 4, after_loop: hotness::BASE + 12 }
}

#[test]
fn stale_code_is_never_executed() {
    changes::stale_code_is_never_executed::<ArmSteps>();
}

#[test]
fn imported_units_run_while_their_source_is_unchanged() {
    changes::imported_units_run_while_their_source_is_unchanged::<ArmSteps>();
}

#[test]
fn programs_are_equivalent_without_optimizations() {
    whole_units::programs_are_equivalent_without_optimizations::<Aarch64>("aarch64", Some(SLOTS));
}

#[test]
fn in_debug_mode_a_unit_is_one_instruction() {
    debug_mode::a_unit_is_one_instruction_with_its_delay_slot::<Aarch64>(
        bytes(&COUNTDOWN),
        &[(0, 1), (4, 1), (8, 1)],
    );
}

#[test]
fn a_breakpoint_exits_and_execution_continues_in_unlinked_code() {
    debug_mode::a_breakpoint_exits_and_execution_continues_in_unlinked_code::<Aarch64>(bytes(&COUNTDOWN), 4);
}

#[test]
fn a_single_block_loop_exits_until_it_is_hot() {
    hotness::a_single_block_loop_exits_until_it_is_hot::<Aarch64>(&program().code, program().again);
}

#[test]
fn hot_code_is_translated_with_the_executed_code_of_its_function() {
    hotness::hot_code_is_translated_with_the_executed_code_of_its_function::<Aarch64>(&program());
}

#[test]
fn debug_mode_disables_two_stage_translation() {
    hotness::debug_mode_disables_two_stage_translation::<Aarch64>(&program());
}
