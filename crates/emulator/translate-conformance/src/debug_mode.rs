//! Debug mode: units of one instruction, and breakpoints.

use std::collections::BTreeSet;

use longma_loongarch::Environment;
use longma_translate::engine::{CodeError, Engine, Layout};
use longma_translate::front_end::{Exit, FrontEnd};

use crate::memory::TestMemory;

const BASE: u64 = 0x1_0000;
const LIMIT: u64 = 0x2_0000;
const CODE: u64 = 0x1000_0000;
const CODE_BYTES: u64 = 0x1_0000;
const TABLE: u64 = 0x2000_0000;

fn engine<F: FrontEnd>(mut code: Vec<u8>) -> (Engine<F>, TestMemory) {
    code.resize(4096, 0);
    let table = TABLE + (BASE << F::ENTRY_SHIFT);
    let segments =
        [(BASE, code), (CODE, vec![0; CODE_BYTES as usize]), (table, vec![0; 4096 << F::ENTRY_SHIFT])];
    let engine = Engine::new(
        Layout { code: CODE..CODE + CODE_BYTES, table: TABLE, limit: LIMIT },
        longma_translate::optimizations::Optimizations::default(),
    );
    (engine, TestMemory::new(segments))
}

/// The number of source instructions in the unit of `pc`.
fn instructions<F: FrontEnd>(engine: &mut Engine<F>, memory: &TestMemory, pc: u64) -> usize {
    let code = engine.code_of(pc, memory).unwrap();
    let unit = engine.units().find(|(start, words, _)| (*start..start + 4 * words).contains(&code));
    unit.unwrap().2.iter().filter(|position| position.counted.is_some()).count()
}

/// Checks that a unit in debug mode is one instruction with its delay slot. `expected` is the number of instructions in
/// the unit at each offset in `code`.
///
/// # Panics
/// A unit has another number of instructions.
pub fn a_unit_is_one_instruction_with_its_delay_slot<F: FrontEnd>(code: Vec<u8>, expected: &[(u64, usize)]) {
    let (mut engine, memory) = engine::<F>(code);
    assert!(instructions(&mut engine, &memory, BASE) > 2, "{}", F::NAME);
    engine.set_debug_mode(true, &memory).unwrap();
    for (at, count) in expected {
        assert_eq!(instructions(&mut engine, &memory, BASE + at), *count, "{} at {at}", F::NAME);
    }
    engine.set_debug_mode(false, &memory).unwrap();
    assert!(instructions(&mut engine, &memory, BASE) > 2, "{}: translations are discarded", F::NAME);
}

/// Checks that a breakpoint exits and that execution continues past it in unlinked code. `at` is the offset of the
/// breakpoint in `code`.
///
/// # Panics
/// A breakpoint does not exit, or linked code reaches it.
pub fn a_breakpoint_exits_and_execution_continues_in_unlinked_code<F: FrontEnd>(code: Vec<u8>, at: u64) {
    let (mut engine, memory) = engine::<F>(code);
    engine.set_debug_mode(true, &memory).unwrap();
    let pc = BASE + at;
    let entry = |memory: &TestMemory| u64::from(memory.load::<u32>(TABLE + (pc << F::ENTRY_SHIFT)).unwrap());
    let first = engine.code_of(pc, &memory).unwrap();
    assert_eq!(entry(&memory), first);

    engine.set_breakpoints(&BTreeSet::from([pc]), &memory).unwrap();
    assert_eq!(engine.code_of(pc, &memory), Err(CodeError::Breakpoint));
    assert_eq!(
        (engine.exit_at(first), entry(&memory)),
        (Some(Exit::To(pc)), 0),
        "{}: a thread on its way to the breakpoint",
        F::NAME
    );
    let past = engine.code_past_breakpoint(pc, &memory).unwrap();
    assert!(past != first && entry(&memory) == 0);
    assert_eq!(engine.code_past_breakpoint(pc, &memory), Ok(past), "it is translated once");

    engine.set_breakpoints(&BTreeSet::new(), &memory).unwrap();
    let same_code = engine.code_of(pc, &memory).unwrap();
    assert_eq!(entry(&memory), same_code);
    engine.set_breakpoints(&BTreeSet::from([pc]), &memory).unwrap();
    engine.forget(pc..pc + 1, &memory).unwrap();
    assert!(
        engine.code_past_breakpoint(pc, &memory).unwrap() != past,
        "{}: the code may have changed",
        F::NAME
    );
}
