//! What a machine file means for a program at the functional level: the core's features and the number of cores.
//! Not modelled here: caches, NUMA nodes, clocks, devices. A program sees at most as many cores as the host gives.
//! Source: LoongArch Reference Manual, volume 1, section 2.2.10.5 (CPUCFG); Linux arch/loongarch hwcap.h.

use longma_node::ConfigurationWords;
use longma_topology::{Machine, OpenError, parts::Isa};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::failure::Failure;

/// (extension in machine files, bits of configuration word 2, bits of AT_HWCAP).
const EXTENSIONS: [(&str, u32, u64); 3] =
    [("lsx", 1 << 6, 1 << 4), ("lasx", 1 << 7, 1 << 5), ("lbt", 0b111 << 18, 0b111 << 10)];
/// CPUCFG, LAM, UAL, FPU, CRC32: what every LoongArch64 core of a machine file has.
const BASE_CAPABILITIES: u64 = 0b100_1111;

/// The base and every extension.
const ALL_CAPABILITIES: u64 = BASE_CAPABILITIES | 1 << 4 | 1 << 5 | 0b111 << 10;

/// What a program sees of its machine.
#[derive(Debug, PartialEq, Eq)]
pub struct Seen {
    /// What `cpucfg` tells.
    pub words: ConfigurationWords,
    /// What AT_HWCAP tells.
    pub capabilities: u64,
    /// The number of cores.
    pub cores: usize,
}

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

/// What a program sees of the machine's first host. A simulated run takes cores of any instruction set: what is modelled is their
/// timing, as if they executed LoongArch.
///
/// # Errors
/// Its cores are of another instruction set, and the run is not simulated.
pub fn seen_of(machine: &Machine, simulates: bool) -> Result<Seen, Failure> {
    let cores = machine.layout().hosts.first().map_or(&[][..], |host| &host.cores);
    let of = cores.first().and_then(|core| machine.cores.get(&core.core));
    match of {
        Some(core) if core.isa == Isa::LoongArch64 => Ok(seen(&core.extensions, cores.len())),
        Some(_) if simulates => Ok(Seen {
            words: ConfigurationWords::default(),
            capabilities: ALL_CAPABILITIES,
            cores: cores.len(),
        }),
        _ => {
            let (name, isa) = (&machine.name, of.map_or("no", |core| core.isa.word()));
            Err(Failure::own(
                &format!(
                    "the machine {name} has {isa} cores, and programs for LoongArch64 need LoongArch64 cores"
                ),
                "give a machine with LoongArch64 cores, as `--machine loongson-3a5000`; or time the program on these cores with --level timing",
            ))
        }
    }
}

fn seen(extensions: &[String], cores: usize) -> Seen {
    let mut words = ConfigurationWords::default();
    let mut capabilities = BASE_CAPABILITIES;
    for (name, word, capability) in EXTENSIONS {
        if extensions.iter().any(|has| has == name) {
            capabilities |= capability;
        } else {
            words.0[2] &= !word;
        }
    }
    Seen { words, capabilities, cores }
}

impl Seen {
    /// Leaves the program no more of the host's processors than its machine has cores.
    pub fn restrict_cores(&self) {
        let Ok(allowed) = sched_getaffinity(None) else { return };
        let mut kept = CpuSet::new();
        (0..CpuSet::MAX_CPU)
            .filter(|&processor| allowed.is_set(processor))
            .take(self.cores)
            .for_each(|processor| kept.set(processor));
        // Without it the program sees more cores, and runs all the same.
        let _ = sched_setaffinity(None, &kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_has_the_features_that_its_machine_file_names() {
        let all = ["lsx", "lasx", "lbt"].map(String::from);
        assert_eq!(seen(&all, 4).words, ConfigurationWords::default());
        let plain = seen(&[], 2);
        assert_eq!(plain.words.0[2] & (0b11 << 6 | 0b111 << 18), 0);
        assert_eq!((plain.capabilities, plain.cores), (BASE_CAPABILITIES, 2));
        let lsx = seen(&all[..1], 1);
        assert_eq!(lsx.words.0[2] >> 6 & 3, 1);
    }

    #[test]
    fn a_machine_of_another_architecture_is_refused() {
        let other = read("sandybridge-2x6").unwrap();
        let failure = seen_of(&other, false).unwrap_err();
        assert!(failure.to_string().contains("x86-64"), "{failure}");
        assert_eq!(seen_of(&read("loongson-3a5000").unwrap(), false).unwrap().cores, 4);
    }

    #[test]
    fn a_simulated_run_takes_the_timing_of_any_architecture() {
        assert_eq!(seen_of(&read("sandybridge-2x6").unwrap(), true).unwrap().cores, 12);
    }
}
