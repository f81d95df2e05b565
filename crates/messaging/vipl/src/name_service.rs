//! The name service: names of this host, and host names that a NIC accepts in addresses. It does not query DNS itself.
//!
//! Source: VIPL, name service.

use crate::layout::*;
use crate::nic::{NICS, NicObject};
use std::ffi::{CStr, c_char, c_ulong, c_void};

// SAFETY: the symbol is VIPL's and is defined only here. The crate documentation states the caller's obligations.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipNSInit(nic: Handle, _information: *mut c_void) -> Return {
    if NICS.shared(nic).is_none() { Return::InvalidParameter } else { Return::Success }
}

// SAFETY: the symbol is VIPL's and is defined only here. The crate documentation states the caller's obligations.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipNSShutdown(nic: Handle) -> Return {
    if NICS.shared(nic).is_none() { Return::InvalidParameter } else { Return::Success }
}

/// Whether the NIC reaches other hosts by name.
fn is_network(object: &NicObject) -> bool {
    matches!(object.nic.attributes().name.split(':').next(), Some("udp" | "af_xdp"))
}

fn own_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_string()
}

// SAFETY: the symbol is VIPL's and is defined only here. The crate documentation states the caller's obligations.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipNSGetHostByName(
    nic: Handle,
    name: *const c_char,
    address: *mut NetAddress,
    index: c_ulong,
) -> Return {
    let Some(object) = NICS.shared(nic) else { return Return::InvalidParameter };
    if name.is_null() || address.is_null() {
        return Return::InvalidParameter;
    }
    // SAFETY: the name is a C string, as the header requires.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    let is_own = name == "localhost" || name == "local" || name == own_name();
    // A name is the host part of an address, in the format of the NIC; for UDP, a host name and a port.
    let asked = if is_own { b"" } else { name.as_bytes() };
    let found = object.nic.host(asked).ok().filter(|_| index == 0 && (is_own || is_network(&object)));
    let Some(host) = found.and_then(|host| object.host_bytes(&host)) else { return Return::ErrorNameService };
    // SAFETY: writable memory of the caller; the host has the length of all hosts of this NIC.
    unsafe { NetAddress::write(address, &host, b"") };
    Return::Success
}

// SAFETY: the symbol is VIPL's and is defined only here. The crate documentation states the caller's obligations.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipNSGetHostByAddr(
    nic: Handle,
    address: *const NetAddress,
    name: *mut c_char,
    length: *mut c_ulong,
) -> Return {
    // SAFETY: see the crate documentation.
    let (object, address) = unsafe { (NICS.shared(nic), NetAddress::read(address)) };
    let (Some(object), Some(address)) = (object, address) else { return Return::InvalidParameter };
    if name.is_null() || length.is_null() {
        return Return::InvalidParameter;
    }
    let is_own = address.host.is_empty() || address.host == object.nic.attributes().local_address;
    let own = match is_own {
        true => own_name(),
        false if is_network(&object) => match object.nic.host(&address.host) {
            Ok(host) => String::from_utf8_lossy(&host).into_owned(),
            Err(_) => return Return::ErrorNameService,
        },
        false => return Return::ErrorNameService,
    };
    // SAFETY: the length is the size of the caller's buffer.
    unsafe {
        let capacity = length.read() as usize;
        length.write(own.len() as c_ulong + 1);
        if capacity <= own.len() {
            return Return::ErrorResource;
        }
        name.copy_from_nonoverlapping(own.as_ptr().cast(), own.len());
        name.add(own.len()).write(0);
    }
    Return::Success
}
