//! Executes commands that read or change the map, on the map itself, a snapshot or a transaction.

use crate::command::{Command, Condition, Range};
use crate::output::Output;
use crate::pattern::Pattern;
use longma_zoned::{KeyBounds, Result, Snapshot, Store, Transaction, ZonedDevice};
use std::collections::HashSet;
use std::ops::Bound;

/// A version of the map.
pub(crate) trait View {
    /// The value of a key if `admit` accepts its length.
    fn get_if(&self, key: &[u8], admit: impl FnOnce(usize) -> bool) -> Result<Option<Vec<u8>>>;

    /// Whether a key is present.
    fn contains_key(&self, key: &[u8]) -> Result<bool>;

    /// Calls `visit` for the records of a range in order, until it returns false.
    fn visit(
        &self,
        range: impl KeyBounds,
        reverse: bool,
        visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()>;
}

impl<D: ZonedDevice> View for Snapshot<D> {
    fn get_if(&self, key: &[u8], admit: impl FnOnce(usize) -> bool) -> Result<Option<Vec<u8>>> {
        Snapshot::get_if(self, key, admit)
    }

    fn contains_key(&self, key: &[u8]) -> Result<bool> {
        Snapshot::contains_key(self, key)
    }

    fn visit(
        &self,
        range: impl KeyBounds,
        reverse: bool,
        mut visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()> {
        let mut rows = self.range(range);
        while let Some((key, value)) = if reverse { rows.next_back_row()? } else { rows.next_row()? } {
            if !visit(key, value) {
                break;
            }
        }
        Ok(())
    }
}

impl<D: ZonedDevice> View for Transaction<D> {
    fn get_if(&self, key: &[u8], admit: impl FnOnce(usize) -> bool) -> Result<Option<Vec<u8>>> {
        Transaction::get_if(self, key, admit)
    }

    fn contains_key(&self, key: &[u8]) -> Result<bool> {
        Transaction::contains_key(self, key)
    }

