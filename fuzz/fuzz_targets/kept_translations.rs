//! Loads persistent translations with changed bytes, for a program that may have changed too. They must be accepted or
//! rejected without a panic, and activated code must be in the engine's code area.
#![no_main]

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use longma_loongarch::{Access, Fault, FaultCause};
use longma_translate::engine::{Engine, Layout};
use longma_translate::front_end::Memory;
use longma_translate::optimizations::Optimizations;
use longma_translate::persistent_cache::{EncodedPositions, ExportedUnits};
use longma_translate_mips::Mips64;

const CODE: Range<u64> = 0xf000_0000..0xf001_0000;
const START: u64 = 0x1_0000;
/// addiu $2, $2, 1; bnez $2, back; nop; jal START + 0x14; nop; jr $31; nop
const PROGRAM: [u32; 7] = [0x2442_0001, 0x1440_fffe, 0, 0x0c00_4005, 0, 0x03e0_0008, 0];

/// The program's words, and the words written to the code area and its table.
struct Words {
    program: Vec<u32>,
    written: RefCell<HashMap<u64, u32>>,
}

impl Words {
    fn of(program: Vec<u32>) -> Self {
        Self { program, written: RefCell::default() }
    }
}

impl Memory for Words {
    fn fetch(&self, address: u64) -> Result<u32, Fault> {
        let fault = Fault { address, access: Access::Execute, cause: FaultCause::Unmapped };
        let number = address.checked_sub(START).filter(|bytes| bytes % 4 == 0).ok_or(fault)? / 4;
        self.program.get(number as usize).copied().ok_or(fault)
    }

    fn place(&self, address: u64, words: &[u32]) -> Result<(), Fault> {
        for (at, word) in (address..).step_by(4).zip(words) {
            assert!(CODE.contains(&at) || at < CODE.start, "{at:#x}");
            self.written.borrow_mut().insert(at, *word);
        }
        Ok(())
    }

    fn placed(&self, address: u64) -> Option<u32> {
        Some(self.written.borrow().get(&address).copied().unwrap_or_default())
    }

    fn forget(&self, code: Range<u64>) -> Result<(), Fault> {
        assert!(CODE.start <= code.start && code.end <= CODE.end, "{code:x?}");
        Ok(())
    }
}

fn engine() -> Engine<Mips64> {
    let layout = Layout { code: CODE, table: 0x2000_0000, limit: 0x10_0000 };
    let mut engine = Engine::new(layout, Optimizations::default());
    engine.set_hot_threshold(2);
    engine.split_areas();
    engine.record_origins();
    engine
}

/// Looks up all instructions of the program twice.
fn run(engine: &mut Engine<Mips64>, memory: &Words) {
    for pc in (START..).step_by(4).take(2 * PROGRAM.len()).chain((START..).step_by(4).take(PROGRAM.len())) {
        if let Ok(code) = engine.code_of(pc, memory) {
            assert!(CODE.contains(&code));
            let _ = (engine.position(code), engine.exit_at(code));
        }
    }
}

static KEPT: LazyLock<[Vec<u8>; 5]> = LazyLock::new(|| {
    let (mut engine, memory) = (engine(), Words::of(PROGRAM.into()));
    run(&mut engine, &memory);
    let ExportedUnits { index, units, words, positions } = engine.export(&memory).expect("it has been noted");
    let EncodedPositions { steps, pending } = &*positions;
    [index, units, words, steps.clone(), pending.clone()].map(|part| part.to_vec())
});

fuzz_target!(|data: &[u8]| {
    let [mut index, mut units, mut words, mut steps, mut pending] = KEPT.clone();
    let mut program = PROGRAM.to_vec();
    // The position and the new value.
    for change in data.chunks_exact(4) {
        let place = usize::from(u16::from_le_bytes([change[1], change[2]]));
        let part = match change[0] % 6 {
            0 => &mut index,
            1 => &mut units,
            2 => &mut words,
            3 => &mut steps,
            4 => &mut pending,
            _ => {
                let number = place % program.len();
                program[number] ^= u32::from(change[3]);
                continue;
            }
        };
        match part.len() {
            0 => part.push(change[3]),
            length if place % 16 == 0 => part.truncate(usize::from(change[3]) % length),
            length => part[place % length] ^= change[3],
        }
    }
    let positions = Arc::new(EncodedPositions { steps: steps.into(), pending: pending.into() });
    let kept = ExportedUnits { index: index.into(), units: units.into(), words: words.into(), positions };
    let (mut engine, memory) = (engine(), Words::of(program));
    if engine.import(kept) {
        run(&mut engine, &memory);
        let _ = engine.forget(START..START + 4096, &memory);
        run(&mut engine, &memory);
        let _ = engine.export(&memory);
    }
});
