//! Costs of kernel work in simulated time, and the queue of pending work of each core. Source: the machine file's
//! `hosts.os`, which states a source for each cost.

use longma_locks::IgnorePoison;
use std::collections::BTreeMap;

use longma_guest::host::locks::{Mutex, MutexGuard};
use longma_sim::{Duration, Time};
use longma_topology::{
    Machine,
    units::{Frequency, Latency},
};

/// A type of kernel work that is not a system call of the running program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Work {
    /// An interrupt of a device, or of a timer that ends a sleep.
    Interrupt,
    /// The switch from an interrupt to its deferred work, and back.
    Softirq,
    /// A switch to a thread, from another one or from idle.
    ContextSwitch,
    /// Making a thread runnable.
    WakeUp,
    /// The interrupt from another core that made a thread of this core runnable.
    WakeUpInterrupt,
    /// The first access to a page, including zeroing.
    PageFault,
    /// The periodic timer interrupt.
    Tick,
}

impl Work {
    /// All types of work.
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
        ("interrupt", "interrupts by devices and by timers of sleeping threads"),
        ("softirq", "softirq runs after an interrupt"),
        ("context_switch", "switches to a thread, from another one or from idle"),
        ("wake_up", "threads woken by this core"),
        ("wake_up_interrupt", "inter-processor interrupts from cores that woke a thread of this core"),
        ("page_fault", "first accesses to pages, including zeroing"),
        ("tick", "periodic timer interrupts"),
    ];

    /// The name in statistics and traces.
    pub fn name(self) -> &'static str {
        Self::TEXTS[self as usize].0
    }

    /// A description of one line.
    pub fn description(self) -> &'static str {
        Self::TEXTS[self as usize].1
    }
}

/// The minimum time for which each type of work occupies its core; zero means free.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Costs {
    takes: [Duration; Work::ALL.len()],
    /// The interval between ticks of a core that is not idle; `None` if there are no ticks.
    pub tick_interval: Option<Duration>,
}

impl Costs {
    /// The costs in the machine file for host `host`, which must exist and have a core.
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

    /// The cost of `work`.
    pub fn cost_of(&self, work: Work) -> Duration {
        self.takes[work as usize]
    }
}

/// The duration of a latency in a machine file; zero if absent.
pub(crate) fn duration(latency: Option<Latency>, clock: Frequency) -> Duration {
    Duration::from_ps(latency.map_or(0, |latency| latency.ps(clock)))
}

/// Pending work of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PendingWork {
    /// The core.
    pub core: usize,
    /// The earliest time to start.
    pub at: Time,
    /// The type of work.
    pub work: Work,
    /// How long the work occupies the core.
    pub takes: Duration,
}

/// Pending work, ordered by time and then by the order of posting.
#[derive(Debug, Default)]
struct Waiting {
    due: BTreeMap<(Time, u64), PendingWork>,
    posted: u64,
}

/// The kernel model of a host.
#[derive(Debug, Default)]
pub(crate) struct Kernel {
    costs: Costs,
    waiting: Mutex<Waiting>,
}

impl Kernel {
    /// Creates a kernel without pending work.
    pub fn new(costs: Costs) -> Self {
        Self { costs, waiting: Mutex::default() }
    }

    /// The costs of the kernel's work.
    pub fn costs(&self) -> &Costs {
        &self.costs
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().ignore_poison()
    }

    /// Posts `work` on `core` at time `at`, and returns the time at which it is done if the core is otherwise idle.
    pub fn post(&self, core: usize, at: Time, work: Work) -> Time {
        self.post_with_cost(core, at, work, self.costs.cost_of(work))
    }

    /// Like [`Self::post`], with an explicit cost. Free work is not queued.
    pub fn post_with_cost(&self, core: usize, at: Time, work: Work, cost: Duration) -> Time {
        if cost > Duration::ZERO {
            let mut waiting = self.waiting();
            waiting.posted += 1;
            let number = waiting.posted;
            waiting.due.insert((at, number), PendingWork { core, at, work, takes: cost });
        }
        at.checked_add(cost).unwrap_or(at)
    }

    /// Removes the work that starts at `until` or earlier.
    pub fn take(&self, until: Time) -> Vec<PendingWork> {
        let mut waiting = self.waiting();
        if waiting.due.first_key_value().is_none_or(|((at, _), _)| *at > until) {
            return Vec::new();
        }
        let later = match until.checked_add(Duration::from_ps(1)) {
            Some(first_later) => waiting.due.split_off(&(first_later, 0)),
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
    fn work_is_returned_once_in_time_order() {
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
    fn work_without_cost_is_not_recorded() {
        let kernel = kernel();
        assert_eq!(kernel.post(0, at(5), Work::Softirq), at(5));
        assert_eq!(kernel.take(at(u64::MAX)), []);
    }
}
