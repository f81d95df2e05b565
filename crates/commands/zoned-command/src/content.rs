//! `longma zoned get`, `put`, `delete`, `scan`, `backup` and `load`.

use super::device::DeviceOptions;
use super::map::{Map, load_runs, only_tree};
use super::text::TextFormat;
use super::{Format, INTERRUPTED, Outcome, bar, interruption};
use longma_command_line::output::{print, print_json};
use longma_zoned::{Batch, Durability, KeyRange, Options, Store, ZonedDevice};
use serde_json::json;
use std::io::{BufRead, ErrorKind, IsTerminal, Read, Write};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering;

/// Arguments of `longma zoned get`.
#[derive(clap::Args)]
pub struct GetArguments {
    #[command(flatten)]
    device: DeviceOptions,
    /// The key.
    key: String,
    #[command(flatten)]
    text: TextFormat,
    /// Output format: the bytes of the value, followed by a newline only on a terminal, or a JSON object as in `scan`.
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
}

/// Arguments of `longma zoned put`.
#[derive(clap::Args)]
pub struct PutArguments {
    #[command(flatten)]
    device: DeviceOptions,
    /// The key.
    key: String,
    /// The value; `-` reads it from standard input, unchanged.
    value: String,
    #[command(flatten)]
    text: TextFormat,
}

/// Arguments of `longma zoned delete`.
#[derive(clap::Args)]
pub struct DeleteArguments {
    #[command(flatten)]
    device: DeviceOptions,
    /// The key.
    key: String,
    #[command(flatten)]
    text: TextFormat,
}

/// Arguments of `longma zoned backup`.
#[derive(clap::Args)]
pub struct BackupArguments {
    #[command(flatten)]
    device: DeviceOptions,
    /// The new file. An existing file is not replaced.
    file: PathBuf,
}

/// Arguments of `longma zoned scan`.
#[derive(clap::Args)]
pub struct ScanArguments {
    #[command(flatten)]
    device: DeviceOptions,
    /// Start at this key.
    #[arg(long, value_name = "KEY")]
    from: Option<String>,
    /// Stop before this key.
    #[arg(long, value_name = "KEY")]
    to: Option<String>,
    /// Scan in descending order.
    #[arg(long)]
    reverse: bool,
    /// Print at most this many keys.
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Print only the number of keys.
    #[arg(long)]
    count: bool,
    #[command(flatten)]
    text: TextFormat,
    /// Output format: `KEY<tab>VALUE` lines, or one JSON object per line.
    ///
    /// Lines escape control characters and invalid UTF-8 as `\t`, `\n`, `\r` or `\xNN`, and a backslash as `\\`. In JSON,
    /// keys and values are strings, or `{"hex": "..."}` if they are not UTF-8. With --hex, both are hexadecimal digits.
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
}

/// Arguments of `longma zoned load`.
#[derive(clap::Args)]
pub struct LoadArguments {
    #[command(flatten)]
    device: DeviceOptions,
    /// File of `KEY<tab>VALUE` lines with escapes, as `scan` prints them; `-` reads standard input.
    file: PathBuf,
    /// The keys are in ascending order. Loading a tree is then faster and fills the nodes.
    #[arg(long)]
    sorted: bool,
    /// Number of lines per write batch.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    batch: u32,
    #[command(flatten)]
    text: TextFormat,
}

