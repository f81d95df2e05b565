//! The files under /proc that describe the guest itself. The host's files would describe the emulator. Source: proc(5)
//! and its pages proc_pid_*(5).

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;

use longma_guest::Errno;
use longma_guest::elf::Architecture;
use longma_guest::host::descriptors;
use longma_guest::{HOST_PAGE_BYTES, Mapping};

use super::in_memory_file::InMemoryFile;
use super::{Follow, ResolvedPath, memory_usage, processors, simulated_proc};
use crate::Process;
use crate::fixed_identity::USER;
use crate::process::is_own_task;
use crate::root::{OpenHow, PROC_MEMORY_FILES, c_path, is_in_proc, kernel_name, last_part, open_how};
use crate::simulated::Simulation;
use crate::simulated::identity::FIRST_ID;

/// A file about the machine. In simulated time, it describes the simulated machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MachineFile {
    /// /proc/meminfo
    Memory,
    /// /proc/stat
    Kernel,
    /// /proc/uptime
    Uptime,
    /// /proc/loadavg
    Load,
}

impl MachineFile {
    const NAMES: [(&str, Self); 4] = [
        ("meminfo", Self::Memory),
        ("stat", Self::Kernel),
        ("uptime", Self::Uptime),
        ("loadavg", Self::Load),
    ];

    fn of(name: &[u8]) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| known.as_bytes() == name).map(|(_, file)| *file)
    }

    fn on_host(self) -> String {
        let entry = Self::NAMES.iter().find(|(_, file)| *file == self);
        format!("/proc/{}", entry.map_or("", |(name, _)| name))
    }

    fn text(self, simulation: &Simulation) -> String {
        match self {
            Self::Memory => simulated_proc::memory(simulation),
            Self::Kernel => simulated_proc::kernel(simulation),
            Self::Uptime => simulated_proc::uptime(simulation),
            Self::Load => simulated_proc::load(),
        }
    }
}

/// A /proc file whose contents are generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcFile {
    /// /proc/self/exe
    Executable,
    /// /proc/self/maps
    Maps,
    /// /proc/self/smaps
    MemoryUsage,
    /// /proc/self/smaps_rollup
    TotalMemoryUsage,
    /// /proc/self/auxv
    AuxiliaryVector,
    /// /proc/self/cmdline
    Arguments,
    /// /proc/self/environ
    Environment,
    /// /proc/self/stat
    Statistics,
    /// /proc/self/status
    Status,
    /// /proc/self/statm
    Sizes,
    /// /proc/cpuinfo
    Processors,
    /// A file about the simulated machine.
    MachineFile(MachineFile),
    /// A file that would expose the emulator's memory.
    Refused,
    /// A descriptor of the emulator.
    Hidden,
}

impl ProcFile {
    /// The generated file at a path, if there is one.
    pub fn find(process: &Process, directory: RawFd, path: &[u8]) -> Option<Self> {
        let generated = Self::of(path).filter(|file| file.is_generated_for(process));
        generated.or_else(|| Self::through_link(process, directory, path))
    }

    /// The generated file with this absolute path. It exists even if the guest's root has no /proc.
    fn of(path: &[u8]) -> Option<Self> {
        let below = path.strip_prefix(b"/proc/")?;
        let parts: Vec<&[u8]> =
            below.split(|&b| b == b'/').filter(|part| !matches!(*part, b"" | b".")).collect();
        match parts[..] {
            [b"cpuinfo"] => Some(Self::Processors),
            [name] if MachineFile::of(name).is_some() => MachineFile::of(name).map(Self::MachineFile),
            [process, ref rest @ ..] if is_self(process) => Self::of_process(rest),
            _ => None,
        }
    }

    /// Whether the file is generated for this process. Without simulated time, files about the machine are the host's.
    fn is_generated_for(self, process: &Process) -> bool {
        !matches!(self, Self::MachineFile(_)) || process.simulation().is_some()
    }

