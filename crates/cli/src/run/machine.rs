//! Reads the machine given to `longma run`. `longma_runner::ObservedMachine` derives the program's view of it.

use longma_lab::{EditError, MachineEdit, open_machine};
use longma_runner::ObservedMachine;
use longma_topology::{Machine, OpenError};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::failure::Failure;

/// Machine of simulated runs without --machine.
pub const DEFAULT: &str = "loongson-3a5000";

/// Reads a machine by name or file and gives some keys other values.
///
/// # Errors
/// Fails if it does not exist, its file has errors, or it cannot have these values.
pub fn read(name: &str, edits: &[MachineEdit]) -> Result<Machine, Failure> {
    open_machine(name, edits).map_err(|error| {
        let advice = match &error {
            EditError::Open(OpenError::Invalid(_)) => {
                format!("`longma machine check {name}` shows all problems")
            }
            _ => String::new(),
        };
        Failure::own(&error.to_string(), &advice)
    })
}

/// The part of the machine's first host that a program sees.
///
/// # Errors
/// Fails if the cores have another instruction set and the run is not simulated.
pub fn observed_machine(machine: &Machine, simulates: bool) -> Result<ObservedMachine, Failure> {
    ObservedMachine::of(machine, simulates).map_err(|error| {
        Failure::own(
            &error.to_string(),
            "give a machine with LoongArch64 cores, such as `--machine loongson-3a5000`; or time the program on these cores with --level timing",
        )
    })
}

/// Restricts the program to as many host processors as its machine has cores.
pub fn restrict_cores(seen: &ObservedMachine) {
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let mut kept = CpuSet::new();
    (0..CpuSet::MAX_CPU)
        .filter(|&processor| allowed.is_set(processor))
        .take(seen.cores)
        .for_each(|processor| kept.set(processor));
    // Ignore errors: the program then sees more cores, but runs.
    let _ = sched_setaffinity(None, &kept);
}
