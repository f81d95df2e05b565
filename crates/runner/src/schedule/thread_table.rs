//! Placement of guest threads on modelled cores, and the choice of the next thread to run. Source: sched(7); Linux
//! kernel/sched/fair.c (base slice; wake-ups prefer an idle core, the previous one first; idle cores pull).

use std::collections::VecDeque;

use longma_linux::simulated::CoreSet;
use longma_sim::{Duration, Time};
use serde::{Deserialize, Serialize};

/// Linux's base slice: 0.70 ms times (1 + log2 of the number of cores), with at most eight cores counted
/// (kernel/sched/fair.c, sysctl_sched_base_slice and get_update_sysctl_factor, Linux 6.12).
pub(crate) fn time_slice(cores: usize) -> Duration {
    const BASE_PS: u64 = 700_000_000;
    let counted = cores.clamp(1, 8) as u64;
    Duration::from_ps(BASE_PS * u64::from(1 + counted.ilog2()))
}

/// A modelled core.
#[derive(Clone, Debug, Default)]
struct ModelCore {
    /// The core's local time. It does not advance while the core has no thread, and jumps forward when a thread is
    /// assigned to the core.
    time: Time,
    /// Runnable threads. The first one is running.
    queue: VecDeque<u32>,
    /// How much of its time slice the first thread has used.
    used: Duration,
    /// The last thread that ran, other than interrupt handlers.
    last: Option<u32>,
    /// Whether an interrupt handler has run since that thread.
    handled: bool,
}

/// The scheduling state of a thread.
#[derive(Clone, Debug)]
struct ScheduledThread {
    /// The current or last core.
    core: usize,
    allowed: CoreSet,
    /// The thread cannot run before this time.
    ready_at: Time,
    run_time: Duration,
    queued: bool,
    /// Whether it has slept since it last ran.
    slept: bool,
    /// Whether it is an interrupt handler. Handlers run before other threads.
    handles: bool,
}

/// The kernel work that is necessary before a turn begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Switch {
    /// None: the same thread continues, or continues after an interrupt handler.
    None,
    /// A context switch to another thread, or to a thread that has slept.
    Thread,
    /// A switch to an interrupt handler.
    Handler,
}

/// The next thread to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The time at which it starts.
    pub at: Time,
    /// The core.
    pub core: usize,
    /// The thread's number.
    pub thread: u32,
}

/// The assignment of threads to cores.
#[derive(Clone, Debug)]
pub(crate) struct ThreadTable {
    cores: Vec<ModelCore>,
    threads: Vec<ScheduledThread>,
    slice: Duration,
}

/// The serializable form of a thread table. All times are picoseconds of simulated time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadTableImage {
    /// The cores.
    pub cores: Vec<CoreImage>,
    /// All threads, including those that have exited.
    pub threads: Vec<ScheduledThreadImage>,
}

/// The serializable form of a core.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoreImage {
    /// The core's local time.
    pub time_ps: u64,
    /// Runnable threads, the running one first.
    pub queue: Vec<u32>,
    /// How much of its time slice the first thread has used.
    pub used_ps: u64,
}

/// The serializable form of a thread's scheduling state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduledThreadImage {
    /// The current or last core.
    pub core: usize,
    /// The CPU affinity.
    pub allowed: Vec<usize>,
    /// The thread cannot run before this time.
    pub ready_ps: u64,
    /// The total run time.
    pub run_time_ps: u64,
}

fn since(later: Time, earlier: Time) -> Duration {
    later.checked_since(earlier).unwrap_or_default()
}

impl ThreadTable {
    /// Creates cores without threads.
    pub fn new(cores: usize) -> Self {
        Self { cores: vec![ModelCore::default(); cores], threads: Vec::new(), slice: time_slice(cores) }
    }

    /// The serializable form.
    pub fn image(&self) -> ThreadTableImage {
        let placed = |placed: &ScheduledThread| ScheduledThreadImage {
            core: placed.core,
            allowed: (0..self.cores.len()).filter(|core| placed.allowed.contains(*core)).collect(),
            ready_ps: placed.ready_at.ps(),
            run_time_ps: placed.run_time.ps(),
        };
        let core = |core: &ModelCore| CoreImage {
            time_ps: core.time.ps(),
            queue: core.queue.iter().copied().collect(),
            used_ps: core.used.ps(),
        };
        ThreadTableImage {
            cores: self.cores.iter().map(core).collect(),
            threads: self.threads.iter().map(placed).collect(),
        }
    }