    /// The generated file with these path components below the process's directory.
    fn of_process(rest: &[&[u8]]) -> Option<Self> {
        let is_number = |part: &[u8]| part.iter().all(u8::is_ascii_digit);
        let (name, is_thread) = match *rest {
            [b"fd", number] | [b"task", _, b"fd", number] => {
                let number = std::str::from_utf8(number).ok()?.parse().ok()?;
                return descriptors::is_reserved(number).then_some(Self::Hidden);
            }
            [b"map_files"] | [b"map_files", _] => return Some(Self::Refused),
            [name] => (name, false),
            [b"task", thread, name] if is_number(thread) => (name, true),
            _ => return None,
        };
        Some(match name {
            b"exe" => Self::Executable,
            b"maps" => Self::Maps,
            b"smaps" => Self::MemoryUsage,
            b"smaps_rollup" => Self::TotalMemoryUsage,
            b"auxv" => Self::AuxiliaryVector,
            b"cmdline" => Self::Arguments,
            b"environ" => Self::Environment,
            b"stat" if !is_thread => Self::Statistics,
            b"status" if !is_thread => Self::Status,
            b"statm" => Self::Sizes,
            _ if PROC_MEMORY_FILES.contains(&name) => Self::Refused,
            _ => return None,
        })
    }

    /// Detects links that are reached through a directory or another link. Opening such a path would open the link's
    /// target.
    fn through_link(process: &Process, directory: RawFd, path: &[u8]) -> Option<Self> {
        let last = last_part(path);
        let number = std::str::from_utf8(last).ok().and_then(|text| text.parse().ok());
        let may_be = last == b"exe" || number.is_some_and(descriptors::is_reserved);
        if process.root.is_confined() || !may_be {
            return None;
        }
        let flags = (libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC) as u64;
        let how = OpenHow { flags, mode: 0, resolve: 0 };
        let link = open_how(directory, &c_path(path).ok()?, &how).ok()?;
        Self::of_open_file(process, &link)
    }

    /// The generated file that replaces the open host file `file`, if there is one. The path used to open it is
    /// irrelevant.
    pub fn of_open_file(process: &Process, file: &impl AsFd) -> Option<Self> {
        if !is_in_proc(file) {
            return None;
        }
        let name = kernel_name(file).ok()?;
        // The name starts with the mount point of /proc.
        let parts: Vec<&[u8]> = name.split(|&byte| byte == b'/').collect();
        let generated = parts
            .iter()
            .enumerate()
            .find_map(|(at, part)| Self::of_process(&parts[at + 1..]).zip(number_of(part)));
        match generated {
            None => match parts[..] {
                [.., b"cpuinfo"] => Some(Self::Processors),
                [.., b"proc", name] => {
                    MachineFile::of(name).map(Self::MachineFile).filter(|file| file.is_generated_for(process))
                }
                _ => None,
            },
            Some((file, id)) if is_own_task(id) => Some(file),
            // Emulators of other guests must not be exposed either.
            Some((Self::Hidden, _)) => None,
            Some((_, id)) => runs_this_program(id).then_some(Self::Refused),
        }
    }

    /// Opens the file.
    pub fn open(self, process: &Process, flags: i32) -> Result<OwnedFd, Errno> {
        if self == Self::Hidden {
            return Err(Errno(libc::ENOENT));
        }
        if flags & libc::O_ACCMODE != libc::O_RDONLY && flags & libc::O_PATH == 0 {
            return Err(Errno(libc::EACCES));
        }
        let bytes = match self {
            Self::Executable => {
                let how =
                    OpenHow { flags: flags as u32 as u64 & !(libc::O_CREAT as u64), mode: 0, resolve: 0 };
                return process.root.open(process.executable.as_os_str().as_bytes(), how);
            }
            Self::Refused | Self::Hidden => return Err(Errno(libc::EACCES)),
            Self::Maps => maps(process).into_bytes(),
            Self::MemoryUsage => memory_usage::smaps(process).into_bytes(),
            Self::TotalMemoryUsage => memory_usage::smaps_rollup(process).into_bytes(),
            Self::AuxiliaryVector => process.stack.auxiliary.clone(),
            Self::Arguments => strings(process.arguments.iter().map(Vec::as_slice)),
            Self::Environment => strings(process.config.environment.iter().map(|text| text.as_bytes())),
            Self::Statistics => statistics(process)?,
            Self::Sizes => sizes(process)?,
            Self::Status => status(process)?,
            Self::Processors => processors::text(process).into_bytes(),
            Self::MachineFile(file) => {
                let simulation = process.simulation().ok_or(Errno(libc::ENOENT))?;
                file.text(simulation).into_bytes()
            }
        };
        // The guest gets a read-only descriptor; the writable one is closed again.
        InMemoryFile::of(c"proc", &bytes)?.open(flags & (libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_PATH))
    }

