//! Loads a program: scripts, the program file, its dynamic linker, the vDSO, the stack. Source: execve(2) (scripts),
//! Linux fs/binfmt_elf.c (behaviour).

mod areas;
mod error;
mod stack_limit;

pub use error::{HostOperation, LoadError};
pub(crate) use longma_guest::script::{LINE_BYTES, MAX_SCRIPTS, interpreter};
pub(crate) use stack_limit::{DEFAULT_BYTES as DEFAULT_STACK_BYTES, StackLimit, raise as raise_stack};

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use longma_guest::Errno;
use longma_guest::host::masks;
use longma_guest::{AddressSpace, GuestMemory, MapRequest, Origin, PAGE_BYTES, Placement, Protection};
use longma_loongarch::State;

use crate::fixed_identity::{FixedIdentity, USER};
use crate::open_files;
use crate::process::Parts;
use crate::root::{Root, kernel_name};
use crate::simulated::{Simulation, ThreadNumber};
use crate::{Areas, Process, ProcessConfig, Thread};
use longma_guest::elf::stack::{self, ProgramFacts, Texts};
use longma_guest::elf::{self, Architecture, ElfError, Image, Source};

/// The number of the stack pointer register.
const STACK_POINTER: u8 = 3;

/// The program file after resolving scripts.
struct ProgramFile {
    path: PathBuf,
    file: File,
    arguments: Vec<Vec<u8>>,
}

fn host_error(operation: HostOperation, path: &Path) -> impl FnOnce(io::Error) -> LoadError {
    let path = path.to_owned();
    move |source| LoadError::Host { operation, path, source }
}

fn map_error(path: &Path) -> impl Fn(Errno) -> LoadError {
    let path = path.to_owned();
    move |source| LoadError::Map { path: path.clone(), source }
}

impl Process {
    /// Loads a program. Returns the process, its first thread and that thread's registers.
    ///
    /// # Errors
    /// The program is missing, unsupported, damaged, or does not fit.
    pub fn load(config: ProcessConfig) -> Result<(Arc<Self>, Thread, State), LoadError> {
        let (thread, state) = Self::load_after(config, None)?;
        Ok((thread.process.clone(), thread, state))
    }

    /// Loads the program that `previous`, a thread in simulated time, executes. Returns the program's first thread and
    /// its registers.
    ///
    /// # Errors
    /// As for [`Self::load`]. The previous program can continue.
    pub(crate) fn load_next(config: ProcessConfig, previous: &Thread) -> Result<(Thread, State), LoadError> {
        Self::load_after(config, Some(previous))
    }

