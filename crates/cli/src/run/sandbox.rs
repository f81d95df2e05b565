//! `--sandbox`: drops the emulator's permissions before the program runs, so that a vulnerability in the emulator does
//! not expose the host. `--root` confines the program itself, with or without the sandbox.
//! Source: user_namespaces(7), mount_namespaces(7), mount_setattr(2), landlock(7), seccomp(2).

mod filter;

use std::{
    ffi::CString,
    fmt, fs, io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, Scope,
};

use super::{
    arguments::{Arguments, absolute},
    failure::Failure,
};

/// The first Landlock version that can block signals to processes outside (Linux 6.12).
const LANDLOCK: ABI = ABI::V6;

/// Host files outside the root that the emulator reads for the program.
const READ: [&str; 4] =
    ["/proc", "/sys/devices/system", "/sys/kernel/mm/transparent_hugepage", "/etc/ld.so.cache"];
/// The host's libraries, which the command needs when it restarts itself for execve.
const LIBRARIES: [&str; 4] = ["/lib", "/lib64", "/usr/lib", "/usr/lib64"];
const DEVICES: [&str; 6] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"];

/// A host feature that the sandbox needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HostFeature {
    Namespaces,
    Mounts,
    Landlock,
    Filter,
}

/// A feature that the host lacks, and the reason.
#[derive(Debug)]
struct MissingFeature(HostFeature, String);

impl MissingFeature {
    fn of(part: HostFeature) -> impl Fn(io::Error) -> Self {
        move |error| Self(part, error.to_string())
    }
}

impl fmt::Display for MissingFeature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = match self.0 {
            HostFeature::Namespaces => "new user, mount and IPC namespaces",
            HostFeature::Mounts => "to make the host's files read-only (mount_setattr, Linux 5.12)",
            HostFeature::Landlock => "Landlock version 6 (Linux 6.12)",
            HostFeature::Filter => "a seccomp filter",
        };
        write!(f, "--sandbox needs {part}, which this host does not support: {}", self.1)
    }
}

/// The first given option that would read or write files outside the root while the program runs.
fn refused(arguments: &Arguments) -> Option<&'static str> {
    let given = [
        ("--strace-out", arguments.strace_out.is_some()),
        ("--profile-out", arguments.profile_out.is_some()),
        ("--stacks-out", arguments.stacks_out.is_some()),
        ("--stats-out", arguments.stats_out.is_some()),
        ("--report", arguments.report.is_some()),
        ("--checkpoint", arguments.checkpoint.is_some()),
        ("--restore", arguments.restore.is_some()),
        ("--gdb", arguments.gdb.is_some()),
    ];
    given.iter().find(|(_, given)| *given).map(|(option, _)| *option)
}

/// The access rights of a sandboxed process.
pub struct Sandbox {
    /// The program's root directory, which may be written.
    root: PathBuf,
    /// Files and directories that may be read.
    read: Vec<PathBuf>,
}

/// The sandbox to enter; `None` if none is requested, or if the process is already in it.
///
/// # Errors
/// An option does not work in a sandbox, or the root does not exist.
pub fn requested(arguments: &Arguments) -> Result<Option<Sandbox>, Failure> {
    let Some(root) = arguments.root.as_deref().filter(|_| arguments.sandbox) else { return Ok(None) };
    if let Some(option) = refused(arguments) {
        return Err(Failure::own(
            &format!(
                "{option} cannot be used with --sandbox: in a sandbox, no file outside --root can be opened while the program runs"
            ),
            "leave one of them out; --strace, --stats and --profile print to standard error, and --trace works in a sandbox too",
        ));
    }
    if arguments.sandboxed {
        // execve keeps the restrictions.
        return Ok(None);
    }
    let mut read: Vec<PathBuf> = arguments.library_root.iter().cloned().collect();
    read.extend(arguments.machine.iter().map(PathBuf::from).filter(|file| file.exists()));
    Ok(Some(Sandbox { root: absolute(root, "--root")?, read }))
}

