//! The error for a machine whose memory system cannot be modelled. `longma_topology` has already checked that the
//! machine file is valid.

/// A machine whose memory system cannot be modelled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// The host number is out of range.
    #[error("machine `{machine}` has {hosts} hosts, so there is no host {host}: number them from 0")]
    NoHost {
        /// The machine's name.
        machine: String,
        /// Number of hosts in the machine.
        hosts: usize,
        /// The requested host number.
        host: usize,
    },
    /// No node of the host has a memory controller.
    #[error("host `{host}` has no memory: give one of its chips' nodes a `memory`")]
    NoMemory {
        /// The host's name.
        host: String,
    },
    /// A size, rate or structure outside the range of the model.
    #[error("{what}: {help}")]
    Impossible {
        /// The problem and its location.
        what: String,
        /// How to correct it.
        help: String,
    },
}

/// Returns host number `host` of `machine`.
///
/// # Errors
/// If there is no such host.
pub(crate) fn host_of(
    machine: &longma_topology::Machine,
    host: usize,
) -> Result<&longma_topology::HostInstance, BuildError> {
    let hosts = &machine.layout().hosts;
    hosts.get(host).ok_or_else(|| BuildError::NoHost {
        machine: machine.name.clone(),
        hosts: hosts.len(),
        host,
    })
}