    /// Restores a thread table on `cores` cores. Threads in `alive` are runnable, the others have exited. If the number of
    /// cores differs from the saved one, all cores start at the latest of the saved times.
    pub fn restored(cores: usize, image: &ThreadTableImage, alive: &[u32]) -> Self {
        let mut thread_table = Self::new(cores);
        let latest_time = image.cores.iter().map(|core| core.time_ps).max().unwrap_or(0);
        let same = image.cores.len() == cores;
        for (number, core) in thread_table.cores.iter_mut().enumerate() {
            core.time = Time::from_ps(if same { image.cores[number].time_ps } else { latest_time });
        }
        for placed in &image.threads {
            let mut bytes = [0u8; CoreSet::CORES / 8];
            for core in placed.allowed.iter().filter(|core| **core < CoreSet::CORES) {
                bytes[core / 8] |= 1 << (core % 8);
            }
            let existing = CoreSet::from_bytes(&bytes).intersection(CoreSet::first_n(cores));
            // The thread had no affinity restriction, or none of its cores exists.
            let free = existing.is_empty() || placed.allowed.len() == image.cores.len();
            thread_table.threads.push(ScheduledThread {
                core: placed.core % cores,
                allowed: if free { CoreSet::first_n(cores) } else { existing },
                ready_at: Time::from_ps(placed.ready_ps),
                run_time: Duration::from_ps(placed.run_time_ps),
                queued: false,
                slept: false,
                handles: false,
            });
        }
        if same {
            thread_table.requeue(image, alive);
        }
        // Threads that waited repeat their system calls.
        for thread in alive {
            thread_table.enqueue(*thread, Time::ZERO);
        }
        thread_table
    }

    /// Restores the run queues.
    fn requeue(&mut self, image: &ThreadTableImage, alive: &[u32]) {
        for (number, core) in image.cores.iter().enumerate() {
            for thread in core.queue.iter().filter(|thread| alive.contains(thread)) {
                let placed = &mut self.threads[*thread as usize];
                if !placed.queued && placed.allowed.contains(number) {
                    (placed.queued, placed.core) = (true, number);
                    self.cores[number].queue.push_back(*thread);
                }
            }
            self.cores[number].used = Duration::from_ps(core.used_ps);
        }
    }

    /// Makes `thread` the only thread, with number 0. Adds the processor time of the others to its own, so that the
    /// total of the process stays the same.
    pub fn keep_only(&mut self, thread: u32) {
        let run_time = self.run_time(None);
        let kept = ScheduledThread { run_time, handles: false, ..self.threads[thread as usize].clone() };
        for (number, core) in self.cores.iter_mut().enumerate() {
            let is_own = kept.queued && number == kept.core;
            core.queue = is_own.then_some(0).into_iter().collect();
            core.last = core.last.filter(|last| *last == thread).map(|_| 0);
            core.handled = false;
        }
        self.threads = vec![kept];
    }

    /// The number of cores.
    pub fn cores(&self) -> usize {
        self.cores.len()
    }

    /// Adds a thread that can run from `now` on. Threads are numbered in this order.
    pub fn add(&mut self, allowed: CoreSet, now: Time) {
        let number = self.threads.len() as u32;
        self.threads.push(ScheduledThread {
            core: 0,
            allowed,
            ready_at: now,
            run_time: Duration::ZERO,
            queued: false,
            slept: false,
            handles: false,
        });
        // A new thread has no previous core, so it starts on the least loaded one.
        self.threads[number as usize].core = self.least_loaded(allowed);
        self.enqueue(number, now);
    }

    fn least_loaded(&self, allowed: CoreSet) -> usize {
        let candidates = (0..self.cores.len()).filter(|core| allowed.contains(*core));
        candidates.min_by_key(|core| self.cores[*core].queue.len()).unwrap_or(0)
    }

    /// Makes `thread` runnable from `now` on. It returns to its previous core unless another one is less loaded.
    pub fn enqueue(&mut self, thread: u32, now: Time) {
        let placed = &self.threads[thread as usize];
        if placed.queued {
            return;
        }
        let (current_core, least_loaded) = (placed.core, self.least_loaded(placed.allowed));
        let load = |core: usize| self.cores[core].queue.len();
        let core = if placed.allowed.contains(current_core) && load(current_core) <= load(least_loaded) {
            current_core
        } else {
            least_loaded
        };
        self.put(thread, core, now);
    }

