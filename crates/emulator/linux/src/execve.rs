//! execve: replaces the program of this process. For a guest program, the emulator executes itself; a native program of
//! the host runs directly. In simulated time, the models continue, so the emulator loads the new program itself.
//! Source: execve(2), execveat(2); Linux fs/exec.c, fs/binfmt_script.c.

use std::ffi::{CStr, CString, OsString};
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;

use longma_guest::Errno;
use longma_guest::host::attention::{Attention, with_attention};
use longma_guest::host::calls::interruptible_on_host;
use longma_guest::host::descriptors::{self, Limit, RaisedLimit};
use longma_guest::host::host_call;
use longma_loongarch::State;

use crate::arguments::Arguments;
use crate::files::{Follow, InMemoryFile, ProcFile, ResolvedPath, guest_path};
use crate::load::{LINE_BYTES, MAX_SCRIPTS, StackLimit, interpreter};
use crate::process::{Completion, StoredLimit};
use crate::simulated::Simulation;
use crate::{LoadError, NextProgram, Outcome, Process, ProcessConfig, Thread, open_files};
use longma_guest::elf::{Architecture, ElfError, Image, SUPPORTED_ARCHITECTURES};

const AT_EMPTY_PATH: u64 = 0x1000;
const AT_SYMLINK_NOFOLLOW: u64 = 0x100;
/// MAX_ARG_STRLEN.
const MAX_STRING_BYTES: usize = 128 << 10;

/// The result of a call. Outside simulated time, a successful call does not return, because the host replaces the
/// emulator.
type Executed = Result<Completion, Errno>;

pub(crate) fn execve(
    thread: &mut Thread,
    _: &mut State,
    [path, arguments, environment, ..]: Arguments,
) -> Executed {
    execute(thread, libc::AT_FDCWD, path, arguments, environment, 0)
}

pub(crate) fn execveat(thread: &mut Thread, _: &mut State, given: Arguments) -> Executed {
    let [directory, path, arguments, environment, flags, _] = given;
    if flags & !(AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) != 0 {
        return Err(Errno(libc::EINVAL));
    }
    execute(thread, directory as RawFd, path, arguments, environment, flags)
}

/// Executes a program. Outside simulated time, this returns only on failure.
fn execute(
    thread: &mut Thread,
    directory: RawFd,
    path: u64,
    arguments: u64,
    environment: u64,
    flags: u64,
) -> Executed {
    let process = thread.process.clone();
    let path = guest_path(&process, path)?;
    let mut budget = StackLimit::of(&process.config).max_argument_bytes() as usize;
    let mut arguments = strings(&process, arguments, &mut budget)?;
    let environment = strings(&process, environment, &mut budget)?;
    if arguments.is_empty() {
        // Programs may rely on having a name.
        arguments.push(CString::default());
    }
    // Execve must work even if the program has reached its descriptor limit.
    let raised = RaisedLimit::raise();
    let program = Program::find(&process, directory, path, arguments, flags)?;
    // A signal that has already arrived goes to the old program.
    thread.hold_signals()?;
    if let Some(simulation) = process.simulation() {
        return program
            .load(thread, simulation, &environment, raised)
            .inspect_err(|_| thread.signals.release());
    }
    thread.send_writes_to_parent();
    let error = program.start(thread, &environment, raised);
    if error != Errno::RESTART_ALWAYS {
        thread.signals.release();
    }
    Err(error)
}

/// Reads a null-terminated array of strings. A null pointer is an empty array.
fn strings(process: &Process, array: u64, budget: &mut usize) -> Result<Vec<CString>, Errno> {
    let too_much = Errno(libc::E2BIG);
    let memory = process.memory();
    let mut strings = Vec::new();
    if array == 0 {
        return Ok(strings);
    }
    for index in 0.. {
        let address: u64 = memory.load(array.wrapping_add(8 * index))?;
        if address == 0 {
            break;
        }
        let string = memory.read_c_string(address, MAX_STRING_BYTES)?.ok_or(too_much)?;
        *budget = budget.checked_sub(string.len() + 1 + size_of::<u64>()).ok_or(too_much)?;
        strings.push(CString::new(string).map_err(|_| Errno(libc::EINVAL))?);
    }
    Ok(strings)
}

