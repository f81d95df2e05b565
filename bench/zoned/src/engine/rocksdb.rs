//! RocksDB through its C interface, as packaged by Debian; declares only the calls used here.
//! Source: rocksdb/c.h of RocksDB 7.8.

use super::{Engine, Fallible, Record};
use std::ffi::{CStr, CString, c_char, c_int, c_uchar, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null_mut;

// SAFETY: the declarations are those of rocksdb/c.h.
#[link(name = "rocksdb")]
unsafe extern "C" {
    fn rocksdb_options_create() -> *mut c_void;
    fn rocksdb_options_set_create_if_missing(options: *mut c_void, yes: c_uchar);
    fn rocksdb_options_increase_parallelism(options: *mut c_void, threads: c_int);
    fn rocksdb_options_set_block_based_table_factory(options: *mut c_void, table: *mut c_void);
    fn rocksdb_block_based_options_create() -> *mut c_void;
    fn rocksdb_block_based_options_set_block_cache(table: *mut c_void, cache: *mut c_void);
    fn rocksdb_block_based_options_set_filter_policy(table: *mut c_void, policy: *mut c_void);
    fn rocksdb_filterpolicy_create_bloom_full(bits: f64) -> *mut c_void;
    fn rocksdb_cache_create_lru(bytes: usize) -> *mut c_void;
    fn rocksdb_open(options: *mut c_void, path: *const c_char, error: *mut *mut c_char) -> *mut c_void;
    fn rocksdb_close(database: *mut c_void);
    fn rocksdb_free(memory: *mut c_void);
    fn rocksdb_writeoptions_create() -> *mut c_void;
    fn rocksdb_writeoptions_set_sync(options: *mut c_void, yes: c_uchar);
    fn rocksdb_readoptions_create() -> *mut c_void;
    fn rocksdb_writebatch_create() -> *mut c_void;
    fn rocksdb_writebatch_destroy(batch: *mut c_void);
    fn rocksdb_writebatch_put(
        batch: *mut c_void,
        key: *const u8,
        key_bytes: usize,
        value: *const u8,
        value_bytes: usize,
    );
    fn rocksdb_write(
        database: *mut c_void,
        options: *mut c_void,
        batch: *mut c_void,
        error: *mut *mut c_char,
    );
    fn rocksdb_get(
        database: *mut c_void,
        options: *mut c_void,
        key: *const u8,
        key_bytes: usize,
        value_bytes: *mut usize,
        error: *mut *mut c_char,
    ) -> *mut u8;
    fn rocksdb_flush_wal(database: *mut c_void, sync: c_uchar, error: *mut *mut c_char);
    fn rocksdb_create_iterator(database: *mut c_void, options: *mut c_void) -> *mut c_void;
    fn rocksdb_iter_seek_to_first(iterator: *mut c_void);
    fn rocksdb_iter_valid(iterator: *const c_void) -> c_uchar;
    fn rocksdb_iter_next(iterator: *mut c_void);
    fn rocksdb_iter_value(iterator: *const c_void, bytes: *mut usize) -> *const u8;
    fn rocksdb_iter_get_error(iterator: *const c_void, error: *mut *mut c_char);
    fn rocksdb_iter_destroy(iterator: *mut c_void);
}

/// An open database, and the options of its calls, which live as long as the process.
pub struct RocksDb {
    database: *mut c_void,
    writing: *mut c_void,
    reading: *mut c_void,
}

/// Converts and frees the error of a call.
fn check(error: *mut c_char) -> Fallible<()> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: RocksDB returns errors as C strings that the caller frees with rocksdb_free (c.h, "Error handling").
    unsafe {
        let text = CStr::from_ptr(error).to_string_lossy().into_owned();
        rocksdb_free(error.cast());
        Err(text)
    }
}

impl RocksDb {
    pub fn open(folder: &Path, synced: bool, cache_bytes: usize) -> Fallible<Self> {
        let path = CString::new(folder.join("rocksdb").as_os_str().as_bytes()).map_err(super::message)?;
        let mut error = null_mut();
        // SAFETY: each object is created before it is used, and is used as c.h documents. All of them live as long as
        // the process, because the cache and the filter policy must outlive the database.
        unsafe {
            let options = rocksdb_options_create();
            rocksdb_options_set_create_if_missing(options, 1);
            rocksdb_options_increase_parallelism(options, 2);
            let table = rocksdb_block_based_options_create();
            rocksdb_block_based_options_set_block_cache(table, rocksdb_cache_create_lru(cache_bytes));
            rocksdb_block_based_options_set_filter_policy(
                table,
                rocksdb_filterpolicy_create_bloom_full(10.0),
            );
            rocksdb_options_set_block_based_table_factory(options, table);
            let database = rocksdb_open(options, path.as_ptr(), &raw mut error);
            check(error)?;
            let writing = rocksdb_writeoptions_create();
            rocksdb_writeoptions_set_sync(writing, c_uchar::from(synced));
            Ok(Self { database, writing, reading: rocksdb_readoptions_create() })
        }
    }
}

impl Engine for RocksDb {
    fn write(&mut self, records: &[Record]) -> Fallible<()> {
        let mut error = null_mut();
        // SAFETY: the batch belongs to this function from creation to destruction, and copies the data put into it.
        unsafe {
            let batch = rocksdb_writebatch_create();
            for (key, value) in records {
                rocksdb_writebatch_put(batch, key.as_ptr(), key.len(), value.as_ptr(), value.len());
            }
            rocksdb_write(self.database, self.writing, batch, &raw mut error);
            rocksdb_writebatch_destroy(batch);
        }
        check(error)
    }

    fn read(&mut self, keys: &[Vec<u8>]) -> Fallible<u64> {
        let mut found = 0;
        for key in keys {
            let (mut error, mut bytes) = (null_mut(), 0);
            // SAFETY: the database is open, and the value is freed here, once.
            unsafe {
                let value = rocksdb_get(
                    self.database,
                    self.reading,
                    key.as_ptr(),
                    key.len(),
                    &raw mut bytes,
                    &raw mut error,
                );
                found += u64::from(!value.is_null());
                rocksdb_free(value.cast());
            }
            check(error)?;
        }
        Ok(found)
    }

    fn scan(&mut self) -> Fallible<(u64, u64)> {
        let (mut count, mut sum, mut error) = (0, 0, null_mut());
        // SAFETY: the iterator belongs to this function until it is destroyed. Its value is valid until it moves, and
        // no value is empty.
        unsafe {
            let iterator = rocksdb_create_iterator(self.database, self.reading);
            rocksdb_iter_seek_to_first(iterator);
            while rocksdb_iter_valid(iterator) != 0 {
                let mut bytes = 0;
                let value = rocksdb_iter_value(iterator, &raw mut bytes);
                (count, sum) = (count + 1, sum + u64::from(*value));
                rocksdb_iter_next(iterator);
            }
            rocksdb_iter_get_error(iterator, &raw mut error);
            rocksdb_iter_destroy(iterator);
        }
        check(error)?;
        Ok((count, sum))
    }

    fn sync(&mut self) -> Fallible<()> {
        let mut error = null_mut();
        // SAFETY: the database is open.
        unsafe { rocksdb_flush_wal(self.database, 1, &raw mut error) };
        check(error)
    }
}

impl Drop for RocksDb {
    fn drop(&mut self) {
        // SAFETY: the database is open and not used afterwards.
        unsafe { rocksdb_close(self.database) };
    }
}
