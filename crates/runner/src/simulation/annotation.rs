//! The cost of single instructions of the program: cycles, stalls, misses and mispredictions, with assembly text and
//! source lines. Costs of translated code are attributed to the program's own instructions.

use std::collections::{BTreeMap, HashMap};

use longma_core::Executed;
use longma_demangle::{demangle, is_name_of};
use longma_memory::Source;
use longma_timing::{InstructionCounts, Stall};
use longma_trace::BlockNumber;
use serde::Serialize;

use super::TimingSimulation;
use crate::{
    Report,
    source_lines::SourceLine,
    symbols::{CodeLocation, Symbols},
};

/// The cost of an instruction, a source line or a function.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Cost {
    /// Executions of the instruction; for lines and functions, of all their instructions.
    pub runs: u64,
    /// Cycles from the retirement of the previous instruction to that of this one; 0 at level `cache`.
    pub cycles: f64,
    /// The cycles among these in which no instruction retired, by [`Stall`].
    pub stalls: [f64; Stall::ALL.len()],
    /// Data accesses served beyond the first-level cache: by the second level, the third, another core, local memory,
    /// another node.
    pub misses: [u64; Source::ALL.len() - 1],
    /// Instruction lines fetched from beyond the first-level cache.
    pub fetch_misses: u64,
    /// Mispredicted branches.
    pub mispredicts: u64,
}

/// An instruction with its cost.
#[derive(Clone, Debug, PartialEq)]
pub struct AnnotatedInstruction {
    /// The guest address.
    pub address: u64,
    /// The assembly text, in the program's own instruction set.
    pub text: String,
    /// Its cost.
    pub cost: Cost,
    /// The source line, if the program has DWARF information.
    pub line: Option<SourceLine>,
}

/// A function with the cost of each of its executed instructions.
#[derive(Clone, Debug, PartialEq)]
pub struct AnnotatedFunction {
    /// The function.
    pub place: CodeLocation,
    /// Its cost.
    pub cost: Cost,
    /// Its executed instructions, by address.
    pub instructions: Vec<AnnotatedInstruction>,
}

/// The costs of a run by instruction and by source line.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Annotation {
    /// The selected functions, hottest first.
    pub functions: Vec<AnnotatedFunction>,
    /// The hottest source lines of the program, hottest first.
    pub lines: Vec<(SourceLine, Cost)>,
    /// The cost of all instructions.
    pub total: Cost,
}

/// Which functions are annotated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnnotatedSelection {
    /// The hottest functions, at most this many.
    Hottest(usize),
    /// The functions with this name.
    Named(String),
}

impl Cost {
    /// The sort key of instructions and functions: cycles, then executions. At level `cache`, cycles are 0.
    fn heat(&self) -> (f64, u64) {
        (self.cycles, self.runs)
    }

    fn hotter_first(a: &Self, b: &Self) -> std::cmp::Ordering {
        let ((cycles, runs), (others_cycles, others_runs)) = (b.heat(), a.heat());
        cycles.total_cmp(&others_cycles).then(runs.cmp(&others_runs))
    }

    fn add(&mut self, other: &Self) {
        self.runs += other.runs;
        self.add_costs(other);
    }

    /// Adds everything but the executions.
    fn add_costs(&mut self, other: &Self) {
        self.cycles += other.cycles;
        self.stalls.iter_mut().zip(other.stalls).for_each(|(sum, more)| *sum += more);
        self.misses.iter_mut().zip(other.misses).for_each(|(sum, more)| *sum += more);
        self.fetch_misses += other.fetch_misses;
        self.mispredicts += other.mispredicts;
    }

    /// The data accesses of all levels beyond the first.
    pub fn all_misses(&self) -> u64 {
        self.misses.iter().sum()
    }

    /// The largest stall, if there is one of at least a tenth of the cycles.
    pub fn main_stall(&self) -> Option<Stall> {
        let largest = Stall::ALL
            .into_iter()
            .max_by(|a, b| self.stalls[*a as usize].total_cmp(&self.stalls[*b as usize]))?;
        let cycles = self.stalls[largest as usize];
        (cycles > 0.0 && cycles >= self.cycles / 10.0).then_some(largest)
    }

