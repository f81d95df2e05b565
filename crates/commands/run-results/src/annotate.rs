//! Annotated assembly of the hottest functions, as text for a terminal of 80 columns and as JSON.

use std::fmt::Write as _;

use longma_runner::{
    simulation::{AnnotatedFunction, AnnotatedInstruction, Annotation, Cost},
    timing::Stall,
};
use serde_json::{Value, json};

use crate::function_name::abbreviate;

/// Width of the text in columns.
const COLUMNS: usize = 80;
/// Maximum number of instructions of a function in the text; the hottest are shown.
const MAX_INSTRUCTIONS: usize = 200;
/// The largest distance between two neighbouring instructions: an x86-64 instruction has at most 15 bytes.
const MAX_INSTRUCTION_BYTES: u64 = 15;

/// A row of a function's assembly.
#[derive(Clone, Debug, PartialEq)]
pub enum Shown<'a> {
    /// An instruction.
    Instruction(&'a AnnotatedInstruction),
    /// Instructions in between were not executed, or were left out as too cold.
    Gap,
}

impl Shown<'_> {
    /// The instruction; `None` for a gap.
    pub fn instruction(&self) -> Option<&AnnotatedInstruction> {
        match self {
            Self::Instruction(instruction) => Some(instruction),
            Self::Gap => None,
        }
    }
}

/// The hottest instructions of a function, at most `most`, in the order of their addresses.
pub fn hottest(function: &AnnotatedFunction, most: usize) -> Vec<Shown<'_>> {
    let mut order: Vec<(usize, &AnnotatedInstruction)> = function.instructions.iter().enumerate().collect();
    order.sort_by(|(_, a), (_, b)| {
        b.cost
            .cycles
            .total_cmp(&a.cost.cycles)
            .then(b.cost.runs.cmp(&a.cost.runs))
            .then(a.address.cmp(&b.address))
    });
    order.truncate(most);
    order.sort_by_key(|(index, _)| *index);
    let mut rows = Vec::new();
    let mut before: Option<(usize, u64)> = None;
    for (index, instruction) in order {
        let follows = |(last, address): (usize, u64)| {
            index == last + 1 && instruction.address - address <= MAX_INSTRUCTION_BYTES
        };
        if before.is_some_and(|before| !follows(before)) {
            rows.push(Shown::Gap);
        }
        rows.push(Shown::Instruction(instruction));
        before = Some((index, instruction.address));
    }
    rows
}

fn percent(part: f64, total: f64) -> f64 {
    if total > 0.0 { 100.0 * part / total } else { 0.0 }
}

/// A count in at most six characters.
fn short(count: u64) -> String {
    let units = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    match units.iter().find(|(size, _)| count as f64 >= 0.99995 * size && count >= 100_000) {
        Some((size, unit)) => format!("{:.1}{unit}", count as f64 / size),
        None => count.to_string(),
    }
}

fn few(count: u64) -> String {
    if count == 0 { String::new() } else { short(count) }
}

/// The functions as text. `is_timed` is false at level `cache`, where shares are of executed instructions.
pub fn text(annotation: &Annotation, is_timed: bool) -> String {
    let heat = |cost: &Cost| if is_timed { cost.cycles } else { cost.runs as f64 };
    let mut text = String::new();
    for function in &annotation.functions {
        let own = heat(&function.cost);
        let tail = format!(
            " ({}): {:.1} % of the {}",
            longma_text::sanitize(&function.place.object),
            percent(own, heat(&annotation.total)),
            if is_timed { "cycles" } else { "instructions" },
        );
        let left = COLUMNS.saturating_sub(tail.chars().count()).max(COLUMNS / 4);
        let head = longma_text::sanitize(&abbreviate(&function.place.function, left)) + &tail;
        let _ = writeln!(text, "{}", clip(&head, COLUMNS));
        let _ = writeln!(
            text,
            "{:>6} {:>6} {:>6} {:>6} {:>6} {:<10} instruction",
            "share", "cycles", "runs", "misses", "mispr.", "waits for"
        );
        let mut line = None;
        for row in hottest(function, MAX_INSTRUCTIONS) {
            let Some(instruction) = row.instruction() else {
                let _ = writeln!(text, "{:>6}", "...");
                continue;
            };
            if instruction.line.is_some() && instruction.line != line {
                line.clone_from(&instruction.line);
                let source =
                    line.as_ref().map(|line| format!("{}:{}", line.file, line.line)).unwrap_or_default();
                let _ =
                    writeln!(text, "{:45}{}", "", clip_front(&longma_text::sanitize(&source), COLUMNS - 45));
            }
            let cost = &instruction.cost;
            let each =
                if is_timed { format!("{:.2}", cost.cycles / cost.runs.max(1) as f64) } else { "-".into() };
            let row = format!(
                "{:>5.1}% {each:>6} {:>6} {:>6} {:>6} {:<10} {:x} {}",
                percent(heat(cost), own),
                short(cost.runs),
                few(cost.all_misses()),
                few(cost.mispredicts),
                cost.main_stall().map_or("", word),
                instruction.address,
                longma_text::sanitize(&instruction.text),
            );
            let _ = writeln!(text, "{}", clip(row.trim_end(), COLUMNS));
        }
        text.push('\n');
    }
    if annotation.functions.is_empty() {
        text.push_str("longma: no function of this name was executed\n");
    }
    if !annotation.lines.is_empty() {
        let _ = writeln!(
            text,
            "{:>6} {:>6} {:>6} {:>6} {:<10} hottest source lines",
            "share", "runs", "misses", "mispr.", "waits for"
        );
        for (line, cost) in &annotation.lines {
            let row = format!(
                "{:>5.1}% {:>6} {:>6} {:>6} {:<10} ",
                percent(heat(cost), heat(&annotation.total)),
                short(cost.runs),
                few(cost.all_misses()),
                few(cost.mispredicts),
                cost.main_stall().map_or("", word),
            );
            let source = longma_text::sanitize(&format!("{}:{}", line.file, line.line));
            let _ = writeln!(text, "{row}{}", clip_front(&source, COLUMNS - row.chars().count()));
        }
    }
    text.truncate(text.trim_end().len());
    text
}

