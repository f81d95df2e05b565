//! Runs a LoongArch64 Linux program with the reference semantics, one instruction at a time. It is slow, but simple
//! enough to serve as an oracle. The tests of this crate run their programs with it, and it is an example of an
//! [`Engine`].
//!
//! `interpret [--trace] [--root DIRECTORY] [--argv0=NAME] [--] PROGRAM [ARGUMENT]...`

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::ops::Range;
use std::os::fd::FromRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, mpsc};
use std::time::Instant;

use longma_guest::host::attention::with_attention;
use longma_guest::host::descriptors::{self, Limit};
use longma_guest::{GuestMemory, host::terminate_by_signal};
use longma_linux::{Engine, Outcome, Process, ProcessConfig, Thread};
use longma_loongarch::{Environment, Fault, Scalar, State, Trap, decode, semantics};

/// Frequency of the stable counter, as in CPUCFG words 4 and 5.
const COUNTER_HZ: u32 = 100_000_000;

/// The environment of the guest's instructions.
struct Machine {
    memory: GuestMemory,
    start: Instant,
}

impl Environment for Machine {
    fn load<T: Scalar>(&self, address: u64) -> Result<T, Fault> {
        self.memory.load(address)
    }

    fn store<T: Scalar>(&self, address: u64, value: T) -> Result<(), Fault> {
        self.memory.store(address, value)
    }

    fn compare_exchange<T: Scalar>(&self, address: u64, expected: T, new: T) -> Result<T, Fault> {
        self.memory.compare_exchange(address, expected, new)
    }

    fn fetch(&self, address: u64) -> Result<u32, Fault> {
        self.memory.fetch(address)
    }

    fn stable_counter(&self) -> u64 {
        (self.start.elapsed().as_nanos() / u128::from(1_000_000_000 / COUNTER_HZ)) as u64
    }

    fn cpucfg(&self, index: u32) -> u32 {
        match index {
            0 => 0x14_c011,
            4 => COUNTER_HZ,
            5 => 1 << 16 | 1,
            _ => 0,
        }
    }
}

/// An engine with one host thread for each guest thread.
struct Interpreter;

impl Engine for Interpreter {
    fn spawn(&self, mut thread: Thread, mut state: State) -> std::io::Result<i32> {
        let (sender, receiver) = mpsc::channel();
        std::thread::Builder::new().spawn(move || {
            thread.begin(&mut state);
            sender.send(thread.tid()).ok();
            end(run(&mut thread, &mut state));
        })?;
        receiver.recv().map_err(std::io::Error::other)
    }

    fn invalidate(&self, _: Range<u64>) {}
}

/// Runs one thread until it ends.
fn run(thread: &mut Thread, state: &mut State) -> Outcome {
    let machine = Machine { memory: thread.process().memory().clone(), start: Instant::now() };
    loop {
        let outcome = if with_attention(|attention| attention.is_requested()) {
            thread.deliver_pending(state)
        } else {
            match step(&machine, state) {
                Ok(()) => continue,
                Err(Trap::Syscall(_)) => thread.syscall(state),
                Err(trap) => thread.raise(state, trap),
            }
        };
        if outcome != Outcome::Continue {
            return outcome;
        }
    }
}

fn step(machine: &Machine, state: &mut State) -> Result<(), Trap> {
    let word = machine.fetch(state.pc)?;
    let instruction = decode(word).ok_or(Trap::IllegalInstruction)?;
    semantics::execute(state, &instruction, machine)
}

/// Performs the outcome of a thread that has ended.
fn end(outcome: Outcome) {
    match outcome {
        Outcome::Continue | Outcome::ExitThread(_) => {}
        Outcome::ExitProcess(status) => std::process::exit(status),
        Outcome::KilledBy(signal) => terminate_by_signal(signal),
        Outcome::Execute => unreachable!("the host executes programs outside simulated time"),
    }
}

