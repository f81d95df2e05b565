//! Prints units: each source instruction, followed by its LoongArch code with labels.

use std::collections::BTreeMap;
use std::fmt::Write;

use longma_loongarch::{Op, decode};
use longma_translate::front_end::{Exit, FrontEnd, Unit};
use longma_translate::optimizations::{Optimization, Optimizations, Options};

use crate::snapshots::{Snapshots, check_no_other_files};

/// The address of the source code.
pub const SOURCE: u64 = 0x1000;
/// The target of jumps out of the shown code; it counts as already translated. It is on the page of the shown code
/// because front ends do not scan other pages for flag liveness.
pub const OUTSIDE: u64 = 0x1800;

/// The source code that a front end reads.
pub struct Source<'a> {
    /// The code at [`SOURCE`].
    pub code: &'a [u8],
    /// The code at [`OUTSIDE`].
    pub outside: &'a [u8],
}

impl Source<'_> {
    fn fetch(&self, address: u64) -> Option<u32> {
        let (part, start) = if address < OUTSIDE { (self.code, SOURCE) } else { (self.outside, OUTSIDE) };
        let at = usize::try_from(address.checked_sub(start)?).ok()?;
        let bytes = part.get(at..)?;
        // A word that extends past the last byte is padded with zeros.
        (!bytes.is_empty()).then(|| {
            u32::from_le_bytes(std::array::from_fn(|byte| bytes.get(byte).copied().unwrap_or_default()))
        })
    }
}

/// A source instruction and its LoongArch code.
struct Piece {
    pc: u64,
    source: String,
    words: Vec<String>,
}

/// Translates the code at [`SOURCE`] with the default optimizations. Leaves out the exits at the end of the unit, which
/// the engine patches to jumps.
fn pieces<F: FrontEnd>(source: &Source) -> Vec<Piece> {
    pieces_with::<F>(source, Optimizations::default())
}

/// Like [`pieces`], with this set of optimizations.
fn pieces_with<F: FrontEnd>(source: &Source, optimizations: Optimizations) -> Vec<Piece> {
    let fetch = |address| source.fetch(address);
    let options = Options { optimizations, hash: 0x1000_0000, ..Options::default() };
    let unit = F::translate(SOURCE, &[], &fetch, &|pc| pc >= OUTSIDE, &options);
    let labels = labels(&unit);
    let last = unit.exits.iter().filter(|exit| matches!(exit.1, Exit::To(_))).map(|exit| exit.0).min();
    let last = last.unwrap_or(unit.words.len() as u32);
    let mut pieces: Vec<Piece> = Vec::new();
    let mut positions = unit.positions.iter().filter(|position| position.offset < last).peekable();
    // Includes the end of the words, for trailing instructions that emitted no code.
    for offset in 0..=last {
        while let Some(position) = positions.next_if(|position| position.offset <= offset) {
            if pieces.last().is_none_or(|piece| piece.pc != position.pc) {
                let source = F::describe(position.pc, &fetch).1;
                pieces.push(Piece { pc: position.pc, source, words: Vec::new() });
            }
        }
        let Some(piece) = pieces.last_mut().filter(|_| offset < last) else { continue };
        if let Some(label) = labels.get(&offset) {
            piece.words.push(format!("  {label}:"));
        }
        piece.words.push(format!("    {}", word_text(&unit, offset, &labels)));
    }
    pieces
}

/// Labels for the targets of jumps.
fn labels<S, P>(unit: &Unit<S, P>) -> BTreeMap<u32, String> {
    let exits: BTreeMap<u32, u64> = unit
        .exits
        .iter()
        .filter_map(|(offset, exit)| if let Exit::To(pc) = exit { Some((*offset, *pc)) } else { None })
        .collect();
    let mut labels = BTreeMap::new();
    for (offset, word) in (0u32..).zip(&unit.words) {
        if let Some(to) = decode(*word).and_then(|i| i.branch_target(4 * u64::from(offset))) {
            labels.insert((to / 4) as u32, String::new());
        }
    }
    let mut number = 0;
    for (offset, label) in &mut labels {
        *label = match exits.get(offset) {
            Some(pc) => format!("to_{pc:x}"),
            None => {
                number += 1;
                format!(".{number}")
            }
        };
    }
    labels
}

fn word_text<S, P>(unit: &Unit<S, P>, offset: u32, labels: &BTreeMap<u32, String>) -> String {
    let word = unit.words[offset as usize];
    if let Some((_, exit)) = unit.exits.iter().find(|exit| exit.0 == offset) {
        return match exit {
            Exit::To(pc) | Exit::Leave(pc) => format!("engine: continue at {pc:#x}"),
            Exit::Service(_) => "engine: execute".into(),
            Exit::Illegal => "engine: illegal".into(),
        };
    }
    let Some(instruction) = decode(word) else { return format!("{word:#010x}") };
    let text = instruction.to_string();
    let target = instruction.branch_target(4 * u64::from(offset)).map(|to| (to / 4) as u32);
    match target.and_then(|to| labels.get(&to)) {
        // The offset is the last operand.
        Some(label) if instruction.op != Op::Jirl => {
            let line_start = text.rfind(' ').map_or(0, |at| at + 1);
            format!("{}{label}", &text[..line_start])
        }
        _ => text,
    }
}

/// The number of instructions in lines that include labels.
fn count(words: &[String]) -> usize {
    words.iter().filter(|line| line.starts_with("    ")).count()
}

