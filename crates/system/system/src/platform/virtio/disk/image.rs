//! Image files: raw, and qcow2 by the crate imago. Images are untrusted: imago validates their headers, and the backing
//! file that a header names is opened only if the user has named it too or it is in the image's folder. Source: QEMU,
//! docs/interop/qcow2.rst.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use imago::file::File as Storage;
use imago::qcow2::Qcow2;
use imago::raw::Raw;
use imago::{DenyImplicitOpenGate, FormatAccess, FormatDriverBuilder, Storage as _, StorageOpenOptions};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::DiskError;

/// The first bytes of a qcow2 image.
const MAGIC: [u8; 4] = *b"QFI\xfb";
/// Offset of the encryption method in the header: 0 for none.
const ENCRYPTION_METHOD: u64 = 32;
/// The maximum length of a chain of backing images.
const MAX_BACKING_FILES: usize = 16;

/// The format of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The file contains the bytes of the disk.
    Raw,
    /// QEMU's format.
    Qcow2,
}

/// An open image.
#[derive(Debug)]
pub enum Image {
    /// The file contains the bytes of the disk.
    Raw(File),
    /// The file contains blocks in any order. Blocks that it lacks are in its backing image.
    Qcow2 {
        image: Box<FormatAccess<Storage>>,
        #[expect(dead_code, reason = "open files hold the locks of this image and its backing images")]
        locks: Vec<File>,
    },
}

impl Image {
    /// Opens an image. Without a format, its name and its first bytes must agree.
    pub fn open(
        path: &Path,
        is_written: bool,
        format: Option<Format>,
        named: &[PathBuf],
    ) -> Result<Self, DiskError> {
        let format = format.map_or_else(|| detect(path), Ok)?;
        if format == Format::Raw {
            let file = File::options().read(true).write(is_written).open(path)?;
            lock(&file, path, is_written)?;
            return Ok(Self::Raw(file));
        }
        if is_written {
            return Err(DiskError::ReadOnly);
        }
        let named = named.iter().map(std::fs::canonicalize).collect::<Result<_, _>>()?;
        let mut images = BackingImages { named, opened: Vec::new(), locks: Vec::new() };
        let image = images.open(path)?;
        Ok(Self::Qcow2 { image: Box::new(image), locks: images.locks })
    }

    /// The bytes of the disk.
    pub fn bytes(&self) -> io::Result<u64> {
        match self {
            Self::Raw(file) => Ok(file.metadata()?.len()),
            Self::Qcow2 { image, .. } => Ok(image.size()),
        }
    }

    /// Reads `bytes` from the offset `start`.
    pub fn read(&self, bytes: &mut [u8], start: u64) -> io::Result<()> {
        match self {
            Self::Raw(file) => file.read_exact_at(bytes, start),
            Self::Qcow2 { image, .. } => image.read(bytes, start),
        }
    }

    /// Writes `bytes` at the offset `start`.
    pub fn write(&self, bytes: &[u8], start: u64) -> io::Result<()> {
        match self {
            Self::Raw(file) => file.write_all_at(bytes, start),
            Self::Qcow2 { image, .. } => image.write(bytes, start),
        }
    }

    /// Makes writes durable.
    pub fn flush(&self) -> io::Result<()> {
        match self {
            Self::Raw(file) => file.sync_data(),
            Self::Qcow2 { image, .. } => image.flush().and_then(|()| image.sync()),
        }
    }
}

/// The format that name and content agree on. A guest can write the start of a raw image, so the content alone does not
/// identify the format.
fn detect(path: &Path) -> Result<Format, DiskError> {
    let mut start = [0; MAGIC.len()];
    let has_magic = File::open(path)?.read_exact_at(&mut start, 0).is_ok() && start == MAGIC;
    let has_name = path.extension().is_some_and(|name| name.eq_ignore_ascii_case("qcow2"));
    match (has_name, has_magic) {
        (true, true) => Ok(Format::Qcow2),
        (false, false) => Ok(Format::Raw),
        (true, false) => {
            Err(DiskError::Format("the name ends with .qcow2, but the content is not a qcow2 image"))
        }
        (false, true) => {
            Err(DiskError::Format("the content is a qcow2 image, but the name does not end with .qcow2"))
        }
    }
}

