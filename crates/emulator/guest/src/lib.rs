//! What a guest program needs of this host, whatever kernel it thinks it has: memory and the ELF files that come into it, faults, signals,
//! calls that lose none, locks that survive a fork.
//! Not a process and not its system calls: those are `longma-linux`'s. Nor what executes it.

pub mod elf;
mod errno;
pub mod host;
mod memory;
pub mod words;

pub use errno::Errno;
pub use memory::{
    AddressSpace, Backing, GuestMemory, HOST_PAGE_BYTES, MapRequest, Mapping, Origin, PAGE_BYTES, Placement,
    Protection, Window, Written, host_address, page_down, page_up,
};
