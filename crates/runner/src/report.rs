//! Statistics of a process that has ended: executed code, symbols, and the listing of translated code.

use longma_core::{Executed, SharedCode};

use crate::cores::Cores;
use crate::source_lines::SourceLines;
use crate::stacks::{AddressStack, Stack};
use crate::symbols::Symbols;
use crate::translated::{Translation, listing::ListedUnit};

/// Statistics of a process that has ended.
pub struct Report<'a> {
    pub(crate) cores: &'a Cores,
    /// The translation, if the program is not for LoongArch.
    pub(crate) translated: Option<&'a dyn Translation>,
}

impl Report<'_> {
    /// The executed code.
    pub fn code(&self) -> &SharedCode {
        self.cores.code()
    }

    /// The file of the program, as the program sees it.
    pub fn program(&self) -> String {
        self.cores.process().guest_executable().to_string_lossy().into_owned()
    }

    /// Whether the program was translated.
    pub fn is_translated(&self) -> bool {
        self.translated.is_some()
    }

    /// For a translated program, its architecture and the number of its instructions that these blocks executed. Each
    /// iteration of a repeated instruction counts.
    pub fn source(&self, executed: &[Executed]) -> Option<(&'static str, u64)> {
        let translated = self.translated?;
        Some((translated.name(), translated.source_instructions(executed)))
    }

    /// The source address for a host address of translated code; `address` itself if the program is not translated.
    pub fn source_address(&self, address: u64) -> u64 {
        self.translated.map_or(address, |translated| translated.source_address(address))
    }

    /// The blocks, with their start addresses converted to source addresses.
    pub fn at_source(&self, executed: &[Executed]) -> Vec<Executed> {
        executed.iter().map(|block| Executed { start: self.source_address(block.start), ..*block }).collect()
    }

    /// The translated code that these blocks executed.
    pub fn listing(&self, executed: &[Executed]) -> Vec<ListedUnit> {
        self.translated.map_or_else(Vec::new, |translated| translated.listing(self.cores, executed))
    }

    /// The source lines of all mapped files, whose functions are `symbols`.
    pub fn source_lines(&self, symbols: &Symbols) -> SourceLines {
        SourceLines::of(self.cores.process(), symbols)
    }

    /// The sampled call stacks; empty if none were taken.
    pub fn stacks(&self) -> Vec<Stack> {
        self.cores.stacks().map_or_else(Vec::new, |stacks| stacks.named(&self.symbols()))
    }

    /// The sampled call stacks by their instructions; empty if none were taken.
    pub fn address_stacks(&self) -> Vec<AddressStack> {
        self.cores.stacks().map_or_else(Vec::new, |stacks| stacks.by_address())
    }

    /// The functions of all mapped files.
    pub fn symbols(&self) -> Symbols {
        Symbols::of(self.cores.process())
    }
}