    fn load_after(config: ProcessConfig, previous: Option<&Thread>) -> Result<(Thread, State), LoadError> {
        let own_descriptors = match previous {
            Some(previous) => previous.process.own_descriptors.clone(),
            None => open_files::initial_emulator_descriptors(),
        };
        if let Some(mask) = config.umask {
            // SAFETY: the call takes no pointers and cannot fail.
            unsafe { libc::umask(mask) };
        }
        let root = open_root(&config)?;
        let fixed_identity = match previous {
            // Names that the previous program has passed on must refer to the same files.
            Some(previous) => previous.process.fixed_identity.clone(),
            None => fixed_identity(&root, &config),
        };
        // Only the first program gets the fixed name: execve's caller chooses the names of later programs.
        let is_first = previous.is_none() && config.named_after.is_none();
        let names = fixed_identity.as_ref().filter(|_| is_first);
        let program_file = find(&root, &config, names)?;
        let memory = GuestMemory::reserve()
            .map_err(host_error(HostOperation::ReserveAddressSpace, &program_file.path))?;
        let mut space = AddressSpace::new(memory.clone());
        let program = Program::parse(program_file.path, program_file.file, memory.limit())?;
        let interpreter = program.interpreter(&root, &config, memory.limit())?;
        let architecture = program.image.architecture;
        if architecture.is_translated() {
            limit_to_program_part(&mut space, architecture);
        }

        let failed = map_error(&program.path);
        let environment: Vec<Vec<u8>> =
            config.environment.iter().map(|text| text.clone().into_vec()).collect();
        let stack_limit = StackLimit::of(&config);
        check_arguments(stack_limit, &program_file.arguments, &environment)?;
        let guest_path = fixed_identity.as_ref().map(|names| names.of_program(&program.path));
        let texts = Texts {
            arguments: &program_file.arguments,
            environment: &environment,
            path: guest_path.as_ref().unwrap_or(&program.path).as_os_str().as_bytes(),
        };
        let stack_top = stack_limit
            .map(&mut space, &texts, config.stack_offset, program.image.executable_stack)
            .map_err(&failed)?;
        let mapped = Mapped::map(&mut space, &program, interpreter.as_ref())?;

        let before = previous.and_then(|thread| thread.process.simulation());
        let simulation = config.simulation.as_ref().map(|simulation_config| {
            Arc::new(match before {
                Some(before) => before.succeeded_by(simulation_config, &memory),
                None => Simulation::new(simulation_config, &memory),
            })
        });
        let facts = mapped.facts(&config, &program.image, simulation.as_deref());
        let stack_top = stack_top.saturating_sub(config.stack_offset & !15);
        let stack = stack::build(&memory, stack_top, texts, &facts).map_err(|fault| failed(fault.into()))?;

        let mut state = State { pc: mapped.start, ..State::default() };
        state.set_r(STACK_POINTER, stack.pointer);
        let parts = Parts {
            space,
            fixed_identity,
            executable: resolved_program(&root, &program.path),
            arguments: program_file.arguments,
            stack,
            program_range: mapped.range(&program.image),
            signal_return: mapped.signal_return,
            threads: 1,
            threads_made: 1,
            own_descriptors,
            areas: mapped.areas,
        };
        let process = Self::assemble(config, root, simulation, parts);
        let mask = previous.map_or_else(masks::current, |thread| thread.signals.mask);
        let name = process.short_name().into_bytes();
        let mut thread = Thread::new(process, ThreadNumber(0), mask);
        thread.name = Some(name);
        Ok((thread, state))
    }
}

/// A parsed program or dynamic linker.
struct Program {
    path: PathBuf,
    file: File,
    image: Image,
}

impl Program {
    fn parse(path: PathBuf, file: File, limit: u64) -> Result<Self, LoadError> {
        match Image::parse(&file, limit) {
            Ok(image) => Ok(Self { path, file, image }),
            Err(source) => Err(LoadError::Program { path, source }),
        }
    }

    /// Opens the dynamic linker of the program, which must have the same architecture.
    fn interpreter(
        &self,
        root: &Root,
        config: &ProcessConfig,
        limit: u64,
    ) -> Result<Option<Self>, LoadError> {
        let Some(name) = &self.image.interpreter else { return Ok(None) };
        let (path, file) = open_interpreter(root, config, &self.path, name)?;
        let interpreter = Self::parse(path, file, limit)?;
        let other = interpreter.image.architecture;
        if other != self.image.architecture {
            let source = ElfError::Machine(other.machine());
            return Err(LoadError::Program { path: interpreter.path, source });
        }
        Ok(Some(interpreter))
    }

    fn map(&self, space: &AddressSpace, preferred: Option<u64>) -> Result<elf::Loaded, LoadError> {
        elf::load(space, &self.image, &self.file, &self.path.to_string_lossy(), preferred)
            .map_err(map_error(&self.path))
    }
}

/// The addresses of everything except the stack.
struct Mapped {
    program: elf::Loaded,
    /// The initial program counter, in the dynamic linker if there is one.
    start: u64,
    /// The address of the dynamic linker; 0 if there is none.
    interpreter_base: u64,
    /// The address of the vDSO; 0 if there is none.
    vdso: u64,
    signal_return: u64,
    areas: Option<Areas>,
}