/// Translates code that ends in a jump to [`OUTSIDE`] and returns the text of its first instruction: the source, the
/// number of LoongArch words, and the words. They include those that the instruction causes at the end of the block.
pub fn single<F: FrontEnd>(source: &Source) -> Single {
    let mut pieces = pieces::<F>(source).into_iter();
    let instruction_text = pieces.next().expect("an instruction");
    if instruction_text.words == ["    engine: execute"] {
        return Single { source: instruction_text.source, count: "engine".into(), text: String::new() };
    }
    let leaves = format!("    b to_{OUTSIDE:x}");
    let later: Vec<String> = pieces.flat_map(|piece| piece.words).filter(|word| *word != leaves).collect();
    let (mut words, mut number) = (instruction_text.words, String::new());
    write!(number, "{}", count(&words)).expect("memory");
    if count(&later) > 0 {
        write!(number, " and {}", count(&later)).expect("memory");
        words.push("  later".into());
    }
    words.extend(later);
    Single { source: instruction_text.source, count: number, text: words.join("\n") + "\n" }
}

/// The result of [`single`].
#[derive(PartialEq, Eq)]
pub struct Single {
    source: String,
    count: String,
    text: String,
}

impl Single {
    /// The text in a snapshot file.
    pub fn shown(&self) -> String {
        let Self { source, count, text } = self;
        format!("{source}: {count}\n{text}")
    }
}

/// The text of an instruction that `no_flags` follows, so that its flags are dead. If the code differs with live flags,
/// also that text.
pub fn with_and_without_flags<F: FrontEnd>(code: &[u8], no_flags: &[u8]) -> String {
    let without = single::<F>(&Source { code, outside: no_flags });
    let with = single::<F>(&Source { code, outside: &[] });
    let mut text = without.shown();
    if with.text != without.text {
        write!(text, "  with flags: {}\n{}", with.count, with.text).expect("memory");
    }
    text
}

/// The text of sequences, given as titles and code.
pub fn sequences<'a, F: FrontEnd>(code: impl IntoIterator<Item = (&'a str, Vec<u8>)>) -> String {
    let head = format!(
        "# {} sequences and the generated LoongArch code, with the number of instructions. tests/emitted/main.rs describes how to update this file.\n\n",
        F::NAME
    );
    let texts =
        code.into_iter().map(|(what, code)| sequence::<F>(what, &Source { code: &code, outside: &[] }));
    head + &texts.collect::<String>()
}

/// The number of instructions of each sequence with the default optimizations. Where the code differs, also with one
/// optimization toggled, with LBT instead of fusion, and with none. Also returns the names of the optimizations that
/// change no sequence.
pub fn by_optimizations<'a, F: FrontEnd>(
    code: impl IntoIterator<Item = (&'a str, Vec<u8>)>,
) -> (String, Vec<&'static str>) {
    let usual = Optimizations::default();
    let mut choices: Vec<Optimizations> =
        Optimization::ALL.iter().map(|part| usual.with(*part, !part.is_default())).collect();
    choices.push(usual.with(Optimization::Lbt, true).with(Optimization::Fusion, false));
    choices.push(Optimizations::NONE);
    let mut idle: Vec<Optimization> = Optimization::ALL.to_vec();
    let mut text = format!(
        "# Number of LoongArch instructions for {} sequences, by default and with other optimizations. tests/emitted/main.rs describes how to update this file.\n\n",
        F::NAME
    );
    for (title, code) in code {
        let words = |optimizations| {
            let pieces = pieces_with::<F>(&Source { code: &code, outside: &[] }, optimizations);
            pieces.into_iter().flat_map(|piece| piece.words).collect::<Vec<String>>()
        };
        let as_usual = words(usual);
        write!(text, "{title}: {}", count(&as_usual)).expect("memory");
        for choice in &choices {
            let other = words(*choice);
            if other != as_usual {
                idle.retain(|part| usual.with(*part, !part.is_default()) != *choice);
                let name = if *choice == Optimizations::NONE { "none".into() } else { choice.to_string() };
                write!(text, "; {name} {}", count(&other)).expect("memory");
            }
        }
        // With fusion, LBT has little effect.
        let unfused = usual.with(Optimization::Fusion, false);
        if words(unfused) != words(unfused.with(Optimization::Lbt, true)) {
            idle.retain(|part| *part != Optimization::Lbt);
        }
        text.push('\n');
    }
    (text, idle.into_iter().map(Optimization::name).collect())
}

/// Compares the texts of groups of instructions, and `others`, with the snapshots of the front end in `crate_folder`.
///
/// # Panics
/// A text differs, or a snapshot belongs to no test.
pub fn compare(crate_folder: &str, groups: BTreeMap<&str, String>, others: &[(&str, String)]) {
    let snapshots = Snapshots::new(crate_folder, "snapshots");
    for (name, text) in groups {
        snapshots.is(name, &text);
    }
    for (name, text) in others {
        snapshots.is(name, text);
    }
    snapshots.finish();
    check_no_other_files(crate_folder, &["snapshots"]);
}

/// The text of one sequence.
fn sequence<F: FrontEnd>(title: &str, source: &Source) -> String {
    let pieces = pieces::<F>(source);
    let all: usize = pieces.iter().map(|piece| count(&piece.words)).sum();
    let mut text = format!("== {title}: {all}\n\n");
    for Piece { pc, source, words } in pieces {
        writeln!(text, "{pc:#x} {source}: {}", count(&words)).expect("memory");
        words.iter().for_each(|word| writeln!(text, "{word}").expect("memory"));
    }
    text.push('\n');
    text
}