/// The program to execute, after resolving scripts.
#[derive(Debug)]
struct Program {
    path: CString,
    arguments: Vec<CString>,
    /// Whether this emulator runs it.
    is_guest: bool,
    /// Kept open, because the path may refer to its descriptor.
    _file: File,
}

impl Program {
    /// Finds the program at `path`, following scripts to their interpreters.
    fn find(
        process: &Process,
        directory: RawFd,
        mut path: Vec<u8>,
        mut arguments: Vec<CString>,
        flags: u64,
    ) -> Result<Self, Errno> {
        let mut file = open(process, directory, &path, flags)?;
        if directory != libc::AT_FDCWD || ProcFile::find(process, directory, &path).is_some() {
            path = name_of(process, &file)?;
        }
        for _ in 0..=MAX_SCRIPTS {
            if process.simulation().is_some() && is_open_for_writing(&file) {
                return Err(Errno(libc::ETXTBSY));
            }
            let mut line = [0; LINE_BYTES];
            let read = file.read_at(&mut line, 0)?;
            let Some((interpreter, argument)) = interpreter(&line[..read])? else {
                let is_guest = is_guest(&file, process)?;
                if !is_guest && process.simulation().is_some() {
                    process.report(&format!(
                        "{} is not executed (ENOEXEC): in simulated time, programs are for {SUPPORTED_ARCHITECTURES}",
                        String::from_utf8_lossy(&path)
                    ));
                }
                if !is_guest && (process.root.is_confined() || process.simulation().is_some()) {
                    return Err(Errno(libc::ENOEXEC));
                }
                return Ok(Self { path: c_string(path)?, arguments, is_guest, _file: file });
            };
            let rest = arguments.into_iter().skip(1);
            let script = c_string(path)?;
            arguments =
                [Some(c_string(interpreter.clone())?), argument.map(c_string).transpose()?, Some(script)]
                    .into_iter()
                    .flatten()
                    .chain(rest)
                    .collect();
            path = match &process.fixed_identity {
                Some(names) => names.host(interpreter),
                None => interpreter,
            };
            file = open(process, libc::AT_FDCWD, &path, 0)?;
        }
        Err(Errno(libc::ELOOP))
    }

    /// Loads the program into a process that replaces the one of `thread`, whose other threads end.
    fn load(
        &self,
        thread: &mut Thread,
        simulation: &Simulation,
        environment: &[CString],
        raised: RaisedLimit,
    ) -> Executed {
        let process = thread.process.clone();
        let text = |text: &CString| OsString::from_vec(text.as_bytes().to_vec());
        let config = ProcessConfig {
            program: text(&self.path).into(),
            arguments: self.arguments.iter().map(text).collect(),
            environment: environment.iter().map(text).collect(),
            umask: None,
            limits: process.limits.all(),
            ..process.config.clone()
        };
        let executed = Process::load_next(config, thread).map_err(|error| errno_of(&error))?;
        drop(raised);
        // The old program cannot continue from here on.
        for other in simulation.scheduler.retire_others(thread.number) {
            if let Some(host) = simulation.identities.host_thread(other) {
                interrupt_host_call(host);
            }
        }
        simulation.scheduler.become_only(thread.number);
        let next = executed.0.process();
        next.dispositions.succeed(&process.dispositions);
        if let Some(next) = next.simulation() {
            next.take_over(simulation, thread.number);
        }
        close_on_exec(&process.own_descriptors);
        delete_host_timers();
        thread.executed = Some(Box::new(executed));
        Ok(Completion::RegistersSet(Outcome::Execute))
    }

    /// Tells the engine that this program replaces the current one. Returns data for the next emulator.
    fn announce(&self, process: &Process) -> Option<Vec<u8>> {
        let path = OsString::from_vec(self.path.as_bytes().to_vec()).into();
        let next = if self.is_guest { NextProgram::OfEmulator(path) } else { NextProgram::OfHost(path) };
        process.engine.get()?.before_execve(&next)
    }

