//! Why a machine's memory cannot be modelled.
//! Not what is wrong with a machine file: `longma_topology` checks that.

/// A machine whose memory cannot be modelled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// The machine has fewer hosts.
    #[error("machine `{machine}` has {hosts} hosts, so there is no host {host}: number them from 0")]
    NoHost {
        /// The machine's name.
        machine: String,
        /// Hosts it has.
        hosts: usize,
        /// The host asked for.
        host: usize,
    },
    /// No node of the host has a memory controller.
    #[error("host `{host}` has no memory: give one of its chips' nodes a `memory`")]
    NoMemory {
        /// The host's name.
        host: String,
    },
    /// A size or rate that no model can work with.
    #[error("{what}: {help}")]
    Impossible {
        /// What is wrong, and where.
        what: String,
        /// What to do.
        help: String,
    },
}

/// The host numbered `host` of `machine`.
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
