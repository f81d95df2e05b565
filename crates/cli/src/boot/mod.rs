//! `longma boot`: starts a Linux kernel for LoongArch64 on a modelled machine, with its serial console on the terminal.

mod console;
mod devices;
mod prepared;
mod saved;
mod timed;

use crate::run::outputs;
use console::{End, Input, put};
use longma_command_line::raw_mode::RawMode;
use longma_command_line::size;
use longma_sim::ManifestProgram;
use longma_system::boot::{Image, Kernel, load};
use longma_system::{Configuration, ConfigurationError, Debugger, Machine, MemoryError, Pace, Stop, Turn};
use longma_system_timing::kallsyms::ImageSymbols;
use saved::{Saver, Software};
use std::error::Error;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Cycles between polls of the console: about a tenth of a second.
const SLICE: u64 = 10_000_000;
/// Interval at which a waiting machine polls its debugger.
const SHORT_NAP: Duration = Duration::from_millis(10);

/// `longma boot ...`
#[derive(clap::Args)]
pub struct Arguments {
    /// A system that is fetched once and then cached, instead of --kernel and --initrd.
    #[arg(value_enum, required_unless_present_any = ["kernel", "restore"], conflicts_with_all = ["kernel", "initrd"])]
    system: Option<System>,
    /// Use no network to prepare the system.
    #[arg(long)]
    offline: bool,
    /// The kernel: vmlinuz as Debian ships it (EFI zboot with zstd), vmlinux.efi, or vmlinux.
    #[arg(long, value_name = "FILE")]
    kernel: Option<PathBuf>,
    /// The initial RAM disk.
    #[arg(long, value_name = "FILE")]
    initrd: Option<PathBuf>,
    /// The kernel's command line (default: console=ttyS0,115200), or text to append to the system's.
    #[arg(long, value_name = "TEXT")]
    append: Option<String>,
    /// Memory: 64MiB to 64GiB.
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = size)]
    memory: u64,
    /// Cores, 1 to 16.
    #[arg(long, value_name = "N", default_value_t = 1)]
    cores: usize,
    /// A disk: a raw or qcow2 image, which the guest's writes do not change unless `,write` follows. Can be repeated.
    #[arg(long, value_name = "FILE[,write][,format=raw|qcow2][,backing=FILE]")]
    disk: Vec<String>,
    /// A folder of the host, which the guest mounts by its tag (`share`). The guest can change it unless `,ro` follows.
    /// Can be repeated.
    #[arg(long, value_name = "DIR[,ro][,tag=NAME]")]
    share: Vec<String>,
    /// A network: `none`, `user` (10.0.2.0/24 as with QEMU; `,forward=tcp:ADDRESS:PORT-:PORT` and `,loopback` can
    /// follow), or `tap[=NAME]`.
    #[arg(long, value_name = "NETWORK", default_value = "none")]
    net: String,
    /// Wait for gdb before the first instruction, at a port of 127.0.0.1, ADDRESS:PORT, or a new Unix socket.
    #[arg(long, value_name = "ADDRESS")]
    gdb: Option<String>,
    /// A script of texts to expect on the console and of input to send, instead of standard input.
    #[arg(long, value_name = "FILE")]
    script: Option<PathBuf>,
    /// Save the machine to this file and end: at the guest's mark 1 or 3, where models would begin, or at the
    /// `checkpoint` of the script.
    #[arg(long, value_name = "FILE", conflicts_with = "gdb")]
    checkpoint: Option<PathBuf>,
    /// Continue a machine that --checkpoint has saved, at any level, with the same disks and folders.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["system", "offline", "kernel", "initrd", "append", "memory", "cores"]
    )]
    restore: Option<PathBuf>,
    /// Interpret all code instead of translating hot code to host code. Execution is the same, but slower.
    #[arg(long)]
    interpret: bool,
    /// Stop after this many cycles of the machine.
    #[arg(long, value_name = "N")]
    cycles: Option<u64>,
    #[command(flatten)]
    timed: timed::Options,
}

/// A system that is prepared by one command.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum System {
    /// Debian's kernel with busybox, to a shell. About 82 MB are fetched.
    Debian,
}

/// The kernel's command line if there is no other.
const COMMAND_LINE: &str = "console=ttyS0,115200";

/// The software to boot.
struct Boot {
    kernel: PathBuf,
    initrd: Option<PathBuf>,
    command_line: String,
}

