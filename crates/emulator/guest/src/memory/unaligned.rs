//! Atomic accesses at addresses that are not aligned, which x86 permits. Source: Intel SDM, volume 3, section 9.1.2.2.

use longma_loongarch::{Access, Fault};

use super::{GuestMemory, access};

impl GuestMemory {
    /// Like [`Self::compare_exchange`], for `bytes` of 1, 2, 4 or 8 at any address. It is atomic across cache lines and
    /// pages, as the host's locked instructions are.
    ///
    /// # Errors
    /// The address is not mapped or not writable.
    pub fn compare_exchange_unaligned(
        &self,
        address: u64,
        bytes: usize,
        expected: u128,
        new: u128,
    ) -> Result<u128, Fault> {
        let pointer = self.pointer_for(address, bytes as u64, Access::Write)?;
        self.retry(address, bytes as u64, Access::Write, || {
            // SAFETY: `pointer` is in the reservation for `bytes` bytes. Only 16 bytes must be aligned on x86-64.
            unsafe {
                match bytes {
                    1 => access::compare_exchange::<1>(pointer, expected, new),
                    2 => access::compare_exchange::<2>(pointer, expected, new),
                    4 => access::compare_exchange::<4>(pointer, expected, new),
                    _ => access::compare_exchange::<8>(pointer, expected, new),
                }
            }
        })
    }
}
