//! The entry point, and the description of the provider.

use super::{fabric, info};
use crate::abi::constants::INTERFACE_VERSION;
use crate::abi::{Context, Provider};

/// The version of the provider, as `FI_VERSION(0, 1)`.
pub(super) const PROVIDER_VERSION: u32 = 1;

struct Shared(std::cell::UnsafeCell<Provider>);

// SAFETY: this library does not access the structure after it is initialized; libfabric serializes its own accesses.
unsafe impl Sync for Shared {}

static PROVIDER: Shared = Shared(std::cell::UnsafeCell::new(Provider {
    version: PROVIDER_VERSION,
    fi_version: INTERFACE_VERSION,
    context: Context { internal: [std::ptr::null_mut(); 4] },
    name: c"longma".as_ptr(),
    getinfo: info::getinfo,
    fabric: fabric::open,
    cleanup,
}));

unsafe extern "C" fn cleanup() {}

/// Called by libfabric when it loads the library. libfabric writes to the structure's `context`.
#[unsafe(no_mangle)]
pub extern "C" fn fi_prov_ini() -> *mut std::ffi::c_void {
    PROVIDER.0.get().cast()
}
