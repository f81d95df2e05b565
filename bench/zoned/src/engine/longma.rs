//! Longma's map on a zoned device emulated in a file, since the other engines do not support zoned block devices.
//! Source: longma-zoned.

use super::{Engine, Fallible, Record, message};
use longma_zoned::device::{FileDevice, Geometry};
use longma_zoned::{Batch, Durability, Options, Store};
use std::path::Path;

/// 16 conventional and 496 sequential zones of 64 MiB: 32 GiB in a sparse file.
const GEOMETRY: Geometry = Geometry {
    block_bytes: 4096,
    zone_blocks: 16_384,
    zone_capacity_blocks: 16_384,
    conventional_zones: 16,
    sequential_zones: 496,
    max_open_zones: 0,
    max_active_zones: 0,
};

/// Opens the device in a folder, or creates it and formats it for a map.
pub fn device<E: std::fmt::Display>(
    folder: &Path,
    format: impl FnOnce(FileDevice) -> Result<FileDevice, E>,
) -> Fallible<FileDevice> {
    let path = folder.join("device");
    if path.exists() {
        return FileDevice::open(&path).map_err(message);
    }
    format(FileDevice::create(&path, GEOMETRY, false).map_err(message)?).map_err(message)
}

pub struct Longma {
    store: Store<FileDevice>,
}

impl Longma {
    pub fn open(folder: &Path, synced: bool, cache_bytes: usize) -> Fallible<Self> {
        let durability = if synced { Durability::EachBatch } else { Durability::Relaxed };
        let options = Options { durability, ..Options::with_cache(cache_bytes as u64) };
        let device = device(folder, |device| Store::format(device, None, 1))?;
        Ok(Self { store: Store::open(device, options).map_err(message)? })
    }
}

impl Engine for Longma {
    fn write(&mut self, records: &[Record]) -> Fallible<()> {
        let mut batch = Batch::new();
        for (key, value) in records {
            batch.put(key, value);
        }
        self.store.apply(&batch).map(|_| ()).map_err(message)
    }

    fn read(&mut self, keys: &[Vec<u8>]) -> Fallible<u64> {
        let view = self.store.snapshot();
        let mut found = 0;
        for key in keys {
            found += u64::from(view.get_with(key, |value| value[0]).map_err(message)?.is_some());
        }
        Ok(found)
    }

    fn scan(&mut self) -> Fallible<(u64, u64)> {
        let (mut count, mut sum) = (0, 0);
        let mut rows = self.store.iter();
        while let Some((_, value)) = rows.next_row().map_err(message)? {
            (count, sum) = (count + 1, sum + u64::from(value[0]));
        }
        Ok((count, sum))
    }

    fn sync(&mut self) -> Fallible<()> {
        self.store.sync().map_err(message)
    }
}
