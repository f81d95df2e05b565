//! Makes the access routines' recovery known to the host's fault handling.
//! Not that handling itself.
//! Source: sigaction(2).

use crate::host::faults;

use super::access::recover;

/// Installs the handler; later calls do nothing.
pub(super) fn install_recovery() {
    faults::install();
    faults::add_recovery(recover);
}
