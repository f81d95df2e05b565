//! Cycles and misses by function, summed from the timing models' counts by block.

use std::collections::HashMap;

use longma_memory::Source;
use longma_timing::BlockCounts;
use longma_trace::BlockNumber;
use serde::Serialize;

use crate::symbols::CodeLocation;

/// The cost of a function.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FunctionTime {
    /// The function's name, or `[name+0x400]` for a range without symbols.
    pub function: String,
    /// The file's name without its directory.
    pub object: String,
    /// The guest address of the first byte.
    pub start: u64,
    /// Instructions executed in the function itself, without callees.
    pub instructions: u64,
    /// Cycles, measured for each block from the retirement of the previous instruction to that of the block's last; 0
    /// at level `cache`.
    pub cycles: f64,
    /// Data accesses served beyond the first-level cache: by the second level, the third, another core, local memory,
    /// another node.
    pub misses: [u64; Source::ALL.len() - 1],
    /// Instruction lines fetched from beyond the first-level cache.
    pub fetch_misses: u64,
    /// Mispredicted branches.
    pub mispredicts: u64,
}

/// The costs of all functions, in descending order of cycles, then of instructions (the only criterion at level
/// `cache`). Each block has the width of the core that executed it.
pub(super) fn by_function<'a>(
    blocks: impl Iterator<Item = (BlockNumber, &'a BlockCounts, u64)>,
    location_of: impl Fn(BlockNumber) -> CodeLocation,
) -> Vec<FunctionTime> {
    let mut functions: HashMap<CodeLocation, FunctionTime> = HashMap::new();
    for (number, counts, width) in blocks {
        let function = functions.entry(location_of(number)).or_insert_with_key(FunctionTime::nothing);
        function.instructions += counts.instructions;
        function.cycles += counts.slots as f64 / width as f64;
        function.fetch_misses += u64::from(counts.fetch_misses);
        function.mispredicts += u64::from(counts.mispredicts);
        for (sum, misses) in function.misses.iter_mut().zip(&counts.misses[1..]) {
            *sum += u64::from(*misses);
        }
    }
    let mut functions: Vec<_> = functions.into_values().collect();
    functions.sort_by(|a, b| {
        let by_cost = b.cycles.total_cmp(&a.cycles).then(b.instructions.cmp(&a.instructions));
        by_cost.then(a.start.cmp(&b.start))
    });
    functions
}

impl FunctionTime {
    fn nothing(location: &CodeLocation) -> Self {
        Self {
            function: location.function.clone(),
            object: location.object.clone(),
            start: location.start,
            instructions: 0,
            cycles: 0.0,
            misses: [0; _],
            fetch_misses: 0,
            mispredicts: 0,
        }
    }
}
