//! The name service: the names of this host, which is all that shared memory reaches.
//! Not DNS.
//! Source: VIPL, name service.

use crate::layout::*;
use crate::nic::NicObject;
use longma_via::Address;
use std::ffi::{CStr, c_char, c_ulong, c_void};

// SAFETY: the name is VIPL's; nothing else defines it. What callers owe is in the crate's head.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipNSInit(nic: Handle, _information: *mut c_void) -> Return {
    if nic.is_null() { Return::InvalidParameter } else { Return::Success }
}

// SAFETY: the name is VIPL's; nothing else defines it. What callers owe is in the crate's head.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipNSShutdown(nic: Handle) -> Return {
    if nic.is_null() { Return::InvalidParameter } else { Return::Success }
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
    // SAFETY: as the crate's head says.
    let Some(object) = (unsafe { NicObject::of(nic) }) else { return Return::InvalidParameter };
    if name.is_null() || address.is_null() {
        return Return::InvalidParameter;
    }
    // SAFETY: a name is a C string, as the header says.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    if index > 0 || !(name == "localhost" || name == "local" || name == own_name()) {
        return Return::ErrorNameService;
    }
    // SAFETY: the caller's to fill.
    unsafe { NetAddress::write(address, &Address::new(&object.nic.attributes().local_address, b"")) };
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
    let (object, address) = unsafe { (NicObject::of(nic), NetAddress::read(address)) };
    let (Some(object), Some(address)) = (object, address) else { return Return::InvalidParameter };
    if name.is_null() || length.is_null() {
        return Return::InvalidParameter;
    }
    if !address.host.is_empty() && address.host != object.nic.attributes().local_address {
        return Return::ErrorNameService;
    }
    let own = own_name();
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
