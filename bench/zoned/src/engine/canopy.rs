//! canopydb with its write-ahead log and a single writer.
//! Source: canopydb 0.2's documentation.

use super::{Engine, Fallible, Record, message};
use canopydb::{Database, DbOptions, EnvOptions};
use std::path::Path;

const TREE: &[u8] = b"records";

pub struct Canopy {
    database: Database,
    synced: bool,
}

impl Canopy {
    pub fn open(folder: &Path, synced: bool, cache_bytes: usize) -> Fallible<Self> {
        let mut options = EnvOptions::new(folder);
        options.page_cache_size = cache_bytes;
        let database = Database::with_options(options, DbOptions::new()).map_err(message)?;
        let mut engine = Self { database, synced };
        engine.write(&[])?;
        Ok(engine)
    }
}

impl Engine for Canopy {
    fn write(&mut self, records: &[Record]) -> Fallible<()> {
        let change = self.database.begin_write().map_err(message)?;
        {
            let mut tree = change.get_or_create_tree(TREE).map_err(message)?;
            for (key, value) in records {
                tree.insert(key, value).map_err(message)?;
            }
        }
        change.commit_with(self.synced).map(|_| ()).map_err(message)
    }

    fn read(&mut self, keys: &[Vec<u8>]) -> Fallible<u64> {
        let view = self.database.begin_read().map_err(message)?;
        let tree = view.get_tree(TREE).map_err(message)?.ok_or("the tree is gone")?;
        let mut found = 0;
        for key in keys {
            found += u64::from(tree.get(key).map_err(message)?.is_some());
        }
        Ok(found)
    }

    fn scan(&mut self) -> Fallible<(u64, u64)> {
        let view = self.database.begin_read().map_err(message)?;
        let tree = view.get_tree(TREE).map_err(message)?.ok_or("the tree is gone")?;
        let (mut count, mut sum) = (0, 0);
        for record in tree.iter().map_err(message)? {
            let (_, value) = record.map_err(message)?;
            (count, sum) = (count + 1, sum + u64::from(value[0]));
        }
        Ok((count, sum))
    }

    fn sync(&mut self) -> Fallible<()> {
        self.database.sync().map_err(message)
    }
}
