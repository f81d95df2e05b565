//! Host services for an emulated program on x86-64 Linux: guest memory, ELF loading, fault and signal handling,
//! interruptible system calls, and locks that are safe across `fork`.

pub mod elf;
mod errno;
pub mod host;
mod memory;
pub mod script;
pub mod words;

pub use errno::Errno;
pub use memory::{
    AddressSpace, Backing, GuestMemory, HOST_PAGE_BYTES, MapRequest, Mapping, Marks, Origin, PAGE_BYTES,
    Placement, Protection, Window, Written, host_address, page_down, page_up,
};