    fn put(&mut self, thread: u32, core: usize, now: Time) {
        let placed = &mut self.threads[thread as usize];
        (placed.core, placed.queued) = (core, true);
        placed.ready_at = placed.ready_at.max(now);
        let core = &mut self.cores[core];
        if core.queue.is_empty() {
            core.time = core.time.max(placed.ready_at);
            core.used = Duration::ZERO;
        }
        match placed.handles {
            true => core.queue.push_front(thread),
            false => core.queue.push_back(thread),
        }
    }

    /// Marks `thread` as an interrupt handler.
    pub fn set_handler(&mut self, thread: u32) {
        self.threads[thread as usize].handles = true;
    }

    /// Whether `thread` is an interrupt handler.
    pub fn is_handler(&self, thread: u32) -> bool {
        self.threads[thread as usize].handles
    }

    /// Removes `thread` from its run queue. If that queue becomes empty, the core pulls a waiting thread from another
    /// one.
    pub fn dequeue(&mut self, thread: u32) {
        let placed = &mut self.threads[thread as usize];
        if !std::mem::take(&mut placed.queued) {
            return;
        }
        placed.slept = true;
        let number = placed.core;
        let core = &mut self.cores[number];
        placed.ready_at = placed.ready_at.max(core.time);
        if core.queue.front() == Some(&thread) {
            core.used = Duration::ZERO;
        }
        core.queue.retain(|queued| *queued != thread);
        if core.queue.is_empty() {
            self.pull(number);
        }
    }

    fn pull(&mut self, to: usize) {
        let busiest = (0..self.cores.len()).rev().max_by_key(|core| self.cores[*core].queue.len());
        let Some(from) = busiest.filter(|core| self.cores[*core].queue.len() > 1) else { return };
        let waiting = self.cores[from].queue.iter().skip(1);
        let mut movable =
            waiting.copied().filter(|thread| self.threads[*thread as usize].allowed.contains(to));
        if let Some(thread) = movable.next_back() {
            self.cores[from].queue.retain(|queued| *queued != thread);
            self.put(thread, to, Time::ZERO);
        }
    }

    /// Advances the core of the running thread `thread` to `time`. If the time slice is used up, the next thread in the
    /// queue runs on the core.
    pub fn charge(&mut self, thread: u32, time: Time) {
        let placed = &mut self.threads[thread as usize];
        let core = &mut self.cores[placed.core];
        let spent = since(time, core.time);
        core.time = core.time.max(time);
        placed.run_time = placed.run_time.checked_add(spent).unwrap_or(placed.run_time);
        core.used = core.used.checked_add(spent).unwrap_or(core.used);
        if core.used >= self.slice {
            self.rotate(thread);
        }
    }

    /// Ends the time slice of the running thread `thread`.
    pub fn rotate(&mut self, thread: u32) {
        let placed = &mut self.threads[thread as usize];
        let core = &mut self.cores[placed.core];
        core.used = Duration::ZERO;
        if core.queue.len() > 1 && core.queue.front() == Some(&thread) {
            placed.ready_at = placed.ready_at.max(core.time);
            core.queue.rotate_left(1);
        }
    }

    /// The next turn: the first thread of the core with the earliest time, the lowest core number among equals.
    pub fn next(&self) -> Option<Turn> {
        let turns = self.cores.iter().enumerate().filter_map(|(number, core)| {
            let thread = *core.queue.front()?;
            let at = core.time.max(self.threads[thread as usize].ready_at);
            Some(Turn { at, core: number, thread })
        });
        turns.min_by_key(|turn| (turn.at, turn.core))
    }

    /// Begins a turn, and returns the kernel work that it requires.
    pub fn begin(&mut self, turn: Turn) -> Switch {
        let (core, placed) = (&mut self.cores[turn.core], &mut self.threads[turn.thread as usize]);
        core.time = turn.at;
        let slept = std::mem::take(&mut placed.slept);
        if placed.handles {
            let continues = std::mem::replace(&mut core.handled, true) && !slept;
            return if continues { Switch::None } else { Switch::Handler };
        }
        core.handled = false;
        let previous = core.last.replace(turn.thread);
        if slept || previous.is_some_and(|previous| previous != turn.thread) {
            Switch::Thread
        } else {
            Switch::None
        }
    }