/// Writes a line to standard error. This may fail, because the guest may have closed or replaced the descriptor.
fn print_line(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

fn fail(message: &str) -> ExitCode {
    print_line(&format!("interpret: {message}"));
    ExitCode::from(127)
}

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let mut config = ProcessConfig { reexec: vec![arguments[0].clone()], ..ProcessConfig::default() };
    config.diagnostics = Some(Arc::new(|line| print_line(&format!("interpret: {line}"))));
    let mut name = None;
    let (mut environment, mut files) = (None, None);
    let mut rest = arguments.into_iter().skip(1).peekable();
    while let Some(option) = rest.next_if(|argument| argument.as_encoded_bytes().starts_with(b"--")) {
        match option.to_str() {
            Some("--") => break,
            Some("--trace") => {
                config.tracer = Some(Arc::new(print_line));
                config.reexec.push(option);
            }
            Some("--root") => {
                let Some(root) = rest.next() else { return fail("--root needs a directory") };
                config.reexec.extend([option, root.clone()]);
                config.root = Some(PathBuf::from(root));
            }
            // Options that execve passes to the next program.
            _ => match assigned(&option) {
                Some((b"--argv0", value)) => name = Some(OsStr::from_bytes(value).to_owned()),
                Some((b"--environment-from", value)) => {
                    environment =
                        number(value).and_then(|descriptor| inherited_environment(descriptor as i32));
                    if environment.is_none() {
                        return fail("--environment-from needs the number of an open file");
                    }
                }
                Some((b"--open-files", value)) => {
                    let mut numbers = value.split(|&byte| byte == b':').map(number);
                    let (Some(Some(soft)), Some(Some(hard))) = (numbers.next(), numbers.next()) else {
                        return fail("--open-files needs two numbers");
                    };
                    files = Some(Limit { soft, hard });
                }
                _ => return fail(&format!("unknown option {}", option.display())),
            },
        }
    }
    if let Err(error) = descriptors::begin(files, false) {
        return fail(&error.to_string());
    }
    let Some(program) = rest.next() else { return fail("name a program") };
    config.arguments = [name.unwrap_or_else(|| program.clone())].into_iter().chain(rest).collect();
    config.program = PathBuf::from(program);
    config.environment = environment.unwrap_or_else(|| {
        let variables = std::env::vars_os();
        variables.map(|(name, value)| [name.as_os_str(), OsStr::new("="), &value].concat_os()).collect()
    });
    let (process, mut thread, mut state) = match Process::load(config) {
        Ok(loaded) => loaded,
        Err(error) => return fail(&error.to_string()),
    };
    process.set_engine(Arc::new(Interpreter));
    descriptors::apply_guest_limit();
    thread.begin(&mut state);
    end(run(&mut thread, &mut state));
    // The main thread has ended, but other threads run. The last one ends the process.
    drop(thread);
    loop {
        std::thread::park();
    }
}

/// Splits `--OPTION=VALUE` into option and value.
fn assigned(argument: &OsStr) -> Option<(&[u8], &[u8])> {
    let bytes = argument.as_bytes();
    let sign = bytes.iter().position(|&byte| byte == b'=')?;
    Some((&bytes[..sign], &bytes[sign + 1..]))
}

fn number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Reads the environment that execve stored in a file for the program that it starts.
fn inherited_environment(descriptor: i32) -> Option<Vec<OsString>> {
    // SAFETY: execve created the descriptor for this purpose, and no other code knows its number.
    let mut file = unsafe { File::from_raw_fd(descriptor) };
    let mut bytes = Vec::new();
    file.rewind().and_then(|()| file.read_to_end(&mut bytes)).ok()?;
    let variables = bytes.split(|&byte| byte == 0).filter(|variable| !variable.is_empty());
    Some(variables.map(|variable| OsString::from_vec(variable.to_vec())).collect())
}

trait ConcatOs {
    fn concat_os(self) -> OsString;
}

impl ConcatOs for [&OsStr; 3] {
    fn concat_os(self) -> OsString {
        OsString::from_vec(self.iter().flat_map(|part| part.as_encoded_bytes()).copied().collect())
    }
}
