//! What there is to say of a process that has ended: what it executed, and where its functions were.
//! Not of simulated time: that is the simulation's result.

use longma_core::{Executed, SharedCode};

use crate::cores::Cores;
use crate::symbols::Symbols;
use crate::translated::{Translation, listing::ListedUnit};

/// What there is to say of a process that has ended.
pub struct Report<'a> {
    pub(crate) cores: &'a Cores,
    /// What was translated, if the program is for another architecture.
    pub(crate) translated: Option<&'a dyn Translation>,
}

impl Report<'_> {
    /// What was executed.
    pub fn code(&self) -> &SharedCode {
        self.cores.code()
    }

    /// Whether the program is for another architecture than LoongArch.
    pub fn is_translated(&self) -> bool {
        self.translated.is_some()
    }

    /// The architecture of a program that is not for LoongArch and was translated, and how many of its own instructions these blocks have
    /// executed: each round of a repeated one counts.
    pub fn source(&self, executed: &[Executed]) -> Option<(&'static str, u64)> {
        let translated = self.translated?;
        Some((translated.name(), translated.source_instructions(executed)))
    }

    /// The program's own address of what stands at `address`: another one where it is translated.
    pub fn source_address(&self, address: u64) -> u64 {
        self.translated.map_or(address, |translated| translated.source_address(address))
    }

    /// These blocks, each at the program's own address of its first instruction.
    pub fn at_source(&self, executed: &[Executed]) -> Vec<Executed> {
        executed.iter().map(|block| Executed { start: self.source_address(block.start), ..*block }).collect()
    }

    /// What a program for another architecture was translated to, as far as these blocks have executed it.
    pub fn listing(&self, executed: &[Executed]) -> Vec<ListedUnit> {
        self.translated.map_or_else(Vec::new, |translated| translated.listing(self.cores, executed))
    }

    /// The functions of the files that are mapped at the end.
    pub fn symbols(&self) -> Symbols {
        Symbols::of(self.cores.process())
    }
}
