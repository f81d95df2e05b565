//! System management: what a NIC knows of the network that it is on.
//! Not a name service, nor who waits for a connection.
//! Source: VIPL, VipQuerySystemManagementInfo; the layout of the list is that of the Developer's Guide.

use crate::layout::*;
use crate::nic::NICS;
use std::ffi::{c_ulong, c_void};

/// The addresses of NICs that this one knows: `VIP_SMI_AUTODISCOVERY`.
const AUTODISCOVERY: c_ulong = 1;

/// `VIP_AUTODISCOVERY_LIST`.
#[repr(C)]
pub(crate) struct DiscoveryList {
    hops: c_ulong,
    addresses: *const *mut NetAddress,
    /// In: for how many there is room. Out: how many there are.
    count: c_ulong,
}

// SAFETY: the name is VIPL's; nothing else defines it. What callers owe is in the crate's head.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipQuerySystemManagementInfo(nic: Handle, kind: c_ulong, to: *mut c_void) -> Return {
    let Some(object) = NICS.shared(nic) else { return Return::InvalidParameter };
    let list = to.cast::<DiscoveryList>();
    if kind != AUTODISCOVERY || list.is_null() || !list.is_aligned() {
        return Return::InvalidParameter;
    }
    let hosts: Vec<Vec<u8>> =
        object.nic.known_hosts().iter().filter_map(|host| object.host_bytes(host)).collect();
    // SAFETY: a list as the header has it, whose array has as many places as it says, each null or with room for an address.
    unsafe {
        let room = if (*list).addresses.is_null() { 0 } else { (*list).count };
        for (index, host) in hosts.iter().enumerate().take(usize::try_from(room).unwrap_or(usize::MAX)) {
            NetAddress::write((*list).addresses.add(index).read(), host, b"");
        }
        // All of them are on one network with this NIC, behind one switch at most.
        (*list).hops = c_ulong::from(hosts.len() > 1);
        (*list).count = hosts.len() as c_ulong;
    }
    Return::Success
}
