//! Socket addresses on their way between guest and host.
//! Not their families: all but the local one go through as they are.
//! Source: bind(2), unix(7).

use crate::memory::GuestMemory;
use crate::{Errno, Process};

/// sizeof(struct sockaddr_storage): the kernel takes none that is longer.
pub(super) const LONGEST: usize = 128;

/// A socket address for the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HostAddress {
    bytes: [u8; LONGEST],
    length: u32,
}

impl HostAddress {
    /// Room for one that the host writes; `room` is what the guest has for it.
    pub(super) fn empty(room: u32) -> Self {
        Self { bytes: [0; LONGEST], length: room.min(LONGEST as u32) }
    }

    /// The address at `address`, `None` for a null pointer.
    pub(super) fn read(process: &Process, address: u64, length: u64) -> Result<Option<Self>, Errno> {
        if address == 0 {
            return Ok(None);
        }
        let length = usize::try_from(length as i32).ok().filter(|&length| length <= LONGEST);
        let length = length.ok_or(Errno(libc::EINVAL))?;
        let mut host = Self::empty(length as u32);
        process.memory().read(address, &mut host.bytes[..length])?;
        Ok(Some(host))
    }

    /// The host address of the bytes.
    pub(super) fn pointer(&mut self) -> u64 {
        self.bytes.as_mut_ptr() as u64
    }

    /// The host address of the length, an u32.
    pub(super) fn length_pointer(&mut self) -> u64 {
        &raw mut self.length as u64
    }

    /// The number of bytes the address has, which may be more than there was room for.
    pub(super) fn length(&self) -> u32 {
        self.length
    }

    /// Notes how long the address is that the host wrote.
    pub(super) fn set_length(&mut self, length: u32) {
        self.length = length;
    }

    /// Writes what the host gave: as much as fits into `room` bytes.
    pub(super) fn write(&self, memory: &GuestMemory, address: u64, room: u32) -> Result<(), Errno> {
        let bytes = self.length.min(room).min(LONGEST as u32);
        Ok(memory.write(address, &self.bytes[..bytes as usize])?)
    }
}
