//! Instruction counts by function, computed from exact block counts.

use std::collections::HashMap;

use longma_core::Executed;

use crate::symbols::{CodeLocation, Symbols};

/// The instruction count of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionShare {
    /// The function.
    pub place: CodeLocation,
    /// Instructions executed in the function itself, without callees.
    pub instructions: u64,
}

/// The number of instructions executed in these blocks. A block that a trap left early counts in full.
pub fn instructions(executed: &[Executed]) -> u64 {
    executed.iter().map(cost).sum()
}

/// All functions that executed instructions, in descending order of their counts.
pub fn by_function(executed: &[Executed], symbols: &Symbols) -> Vec<FunctionShare> {
    let mut shares: HashMap<CodeLocation, u64> = HashMap::new();
    for block in executed.iter().filter(|block| block.runs > 0) {
        *shares.entry(symbols.find(block.start)).or_default() += cost(block);
    }
    let mut shares: Vec<_> =
        shares.into_iter().map(|(place, instructions)| FunctionShare { place, instructions }).collect();
    shares
        .sort_by(|a, b| b.instructions.cmp(&a.instructions).then_with(|| a.place.start.cmp(&b.place.start)));
    shares
}

fn cost(block: &Executed) -> u64 {
    u64::from(block.instructions) * block.runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_a_function_are_summed_and_sorted() {
        let block = |start, instructions, runs| Executed { start, instructions, runs };
        // The address is in no mapping, so each address is treated as a separate location.
        let symbols = Symbols::default();
        let executed = [block(0x10, 2, 3), block(0x20, 10, 5), block(0x10, 1, 4), block(0x30, 9, 0)];
        let shares = by_function(&executed, &symbols);
        let found: Vec<_> = shares.iter().map(|share| (share.place.start, share.instructions)).collect();
        assert_eq!(found, [(0x20, 50), (0x10, 10)]);
        assert_eq!(instructions(&executed), 60);
    }
}
