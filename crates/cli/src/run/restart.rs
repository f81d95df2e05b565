//! Builds the command line and environment with which a guest's execve restarts this command. `longma-linux` implements
//! execve.

use std::{
    ffi::OsString,
    fs::File,
    io::Read,
    os::{
        fd::{FromRawFd, OwnedFd},
        unix::ffi::OsStringExt,
    },
    path::Path,
};

use longma_command_line::Format;
use longma_run_results::process_costs::Costs;
use longma_runner::optimizations::Optimizations;

use super::{
    arguments::{Arguments, MAX_CODE_AREA_MIB, absolute},
    failure::Failure,
};

/// This command with the options that also apply to the next program.
pub fn command(arguments: &Arguments) -> Result<Vec<OsString>, Failure> {
    let mut command: Vec<OsString> = vec!["longma".into(), "run".into()];
    let mut option = |name: &str, value: Option<OsString>| {
        if let Some(value) = value {
            command.extend([name.into(), value]);
        }
    };
    let path = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.into()).into_os_string();
    for (name, given) in [("--root", &arguments.root), ("--library-root", &arguments.library_root)] {
        // Absolute, because the program may change its working directory.
        option(name, given.as_deref().map(|path| absolute(path, name)).transpose()?.map(Into::into));
    }
    option("--strace-out", arguments.strace_out.as_deref().map(path));
    option("--profile-out", arguments.profile_out.as_deref().map(path));
    if let Some(file) = &arguments.stacks_out {
        option("--stacks-out", Some(path(file)));
        option("--stacks-every", Some(arguments.stacks_every.to_string().into()));
    }
    let machine = arguments.machine.as_deref().map(Path::new);
    option("--machine", machine.map(|name| if name.exists() { path(name) } else { name.into() }));
    for edit in &arguments.set {
        option("--set", Some(edit.to_string().into()));
    }
    option("--format", (arguments.format == Format::Json).then(|| "json".into()));
    for wire in &arguments.wire {
        option("--wire", Some(wire.into()));
    }
    option("--seed", Some(arguments.seed.to_string().into()));
    option("--x86-features", arguments.x86_features.map(|features| features.name().into()));
    let optimizations =
        Some(arguments.translation).filter(|optimizations| *optimizations != Optimizations::default());
    option("--translation", optimizations.map(|optimizations| optimizations.to_string().into()));
    let room = arguments.translation_room;
    option("--translation-room", (room != MAX_CODE_AREA_MIB).then(|| room.to_string().into()));
    let cache = arguments.translation_directory().unwrap_or_else(|| "none".into());
    option("--translation-cache", Some(cache.into()));
    let reporting = arguments.reporting_process.unwrap_or_else(std::process::id);
    option("--reporting-process", Some(reporting.to_string().into()));
    let flags = [
        ("--stats", arguments.stats),
        ("--profile", arguments.profile),
        ("--strace", arguments.strace),
        ("--interpret", arguments.interpret),
        ("--fixed-names", arguments.fixed_names),
        ("--sandbox", arguments.sandbox),
        ("--sandboxed", arguments.sandbox),
    ];
    command.extend(flags.iter().filter(|(_, set)| *set).map(|(name, _)| OsString::from(name)));
    Ok(command)
}

/// Reads the environment that the previous program left in a file.
pub fn environment(descriptor: i32) -> Result<Vec<OsString>, Failure> {
    let bytes = passed("--environment-from", descriptor)?;
    let variables = bytes.split(|&byte| byte == 0).filter(|variable| !variable.is_empty());
    Ok(variables.map(|variable| OsString::from_vec(variable.to_vec())).collect())
}

/// The costs of the programs before this one, from the file of `--earlier-programs`.
pub fn earlier_programs(descriptor: Option<i32>) -> Result<Costs, Failure> {
    let Some(descriptor) = descriptor else { return Ok(Costs::default()) };
    let option = "--earlier-programs";
    Costs::parse(&passed(option, descriptor)?).map_err(|error| {
        let message = format!("the file of {option} is damaged: {error}");
        Failure::own(&message, "leave the option out: only this command passes it, to itself")
    })
}

/// Reads and closes the file that the previous program left for `option`.
fn passed(option: &str, descriptor: i32) -> Result<Vec<u8>, Failure> {
    if descriptor < 3 || is_closed(descriptor) {
        return Err(Failure::own(
            &format!("{option} is not an open descriptor"),
            "leave it out: only this command passes it, to itself",
        ));
    }
    // SAFETY: the descriptor is open, and the process that passed it does not use it any more.
    let mut file = File::from(unsafe { OwnedFd::from_raw_fd(descriptor) });
    let mut bytes = Vec::new();
    // Fails for a pipe, which has no position to reset.
    let _ = std::io::Seek::rewind(&mut file);
    file.read_to_end(&mut bytes).map_err(|error| {
        Failure::host(&format!("read the file of {option} from the previous program"), &error)
    })?;
    Ok(bytes)
}

fn is_closed(descriptor: i32) -> bool {
    // SAFETY: F_GETFD takes no pointers and changes nothing.
    unsafe { libc::fcntl(descriptor, libc::F_GETFD) == -1 }
}
