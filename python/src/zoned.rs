//! Stores of `longma-zoned`. `longma/zoned.py` makes mappings and numpy arrays of them.

use longma_locks::IgnorePoison;
use longma_zoned::device::{FileDevice, Geometry};
use longma_zoned::{Batch, Durability, Error, Options, Store};
use pyo3::buffer::PyBuffer;
use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyMemoryView, PySlice};
use std::ops::Bound as KeyBound;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};

create_exception!(
    longma._native,
    StoreError,
    PyException,
    "The store cannot do this, or its file is damaged."
);
create_exception!(
    longma._native,
    Conflict,
    StoreError,
    "Another transaction changed what this one has read. Nothing was changed; run it again."
);

type File = Store<FileDevice>;
type Snapshot = longma_zoned::Snapshot<FileDevice>;
type Transaction = longma_zoned::Transaction<FileDevice>;

/// Maximum bytes of keys and values that one call of [`page`] returns, unless a single record is larger.
const PAGE_BYTES: usize = 256 << 10;

fn raised(error: Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::Conflict { .. } => Conflict::new_err(text),
        Error::KeyLength { .. } | Error::ValueLength { .. } | Error::Unsorted { .. } => {
            PyValueError::new_err(text)
        }
        Error::Device(_) => PyOSError::new_err(text),
        _ => StoreError::new_err(text),
    }
}

fn closed() -> PyErr {
    PyValueError::new_err("the store, snapshot or transaction is closed")
}

/// A range of keys: from the first one, which may be excluded, to the end, which is excluded. `None` is open.
#[derive(FromPyObject)]
pub struct Keys(Option<PyBackedBytes>, bool, Option<PyBackedBytes>);

impl Keys {
    fn bounds(self) -> (KeyBound<PyBackedBytes>, KeyBound<PyBackedBytes>) {
        let first = match (self.0, self.1) {
            (None, _) => KeyBound::Unbounded,
            (Some(key), false) => KeyBound::Included(key),
            (Some(key), true) => KeyBound::Excluded(key),
        };
        (first, self.2.map_or(KeyBound::Unbounded, KeyBound::Excluded))
    }
}

/// Copied records.
type Page = Vec<(Vec<u8>, Vec<u8>)>;

/// At most `limit` records, and at most [`PAGE_BYTES`] unless the first is larger.
fn page<R>(
    limit: usize,
    rows: impl Iterator<Item = Result<R, Error>>,
    pair: impl Fn(R) -> (Vec<u8>, Vec<u8>),
) -> Result<Page, Error> {
    let (mut page, mut bytes) = (Page::new(), 0);
    for row in rows.take(limit) {
        let (key, value) = pair(row?);
        bytes += key.len() + value.len();
        page.push((key, value));
        if bytes >= PAGE_BYTES {
            break;
        }
    }
    Ok(page)
}

/// The records as Python's bytes.
fn to_python<'py>(py: Python<'py>, page: &Page) -> PyRows<'py> {
    page.iter().map(|(key, value)| (PyBytes::new(py, key), PyBytes::new(py, value))).collect()
}

/// A snapshot or transaction, until it or its store is closed.
struct Open<T>(Mutex<Option<T>>);

/// What a store closes before its file.
trait Close: Send + Sync {
    fn close(&self);
}

impl<T: Send> Close for Open<T> {
    fn close(&self) {
        drop(self.0.lock().ignore_poison().take());
    }
}

impl<T: Send> Open<T> {
    fn new(value: T) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Some(value))))
    }

    /// Calls `work` without Python's lock.
    fn with<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut T) -> Result<R, Error> + Send,
    ) -> PyResult<R> {
        let worked = py.detach(|| self.0.lock().ignore_poison().as_mut().map(work));
        worked.ok_or_else(closed)?.map_err(raised)
    }
}

/// A store in a file.
#[pyclass(frozen)]
pub struct NativeStore {
    store: Mutex<Option<File>>,
    /// Its snapshots and transactions.
    open: Mutex<Vec<Weak<dyn Close>>>,
}

