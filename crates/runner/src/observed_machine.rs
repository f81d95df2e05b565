//! The features of a machine file that a program can observe: CPU features and the number of cores. Source: LoongArch
//! Reference Manual, volume 1, section 2.2.10.5 (CPUCFG); Linux arch/loongarch hwcap.h.

use longma_core::ConfigurationWords;
use longma_topology::{Machine, parts::Isa};

/// Extension name in machine files, bits of configuration word 2, bits of AT_HWCAP.
const EXTENSIONS: [(&str, u32, u64); 3] =
    [("lsx", 1 << 6, 1 << 4), ("lasx", LASX, 1 << 5), ("lbt", 0b111 << 18, 0b111 << 10)];
/// The bit of configuration word 2 for 256-bit vectors.
const LASX: u32 = 1 << 7;
/// CPUCFG, LAM, UAL, FPU and CRC32, which every LoongArch64 core has.
const BASE_CAPABILITIES: u64 = 0b100_1111;

/// The base features and all extensions.
const ALL_CAPABILITIES: u64 = BASE_CAPABILITIES | 1 << 4 | 1 << 5 | 0b111 << 10;

/// The machine as a program observes it.
#[derive(Debug, PartialEq, Eq)]
pub struct ObservedMachine {
    /// The result of `cpucfg`.
    pub words: ConfigurationWords,
    /// The value of AT_HWCAP.
    pub capabilities: u64,
    /// The number of cores.
    pub cores: usize,
}

/// The machine's cores do not execute LoongArch code.
#[derive(Debug, thiserror::Error)]
#[error("the machine {machine} has {isa} cores, and programs for LoongArch64 need LoongArch64 cores")]
pub struct UnsupportedCores {
    machine: String,
    isa: &'static str,
}

impl ObservedMachine {
    /// The machine's first host as a program observes it. A simulated run accepts cores of any instruction set, and
    /// models their timing as if they executed LoongArch.
    ///
    /// # Errors
    /// The cores have another instruction set and the run is not simulated.
    pub fn of(machine: &Machine, simulates: bool) -> Result<Self, UnsupportedCores> {
        let cores = machine.layout().hosts.first().map_or(&[][..], |host| &host.cores);
        let first = cores.first().and_then(|core| machine.cores.get(&core.core));
        match first {
            Some(core) if core.isa == Isa::LoongArch64 => Ok(Self::with(&core.extensions, cores.len())),
            Some(_) if simulates => Ok(Self {
                words: ConfigurationWords::default(),
                capabilities: ALL_CAPABILITIES,
                cores: cores.len(),
            }),
            _ => Err(UnsupportedCores {
                machine: machine.name.clone(),
                isa: first.map_or("no", |core| core.isa.word()),
            }),
        }
    }

    /// Whether its cores have 256-bit vectors.
    pub fn has_lasx(&self) -> bool {
        self.words.0[2] & LASX != 0
    }

    fn with(extensions: &[String], cores: usize) -> Self {
        let mut words = ConfigurationWords::default();
        let mut capabilities = BASE_CAPABILITIES;
        for (name, word, capability) in EXTENSIONS {
            if extensions.iter().any(|has| has == name) {
                capabilities |= capability;
            } else {
                words.0[2] &= !word;
            }
        }
        Self { words, capabilities, cores }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_has_the_features_that_its_machine_file_names() {
        let all = ["lsx", "lasx", "lbt"].map(String::from);
        assert_eq!(ObservedMachine::with(&all, 4).words, ConfigurationWords::default());
        let plain = ObservedMachine::with(&[], 2);
        assert_eq!(plain.words.0[2] & (0b11 << 6 | 0b111 << 18), 0);
        assert_eq!((plain.capabilities, plain.cores), (BASE_CAPABILITIES, 2));
        let lsx = ObservedMachine::with(&all[..1], 1);
        assert_eq!(lsx.words.0[2] >> 6 & 3, 1);
    }

    #[test]
    fn a_machine_of_another_architecture_is_refused() {
        let error = ObservedMachine::of(&Machine::open("sandybridge-2x6").unwrap(), false).unwrap_err();
        assert!(error.to_string().contains("x86-64"), "{error}");
        assert_eq!(ObservedMachine::of(&Machine::open("loongson-3a5000").unwrap(), false).unwrap().cores, 4);
    }

    #[test]
    fn a_simulated_run_accepts_any_architecture() {
        assert_eq!(ObservedMachine::of(&Machine::open("sandybridge-2x6").unwrap(), true).unwrap().cores, 12);
    }
}
