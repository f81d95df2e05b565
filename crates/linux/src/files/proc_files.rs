//! The files under /proc that show a guest itself: without these it would see the emulator.
//! Not the rest of /proc, which is the host's.
//! Source: proc(5) and its pages proc_pid_*(5); LoongArch arch/loongarch/kernel/proc.c (cpuinfo).

use std::fmt::Write;
use std::io::{Seek, Write as _};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use super::root::{OpenHow, c_path, open_how};
use super::{Follow, Place};
use crate::simulated::identity::FIRST_ID;
use crate::{Errno, Process};

/// A file whose contents are the guest's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcFile {
    /// /proc/self/exe
    Executable,
    /// /proc/self/maps
    Maps,
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
    /// /proc/cpuinfo
    Processors,
    /// What would show the emulator's memory.
    Refused,
}

impl ProcFile {
    /// The file a path names, if it is one of these.
    pub fn of(path: &[u8]) -> Option<Self> {
        let below = path.strip_prefix(b"/proc/")?;
        let parts: Vec<&[u8]> =
            below.split(|&b| b == b'/').filter(|part| !matches!(*part, b"" | b".")).collect();
        let name = match parts[..] {
            [b"cpuinfo"] => return Some(Self::Processors),
            [process, name] if is_self(process) => name,
            [process, b"task", thread, name] if is_self(process) && thread.iter().all(u8::is_ascii_digit) => {
                name
            }
            _ => return None,
        };
        Some(match name {
            b"exe" => Self::Executable,
            b"maps" => Self::Maps,
            b"auxv" => Self::AuxiliaryVector,
            b"cmdline" => Self::Arguments,
            b"environ" => Self::Environment,
            b"stat" if parts.len() == 2 => Self::Statistics,
            b"status" if parts.len() == 2 => Self::Status,
            b"mem" | b"smaps" | b"smaps_rollup" | b"numa_maps" | b"pagemap" | b"syscall" | b"stack"
            | b"personality" => Self::Refused,
            _ => return None,
        })
    }

    /// Whether a path names an open file of the guest: those lead where the guest already is.
    pub fn is_descriptor(path: &[u8]) -> bool {
        let rest = [&b"/proc/self/fd/"[..], b"/dev/fd/", b"/proc/thread-self/fd/"]
            .iter()
            .find_map(|prefix| path.strip_prefix(*prefix));
        match rest {
            Some(number) => !number.is_empty() && number.iter().all(u8::is_ascii_digit),
            None => matches!(
                path,
                b"/dev/stdin" | b"/dev/stdout" | b"/dev/stderr" | b"/proc/self/fd" | b"/dev/fd"
            ),
        }
    }

    /// Opens it.
    pub fn open(self, process: &Process, flags: i32) -> Result<OwnedFd, Errno> {
        if flags & libc::O_ACCMODE != libc::O_RDONLY && flags & libc::O_PATH == 0 {
            return Err(Errno(libc::EACCES));
        }
        let bytes = match self {
            Self::Executable => {
                let how =
                    OpenHow { flags: flags as u32 as u64 & !(libc::O_CREAT as u64), mode: 0, resolve: 0 };
                return process.root.open(process.executable.as_os_str().as_bytes(), how);
            }
            Self::Refused => return Err(Errno(libc::EACCES)),
            Self::Maps => maps(process).into_bytes(),
            Self::AuxiliaryVector => process.stack.auxiliary.clone(),
            Self::Arguments => strings(process.arguments.iter().map(Vec::as_slice)),
            Self::Environment => strings(process.config.environment.iter().map(|text| text.as_bytes())),
            Self::Statistics => statistics(process)?,
            Self::Status => status(process)?,
            Self::Processors => processors().into_bytes(),
        };
        // Read-only for the guest: the writable descriptor is closed again.
        // SAFETY: the name is terminated; the descriptor is new and ours.
        let descriptor = unsafe { libc::memfd_create(c"proc".as_ptr(), libc::MFD_CLOEXEC) };
        if descriptor < 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        // SAFETY: as above.
        let mut file = unsafe { std::fs::File::from_raw_fd(descriptor) };
        file.write_all(&bytes)?;
        file.rewind()?;
        let path = c_path(format!("/proc/self/fd/{descriptor}").as_bytes())?;
        let kept = libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_PATH;
        let how = OpenHow { flags: (flags & kept) as u64, mode: 0, resolve: 0 };
        open_how(libc::AT_FDCWD, &path, &how)
    }

    /// Its place, for calls other than open and readlink.
    pub fn place(self, process: &Process, follow: Follow) -> Result<Place, Errno> {
        match self {
            Self::Executable if follow == Follow::Yes => {
                Place::of_descriptor(self.open(process, libc::O_PATH)?)
            }
            Self::Processors => Place::on_host(b"/proc/cpuinfo"),
            // The host's own entry has the right type, owner and times.
            Self::Executable => Place::on_host(b"/proc/self/exe"),
            _ => Place::on_host(b"/proc/self/maps"),
        }
    }
}