    /// Executes the program and returns the error on failure. `raised` is the raised descriptor limit, which the
    /// emulator needs to start.
    fn start(&self, thread: &Thread, environment: &[CString], raised: RaisedLimit) -> Errno {
        let process = &thread.process;
        if !self.is_guest {
            self.announce(process);
            drop(raised);
            return run(thread, &self.path, &self.arguments, environment);
        }
        let reexec = &process.config.reexec;
        if reexec.is_empty() {
            return Errno(libc::ENOEXEC);
        }
        let reexec_arguments = reexec.iter().map(|argument| c_string(argument.as_bytes().to_vec()));
        let Ok(mut arguments) = reexec_arguments.collect::<Result<Vec<_>, _>>() else {
            return Errno(libc::EINVAL);
        };
        let rest = self.arguments.get(1..).unwrap_or_default();
        let name = self.arguments.first().map_or(c"", |name| name.as_c_str());
        let variables = match environment_file(environment) {
            Ok(file) => file,
            Err(error) => return error,
        };
        let Limit { soft, hard } = descriptors::limit();
        // Each option and its value are one argument, because the value may start with a hyphen.
        let options = [
            [b"--argv0=", name.to_bytes()].concat(),
            format!("--environment-from={}", variables.as_raw_fd()).into_bytes(),
            format!("--open-files={soft}:{hard}").into_bytes(),
        ];
        let limit_options = process.limits.all().into_iter().map(|StoredLimit { resource, soft, hard }| {
            format!("--kept-limit={resource}:{soft}:{hard}").into_bytes()
        });
        let earlier = match self
            .announce(process)
            .map(|bytes| InMemoryFile::of(c"earlier programs", &bytes))
            .transpose()
        {
            Ok(file) => file,
            Err(error) => return error,
        };
        let earlier = match earlier.map(|file| file.duplicate_across_exec()).transpose() {
            Ok(file) => file,
            Err(error) => return error.into(),
        };
        let earlier_option =
            earlier.iter().map(|file| format!("--earlier-programs={}", file.as_raw_fd()).into_bytes());
        // Names that the program has passed on must refer to the same files.
        let names = process.fixed_identity.as_ref().and_then(|names| Some((names.program(), names.work()?)));
        let name_options = names.into_iter().flat_map(|(program, work)| {
            [("--named-after=", program), ("--named-in=", work)]
                .map(|(option, path)| [option.as_bytes(), path.as_os_str().as_bytes()].concat())
        });
        let options = options.into_iter().chain(limit_options).chain(earlier_option).chain(name_options);
        let options = options.chain([b"--".to_vec()]);
        let Ok(options) = options.map(c_string).collect::<Result<Vec<_>, _>>() else {
            return Errno(libc::EINVAL);
        };
        let named = c"--fixed-names";
        if process.fixed_identity.is_some() && !arguments.iter().any(|argument| argument.as_c_str() == named)
        {
            arguments.push(named.to_owned());
        }
        arguments.extend(options);
        arguments.push(self.path.clone());
        arguments.extend_from_slice(rest);
        // The new emulator gets this emulator's environment. The guest's variables must not affect the host's dynamic
        // linker.
        let own_environment: Vec<CString> = std::env::vars_os()
            .filter_map(|(name, value)| c_string([name.as_bytes(), b"=", value.as_bytes()].concat()).ok())
            .collect();
        run(thread, c"/proc/self/exe", &arguments, &own_environment)
    }
}

/// Whether a process has the file open for writing: execve(2) refuses such a file, and the kernel grants no read lease
/// for it. Returns false also for files that do not support leases and for files of other users. Source: fcntl(2),
/// F_SETLEASE.
fn is_open_for_writing(file: &File) -> bool {
    // SAFETY: the calls take no pointers.
    let lease = |kind: i32| unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, kind) };
    if lease(libc::F_RDLCK) == 0 {
        lease(libc::F_UNLCK);
        return false;
    }
    std::io::Error::last_os_error().raw_os_error() == Some(libc::EAGAIN)
}

