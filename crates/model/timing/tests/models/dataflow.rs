//! A dataflow reference: the earliest time of each value from its dependencies through registers and memory bytes. No
//! core is faster, in any order of execution, and a core with ample resources is hardly slower.
//!
//! Source: dataflow limits, Hennessy and Patterson, section 3.10.

use std::collections::BTreeMap;

use longma_loongarch::{Instruction, Op};
use longma_timing::ModelKind::{InOrder, OutOfOrder};
use proptest::prelude::*;

use crate::program::*;

/// Load-to-use latency of all loads.
const LOAD_CYCLES: u64 = 4;

/// Operations with their latency in cycles, and the bytes of those that access memory.
const OPS: [(Op, u64, u64); 8] = [
    (Op::AddD, 1, 0),
    (Op::MulD, 4, 0),
    (Op::DivW, 12, 0),
    (Op::LdD, LOAD_CYCLES, 8),
    (Op::LdW, LOAD_CYCLES, 4),
    (Op::StD, 1, 8),
    (Op::StW, 1, 4),
    (Op::StB, 1, 1),
];

/// An operation with its registers and address.
type RandomInstruction = (usize, u8, u8, u8, u64);

fn steps() -> impl Strategy<Value = Vec<RandomInstruction>> {
    // A few overlapping locations, and the same a multiple of 2 KiB away. The base register is never written.
    let address = (0u64..3, 0u64..4).prop_map(|(place, part)| 0x10_0000 + 2048 * place + 4 * part);
    prop::collection::vec((0..OPS.len(), 4u8..8, 4u8..8, 4u8..8, address), 1..400)
}

fn program_of(steps: &[RandomInstruction]) -> Program {
    let instructions: Vec<Instruction> = steps
        .iter()
        .map(|&(index, d, j, k, _)| match OPS[index] {
            (operation, _, 0) => op(operation, d, j, k),
            (operation, ..) => op(operation, d, 12, 0),
        })
        .collect();
    Program::straight(&instructions, |index| steps[index].4)
}

/// The cycle in which the last value is available if operations wait only for other values.
fn earliest(steps: &[RandomInstruction]) -> u64 {
    let (mut registers, mut memory, mut last) = ([0; 32], BTreeMap::new(), 0);
    for &(index, d, j, k, address) in steps {
        let (operation, cycles, bytes) = OPS[index];
        let of = |register: u8, registers: &[u64; 32]| registers[usize::from(register)];
        let ready = match operation {
            Op::LdD | Op::LdW => {
                let stored = (address..address + bytes).filter_map(|byte| memory.get(&byte));
                stored.max().copied().unwrap_or(0) + cycles
            }
            Op::StD | Op::StW | Op::StB => of(d, &registers) + cycles,
            _ => of(j, &registers).max(of(k, &registers)) + cycles,
        };
        if matches!(operation, Op::StD | Op::StW | Op::StB) {
            memory.extend((address..address + bytes).map(|byte| (byte, ready)));
        } else {
            registers[usize::from(d)] = ready;
        }
        last = last.max(ready);
    }
    last
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_value_is_used_before_it_is_computed(steps in steps()) {
        let (program, earliest) = (program_of(&steps), earliest(&steps));
        for kind in [InOrder, OutOfOrder] {
            let cycles = program.cycles(&mut model(kind, &[]), &mut FixedData::new(LOAD_CYCLES));
            prop_assert!(cycles >= earliest, "{kind:?}: {cycles} cycles, but the dataflow limit is {earliest}");
        }
    }

    #[test]
    fn a_core_with_ample_resources_reaches_the_dataflow_limit(steps in steps()) {
        // A load of data from several stores waits for the cache, so each location is only written and read as a whole.
        let aligned = |&(index, d, j, k, address): &RandomInstruction| {
            let index = match OPS[index].0 {
                Op::LdW => 3,
                Op::StW | Op::StB => 5,
                _ => index,
            };
            (index, d, j, k, address & !7)
        };
        let steps: Vec<RandomInstruction> = steps.iter().map(aligned).collect();
        let (program, earliest) = (program_of(&steps), earliest(&steps));
        let large = [
            ("rob_entries = 128", "rob_entries = 4096"),
            ("int_registers = 128", "int_registers = 4096"),
            ("load_queue_entries = 64", "load_queue_entries = 4096"),
            ("store_queue_entries = 48", "store_queue_entries = 4096"),
        ];
        let cycles = program.cycles(&mut model(OutOfOrder, &large), &mut FixedData::new(LOAD_CYCLES));
        // Four instructions per cycle, two of them accesses. A division occupies its unit for four cycles.
        let divisions = steps.iter().filter(|step| OPS[step.0].0 == Op::DivW).count() as u64;
        let max_cycles = 16 + steps.len() as u64 / 2 + 4 * divisions;
        prop_assert!(cycles <= earliest + max_cycles, "{cycles} cycles, but the dataflow limit is {earliest}");
    }
}
