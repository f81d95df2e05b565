//! Listings of translated code with execution counts.

use std::collections::HashMap;

use longma_core::Executed;
use longma_loongarch::decode;
use longma_translate::front_end::{FrontEnd, Memory as _};

use super::Translated;
use crate::cores::Cores;

/// A unit of translated code.
#[derive(Clone, Debug)]
pub struct ListedUnit {
    /// The number of LoongArch instructions of the unit that were executed.
    pub executed: u64,
    /// The source instructions, in the order of their translations.
    pub lines: Vec<Line>,
}

/// A source instruction and its translation.
#[derive(Clone, Debug)]
pub struct Line {
    /// Its address.
    pub pc: u64,
    /// Its assembly text.
    pub text: String,
    /// Its kind: the mnemonic and the types of its operands.
    pub kind: String,
    /// How often it was executed. An instruction may be translated several times, for example in an unrolled loop; each
    /// translation has its own line.
    pub runs: u64,
    /// The LoongArch code. Empty if the instruction is fused with a neighbour.
    pub words: Vec<Word>,
}

/// A LoongArch instruction.
#[derive(Clone, Debug)]
pub struct Word {
    /// Its address.
    pub address: u64,
    /// Its assembly text.
    pub text: String,
    /// How often it was executed.
    pub runs: u64,
}

impl Line {
    /// The number of LoongArch instructions executed for this source instruction.
    pub fn executed(&self) -> u64 {
        self.words.iter().map(|word| word.runs).sum()
    }
}

impl<F: FrontEnd> Translated<F> {
    /// All executed units, in descending order of executed instructions.
    pub(super) fn list(&self, cores: &Cores, executed: &[Executed]) -> Vec<ListedUnit> {
        let mut runs: HashMap<u64, u64> = HashMap::new();
        for block in executed {
            for index in 0..u64::from(block.instructions) {
                *runs.entry(block.start + 4 * index).or_default() += block.runs;
            }
        }
        let runs_of = |address: u64| runs.get(&address).copied().unwrap_or(0);
        let engine = self.engine();
        let view = self.view(cores);
        let mut entries = Vec::new();
        for (start, words, positions) in engine.units() {
            let addresses = (0..words).map(|word| start + 4 * word);
            let total: u64 = addresses.map(runs_of).sum();
            if total == 0 {
                continue;
            }
            let mut lines: Vec<Line> = Vec::new();
            for (index, position) in positions.iter().enumerate() {
                let end = positions.get(index + 1).map_or(words, |next| next.offset.into());
                let addresses = (position.offset.into()..end).map(|word: u64| start + 4 * word);
                let words =
                    addresses.map(|address| Word {
                        address,
                        text: cores.process().memory().fetch(address).ok().and_then(decode).map_or_else(
                            || "(none)".into(),
                            |instruction| instruction.at(address).to_string(),
                        ),
                        runs: runs_of(address),
                    });
                let words: Vec<Word> = words.collect();
                let counted = position.counted.map_or(0, |word| runs_of(start + 4 * u64::from(word)));
                match lines.last_mut().filter(|line| line.pc == position.pc && position.counted.is_none()) {
                    Some(line) => line.words.extend(words),
                    None => {
                        let (kind, text) = F::describe(position.pc, &|pc| view.fetch(pc).ok());
                        lines.push(Line { pc: position.pc, text, kind, runs: counted, words });
                    }
                }
            }
            entries.push(ListedUnit { executed: total, lines });
        }
        entries.sort_by_key(|unit| std::cmp::Reverse(unit.executed));
        entries
    }
}
