//! Two-stage translation: the units that the engine creates for cold code, and for code that becomes hot.

use std::collections::BTreeSet;

use longma_loongarch::Environment;
use longma_translate::engine::{Engine, Layout};
use longma_translate::front_end::{Exit, FrontEnd};

use crate::memory::TestMemory;

/// The address of the program.
pub const BASE: u64 = 0x1_0000;
const LIMIT: u64 = 0x2_0000;
const CODE: u64 = 0x1000_0000;
const CODE_BYTES: u64 = 0x1_0000;
const TABLE: u64 = 0x2000_0000;
const HOT: u32 = 5;

/// A program of four instructions: one before a loop of two, and one after it.
pub struct Program {
    /// The code at [`BASE`].
    pub code: Vec<u8>,
    /// The start of the loop.
    pub again: u64,
    /// The instruction after the loop.
    pub after_loop: u64,
}

fn begin<F: FrontEnd>(code: &[u8]) -> (Engine<F>, TestMemory) {
    let mut code = code.to_vec();
    code.resize(4096, 0);
    let table = TABLE + (BASE << F::ENTRY_SHIFT);
    let segments =
        [(BASE, code), (CODE, vec![0; CODE_BYTES as usize]), (table, vec![0; 4096 << F::ENTRY_SHIFT])];
    let layout = Layout { code: CODE..CODE + CODE_BYTES, table: TABLE, limit: LIMIT };
    let mut engine = Engine::new(layout, longma_translate::optimizations::Optimizations::default());
    engine.set_hot_threshold(HOT);
    (engine, TestMemory::new(segments))
}

/// The start of the unit that contains `code`, and the number of distinct source instructions in it.
fn unit<F: FrontEnd>(engine: &Engine<F>, code: u64) -> (u64, usize) {
    let mut units = engine.units();
    let (start, _, positions) =
        units.find(|(start, words, _)| (*start..start + 4 * words).contains(&code)).unwrap();
    let counted = positions.iter().filter(|position| position.counted.is_some());
    (start, counted.map(|position| position.pc).collect::<BTreeSet<u64>>().len())
}

fn entry<F: FrontEnd>(memory: &TestMemory, pc: u64) -> u64 {
    memory.load::<u32>(TABLE + (pc << F::ENTRY_SHIFT)).unwrap().into()
}

/// Runs the program until all of it is hot.
///
/// # Panics
/// A unit contains too little or too much.
pub fn hot_code_is_translated_with_the_executed_code_of_its_function<F: FrontEnd>(program: &Program) {
    let (mut engine, memory) = begin::<F>(&program.code);
    let name = F::NAME;
    engine.note_indirect(BASE);
    let first = engine.code_of(BASE, &memory).unwrap();
    assert_eq!(unit(&engine, first).1, 3, "{name}: up to its first branch");
    assert_eq!(entry::<F>(&memory, BASE), 0, "{name}: only the engine enters it");
    let cold = engine.code_of(program.again, &memory).unwrap();
    assert_eq!(unit(&engine, cold).1, 2, "{name}");
    for _ in 2..HOT {
        assert_eq!(engine.code_of(program.again, &memory), Ok(cold), "{name}");
    }
    let hot = engine.code_of(program.again, &memory).unwrap();
    assert_eq!(
        unit(&engine, hot).1,
        3,
        "{name}: includes the start of the function, but no code that was never executed"
    );
    let begin = engine.code_of(BASE, &memory).unwrap();
    assert_eq!(unit(&engine, begin).0, unit(&engine, hot).0, "{name}");
    assert_eq!([BASE, program.again].map(|pc| entry::<F>(&memory, pc)), [begin, hot], "{name}");

    // The function was translated once. Retranslation needs twice as many visits.
    for _ in 1..2 * HOT {
        let after_loop = engine.code_of(program.after_loop, &memory).unwrap();
        assert_eq!(unit(&engine, after_loop).1, 1, "{name}");
    }
    let after_loop = engine.code_of(program.after_loop, &memory).unwrap();
    assert_eq!(unit(&engine, after_loop).1, 4, "{name}: a single unit contains the whole program");
    let newest = engine.code_of(BASE, &memory).unwrap();
    assert_eq!(unit(&engine, newest).0, unit(&engine, after_loop).0, "{name}");
    // A `b` instruction has the low 16 bits of its offset in bits 10 to 25 and the high bits in 0 to 9.
    let word = memory.load::<u32>(begin).unwrap();
    let distance = u64::from((word & 0x3ff) << 16 | word >> 10 & 0xffff);
    assert_eq!(
        (word >> 26, begin + 4 * distance),
        (0b01_0100, newest),
        "{name}: the old code jumps to the new code"
    );

    engine.forget(BASE..BASE + 4096, &memory).unwrap();
    for (pc, code) in [(BASE, newest), (program.again, hot), (program.after_loop, after_loop)] {
        assert_eq!((entry::<F>(&memory, pc), engine.exit_at(code)), (0, Some(Exit::To(pc))), "{name}");
        let retranslated = engine.code_of(pc, &memory).unwrap();
        assert!(unit(&engine, retranslated).1 < 4, "{name}: changed code is cold");
    }
}

/// Checks that a loop of one block exits until it is hot. `code` is a program with a loop of one block at `pc`.
///
/// # Panics
/// The loop jumps to itself before it is hot, or exits afterwards.
pub fn a_single_block_loop_exits_until_it_is_hot<F: FrontEnd>(code: &[u8], pc: u64) {
    let (mut engine, memory) = begin::<F>(code);
    for visit in 1..=HOT {
        let code = engine.code_of(pc, &memory).unwrap();
        let mut words = (code..code + 64).step_by(4);
        let exits = words.any(|at| engine.exit_at(at) == Some(Exit::To(pc)));
        assert_eq!(exits, visit < HOT, "{}, visit {visit}", F::NAME);
    }
}

/// # Panics
/// A hot unit has more than one instruction in debug mode.
pub fn debug_mode_disables_two_stage_translation<F: FrontEnd>(program: &Program) {
    let (mut engine, memory) = begin::<F>(&program.code);
    engine.note_indirect(BASE);
    for _ in 0..HOT {
        engine.code_of(BASE, &memory).unwrap();
    }
    engine.set_debug_mode(true, &memory).unwrap();
    for pc in [BASE, program.again] {
        let code = engine.code_of(pc, &memory).unwrap();
        assert_eq!((unit(&engine, code).1, entry::<F>(&memory, pc)), (1, code));
    }
}
