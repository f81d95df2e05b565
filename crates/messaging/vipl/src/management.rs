//! System management: the NICs that a NIC knows on its network.
//!
//! Source: VIPL, VipQuerySystemManagementInfo; the layout of the list is from the Developer's Guide.

use crate::layout::*;
use crate::nic::NICS;
use std::ffi::{c_ulong, c_void};

/// Selects the addresses of known NICs (`VIP_SMI_AUTODISCOVERY`).
const AUTODISCOVERY: c_ulong = 1;

/// `VIP_AUTODISCOVERY_LIST`.
#[repr(C)]
pub(crate) struct DiscoveryList {
    hops: c_ulong,
    addresses: *const *mut NetAddress,
    /// In: the capacity of the array. Out: the number of addresses.
    count: c_ulong,
}

// SAFETY: the symbol is VIPL's and is defined only here. The crate documentation states the caller's obligations.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipQuerySystemManagementInfo(nic: Handle, kind: c_ulong, to: *mut c_void) -> Return {
    let Some(object) = NICS.shared(nic) else { return Return::InvalidParameter };
    let list = to.cast::<DiscoveryList>();
    if kind != AUTODISCOVERY || list.is_null() || !list.is_aligned() {
        return Return::InvalidParameter;
    }
    let hosts: Vec<Vec<u8>> =
        object.nic.known_hosts().iter().filter_map(|host| object.host_bytes(host)).collect();
    // SAFETY: the structure is as in the header, and its array has as many elements as it says, each null or with space
    // for an address.
    unsafe {
        let capacity = if (*list).addresses.is_null() { 0 } else { (*list).count };
        for (index, host) in hosts.iter().enumerate().take(usize::try_from(capacity).unwrap_or(usize::MAX)) {
            NetAddress::write((*list).addresses.add(index).read(), host, b"");
        }
        // All of them are on the same network, at most one switch away.
        (*list).hops = c_ulong::from(hosts.len() > 1);
        (*list).count = hosts.len() as c_ulong;
    }
    Return::Success
}