    /// The path of the file on the host, for calls other than open and readlink.
    pub fn resolved_path(self, process: &Process, follow: Follow) -> Result<ResolvedPath, Errno> {
        match self {
            Self::Executable if follow == Follow::Yes => {
                let file = process.root.open_pinned(process.executable.as_os_str().as_bytes(), 0)?;
                Ok(ResolvedPath::of_open_file(file))
            }
            Self::Hidden => Err(Errno(libc::ENOENT)),
            Self::Processors => ResolvedPath::on_host(b"/proc/cpuinfo"),
            Self::MachineFile(file) => ResolvedPath::on_host(file.on_host().as_bytes()),
            // The host's entry has the right type, owner and times.
            Self::Executable => ResolvedPath::on_host(b"/proc/self/exe"),
            _ => ResolvedPath::on_host(b"/proc/self/maps"),
        }
    }
}

/// Whether a path component names this process or one of its threads.
fn is_self(part: &[u8]) -> bool {
    matches!(part, b"self" | b"thread-self")
        || number_of(part).is_some_and(|number| number == FIRST_ID || is_own_task(number))
}

fn number_of(part: &[u8]) -> Option<i32> {
    std::str::from_utf8(part).ok().filter(|text| text.starts_with(|c: char| c.is_ascii_digit()))?.parse().ok()
}

/// Whether a process executes the same file as this one.
fn runs_this_program(process: i32) -> bool {
    let file = |process: &str| {
        std::fs::metadata(format!("/proc/{process}/exe")).map(|file| (file.dev(), file.ino()))
    };
    matches!((file("self"), file(&process.to_string())), (Ok(own), Ok(other)) if own == other)
}

fn strings<'a>(texts: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    texts.flat_map(|text| text.iter().copied().chain([0])).collect()
}

/// /proc/self/maps.
fn maps(process: &Process) -> String {
    let mappings = process.space.mappings();
    let mut lines: String =
        mappings.iter().map(|(range, mapping)| maps_line(process, range, mapping)).collect();
    if process.architecture() == Architecture::X86_64 {
        lines.push_str(VSYSCALL_LINE);
    }
    lines
}

/// The page with the oldest system calls of x86-64, which programs may execute (arch/x86/entry/vsyscall).
const VSYSCALL_LINE: &str =
    "ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]\n";

/// The line of a mapping in /proc/self/maps.
pub(super) fn maps_line(process: &Process, range: &Range<u64>, mapping: &Mapping) -> String {
    let bit = |set, letter| if set { letter } else { '-' };
    let protection = mapping.protection;
    let file = (mapping.origin.device, mapping.origin.inode);
    let (device, inode) = if process.fixed_identity.is_some() { (0, 0) } else { file };
    let line = format!(
        "{:08x}-{:08x} {}{}{}{} {:08x} {:02x}:{:02x} {} ",
        range.start,
        range.end,
        bit(protection.read, 'r'),
        bit(protection.write, 'w'),
        bit(protection.execute, 'x'),
        if mapping.shared { 's' } else { 'p' },
        mapping.offset,
        libc::major(device),
        libc::minor(device),
        inode,
    );
    // The name starts in column 74, as in the kernel.
    let name = process.shown(&mapping.origin.name).replace('\n', "\\012");
    format!("{line:<73}{name}\n")
}

/// The total size of all mappings in bytes.
fn mapped_bytes(process: &Process) -> u64 {
    process.space.mappings().iter().map(|(range, _)| range.end - range.start).sum()
}

/// The id and the fields after the name in /proc/self/stat, from the host or the model.
fn stat_fields(process: &Process, size: u64) -> Result<(String, Vec<String>), Errno> {
    if let Some(simulation) = process.simulation() {
        return Ok((FIRST_ID.to_string(), simulated_proc::process_fields(process, simulation, size)));
    }
    let host = std::fs::read_to_string("/proc/self/stat")?;
    let (id, rest) = host.split_once(' ').unwrap_or_default();
    let fields = rest.rsplit_once(')').map_or("", |(_, fields)| fields);
    Ok((id.to_owned(), fields.split_whitespace().map(str::to_owned).collect()))
}

