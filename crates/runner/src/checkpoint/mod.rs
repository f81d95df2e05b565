//! Checkpoints: saving a process in simulated time to a file, and restoring it, possibly on another modelled machine.
//! `longma_linux::image` defines the state of a process, and `format` the file format.

mod format;

use longma_locks::IgnorePoison;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use longma_guest::host::descriptors;
use longma_guest::host::locks::Mutex;
use longma_linux::image::{ImageError, ProcessImage, RestoredProcess, ThreadImage};
use longma_linux::{Outcome, Process};
use longma_sim::Time;
use serde::{Deserialize, Serialize};

use crate::schedule::{
    Scheduler, SchedulerConfig, SimulatedProcess, StopTheWorld, StoppedState, ThreadTableImage,
};
pub use format::FormatError;

/// Why a process cannot be saved or restored.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The process has state that a checkpoint cannot hold, or the host refused an operation.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The file is not a checkpoint or is damaged.
    #[error("{}: {source}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The problem.
        source: FormatError,
    },
    /// The file cannot be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// The attempted operation.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

impl CheckpointError {
    /// Advice on how to solve the problem. The error message ends with it, after a semicolon.
    pub fn advice(&self) -> Option<&'static str> {
        match self {
            Self::Image(error) => error.advice(),
            Self::Format { source, .. } => source.advice(),
            Self::File { .. } => None,
        }
    }
}

fn file_error(action: &'static str, path: &Path) -> impl Fn(io::Error) -> CheckpointError {
    let path = path.to_owned();
    move |source| CheckpointError::File { action, path: path.clone(), source }
}

/// Moves the file to a descriptor number that no guest uses, because the file stays open while the guest's descriptors
/// are restored.
fn move_to_reserved(file: File) -> io::Result<File> {
    descriptors::move_to_reserved(file.into()).map(File::from)
}

/// The state of a process, except the contents of its memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct SavedState {
    process: ProcessImage,
    #[serde(rename = "roster")]
    thread_table: ThreadTableImage,
    now_ps: u64,
}

/// The latest valid time in picoseconds, about 53 days. Sums of later times could overflow.
const MAX_TIME_PS: u64 = 1 << 62;
/// The longest time in picoseconds, one hour, between the checkpoint and a thread's next turn.
const MAX_WAIT_PS: u64 = 3_600_000_000_000_000;

impl SavedState {
    /// Whether all times are in the valid range.
    fn times_are_valid(&self) -> bool {
        let thread_table = &self.thread_table;
        let latest = self.now_ps.saturating_add(MAX_WAIT_PS);
        let cores_valid =
            thread_table.cores.iter().all(|core| core.time_ps <= latest && core.used_ps <= MAX_TIME_PS);
        let threads_valid = thread_table
            .threads
            .iter()
            .all(|thread| thread.ready_ps <= latest && thread.run_time_ps <= MAX_TIME_PS);
        self.now_ps <= MAX_TIME_PS && cores_valid && threads_valid
    }
}

/// The fate of a process after a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterSave {
    /// It continues.
    Continue,
    /// It exits with this status.
    Exit(i32),
}

/// Receives the outcome and decides how the process continues.
type OnSaved = Box<dyn FnOnce(Result<(), CheckpointError>) -> AfterSave + Send>;

/// A requested checkpoint.
struct SaveRequest {
    path: PathBuf,
    then: OnSaved,
}

/// Accepts requests for checkpoints.
#[derive(Default)]
pub struct Saver {
    is_requested: AtomicBool,
    request: Mutex<Option<SaveRequest>>,
}

impl Saver {
    /// Creates a saver without a request.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Requests a checkpoint in the file `path`, after the running thread's current quantum, system call or magic
    /// instruction. `then` receives the outcome and decides how the process continues. Replaces an earlier request that
    /// is still pending.
    pub fn request(
        &self,
        path: PathBuf,
        then: impl FnOnce(Result<(), CheckpointError>) -> AfterSave + Send + 'static,
    ) {
        let request = SaveRequest { path, then: Box::new(then) };
        *self.request.lock().ignore_poison() = Some(request);
        self.is_requested.store(true, Ordering::Release);
    }
}

impl StopTheWorld for Saver {
    fn is_requested(&self) -> bool {
        self.is_requested.load(Ordering::Relaxed)
    }

    fn serve(&self, simulated: &SimulatedProcess, process: &Process) -> Option<Outcome> {
        self.is_requested.store(false, Ordering::Relaxed);
        let request = self.request.lock().ignore_poison().take()?;
        match (request.then)(save(&request.path, simulated, process)) {
            AfterSave::Continue => None,
            AfterSave::Exit(status) => Some(Outcome::ExitProcess(status)),
        }
    }
}

