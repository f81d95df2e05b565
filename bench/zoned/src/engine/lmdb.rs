//! LMDB through heed, without MDB_WRITEMAP, whose writes could not be distinguished from page faults.
//! Source: lmdb.h; heed 0.22's documentation.

use super::{Engine, Fallible, Record, message};
use heed::types::Bytes;
use heed::{Database, Env, EnvFlags, EnvOpenOptions};
use std::path::Path;

pub struct Lmdb {
    env: Env,
    map: Database<Bytes, Bytes>,
}

impl Lmdb {
    pub fn open(folder: &Path, synced: bool) -> Fallible<Self> {
        let mut options = EnvOpenOptions::new();
        options.map_size(64 << 30);
        let flags = if synced { EnvFlags::empty() } else { EnvFlags::NO_SYNC };
        // SAFETY: the folder was created for this process, so no other process has its files open. Without syncing, a
        // crash of the host loses only data that is discarded afterwards.
        let env = unsafe { options.flags(flags).open(folder) }.map_err(message)?;
        let mut change = env.write_txn().map_err(message)?;
        let map = env.create_database(&mut change, None).map_err(message)?;
        change.commit().map_err(message)?;
        Ok(Self { env, map })
    }
}

impl Engine for Lmdb {
    fn write(&mut self, records: &[Record]) -> Fallible<()> {
        let mut change = self.env.write_txn().map_err(message)?;
        for (key, value) in records {
            self.map.put(&mut change, key, value).map_err(message)?;
        }
        change.commit().map_err(message)
    }

    fn read(&mut self, keys: &[Vec<u8>]) -> Fallible<u64> {
        let view = self.env.read_txn().map_err(message)?;
        let mut found = 0;
        for key in keys {
            found += u64::from(self.map.get(&view, key).map_err(message)?.is_some());
        }
        Ok(found)
    }

    fn scan(&mut self) -> Fallible<(u64, u64)> {
        let view = self.env.read_txn().map_err(message)?;
        let (mut count, mut sum) = (0, 0);
        for record in self.map.iter(&view).map_err(message)? {
            let (_, value) = record.map_err(message)?;
            (count, sum) = (count + 1, sum + u64::from(value[0]));
        }
        Ok((count, sum))
    }

    fn sync(&mut self) -> Fallible<()> {
        self.env.force_sync().map_err(message)
    }
}