/// /proc/self/stat with the guest's name, stack and size.
fn statistics(process: &Process) -> Result<Vec<u8>, Errno> {
    let size = mapped_bytes(process);
    let (id, mut fields) = stat_fields(process, size)?;
    // Field n of proc_pid_stat(5) has index n - 3 after the name.
    let (arguments, environment) = (process.stack.arguments, process.stack.environment);
    for (field, value) in [
        (23, size),
        (26, process.program_range.start),
        (27, process.program_range.end),
        (28, process.stack.pointer),
        (48, arguments.0),
        (49, arguments.1),
        (50, environment.0),
        (51, environment.1),
    ] {
        if let Some(text) = fields.get_mut(field - 3) {
            *text = value.to_string();
        }
    }
    Ok(format!("{id} ({}) {}\n", process.short_name(), fields.join(" ")).into_bytes())
}

fn status(process: &Process) -> Result<Vec<u8>, Errno> {
    let size = mapped_bytes(process);
    if let Some(simulation) = process.simulation() {
        return Ok(simulated_proc::status(process, simulation, &process.short_name(), size).into_bytes());
    }
    let host = std::fs::read_to_string("/proc/self/status")?;
    let ids = process.fixed_identity.as_ref().map(|_| [USER; 4].map(|id| format!("\t{id}")).concat());
    let lines = host.lines().map(|line| match line.split(':').next() {
        Some("Name") => format!("Name:\t{}\n", process.short_name()),
        Some(name @ ("Uid" | "Gid")) if ids.is_some() => {
            format!("{name}:{}\n", ids.as_deref().unwrap_or_default())
        }
        Some(name @ ("VmPeak" | "VmSize")) => format!("{name}:\t{:8} kB\n", size / 1024),
        _ => format!("{line}\n"),
    });
    Ok(lines.collect::<String>().into_bytes())
}

/// Sizes in pages: total, resident, shared, code, libraries (unused since Linux 2.6), data and stack, and an unused
/// field.
fn sizes(process: &Process) -> Result<Vec<u8>, Errno> {
    let page_bytes = process.space.page_bytes();
    // In simulated time, the result must not depend on the host's memory.
    let host = match process.simulation() {
        Some(_) => String::new(),
        None => std::fs::read_to_string("/proc/self/statm")?,
    };
    let on_host = |field: usize| {
        let pages = host.split_whitespace().nth(field).and_then(|pages| pages.parse::<u64>().ok());
        pages.unwrap_or(0) * HOST_PAGE_BYTES / page_bytes
    };
    let all = mapped_bytes(process) / page_bytes;
    let code = (process.program_range.end - process.program_range.start).div_ceil(page_bytes);
    let is_data = |mapping: &Mapping| !mapping.shared && mapping.protection.write;
    let data = process.space.mappings().into_iter().filter(|(_, mapping)| is_data(mapping));
    let data: u64 = data.map(|(range, _)| (range.end - range.start) / page_bytes).sum();
    let resident = on_host(1).min(all);
    Ok(format!("{all} {resident} {} {code} 0 {data} 0\n", on_host(2).min(resident)).into_bytes())
}

/// The number of cores of the model, or available on the host.
pub(super) fn cores_of(process: &Process) -> usize {
    // A forked child also reports the model's cores.
    match &process.simulation {
        Some(simulation) => simulation.scheduler.cores(),
        None => std::thread::available_parallelism().map_or(1, usize::from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files_of_the_guest_are_found_under_all_names() {
        let own_id = std::process::id();
        for path in
            ["/proc/self/maps".to_owned(), format!("/proc/{own_id}/maps"), "/proc//self/./maps".to_owned()]
        {
            assert_eq!(ProcFile::of(path.as_bytes()), Some(ProcFile::Maps), "{path}");
        }
        assert_eq!(ProcFile::of(b"/proc/1/maps"), None);
        assert_eq!(ProcFile::of(b"/proc/self/fd/3"), None);
        assert_eq!(ProcFile::of(b"/proc/self/task/12/maps"), Some(ProcFile::Maps));
        let reserved = format!("/proc/self/fd/{}", descriptors::first());
        assert_eq!(ProcFile::of(reserved.as_bytes()), Some(ProcFile::Hidden));
    }
}