impl Mapped {
    fn map(
        space: &mut AddressSpace,
        program: &Program,
        interpreter: Option<&Program>,
    ) -> Result<Self, LoadError> {
        let architecture = program.image.architecture;
        let failed = map_error(&program.path);
        // As in the kernel, a PIE with a dynamic linker is loaded far from other mappings.
        let preferred = space.memory().limit() / architecture.address_space_parts() / 3 * 2;
        let loaded = program.map(space, interpreter.is_some().then_some(preferred))?;
        let (start, interpreter_base) = match interpreter {
            None => (loaded.entry, 0),
            Some(interpreter) => {
                let loaded = interpreter.map(space, None)?;
                (loaded.entry, loaded.bias)
            }
        };
        // As in the kernel, the heap of a PIE without a dynamic linker is where other PIEs are loaded, because other
        // mappings may follow the program itself.
        let is_alone = program.image.relocatable && interpreter.is_none();
        space.set_heap_start(if is_alone { preferred } else { loaded.end });
        let is_translated = architecture.is_translated();
        let areas = is_translated.then(|| areas::map(space, architecture)).transpose().map_err(&failed)?;
        let (vdso, signal_return) = if is_translated {
            (0, map_code(space, areas::signal_return(architecture)).map_err(&failed)?)
        } else {
            let vdso = map_code(space, &elf::vdso_image()).map_err(&failed)?;
            (vdso, vdso + elf::SIGNAL_RETURN_OFFSET)
        };
        Ok(Self { program: loaded, start, interpreter_base, vdso, signal_return, areas })
    }

    fn facts(&self, config: &ProcessConfig, image: &Image, simulation: Option<&Simulation>) -> ProgramFacts {
        ProgramFacts {
            architecture: image.architecture,
            headers: self.program.headers,
            headers_count: image.headers_count,
            interpreter_base: self.interpreter_base,
            entry: self.program.entry,
            vdso: self.vdso,
            capabilities: config.capabilities.unwrap_or(stack::ALL_CAPABILITIES),
            random: random_bytes(config, simulation),
            ids: if config.fixed_identity { [USER; 4] } else { stack::host_ids() },
        }
    }

    /// The address range of the program from its first to its last segment.
    fn range(&self, image: &Image) -> std::ops::Range<u64> {
        image.span().start.wrapping_add(self.program.bias)..self.program.end
    }
}

/// Gives a translated program its part of the address space, below the translator's.
fn limit_to_program_part(space: &mut AddressSpace, architecture: Architecture) {
    if architecture.page_bytes() != PAGE_BYTES {
        space.memory().use_host_page_size();
    }
    space.set_top(space.memory().limit() / architecture.address_space_parts() - PAGE_BYTES);
}

fn open_root(config: &ProcessConfig) -> Result<Root, LoadError> {
    let path = config.root.as_deref();
    Root::new(path).map_err(host_error(HostOperation::UseRoot, path.unwrap_or(Path::new("/"))))
}

/// The constant names of the program to load, if it is configured to have them.
fn fixed_identity(root: &Root, config: &ProcessConfig) -> Option<FixedIdentity> {
    let of_this_program = || {
        let work = root.working_directory().unwrap_or_else(|_| b"/".to_vec());
        (root.absolute(&config.program), PathBuf::from(OsString::from_vec(work)))
    };
    let (program, work) = config.named_after.clone().unwrap_or_else(of_this_program);
    config.fixed_identity.then(|| FixedIdentity::new(&program, &work, root.is_confined()))
}

/// The bytes of AT_RANDOM.
fn random_bytes(config: &ProcessConfig, simulation: Option<&Simulation>) -> [u8; 16] {
    match simulation {
        Some(simulation) => {
            let mut bytes = [0; 16];
            simulation.fill_random(&mut bytes);
            bytes
        }
        None if config.fixed_identity => stack::CONSTANT_RANDOM,
        None => stack::random_bytes(),
    }
}

/// The program path for /proc/self/exe: absolute, with links resolved. Programs find their own libraries by it.
fn resolved_program(root: &Root, path: &Path) -> PathBuf {
    let resolved = if root.is_confined() {
        let file = root.open_pinned(path.as_os_str().as_bytes(), 0).ok();
        let name = file.and_then(|file| kernel_name(&file).ok());
        name.and_then(|name| root.guest_name(&name)).map(|name| PathBuf::from(OsString::from_vec(name)))
    } else {
        path.canonicalize().ok()
    };
    resolved.unwrap_or_else(|| path.to_owned())
}

