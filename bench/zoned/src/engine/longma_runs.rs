//! Longma's experimental map of sorted runs, on the same emulated device as its tree.
//! Source: longma-zoned-runs.

use super::longma::device;
use super::{Engine, Fallible, Record, message};
use longma_zoned_runs::device::FileDevice;
use longma_zoned_runs::{Batch, Durability, Options, Store};
use std::path::Path;

pub struct LongmaRuns {
    store: Store<FileDevice>,
}

impl LongmaRuns {
    pub fn open(folder: &Path, synced: bool, cache_bytes: usize) -> Fallible<Self> {
        let durability = if synced { Durability::EachBatch } else { Durability::Relaxed };
        let options = Options { durability, ..Options::with_cache(cache_bytes as u64) };
        let device = device(folder, |device| Store::format(device, 1))?;
        Ok(Self { store: Store::open(device, options).map_err(message)? })
    }
}

impl Engine for LongmaRuns {
    fn write(&mut self, records: &[Record]) -> Fallible<()> {
        let mut batch = Batch::new();
        for (key, value) in records {
            batch.put(key, value);
        }
        self.store.apply(&batch).map_err(message)
    }

    fn read(&mut self, keys: &[Vec<u8>]) -> Fallible<u64> {
        let view = self.store.snapshot();
        let mut found = 0;
        for key in keys {
            found += u64::from(view.get(key).map_err(message)?.is_some());
        }
        Ok(found)
    }

    fn scan(&mut self) -> Fallible<(u64, u64)> {
        let (mut count, mut sum) = (0, 0);
        for row in self.store.iter() {
            let (_, value) = row.map_err(message)?;
            (count, sum) = (count + 1, sum + u64::from(value[0]));
        }
        Ok((count, sum))
    }

    fn sync(&mut self) -> Fallible<()> {
        self.store.sync().map_err(message)
    }
}
