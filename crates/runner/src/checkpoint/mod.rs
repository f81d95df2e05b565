//! Checkpoints: a process in simulated time saved to a file, and brought back from it under another machine.
//! Not what a process consists of, which is `longma_linux::image`'s, nor the file's format, which is in `format`.

mod format;

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};

use longma_guest::host::descriptors;
use longma_guest::host::locks::Mutex;
use longma_linux::image::{ImageError, ProcessImage, RestoredProcess, ThreadImage};
use longma_linux::{Outcome, Process};
use longma_sim::Time;
use serde::{Deserialize, Serialize};

use crate::schedule::{Interlude, RosterImage, Scheduler, SchedulerConfig, Simulated, Standing};
pub use format::FormatError;

/// Why a process cannot be saved or brought back.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The process has something that is not kept, or the host refused something.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The file is no checkpoint, or a damaged one.
    #[error("{}: {source}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: FormatError,
    },
    /// The file cannot be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
}

fn file_error(action: &'static str, path: &Path) -> impl Fn(io::Error) -> CheckpointError {
    let path = path.to_owned();
    move |source| CheckpointError::File { action, path: path.clone(), source }
}

/// The same file under a descriptor that no guest has: its own get their numbers back while this one is read.
fn out_of_the_way(file: File) -> io::Result<File> {
    descriptors::move_to_reserved(file.into()).map(File::from)
}

/// What a checkpoint says besides the contents of memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Contents {
    process: ProcessImage,
    roster: RosterImage,
    now_ps: u64,
}

/// Two months, in picoseconds: beyond that, sums of times would run over.
const LATEST_PS: u64 = 1 << 62;
/// A thread is ready at most so long after the moment at which it is saved: an hour.
const LONGEST_WAIT_PS: u64 = 3_600_000_000_000_000;

impl Contents {
    /// Whether its times are such that a run can go on from them.
    fn times_are_possible(&self) -> bool {
        let roster = &self.roster;
        let soon = self.now_ps.saturating_add(LONGEST_WAIT_PS);
        let of_cores = roster.cores.iter().all(|core| core.time_ps <= soon && core.used_ps <= LATEST_PS);
        let of_threads =
            roster.threads.iter().all(|thread| thread.ready_ps <= soon && thread.run_time_ps <= LATEST_PS);
        self.now_ps <= LATEST_PS && of_cores && of_threads
    }
}

/// What happens to a process once it is saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterSave {
    /// It goes on.
    Continue,
    /// It ends with this status.
    Exit(i32),
}

/// What to do with the outcome.
type Then = Box<dyn FnOnce(Result<(), CheckpointError>) -> AfterSave + Send>;

/// A process that is to be saved.
struct SaveRequest {
    path: PathBuf,
    then: Then,
}

/// Where a checkpoint is asked for.
#[derive(Default)]
pub struct Saver {
    asked: AtomicBool,
    request: Mutex<Option<SaveRequest>>,
}

impl Saver {
    /// Nothing asked yet.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Has the process saved to `path` as soon as the thread that runs has come to the end of its quantum, its system call or its
    /// magic instruction. `then` is told of the outcome and says how it goes on. An earlier request that was not served yet is
    /// forgotten.
    pub fn request(
        &self,
        path: PathBuf,
        then: impl FnOnce(Result<(), CheckpointError>) -> AfterSave + Send + 'static,
    ) {
        let request = SaveRequest { path, then: Box::new(then) };
        *self.request.lock().unwrap_or_else(PoisonError::into_inner) = Some(request);
        self.asked.store(true, Ordering::Release);
    }
}