    fn visit(
        &self,
        range: impl KeyBounds,
        reverse: bool,
        mut visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()> {
        let mut rows = self.range(range);
        while let Some(row) = if reverse { rows.next_back() } else { rows.next() } {
            let (key, value) = row?;
            if !visit(&key, &value) {
                break;
            }
        }
        Ok(())
    }
}

/// Executes a command that reads the map. A read of a single key takes no snapshot.
pub(crate) fn read_store<D: ZonedDevice>(
    store: &Store<D>,
    command: &Command,
    output: &mut Output,
) -> Result<()> {
    match command {
        Command::Get(key) => add_value(output, |admit| store.get_if(key, admit))?,
        Command::Ping(None) => output.simple("PONG"),
        Command::Ping(Some(message)) | Command::Echo(message) => output.bulk(message),
        _ => read(&store.snapshot(), command, output)?,
    }
    Ok(())
}

/// Executes a command that reads.
pub(crate) fn read(view: &impl View, command: &Command, output: &mut Output) -> Result<()> {
    match command {
        Command::Get(key) => add_value(output, |admit| view.get_if(key, admit))?,
        Command::Exists(keys) => {
            let mut present = 0;
            for key in keys {
                present += u64::from(view.contains_key(key)?);
            }
            output.integer(present);
        }
        Command::GetMany(keys) => {
            output.array(keys.len());
            for key in keys {
                add_value(output, |admit| view.get_if(key, admit))?;
                if output.overflow().is_some() {
                    break;
                }
            }
        }
        Command::Range(range) => records(view, range, output)?,
        Command::Ping(None) => output.simple("PONG"),
        Command::Ping(Some(message)) | Command::Echo(message) => output.bulk(message),
        // UNWATCH within a transaction has no effect, because EXEC ends all watches.
        Command::Unwatch => output.simple("OK"),
        _ => output.error("ERR this command cannot be part of a transaction"),
    }
    Ok(())
}

/// Adds a value or null. The value is not read if it does not fit into the reply.
fn add_value(
    output: &mut Output,
    get_if: impl FnOnce(&mut dyn FnMut(usize) -> bool) -> Result<Option<Vec<u8>>>,
) -> Result<()> {
    let value = get_if(&mut |bytes| output.has_room_for_bulk(bytes))?;
    if output.overflow().is_none() {
        output.optional(value.as_deref());
    }
    Ok(())
}

/// Whether a range is empty by its bounds alone.
fn is_empty(range: &Range) -> bool {
    match (&range.start, &range.end) {
        (Bound::Included(start), Bound::Included(end)) => start > end,
        (Bound::Included(start) | Bound::Excluded(start), Bound::Included(end) | Bound::Excluded(end)) => {
            start >= end
        }
        _ => false,
    }
}

/// Appends the keys and values of a range alternately.
fn records(view: &impl View, range: &Range, output: &mut Output) -> Result<()> {
    // The reply begins with the number of records, which is known only at the end.
    let (mut count, mut body) = (0, output.nested());
    if !is_empty(range) {
        let bounds = (range.start.as_ref().map(Vec::as_slice), range.end.as_ref().map(Vec::as_slice));
        view.visit(bounds, range.reverse, |key, value| {
            body.bulk(key);
            body.bulk(value);
            count += 1;
            count < range.count && body.overflow().is_none()
        })?;
    }
    output.array(2 * count as usize);
    output.append(body);
    Ok(())
}

/// Executes a command that changes the map, and adds the keys that it has changed to `changed`.
pub(crate) fn write<D: ZonedDevice>(
    transaction: &mut Transaction<D>,
    command: &Command,
    output: &mut Output,
    changed: &mut HashSet<Vec<u8>>,
) -> Result<()> {
    match command {
        Command::Set { key, value, condition } => {
            let is_met = match condition {
                Condition::Always => true,
                Condition::IfAbsent => !transaction.contains_key(key)?,
                Condition::IfPresent => transaction.contains_key(key)?,
            };
            if is_met {
                transaction.put(key, value);
                changed.insert(key.clone());
                output.simple("OK");
            } else {
                output.null();
            }
        }
        Command::SetMany(pairs) => {
            for (key, value) in pairs {
                transaction.put(key, value);
                changed.insert(key.clone());
            }
            output.simple("OK");
        }
        Command::Delete(keys) => {
            let mut deleted = 0;
            for key in keys {
                if transaction.contains_key(key)? {
                    transaction.delete(key);
                    changed.insert(key.clone());
                    deleted += 1;
                }
            }
            output.integer(deleted);
        }
        _ => read(transaction, command, output)?,
    }
    Ok(())
}

/// A part of a scan: the keys found, and the last key examined if there are more.
pub(crate) struct ScanPart {
    pub keys: Vec<Vec<u8>>,
    pub last: Option<Vec<u8>>,
}

/// Examines `count` keys after `after`, at most [`SCAN_KEYS`] and [`SCAN_STEPS`], and returns those that match.
pub(crate) fn scan(
    view: &impl View,
    after: Option<&[u8]>,
    pattern: Option<&Pattern>,
    count: u64,
) -> Result<ScanPart> {
    let prefix = pattern.map(Pattern::prefix).unwrap_or_default();
    let start = match after {
        Some(key) if *key >= *prefix => Bound::Excluded(key),
        _ => Bound::Included(&prefix[..]),
    };
    let count = count.min(SCAN_KEYS);
    let (mut part, mut examined, mut bytes) = (ScanPart { keys: Vec::new(), last: None }, 0, 0);
    let mut steps = 0;
    let mut last = None;
    view.visit((start, Bound::Unbounded), false, |key, value| {
        if !key.starts_with(&prefix) {
            return false;
        }
        if last.is_some() {
            part.last = last.take();
            return false;
        }
        examined += 1;
        // Count long values by their length, because they are read from the device.
        steps += 1 + value.len() / VALUE_BYTES;
        if pattern.is_none_or(|pattern| pattern.matches(key, &mut steps)) {
            bytes += key.len() + crate::request::WORD_BYTES;
            part.keys.push(key.to_vec());
        }
        // Copy the key only if the next call may need it.
        if examined == count || bytes > SCAN_BYTES || steps > SCAN_STEPS {
            last = Some(key.to_vec());
        }
        true
    })?;
    Ok(part)
}

/// A part of a scan examines at most this many keys, so that it ends soon.
const SCAN_KEYS: u64 = 100_000;
/// A part of a scan ends after this many steps (pattern comparisons and keys), which take about 10 ms.
const SCAN_STEPS: usize = 4_000_000;
/// Bytes of a value that count as a step.
const VALUE_BYTES: usize = 4;
/// A part of a scan ends when its keys take this much memory, bytes.
const SCAN_BYTES: usize = 1 << 20;