impl Sandbox {
    /// Puts this process, which must have a single thread, into the sandbox.
    ///
    /// # Errors
    /// The host lacks a needed feature.
    pub fn enter(&self) -> Result<(), Failure> {
        confine(&self.root, &self.read).map_err(|lacking| {
            Failure::own(
                &lacking.to_string(),
                "leave --sandbox out, or use a host that supports it; the book's chapter on running programs describes the protection without it",
            )
        })
    }
}

/// Restricts this process and its children to writing below `root` and to reading `root`, `read` and the emulator's own
/// files.
fn confine(root: &Path, read: &[PathBuf]) -> Result<(), MissingFeature> {
    own_namespaces().map_err(MissingFeature::of(HostFeature::Namespaces))?;
    only_writable(root).map_err(MissingFeature::of(HostFeature::Mounts))?;
    landlocked(root, read).map_err(|error| MissingFeature(HostFeature::Landlock, error.to_string()))?;
    filter::apply().map_err(|error| MissingFeature(HostFeature::Filter, error.to_string()))
}

fn done(returned: i64) -> io::Result<()> {
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Creates user, mount and IPC namespaces. The user keeps its IDs and has no capabilities outside.
fn own_namespaces() -> io::Result<()> {
    // SAFETY: these calls have no arguments and cannot fail.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    // SAFETY: no pointers; the process does not depend on its namespaces yet.
    done(unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWIPC) }.into())?;
    // Otherwise the process could drop groups that exist to deny it access.
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1"))
}

fn set_mount(path: &CString, recursive: bool, set: u64, clear: u64) -> io::Result<()> {
    let attributes = libc::mount_attr { attr_set: set, attr_clr: clear, propagation: 0, userns_fd: 0 };
    let flags = if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path and the structure are valid for the call.
    done(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            path.as_ptr(),
            flags,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    })
}

/// Makes all mounts read-only except the one at `root`, which gets nodev and nosuid.
fn only_writable(root: &Path) -> io::Result<()> {
    let place = CString::new(root.as_os_str().as_bytes())?;
    let nothing = std::ptr::null();
    // SAFETY: all paths are terminated; null is valid for the unused type and data arguments.
    unsafe {
        done(
            libc::mount(nothing, c"/".as_ptr(), nothing, libc::MS_REC | libc::MS_PRIVATE, nothing.cast())
                .into(),
        )?;
        let bind = libc::MS_BIND | libc::MS_REC;
        done(libc::mount(place.as_ptr(), place.as_ptr(), nothing, bind, nothing.cast()).into())?;
    }
    set_mount(&c"/".to_owned(), true, libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID, 0)?;
    let restricted = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
    set_mount(&place, true, restricted, 0)?;
    // A root on a read-only mount stays read-only.
    match set_mount(&place, false, 0, libc::MOUNT_ATTR_RDONLY) {
        Err(error) if error.raw_os_error() != Some(libc::EPERM) => Err(error),
        _ => Ok(()),
    }
}

type Rules = Result<RulesetCreated, landlock::RulesetError>;

/// Allows `access` below a path; for a file, only the rights that apply to files. A missing path needs no rule.
fn allow(rules: RulesetCreated, path: &Path, access: BitFlags<AccessFs>) -> Rules {
    let Ok(place) = PathFd::new(path) else { return Ok(rules) };
    let access = if path.is_dir() { access } else { access & AccessFs::from_file(LANDLOCK) };
    rules.add_rule(PathBeneath::new(place, access))
}