impl Boot {
    fn of(arguments: &Arguments) -> Result<Self, Box<dyn Error>> {
        let given = arguments.append.as_deref();
        match (&arguments.kernel, arguments.system) {
            // clap waives `requires` where --kernel conflicts with a system.
            (Some(_), _) if arguments.offline => {
                Err(usage("--offline is for a system that is fetched, such as debian: omit it with --kernel"))
            }
            (Some(kernel), _) => Ok(Self {
                kernel: kernel.clone(),
                initrd: arguments.initrd.clone(),
                command_line: given.unwrap_or(COMMAND_LINE).to_owned(),
            }),
            (None, Some(System::Debian)) => {
                let image = prepared::debian(arguments.offline)?;
                let mut command_line = prepared::COMMAND_LINE.to_owned();
                if let Some(words) = given {
                    command_line += " ";
                    command_line += words;
                }
                Ok(Self { kernel: image.kernel, initrd: Some(image.initrd), command_line })
            }
            (None, None) => Err(usage("give --kernel FILE, --restore FILE, or boot debian")),
        }
    }

    /// Loads the software into a new machine, and describes it if models or a checkpoint need that.
    fn load(&self, arguments: &Arguments) -> Result<(Machine, Option<Software>), Box<dyn Error>> {
        let image = read(&self.kernel, arguments.memory)?;
        let initrd = self.initrd.as_deref().map(|path| read(path, arguments.memory)).transpose()?;
        let mut machine = Machine::new(&Configuration {
            cores: arguments.cores,
            memory_bytes: arguments.memory,
            translation: !arguments.interpret,
            ..Configuration::default()
        })
        .map_err(|error| match error {
            ConfigurationError::Cores(_) | ConfigurationError::Memory(MemoryError::Size(_)) => usage(error),
            _ => error.into(),
        })?;
        let kernel = Kernel { image: &image, initrd: initrd.as_deref(), command_line: &self.command_line };
        load(&mut machine, &kernel).map_err(|error| format!("{}: {error}", self.kernel.display()))?;
        if arguments.timed.is_functional() && arguments.checkpoint.is_none() {
            return Ok((machine, None));
        }
        let has_symbols = arguments.timed.uses_image_symbols() || arguments.checkpoint.is_some();
        let symbols = if has_symbols { ImageSymbols::of(&Image::parse(&image)?) } else { None };
        let program = self.program(&image, initrd.as_deref())?;
        Ok((machine, Some(Software { program, symbols })))
    }

    /// The result's description of the software.
    fn program(&self, image: &[u8], initrd: Option<&[u8]>) -> Result<ManifestProgram, Box<dyn Error>> {
        let mut words = vec![self.command_line.clone()];
        if let Some(initrd) = initrd {
            words.push(format!("initrd sha256 {}", ManifestProgram::read("", initrd, &[])?.sha256));
        }
        Ok(ManifestProgram::read(&self.kernel.to_string_lossy(), image, &words)?)
    }
}

/// Conflicting options, or a value that no run can use; clap does not detect these.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct UsageError(String);

/// The exit status of usage errors, the same as for those that clap detects.
const USAGE_STATUS: u8 = 2;

fn usage(message: impl Display) -> Box<dyn Error> {
    UsageError(message.to_string()).into()
}

/// Boots the kernel. If the guest switches the machine off, its exit status is that of the command.
///
/// # Errors
/// A file or an option is not usable, or the machine ends in another way than by power-off.
pub fn run(arguments: &Arguments) -> Result<ExitCode, Box<dyn Error>> {
    match boot(arguments) {
        Err(error) if error.is::<UsageError>() => {
            // Ignore errors: standard error may be closed.
            let _ = writeln!(io::stderr(), "longma: {error}");
            Ok(ExitCode::from(USAGE_STATUS))
        }
        ended => ended,
    }
}

