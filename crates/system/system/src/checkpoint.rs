//! Checkpoints: a machine's state in a file, from which another machine continues as this one would. `checkpoint_file`
//! defines the file. The state of each part is defined beside the part, in `core/saved.rs`, `platform/saved.rs` and the
//! modules of their parts.
//!
//! A checkpoint does not contain the state of models, of a network outside of the machine, or of a debugger. A file is
//! not trusted: a restored machine is as safe as one with hostile software.

use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, Write};
use std::ops::Range;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use crate::checkpoint_file::{FormatError, RestoreError, SaveError};
use crate::checkpoint_file::{InvalidState, MAX_RUN_BYTES, Reader, Run, Writer, check};
use crate::core::SavedCore;
use crate::machine::{Configuration, MAX_CORES, MAX_LAG, Machine, TURN, Turn};
use crate::memory::{Memory, PAGE_BYTES};
use crate::platform::SavedPlatform;

/// The number of the space that holds memory in a file.
const MEMORY: u32 = 0;
/// The latest valid cycle, reached after 146 years. Sums with later cycles could overflow.
const MAX_CYCLE: u64 = 1 << 62;
/// The longest remainder of a turn, in a machine with one core. The machine executes the remainder without
/// interruption.
const MAX_SINGLE_TURN: u64 = 1 << 24;

/// The longest remainder of a turn.
fn longest_turn(cores: usize) -> u64 {
    if cores == 1 { MAX_SINGLE_TURN } else { TURN }
}

/// The description in a file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedMachine {
    /// The version of longma that wrote the file.
    longma: String,
    memory_bytes: u64,
    now: u64,
    turn: Option<Turn>,
    cores: Vec<SavedCore>,
    platform: SavedPlatform,
    /// The caller's part.
    notes: Value,
}

impl SavedMachine {
    /// Whether all times are in the valid range.
    fn has_times(&self) -> bool {
        let count = self.cores.len();
        // An idle core may lag behind by any time: it adopts the machine's time when it continues. A running core lags
        // behind only because of a debugger.
        let earliest = self.now.saturating_sub(MAX_LAG + TURN);
        let mut started = self.cores.iter().filter(|core| !core.is_parked);
        self.now <= MAX_CYCLE
            && started.all(|core| core.clock <= MAX_CYCLE && (core.is_idle || core.clock >= earliest))
            && self.turn.is_none_or(|turn| turn.core < count && turn.end <= self.now + longest_turn(count))
    }
}

impl Machine {
    /// Writes the state to `out`, with `notes` of the caller. The machine can continue.
    ///
    /// # Errors
    /// A device has state that cannot be saved, or `out` fails.
    pub fn save(&self, notes: Value, out: impl Write) -> Result<(), SaveError> {
        let platform = self.bus.platform.borrow();
        let memory = &self.bus.memory;
        let end = self.now.saturating_add(longest_turn(self.cores.len()));
        let description = SavedMachine {
            longma: env!("CARGO_PKG_VERSION").into(),
            memory_bytes: memory.bytes(),
            now: self.now,
            turn: self.turn.map(|turn| Turn { end: turn.end.min(end), ..turn }),
            cores: self.cores.iter().map(|(frame, core)| core.saved(&frame.state)).collect(),
            platform: platform.saved()?,
            notes,
        };
        let mut writer = Writer::new(out, &description)?;
        for (start, bytes) in memory.ranges() {
            write_memory(memory, *start, *bytes, &mut writer)?;
        }
        platform.written_blocks(|disk, address, bytes| writer.run(disk, address, bytes))?;
        writer.finish()?.flush()?;
        Ok(())
    }

    /// Replaces the file `path` atomically by the state. See [`Machine::save`].
    ///
    /// # Errors
    /// A device has state that cannot be saved, or the host refuses to write the file.
    pub fn save_to(&self, path: &Path, notes: Value) -> Result<(), SaveError> {
        refuse_other_kinds(path)?;
        let file = tempfile::NamedTempFile::new_in(folder_of(path))?;
        let mut out = BufWriter::new(file.as_file());
        self.save(notes, &mut out)?;
        out.flush()?;
        drop(out);
        file.as_file().sync_all()?;
        file.persist(path).map_err(|refused| refused.error)?;
        Ok(())
    }
}

/// Whether [`Machine::save_to`] can make the file `path`.
///
/// # Errors
/// The host refuses, or `path` is a folder, a device or a pipe.
pub fn writable(path: &Path) -> io::Result<()> {
    refuse_other_kinds(path)?;
    tempfile::tempfile_in(folder_of(path)).map(drop)
}