fn is_self(part: &[u8]) -> bool {
    let number = std::str::from_utf8(part).ok().and_then(|text| text.parse().ok());
    matches!(part, b"self" | b"thread-self")
        // SAFETY: getpid has no arguments and cannot fail.
        || number == Some(unsafe { libc::getpid() })
        || number == Some(FIRST_ID)
}

fn strings<'a>(texts: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    texts.flat_map(|text| text.iter().copied().chain([0])).collect()
}

/// /proc/self/maps.
fn maps(process: &Process) -> String {
    let mut text = String::new();
    for (range, mapping) in process.space.mappings() {
        let bit = |set, letter| if set { letter } else { '-' };
        let protection = mapping.protection;
        let line = format!(
            "{:08x}-{:08x} {}{}{}{} {:08x} {:02x}:{:02x} {} ",
            range.start,
            range.end,
            bit(protection.read, 'r'),
            bit(protection.write, 'w'),
            bit(protection.execute, 'x'),
            if mapping.shared { 's' } else { 'p' },
            mapping.offset,
            libc::major(mapping.origin.device),
            libc::minor(mapping.origin.device),
            mapping.origin.inode,
        );
        // The name starts in column 74, as the kernel pads it.
        let name = mapping.origin.name.replace('\n', "\\012");
        writeln!(text, "{line:<73}{name}").expect("writing to a string cannot fail");
    }
    text
}

/// The host's line, with the guest's name, stack and size in it.
fn statistics(process: &Process) -> Result<Vec<u8>, Errno> {
    let host = std::fs::read_to_string("/proc/self/stat")?;
    let (Some(open), Some(close)) = (host.find('('), host.rfind(')')) else { return Ok(host.into_bytes()) };
    let mut fields: Vec<String> = host[close + 1..].split_whitespace().map(str::to_owned).collect();
    let size: u64 = process.space.mappings().iter().map(|(range, _)| range.end - range.start).sum();
    // Field n of proc_pid_stat(5) has index n - 3 behind the name.
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
    Ok(format!("{}({}) {}\n", &host[..open], short_name(process), fields.join(" ")).into_bytes())
}

fn status(process: &Process) -> Result<Vec<u8>, Errno> {
    let host = std::fs::read_to_string("/proc/self/status")?;
    let size: u64 = process.space.mappings().iter().map(|(range, _)| range.end - range.start).sum();
    let lines = host.lines().map(|line| match line.split(':').next() {
        Some("Name") => format!("Name:\t{}\n", short_name(process)),
        Some(name @ ("VmPeak" | "VmSize")) => format!("{name}:\t{:8} kB\n", size / 1024),
        _ => format!("{line}\n"),
    });
    Ok(lines.collect::<String>().into_bytes())
}

/// The name of the thread that asks, as the kernel shortens it.
fn short_name(process: &Process) -> String {
    let name = process.executable.file_name().map(|name| name.to_string_lossy().into_owned());
    name.unwrap_or_default().chars().take(15).collect()
}

/// /proc/cpuinfo of a 3A5000 with as many cores as the host gives us.
fn processors() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut text = "system type\t\t: generic-loongson-machine\n\n".to_owned();
    for core in 0..cores {
        write!(
            text,
            "processor\t\t: {core}\npackage\t\t\t: 0\ncore\t\t\t: {core}\nglobal_id\t\t: {core}\n\
             CPU Family\t\t: Loongson-64bit\nModel Name\t\t: Loongson-3A5000\nCPU Revision\t\t: 0x11\n\
             FPU Revision\t\t: 0x00\nCPU MHz\t\t\t: 2500.00\nBogoMIPS\t\t: 5000.00\nTLB Entries\t\t: 2112\n\
             Address Sizes\t\t: 48 bits physical, 48 bits virtual\nISA\t\t\t: loongarch32 loongarch64\n\
             Features\t\t: cpucfg lam ual fpu lsx lasx crc32 lbt_x86 lbt_arm lbt_mips\n\
             Hardware Watchpoint\t: yes, iwatch count: 8, dwatch count: 8\n\n"
        )
        .expect("writing to a string cannot fail");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guests_own_files_are_found_under_every_name_they_have() {
        let own = std::process::id();
        for path in
            ["/proc/self/maps".to_owned(), format!("/proc/{own}/maps"), "/proc//self/./maps".to_owned()]
        {
            assert_eq!(ProcFile::of(path.as_bytes()), Some(ProcFile::Maps), "{path}");
        }
        assert_eq!(ProcFile::of(b"/proc/1/maps"), None);
        assert_eq!(ProcFile::of(b"/proc/self/fd/3"), None);
        assert_eq!(ProcFile::of(b"/proc/self/task/12/maps"), Some(ProcFile::Maps));
        assert!(
            ProcFile::is_descriptor(b"/proc/self/fd/3") && !ProcFile::is_descriptor(b"/proc/self/fd/3/..")
        );
    }
}