fn boot(arguments: &Arguments) -> Result<ExitCode, Box<dyn Error>> {
    arguments.refuse_outside_of_models()?;
    arguments.refuse_shared_files()?;
    let Started { mut machine, software, has_network, mark, typed } = match &arguments.restore {
        Some(path) => saved::restore(path, arguments)?,
        None => Started::boot(arguments)?,
    };
    let mut timed = arguments.timed.build(&mut machine, software.as_ref())?;
    if let (Some(timed), Some(mark)) = (&mut timed, mark) {
        timed.take_mark(&machine, mark);
    }
    let mut outside = Outside { pace: has_network.then(|| Pace::of(&machine)), debugger: None, timed };
    outside.debugger = arguments.gdb.as_deref().map(listen).transpose()?;
    let mut input = match &arguments.script {
        Some(path) => Input::script(path, machine.cycles())?,
        None => Input::standard(),
    };
    let saver = Saver::of(arguments, &input, software)?;
    if saver.is_some() {
        machine.stop_at_marks();
    }

    let stopped = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stopped))?;
    }
    let terminal = match &input {
        Input::Standard(..) => Some(RawMode::all_keys(io::stdin())?).filter(RawMode::is_terminal),
        Input::Script(_) => None,
    };
    if terminal.is_some() {
        put(b"longma: Ctrl-A x ends the machine\r\n")?;
    }
    let limit = arguments.cycles.unwrap_or(u64::MAX);
    let mut conversation =
        Conversation { input: &mut input, outside: &mut outside, saver: &saver, waiting: typed };
    let end = conversation.run(&mut machine, arguments.restore.is_some(), limit, &stopped)?;
    if terminal.is_some() {
        // The guest's last line may not be complete.
        put(b"\r\n")?;
    }
    drop(terminal);
    if let Some(timed) = outside.timed.take() {
        timed.finish(&machine)?;
    }
    if let (Input::Script(script), End::PowerOff | End::Reset | End::NoInput | End::Halted) = (&input, &end)
        && let Some(late) = script.unfinished()
    {
        return Err(format!("the machine stopped before the end of the script: {late}").into());
    }
    if let (Some(saver), false) = (&saver, matches!(end, End::Saved)) {
        saver.warn();
    }
    match end {
        End::Saved => Ok(ExitCode::SUCCESS),
        End::PowerOff if saver.is_some() => Ok(ExitCode::FAILURE),
        End::PowerOff => Ok(ExitCode::from(machine.exit_status())),
        End::Late(late) => Err(late.into()),
        End::Reset => Err("the guest asked for a reset: start it again".into()),
        End::Limit => Err(format!("stopped after {} cycles", machine.cycles()).into()),
        End::NoInput => {
            let source = if arguments.script.is_some() { "the script" } else { "standard input" };
            Err(format!("the guest waits for input, and {source} has ended").into())
        }
        End::Halted => Err("the guest has halted and does not read its console".into()),
        End::User => Err("ended by the user".into()),
    }
}

impl Arguments {
    /// Refuses outputs that would overwrite an input or another output. A checkpoint may replace the one that the machine
    /// continues.
    fn refuse_shared_files(&self) -> Result<(), Box<dyn Error>> {
        let inputs = || {
            let files = [
                ("--kernel", self.kernel.clone()),
                ("--initrd", self.initrd.clone()),
                ("--script", self.script.clone()),
                ("--symbols", self.timed.symbols().cloned()),
            ];
            let disks = self.disk.iter().map(|disk| ("--disk", Some(devices::disk_options(disk).0.into())));
            files.into_iter().chain(disks)
        };
        let checkpoint = ("--checkpoint", self.checkpoint.clone());
        let stats = ("--stats-out", self.timed.stats_out().cloned());
        let shared = outputs::shared([checkpoint, stats.clone()], inputs())
            .or_else(|| outputs::shared([stats], [("--restore", self.restore.clone())]));
        match shared {
            Some([one, other]) => {
                Err(usage(format!("{one} and {other} name the same file: give each its own")))
            }
            None => Ok(()),
        }
    }

    /// Refuses options whose effects depend on the host's time, which models cannot reproduce.
    fn refuse_outside_of_models(&self) -> Result<(), Box<dyn Error>> {
        let refused = [
            ("--net", self.net != "none"),
            ("--gdb", self.gdb.is_some()),
            ("--checkpoint", self.checkpoint.is_some()),
        ];
        match refused.iter().find(|(_, given)| *given && !self.timed.is_functional()) {
            Some((option, _)) => {
                Err(usage(format!("{option} works at level functional only: omit it or --level")))
            }
            None => Ok(()),
        }
    }
}

/// A machine that is about to run.
struct Started {
    machine: Machine,
    /// The description of the software for models and checkpoints; `None` without either.
    software: Option<Software>,
    has_network: bool,
    /// The guest's mark at which the machine was saved.
    mark: Option<u8>,
    /// Typed input that the guest has not received yet.
    typed: Vec<u8>,
}

impl Started {
    fn boot(arguments: &Arguments) -> Result<Self, Box<dyn Error>> {
        let (mut machine, software) = Boot::of(arguments)?.load(arguments)?;
        let has_network = devices::attach(&mut machine, arguments, false)?;
        Ok(Self { machine, software, has_network, mark: None, typed: Vec::new() })
    }
}

/// Inputs of the machine other than its console: network, debugger, and models.
struct Outside {
    /// The pace of a machine with a network.
    pace: Option<Pace>,
    debugger: Option<Debugger>,
    /// The models; they exclude a network and a debugger.
    timed: Option<timed::Timed>,
}

