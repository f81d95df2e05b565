//! The environment of instructions: process memory, the stable counter and the configuration words. Source: LoongArch
//! Reference Manual, volume 1, section 2.2.10 (RDTIME, CPUCFG).

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use longma_guest::GuestMemory;
use longma_loongarch::{Access, Environment, Fault, FaultCause, Scalar};

/// The frequency of the stable counter of the 3A5000 and related processors, as in CPUCFG words 4 and 5.
pub const STABLE_COUNTER_HZ: u64 = 100_000_000;

/// The configuration words that `cpucfg` reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigurationWords(pub Vec<u32>);

impl Default for ConfigurationWords {
    /// The words of an LA464 core, measured on a 3C5000 (jiegec/la-inst), without word 2's virtualisation bits, which
    /// are useless to a user program.
    fn default() -> Self {
        let mut words = vec![0; 0x15];
        words[0x0] = 0x0014_c011; // PRID: LA464
        words[0x1] = 0x03f2_f2fe; // LA64, 48-bit addresses, unaligned access, CRC
        words[0x2] = 0x007c_c3c7; // FP, LSX, LASX, complex, crypto, LBT, LSPW, LAM
        words[0x3] = 0x0000_fcff; // store fill buffer, LL/SC behaviour, cache maintenance
        words[0x4] = STABLE_COUNTER_HZ as u32;
        words[0x5] = 0x0001_0001; // multiplied and divided by one
        Self(words)
    }
}

/// Simulated time, which `rdtime` reads. The simulator sets it, and any number of cores read it.
#[derive(Clone, Debug, Default)]
pub struct SimulatedClock(Arc<AtomicU64>);

impl SimulatedClock {
    /// Sets the time in picoseconds since the start of the simulation.
    pub fn set_ps(&self, ps: u64) {
        self.0.store(ps, Ordering::Relaxed);
    }

    /// The latest time set, in picoseconds.
    pub fn ps(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The source of the stable counter.
#[derive(Clone)]
enum Clock {
    /// The host's monotonic clock, which is the same for all cores and processes, like the stable counters of a
    /// machine.
    Host,
    Simulated(SimulatedClock),
}

/// The environment of one process's instructions.
#[derive(Clone)]
pub struct Guest {
    memory: GuestMemory,
    words: Arc<ConfigurationWords>,
    clock: Clock,
    permits_private: bool,
}

impl Guest {
    /// Creates an environment that reads the host's clock.
    pub fn new(memory: GuestMemory, words: ConfigurationWords) -> Self {
        Self { memory, words: Arc::new(words), clock: Clock::Host, permits_private: false }
    }

    /// Sets whether the private instructions of translated code execute.
    pub(crate) fn permit_private(&mut self, is_permitted: bool) {
        self.permits_private = is_permitted;
    }

    /// Makes the stable counter read simulated time.
    pub(crate) fn set_clock(&mut self, clock: SimulatedClock) {
        self.clock = Clock::Simulated(clock);
    }

    /// The process's memory.
    pub fn memory(&self) -> &GuestMemory {
        &self.memory
    }
}

impl Environment for Guest {
    fn load<T: Scalar>(&self, address: u64) -> Result<T, Fault> {
        self.memory.load(address)
    }

    fn store<T: Scalar>(&self, address: u64, value: T) -> Result<(), Fault> {
        self.memory.store(address, value)
    }

    fn compare_exchange<T: Scalar>(&self, address: u64, expected: T, new: T) -> Result<T, Fault> {
        self.memory.compare_exchange(address, expected, new)
    }

    fn fetch(&self, address: u64) -> Result<u32, Fault> {
        self.memory.fetch(address)
    }

    fn stable_counter(&self) -> u64 {
        match &self.clock {
            Clock::Host => host_ns() / (1_000_000_000 / STABLE_COUNTER_HZ),
            Clock::Simulated(clock) => clock.ps() / (1_000_000_000_000 / STABLE_COUNTER_HZ),
        }
    }

    fn cpucfg(&self, index: u32) -> u32 {
        self.words.0.get(index as usize).copied().unwrap_or(0)
    }

    fn permits_private(&self) -> bool {
        self.permits_private
    }
}

/// CLOCK_MONOTONIC in nanoseconds.
fn host_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is valid for writes. The clock exists on all Linux systems.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// An environment without memory, for instructions that only compute.
pub(crate) struct NoEnvironment;

impl NoEnvironment {
    fn fault<T>(address: u64, access: Access) -> Result<T, Fault> {
        Err(Fault { address, access, cause: FaultCause::Unmapped })
    }
}

impl Environment for NoEnvironment {
    fn load<T: Scalar>(&self, address: u64) -> Result<T, Fault> {
        Self::fault(address, Access::Read)
    }

    fn store<T: Scalar>(&self, address: u64, _value: T) -> Result<(), Fault> {
        Self::fault(address, Access::Write)
    }

    fn compare_exchange<T: Scalar>(&self, address: u64, _expected: T, _new: T) -> Result<T, Fault> {
        Self::fault(address, Access::Write)
    }

    fn fetch(&self, address: u64) -> Result<u32, Fault> {
        Self::fault(address, Access::Execute)
    }

    fn stable_counter(&self) -> u64 {
        0
    }

    fn cpucfg(&self, _index: u32) -> u32 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stable_counters_of_all_cores_show_the_same_time() {
        let memory = GuestMemory::reserve().expect("the host has addresses");
        let first = Guest::new(memory.clone(), ConfigurationWords::default());
        let start = first.stable_counter();
        while first.stable_counter() < start + 100_000 {
            std::hint::spin_loop();
        }
        let second = Guest::new(memory, ConfigurationWords::default());
        let (before, between, after) =
            (first.stable_counter(), second.stable_counter(), first.stable_counter());
        assert!(before <= between && between <= after, "{before} {between} {after}");
    }
}
