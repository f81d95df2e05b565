//! Debug mode: units of one instruction, and breakpoints.

mod test_memory;

use std::collections::BTreeSet;

use longma_loongarch::Environment;
use longma_translate::engine::{CodeError, Engine, Layout};
use longma_translate::front_end::{Exit, FrontEnd};
use longma_translate_arm::Aarch64;
use longma_translate_mips::Mips64;
use longma_translate_x86::X86_64;

use test_memory::TestMemory;

const BASE: u64 = 0x1_0000;
const LIMIT: u64 = 0x2_0000;
const CODE: u64 = 0x1000_0000;
const CODE_BYTES: u64 = 0x1_0000;
const TABLE: u64 = 0x2000_0000;

/// sub eax, 1; jnz -3; ret
const X86: [u8; 6] = [0x83, 0xe8, 1, 0x75, 0xfb, 0xc3];
/// subs x0, x0, 1; b.ne -4; ret
const ARM: [u32; 3] = [0xf100_0400, 0x54ff_ffe1, 0xd65f_03c0];
/// daddiu a0, a0, -1; bnez a0, -2; daddiu a1, a1, 2 in the delay slot; li a0, 7; jr ra; nop
const MIPS: [u32; 6] = [0x6484_ffff, 0x1480_fffe, 0x64a5_0002, 0x6404_0007, 0x03e0_0008, 0];

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn memory<F: FrontEnd>(mut code: Vec<u8>) -> (Engine<F>, TestMemory) {
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

fn units_are_single<F: FrontEnd>(code: Vec<u8>, expected: &[(u64, usize)]) {
    let (mut engine, memory) = memory::<F>(code.clone());
    assert!(instructions(&mut engine, &memory, BASE) > 2, "{}", F::NAME);
    engine.set_debug_mode(true, &memory).unwrap();
    for (at, count) in expected {
        assert_eq!(instructions(&mut engine, &memory, BASE + at), *count, "{} at {at}", F::NAME);
    }
    engine.set_debug_mode(false, &memory).unwrap();
    assert!(instructions(&mut engine, &memory, BASE) > 2, "{}: translations are discarded", F::NAME);
}

#[test]
fn in_debug_mode_a_unit_is_one_instruction_with_its_delay_slot() {
    units_are_single::<X86_64>(X86.to_vec(), &[(0, 1), (3, 1), (5, 1)]);
    units_are_single::<Aarch64>(bytes(&ARM), &[(0, 1), (4, 1), (8, 1)]);
    units_are_single::<Mips64>(bytes(&MIPS), &[(0, 1), (4, 2), (12, 1), (16, 2)]);
}

fn stops_have_no_code<F: FrontEnd>(code: Vec<u8>, at: u64) {
    let (mut engine, memory) = memory::<F>(code);
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
    let again = engine.code_of(pc, &memory).unwrap();
    assert_eq!(entry(&memory), again);
    engine.set_breakpoints(&BTreeSet::from([pc]), &memory).unwrap();
    engine.forget(pc..pc + 1, &memory).unwrap();
    assert!(
        engine.code_past_breakpoint(pc, &memory).unwrap() != past,
        "{}: the code may have changed",
        F::NAME
    );
}

#[test]
fn a_breakpoint_exits_and_execution_continues_in_unlinked_code() {
    stops_have_no_code::<X86_64>(X86.to_vec(), 3);
    stops_have_no_code::<Aarch64>(bytes(&ARM), 4);
    stops_have_no_code::<Mips64>(bytes(&MIPS), 4);
}
