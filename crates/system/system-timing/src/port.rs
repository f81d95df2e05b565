//! The port of a core into the memory system for traces whose data addresses are physical and whose code addresses are
//! virtual.

use longma_memory::{Answer, CorePort, MemoryPort, Source};
use longma_sim::Cycle;
use longma_system::CodePages;

/// Translates code addresses, and passes data addresses on.
pub struct SystemPort<'a> {
    pub port: CorePort<'a>,
    pub pages: &'a CodePages,
}

impl MemoryPort for SystemPort<'_> {
    #[inline]
    fn fetch(&mut self, address: u64, at: Cycle) -> Answer {
        match self.pages.physical(address) {
            Some(physical) => self.port.fetch(physical, at),
            // A fetch on a mispredicted path from a page without a known translation is skipped.
            None => Answer { ready: at, source: Source::Level1, translation_cycles: 0 },
        }
    }

    #[inline]
    fn load(&mut self, address: u64, bytes: u32, instruction: u64, at: Cycle) -> Answer {
        self.port.load(address, bytes, instruction, at)
    }

    #[inline]
    fn store(&mut self, address: u64, bytes: u32, instruction: u64, at: Cycle) -> Answer {
        self.port.store(address, bytes, instruction, at)
    }

    fn prefetch(&mut self, address: u64, instruction: u64, at: Cycle) {
        self.port.prefetch(address, instruction, at);
    }

    fn wants_announcements(&mut self) -> bool {
        self.port.wants_announcements()
    }

    #[inline]
    fn announce(&mut self, address: u64) {
        self.port.announce(address);
    }
}
