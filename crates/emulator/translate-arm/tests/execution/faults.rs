//! Deferred register updates must be visible to the handler of a fault.

use longma_loongarch::{Environment, State, Trap, decode as decode_word, semantics};
use longma_translate::engine::{Engine, Layout};
use longma_translate::front_end::{Exit, FrontEnd};
use longma_translate::optimizations::Optimizations;
use longma_translate_arm::Aarch64;
use longma_translate_arm::registers::{SLOTS, TABLE, read, write};
use longma_translate_conformance::memory::{TestMemory, choices};

const CODE: u64 = 0x1000_0000;
const CODE_BYTES: u64 = 1 << 20;
const TABLE_AT: u64 = 0x2000_0000;
const BASE: u64 = 0x1_0000;
const DATA: u64 = 0x2_0000;

/// Executes words until one faults. Returns its address and the value of x`number`.
fn faulting(words: &[u32], number: u8, choice: Optimizations) -> (u64, u64) {
    let mut low = vec![0; 0x3_0000];
    for (at, word) in words.iter().enumerate() {
        low[BASE as usize + 4 * at..][..4].copy_from_slice(&word.to_le_bytes());
    }
    let memory =
        TestMemory::new([(0, low), (CODE, vec![0; CODE_BYTES as usize]), (TABLE_AT, vec![0; 0x3_0000])]);
    let layout = Layout { code: CODE..CODE + CODE_BYTES, table: TABLE_AT, limit: 0x3_0000 };
    let mut engine = Engine::<Aarch64>::new(layout, choice);
    let mut state = State::default();
    state.set_r(TABLE, TABLE_AT);
    state.set_r(SLOTS, 0x2_8000);
    write(&mut state, 1, DATA, &memory);
    // This address is unmapped.
    write(&mut state, 2, 1 << 40, &memory);
    state.pc = engine.code_of(BASE, &memory).unwrap();
    loop {
        let word = Environment::fetch(&memory, state.pc).unwrap();
        match semantics::execute(&mut state, &decode_word(word).unwrap(), &memory) {
            Ok(()) => {}
            Err(Trap::Memory(_)) => break,
            Err(Trap::Break(_)) => match engine.exit_at(state.pc) {
                Some(Exit::To(pc)) => state.pc = engine.code_of(pc, &memory).unwrap(),
                other => panic!("{other:?}"),
            },
            Err(other) => panic!("{other:?}"),
        }
    }
    let position = engine.position_of_fault(state.pc).unwrap();
    if let Some(pending) = position.pending {
        Aarch64::settle(pending, &mut state, &memory);
    }
    (position.pc, read(&state, number, &memory))
}

#[test]
fn a_pre_increment_is_applied_once_if_the_store_faults() {
    // ldr x3, [x1], #8; ldr x3, [x1], #8; str x1, [x2]; ret
    let words = [0xf840_8423, 0xf840_8423, 0xf900_0041, 0xd65f_03c0];
    for choice in [&[Optimizations::default()][..], &choices()].concat() {
        assert_eq!(faulting(&words, 1, choice), (BASE + 8, DATA + 16), "with '{choice}'");
    }
}
