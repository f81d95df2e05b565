//! Executes kernel work on the modelled cores, where it delays the program.

use longma_core::Core;
use longma_memory::{MemoryPort, placement::SpaceId};
use longma_sim::{Cycle, Duration, Region, Statistics, StatisticsError, Time};

use super::{Phase, TimingSimulation};
use crate::kernel_model::{PendingWork, Work};

/// Cycles between two cache lines when the kernel zeroes a page: eight stores of eight bytes, one a cycle. An estimate.
const ZEROED_LINE_CYCLES: u64 = 8;

/// Counts and cycles of each type of kernel work on a core.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KernelCounts {
    times: [u64; Work::ALL.len()],
    cycles: [u64; Work::ALL.len()],
}

impl KernelCounts {
    fn add(&mut self, work: Work, cycles: u64) {
        self.times[work as usize] += 1;
        self.cycles[work as usize] += cycles;
    }

    /// The cycles of all kinds together.
    pub fn total(&self) -> u64 {
        self.cycles.iter().sum()
    }

    /// Adds the counts below `prefix`.
    pub fn report(&self, to: &mut Statistics, prefix: &str) -> Result<(), StatisticsError> {
        for work in Work::ALL {
            let (times, cycles) = (self.times[work as usize], self.cycles[work as usize]);
            if to.wants(times) {
                let name = work.name();
                to.count(&format!("{prefix}.{name}.times"), times, "times", work.description())?;
                to.count(&format!("{prefix}.{name}.cycles"), cycles, "cycles", "of the core spent on this")?;
            }
        }
        Ok(())
    }
}

impl TimingSimulation {
    /// Executes the work due by `until` on all cores. No core has a turn before `until`, because the core with the
    /// earliest time always runs next.
    pub(super) fn do_kernel_work(&mut self, until: Time) {
        for pending in self.kernel.take(until) {
            self.execute_work(pending);
        }
    }

    fn execute_work(&mut self, pending: PendingWork) {
        let cycles = self.memory.cycles_of(pending.core, pending.takes).max(1);
        let core = &mut self.cores[pending.core];
        let from = core.cycle_at(pending.at);
        let begin = match self.phase {
            Phase::Counted => {
                core.model.advance_to(from);
                let begin = core.model.now();
                core.model.kernel_until(begin + cycles);
                core.kernel.add(pending.work, cycles);
                begin
            }
            Phase::Passed => {
                let begin = core.passed.max(from);
                core.passed = begin + cycles;
                begin
            }
        };
        self.show(pending, begin, cycles);
    }

    /// Adds the work to the trace, if there is one.
    fn show(&mut self, pending: PendingWork, begin: Cycle, cycles: u64) {
        let core = &self.cores[pending.core];
        if let Some(timeline) = &mut self.config.timeline
            && let Some(begin) = core.start_of(begin)
            && let Some(takes) = core.clock.cycles(cycles)
        {
            timeline.kernel(pending.core, pending.work.name(), begin, takes);
        }
    }

    /// Executes a timer tick on core `number` if one is due. Ticks missed while the core was idle are skipped.
    pub(super) fn tick(&mut self, number: usize) {
        let Some(interval) = self.kernel.costs().tick_interval else { return };
        let now = self.time(number, Time::ZERO);
        if now >= self.cores[number].next_tick {
            let takes = self.kernel.costs().cost_of(Work::Tick);
            self.execute_work(PendingWork { core: number, at: now, work: Work::Tick, takes });
            self.cores[number].next_tick = after(now, interval);
        }
    }

    /// Skips the ticks of core `number` up to `start` if the core was idle.
    pub(super) fn skip_ticks(&mut self, number: usize, start: Time) {
        let Some(interval) = self.kernel.costs().tick_interval else { return };
        if self.time(number, Time::ZERO) < start && self.cores[number].next_tick <= start {
            self.cores[number].next_tick = after(start, interval);
        }
    }

    /// Discards pages that devices touched before the turn; they cause no page faults in the program.
    pub(super) fn forget_touched(&mut self) {
        if self.models_page_faults() {
            self.memory.spaces().take_touched();
        }
    }

    /// Whether first accesses to pages are modelled. They are only known if every instruction is counted.
    fn models_page_faults(&self) -> bool {
        let counts_all = self.config.region == Region::Whole
            && self.config.restored_at.is_none()
            && self.config.sampling.is_none();
        counts_all
            && self.phase == Phase::Counted
            && self.kernel.costs().cost_of(Work::PageFault) > Duration::ZERO
    }

    /// Accounts for page faults at the end of a quantum of core `number`. For each page accessed for the first time,
    /// the kernel allocates a frame and zeroes it line by line through the core's caches. Pages of mapped files are not
    /// zeroed.
    pub(super) fn fault_pages(&mut self, number: usize, guest: &mut Core) {
        if !self.models_page_faults() {
            return;
        }
        let page_bytes = self.memory.spaces().page_bytes();
        let takes = self.kernel.costs().cost_of(Work::PageFault);
        for page in self.memory.spaces().take_touched() {
            let address = page * page_bytes;
            let zeroed = !guest.cpu().guest().memory().is_of_file(address);
            let begin = self.cores[number].model.now();
            let mut end = begin + self.memory.cycles_of(number, takes);
            if zeroed {
                end = self.zero(number, address, page_bytes, end);
            }
            let core = &mut self.cores[number];
            core.model.kernel_until(end);
            core.kernel.add(Work::PageFault, end.0 - begin.0);
            let at = core.start_of(begin).unwrap_or_default();
            self.show(PendingWork { core: number, at, work: Work::PageFault, takes }, begin, end.0 - begin.0);
        }
    }

    /// Zeroes `bytes` bytes from `address` on, on core `number` from cycle `at` on. Returns the cycle of completion.
    fn zero(&mut self, number: usize, address: u64, bytes: u64, mut at: Cycle) -> Cycle {
        let line_bytes = self.memory.line_bytes();
        let mut port = self.memory.port(number);
        port.set_space(SpaceId(0));
        let mut end = at;
        for line in (address..address + bytes).step_by(line_bytes as usize) {
            let answer = port.store(line, line_bytes as u32, 0, at);
            at = at + ZEROED_LINE_CYCLES;
            end = end.max(at).max(answer.ready);
        }
        end
    }
}

/// The first multiple of `interval` after `now`.
fn after(now: Time, interval: Duration) -> Time {
    Time::from_ps((now.ps() / interval.ps()).saturating_add(1).saturating_mul(interval.ps()))
}