/// Locks an image until `file` is closed: exclusively if it `is_written`, otherwise shared.
fn lock(file: &File, path: &Path, is_written: bool) -> Result<(), DiskError> {
    let operation = match is_written {
        true => FlockOperation::NonBlockingLockExclusive,
        false => FlockOperation::NonBlockingLockShared,
    };
    match flock(file, operation) {
        Err(Errno::WOULDBLOCK) => Err(DiskError::InUse(path.to_owned())),
        // Not all file systems support locks.
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Whether the header of a qcow2 image names an encryption method, which imago ignores.
fn is_encrypted(path: &Path) -> io::Result<bool> {
    let mut method = [0; 4];
    let is_whole = File::open(path)?.read_exact_at(&mut method, ENCRYPTION_METHOD).is_ok();
    Ok(is_whole && method != [0; 4])
}

/// The backing images of an image while it is opened.
struct BackingImages {
    /// The images that the user has named.
    named: Vec<PathBuf>,
    /// The chain of backing images, without symbolic links.
    opened: Vec<PathBuf>,
    locks: Vec<File>,
}

impl BackingImages {
    /// Opens a qcow2 image and its backing images.
    fn open(&mut self, path: &Path) -> Result<FormatAccess<Storage>, DiskError> {
        let refused = |error| DiskError::Image { path: path.to_owned(), error };
        self.enter(path)?;
        if is_encrypted(path)? {
            return Err(DiskError::Encrypted);
        }
        let options = StorageOpenOptions::new().filename(path);
        let storage = Storage::open(options).map_err(refused)?;
        let mut image = Qcow2::<Storage>::open_image(storage, false).map_err(refused)?;
        let backing = match image.implicit_backing_file() {
            None => None,
            Some(name) => {
                let place = self.permitted(path, name)?;
                Some(match image.implicit_backing_format().map(String::as_str) {
                    Some("raw") => {
                        self.enter(&place)?;
                        let options = StorageOpenOptions::new().filename(&place);
                        let raw = Storage::open(options)
                            .and_then(|storage| Raw::builder(storage).open(DenyImplicitOpenGate::default()));
                        FormatAccess::new(raw.map_err(refused)?)
                    }
                    Some("qcow2") => self.open(&place)?,
                    _ => return Err(DiskError::BackingFormat(name.clone())),
                })
            }
        };
        image.set_backing(backing);
        if image.requires_external_data_file() {
            return Err(DiskError::DataFile);
        }
        image.open_implicit_dependencies_gated(DenyImplicitOpenGate::default()).map_err(refused)?;
        Ok(FormatAccess::new(image))
    }

    /// Records an image as the backing image of the image recorded last, and locks it.
    fn enter(&mut self, path: &Path) -> Result<(), DiskError> {
        let place = std::fs::canonicalize(path)?;
        if self.opened.contains(&place) {
            return Err(DiskError::Cycle(path.to_owned()));
        }
        if self.opened.len() > MAX_BACKING_FILES {
            return Err(DiskError::Depth);
        }
        let file = File::open(&place)?;
        lock(&file, path, false)?;
        self.locks.push(file);
        self.opened.push(place);
        Ok(())
    }

    /// The path of the backing image that the header of `path` names, without symbolic links.
    fn permitted(&self, path: &Path, name: &str) -> Result<PathBuf, DiskError> {
        let folder = std::fs::canonicalize(path)?.parent().map(Path::to_owned).unwrap_or_default();
        let refused = || DiskError::Backing { name: name.to_owned(), folder: folder.clone() };
        let place = std::fs::canonicalize(folder.join(name)).map_err(|_| refused())?;
        let is_permitted = place.parent() == Some(&folder) || self.named.contains(&place);
        // Opening another type of file could block or affect a device.
        if is_permitted && place.is_file() { Ok(place) } else { Err(refused()) }
    }
}