    /// The run time of a thread, or the sum over all threads.
    pub fn run_time(&self, thread: Option<u32>) -> Duration {
        match thread {
            Some(thread) => {
                self.threads.get(thread as usize).map_or(Duration::ZERO, |placed| placed.run_time)
            }
            None => {
                let sum = self.threads.iter().map(|placed| placed.run_time.ps()).fold(0, u64::saturating_add);
                Duration::from_ps(sum)
            }
        }
    }

    /// The current or last core of `thread`.
    pub fn core_of(&self, thread: u32) -> usize {
        self.threads.get(thread as usize).map_or(0, |placed| placed.core)
    }

    /// The CPU affinity of `thread`.
    pub fn allowed(&self, thread: u32) -> Option<CoreSet> {
        self.threads.get(thread as usize).map(|placed| placed.allowed)
    }

    /// Sets the CPU affinity of `thread`, and migrates it if necessary.
    pub fn allow(&mut self, thread: u32, allowed: CoreSet, now: Time) {
        let placed = &mut self.threads[thread as usize];
        placed.allowed = allowed;
        if placed.queued && !allowed.contains(placed.core) {
            self.dequeue(thread);
            self.enqueue(thread, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000_000;

    fn at(ps: u64) -> Time {
        Time::from_ps(ps)
    }

    fn with_threads(cores: usize, threads: usize) -> ThreadTable {
        let mut thread_table = ThreadTable::new(cores);
        (0..threads).for_each(|_| thread_table.add(CoreSet::first_n(cores), Time::ZERO));
        thread_table
    }

    #[test]
    fn new_threads_spread_over_the_cores() {
        let thread_table = with_threads(3, 5);
        let cores: Vec<_> = (0..5).map(|thread| thread_table.core_of(thread)).collect();
        assert_eq!(cores, [0, 1, 2, 0, 1]);
    }

    #[test]
    fn the_thread_that_executes_a_program_becomes_the_first_one_and_keeps_core_and_time() {
        let mut table = with_threads(2, 3);
        table.charge(1, at(20));
        table.charge(0, at(10));
        table.keep_only(1);
        assert_eq!((table.core_of(0), table.run_time(None).ps()), (1, 30));
        assert_eq!(table.next(), Some(Turn { at: at(20), core: 1, thread: 0 }));
        table.add(CoreSet::first_n(2), at(20));
        assert_eq!(table.core_of(1), 0, "its queue is empty");
    }

    #[test]
    fn the_core_with_the_earliest_time_runs_next() {
        let mut thread_table = with_threads(2, 2);
        assert_eq!(thread_table.next(), Some(Turn { at: at(0), core: 0, thread: 0 }));
        thread_table.charge(0, at(10));
        assert_eq!(thread_table.next(), Some(Turn { at: at(0), core: 1, thread: 1 }));
        thread_table.charge(1, at(20));
        assert_eq!(thread_table.next(), Some(Turn { at: at(10), core: 0, thread: 0 }));
    }

    #[test]
    fn threads_of_one_core_take_turns_by_the_slice() {
        let mut thread_table = with_threads(1, 2);
        let slice = time_slice(1).ps();
        thread_table.charge(0, at(slice - 1));
        assert_eq!(thread_table.next().map(|turn| turn.thread), Some(0));
        thread_table.charge(0, at(slice));
        assert_eq!(thread_table.next().map(|turn| turn.thread), Some(1));
        thread_table.charge(1, at(2 * slice));
        assert_eq!(thread_table.next().map(|turn| turn.thread), Some(0));
        assert_eq!(thread_table.run_time(Some(0)).ps(), slice);
        assert_eq!(thread_table.run_time(None).ps(), 2 * slice);
    }

    #[test]
    fn the_time_slice_scales_with_the_cores_as_in_linux() {
        let ms = |cores| time_slice(cores).ps() as f64 / MS as f64;
        assert_eq!([ms(1), ms(4), ms(8), ms(64)], [0.7, 2.1, 2.8, 2.8]);
    }

    #[test]
    fn an_idle_core_steals_work() {
        let mut thread_table = with_threads(2, 4);
        thread_table.dequeue(1);
        thread_table.dequeue(3);
        assert_eq!(thread_table.core_of(2), 1);
    }

    #[test]
    fn a_woken_thread_does_not_run_before_it_was_woken() {
        let mut thread_table = with_threads(2, 2);
        thread_table.dequeue(1);
        thread_table.charge(0, at(50));
        thread_table.enqueue(1, at(50));
        assert_eq!(thread_table.next(), Some(Turn { at: at(50), core: 0, thread: 0 }));
        thread_table.charge(0, at(60));
        assert_eq!(thread_table.next(), Some(Turn { at: at(50), core: 1, thread: 1 }));
    }

    #[test]
    fn a_thread_runs_only_on_its_allowed_cores() {
        let mut thread_table = with_threads(4, 1);
        thread_table.allow(0, CoreSet::from_bytes(&[0b1000]), at(7));
        assert_eq!(thread_table.next(), Some(Turn { at: at(7), core: 3, thread: 0 }));
    }

    #[test]
    fn the_kernel_switches_to_another_thread_and_to_one_that_has_slept() {
        let mut thread_table = with_threads(1, 2);
        let begin = |thread_table: &mut ThreadTable| thread_table.begin(thread_table.next().unwrap());
        assert_eq!(begin(&mut thread_table), Switch::None, "the first thread runs already");
        thread_table.charge(0, at(10));
        assert_eq!(begin(&mut thread_table), Switch::None, "it continues");
        thread_table.rotate(0);
        assert_eq!(begin(&mut thread_table), Switch::Thread);
        thread_table.dequeue(0);
        thread_table.dequeue(1);
        thread_table.enqueue(1, at(50));
        assert_eq!(begin(&mut thread_table), Switch::Thread, "it has slept");
    }

    #[test]
    fn an_interrupt_handler_runs_first_and_the_interrupted_thread_continues() {
        let mut thread_table = with_threads(1, 2);
        thread_table.set_handler(1);
        thread_table.dequeue(1);
        thread_table.begin(thread_table.next().unwrap());
        thread_table.charge(0, at(10));
        thread_table.enqueue(1, at(10));
        let turn = thread_table.next().unwrap();
        assert_eq!((turn.thread, thread_table.begin(turn)), (1, Switch::Handler));
        thread_table.charge(1, at(20));
        let turn = thread_table.next().unwrap();
        assert_eq!((turn.thread, thread_table.begin(turn)), (1, Switch::None), "it is not done");
        thread_table.dequeue(1);
        let turn = thread_table.next().unwrap();
        assert_eq!((turn.thread, thread_table.begin(turn)), (0, Switch::None), "it was interrupted, no more");
    }

    proptest! {
        #[test]
        fn runnable_threads_are_never_lost_and_time_is_monotonic(
            cores in 1usize..5,
            steps in prop::collection::vec((0u8..4, 0u32..8, 1u64..3_000_000_000), 1..200),
        ) {
            let mut thread_table = with_threads(cores, 8);
            let mut can_run = [true; 8];
            let mut last = vec![Time::ZERO; cores];
            for (action, thread, ps) in steps {
                let Some(turn) = thread_table.next() else {
                    prop_assert!(can_run.iter().all(|can| !can));
                    thread_table.enqueue(thread, at(ps));
                    can_run[thread as usize] = true;
                    continue;
                };
                prop_assert!(can_run[turn.thread as usize]);
                prop_assert!(turn.at >= last[turn.core]);
                last[turn.core] = turn.at;
                thread_table.begin(turn);
                let now = at(turn.at.ps() + ps);
                thread_table.charge(turn.thread, now);
                match action {
                    0 => {
                        thread_table.dequeue(turn.thread);
                        can_run[turn.thread as usize] = false;
                    }
                    1 => {
                        thread_table.enqueue(thread, now);
                        can_run[thread as usize] = true;
                    }
                    2 => thread_table.rotate(turn.thread),
                    _ => {}
                }
                let queued: Vec<u32> = thread_table.cores.iter().flat_map(|core| core.queue.iter().copied()).collect();
                for thread in 0..8u32 {
                    let times = queued.iter().filter(|queued| **queued == thread).count();
                    prop_assert_eq!(times, usize::from(can_run[thread as usize]));
                }
            }
        }
    }
}
