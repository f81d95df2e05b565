//! The name service: the names of this host, and what a NIC that reaches others takes for one of theirs.
//! Not DNS.
//! Source: VIPL, name service.

use crate::layout::*;
use crate::nic::{NICS, NicObject};
use std::ffi::{CStr, c_char, c_ulong, c_void};

// SAFETY: the name is VIPL's; nothing else defines it. What callers owe is in the crate's head.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipNSInit(nic: Handle, _information: *mut c_void) -> Return {
    if NICS.shared(nic).is_none() { Return::InvalidParameter } else { Return::Success }
}

// SAFETY: the name is VIPL's; nothing else defines it. What callers owe is in the crate's head.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipNSShutdown(nic: Handle) -> Return {
    if NICS.shared(nic).is_none() { Return::InvalidParameter } else { Return::Success }
}

/// Whether there are other hosts, with names that the NIC can tell from others.
fn is_network(object: &NicObject) -> bool {
    matches!(object.nic.attributes().name.split(':').next(), Some("udp" | "af_xdp"))
}

fn own_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_string()
}

// SAFETY: the name is VIPL's; nothing else defines it. What callers owe is in the crate's head.
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
    // SAFETY: a name is a C string, as the header says.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    let is_own = name == "localhost" || name == "local" || name == own_name();
    // What a NIC takes for a host of its addresses, it knows by name: where hosts are sockets, a name and a port.
    let asked = if is_own { b"" } else { name.as_bytes() };
    let found = object.nic.host(asked).ok().filter(|_| index == 0 && (is_own || is_network(&object)));
    let Some(host) = found.and_then(|host| object.host_bytes(&host)) else { return Return::ErrorNameService };
    // SAFETY: the caller's to fill; the host is as long as all of this NIC's.
    unsafe { NetAddress::write(address, &host, b"") };
    Return::Success
}

// SAFETY: the name is VIPL's; nothing else defines it. What callers owe is in the crate's head.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipNSGetHostByAddr(
    nic: Handle,
    address: *const NetAddress,
    name: *mut c_char,
    length: *mut c_ulong,
) -> Return {
    // SAFETY: as the crate's head says.
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
    // SAFETY: the length is what the caller's room holds.
    unsafe {
        let room = length.read() as usize;
        length.write(own.len() as c_ulong + 1);
        if room <= own.len() {
            return Return::ErrorResource;
        }
        name.copy_from_nonoverlapping(own.as_ptr().cast(), own.len());
        name.add(own.len()).write(0);
    }
    Return::Success
}
