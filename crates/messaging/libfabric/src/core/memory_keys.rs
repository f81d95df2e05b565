//! Memory regions that peers may access, by their keys.

use super::buffer::Buffer;
use super::error::Failure;
use crate::abi::constants::ENOKEY;
use longma_locks::IgnorePoison;
use std::collections::HashMap;
use std::sync::Mutex;

/// A memory region.
#[derive(Clone, Copy)]
pub(crate) struct Region {
    pub(crate) buffer: Buffer,
    /// The remote address of the first byte, as peers give it.
    pub(crate) base: u64,
    /// The accesses that are permitted: `REMOTE_READ`, `REMOTE_WRITE`.
    pub(crate) access: u64,
}

#[derive(Default)]
struct Contents {
    regions: HashMap<u64, Region>,
    next: u64,
}

/// The memory regions of a domain.
#[derive(Default)]
pub(crate) struct MemoryKeys {
    contents: Mutex<Contents>,
}

impl MemoryKeys {
    /// Adds a region with the requested key, or with a new one. Returns the key.
    ///
    /// # Errors
    /// `ENOKEY` if the key is in use.
    pub(crate) fn insert(&self, key: Option<u64>, region: Region) -> Result<u64, i32> {
        let mut contents = self.contents.lock().ignore_poison();
        let key = match key {
            Some(key) if contents.regions.contains_key(&key) => return Err(ENOKEY),
            Some(key) => key,
            None => {
                contents.next += 1;
                contents.next
            }
        };
        contents.regions.insert(key, region);
        Ok(key)
    }

    /// Removes a region.
    pub(crate) fn remove(&self, key: u64) {
        self.contents.lock().ignore_poison().regions.remove(&key);
    }

    /// The memory that a peer may access.
    ///
    /// # Errors
    /// If there is no such region, it does not permit the access, or the range is not in it.
    pub(crate) fn find(&self, key: u64, address: u64, length: usize, access: u64) -> Result<Buffer, Failure> {
        let contents = self.contents.lock().ignore_poison();
        let region = contents.regions.get(&key).ok_or(Failure::NO_ACCESS)?;
        let offset = address.checked_sub(region.base).and_then(|offset| usize::try_from(offset).ok());
        let offset = offset.ok_or(Failure::NO_ACCESS)?;
        let is_inside = offset.checked_add(length).is_some_and(|end| end <= region.buffer.len());
        if region.access & access != access || !is_inside {
            return Err(Failure::NO_ACCESS);
        }
        Ok(region.buffer.part(offset, length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::constants::{REMOTE_READ, REMOTE_WRITE};

    #[test]
    fn peers_reach_only_what_a_region_permits() {
        let keys = MemoryKeys::default();
        let mut memory = [0u8; 64];
        // SAFETY: the memory outlives the region.
        let buffer = unsafe { Buffer::new(memory.as_mut_ptr(), 64) };
        let key = keys.insert(Some(9), Region { buffer, base: 1000, access: REMOTE_READ }).unwrap();
        assert_eq!(keys.insert(Some(9), Region { buffer, base: 0, access: 0 }), Err(ENOKEY));
        let length = |address, length, access| keys.find(key, address, length, access).map(|part| part.len());
        assert_eq!(length(1000, 64, REMOTE_READ), Ok(64));
        assert_eq!(length(1063, 1, REMOTE_READ), Ok(1));
        for (address, bytes, access) in [
            (999, 1, REMOTE_READ),
            (1000, 65, REMOTE_READ),
            (1064, 1, REMOTE_READ),
            (u64::MAX, 2, REMOTE_READ),
            (1000, usize::MAX, REMOTE_READ),
            (1000, 1, REMOTE_WRITE),
        ] {
            assert_eq!(length(address, bytes, access), Err(Failure::NO_ACCESS), "{address} {bytes}");
        }
        keys.remove(key);
        assert_eq!(length(1000, 1, REMOTE_READ), Err(Failure::NO_ACCESS));
    }
}