impl Outside {
    /// Runs the machine for up to `limit` cycles. Returns `None` if the debugger has killed it.
    fn run(&mut self, machine: &mut Machine, limit: u64) -> Option<Stop> {
        if let Some(timed) = &mut self.timed {
            return Some(timed.run(machine, SLICE.min(limit)));
        }
        let slice = if self.pace.is_some() { Pace::CYCLES } else { SLICE };
        let stop = match &mut self.debugger {
            None => machine.run(slice.min(limit)),
            Some(debugger) => match debugger.run(machine, slice.min(limit)) {
                Turn::Ran(stop) => stop,
                Turn::Halted => return Some(Stop::Debugger),
                Turn::Killed => return None,
            },
        };
        if let Some(pace) = &mut self.pace {
            pace.exchange(machine, stop);
        } else if stop == Stop::Idle && self.may_wake() {
            std::thread::sleep(SHORT_NAP);
        }
        Some(stop)
    }

    /// Whether something other than the console may wake the machine.
    fn may_wake(&self) -> bool {
        self.pace.is_some() || self.debugger.as_ref().is_some_and(Debugger::is_attached)
    }
}

/// Listens for gdb, and prints the address.
fn listen(place: &str) -> Result<Debugger, String> {
    let debugger = Debugger::listen(place).map_err(|error| format!("--gdb {place}: {error}"))?;
    eprintln!("longma: waits for gdb's command: target remote {}", debugger.place());
    Ok(debugger)
}

/// Reads a file of at most `limit` bytes: a device such as /dev/zero has no end.
fn read(path: &Path, limit: u64) -> Result<Vec<u8>, String> {
    let failed = |error: io::Error| format!("{}: {error}", path.display());
    let file = File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > limit {
        return Err(format!("{}: is larger than {} MiB", path.display(), limit >> 20));
    }
    Ok(bytes)
}

/// The machine's console and its other inputs.
struct Conversation<'a> {
    input: &'a mut Input,
    outside: &'a mut Outside,
    saver: &'a Option<Saver>,
    /// Input for which the guest's buffer had no room yet.
    waiting: Vec<u8>,
}

impl Conversation<'_> {
    /// Runs the machine with its console on standard output. A machine that `is_restored` continues where it was saved:
    /// after a slice of execution and before input.
    fn run(
        &mut self,
        machine: &mut Machine,
        is_restored: bool,
        limit: u64,
        stopped: &AtomicBool,
    ) -> Result<End, Box<dyn Error>> {
        let mut next = is_restored.then_some(Stop::Limit);
        // Whether the guest's buffer has no room for the input.
        let mut is_full = false;
        loop {
            let stop = match next.take() {
                Some(stop) => stop,
                None => match self.outside.run(machine, limit.saturating_sub(machine.cycles())) {
                    Some(stop) => stop,
                    None => return Ok(End::User),
                },
            };
            let printed = machine.take_console_output();
            put(&printed)?;
            match stop {
                Stop::PowerOff => {
                    if let Input::Script(script) = self.input {
                        // The last output may contain the text that the script expects.
                        let _ = script.advance(&printed, machine.cycles());
                    }
                    return Ok(End::PowerOff);
                }
                Stop::Reset => return Ok(End::Reset),
                Stop::Mark(mark) => {
                    if let Some(saver) = self.saver.as_ref().filter(|saver| saver.saves_at(mark)) {
                        saver.save(machine, Some(mark), &self.waiting)?;
                        return Ok(End::Saved);
                    }
                }
                Stop::Limit if machine.cycles() >= limit => return Ok(End::Limit),
                Stop::Limit | Stop::Idle | Stop::Debugger => {}
            }
            // Input that does not fit the buffer cannot wake a halted guest.
            let is_stuck =
                stop == Stop::Idle && (self.waiting.is_empty() || is_full) && !self.outside.may_wake();
            let end = self.input.next(&printed, machine.cycles(), is_stuck, stopped, &mut self.waiting);
            if let Some(end) = end {
                return Ok(end);
            }
            if stopped.load(Ordering::Relaxed) {
                return Ok(End::User);
            }
            let taken = machine.type_on_console(&self.waiting);
            is_full = taken == 0 && !self.waiting.is_empty();
            self.waiting.drain(..taken);
            if let Some(saver) = self.saver
                && self.waiting.is_empty()
                && self.input.is_at_checkpoint()
            {
                saver.save(machine, None, &[])?;
                return Ok(End::Saved);
            }
        }
    }
}