    fn of(counts: &InstructionCounts, width: f64) -> Self {
        let mut misses = [0; _];
        misses.iter_mut().zip(&counts.misses[1..]).for_each(|(sum, count)| *sum = u64::from(*count));
        Self {
            runs: counts.runs,
            cycles: counts.slots as f64 / width,
            stalls: counts.stalls.map(|slots| slots as f64 / width),
            misses,
            fetch_misses: counts.fetch_misses.into(),
            mispredicts: 0,
        }
    }
}

impl TimingSimulation {
    /// Keeps the cost of every single instruction from now on, for [`annotation`](Self::annotation). This changes no result,
    /// but makes the simulation slower.
    pub fn count_instructions(&mut self) {
        self.cores.iter_mut().for_each(|core| core.model.count_instructions());
    }

    /// The costs of the run by instruction, with at most `lines` source lines. All zero without
    /// [`count_instructions`](Self::count_instructions).
    pub fn annotation(
        &self,
        report: &Report<'_>,
        selection: &AnnotatedSelection,
        lines: usize,
    ) -> Annotation {
        let mut total = Cost::default();
        let mut functions: HashMap<CodeLocation, Cost> = HashMap::new();
        let current = self.located_instructions(report);
        let instructions = || self.earlier.instructions().iter().chain(&current);
        for (place, instruction) in instructions() {
            total.add(&instruction.cost);
            functions.entry(place.clone()).or_default().add(&instruction.cost);
        }
        let lines = hottest_lines(instructions().map(|(_, instruction)| instruction), lines);
        let selected = select(functions, selection);
        let mut of_function: HashMap<&CodeLocation, BTreeMap<u64, AnnotatedInstruction>> =
            selected.iter().map(|(place, _)| (place, BTreeMap::new())).collect();
        for (place, instruction) in instructions() {
            let Some(list) = of_function.get_mut(place) else { continue };
            match list.get_mut(&instruction.address) {
                // The process has executed the same program twice.
                Some(same) => same.cost.add(&instruction.cost),
                None => drop(list.insert(instruction.address, instruction.clone())),
            }
        }
        let functions = selected.iter().map(|(place, cost)| {
            let instructions = of_function.remove(place).unwrap_or_default().into_values().collect();
            AnnotatedFunction { place: place.clone(), cost: cost.clone(), instructions }
        });
        Annotation { functions: functions.collect(), lines, total }
    }

    /// The executed instructions of the current program, by address. As in the costs by function, an instruction belongs to
    /// the function in which its block begins.
    pub(super) fn located_instructions(
        &self,
        report: &Report<'_>,
    ) -> Vec<(CodeLocation, AnnotatedInstruction)> {
        let symbols = report.symbols();
        let mut functions = FunctionNumbers::default();
        let mut found = self.instructions(report, &symbols, &mut functions);
        if report.is_translated() {
            found = at_source(found, report, &symbols, &mut functions);
        }
        let mut source = report.source_lines(&symbols);
        let located = found.into_iter().map(|((address, place), (text, cost))| {
            let line = source.find(address);
            (functions.list[place].clone(), AnnotatedInstruction { address, text, cost, line })
        });
        located.collect()
    }

    fn instructions(
        &self,
        report: &Report<'_>,
        symbols: &Symbols,
        functions: &mut FunctionNumbers,
    ) -> Instructions {
        let mut found = Instructions::new();
        let is_current = |number: &BlockNumber| self.earlier.is_current(*number);
        for core in &self.cores {
            let width = core.model.stack().map_or(1, |stack| stack.width()) as f64;
            let blocks = core.model.instructions_of_blocks();
            for (number, counts) in blocks.filter(|(number, _)| is_current(number)) {
                let block = report.code().traced_block(number);
                let place = functions.index(symbols.find(report.source_address(block.start)));
                for (index, (instruction, counts)) in block.instructions.iter().zip(counts).enumerate() {
                    if counts.runs == 0 {
                        continue;
                    }
                    let address = block.start.wrapping_add(4 * index as u64);
                    let entry = found.entry((address, place));
                    let entry =
                        entry.or_insert_with(|| (instruction.at(address).to_string(), Cost::default()));
                    entry.1.add(&Cost::of(counts, width));
                }
            }
            let mispredicted = core.model.blocks().filter(|(_, counts)| counts.mispredicts > 0);
            for (number, counts) in mispredicted.filter(|(number, _)| is_current(number)) {
                let block = report.code().traced_block(number);
                let place = functions.index(symbols.find(report.source_address(block.start)));
                let last = block.start.wrapping_add(4 * block.instructions.len().saturating_sub(1) as u64);
                if let Some((_, cost)) = found.get_mut(&(last, place)) {
                    cost.mispredicts += u64::from(counts.mispredicts);
                }
            }
        }
        found
    }
}

