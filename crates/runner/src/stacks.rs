//! Samples call stacks at a fixed interval: in instructions of a thread, or in nanoseconds of simulated time. Two runs of a
//! single-threaded program that does the same work have the same samples.

use std::collections::{BTreeMap, HashMap};

use longma_guest::elf::Architecture;
use longma_guest::host::locks::{Mutex, MutexGuard};
use longma_linux::{Process, Thread};
use longma_locks::IgnorePoison;

use crate::symbols::Symbols;
use crate::unwind::{Registers, Unwinder};

/// The sampled stacks of a process.
pub(crate) struct Stacks {
    /// The instructions, or the simulated nanoseconds, between two samples of a thread.
    pub period: u64,
    samples: Mutex<Samples>,
}

struct Samples {
    unwinder: Unwinder,
    /// The ids of sampled threads, in the order of their first samples, and when in simulated time they were last sampled.
    threads: Vec<(i32, u64)>,
    /// The weight of the samples by thread and stack.
    counts: HashMap<(usize, Vec<u64>), u64>,
}

/// A sampled stack.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stack {
    /// The number of the thread, from 1.
    pub thread: usize,
    /// The names of the functions, the outermost first.
    pub functions: Vec<String>,
    /// The instructions, or the simulated nanoseconds, that the samples represent.
    pub weight: u64,
}

/// A sampled stack by its instructions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AddressStack {
    /// The number of the thread, from 1.
    pub thread: usize,
    /// The guest addresses of the sampled instruction and, outwards, within the callers' call instructions.
    pub addresses: Vec<u64>,
    /// The instructions, or the simulated nanoseconds, that the samples represent.
    pub weight: u64,
}

impl Stacks {
    pub fn new(architecture: Architecture, period: u64) -> Self {
        let (threads, counts) = (Vec::new(), HashMap::new());
        Self {
            period,
            samples: Mutex::new(Samples { unwinder: Unwinder::new(architecture), threads, counts }),
        }
    }

    fn samples(&self) -> MutexGuard<'_, Samples> {
        self.samples.lock().ignore_poison()
    }

    /// Adds the sample of a thread that has executed the instructions of one sampling interval.
    pub fn add(&self, process: &Process, thread: &Thread, registers: Registers) {
        let samples = &mut *self.samples();
        let number = samples.thread(thread.tid());
        samples.add(process, number, registers, self.period);
    }

    /// Adds the sample of a thread at a simulated time, if it is due. `registers` reads the thread's registers.
    pub fn add_at(
        &self,
        process: &Process,
        thread: &Thread,
        now_ns: u64,
        registers: impl FnOnce() -> Option<Registers>,
    ) {
        let samples = &mut *self.samples();
        let number = samples.thread(thread.tid());
        let last = &mut samples.threads[number].1;
        let weight = now_ns.saturating_sub(*last);
        if weight < self.period {
            return;
        }
        *last = now_ns;
        if let Some(registers) = registers() {
            samples.add(process, number, registers, weight);
        }
    }

    /// All stacks by their instructions.
    pub fn by_address(&self) -> Vec<AddressStack> {
        let samples = self.samples();
        let stack = |((thread, addresses), weight): (&(usize, Vec<u64>), &u64)| {
            // The callers' addresses are those after their calls.
            let addresses = addresses.iter().enumerate().map(|(at, pc)| pc - u64::from(at > 0)).collect();
            AddressStack { thread: thread + 1, addresses, weight: *weight }
        };
        let mut stacks: Vec<_> = samples.counts.iter().map(stack).collect();
        stacks.sort();
        stacks
    }

    /// All stacks, with the functions that `symbols` describes.
    pub fn named(&self, symbols: &Symbols) -> Vec<Stack> {
        let mut named: BTreeMap<(usize, Vec<String>), u64> = BTreeMap::new();
        for stack in self.by_address() {
            let functions = stack.addresses.iter().rev().map(|pc| symbols.find(*pc).function).collect();
            *named.entry((stack.thread, functions)).or_default() += stack.weight;
        }
        named.into_iter().map(|((thread, functions), weight)| Stack { thread, functions, weight }).collect()
    }
}

impl Samples {
    /// The number of a thread, from 0.
    fn thread(&mut self, id: i32) -> usize {
        self.threads.iter().position(|(known, _)| *known == id).unwrap_or_else(|| {
            self.threads.push((id, 0));
            self.threads.len() - 1
        })
    }

    fn add(&mut self, process: &Process, thread: usize, registers: Registers, weight: u64) {
        let stack = self.unwinder.stack(process, registers);
        *self.counts.entry((thread, stack)).or_default() += weight;
    }
}