/// The images of all live threads. A thread in a restartable system call repeats the call after it is restored.
fn threads(simulated: &SimulatedProcess) -> Result<Vec<ThreadImage>, ImageError> {
    let snapshots = simulated.snapshots();
    let thread = |(number, state): (_, StoppedState)| {
        let thread_error = |what: String| ImageError::Thread { number: number_of(number), what };
        let deadline = match state {
            StoppedState::Between => None,
            StoppedState::Waits(deadline) => deadline,
            StoppedState::Begun(what) => {
                return Err(thread_error(format!("is blocked on {what} and cannot be restarted")));
            }
            StoppedState::Outside => {
                return Err(thread_error("waits for something outside the model".into()));
            }
        };
        let snapshot = snapshots.get(&number).ok_or_else(|| thread_error("has not started yet".into()))?;
        match snapshot.arrivals.undelivered() {
            0 => {}
            signals => return Err(thread_error(format!("has signals pending ({signals:#x})"))),
        }
        Ok(ThreadImage::new(number, &snapshot.state, snapshot.kernel, deadline))
    };
    simulated.scheduler.stopped_states().into_iter().map(thread).collect()
}

fn number_of(thread: longma_linux::simulated::ThreadNumber) -> u32 {
    thread.0
}

fn save(path: &Path, simulated: &SimulatedProcess, process: &Process) -> Result<(), CheckpointError> {
    let (thread_table, now) = simulated.scheduler.image();
    let state = SavedState { process: process.image(threads(simulated)?)?, thread_table, now_ps: now.ps() };
    // Write to a temporary file, so that `path` never holds an incomplete checkpoint.
    let unfinished = path.with_extension("unfinished");
    let written = write(&unfinished, &state, process);
    let finished =
        written.and_then(|()| std::fs::rename(&unfinished, path).map_err(file_error("write", path)));
    if finished.is_err() {
        // The temporary file may not exist.
        let _ = std::fs::remove_file(&unfinished);
    }
    finished
}

fn write(path: &Path, state: &SavedState, process: &Process) -> Result<(), CheckpointError> {
    let failed = file_error("write", path);
    let file = File::create(path).map_err(&failed)?;
    let mut writer = format::Writer::new(BufWriter::new(file), state).map_err(&failed)?;
    longma_linux::image::contents(process.address_space(), &mut |address, bytes| writer.run(address, bytes))?;
    let mut file = writer.finish().map_err(&failed)?;
    file.flush().map_err(&failed)
}

/// A checkpoint whose file was read and verified.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    state: SavedState,
}

impl Checkpoint {
    /// Reads and verifies a checkpoint.
    ///
    /// # Errors
    /// The file cannot be read, is not a checkpoint, has another version, or is damaged.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let failed = file_error("read", path);
        let format_error = |source| CheckpointError::Format { path: path.to_owned(), source };
        let file = File::open(path).map_err(&failed)?;
        format::check(&mut BufReader::new(&file)).map_err(format_error)?;
        let reader = Self::reader(path, &failed)?;
        let (process, thread_table) = (&reader.state.process, &reader.state.thread_table);
        if process.threads_made as usize != thread_table.threads.len() {
            return Err(format_error(FormatError::Damaged("the threads do not match the schedule")));
        }
        if process.threads.iter().any(|thread| thread.number >= process.threads_made) {
            return Err(format_error(FormatError::Damaged("a thread number is out of range")));
        }
        if !reader.state.times_are_valid() {
            return Err(format_error(FormatError::Damaged("a time is out of range")));
        }
        Ok(Self { path: path.to_owned(), state: reader.state })
    }

    fn reader(
        path: &Path,
        failed: &impl Fn(io::Error) -> CheckpointError,
    ) -> Result<format::Reader<BufReader<File>>, CheckpointError> {
        let file = File::open(path).and_then(move_to_reserved).map_err(failed)?;
        let format_error = |source| CheckpointError::Format { path: path.to_owned(), source };
        format::Reader::new(BufReader::new(file)).map_err(format_error)
    }

    /// The simulated time of the checkpoint.
    pub fn time(&self) -> Time {
        Time::from_ps(self.state.now_ps)
    }

    /// The path of the program.
    pub fn program(&self) -> PathBuf {
        use std::os::unix::ffi::OsStringExt;
        std::ffi::OsString::from_vec(self.state.process.executable.clone()).into()
    }

    /// Creates a scheduler that continues the checkpoint's threads on the cores of `config`.
    ///
    /// # Errors
    /// The host cannot provide a descriptor.
    pub fn scheduler(&self, config: SchedulerConfig) -> io::Result<Arc<Scheduler>> {
        let alive: Vec<u32> = self.state.process.threads.iter().map(|thread| thread.number).collect();
        Scheduler::restored(config, &self.state.thread_table, &alive, self.time())
    }

    pub(crate) fn process(
        &self,
        config: longma_linux::ProcessConfig,
    ) -> Result<RestoredProcess, CheckpointError> {
        let mut reader = Self::reader(&self.path, &file_error("read", &self.path))?;
        let mut runs =
            || reader.run().map_err(|_| ImageError::Inconsistent("the file changed while it was read"));
        Ok(Process::restore(config, &self.state.process, &mut runs)?)
    }
}
