//! The content of a virtual disk: a host file and the blocks that the guest has written. By default the file never
//! changes; written blocks go to a temporary file that is deleted with the machine.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustc_hash::FxHashSet;

/// Bytes of a sector.
pub const SECTOR: u64 = 512;
/// Bytes of a block, the unit of copy-on-write.
const BLOCK: u64 = 4096;

/// The disk cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// The host refused an operation on the file.
    #[error("disk: {0}")]
    Host(#[from] io::Error),
    /// The length of the file is not supported.
    #[error("disk: the file has {0} bytes, which is not a multiple of {SECTOR}; append zeros")]
    Length(u64),
}

/// A virtual disk with a raw image.
#[derive(Debug)]
pub struct Disk {
    image: File,
    /// The file of written blocks and their numbers; `None` if writes change the image.
    copy: Option<(File, FxHashSet<u64>)>,
    bytes: u64,
}

impl Disk {
    /// Opens a raw image. If `changes_image` is true, writes of the guest change the image.
    ///
    /// # Errors
    /// The host refuses, or the length of the file is not a multiple of 512.
    pub fn open(path: &Path, changes_image: bool) -> Result<Self, DiskError> {
        let image = File::options().read(true).write(changes_image).open(path)?;
        let bytes = image.metadata()?.len();
        if bytes == 0 || !bytes.is_multiple_of(SECTOR) {
            return Err(DiskError::Length(bytes));
        }
        let copy = if changes_image { None } else { Some((tempfile::tempfile()?, FxHashSet::default())) };
        Ok(Self { image, copy, bytes })
    }

    /// The number of sectors of 512 bytes.
    pub fn sectors(&self) -> u64 {
        self.bytes / SECTOR
    }

    /// Whether a range of bytes consists of whole sectors of the disk.
    pub fn contains(&self, start: u64, bytes: u64) -> bool {
        bytes.is_multiple_of(SECTOR) && start.checked_add(bytes).is_some_and(|end| end <= self.bytes)
    }

    /// Reads `bytes` from the offset `start`.
    ///
    /// # Errors
    /// The host refuses.
    pub fn read(&self, start: u64, bytes: &mut [u8]) -> io::Result<()> {
        let Some((copy, written)) = &self.copy else { return self.image.read_exact_at(bytes, start) };
        let mut at = start;
        let mut rest = bytes;
        while !rest.is_empty() {
            let length = rest.len().min((BLOCK - at % BLOCK) as usize);
            let (part, behind) = rest.split_at_mut(length);
            let file = if written.contains(&(at / BLOCK)) { copy } else { &self.image };
            file.read_exact_at(part, at)?;
            (at, rest) = (at + length as u64, behind);
        }
        Ok(())
    }

    /// Writes `bytes` at the offset `start`.
    ///
    /// # Errors
    /// The host refuses.
    pub fn write(&mut self, start: u64, bytes: &[u8]) -> io::Result<()> {
        let Some((copy, written)) = &mut self.copy else { return self.image.write_all_at(bytes, start) };
        let end = start + bytes.len() as u64;
        for block in start / BLOCK..end.div_ceil(BLOCK) {
            if !written.contains(&block) {
                let mut content = vec![0; BLOCK.min(self.bytes - block * BLOCK) as usize];
                self.image.read_exact_at(&mut content, block * BLOCK)?;
                copy.write_all_at(&content, block * BLOCK)?;
                written.insert(block);
            }
        }
        copy.write_all_at(bytes, start)
    }

    /// Makes writes to the image durable. Writes to the temporary file need not be.
    ///
    /// # Errors
    /// The host refuses.
    pub fn flush(&self) -> io::Result<()> {
        if self.copy.is_some() { Ok(()) } else { self.image.sync_data() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(bytes: usize) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().expect("the host has a temporary folder");
        std::fs::write(file.path(), vec![7; bytes]).expect("the file is writable");
        file
    }

    #[test]
    fn writes_are_read_back_and_change_the_image_only_if_that_is_asked_for() {
        for changes_image in [false, true] {
            let file = image(3 * 4096 + 512);
            let mut disk = Disk::open(file.path(), changes_image).expect("it is a disk");
            disk.write(4096 - 512, &[9; 1024]).expect("it is on the disk");
            disk.write(3 * 4096, &[5; 512]).expect("it is on the disk");
            let mut content = vec![0; 3 * 4096 + 512];
            disk.read(0, &mut content).expect("it is on the disk");
            let mut expected = vec![7; 3 * 4096 + 512];
            expected[4096 - 512..4096 + 512].fill(9);
            expected[3 * 4096..].fill(5);
            assert_eq!(content, expected);
            disk.flush().expect("the host writes");
            let kept = std::fs::read(file.path()).expect("the file exists");
            assert_eq!(kept == expected, changes_image);
            assert_eq!(kept == vec![7; 3 * 4096 + 512], !changes_image);
        }
    }

    #[test]
    fn a_file_that_is_not_a_multiple_of_sectors_is_refused() {
        for bytes in [0, 513] {
            let error = Disk::open(image(bytes).path(), false).err().map(|error| error.to_string());
            assert!(error.is_some_and(|error| error.contains(&format!("{bytes} bytes"))));
        }
    }
}
