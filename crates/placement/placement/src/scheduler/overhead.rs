//! Memory that a virtual machine takes besides its guest memory: the emulator's heap, stacks and device buffers.

use serde::{Deserialize, Serialize};

/// Overhead of a virtual machine in MiB of ordinary pages, also if its guest memory is in huge pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Overhead {
    /// For every virtual machine.
    pub fixed_mib: u32,
    /// For each virtual CPU.
    pub vcpu_mib: u32,
}

impl Overhead {
    /// Overhead of a virtual machine with this number of virtual CPUs, in MiB.
    pub fn mib(self, vcpus: u32) -> u64 {
        u64::from(self.fixed_mib) + u64::from(self.vcpu_mib) * u64::from(vcpus)
    }
}