/// The name of a stall in at most ten characters.
fn word(stall: Stall) -> &'static str {
    match stall {
        Stall::Synchronization => "synchron.",
        other => other.name(),
    }
}

fn clip(text: &str, columns: usize) -> String {
    if text.chars().count() <= columns {
        return text.into();
    }
    text.chars().take(columns - 1).chain(['…']).collect()
}

/// The end of a path that is too long.
fn clip_front(text: &str, columns: usize) -> String {
    let length = text.chars().count();
    if length <= columns {
        return text.into();
    }
    ['…'].into_iter().chain(text.chars().skip(length + 1 - columns)).collect()
}

/// The functions and lines as JSON, complete.
pub fn object(annotation: &Annotation) -> Value {
    let stalls: Vec<_> = Stall::ALL.iter().map(|stall| stall.name()).collect();
    let functions: Vec<Value> = annotation
        .functions
        .iter()
        .map(|function| {
            let instructions: Vec<Value> = function
                .instructions
                .iter()
                .map(|instruction| {
                    let mut object = json!(instruction.cost);
                    object["address"] = instruction.address.into();
                    object["text"] = instruction.text.as_str().into();
                    if let Some(line) = &instruction.line {
                        object["file"] = (*line.file).into();
                        object["line"] = line.line.into();
                    }
                    object
                })
                .collect();
            let mut object = json!(function.cost);
            object["function"] = function.place.function.as_str().into();
            object["object"] = function.place.object.as_str().into();
            object["start"] = function.place.start.into();
            object["instructions"] = instructions.into();
            object
        })
        .collect();
    let lines: Vec<Value> = annotation
        .lines
        .iter()
        .map(|(line, cost)| {
            let mut object = json!(cost);
            object["file"] = (*line.file).into();
            object["line"] = line.line.into();
            object
        })
        .collect();
    json!({ "stalls": stalls, "functions": functions, "lines": lines, "total": annotation.total })
}

#[cfg(test)]
mod tests {
    use super::*;
    use longma_runner::{SourceLine, symbols::CodeLocation};
    use proptest::prelude::*;

    fn instruction(address: u64, text: &str, cycles: f64, line: u32) -> AnnotatedInstruction {
        let mut cost = Cost { runs: 10, cycles, ..Cost::default() };
        cost.stalls[Stall::Memory as usize] = cycles / 2.0;
        let line = (line > 0).then(|| SourceLine { file: "/src/program.c".into(), line });
        AnnotatedInstruction { address, text: text.into(), cost, line }
    }

    fn annotation(name: &str, instructions: Vec<AnnotatedInstruction>) -> Annotation {
        let cycles = instructions.iter().map(|instruction| instruction.cost.cycles).sum();
        let cost = Cost { runs: 10, cycles, ..Cost::default() };
        let place = CodeLocation { function: name.into(), object: "program".into(), start: 0x1000 };
        let total = Cost { cycles: 2.0 * cycles, ..cost.clone() };
        let functions = vec![AnnotatedFunction { place, cost, instructions }];
        Annotation { functions, lines: Vec::new(), total }
    }

    #[test]
    fn each_instruction_has_its_share_and_what_it_waited_for_in_80_columns() {
        let instructions = vec![
            instruction(0x1000, "ld.d $a0, $a1, 0", 600.0, 7),
            instruction(0x1004, &"an instruction with a long text ".repeat(4), 400.0, 7),
            instruction(0x1040, "ret", 0.0, 9),
        ];
        let annotation = annotation("walk", instructions);
        let text = text(&annotation, true);
        assert!(text.lines().all(|line| line.chars().count() <= COLUMNS), "{text}");
        insta::assert_snapshot!(text);
    }

    #[test]
    fn only_the_hottest_instructions_of_a_long_function_are_shown() {
        let instructions =
            (0..1000).map(|n| instruction(0x1000 + 4 * n, "nop", (n % 500) as f64, 0)).collect();
        let annotation = annotation("long", instructions);
        let rows = hottest(&annotation.functions[0], 4);
        let shown: Vec<_> =
            rows.iter().map(|row| row.instruction().map(|i| (i.address - 0x1000) / 4)).collect();
        assert_eq!(shown, [Some(498), Some(499), None, Some(998), Some(999)]);
    }

    proptest! {
        #[test]
        fn text_of_the_program_does_not_control_the_terminal(name: String, assembly: String, file: String, runs: u64) {
            let mut hostile = instruction(0x1000, &assembly, 1.0, 0);
            hostile.cost.runs = runs;
            hostile.line = Some(SourceLine { file: file.into(), line: u32::MAX });
            let mut annotation = annotation(&name, vec![hostile.clone()]);
            annotation.lines.push((hostile.line.unwrap(), hostile.cost));
            let text = text(&annotation, true);
            prop_assert_eq!(&longma_text::sanitize_lines(&text), &text);
            prop_assert!(text.lines().all(|line| line.chars().count() <= COLUMNS), "{}", text);
            prop_assert!(object(&annotation).to_string().len() < 10_000 + 20 * (name.len() + assembly.len()));
        }
    }
}