impl Interlude for Saver {
    fn is_wanted(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    fn serve(&self, simulated: &Simulated, process: &Process) -> Option<Outcome> {
        self.asked.store(false, Ordering::Relaxed);
        let request = self.request.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        match (request.then)(save(&request.path, simulated, process)) {
            AfterSave::Continue => None,
            AfterSave::Exit(status) => Some(Outcome::ExitProcess(status)),
        }
    }
}

/// The threads that are alive, each as it goes on or makes its call again.
fn threads(simulated: &Simulated) -> Result<Vec<ThreadImage>, ImageError> {
    let deposits = simulated.deposits();
    let thread = |(number, standing): (_, Standing)| {
        let refused = |what: String| ImageError::Thread { number: number_of(number), what };
        let deadline = match standing {
            Standing::Between => None,
            Standing::Waits(deadline) => deadline,
            Standing::Begun(what) => return Err(refused(format!("is in the middle of waiting for {what}"))),
            Standing::Outside => return Err(refused("waits for something outside of the model".into())),
        };
        let deposit = deposits.get(&number).ok_or_else(|| refused("has not begun yet".into()))?;
        match deposit.arrivals.undelivered() {
            0 => {}
            signals => return Err(refused(format!("has pending signals (set {signals:#x})"))),
        }
        Ok(ThreadImage::new(number, &deposit.state, deposit.kernel, deadline))
    };
    simulated.scheduler.standing().into_iter().map(thread).collect()
}

fn number_of(thread: longma_linux::simulated::ThreadNumber) -> u32 {
    thread.0
}

fn save(path: &Path, simulated: &Simulated, process: &Process) -> Result<(), CheckpointError> {
    let (roster, now) = simulated.scheduler.image();
    let contents = Contents { process: process.image(threads(simulated)?)?, roster, now_ps: now.ps() };
    // Under another name until it is whole: a reader never finds half a checkpoint under the one that was asked for.
    let unfinished = path.with_extension("unfinished");
    let written = write(&unfinished, &contents, process);
    let finished =
        written.and_then(|()| std::fs::rename(&unfinished, path).map_err(file_error("write", path)));
    if finished.is_err() {
        // What is left of it may not be there at all.
        let _ = std::fs::remove_file(&unfinished);
    }
    finished
}

fn write(path: &Path, contents: &Contents, process: &Process) -> Result<(), CheckpointError> {
    let failed = file_error("write", path);
    let file = File::create(path).map_err(&failed)?;
    let mut writer = format::Writer::new(BufWriter::new(file), contents).map_err(&failed)?;
    longma_linux::image::contents(process.address_space(), &mut |address, bytes| writer.run(address, bytes))?;
    let mut file = writer.finish().map_err(&failed)?;
    file.flush().map_err(&failed)
}

/// A checkpoint that was read and found whole.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    contents: Contents,
}

impl Checkpoint {
    /// Reads a checkpoint and checks all of it.
    ///
    /// # Errors
    /// It cannot be read, is none, is of another version, or is damaged.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let failed = file_error("read", path);
        let wrong = |source| CheckpointError::Format { path: path.to_owned(), source };
        let file = File::open(path).map_err(&failed)?;
        format::check(&mut BufReader::new(&file)).map_err(wrong)?;
        let reader = Self::reader(path, &failed)?;
        let (process, roster) = (&reader.contents.process, &reader.contents.roster);
        if process.threads_made as usize != roster.threads.len() {
            return Err(wrong(FormatError::Damaged("its threads are not those of its schedule")));
        }
        if process.threads.iter().any(|thread| thread.number >= process.threads_made) {
            return Err(wrong(FormatError::Damaged("it has more threads than it has created")));
        }
        if !reader.contents.times_are_possible() {
            return Err(wrong(FormatError::Damaged("its times are none that a run comes to")));
        }
        Ok(Self { path: path.to_owned(), contents: reader.contents })
    }

    fn reader(
        path: &Path,
        failed: &impl Fn(io::Error) -> CheckpointError,
    ) -> Result<format::Reader<BufReader<File>>, CheckpointError> {
        let file = File::open(path).and_then(out_of_the_way).map_err(failed)?;
        let wrong = |source| CheckpointError::Format { path: path.to_owned(), source };
        format::Reader::new(BufReader::new(file)).map_err(wrong)
    }

    /// What simulated time it was.
    pub fn time(&self) -> Time {
        Time::from_ps(self.contents.now_ps)
    }

    /// The program's file.
    pub fn program(&self) -> PathBuf {
        use std::os::unix::ffi::OsStringExt;
        std::ffi::OsString::from_vec(self.contents.process.executable.clone()).into()
    }

    /// A scheduler that goes on with the checkpoint's threads on the cores of `config`.
    ///
    /// # Errors
    /// The host has no descriptor to give.
    pub fn scheduler(&self, config: SchedulerConfig) -> io::Result<Arc<Scheduler>> {
        let alive: Vec<u32> = self.contents.process.threads.iter().map(|thread| thread.number).collect();
        Scheduler::restored(config, &self.contents.roster, &alive, self.time())
    }

    pub(crate) fn process(
        &self,
        config: longma_linux::ProcessConfig,
    ) -> Result<RestoredProcess, CheckpointError> {
        let mut reader = Self::reader(&self.path, &file_error("read", &self.path))?;
        let mut runs =
            || reader.run().map_err(|_| ImageError::Inconsistent("it has changed while it was read"));
        Ok(Process::restore(config, &self.contents.process, &mut runs)?)
    }
}
