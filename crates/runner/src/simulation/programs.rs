//! The programs that a process executes one after the other. Their counts are added up. Caches and predictors keep their
//! state; the address space is new. Source: execve(2).

use longma_core::Executed;
use longma_memory::placement::SpaceId;
use longma_trace::BlockNumber;

use super::{AnnotatedInstruction, TimingSimulation, result};
use crate::{
    Report,
    symbols::{CodeLocation, Symbols},
};

/// The name in the result if programs of several instruction sets were translated.
const SEVERAL: &str = "several instruction sets";

/// A program that execve(2) has replaced.
struct EarlierProgram {
    name: String,
    /// The functions in which blocks begin.
    locations: Vec<CodeLocation>,
    /// For each block, in the order of their numbers, the index of its function.
    blocks: Vec<u32>,
}

/// The programs before the current one.
#[derive(Default)]
pub(super) struct EarlierPrograms {
    programs: Vec<EarlierProgram>,
    /// The instruction set from which programs were translated, if any were, and the number of instructions that all
    /// programs executed, each counted in its own instruction set.
    source: (Option<&'static str>, u64),
    /// The executed instructions with their costs, if they are counted.
    instructions: Vec<(CodeLocation, AnnotatedInstruction)>,
}

impl EarlierPrograms {
    /// The number of the current program's first block.
    fn end(&self) -> u32 {
        self.programs.iter().map(|program| program.blocks.len() as u32).sum()
    }

    /// Whether a block is part of the current program.
    pub fn is_current(&self, number: BlockNumber) -> bool {
        number.0 >= self.end()
    }

    fn location(&self, number: BlockNumber) -> Option<&CodeLocation> {
        let mut index = number.0 as usize;
        for program in &self.programs {
            match program.blocks.get(index) {
                Some(location) => return program.locations.get(*location as usize),
                None => index -= program.blocks.len(),
            }
        }
        None
    }

    /// Discards the counts at the beginning of a region of interest.
    pub fn clear_counts(&mut self) {
        self.source.1 = 0;
        self.instructions.clear();
    }

    /// The executed instructions of the earlier programs.
    pub fn instructions(&self) -> &[(CodeLocation, AnnotatedInstruction)] {
        &self.instructions
    }

    /// The instruction set from which programs were translated, and the number of instructions that all programs
    /// executed, each counted in its own instruction set; `None` if no program was translated. `current` are the blocks
    /// of the current program. The counts of earlier programs are multiplied by `factor`.
    pub fn source(
        &self,
        report: &Report<'_>,
        current: &[Executed],
        factor: f64,
    ) -> Option<(&'static str, u64)> {
        let (name, instructions) = source_of(report, current);
        let earlier = (self.source.1 as f64 * factor).round() as u64;
        Some((one_of(self.source.0, name)?, earlier + instructions))
    }
}

/// The original instruction set of a program, if it is translated, and its instructions in that set.
fn source_of(report: &Report<'_>, executed: &[Executed]) -> (Option<&'static str>, u64) {
    match report.source(executed) {
        Some((name, instructions)) => (Some(name), instructions),
        None => (None, crate::profile::instructions(executed)),
    }
}

fn one_of(earlier: Option<&'static str>, later: Option<&'static str>) -> Option<&'static str> {
    match (earlier, later) {
        (Some(earlier), Some(later)) if earlier != later => Some(SEVERAL),
        (earlier, later) => later.or(earlier),
    }
}

impl TimingSimulation {
    /// Keeps the counts of the program that the process replaces, from `report`. Call it before the next program
    /// begins.
    pub fn begin_program(&mut self, report: &Report<'_>) {
        let executed = match &self.sampler {
            Some(sampler) => sampler.executed_blocks(1.0, report, &self.earlier),
            None => result::executed(self, report),
        };
        let (name, instructions) = source_of(report, &executed);
        let instructions_with_costs = self.located_instructions(report);
        let (first, next) = (self.earlier.end(), report.code().next_traced_block());
        let symbols = report.symbols();
        let mut program =
            EarlierProgram { name: report.program(), locations: Vec::new(), blocks: Vec::new() };
        let mut indices = std::collections::HashMap::new();
        for number in first..next.0 {
            let location = current_location(report, &symbols, BlockNumber(number));
            let index = *indices.entry(location).or_insert_with_key(|location| {
                program.locations.push(location.clone());
                program.locations.len() as u32 - 1
            });
            program.blocks.push(index);
        }
        self.earlier.programs.push(program);
        self.earlier.source.0 = one_of(self.earlier.source.0, name);
        self.earlier.source.1 += instructions;
        self.earlier.instructions.extend(instructions_with_costs);
        // The recorded instructions and their data addresses belong to the old program.
        self.warming.forget();
        self.memory.clear_space(SpaceId(0));
    }

    /// The function in which a block begins.
    pub(super) fn location_of(
        &self,
        report: &Report<'_>,
        symbols: &Symbols,
        number: BlockNumber,
    ) -> CodeLocation {
        match self.earlier.location(number) {
            Some(location) => location.clone(),
            None => current_location(report, symbols, number),
        }
    }

    /// The names of all programs in the order of their execution; empty if there was only one.
    pub(super) fn programs(&self, report: &Report<'_>) -> Vec<String> {
        let earlier = self.earlier.programs.iter().map(|program| program.name.clone());
        let current = (!self.earlier.programs.is_empty()).then(|| report.program());
        earlier.chain(current).collect()
    }
}

fn current_location(report: &Report<'_>, symbols: &Symbols, number: BlockNumber) -> CodeLocation {
    symbols.find(report.source_address(report.code().traced_block(number).start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_each_program_keep_their_functions() {
        let location = |name: &str| CodeLocation { function: name.into(), object: "o".into(), start: 0 };
        let program = |names: &[&str], blocks: &[u32]| EarlierProgram {
            name: String::new(),
            locations: names.iter().map(|name| location(name)).collect(),
            blocks: blocks.to_vec(),
        };
        let earlier = EarlierPrograms {
            programs: vec![program(&["main", "f"], &[0, 1, 0]), program(&[], &[]), program(&["g"], &[0])],
            ..EarlierPrograms::default()
        };
        let found: Vec<_> = (0..5)
            .map(|number| earlier.location(BlockNumber(number)).map(|found| found.function.as_str()))
            .collect();
        assert_eq!(found, [Some("main"), Some("f"), Some("main"), Some("g"), None]);
        let current: Vec<_> = (0..5).map(|number| earlier.is_current(BlockNumber(number))).collect();
        assert_eq!(current, [false, false, false, false, true]);
    }

    #[test]
    fn different_instruction_sets_are_not_shown_as_one() {
        assert_eq!(one_of(None, None), None);
        assert_eq!(one_of(Some("x86-64"), None), Some("x86-64"));
        assert_eq!(one_of(Some("x86-64"), Some("x86-64")), Some("x86-64"));
        assert_eq!(one_of(Some("x86-64"), Some("AArch64")), Some(SEVERAL));
    }
}
