//! Wrong-path fetches: instruction lines fetched after a mispredicted branch until it is resolved. They pollute or
//! prefill the caches.
//!
//! The trace contains only executed instructions, so only the start of a wrong path is known. Fetch is assumed to
//! continue sequentially from there. Loads on wrong paths are not modelled, and no page is translated for them.
//!
//! Source: Mutlu, Kim, Armstrong and Patt, An analysis of the performance impact of wrong-path memory references (IEEE
//! Transactions on Computers 54(12), 2005), which finds that instruction lines and loads of wrong paths mostly help.

use longma_memory::MemoryPort;
use longma_sim::Cycle;
use longma_topology::parts;

use crate::parameters::Parameters;

/// Default and minimum page size.
const PAGE_BYTES: u64 = 4096;

/// The extent of wrong-path fetches.
#[derive(Debug)]
pub(crate) struct WrongPath {
    /// Maximum number of instructions fetched, after which the window is full.
    limit: u64,
    /// Instructions fetched per cycle.
    width: u64,
    /// Page size. Fetch stays in the page of the branch.
    page_bytes: u64,
    /// Latency of a hit in the instruction cache, cycles.
    hit_cycles: u64,
    line_bytes: u64,
    /// Number of lines fetched.
    pub lines: u64,
}

impl WrongPath {
    /// Creates the state for `core`. The front end holds the instructions fetched in `ahead_cycles` cycles; instruction
    /// lines have `line_bytes` bytes and a hit takes `hit_cycles`. `None` if the core fetches nothing on wrong paths.
    pub fn of(
        core: &parts::Core,
        parameters: &Parameters,
        (hit_cycles, line_bytes): (u64, u64),
        ahead_cycles: u64,
    ) -> Option<Self> {
        let is_fetched =
            core.branch.as_ref().is_some_and(|branch| branch.wrong_path == parts::WrongPath::Fetched);
        // An in-order core does not dispatch instructions after an unresolved branch.
        let dispatched = if core.out_of_order { u64::from(parameters.rob_entries) } else { 0 };
        is_fetched.then(|| Self {
            limit: dispatched + ahead_cycles * parameters.fetch_width,
            width: parameters.fetch_width,
            page_bytes: core.page_size.map_or(PAGE_BYTES, |size| size.bytes()).max(PAGE_BYTES),
            hit_cycles,
            line_bytes,
            lines: 0,
        })
    }

    /// Fetches the wrong path from `start` on, after the branch at `branch`, from cycle `from` until the branch is
    /// resolved. Returns the last line fetched; `None` if there was none.
    pub fn fetch(
        &mut self,
        (branch, start): (u64, u64),
        (from, resolved): (u64, u64),
        port: &mut impl MemoryPort,
    ) -> Option<u64> {
        let is_here = |address: u64| address / self.page_bytes == branch / self.page_bytes;
        let (mut cycle, mut address, mut last, mut fetched) = (from, start, None, 0);
        while cycle < resolved && fetched < self.limit && is_here(address) {
            let line = address & !(self.line_bytes - 1);
            let answer = port.fetch(address, Cycle(cycle));
            let delay = answer.ready.0.saturating_sub(cycle + self.hit_cycles);
            let next_line = line.wrapping_add(self.line_bytes);
            let instructions = (next_line.wrapping_sub(address) / 4).max(1);
            (fetched, last, address) = (fetched + instructions, Some(line), next_line);
            cycle += delay + instructions.div_ceil(self.width);
            self.lines += 1;
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use longma_memory::{Answer, Source};
    use longma_topology::Machine;

    use super::*;

    /// Records requests; missing lines take 20 cycles longer.
    #[derive(Default)]
    struct Lines {
        asked: Vec<(u64, u64)>,
        missing: Vec<u64>,
    }

    impl MemoryPort for Lines {
        fn fetch(&mut self, address: u64, at: Cycle) -> Answer {
            self.asked.push((address, at.0));
            let late = if self.missing.contains(&address) { 20 } else { 0 };
            Answer { ready: at + 4 + late, source: Source::Level1, translation_cycles: 0 }
        }

        fn load(&mut self, _: u64, _: u32, _: u64, _: Cycle) -> Answer {
            unreachable!("nothing is loaded")
        }

        fn store(&mut self, _: u64, _: u32, _: u64, _: Cycle) -> Answer {
            unreachable!("nothing is stored")
        }

        fn prefetch(&mut self, _: u64, _: u64, _: Cycle) {}
    }

    fn wrong_path_fetches(missing: &[u64], (branch, start): (u64, u64), resolved: u64) -> Vec<(u64, u64)> {
        let mut path =
            WrongPath { limit: 64, width: 4, page_bytes: 4096, hit_cycles: 4, line_bytes: 64, lines: 0 };
        let mut lines = Lines { missing: missing.into(), ..Lines::default() };
        let last = path.fetch((branch, start), (100, resolved), &mut lines);
        assert_eq!(last, lines.asked.last().map(|(address, _)| address & !63));
        assert_eq!(path.lines, lines.asked.len() as u64);
        lines.asked
    }

    #[test]
    fn lines_are_fetched_one_after_another_until_the_branch_is_resolved() {
        // The first line has four instructions left; a whole line takes four cycles.
        assert_eq!(
            wrong_path_fetches(&[], (0x1000, 0x1030), 106),
            [(0x1030, 100), (0x1040, 101), (0x1080, 105)]
        );
        assert_eq!(wrong_path_fetches(&[0x1040], (0x1000, 0x1030), 106), [(0x1030, 100), (0x1040, 101)]);
        assert_eq!(wrong_path_fetches(&[], (0x1000, 0x1030), 100), []);
    }

    #[test]
    fn wrong_path_fetch_ends_at_the_window_and_the_page_boundary() {
        let all = wrong_path_fetches(&[], (0x1000, 0x1000), u64::MAX);
        assert_eq!(all.len(), 4, "64 instructions are four lines");
        assert_eq!(wrong_path_fetches(&[], (0x1ff0, 0x1f80), u64::MAX).len(), 2, "the page ends");
        assert_eq!(wrong_path_fetches(&[], (0x1ff0, 0x2000), u64::MAX), []);
    }

    #[test]
    fn a_core_fetches_the_wrong_path_if_the_machine_file_enables_it() {
        let machine = Machine::open("loongson-3a5000").unwrap();
        let mut core = machine.parts().cores.values().next().unwrap().clone();
        let parameters = Parameters::resolve(&core).unwrap();
        let mut of = |wrong_path| {
            core.branch.as_mut().unwrap().wrong_path = wrong_path;
            WrongPath::of(&core, &parameters, (4, 64), 8)
        };
        assert!(of(parts::WrongPath::NotFetched).is_none());
        assert_eq!(of(parts::WrongPath::Fetched).unwrap().limit, 128 + 8 * 8);
    }
}