impl NativeStore {
    fn with<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&File) -> Result<R, Error> + Send,
    ) -> PyResult<R> {
        // Other threads may use the store meanwhile.
        let store = self.store.lock().ignore_poison().clone().ok_or_else(closed)?;
        py.detach(move || work(&store)).map_err(raised)
    }

    /// Has the store close this object first. Fails if another thread has closed the store meanwhile.
    fn remember<T: Send + 'static>(&self, py: Python<'_>, open: &Arc<Open<T>>) -> PyResult<()> {
        let mut all = self.open.lock().ignore_poison();
        if all.len() == all.capacity() {
            all.retain(|open| open.strong_count() > 0);
        }
        all.push(Arc::downgrade(open) as Weak<dyn Close>);
        drop(all);
        if self.store.lock().ignore_poison().is_none() {
            py.detach(|| open.close());
            return Err(closed());
        }
        Ok(())
    }
}

#[pymethods]
impl NativeStore {
    /// Opens the store of a file. Creates it if `capacity` is given and the file does not exist.
    #[new]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        capacity: Option<u64>,
        read_only: bool,
        cache_bytes: u64,
        relaxed: bool,
    ) -> PyResult<Self> {
        let durability = if relaxed { Durability::Relaxed } else { Durability::EachBatch };
        let options = Options { durability, ..Options::with_cache(cache_bytes) };
        let store = py.detach(|| match (read_only, capacity) {
            (true, _) => {
                Store::open_read_only(FileDevice::open_read_only(&path).map_err(Error::from)?, options)
            }
            (false, None) => Store::open(FileDevice::open(&path).map_err(Error::from)?, options),
            (false, Some(bytes)) => {
                let device = FileDevice::open_or_create(&path, Geometry::with_capacity(bytes));
                Store::open_or_create(device.map_err(Error::from)?, options)
            }
        });
        Ok(Self { store: Mutex::new(Some(store.map_err(raised)?)), open: Mutex::default() })
    }

    fn get<'py>(&self, py: Python<'py>, key: &[u8]) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let value = self.with(py, |store| store.get(key))?;
        Ok(value.map(|value| PyBytes::new(py, &value)))
    }

    fn contains(&self, py: Python<'_>, key: &[u8]) -> PyResult<bool> {
        self.with(py, |store| store.contains_key(key))
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.with(py, |store| Ok(store.len()))? as usize)
    }

    /// Applies changes as a whole: keys with their new values, or with None to delete them. Returns the numbers of
    /// inserted, updated and deleted keys.
    fn apply(
        &self,
        py: Python<'_>,
        changes: Vec<(PyBackedBytes, Option<PyBackedBytes>)>,
    ) -> PyResult<(u64, u64, u64)> {
        let mut batch = Batch::new();
        for (key, value) in &changes {
            match value {
                Some(value) => batch.put(key, value),
                None => batch.delete(key),
            };
        }
        drop(changes);
        let applied = self.with(py, |store| store.apply(&batch))?;
        Ok((applied.inserted, applied.updated, applied.deleted))
    }

    /// Sets a key if it has the expected value; None is an absent key. Returns whether it did, and the current value
    /// otherwise.
    fn compare_and_swap<'py>(
        &self,
        py: Python<'py>,
        key: &[u8],
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> PyResult<(bool, Option<Bound<'py, PyBytes>>)> {
        let swapped = self.with(py, |store| store.compare_and_swap(key, expected, new))?;
        Ok(match swapped {
            Ok(()) => (true, None),
            Err(failed) => (false, failed.current.map(|value| PyBytes::new(py, &value))),
        })
    }

    /// Loads records of fixed sizes in ascending key order, as a whole. Returns their number. `keys` and `values` are
    /// contiguous buffers of bytes.
    fn load(
        &self,
        py: Python<'_>,
        keys: PyBuffer<u8>,
        key_bytes: usize,
        values: PyBuffer<u8>,
        value_bytes: usize,
    ) -> PyResult<u64> {
        let (keys, values) = (Rows::new(keys, key_bytes), Rows::new(values, value_bytes));
        if keys.count != values.count {
            let text = format!("{} keys, but {} values", keys.count, values.count);
            return Err(PyValueError::new_err(text));
        }
        let mut failed = None;
        let loaded =
            self.with(py, |store| store.load(Records { keys, values, next: 0, failed: &mut failed }));
        failed.map_or(loaded, Err)
    }

    fn snapshot(&self, py: Python<'_>) -> PyResult<NativeSnapshot> {
        let open = Open::new(self.with(py, |store| Ok(store.snapshot()))?);
        self.remember(py, &open)?;
        Ok(NativeSnapshot(open))
    }

    fn transaction(&self, py: Python<'_>) -> PyResult<NativeTransaction> {
        let open = Open::new(self.with(py, |store| Ok(store.transaction()))?);
        self.remember(py, &open)?;
        Ok(NativeTransaction(open))
    }

    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |store| store.sync())
    }

    fn checkpoint(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |store| store.checkpoint())
    }

    /// Returns the number of records in the backup.
    fn backup(&self, py: Python<'_>, path: PathBuf) -> PyResult<u64> {
        self.with(py, |store| store.backup(&path))
    }

    /// The maximum lengths of a key and of a value, bytes.
    fn limits(&self, py: Python<'_>) -> PyResult<(usize, usize)> {
        self.with(py, |store| Ok(store.limits()))
    }

    /// The statistics as JSON.
    fn statistics(&self, py: Python<'_>) -> PyResult<String> {
        let statistics = self.with(py, |store| Ok(store.statistics()))?;
        serde_json::to_string(&statistics).map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// Closes snapshots and transactions, writes a checkpoint and closes the file. Does nothing if the store is closed.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let Some(store) = self.store.lock().ignore_poison().take() else { return Ok(()) };
        let open = std::mem::take(&mut *self.open.lock().ignore_poison());
        py.detach(|| {
            open.iter().filter_map(Weak::upgrade).for_each(|open| open.close());
            store.close()
        })
        .map_err(raised)
    }
}