/// The error of execve(2) for a program that cannot be loaded.
fn errno_of(error: &LoadError) -> Errno {
    match error {
        LoadError::Host { source, .. } => Errno(source.raw_os_error().unwrap_or(libc::EIO)),
        LoadError::Map { source, .. } => *source,
        LoadError::NotRegular(_) => Errno(libc::EACCES),
        LoadError::Interpreter { source, .. } => Errno(source.raw_os_error().unwrap_or(libc::ENOENT)),
        LoadError::Program { .. } | LoadError::Script { .. } => Errno(libc::ENOEXEC),
        LoadError::Arguments { .. } => Errno(libc::E2BIG),
    }
}

/// Interrupts a host call in which another thread of this process waits.
fn interrupt_host_call(host_thread: i32) {
    // The emulator handles this signal in any case, and no thread blocks it.
    let arguments = [u64::from(std::process::id()), host_thread as u64, libc::SIGTRAP as u64, 0, 0, 0];
    // SAFETY: the call takes no pointers.
    let _ = unsafe { host_call(libc::SYS_tgkill, arguments) };
}

/// Closes the guest's descriptors that have close-on-exec. `own` are the emulator's.
fn close_on_exec(own: &[RawFd]) {
    let of_guest = |descriptor: &RawFd| *descriptor < descriptors::first() && !own.contains(descriptor);
    for descriptor in open_files::all().unwrap_or_default().into_iter().filter(of_guest) {
        // SAFETY: the calls take no pointers, and only the guest, which has no other thread, uses the descriptor.
        unsafe {
            let flags = libc::fcntl(descriptor, libc::F_GETFD);
            if flags >= 0 && flags & libc::FD_CLOEXEC != 0 {
                libc::close(descriptor);
            }
        }
    }
}

/// Deletes the guest's timers that run on the host: the timers of processor time. Source: proc_pid_timers(5).
fn delete_host_timers() {
    let timers = std::fs::read_to_string("/proc/self/timers").unwrap_or_default();
    for id in timers.lines().filter_map(|line| line.strip_prefix("ID: ")?.trim().parse::<u64>().ok()) {
        // SAFETY: the call takes no pointers, and the emulator has no such timers of its own.
        let _ = unsafe { host_call(libc::SYS_timer_delete, [id, 0, 0, 0, 0, 0]) };
    }
}

/// Stores the variables, each terminated by a zero byte, in a file whose descriptor survives execve.
fn environment_file(environment: &[CString]) -> Result<OwnedFd, Errno> {
    let bytes: Vec<u8> = environment.iter().flat_map(|text| text.as_bytes_with_nul()).copied().collect();
    Ok(InMemoryFile::of(c"environment", &bytes)?.duplicate_across_exec()?)
}

/// Executes a file on the host and returns the error on failure. The thread has its signals held, and releases them on
/// failure.
fn run(thread: &Thread, path: &CStr, arguments: &[CString], environment: &[CString]) -> Errno {
    let pointers = |strings: &[CString]| {
        strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect::<Vec<_>>()
    };
    let (arguments, environment) = (pointers(arguments), pointers(environment));
    let call = [path.as_ptr() as u64, arguments.as_ptr() as u64, environment.as_ptr() as u64, 0, 0, 0];
    let mut was_asked = with_attention(Attention::is_requested);
    let error = loop {
        with_attention(Attention::clear);
        // The old program gets signals that arrive before the host begins the call. Later signals stay pending for the
        // new program.
        thread.signals.transfer_to_host();
        // SAFETY: the strings and their null-terminated arrays are live until the call fails.
        let returned = unsafe { interruptible_on_host(libc::SYS_execve, call) };
        match returned {
            Err(Errno::RESTART) if thread.signals.deliverable() != 0 => return Errno::RESTART_ALWAYS,
            // The attention flag was set for another reason.
            Err(Errno::RESTART) => was_asked = true,
            returned => break returned.err().unwrap_or(Errno(libc::ENOEXEC)),
        }
    };
    thread.signals.release();
    if was_asked {
        with_attention(Attention::request);
    }
    error
}

fn c_string(bytes: Vec<u8>) -> Result<CString, Errno> {
    CString::new(bytes).map_err(|_| Errno(libc::ENOENT))
}