/// The text and cost of instructions, by address and function number.
type Instructions = BTreeMap<(u64, usize), (String, Cost)>;

/// Functions by number.
#[derive(Default)]
struct FunctionNumbers {
    list: Vec<CodeLocation>,
    indices: HashMap<CodeLocation, usize>,
}

impl FunctionNumbers {
    fn index(&mut self, place: CodeLocation) -> usize {
        *self.indices.entry(place).or_insert_with_key(|place| {
            self.list.push(place.clone());
            self.list.len() - 1
        })
    }
}

/// Charges the costs of translated code to the instructions that it was translated from.
fn at_source(
    mut translated: Instructions,
    report: &Report<'_>,
    symbols: &Symbols,
    functions: &mut FunctionNumbers,
) -> Instructions {
    let executed: Vec<Executed> = translated
        .iter()
        .map(|(&(start, _), (_, cost))| Executed { start, instructions: 1, runs: cost.runs })
        .collect();
    let mut found = Instructions::new();
    for unit in report.listing(&executed) {
        let mut last = None;
        for line in unit.lines {
            let mut costs = Vec::new();
            for word in &line.words {
                let of_word = (word.address, 0)..=(word.address, usize::MAX);
                let keys: Vec<_> = translated.range(of_word).map(|(key, _)| *key).collect();
                costs.extend(keys.into_iter().filter_map(|key| Some((key.1, translated.remove(&key)?.1))));
            }
            if line.runs == 0 && costs.is_empty() {
                continue;
            }
            // An instruction without separate code runs with the one before it.
            let first = costs.first().map(|(place, _)| *place).or(last);
            let first = first.unwrap_or_else(|| functions.index(symbols.find(line.pc)));
            last = Some(first);
            let new = || (line.text.clone(), Cost::default());
            found.entry((line.pc, first)).or_insert_with(new).1.runs += line.runs;
            for (place, cost) in costs {
                found.entry((line.pc, place)).or_insert_with(new).1.add_costs(&cost);
            }
        }
    }
    // Instructions outside of all units keep their own address.
    found.extend(translated);
    found
}

fn hottest_lines<'a>(
    instructions: impl Iterator<Item = &'a AnnotatedInstruction>,
    most: usize,
) -> Vec<(SourceLine, Cost)> {
    let mut lines: HashMap<SourceLine, Cost> = HashMap::new();
    for instruction in instructions {
        if let Some(line) = &instruction.line {
            lines.entry(line.clone()).or_default().add(&instruction.cost);
        }
    }
    let mut lines: Vec<_> = lines.into_iter().collect();
    lines.sort_by(|a, b| Cost::hotter_first(&a.1, &b.1).then_with(|| a.0.cmp(&b.0)));
    lines.truncate(most);
    lines
}

fn select(
    functions: HashMap<CodeLocation, Cost>,
    selection: &AnnotatedSelection,
) -> Vec<(CodeLocation, Cost)> {
    let mut functions: Vec<_> = functions.into_iter().collect();
    functions.sort_by(|a, b| Cost::hotter_first(&a.1, &b.1).then_with(|| a.0.start.cmp(&b.0.start)));
    match selection {
        AnnotatedSelection::Hottest(most) => functions.truncate(*most),
        AnnotatedSelection::Named(name) => {
            let name = demangle(name);
            functions.retain(|(place, _)| is_name_of(&name, &place.function));
        }
    }
    functions
}
