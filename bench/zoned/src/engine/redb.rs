//! redb, without its two-phase commit, which is for untrusted input.
//! Source: redb 4's documentation.

use super::{Engine, Fallible, Record, message};
use redb::{Database, Durability, ReadableDatabase, ReadableTable, TableDefinition};
use std::path::Path;

const TABLE: TableDefinition<&[u8], &[u8]> = TableDefinition::new("records");

pub struct Redb {
    database: Database,
    synced: bool,
}

impl Redb {
    pub fn open(folder: &Path, synced: bool, cache_bytes: usize) -> Fallible<Self> {
        let mut builder = Database::builder();
        builder.set_cache_size(cache_bytes);
        let mut engine = Self { database: builder.create(folder.join("redb")).map_err(message)?, synced };
        engine.commit(&[], true)?;
        Ok(engine)
    }

    fn commit(&mut self, records: &[Record], synced: bool) -> Fallible<()> {
        let mut change = self.database.begin_write().map_err(message)?;
        change
            .set_durability(if synced { Durability::Immediate } else { Durability::None })
            .map_err(message)?;
        {
            let mut table = change.open_table(TABLE).map_err(message)?;
            for (key, value) in records {
                table.insert(key.as_slice(), value.as_slice()).map_err(message)?;
            }
        }
        change.commit().map_err(message)
    }
}

impl Engine for Redb {
    fn write(&mut self, records: &[Record]) -> Fallible<()> {
        self.commit(records, self.synced)
    }

    fn read(&mut self, keys: &[Vec<u8>]) -> Fallible<u64> {
        let view = self.database.begin_read().map_err(message)?;
        let table = view.open_table(TABLE).map_err(message)?;
        let mut found = 0;
        for key in keys {
            found += u64::from(table.get(key.as_slice()).map_err(message)?.is_some());
        }
        Ok(found)
    }

    fn scan(&mut self) -> Fallible<(u64, u64)> {
        let view = self.database.begin_read().map_err(message)?;
        let table = view.open_table(TABLE).map_err(message)?;
        let (mut count, mut sum) = (0, 0);
        for record in table.iter().map_err(message)? {
            let (_, value) = record.map_err(message)?;
            (count, sum) = (count + 1, sum + u64::from(value.value()[0]));
        }
        Ok((count, sum))
    }

    fn sync(&mut self) -> Fallible<()> {
        self.commit(&[], true)
    }
}
