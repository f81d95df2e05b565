//! Guest memory: one host reservation that contains all guest addresses, and the map of its mappings. Source: mmap(2),
//! mremap(2), LoongArch kernel with 16 KiB pages.

mod access;
mod address_space;
mod arrays;
mod bitmap;
mod code_protection;
mod content_changes;
mod engine_ranges;
mod growth;
mod guards;
mod guest_memory;
mod mapping_budget;
mod mappings;
mod own_code;
mod post_syscall_copy;
mod quota;
mod recovery;
mod request;
mod seals;
mod shared_code;
mod unaligned;
mod write_key;
mod writes;

pub use address_space::AddressSpace;
pub use arrays::host_address;
pub use guest_memory::GuestMemory;
pub use mappings::{Mapping, Marks, Origin, Protection, Window};
pub use request::{Backing, MapRequest, Placement};
pub use writes::Written;

use recovery::install_recovery;

/// The guest's page size in bytes.
pub const PAGE_BYTES: u64 = 16384;

/// The host's page size in bytes.
pub const HOST_PAGE_BYTES: u64 = 4096;

/// Rounds `value` up to a guest page; `None` on overflow.
pub fn page_up(value: u64) -> Option<u64> {
    value.checked_add(PAGE_BYTES - 1).map(page_down)
}

/// Rounds `value` down to a guest page.
pub fn page_down(value: u64) -> u64 {
    value & !(PAGE_BYTES - 1)
}
