//! A ChampSim trace of any bytes is replayed, or refused with a message.

#![no_main]

use libfuzzer_sys::fuzz_target;
use longma_champsim::{Code, Reader, Replay};
use longma_trace::{Blocks, Trace, count_addresses};

fuzz_target!(|bytes: &[u8]| {
    let Ok(code) = Code::of(Reader::new(bytes)) else { return };
    let instructions = code.instructions();
    let mut replay = Replay::new(code, Reader::new(bytes));
    let mut trace = Trace::default();
    while replay.fill(&mut trace, 64).expect("the first pass read the same bytes") {
        for record in trace.records() {
            let block = replay.block(record.block);
            assert_eq!(block.instructions.len(), usize::from(record.executed));
            assert_eq!(usize::from(count_addresses(&block.instructions)), record.addresses.len());
        }
    }
    assert_eq!(replay.instructions(), instructions);
});
