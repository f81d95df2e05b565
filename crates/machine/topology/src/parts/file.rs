//! A machine file: types of parts by name, and the hosts made of them.

use super::*;
use crate::read::{Map, part};

part! {
    /// A machine file: types of parts by name, and the hosts made of them.
    pub struct MachineFile = "machine file" {
        /// Version of the file format: 1.
        format: u32,
        /// Short name: lower-case letters, digits and hyphens.
        name: String,
        /// A one-line description.
        title: String,
        /// Notes for the reader: origin, configuration, omissions.
        description: Option<String>,
        /// Sources of the numbers, by the key used in `source` and `source_of`.
        sources: Map<Source>,
        /// Types of cores.
        cores: Map<Core>,
        /// Types of caches.
        caches: Map<Cache>,
        /// Types of memory controllers.
        memories: Map<Memory>,
        /// Types of chips.
        chips: Map<Chip>,
        /// Types of devices.
        devices: Map<Device>,
        /// The hosts.
        hosts: Vec<Host>,
        /// Switches between hosts.
        switches: Vec<Switch>,
        /// Cables between devices and switches.
        cables: Vec<Cable>,
    }
}

impl MachineFile {
    /// The parts as a machine file, with every default written out.
    pub fn to_toml(&self) -> String {
        // Serializing plain data with string keys into TOML cannot fail.
        toml::to_string(self).expect("parts are plain data")
    }
}
