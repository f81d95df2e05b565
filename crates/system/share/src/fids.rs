//! Fids: the numbers by which the guest refers to files.

use std::collections::BTreeMap;
use std::fs::File;

use rustix::io::Errno;

use crate::folder::Handle;
use crate::listing::Listing;

/// The maximum memory for the listings of all open folders, in bytes.
const MAX_LISTED_BYTES: usize = 64 << 20;

/// A file that the guest has opened.
#[derive(Debug)]
pub enum Opened {
    /// A regular file.
    File(File),
    /// A folder. The listing is read when the guest reads from the start.
    Folder(File, Listing),
}

/// A file that has a fid.
#[derive(Debug)]
pub struct Fid {
    /// The file.
    pub handle: Handle,
    /// The file if it is open.
    pub opened: Option<Opened>,
}

/// All fids of a guest.
#[derive(Debug)]
pub struct Fids {
    fids: BTreeMap<u32, Fid>,
    /// The maximum number of fids, each of which has up to two descriptors.
    max_fids: usize,
    /// The bytes of memory that listings occupy.
    listed_bytes: usize,
}

impl Fids {
    /// Creates an empty table.
    pub fn new(max_fids: usize) -> Self {
        Self { fids: BTreeMap::new(), max_fids, listed_bytes: 0 }
    }

    /// Whether the guest has no fids.
    pub fn is_empty(&self) -> bool {
        self.fids.is_empty()
    }

    /// Ends all fids.
    pub fn clear(&mut self) {
        self.fids.clear();
        self.listed_bytes = 0;
    }

    /// The file of a fid.
    ///
    /// # Errors
    /// EBADF: the guest has no such fid.
    pub fn get(&self, number: u32) -> Result<&Fid, Errno> {
        self.fids.get(&number).ok_or(Errno::BADF)
    }

    /// The file of a fid, mutable.
    ///
    /// # Errors
    /// EBADF: the guest has no such fid.
    pub fn get_mut(&mut self, number: u32) -> Result<&mut Fid, Errno> {
        self.fids.get_mut(&number).ok_or(Errno::BADF)
    }

    /// The handle of a fid's file.
    ///
    /// # Errors
    /// EBADF: the guest has no such fid.
    pub fn handle(&self, number: u32) -> Result<&Handle, Errno> {
        Ok(&self.get(number)?.handle)
    }

    /// The open regular file of a fid.
    ///
    /// # Errors
    /// EBADF: the guest has no such fid, or has not opened it. EISDIR: it is a folder.
    pub fn file(&self, number: u32) -> Result<&File, Errno> {
        match &self.get(number)?.opened {
            Some(Opened::File(file)) => Ok(file),
            Some(Opened::Folder(..)) => Err(Errno::ISDIR),
            None => Err(Errno::BADF),
        }
    }

    /// Adds an unused fid, or replaces the fid `replaced`.
    ///
    /// # Errors
    /// EBADF: the number is in use. EMFILE: there are too many fids.
    pub fn add(&mut self, number: u32, handle: Handle, replaced: Option<u32>) -> Result<(), Errno> {
        if replaced == Some(number) {
            self.remove(number)?;
        } else if self.fids.contains_key(&number) {
            return Err(Errno::BADF);
        } else if self.fids.len() >= self.max_fids {
            return Err(Errno::MFILE);
        }
        self.fids.insert(number, Fid { handle, opened: None });
        Ok(())
    }

    /// Ends a fid.
    ///
    /// # Errors
    /// EBADF: the guest has no such fid.
    pub fn remove(&mut self, number: u32) -> Result<(), Errno> {
        let fid = self.fids.remove(&number).ok_or(Errno::BADF)?;
        if let Some(Opened::Folder(_, listing)) = fid.opened {
            self.listed_bytes -= listing.bytes;
        }
        Ok(())
    }

    /// The entries of a fid's open folder. They are read again if `is_start`.
    ///
    /// # Errors
    /// EBADF: the guest has no such fid, or has not opened it. ENOTDIR: it is not a folder. ENOMEM: there are too many
    /// entries. The host's error if it refuses access.
    pub fn listing(&mut self, number: u32, is_start: bool) -> Result<&Listing, Errno> {
        let fid = self.fids.get_mut(&number).ok_or(Errno::BADF)?;
        match &mut fid.opened {
            Some(Opened::Folder(folder, listing)) => {
                if is_start {
                    self.listed_bytes -= std::mem::take(listing).bytes;
                    *listing = Listing::read(folder, MAX_LISTED_BYTES - self.listed_bytes)?;
                    self.listed_bytes += listing.bytes;
                }
                Ok(listing)
            }
            Some(Opened::File(_)) => Err(Errno::NOTDIR),
            None => Err(Errno::BADF),
        }
    }
}
