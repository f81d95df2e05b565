//! fjall, without its transactional form: batches are atomic without it.
//! Source: fjall 3's documentation.

use super::{Engine, Fallible, Record, message};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use std::path::Path;

pub struct Fjall {
    database: Database,
    records: Keyspace,
    synced: bool,
}

impl Fjall {
    pub fn open(folder: &Path, synced: bool, cache_bytes: usize) -> Fallible<Self> {
        let database = Database::builder(folder).cache_size(cache_bytes as u64).open().map_err(message)?;
        let records = database.keyspace("records", KeyspaceCreateOptions::default).map_err(message)?;
        Ok(Self { database, records, synced })
    }
}

impl Engine for Fjall {
    fn write(&mut self, records: &[Record]) -> Fallible<()> {
        let mut batch = self.database.batch().durability(self.synced.then_some(PersistMode::SyncData));
        for (key, value) in records {
            batch.insert(&self.records, key.as_slice(), value.as_slice());
        }
        batch.commit().map_err(message)
    }

    fn read(&mut self, keys: &[Vec<u8>]) -> Fallible<u64> {
        let mut found = 0;
        for key in keys {
            found += u64::from(self.records.get(key).map_err(message)?.is_some());
        }
        Ok(found)
    }

    fn scan(&mut self) -> Fallible<(u64, u64)> {
        let (mut count, mut sum) = (0, 0);
        for record in self.records.iter() {
            let (_, value) = record.into_inner().map_err(message)?;
            (count, sum) = (count + 1, sum + u64::from(value[0]));
        }
        Ok((count, sum))
    }

    fn sync(&mut self) -> Fallible<()> {
        self.database.persist(PersistMode::SyncData).map_err(message)
    }
}
