//! Directory listings, sorted by name, so that the guest sees the same order on every file system.

use std::fs::File;
use std::mem::MaybeUninit;

use rustix::fs::{FileType, RawDir};
use rustix::io::Errno;

/// An entry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// The name.
    pub name: Vec<u8>,
    /// The number of the inode.
    pub inode: u64,
    /// The type of file, as in `d_type` of getdents64(2).
    pub kind: u8,
}

impl Entry {
    /// The bytes of memory that it takes.
    fn bytes(&self) -> usize {
        size_of::<Self>() + self.name.len()
    }
}

/// The entries of a folder at one time.
#[derive(Debug, Default)]
pub struct Listing {
    /// Sorted by name. The offset of an entry in the protocol is its index plus one.
    pub entries: Vec<Entry>,
    /// The bytes of memory that the entries take.
    pub bytes: usize,
}

impl Listing {
    /// Reads an open folder from its start.
    ///
    /// # Errors
    /// ENOMEM: the entries take more than `max_bytes` bytes. The host can refuse.
    pub fn read(folder: &File, max_bytes: usize) -> Result<Self, Errno> {
        rustix::fs::seek(folder, rustix::fs::SeekFrom::Start(0))?;
        let mut buffer = vec![MaybeUninit::uninit(); 1 << 16];
        let mut raw = RawDir::new(folder, &mut buffer);
        let mut listing = Self::default();
        while let Some(entry) = raw.next() {
            let entry = entry?;
            let kind = kind_number(entry.file_type());
            let entry = Entry { name: entry.file_name().to_bytes().to_vec(), inode: entry.ino(), kind };
            listing.bytes += entry.bytes();
            if listing.bytes > max_bytes {
                return Err(Errno::NOMEM);
            }
            listing.entries.push(entry);
        }
        listing.entries.sort();
        Ok(listing)
    }
}

/// The number of a kind in a directory entry: the bits of the mode. Source: readdir(3).
fn kind_number(kind: FileType) -> u8 {
    match kind {
        FileType::Unknown => 0,
        kind => (kind.as_raw_mode() >> 12) as u8,
    }
}
