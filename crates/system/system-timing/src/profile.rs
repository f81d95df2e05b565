//! The cost of each function of the kernel, and of all user programs.

use longma_runner::simulation::FunctionTime;
use longma_system::ObservedCode;
use std::collections::BTreeMap;

use crate::models::SystemModels;
use crate::symbols::{CodeRange, KernelSymbols};

/// The costs by function, in descending order of cycles, then of instructions. User programs are one function.
pub fn by_function(models: &SystemModels, code: &ObservedCode, symbols: &KernelSymbols) -> Vec<FunctionTime> {
    let mut functions: BTreeMap<CodeRange, FunctionTime> = BTreeMap::new();
    for (model, _) in models.cores() {
        let width = model.stack().map_or(1, |stack| stack.width());
        for (number, counts) in model.blocks() {
            let place = match code.is_user(number) {
                true => CodeRange { start: 0, function: "[user programs]".into(), object: "user".into() },
                false => symbols.find(code.start(number)),
            };
            let function = functions.entry(place).or_insert_with_key(nothing);
            function.instructions += counts.instructions;
            function.cycles += counts.slots as f64 / width as f64;
            function.fetch_misses += u64::from(counts.fetch_misses);
            function.mispredicts += u64::from(counts.mispredicts);
            for (sum, misses) in function.misses.iter_mut().zip(&counts.misses[1..]) {
                *sum += u64::from(*misses);
            }
        }
    }
    let mut functions: Vec<_> = functions.into_values().collect();
    functions.sort_by(|a, b| {
        let by_cost = b.cycles.total_cmp(&a.cycles).then(b.instructions.cmp(&a.instructions));
        by_cost.then(a.start.cmp(&b.start))
    });
    functions
}

fn nothing(place: &CodeRange) -> FunctionTime {
    FunctionTime {
        function: place.function.clone(),
        object: place.object.clone(),
        start: place.start,
        instructions: 0,
        cycles: 0.0,
        misses: [0; _],
        fetch_misses: 0,
        mispredicts: 0,
    }
}