/// Opens a file and checks that it is executable.
fn open(process: &Process, directory: RawFd, path: &[u8], flags: u64) -> Result<File, Errno> {
    if path.is_empty() && flags & AT_EMPTY_PATH == 0 {
        return Err(Errno(libc::ENOENT));
    }
    let of_descriptor = format!("/proc/self/fd/{directory}");
    let resolved = match path {
        b"" => ResolvedPath::on_host(of_descriptor.as_bytes())?,
        path => ResolvedPath::of(process, directory, path, Follow::Yes)?,
    };
    // O_NONBLOCK keeps a FIFO, which cannot be executed anyway, from blocking.
    let mut open_flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK;
    if flags & AT_SYMLINK_NOFOLLOW != 0 && !path.is_empty() {
        open_flags |= libc::O_NOFOLLOW;
    }
    let arguments = [resolved.directory(), resolved.path(), open_flags as u64, 0, 0, 0];
    let file = descriptors::open_reserved(|| {
        // SAFETY: the path is live, and a new descriptor affects no other code.
        let opened = unsafe { host_call(libc::SYS_openat, arguments) }.map_err(|error| match error.0 {
            // Sockets and devices without a driver cannot be opened, and no special file can be executed.
            libc::ENXIO => Errno(libc::EACCES),
            _ => error,
        })?;
        // SAFETY: the host has just created the descriptor for this call.
        Ok(unsafe { OwnedFd::from_raw_fd(opened as RawFd) })
    })?;
    let file = File::from(file);
    if !file.metadata()?.is_file() {
        return Err(Errno(libc::EACCES));
    }
    let at = (libc::AT_EMPTY_PATH | libc::AT_EACCESS) as u64;
    let arguments = [file.as_raw_fd() as u64, c"".as_ptr() as u64, libc::X_OK as u64, at, 0, 0];
    // SAFETY: the path is live.
    unsafe { host_call(libc::SYS_faccessat2, arguments) }?;
    Ok(file)
}

/// A path that refers to an open file after execve.
fn name_of(process: &Process, file: &File) -> Result<Vec<u8>, Errno> {
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    let target = std::fs::read_link(&link)?;
    let is_there = std::fs::symlink_metadata(&target).is_ok_and(|metadata| {
        use std::os::unix::fs::MetadataExt;
        file.metadata().is_ok_and(|own| (own.dev(), own.ino()) == (metadata.dev(), metadata.ino()))
    });
    if is_there && let Some(name) = process.root.guest_name(target.as_os_str().as_bytes()) {
        return Ok(name);
    }
    // The file has no name, so a descriptor of it must survive execve. SAFETY: the call only creates a descriptor.
    let duplicate = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD, 3) };
    if duplicate < 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    Ok(format!("/proc/self/fd/{duplicate}").into_bytes())
}

/// Whether this emulator runs the file.
fn is_guest(file: &File, process: &Process) -> Result<bool, Errno> {
    match Image::parse(file, process.memory().limit()) {
        Ok(image) if image.architecture == Architecture::X86_64 => Ok(!runs_natively(&image, process)),
        Ok(_) => Ok(true),
        Err(ElfError::Read(error)) => Err(error.into()),
        Err(
            ElfError::NoBytes
            | ElfError::Short(_)
            | ElfError::Magic(_)
            | ElfError::Class { .. }
            | ElfError::Machine(_)
            | ElfError::Mips(_)
            | ElfError::Arm(_)
            | ElfError::X86(_),
        ) => Ok(false),
        Err(_) => Err(Errno(libc::ENOEXEC)),
    }
}

/// Whether the host runs an x86-64 program itself, which is faster than emulation. It does so for programs that use the
/// host's libraries, and for all programs that a guest of another architecture executes (a compiler, a shell). With a
/// root, it never does, because the program would escape from the root. In simulated time, it never does, because the
/// program would run without the models.
fn runs_natively(image: &Image, process: &Process) -> bool {
    let is_by_another = process.architecture() != Architecture::X86_64;
    cfg!(target_arch = "x86_64")
        && !process.root.is_confined()
        && process.simulation().is_none()
        && (image.interpreter.is_some() || is_by_another)
}
