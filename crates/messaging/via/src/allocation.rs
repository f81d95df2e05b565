//! Options of memory allocation.
//!
//! Source: madvise(2).

use crate::error::Error;
use crate::provider::Memory;
use std::io;

/// How memory is allocated. By default, the kernel provides each page of 4 KiB at the first access to it. For large
/// messages, this takes longer than copying them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AllocationOptions {
    /// Provide all pages at once, so that no later access faults in this process.
    pub prefault: bool,
    /// Use huge pages where the kernel permits them for this memory; for shared memory
    /// `/sys/kernel/mm/transparent_hugepage/shmem_enabled` must be `advise` or `always`.
    pub huge_pages: bool,
}

impl AllocationOptions {
    /// Applies the options to new memory.
    ///
    /// # Errors
    /// If the system has no memory for the pages.
    pub(crate) fn apply(self, memory: &dyn Memory) -> Result<(), Error> {
        let advise = |advice| {
            // SAFETY: the advice changes neither the contents nor the validity of the memory, which `memory` keeps
            // mapped.
            let status = unsafe { libc::madvise(memory.base().cast(), memory.length(), advice) };
            if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
        };
        if self.huge_pages {
            // A kernel without huge pages uses small ones.
            let _ = advise(libc::MADV_HUGEPAGE);
        }
        if self.prefault {
            match advise(libc::MADV_POPULATE_WRITE) {
                // Before Linux 5.14: pages are provided at the first access, as without the option.
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
                outcome => {
                    outcome.map_err(|source| Error::system("providing the pages of memory", source))?
                }
            }
        }
        Ok(())
    }
}
