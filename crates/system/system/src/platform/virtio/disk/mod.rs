//! The content of a virtual disk: an image and the blocks that the guest has written. By default the image never
//! changes; written blocks go to a temporary file that is deleted with the machine.

mod image;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustc_hash::FxHashSet;
use sha2::{Digest, Sha256};

pub use image::Format;
use image::Image;

/// Bytes of a sector.
pub const SECTOR: u64 = 512;
/// Bytes of a block, the unit of copy-on-write.
const BLOCK: u64 = 4096;
/// Bytes that are hashed at a time.
const DIGEST_CHUNK: usize = 1 << 20;

/// The disk cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// The host refused an operation on the file.
    #[error("disk: {0}")]
    Host(#[from] io::Error),
    /// The length of the disk is not supported.
    #[error("disk: it has {0} bytes, which is not a multiple of {SECTOR}; append zeros")]
    Length(u64),
    /// The format of the image is unknown.
    #[error("disk: {0}; add ,format=qcow2 or ,format=raw")]
    Format(&'static str),
    /// The image is malformed, or needs an unsupported feature.
    #[error("disk: {}: {error}", path.display())]
    Image {
        /// The image or one of its backing images.
        path: PathBuf,
        /// The fault.
        error: io::Error,
    },
    /// The backing image is not permitted.
    #[error("disk: the image's backing image {name:?} is not a file in {}; if you trust the image, add ,backing=FILE", folder.display())]
    Backing {
        /// The name in the image.
        name: String,
        /// The folder of the image.
        folder: PathBuf,
    },
    /// The image does not name the format of its backing image.
    #[error(
        "disk: the image does not name the format, raw or qcow2, of its backing image {0:?}: `qemu-img rebase -u -F` changes that"
    )]
    BackingFormat(String),
    /// The image has its data in another file.
    #[error(
        "disk: the image has its data in another file, which is not supported; `qemu-img convert` makes one file"
    )]
    DataFile,
    /// The option `write` was given for a qcow2 image. It is refused, because allocation in damaged tables may not
    /// terminate.
    #[error(
        "disk: writes cannot change a qcow2 image: leave write out, or make a raw image with `qemu-img convert`"
    )]
    ReadOnly,
    /// The image is encrypted. Without the key, the guest would read ciphertext and overwrite parts of it with
    /// plaintext.
    #[error("disk: the image is encrypted, which is not supported; `qemu-img convert` decrypts it")]
    Encrypted,
    /// The chain of backing images is too long.
    #[error("disk: the image has more than 16 backing images")]
    Depth,
    /// An image is its own backing image.
    #[error("disk: {} is its own backing image, so that its content is not defined; `qemu-img rebase -u -b` sets another backing image", .0.display())]
    Cycle(PathBuf),
    /// Another disk or program uses the image, and at least one of the users writes to it.
    #[error("disk: {} is in use by another disk or program, and at least one of them changes it; leave write out of both, or use a copy", .0.display())]
    InUse(PathBuf),
}

/// How to open an image.
#[derive(Clone, Debug, Default)]
pub struct DiskOptions {
    /// Whether writes of the guest change the image.
    pub changes_image: bool,
    /// The format; `None` if the name and the first bytes determine it.
    pub format: Option<Format>,
    /// Permitted backing images, besides those in its folder.
    pub backing: Vec<PathBuf>,
}

/// A virtual disk with an image.
#[derive(Debug)]
pub struct Disk {
    image: Image,
    /// The file of written blocks and their numbers; `None` if writes change the image.
    copy: Option<(File, FxHashSet<u64>)>,
    bytes: u64,
}

impl Disk {
    /// Opens an image.
    ///
    /// # Errors
    /// The host refuses, the image is malformed or names a file that it must not, or the length of the disk is not a
    /// multiple of 512.
    pub fn open(path: &Path, options: &DiskOptions) -> Result<Self, DiskError> {
        let changes_image = options.changes_image;
        let image = Image::open(path, changes_image, options.format, &options.backing)?;
        let bytes = image.bytes()?;
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

    /// Whether the guest's writes change the image.
    pub fn changes_image(&self) -> bool {
        self.copy.is_none()
    }

    /// The SHA-256 of the disk without the guest's writes, in hexadecimal.
    ///
    /// # Errors
    /// The host refuses.
    pub fn image_digest(&self) -> io::Result<String> {
        let mut hash = Sha256::new();
        let mut chunk = vec![0; DIGEST_CHUNK];
        let mut at = 0;
        while at < self.bytes {
            let length = (self.bytes - at).min(DIGEST_CHUNK as u64);
            let part = &mut chunk[..length as usize];
            self.image.read(part, at)?;
            hash.update(part);
            at += length;
        }
        Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Calls `write` with the offset and the content of each block that the guest has written, in the order of the disk.
    ///
    /// # Errors
    /// The host refuses, or `write` fails.
    pub fn written_blocks(&self, mut write: impl FnMut(u64, &[u8]) -> io::Result<()>) -> io::Result<()> {
        let Some((copy, written)) = &self.copy else { return Ok(()) };
        let mut blocks: Vec<u64> = written.iter().copied().collect();
        blocks.sort_unstable();
        for block in blocks {
            let mut content = vec![0; BLOCK.min(self.bytes - block * BLOCK) as usize];
            copy.read_exact_at(&mut content, block * BLOCK)?;
            write(block * BLOCK, &content)?;
        }
        Ok(())
    }

    /// Reads `bytes` from the offset `start`.
    ///
    /// # Errors
    /// The host refuses.
    pub fn read(&self, start: u64, bytes: &mut [u8]) -> io::Result<()> {
        let Some((copy, written)) = &self.copy else { return self.image.read(bytes, start) };
        let mut at = start;
        let mut rest = bytes;
        while !rest.is_empty() {
            let length = rest.len().min((BLOCK - at % BLOCK) as usize);
            let (part, behind) = rest.split_at_mut(length);
            if written.contains(&(at / BLOCK)) {
                copy.read_exact_at(part, at)?;
            } else {
                self.image.read(part, at)?;
            }
            (at, rest) = (at + length as u64, behind);
        }
        Ok(())
    }

    /// Writes `bytes` at the offset `start`.
    ///
    /// # Errors
    /// The host refuses.
    pub fn write(&mut self, start: u64, bytes: &[u8]) -> io::Result<()> {
        let Some((copy, written)) = &mut self.copy else { return self.image.write(bytes, start) };
        let end = start + bytes.len() as u64;
        for block in start / BLOCK..end.div_ceil(BLOCK) {
            if !written.contains(&block) {
                let mut content = vec![0; BLOCK.min(self.bytes - block * BLOCK) as usize];
                self.image.read(&mut content, block * BLOCK)?;
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
        if self.copy.is_some() { Ok(()) } else { self.image.flush() }
    }
}

#[cfg(test)]
mod tests;
