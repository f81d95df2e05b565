//! Registers the fault recoveries of guest memory accesses.

use crate::host::faults;

use super::{access, write_key};

/// Installs the handlers. Further calls do nothing.
pub(super) fn install_recovery() {
    faults::install();
    // Protection keys first: a read refused by a key is not a guest fault, even in an access routine.
    faults::add_recovery(write_key::recover);
    faults::add_recovery(access::recover);
}