/// A new file must not replace a device, such as /dev/null.
fn refuse_other_kinds(path: &Path) -> io::Result<()> {
    match path.symlink_metadata() {
        Ok(metadata) if !metadata.is_file() && !metadata.is_symlink() => {
            Err(io::Error::other("it exists and is not a file"))
        }
        _ => Ok(()),
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Writes the parts of a range of memory that are not 0.
fn write_memory(memory: &Memory, start: u64, bytes: u64, writer: &mut Writer<impl Write>) -> io::Result<()> {
    let mut chunk = vec![0; MAX_RUN_BYTES];
    for at in (start..start + bytes).step_by(MAX_RUN_BYTES) {
        let part = &mut chunk[..(start + bytes - at).min(MAX_RUN_BYTES as u64) as usize];
        memory.read(at, part).map_err(io::Error::other)?;
        for run in written_pages(part) {
            writer.run(MEMORY, at + run.start as u64, &part[run])?;
        }
    }
    Ok(())
}

/// The ranges of pages that are not 0.
fn written_pages(bytes: &[u8]) -> Vec<Range<usize>> {
    const EMPTY: [u8; PAGE_BYTES as usize] = [0; PAGE_BYTES as usize];
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (number, page) in bytes.chunks(EMPTY.len()).enumerate() {
        if page == &EMPTY[..page.len()] {
            continue;
        }
        let start = number * EMPTY.len();
        match runs.last_mut() {
            Some(run) if run.end == start => run.end += page.len(),
            _ => runs.push(start..start + page.len()),
        }
    }
    runs
}

/// A checkpoint with a correct checksum.
pub struct Checkpoint<R: Read = File> {
    saved: SavedMachine,
    runs: Reader<R>,
}

impl Checkpoint {
    /// Opens a file.
    ///
    /// # Errors
    /// It cannot be read, is not a checkpoint, is damaged, or is of another version.
    pub fn open(path: &Path) -> Result<Self, FormatError> {
        if !path.metadata()?.is_file() {
            // A pipe cannot be read twice, and opening it would wait for its writer.
            return Err(FormatError::Other);
        }
        Self::read(File::open(path)?)
    }
}

impl<R: Read + Seek> Checkpoint<R> {
    /// Reads a checkpoint from its start.
    ///
    /// # Errors
    /// As for [`Checkpoint::open`].
    pub fn read(mut file: R) -> Result<Self, FormatError> {
        check(&mut file)?;
        file.rewind()?;
        let (saved, runs): (SavedMachine, _) = Reader::new(file)?;
        if saved.cores.is_empty() || saved.cores.len() > MAX_CORES || !saved.has_times() {
            return Err(FormatError::Layout("the number of cores or the time is invalid".into()));
        }
        Ok(Self { saved, runs })
    }

    /// The configuration of a machine that can continue. The date is in the checkpoint.
    pub fn configuration(&self) -> Configuration {
        Configuration {
            cores: self.saved.cores.len(),
            memory_bytes: self.saved.memory_bytes,
            ..Configuration::default()
        }
    }

    /// The part that the caller of [`Machine::save`] has added.
    pub fn notes(&self) -> &Value {
        &self.saved.notes
    }

    /// The number of NICs.
    pub fn nics(&self) -> usize {
        self.saved.platform.nics()
    }

    /// Replaces the state of a new `machine`, which has [`Checkpoint::configuration`] and the devices of the one that was
    /// saved. Connections through a network have lost their peers. After an error, the machine must not be used.
    ///
    /// # Errors
    /// The machine has other devices, disks have changed, or the checkpoint contains an impossible state.
    pub fn restore(self, machine: &mut Machine) -> Result<(), RestoreError> {
        let Self { saved, mut runs } = self;
        if saved.cores.len() != machine.cores.len() || saved.memory_bytes != machine.bus.memory.bytes() {
            return Err(InvalidState::Other("the machine has other cores or another memory".into()).into());
        }
        let mut platform = machine.bus.platform.borrow_mut();
        platform.restore(saved.platform)?;
        while let Some(Run { space, address, bytes }) = runs.run()? {
            match space {
                MEMORY => machine
                    .bus
                    .memory
                    .write(address, &bytes)
                    .map_err(|_| InvalidState::value("an address of memory"))?,
                disk => platform.write_block(disk, address, &bytes)?,
            }
        }
        drop(platform);
        for ((frame, core), saved) in machine.cores.iter_mut().zip(saved.cores) {
            core.restore(&mut frame.state, saved)?;
        }
        machine.remove_code();
        (machine.now, machine.turn) = (saved.now, saved.turn);
        Ok(())
    }
}