/// Rows of one size in a buffer. Copies them in parts, because Python may change the buffer.
struct Rows {
    buffer: PyBuffer<u8>,
    row_bytes: usize,
    count: usize,
    /// The rows from `part_begin` on.
    part: Vec<u8>,
    part_begin: usize,
}

impl Rows {
    /// Bytes to copy at once.
    const PART_BYTES: usize = 1 << 20;

    fn new(buffer: PyBuffer<u8>, row_bytes: usize) -> Self {
        let count = buffer.item_count().checked_div(row_bytes).unwrap_or(0);
        Self { buffer, row_bytes, count, part: Vec::new(), part_begin: 0 }
    }

    fn row(&mut self, index: usize) -> PyResult<Vec<u8>> {
        let place = |begin: usize, row_bytes: usize| {
            let at = (index - begin) * row_bytes;
            at..at + row_bytes
        };
        if let Some(row) = self.part.get(place(self.part_begin, self.row_bytes)) {
            return Ok(row.to_vec());
        }
        let rows = (Self::PART_BYTES / self.row_bytes).max(1).min(self.count - index);
        self.part = Python::attach(|py| {
            py.check_signals()?;
            let bytes = (index * self.row_bytes) as isize..((index + rows) * self.row_bytes) as isize;
            let slice = PySlice::new(py, bytes.start, bytes.end, 1);
            let view = PyMemoryView::from(self.buffer.obj(py).ok_or_else(closed)?)?;
            PyBuffer::<u8>::get(&view.get_item(slice)?)?.to_vec(py)
        })?;
        self.part_begin = index;
        let row = self.part.get(place(index, self.row_bytes));
        row.map(<[u8]>::to_vec).ok_or_else(|| PyValueError::new_err("the array became smaller"))
    }
}

/// The records of two arrays. After an error of Python, records out of order, which make the load fail.
struct Records<'a> {
    keys: Rows,
    values: Rows,
    next: usize,
    failed: &'a mut Option<PyErr>,
}

impl Iterator for Records<'_> {
    type Item = (Vec<u8>, Vec<u8>);

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed.is_none() {
            if self.next == self.keys.count {
                return None;
            }
            let index = self.next;
            self.next += 1;
            match self.keys.row(index).and_then(|key| Ok((key, self.values.row(index)?))) {
                Ok(record) => return Some(record),
                Err(error) => *self.failed = Some(error),
            }
        }
        Some((Vec::new(), Vec::new()))
    }
}

/// One version of a store.
#[pyclass(frozen)]
pub struct NativeSnapshot(Arc<Open<Snapshot>>);