fn landlocked(root: &Path, read: &[PathBuf]) -> Result<(), landlock::RulesetError> {
    let reading = AccessFs::ReadFile | AccessFs::ReadDir;
    let running = reading | AccessFs::Execute;
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(LANDLOCK))?
        .scope(Scope::from_all(LANDLOCK))?
        .create()?;
    rules = allow(rules, root, AccessFs::from_all(LANDLOCK))?;
    for path in READ.iter().map(Path::new).chain(read.iter().map(PathBuf::as_path)) {
        rules = allow(rules, path, reading)?;
    }
    for path in DEVICES.iter().map(Path::new) {
        rules = allow(rules, path, AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev)?;
    }
    let own = std::env::current_exe().unwrap_or_else(|_| "/proc/self/exe".into());
    for path in LIBRARIES.iter().map(Path::new).chain([own.as_path()]) {
        rules = allow(rules, path, running)?;
    }
    rules.restrict_self().map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tries attacks from within a sandbox; returns the error number of each, 0 for success.
    fn tried(root: &Path, outside: &Path) -> Vec<(&'static str, i32)> {
        let number =
            |result: io::Result<()>| result.err().map_or(0, |error| error.raw_os_error().unwrap_or(-1));
        let call = |number: i64, arguments: [i64; 3]| {
            // SAFETY: only numbers, and null pointers, which the kernel rejects.
            done(unsafe { libc::syscall(number, arguments[0], arguments[1], arguments[2]) })
        };
        let secret = outside.join("secret");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        // SAFETY: no arguments; it cannot fail.
        let parent = i64::from(unsafe { libc::getppid() });
        vec![
            ("write inside", number(fs::write(root.join("file"), "x"))),
            ("read inside", number(fs::read(root.join("file")).map(drop))),
            ("read /proc", number(fs::read("/proc/self/status").map(drop))),
            ("write /dev/null", number(fs::write("/dev/null", "x"))),
            ("read outside", number(fs::read(&secret).map(drop))),
            ("write outside", number(fs::write(outside.join("new"), "x"))),
            ("chmod outside", number(fs::set_permissions(&secret, mode))),
            ("unlink outside", number(fs::remove_file(&secret))),
            ("sysctl", number(fs::write("/proc/sys/kernel/core_pattern", "core"))),
            ("signal the parent", number(call(libc::SYS_kill, [parent, 0, 0]))),
            (
                "run the host's shell",
                number(std::process::Command::new("/bin/sh").arg("-c").arg(":").status().map(drop)),
            ),
            ("ptrace", number(call(libc::SYS_ptrace, [libc::PTRACE_TRACEME.into(), 0, 0]))),
            ("new namespace", number(call(libc::SYS_unshare, [libc::CLONE_NEWUSER.into(), 0, 0]))),
            (
                "packet socket",
                number(call(libc::SYS_socket, [libc::AF_PACKET.into(), libc::SOCK_RAW.into(), 0])),
            ),
            ("mount", number(call(libc::SYS_mount, [0, 0, 0]))),
            ("push a terminal's input", number(call(libc::SYS_ioctl, [0, libc::TIOCSTI as i64, 0]))),
        ]
    }

    #[test]
    fn a_sandboxed_emulator_cannot_attack_the_host() {
        let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(outside.path().join("secret"), "secret").unwrap();
        let (reader, mut writer) = io::pipe().unwrap();
        // SAFETY: the child has a single thread and ends with _exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let report = match confine(&root.path().canonicalize().unwrap(), &[]) {
                Ok(()) => {
                    let tried = tried(root.path(), outside.path());
                    tried.iter().map(|(what, error)| format!("{what}: {error}\n")).collect()
                }
                Err(lacking) => lacking.to_string(),
            };
            let _ = io::Write::write_all(&mut writer, report.as_bytes());
            // SAFETY: it ends the child immediately.
            unsafe { libc::_exit(0) };
        }
        drop(writer);
        let report = io::read_to_string(reader).unwrap();
        // SAFETY: the child is ours, and the null pointer discards its status.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        if report.contains("--sandbox needs") {
            eprintln!("skipped: {report}");
            return;
        }
        let (acces, perm, nosys, rofs) = (libc::EACCES, libc::EPERM, libc::ENOSYS, libc::EROFS);
        // SAFETY: no arguments; it cannot fail.
        let is_root = unsafe { libc::geteuid() } == 0;
        let expected = [
            ("write inside", 0),
            ("read inside", 0),
            ("read /proc", 0),
            ("write /dev/null", 0),
            ("read outside", acces),
            ("write outside", rofs),
            ("chmod outside", rofs),
            ("unlink outside", rofs),
            ("sysctl", if is_root { rofs } else { acces }),
            ("signal the parent", perm),
            ("run the host's shell", acces),
            ("ptrace", nosys),
            ("new namespace", nosys),
            ("packet socket", nosys),
            ("mount", nosys),
            ("push a terminal's input", nosys),
        ];
        let expected: String = expected.iter().map(|(what, error)| format!("{what}: {error}\n")).collect();
        assert_eq!(report, expected);
    }
}
