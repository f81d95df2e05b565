//! The kernel's own work: what it costs, and what of it is still to be done on which core.
//! Not the doing, which is the simulation's, nor the choice who runs, which is the scheduler's.
//! Source: the costs are the machine file's (`hosts.os`), each with its source there.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use longma_guest::host::locks::{Mutex, MutexGuard};
use longma_sim::{Duration, Time};
use longma_topology::{
    Machine,
    units::{Frequency, Latency},
};

/// Something that the kernel does without being called by the program that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Work {
    /// A device's interrupt, or a timer's that ends a sleep.
    Interrupt,
    /// On to the work that an interrupt has put off, and back.
    Softirq,
    /// To a thread, from another one or from idling.
    ContextSwitch,
    /// Making a thread runnable.
    WakeUp,
    /// Another core has made a thread of this one runnable.
    WakeUpInterrupt,
    /// A page's first access, with its zeroing.
    PageFault,
    /// The timer's regular interrupt.
    Tick,
}

impl Work {
    /// All kinds.
    pub const ALL: [Self; 7] = [
        Self::Interrupt,
        Self::Softirq,
        Self::ContextSwitch,
        Self::WakeUp,
        Self::WakeUpInterrupt,
        Self::PageFault,
        Self::Tick,
    ];

    const TEXTS: [(&str, &str); 7] = [
        ("interrupt", "interrupts of devices and of timers that ended sleeps"),
        ("softirq", "ways from an interrupt to the work that it had put off, and back"),
        ("context_switch", "switches to a thread, from another one or from idling"),
        ("wake_up", "threads that this core has made runnable"),
        ("wake_up_interrupt", "interrupts by cores that had made a thread of this one runnable"),
        ("page_fault", "first accesses to pages, with their zeroing"),
        ("tick", "the timer's regular interrupts"),
    ];

    /// Its name in statistics and traces.
    pub fn name(self) -> &'static str {
        Self::TEXTS[self as usize].0
    }

    /// What it says, in one line.
    pub fn description(self) -> &'static str {
        Self::TEXTS[self as usize].1
    }
}

/// What each kind of work takes of its core at least; zero is free.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Costs {
    takes: [Duration; Work::ALL.len()],
    /// From tick to tick of a core that is not idle; `None`: there are none.
    pub tick_interval: Option<Duration>,
}

impl Costs {
    /// Those that the machine file states of host number `host`, which must exist and have a core.
    pub fn of(machine: &Machine, host: usize) -> Self {
        let host = &machine.layout().hosts[host];
        let Some(os) = &machine.hosts[host.of].os else { return Self::default() };
        let clock = machine.cores[&host.cores[0].core].clock;
        let takes = Work::ALL.map(|work| {
            let stated = match work {
                Work::Interrupt => os.interrupt,
                Work::Softirq => os.softirq,
                Work::ContextSwitch => os.context_switch,
                Work::WakeUp => os.wake_up,
                Work::WakeUpInterrupt => os.wake_up_interrupt,
                Work::PageFault => os.page_fault,
                Work::Tick => os.tick,
            };
            duration(stated, clock)
        });
        let interval = os.tick_interval.map(|interval| Duration::from_ps(interval.ps()));
        let ticks = os.tick.is_some();
        Self { takes, tick_interval: interval.filter(|interval| ticks && *interval > Duration::ZERO) }
    }

    /// What `work` takes.
    pub fn takes(&self, work: Work) -> Duration {
        self.takes[work as usize]
    }
}

/// A latency of a machine file; nothing where it has none.
pub(crate) fn duration(latency: Option<Latency>, clock: Frequency) -> Duration {
    Duration::from_ps(latency.map_or(0, |latency| latency.ps(clock)))
}

/// Work that a core is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    /// The core.
    pub core: usize,
    /// Not before this.
    pub at: Time,
    /// What.
    pub work: Work,
    /// How long it has the core.
    pub takes: Duration,
}

/// Work that waits for its core, in the order of its times, and of one time in the order in which it was posted.
#[derive(Debug, Default)]
struct Waiting {
    due: BTreeMap<(Time, u64), Due>,
    posted: u64,
}

/// The kernel of a host: its costs, and what is to be done.
#[derive(Debug, Default)]
pub(crate) struct Kernel {
    costs: Costs,
    waiting: Mutex<Waiting>,
}

impl Kernel {
    /// A kernel with nothing to do.
    pub fn new(costs: Costs) -> Self {
        Self { costs, waiting: Mutex::default() }
    }

    /// What its work costs.
    pub fn costs(&self) -> &Costs {
        &self.costs
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `core` is to do `work` from `at` on, for as long as that costs: the time at which it is done if the core does nothing else.
    pub fn post(&self, core: usize, at: Time, work: Work) -> Time {
        self.post_taking(core, at, work, self.costs.takes(work))
    }

    /// The same, with a cost of its own. What is free is not noted.
    pub fn post_taking(&self, core: usize, at: Time, work: Work, takes: Duration) -> Time {
        if takes > Duration::ZERO {
            let mut waiting = self.waiting();
            waiting.posted += 1;
            let number = waiting.posted;
            waiting.due.insert((at, number), Due { core, at, work, takes });
        }
        at.checked_add(takes).unwrap_or(at)
    }

    /// What is to begin at `until` or before.
    pub fn take(&self, until: Time) -> Vec<Due> {
        let mut waiting = self.waiting();
        if waiting.due.first_key_value().is_none_or(|((at, _), _)| *at > until) {
            return Vec::new();
        }
        let later = match until.checked_add(Duration::from_ps(1)) {
            Some(behind) => waiting.due.split_off(&(behind, 0)),
            None => BTreeMap::new(),
        };
        std::mem::replace(&mut waiting.due, later).into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ps: u64) -> Time {
        Time::from_ps(ps)
    }

    fn kernel() -> Kernel {
        let mut costs = Costs::default();
        costs.takes[Work::Interrupt as usize] = Duration::from_ps(10);
        Kernel::new(costs)
    }

    #[test]
    fn work_is_given_out_once_in_the_order_of_its_times() {
        let kernel = kernel();
        for (core, time) in [(0, 30), (1, 20), (2, 20), (3, 40)] {
            assert_eq!(kernel.post(core, at(time), Work::Interrupt), at(time + 10));
        }
        let cores = |until| kernel.take(at(until)).iter().map(|due| due.core).collect::<Vec<_>>();
        assert_eq!(cores(19), [0; 0]);
        assert_eq!(cores(30), [1, 2, 0]);
        assert_eq!(cores(30), [0; 0]);
        assert_eq!(cores(40), [3]);
    }

    #[test]
    fn what_costs_nothing_is_no_work() {
        let kernel = kernel();
        assert_eq!(kernel.post(0, at(5), Work::Softirq), at(5));
        assert_eq!(kernel.take(at(u64::MAX)), []);
    }
}
