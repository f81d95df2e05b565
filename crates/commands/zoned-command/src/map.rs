//! A map of either layout, for the commands that work with both.

use super::device::{Device, DeviceOptions, Layout};
use clap::ValueEnum as _;
use longma_zoned::{Durability, Iter, KeyBounds, KeyRange, Options, Store};
use longma_zoned_runs as runs;
use std::borrow::Cow;
use std::error::Error;

/// The map on a device.
pub enum Map {
    Tree(Store<Device>),
    Runs(runs::Store<Device>),
}

/// A result whose error is a message for the user.
type Fallible<T> = Result<T, Box<dyn Error>>;

/// Number of attempts of a change that fails for lack of space: each attempt continues a merge, which frees space.
const MAX_ATTEMPTS: u32 = 1_000_000;

/// Converts the settings of a tree to the corresponding settings of sorted runs.
pub fn runs_options(options: &Options) -> runs::Options {
    let durability = match options.durability {
        Durability::EachBatch => runs::Durability::EachBatch,
        Durability::Relaxed => runs::Durability::Relaxed,
    };
    runs::Options { durability, ..runs::Options::with_cache(options.cache_bytes) }
}

/// The layout of the map on a device. A device without a map is treated as if it had a tree.
pub fn layout_of(device: &Device) -> Fallible<Layout> {
    // Look for a tree first: formatting for a tree can leave an older manifest of runs in its zones.
    let is_runs = Store::info(device).is_err() && runs::Store::is_on(device)?;
    Ok(if is_runs { Layout::Runs } else { Layout::Tree })
}

/// Refuses a command that does not work with sorted runs.
pub fn only_tree(device: &Device, command: &str) -> Fallible<()> {
    match layout_of(device)? {
        Layout::Tree => Ok(()),
        Layout::Runs => Err(no_runs(&device.name(), command).into()),
    }
}

fn no_runs(device: &str, command: &str) -> String {
    let layout = Layout::Runs.to_possible_value().map_or_else(String::new, |value| value.get_name().into());
    format!(
        "{device} holds a map of the experimental layout {layout}, with which `longma zoned {command}` does not work: \
         use get, put, delete, scan, load, info, check, repair or bench"
    )
}

impl DeviceOptions {
    /// Opens the map on an existing device.
    pub fn any_map(&self, options: Options) -> Fallible<Map> {
        let device = self.open()?;
        Ok(match layout_of(&device)? {
            Layout::Tree => Map::Tree(Store::open(device, options)?),
            Layout::Runs => Map::Runs(runs::Store::open(device, runs_options(&options))?),
        })
    }

    /// Opens the map on an existing device read-only.
    pub fn any_map_to_read(&self) -> Fallible<Map> {
        let (device, options) = (self.open_to_read()?, Options::default());
        Ok(match layout_of(&device)? {
            Layout::Tree => Map::Tree(Store::open_read_only(device, options)?),
            Layout::Runs => Map::Runs(runs::Store::open_read_only(device, runs_options(&options))?),
        })
    }
}

impl Map {
    pub fn get(&self, key: &[u8]) -> Fallible<Option<Vec<u8>>> {
        Ok(match self {
            Self::Tree(map) => map.get(key)?,
            Self::Runs(map) => map.get(key)?,
        })
    }

    pub fn put(&self, key: &[u8], value: &[u8]) -> Fallible<()> {
        match self {
            Self::Tree(map) => drop(map.put(key, value)?),
            Self::Runs(map) => {
                let mut batch = runs::Batch::new();
                batch.put(key, value);
                apply_with_retries(map, &batch)?;
            }
        }
        Ok(())
    }

    /// Deletes a key. Returns whether the map had it.
    pub fn delete(&self, key: &[u8]) -> Fallible<bool> {
        Ok(match self {
            Self::Tree(map) => map.delete(key)?,
            Self::Runs(map) => {
                let existed = map.contains_key(key)?;
                map.delete(key)?;
                existed
            }
        })
    }

    /// The longest key and the longest value, bytes.
    pub fn limits(&self) -> (usize, usize) {
        match self {
            Self::Tree(map) => map.limits(),
            Self::Runs(map) => map.limits(),
        }
    }

    pub fn range(&self, range: KeyRange<'_>) -> Rows {
        match self {
            Self::Tree(map) => Rows::Tree(Box::new(map.range(range))),
            Self::Runs(map) => {
                let range = range.key_range();
                Rows::Runs(Box::new(map.range(range.start, range.end)))
            }
        }
    }

    pub fn close(self) -> Fallible<()> {
        match self {
            Self::Tree(map) => map.close()?,
            Self::Runs(map) => map.close()?,
        }
        Ok(())
    }
}

/// Applies a batch. Retries while a merge frees space: each attempt does a part of the merge.
fn apply_with_retries(map: &runs::Store<Device>, batch: &runs::Batch) -> runs::Result<()> {
    let mut applied = map.apply(batch);
    for _ in 0..MAX_ATTEMPTS {
        if !matches!(applied, Err(runs::Error::Full { is_merging: true, .. })) {
            break;
        }
        applied = map.apply(batch);
    }
    applied
}

/// Loads records in batches of at most `limit` records, and makes them durable. Returns their number.
pub fn load_runs(
    map: &runs::Store<Device>,
    records: impl Iterator<Item = (Vec<u8>, Vec<u8>)>,
    limit: u32,
) -> runs::Result<u64> {
    let (mut batch, mut bytes, mut loaded) = (runs::Batch::new(), 0, 0);
    for (key, value) in records {
        let record = key.len() + value.len() + 16;
        if !batch.is_empty() && (batch.len() == limit as usize || bytes + record > map.longest_batch()) {
            apply_with_retries(map, &batch)?;
            loaded += batch.len() as u64;
            batch.clear();
            bytes = 0;
        }
        batch.put(&key, &value);
        bytes += record;
    }
    apply_with_retries(map, &batch)?;
    map.sync()?;
    Ok(loaded + batch.len() as u64)
}

/// The rows of a range.
pub enum Rows {
    Tree(Box<Iter<Device>>),
    Runs(Box<runs::Iter<Device>>),
}

/// A key and its value.
type Row<'a> = (Cow<'a, [u8]>, Cow<'a, [u8]>);

impl Rows {
    /// The next row in ascending order, or with `reverse` from the end.
    pub fn next(&mut self, reverse: bool) -> Fallible<Option<Row<'_>>> {
        Ok(match self {
            Self::Tree(rows) => {
                let row = if reverse { rows.next_back_row()? } else { rows.next_row()? };
                row.map(|(key, value)| (Cow::Borrowed(key), Cow::Borrowed(value)))
            }
            Self::Runs(rows) => {
                let row = if reverse { rows.next_back() } else { rows.next() };
                row.transpose()?.map(|(key, value)| (Cow::Owned(key), Cow::Owned(value)))
            }
        })
    }
}
