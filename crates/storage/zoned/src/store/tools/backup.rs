//! Online backup: writes a snapshot to a new file, which is an independent map.

use crate::device::{DeviceError, FileDevice, Operation, ZonedDevice};
use crate::error::{Error, Result};
use crate::store::{Durability, Options, Snapshot, Store};
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};

/// The records of a backup are loaded in parts of this many bytes: a load takes memory for each leaf until it ends.
const PART_BYTES: usize = 64 << 20;

/// The cache of the map that is being written, bytes.
const CACHE_BYTES: u64 = 8 << 20;

impl<D: ZonedDevice> Store<D> {
    /// Writes a backup of the current state to a new file. Like [`Snapshot::backup`].
    ///
    /// # Errors
    /// Those of [`Snapshot::backup`].
    pub fn backup(&self, path: &Path) -> Result<u64> {
        self.snapshot().backup(path)
    }
}

impl<D: ZonedDevice> Snapshot<D> {
    /// Writes the snapshot to a new file and returns the number of its keys. Other threads can read and write during
    /// the backup. The file is an emulated device with an independent map and full leaves; to restore a backup, open or
    /// copy the file. It has the geometry of this map's device, and is sparse. It appears under its name when it is
    /// complete and durable; an interrupted backup leaves a file with the extension `part`, which the next one
    /// replaces.
    ///
    /// # Errors
    /// [`Error::Device`] if the file exists or cannot be written; those of [`Snapshot::get`]. No file is left then.
    pub fn backup(&self, path: &Path) -> Result<u64> {
        let host = |operation, source| {
            Error::from(DeviceError::Host { name: path.display().to_string(), operation, source })
        };
        if path.symlink_metadata().is_ok() {
            return Err(host(Operation::Write, std::io::ErrorKind::AlreadyExists.into()));
        }
        let part = with_extension(path, "part");
        let keys = self.write_map(&part).inspect_err(|_| _ = std::fs::remove_file(&part))?;
        std::fs::rename(&part, path).map_err(|source| host(Operation::Write, source))?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(folder)
            .and_then(|folder| folder.sync_all())
            .map_err(|source| host(Operation::Flush, source))?;
        Ok(keys)
    }

    fn write_map(&self, path: &Path) -> Result<u64> {
        let io = &self.shared.io;
        let geometry = crate::device::Geometry { max_open_zones: 0, max_active_zones: 0, ..io.geometry };
        let device = FileDevice::create(path, geometry, true)?;
        let device = Store::format(device, Some(io.node_bytes as u32), self.shared.id)?;
        let options = Options { durability: Durability::Relaxed, ..Options::with_cache(CACHE_BYTES) };
        let map = Store::open(device, options)?;
        let (mut rows, mut failed) = (self.iter(), None);
        loop {
            let mut bytes = 0;
            let part = std::iter::from_fn(|| {
                if bytes >= PART_BYTES {
                    return None;
                }
                match rows.next()? {
                    Ok(row) => {
                        bytes += row.key().len() + row.value().len();
                        Some(row.to_pair())
                    }
                    Err(error) => {
                        failed = Some(error);
                        None
                    }
                }
            });
            let count = map.load(part)?;
            if let Some(error) = failed {
                return Err(error);
            }
            if count == 0 {
                break;
            }
        }
        let keys = map.len();
        map.close()?;
        Ok(keys)
    }
}

/// The path with an additional extension.
fn with_extension(path: &Path, extension: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".");
    name.push(extension);
    name.into()
}
