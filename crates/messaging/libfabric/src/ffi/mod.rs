//! The functions that libfabric calls. They check arguments, and call `core`.
//!
//! Safety of all functions: pointers are valid as the manual pages require, or null, which is an error. Objects are
//! checked for their class. A panic becomes the error `FI_EOTHER`.

macro_rules! unsupported {
    ($($name:ident($($argument:ty),*) -> $result:ty;)*) => { $(
        unsafe extern "C" fn $name($(_: $argument),*) -> $result { -libc::ENOSYS as $result }
    )* };
}

mod address_vector;
mod atomic;
mod completion_queue;
mod counter;
mod data;
mod domain;
mod endpoint;
mod event_queue;
mod fabric;
mod info;
mod memory_region;
mod message;
mod object;
mod passive_endpoint;
mod provider;
mod remote_memory;
mod tagged;