/// Prints the value of a key; exits with status 1 if the key does not exist.
pub fn get(arguments: &GetArguments) -> Outcome {
    let map = arguments.device.any_map_to_read()?;
    let value = map.get(&arguments.text.parse_argument(&arguments.key)?)?;
    if arguments.format == Format::Json {
        let printed = value.as_ref().map(|value| arguments.text.json(value));
        print_json(&json!({ "key": arguments.key, "value": printed }))?;
    } else if let Some(value) = &value {
        if arguments.text.is_hex() {
            print(&format!("{}\n", arguments.text.format(value)))?;
        } else {
            let mut out = std::io::stdout().lock();
            let end: &[u8] = if out.is_terminal() { b"\n" } else { b"" };
            let written = out.write_all(value).and_then(|()| out.write_all(end)).and_then(|()| out.flush());
            written.or_else(unless_closed)?;
        }
    } else {
        eprintln!("longma: there is no key {}", arguments.key);
    }
    Ok(if value.is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Stores a value under a key.
pub fn put(arguments: &PutArguments) -> Outcome {
    let key = arguments.text.parse_argument(&arguments.key)?;
    let value = if arguments.value == "-" {
        let mut value = Vec::new();
        std::io::stdin()
            .lock()
            .read_to_end(&mut value)
            .map_err(|error| format!("cannot read standard input: {error}"))?;
        value
    } else {
        arguments.text.parse_argument(&arguments.value)?
    };
    let map = arguments.device.any_map(Options::default())?;
    map.put(&key, &value)?;
    Ok(ExitCode::SUCCESS)
}

/// Deletes a key; exits with status 1 if it did not exist.
pub fn delete(arguments: &DeleteArguments) -> Outcome {
    let key = arguments.text.parse_argument(&arguments.key)?;
    let existed = arguments.device.any_map(Options::default())?.delete(&key)?;
    if !existed {
        eprintln!("longma: there is no key {}", arguments.key);
    }
    Ok(if existed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Copies the map to a new file.
pub fn backup(arguments: &BackupArguments) -> Outcome {
    only_tree(&arguments.device.open_to_read()?, "backup")?;
    let keys = arguments.device.map_to_read()?.backup(&arguments.file)?;
    print(&format!("{}: {keys} keys\n", arguments.file.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Prints keys and values in order.
pub fn scan(arguments: &ScanArguments) -> Outcome {
    let key =
        |text: &Option<String>| text.as_ref().map(|text| arguments.text.parse_argument(text)).transpose();
    let (from, to) = (key(&arguments.from)?, key(&arguments.to)?);
    let range = KeyRange {
        start: from.as_deref().map_or(Bound::Unbounded, Bound::Included),
        end: to.as_deref().map_or(Bound::Unbounded, Bound::Excluded),
    };
    let map = arguments.device.any_map_to_read()?;
    let stop = interruption();
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let (mut rows, mut count, mut written) = (map.range(range), 0u64, Ok(()));
    while count < arguments.limit.unwrap_or(u64::MAX) && written.is_ok() && !stop.load(Ordering::Relaxed) {
        let Some((key, value)) = rows.next(arguments.reverse)? else { break };
        count += 1;
        if !arguments.count {
            written = line(&mut out, arguments, &key, &value);
        }
    }
    if arguments.count && written.is_ok() {
        written = writeln!(out, "{count}");
    }
    written.and_then(|()| out.flush()).or_else(unless_closed)?;
    Ok(if stop.load(Ordering::Relaxed) { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS })
}

fn line(out: &mut impl Write, arguments: &ScanArguments, key: &[u8], value: &[u8]) -> std::io::Result<()> {
    let text = &arguments.text;
    match arguments.format {
        Format::Table => writeln!(out, "{}\t{}", text.format(key), text.format(value)),
        Format::Json => writeln!(out, "{}", json!({ "key": text.json(key), "value": text.json(value) })),
    }
}

/// Ignores a closed output pipe: the reader may stop early.
fn unless_closed(error: std::io::Error) -> std::io::Result<()> {
    if error.kind() == ErrorKind::BrokenPipe { Ok(()) } else { Err(error) }
}

/// Loads a file.
pub fn load(arguments: &LoadArguments) -> Outcome {
    // Batches are not flushed one by one. A killed command still loses only the lines of the current batch, and the
    // final sync makes all batches durable.
    let map = arguments.device.any_map(Options { durability: Durability::Relaxed, ..Options::default() })?;
    let stop = interruption();
    let (input, length): (Box<dyn BufRead>, u64) = if arguments.file == Path::new("-") {
        (Box::new(std::io::stdin().lock()), 0)
    } else {
        let cannot = |error| format!("cannot read {}: {error}", arguments.file.display());
        let file = std::fs::File::open(&arguments.file).map_err(cannot)?;
        let length = file.metadata().map_or(0, |data| data.len());
        (Box::new(std::io::BufReader::with_capacity(1 << 20, file)), length)
    };
    let bar = bar(length, "bytes");
    let mut problem = None;
    let (key, value) = map.limits();
    // An escaped byte takes up to four characters.
    let longest = 4 * (key as u64 + value as u64) + 2;
    let mut lines = Lines { input, arguments, longest, number: 0, buffer: Vec::new() };
    let records = std::iter::from_fn(|| {
        if stop.load(Ordering::Relaxed) {
            return None;
        }
        match lines.next() {
            Ok(Some(record)) => {
                bar.inc(record.bytes);
                Some((record.key, record.value))
            }
            Ok(None) => None,
            Err(error) => {
                problem = Some(error);
                None
            }
        }
    });
    let loaded = match &map {
        Map::Tree(map) if arguments.sorted => map.load(records)?,
        Map::Tree(map) => by_batches(map, records, arguments.batch)?,
        Map::Runs(map) => load_runs(map, records, arguments.batch)?,
    };
    bar.finish_and_clear();
    if let Some(problem) = problem {
        return Err(format!("{problem}; the {loaded} lines before it are loaded").into());
    }
    map.close()?;
    eprintln!("{loaded} lines loaded");
    Ok(if stop.load(Ordering::Relaxed) { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS })
}

fn by_batches<D: ZonedDevice>(
    map: &Store<D>,
    records: impl Iterator<Item = (Vec<u8>, Vec<u8>)>,
    limit: u32,
) -> longma_zoned::Result<u64> {
    let (mut batch, mut loaded) = (Batch::new(), 0);
    for (key, value) in records {
        batch.put(&key, &value);
        if batch.len() == limit as usize {
            map.apply(&batch)?;
            loaded += batch.len() as u64;
            batch.clear();
        }
    }
    map.apply(&batch)?;
    map.sync()?;
    Ok(loaded + batch.len() as u64)
}

/// Reads the lines of the file to load.
struct Lines<'a> {
    input: Box<dyn BufRead>,
    arguments: &'a LoadArguments,
    /// Maximum length of a line in bytes, from the map's limits on keys and values.
    longest: u64,
    number: u64,
    buffer: Vec<u8>,
}

/// A parsed line and its length in bytes.
struct Line {
    key: Vec<u8>,
    value: Vec<u8>,
    bytes: u64,
}

impl Lines<'_> {
    /// Reads and parses the next line; `None` at the end.
    fn next(&mut self) -> Result<Option<Line>, String> {
        self.buffer.clear();
        self.number += 1;
        let place = |what: &str| format!("{}, line {}: {what}", self.arguments.file.display(), self.number);
        let mut input = (&mut self.input).take(self.longest + 1);
        let bytes = input.read_until(b'\n', &mut self.buffer).map_err(|error| place(&error.to_string()))?;
        if bytes == 0 {
            return Ok(None);
        }
        if bytes as u64 > self.longest {
            return Err(place("the line is longer than the largest key and value of this map"));
        }
        let line = self.buffer.strip_suffix(b"\n").unwrap_or(&self.buffer);
        let Some(tab) = line.iter().position(|byte| *byte == b'\t') else {
            return Err(place("there is no tab between key and value"));
        };
        let text = &self.arguments.text;
        let key = text.parse_field(&line[..tab]).map_err(|error| place(&error))?;
        let value = text.parse_field(&line[tab + 1..]).map_err(|error| place(&error))?;
        Ok(Some(Line { key, value, bytes: bytes as u64 }))
    }
}
