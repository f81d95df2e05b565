//! The machine that `longma run` is given, as far as the program sees it.
//! Not what it sees: `longma_runner::ObservedMachine` reads that from the machine file.

use longma_runner::ObservedMachine;
use longma_topology::{Machine, OpenError};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::failure::Failure;

/// The machine of simulated runs that name none.
pub const DEFAULT: &str = "loongson-3a5000";

/// Reads a machine by name or file.
///
/// # Errors
/// There is none, or its file has errors.
pub fn read(name: &str) -> Result<Machine, Failure> {
    Machine::open(name).map_err(|error| {
        let advice = match &error {
            OpenError::Invalid(_) => format!("`longma machine check {name}` shows all that is wrong with it"),
            _ => String::new(),
        };
        Failure::own(&error.to_string(), &advice)
    })
}

/// What a program sees of the machine's first host.
///
/// # Errors
/// Its cores are of another instruction set, and the run is not simulated.
pub fn seen_of(machine: &Machine, simulates: bool) -> Result<ObservedMachine, Failure> {
    ObservedMachine::of(machine, simulates).map_err(|error| {
        Failure::own(
            &error.to_string(),
            "give a machine with LoongArch64 cores, as `--machine loongson-3a5000`; or time the program on these cores with --level timing",
        )
    })
}

/// Leaves the program no more of the host's processors than its machine has cores.
pub fn restrict_cores(seen: &ObservedMachine) {
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let mut kept = CpuSet::new();
    (0..CpuSet::MAX_CPU)
        .filter(|&processor| allowed.is_set(processor))
        .take(seen.cores)
        .for_each(|processor| kept.set(processor));
    // Without it the program sees more cores, and runs all the same.
    let _ = sched_setaffinity(None, &kept);
}
