//! Makes the access routines' recovery known to the host's fault handling.
//! Not that handling itself.
//! Source: sigaction(2).

use crate::host::faults;

use super::{access, write_key};

/// Installs the handler; later calls do nothing.
pub(super) fn install_recovery() {
    faults::install();
    // First who may read at all: what an access routine meets there is no fault.
    faults::add_recovery(write_key::recover);
    faults::add_recovery(access::recover);
}
