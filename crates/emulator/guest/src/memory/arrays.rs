//! Reads and writes small fixed-size structures in guest memory as byte arrays.

use longma_loongarch::Fault;

use super::GuestMemory;

impl GuestMemory {
    /// Reads `N` bytes at `address`.
    ///
    /// # Errors
    /// A byte is not readable.
    pub fn read_array<const N: usize>(&self, address: u64) -> Result<[u8; N], Fault> {
        let mut bytes = [0; N];
        self.read(address, &mut bytes)?;
        Ok(bytes)
    }

    /// Reads `N` bytes at `address`; `None` for a null pointer.
    ///
    /// # Errors
    /// A byte is not readable.
    pub fn read_optional<const N: usize>(&self, address: u64) -> Result<Option<[u8; N]>, Fault> {
        if address == 0 { Ok(None) } else { self.read_array(address).map(Some) }
    }

    /// Writes `bytes` at `address` unless it is a null pointer.
    ///
    /// # Errors
    /// A byte is not writable; the bytes before it have been written.
    pub fn write_optional(&self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        if address == 0 { Ok(()) } else { self.write(address, bytes) }
    }
}

/// The host address of an optional copy; 0 if it is absent.
pub fn host_address<const N: usize>(copy: &Option<[u8; N]>) -> u64 {
    copy.as_ref().map_or(0, |bytes| bytes.as_ptr() as u64)
}