#[pymethods]
impl NativeSnapshot {
    fn get<'py>(&self, py: Python<'py>, key: &[u8]) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let value = self.0.with(py, |snapshot| snapshot.get(key))?;
        Ok(value.map(|value| PyBytes::new(py, &value)))
    }

    fn contains(&self, py: Python<'_>, key: &[u8]) -> PyResult<bool> {
        self.0.with(py, |snapshot| snapshot.contains_key(key))
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.0.with(py, |snapshot| Ok(snapshot.len()))? as usize)
    }

    /// Some records of a range, from its beginning or its end. None are left if the list is empty.
    fn page<'py>(&self, py: Python<'py>, keys: Keys, reverse: bool, limit: usize) -> PyResult<PyRows<'py>> {
        let bounds = keys.bounds();
        let page = self.0.with(py, |snapshot| {
            let rows = snapshot.range(bounds);
            let pair = |row: longma_zoned::Record| row.to_pair();
            if reverse { page(limit, rows.rev(), pair) } else { page(limit, rows, pair) }
        })?;
        Ok(to_python(py, &page))
    }

    /// The keys and values of a range as two byte strings. All keys have `key_bytes` bytes, and all values `value_bytes`.
    fn fixed<'py>(
        &self,
        py: Python<'py>,
        keys: Keys,
        key_bytes: usize,
        value_bytes: usize,
        limit: usize,
    ) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
        let bounds = keys.bounds();
        let (mut all_keys, mut all_values) = (Vec::new(), Vec::new());
        let other = self.0.with(py, |snapshot| {
            let mut rows = snapshot.range(bounds);
            let mut left = limit;
            while left > 0
                && let Some((key, value)) = rows.next_row()?
            {
                if (key.len(), value.len()) != (key_bytes, value_bytes) {
                    return Ok(Some((key.escape_ascii().to_string(), key.len(), value.len())));
                }
                all_keys.extend_from_slice(key);
                all_values.extend_from_slice(value);
                left -= 1;
            }
            Ok(None)
        })?;
        if let Some((key, has_key_bytes, has_value_bytes)) = other {
            return Err(PyValueError::new_err(format!(
                "the key {key} has {has_key_bytes} bytes and its value {has_value_bytes}, not {key_bytes} and {value_bytes} as the types of the arrays"
            )));
        }
        Ok((PyBytes::new(py, &all_keys), PyBytes::new(py, &all_values)))
    }

    /// Returns the number of records in the backup.
    fn backup(&self, py: Python<'_>, path: PathBuf) -> PyResult<u64> {
        self.0.with(py, |snapshot| snapshot.backup(&path))
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.0.close());
    }
}

/// Records as Python's bytes.
type PyRows<'py> = Vec<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)>;

/// A read-write transaction.
#[pyclass(frozen)]
pub struct NativeTransaction(Arc<Open<Transaction>>);

#[pymethods]
impl NativeTransaction {
    fn get<'py>(&self, py: Python<'py>, key: &[u8]) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let value = self.0.with(py, |transaction| transaction.get(key))?;
        Ok(value.map(|value| PyBytes::new(py, &value)))
    }

    fn contains(&self, py: Python<'_>, key: &[u8]) -> PyResult<bool> {
        self.0.with(py, |transaction| transaction.contains_key(key))
    }

    fn put(&self, py: Python<'_>, key: &[u8], value: &[u8]) -> PyResult<()> {
        self.0.with(py, |transaction| {
            transaction.put(key, value);
            Ok(())
        })
    }

    fn delete(&self, py: Python<'_>, key: &[u8]) -> PyResult<()> {
        self.0.with(py, |transaction| {
            transaction.delete(key);
            Ok(())
        })
    }

    /// Some records of a range as the transaction sees them, from its beginning or its end.
    fn page<'py>(&self, py: Python<'py>, keys: Keys, reverse: bool, limit: usize) -> PyResult<PyRows<'py>> {
        let bounds = keys.bounds();
        let page = self.0.with(py, |transaction| {
            let rows = transaction.range(bounds);
            if reverse { page(limit, rows.rev(), |row| row) } else { page(limit, rows, |row| row) }
        })?;
        Ok(to_python(py, &page))
    }

    /// Applies the changes, and closes the transaction in any case.
    fn commit(&self, py: Python<'_>) -> PyResult<(u64, u64, u64)> {
        let committed = py.detach(|| self.0.0.lock().ignore_poison().take().map(Transaction::commit));
        let applied = committed.ok_or_else(closed)?.map_err(raised)?;
        Ok((applied.inserted, applied.updated, applied.deleted))
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.0.close());
    }
}
