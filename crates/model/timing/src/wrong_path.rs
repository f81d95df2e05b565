//! What a front end fetches behind a mispredicted branch until that is resolved: instruction lines, which come into the caches whether
//! they are of use or not.
//! Not what is computed there: the trace holds what ran, and of the wrong path no more is known than where it begins. So fetch goes
//! straight on from there, however the code branches; no loads of it are made, and no page is translated for it.
//! Source: Mutlu, Kim, Armstrong and Patt, An analysis of the performance impact of wrong-path memory references (IEEE Transactions on
//! Computers 54(12), 2005), who find that instruction lines and loads of wrong paths mostly help.

use longma_memory::MemoryPort;
use longma_sim::Cycle;
use longma_topology::parts;

use crate::parameters::Parameters;

/// The page of a core whose machine file does not say, and the smallest.
const PAGE_BYTES: u64 = 4096;

/// How far a front end goes astray.
#[derive(Debug)]
pub(crate) struct WrongPath {
    /// Instructions fetched there at most: then the window behind is full.
    most: u64,
    /// Fetched a cycle.
    width: u64,
    /// No page but the branch's own is fetched from.
    page_bytes: u64,
    /// What a line that is there includes already, cycles.
    hit_cycles: u64,
    line_bytes: u64,
    /// Lines that were fetched.
    pub lines: u64,
}

impl WrongPath {
    /// Of `core`, `ahead_cycles` of whose fetch find room before dispatch, and whose instruction lines have `line_bytes` and are there after
    /// `hit_cycles`; `None` if it fetches nothing there.
    pub fn of(
        core: &parts::Core,
        parameters: &Parameters,
        (hit_cycles, line_bytes): (u64, u64),
        ahead_cycles: u64,
    ) -> Option<Self> {
        let is_fetched =
            core.branch.as_ref().is_some_and(|branch| branch.wrong_path == parts::WrongPath::Fetched);
        // In order nothing behind a branch that waits is dispatched.
        let dispatched = if core.out_of_order { u64::from(parameters.rob_entries) } else { 0 };
        is_fetched.then(|| Self {
            most: dispatched + ahead_cycles * parameters.fetch_width,
            width: parameters.fetch_width,
            page_bytes: core.page_size.map_or(PAGE_BYTES, |size| size.bytes()).max(PAGE_BYTES),
            hit_cycles,
            line_bytes,
            lines: 0,
        })
    }

    /// Fetches from `start` on, where the branch at `branch` does not go, from cycle `from` until it is resolved. The line fetched last;
    /// `None` if there was none.
    pub fn fetch(
        &mut self,
        (branch, start): (u64, u64),
        (from, resolved): (u64, u64),
        port: &mut impl MemoryPort,
    ) -> Option<u64> {
        let is_here = |address: u64| address / self.page_bytes == branch / self.page_bytes;
        let (mut cycle, mut address, mut last, mut fetched) = (from, start, None, 0);
        while cycle < resolved && fetched < self.most && is_here(address) {
            let line = address & !(self.line_bytes - 1);
            let answer = port.fetch(address, Cycle(cycle));
            let late = answer.ready.0.saturating_sub(cycle + self.hit_cycles);
            let behind = line.wrapping_add(self.line_bytes);
            let instructions = (behind.wrapping_sub(address) / 4).max(1);
            (fetched, last, address) = (fetched + instructions, Some(line), behind);
            cycle += late + instructions.div_ceil(self.width);
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

    /// Notes what it is asked for; what it does not have takes 20 cycles longer.
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

    fn astray(missing: &[u64], (branch, start): (u64, u64), resolved: u64) -> Vec<(u64, u64)> {
        let mut path =
            WrongPath { most: 64, width: 4, page_bytes: 4096, hit_cycles: 4, line_bytes: 64, lines: 0 };
        let mut lines = Lines { missing: missing.into(), ..Lines::default() };
        let last = path.fetch((branch, start), (100, resolved), &mut lines);
        assert_eq!(last, lines.asked.last().map(|(address, _)| address & !63));
        assert_eq!(path.lines, lines.asked.len() as u64);
        lines.asked
    }

    #[test]
    fn lines_are_fetched_one_after_another_until_the_branch_is_resolved() {
        // Four instructions are left of the first line, and a line takes four cycles.
        assert_eq!(astray(&[], (0x1000, 0x1030), 106), [(0x1030, 100), (0x1040, 101), (0x1080, 105)]);
        assert_eq!(astray(&[0x1040], (0x1000, 0x1030), 106), [(0x1030, 100), (0x1040, 101)]);
        assert_eq!(astray(&[], (0x1000, 0x1030), 100), []);
    }

    #[test]
    fn no_further_than_the_window_and_in_no_other_page() {
        let all = astray(&[], (0x1000, 0x1000), u64::MAX);
        assert_eq!(all.len(), 4, "64 instructions are four lines");
        assert_eq!(astray(&[], (0x1ff0, 0x1f80), u64::MAX).len(), 2, "the page ends");
        assert_eq!(astray(&[], (0x1ff0, 0x2000), u64::MAX), []);
    }

    #[test]
    fn a_core_strays_if_its_machine_file_says_so() {
        let machine = Machine::open("loongson-3a5000").unwrap();
        let mut core = machine.parts().cores.values().next().unwrap().clone();
        let parameters = Parameters::resolve(&core).unwrap();
        let mut of = |wrong_path| {
            core.branch.as_mut().unwrap().wrong_path = wrong_path;
            WrongPath::of(&core, &parameters, (4, 64), 8)
        };
        assert!(of(parts::WrongPath::NotFetched).is_none());
        assert_eq!(of(parts::WrongPath::Fetched).unwrap().most, 128 + 8 * 8);
    }
}