/// Opens the program, following scripts to their interpreters.
fn find(
    root: &Root,
    config: &ProcessConfig,
    fixed_identity: Option<&FixedIdentity>,
) -> Result<ProgramFile, LoadError> {
    let mut path = root.absolute(&config.program);
    let mut named = fixed_identity.map_or_else(|| config.program.clone(), |names| names.of_program(&path));
    let mut arguments: Vec<Vec<u8>> = config.arguments.iter().map(|text| text.clone().into_vec()).collect();
    if let Some(name) = arguments.first_mut()
        && fixed_identity.is_some()
        && *name == config.program.as_os_str().as_bytes()
    {
        *name = named.as_os_str().as_bytes().to_vec();
    }
    if arguments.is_empty() {
        // As in Linux since 5.18, a program always has a name.
        arguments.push(Vec::new());
    }
    for _ in 0..=MAX_SCRIPTS {
        let file = root.open_to_read(&path).map_err(host_error(HostOperation::Open, &path))?;
        let metadata = file.metadata().map_err(host_error(HostOperation::Examine, &path))?;
        if !metadata.is_file() {
            return Err(LoadError::NotRegular(path));
        }
        let mut line = vec![0; LINE_BYTES.min(metadata.len() as usize)];
        let is_read = Source::read_at(&file, 0, &mut line).map_err(host_error(HostOperation::Read, &path))?;
        let names = if is_read { interpreter(&line) } else { Ok(None) };
        let Ok(names) = names else {
            return Err(LoadError::Script { path, why: "its first line has no interpreter after #!" });
        };
        let Some((interpreter, argument)) = names else { return Ok(ProgramFile { path, file, arguments }) };
        let mut longer = vec![interpreter.clone()];
        longer.extend(argument);
        longer.push(named.as_os_str().as_bytes().to_vec());
        longer.extend(arguments.into_iter().skip(1));
        arguments = longer;
        named = PathBuf::from(OsString::from_vec(interpreter));
        path = root.absolute(&named);
    }
    Err(LoadError::Script { path, why: "its interpreters are scripts nested more than five deep" })
}

/// Opens the dynamic linker by its path, or in the library root.
fn open_interpreter(
    root: &Root,
    config: &ProcessConfig,
    program: &Path,
    name: &[u8],
) -> Result<(PathBuf, File), LoadError> {
    let path = PathBuf::from(OsString::from_vec(name.to_vec()));
    let error = match root.open_to_read(&path) {
        Ok(file) => return Ok((path, file)),
        Err(error) => error,
    };
    if let Some(library_root) = &config.library_root {
        let other = library_root.join(path.strip_prefix("/").unwrap_or(&path));
        if let Ok(file) = File::open(&other) {
            return Ok((other, file));
        }
    }
    Err(LoadError::Interpreter { path: program.to_owned(), interpreter: path, source: error })
}

fn special(name: &str) -> longma_guest::Backing {
    longma_guest::Backing::Anonymous(Arc::new(Origin { name: name.into(), ..Origin::default() }))
}

/// Maps a page of kernel code for the program and returns its address.
fn map_code(space: &AddressSpace, code: &[u8]) -> Result<u64, Errno> {
    let writable = Protection { read: true, write: true, execute: false };
    let mut request = MapRequest::anonymous(Placement::Hint(0), PAGE_BYTES, writable);
    request.backing = special("[vdso]");
    let address = space.map(&request)?;
    space.memory().write(address, code)?;
    space.protect(address, PAGE_BYTES, Protection { read: true, write: false, execute: true })?;
    Ok(address)
}

fn check_arguments(
    limit: StackLimit,
    arguments: &[Vec<u8>],
    environment: &[Vec<u8>],
) -> Result<(), LoadError> {
    let limit_bytes = limit.max_argument_bytes();
    // Each string also counts its terminator and its pointer.
    let bytes = arguments.iter().chain(environment).map(|text| text.len() as u64 + 9).sum();
    if bytes > limit_bytes { Err(LoadError::Arguments { bytes, limit: limit_bytes }) } else { Ok(()) }
}
